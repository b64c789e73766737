"""Counters, schedules and fast batches keep their promises wherever the power goes."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.sim.crash import Campaign
from tests.sim.features import MUTANTS, Features

LIVES = 4
SEEDS = 8


def run_seed(seed: int) -> Campaign:
    campaign = Campaign(seed, features=Features(is_counter=seed % 2 == 0))
    for _ in range(LIVES):
        campaign.live(campaign.rng.randint(30, 160))
    campaign.last_life()
    return campaign


def test_nothing_is_counted_fired_or_batched_wrong_wherever_the_power_goes() -> None:
    checked = sum(run_seed(seed).counts["checked"] for seed in range(1, 1 + SEEDS))
    assert checked >= SEEDS * LIVES


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_server_is_caught(name: str) -> None:
    """Within a few seeds a checker, or the server's own assertions, tell."""
    with pytest.raises(AssertionError), _broken(name):
        for seed in range(1, 30):
            run_seed(seed)


class _broken:
    """The server, broken in one way."""

    def __init__(self, name: str) -> None:
        self._patches = [patch.object(owner, word, new) for owner, word, new in MUTANTS[name]]

    def __enter__(self) -> None:
        for each in self._patches:
            each.start()

    def __exit__(self, *details: object) -> None:
        for each in self._patches:
            each.stop()
