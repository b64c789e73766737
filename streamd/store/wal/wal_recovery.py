"""Reading the log back: all of it at a start (`recover`), in pieces while it is in use (`check`).

Torn, and dropped: bytes after the last batch that nothing proves to have been durable. Rotten: a
damaged batch that a later batch, or the next segment's header, says was durable; or a missing
segment. Rot is a CorruptionError, or, if damage is tolerated, an item in `Recovered.damage`.
Neither function changes anything on disk.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from streamd.errors import CorruptionError
from streamd.store.disk import Disk, is_refused, opened, read_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.current import NAME, read_current
from streamd.store.wal.entry_index import GroupLog, Segment, apply
from streamd.store.wal.wal_damage import Damage
from streamd.store.wal.wal_format import (
    BatchReader,
    is_spare_name,
    segment_name,
    segment_number,
)
from streamd.types import Uid

_WINDOW_BYTES = 4 * 1024 * 1024  # read at once; a longer batch is read whole
_PIECE_BYTES = 256 * 1024  # of `check`: some milliseconds of a thread, if batches are small
_PAGE = 4096  # read alone where reading more fails


class Recovered(NamedTuple):
    """Content of a log, as a `Wal` needs it to continue."""

    wal_id: int  # 0: there was no log
    segments: list[Segment]
    spares: list[str]  # names of files that are no segments
    next_batch: int
    groups: dict[Uid, GroupLog]
    dropped_bytes: int  # torn off the end; for the log line
    dropped_at: str
    manifest: wf.Manifest | None  # None: there is none, or it is damaged
    newest: int  # highest segment number there is or was
    leftovers: list[str]  # names of segments that are no part of the log any more
    damage: list[str]  # each damaged or missing piece, if damage is tolerated
    damaged_groups: dict[Uid, str]
    may_have_lost_groups: bool


class Expected(NamedTuple):
    """Facts of a log known from elsewhere: older files, or those of another log, look whole."""

    wal_id: int = 0  # 0: nothing
    segment: int = 0  # a segment that was begun: the newest is this one or a later one


NOTHING = Expected()


def recover(
    disk: Disk,
    directory: str,
    *,
    tolerate_damage: bool = False,
    expected: Expected = NOTHING,
) -> Recovered:
    """Read the whole log. Writes nothing. An empty directory is a new log, whatever was expected.

    Raises CorruptionError if something durable is damaged or missing, unless that is tolerated:
    then `groups` hold what is proven, and `damaged_groups` the groups that may have lost something.
    """
    return _Recovery(disk, directory, tolerate_damage, expected).run()


class _Recovery:
    """State of one reading of one directory."""

    def __init__(self, disk: Disk, directory: str, is_tolerant: bool, expected: Expected) -> None:
        self.disk = disk
        self.directory = directory
        self.is_tolerant = is_tolerant
        self.expected = expected
        self.damage = Damage(disk)
        self.groups: dict[Uid, GroupLog] = {}
        self.has_tips = False
        self.unreadable_at = -1  # offset of the last page that could not be read
        self._good: dict[int, tuple[int, wf.SegmentHeader]] = {}  # number -> (file, header)
        self._bad: dict[int, str] = {}
        self._wal_id = 0

    def run(self) -> Recovered:
        names = self.disk.listdir(self.directory)
        has_manifest, manifest = self._manifest()
        expected = self.expected.wal_id
        if expected and manifest is not None and manifest.wal_id != expected:
            self.found(f"{self.directory}: the segment manifest belongs to another log")
            manifest = None
        is_there = has_manifest or any(segment_number(name) is not None for name in names)
        self._wal_id = manifest.wal_id if manifest is not None else expected * is_there
        for name in names:
            no = segment_number(name)
            if no is not None:
                self._open(name, no)
        # A log that was damaged is written anew, from one segment on that has none before it.
        first = max((no for no, (_, head) in self._good.items() if not head.prev_end), default=0)
        leftovers = [segment_name(no) for no in (*self._good, *self._bad) if no < first]
        for no in [no for no in self._good if no < first]:
            self.disk.close(self._good.pop(no)[0])
        self._bad = {no: text for no, text in self._bad.items() if no >= first}
        for text in self._bad.values():
            self.found(text)
        newest = max(self._good, default=0)
        segments, next_batch, dropped_bytes, dropped_at = self._scan()
        wanted = max(newest, manifest.newest if manifest is not None else 0, *self._bad, 0)
        if is_there:
            wanted = max(wanted, self.expected.segment)
        if wanted > newest:
            text = self._missing(newest + 1)
            self.damage.lose(self.groups, text)
        elif manifest is None and (has_manifest or self.has_tips):
            text = f"{self.directory}: the segment manifest is {'damaged' * has_manifest}"
            if not has_manifest:
                text += "missing"
            self.found(text)
            self.damage.lose(self.groups, text)
        self.damage.close_gaps(self.directory, self.groups, self.is_tolerant)
        return Recovered(
            wal_id=self._wal_id,
            segments=segments,
            spares=[name for name in names if is_spare_name(name)],
            next_batch=next_batch,
            groups=self.groups,
            dropped_bytes=dropped_bytes,
            dropped_at=dropped_at,
            manifest=manifest,
            newest=wanted,
            leftovers=leftovers,
            damage=self.damage.texts,
            damaged_groups={u: w for u, w in self.damage.groups().items() if u in self.groups},
            may_have_lost_groups=self.damage.may_have_lost_groups,
        )

    def found(self, text: str) -> None:
        """Note damage; raise it unless damage is tolerated."""
        if not self.is_tolerant:
            raise CorruptionError(text)
        self.damage.texts.append(text)

    def _is_tolerated(self, err: OSError) -> bool:
        """Return True if the unreadable bytes count as damaged. A lack of permission, file handles
        or memory says nothing of the bytes."""
        return self.is_tolerant and not is_refused(err)

    def _manifest(self) -> tuple[bool, wf.Manifest | None]:
        try:
            return read_current(self.disk, self.directory)
        except OSError as err:
            if not self._is_tolerated(err):
                raise
            return True, None

    def _open(self, name: str, no: int) -> None:
        """Sort the file of segment `no` into good and bad."""
        path = os.path.join(self.directory, name)
        try:
            fd = self.disk.open(path)
        except OSError as err:
            if not self._is_tolerated(err):
                raise
            self._bad[no] = f"{path}: cannot be opened: {err}"
            return
        blob = self.pread(path, fd, wf.SEGMENT_HEADER_BYTES, 0)
        header = wf.decode_segment_header(blob)
        if header is None or header.segment_no != no:
            # A segment gets its name only after its header is durable, so this one had one.
            self._bad[no] = f"{path}: offset 0: the segment's header is damaged"
        elif self._wal_id and header.wal_id != self._wal_id:
            self._bad[no] = f"{path}: belongs to another log"
        else:
            self._wal_id = header.wal_id
            self._good[no] = (fd, header)
            self.damage.fds[no] = fd
            return
        self.disk.close(fd)

    def _missing(self, no: int) -> str:
        """Note segment `no` as missing, unless it was noted as damaged; return the text."""
        text = self._bad.get(no)
        if text is None:
            text = f"{self.directory}: log segment {segment_name(no)} is missing"
            self.found(text)
        return text

    def _scan(self) -> tuple[list[Segment], int, int, str]:
        segments: list[Segment] = []
        next_batch = 1
        dropped_bytes, dropped_at = 0, ""
        numbers = sorted(self._good)
        if numbers and any(no < numbers[0] for no in self._bad):
            self.damage.lose(self.groups, self._bad[min(self._bad)])
        for position, no in enumerate(numbers):
            fd, header = self._good[no]
            following = None
            if position + 1 < len(numbers) and numbers[position + 1] == no + 1:
                following = self._good[no + 1][1]
            if position and no != numbers[position - 1] + 1:
                self.damage.lose(self.groups, self._missing(numbers[position - 1] + 1))
            elif position and header.first_batch != next_batch:
                text = (
                    f"{segment_name(no)}: begins with batch {header.first_batch}, expected "
                    f"{next_batch}"
                )
                if not self.damage.reason:
                    self.found(text)
                self.damage.lose(self.groups, text)
            scan = _SegmentScan(self, fd, header)
            next_batch = scan.read(following)
            segments.append(Segment(no, fd, scan.end, scan.unproven))
            if following is None:
                dropped_bytes = scan.dropped_bytes
                dropped_at = f"{segment_name(no)}: offset {scan.end}"
        return segments, next_batch, dropped_bytes, dropped_at

    def pread(self, path: str, fd: int, size: int, offset: int) -> bytes:
        """Read bytes; unreadable ones are zeros, if damage is tolerated."""
        try:
            return self.disk.pread(fd, size, offset)
        except OSError:
            parts: list[bytes] = []  # page by page, to find the bad one
        end = min(offset + size, self.disk.size(fd))
        while offset < end:
            wanted = min(_PAGE, end - offset)
            try:
                parts.append(self.disk.pread(fd, wanted, offset))
            except OSError as err:
                if not self._is_tolerated(err):
                    raise read_error("reading the log", f"{path}: offset {offset}", err) from err
                parts.append(bytes(wanted))
                self.unreadable_at = offset
            offset += wanted
        return b"".join(parts)


class _SegmentScan:
    """State of the reading of one segment, batch by batch."""

    def __init__(self, log: _Recovery, fd: int, header: wf.SegmentHeader) -> None:
        self._log = log
        self._header = header
        self._path = os.path.join(log.directory, segment_name(header.segment_no))
        self._pread = partial(log.pread, self._path, fd)
        self._reader = BatchReader(self._pread, header, window_bytes=_WINDOW_BYTES)
        self._size = log.disk.size(fd)
        self._is_closed = False
        self.end = wf.SEGMENT_HEADER_BYTES
        self.unproven = wf.SEGMENT_HEADER_BYTES
        self._proofless: deque[tuple[int, int]] = deque()  # (batch, offset) without witness
        self.dropped_bytes = 0

    def read(self, following: wf.SegmentHeader | None) -> int:
        """Apply all batches; return the number of the batch after the last."""
        log = self._log
        log.unreadable_at = -1
        stop = following.prev_end if following is not None else self._size
        offset, expected = wf.SEGMENT_HEADER_BYTES, self._header.first_batch
        while True:
            offset, expected = self._read_run(offset, expected, stop)
            text = self._problem(offset, expected, following)
            if not text:
                break
            if following is None and log.unreadable_at < 0:
                if self._is_written_since(offset, expected):
                    continue
            log.found(text)
            log.damage.lose(log.groups, text)
            log.unreadable_at = -1
            resumed = self._next_whole_batch(offset, expected, stop)
            if resumed is None:
                break
            offset, expected = resumed
        self.end = offset
        self.unproven = self._proofless[0][1] if self._proofless else offset
        return expected

    def _read_run(self, offset: int, expected: int, stop: int) -> tuple[int, int]:
        """Apply whole batches in a row from `offset` on; return where they end."""
        log = self._log
        groups = log.groups
        apply_one = log.damage.apply if log.damage.reason else apply
        place = self._header.segment_no << 32
        first_batch = self._header.first_batch
        while offset < stop:
            found = self._reader.batch_at(offset)
            if found is None or found[0].batch_no != expected:
                break
            header, records = found
            proofless = self._proofless
            proofless.append((expected, offset))
            while proofless[0][0] <= header.durable_batch:
                proofless.popleft()
            for record in records:
                apply_one(groups, record, place)
            # An empty batch is the last thing a clean close wrote.
            self._is_closed = not records and expected > first_batch
            if expected == first_batch:
                log.damage.segment_started()
                log.has_tips = log.has_tips or any(record.type == wf.TIP for record in records)
            expected += 1
            offset += wf.padded(wf.BATCH_HEADER_BYTES + header.length)
        return offset, expected

    def _is_written_since(self, offset: int, expected: int) -> bool:
        """Return True if batch `expected` is whole now.

        A log that is read beside its writer had the batch half written, and the witness came later.
        """
        self._reader.forget()
        found = self._reader.batch_at(offset)
        return found is not None and found[0].batch_no == expected

    def _problem(self, offset: int, expected: int, following: wf.SegmentHeader | None) -> str:
        """Return the fault of batch `expected` if it was durable and is not at `offset`, or ""."""
        if following is not None:
            if offset != following.prev_end or expected != following.first_batch:
                return (
                    f"{self._path}: offset {offset}: batch {expected} is damaged, and the next "
                    f"segment says it was durable"
                )
            return ""
        if self._is_closed:
            return ""
        if expected == self._header.first_batch:  # it was synced before the segment got its name
            return f"{self._path}: offset {offset}: the segment's first batch is damaged"
        text = self._witness(offset, expected)
        if not text and self._log.unreadable_at >= offset:
            text = f"{self._path}: offset {self._log.unreadable_at}: cannot be read"
        return text

    def _next_whole_batch(self, offset: int, expected: int, stop: int) -> tuple[int, int] | None:
        """Return the offset and number of the first whole batch after a damaged one."""
        for at, header in self._batch_headers(offset, stop):
            if (
                header.batch_no >= expected
                and at > offset
                and self._reader.batch_at(at) is not None
            ):
                return at, header.batch_no
        return None

    def _witness(self, offset: int, expected: int) -> str:
        """Return a text naming the later batch that proves `expected` was durable, or ""."""
        last_byte = 0
        for at, header in self._batch_headers(offset, self._size):
            last_byte = at + wf.BATCH_HEADER_BYTES + header.length
            if header.durable_batch >= expected:
                return (
                    f"{self._path}: offset {offset}: batch {expected} is damaged, and "
                    f"batch {header.batch_no} at offset {at} says it was durable"
                )
        self.dropped_bytes = max(0, last_byte - offset)
        return ""

    def _batch_headers(self, offset: int, stop: int) -> Iterator[tuple[int, wf.BatchHeader]]:
        """Yield all valid batch headers from `offset` on, at any place."""
        needle = wf.batch_needle(self._header.wal_id, self._header.segment_no)
        at = offset
        while at < stop:
            blob = self._pread(_WINDOW_BYTES + len(needle), at)
            pos = blob.find(needle)
            while 0 <= pos < _WINDOW_BYTES:
                header = wf.decode_batch_header(
                    self._pread(wf.BATCH_HEADER_BYTES, at + pos),
                    0,
                    wal_id=self._header.wal_id,
                    segment_no=self._header.segment_no,
                    offset=at + pos,
                )
                if header is not None:
                    yield at + pos, header
                pos = blob.find(needle, pos + 1)
            at += _WINDOW_BYTES


def check(disk: Disk, directory: str, segments: range, *, wal_id: int, least: int) -> Iterator[int]:
    """Read `segments`, numbers up to the newest; yield how many bytes each piece had.

    Batches up to `least` are known to be written. Finds what a start would refuse while all the
    log says is still in memory (see `Wal.renew`). For any thread, beside the writer. Raises
    CorruptionError or DiskError, naming segment and offset; the verdict on a segment that is taken
    out of use meanwhile means nothing.
    """
    if not segments:
        return
    try:
        _, manifest = read_current(disk, directory)
    except OSError as err:
        raise read_error("reading the log's manifest", directory, err) from err
    if manifest is None or manifest.newest < segments[-1]:
        raise CorruptionError(f"{os.path.join(directory, NAME)}: damaged or missing")
    path, end, expected = "", 0, 0
    for no in segments:
        before, path = path, os.path.join(directory, segment_name(no))
        pread = partial(_pread, disk, path)
        header = wf.decode_segment_header(pread(wf.SEGMENT_HEADER_BYTES, 0))
        if header is None or (header.segment_no, header.wal_id) != (no, wal_id):
            raise CorruptionError(f"{path}: offset 0: the segment's header is damaged")
        if before and (header.prev_end, header.first_batch) != (end, expected):
            raise CorruptionError(f"{before}: offset {end}: batch {expected} is damaged")
        reader = BatchReader(pread, header, window_bytes=_PIECE_BYTES)
        end, expected, reported = wf.SEGMENT_HEADER_BYTES, header.first_batch, 0
        while (found := reader.batch_at(end)) is not None and found[0].batch_no == expected:
            end += wf.padded(wf.BATCH_HEADER_BYTES + found[0].length)
            expected += 1
            if reader.read_bytes > reported:
                yield reader.read_bytes - reported
                reported = reader.read_bytes
    if expected <= least:
        raise CorruptionError(f"{path}: offset {end}: batch {expected} is damaged")


def _pread(disk: Disk, path: str, size: int, offset: int) -> bytes:
    # Opened anew each time: the event loop may close the segment's file meanwhile.
    try:
        with opened(disk, path) as fd:
            return disk.pread(fd, size, offset)
    except OSError as err:
        raise read_error("reading the log", path, err) from err
