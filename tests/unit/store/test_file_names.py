"""Files in a store directory that streamd did not make: named, never touched, never damage."""

from __future__ import annotations

import pytest

from streamd.errors import CorruptionError, StreamdError
from streamd.store.blocks.block import BlockFiles
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from streamd.store.file_names import foreign_paths, remove_unfinished
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry
from tests.sim.disk import SimDisk, SimThread

NOT_SEGMENTS = ["backup.wal", "x.wal", "0001.wal", "0000000000000001.wal.bak", "0001.wal.bak"]
NOT_SEGMENTS += ["4000000000000000.wal", "000000000000000A.wal", "spare-x", "spare-1.wal"]


def put(disk: SimDisk, path: str, content: bytes = b"somebody's") -> None:
    fd = disk.open(path, create=True)
    disk.truncate(fd, 0)
    disk.pwrite(fd, content, 0)
    disk.close(fd)


def fail(err: Exception) -> None:
    raise err


def open_wal(disk: SimDisk, *, tolerates: bool) -> tuple[Wal, SimThread]:
    thread = SimThread()
    wal = Wal.open(
        disk, "/wal", thread, segment_bytes=64 * 1024, sync="always", on_error=fail,
        tolerate_damage=tolerates,
    )  # fmt: skip
    return wal, thread


def log_with_foreign_files() -> SimDisk:
    """A log of three segments, and beside it everything that is no segment."""
    disk = SimDisk()
    for index in (1, 2, 3):
        wal, thread = open_wal(disk, tolerates=False)
        wal.append([(5, [Entry(1, index, b"x", chain=index)], None, 0)], lambda: None)
        wal.close()
        thread.run()
    for name in NOT_SEGMENTS:
        put(disk, f"/wal/{name}")
    disk.mkdir("/wal/old.wal")
    return disk


def foreign_in(disk: SimDisk) -> list[str]:
    names = [name for name in disk.listdir("/wal") if name in NOT_SEGMENTS]
    assert all(disk.contents(f"/wal/{name}") == b"somebody's" for name in names)
    return names


@pytest.mark.parametrize("tolerates", [False, True])
def test_a_file_that_is_no_segment_is_no_damage_to_the_log(tolerates: bool) -> None:
    disk = log_with_foreign_files()
    for _ in range(2):
        wal, thread = open_wal(disk, tolerates=tolerates)
        assert (wal.damage, wal.damaged_groups) == ([], {})
        assert [entry.index for entry in wal.read(5, 1, 4, 1 << 20)] == [1, 2, 3]
        wal.close()
        thread.run()
    assert foreign_in(disk) == sorted(NOT_SEGMENTS)
    assert disk.exists("/wal/old.wal")


def test_foreign_files_alone_are_no_log() -> None:
    disk = SimDisk()
    disk.mkdir("/wal")
    put(disk, "/wal/backup.wal")
    wal, _ = open_wal(disk, tolerates=False)
    assert wal.groups == {}
    assert foreign_in(disk) == ["backup.wal"]


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_real_segment_beside_them_still_counts_and_is_set_aside_alone(damage: str) -> None:
    disk = log_with_foreign_files()
    wal, thread = open_wal(disk, tolerates=False)
    newest = f"/wal/{wal.segment_no:016x}.wal"
    wal.close()
    thread.run()
    if damage == "missing":
        disk.unlink(newest)
    else:
        disk.flip(newest, 20)
        disk.flip(newest, 2048 + 20)
    with pytest.raises(CorruptionError, match=newest.rsplit("/", 1)[1]):
        open_wal(disk, tolerates=False)
    wal, _ = open_wal(disk, tolerates=True)
    assert len(wal.damage) >= 1
    assert foreign_in(disk) == sorted(NOT_SEGMENTS)
    assert disk.exists("/wal/old.wal")
    assert all(len(name) == 20 for name in disk.listdir("/wal/damaged-1"))


def test_a_directory_in_place_of_a_segment_is_an_error() -> None:
    disk = log_with_foreign_files()
    wal, thread = open_wal(disk, tolerates=False)
    wal.close()
    thread.run()
    disk.mkdir(f"/wal/{wal.segment_no + 1:016x}.wal")
    with pytest.raises(StreamdError, match="/wal"):
        open_wal(disk, tolerates=False)


def test_only_unfinished_files_of_streamd_are_removed() -> None:
    disk = SimDisk()
    disk.mkdir("/s")
    ours = ["stream-000000000000000a.snap.tmp", "index.db.tmp", "outline.tmp", "3.blk.tmp"]
    ours += ["r7.blk.tmp", "manifest.tmp"]
    foreign = ["notes.tmp", "03.blk.tmp", "stream-a.snap.tmp", ".tmp"]
    for name in ours + foreign:
        put(disk, f"/s/{name}")
    disk.mkdir("/s/cache.tmp")
    remove_unfinished(disk, "/s")
    assert disk.listdir("/s") == sorted([*foreign, "cache.tmp"])


def test_a_file_that_only_looks_like_a_block_is_none() -> None:
    disk = SimDisk()
    disk.mkdir("/s")
    for name in ("007.blk", "7.blk", "r07.blk", "0.blk.bak", "r.blk"):
        put(disk, f"/s/{name}")
    assert BlockFiles(disk, "/s", 5).sizes() == {7: len(b"somebody's")}


def test_every_foreign_path_is_named_and_none_of_ours_is() -> None:
    disk = SimDisk()
    for directory in ("wal/damaged-1", "wal/x", "meta/lost+found", "streams/5/sub", "streams/x"):
        disk.make_dirs(f"/r/{directory}")
    for directory in ("streams/6.catchup", "streams/07", "streams/5.catchup.old"):
        disk.make_dirs(f"/r/{directory}")
    put(disk, "/r/wal/damaged-1/whatever")
    put(disk, "/r/streams/7.txt")
    put(disk, "/r/streams/x/5.blk")
    for index in (1, 2):
        SnapshotFile.save(disk, "/r/meta", "meta", Snapshot(1, index, 1, 0, b""))
        SnapshotFile.save(disk, "/r/streams/5", "stream", Snapshot(5, index, 1, 0, b""))
    for name in ("1.blk", "r2.blk", "index.db", "outline", "manifest", "1.blk.tmp", "01.blk"):
        put(disk, f"/r/streams/5/{name}")
    for name in ("1.blk.part", "state", "index", "index.part", "2.blk", "manifest", "b.blk"):
        put(disk, f"/r/streams/6.catchup/{name}")
    for name in ("0000000000000001.wal", "spare-3", "manifest", "manifest.tmp", "b.wal"):
        put(disk, f"/r/wal/{name}")
    put(disk, "/r/meta/meta-1.snap")
    found = [path.removeprefix("/r/") for path in foreign_paths(disk, "/r")]
    assert sorted(found) == [
        "meta/lost+found", "meta/meta-1.snap", "streams/07", "streams/5.catchup.old",
        "streams/5/01.blk", "streams/5/sub", "streams/6.catchup/b.blk", "streams/7.txt",
        "streams/x", "wal/b.wal", "wal/x",
    ]  # fmt: skip
