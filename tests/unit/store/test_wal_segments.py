"""Which files the log writes to: zeroed, only reserved, used again, or removed."""

from __future__ import annotations

import errno

import pytest

from streamd.store.wal import segment_pool
from streamd.store.wal.entry_index import SEGMENTS_UNHURRIED
from streamd.store.wal.segment_pool import SPARES_MAX
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry
from tests.sim.disk import SimDisk, SimThread

GROUP = 5
SEGMENT_BYTES = 1024 * 1024
BULKY_BATCH_BYTES = 64 * 1024  # here
BULKY = bytes(2 * BULKY_BATCH_BYTES)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_pool, "BULKY_BATCH_BYTES", BULKY_BATCH_BYTES)


class CountingDisk(SimDisk):
    """Notes how segments come to be."""

    def __init__(self) -> None:
        super().__init__()
        self.zeroed: list[int] = []
        self.reserved: list[int] = []
        self.is_reserving_refused = False

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        self.zeroed.append(size)
        super().preallocate(fd, offset=offset, size=size)

    def reserve(self, fd: int, size: int) -> None:
        if self.is_reserving_refused:
            super().reserve(fd, size // 2)  # a part of it is there
            raise OSError(errno.ENOSPC, "No space left on device")
        self.reserved.append(size)
        super().reserve(fd, size)


class Bed:
    """A log whose two threads do their work when told."""

    def __init__(self) -> None:
        self.disk = CountingDisk()
        self.errors: list[Exception] = []
        self.index = 0
        self.start()

    def start(self) -> None:
        self.log_thread, self.helper = SimThread(), SimThread()
        self.wal = Wal.open(
            self.disk,
            "/wal",
            self.log_thread,
            segment_bytes=SEGMENT_BYTES,
            sync="always",
            on_error=self.errors.append,
            helper=self.helper,
        )

    def append(self, data: bytes, count: int = 1) -> None:
        """One batch each; the helper does nothing."""
        for _ in range(count):
            self.index += 1
            entry = Entry(1, self.index, data, chain=self.index)
            self.wal.append([(GROUP, [entry], None, 0)], lambda: None)
            self.log_thread.run()

    def release(self) -> None:
        self.wal.release(GROUP, self.index, 1, self.index)
        self.append(b"x")

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.disk.listdir("/wal") if name.startswith(prefix)]


def test_a_full_segment_under_a_bulky_load_is_followed_by_a_reserved_one() -> None:
    bed = Bed()
    bed.append(BULKY, 100)
    assert len(bed.disk.reserved) >= 100 * len(BULKY) // SEGMENT_BYTES - 2
    assert set(bed.disk.reserved) == {SEGMENT_BYTES}
    bed.helper.run()
    zeroed = sum(bed.disk.zeroed)
    bed.append(BULKY, 50)
    bed.helper.run()
    assert sum(bed.disk.zeroed) == zeroed
    bed.start()
    entries = bed.wal.read(GROUP, 1, bed.index + 1, 1 << 30)
    assert [entry.index for entry in entries] == list(range(1, bed.index + 1))


def test_a_spare_is_written_with_zeros_once_batches_are_small_again() -> None:
    bed = Bed()
    bed.append(BULKY, 100)
    bed.helper.run()
    zeroed = sum(bed.disk.zeroed)
    while sum(bed.disk.zeroed) < zeroed + SEGMENT_BYTES:
        bed.append(b"x" * 1000)
        bed.helper.run()
        assert bed.index < 1000
    reserved = len(bed.disk.reserved)
    bed.append(b"x" * 1000, 2 * SEGMENT_BYTES // 4096)
    assert len(bed.disk.reserved) == reserved


def test_a_disk_without_room_for_a_whole_segment_gets_a_small_one() -> None:
    bed = Bed()
    bed.disk.is_reserving_refused = True
    bed.append(BULKY, 100)
    assert bed.errors == []
    bed.start()
    entries = bed.wal.read(GROUP, 1, bed.index + 1, 1 << 30)
    assert [entry.data for entry in entries] == [BULKY] * 100


def test_segments_that_are_free_are_removed_by_the_helper_and_the_log_goes_on_meanwhile() -> None:
    bed = Bed()
    bed.append(BULKY, 60)
    in_use = len(bed.names("0"))
    bed.release()
    bed.append(b"x")
    assert len(bed.names("0")) == 1
    assert len(bed.names("spare")) == in_use - 1  # none is gone, and the log has done its part
    bed.helper.run()
    assert len(bed.names("spare")) <= SPARES_MAX + 1  # and the one begun before the load came
    assert bed.errors == []


def test_a_segment_that_was_not_removed_yet_is_removed_at_the_next_start() -> None:
    bed = Bed()
    bed.append(BULKY, 60)
    bed.release()
    bed.append(b"x")
    assert len(bed.names("spare")) > SPARES_MAX
    bed.start()
    assert len(bed.names("spare")) <= SPARES_MAX
    numbers = {int(name.removeprefix("spare-")) for name in bed.names("spare")}
    bed.append(BULKY, 60)
    bed.release()
    bed.append(b"x")
    assert not numbers & {int(name.removeprefix("spare-")) for name in bed.names("spare")}


def test_each_segment_more_than_usual_is_told() -> None:
    bed = Bed()
    told: list[int] = []
    bed.wal.on_crowded = lambda: told.append(len(bed.names("0")))
    while len(bed.names("0")) < SEGMENTS_UNHURRIED + 4:
        bed.append(BULKY)
    assert told == [SEGMENTS_UNHURRIED + more for more in range(1, 5)]
    bed.release()
    bed.append(BULKY, 2 * SEGMENT_BYTES // len(BULKY))
    assert len(told) == 4


def test_a_spare_that_can_not_even_be_removed_is_not_the_last() -> None:
    """Some file systems need room to remove a file. Nobody made another one until the next start:
    each segment was a small one then, made while appends waited."""
    bed = Bed()
    bed.disk.fail("fdatasync", errno.ENOSPC, under="/wal/spare-2")
    bed.disk.fail("unlink", errno.ENOSPC, under="/wal/spare-2")
    bed.append(b"x" * 1000, 60)
    bed.helper.run()
    assert not bed.disk.will_fail("unlink")
    zeroed = sum(bed.disk.zeroed)
    bed.append(b"x" * 1000, 60)
    bed.helper.run()
    assert sum(bed.disk.zeroed) - zeroed >= SEGMENT_BYTES
    assert bed.errors == []
