"""What the log promises without a crash: group commit, order, errors, segments, reads."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from streamd.errors import DiskError
from streamd.store.disk import DiskThread, OsDisk
from streamd.store.wal.entry_index import SEGMENTS_MAX
from streamd.store.wal.wal_writer import BATCH_BYTES_MIN
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry, HardState, LogState
from tests.sim.disk import SimDisk, SimThread


class Bed:
    """A log on a simulated disk."""

    def __init__(self, *, sync: float = 0.0, segment_bytes: int = 64 * 1024) -> None:
        self.disk = SimDisk()
        self.segment_bytes = segment_bytes
        self.sync = sync
        self.errors: list[Exception] = []
        self.done: list[int] = []
        self.start()

    def start(self) -> None:
        self.thread = SimThread()
        self.wal = Wal.open(
            self.disk,
            "/wal",
            self.thread,
            segment_bytes=self.segment_bytes,
            sync=self.sync or "always",
            on_error=self.errors.append,
        )

    def append(self, index: int, data: bytes = b"x", *, group: int = 5) -> None:
        self.wal.append(
            [(group, [Entry(1, index, data, chain=index)], None, 0)],
            lambda: self.done.append(index),
        )

    def segments(self) -> list[str]:
        return [name for name in self.disk.listdir("/wal") if name.endswith(".wal")]


def test_all_that_waits_shares_one_sync_and_is_done_in_order() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    syncs = bed.wal.sync_count
    for index in range(2, 50):
        bed.append(index)
    bed.thread.run()
    assert bed.wal.sync_count == syncs + 1
    assert bed.done == list(range(1, 50))


def test_appends_held_back_are_written_later_in_order() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    bed.wal.hold()
    bed.append(2)
    bed.wal.hold()  # once more changes nothing
    bed.append(3)
    bed.thread.run()
    assert bed.done == [1]
    bed.wal.resume()
    bed.append(4)
    bed.wal.resume()
    bed.thread.run()
    assert bed.done == [1, 2, 3, 4]


def test_waiting_appends_are_held_back_too() -> None:
    """All that a backlog had in front of the log was written on: hundreds of MiB more for blocks
    that were behind as it was."""
    bed = Bed(segment_bytes=16 << 20)
    for index in range(1, 9):
        bed.append(index, bytes(BATCH_BYTES_MIN))
    assert bed.thread.step()
    bed.wal.hold()
    bed.thread.run()
    assert bed.done == [1]
    bed.wal.resume()
    bed.append(9)
    bed.thread.run()
    assert bed.done == list(range(1, 10))


def test_a_closing_log_writes_held_batches() -> None:
    bed = Bed()
    bed.wal.hold()
    bed.append(1)
    bed.wal.close()
    bed.thread.run()
    bed.start()
    assert [entry.index for entry in bed.wal.read(5, 1, 2, 1 << 20)] == [1]


def test_entries_are_read_back_within_a_byte_limit_but_at_least_one() -> None:
    bed = Bed()
    for index in range(1, 11):
        bed.append(index, b"%d" % index * 100)
        bed.append(index, b"other", group=6)
    bed.thread.run()
    assert [e.index for e in bed.wal.read(5, 1, 11, 1 << 20)] == list(range(1, 11))
    assert [e.data for e in bed.wal.read(5, 3, 5, 1 << 20)] == [b"3" * 100, b"4" * 100]
    assert [e.index for e in bed.wal.read(5, 3, 11, 300)] == [3, 4]
    assert [e.index for e in bed.wal.read(5, 3, 11, 1)] == [3]
    assert [e.chain for e in bed.wal.read(5, 9, 99, 1 << 20)] == [9, 10]
    assert bed.wal.read(5, 11, 12, 1 << 20) == []


def test_a_conflict_replaces_entries_also_after_a_restart() -> None:
    bed = Bed()
    for index in range(1, 6):
        bed.append(index)
    bed.wal.append([(5, [Entry(2, 3, b"new")], HardState(2, "b", 2), 3)], lambda: None)
    bed.thread.run()
    for _ in range(2):
        assert [(e.term, e.index) for e in bed.wal.read(5, 1, 9, 1 << 20)] == [
            (1, 1),
            (1, 2),
            (2, 3),
        ]
        assert bed.wal.groups[5] == LogState(HardState(2, "b", 2), 1, 3, 0, 0)
        bed.start()


def test_released_segments_are_reused_after_their_live_records_are_repeated() -> None:
    bed = Bed()
    bed.wal.append([(9, [], HardState(4, "c", 0), 0)], lambda: None)
    for index in range(1, 400):
        bed.append(index, bytes(1000))
        bed.thread.run()
        if index > 20:
            bed.wal.release(5, index - 20, 1, index - 20)
    assert bed.done == list(range(1, 400))
    assert len(bed.segments()) <= 3
    assert sum(name.startswith("spare") for name in bed.disk.listdir("/wal")) <= 3
    bed.start()
    assert bed.wal.groups[9].hard_state == HardState(4, "c", 0)
    found = bed.wal.groups[5]
    assert (found.first_index, found.last_index) == (379, 399)
    assert (found.prev_term, found.prev_chain) == (1, 378)


def test_a_group_that_pins_old_segments_is_a_straggler_until_it_is_released() -> None:
    bed = Bed()
    bed.append(1, group=6)
    for index in range(1, 400):
        bed.append(index, bytes(1000))
        bed.thread.run()
    bed.wal.release(5, 399, 1, 0)
    bed.append(400)
    bed.thread.run()
    assert bed.wal.pinning_groups() == [6]
    bed.wal.release(6, 1, 1, 0)
    bed.thread.run()
    assert bed.wal.pinning_groups() == []
    assert len(bed.segments()) == 1


def test_pinned_entries_of_a_stopped_group_are_rewritten() -> None:
    """Or their group would keep all that others log from then on. At no moment are they missing."""
    bed = Bed()
    for index in range(1, 41):
        bed.append(index, bytes([index]) * 1000, group=6)
    bed.thread.run()
    for index in range(1, 2000):
        bed.append(index, bytes(1000))
        bed.thread.run()
        bed.wal.release(5, index, 1, index)
        if index % 100 == 0:
            assert bed.wal.pinning_groups() in ([], [6])
            bed.wal.rewrite_entries(6)
            if index % 300 == 0:  # before it is written, or after
                bed.thread.run()
            bed.disk.crash(keep=0.0)
            bed.start()
            found = bed.wal.read(6, 1, 41, 1 << 20)
            assert [each.data for each in found] == [bytes([at]) * 1000 for at in range(1, 41)]
            assert bed.wal.groups[6].last_index == 40
        assert len(bed.segments()) <= SEGMENTS_MAX + 4
    assert bed.wal.oldest > 10
    assert not bed.errors


def test_an_entry_larger_than_a_segment_gets_one_of_its_own() -> None:
    bed = Bed()
    bed.append(1, bytes(300_000))
    bed.append(2)
    bed.thread.run()
    bed.start()
    assert [len(e.data) for e in bed.wal.read(5, 1, 3, 1 << 20)] == [300_000, 1]


def test_a_snapshot_beyond_the_log_leaves_an_empty_log_that_goes_on_after_it() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    bed.wal.release(5, 100, 3, 77)
    bed.append(101)
    bed.thread.run()
    bed.start()
    assert bed.wal.groups[5] == LogState(HardState(), 101, 101, 3, 77)
    assert bed.wal.read(5, 101, 102, 1 << 20)[0].index == 101


def test_a_destroyed_group_is_gone_and_pins_nothing() -> None:
    bed = Bed()
    bed.append(1, group=6)
    bed.thread.step()
    bed.wal.destroy(6)  # while its entry is in flight
    bed.thread.run()
    bed.append(1)
    bed.thread.run()
    assert 6 not in bed.wal.groups
    bed.start()
    assert list(bed.wal.groups) == [5]


def test_a_full_disk_is_a_clean_error_and_acked_entries_stay() -> None:
    bed = Bed(segment_bytes=64 * 1024)
    bed.disk.capacity = 200 * 1024
    index = 0
    while not bed.errors:
        index += 1
        bed.append(index, bytes(1000))
        bed.thread.run()
    assert isinstance(bed.errors[0], DiskError)
    assert "No space left on device" in str(bed.errors[0])
    assert bed.done == list(range(1, index))
    bed.append(index + 1)  # final
    bed.thread.run()
    assert bed.done == list(range(1, index))
    bed.disk.capacity = 1 << 30
    bed.disk.crash(keep=0.0)
    bed.start()
    assert bed.wal.groups[5].last_index >= index - 1


def test_the_first_failed_sync_is_final() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    bed.disk.fail_next["fdatasync"] = errno.EIO
    bed.append(2)
    bed.append(3)
    bed.thread.run()
    bed.append(4)
    bed.thread.run()
    assert bed.done == [1]
    assert isinstance(bed.errors[0], DiskError)
    assert "Input/output error" in str(bed.errors[0])


def test_lazy_sync_reports_done_before_the_sync_and_syncs_when_it_is_due() -> None:
    bed = Bed(sync=120.0)
    syncs = bed.wal.sync_count
    for index in range(1, 10):
        bed.append(index)
        bed.thread.run()
    assert bed.done == list(range(1, 10))
    assert bed.wal.sync_count == syncs
    bed.thread.run_later()
    assert bed.wal.sync_count == syncs + 1
    bed.disk.crash(keep=0.0)
    bed.start()
    assert bed.wal.groups[5].last_index == 9


def test_with_lazy_sync_a_segment_goes_once_its_release_is_durable() -> None:
    """I11: the record that releases its entries is synced first, however long that could wait."""
    bed = Bed(sync=120.0)
    for index in range(1, 150):
        bed.append(index, bytes(1000))
        bed.thread.run()
    first = bed.segments()[0]
    assert len(bed.segments()) > 2
    bed.wal.release(5, 140, 1, 140)
    syncs = bed.wal.sync_count
    bed.append(150)
    bed.thread.run()
    assert first not in bed.segments()
    assert bed.wal.sync_count > syncs
    bed.disk.crash(keep=0.0)
    bed.start()
    found = bed.wal.groups[5]
    assert (found.first_index, found.last_index) == (141, 150)


@asynccontextmanager
async def with_real_threads(path: Path, *, is_loop_writing: bool = False) -> AsyncIterator[Wal]:
    """A log on the operating system's disk; its threads and files are closed after it."""
    loop = asyncio.get_running_loop()
    soon = loop.call_soon if is_loop_writing else None
    log = DiskThread("log", loop.call_soon_threadsafe, soon)
    block = DiskThread("block", loop.call_soon_threadsafe)
    errors: list[Exception] = []
    wal = Wal.open(
        OsDisk(),
        str(path / "wal"),
        log,
        segment_bytes=256 * 1024,
        sync="always",
        on_error=errors.append,
        helper=block,
    )
    yield wal
    finished = asyncio.Event()
    wal.append([], finished.set)
    await asyncio.wait_for(finished.wait(), 30)
    assert errors == []
    wal.close()
    log.close()
    block.close()


async def test_on_a_real_disk_with_real_threads(tmp_path: Path) -> None:
    for start in (0, 200):
        async with with_real_threads(tmp_path) as wal:
            if start:
                assert wal.groups[5].last_index == start
                found = wal.read(5, 1, 999, 1 << 30)
                assert [e.index for e in found] == list(range(1, start + 1))
            for index in range(start + 1, start + 201):
                wal.append([(5, [Entry(1, index, bytes(3000))], None, 0)], lambda: None)


async def test_the_loop_and_the_thread_take_turns_at_writing(tmp_path: Path) -> None:
    """Real threads, and a disk that is quick and slow as the dice say: all is told in order, and
    is where the log says."""
    rng = random.Random(1)
    work = bytes(1_000_000)
    done: list[int] = []
    finished = asyncio.Event()
    async with with_real_threads(tmp_path, is_loop_writing=True) as wal:
        wal._writer._pace.is_quick = lambda now: rng.random() < 0.5  # type: ignore[method-assign]
        for index in range(1, 3001):
            entry = Entry(1, index, bytes(rng.choice((10, 1000, 20_000))), chain=index)
            wal.append([(5, [entry], None, 0)], lambda index=index: done.append(index))
            if rng.random() < 0.5:
                wal.flush()
            if rng.random() < 0.3:
                await asyncio.sleep(0)  # one round of the loop, in which it may write
            if rng.random() < 0.1:
                hashlib.sha256(work)  # the loop is busy, the thread may run
            if index % 500 == 0 and done:
                wal.release(5, done[-1] // 2, 1, done[-1] // 2)
        wal.append([], finished.set)
        await asyncio.wait_for(finished.wait(), 30)
        assert done == list(range(1, 3001))
        first = wal.groups[5].first_index
        found = wal.read(5, first, 3001, 1 << 30)
        assert [e.index for e in found] == list(range(first, 3001))


def test_writes_are_not_reported_once_the_log_refuses() -> None:
    """The store directory is known to be gone: the file that took the write has no name."""
    bed = Bed()
    bed.append(1)
    assert bed.thread.step()  # written and synced, and the loop has not heard of it
    bed.wal.refuse(DiskError("gone"))
    bed.thread.complete()
    bed.append(2)
    bed.thread.run()
    assert bed.done == []
    assert [str(err) for err in bed.errors] == ["gone"]


def test_the_newest_segment_without_a_name_is_known() -> None:
    bed = Bed()
    bed.append(1)
    bed.thread.run()
    assert bed.wal.has_file
    bed.disk.wipe(f"/wal/{bed.segments()[-1]}")
    assert not bed.wal.has_file
