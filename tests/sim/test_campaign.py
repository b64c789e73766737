"""Seeds of each kind of simulated world, a few; `make prove` runs all of them (tests/prove.py)."""

from __future__ import annotations

import pytest

from tests.sim.__main__ import (
    DISKS,
    ENCRYPTED,
    GROWTH,
    HARSH,
    PLAIN,
    SIZES,
    VARIED,
    Campaign,
    run_seed,
)
from tests.sim.plan import ARCHIVES, COPIES, EXTENSIONS, FEATURES, ORIGINS
from tests.sim.seeds import FINDERS_OF_EACH_CHANGE, SHORT_MEMORY, SPREAD, VARIED_FINDERS, run_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def check(campaign: Campaign, *, acked_per_seed: int) -> None:
    """No promise is broken, and clients got acks."""
    print(campaign.last_line())
    assert campaign.violations == 0, "the output has the command that replays it"
    assert campaign.counts["acked"] > acked_per_seed * campaign.seeds


@pytest.mark.parametrize(
    "kind",
    [PLAIN, VARIED, DISKS, SIZES, GROWTH, COPIES, ORIGINS, FEATURES, EXTENSIONS, ARCHIVES],
)
def test_no_promise_is_broken_whatever_fails(kind: str) -> None:
    """Clusters and single servers under faults: kills, power cuts, links, disks, membership."""
    campaign = run_all(SPREAD[kind], kind)
    check(campaign, acked_per_seed=80)
    if kind == PLAIN:
        assert campaign.counts["quorums checked"] > 40 * campaign.seeds


def test_no_promise_is_broken_where_loss_follows_loss() -> None:
    """Few kinds of faults, but fast; one copy after the other is destroyed."""
    check(run_all(SPREAD[HARSH], HARSH), acked_per_seed=40)


def test_no_promise_is_broken_on_encrypted_disks() -> None:
    """All files are encrypted, sealed blocks packed; a nonce that comes twice is a violation."""
    campaign = run_all([*SPREAD[ENCRYPTED], 4, 5], ENCRYPTED)  # 4 and 5 once found a bug
    check(campaign, acked_per_seed=40)
    assert campaign.counts["point BLOCK_PACKED_RENAMED"] > 0


def test_no_promise_is_broken_where_memory_is_short() -> None:
    """The log is held for blocks that are behind; caches give up what is stored elsewhere."""
    campaign = run_all(SPREAD[SHORT_MEMORY], SHORT_MEMORY)
    check(campaign, acked_per_seed=80)
    assert campaign.counts["log held"] > 20 * campaign.seeds


@pytest.mark.parametrize("seed", FINDERS_OF_EACH_CHANGE)
def test_a_seed_that_found_a_bug_finds_none(seed: int) -> None:
    """Fixed bugs stay fixed (as far as the same seed still leads there)."""
    outcome = run_seed(seed)
    assert not outcome.violation, outcome.violation


@pytest.mark.parametrize("seed", VARIED_FINDERS)
def test_a_varied_seed_that_found_a_bug_finds_none(seed: int) -> None:
    outcome = run_seed(seed, is_varied=True)
    assert not outcome.violation, outcome.violation
