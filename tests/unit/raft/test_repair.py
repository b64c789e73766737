"""Members whose state is missing or whose log is rotten, and what a snapshot does for them."""

from __future__ import annotations

import pytest

from streamd.raft.core import RaftCore
from streamd.raft.messages import Append, Vote
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
    disk.hard_state = disk.hard_state._replace(commit=6)  # that 5 and 6 may be applied is known
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
    """Entries 6 and 7 were acked after it was taken, and nobody need send them again."""
    cluster = with_entries(5)
    core = cluster.damage("c").core
    cluster.compact("a", 5)
    cluster.core("a").propose(b"later")
    cluster.run(installs=False)
    assert (core.applied, core.commit, core.last_index) == (0, 7, 7)
    cluster.trace.clear()
    cluster.run()
    core = cluster.core("c")
    assert (core.is_incomplete, core.applied, core.last_index) == (False, 5, 7)
    assert core.deadline_ms > cluster.now_ms
    cluster.tick(250)
    cluster.run()
    assert (core.applied, core.commit) == (7, 7)
    assert [entry.data for entry in cluster.members["c"].applied] == [b"4", b"later"]
    assert not [line for line in cluster.trace if line.startswith("a->c Append ")]


def test_a_snapshot_that_lags_behind_the_log_is_not_enough() -> None:
    """What c's log no longer has is in a later one: the shell asks for one at `applied`."""
    cluster = with_entries(5)
    cluster.compact("a", 2)
    cluster.compact("c", 4)
    core = cluster.damage("c").core
    assert core.applied == 4
    cluster.tick(250)
    cluster.run(installs=False)
    offer = cluster.members["c"].wanted
    assert offer is not None
    assert offer.index == 2
    cluster.run()
    assert (cluster.core("c").is_incomplete, cluster.core("c").applied) == (False, 6)


def test_the_offer_is_repeated_until_the_state_is_there() -> None:
    cluster = with_entries(2)
    cluster.damage("c")
    for _ in range(12):
        cluster.tick(250)
        cluster.run(installs=False)
    offers = [line for line in cluster.trace if "SnapshotOffer" in line]
    assert len(offers) in (3, 4)
    cluster.run()
    cluster.pass_time(250)  # a's next sign of life is answered with what c has now
    cluster.trace.clear()
    cluster.pass_time(3000)
    assert not [line for line in cluster.trace if "SnapshotOffer" in line]
    assert cluster.core("c").applied == cluster.core("a").applied


def test_a_rotten_log_is_given_up_and_what_it_acked_counts_as_forgotten() -> None:
    cluster = with_entries(3)
    core = cluster.core("c")
    core.log.last_chain ^= 1
    cluster.core("a").propose(b"y")
    cluster.run()
    assert core.status()["has_diverged"]
    assert cluster.members["c"].alerts
    core = cluster.give_up_log("c").core
    assert (core.term, core.vote, core.last_index) == (1, "a", 0)
    assert core.is_uncertain
    assert core.is_incomplete
    cluster.pass_time(3000)
    status = cluster.core("c").status()
    assert status | {"role": ""} == cluster.core("b").status() | {"role": "", "vote": "a"}
    assert status["applied"] == 6  # with the entry that ended the doubt


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
    core = cluster.damage("c").core
    for number in range(50):
        cluster.core("a").propose(b"%d" % number)
        cluster.run(installs=False)
    assert core.last_index == 52
    assert len(core.log.entries) <= 11
    cluster.run()
    cluster.tick(250)
    cluster.run()
    assert cluster.core("c").applied == 52
