"""S4.7 to S4.9: files rot while the nodes run; the scrubber sees it, and peers have it right.

A replica with a damaged block is set aside and made anew from a peer; blocks that are whole are
copied from what was set aside, so only what is damaged is fetched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from streamd import limits
from streamd.errors import CorruptionError, ReadError
from streamd.net.monitoring.healthz import judge
from streamd.net.monitoring.sliced_pages import finish
from streamd.node.catchup.service import CatchupService
from streamd.node.groups import inbox
from streamd.node.integrity import scrub
from streamd.node.replicas import replica_recovery
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.store.blocks.block import HEADER_BYTES
from streamd.types import NodeId, Seq
from tests.scenarios.conftest import ROUNDS, Make, proof
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import check_blocks, copy_of, cut, damages_of, fast_scrubbing, swap
from tests.sim.disk import SimDisk
from tests.sim.world import MS


@pytest.fixture(autouse=True)
def scrubbing() -> Iterator[None]:
    with fast_scrubbing():
        yield


def block_of(cluster: Cluster, number: int) -> str:
    return f"{cluster.directory('S')}/{number}.blk"


def counted_blocks(cluster: Cluster, name: NodeId) -> list[tuple[str, int]]:
    """(path, bytes that count) of all blocks that a node's replica needs and has synced."""
    index = cluster.machine(name, "S").index
    disk = cluster.hosts[name].disk
    found = []
    for block in index.blocks:
        path = block_of(cluster, block.block_no)
        if path in disk.paths and block.live and not disk._files[path].changes:
            size = len(disk.contents(path))
            found.append((path, size if block.is_sealed else min(size, block.end_offset)))
    return found


def until_found(cluster: Cluster, name: NodeId, before: int) -> None:
    """Wait until the node has found damage, and until it has everything again."""
    cluster.until("found", lambda: damages_of(cluster, name) > before, 10)
    cluster.until("repaired", lambda: not cluster.missing("S"), 30)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 5])
def test_s4_7_bit_rot_on_a_minority(make: Make, size: int) -> None:
    """S4.7: again and again a bit of some block of n1 (R5: of n1 or n2) flips, under load, while
    the leadership moves, 12 times. The scrubber finds each; nothing acked is lost, and in the end
    every block of every node is right.

    A whole replica is repaired at a time; `streamd_damages_total` counts what was found.
    """
    bit_rot(make(size), 12)


@proof
@pytest.mark.parametrize("size", [3, 5])
def test_s4_7_ten_minutes_of_bit_rot(make: Make, size: int) -> None:
    """S4.7 in full: a flip every two seconds for ten minutes."""
    bit_rot(make(size), ROUNDS or 300)


def bit_rot(cluster: Cluster, flips: int) -> None:
    size = len(cluster.names)
    rng = random.Random(size)
    cluster.create(replicas=size)
    acked: dict[Seq, bytes] = {}
    waiting: list[tuple[bytes, bytes]] = []
    is_over = False

    def load() -> None:
        if is_over:
            return
        bodies = [cluster.body(200) for _ in range(10)]
        msgs = [(b"S.x", b"", body) for body in bodies]
        replies = cluster.offer("S", msgs, rng.choice(cluster.running()))
        waiting.extend(zip(replies, bodies, strict=True))
        cluster.world.after(20 * MS, load)

    load()
    cluster.run_ms(600)
    found = 0
    for number in range(flips):
        name = "n1" if size == 3 or number % 2 else "n2"
        if number % 3 == 0:
            cluster.lead("S", rng.choice(cluster.names))
        path, end = rng.choice(counted_blocks(cluster, name))
        before = damages_of(cluster, name)
        cluster.hosts[name].disk.flip(path, rng.randrange(end), 1 << rng.randrange(8))
        until_found(cluster, name, before)
        found += 1
        cluster.run_ms(rng.randint(0, 200))
    is_over = True
    cluster.run_ms(3000)
    cluster.until_whole()
    for reply, body in waiting:
        seq = cluster.outcome(reply)
        if type(seq) is int:
            assert acked.setdefault(seq, body) == body
    assert found == flips
    assert len(acked) > 20 * flips
    stored = cluster.read(cluster.names[-1])
    assert {seq: stored.get(seq) for seq in acked} == acked
    check_blocks(cluster)


Damage = Callable[[SimDisk, str, str], None]

DAMAGES: dict[str, Damage] = {
    "first record": lambda disk, path, other: disk.flip(path, 64 + 40),
    "middle record": lambda disk, path, other: disk.flip(path, len(disk.contents(path)) // 2),
    "last record": lambda disk, path, other: disk.flip(path, len(disk.contents(path)) - 20),
    "length field": lambda disk, path, other: disk.flip(path, 64, 0x80),
    "header": lambda disk, path, other: disk.flip(path, 9),
    "deleted": lambda disk, path, other: disk.wipe(path),
    "zeros": lambda disk, path, other: disk.zero(path, 0, 1 << 30),
    "swapped": swap,
} | {
    f"cut at {part} %": lambda disk, path, other, part=part: cut(
        disk, path, len(disk.contents(path)) * part // 100
    )
    for part in range(0, 100, 10)
}  # type: ignore[assignment]


CASES = [
    (damage, which, state)
    for damage in DAMAGES
    for which in ("head", "middle", "tail")
    for state in ("running", "restarted")
    if not damage.startswith("cut")
    or (which, state) in (("middle", "running"), ("tail", "restarted"))
]


@pytest.mark.parametrize(("damage", "which", "state"), CASES)
def test_s4_8_damage_anywhere(cluster: Cluster, damage: str, which: str, state: str) -> None:
    """S4.8: the first, a middle or the newest block of a follower is damaged in any of these ways,
    while it runs or while it is down. It is found and repaired; nobody serves or votes by it."""
    cluster.create()
    cluster.publish(500)
    cluster.save(cluster.uid("S"))
    cluster.until_whole()
    name = cluster.followers("S")[0]
    host = cluster.hosts[name]
    blocks = [path for path, _ in counted_blocks(cluster, name)]
    assert len(blocks) >= 4
    at = {"head": 0, "middle": len(blocks) // 2, "tail": len(blocks) - 1}[which]
    intact = {path: cluster.hosts[cluster.leader("S")].disk.contents(path) for path in blocks}
    before = damages_of(cluster, name)
    is_running = state == "running"
    if not is_running:
        cluster.stop(name)
        before = 0
    DAMAGES[damage](host.disk, blocks[at], blocks[at - 1])
    if not is_running:
        cluster.boot(name)
    until_found(cluster, name, before)
    disk = host.disk

    def contents() -> dict[str, bytes]:
        return {path: disk.contents(path) for path in blocks if path in disk.paths}

    cluster.until("all blocks as they were", lambda: contents() == intact, 20)
    cluster.until_whole()
    assert len(cluster.read(name)) == 500
    check_blocks(cluster)


def test_s4_8_damage_is_repaired_while_the_stream_rests(cluster: Cluster) -> None:
    """Nothing is published, no link breaks: nobody heard of the replica that had begun anew."""
    cluster.create()
    cluster.publish(500)
    cluster.save(cluster.uid("S"))
    cluster.until_whole()
    cluster.run_ms(10_000)
    name = cluster.followers("S")[0]
    path, end = counted_blocks(cluster, name)[1]
    cluster.hosts[name].disk.flip(path, end // 2)
    until_found(cluster, name, 0)
    cluster.until_whole()
    check_blocks(cluster)
    counts = finish(cluster.documents(name).care())
    assert (counts["repaired_blocks"], counts["renewed_replicas"]) == (1, 0)
    assert (counts["damaged_streams"], counts["drifted_replicas"]) == (0, 0)
    assert counts["scrub_rounds"] >= 1 and counts["scrub_files"] >= counts["scrub_files_left"]


def test_s4_8_a_member_that_lost_its_membership_finds_the_others(cluster: Cluster) -> None:
    """It founded the stream alone, and knew of the others by its snapshot, which it lost. It asked
    nobody for a leader; those who had it all rested, and it was recovering until a publish."""
    uid = cluster.create(replicas=1)
    cluster.publish(500)
    name = cluster.leader("S")
    config = {"name": "S", "subjects": ["S.>"], "num_replicas": 3, "allow_direct": True}
    assert "error" not in cluster.ask("STREAM.UPDATE.S", config)
    cluster.until_whole()
    cluster.lead("S", next(each for each in cluster.names if each != name))
    cluster.save(uid)
    cluster.until_whole()
    cluster.run_ms(10_000)
    node = cluster.node(name)
    cluster.process(name).run(node.parts.replicas.control.repair, uid, "a test wants it")
    cluster.until("open", lambda: cluster.group(name, "S") is not None)
    cluster.until_whole()
    assert cluster.leader("S") != name


def test_s4_8_of_copies_that_were_set_aside_the_newest_stays(cluster: Cluster) -> None:
    """The block that grows is damaged, so the replica is made anew. What is set aside took as much
    of the disk as the stream does, each time, for ever."""
    cluster.create()
    cluster.publish(500)
    uid = cluster.uid("S")
    cluster.save(uid)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    disk = cluster.hosts[name].disk
    for number in (1, 2, 3):
        path, end = counted_blocks(cluster, name)[-1]
        assert not cluster.machine(name, "S").index.blocks[-1].is_sealed
        before = damages_of(cluster, name)
        disk.flip(path, end // 2)
        until_found(cluster, name, before)
        cluster.run_ms(1000)
        aside = [found for found in disk.listdir(f"{ROOT}/trash") if "-damaged-" in found]
        assert aside == [f"{uid}-damaged-{number}"]
    cluster.until_whole()
    assert len(cluster.read(name)) == 500
    check_blocks(cluster)


def test_s4_8_fetched_files_that_cannot_be_used_are_not_accumulated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was fetched again each second, and each copy stayed in trash, as if it were the only one,
    until the disk had no room for any stream. What this node had before is what must stay."""
    uid = cluster.create()
    cluster.publish(500)
    cluster.save(uid)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    node, disk = cluster.node(name), cluster.hosts[name].disk
    own = copy_of(disk, cluster.directory("S"))

    def aside() -> list[str]:
        return sorted(found for found in disk.listdir(f"{ROOT}/trash"))

    with monkeypatch.context() as patched:
        void = [scrub.Damage(1, "not what the manifest says")]
        patched.setattr(replica_recovery, "check_installed", lambda *args: void)
        cluster.process(name).run(node.parts.replicas.control.repair, uid, "a test wants it")
        cluster.run_ms(60_000)
        fetched_count = cluster.events("info: caught up")
        assert 3 <= fetched_count <= 6
        assert aside() == [f"{uid}-damaged-1", f"{uid}-damaged-{1 + fetched_count}"]
    cluster.until_whole(within_s=2 * limits.CATCHUP_VOID_S_MAX)
    cluster.until("tidy", lambda: aside() == [f"{uid}-damaged-1"])
    kept = copy_of(disk, f"{ROOT}/trash/{uid}-damaged-1")
    assert {path for path in own if path.endswith(".blk")} <= set(kept)
    check_blocks(cluster)


@pytest.mark.parametrize("rest_ms", [0, 10_000])
@pytest.mark.parametrize("which", [(0, 1, 2), (0, 0, 1), (1, 0, 0), (0, 1, 0)])
def test_s4_8_every_copy_is_damaged(
    cluster: Cluster, which: tuple[int, int, int], rest_ms: int
) -> None:
    """But each block is whole somewhere. All three replicas set their files aside, and none could
    lead; or two did, and waited for the third, which could not vouch for its own."""
    cluster.create()
    cluster.publish(500)
    uid = cluster.uid("S")
    cluster.save(uid)
    cluster.until_whole()
    cluster.run_ms(rest_ms)
    leader = cluster.leader("S")
    names = [leader, *cluster.followers("S")]
    for name, at in zip(names, which, strict=True):
        path, end = counted_blocks(cluster, name)[at]
        cluster.hosts[name].disk.flip(path, end // 2)
    for name in names:
        until_found(cluster, name, 0)
    cluster.until_whole()
    check_blocks(cluster)
    assert cluster.leader("S") == leader
    assert not any(cluster.hosts[name].disk.listdir(f"{ROOT}/trash") for name in names)


def test_s4_8_all_sealed_blocks_are_damaged(cluster: Cluster) -> None:
    """A few are fetched at a time, and each makes room for the next."""
    cluster.create()
    cluster.publish(1500)
    cluster.save(cluster.uid("S"))
    cluster.until_whole()
    name = cluster.followers("S")[0]
    blocks = cluster.machine(name, "S").index.blocks
    for (path, end), block in zip(counted_blocks(cluster, name), blocks, strict=True):
        if block.is_sealed:
            cluster.hosts[name].disk.flip(path, end // 2)
    assert len(blocks) > 2 * limits.BLOCK_REPAIRS_MAX
    cluster.node(name).parts.integrity.scrubber.stop()
    damages = cluster.node(name).parts.integrity.corruption
    for block in blocks[:-1]:
        error = CorruptionError(f"{block.block_no}.blk")
        damages.on_damaged(cluster.uid("S"), error, block_no=block.block_no)
        assert damages._running_count <= limits.BLOCK_REPAIRS_MAX
    cluster.until_whole()
    cluster.until("all repaired", lambda: not damages.reasons)
    assert damages._running_count == 0
    check_blocks(cluster)


def test_s4_7_a_block_is_read_whose_first_message_is_just_being_stored(cluster: Cluster) -> None:
    """When it was read it said what nobody had wanted, and held no message."""
    uid = cluster.create(retention="interest")
    cluster.publish(3)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    cluster.consumer()
    node, block = cluster.node(name), cluster.machine(name, "S").index.blocks.active
    assert block.count == 0 and block.end_offset > HEADER_BYTES
    process = cluster.process(name)
    process.threads["block"].hold()
    replica = node.groups.get(uid)
    assert isinstance(replica, LocalStream) and replica.files is not None
    process.run(node.parts.integrity.scrubber._read_block, replica, replica.files, block)
    cluster.publish(1)
    cluster.until("stored", lambda: block.count)
    process.threads["block"].release()
    cluster.run_ms(100)
    assert not node.parts.integrity.damage_log.damage_count


def test_s4_8_a_block_that_peers_have_not_written_yet(cluster: Cluster) -> None:
    """Their log has it, and their memory. A leader that wrote it for its snapshot asked for the
    file, and nobody had one until more was published."""
    cluster.create()
    leader, followers = cluster.leader("S"), cluster.followers("S")
    for name in followers:
        cluster.node(name).parts.integrity.scrubber.stop()  # it writes what it is about to read
    cluster.publish(300)
    cluster.save(cluster.uid("S"), leader)
    path, end = counted_blocks(cluster, leader)[0]
    assert not any(path in cluster.hosts[name].disk.paths for name in followers)
    cluster.hosts[leader].disk.flip(path, end // 2)
    until_found(cluster, leader, 0)
    cluster.until_whole()
    assert cluster.leader("S") == leader
    check_blocks(cluster)


def test_s4_8_a_block_that_only_the_snapshot_needs(cluster: Cluster) -> None:
    """The leader's newest snapshot names a damaged block that is dead by now. A follower that has
    to fetch gets a snapshot without it."""
    cluster.create()
    cluster.publish(500)
    uid = cluster.uid("S")
    cluster.save(uid)
    cluster.until_whole()
    leader, name = cluster.leader("S"), cluster.followers("S")[0]
    path, end = counted_blocks(cluster, leader)[0]
    cluster.node(leader).parts.integrity.scrubber.stop()
    cluster.stop(name)
    cluster.hosts[name].disk.wipe(cluster.directory("S"))
    last = cluster.machine(leader, "S").index.blocks[0].last_seq
    assert cluster.ask("STREAM.PURGE.S", {"seq": last + 1}, at=leader)["success"]
    cluster.hosts[leader].disk.flip(path, end // 2)
    cluster.boot(name)
    cluster.until_whole()
    assert cluster.leader("S") == leader
    check_blocks(cluster)


def test_s4_8_a_block_damaged_on_all_replicas_is_repaired_once_one_copy_can_be_read(
    cluster: Cluster,
) -> None:
    """Nobody sets anything aside: what is left serves, and the rest is had again as soon as one
    copy of the block is."""
    cluster.create()
    cluster.publish(500)
    cluster.save(cluster.uid("S"))
    cluster.until_whole()
    for name in cluster.names:
        path, end = counted_blocks(cluster, name)[1]
        cluster.hosts[name].disk.bad_read(path, end // 2, 100)
    cluster.until("found", lambda: all(damages_of(cluster, name) for name in cluster.names))
    cluster.run_ms(10_000)
    assert "2.blk" in cluster.health("n1").text
    leader = cluster.leader("S")
    assert len(cluster.publish(10, at=leader)) == 10
    assert cluster.ask("STREAM.MSG.GET.S", {"seq": 1}, at=leader)["message"]["seq"] == 1
    cluster.hosts["n2"].disk.heal()
    for name in cluster.names:
        cluster.until("repaired", lambda name=name: cluster.is_current(name), 70)  # type: ignore[misc]
    for name in cluster.names:
        assert len(cluster.read(name)) == 510


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_s4_8_a_log_rots_while_it_is_in_use(cluster: Cluster, role: str) -> None:
    """S4.8: it is begun anew before a start needs it, so nobody has to doubt that node."""
    cluster.create()
    cluster.publish(200)
    cluster.until_whole()
    cluster.run_ms(2000)
    leader = cluster.leader("S")
    name = leader if role == "leader" else cluster.followers("S")[0]
    wal, disk = cluster.node(name).parts.context.wal, cluster.hosts[name].disk
    old = [path for path in disk.paths if path.endswith(".wal")]
    blob = disk.contents(old[-1])
    disk.flip(old[-1], blob.index(b"S.x") + 20)
    cluster.until("found", lambda: damages_of(cluster, name))
    cluster.publish(20)
    cluster.until("begun anew", lambda: not cluster.node(name).parts.integrity.corruption.log_fault)
    assert not set(old) & {path for path in disk.paths if path.endswith(".wal")}
    assert cluster.node(name).parts.context.wal is wal, "without a restart"
    assert cluster.leader("S") == leader
    assert damages_of(cluster, name) == 1
    cluster.lose_power(*cluster.names)
    for each in cluster.names:
        cluster.boot(each)
    cluster.until_whole()
    assert not cluster.node(name).parts.context.wal.damaged_groups
    assert len(cluster.read(name)) == 220


def test_s4_8_a_log_rots_where_a_snapshot_covers_it(cluster: Cluster) -> None:
    """A crash came before the log had heard of the snapshot; no other is due, nor needed."""
    cluster.create()
    cluster.publish(200)
    cluster.until_whole()
    cluster.run_ms(5000)
    uid, name = cluster.uid("S"), cluster.followers("S")[0]
    monitor = cluster.node(name).groups.monitor_of(uid)
    assert monitor is not None
    told: list[bool] = []
    monitor.when_saved(cluster.machine(name, "S").applied, lambda: told.append(True))
    while not told:
        cluster.run_ms(0.01)
    assert cluster.node(name).parts.context.wal._lazy
    cluster.lose_power(name)
    cluster.boot(name)
    cluster.until("opened", lambda: cluster.group(name, "S"))
    node, disk = cluster.node(name), cluster.hosts[name].disk
    group, log = cluster.group(name, "S"), node.parts.context.wal.group(uid)
    assert group is not None
    assert log is not None
    assert (log.first_index, group.snapshot_index) == (1, log.last_index)
    old = [path for path in disk.paths if path.endswith(".wal")]
    disk.flip(old[0], disk.contents(old[0]).index(b"S.x") + 20)
    cluster.until("found", lambda: node.parts.integrity.corruption.log_fault)
    cluster.until("begun anew", lambda: not node.parts.integrity.corruption.log_fault)
    assert group.machine.applied == log.last_index, "nothing new was stored"
    assert not set(old) & {path for path in disk.paths if path.endswith(".wal")}


@pytest.mark.parametrize("by", ["scrubbing", "a catch-up", "a get", "a consumer"])
def test_s4_9_the_leaders_copy_is_damaged(cluster: Cluster, by: str) -> None:
    """S4.9: a block of the leader rots. Whoever meets it first, the leader fetches it and leads on;
    the hole is deleted nowhere, least of all from a follower that needs a snapshot."""
    cluster.create()
    cluster.consumer()
    cluster.publish(500)
    uid = cluster.uid("S")
    cluster.save(uid)
    cluster.until_whole()
    leader = cluster.leader("S")
    name = cluster.followers("S")[0]
    if by != "scrubbing":  # nothing is in memory any more
        cluster.stop(leader)
        cluster.run_ms(1000)
        cluster.boot(leader)
        cluster.until("whole", lambda: not cluster.missing("S"))  # and nothing is read
        cluster.lead("S", leader)
        cluster.node(leader).parts.integrity.scrubber.stop()
    before = damages_of(cluster, leader)
    path, end = counted_blocks(cluster, leader)[1]
    damaged = cluster.machine(leader, "S").index.blocks[1]
    for offset in range(64, end, 97):
        cluster.hosts[leader].disk.flip(path, offset)
    if by == "a catch-up":
        cluster.stop(name)
        cluster.hosts[name].disk.wipe(cluster.directory("S"))
        cluster.boot(name)
    elif by == "a get":
        cluster.send("DIRECT.GET.S", {"seq": damaged.first_seq}, at=leader)
    elif by == "a consumer":
        cluster.send("CONSUMER.MSG.NEXT.S.C", {"batch": 500, "expires": 10**9}, at=leader)
    until_found(cluster, leader, before)
    cluster.until_whole()
    assert cluster.leader("S") == leader
    for each in cluster.names:
        state = cluster.machine(each, "S").state()
        assert (state["messages"], state["first_seq"], state["num_deleted"]) == (500, 1, 0)
        assert len(cluster.read(each)) == 500
    check_blocks(cluster)


@pytest.mark.parametrize("which", ["newest", "all", "gone"])
def test_s4_9_the_leaders_snapshot_is_damaged(cluster: Cluster, which: str) -> None:
    """S4.9: nothing new is stored, and a follower needs the snapshot, whose file has rotted. The
    leader, which has it all in memory, writes it again: simulator seed 910720."""
    cluster.create()
    uid = cluster.uid("S")
    for _ in range(3):  # so that there is one before it
        cluster.publish(200)
        cluster.save(uid)
    cluster.until_whole()
    leader, name = cluster.leader("S"), cluster.followers("S")[0]
    disk = cluster.hosts[leader].disk
    paths = sorted(path for path in disk.paths if path.endswith(".snap") and f"/{uid}/" in path)
    assert len(paths) == 2
    before = damages_of(cluster, leader)
    cluster.stop(name)
    cluster.hosts[name].disk.wipe(cluster.directory("S"))
    for path in paths[-1:] if which == "newest" else paths:
        if which == "gone":
            disk.unlink(path)
        else:
            disk.flip(path, 300)
    cluster.boot(name)
    cluster.until("whole", lambda: not cluster.missing("S"), 10)
    cluster.until_whole()
    assert cluster.leader("S") == leader
    assert damages_of(cluster, leader) == before + 1
    cluster.stop(leader)
    cluster.boot(leader)
    cluster.until_whole()
    check_blocks(cluster)


def test_s4_9_a_damaged_last_copy_goes_on_serving(cluster: Cluster) -> None:
    """S4.9, without peers: a damaged block of a stream with one copy is reported by log, metric
    and /healthz; what is left is served, and the damaged messages are not "not found"."""
    cluster.create(replicas=1)
    cluster.publish(500)
    name = cluster.leader("S")
    cluster.save(cluster.uid("S"), name)
    path, end = counted_blocks(cluster, name)[1]
    cluster.hosts[name].disk.flip(path, end // 2)
    cluster.until("found", lambda: damages_of(cluster, name), 10)
    cluster.run_ms(5000)
    verdict = cluster.health(name)
    assert verdict.status == 200  # the node is well; who asks for the stream hears that it is not
    assert finish(judge(cluster.node(name), {"account": "$G", "stream": "S"})).status == 503
    assert path.rpartition("/")[2] in verdict.text
    assert any("there is no other copy" in line for line in cluster.world.recent)
    assert finish(cluster.documents(name).care())["damages"] >= 1
    assert cluster.publish(10)[-1] == 510
    reply = cluster.send("DIRECT.GET.S", {"seq": 500}, at=name)
    cluster.until("an answer", lambda: cluster.received(reply))


def test_s4_9_a_replica_that_lacks_its_state_keeps_old_segments_in_peace(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an older snapshot than its log begins at, and nothing to release by. Who looked for
    groups that keep old segments asked its log for that place, and the node ended."""
    uid = cluster.create()
    name = cluster.followers("S")[0]
    for _ in range(2):
        cluster.publish(300)
        cluster.save(uid, name)
    cluster.stop(name)
    host = cluster.hosts[name]
    newest = max(path for path in host.disk.paths if "/stream-" in path and path.endswith(".snap"))
    host.disk.flip(newest, 100)
    with monkeypatch.context() as patched:
        patched.setattr(CatchupService, "start", lambda *args: None)
        cluster.boot(name)
        cluster.until("open", lambda: cluster.group(name, "S") is not None)
        group, node = cluster.group(name, "S"), cluster.node(name)
        assert group is not None
        assert group.raft.is_incomplete
        assert 0 < group.snapshot_index < group.raft.log.base_index
        patched.setattr(node.parts.context.wal, "pinning_groups", lambda: [uid])
        cluster.process(name).run(node.parts.log_retention.check)
    cluster.until_whole()


def test_s4_9_a_log_that_can_not_be_read_when_its_snapshot_has_come(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state was lost and is fetched; does the log lead to it? The disk does not give the entry
    that would say so. Nobody heard of that: the replica was closed, and stayed closed, silently."""
    cluster.create()
    cluster.publish(40)
    cluster.until_whole()
    cluster.save(cluster.uid("S"))
    cluster.publish(40)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    cluster.stop(name)
    cluster.hosts[name].disk.wipe(cluster.directory("S"))
    cluster.boot(name)
    node = cluster.node(name)

    def unread(*args: object) -> None:
        raise ReadError("the log: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(node.parts.context.wal, "read", unread)
        cluster.until("stopped", lambda: ("$G", "S") in node.failed)
        assert cluster.health(name).status != 200
    cluster.kill(name)
    cluster.boot(name)
    cluster.until_whole()


@pytest.mark.parametrize("is_read", [True, False])
def test_s4_9_a_leader_can_not_read_an_entry_that_a_follower_lacks(
    cluster: Cluster, is_read: bool
) -> None:
    """It is in the log only by then: as other bytes, or as an error of the disk. The follower gets
    a snapshot instead, and the leader another log. It handed all over and was made anew."""
    cluster.create()
    cluster.publish(10)
    cluster.until_whole()
    leader, behind = cluster.leader("S"), cluster.followers("S")[0]
    cluster.stop(behind)
    for _ in range(40):
        cluster.publish(1, size=300, at=leader)
    group, wal = cluster.group(leader, "S"), cluster.node(leader).parts.context.wal
    assert group is not None
    first = group.raft.log._first  # in memory
    assert group.raft.log.base_index < first - 3
    log = wal._groups[cluster.uid("S")]
    no, offset = divmod(log.places[first - 3 - log.first], 1 << 32)
    path, disk = f"{ROOT}/wal/{no:016x}.wal", cluster.hosts[leader].disk
    if is_read:
        disk.flip(path, offset + 50)
    else:
        disk.bad_read(path, offset + 50, 10)
    replica = cluster.node(leader).groups.get(cluster.uid("S"))
    cluster.boot(behind)
    cluster.until("found", lambda: cluster.events("error: log is damaged and a new one is begun"))
    cluster.until_whole()
    assert len(cluster.read(leader)) == 50
    assert cluster.node(leader).groups.get(cluster.uid("S")) is replica
    cluster.until(
        "another log", lambda: not cluster.node(leader).parts.integrity.corruption.log_fault
    )
    assert cluster.events("error: log is damaged and a new one is begun") == 1
    disk.heal()
    cluster.stop(leader)
    cluster.boot(leader)
    cluster.until_whole()
    assert not cluster.node(leader).parts.context.wal.damage


def test_s4_9_the_only_copy_is_not_set_aside_because_there_were_others(cluster: Cluster) -> None:
    """A stream of three copies that has one now. When that one failed, it was moved aside to be
    fetched from peers, as they were when it was opened: the stream had no leader from then on."""
    uid = cluster.create()
    cluster.publish(100)
    cluster.until_whole()
    config = cluster.info()["config"] | {"num_replicas": 1}
    assert "error" not in cluster.ask("STREAM.UPDATE.S", config)
    name = cluster.leader("S")
    cluster.until("alone", lambda: cluster.node(name).meta.streams_by_uid[uid].members == (name,))
    name = cluster.leader("S")
    cluster.save(uid, name)
    fail(cluster, name)
    cluster.until("stopped", lambda: ("$G", "S") in cluster.node(name).failed)
    cluster.run_ms(1000)
    assert f"{cluster.directory('S')}/1.blk" in cluster.hosts[name].disk.paths
    cluster.stop(name)
    cluster.boot(name)
    cluster.until("open", lambda: cluster.node(name).groups.get(uid))
    cluster.until("served", lambda: len(cluster.read(name)) == 100)


def test_s4_9_a_replica_that_was_alone_is_made_anew_from_its_peers(cluster: Cluster) -> None:
    """A stream of one copy that has three now: the copy it began with stopped until the next start
    when it failed, for it had no peers when it was opened."""
    cluster.create(replicas=1)
    name = cluster.leader("S")
    cluster.publish(100)
    config = cluster.info()["config"] | {"num_replicas": 3}
    assert "error" not in cluster.ask("STREAM.UPDATE.S", config)
    group = cluster.group(name, "S")
    assert group is not None
    cluster.until("three voters", lambda: len(group.raft.members.voters) == 3)
    fail(cluster, name)
    cluster.run_ms(100)
    assert ("$G", "S") not in cluster.node(name).failed
    cluster.until_whole()


def test_s4_9_a_learner_that_fails_is_made_anew_from_the_only_voter(cluster: Cluster) -> None:
    """It has a peer, though its group has but one voter: it does not wait for a restart."""
    cluster.create(replicas=1)
    leader = cluster.leader("S")
    cluster.publish(100)
    config = cluster.info()["config"] | {"num_replicas": 3}
    assert "error" not in cluster.ask("STREAM.UPDATE.S", config)

    def learners() -> list[NodeId]:
        groups = {name: cluster.group(name, "S") for name in cluster.names if name != leader}
        return [
            name
            for name, group in groups.items()
            if group is not None and group.raft.members.voters == (leader,)
        ]

    cluster.until("a learner", learners)
    name = learners()[0]
    fail(cluster, name)
    cluster.run_ms(100)
    assert ("$G", "S") not in cluster.node(name).failed
    cluster.until_whole()


def test_s4_9_the_only_copy_is_not_set_aside_because_there_will_be_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More copies are wanted, and none is a member yet, when the only one is found damaged."""
    uid = cluster.create(replicas=1)
    cluster.publish(100)
    name = cluster.leader("S")
    cluster.save(uid, name)
    disk = cluster.hosts[name].disk
    snapshots = [path for path in disk.paths if path.startswith(cluster.directory("S") + "/stream")]
    with monkeypatch.context() as patched:
        patched.setattr(StreamGroup, "_on_members", lambda *args: None)
        config = cluster.info()["config"] | {"num_replicas": 3}
        assert "error" not in cluster.ask("STREAM.UPDATE.S", config)
        assert len(cluster.node(name).meta.streams_by_uid[uid].peers) == 3
        cluster.stop(name)
        for path in snapshots:
            disk.flip(path, 100)
        cluster.boot(name)
        cluster.until("stopped", lambda: ("$G", "S") in cluster.node(name).failed)
        assert f"{cluster.directory('S')}/1.blk" in disk.paths
    for path in snapshots:
        disk.flip(path, 100)  # whole again
    cluster.stop(name)
    cluster.boot(name)
    cluster.until_whole()
    assert len(cluster.read(name)) == 100


def fail(cluster: Cluster, name: NodeId) -> None:
    """As if a turn of the stream's replica had found damage."""
    monitor = cluster.node(name).groups.monitor_of(cluster.uid("S"))
    assert monitor is not None
    damage = CorruptionError("1.blk: a footer is damaged")
    cluster.process(name).run(monitor.post, inbox.Failed(damage))
