"""A deleted stream's files go one by one."""

from __future__ import annotations

import errno

import pytest

from streamd.store.blocks.file_trash import EmptyTrash
from tests.sim.disk import SimDisk, SimThread

PATH = "/trash/7"


def filled(disk: SimDisk) -> None:
    disk.make_dirs(PATH)
    for name in ("1.blk", "2.blk", "3.blk", "stream-1.snap"):
        fd = disk.open(f"{PATH}/{name}", create=True)
        disk.pwrite(fd, b"x", 0)
        disk.close(fd)


def test_jobs_of_others_come_in_between() -> None:
    disk, thread = SimDisk(), SimThread()
    filled(disk)
    left: list[int] = []
    EmptyTrash(disk, thread, PATH).begin()
    while thread.job_count:
        thread.submit(lambda: left.append(len(disk.listdir(PATH))), None)
        thread.step()
        thread.step()
        thread.complete()
    assert left == [4, 3, 2, 1, 0]
    assert not disk.exists(PATH)


def test_a_directory_that_is_not_there_is_no_matter() -> None:
    disk, thread = SimDisk(), SimThread()
    EmptyTrash(disk, thread, PATH).begin()
    thread.run()
    assert not disk.exists(PATH)


@pytest.mark.parametrize("operation", ["unlink", "remove_tree"])
def test_files_that_cannot_be_removed_stay_and_are_reported(operation: str) -> None:
    disk, thread = SimDisk(), SimThread()
    filled(disk)
    told: list[BaseException] = []
    disk.fail(operation, errno.EIO, under=PATH)
    EmptyTrash(disk, thread, PATH, told.append).begin()
    thread.run()
    assert disk.exists(PATH)
    assert [type(err) for err in told] == [OSError]
