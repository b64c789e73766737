"""Fewer than a majority decide because an operator says so: not for longer than is needed."""

from __future__ import annotations

from streamd.raft.membership import Membership, decode, encode
from tests.unit.raft.cluster import Cluster

MINUTES_5 = 300_000


def two_of_five() -> Cluster:
    """Three of five voters are gone; the two that are left have no leader any more."""
    cluster = Cluster(list("abcde"))
    cluster.elect("a").propose(b"before")
    cluster.run()
    for name in "cde":
        cluster.crash(name)
    cluster.pass_time(10_000)
    assert cluster.leader() is None
    return cluster


def rescue(cluster: Cluster, quorum: int) -> None:
    for name in "ab":
        cluster.core(name).rescue(quorum, cluster.now_ms + MINUTES_5)
    cluster.pass_time(10_000)


def test_two_of_five_elect_commit_and_remove_the_others() -> None:
    """Once two are all members, a majority decides as ever."""
    cluster = two_of_five()
    rescue(cluster, 2)
    leader = cluster.leader()
    assert leader is not None and leader.rescue_quorum == 2
    index = leader.propose(b"after")
    cluster.run()
    assert all(cluster.core(name).commit == index for name in "ab")
    leader.propose_membership(["a", "b"])
    cluster.run()
    assert leader.members == Membership(("a", "b")) and leader.rescue_quorum == 0
    assert cluster.core("b").members == leader.members
    cluster.crash(next(name for name in "ab" if name != leader.node_id))
    last = leader.propose(b"alone")
    cluster.pass_time(10_000)
    assert leader.commit < last and cluster.leader() is None


def test_a_rescue_ends_by_itself() -> None:
    """The leader of two has no majority then, and steps down."""
    cluster = two_of_five()
    rescue(cluster, 2)
    assert cluster.leader() is not None
    cluster.pass_time(MINUTES_5, step_ms=500)
    assert all(cluster.core(name).rescue_quorum == 0 for name in "ab")
    assert cluster.leader() is None
    cluster.pass_time(10_000)
    assert cluster.leader() is None


def test_a_resting_leader_looks_up_when_a_rescue_ends() -> None:
    cluster = two_of_five()
    cluster.has_links = True
    cluster.cuts = {(x, y) for x in "ab" for y in "cde"}
    cluster.tell_links()
    rescue(cluster, 2)
    leader = cluster.leader()
    assert leader is not None and leader.is_quiescent
    cluster.tick(leader.deadline_ms - cluster.now_ms)
    cluster.pass_time(10_000)
    assert cluster.leader() is None


def test_what_is_enough_is_this_members_own_affair() -> None:
    """It does not travel with the membership, nor into snapshots."""
    cluster = two_of_five()
    rescue(cluster, 2)
    leader = cluster.leader()
    assert leader is not None and leader.members.needed == 2
    cluster.compact(leader.node_id, leader.applied)
    snapshot = cluster.members[leader.node_id].disk.snapshot
    assert snapshot is not None and snapshot[3].needed == 0 and leader.members.needed == 2
    assert decode(encode(leader.members)).needed == 0
    assert leader.log.membership_at(leader.applied) == Membership(tuple("abcde"))
    again = cluster.boot("b", cluster.crash("b")).core
    assert again.rescue_quorum == 0


def test_a_majority_is_never_too_few() -> None:
    """Of three voters two are enough anyway: there is nothing to rescue."""
    cluster = Cluster(list("abc"))
    cluster.core("a").rescue(2, cluster.now_ms + MINUTES_5)
    assert cluster.core("a").rescue_quorum == 0
    half = Membership(tuple("ab"), voters_out=tuple("abcde"), needed=2)
    assert half.has_quorum("ab".__contains__) and not half.has_quorum("a".__contains__)
    assert half.quorum_index(lambda name: {"a": 5, "b": 3}.get(name, 0)) == 3
    reached = {"a": 9, "b": 7, "c": 5, "d": 0, "e": 0}
    assert Membership(tuple("abcde")).quorum_index(reached.__getitem__) == 5
    assert Membership(tuple("abcde"), needed=1).quorum_index(reached.__getitem__) == 9
