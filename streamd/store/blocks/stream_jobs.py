"""`StreamJobs`: the jobs of one stream on the block thread, and the first failure among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from streamd.callbacks import ignore
from streamd.errors import DiskError, StreamdError
from streamd.store.disk import Thread

T = TypeVar("T")


class StreamJobs:
    """Runs the jobs of one stream, in order. The first failure is final (I10).

    A job that fails sets `failure` itself, on the block thread: a later job of the stream must not
    build on a write that failed. `on_error` is called once, on the event loop.
    """

    def __init__(self, directory: str, thread: Thread) -> None:
        self.failure: StreamdError | None = None
        self.on_error: Callable[[StreamdError], None] = ignore
        self.is_closed = False  # nothing is read or removed for the stream any more
        self._directory = directory
        self._thread = thread

    @property
    def is_inline(self) -> bool:
        """True on the block thread itself: recovery runs in a job of its own."""
        return self._thread.is_current()

    def submit(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `job` on the block thread; then call `done` with its result or error, on the loop.

        On the block thread itself both run at once.
        """
        if not self._thread.is_current():
            self._thread.submit(job, done)
            return
        result: T | BaseException
        try:
            result = job()
        except StreamdError as err:
            result = err
        done(result)

    def check(self) -> None:
        """Raise the failure there was, if any."""
        if self.failure is not None:
            raise self.failure

    def fail(self, err: BaseException) -> None:
        """Record the error of a job, and call `on_error` with the first."""
        is_first = self.failure is None or err is self.failure
        if not isinstance(err, StreamdError):
            err = DiskError(f"{self._directory}: {err!r}")
        self.failure = self.failure or err
        if is_first:
            self.on_error(err)
