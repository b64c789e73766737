"""Generations of snapshots in a directory where other files may lie."""

from __future__ import annotations

from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from tests.sim.disk import SimDisk


def save(disk: SimDisk, index: int) -> None:
    SnapshotFile.save(disk, "/s", "stream", Snapshot(7, index, 1, 1, b"%d" % index))


def test_a_file_with_a_name_like_theirs_is_no_generation() -> None:
    """It took the place of the one before the newest, which was removed; if the newest rots, there
    is only that one."""
    disk = SimDisk()
    disk.make_dirs("/s")
    save(disk, 10)
    foreign = ["stream-zzzz.snap", "stream-000000000000000a copy.snap", "stream-b-1.snap"]
    for name in foreign:
        disk.close(disk.open(f"/s/{name}", create=True))
    save(disk, 20)
    save(disk, 30)
    names = [f"stream-{index:016x}.snap" for index in (30, 20)]
    assert SnapshotFile.names(disk, "/s", "stream") == names
    assert sorted(disk.listdir("/s")) == sorted(names + foreign)
    disk.flip(f"/s/{names[0]}", 100)
    found = SnapshotFile.load(disk, "/s", "stream", group=7)
    assert found is not None and found.index == 20
