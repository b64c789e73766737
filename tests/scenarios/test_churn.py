"""Streams and consumers that come and go, or stop, leave nothing behind, on any node."""

from __future__ import annotations

import errno

import pytest

from streamd import limits
from streamd.errors import DiskError
from streamd.machine import commands
from streamd.node.groups import inbox
from streamd.store.wal import entry_index
from streamd.types import META_UID, NodeId
from tests.holdings import grown, sizes
from tests.scenarios.conftest import Make
from tests.scenarios.driver import EXPLICIT, ROOT, Cluster

ROUND = 24


def come_and_go(cluster: Cluster, first: int) -> None:
    for number in range(first, first + ROUND):
        name, at = f"S{number}", cluster.names[number % 3]
        storage = "memory" if number % 2 else "file"
        cluster.create(name, at=at, replicas=1 + 2 * (number % 4 > 0), storage=storage)
        cluster.publish(3, name, at=at)
        cluster.consumer(name, "C")
        cluster.ack(cluster.pull(2, name, "C", at=at), name, at=at)
        if number % 3:
            cluster.ask(f"CONSUMER.DELETE.{name}.C", at=at)
        if number % 5 == 0:
            cluster.step_down(name)
        assert cluster.ask(f"STREAM.DELETE.{name}", at=at)["success"]


def test_nothing_is_kept_of_streams_that_are_gone(cluster: Cluster) -> None:
    come_and_go(cluster, 0)
    cluster.run_ms(3000)
    before = {name: sizes(cluster.node(name)) for name in cluster.names}
    come_and_go(cluster, ROUND)
    cluster.run_ms(3000)
    for name in cluster.names:
        kept = grown(before[name], sizes(cluster.node(name)), ROUND // 3)
        # Entries of the meta group's log: until its next snapshot.
        assert not {what for what in kept if not what.startswith("Entry.")}, name


@pytest.mark.parametrize("replicas", [1, 3])
def test_requests_of_a_deleted_stream_are_answered(cluster: Cluster, replicas: int) -> None:
    """What was on its way when its group ended was never answered, and counted for ever as a
    request under way: after ten thousand of them the API served nobody any more."""
    for number in range(8):
        name = f"S{number}"
        cluster.create(name, replicas=replicas)
        config = {"stream_name": name, "config": {"durable_name": "C"} | EXPLICIT}
        replies = [cluster.send(f"STREAM.DELETE.{name}")]
        for _ in range(12):
            for at in cluster.names:
                for asked in ("STREAM.INFO", "STREAM.PURGE", "CONSUMER.CREATE"):
                    subject = f"{asked}.{name}" + ".C" * (asked == "CONSUMER.CREATE")
                    body = config if asked == "CONSUMER.CREATE" else None
                    replies.append(cluster.send(subject, body, at))
            cluster.run_ms(1)
        cluster.until("answers", lambda: all(map(cluster.received, replies)), 5)  # noqa: B023
    for name in cluster.names:
        assert cluster.process(name).router.counts.pending == 0
        assert not cluster.node(name).hooks.has_requests()


def test_applied_entries_are_kept_for_peers_alone(cluster: Cluster) -> None:
    """Entries stay in memory for peers that are a little behind. Each kept who had waited for it as
    well, thousands of connections that were gone, and what it had been decoded to."""
    cluster.create("S")
    cluster.consumer("S", "C")
    for at in cluster.names:
        cluster.publish(100, "S", at=at)
    cluster.ack(cluster.pull(20))
    cluster.until_whole("S")
    for name in cluster.names:
        for uid in (META_UID, cluster.uid("S")):
            group = cluster.node(name).groups.group_of(uid)
            assert group is not None
            log = group.raft.log
            applied = [entry for entry in log.entries if entry.index <= log.emitted]
            assert applied
            assert all(entry.tag is None and entry.command is None for entry in applied)


def test_publishes_that_are_never_answered_are_forgotten(cluster: Cluster) -> None:
    """Their leader began anew and knew nothing of them. They held their connection, and their
    bytes, until nothing more could be held that a next leader would have to be sent again."""
    uid = cluster.create("S")
    msg_id = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n"
    waiting = 0
    for number in range(4):
        leader = cluster.leader("S")
        at = cluster.followers("S")[0]
        relay = cluster.node(at).parts.cluster.forwarding.relay
        replica = cluster.node(leader).replica(uid)
        assert replica is not None
        cluster.process(leader).run(replica.group.delete)  # as it is closed to be begun anew
        cluster.offer("S", [(b"S.x", msg_id % number, b"x" * 1000)], at)
        cluster.run_ms(500)
        waiting += relay.waiting_count
        cluster.process(leader).run(
            cluster.node(leader).parts.replicas.replicas.reopen, uid, lambda: None
        )
        cluster.until_whole("S")
    assert waiting
    cluster.run_ms(limits.RELAYED_MS + 1000)
    for name in cluster.names:
        relay = cluster.node(name).parts.cluster.forwarding.relay
        assert (relay.waiting_count, relay.held_bytes) == (0, 0), name


def test_leaders_of_deleted_streams_are_forgotten(cluster: Cluster) -> None:
    """What a leader says of itself, and that its stream is deleted, take different links. Nobody
    would ever have said that it leads no more."""
    uid = cluster.create("S")
    assert cluster.ask("STREAM.DELETE.S")["success"]
    cluster.run_ms(1000)
    node = cluster.node("n1")
    cluster.process("n1").run(node.on_note, "n2", "leaders", [[uid, 99, True]])
    assert node.leader_of(uid) == ""
    assert uid not in {*node.leaders.led_by("n2"), *node.leaders.led_by("n1")}


def test_a_stopped_stream_does_not_keep_the_log(cluster: Cluster) -> None:
    """It took all that was written to other streams, for ever, until the disk was full."""
    cluster.create("S", replicas=1)
    cluster.publish(20, "S", size=500)
    name, uid = cluster.leader("S"), cluster.uid("S")
    cluster.create("T")
    node = cluster.node(name)
    monitor = node.groups.monitor_of(uid)
    assert monitor is not None
    monitor.post(inbox.Failed(DiskError("the disk is gone")))
    cluster.until("stopped", lambda: ("$G", "S") in node.failed)
    newest = 0
    for _ in range(10):
        cluster.publish(800, "T", size=3000, at=name)
        cluster.run_ms(limits.STRAGGLER_CHECK_S * 1000 + 500)
        paths = [path for path in cluster.hosts[name].disk.paths if path.endswith(".wal")]
        assert len(paths) <= entry_index.SEGMENTS_MAX + 8
        newest = max(newest, int(max(paths).rsplit("/", 1)[1].split(".")[0], 16))
    assert newest > 3 * 16
    cluster.lose_power(name)
    cluster.boot(name)
    cluster.until("serving again", lambda: cluster.leader_name(uid) == name)
    assert len(cluster.read(name, "S")) == 20


def test_a_stream_that_moved_away_meanwhile_leaves_nothing(cluster: Cluster) -> None:
    """A node that was down finds it elsewhere. It did not open it, so it never asked whether it may
    let go of it: its files stayed, and what the log had of it, for ever."""
    uid = cluster.create("S")
    cluster.create("T")
    cluster.publish(20, "S", size=500)
    cluster.until_whole("S")
    name = cluster.followers("S")[0]
    directory = cluster.directory("S")
    cluster.stop(name)
    config = {"name": "S", "subjects": ["S.>"], "num_replicas": 1, "allow_direct": True}
    assert "error" not in cluster.ask("STREAM.UPDATE.S", config)
    assets = cluster.node(cluster.leader("T")).meta.streams_by_uid
    cluster.until("moved", lambda: name not in (*assets[uid].members, *assets[uid].peers))
    cluster.boot(name)
    cluster.until_whole("T")
    disk = cluster.hosts[name].disk

    def is_gone() -> bool:
        return uid not in cluster.node(name).parts.context.wal.groups and not disk.exists(directory)

    cluster.until("gone", is_gone)
    cluster.stop(name)
    cluster.boot(name)
    cluster.run_ms(5000)
    assert is_gone()
    assert cluster.publish(5, "S") == [21, 22, 23, 24, 25]


def move_away(cluster: Cluster, name: NodeId) -> NodeId:
    """Have another node take the replica of S at `name`; return some node but that."""
    at = next(each for each in cluster.names if each != name)
    assert cluster.ask("STREAM.PEER.REMOVE.S", {"peer": name}, at=at)["success"]
    return at


def a_follower(cluster: Cluster) -> NodeId:
    peers = cluster.checkers.assets[cluster.uid("S")].peers
    return next(name for name in cluster.followers("S") if name in peers)


@pytest.mark.parametrize("is_passing", [False, True])
def test_a_stream_that_moved_away_while_it_was_begun_anew_leaves_nothing(
    make: Make, is_passing: bool
) -> None:
    """The news found it closed, and it was not opened again to ask whether it may go: its files
    stayed, and what the log had of it kept all that others logged, until the next start."""
    cluster = make(4)
    uid = cluster.create()
    cluster.publish(20, "S", size=500)
    cluster.until_whole()
    name, directory = a_follower(cluster), cluster.directory("S")
    node, disk = cluster.node(name), cluster.hosts[name].disk
    cluster.save(uid, name)
    move_away(cluster, name)
    if is_passing:
        disk.fail("open", errno.EMFILE, under=directory, count=0)
    cluster.process(name).run(node.parts.replicas.replicas.reopen, uid, lambda: None)
    cluster.until("closed", lambda: node.groups.get(uid) is None)
    if not is_passing:
        cluster.process(name).threads["block"].hold()
    assets = node.meta.streams_by_uid
    cluster.until("moved", lambda: assets[uid].may_be_dropped_by(name))
    cluster.run_ms(100)
    disk.heal()
    cluster.process(name).threads["block"].release()
    cluster.run_ms(limits.OPEN_AGAIN_S * 1000 + 3000)
    assert not node.parts.replicas.table.knows(uid)
    assert uid not in node.parts.context.wal.groups and not disk.exists(directory)
    assert ("$G", "S") not in node.failed


def test_a_stream_that_stopped_and_moved_away_does_not_keep_the_log(make: Make) -> None:
    """What an operator does about a bad disk: it is not stopped any more, for it is not wanted
    here; nor can it be opened, to ask whether it may go. So nobody saw to what it keeps."""
    cluster = make(4)
    uid = cluster.create()
    cluster.publish(20, "S", size=500)
    cluster.until_whole()
    name = a_follower(cluster)
    cluster.save(uid, name)
    node, disk = cluster.node(name), cluster.hosts[name].disk
    disk.fail("open", errno.EIO, under=cluster.directory("S"), count=0)
    disk.fail("replace", errno.EIO, under=cluster.directory("S"), count=0)
    cluster.process(name).run(node.parts.replicas.replicas.reopen, uid, lambda: None)
    cluster.until("stopped", lambda: ("$G", "S") in node.failed)
    at = move_away(cluster, name)
    cluster.until("gone", lambda: not node.parts.replicas.table.knows(uid))
    tuid = cluster.create("T", replicas=1, at=at)
    cluster.command(META_UID, [commands.SET_PEERS, 1, tuid, [name]])
    cluster.until("T there", lambda: cluster.leader_name(tuid) == name)
    for _ in range(6):
        cluster.publish(800, "T", size=3000, at=name)
        cluster.run_ms(limits.STRAGGLER_CHECK_S * 1000 + 500)
        paths = [path for path in disk.paths if path.endswith(".wal")]
        assert len(paths) <= entry_index.SEGMENTS_MAX + 8
    disk.heal()
    cluster.kill(name)
    cluster.boot(name)
    cluster.until("let go", lambda: not disk.exists(cluster.directory("S")))
    cluster.until("forgotten", lambda: uid not in cluster.node(name).parts.context.wal.groups)


@pytest.mark.parametrize("then", ["reopened", "deleted"])
def test_two_may_wait_until_a_replica_is_closed(cluster: Cluster, then: str) -> None:
    """The second met what the first had taken apart: an error in the last moment of a group, where
    nothing catches it, and what was to be done then was not done until the next start."""
    uid = cluster.create()
    cluster.publish(100, size=500)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    node, disk, directory = cluster.node(name), cluster.hosts[name].disk, cluster.directory("S")

    def close_twice() -> None:
        node.parts.replicas.replicas.reopen(uid, before=lambda: None)
        if then == "reopened":
            node.parts.replicas.replicas.reopen(uid, before=lambda: None)

    monitor = node.groups.monitor_of(uid)
    assert monitor is not None
    cluster.process(name).threads["block"].hold()
    cluster.process(name).run(monitor.post, inbox.SnapshotWanted())
    cluster.run_ms(5)
    cluster.process(name).run(close_twice)
    if then == "deleted":
        cluster.send("STREAM.DELETE.S")
        cluster.until("told", lambda: node.meta.is_deleted(uid))
    cluster.process(name).threads["block"].release()
    cluster.run_ms(1000)
    if then == "reopened":
        cluster.until_whole()
    else:
        cluster.until(
            "gone", lambda: not node.parts.replicas.table.knows(uid) and not disk.exists(directory)
        )
        assert uid not in node.parts.context.wal.groups
        cluster.create()
    assert cluster.publish(1)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_stream_that_fails_while_it_is_deleted_leaves_no_failure(
    cluster: Cluster, replicas: int
) -> None:
    """A full disk, and what is deleted to make room. Its server said that the stream, which was no
    more, had stopped; and who made a new one of that name was told that it was offline."""
    uid = cluster.create(replicas=replicas)
    cluster.publish(100, size=500)
    name = cluster.leader("S")
    node, disk = cluster.node(name), cluster.hosts[name].disk
    monitor = node.groups.monitor_of(uid)
    assert monitor is not None
    directory = cluster.directory("S")
    disk.fail("fdatasync", errno.ENOSPC, under=directory, count=0)
    cluster.process(name).threads["block"].hold()
    cluster.process(name).run(monitor.post, inbox.SnapshotWanted())
    cluster.run_ms(5)
    reply = cluster.send("STREAM.DELETE.S", at=name)
    cluster.until("deleted", lambda: node.meta.is_deleted(uid))
    cluster.run_ms(50)
    cluster.process(name).threads["block"].release()
    cluster.until("gone", lambda: not disk.exists(directory))
    disk.heal()
    cluster.until("an answer", lambda: cluster.received(reply))
    assert not node.failed and cluster.health(name).status == 200
    assert cluster.events("stream failed while it was closed for good") == 1
    cluster.create(replicas=replicas)


@pytest.mark.parametrize("after_ms", [0, 5, 20, 60, 2000])
def test_deleted_streams_leave_nothing_whenever_the_power_goes(
    cluster: Cluster, after_ms: int
) -> None:
    """What a deletion had begun was never ended: the files stayed in trash or where they were, and
    what the log had of them kept all that came after."""
    uids = {cluster.create(name, replicas=1 + 2 * (at > 1)) for at, name in enumerate("STUVW")}
    for name in "STUVW":
        cluster.publish(3, name, size=500)
    cluster.create("X")
    for name in "STUVW":
        cluster.ask(f"STREAM.DELETE.{name}")
    cluster.run_ms(after_ms)
    cluster.lose_power(*cluster.names)
    fetched = f"{ROOT}/streams/{min(uids)}.catchup"
    cluster.hosts["n1"].disk.make_dirs(fetched)
    cluster.hosts["n1"].disk.open(f"{fetched}/1.blk.part", create=True)
    cluster.boot()
    cluster.publish(3, "X")
    cluster.run_ms(5000)
    for name in cluster.names:
        assert not uids & set(cluster.node(name).parts.context.wal.groups), name
        directories = {
            path.split("/")[4]
            for path in cluster.hosts[name].disk.paths
            if "/trash/" in path or "/streams/" in path
        }
        assert not {str(uid) for uid in uids} & {each.split(".")[0] for each in directories}, name


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_a_stream_is_made_while_a_node_is_away(cluster: Cluster, storage: str) -> None:
    """Its replica there is opened and fed when the node is back, and counts then."""
    leader = cluster.leader_name(META_UID)
    away, other = (name for name in cluster.names if name != leader)
    cluster.kill(away)
    cluster.until("noticed", lambda: not is_up(cluster, leader, away))
    cluster.create("S", at=leader, storage=storage)
    cluster.consumer("S", "C", at=leader)
    cluster.publish(20, "S", at=leader)
    cluster.boot(away)
    cluster.until_whole("S")
    cluster.kill(other)
    cluster.until("noticed", lambda: not is_up(cluster, leader, other))
    cluster.until("led", lambda: cluster.leader("S") in (leader, away))
    cluster.publish(5, "S", at=leader)
    # A follower hears of the commit with the next entry, or a few ms later.
    cluster.until("read there", lambda: len(cluster.read(away)) == 25)


def is_up(cluster: Cluster, at: str, name: str) -> bool:
    peers = cluster.node(at).peers
    return peers is not None and peers.is_up(name)
