"""Campaigns of seeds over whole clusters: nothing that was promised is broken."""

from __future__ import annotations

import os

import pytest

from streamd import limits
from streamd.raft import log
from streamd.store.blocks import block_writer, tail_cache
from streamd.store.blocks.tail_cache import CacheBudget
from streamd.store.wal.wal_writer import Writer
from tests.sim.__main__ import DISKS, GROWTH, HARSH, SIZES, VARIED, run_seed, run_seeds

SEEDS = int(os.environ.get("STREAMD_SEEDS", "300"))

# Seeds that once found something, in the worlds of their day.
FINDERS = (
    6, 17, 22, 24, 62, 78, 79, 113, 130, 146, 169, 197, 246, 390, 629, 768, 3004, 3070,
    20031, 20057, 20353, 20369, 20546, 20709, 20884, 21110, 21222, 21316, 21822, 21924,
    30111, 31157, 31457, 31667, 50158, 50728, 60380, 61423, 66314, 68321,
    711349, 721152, 910720, 4003778, 7001888, 7101290,
)  # fmt: skip
VARIED_FINDERS = (540019, 8100004, 8100274)


def check_third(kind: str) -> None:
    """A third as many seeds of a kind of worlds keep all promises, and have seen all it can do."""
    campaign = run_seeds(range(1, SEEDS // 3 + 2), jobs=min(2, os.cpu_count() or 1), kind=kind)
    campaign.report()
    print(campaign.last_line())
    assert campaign.violations == 0, "see the output for the command that replays it"
    assert campaign.counts["acked"] > 80 * campaign.seeds
    if SEEDS >= 300:
        assert not campaign.missing()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_promise_is_broken_whatever_fails() -> None:
    """Swarms of faults over clusters of 3 and 5 nodes, on as many cores as there are, up to two.

    What every fault, order and named point must have done at least once is counted as well.
    """
    campaign = run_seeds(range(1, SEEDS + 1), jobs=min(2, os.cpu_count() or 1))
    campaign.report()
    print(campaign.last_line())
    assert campaign.violations == 0, "see the output for the command that replays it"
    assert campaign.counts["acked"] > 80 * SEEDS
    assert campaign.counts["quorums checked"] > 40 * SEEDS
    if SEEDS >= 100:
        assert not campaign.missing()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_promise_is_broken_where_loss_follows_loss() -> None:
    """Few kinds of faults, but fast; one copy after the other is destroyed."""
    campaign = run_seeds(range(1, SEEDS // 6 + 2), jobs=min(2, os.cpu_count() or 1), kind=HARSH)
    campaign.report()
    print(campaign.last_line())
    assert campaign.violations == 0, "see the output for the command that replays it"
    assert campaign.counts["acked"] > 40 * campaign.seeds


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_promise_is_broken_whatever_is_asked_for() -> None:
    """Streams and consumers of many kinds, single servers among the clusters, and the same faults;
    what retention rests on is followed by sets, entry by entry."""
    check_third(VARIED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_promise_is_broken_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are behind all the time, so that the log is held again and again (docs/adr/0028), and
    whoever keeps something that can be had from elsewhere has to give it up."""
    monkeypatch.setattr(block_writer, "FLUSH_BYTES", 1024)
    defaults = CacheBudget.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "gathered_bytes_max", 3000)
    monkeypatch.setitem(defaults, "queue_bytes_max", 4096)
    monkeypatch.setattr(CacheBudget.__init__, "__defaults__", (16 * 1024,))
    monkeypatch.setattr(tail_cache, "CHUNK_SHARE_BYTES", 8 * 1024)
    monkeypatch.setattr(limits, "RAFT_WINDOWS_BYTES", 8 * 1024)
    monkeypatch.setattr(log, "RAFT_WINDOW_STEP_BYTES", 512)
    hold_count = 0
    hold = Writer.hold

    def counted(writer: Writer) -> None:
        nonlocal hold_count
        hold_count += 1
        hold(writer)

    monkeypatch.setattr(Writer, "hold", counted)
    campaign = run_seeds(range(1, SEEDS // 15 + 2))
    print(campaign.last_line())
    assert campaign.violations == 0
    assert campaign.counts["acked"] > 80 * campaign.seeds
    assert hold_count > 20 * campaign.seeds


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [DISKS, SIZES, GROWTH])
def test_no_promise_is_broken_where_one_disk_fails_or_streams_change_size(kind: str) -> None:
    """The disk of a node's blocks fails while that of its log works on, and the other way round;
    five nodes whose streams have one, three and five replicas by turns, and move; streams that grow
    while a new replica or the leader goes, and on how many disks their acks are meanwhile."""
    check_third(kind)


@pytest.mark.slow
@pytest.mark.parametrize("seed", FINDERS)
def test_a_seed_that_found_a_bug_finds_none(seed: int) -> None:
    """What was found stays mended (as far as the same seed still leads there)."""
    outcome = run_seed(seed)
    assert not outcome.violation, outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("seed", VARIED_FINDERS)
def test_a_varied_seed_that_found_a_bug_finds_none(seed: int) -> None:
    outcome = run_seed(seed, is_varied=True)
    assert not outcome.violation, outcome.violation
