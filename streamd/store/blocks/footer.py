"""Footers of sealed blocks: which messages a block holds and where, as columns of numbers. Pure.

A footer is the last record of its block, and a trailer at the file's very end that says how long
it is, so that the messages need not be read to find it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Protocol, overload

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.store.blocks.record_format import (
    FOOTER,
    RECORD_HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    encode_record,
    verify_at,
)
from streamd.types import Seq

FOOTER_MAGIC = b"STRDFTR1"
_FOOTER_HEAD = Struct("<HHIQQQ")  # version, flags, subject count, first_seq, base_ts, end_offset
_COLUMN_HEAD = Struct("<BxxxI")  # item bytes, count
_TRAILER = Struct("<II8s")  # whole footer bytes, crc of the record, magic
TRAILER_BYTES = _TRAILER.size
_FOOTER_VERSION = 1
_HAS_SEQS = 1
_TYPECODES = {array(code).itemsize: code for code in "BHIQ"}


class ColumnsView(Protocol):
    """Columns that `encode_footer` reads. The same as machine.base.ColumnsView: rooms do not import
    each other, and both sides are checked against their own copy."""

    first_seq: Seq
    seqs: array[int] | None
    offsets: array[int]
    lengths: array[int]
    ts_deltas: array[int]
    base_ts: int
    crcs: array[int]
    subject_ids: array[int]
    subjects: Sequence[bytes]
    end_offset: int


class Subjects(Sequence[bytes]):
    """Subjects of a sealed block, one behind another as in its footer.

    Each is cut out on demand: as a list they would take five times the memory and most of the time
    that a footer takes to read.
    """

    __slots__ = ("_blob", "_ends", "_sizes")

    def __init__(self, blob: bytes, sizes: array[int]) -> None:
        self._blob = blob
        self._sizes = sizes
        self._ends: array[int] | None = None  # made when first needed

    @property
    def byte_count(self) -> int:
        return len(self._blob) + 6 * len(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        end = self._bounds()[at]
        return self._blob[end - self._sizes[at] : end]

    def __iter__(self) -> Iterator[bytes]:
        blob, end = self._blob, 0
        for size in self._sizes:
            start, end = end, end + size
            yield blob[start:end]

    def index(self, value: bytes, start: int = 0, stop: int | None = None) -> int:
        """Return the place of `value`, which occurs once at most. Raises ValueError."""
        ends, sizes = self._bounds(), self._sizes
        stop = len(sizes) if stop is None else min(stop, len(sizes))
        found = self._blob.find(value, ends[start - 1] if start else 0)
        while found >= 0:
            at = bisect_left(ends, found + len(value))
            if at >= stop:
                break
            if ends[at] == found + len(value) and sizes[at] == len(value):
                return at
            found = self._blob.find(value, found + 1)
        raise ValueError(f"{value!r} is none of these subjects")

    def _bounds(self) -> array[int]:
        if self._ends is None:
            self._ends = array("I", accumulate(self._sizes))
        return self._ends


@dataclass(slots=True, kw_only=True)
class FooterColumns:
    """Columns of one sealed block as its footer holds them: a `ColumnsView`."""

    first_seq: Seq
    seqs: array[int] | None
    offsets: array[int]
    lengths: array[int]  # with the flag bits of machine.base on top
    ts_deltas: array[int]
    base_ts: int
    crcs: array[int]
    subject_ids: array[int]
    subjects: Sequence[bytes]
    end_offset: int


def encode_footer(columns: ColumnsView) -> bytes:
    """Return the footer of a sealed block: a record of type FOOTER and a trailer."""
    parts = [
        _FOOTER_HEAD.pack(
            _FOOTER_VERSION,
            0 if columns.seqs is None else _HAS_SEQS,
            len(columns.subjects),
            columns.first_seq,
            columns.base_ts,
            columns.end_offset,
        ),
        _encode_column(array("H", [len(subject) for subject in columns.subjects])),
        b"".join(columns.subjects),
        _encode_column(columns.offsets),
        _encode_column(columns.lengths),
        _encode_column(columns.ts_deltas),
        _encode_column(columns.crcs),
        _encode_column(columns.subject_ids),
    ]
    if columns.seqs is not None:
        parts.append(_encode_column(columns.seqs))
    record = encode_record(FOOTER, columns.first_seq, columns.base_ts, b"".join(parts))
    return record + _TRAILER.pack(len(record) + TRAILER_BYTES, crc32c(record), FOOTER_MAGIC)


def footer_length(trailer: bytes) -> int:
    """Return the size of the footer that ends with `trailer`, a file's last bytes, or 0."""
    if len(trailer) < TRAILER_BYTES:
        return 0
    length, _, magic = _TRAILER.unpack(trailer[-TRAILER_BYTES:])
    return int(length) if magic == FOOTER_MAGIC else 0


def decode_footer(footer: bytes) -> FooterColumns:
    """Return the inverse of `encode_footer`. Raises CorruptionError."""
    record = memoryview(footer)[:-TRAILER_BYTES]
    if (
        len(footer) < RECORD_OVERHEAD_BYTES + TRAILER_BYTES
        or footer_length(footer) != len(footer)
        or verify_at(record, 0) != len(record)
        or footer[4] != FOOTER
    ):
        raise CorruptionError(f"a block's footer of {len(footer)} bytes is damaged")
    version, flags, subject_count, first_seq, base_ts, end_offset = _FOOTER_HEAD.unpack_from(
        record, RECORD_HEADER_BYTES
    )
    if version != _FOOTER_VERSION:
        raise CorruptionError(f"a block's footer has unknown version {version}")
    sizes, pos = _decode_column(record, RECORD_HEADER_BYTES + _FOOTER_HEAD.size)
    assert len(sizes) == subject_count, (len(sizes), subject_count)
    subjects = Subjects(footer[pos : pos + sum(sizes)], sizes)
    pos += sum(sizes)
    offsets, pos = _decode_column(record, pos)
    lengths, pos = _decode_column(record, pos)
    ts_deltas, pos = _decode_column(record, pos)
    crcs, pos = _decode_column(record, pos)
    subject_ids, pos = _decode_column(record, pos)
    seqs: array[int] | None = None
    if flags & _HAS_SEQS:
        seqs, pos = _decode_column(record, pos)
    return FooterColumns(
        first_seq=first_seq,
        seqs=seqs,
        offsets=offsets,
        lengths=lengths,
        ts_deltas=ts_deltas,
        base_ts=base_ts,
        crcs=crcs,
        subject_ids=subject_ids,
        subjects=subjects,
        end_offset=end_offset,
    )


def _encode_column(column: array[int]) -> bytes:
    if sys.byteorder != "little":
        column = column[:]
        column.byteswap()
    return _COLUMN_HEAD.pack(column.itemsize, len(column)) + column.tobytes()


def _decode_column(record: memoryview, pos: int) -> tuple[array[int], int]:
    item_bytes, count = _COLUMN_HEAD.unpack_from(record, pos)
    pos += _COLUMN_HEAD.size
    end = pos + item_bytes * count
    column = array(_TYPECODES[item_bytes])
    column.frombytes(record[pos:end])
    if sys.byteorder != "little":
        column.byteswap()
    return column, end
