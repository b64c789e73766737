"""What the write-ahead log holds after a start: scan every segment, tell torn from rotten.

Torn (dropped): bytes after the last batch that nothing proves to have been durable. Rotten
(CorruptionError, nothing is changed on disk): a damaged batch that a later batch, or the next
segment's header, says was durable.
"""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple

from streamd.errors import CorruptionError
from streamd.store import wal_format as wf
from streamd.store.disk import Disk
from streamd.types import HardState, Index, LogState, Term, Uid

SUFFIX = ".wal"
SPARE_PREFIX = "spare-"
_WINDOW_BYTES = 4 * 1024 * 1024  # read at once; a longer batch is read whole


class GroupLog:
    """Where the entries of one group are. Entries run from `base + 1`; `base` is released."""

    __slots__ = (
        "base",
        "base_chain",
        "base_term",
        "first",
        "hard_state",
        "lengths",
        "places",
    )

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.base: Index = 0
        self.base_term: Term = 0
        self.base_chain = 0
        self.first: Index = 1  # index of places[0]
        self.places = array("Q")  # segment_no << 32 | offset of the record
        self.lengths = array("I")  # of the data

    @property
    def last(self) -> Index:
        return self.first + len(self.places) - 1

    def add(self, index: Index, place: int, length: int) -> None:
        """An entry was written; it replaces what was at `index` and all after it."""
        if index <= self.last:
            self.truncate(index)
        if index != self.last + 1:
            # Earlier entries were released, and their segment freed, before this was scanned.
            self.first = index
            del self.places[:]
            del self.lengths[:]
        self.places.append(place)
        self.lengths.append(length)

    def truncate(self, index: Index) -> None:
        """Entries from `index` on are void."""
        keep = max(0, index - self.first)
        del self.places[keep:]
        del self.lengths[keep:]

    def release(self, index: Index, term: Term, chain: int) -> None:
        """A snapshot covers all up to `index`."""
        if index < self.base:
            return
        self.base, self.base_term, self.base_chain = index, term, chain
        passed = index + 1 - self.first
        if passed >= len(self.places):
            del self.places[:]
            del self.lengths[:]
            self.first = index + 1
        elif passed > 0:
            del self.places[:passed]
            del self.lengths[:passed]
            self.first = index + 1

    def state(self) -> LogState:
        return LogState(self.hard_state, self.base + 1, self.last, self.base_term, self.base_chain)


class Segment(NamedTuple):
    """A segment in use."""

    no: int
    fd: int
    capacity: int
    end: int  # where its batches end


class Recovered(NamedTuple):
    """All a `Wal` needs to go on."""

    wal_id: int  # 0: there was no log
    segments: list[Segment]
    spares: list[str]  # names of prepared files nobody uses
    next_batch: int
    groups: dict[Uid, GroupLog]
    dropped_bytes: int  # what was torn off the end; for the log line
    dropped_at: str


def segment_name(no: int) -> str:
    """`0000000000000007.wal`"""
    return f"{no:016x}{SUFFIX}"


def recover(disk: Disk, directory: str) -> Recovered:
    """Read the whole log. Writes nothing."""
    names = disk.listdir(directory)
    numbers = sorted(int(name[: -len(SUFFIX)], 16) for name in names if name.endswith(SUFFIX))
    spares = [name for name in names if name.startswith(SPARE_PREFIX)]
    headers: list[tuple[int, int, wf.SegmentHeader]] = []
    segments: list[Segment] = []
    wal_id = 0
    for no in numbers:
        path = os.path.join(directory, segment_name(no))
        fd = disk.open(path)
        header = wf.decode_segment_header(disk.pread(fd, wf.SEGMENT_HEADER_BYTES, 0))
        if header is not None and header.segment_no == no:
            if headers and no != headers[-1][0] + 1:
                raise CorruptionError(
                    f"{directory}: log segment {segment_name(headers[-1][0] + 1)} is missing"
                )
            if wal_id and header.wal_id != wal_id:
                raise CorruptionError(f"{path}: belongs to another log")
            wal_id = header.wal_id
            headers.append((no, fd, header))
            continue
        # A segment gets its name only after its header is durable, so this one had one.
        raise CorruptionError(f"{path}: offset 0: the segment's header is damaged")
    groups: dict[Uid, GroupLog] = {}
    next_batch = 1
    dropped_bytes, dropped_at = 0, ""
    for position, (no, fd, header) in enumerate(headers):
        following = headers[position + 1][2] if position + 1 < len(headers) else None
        if position and header.first_batch != next_batch:
            raise CorruptionError(
                f"{segment_name(no)}: begins with batch {header.first_batch}, expected {next_batch}"
            )
        scan = _SegmentScan(disk, directory, fd, header)
        next_batch = scan.read(groups, header.first_batch, following)
        segments.append(Segment(no, fd, disk.size(fd), scan.end))
        if following is None:
            dropped_bytes = scan.dropped_bytes
            dropped_at = f"{segment_name(no)}: offset {scan.end}"
    for uid, group in groups.items():
        if group.places and group.first > group.base + 1:
            raise CorruptionError(
                f"{directory}: group {uid}: entries {group.base + 1}..{group.first - 1} are "
                f"missing; the log goes on with {group.first}"
            )
    return Recovered(wal_id, segments, spares, next_batch, groups, dropped_bytes, dropped_at)


class _SegmentScan:
    """Reads one segment, batch by batch."""

    def __init__(self, disk: Disk, directory: str, fd: int, header: wf.SegmentHeader) -> None:
        self._disk = disk
        self._fd = fd
        self._header = header
        self._path = os.path.join(directory, segment_name(header.segment_no))
        self._window = b""
        self._window_at = 0
        self.end = wf.SEGMENT_HEADER_BYTES
        self.dropped_bytes = 0

    def read(
        self, groups: dict[Uid, GroupLog], first_batch: int, following: wf.SegmentHeader | None
    ) -> int:
        """Apply all batches to `groups`; return the number of the batch after the last."""
        expected = first_batch
        offset = wf.SEGMENT_HEADER_BYTES
        stop = following.prev_end if following is not None else 0
        is_closed = False
        while not stop or offset < stop:
            found = self._batch(offset)
            if found is None or found[0].batch_no != expected:
                break
            header, records = found
            place = self._header.segment_no << 32
            for record in records:
                _apply(groups, record, place)
            is_closed = not records and expected > first_batch
            expected += 1
            offset += wf.padded(wf.BATCH_HEADER_BYTES + header.length)
        self.end = offset
        if following is not None:
            if offset != stop or expected != following.first_batch:
                raise CorruptionError(
                    f"{self._path}: offset {offset}: batch {expected} is damaged, and the next "
                    f"segment says it was durable"
                )
        elif not is_closed:  # an empty batch is the last thing a clean close wrote
            self._check_tail(offset, expected)
        return expected

    def _bytes(self, offset: int, size: int) -> memoryview:
        start = offset - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window = self._disk.pread(self._fd, max(size, _WINDOW_BYTES), offset)
            self._window_at = offset
            start = 0
        return memoryview(self._window)[start : start + size]

    def _batch(self, offset: int) -> tuple[wf.BatchHeader, list[wf.WalRecord]] | None:
        header = wf.decode_batch_header(
            self._bytes(offset, wf.BATCH_HEADER_BYTES),
            0,
            wal_id=self._header.wal_id,
            segment_no=self._header.segment_no,
            offset=offset,
        )
        if header is None:
            return None
        at = offset + wf.BATCH_HEADER_BYTES
        records = wf.decode_batch(self._bytes(at, header.length), offset=at, count=header.count)
        return None if records is None else (header, records)

    def _check_tail(self, offset: int, expected: int) -> None:
        """Raise if anything after `offset` witnesses that batch `expected` had been durable."""
        needle = wf.batch_needle(self._header.wal_id, self._header.segment_no)
        size = self._disk.size(self._fd)
        at = offset
        last_byte = 0
        while at < size:
            blob = self._disk.pread(self._fd, _WINDOW_BYTES + len(needle), at)
            pos = blob.find(needle)
            while pos >= 0:
                header = wf.decode_batch_header(
                    self._disk.pread(self._fd, wf.BATCH_HEADER_BYTES, at + pos),
                    0,
                    wal_id=self._header.wal_id,
                    segment_no=self._header.segment_no,
                    offset=at + pos,
                )
                if header is not None:
                    last_byte = at + pos + wf.BATCH_HEADER_BYTES + header.length
                    if header.durable_batch >= expected:
                        raise CorruptionError(
                            f"{self._path}: offset {offset}: batch {expected} is damaged, and "
                            f"batch {header.batch_no} at offset {at + pos} says it was durable"
                        )
                pos = blob.find(needle, pos + 1)
            at += _WINDOW_BYTES
        self.dropped_bytes = max(0, last_byte - offset)


def _apply(groups: dict[Uid, GroupLog], record: wf.WalRecord, place: int) -> None:
    kind, uid, term, index, chain, offset, length, data = record
    if kind == wf.DESTROY:
        groups.pop(uid, None)
        return
    group = groups.get(uid)
    if group is None:
        group = groups[uid] = GroupLog()
    if kind == wf.ENTRY:
        if index > group.base:
            group.add(index, place | offset, length)
    elif kind == wf.HARD_STATE:
        group.hard_state = HardState(term, data.decode(), index)
    elif kind == wf.TRUNCATE:
        group.truncate(index)
    elif kind == wf.RELEASE:
        group.release(index, term, chain)
    else:
        raise CorruptionError(f"log record of unknown type {kind} for group {uid}")
