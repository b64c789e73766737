"""Whom a group's members take for their leader while nothing happens to it."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.raft.core import RaftCore
from tests.scenarios.driver import Cluster


def test_followers_keep_a_leader_that_was_elected_just_now(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members heard from the new leader itself that it leads no more, as it was not ready yet:
    whoever got nothing else from it soon deposed it, and publishes on their way got no ack."""
    given_up: list[str] = []
    peer_down = RaftCore.peer_down

    def on_peer_down(core: RaftCore, node_id: str) -> None:
        given_up.append(f"{core.node_id} gives up {node_id} in group {core.group}")
        peer_down(core, node_id)

    monkeypatch.setattr(RaftCore, "peer_down", on_peer_down)
    uids = [cluster.create(f"S{number}") for number in range(5)]
    cluster.run_ms(2000)
    assert given_up == []
    groups: list[Any] = [
        cluster.node(name).groups.group_of(uid) for name in cluster.names for uid in uids
    ]
    assert {group.raft.term for group in groups} == {1}


def test_a_leader_that_steps_down_is_given_up_at_once(cluster: Cluster) -> None:
    """Its link stays up and a group at rest hears nothing: its own word tells."""
    uid = cluster.create()
    leader = cluster.leader("S")
    groups: list[Any] = [cluster.node(name).groups.group_of(uid) for name in cluster.names]
    cluster.until("rest", lambda: all(group.raft.is_quiescent for group in groups))
    cluster.process(leader).run(
        cluster.node(leader).parts.replicas.control.repair, uid, "asked for by a test"
    )
    others = [group.raft for group in groups if group.raft.node_id != leader]
    cluster.until("given up", lambda: not any(raft.leader_id == leader for raft in others), 0.05)
    cluster.until("another term", lambda: cluster.leader_name(uid) and others[0].term > 1, 3)


def test_the_late_word_of_an_earlier_term_ends_nothing(cluster: Cluster) -> None:
    uid = cluster.create()
    leader, (follower, _) = cluster.leader("S"), cluster.followers("S")
    cluster.lead("S", follower)
    cluster.lead("S", leader)
    node = cluster.node(follower)
    group = node.groups.group_of(uid)
    assert group is not None
    cluster.until("known", lambda: node.leader_of(uid) == leader == group.raft.leader_id)
    earlier = group.raft.term - 2
    cluster.process(follower).run(node.on_note, leader, "leaders", [[uid, earlier, False]])
    cluster.run_ms(1)
    assert group.raft.leader_id == leader
    assert node.leader_of(uid) == leader


@pytest.mark.parametrize("frozen_ms", [1200, 1500, 3000])
def test_a_machine_that_stood_still_keeps_its_leaders(cluster: Cluster, frozen_ms: int) -> None:
    """All three nodes on one machine that is suspended for a moment, or moved. What each said waits
    in the others' sockets, and their timers are due: they read before they judge."""
    uid = cluster.create()
    leader = cluster.leader("S")
    cluster.publish(10)
    for name in cluster.names:
        cluster.process(name).pause()
    cluster.run_ms(frozen_ms)
    for name in (*cluster.followers("S"), leader):
        cluster.process(name).resume()
    cluster.until("awake", lambda: not any(cluster.process(n).is_paused for n in cluster.names))
    cluster.publish(10)
    assert cluster.leader("S") == leader
    groups: list[Any] = [cluster.node(name).groups.group_of(uid) for name in cluster.names]
    assert {group.raft.term for group in groups} == {1}


def test_the_log_names_each_leader_of_the_meta_group(cluster: Cluster) -> None:
    """The first one; that it is gone, and the next; each at every node, in nats-server's words."""
    own, none = "Self is new JetStream cluster metadata leader", "cluster no metadata leader"
    first = cluster.node("n1").meta_leader
    assert cluster.events(own) == 1
    assert told(cluster, first) == 2
    assert cluster.events(none) == 0
    cluster.kill(first)
    other = next(name for name in cluster.names if name != first)
    cluster.until("another", lambda: cluster.events(own) == 2, 5)
    leader = cluster.node(other).meta_leader
    cluster.until("known", lambda: told(cluster, leader) == 1, 1)
    assert cluster.events(none) == 2


def told(cluster: Cluster, leader: str) -> int:
    """How often the nodes' logs named another node as the leader."""
    name = cluster.node(leader).cluster_name
    return cluster.events(f"JetStream cluster new metadata leader: {leader}/{name}")
