"""Histogram of durations: buckets, totals, quantiles."""

from __future__ import annotations

from streamd.latency_histogram import BOUNDS_S, LatencyHistogram


def test_a_duration_counts_in_every_bucket_from_its_bound_on() -> None:
    times = LatencyHistogram()
    for seconds in (0.0001, 0.00011, 0.5, 99.0):
        times.record(seconds)
    totals = times.cumulative()
    assert totals[:2] == [1, 2]  # a bound belongs to its own bucket
    assert totals[BOUNDS_S.index(0.5)] == 3
    assert totals[-2:] == [3, 4]  # longer than all bounds
    assert times.sum_s == 0.0001 + 0.00011 + 0.5 + 99.0


def test_quantiles_are_bounds() -> None:
    times = LatencyHistogram()
    assert times.quantile(0.99) == 0.0
    for _ in range(99):
        times.record(0.0007)
    times.record(3.0)
    assert (times.quantile(0.5), times.quantile(0.99)) == (0.001, 0.001)
    assert times.quantile(1.0) == 5.0
    times.record(60.0)
    assert times.quantile(1.0) == BOUNDS_S[-1]
