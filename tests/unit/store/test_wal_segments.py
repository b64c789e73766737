"""Files that the log writes to: zeroed ahead in steps, only reserved; kept or removed when free."""

from __future__ import annotations

import errno

import pytest

from streamd.store.wal import segment, segment_files
from streamd.store.wal.entry_index import SEGMENTS_UNHURRIED
from streamd.store.wal.segment_files import KEPT_MAX
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry
from tests.sim.disk import SimDisk, SimThread

GROUP = 5
SEGMENT_BYTES = 1024 * 1024
BULKY_BATCH_BYTES = 64 * 1024  # here
ZERO_STEP_BYTES = 16 * 1024  # here
REMOVE_STEP_BYTES = 256 * 1024  # here
BULKY = bytes(2 * BULKY_BATCH_BYTES)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "BULKY_BATCH_BYTES", BULKY_BATCH_BYTES)
    monkeypatch.setattr(segment, "ZERO_STEP_BYTES", ZERO_STEP_BYTES)
    monkeypatch.setattr(segment_files, "REMOVE_STEP_BYTES", REMOVE_STEP_BYTES)


class CountingDisk(SimDisk):
    """Notes how segments come to be."""

    def __init__(self) -> None:
        super().__init__()
        self.zeroed: list[int] = []
        self.reserved: list[int] = []
        self.is_reserving_refused = False
        self.zeroing_error = 0

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        if self.zeroing_error:
            raise OSError(self.zeroing_error, "as the test wants it")
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


def test_zeros_are_written_ahead_in_small_steps() -> None:
    """Each only once the position is beyond the last; so is the file no longer than it must be."""
    bed = Bed()
    path = "/wal/0000000000000001.wal"
    for _ in range(100):
        bed.append(b"x" * 1000)
        size = len(bed.disk.contents(path))
        assert 0 <= size - bed.wal._segment.position <= ZERO_STEP_BYTES + 4096
    assert set(bed.disk.zeroed) == {ZERO_STEP_BYTES}
    assert len(bed.disk.zeroed) < 100 * 4096 // ZERO_STEP_BYTES
    assert bed.disk.reserved == []


def test_zeros_are_written_again_once_batches_are_small_again() -> None:
    bed = Bed()
    bed.append(BULKY, 100)
    zeroed, reserved = sum(bed.disk.zeroed), len(bed.disk.reserved)
    while sum(bed.disk.zeroed) < zeroed + SEGMENT_BYTES // 2:
        bed.append(b"x" * 1000)
        assert bed.index < 2000
    assert len(bed.disk.reserved) == reserved


def test_a_disk_without_room_for_zeros_takes_what_it_has_room_for() -> None:
    bed = Bed()
    bed.disk.zeroing_error = errno.ENOSPC
    bed.append(b"x" * 1000, 1500)
    assert bed.errors == [] and len(bed.names("0")) > 2
    bed.start()
    entries = bed.wal.read(GROUP, 1, bed.index + 1, 1 << 30)
    assert [entry.index for entry in entries] == list(range(1, bed.index + 1))


def test_a_disk_that_fails_when_zeros_are_written_stops_the_log() -> None:
    """Any other error of a write is final (I10)."""
    bed = Bed()
    bed.append(b"x")
    bed.disk.zeroing_error = errno.EIO
    bed.append(b"x" * 1000, 2 * ZERO_STEP_BYTES // 1000)
    assert len(bed.errors) == 1
    assert "writing the log" in str(bed.errors[0])


def test_a_disk_without_room_for_a_whole_segment_gets_a_small_one() -> None:
    bed = Bed()
    bed.disk.is_reserving_refused = True
    bed.append(BULKY, 100)
    assert bed.errors == []
    bed.start()
    entries = bed.wal.read(GROUP, 1, bed.index + 1, 1 << 30)
    assert [entry.data for entry in entries] == [BULKY] * 100


def test_segments_that_are_free_are_removed_by_the_helper_and_the_log_goes_on_meanwhile() -> None:
    """In steps: what frees many bytes at once holds up the syncs of others."""
    bed = Bed()
    bed.append(BULKY, 60)
    in_use = len(bed.names("0"))
    bed.release()
    bed.append(b"x")
    assert len(bed.names("0")) == 1
    assert len(bed.names("spare")) == in_use - 1  # none is gone, and the log has done its part
    steps = 0
    while bed.helper.step():
        bed.helper.complete()
        steps += 1
    assert len(bed.names("spare")) == KEPT_MAX
    assert steps >= (in_use - 2 - KEPT_MAX) * SEGMENT_BYTES // REMOVE_STEP_BYTES
    assert bed.errors == []


@pytest.mark.parametrize("data", [BULKY, b"x" * 1000])
def test_files_of_free_segments_become_segments_again(data: bytes) -> None:
    """As far as they are long nothing is zeroed or reserved; what they held before is not found,
    also where the power fails."""
    bed = Bed()
    while len(bed.names("0")) < KEPT_MAX + 2:
        bed.append(data)
    bed.release()
    bed.append(b"x")
    bed.helper.run()
    assert len(bed.names("spare")) == KEPT_MAX
    reserved, zeroed = len(bed.disk.reserved), sum(bed.disk.zeroed)
    while bed.names("spare"):
        bed.append(data)
    assert len(bed.disk.reserved) == reserved
    assert sum(bed.disk.zeroed) < zeroed + SEGMENT_BYTES  # of the one that was begun before
    newest = bed.disk.contents(f"/wal/{bed.names('0')[-1]}")
    assert bed.wal._segment.position < SEGMENT_BYTES // 2 < len(newest)  # old batches are behind
    bed.disk.crash()
    bed.start()
    state = bed.wal.groups[GROUP]
    assert state.last_index == bed.index
    entries = bed.wal.read(GROUP, state.first_index, bed.index + 1, 1 << 30)
    assert [entry.index for entry in entries] == list(range(state.first_index, bed.index + 1))


def test_files_that_are_kept_are_closed_with_the_log_and_removed_at_the_next_start() -> None:
    bed = Bed()
    bed.append(BULKY, 30)
    bed.release()
    bed.append(b"x")
    bed.helper.run()
    assert bed.names("spare")
    bed.wal.close()
    bed.log_thread.run()
    assert not bed.disk._open
    bed.start()
    assert bed.names("spare") == []


def test_a_segment_longer_than_usual_is_not_kept() -> None:
    """A file made for one large batch would take its room for good if it were kept."""
    bed = Bed()
    bed.append(bytes(3 * SEGMENT_BYTES))
    bed.append(BULKY, 2 * SEGMENT_BYTES // len(BULKY))
    bed.release()
    bed.append(b"x")
    bed.helper.run()
    sizes = [len(bed.disk.contents(f"/wal/{name}")) for name in bed.names("spare")]
    assert sizes and max(sizes) <= SEGMENT_BYTES


def test_a_segment_that_was_not_removed_yet_is_removed_at_the_next_start() -> None:
    bed = Bed()
    bed.append(BULKY, 60)
    bed.release()
    bed.append(b"x")
    left = bed.names("spare")
    assert left
    bed.helper.step()  # of one of them only a part is left
    bed.start()
    assert bed.names("spare") == []
    bed.append(BULKY, 60)
    bed.release()
    bed.append(b"x")
    assert bed.names("spare") and not set(left) & set(bed.names("spare"))


def test_files_that_an_earlier_build_kept_for_reuse_are_removed_at_a_start() -> None:
    bed = Bed()
    for number in (1, 7):
        fd = bed.disk.open(f"/wal/spare-{number}", create=True)
        bed.disk.preallocate(fd, offset=0, size=SEGMENT_BYTES)
        bed.disk.close(fd)
    bed.append(b"x")
    bed.start()
    assert bed.names("spare") == []
    assert [entry.index for entry in bed.wal.read(GROUP, 1, 2, 1)] == [1]


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


def test_a_file_that_can_not_be_removed_waits_for_the_next_start() -> None:
    """Some file systems need room to remove a file. The log needs it no more, and goes on."""
    bed = Bed()
    bed.append(BULKY, 60)
    bed.disk.fail("unlink", errno.ENOSPC, under="/wal/spare-")
    bed.release()
    bed.append(b"x")
    bed.helper.run()
    assert not bed.disk.will_fail("unlink")
    assert len(bed.names("spare")) == KEPT_MAX + 1
    bed.append(b"x")
    assert bed.errors == []
    bed.start()
    assert bed.names("spare") == []
