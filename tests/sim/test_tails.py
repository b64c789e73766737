"""What was acknowledged and is lost is told and kept; and servers that do not are caught."""

from __future__ import annotations

import pytest

from tests.sim.__main__ import TAILS, run_tails_seed
from tests.sim.mutants import TAILED, hunt
from tests.sim.seeds import SPREAD


@pytest.mark.parametrize("seed", SPREAD[TAILS])
def test_nothing_that_was_acknowledged_goes_without_a_word(seed: int) -> None:
    outcome = run_tails_seed(seed)
    assert not outcome.violation, outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TAILED)[:2])
def test_a_server_that_says_nothing_is_caught(name: str) -> None:
    seed, text = hunt(name, seeds=60)
    assert seed, f"{name} got away"
    assert text
