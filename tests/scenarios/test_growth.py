"""A stream that is given more replicas: none counts before it votes, none waits for another."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import limits
from streamd.types import META_UID, NodeId
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster, setting
from tests.scenarios.test_removal import remove

LED_WITHIN_S = 3.0


def config_of(replicas: int, storage: str = "file") -> dict[str, Any]:
    config = {"name": "S", "subjects": ["S.>"], "num_replicas": replicas, "storage": storage}
    return config | {"allow_direct": True}


def grow(cluster: Cluster, replicas: int = 3, storage: str = "file") -> Any:
    """Ask for more replicas; return the answer."""
    return cluster.ask("STREAM.UPDATE.S", config_of(replicas, storage))


def raft_of(cluster: Cluster, name: NodeId) -> Any:
    group = cluster.group(name, "S")
    assert group is not None
    return group.raft


def others_of(cluster: Cluster, name: NodeId) -> list[NodeId]:
    """Where else the stream is wanted."""
    peers = cluster.checkers.assets[cluster.uid("S")].peers
    return [other for other in peers if other != name]


def rows(cluster: Cluster, leader: NodeId) -> dict[NodeId, Any]:
    shown = cluster.info(at=leader)["cluster"].get("replicas", [])
    return {row["name"]: row for row in shown}


def until_led_without(cluster: Cluster, gone: NodeId) -> NodeId:
    uid = cluster.uid("S")
    others = [name for name in cluster.names if name != gone]
    cluster.until("led again", lambda: cluster.leader_name(uid) in others, LED_WITHIN_S)
    return cluster.leader_name(uid)


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_leader_may_go_once_its_replicas_are_current(
    make: Make, how: str, storage: str
) -> None:
    """`current` was said of learners: the leader went, and of two whole copies none could lead."""
    cluster = make()
    cluster.create(replicas=1, storage=storage)
    seqs = cluster.publish(200)
    leader = cluster.leader("S")
    assert "error" not in grow(cluster, 3, storage)

    def are_current() -> bool:
        shown = rows(cluster, leader).values()
        return len(shown) == 2 and all(row["current"] for row in shown)

    cluster.until("all current", are_current)
    if how == "kill":
        cluster.kill(leader)
    else:
        cluster.hosts[leader].stop()
    second = until_led_without(cluster, leader)
    assert sorted(cluster.read(second)) == seqs
    cluster.publish(10)


@pytest.mark.parametrize("latency_us", [300, 10_000])
@pytest.mark.parametrize("at_ms", [0, 2, 4, 6, 8, 20, 60, 120, 200])
def test_a_leader_that_is_stopped_while_replicas_catch_up_is_followed(
    cluster: Cluster, at_ms: int, latency_us: int
) -> None:
    """It finishes the change of voters first: who it hands over to can lead without it."""
    cluster.create(replicas=1)
    seqs = cluster.publish(200)
    cluster.net.weather.mean_us = latency_us
    leader = cluster.leader("S")
    cluster.send("STREAM.UPDATE.S", config_of(3))
    cluster.until("an update", lambda: others_of(cluster, leader))
    cluster.run_ms(at_ms)
    host, uid = cluster.hosts[leader], cluster.uid("S")
    host.stop()
    cluster.until("handed over", lambda: cluster.leader_name(uid) != leader or host.node is None)
    assert host.node is not None, "it ended before it had handed over"
    second = until_led_without(cluster, leader)
    cluster.until("stopped", lambda: host.node is None)
    assert sorted(cluster.read(second)) == seqs
    cluster.publish(10)
    assert cluster.leader("S") == second


@pytest.mark.parametrize("victim", [0, 1])
def test_one_new_replica_votes_whatever_becomes_of_the_other(cluster: Cluster, victim: int) -> None:
    """It stayed a learner as long as the other was away, and every ack was on one disk."""
    cluster.create(replicas=1)
    cluster.publish(200)
    leader = cluster.leader("S")
    grow(cluster)
    others = others_of(cluster, leader)
    gone, left = others[victim], others[1 - victim]
    cluster.kill(gone)
    is_current = lambda: rows(cluster, leader).get(left, {}).get("current")  # noqa: E731
    cluster.until("a second voter", is_current, 2)
    assert not rows(cluster, leader)[gone]["current"]
    seqs = cluster.publish(100, at=leader)
    cluster.kill(leader)
    cluster.boot(gone)
    assert until_led_without(cluster, leader) == left  # the other one has less
    assert set(seqs) <= set(cluster.read(left))
    cluster.boot(leader)
    cluster.until_whole()


def test_acks_on_one_disk_are_told_as_long_as_there_is_no_second_voter(make: Make) -> None:
    """In stream info, in /healthz, in the log and by an advisory; and when that is over."""
    cluster = make(5)
    cluster.create(replicas=1)
    cluster.publish(20)
    leader = cluster.leader("S")
    raft, node = raft_of(cluster, leader), cluster.node(leader)
    events: list[tuple[str, dict[str, Any]]] = []
    node.hooks.on_stream_event = lambda handle, kind, fields: events.append((kind, fields))
    assert "write_quorum" not in cluster.info(at=leader)["cluster"]
    cluster.send("STREAM.UPDATE.S", config_of(3), at=leader)
    cluster.until("learners", lambda: raft.members.learners)
    others = others_of(cluster, leader)
    cluster.kill(*others)
    cluster.run_ms(4000)
    cluster.publish(10, at=leader)
    short, enough = ({"write_quorum": found, "write_quorum_wanted": 2} for found in (1, 2))
    shown = cluster.info(at=leader)["cluster"]
    assert short.items() <= shown.items()
    assert [row["current"] for row in shown["replicas"]] == [False, False]
    health = cluster.health(leader)
    assert (health.status, health.names["stream"]) == (503, "S")
    assert "each ack is on 1 disk, 2 are wanted" in health.text
    assert [fields for kind, fields in events if kind == "write_quorum"] == [short]
    assert cluster.events("acknowledged messages are on fewer disks than wanted") == 1
    cluster.boot(others[0])
    cluster.until("a second voter", lambda: raft.has_vote(others[0]))
    cluster.publish(10, at=leader)
    assert "write_quorum" not in cluster.info(at=leader)["cluster"]
    assert cluster.health(leader).status == 200
    assert [fields for kind, fields in events if kind == "write_quorum"] == [short, enough]
    assert cluster.events("acknowledged messages are on enough disks again") == 1


def test_from_three_to_five_with_one_of_the_new_away(make: Make) -> None:
    """Four of five vote, so one more may fail, as of three."""
    cluster = make(5)
    cluster.create(replicas=3)
    cluster.publish(50)
    leader = cluster.leader("S")
    before = others_of(cluster, leader)
    cluster.send("STREAM.UPDATE.S", config_of(5))
    cluster.until("learners", lambda: raft_of(cluster, leader).members.learners)
    gone, left = (name for name in others_of(cluster, leader) if name not in before)
    cluster.kill(gone)
    cluster.until("a fourth voter", lambda: raft_of(cluster, leader).has_vote(left), 2)
    cluster.publish(10, at=leader)
    cluster.kill(leader)
    until_led_without(cluster, leader)
    cluster.publish(10, at=left)


def test_from_three_to_five_with_both_of_the_new_away(make: Make) -> None:
    """Acks stay on two disks, which is said; one of the three may fail as before."""
    cluster = make(5)
    cluster.create(replicas=3)
    cluster.publish(50)
    leader = cluster.leader("S")
    before = others_of(cluster, leader)
    cluster.send("STREAM.UPDATE.S", config_of(5))
    cluster.until("learners", lambda: raft_of(cluster, leader).members.learners)
    cluster.kill(*(name for name in others_of(cluster, leader) if name not in before))
    cluster.run_ms(2000)
    shown = cluster.info(at=leader)["cluster"]
    assert (shown["write_quorum"], shown["write_quorum_wanted"]) == (2, 3)
    assert "each ack is on 2 disks, 3 are wanted" in cluster.health(leader).text
    cluster.step_down("S", before[0])
    cluster.kill(before[1])
    cluster.publish(10, at=before[0])


def test_a_move_with_one_of_the_new_away_keeps_those_that_are_there(make: Make) -> None:
    """Two of three replicas move: one that is ready votes; of the old ones none leaves for it, or
    fewer could fail than before."""
    cluster = make(5)
    uid = cluster.create(replicas=3)
    cluster.publish(50)
    leader = cluster.leader("S")
    old = others_of(cluster, leader)
    left, gone = (name for name in cluster.names if name not in (leader, *old))
    cluster.set_peers(uid, (leader, left, gone))
    cluster.until("learners", lambda: raft_of(cluster, leader).members.learners)
    cluster.kill(gone)
    cluster.until("a fourth voter", lambda: raft_of(cluster, leader).has_vote(left), 2)
    members = raft_of(cluster, leader).members
    assert (set(members.voters), members.learners) == ({leader, left, *old}, (gone,))
    cluster.kill(old[0])
    cluster.publish(10, at=leader)  # three of four are there
    cluster.boot(old[0], gone)
    cluster.until("moved", lambda: set(members_of(cluster)) == {leader, left, gone})
    cluster.until_whole()


def members_of(cluster: Cluster) -> tuple[NodeId, ...]:
    return cluster.checkers.truths[0].machine.streams_by_uid[cluster.uid("S")].members


def test_a_peer_that_is_removed_leaves_when_the_one_in_its_place_votes(make: Make) -> None:
    """Not before, and at once then."""
    cluster = make(5)
    cluster.create(replicas=3)
    cluster.publish(50)
    leader = cluster.leader("S")
    out, kept = others_of(cluster, leader)
    cluster.kill(out)
    cluster.until("noticed", lambda: not rows(cluster, leader)[out]["current"])
    assert cluster.ask("STREAM.PEER.REMOVE.S", {"peer": out})["success"]
    (fresh,) = set(others_of(cluster, leader)) - {kept}
    cluster.until("replaced", lambda: rows(cluster, leader).get(fresh, {}).get("current"), 2)
    assert raft_of(cluster, leader).members.voters == tuple(sorted((leader, kept, fresh)))
    cluster.kill(kept)
    cluster.publish(10, at=leader)


def test_a_stream_does_not_shrink_to_servers_that_are_away(make: Make) -> None:
    """It would have had no majority until that one came back."""
    cluster = make(3)
    uid = cluster.create(replicas=3)
    cluster.publish(20)
    leader = cluster.leader("S")
    away = others_of(cluster, leader)[0]
    cluster.kill(away)
    cluster.until("noticed", lambda: not rows(cluster, leader)[away]["current"])
    cluster.set_peers(uid, (away,))
    cluster.run_ms(2000)
    cluster.publish(10, at=leader)
    cluster.boot(away)
    cluster.until("moved", lambda: cluster.leader_name(uid) == away)
    assert len(cluster.read(away)) == 30


def test_a_growth_is_refused_while_a_node_is_away(cluster: Cluster) -> None:
    """The peer accepts it, and has no leader then."""
    cluster.create(replicas=1)
    leader = cluster.leader("S")
    gone = next(name for name in cluster.names if name != leader)
    cluster.kill(gone)
    cluster.until("noticed", lambda: gone not in cluster.node(leader).peers.nodes())  # type: ignore[union-attr]
    assert grow(cluster)["error"]["err_code"] == 10005
    assert cluster.leader("S") == leader
    cluster.publish(10)


def test_the_meta_group_tells_of_acks_on_too_few_disks(make: Make) -> None:
    """Two nodes join three: until they vote its acks are on two disks, and three are wanted."""
    cluster = make(5)
    leader = cluster.leader_name(META_UID)
    fresh = [name for name in cluster.names if name != leader][:2]
    for name in fresh:
        remove(cluster, name)
        cluster.checkers.durability.copy_destroyed(name)
        cluster.checkers.durability.log_lost(name, [META_UID])
        cluster.hosts[name].disk.wipe(ROOT)
    events: list[dict[str, Any]] = []
    cluster.node(leader).hooks.on_meta_event = lambda kind, fields: events.append(fields)
    raft = cluster.node(leader).groups.meta_group.raft  # type: ignore[union-attr]
    with setting(limits, "LEARNER_LAG_ENTRIES", -1):  # the moment before they vote
        cluster.boot(*fresh)
        cluster.until("learners", lambda: set(raft.members.learners) == set(fresh))
        cluster.run_ms(3000)
        health = cluster.health(leader)
        assert (health.status, health.text) == (
            503, "JetStream meta group: each ack is on 2 disks, 3 are wanted",
        )  # fmt: skip
        assert cluster.health(fresh[0]).status == 503  # it has no vote
    cluster.until("voters", lambda: all(map(raft.has_vote, fresh)))
    cluster.until("well", lambda: all(cluster.health(name).status == 200 for name in cluster.names))
    found = [(event["write_quorum"], event["write_quorum_wanted"]) for event in events]
    assert (found[0][0], found[-1]) == (2, (3, 3))
    assert cluster.events("acknowledged messages are on fewer disks than wanted") == 1
