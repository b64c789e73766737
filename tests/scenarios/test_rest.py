"""Groups with nothing to do: what they do last, and that they do nothing from then on."""

from __future__ import annotations

from typing import Any

from streamd import limits
from streamd.machine import commands
from streamd.types import Uid
from tests.scenarios.driver import Cluster
from tests.scenarios.files import falsify, purged

LONG_MS = 3 * limits.CHECKPOINT_EVERY_MS


def _at_rest(cluster: Cluster, *streams: str) -> list[Any]:
    """The groups of these streams on all nodes, once they rest."""
    groups: list[Any] = [cluster.group(name, s) for name in cluster.names for s in streams]
    cluster.until("rest", lambda: all(group.raft.is_quiescent for group in groups), 2)
    return groups


def _compared(cluster: Cluster, uid: Uid) -> set[tuple[int, int]]:
    """What the nodes told of what they hold: (index, fingerprint)."""
    return {cluster.node(name).parts.integrity.consistency.latest(uid) for name in cluster.names}


def test_replicas_compare_where_they_come_to_rest_and_nothing_follows(cluster: Cluster) -> None:
    """Nobody logs a checkpoint for it, and none of thousands is woken again."""
    uid = cluster.create()
    cluster.publish(5)
    groups = _at_rest(cluster, "S")
    end = groups[0].raft.last_index
    assert _compared(cluster, uid) == {(end, groups[0].machine.fingerprint())}
    turns: list[int] = []
    for group in groups:
        turn = group.turn
        group.turn = lambda *args, turn=turn: (turns.append(1), turn(*args))[1]
    cluster.run_ms(LONG_MS)
    assert turns == []
    assert {group.raft.last_index for group in groups} == {end}


def test_replicas_compare_again_when_a_node_is_back(cluster: Cluster) -> None:
    """It may hold something else by now, though nothing was written: it remembers no comparison."""
    uid = cluster.create()
    cluster.publish(5)
    end = _at_rest(cluster, "S")[0].raft.last_index
    name = cluster.followers("S")[0]
    cluster.stop(name)
    cluster.boot(name)
    cluster.until("compared", lambda: cluster.node(name).parts.integrity.consistency.latest(uid)[0])
    assert {index for index, _ in _compared(cluster, uid)} == {end}
    assert len(_compared(cluster, uid)) == 1


def test_followers_whose_link_was_down_at_rest_compare_when_it_is_back(cluster: Cluster) -> None:
    """Their leader has links to both, so the group rests, and one of them is wrong: it takes the
    other's word to say so. That comes with the link, which wakes nobody else."""
    cluster.create()
    cluster.publish(300)
    cluster.until_whole()
    uid, leader = cluster.uid("S"), cluster.leader("S")
    cluster.save(uid)
    wrong, right = cluster.followers("S")
    cluster.stop(wrong)
    falsify(cluster, wrong, purged(101), like=leader)
    cluster.net.block({(wrong, right), (right, wrong)})
    cluster.boot(wrong)
    cluster.until("here", lambda: cluster.group(wrong, "S") is not None)
    _at_rest(cluster, "S")
    cluster.run_ms(LONG_MS)
    assert cluster.leader("S") == leader
    cluster.net.heal()
    cluster.until("seen to be wrong", lambda: cluster.events("replica has drifted"))
    cluster.suspects.clear()
    cluster.until_whole()
    assert len(cluster.read(wrong)) == 300


def test_busy_groups_compare_digests_at_a_checkpoint(cluster: Cluster) -> None:
    uid = cluster.create()
    groups = [cluster.group(name, "S") for name in cluster.names]
    since = _at_rest(cluster, "S")[0].raft.last_index
    for _ in range(LONG_MS // 200):
        cluster.publish(1)
        cluster.run_ms(200)
        assert not all(group is not None and group.raft.is_quiescent for group in groups)
    assert {index > since for index, _ in _compared(cluster, uid)} == {True}
    assert len(_compared(cluster, uid)) == 1


def test_streams_with_many_consumers_compare_at_an_entry(cluster: Cluster) -> None:
    """A fingerprint looks at each of them: not whenever a message came."""
    uid = cluster.create()
    for number in range(limits.REST_CONSUMERS_MAX + 1):
        config = {"durable_name": f"C{number}", "ack_policy": "explicit"}
        cluster.ask(f"CONSUMER.DURABLE.CREATE.S.C{number}", {"stream_name": "S", "config": config})
    groups = _at_rest(cluster, "S")
    end = groups[0].raft.last_index
    assert all(index < end for index, _ in _compared(cluster, uid))
    cluster.run_ms(limits.CHECKPOINT_EVERY_MS + 1000)
    (index, _), *others = _compared(cluster, uid)
    assert (index, others) == (end + 1, [])


def test_streams_with_many_consumers_compare_when_a_node_is_back(cluster: Cluster) -> None:
    """At an entry too, for they say nothing at rest."""
    cluster.create()
    for number in range(limits.REST_CONSUMERS_MAX + 1):
        config = {"durable_name": f"C{number}", "ack_policy": "explicit"}
        cluster.ask(f"CONSUMER.DURABLE.CREATE.S.C{number}", {"stream_name": "S", "config": config})
    cluster.publish(20)
    cluster.run_ms(limits.CHECKPOINT_EVERY_MS + 1000)
    name = cluster.followers("S")[0]
    cluster.stop(name)
    cluster.suspects.add(name)
    cluster.boot(name)
    cluster.until("open", lambda: cluster.group(name, "S") is not None)
    _at_rest(cluster, "S")
    cluster.machine(name, "S").index.live.digest ^= 1
    cluster.until("seen", lambda: cluster.events("replica has drifted"), 15)
    cluster.suspects.clear()
    cluster.until_whole()
    counts = cluster.node(name).health.counts()
    assert (counts["drifted_replicas"], counts["renewed_replicas"]) == (1, 1)
    end = _at_rest(cluster, "S")[0].raft.last_index
    cluster.run_ms(LONG_MS)
    assert _at_rest(cluster, "S")[0].raft.last_index == end


def test_a_message_to_a_group_at_rest_adds_one_log_entry_a_replica(cluster: Cluster) -> None:
    cluster.create()
    cluster.publish(1)
    groups = _at_rest(cluster, "S")
    logged: list[int] = []
    for group in groups:
        apply = group.machine.apply

        def noting(entry: Any, out: Any, apply: Any = apply) -> None:
            apply(entry, out)
            logged.append(entry.command[0] if entry.command else entry.data[1])

        group.machine.apply = noting
    cluster.publish(1)
    cluster.run_ms(LONG_MS)
    assert commands.CHECKPOINT not in logged
    assert len(logged) == len(groups)


def test_notes_about_a_stream_being_removed_are_not_kept(cluster: Cluster) -> None:
    """Its last notes come when it was deleted already, and its files are about to go."""
    uid = cluster.create()
    cluster.publish(1)
    _at_rest(cluster, "S")
    disk = cluster.process("n3").threads["block"]
    disk.hold()
    reply = cluster.send("STREAM.DELETE.S")
    cluster.run_ms(3 * 1000 * limits.COMPARE_DELAY_S)
    disk.release()
    nodes = [cluster.node(name) for name in cluster.names]
    cluster.until("gone", lambda: not any(node.groups.group_of(uid) for node in nodes))
    assert cluster.received(reply)
    assert not any(uid in node.parts.integrity.consistency._fingerprints._votes for node in nodes)
