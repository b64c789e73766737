"""Progress of what takes longer than a second, on standard error of a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
_SHOWN_AFTER_S = 1.0


_in_use = threading.Lock()  # by the one bar or spinner that is shown: others stay unseen


def _place() -> dict[str, Any]:
    """Return where a bar is shown: what is printed meanwhile goes where it would go without it."""
    from rich.console import Console

    return {
        "console": Console(stderr=True, highlight=False),
        "transient": True,
        "redirect_stdout": False,
        "redirect_stderr": False,
    }


class Steps(Protocol):
    """Counter of what was done."""

    def advance(self, count: int = 1) -> None: ...

    def expect(self, count: int) -> None:
        """Add to what is to be done."""


class _Silent:
    def advance(self, count: int = 1) -> None:
        """Show nothing: there is no terminal."""

    def expect(self, count: int) -> None:
        """Show nothing."""


class _Bar:
    """Bar that appears when a second has passed."""

    def __init__(self, title: str, total: int | None, *, is_bytes: bool) -> None:
        self._title = title
        self._total = total
        self._is_bytes = is_bytes
        self._done = 0
        self._began = time.monotonic()
        self._progress: Any = None
        self._task: Any = None

    def advance(self, count: int = 1) -> None:
        self._done += count
        if self._progress is None:
            is_early = time.monotonic() - self._began < _SHOWN_AFTER_S
            if is_early or not _in_use.acquire(blocking=False):
                return
            self._show()
        self._progress.update(self._task, completed=self._done)

    def expect(self, count: int) -> None:
        self._total = (self._total or 0) + count
        if self._progress is not None:
            self._progress.update(self._task, total=self._total)

    def _show(self) -> None:
        from rich import progress

        counts = (
            (progress.DownloadColumn(), progress.TransferSpeedColumn())
            if self._is_bytes
            else (progress.MofNCompleteColumn(),)
        )
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            *counts,
            progress.TimeElapsedColumn(),
            **_place(),
        )
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=self._total)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            _in_use.release()


@contextmanager
def progress_bar(
    title: str, total: int | None = None, *, is_bytes: bool = False
) -> Iterator[Steps]:
    """Show how far something is; nothing where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    bar = _Bar(title, total, is_bytes=is_bytes)
    try:
        yield bar
    finally:
        bar.stop()


@contextmanager
def no_progress() -> Iterator[None]:
    """Show no bar and no spinner meanwhile: the terminal has a page of its own."""
    is_ours = _in_use.acquire(blocking=False)
    try:
        yield
    finally:
        if is_ours:
            _in_use.release()


def with_progress(title: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items, and show how many of them are done."""
    with progress_bar(title, len(items)) as bar:
        for item in items:
            yield item
            bar.advance()


class _Spinner:
    """Sign of life that appears when a second has passed, by a thread: its caller waits."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._is_over = False
        self._status: Any = None
        self._timer = threading.Timer(_SHOWN_AFTER_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        from rich import progress

        with self._lock:
            if not self._is_over and _in_use.acquire(blocking=False):
                self._status = progress.Progress(
                    progress.SpinnerColumn(),
                    progress.TextColumn("{task.description}", markup=False),
                    progress.TimeElapsedColumn(),
                    **_place(),
                )
                self._status.start()
                self._status.add_task(self._title, total=None)

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._status is not None:
                self._status.stop()
                _in_use.release()


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """Show that something goes on of which nothing is counted; nothing may be printed meanwhile.
    Shows nothing where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    shown = _Spinner(title)
    try:
        yield
    finally:
        shown.stop()
