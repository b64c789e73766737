"""Progress of a job on stderr: a bar on a terminal, else a line every ten seconds.

Standard output stays free for what the job prints. `Progress` counts what the caller tells it;
`follow` counts finished Spark tasks while an action blocks the calling thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE_EVERY_S: Final = 10.0
TASKS_EVERY_S: Final = 0.5


class Progress:
    """Count of finished work, shown on stderr. `total` None: not known. Safe to call from several
    threads."""

    def __init__(
        self,
        total: int | None,
        label: str,
        *,
        unit: str = "rows",
        is_quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self.total = total
        self.label = label
        self.unit = unit
        self.done = 0
        self._stream = stream or sys.stderr
        self._is_quiet = is_quiet
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._ticker: threading.Thread | None = None
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        if self._is_quiet:
            return self
        if self._stream.isatty():
            self._bar = _bar(self._stream, self.unit)
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total)
        else:
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._bar is not None:
            self._bar.stop()
        if self._ticker is not None:
            self._ticker.join()
            if kind is None:
                self._line()

    def advance(self, count: int = 1) -> None:
        """`count` more are done."""
        self.update(self.done + count)

    def update(self, done: int, *, total: int | None = None) -> None:
        """`done` in all; `total` replaces the number expected."""
        with self._lock:
            self.done = done
            self.total = self.total if total is None else total
            if self._bar is not None:
                self._bar.update(self._task, completed=done, total=self.total)

    def note(self, text: str) -> None:
        """Print a line beside the count, at once."""
        if self._is_quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=self._stream, flush=True)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        while not self._is_over.wait(LINE_EVERY_S):
            self._line()

    def _line(self) -> None:
        if not self.done and not self.total:  # nothing is known: no numbers that look like none
            print(f"{self.label}: {self.elapsed_s:.1f} s", file=self._stream, flush=True)
            return
        of = f"/{self.total:,}" if self.total is not None else ""
        rate = self.done / max(self.elapsed_s, 0.001)
        print(
            f"{self.label}: {self.done:,}{of} {self.unit}, {self.elapsed_s:.1f} s, "
            f"{rate:,.0f} {self.unit}/s",
            file=self._stream,
            flush=True,
        )


@contextmanager
def follow(spark: SparkSession, label: str, *, is_quiet: bool = False) -> Iterator[Progress]:
    """Show the Spark tasks that finish inside, of all jobs of this session."""
    with Progress(None, label, unit="tasks", is_quiet=is_quiet) as progress:
        if is_quiet:
            yield progress
            return
        read = _task_counter(spark)
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(TASKS_EVERY_S):
                done, total = read()
                progress.update(done, total=total or None)

        watcher = threading.Thread(target=watch, name="tasks", daemon=True)
        watcher.start()
        try:
            yield progress
        finally:
            is_over.set()
            watcher.join()
            with suppress(Exception):  # the numbers are a courtesy; the session may be gone
                done, total = read()
                progress.update(done, total=total or None)


def _task_counter(spark: SparkSession) -> Callable[[], tuple[int, int]]:
    """A function that returns (tasks done, tasks known), counted from now on."""
    if "connect" in type(spark).__module__:
        seen: dict[str, tuple[int, int]] = {}

        def handler(stages: Any, operation_id: str, **_: Any) -> None:
            done = sum(each.num_completed_tasks for each in stages or ())
            total = sum(each.num_tasks for each in stages or ())
            seen[operation_id] = (done, max(done, total))

        spark.registerProgressHandler(handler)  # type: ignore[arg-type]
        return lambda: (sum(d for d, _ in seen.values()), sum(t for _, t in seen.values()))
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    counts: dict[int, tuple[int, int]] = {}

    def read() -> tuple[int, int]:
        # By the jobs, which are known also after they ended: a stage may be over between two looks.
        for job_id in set(tracker.getJobIdsForGroup()) - before:
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None and stage.numCompletedTasks:
                    counts[stage_id] = (stage.numCompletedTasks, stage.numTasks)
        done = sum(done for done, _ in counts.values())
        return done, sum(total for _, total in counts.values())

    return read


def _bar(stream: TextIO, unit: str) -> Any:
    """A rich progress bar on `stream`."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=False,
    )
