"""Blocks to Arrow: numpy over the block's bytes, no Python object per message.

Where a message is comes from a sealed block's footer, or from a walk over the records. Payloads
become a `binary_view` array over the block's own bytes, whose cast to `binary` is one copy in C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from spark_jobs.header_maps import header_maps
from spark_jobs.replica.checksums import Blob, are_whole, ints_at, u32_at
from spark_jobs.schema import COLUMNS, LEDGER_PREFIX, arrow_schema
from streamd.errors import CorruptionError
from streamd.offline.engine import (
    HAS_HEADERS,
    HEADER_BYTES,
    LENGTH_MASK,
    TRAILER_BYTES,
    as_ranges,
    decode_footer,
    footer_length,
    whole_records,
)
from streamd.offline.engine import record_format as fmt
from streamd.offline.stream_view import BlockView
from streamd.subjects import Matcher
from streamd.types import Seq

BATCH_ROWS = 10_000
_INLINE_BYTES = 12  # a shorter value sits in its view itself
_SPARSE = 8  # when fewer than one in so many records are wanted, they are checked one by one
# Where things are in a record.
_TYPE_AT = 4
_SUBJECT_LENGTH_AT = 6
_HEADERS_LENGTH_AT = 8
_SEQ_AT = 12
_TS_AT = 20
_SUBJECT_AT = 28
_unpack_length_and_type = Struct("<IB").unpack_from

Array = np.ndarray[Any, Any]
OnDamage = Callable[[CorruptionError], None]


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """Columns of the messages in a block, dead ones too, in seq order; all arrays are of equal
    length. `offsets` are in the block, `lengths` are of whole records."""

    seqs: Array  # int64
    offsets: Array  # int64
    lengths: Array  # int64
    ts_ns: Array  # int64
    crcs: Array  # uint32: each record's own
    subject_ids: Array  # int32, into `subjects`
    subjects: list[bytes]
    header_lengths: Array  # int64; 0: no headers
    live: Array  # bool
    is_from_footer: bool
    damaged_at: int = 0  # the walk ended here, before the block's end; 0: it did not

    def pick(self, keep: Array) -> BlockColumns:
        """The rows where `keep` is true; all are taken to be dead."""
        rows = ("seqs", "offsets", "lengths", "ts_ns", "crcs", "subject_ids", "header_lengths")
        return replace(self, **{name: getattr(self, name)[keep] for name in rows})

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def subject_lengths(self) -> Array:
        sizes = np.fromiter(map(len, self.subjects), np.int64, len(self.subjects))
        return sizes[self.subject_ids]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which live messages of a block are wanted; bounds are inclusive, 0 and None mean all."""

    start_seq: Seq = 0
    end_seq: Seq = 0
    start_ts_ns: int = 0
    end_ts_ns: int = 0
    matcher: Matcher | None = None
    seqs: Array | None = None  # just these, ascending
    with_ledger: bool = True  # entries of the sink's ledger too

    def rows_of(self, columns: BlockColumns) -> Array:
        """The rows that are wanted, ascending."""
        low, high = 0, len(columns)
        if self.start_seq:
            low = int(np.searchsorted(columns.seqs, self.start_seq))
        if self.end_seq:
            high = int(np.searchsorted(columns.seqs, self.end_seq, side="right"))
        if self.start_ts_ns:
            low = max(low, int(np.searchsorted(columns.ts_ns, self.start_ts_ns)))
        if self.end_ts_ns:
            high = min(high, int(np.searchsorted(columns.ts_ns, self.end_ts_ns, side="right")))
        if high <= low:
            return np.zeros(0, np.int64)
        mask = columns.live[low:high]
        if self.matcher is not None and not self.matcher.is_all:
            matches = self.matcher.matches
            wanted = np.fromiter(map(matches, columns.subjects), bool, len(columns.subjects))
            mask = mask & wanted[columns.subject_ids[low:high]]
        if not self.with_ledger:
            data = [not subject.startswith(LEDGER_PREFIX) for subject in columns.subjects]
            if not all(data):
                mask = mask & np.array(data)[columns.subject_ids[low:high]]
        if self.seqs is not None:
            mask = mask & np.isin(columns.seqs[low:high], self.seqs)
        return np.flatnonzero(mask) + low


def columns_of(blob: Blob, block: BlockView) -> BlockColumns:
    """The columns of `block`, whose bytes (`block.read()`) are `blob`.

    From the footer if the block is sealed and the footer is whole, else from a walk over the
    records, which ends at the first that cannot be one: `damaged_at`. Reads no record's content
    and checks no record's crc. Raises CorruptionError if the block's header is not its own.
    """
    try:
        fmt.check_block_header(bytes(blob[:HEADER_BYTES]), block.uid, block.block_no)
    except CorruptionError as err:
        raise CorruptionError(f"{block.path}: offset 0: {err}") from err
    made = _from_footer(blob, block) if block.is_sealed else None
    if made is None:
        made = _walk(blob, block.end_offset)
    return replace(made, live=_live_mask(made.seqs, block.dead))


def checked_columns(
    blob: Blob, block: BlockView, selection: Selection, on_damage: OnDamage | None
) -> BlockColumns:
    """As `columns_of`, with every live message that is wanted.

    Raises CorruptionError if there is no record of one; with `on_damage` it is called with the
    error, which names the seqs that are lost, and what is whole behind the damage is found too.
    """
    try:
        found = columns_of(blob, block)
    except CorruptionError as err:
        if on_damage is None:
            raise
        on_damage(err)
        is_foreign = crc32c(blob[:HEADER_BYTES]) == fmt.RESIDUE  # a whole header, not this block's
        found = _salvaged(b"" if is_foreign else bytes(blob), block)
    else:
        if _lacks_any(block, found):
            found = replace(_salvaged(bytes(blob), block), damaged_at=found.damaged_at)
    if _lacks_any(block, found):
        _tell_lost(block, found, selection, on_damage)
    return found


def _lacks_any(block: BlockView, found: BlockColumns) -> bool:
    return found.damaged_at > 0 or int(np.count_nonzero(found.live)) < block.live


def _tell_lost(
    block: BlockView, found: BlockColumns, selection: Selection, on_damage: OnDamage | None
) -> None:
    """Raise, or tell, what is lost of what is wanted; nothing if that is nothing."""
    lost = lost_seqs(block, found, low=selection.start_seq, high=selection.end_seq)
    if not lost:
        return
    count = block.live - int(np.count_nonzero(found.live))
    is_exact = count == sum(last - first + 1 for first, last in lost_seqs(block, found))
    damage = f"offset {found.damaged_at}: a record is damaged, " if found.damaged_at else ""
    err = CorruptionError(
        f"{block.path}: {damage}no whole record of {'' if is_exact else f'{count} of '}"
        f"seqs {ranges_text(lost)}"
    )
    if on_damage is None:
        raise err
    on_damage(err)


def lost_seqs(
    block: BlockView, found: BlockColumns, *, low: Seq = 0, high: Seq = 0
) -> list[tuple[Seq, Seq]]:
    """Ranges (inclusive) of the seqs of `block` in `low`..`high` that are neither in `found` nor
    dead. Seqs that a block in which nothing is dead never had are among them."""
    at, high = max(block.first_seq, low), min(block.last_seq, high or block.last_seq)
    there = as_ranges(found.seqs.tolist())
    lost = []
    for first, last in sorted([*block.dead, *there, (high + 1, high + 1)]):
        if at < first and at <= high:
            lost.append((at, min(high, first - 1)))
        at = max(at, last + 1)
    return lost


def ranges_text(ranges: Sequence[tuple[Seq, Seq]]) -> str:
    """5, 7..9"""
    return ", ".join(str(low) if low == high else f"{low}..{high}" for low, high in ranges)


def _from_footer(blob: Blob, block: BlockView) -> BlockColumns | None:
    size = footer_length(bytes(blob[-TRAILER_BYTES:]))
    if not size or len(blob) - size != block.end_offset:
        return None
    try:
        footer = decode_footer(bytes(blob[-size:]))
    except (CorruptionError, AssertionError):
        return None
    offsets = np.array(footer.offsets, np.int64)
    flagged = np.array(footer.lengths, np.uint32)
    if footer.seqs is not None:
        seqs = np.array(footer.seqs, np.uint64).astype(np.int64)
    else:
        seqs = np.arange(footer.first_seq, footer.first_seq + len(offsets), dtype=np.int64)
    header_lengths = np.zeros(len(offsets), np.int64)
    with_headers = np.flatnonzero(flagged & np.uint32(HAS_HEADERS))
    if len(with_headers):
        header_lengths[with_headers] = u32_at(blob, offsets[with_headers] + _HEADERS_LENGTH_AT)
    return BlockColumns(
        seqs=seqs,
        offsets=offsets,
        lengths=(flagged & np.uint32(LENGTH_MASK)).astype(np.int64),
        ts_ns=np.array(footer.ts_deltas, np.uint64).astype(np.int64) + footer.base_ts,
        crcs=np.array(footer.crcs, np.uint32),
        subject_ids=np.array(footer.subject_ids, np.uint32).astype(np.int32),
        subjects=list(footer.subjects),
        header_lengths=header_lengths,
        live=np.zeros(0, bool),
        is_from_footer=True,
    )


def _walk(blob: Blob, end_offset: int) -> BlockColumns:
    """Columns from the records themselves, up to `end_offset` or the first impossible record."""
    found: list[int] = []
    pos = HEADER_BYTES
    end = min(end_offset, len(blob))
    unpack, add = _unpack_length_and_type, found.append
    while pos + fmt.RECORD_OVERHEAD_BYTES <= end:
        length, kind = unpack(blob, pos)
        if length < fmt.RECORD_OVERHEAD_BYTES or pos + length > end or not 0 < kind < fmt.FOOTER:
            break
        add(pos)
        pos += length
    offsets = np.array(found, np.int64)
    lengths = np.diff(offsets, append=pos)
    subject_lengths = ints_at(blob, offsets + _SUBJECT_LENGTH_AT, "<u2")
    header_lengths = ints_at(blob, offsets + _HEADERS_LENGTH_AT, "<u4")
    too_long = subject_lengths + header_lengths > lengths - fmt.RECORD_OVERHEAD_BYTES
    if too_long.any():
        pos = int(offsets[np.flatnonzero(too_long)[0]])
    kept = offsets < pos
    made = _columns(blob, offsets[kept], lengths[kept])
    return replace(made, damaged_at=pos if pos < end_offset else 0)


def _columns(blob: Blob, offsets: Array, lengths: Array) -> BlockColumns:
    """Columns of the messages among these records, whose lengths are possible."""
    rows = np.flatnonzero(ints_at(blob, offsets + _TYPE_AT, "u1") == fmt.MSG)
    offsets, lengths = offsets[rows], lengths[rows]
    subject_lengths = ints_at(blob, offsets + _SUBJECT_LENGTH_AT, "<u2")
    subjects = slices_of(blob, offsets + _SUBJECT_AT, subject_lengths).dictionary_encode()
    return BlockColumns(
        seqs=ints_at(blob, offsets + _SEQ_AT, "<u8"),
        offsets=offsets,
        lengths=lengths,
        ts_ns=ints_at(blob, offsets + _TS_AT, "<u8"),
        crcs=u32_at(blob, offsets + lengths - 4).astype(np.uint32),
        subject_ids=subjects.indices.to_numpy(),
        subjects=subjects.dictionary.to_pylist(),
        header_lengths=ints_at(blob, offsets + _HEADERS_LENGTH_AT, "<u4"),
        live=np.zeros(0, bool),
        is_from_footer=False,
    )


def _salvaged(blob: bytes, block: BlockView) -> BlockColumns:
    """Columns of the whole message records, wherever they stand, whose seqs ascend."""
    records = np.array(list(whole_records(blob[: block.end_offset])), np.int64).reshape(-1, 2)
    made = _columns(blob, records[:, 0], records[:, 1])
    before = np.maximum.accumulate(np.append(block.first_seq - 1, made.seqs))[:-1]
    made = made.pick((before < made.seqs) & (made.seqs <= block.last_seq))
    return replace(made, live=_live_mask(made.seqs, block.dead))


def _live_mask(seqs: Array, dead: Sequence[tuple[Seq, Seq]]) -> Array:
    if not dead:
        return np.ones(len(seqs), bool)
    bounds = np.array(dead, np.int64)
    low = np.searchsorted(seqs, bounds[:, 0])
    high = np.searchsorted(seqs, bounds[:, 1], side="right")
    change = np.zeros(len(seqs) + 1, np.int64)
    np.add.at(change, low, 1)
    np.add.at(change, high, -1)
    found: Array = np.cumsum(change[:-1]) == 0
    return found


# --- checksums ----------------------------------------------------------------------------------


def wrong_crcs(blob: Blob, columns: BlockColumns, rows: Array | None = None) -> list[int]:
    """The rows (of `rows`, ascending, or all) whose record is not what was written: its bytes do
    not match its crc32c, it is cut off, or it is not the record that the footer has."""
    chosen = np.arange(len(columns)) if rows is None else rows
    if not len(chosen):
        return []
    starts = columns.offsets[chosen]
    ends = starts + columns.lengths[chosen]
    wrong: set[int] = set()
    if columns.is_from_footer:
        # A whole record, but another one than the footer's: the footer's own crc tells.
        stored = u32_at(blob, ends - 4)
        wrong = set(np.flatnonzero(stored != columns.crcs[chosen]).tolist())
    spanned = columns.offsets[chosen[0] : chosen[-1] + 1]
    if len(chosen) * _SPARSE >= len(spanned):
        spanned_ends = spanned + columns.lengths[chosen[0] : chosen[-1] + 1]
        if are_whole(blob, spanned, spanned_ends):
            return [int(chosen[at]) for at in sorted(wrong)]
    checksum = crc32c
    residue = fmt.RESIDUE
    view = memoryview(blob)
    wrong.update(
        at
        for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
        if end > len(view) or checksum(view[start:end]) != residue
    )
    return [int(chosen[at]) for at in sorted(wrong)]


def damage_of(block: BlockView, columns: BlockColumns, row: int) -> CorruptionError:
    """The error for a damaged record, naming file, offset and seq."""
    return CorruptionError(
        f"{block.path}: offset {int(columns.offsets[row])}: record of seq "
        f"{int(columns.seqs[row])} does not match its crc32c {int(columns.crcs[row]):#010x}"
    )


# --- Arrow --------------------------------------------------------------------------------------


def batches_of(
    blob: Blob,
    block: BlockView,
    *,
    stream: str,
    selection: Selection | None = None,
    columns: Sequence[str] = COLUMNS,
    batch_rows: int = BATCH_ROWS,
    verify: bool = True,
    on_damage: OnDamage | None = None,
) -> Iterator[pa.RecordBatch]:
    """The wanted messages of a block in seq order, at most `batch_rows` in a batch.

    Damaged records (and, without `verify`, only what cannot be found at all) raise
    CorruptionError; with `on_damage` it is called with the error instead, and what is lost is
    left out.
    """
    selection = selection or Selection()
    found = checked_columns(blob, block, selection, on_damage)
    rows = selection.rows_of(found)
    if not len(rows):
        return
    inside = found.offsets[rows] + found.lengths[rows] <= len(blob)
    wrong = wrong_crcs(blob, found, rows) if verify else rows[~inside].tolist()
    if wrong:
        if on_damage is None:
            raise damage_of(block, found, wrong[0])
        for row in wrong:
            on_damage(damage_of(block, found, row))
        rows = rows[~np.isin(rows, wrong)]
    if not len(rows):
        return
    maker = _Maker(blob, block, stream, found, columns)
    for start in range(0, len(rows), batch_rows):
        yield maker.batch(rows[start : start + batch_rows])


def slices_of(blob: Blob, starts: Array, sizes: Array) -> pa.Array:
    """blob[start : start + size] for each, as a binary array of its own memory."""
    raw = np.frombuffer(blob, np.uint8)
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0] = sizes
    views[:, 3] = starts
    short = np.flatnonzero(sizes <= _INLINE_BYTES)
    if len(short):
        step = np.arange(_INLINE_BYTES)
        places = np.minimum(starts[short, None] + step, len(raw) - 1)
        inline = np.where(step < sizes[short, None], raw[places], 0).astype(np.uint8)
        views[short, 1:] = inline.view(np.int32)
    made = pa.Array.from_buffers(
        pa.binary_view(), len(starts), [None, pa.py_buffer(views), pa.py_buffer(blob)]
    )
    return made.cast(pa.binary())


class _Maker:
    """Makes batches of the rows of one block."""

    def __init__(
        self,
        blob: Blob,
        block: BlockView,
        stream: str,
        found: BlockColumns,
        columns: Sequence[str],
    ) -> None:
        self._blob = blob
        self._block = block
        self._stream = stream
        self._found = found
        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._subject_lengths = found.subject_lengths
        self._subjects = pa.array(
            [subject.decode("utf-8", "replace") for subject in found.subjects], pa.string()
        )

    def batch(self, rows: Array) -> pa.RecordBatch:
        """Build a batch of `rows`, ascending and not empty."""
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            return self._batch(slice(first, last + 1), len(rows))  # views instead of copies
        return self._batch(rows, len(rows))

    def _batch(self, rows: Array | slice, count: int) -> pa.RecordBatch:
        found = self._found
        at = found.offsets[rows] + _SUBJECT_AT + self._subject_lengths[rows]
        header_sizes = found.header_lengths[rows]
        payload_at = at + header_sizes
        sizes = found.offsets[rows] + found.lengths[rows] - 4 - payload_at
        arrays: list[pa.Array] = []
        for name in self._columns:
            if name == "stream":
                made = pa.repeat(pa.scalar(self._stream, pa.string()), count)
            elif name == "subject":
                made = self._subjects.take(pa.array(found.subject_ids[rows]))
            elif name == "seq":
                made = pa.array(found.seqs[rows])
            elif name == "ts":
                made = pa.array(found.ts_ns[rows] // 1000).cast(self._schema.field("ts").type)
            elif name == "ts_ns":
                made = pa.array(found.ts_ns[rows])
            elif name == "headers":
                made = self._headers(count, at, header_sizes)
            elif name == "payload":
                made = slices_of(self._blob, payload_at, sizes)
            elif name == "size":
                made = pa.array(sizes.astype(np.int32))
            elif name == "replica":
                made = pa.repeat(pa.scalar(self._block.replica, pa.string()), count)
            elif name == "block":
                made = pa.array(np.full(count, self._block.block_no, np.int64))
            elif name == "pos":
                made = pa.array(found.offsets[rows])
            else:
                assert name == "crc", name
                made = pa.array(found.crcs[rows].astype(np.int64))
            arrays.append(made)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _headers(self, count: int, starts: Array, sizes: Array) -> pa.MapArray:
        owners = np.flatnonzero(sizes)
        if not len(owners):
            none = np.zeros(0, np.int64)
            return header_maps(count, owners, np.zeros(0, np.uint8), none)
        blocks = slices_of(self._blob, starts[owners], sizes[owners])
        _, offsets, data = blocks.buffers()
        ends = np.frombuffer(offsets, np.int32)[1 : len(owners) + 1].astype(np.int64)
        return header_maps(count, owners, np.frombuffer(data, np.uint8)[: int(ends[-1])], ends)
