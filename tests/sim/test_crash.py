"""A short campaign of tests/sim/crash.py, on seeds that once found something and on others."""

from __future__ import annotations

from tests.sim.crash import run


def test_nothing_acked_is_lost_wherever_the_power_goes() -> None:
    """72 crashes over 6 seeds; seed 9 once recovered a consumer with a lower ack floor."""
    counts = run(first_seed=7, points=72)
    assert counts["crashes"] >= 72
    assert counts["acked"] > 1000
    assert counts["double acked"] > 20
    assert counts["rewritten"] > 0
    assert counts["point SNAPSHOT_RENAMED"] > 0
    assert counts["point WAL_SEGMENT_FREED"] > 0
