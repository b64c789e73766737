"""The log of one group by the starts of segments: as a scan of all finds it, beside a writer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from streamd.errors import CorruptionError
from streamd.offline.log_index import LogIndex
from streamd.store.wal import wal_format as wf
from streamd.store.wal.entry_index import GroupLog
from streamd.store.wal.wal_format import segment_name
from streamd.store.wal.wal_recovery import recover
from streamd.types import Entry
from tests.props.test_wal_crash import Run, open_wal
from tests.sim.disk import SimDisk, SimThread


class HalfWritten:
    """A disk that gives `hidden` bytes from an offset of one file on as zeros, until somebody has
    read what comes after them: a batch that is being written, and then is."""

    def __init__(self, disk: SimDisk, hidden: range) -> None:
        self._disk = disk
        self._hidden = hidden
        self.reads_hidden = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        blob = bytearray(self._disk.pread(fd, size, offset))
        low, high = max(self._hidden.start, offset), min(self._hidden.stop, offset + len(blob))
        if low < high and not self.reads_hidden:
            self.reads_hidden += 1
            blob[low - offset : high - offset] = bytes(high - low)
        return bytes(blob)


def facts(log: GroupLog | None) -> Any:
    """Hard state, base, and the places of the entries behind it."""
    if log is None:
        return None
    passed = max(0, log.base + 1 - log.first)
    return (
        log.hard_state,
        (log.base, log.base_term, log.base_chain),
        list(zip(log.places, log.lengths, strict=True))[passed:],
        log.last if len(log.places) > passed else log.base,
    )


class Life(Run):
    """A log whose entries have chains, as a group's have: no two of them are alike."""

    def start(self) -> None:
        super().start()
        append, count = self.wal.append, itertools.count(self.disk.operation_count << 20)

        def chained(writes: list[Any], done: Any) -> None:
            for _, entries, _, _ in writes:
                for entry in entries:
                    entry.chain = next(count) & 0xFFFFFFFF
            append(writes, done)

        self.wal.append = chained  # type: ignore[method-assign]


def compare(disk: Any) -> int:
    """Check each group of /wal; return how many there are."""
    whole = recover(disk, "/wal")
    index = LogIndex(disk, Path("/wal"))
    for uid, log in whole.groups.items():
        assert facts(index.group(uid)) == facts(log), uid
    assert index.group(1 << 40) is None
    for fd in [*(each.fd for each in whole.segments), *index.fds.values()]:
        disk.close(fd)
    return len(whole.groups)


@pytest.mark.parametrize("block", range(4))
def test_each_group_is_as_a_scan_of_the_whole_log_finds_it(block: int) -> None:
    """Random lives of a log with small segments, crashes among them."""
    groups = 0
    for seed in range(block * 10, block * 10 + 10):
        run = Life(seed)
        run.start()
        for _ in range(4):
            for _ in range(60):
                run.act()
            groups += compare(run.disk)
            run.disk.crash(keep=0.5)
            run.start()
            groups += compare(run.disk)
    assert groups > 200


def written(batch_count: int) -> tuple[SimDisk, SimThread, Any]:
    """A log of one segment: that many batches, each an entry of group 1 or 2."""
    disk, thread = SimDisk(1), SimThread()
    wal = open_wal(disk, thread)
    for at in range(batch_count):
        uid, index = 1 + at % 2, 1 + at // 2
        wal.append([(uid, [Entry(1, index, b"x" * 300)], None, 0)], lambda: None)
        thread.step()
        thread.complete()
    return disk, thread, wal


def offset_of_batch(disk: SimDisk, wanted: int) -> int:
    """Where batch `wanted` begins in the newest segment."""
    index = LogIndex(disk, Path("/wal"))
    fd = index.fds[max(index.fds)]
    blob = disk.pread(fd, disk.size(fd), 0)
    header = wf.decode_segment_header(blob)
    assert header is not None
    at = wf.SEGMENT_HEADER_BYTES
    while True:
        batch = wf.decode_batch_header(
            blob, at, wal_id=header.wal_id, segment_no=header.segment_no, offset=at
        )
        assert batch is not None
        if batch.batch_no == wanted:
            return at
        at += wf.padded(wf.BATCH_HEADER_BYTES + batch.length)


def test_a_batch_that_is_being_written_is_no_damage() -> None:
    """It is read half written, and the batch behind it, which says that it was durable, whole."""
    disk, _, _ = written(12)
    at = offset_of_batch(disk, 8)
    for hidden in (range(at + 64, at + 200), range(at, at + 512)):
        beside = HalfWritten(disk, hidden)
        assert recover(beside, "/wal").groups[1].last == 6  # type: ignore[arg-type]
        assert beside.reads_hidden == 1
        beside = HalfWritten(disk, hidden)
        found = LogIndex(beside, Path("/wal")).group(1)  # type: ignore[arg-type]
        assert found is not None
        assert found.last == 6


def test_a_durable_batch_that_stays_damaged_is_damage() -> None:
    disk, _, _ = written(12)
    at = offset_of_batch(disk, 8)
    index = LogIndex(disk, Path("/wal"))
    path = f"/wal/{segment_name(max(index.fds))}"
    fd = disk.open(path)
    disk.pwrite(fd, b"\0" * 16, at + 80)
    with pytest.raises(CorruptionError, match=f"offset {at}: batch 8 is damaged, and batch 9"):
        LogIndex(disk, Path("/wal")).group(1)


def test_segments_in_which_a_group_got_no_further_are_not_read() -> None:
    """Group 1 wrote long ago; many segments of group 2 follow, each damaged but for its start."""
    disk, thread = SimDisk(2), SimThread()
    wal = open_wal(disk, thread)
    wal.append([(1, [Entry(1, index, b"old") for index in (1, 2, 3)], None, 0)], lambda: None)
    for index in range(1, 80):
        wal.append([(2, [Entry(1, index, b"y" * 3000)], None, 0)], lambda: None)
        thread.step()
        thread.complete()
    index = LogIndex(disk, Path("/wal"))
    numbers = sorted(index.fds)
    assert len(numbers) > 4
    for no in numbers[1:-1]:
        fd = disk.open(f"/wal/{segment_name(no)}")
        disk.pwrite(fd, b"\0" * 512, disk.size(fd) // 2 // 512 * 512)
    found = LogIndex(disk, Path("/wal")).group(1)
    assert found is not None
    assert (found.first, found.last) == (1, 3)
    with pytest.raises(CorruptionError, match="the next segment says"):
        LogIndex(disk, Path("/wal")).group(2)


def test_a_missing_segment_or_manifest_is_named() -> None:
    disk, thread = SimDisk(3), SimThread()
    wal = open_wal(disk, thread)
    for index in range(1, 60):
        wal.append([(2, [Entry(1, index, b"y" * 3000)], None, 0)], lambda: None)
        thread.step()
        thread.complete()
    names = sorted(name for name in disk.listdir("/wal") if name.endswith(".wal"))
    disk.replace(f"/wal/{names[-1]}", "/elsewhere")
    with pytest.raises(CorruptionError, match=f"{names[-1]} is missing"):
        LogIndex(disk, Path("/wal"))
    disk.replace("/elsewhere", f"/wal/{names[-1]}")
    disk.unlink("/wal/manifest")
    with pytest.raises(CorruptionError, match="the segment manifest is missing"):
        LogIndex(disk, Path("/wal"))
