"""The rows of one task, as an iterator of record batches that can be cut, paced and put back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from spark_jobs.sink.rows import Rows, Sums, add_sums, rows_of
from spark_jobs.sink.sink_options import Layout, Pace

_SLOT_S: Final = 0.01  # rows due within it go together
_NAP_S_MAX: Final = 0.5


class Pacer:
    """Says how many of the next rows may go now. Counts from the first row it was asked about."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._began = 0.0
        self._sent = 0

    def wait(self, rows: Rows) -> int:
        """Wait until the first of `rows` is due; return how many are, at least 1."""
        pace = self._pace
        count = len(rows)
        if pace.rows_per_s:
            count = min(count, self._by_rate(pace.rows_per_s))
        if pace.speed and rows.pace is not None:
            count = min(count, self._by_time(rows.pace))
        self._sent += count
        return count

    def _by_rate(self, rows_per_s: float) -> int:
        now = time.monotonic()
        self._began = self._began or now
        due = int((now + _SLOT_S - self._began) * rows_per_s) - self._sent
        if due < 1:
            _nap_until(self._began + (self._sent + 1) / rows_per_s - _SLOT_S, time.monotonic)
            due = 1
        return due

    def _by_time(self, times: np.ndarray[Any, Any]) -> int:
        pace = self._pace
        if not pace.start_ns or not pace.began_ns:  # from here and now on
            start_ns = pace.start_ns or int(times[0])
            pace = replace(pace, start_ns=start_ns, began_ns=pace.began_ns or time.time_ns())
            self._pace = pace
        wall = pace.began_ns / 1e9 + (times - pace.start_ns) / 1e9 / pace.speed
        _nap_until(float(wall[0]), time.time)
        later = np.flatnonzero(wall > time.time() + _SLOT_S)
        return max(1, int(later[0])) if len(later) else len(times)


def _nap_until(moment: float, clock: Any) -> None:
    while True:
        left = moment - clock()
        if left <= 0:
            return
        time.sleep(min(left, _NAP_S_MAX))


class Feed:
    """Rows in order. What was taken can be put back, to be taken again in other pieces."""

    def __init__(self, batches: Iterator[Any], layout: Layout) -> None:
        self._batches = batches
        self._layout = layout
        self._rows: deque[Rows] = deque()
        self._read = 0  # rows read from `batches`
        self._is_over = False

    def take(self, count: int) -> Rows | None:
        """Up to `count` rows, all from one batch; None when there are no more."""
        if not self._fill():
            return None
        head = self._rows[0]
        if len(head) <= count:
            return self._rows.popleft()
        self._rows[0] = head.slice(count, len(head))
        return head.slice(0, count)

    def put_back(self, rows: Rows) -> None:
        """Give back the last rows that were taken and not put back."""
        if len(rows):
            self._rows.appendleft(rows)

    def is_over(self) -> bool:
        """True if `take` would return None. May wait for the next batch."""
        return not self._fill()

    def skip(self, count: int, sums: Sums) -> tuple[int, Sums]:
        """Leave out the next `count` rows; return how many there were, and the checksums of the
        rows before them, `sums`, and these."""
        skipped = 0
        while skipped < count:
            rows = self.take(count - skipped)
            if rows is None:
                break
            skipped += len(rows)
            sums = add_sums(sums, rows)
        return skipped, sums

    def _fill(self) -> bool:
        while not self._rows and not self._is_over:
            batch = next(self._batches, None)
            if batch is None:
                self._is_over = True
            elif batch.num_rows:
                self._rows.append(rows_of(batch, self._layout, first=self._read))
                self._read += batch.num_rows
        return bool(self._rows)
