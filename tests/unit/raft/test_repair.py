"""Members whose state is missing or whose log is rotten, and what a snapshot does for them."""

from __future__ import annotations

import pytest

from streamd.raft.core import RaftCore
from streamd.raft.membership import simple
from streamd.raft.messages import Append, AppendReply, SnapshotOffer, Vote
from streamd.types import LogState
from tests.unit.raft.cluster import Cluster


def with_entries(count: int) -> Cluster:
    cluster = Cluster(list("abc"))
    cluster.elect("a")
    for number in range(count):
        cluster.core("a").propose(b"%d" % number)
    cluster.run()
    return cluster


def test_an_incomplete_member_starts_at_its_log_whatever_is_missing_below() -> None:
    cluster = with_entries(5)
    cluster.compact("c", 4)
    disk = cluster.crash("c")
    core = RaftCore(
        group=7,
        node_id="c",
        voters="abc",
        log=disk.state(),
        reader=disk,
        now_ms=cluster.now_ms,
        seed=1,
        applied=0,
        is_incomplete=True,
    )
    assert (core.applied, core.last_index) == (4, 6)
    assert core.take(64, 1 << 20) is None
    core.step("b", Vote(2, False, 9, 9, is_transfer=True))
    assert core.vote == "b"
    core.step("b", Append(2, 6, 1, core.log.last_chain, [], 6))
    assert core.applied == 4
    assert core.commit == 6


def test_a_snapshot_keeps_the_tail_and_completes() -> None:
    cluster = with_entries(5)
    core = cluster.core("c")
    core.mark_incomplete()
    cluster.core("a").propose(b"later")
    cluster.run(installs=False)
    assert (core.applied, core.commit, core.last_index) == (6, 7, 7)
    with pytest.raises(AssertionError):
        core.snapshot_installed(5, *core.log.entry_id(5), simple("abc"))
    core.snapshot_installed(6, *core.log.entry_id(6), simple("abc"))
    assert not core.is_incomplete
    ready = cluster.take("c")
    assert ready is not None
    assert [entry.data for entry in ready.committed] == [b"later"]
    assert core.deadline_ms > cluster.now_ms
    replies = [m for _, m in ready.send_now if isinstance(m, AppendReply)]
    assert replies == [AppendReply(1, True, 6)]


def test_a_snapshot_of_another_history_replaces_the_log() -> None:
    cluster = with_entries(2)
    core = cluster.core("c")
    core.mark_incomplete()
    core.snapshot_installed(9, 2, 77, simple("abc"))
    assert (core.applied, core.commit, core.last_index) == (9, 9, 9)
    assert not core.is_uncertain


def test_the_offer_is_repeated_until_the_state_is_there() -> None:
    cluster = with_entries(2)
    cluster.core("c").mark_incomplete()
    for _ in range(12):
        cluster.tick(250)
        cluster.run(installs=False)
    offers = [line for line in cluster.trace if "SnapshotOffer" in line]
    assert len(offers) in (3, 4)
    cluster.run()
    cluster.trace.clear()
    cluster.pass_time(3000)
    assert not [line for line in cluster.trace if "SnapshotOffer" in line]
    assert cluster.core("c").applied == cluster.core("a").applied


def test_an_incomplete_member_takes_offers_below_its_commit() -> None:
    """The shell then asks for a snapshot at `applied` or later."""
    cluster = with_entries(5)
    core = cluster.core("c")
    core.mark_incomplete()
    core.step("a", SnapshotOffer(1, 2, 1, 0, simple("abc")))
    ready = cluster.take("c")
    assert ready is not None
    assert ready.snapshot_wanted is not None


def test_a_rotten_log_is_replaced_and_what_it_acked_counts_as_forgotten() -> None:
    cluster = with_entries(3)
    core = cluster.core("c")
    core.log.last_chain ^= 1
    cluster.core("a").propose(b"y")
    cluster.run()
    assert core.status()["has_diverged"]
    core.mark_incomplete()
    cluster.run(installs=False)
    assert cluster.members["c"].disk.hard_state.is_uncertain  # before anything is thrown away
    cluster.pass_time(3000)
    assert core.status() | {"role": ""} == cluster.core("b").status() | {"role": "", "vote": "a"}
    assert core.applied == 6  # with the entry that ended the doubt


def test_a_snapshot_with_another_chain_shows_that_the_log_is_rotten() -> None:
    cluster = with_entries(3)
    core = cluster.core("c")
    core.mark_incomplete()
    term, chain = core.log.entry_id(4)
    core.log.entries[-1].chain ^= 1
    core.log.last_chain ^= 1
    core.snapshot_installed(4, term, chain, simple("abc"))
    assert core.log.entry_id(4) == (term, chain)
    assert core.last_index == 4


def test_an_incomplete_sole_voter_does_not_lead() -> None:
    core = RaftCore(
        group=1,
        node_id="n",
        voters=["n"],
        log=LogState(*Cluster(["n"]).members["n"].disk.state()),
        reader=Cluster(["n"]).members["n"].disk,
        now_ms=0,
        seed=1,
        is_incomplete=True,
    )
    assert not core.is_leader


def test_memory_of_an_incomplete_member_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.raft.log.RAFT_TRAILING_ENTRIES", 10)
    cluster = with_entries(1)
    core = cluster.core("c")
    core.mark_incomplete()
    for number in range(50):
        cluster.core("a").propose(b"%d" % number)
        cluster.run(installs=False)
    assert core.last_index == 52
    assert len(core.log.entries) <= 11
    cluster.run()
    assert core.applied == 52
