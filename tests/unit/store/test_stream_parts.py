"""Parts of a stream's store, each alone: its jobs, its dead blocks, the extents of its files."""

from __future__ import annotations

import errno

import pytest

from streamd.errors import CorruptionError, DiskError, StreamdError
from streamd.store.blocks.block import HEADER_BYTES, BlockExtents, BlockFiles
from streamd.store.blocks.dead_blocks import DeadBlocks
from streamd.store.blocks.record_format import REWRITTEN, block_name
from streamd.store.blocks.stream_jobs import StreamJobs
from tests.sim.disk import SimDisk, SimThread

DIRECTORY = "/s/7"


class Bed:
    """A directory with three blocks of 100, 200 and 300 bytes, and the parts that work on it."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(DIRECTORY)
        for block_no in (1, 2, 3):
            self.put(block_no, 100 * block_no)
        self.thread = SimThread()
        self.jobs = StreamJobs(DIRECTORY, self.thread)
        self.errors: list[StreamdError] = []
        self.jobs.on_error = self.errors.append
        self.files = BlockFiles(self.disk, DIRECTORY, 7)
        self.dead = DeadBlocks(self.disk, self.files, self.jobs)

    def put(self, block_no: int, size: int) -> None:
        fd = self.disk.open(f"{DIRECTORY}/{block_name(block_no)}", create=True)
        self.disk.pwrite(fd, bytes(size), 0)
        self.disk.close(fd)

    def blocks(self) -> list[str]:
        return self.disk.listdir(DIRECTORY)

    def snapshot(self, *, is_repeated: bool = False) -> tuple[int, ...]:
        """Save one that is durable at once; return the dead blocks that it names."""
        removable, kept = self.dead.begin_snapshot(is_repeated=is_repeated)
        self.dead.remove(removable)
        self.thread.run()
        return kept


# --- dead blocks ----------------------------------------------------------------------------


def test_a_dead_block_is_removed_when_two_snapshots_do_without_it() -> None:
    bed = Bed()
    bed.dead.add(1, 100)
    assert bed.dead.reclaimable_bytes == 100
    assert bed.snapshot() == (1,)
    assert bed.blocks() == ["1.blk", "2.blk", "3.blk"]
    bed.dead.add(2, 200)
    assert bed.snapshot() == (2,)
    assert bed.blocks() == ["2.blk", "3.blk"]
    assert (1 in bed.dead, 2 in bed.dead, bed.dead.reclaimable_bytes) == (False, True, 200)


def test_a_repeated_snapshot_removes_nothing() -> None:
    """It takes the place of one that can't be read: the one before it still needs its blocks."""
    bed = Bed()
    bed.dead.add(1, 100)
    bed.snapshot()
    bed.dead.add(2, 200)
    assert bed.snapshot(is_repeated=True) == (1, 2)
    assert bed.blocks() == ["1.blk", "2.blk", "3.blk"]
    assert bed.snapshot() == ()
    assert bed.blocks() == ["3.blk"]


def test_blocks_that_a_loaded_snapshot_names_go_with_the_next_one() -> None:
    bed = Bed()
    sizes = BlockExtents(bed.files).sizes
    bed.dead.load((1, 9))
    bed.dead.count_doomed(sizes)
    assert (sorted(sizes), bed.dead.reclaimable_bytes) == ([2, 3], 100)
    bed.dead.doom(2, 200)
    assert bed.snapshot() == ()
    assert (bed.blocks(), bed.dead.reclaimable_bytes) == (["3.blk"], 0)


@pytest.mark.parametrize("end", ["closed", "failed"])
def test_no_file_is_removed_for_a_store_that_is_closed_or_failed(end: str) -> None:
    bed = Bed()
    bed.dead.add(1, 100)
    bed.snapshot()
    if end == "closed":
        bed.jobs.is_closed = True
    else:
        bed.jobs.fail(DiskError("no room"))
    bed.snapshot()
    assert bed.blocks() == ["1.blk", "2.blk", "3.blk"]


def test_a_removal_that_fails_is_final() -> None:
    bed = Bed()
    bed.dead.add(1, 100)
    bed.dead.add(2, 200)
    bed.snapshot()
    bed.disk.fail("unlink", errno.EIO, under=DIRECTORY)
    bed.snapshot()
    assert len(bed.errors) == 1
    assert bed.jobs.failure is bed.errors[0]
    assert "removing a block" in str(bed.errors[0])


# --- jobs -----------------------------------------------------------------------------------


def test_the_first_failure_is_reported_once_and_stays() -> None:
    bed = Bed()
    first, second = DiskError("first"), DiskError("second")
    bed.jobs.check()
    bed.jobs.fail(first)
    bed.jobs.fail(second)
    assert (bed.errors, bed.jobs.failure) == ([first], first)
    with pytest.raises(DiskError, match="first"):
        bed.jobs.check()


def test_an_unexpected_error_is_reported_with_the_directory() -> None:
    bed = Bed()
    bed.jobs.fail(MemoryError())
    assert str(bed.errors[0]) == f"{DIRECTORY}: MemoryError()"


# --- extents --------------------------------------------------------------------------------


def test_extents_grow_and_never_shrink_by_a_write() -> None:
    bed = Bed()
    extents = BlockExtents(bed.files)
    extents.grow(3, 450)
    extents.grow(3, 400)
    extents.grow(4, 70)
    assert extents.sizes == {1: 100, 2: 200, 3: 450, 4: 70}
    assert (extents.newest(), extents.drop(4), extents.drop(4)) == (4, 70, 0)
    extents.raise_floor(2, 500)
    extents.raise_floor(1, 900)
    assert extents.floor == (2, 500)


def test_only_messages_behind_the_tail_reach_beyond_it() -> None:
    bed = Bed()
    bed.put(REWRITTEN + 5, 500)
    extents = BlockExtents(bed.files)
    assert extents.reaches_beyond((0, 0))
    assert extents.reaches_beyond((3, 299))
    assert not extents.reaches_beyond((3, 300))
    bed.put(4, HEADER_BYTES)
    extents.reload()
    assert not extents.reaches_beyond((3, 300))


def test_truncation_cuts_to_the_tail_and_leaves_rewritten_blocks() -> None:
    bed = Bed()
    bed.put(REWRITTEN + 5, 500)
    extents = BlockExtents(bed.files)
    extents.truncate_to((2, 150))
    assert extents.sizes == {1: 100, 2: 150, REWRITTEN + 5: 500}
    assert extents.floor == (2, 150)
    for tail, text in (
        ((2, 151), "the snapshot says 151"),
        ((3, 100), "3.blk: the file is missing"),
    ):
        with pytest.raises(CorruptionError, match=text):
            extents.truncate_to(tail)
    extents.truncate_to((2, HEADER_BYTES))
    assert sorted(extents.sizes) == [1, REWRITTEN + 5]
    extents.truncate_to((0, 0))
    assert extents.sizes == {}
