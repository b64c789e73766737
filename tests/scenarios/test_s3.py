"""S3: a name may come back, an incarnation may not; whatever the files are like, the process runs.

An incarnation is a uid: the index of the meta entry that created the stream. Directories, groups,
frames, snapshots and manifests carry it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from streamd.machine import commands
from streamd.net.monitoring.healthz import judge
from streamd.net.monitoring.sliced_pages import finish
from streamd.obs.metrics import render
from streamd.raft.messages import SnapshotOffer
from streamd.store.wal import entry_index
from streamd.types import META_UID, NodeId, Uid
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster, setting
from tests.scenarios.files import copy_of, put_back
from tests.sim.disk import SimDisk
from tests.sim.host import SimProcess
from tests.sim.world import SECOND


def compact_meta(cluster: Cluster) -> None:
    """Write enough to the meta log, and snapshot it, that who was away needs the snapshot."""
    for _ in range(20):
        cluster.checkpoint(META_UID)
    cluster.save(META_UID)


def recreate(cluster: Cluster, *, old: int, new: int) -> tuple[NodeId, Uid]:
    """While a node is away its stream is deleted, created again and the meta log compacted.
    Returns the node and the uid it knew. It runs again."""
    cluster.create()
    cluster.publish(old)
    cluster.until_whole()
    leaders = {cluster.leader_name(META_UID), cluster.leader("S")}
    name = next(each for each in cluster.names if each not in leaders)
    uid = cluster.uid("S")
    config = cluster.checkers.assets[uid].config
    cluster.stop(name)
    assert cluster.ask("STREAM.DELETE.S")["success"]
    assert cluster.create_on(config, cluster.names) > uid
    cluster.publish(new)
    compact_meta(cluster)
    before = cluster.world.counts["point snapshot wanted"]
    cluster.boot(name)
    cluster.until_whole()
    assert cluster.world.counts["point snapshot wanted"] > before
    return name, uid


def test_s3_1_recreated_while_a_replica_is_down(cluster: Cluster) -> None:
    """S3.1: n2 knows 1,000 messages of an incarnation that was deleted meanwhile; it comes back to
    another one with 3. It has exactly these, in another directory and group; a consumer led there
    begins at 1."""
    name, old = recreate(cluster, old=1000, new=3)
    uid = cluster.uid("S")
    assert uid > old
    assert list(cluster.read(name)) == [1, 2, 3]
    disk = cluster.hosts[name].disk
    cluster.until("gone", lambda: not disk.exists(f"{ROOT}/streams/{old}"))
    assert cluster.node(name).groups.group_of(old) is None
    names = {cluster.node(each).group_info(uid)["raft_group"] for each in cluster.names}  # type: ignore[index]
    assert names == {f"S-R3F-{uid:08d}"}
    cluster.lead("S", name)
    cluster.consumer(at=name)
    assert cluster.consume(3) == [1, 2, 3]
    assert not cluster.pull(1)
    cluster.until_whole()


def test_s3_2_fewer_messages_than_the_old_incarnation_had(cluster: Cluster) -> None:
    """S3.2: the old one had 20 messages, the new one has 10: 10, and not 20."""
    name, _ = recreate(cluster, old=20, new=10)
    assert list(cluster.read(name)) == list(range(1, 11))
    assert cluster.machine(name, "S").state()["last_seq"] == 10


def test_s3_3_deleted_and_created_again_a_hundred_times(cluster: Cluster) -> None:
    """S3.3: deleted and created in one go, same name and config, 100 times, with n2 coming and
    going. All three end with the same, last incarnation, and only that."""
    cluster.create()
    uids = {cluster.uid("S")}
    config = cluster.checkers.assets[cluster.uid("S")].config
    for round_no in range(100):
        if round_no % 10 == 3:
            cluster.kill("n2")
        elif round_no % 10 == 8:
            cluster.boot("n2")
        cluster.until("a meta leader", lambda: cluster.leader_name(META_UID))
        leader = cluster.leader_name(META_UID)
        told: list[object] = []
        process = cluster.process(leader)
        now = process.clock.now_ns()

        def both(process: SimProcess = process, now: int = now, told: list[object] = told) -> None:
            process.node.propose_meta([commands.DELETE_STREAM, now, "S", 0], told.append)
            create = [commands.CREATE_STREAM, now, config, list(cluster.names)]
            process.node.propose_meta(create, told.append)

        process.run(both)
        cluster.until("deleted and created", lambda done=told: len(done) == 2, 10)
        uids.add(cluster.uid("S"))
        if round_no % 7 == 0:
            cluster.publish(round_no % 5, at="n1")
    assert len(uids) == 101
    cluster.boot("n2")
    cluster.publish(5)
    cluster.until_whole()
    uid = cluster.uid("S")
    assert uid == max(uids)
    for name in cluster.names:
        assert [each.uid for each in cluster.node(name).groups] == [uid]
        disk = cluster.hosts[name].disk
        cluster.until(
            "only the last", lambda disk=disk: disk.listdir(f"{ROOT}/streams") == [str(uid)]
        )


def conflicts_of(cluster: Cluster, name: NodeId) -> int:
    """The metric of a node's process that counts them."""
    documents = cluster.documents(name)
    varz = {"server_id": name, "server_name": name, "http_req_stats": {}}
    text = render(varz, documents.groups(), care=finish(documents.care())).decode()
    metric = f'streamd_incarnation_conflicts_total{{server_id="{name}"}} '
    return int(float(text.partition(metric)[2].split()[0]))


def check_conflict(cluster: Cluster, name: NodeId) -> None:
    """The node says what is wrong, and everything else on it works."""
    assert conflicts_of(cluster, name) == 1
    facts = cluster.node(name).group_info(cluster.uid("S"))
    assert facts is not None
    assert facts["state"] == "conflict"
    verdict = finish(judge(cluster.node(name), {"account": "$G", "stream": "S"}))
    assert verdict.status in (404, 503)
    assert "group" in facts["reason"]
    assert any(
        "files of another stream of the same name are not used" in line
        for line in cluster.world.recent
    )


def test_s3_4_files_of_a_lower_incarnation(cluster: Cluster) -> None:
    """S3.4: where a node's files of the stream belong there are those of a lower incarnation.

    They are set aside, not merged and not deleted; the node runs, its other streams work, and the
    group is `conflict` until a peer's files are there.
    """
    cluster.create("T")
    old = cluster.create()
    cluster.publish(50)
    cluster.save(old)
    name = cluster.followers("S")[0]
    disk = cluster.hosts[name].disk
    files = copy_of(disk, cluster.directory("S"))
    assert cluster.ask("STREAM.DELETE.S")["success"]
    assert cluster.create() > old
    cluster.publish(20)
    cluster.save(cluster.uid("S"))
    cluster.save(META_UID)  # so that the node knows of the new one when it is alone
    cluster.stop(name)
    put_back(disk, cluster.directory("S"), files)
    cluster.isolate(name)
    cluster.boot(name)
    cluster.run_ms(2000)
    check_conflict(cluster, name)
    cluster.net.heal()
    cluster.until_whole()
    cluster.publish(5, "T", at=name)
    cluster.until_whole("T")
    assert list(cluster.read(name)) == list(range(1, 21))
    assert conflicts_of(cluster, name) == 1
    assert cluster.health(name).status == 200
    assert any("-damaged-" in path for path in disk.listdir(f"{ROOT}/trash"))


def test_s3_4_a_snapshot_of_another_incarnation_is_sent(cluster: Cluster) -> None:
    """S3.4: a peer answers with the snapshot of another stream, and offers those of a stream that
    is gone. Nothing of it is used: once, `conflict`; then the right one comes."""
    gone = cluster.create("OLD")
    other = cluster.create("T")
    cluster.publish(30, "T")
    cluster.create()
    cluster.publish(50)
    assert cluster.ask("STREAM.DELETE.OLD")["success"]
    cluster.save(cluster.uid("S"))
    cluster.save(other)
    leader, name = cluster.leader("S"), cluster.followers("S")[0]
    cluster.stop(name)
    cluster.hosts[name].disk.wipe(cluster.directory("S"))
    calls = cluster.node(leader)._requests.calls
    serve = calls["manifest"]
    lies = 1

    def lie(sender: NodeId, args: list[Any], answer: Callable[[Any], None]) -> None:
        nonlocal lies
        if args[0] == cluster.uid("S") and lies:
            lies -= 1
            args = [other, 0, []]
        serve(sender, args, answer)

    calls["manifest"] = lie
    cluster.boot(name)
    cluster.until("met", lambda: conflicts_of(cluster, name), 10)
    check_conflict(cluster, name)
    raft = cluster.node(leader).groups.group_of(other).raft  # type: ignore[union-attr]
    offer = SnapshotOffer(raft.term + 1, 30, 1, 7, raft.members)
    process = cluster.process(name)
    process.run(process.node.on_raft, leader, gone, [offer])
    cluster.until_whole()
    cluster.until_whole("T")
    assert conflicts_of(cluster, name) == 1
    assert len(cluster.read(name)) == 50
    assert process.node.groups.group_of(gone) is None


def test_s3_5_two_of_three_have_lost_everything(cluster: Cluster) -> None:
    """S3.5: all stop, two are wiped. These two wait for a minute and found nothing; with the third
    all 5,000 acked messages are there again, and none of its files was removed."""
    uid = cluster.create()
    cluster.publish(5000, chunk=250)
    cluster.until_whole()
    before = cluster.read("n3")
    for name in cluster.names:
        cluster.stop(name)
    for name in ("n1", "n2"):
        cluster.hosts[name].disk.wipe(ROOT)
    disk = cluster.hosts["n3"].disk
    blocks = {path: disk.contents(path) for path in disk.paths if path.endswith(".blk")}
    cluster.boot("n1", "n2")
    for _ in range(60):
        cluster.run_ms(1000)
        for name in ("n1", "n2"):
            node = cluster.node(name)
            assert not node.parts.context.identity.cluster_id
            assert not node.meta_leader
            assert not node.streams()
    cluster.boot("n3")
    cluster.until("n1 and n2 know the stream", lambda: cluster.group("n1", "S"), 30)
    cluster.until_whole()
    assert len(before) == 5000
    assert cluster.read("n1") == cluster.read("n2") == cluster.read("n3") == before
    assert cluster.uid("S") == uid
    assert {path: disk.contents(path) for path in blocks} == blocks
    assert not disk.listdir(f"{ROOT}/trash")


def wal_segments(cluster: Cluster, name: NodeId) -> list[str]:
    """Segments that hold something, the oldest first; the newest is the one in use."""
    paths = cluster.hosts[name].disk.paths
    found = [path for path in paths if path.startswith(f"{ROOT}/wal/") and path.endswith(".wal")]
    assert len(found) >= 3, found
    return found


def newest_snapshots(cluster: Cluster, name: NodeId) -> list[str]:
    """The stream's snapshot files, the newest first."""
    prefix = cluster.directory("S") + "/"
    paths = cluster.hosts[name].disk.paths
    return sorted((p for p in paths if p.startswith(prefix) and p.endswith(".snap")), reverse=True)


def zero_tail(cluster: Cluster, name: NodeId) -> None:
    """The log ends long before the newest snapshot."""
    disk = cluster.hosts[name].disk
    for path in wal_segments(cluster, name)[1:]:
        disk.wipe(path)


def rewrite(byte: bytes) -> Callable[[Cluster, NodeId], None]:
    """The file that names the log's newest segment: nothing but this byte."""

    def damage(cluster: Cluster, name: NodeId) -> None:
        disk = cluster.hosts[name].disk
        path = f"{ROOT}/wal/manifest"
        assert path in disk.paths, [p for p in disk.paths if "/wal/" in p]
        for content in (disk._files[path].now, disk._files[path].durable):
            content[:] = byte * len(content)
        disk.rewrites += 1

    return damage


DAMAGES: dict[str, Callable[[Cluster, NodeId], None]] = {
    "first segment": lambda c, n: c.hosts[n].disk.wipe(wal_segments(c, n)[0]),
    "middle segment": lambda c, n: c.hosts[n].disk.wipe(wal_segments(c, n)[1]),
    "last segment": lambda c, n: c.hosts[n].disk.wipe(wal_segments(c, n)[-1]),
    "snapshots": lambda c, n: [c.hosts[n].disk.wipe(p) for p in newest_snapshots(c, n)] and None,
    "newest snapshot": lambda c, n: c.hosts[n].disk.wipe(newest_snapshots(c, n)[0]),
    "log before snapshot": zero_tail,
    "empty log": lambda c, n: [c.hosts[n].disk.wipe(p) for p in wal_segments(c, n)] and None,
    "no log": lambda c, n: c.hosts[n].disk.wipe(f"{ROOT}/wal"),
    "no manifest": lambda c, n: c.hosts[n].disk.wipe(f"{ROOT}/wal/manifest"),
    "manifest of zeros": rewrite(b"\0"),
    "manifest of garbage": rewrite(b"\xa5"),
    "meta snapshots": lambda c, n: c.hosts[n].disk.wipe(f"{ROOT}/meta"),
}
VOTES_LOST = {
    "last segment", "log before snapshot", "empty log", "no log",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_s3_7_whatever_the_files_are_like_the_process_runs(cluster: Cluster, damage: str) -> None:
    """S3.7: "log not found". A node comes back to a log, snapshots or both with holes in them.

    There is one log for all groups of a node, their votes in it; the file that names its newest
    segment stands for the file of votes. The node is up at once; a group that can't prove itself
    says so and does not lead; where votes may be lost it is in doubt until a leader has vouched
    for it. With the others back it is whole within 30 s, without another restart.
    """
    with setting(entry_index, "SEGMENTS_UNHURRIED", 100):
        cluster.create("T")
        cluster.publish(5, "T")  # never in a snapshot: keeps the log's first segment in use
        cluster.create()
        cluster.publish(60, size=3000)
        cluster.save(cluster.uid("S"))
        cluster.publish(60, size=3000)
        cluster.save(cluster.uid("S"))
        cluster.save(META_UID)
        cluster.publish(10, size=3000)
        cluster.until_whole()
    name = cluster.followers("S")[0]
    cluster.kill(name)
    DAMAGES[damage](cluster, name)
    cluster.publish(5, at=cluster.leader("S"))
    cluster.isolate(name)
    cluster.boot(name)
    cluster.run_ms(5000)
    process = cluster.process(name)
    assert process.is_started
    group = cluster.node(name).groups.group_of(cluster.uid("S"))
    if group is not None:
        assert not group.failure
        assert group.raft.is_uncertain or damage not in VOTES_LOST
        assert not group.raft.is_leader
        assert not cluster.is_current(name)
    assert cluster.health(name).status == 503
    cluster.net.heal()
    cluster.until_whole()
    cluster.until_whole("T")
    assert cluster.process(name) is process
    assert cluster.health(name).status == 200
    cluster.publish(10)
    cluster.lead("S", name)
    cluster.until_whole()


def in_doubt(cluster: Cluster, name: NodeId) -> bool:
    group = cluster.group(name, "S")
    return group is None or group.raft.is_uncertain


@pytest.mark.parametrize("damage", ["no log", "log before snapshot"])
def test_a_log_begun_anew_says_what_the_snapshot_covers(cluster: Cluster, damage: str) -> None:
    """S3.7, and then an ordinary restart: what was logged since is not taken for the rest of a log
    whose beginning is missing. Two nodes, one after the other, and a third that knows less."""
    with setting(entry_index, "SEGMENTS_UNHURRIED", 100):
        cluster.create("T")
        cluster.publish(5, "T")  # never in a snapshot: keeps the log's first segment in use
        cluster.create()
        for _ in range(3):
            cluster.publish(60, size=3000)
            cluster.save(cluster.uid("S"))
        cluster.save(META_UID)
        cluster.until_whole()
    behind, *others = cluster.names
    for name in others:
        cluster.kill(name)
        DAMAGES[damage](cluster, name)
        cluster.boot(name)
        cluster.until_whole()
        cluster.until("believed", lambda name=name: not in_doubt(cluster, name), 30)
    cluster.publish(5, size=3000)
    cluster.until_whole()
    cluster.kill(behind)
    cluster.until("led", lambda: cluster.leader("S") in others, 30)
    seqs = cluster.publish(10, size=3000, at=others[0])
    for name in others:
        cluster.kill(name)
    cluster.boot(behind, *others)
    for name in others:
        assert not cluster.node(name).parts.context.wal.damaged_groups, name
        cluster.until("open", lambda name=name: cluster.group(name, "S"))
        assert not in_doubt(cluster, name)
    cluster.until_whole()
    assert set(seqs) <= set(cluster.read(behind))


@pytest.mark.parametrize("is_cache_kept", [False, True], ids=["power", "kill"])
def test_a_start_that_ends_when_the_log_is_whole_again_has_said_what_may_be_lost(
    cluster: Cluster, is_cache_kept: bool
) -> None:
    """S3.7: the log's end is gone, and with it what named all groups. The next start finds a log
    without damage, and must know that this node may have been in a group it knows nothing of."""
    with setting(entry_index, "SEGMENTS_UNHURRIED", 100):
        cluster.create()
        cluster.publish(120, size=3000)
        cluster.until_whole()
    name = cluster.followers("S")[0]
    host = cluster.hosts[name]
    cluster.kill(name)
    DAMAGES["last segment"](cluster, name)
    cluster.isolate(name)
    host.is_cache_kept = is_cache_kept
    host.disk.crash_at_point = "WAL_DAMAGE_REWRITTEN"
    cluster.boot(name)
    cluster.until("dead", lambda: host.node is None)
    cluster.boot(name)
    cluster.run_ms(1000)
    assert cluster.node(name).parts.recovery.amnesia.is_rejoined
    cluster.net.heal()
    cluster.until_whole()
    cluster.until(
        "vouched for", lambda: not cluster.node(name).parts.recovery.amnesia.is_rejoined, 30
    )


def test_a_log_that_does_not_lead_to_the_snapshot_is_given_up(cluster: Cluster) -> None:
    """S3.7: a leader that was cut off logs more than the others commit after it, and none of it
    counts. What it has under the snapshot's index is of another term."""
    cluster.create()
    cluster.publish(20)
    cluster.until_whole()
    uid, name = cluster.uid("S"), cluster.leader("S")
    others = cluster.followers("S")
    cluster.isolate(name)
    for _ in range(60):
        cluster.offer("S", [(b"S.x", b"", b"alone")], name)
        cluster.run_ms(5)
    cluster.until("led", lambda: cluster.leader_name(uid) in others, 20)
    other = cluster.leader_name(uid)
    cluster.publish(15, at=other, chunk=1)
    cluster.save(uid, *others)
    wal, group = cluster.node(name).parts.context.wal, cluster.group(other, "S")
    log = wal.group(uid)
    assert group is not None
    assert log is not None
    assert log.last_index > group.snapshot_index
    reset_group = wal.reset_group
    given_up: list[int] = []

    def reset(uid: Uid, index: int, *rest: Any, **named: Any) -> None:
        given_up.append(index)
        reset_group(uid, index, *rest, **named)

    wal.reset_group = reset  # type: ignore[method-assign]
    cluster.net.heal()
    cluster.until_whole()
    assert given_up == [group.snapshot_index]
    assert not cluster.events(
        "warning: the log of a group cannot be used: the group begins at its snapshot"
    ), "nobody has to doubt it"
    assert b"alone" not in cluster.read(name).values()


def test_s3_9_the_leader_is_gone_in_the_middle_of_a_catch_up(make: Make) -> None:
    """S3.9: a follower has fetched 40 % when its leader is killed. It goes on from the next one
    with what it has, and neither leads nor is current before it has all (10,000 messages here)."""
    cluster = make(5)
    cluster.create(replicas=5)
    cluster.publish(100)
    name = cluster.followers("S")[0]
    cluster.stop(name)
    cluster.publish(10_000, size=200, chunk=500)
    cluster.save(cluster.uid("S"))
    uid = cluster.uid("S")
    cluster.boot(name)

    def fetched() -> float:
        have, total = cluster.node(name).parts.recovery.catchups.progress(uid)
        return have / total if total else 0.0

    cluster.until("40 % there", lambda: fetched() >= 0.4, 20)
    assert fetched() < 0.9
    before = cluster.leader("S")
    cluster.kill(before)
    cluster.until("at it again", lambda: fetched() and cluster.leader("S") != before, 10)
    least = 1.0
    began = cluster.world.now_us
    while cluster.machine(name, "S").index.last_seq < 10_100:
        cluster.run_ms(2)
        group = cluster.group(name, "S")
        if group is None or group.machine.index.last_seq == 10_100:
            cluster.until("open", lambda: cluster.group(name, "S"))
            continue
        assert not group.raft.is_leader
        assert not cluster.is_current(name)
        if cluster.node(name).parts.recovery.catchups.is_running(uid) and fetched():
            least = min(least, fetched())
        assert cluster.world.now_us - began < 30 * SECOND
    assert least >= 0.35
    cluster.boot(before)
    cluster.until_whole()


def down_while_meta_goes_on(cluster: Cluster) -> NodeId:
    """Kill a node that leads nothing; when it comes back it needs the meta group's snapshot."""
    cluster.create()
    cluster.until_whole()
    leaders = {cluster.leader_name(META_UID), cluster.leader("S")}
    name = next(each for each in cluster.names if each not in leaders)
    cluster.kill(name)
    compact_meta(cluster)
    return name


def behind_with_a_full_disk(cluster: Cluster) -> tuple[NodeId, SimDisk]:
    """A node comes back that needs the meta group's snapshot, and its disk takes no byte more."""
    name = down_while_meta_goes_on(cluster)
    cluster.isolate(name)
    cluster.boot(name)
    cluster.run_ms(1000)
    disk = cluster.hosts[name].disk
    disk.capacity = disk.used_bytes
    cluster.net.heal()
    return name, disk


def meta_applied(cluster: Cluster, name: NodeId) -> int:
    group = cluster.node(name).groups.meta_group
    return group.machine.applied if group is not None else 0


def test_s3_11_a_full_disk_when_the_meta_snapshot_is_fetched(cluster: Cluster) -> None:
    """S3.11: ENOSPC. The node stays up with the meta group it has, and takes the snapshot when
    there is room: seed 66314."""
    name, disk = behind_with_a_full_disk(cluster)
    process = cluster.process(name)
    cluster.until("trouble", lambda: cluster.events("warning: catch-up"))
    for _ in range(100):
        cluster.run_ms(50)
        assert cluster.node(name).groups.meta_monitor is not None
    last = cluster.checkers.truths[META_UID].last
    assert meta_applied(cluster, name) < last
    disk.capacity = 1 << 40
    cluster.until("caught up", lambda: meta_applied(cluster, name) >= last)
    assert cluster.process(name) is process
    assert not disk.exists(f"{ROOT}/meta/fetched.tmp")
    cluster.until_whole()


def test_s3_11_a_stream_that_does_not_fit_leaves_the_others_their_room(cluster: Cluster) -> None:
    """S3.11: a node comes back to a disk that has no room for what it missed of one stream.

    The fetch filled the disk, and what the node had whole could not be written any more: that
    stream was stopped for good there.
    """
    cluster.create("S")
    cluster.create("T")
    cluster.publish(10, "T")
    cluster.until_whole("T")
    name = next(n for n in cluster.names if n not in {cluster.leader("S"), cluster.leader("T")})
    cluster.stop(name)
    for _ in range(20):  # until the log has let go what the node lacks
        cluster.publish(100, "S", size=1000)
    disk = cluster.hosts[name].disk
    disk.capacity = disk.used_bytes + 1_800_000  # S has more than two
    cluster.boot(name)
    cluster.until("trouble", lambda: cluster.events("warning: catch-up"))
    for _ in range(20):
        cluster.publish(20, "T", size=500)
        for _ in range(50):
            cluster.run_ms(5)
            assert disk.free_bytes(ROOT) > 100_000
    assert cluster.events("warning: catch-up") == 1  # told once, however often it is tried
    assert cluster.is_current(name, "T")
    disk.capacity = 1 << 40
    cluster.until_whole("S")
    cluster.until_whole("T")


def test_s3_11_a_disk_that_runs_full_is_logged_with_advice(cluster: Cluster) -> None:
    """A follower with a smaller disk than its leader. It was silent until its replica stopped, and
    then named the file, but not that a restart is needed once there is room."""
    cluster.create()
    cluster.publish(10)
    name = cluster.followers("S")[0]
    disk = cluster.hosts[name].disk
    cluster.hosts[name].excused_until_us = cluster.world.now_us + 60 * SECOND
    disk.capacity = disk.used_bytes + 600_000
    cluster.until("a warning", lambda: cluster.events("warning: disk is almost full"), 5)
    assert cluster.is_current(name)
    for _ in range(8):
        cluster.publish(100, size=1000)
    cluster.until("stopped", lambda: cluster.events("error: stream stopped"))
    assert cluster.events("disk is almost full") == 1
    assert any("make room" in line for line in cluster.world.recent)
    assert "No space left" in cluster.health(name).text
    groups = finish(cluster.documents(name).raftz({"acc": "$G"})) or {}
    assert [group["state"] for group in groups["$G"].values()] == ["CLOSED"]
    disk.capacity = 1 << 40
    cluster.until("room", lambda: cluster.events("disk has room again"), 5)
    cluster.stop(name)
    cluster.boot(name)
    cluster.until_whole()


def test_s3_11_a_meta_snapshot_that_does_not_get_into_place_ends_the_process(
    cluster: Cluster,
) -> None:
    """The group is closed by then: a node that went on without it would be behind for ever."""
    name, disk = behind_with_a_full_disk(cluster)
    disk.capacity = 1 << 40
    disk.fail("replace", errno.EIO, under=f"{ROOT}/meta")
    cluster.hosts[name].excused_until_us = cluster.world.now_us + 10 * SECOND
    before = cluster.process(name)
    cluster.until("a new process", lambda: cluster.process(name) is not before)
    last = cluster.checkers.truths[META_UID].last
    cluster.until("caught up", lambda: meta_applied(cluster, name) >= last)
    cluster.until_whole()


def test_s3_11_killed_before_the_name_of_the_meta_snapshot_is_durable(cluster: Cluster) -> None:
    """S3.11: SIGKILL between the rename and the sync of the directory. The next process finds the
    snapshot and says that it holds it; the power may go at any time after that."""
    name = down_while_meta_goes_on(cluster)
    host = cluster.hosts[name]
    host.is_cache_kept = True
    host.disk.crash_at_point = "SNAPSHOT_RENAMED"
    cluster.boot(name)
    cluster.until("killed", lambda: name not in cluster.running())
    cluster.boot(name)
    cluster.run_ms(3000)  # the checkers see what it says it holds
    host.is_cache_kept = False
    host.lose_power()
    cluster.boot(name)
    cluster.until("caught up", lambda: meta_applied(cluster, name) >= 20)
    cluster.until_whole()
