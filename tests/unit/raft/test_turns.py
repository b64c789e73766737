"""Whose leader is known to be gone: the voters that are left stand one after the other."""

from __future__ import annotations

import pytest

from streamd.raft.core import RaftCore
from streamd.raft.election import FOLLOWER, LEADER_LOST_MS, TURN_MS
from tests.unit.raft.cluster import Cluster


def bereft(seed: int) -> Cluster:
    """a led b and c, and is gone; both know."""
    cluster = Cluster(list("abc"), seed=seed)
    cluster.has_links = True
    cluster.tell_links()
    cluster.elect("a")
    cluster.run()
    cluster.crash("a")
    return cluster


@pytest.mark.parametrize("seed", range(20))
def test_two_voters_without_a_leader_do_not_stand_at_the_same_time(seed: int) -> None:
    """With thousands of groups an answer takes longer than dice can set two candidates apart: half
    of the groups had a second election, and some a seventh."""
    cluster = bereft(seed)
    first, second = sorted(core.deadline_ms - cluster.now_ms for core in cores(cluster))
    assert first < LEADER_LOST_MS[1]
    assert second >= TURN_MS + LEADER_LOST_MS[0]


def test_a_voter_with_more_log_stands_early_when_the_other_stood_in_vain() -> None:
    """It refuses, so it knows: a group waits no longer where the first one lacks an entry."""
    cluster = Cluster(list("abc"))
    cluster.has_links = True
    cluster.tell_links()
    cluster.elect("a")
    cluster.run()
    later, other = cluster.core("b"), cluster.core("c")  # of these two, c stands first
    cluster.cuts.add(("a", "c"))  # of which nobody is told
    cluster.core("a").propose(b"x")
    cluster.run()
    cluster.cuts.clear()
    cluster.crash("a")
    assert later.last_index > other.last_index
    assert other.deadline_ms < later.deadline_ms
    cluster.campaign(other.node_id)
    cluster.run()
    assert other.role == FOLLOWER and later.deadline_ms - cluster.now_ms < LEADER_LOST_MS[1]
    cluster.campaign(later.node_id)
    cluster.run()
    assert later.is_leader


def cores(cluster: Cluster) -> list[RaftCore]:
    return [cluster.core(name) for name in cluster.members]
