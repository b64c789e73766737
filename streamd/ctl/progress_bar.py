"""Progress of what takes longer than a second, on standard error of a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_SHOWN_AFTER_S = 1.0


class Steps(Protocol):
    """Counter of what was done."""

    def advance(self, count: int = 1) -> None: ...


class _Silent:
    def advance(self, count: int = 1) -> None:
        """Show nothing: there is no terminal."""


class _Bar:
    """Bar that appears when a second has passed."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._progress: Any = None
        self._task: Any = None

    def advance(self, count: int = 1) -> None:
        self._done += count
        if self._progress is None:
            if time.monotonic() - self._began < _SHOWN_AFTER_S:
                return
            self._show()
        self._progress.update(self._task, completed=self._done)

    def _show(self) -> None:
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=self._total)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def progress_bar(title: str, total: int | None = None) -> Iterator[Steps]:
    """Show how far something is; nothing where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    bar = _Bar(title, total)
    try:
        yield bar
    finally:
        bar.stop()
