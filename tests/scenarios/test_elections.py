"""Whom a group's members take for their leader while nothing happens to it."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.raft.core import RaftCore
from tests.scenarios.driver import Cluster


def test_nobody_gives_up_a_leader_that_was_elected_just_now(
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
    groups: list[Any] = [cluster.node(name).group_of(uid) for name in cluster.names for uid in uids]
    assert {group.raft.term for group in groups} == {1}


def test_a_leader_that_steps_down_is_given_up_at_once(cluster: Cluster) -> None:
    """Its link stays up and a group at rest hears nothing: its own word tells."""
    uid = cluster.create()
    leader = cluster.leader("S")
    cluster.until("rest", lambda: cluster.node(leader).group_of(uid).raft.is_quiescent)  # type: ignore[union-attr]
    cluster.process(leader).run(cluster.node(leader).replicas.repair, uid, "asked for by a test")
    cluster.until("another leader", lambda: cluster.leader_name(uid) not in ("", leader), 0.7)


def test_the_late_word_of_an_earlier_term_ends_nothing(cluster: Cluster) -> None:
    uid = cluster.create()
    leader, (follower, _) = cluster.leader("S"), cluster.followers("S")
    cluster.lead("S", follower)
    cluster.lead("S", leader)
    node = cluster.node(follower)
    group = node.group_of(uid)
    assert group is not None
    cluster.until("known", lambda: group.raft.leader_id == leader)
    earlier = group.raft.term - 2
    cluster.process(follower).run(node.peering.on_note, leader, "leaders", [[uid, earlier, False]])
    cluster.run_ms(1)
    assert group.raft.leader_id == leader
    assert node.leader_of(uid) == leader
