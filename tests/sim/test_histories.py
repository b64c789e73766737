"""Some histories of tests/sim/histories.py."""

from __future__ import annotations

from tests.sim.histories import run


def test_consumers_keep_their_promises() -> None:
    assert run(1, 30) > 3000
