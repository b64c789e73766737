"""S4.9, without peers: the only copy of a stream is damaged. Nothing is given up unasked.

What can't be read is named; whoever comes to it waits, all else goes on. An operator who deletes it
has accepted the loss: then the consumers go on too, and the damaged block is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamd.store.blocks.snapshots import decode
from streamd.types import META_UID, NodeId, Seq
from tests.scenarios.driver import Cluster
from tests.scenarios.files import check_blocks, damages_of, fast_scrubbing

BAD = 30  # in the first of several blocks


def place_of(cluster: Cluster, name: NodeId, seq: Seq) -> tuple[str, int, int]:
    """(path, offset, length) of a message."""
    loc = cluster.machine(name, "S").index.locations.locate(seq)
    assert loc is not None
    return f"{cluster.directory('S')}/{loc[1]}.blk", loc[2], loc[3]


def damage(cluster: Cluster, name: NodeId, *seqs: Seq) -> None:
    """Flip a bit in the payload of each."""
    for seq in seqs:
        path, offset, length = place_of(cluster, name, seq)
        cluster.hosts[name].disk.flip(path, offset + length - 10)


def start(cluster: Cluster, *, scrubs: bool) -> NodeId:
    """A stream of one copy with 500 messages on disk and in no memory; returns where it is."""
    cluster.create(replicas=1)
    cluster.consumer()
    cluster.publish(500)
    name = cluster.leader("S")
    cluster.save(cluster.uid("S"), name)
    cluster.stop(name)
    cluster.run_ms(1000)
    cluster.boot(name)
    cluster.until("serving", lambda: cluster.is_current(name))
    if not scrubs:
        cluster.node(name).parts.integrity.scrubber.stop()
    return name


@pytest.fixture(autouse=True)
def scrubbing() -> Iterator[None]:
    with fast_scrubbing():
        yield


def is_well(cluster: Cluster, name: NodeId) -> bool:
    return (
        cluster.health(name).status == 200
        and not cluster.node(name).parts.integrity.corruption.reasons
    )


def delete(cluster: Cluster, name: NodeId, *seqs: Seq) -> None:
    for seq in seqs:
        assert cluster.ask("STREAM.MSG.DELETE.S", {"seq": seq}, at=name)["success"]


def test_s4_9_a_consumer_waits_at_what_cannot_be_read(cluster: Cluster) -> None:
    """It stopped the stream: no publish, no read, no other consumer, until it was deleted whole."""
    name = start(cluster, scrubs=False)
    damage(cluster, name, BAD)
    assert [each.seq for each in cluster.pull(100, at=name)] == list(range(1, BAD))
    assert cluster.pull(100, at=name) == []
    cluster.until("told", lambda: not is_well(cluster, name))
    assert f"message {BAD} can't be read" in cluster.health(name).text
    assert any("there is no other copy" in line for line in cluster.world.recent)
    cluster.node(name).parts.integrity.scrubber.stop()

    assert cluster.publish(10, at=name)[-1] == 510
    cluster.consumer(name="LATE", at=name, deliver_policy="by_start_sequence", opt_start_seq=31)
    assert len(cluster.pull(100, name="LATE", at=name)) == 100
    got = cluster.ask("STREAM.MSG.GET.S", {"seq": BAD}, at=name)["error"]
    assert (got["code"], got["err_code"]) == (503, 10077)
    reply = cluster.send("DIRECT.GET.S", {"seq": BAD}, at=name)
    cluster.until("an answer", lambda: cluster.received(reply))
    assert b" 500 Message Can Not Be Read" in cluster.received(reply)[0][2]
    state = cluster.info(at=name)["state"]
    assert state["lost"]["msgs"] == [BAD]
    assert state["lost"]["bytes"] > 100
    assert state["messages"] == 510

    delete(cluster, name, BAD)
    cluster.until("well", lambda: is_well(cluster, name))
    assert "lost" not in cluster.info(at=name)["state"]
    after = cluster.pull(100, at=name)
    assert [each.seq for each in after] == list(range(BAD + 1, BAD + 101))


def test_s4_9_the_block_is_replaced_once_its_loss_is_accepted(cluster: Cluster) -> None:
    """Then every byte is right, after a restart too, and others can have copies again."""
    name = start(cluster, scrubs=True)
    block_no = cluster.machine(name, "S").index.blocks[0].block_no
    damage(cluster, name, 10, 11, 12, BAD)
    cluster.until("found", lambda: not is_well(cluster, name))
    assert f"messages 10 to 12, {BAD} can't be read" in cluster.health(name).text
    delete(cluster, name, 10, 11)
    cluster.run_ms(2000)
    assert f"messages 12, {BAD} can't be read" in cluster.health(name).text
    delete(cluster, name, 12, BAD)
    index = cluster.machine(name, "S").index
    cluster.until("replaced", lambda: block_no not in [b.block_no for b in index.blocks], 20)
    cluster.until("well", lambda: is_well(cluster, name))
    cluster.save(cluster.uid("S"), name)
    cluster.stop(name)
    cluster.boot(name)
    cluster.until("serving", lambda: cluster.is_current(name))
    config = cluster.info(at=name)["config"] | {"num_replicas": 3}
    assert "error" not in cluster.ask("STREAM.UPDATE.S", config, at=name)
    cluster.until_whole()
    check_blocks(cluster)
    assert len(cluster.read(name)) == 496


def test_s4_9_a_disk_that_recovers_has_lost_nothing(cluster: Cluster) -> None:
    """A message that could not be read is asked for again, and delivered when it can be."""
    name = start(cluster, scrubs=False)
    path, offset, length = place_of(cluster, name, BAD)
    cluster.hosts[name].disk.bad_read(path, offset, length)
    assert len(cluster.pull(100, at=name)) == BAD - 1
    cluster.until("told", lambda: not is_well(cluster, name))
    reply = cluster.send("DIRECT.GET.S", {"seq": BAD}, at=name)
    cluster.until("an answer", lambda: cluster.received(reply))
    assert b" 500 " in cluster.received(reply)[0][2]
    cluster.hosts[name].disk.heal()
    reply = cluster.send("DIRECT.GET.S", {"seq": BAD}, at=name)
    cluster.until("an answer", lambda: cluster.received(reply))
    assert b"Nats-Sequence: %d\r\n" % BAD in cluster.received(reply)[0][2]
    cluster.run_ms(5000)
    assert cluster.pull(1, at=name)[0].seq == BAD
    cluster.until("well", lambda: is_well(cluster, name))


def test_s4_9_a_scrub_finds_that_the_disk_recovered(cluster: Cluster) -> None:
    name = start(cluster, scrubs=True)
    path, offset, length = place_of(cluster, name, BAD)
    cluster.hosts[name].disk.bad_read(path, offset, length)
    cluster.until("found", lambda: not is_well(cluster, name))
    cluster.hosts[name].disk.heal()
    cluster.until("well", lambda: is_well(cluster, name))
    assert len(cluster.read(name)) == 500


def test_s4_9_damage_where_nothing_is_stored_is_no_loss(cluster: Cluster) -> None:
    """A deleted message rots: no alarm, and its block is replaced."""
    name = start(cluster, scrubs=True)
    index = cluster.machine(name, "S").index
    block_no = index.blocks[0].block_no
    path, offset, length = place_of(cluster, name, BAD)
    delete(cluster, name, BAD)
    cluster.hosts[name].disk.flip(path, offset + length - 10)
    cluster.until("replaced", lambda: block_no not in [b.block_no for b in index.blocks], 20)
    assert is_well(cluster, name)
    assert cluster.events("a block is damaged where only deleted messages were")
    assert len(cluster.read(name)) == 499


def test_s4_9_another_valid_record_is_damage_too(cluster: Cluster) -> None:
    """A write that went to the wrong place: every crc is right, and it is another message."""
    name = start(cluster, scrubs=True)
    disk = cluster.hosts[name].disk
    path, offset, length = place_of(cluster, name, BAD)
    _, other, same = place_of(cluster, name, BAD + 1)
    assert same == length
    theirs, ours = (disk.contents(path)[at : at + length] for at in (other, offset))
    for at, (new, old) in enumerate(zip(theirs, ours, strict=True)):
        disk.flip(path, offset + at, new ^ old)
    cluster.until("found", lambda: not is_well(cluster, name))
    assert [each.seq for each in cluster.pull(100, at=name)] == list(range(1, BAD))
    assert cluster.pull(100, at=name) == []
    cluster.run_ms(6000)  # it was looked at again
    assert cluster.pull(100, at=name) == []
    reply = cluster.send("DIRECT.GET.S", {"seq": BAD}, at=name)
    cluster.until("an answer", lambda: cluster.received(reply))
    assert b" 500 " in cluster.received(reply)[0][2]
    assert f"message {BAD} can't be read" in cluster.health(name).text
    assert not cluster.events("a block is damaged where only deleted messages were")
    delete(cluster, name, BAD)
    assert cluster.pull(1, at=name)[0].seq == BAD + 1
    cluster.until("well", lambda: is_well(cluster, name))


def test_s4_9_a_redelivery_waits_too(cluster: Cluster) -> None:
    """Read once, not acked, and unreadable when it is due again."""
    name = start(cluster, scrubs=False)
    got = cluster.pull(2, at=name)
    cluster.ack(got[1:], at=name)
    cluster.save(cluster.uid("S"), name)
    cluster.stop(name)
    cluster.boot(name)
    cluster.until("serving", lambda: cluster.is_current(name))
    cluster.node(name).parts.integrity.scrubber.stop()
    damage(cluster, name, 1)
    cluster.run_ms(31_000)
    assert cluster.pull(5, at=name) == []
    assert "message 1 can't be read" in cluster.health(name).text
    delete(cluster, name, 1)
    assert [each.seq for each in cluster.pull(5, at=name)] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("which", ["newest", "both", "gone", "unreadable"])
def test_s4_9_a_rotten_snapshot_is_written_again(cluster: Cluster, which: str) -> None:
    """While what it says is in memory: the next start would have refused the stream."""
    cluster.create(replicas=1)
    cluster.consumer()
    uid, name = cluster.uid("S"), cluster.leader("S")
    for _ in range(3):
        cluster.publish(200)
        cluster.save(uid, name)
    disk = cluster.hosts[name].disk
    paths = sorted(path for path in disk.paths if path.endswith(".snap") and f"/{uid}/" in path)
    assert len(paths) == 2
    for path in paths if which == "both" else paths[1:]:
        if which == "gone":
            disk.unlink(path)
        elif which == "unreadable":
            disk.bad_read(path, 100, 8)
        else:
            disk.flip(path, 300)
    cluster.until("found", lambda: damages_of(cluster, name))
    cluster.run_ms(2000)
    assert damages_of(cluster, name) == 1, "written again, it is whole"
    assert is_well(cluster, name)
    cluster.stop(name)
    cluster.boot(name)
    cluster.until("serving", lambda: cluster.is_current(name))
    assert len(cluster.read(name)) == 600
    assert len(cluster.pull(600, at=name)) == 600


def test_s4_9_a_rotten_snapshot_of_the_meta_group_is_written_again(cluster: Cluster) -> None:
    cluster.create(replicas=1)
    name = cluster.leader("S")
    cluster.save(META_UID, name)
    disk = cluster.hosts[name].disk
    path = max(path for path in disk.paths if path.endswith(".snap") and "/meta/" in path)
    disk.flip(path, 100)
    cluster.until("found", lambda: damages_of(cluster, name))
    cluster.run_ms(2000)
    path = max(path for path in disk.paths if path.endswith(".snap") and "/meta/" in path)
    decode(disk.contents(path), name=path, group=META_UID)
    assert damages_of(cluster, name) == 1, "written again, it is whole"
    assert is_well(cluster, name)


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ("DIRECT.GET.S", {"seq": BAD}),
        ("DIRECT.GET.S", {"seq": BAD, "batch": 3}),
        ("DIRECT.GET.S", {"multi_last": [">"], "up_to_seq": BAD}),
        ("STREAM.MSG.GET.S", {"seq": BAD, "next_by_subj": "s.*"}),
    ],
)
def test_s4_9_a_read_of_a_message_in_a_lost_block_is_an_error(
    cluster: Cluster, subject: str, wanted: dict[str, object]
) -> None:
    """It was an error in the connection of who asked, which ended, and nobody else heard of it."""
    name = start(cluster, scrubs=False)
    cluster.stop(name)
    cluster.hosts[name].disk.unlink(place := f"{cluster.directory('S')}/1.blk")
    cluster.boot(name)
    cluster.leader("S")
    cluster.node(name).parts.integrity.scrubber.stop()
    reply = cluster.send(subject, wanted, at=name)
    cluster.until("an answer", lambda: cluster.received(reply))
    answer = b"".join(cluster.received(reply)[0][2:])
    assert b" 500 Message Can Not Be Read" in answer or b'"err_code":10077' in answer
    cluster.until("told", lambda: place in cluster.health(name).text)
    assert cluster.publish(10, at=name)[-1] == 510
