"""Servers that are broken on purpose are caught; `make prove` has all of them (tests/prove.py)."""

from __future__ import annotations

import pytest

from tests.sim.__main__ import run_seed
from tests.sim.mutants import RARE, hunt

# Variants that some of their first seeds tell, one of each kind: log, votes, blocks, consumers.
SOON_CAUGHT = ("ack_before_fsync", "one_vote_too_few", "consumer_ahead", "acked_and_kept")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOON_CAUGHT)
def test_a_broken_server_is_caught(name: str) -> None:
    """A deliberately broken variant breaks a promise that the simulator notices."""
    seed, text = hunt(name)
    assert seed, f"{name} got away"
    assert text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncertain_acks_count", "certified_unseen"])
def test_a_broken_server_is_caught_where_its_faults_meet(name: str) -> None:
    """Variants that need a rare meeting of faults: a world that has little else, a seed that tells.

    Without the broken part, the same seed finds nothing.
    """
    world = RARE[name]
    seed, text = hunt(name, first_seed=world.caught_by, seeds=1, world=world)
    assert seed, f"{name} got away"
    assert text
    assert not run_seed(world.caught_by, world=world).violation
