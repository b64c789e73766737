"""Steps of TLS handshakes: on a few threads of their own, in the order they come.

A step takes a processor for a millisecond or more, by nothing but a connection, and OpenSSL lets
other threads run meanwhile. So steps do not run on the loop, which has others to serve, and on no
more threads than leave a processor to it. Steps of connections that are gone are not run.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

THREADS: Final = max(1, min(4, (os.cpu_count() or 1) // 2))


class _Waiting(NamedTuple):
    step: Callable[[], Any]
    is_gone: Callable[[], bool]
    done: Callable[[Any], None]


class Handshakes:
    """Handshakes of one server. All methods are called on the loop, as is `done`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # made when the first connection comes
        self._queue: deque[_Waiting] = deque()
        self._running = 0

    def run(
        self,
        loop: asyncio.AbstractEventLoop,
        step: Callable[[], Any],
        *,
        is_gone: Callable[[], bool],
        done: Callable[[Any], None],
    ) -> None:
        """Run `step`, which must not raise, when it is its turn, and call `done` with what it
        returns, later; neither is called if `is_gone` by then."""
        self._queue.append(_Waiting(step, is_gone, done))
        self._run_next(loop)

    def close(self) -> None:
        """Start no more steps; those that run end by themselves."""
        self._queue.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._running < THREADS and self._queue:
            waiting = self._queue.popleft()
            if waiting.is_gone():
                continue
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="handshake")
            self._running += 1
            running = loop.run_in_executor(self._pool, waiting.step)
            running.add_done_callback(partial(self._on_finished, loop, waiting))

    def _on_finished(
        self, loop: asyncio.AbstractEventLoop, waiting: _Waiting, running: asyncio.Future[Any]
    ) -> None:
        self._running -= 1
        try:
            if not running.cancelled() and not waiting.is_gone():
                waiting.done(running.result())
        finally:
            self._run_next(loop)
