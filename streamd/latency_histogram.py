"""Histogram of durations in fixed buckets, for `/metrics`. Written by one thread, read by any."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper ends of the buckets, seconds; longer durations are in one more."""


class LatencyHistogram:
    """Counts of durations by bucket, and their sum in seconds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[int]:
        """Return for each bound how many durations were not longer; the last item counts all."""
        return list(accumulate(self.counts))

    def quantile(self, share: float) -> float:
        """Return a bound that this share of the durations (0 to 1) did not exceed, seconds; 0.0:
        there is none yet. Durations beyond the last bound count as that."""
        totals = self.cumulative()
        wanted = share * totals[-1]
        for bound, total in zip(BOUNDS_S, totals, strict=False):
            if total and total >= wanted:
                return bound
        return BOUNDS_S[-1] if totals[-1] else 0.0
