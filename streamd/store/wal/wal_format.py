"""Segments, batches and records of the write-ahead log as bytes, and its file names. Pure.

segment = header (4096 bytes, the same 64 twice), then batches, each at a multiple of 512.
batch   = header (64 bytes: log, segment, offset, number, the newest durable batch before it, a
          checksum over its records), records.
record  = header (40 bytes: type, group, term, index, chain, crc32c over header and data), data.
Little endian throughout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from streamd.types import Entry, HardState, Index, Term, Uid

# Record types; 0 is invalid.
ENTRY = 1
HARD_STATE = 2  # term; index = commit hint; data = vote; flag IS_UNCERTAIN
TRUNCATE = 3  # entries from index on are void
RELEASE = 4  # a snapshot covers all up to (index, term, chain)
DESTROY = 5  # the group is gone for ever
RESET = 6  # all entries so far are void; the log goes on after (index, term, chain)
TIP = 7  # the group's last entry so far is (index, term, chain); at the start of a segment, and
# where a hint is said that no entry has
WITNESS = 8  # nothing; it makes a batch, whose header says that all before it is durable

IS_UNCERTAIN = 1  # flag of a hard state: this member may have forgotten something
_LAG_MAX = 0xFFFF  # of a hint: what lags by more is not said

SUFFIX = ".wal"  # of a segment's file; `0000000000000007.wal`
SPARE_PREFIX = "spare-"  # of a file that is no segment yet, or none any more
ASIDE_PREFIX = "damaged-"  # of a directory that holds a damaged log's files
_NUMBER_END = 1 << 62  # no log gets there; a file that claims it is none of ours
_SEGMENT_NAME = re.compile(r"[0-9a-f]{16}\.wal")
_SPARE_NAME = re.compile(SPARE_PREFIX + r"[1-9][0-9]{0,17}")
_ASIDE_NAME = re.compile(ASIDE_PREFIX + r"[1-9][0-9]*")

ALIGN = 512  # one sector: tearing one batch cannot reach into another
SEGMENT_HEADER_BYTES = 4096
_COPY_AT = 2048  # the header's second copy, in another sector
BATCH_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 40
_CRC_AT = 36  # of a record's crc in its header

_SEGMENT_MAGIC = b"STRDWAL1"
_BATCH_MAGIC = b"STRDBAT1"
_VERSION = 1

MANIFEST_COPY_BYTES = 4096  # each of the two copies has sectors of its own
_MANIFEST_MAGIC = b"STRDMAN1"
_MANIFEST = Struct("<8sIIQQQ")
_SEGMENT = Struct("<8sIIQQQQQI")
_BATCH = Struct("<8sQQQQQIII")
_RECORD = Struct("<IBBHQQQI")
_CRC = Struct("<I")
_pack_crc = _CRC.pack
pack_record = _RECORD.pack
assert _BATCH.size + 4 == BATCH_HEADER_BYTES
assert _RECORD.size + 4 == RECORD_HEADER_BYTES

WalWrite: TypeAlias = tuple[Uid, list[Entry], HardState | None, Index]
"""Append of one group: (group, entries, hard state or None, index from which older ones are void
or 0)."""

Lazy: TypeAlias = tuple[int, Uid, Index, Term, int]
"""Record that waits for the next append: (record type, group, index, term, chain)."""

Hints: TypeAlias = list[Index]
"""Commit index of the group of each write at the time of the append; 0: not known."""


class SegmentHeader(NamedTuple):
    """Header of a segment, written when the segment is taken into use."""

    wal_id: int  # random, of this node's log
    segment_no: int
    first_batch: int
    prev_end: int  # where the previous segment's batches end; 0: there is no previous one
    capacity: int


class Manifest(NamedTuple):
    """Copy of the manifest: the log and its newest segment, written once that has its name."""

    wal_id: int
    generation: int  # of two valid copies the one with the higher number counts
    newest: int  # segment number; 0: none yet


class BatchHeader(NamedTuple):
    """Header of a batch. `durable_batch` is the witness: every batch up to it had been synced
    before this one was written, so none of them may ever be missing."""

    batch_no: int
    durable_batch: int
    length: int  # of the records
    count: int  # type: ignore[assignment]
    tie: int  # see `tie_of`


class WalRecord(NamedTuple):
    """Record of a batch, with the offset of its header in the segment."""

    type: int
    group: Uid
    term: Term
    index: Index  # type: ignore[assignment]
    chain: int
    offset: int
    length: int  # of the data
    data: bytes  # b"" for entries unless asked for
    flags: int = 0
    lag: int = 0  # of an entry or a tip, see `lag_of`; 0: not said


def lag_of(index: Index, commit: Index) -> int:
    """Return the commit hint of an entry: its distance to `commit`, plus one, in 16 bits.

    `commit` is the group's when the entry was written; 0 where that is unknown or too far.
    """
    lag = index - commit + 1
    return lag if commit and 0 < lag < _LAG_MAX else 0


def padded(size: int) -> int:
    """`size` rounded up to whole sectors."""
    return -(-size // ALIGN) * ALIGN


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the first 4096 bytes of a segment."""
    body = _SEGMENT.pack(_SEGMENT_MAGIC, _VERSION, 0, *header, 0)
    one = body + _pack_crc(crc32c(body))
    copy = one.ljust(_COPY_AT, b"\0")
    return copy + copy


def decode_segment_header(blob: bytes) -> SegmentHeader | None:
    """Return the header from the first of its copies that is whole, or None."""
    for at in (0, _COPY_AT):
        body = blob[at : at + _SEGMENT.size]
        crc = blob[at + _SEGMENT.size : at + _SEGMENT.size + 4]
        if len(crc) < 4 or crc32c(body) != _CRC.unpack(crc)[0]:
            continue
        magic, version, _, *fields, _ = _SEGMENT.unpack(body)
        if magic == _SEGMENT_MAGIC and version == _VERSION:
            return SegmentHeader(*fields)
    return None


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of one copy of the manifest."""
    body = _MANIFEST.pack(_MANIFEST_MAGIC, _VERSION, 0, *manifest)
    return body + _pack_crc(crc32c(body))


def decode_manifest(blob: bytes) -> Manifest | None:
    """Return the newer of the copies that are whole, or None. `blob` is the whole file."""
    found: Manifest | None = None
    for at in (0, MANIFEST_COPY_BYTES):
        body = blob[at : at + _MANIFEST.size]
        crc = blob[at + _MANIFEST.size : at + _MANIFEST.size + 4]
        if len(crc) < 4 or crc32c(body) != _CRC.unpack(crc)[0]:
            continue
        magic, version, _, *fields = _MANIFEST.unpack(body)
        copy = Manifest(*fields)
        if (magic, version) == (_MANIFEST_MAGIC, _VERSION) and (
            found is None or copy.generation > found.generation
        ):
            found = copy
    return found


def batch_needle(wal_id: int, segment_no: int) -> bytes:
    """Return the bytes that begin every batch of this segment, and none of an earlier use."""
    return _BATCH_MAGIC + wal_id.to_bytes(8, "little") + segment_no.to_bytes(8, "little")


def tie_of(records: Iterable[bytes]) -> int:
    """Return a checksum of the set of records in a batch, given whole or as headers; never 0.

    A crash may leave the beginning of a batch and, behind it, what an earlier use of the file had
    in its place: whole records, in the worst case, of another batch.
    """
    # Not of more of them: the crc of what ends with its own crc is always the same.
    return crc32c(b"".join([record[_CRC_AT:RECORD_HEADER_BYTES] for record in records])) or 1


def encode_batch_header(
    *,
    wal_id: int,
    segment_no: int,
    offset: int,
    batch_no: int,
    durable_batch: int,
    length: int,
    count: int,
    tie: int,
) -> bytes:
    """Return the 64 bytes before a batch's records."""
    body = _BATCH.pack(
        _BATCH_MAGIC, wal_id, segment_no, offset, batch_no, durable_batch, length, count, tie
    )
    return body + _pack_crc(crc32c(body))


def decode_batch_header(
    blob: bytes | memoryview, pos: int, *, wal_id: int, segment_no: int, offset: int
) -> BatchHeader | None:
    """Return the header at `pos` of `blob` if it is whole and belongs at `offset`."""
    body = blob[pos : pos + _BATCH.size]
    if len(body) < _BATCH.size or pos + BATCH_HEADER_BYTES > len(blob):
        return None
    if crc32c(body) != _CRC.unpack_from(blob, pos + _BATCH.size)[0]:
        return None
    magic, found_id, found_no, found_offset, batch_no, durable, length, count, tie = _BATCH.unpack(
        body
    )
    if (bytes(magic), found_id, found_no, found_offset) != (
        _BATCH_MAGIC,
        wal_id,
        segment_no,
        offset,
    ):
        return None
    return BatchHeader(batch_no, durable, length, count, tie)


def encode_record(
    kind: int,
    group: Uid,
    *,
    term: Term,
    index: Index,
    chain: int = 0,
    data: bytes = b"",
    flags: int = 0,
    lag: int = 0,
) -> bytes:
    """Return a whole record; of entries the log writes header and data as two buffers instead."""
    head = pack_record(len(data), kind, flags, lag, group, term, index, chain)
    return head + _pack_crc(crc32c(data, crc32c(head))) + data


def encode_entry_header(
    group: Uid, term: Term, index: Index, chain: int, data: bytes, lag: int = 0
) -> bytes:
    """Return the 40 bytes before an entry's data."""
    # To give up the interpreter costs the log's thread more than the crc: half a millisecond until
    # a busy loop gives it back, once for each entry.
    head = pack_record(len(data), ENTRY, 0, lag, group, term, index, chain)
    return head + _pack_crc(crc32c(data, crc32c(head), gil_release_mode=0))


def encode_hard_state(group: Uid, state: HardState) -> bytes:
    """Return the record of a hard state."""
    return encode_record(
        HARD_STATE,
        group,
        term=state.term,
        index=state.commit,
        data=state.vote.encode(),
        flags=IS_UNCERTAIN if state.is_uncertain else 0,
    )


def decode_record(blob: bytes | memoryview, pos: int, *, offset: int) -> WalRecord | None:
    """Return the record at `pos` of `blob` (at `offset` of its segment), verified, with data."""
    data_at = pos + RECORD_HEADER_BYTES
    if data_at > len(blob):
        return None
    length, kind, flags, lag, group, term, index, chain = _RECORD.unpack_from(blob, pos)
    end = data_at + length
    if end > len(blob):
        return None
    data = blob[data_at:end]
    if crc32c(data, crc32c(blob[pos : data_at - 4])) != _CRC.unpack_from(blob, data_at - 4)[0]:
        return None
    return WalRecord(kind, group, term, index, chain, offset, length, bytes(data), flags, lag)


def decode_batch(blob: memoryview, header: BatchHeader, *, offset: int) -> list[WalRecord] | None:
    """Return the records of `header`'s batch, which fill `blob` exactly, or None if any is damaged
    or belongs to another batch.

    `offset` is where `blob` starts in the segment. The data of entries is verified, not copied.
    """
    records: list[WalRecord] = []
    tie = 0
    unpack = _RECORD.unpack_from
    unpack_crc = _CRC.unpack_from
    pos = 0
    size = len(blob)
    for _ in range(header.count):
        data_at = pos + RECORD_HEADER_BYTES
        if data_at > size:
            return None
        length, kind, flags, lag, group, term, index, chain = unpack(blob, pos)
        end = data_at + length
        if end > size:
            return None
        data = blob[data_at:end]
        if crc32c(data, crc32c(blob[pos : data_at - 4])) != unpack_crc(blob, data_at - 4)[0]:
            return None
        tie = crc32c(blob[data_at - 4 : data_at], tie)
        records.append(
            WalRecord(
                kind,
                group,
                term,
                index,
                chain,
                offset + pos,
                length,
                b"" if kind == ENTRY else bytes(data),
                flags,
                lag,
            )
        )
        pos = end
    if pos != size or header.tie != (tie or 1):
        return None
    return records


def record_places(
    blob: memoryview, header: BatchHeader, *, offset: int
) -> list[tuple[Uid, int]] | None:
    """Return (group, offset) of each record of `header`'s batch; None as for `decode_batch`.

    For readers that want the records of few groups: every byte is verified, and no record becomes
    an object. `offset` is where `blob` starts in the segment.
    """
    found: list[tuple[Uid, int]] = []
    tie = 0
    unpack = _RECORD.unpack_from
    unpack_crc = _CRC.unpack_from
    pos = 0
    size = len(blob)
    for _ in range(header.count):
        data_at = pos + RECORD_HEADER_BYTES
        if data_at > size:
            return None
        fields = unpack(blob, pos)
        end = data_at + fields[0]
        if end > size:
            return None
        crc = crc32c(blob[data_at:end], crc32c(blob[pos : data_at - 4]))
        if crc != unpack_crc(blob, data_at - 4)[0]:
            return None
        tie = crc32c(blob[data_at - 4 : data_at], tie)
        found.append((fields[4], offset + pos))
        pos = end
    if pos != size or header.tie != (tie or 1):
        return None
    return found


def segment_name(no: int) -> str:
    """Return the file name of segment `no`: `0000000000000007.wal`."""
    return f"{no:016x}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the inverse of `segment_name`; None for any other name, be it a `.wal`."""
    if not _SEGMENT_NAME.fullmatch(name):
        return None
    no = int(name[: -len(SUFFIX)], 16)
    return no if no < _NUMBER_END else None


def is_spare_name(name: str) -> bool:
    """Return True for the name of a file that is no segment yet, or none any more."""
    return _SPARE_NAME.fullmatch(name) is not None


def is_log_name(name: str) -> bool:
    """Return True for any name that the log gives to a file or directory of its own."""
    return (
        name in ("manifest", "manifest.tmp")
        or segment_number(name) is not None
        or is_spare_name(name)
        or _ASIDE_NAME.fullmatch(name) is not None
    )


class BatchReader:
    """Batches of one segment by their offset, read through a window.

    `pread(size, offset)` returns the segment's bytes, fewer only at its end.
    """

    def __init__(
        self, pread: Callable[[int, int], bytes], header: SegmentHeader, *, window_bytes: int
    ) -> None:
        self._pread = pread
        self._header = header
        self._window_bytes = window_bytes  # read at once; a longer batch is read whole
        self._window = b""
        self._window_at = 0
        self.read_bytes = 0  # so far

    def bytes_at(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset`, fewer only at the segment's end."""
        start = offset - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window = self._pread(max(size, self._window_bytes), offset)
            self._window_at = offset
            self.read_bytes += len(self._window)
            start = 0
        return memoryview(self._window)[start : start + size]

    def forget(self) -> None:
        """Drop the window: the file may have been written to meanwhile."""
        self._window = b""

    def header_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the batch that begins at `offset`, whole or not, or None."""
        return decode_batch_header(
            self.bytes_at(offset, BATCH_HEADER_BYTES),
            0,
            wal_id=self._header.wal_id,
            segment_no=self._header.segment_no,
            offset=offset,
        )

    def batch_at(self, offset: int) -> tuple[BatchHeader, list[WalRecord]] | None:
        """Return the batch that begins at `offset` if it is whole, else None."""
        header = self.header_at(offset)
        if header is None:
            return None
        at = offset + BATCH_HEADER_BYTES
        records = decode_batch(self.bytes_at(at, header.length), header, offset=at)
        return None if records is None else (header, records)

    def places_at(self, offset: int) -> tuple[BatchHeader, list[tuple[Uid, int]]] | None:
        """Return the same as `batch_at`, of each record only its group and its offset."""
        header = self.header_at(offset)
        if header is None:
            return None
        at = offset + BATCH_HEADER_BYTES
        places = record_places(self.bytes_at(at, header.length), header, offset=at)
        return None if places is None else (header, places)
