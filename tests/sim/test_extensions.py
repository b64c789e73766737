"""Producers, dead letters and order by subject keep their promises wherever the power goes."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from tests.sim.crash import Campaign
from tests.sim.extensions import (
    LETTERED,
    ORDERED,
    PRODUCED,
    Lettered,
    Ordered,
    Patch,
    Produced,
)

LIVES = 4
SEEDS = 4


def run_produced(seed: int) -> Campaign:
    return _run(Campaign(seed, features=Produced()))


def run_lettered(seed: int) -> Campaign:
    lettered = Lettered(random.Random(f"letters/{seed}"))
    return _run(Campaign(seed, features=lettered, make_wires=lettered.make_wires))


def run_ordered(seed: int) -> Campaign:
    ordered = Ordered(random.Random(f"order/{seed}"))
    return _run(Campaign(seed, features=ordered, make_wires=ordered.make_wires))


def _run(campaign: Campaign) -> Campaign:
    for _ in range(LIVES):
        campaign.live(campaign.rng.randint(30, 200))
    campaign.last_life()
    return campaign


@pytest.mark.parametrize("run_seed", [run_produced, run_lettered, run_ordered])
def test_the_promises_hold_wherever_the_power_goes(run_seed: Callable[[int], Campaign]) -> None:
    checked = sum(run_seed(seed).counts["checked"] for seed in range(1, 1 + SEEDS))
    assert checked >= SEEDS * LIVES


CASES = [
    *((run_produced, name, patches) for name, patches in PRODUCED.items()),
    *((run_lettered, name, patches) for name, patches in LETTERED.items()),
    *((run_ordered, name, patches) for name, patches in ORDERED.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run_seed", "patches"),
    [(run_seed, patches) for run_seed, _, patches in CASES],
    ids=[name for _, name, _ in CASES],
)
def test_a_broken_server_is_caught(
    run_seed: Callable[[int], Campaign], patches: list[Patch]
) -> None:
    """Within a few seeds a checker, or the server's own assertions, tell."""
    with pytest.raises(AssertionError), ExitStack() as stack:
        for owner, word, new in patches:
            stack.enter_context(patch.object(owner, word, new))
        for seed in range(1, 30):
            run_seed(seed)
