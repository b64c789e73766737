"""Installs, quarantine and verification: what proves a block, and what a directory may become."""

from __future__ import annotations

import errno
import random

import pytest
from crc32c import crc32c

from streamd.errors import CorruptionError, DiskError
from streamd.node.integrity.scrub import check_content
from streamd.store.blocks.block_verify import check_block, rows_of
from streamd.store.blocks.quarantine import quarantine
from streamd.store.blocks.snapshots import SnapshotFile
from streamd.store.transfer.install import (
    catchup_uid,
    clear_marker,
    finish_install,
    read_marker,
    remove_replaced,
)
from streamd.store.transfer.install_buffered import StateInstall
from streamd.store.transfer.manifest import FileFact, Manifest
from tests.sim.catchup import DELETE_MSG, PURGE, ROOT, UID, Replica, World
from tests.sim.disk import SimCrash, SimDisk, SimThread

STREAM = f"{ROOT}/streams/{UID}"
TRASH = f"{ROOT}/trash"


def filled() -> Replica:
    replica = Replica("a")
    replica.publish(100)
    replica.apply(DELETE_MSG, 1, 30, False)
    replica.save()
    return replica


def test_every_flipped_byte_of_a_sealed_block_is_found() -> None:
    """Header, records, footer, trailer: there is no byte that nothing covers."""
    replica = filled()
    blob = replica.disk.contents(f"{STREAM}/2.blk")
    assert check_block(blob, UID, 2) == rows_of(blob, UID, 2).end_offset
    for at in range(len(blob)):
        bad = blob[:at] + bytes([blob[at] ^ 0x10]) + blob[at + 1 :]
        with pytest.raises(CorruptionError):
            check_block(bad, UID, 2)
        with pytest.raises(CorruptionError):
            rows_of(bad, UID, 2)


def test_a_block_cut_anywhere_but_between_records_is_found() -> None:
    blob = filled().disk.contents(f"{STREAM}/2.blk")
    ends = set()
    for size in range(len(blob)):
        try:
            ends.add(check_block(blob[:size], UID, 2))
        except CorruptionError:
            continue
    rows = rows_of(blob, UID, 2)
    assert max(ends) == rows.end_offset  # without its footer it is a valid block, not sealed
    assert len(ends) >= len(rows.seqs)


def test_swapped_blocks_and_blocks_of_another_stream_are_found() -> None:
    blob = filled().disk.contents(f"{STREAM}/2.blk")
    with pytest.raises(CorruptionError):
        check_block(blob, UID, 3)
    with pytest.raises(CorruptionError):
        check_block(blob, UID + 1, 2)


def test_installed_content_equals_the_machine_after_deletes_and_purges() -> None:
    replica = filled()
    assert check_content(replica.machine, replica.store) == []
    replica.apply(DELETE_MSG, 1, 31, True)
    replica.apply(PURGE, 1, b"", 41, 0)
    replica.apply(PURGE, 1, b"s.3", 0, 1)
    replica.publish(30)
    replica.save()
    assert check_content(replica.machine, replica.store) == []


@pytest.mark.parametrize("seed", range(20))
def test_content_check_names_the_damaged_block(seed: int) -> None:
    replica = filled()
    rng = random.Random(seed)
    blocks = {b.block_no: b for b in replica.machine.index.blocks if b.end_offset > 64}
    block = blocks[rng.choice(sorted(blocks))]
    replica.disk.flip(f"{STREAM}/{block.block_no}.blk", rng.randrange(64, block.end_offset))
    assert [found.block_no for found in check_content(replica.machine, replica.store)] == [
        block.block_no
    ]


def test_a_lost_message_is_not_a_deleted_one() -> None:
    """A block whose records are all valid, but of other messages than the state knows."""
    one, other = filled(), Replica("b")
    other.publish(100, size=201)
    other.save()
    blob = other.disk.contents(f"{STREAM}/2.blk")
    fd = one.disk.open(f"{STREAM}/2.blk")
    one.disk.truncate(fd, 0)
    one.disk.pwrite(fd, blob, 0)
    one.disk.close(fd)
    (damage,) = check_content(one.machine, one.store)
    assert damage.block_no == 2


def test_content_of_a_memory_stream_is_checked_too() -> None:
    replica = Replica("a", is_file=False)
    replica.publish(100)
    assert check_content(replica.machine, replica.store) == []
    blobs = replica.memory._blobs[2]
    blobs[0] = blobs[0][:50] + b"\x00" + blobs[0][51:]
    assert [found.block_no for found in check_content(replica.machine, replica.store)] == [2]


def test_quarantine_keeps_every_byte_and_never_takes_a_used_name() -> None:
    replica = filled()
    kept = replica.disk.contents(f"{STREAM}/2.blk")
    assert quarantine(replica.disk, ROOT, UID) == f"{TRASH}/{UID}-damaged-1"
    assert not replica.disk.exists(STREAM)
    assert replica.disk.contents(f"{TRASH}/{UID}-damaged-1/2.blk") == kept
    assert quarantine(replica.disk, ROOT, UID) == ""
    replica.open()
    assert quarantine(replica.disk, ROOT, UID) == f"{TRASH}/{UID}-damaged-2"
    replica.disk.crash()
    assert replica.disk.contents(f"{TRASH}/{UID}-damaged-1/2.blk") == kept


def test_quarantine_survives_a_crash_half_way() -> None:
    replica = filled()
    replica.disk.crash_at_point = "QUARANTINE_MOVED"
    with pytest.raises(SimCrash):
        quarantine(replica.disk, ROOT, UID)
    replica.disk.crash()
    quarantine(replica.disk, ROOT, UID)
    assert replica.disk.exists(f"{TRASH}/{UID}-damaged-1/2.blk")
    assert not replica.disk.exists(STREAM)


def test_the_marker_stays_until_the_log_knows_and_replaced_files_until_verified() -> None:
    one = filled()
    behind = Replica("b", seed=3)
    behind.publish(10)
    behind.save()
    world = World(behind, one)
    world.catchup.start("a", 1)
    world.run()
    world.reopened()
    marker = read_marker(behind.disk, STREAM, UID)
    assert marker is not None
    assert (marker.index, marker.digest) == (101, one.machine.digest)
    clear_marker(behind.disk, STREAM)
    assert read_marker(behind.disk, STREAM, UID) is None
    clear_marker(behind.disk, STREAM)
    assert finish_install(behind.disk, ROOT, UID) is None
    quarantine(behind.disk, ROOT, UID)
    remove_replaced(behind.disk, ROOT, UID)
    assert behind.disk.listdir(TRASH) == [f"{UID}-damaged-1"]


def test_an_install_that_the_log_has_overtaken_does_not_set_the_group_back() -> None:
    """Complete, but not swapped in when the power went; and the group is further by now."""
    one, behind = filled(), Replica("b", seed=3)
    world = World(behind, one)
    behind.disk.crash_at_point = "INSTALL_MARKER_DIR_SYNCED"
    world.catchup.start("a", 1)
    with pytest.raises(SimCrash):
        world.run()
    behind.disk.kill()
    behind.thread = SimThread()
    behind.store.close()
    other = Replica("b", seed=4)
    other.publish(150)
    other.save()
    for name in other.disk.listdir(STREAM):
        fd = behind.disk.open(f"{STREAM}/{name}", create=True)
        behind.disk.pwrite(fd, other.disk.contents(f"{STREAM}/{name}"), 0)
        behind.disk.close(fd)
    behind.open()
    assert behind.installed is None
    assert behind.machine.digest == other.machine.digest
    assert not behind.disk.exists(f"{STREAM}.catchup")


def test_a_damaged_marker_is_corruption() -> None:
    one = filled()
    world = World(Replica("b"), one)
    world.catchup.start("a", 1)
    world.run()
    disk = world.follower.disk
    disk.flip(f"{STREAM}/manifest", 20)
    with pytest.raises(CorruptionError):
        read_marker(disk, STREAM, UID)


def test_only_the_directories_of_installs_are_told_as_such() -> None:
    assert catchup_uid("7.catchup") == 7
    for name in ("7", "x.catchup", ".catchup", "7.catchup.old", "orphan-7"):
        assert catchup_uid(name) is None


META_STATE = b"the state of meta"


def fetched_meta(disk: SimDisk, thread: SimThread, results: list[object]) -> StateInstall:
    """The meta group's install with all that it needs: what is left is to seal and swap."""
    disk.make_dirs("/n/meta")
    target = StateInstall(
        disk, "/n/meta", 0, thread, name="meta", close_live=lambda done: done()
    )  # fmt: skip
    members = (("a", "b"), (), (), ())
    fact = FileFact(0, len(META_STATE), crc32c(META_STATE))
    manifest = Manifest(0, 40, 2, 9, (0, 0), 0, members, (fact,))
    target.begin(manifest, results.append, lambda: False)
    target.write(0, 0, META_STATE[:5], results.append)
    target.write(0, 5, META_STATE[5:], results.append)
    target.complete(0, results.append)
    thread.run()
    return target


def test_a_state_without_blocks_becomes_an_ordinary_snapshot() -> None:
    """The meta group's install: one file, renamed into its place."""
    disk, thread = SimDisk(), SimThread()
    results: list[object] = []
    target = fetched_meta(disk, thread, results)
    target.seal(results.append)
    target.swap(results.append)
    thread.run()
    assert results == [set(), None, None, None, None, None]
    found = SnapshotFile.load(disk, "/n/meta", "meta", group=0)
    assert found is not None
    assert (found.index, found.term, found.chain, found.state) == (40, 2, 9, META_STATE)


def test_a_full_disk_refuses_a_state_before_the_group_is_closed() -> None:
    """Sealing needs the room; what it could not write in full is gone again, and the swap needs
    no more."""
    disk, thread = SimDisk(), SimThread()
    results: list[object] = []
    target = fetched_meta(disk, thread, [])
    disk.capacity = disk.used_bytes + 10
    target.seal(results.append)
    target.drop(results.append)
    thread.run()
    assert isinstance(results[0], DiskError)
    assert disk.listdir("/n/meta") == []
    disk.capacity = 1 << 40
    target = fetched_meta(disk, thread, [])
    target.seal(results.append)
    thread.run()
    assert SnapshotFile.load(disk, "/n/meta", "meta", group=0) is None
    disk.capacity = disk.used_bytes
    target.swap(results.append)
    thread.run()
    assert results[1:] == [None, None, None]
    assert disk.listdir("/n/meta") == [f"meta-{40:016x}.snap"]


@pytest.mark.parametrize("is_set_aside", [False, True])
def test_a_block_here_that_the_disk_does_not_give_is_fetched(is_set_aside: bool) -> None:
    """What is here is looked at first: a sector that can't be read was taken for a failure of the
    install, which began anew and came to the same sector again, for ever."""
    one, behind = filled(), Replica("b", seed=3)
    behind.publish(100)
    behind.save()
    path = f"{STREAM}/2.blk"
    behind.disk.bad_read(path, 100, 1)
    if is_set_aside:
        behind.store.close()
        quarantine(behind.disk, ROOT, UID)
        behind.thread.run()
        behind.open()
    one.publish(100)
    one.save()
    world = World(behind, one)
    world.catchup.start("a", one.machine.applied)
    world.run()
    assert world.troubles == []
    assert world.reopened().machine.digest == one.machine.digest


class Unlinked(SimDisk):
    """A file system without second names."""

    def link(self, source: str, target: str) -> None:
        raise OSError(errno.EPERM, "link", target)


def behind_by_little(disk: SimDisk | None = None) -> tuple[Replica, Replica]:
    """A leader, and a replica that has all of its blocks but the last few."""
    one, behind = filled(), Replica("b", seed=3)
    if disk is not None:
        for directory in ("streams", "trash"):
            disk.make_dirs(f"{ROOT}/{directory}")
        behind.disk = disk
        behind.open()
    behind.publish(100)
    behind.apply(DELETE_MSG, 1, 30, False)
    behind.save()
    one.publish(20)
    one.save()
    return one, behind


def caught_up(one: Replica, behind: Replica) -> World:
    world = World(behind, one)
    world.catchup.start("a", one.machine.applied)
    world.run()
    return world


def test_blocks_that_are_here_take_no_room_a_second_time() -> None:
    """Little more is free than what must be fetched, and the stream has several times as much."""
    one, behind = behind_by_little()
    stored = sum(len(behind.disk.contents(path)) for path in behind.disk.paths)
    behind.disk.capacity = stored + stored // 2
    world = caught_up(one, behind)
    assert world.troubles == []
    found = world.reopened()
    assert found.machine.digest == one.machine.digest
    assert check_content(found.machine, found.store) == []
    assert "INSTALL_BLOCK_LINKED" in behind.disk.points


def test_without_second_names_blocks_are_copied() -> None:
    one, behind = behind_by_little(Unlinked())
    world = caught_up(one, behind)
    assert world.troubles == []
    assert world.reopened().machine.digest == one.machine.digest
    assert "INSTALL_BLOCK_LINKED" not in behind.disk.points
