"""Positions of one group's records in a shared log: `LogIndex`.

Every segment begins with a batch that says how far each group was released and where its log ended.
So of the log of one group only those segments are read in which it got further, from the one that
its newest release lies in; the newest one always. Of those every batch is verified.

The log may be written to meanwhile. What is taken is what is whole: the first batch that is not
ends the newest segment, unless a later one says that it had been durable and it still is not whole
when it is read after that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from streamd.errors import CorruptionError
from streamd.offline.engine import (
    BatchReader,
    Disk,
    GroupLog,
    apply_batch_groups,
    read_current,
    segment_name,
    segment_number,
)
from streamd.offline.engine import wal_format as wf
from streamd.types import Index, Term, Uid

_WINDOW_BYTES: Final = 4 * 1024 * 1024


class _Start(NamedTuple):
    """Facts of a group in the first batch of a segment."""

    released: Index
    tip: tuple[Index, Term, int] | None  # None: where its log ends is not said


class LogIndex:
    """The log in one directory, as it was when it was opened and when each segment was read."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Open all segments and read their headers. Raises CorruptionError if one is damaged or
        missing."""
        self._disk = disk
        self._directory = directory
        self.fds: dict[int, int] = {}  # by number of the segment
        self._headers: dict[int, wf.SegmentHeader] = {}
        self._starts: dict[int, dict[Uid, list[int]]] = {}  # records of first batches
        self._records: dict[int, dict[Uid, list[int]]] = {}  # records of whole segments
        names = sorted(
            name for name in disk.listdir(str(directory)) if segment_number(name) is not None
        )
        # After the names: a segment that comes later is not wanted, nor named in here then.
        has_manifest, manifest = read_current(disk, str(directory))
        for name in names:
            self._open(name)
        alone = [no for no, header in self._headers.items() if not header.prev_end]
        for no in [no for no in self.fds if no < max(alone, default=0)]:
            disk.close(self.fds.pop(no))  # of a log that was damaged, and written anew
        self._numbers = sorted(self.fds)
        newest = self._numbers[-1] if self._numbers else 0
        for no, following in zip(self._numbers, self._numbers[1:], strict=False):
            if following != no + 1:
                raise self._missing(no + 1)
        if has_manifest and manifest is None:
            raise CorruptionError(f"{directory}: the segment manifest is damaged")
        if manifest is None:
            if self._numbers and self._has_tips(newest):
                raise CorruptionError(f"{directory}: the segment manifest is missing")
            return
        if self._numbers and manifest.wal_id != self._headers[newest].wal_id:
            raise CorruptionError(f"{directory}: the segment manifest belongs to another log")
        if manifest.newest > newest:
            raise self._missing(newest + 1)

    def _open(self, name: str) -> None:
        path = self._directory / name
        try:
            fd = self._disk.open(str(path))
        except FileNotFoundError:
            return  # freed meanwhile; a gap is noticed
        header = wf.decode_segment_header(self._disk.pread(fd, wf.SEGMENT_HEADER_BYTES, 0))
        if header is None or segment_name(header.segment_no) != name:
            raise CorruptionError(f"{path}: offset 0: the segment's header is damaged")
        self.fds[header.segment_no] = fd
        self._headers[header.segment_no] = header

    def _missing(self, no: int) -> CorruptionError:
        return CorruptionError(f"{self._directory}: log segment {segment_name(no)} is missing")

    def _has_tips(self, no: int) -> bool:
        """Whether this segment was begun after there was a manifest."""
        places = sorted(place for each in self._start_records(no).values() for place in each)
        return any(record.type == wf.TIP for record in self._read(no, places))

    def group(self, uid: Uid) -> GroupLog | None:
        """Return the positions of the entries of `uid`; None if the log knows no such group.

        Raises CorruptionError naming segment and offset.
        """
        if not self._numbers:
            return None
        found = self._applied(uid, self._chosen(uid))
        if found is not None and found.first > found.base + 1:
            # Entries of a group that stopped may have been written again in any segment.
            found = self._applied(uid, self._numbers)
        if found is not None and found.first > found.base + 1:
            raise CorruptionError(
                f"{self._directory}: group {uid}: entries {found.base + 1}..{found.first - 1} are "
                f"missing; the log goes on with {found.first}"
            )
        return found

    def _applied(self, uid: Uid, numbers: list[int]) -> GroupLog | None:
        groups: dict[Uid, GroupLog] = {}
        for no in numbers:
            for record in self._read(no, self._records_of(no).get(uid, ())):
                apply_batch_groups(groups, record, no << 32)
        return groups.get(uid)

    def _chosen(self, uid: Uid) -> list[int]:
        """The segments that have something of `uid` behind its newest release."""
        newest = self._numbers[-1]
        end = self._start(newest, uid)
        chosen = [newest]
        if end is None:
            return chosen
        released = end.released
        if end.tip is not None and end.tip[0] <= released:
            return chosen
        following = end
        for no in reversed(self._numbers[:-1]):
            start = self._start(no, uid)
            if start is None or start.tip is None or start.tip != following.tip:
                chosen.append(no)
            if start is None or (start.tip is not None and start.tip[0] <= released):
                break
            following = start
        return chosen[::-1]

    def _start(self, no: int, uid: Uid) -> _Start | None:
        """None: the segment's first batch does not name `uid`."""
        offsets = self._start_records(no).get(uid)
        if offsets is None:
            return None
        released, tip = 0, None
        for record in self._read(no, offsets):
            if record.type == wf.RELEASE:
                released = record.index
            elif record.type == wf.TIP:
                tip = (record.index, record.term, record.chain)
        return _Start(released, tip)

    def _read(self, no: int, offsets: Iterable[int]) -> Iterator[wf.WalRecord]:
        """The records at ascending `offsets` of segment `no`."""
        window, window_at = b"", 0
        for offset in offsets:
            record = wf.decode_record(window, offset - window_at, offset=offset) if window else None
            if record is None:  # it goes on behind the window, or its length does
                window, window_at = self._disk.pread(self.fds[no], _WINDOW_BYTES, offset), offset
                size = wf.RECORD_HEADER_BYTES + int.from_bytes(window[:4], "little")
                if size > len(window):
                    window = self._disk.pread(self.fds[no], size, offset)
                record = wf.decode_record(window, 0, offset=offset)
            if record is None:
                path = self._directory / segment_name(no)
                raise CorruptionError(f"{path}: offset {offset}: a record is damaged")
            yield record

    def _start_records(self, no: int) -> dict[Uid, list[int]]:
        found = self._starts.get(no)
        if found is None:
            found = self._starts[no] = self._reader(no).start()
        return found

    def _records_of(self, no: int) -> dict[Uid, list[int]]:
        found = self._records.get(no)
        if found is None:
            following = self._headers.get(no + 1)
            found = self._records[no] = self._reader(no).all(following)
        return found

    def _reader(self, no: int) -> _SegmentReader:
        path = str(self._directory / segment_name(no))
        return _SegmentReader(self._disk, self.fds[no], self._headers[no], path)


class _SegmentReader:
    """A pass over one segment."""

    def __init__(self, disk: Disk, fd: int, header: wf.SegmentHeader, path: str) -> None:
        self._header = header
        self._path = path
        self._pread = partial(disk.pread, fd)
        self._size = disk.size(fd)
        self._reader = BatchReader(self._pread, header, window_bytes=_WINDOW_BYTES)

    def start(self) -> dict[Uid, list[int]]:
        """The records of the first batch, by group."""
        found = self._batch(wf.SEGMENT_HEADER_BYTES, self._header.first_batch)
        if found is None:
            raise self._first_is_damaged(wf.SEGMENT_HEADER_BYTES)
        records: dict[Uid, list[int]] = defaultdict(list)
        for uid, place in found[1]:
            records[uid].append(place)
        return records

    def all(self, following: wf.SegmentHeader | None) -> dict[Uid, list[int]]:
        """The records of all batches, by group; `following` is the next segment's header."""
        records: dict[Uid, list[int]] = defaultdict(list)
        offset, expected = wf.SEGMENT_HEADER_BYTES, self._header.first_batch
        stop = following.prev_end if following is not None else self._size
        is_closed = False
        while offset < stop:
            found = self._batch(offset, expected)
            if found is None and following is None and not is_closed:
                found = self._written_since(offset, expected)
            if found is None:
                break
            header, places = found
            for uid, place in places:
                records[uid].append(place)
            # An empty batch is the last thing a clean close wrote.
            is_closed = not places and expected > self._header.first_batch
            expected += 1
            offset += wf.padded(wf.BATCH_HEADER_BYTES + header.length)
        if following is not None and (offset, expected) != (stop, following.first_batch):
            raise CorruptionError(
                f"{self._path}: offset {offset}: batch {expected} is damaged, and the next segment "
                "says it was durable"
            )
        if expected == self._header.first_batch:
            raise self._first_is_damaged(offset)
        return records

    def _first_is_damaged(self, offset: int) -> CorruptionError:
        return CorruptionError(
            f"{self._path}: offset {offset}: the segment's first batch is damaged"
        )

    def _batch(
        self, offset: int, expected: int
    ) -> tuple[wf.BatchHeader, list[tuple[Uid, int]]] | None:
        found = self._reader.places_at(offset)
        return found if found is not None and found[0].batch_no == expected else None

    def _written_since(
        self, offset: int, expected: int
    ) -> tuple[wf.BatchHeader, list[tuple[Uid, int]]] | None:
        """Batch `expected`, which was not whole, if it is now; None where the log ends there.

        Raises CorruptionError if a later batch says that it was durable and it stays damaged.
        """
        witness = self._witness(offset, expected)
        if not witness:
            return None
        # Read after its witness was: a batch that was only being written is whole by now.
        self._reader.forget()
        found = self._batch(offset, expected)
        if found is None:
            raise CorruptionError(f"{self._path}: offset {offset}: {witness}")
        return found

    def _witness(self, offset: int, expected: int) -> str:
        """Return which batch behind `offset` says that batch `expected` was durable, in words."""
        needle = wf.batch_needle(self._header.wal_id, self._header.segment_no)
        at = offset
        while at < self._size:
            blob = self._pread(_WINDOW_BYTES + len(needle), at)
            pos = blob.find(needle)
            while 0 <= pos < _WINDOW_BYTES:
                header = self._reader.header_at(at + pos)
                if header is not None and header.durable_batch >= expected:
                    return (
                        f"batch {expected} is damaged, and batch {header.batch_no} at offset "
                        f"{at + pos} says it was durable"
                    )
                pos = blob.find(needle, pos + 1)
            at += _WINDOW_BYTES
        return ""
