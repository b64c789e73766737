"""A leader whose disk hangs, or is slower than an election timeout, has another one lead."""

from __future__ import annotations

from streamd.limits import RAFT_ELECTION_MS, RAFT_HEARTBEAT_MS, RAFT_INFLIGHT_APPENDS
from streamd.raft.core import ProposalRejected
from tests.unit.raft.cluster import Cluster


def led_by_a() -> Cluster:
    cluster = Cluster(list("abc"))
    cluster.elect("a")
    cluster.pass_time(RAFT_ELECTION_MS)
    return cluster


def test_a_leader_whose_disk_hangs_hands_over() -> None:
    """The others commit an entry that the leader's own disk does not get: one of them leads within
    three election timeouts and commits the next, and what the first was told comes of its own."""
    cluster = led_by_a()
    cluster.hung.add("a")
    cluster.core("a").propose(b"x", tag="x")
    cluster.pass_time(3 * RAFT_ELECTION_MS)
    leader = cluster.leader()
    assert leader is not None
    assert leader.node_id in ("b", "c")
    index = leader.propose(b"y", tag="y")
    cluster.run()
    assert leader.applied == index
    assert cluster.members["a"].outcomes == []
    cluster.hung.clear()
    cluster.pass_time(RAFT_ELECTION_MS)
    assert cluster.members["a"].outcomes == [("x", "applied")]
    assert [cluster.core(name).applied for name in "abc"] == [index] * 3
    assert cluster.leader() is leader


def test_a_leader_whose_disk_is_slow_leads_on() -> None:
    """A write takes two thirds of an election timeout, again and again."""
    cluster = led_by_a()
    for number in range(10):
        cluster.hung.add("a")
        cluster.core("a").propose(b"%d" % number)
        cluster.pass_time(RAFT_ELECTION_MS * 2 // 3)
        cluster.hung.clear()
        cluster.pass_time(100)
        assert cluster.core("a").is_leader


def test_leadership_is_not_transferred_to_a_hanging_disk() -> None:
    """Others have nothing that the leader lacks: it leads on, whoever else hangs."""
    for hung in ({"a", "b", "c"}, {"a", "b"}, {"b"}):
        cluster = led_by_a()
        cluster.hung = hung
        try:
            cluster.core("a").propose(b"x")
            cluster.pass_time(5 * RAFT_ELECTION_MS)
            cluster.core("a").propose(b"y")
        except ProposalRejected as err:
            raise AssertionError(hung) from err
        assert cluster.core("a").is_leader, hung


def test_a_follower_whose_disk_hangs_is_not_sent_more_and_more() -> None:
    """With each heartbeat it was sent another append beyond those that it had not answered, all of
    them kept in memory until its disk would take them: 4 MiB a second, of each group."""
    cluster = led_by_a()
    cluster.hung.add("b")
    leader = cluster.core("a")
    before = leader.last_index
    for number in range(RAFT_INFLIGHT_APPENDS + 40):
        leader.propose(b"%d" % number)
        cluster.pass_time(RAFT_HEARTBEAT_MS)
    assert leader.commit == leader.last_index == before + RAFT_INFLIGHT_APPENDS + 40
    assert cluster.core("b").last_index == before + RAFT_INFLIGHT_APPENDS
    cluster.hung.clear()
    cluster.pass_time(RAFT_HEARTBEAT_MS)
    assert cluster.core("b").applied == leader.last_index


def test_all_that_was_sent_is_noticed_to_be_lost() -> None:
    """A whole window of appends, so that no answer would ever come."""
    cluster = led_by_a()
    cluster.hung.add("b")
    leader = cluster.core("a")
    cluster.cuts.add(("a", "b"))
    for number in range(RAFT_INFLIGHT_APPENDS + 4):
        leader.propose(b"%d" % number)
        cluster.run()
    cluster.cuts.clear()
    cluster.hung.clear()
    cluster.pass_time(RAFT_ELECTION_MS)
    assert cluster.core("b").applied == leader.last_index
    assert leader.is_leader
