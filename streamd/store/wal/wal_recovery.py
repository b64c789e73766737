"""What the write-ahead log holds after a start: scan every segment, tell torn from rotten.

Torn (dropped): bytes after the last batch that nothing proves to have been durable. Rotten: a
damaged batch that a later batch, or the next segment's header, says was durable; a segment that is
missing. That is a CorruptionError, or, if damage is tolerated, an item in `Recovered.damage`.
Nothing is changed on disk.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from streamd.errors import CorruptionError
from streamd.store.disk import Disk, is_refused, read_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.current import read_manifest
from streamd.store.wal.group_positions import GroupLog, apply
from streamd.store.wal.wal_damage import Damage
from streamd.store.wal.wal_reader import BatchReader
from streamd.types import Uid

SUFFIX = ".wal"
SPARE_PREFIX = "spare-"
_WINDOW_BYTES = 4 * 1024 * 1024  # read at once; a longer batch is read whole
_NUMBER_END = 1 << 62  # no log gets there; a file that claims it is none of ours
_PAGE = 4096  # read alone where reading more fails
_SEGMENT_NAME = re.compile(r"[0-9a-f]{16}\.wal")
_SPARE_NAME = re.compile(SPARE_PREFIX + r"[1-9][0-9]{0,17}")


class Segment(NamedTuple):
    """A segment in use."""

    no: int
    fd: int
    end: int  # where its batches end
    unproven: int  # from here on nothing says that they were ever synced


class Recovered(NamedTuple):
    """All a `Wal` needs to go on."""

    wal_id: int  # 0: there was no log
    segments: list[Segment]
    spares: list[str]  # names of prepared files nobody uses
    next_batch: int
    groups: dict[Uid, GroupLog]
    dropped_bytes: int  # what was torn off the end; for the log line
    dropped_at: str
    manifest: wf.Manifest | None  # None: there is none, or it is damaged
    newest: int  # highest segment number there is or was
    leftovers: list[str]  # names of segments that are no part of the log any more
    damage: list[str]  # what is damaged or missing, if that is tolerated
    damaged_groups: dict[Uid, str]
    may_have_lost_groups: bool


def segment_name(no: int) -> str:
    """`0000000000000007.wal`"""
    return f"{no:016x}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """Inverse of `segment_name`; None for the name of any other file, be it a `.wal`."""
    if not _SEGMENT_NAME.fullmatch(name):
        return None
    no = int(name[: -len(SUFFIX)], 16)
    return no if no < _NUMBER_END else None


def is_spare_name(name: str) -> bool:
    """True if `name` is one that the log gives to a file for a segment to come."""
    return _SPARE_NAME.fullmatch(name) is not None


class Expected(NamedTuple):
    """What is known of a log from elsewhere: older files, and another log's, are as whole."""

    wal_id: int = 0  # 0: nothing
    segment: int = 0  # one that was begun: the newest is this one, or came later


NOTHING = Expected()


def recover(
    disk: Disk,
    directory: str,
    *,
    tolerate_damage: bool = False,
    expected: Expected = NOTHING,
) -> Recovered:
    """Read the whole log. Writes nothing. A log of which there is nothing at all is a new one,
    whatever was expected.

    Raises CorruptionError if something durable is damaged or missing, unless that is tolerated:
    then `groups` hold what is proven, and `damaged_groups` says who may have lost something.
    """
    return _Recovery(disk, directory, tolerate_damage, expected).run()


class _Recovery:
    """One reading of one directory."""

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
        """Something is damaged or missing."""
        if not self.is_tolerant:
            raise CorruptionError(text)
        self.damage.texts.append(text)

    def _is_tolerated(self, err: OSError) -> bool:
        """True if what can't be read is to count as damaged. Who may not read a file, or can't for
        now, must not take it for lost."""
        return self.is_tolerant and not is_refused(err)

    def _manifest(self) -> tuple[bool, wf.Manifest | None]:
        try:
            return read_manifest(self.disk, self.directory)
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
        """Note that segment `no` is missing, unless it was noted as damaged; return the text."""
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
        """Read; what cannot be read is zeros, if damage is tolerated."""
        try:
            return self.disk.pread(fd, size, offset)
        except OSError:
            parts: list[bytes] = []  # page by page: which one is it?
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
    """Reads one segment, batch by batch."""

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
        self._proofless: deque[tuple[int, int]] = deque()  # (batch, offset) no witness speaks of
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
        """True if batch `expected` is whole now: a log that is read beside its writer had it half
        written, and the witness came after that."""
        self._reader.forget()
        found = self._reader.batch_at(offset)
        return found is not None and found[0].batch_no == expected

    def _problem(self, offset: int, expected: int, following: wf.SegmentHeader | None) -> str:
        """Say what is wrong with batch `expected`, if it was durable and is not at `offset`."""
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
        """Where the first whole batch after a damaged one is, and its number."""
        for at, header in self._batch_headers(offset, stop):
            if (
                header.batch_no >= expected
                and at > offset
                and self._reader.batch_at(at) is not None
            ):
                return at, header.batch_no
        return None

    def _witness(self, offset: int, expected: int) -> str:
        """Say which batch after `offset` proves that batch `expected` had been durable, or ""."""
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
        """All valid batch headers from `offset` on, wherever they are."""
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
