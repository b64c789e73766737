"""S2: a consumer is never ahead of its stream; what one replica lost moves no consumer.

A consumer is a part of its stream's group here, so it has as many replicas as its stream and the
same leader, and one snapshot says where both are. So no file can be lost that sets a stream back
and not its consumers (S2.1 to S2.4, S2.9): without peers such a loss stops the stream until an
operator accepts it (tests/unit/node/test_quorum_loss_recovery.py and test_lost_blocks.py; for a
consumer: tests/unit/machine/test_loss.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from streamd.store.blocks.index_db import write_index
from streamd.types import NodeId
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import cut
from tests.sim.disk import SimDisk


def lose_stream(cluster: Cluster) -> NodeId:
    """1,000 messages, all consumed; then a follower's directory of the stream is emptied while it
    is down, and the log that could bring it back is released. Returns its name."""
    cluster.create()
    cluster.consumer()
    cluster.publish(1000)
    assert cluster.consume(1000)[-1] == 1000
    cluster.until_whole()
    name = cluster.followers("S")[0]
    cluster.save(cluster.uid("S"))
    cluster.stop(name)
    cluster.hosts[name].disk.wipe(cluster.directory("S"))
    return name


def consumer_of(cluster: Cluster, name: NodeId) -> tuple[int, int, int, int]:
    """What the consumer's numbers are, at whoever leads."""
    info = cluster.ask("CONSUMER.INFO.S.C", at=name)
    delivered, floor = info["delivered"], info["ack_floor"]
    return (
        delivered["stream_seq"], delivered["consumer_seq"], floor["stream_seq"],
        info["num_redelivered"],
    )  # fmt: skip


@pytest.mark.parametrize("is_wanted", [False, True], ids=["follows", "is told to lead first"])
def test_s2_8_one_replica_emptied_moves_no_consumer(cluster: Cluster, is_wanted: bool) -> None:
    """S2.8: the emptied replica is not current until it holds everything again, and no number of
    the consumer changes; also not when that node is told to lead the consumer (that is, its
    stream) as soon as it is up: it comes to lead when it is whole and not before."""
    name = lose_stream(cluster)
    other = cluster.leader("S")
    before = consumer_of(cluster, other)
    assert before == (1000, 1000, 1000, 0)
    was_seen_behind = False
    cluster.boot(name)
    for _ in range(2000):
        cluster.run_ms(2)
        group = cluster.group(name, "S")
        if group is None:
            continue
        is_whole = group.machine.index.last_seq == 1000 and "C" in group.machine.consumers
        if not is_whole:
            was_seen_behind = True
            assert not cluster.is_current(name)
            assert not cluster.leader_says_current(name)
            assert not group.raft.is_leader
            if is_wanted and cluster.leader_name(group.uid):
                cluster.step_down("S", name)
                group = cluster.group(name, "S")
                is_behind = group is None or group.machine.index.last_seq < 1000
                assert not is_behind or cluster.leader_name(cluster.uid("S")) != name
        elif cluster.is_current(name):
            break
    assert was_seen_behind
    cluster.until_whole()
    assert consumer_of(cluster, other) == before
    cluster.lead("S", name)
    assert consumer_of(cluster, name) == before
    cluster.publish(10)
    assert [(each.seq, each.consumer_seq) for each in cluster.pull(20, at=name)] == [
        (seq, seq) for seq in range(1001, 1011)
    ]
    assert not cluster.hosts[name].disk.listdir(f"{ROOT}/trash")


def other_index(disk: SimDisk, path: str, other: bytes) -> None:
    """In its place is this one."""
    disk.wipe(path)
    fd = disk.open(path, create=True)
    disk.pwrite(fd, other, 0)
    disk.fdatasync(fd)
    disk.close(fd)
    disk.sync_dir(path.rpartition("/")[0])


INDEX_DAMAGES: dict[str, Callable[[SimDisk, str], None]] = {
    "missing": lambda disk, path: disk.wipe(path),
    "empty": lambda disk, path: cut(disk, path, 0),
    "one bit": lambda disk, path: disk.flip(path, len(disk.contents(path)) // 2),
    "last 8 bytes": lambda disk, path: cut(disk, path, len(disk.contents(path)) - 8),
    "zeros": lambda disk, path: disk.zero(path, 0, 1 << 30),
    "unreadable": lambda disk, path: disk.bad_read(path, 10, 1),
}


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("damage", [*INDEX_DAMAGES, "older", "of another stream", "later"])
def test_s2_5_the_index_alone_is_lost(cluster: Cluster, damage: str, replicas: int) -> None:
    """S2.5: `index.db` is a cache. Whatever becomes of it, the stream is what its blocks say, and
    its consumers are where they were."""
    cluster.create("T", replicas)
    cluster.create("S", replicas)
    cluster.consumer()
    cluster.publish(100)
    name, uid = cluster.leader("S"), cluster.uid("S")
    disk, path = cluster.hosts[name].disk, f"{cluster.directory('S')}/index.db"
    cluster.save(uid, name)
    older = disk.contents(path)
    cluster.publish(100)
    assert cluster.ask("STREAM.MSG.DELETE.S", {"seq": 50}, at=name)["success"]
    assert cluster.consume(120)[-1] == 121
    cluster.save(uid, name)
    cluster.publish(30)
    cluster.until_whole()
    content, before = cluster.read(name), consumer_of(cluster, name)
    machine = cluster.machine(name, "S")
    cluster.kill(name)
    if damage == "older":
        other_index(disk, path, older)
    elif damage == "of another stream":
        write_index(disk, cluster.directory("S"), cluster.uid("T"), 5, machine.index_db())
    elif damage == "later":
        write_index(disk, cluster.directory("S"), uid, machine.applied, machine.index_db())
    else:
        INDEX_DAMAGES[damage](disk, path)
    cluster.boot(name)
    cluster.until("whole", lambda: cluster.group(name, "S") and not cluster.missing("S"))
    assert not cluster.events("stream files set aside")
    assert cluster.read(name) == content
    state = cluster.machine(name, "S").state()
    assert (state["last_seq"], state["num_deleted"], state["messages"]) == (230, 1, 229)
    assert consumer_of(cluster, cluster.leader("S")) == before == (121, 120, 121, 0)
    assert [each.seq for each in cluster.pull(3)] == [122, 123, 124]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("is_saved", [False, True])
def test_s2_6_purged_and_then_the_power_goes(
    cluster: Cluster, replicas: int, is_saved: bool
) -> None:
    """S2.6: 500 messages, all acked, purged; what was not synced is lost. The seqs are used up, and
    the consumer is where it was."""
    cluster.create(replicas=replicas)
    cluster.consumer()
    cluster.publish(500)
    assert cluster.consume(500)[-1] == 500
    if is_saved:
        cluster.save(cluster.uid("S"), cluster.leader("S"))
    assert cluster.ask("STREAM.PURGE.S", {})["purged"] == 500
    cluster.lose_power(*cluster.names)
    cluster.boot()
    cluster.until_whole()
    state = cluster.machine(cluster.leader("S"), "S").state()
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 501, 500)
    assert consumer_of(cluster, cluster.leader("S")) == (500, 500, 500, 0)
    assert cluster.publish(1) == [501]
    assert [(each.seq, each.consumer_seq) for each in cluster.pull(2)] == [(501, 501)]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("is_saved", [False, True])
def test_s2_7_a_start_beyond_the_end_is_kept(
    cluster: Cluster, replicas: int, is_saved: bool
) -> None:
    """S2.7: a consumer that begins at 5,000 on a stream that ends at 10; all are restarted."""
    cluster.create(replicas=replicas)
    cluster.publish(10)
    cluster.consumer(deliver_policy="by_start_sequence", opt_start_seq=5000)
    if is_saved:
        cluster.save(cluster.uid("S"), cluster.leader("S"))
    cluster.kill(*cluster.names)
    cluster.boot()
    cluster.until_whole()
    assert cluster.ask("STREAM.PURGE.S", {"seq": 4990}, at=cluster.leader("S"))["purged"] == 10
    assert cluster.publish(20) == list(range(4990, 5010))
    assert [each.seq for each in cluster.pull(20)] == list(range(5000, 5010))


def test_s2_12_the_newest_block_is_cut_at_every_restart(cluster: Cluster) -> None:
    """S2.12: 1 to 4,096 bytes go from its end, 40 times, without a peer. The log has them: nothing
    is lost, the consumer is never ahead, and the next message comes at once."""
    rng = random.Random(12)
    cluster.create(replicas=1)
    cluster.consumer()
    name = cluster.leader("S")
    cut_count = 0
    for seq in range(1, 41):
        last = cluster.publish(rng.randint(1, 8), size=300)[-1]
        cluster.process(name).run(cluster.node(name).replica(cluster.uid("S")).store.flush)  # type: ignore[union-attr]
        cluster.run_ms(20)
        group, disk = cluster.group(name, "S"), cluster.hosts[name].disk
        assert group is not None
        block_no = group.machine.tail[0]
        path = f"{cluster.directory('S')}/{block_no}.blk"
        least = 64
        if group.snapshot_index:
            store = cluster.node(name).replica(cluster.uid("S")).store  # type: ignore[union-attr]
            saved_no, saved_end = store.load_snapshot().tail
            assert saved_no <= block_no
            least = saved_end if saved_no == block_no else 64
        cluster.kill(name)
        if path in disk.paths and len(disk.contents(path)) > least:
            size = len(disk.contents(path))
            cut(disk, path, max(least, size - rng.randint(1, 4096)))
            cut_count += 1
        cluster.boot(name)
        cluster.until("served", lambda: cluster.leader_name(cluster.uid("S")), 20)
        consumer = cluster.machine(name, "S").consumers["C"]
        assert consumer.floor_sseq <= consumer.delivered_sseq <= last
        assert cluster.machine(name, "S").index.last_seq == last
        got = cluster.pull(1)
        assert [each.seq for each in got] == [seq]
        cluster.ack(got)
    assert cut_count > 30
    assert list(cluster.read(name)) == list(range(1, last + 1))
