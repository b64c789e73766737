"""Blocks of a stream that is compressed or encrypted, through every crash that plain ones take."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block_writer import APPEND, DROP, SEAL
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.disk import Disk
from streamd.store.frames import frame_format as ff
from streamd.store.frames.framed_disk import FramedDisk
from streamd.store.frames.keyring import Keyring
from tests.sim.disk import SimCrash, SimDisk, SimThread
from tests.unit.store import test_blocks as plain
from tests.unit.store.test_blocks import DIRECTORY, POINTS, Life, blob_of, footer_of, opened

PACKING_POINTS = [
    "BLOCK_PACKED_TMP_SYNCED",
    "BLOCK_PACKED_RENAMED",
    "BLOCK_PACKED_DIR_SYNCED",
]


def packed(disk: Disk) -> Disk:
    return FramedDisk(disk).as_disk()


def encrypted(disk: Disk) -> Disk:
    return FramedDisk(disk, Keyring(bytes(32), ff.CHACHA)).as_disk()


KINDS = [(packed, True), (encrypted, False), (encrypted, True)]
IDS = ["packed", "encrypted", "both"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "packs"), KINDS, ids=IDS)
def test_recovery_finds_the_newest_reported_snapshot_and_its_blocks(
    kind: Callable[[Disk], Disk], packs: bool
) -> None:
    """Random work, crashes at any operation; then the store is what the snapshot says."""
    for seed in range(25):
        life = Life(seed, seen_through=kind, packs=packs)
        for _ in range(4):
            life.disk.crash_at_operation = life.disk.operation_count + life.rng.randint(1, 200)
            try:
                for _ in range(200):
                    life.act()
            except SimCrash:
                pass
            life.disk.crash(keep=life.rng.choice((0.0, 0.5, 1.0)))
            life.start()
        life.check_that_the_dead_go()


@pytest.mark.slow
@pytest.mark.parametrize("point", [*POINTS, *PACKING_POINTS])
def test_recovery_after_a_crash_at_each_named_point(point: str) -> None:
    """The same, stopped between two durable steps, of packing too."""
    for seed in range(3):
        life = Life(500 + seed, seen_through=packed, packs=True)
        life.disk.crash_at_point = point
        with pytest.raises(SimCrash):
            for _ in range(5000):
                life.act()
        life.disk.crash(keep=0.5)
        life.start()
        life.check_that_the_dead_go()


# --- what is packed, and when -----------------------------------------------------------------


class Bed:
    """A stream with three sealed blocks and a tail block, all of them written."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.disk, self.thread = SimDisk(), SimThread()
        self.framed = FramedDisk(self.disk)
        self.store: StreamStore
        self.store, self.errors = opened(self.framed, self.thread)
        self.is_on = is_on
        self.store.begin_packing(lambda: self.is_on)
        self.blob = blob_of(1, 400)
        self.end = 64 + len(self.blob)
        for block_no in (1, 2, 3):
            self.store.apply(self.sealed(block_no))
        self.store.apply([(APPEND, 4, 64, self.blob)])
        self.store.flush()
        self.thread.run()

    def sealed(self, block_no: int) -> list[tuple[object, ...]]:
        footer = footer_of(self.end)
        return [(APPEND, block_no, 64, self.blob), (SEAL, block_no, self.end, footer)]

    def snapshot(self, index: int) -> None:
        self.store.save_snapshot(
            index=index, term=1, chain=0, state=b"", index_db=None, tail=(4, self.end),
            done=lambda: None,
        )  # fmt: skip
        self.thread.run()

    def size(self, block_no: int) -> int:
        return len(self.disk.contents(f"{DIRECTORY}/{fmt.block_name(block_no)}"))

    def read(self, block_no: int) -> bytes:
        """The records of a block, from its file."""
        return self.store._files.read_all(block_no, self.end)[64:]


def test_sealed_blocks_are_packed_and_the_tail_block_is_not() -> None:
    """A fifth of the room at most, the same bytes; the figures say both."""
    bed = Bed()
    for block_no in (1, 2, 3):
        assert bed.size(block_no) < bed.end / 5
        assert bed.read(block_no) == bed.blob
        assert bed.store.load_footer(block_no) == footer_of(bed.end)
    assert bed.size(4) == bed.end
    content, stored = bed.store.stored_bytes
    assert content == 3 * (bed.end + len(footer_of(bed.end))) + bed.end
    assert stored == sum(map(bed.size, (1, 2, 3, 4)))
    again, _ = opened(FramedDisk(bed.disk), SimThread())
    assert again.stored_bytes == (content, stored)
    assert not [name for name in bed.disk.listdir(DIRECTORY) if name.endswith(".tmp")]


def test_packing_that_is_switched_on_takes_in_the_blocks_there_are() -> None:
    """Off: plain. On: the next snapshot packs them. Off again: they stay, new ones are plain."""
    bed = Bed(is_on=False)
    bed.snapshot(1)
    assert bed.size(1) > bed.end
    bed.is_on = True
    bed.snapshot(2)
    assert all(bed.size(block_no) < bed.end / 5 for block_no in (1, 2, 3))
    bed.is_on = False
    bed.store.apply([(SEAL, 4, bed.end, footer_of(bed.end)), *bed.sealed(5)])
    bed.store.apply([(APPEND, 6, 64, bed.blob)])
    bed.snapshot(3)
    assert bed.size(1) < bed.end / 5
    assert bed.size(5) > bed.end


def test_a_block_that_dies_while_it_is_packed_stays_gone() -> None:
    """The block is dropped between two steps: its file goes as ever, and no packed one comes."""
    bed = Bed(is_on=False)
    bed.is_on = True
    bed.store.begin_packing(lambda: True)
    bed.thread.step()  # the first step of block 1
    bed.store.apply([(DROP, 1)])
    bed.thread.complete()
    bed.thread.run()
    assert bed.size(1) > bed.end
    assert bed.size(2) < bed.end / 5
    for index in (1, 2):
        bed.snapshot(index)
    assert bed.disk.listdir(DIRECTORY).count("1.blk") == 0


def test_a_block_that_is_replaced_while_it_is_packed_is_packed_again() -> None:
    """A peer's copy takes the place of a damaged file in the middle: it is what stays."""
    bed = Bed(is_on=False)
    whole = bed.disk.contents(f"{DIRECTORY}/1.blk")
    bed.disk.flip(f"{DIRECTORY}/1.blk", 500)
    bed.is_on = True
    bed.store.begin_packing(lambda: True)
    bed.thread.step()
    told: list[object] = []
    bed.store.replace_block(1, whole, told.append)
    bed.thread.run()
    assert told == [None]
    assert bed.read(1) == bed.blob
    bed.snapshot(1)
    assert bed.size(1) < bed.end / 5
    assert bed.read(1) == bed.blob


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "pread", "replace"])
def test_an_error_of_packing_is_none_of_the_streams(operation: str) -> None:
    """The disk refuses what packing asks: the block stays plain and readable, and the stream goes
    on; but for the rename, whose failure leaves open which file is there."""
    bed = Bed(is_on=False)
    bed.is_on = True
    bed.disk.fail(operation, errno.EIO, under=DIRECTORY)
    bed.store.begin_packing(lambda: True)
    bed.thread.run()
    assert bed.read(1) == bed.blob
    if operation == "replace":
        assert bed.store.failure is not None
        return
    assert bed.store.failure is None
    assert bed.size(1) > bed.end
    assert bed.size(3) < bed.end / 5, "the others are packed"
    assert not [name for name in bed.disk.listdir(DIRECTORY) if name.endswith(".tmp")]


@pytest.mark.parametrize("point", ["", "TMP_WRITTEN", "TMP_SYNCED", "RENAMED", "DIR_SYNCED"])
def test_a_cut_into_a_packed_block_leaves_a_plain_one_to_write_on(point: str) -> None:
    """A start from an older snapshot cuts a packed block back, once or, after a power cut in the
    middle, again: it is plain then, and goes on."""
    bed = Bed()
    cut = 64 + fmt.stated_length(bed.blob)
    if point:
        store, _ = opened(FramedDisk(bed.disk), bed.thread)
        bed.disk.crash_at_point = f"BLOCK_UNPACKED_{point}"
        with pytest.raises(SimCrash):
            store.truncate_to((2, cut))
        bed.disk.crash()
    store, _ = opened(FramedDisk(bed.disk), bed.thread)
    store.truncate_to((2, cut))
    assert bed.size(2) == cut
    assert bed.disk.listdir(DIRECTORY) == ["1.blk", "2.blk"]
    store.apply([(APPEND, 2, cut, bed.blob)])
    store.flush()
    bed.thread.run()
    assert bed.disk.contents(f"{DIRECTORY}/2.blk")[cut:] == bed.blob


def test_damage_in_a_packed_block_is_found_where_it_is() -> None:
    """A flipped byte of a frame: verification names the block, records of other frames are read."""
    bed = Bed()
    big = plain.blob_of(1, 4000)
    end = 64 + len(big)
    footer = footer_of(end)
    bed.store.apply([(SEAL, 4, bed.end, footer_of(bed.end))])
    bed.store.apply([(APPEND, 5, 64, big), (SEAL, 5, end, footer)])
    bed.store.flush()
    bed.thread.run()
    path = f"{DIRECTORY}/5.blk"
    size = len(bed.disk.contents(path))
    assert size < end / 4
    bed.disk.flip(path, size - 600)
    store, _ = opened(FramedDisk(bed.disk), bed.thread)
    with pytest.raises(fmt.CorruptionError):
        store.verify(5, end_offset=end, is_sealed=True)
    assert store._files.read(5, 64, 1000)
