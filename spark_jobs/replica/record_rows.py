"""The messages of a block as numpy columns: gathered from records or taken from a footer.

No Python object per message. Columns are parallel and in the order of the records.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streamd.offline.engine import CRC_ADD, LENGTH_MASK, MASK64, SEQ_ADD, FooterColumns

BUCKET_SHIFT: Final = 12
BUCKET: Final = 1 << BUCKET_SHIFT  # seqs that share one digest

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


class BlockRows(NamedTuple):
    """The messages of a block that can be told, in seq order, live ones only."""

    seqs: U64
    crcs: U64
    offsets: I64
    lengths: I64
    tss: U64


def no_rows() -> BlockRows:
    """No messages."""
    none = np.empty(0, np.uint64)
    signed = np.empty(0, np.int64)
    return BlockRows(none, none, signed, signed, none)


def buckets_of(rows: BlockRows) -> tuple[I64, U64, I64]:
    """(bucket numbers, digest of each, live messages of each) of one block's rows."""
    if not len(rows.seqs):
        empty = np.empty(0, np.int64)
        return empty, np.empty(0, np.uint64), empty
    mixed = mix(rows.seqs, rows.crcs)
    numbers = (rows.seqs >> np.uint64(BUCKET_SHIFT)).astype(np.int64)
    starts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
    sums = np.add.reduceat(mixed, starts)
    sizes = np.diff(np.append(starts, len(numbers)))
    return numbers[starts], sums, sizes


def mix(seqs: U64, crcs: U64) -> U64:
    """`machine.digest.mix64` of every row."""
    return (crcs + np.uint64(CRC_ADD)) * (seqs + np.uint64(SEQ_ADD))


def text_hash(text: bytes) -> int:
    """63 bits of two checksums: no secret, and the same everywhere."""
    return crc32c(text) << 31 | zlib.crc32(text) >> 1


def subject_sum(counts: Iterable[tuple[bytes, int]]) -> int:
    """Return a number for how many messages each subject has; sums of parts add up modulo 2^64."""
    return sum(text_hash(name) * count for name, count in counts) & MASK64


def ranges_of(seqs: U64) -> list[tuple[int, int]]:
    """Ascending seqs as inclusive ranges."""
    if not len(seqs):
        return []
    breaks = np.flatnonzero(np.diff(seqs) != 1)
    firsts = np.concatenate(([0], breaks + 1))
    lasts = np.concatenate((breaks, [len(seqs) - 1]))
    return [(int(seqs[a]), int(seqs[b])) for a, b in zip(firsts, lasts, strict=True)]


def gather(blob: bytes, offsets: I64) -> BlockRows:
    """The columns of the message records at `offsets`, read from the records themselves."""
    if not len(offsets):
        return no_rows()
    lengths = _view(blob, "<u4")[offsets].astype(np.int64)
    longs = _view(blob, "<u8")
    crcs = _view(blob, "<u4")[offsets + lengths - 4].astype(np.uint64)
    return BlockRows(longs[offsets + 12], crcs, offsets, lengths, longs[offsets + 20])


def _view(blob: bytes, dtype: str) -> NDArray[Any]:
    """Item i is the number whose first byte is byte i: one number per byte of `blob`."""
    width = int(dtype[-1])
    return np.ndarray((max(len(blob) - width + 1, 0),), dtype, blob, strides=(1,))


def numbers_at(blob: bytes, offsets: I64, width: int) -> NDArray[Any]:
    return np.asarray(_view(blob, f"<u{width}")[offsets])


def array_of(column: Any) -> NDArray[Any]:
    return (
        np.frombuffer(column, dtype=f"<u{column.itemsize}")
        if len(column)
        else np.empty(0, np.uint32)
    )


def columns_of(footer: FooterColumns) -> BlockRows:
    offsets = array_of(footer.offsets).astype(np.int64)
    count = len(offsets)
    if footer.seqs is None:
        seqs = np.arange(footer.first_seq, footer.first_seq + count, dtype=np.uint64)
    else:
        seqs = array_of(footer.seqs).astype(np.uint64)
    lengths = (array_of(footer.lengths) & np.uint32(LENGTH_MASK)).astype(np.int64)
    tss = array_of(footer.ts_deltas).astype(np.uint64) + np.uint64(footer.base_ts)
    return BlockRows(seqs, array_of(footer.crcs).astype(np.uint64), offsets, lengths, tss)


def pick(rows: BlockRows, which: Any) -> BlockRows:
    return BlockRows(
        rows.seqs[which],
        rows.crcs[which],
        rows.offsets[which],
        rows.lengths[which],
        rows.tss[which],
    )


def wrong_subject(blob: bytes, rows: BlockRows, ids: NDArray[Any], subjects: list[bytes]) -> int:
    """The first row whose record has another subject than the footer says; -1: none."""
    if not len(rows.seqs):
        return -1
    sizes = numbers_at(blob, rows.offsets + 6, 2).astype(np.int64)
    told = np.array([len(subject) for subject in subjects], np.int64)[ids]
    wrong = np.flatnonzero(sizes != told)
    if len(wrong):
        return int(wrong[0])
    raw = np.frombuffer(blob, np.uint8)
    for size in np.unique(sizes):
        at = np.flatnonzero(sizes == size)
        table = np.zeros((len(subjects), int(size)), np.uint8)
        for number, subject in enumerate(subjects):
            if len(subject) == size:
                table[number] = np.frombuffer(subject, np.uint8)
        there = raw[rows.offsets[at][:, None] + np.arange(28, 28 + int(size))]
        wrong = np.flatnonzero((there != table[ids[at]]).any(axis=1))
        if len(wrong):
            return int(at[wrong[0]])
    return -1


def subject_sum_of(blob: bytes, live: BlockRows, footer: FooterColumns | None) -> int:
    """`subject_sum` of the live messages of one block."""
    if footer is not None:
        rows = np.searchsorted(array_of(footer.offsets), live.offsets)
        counts = np.bincount(array_of(footer.subject_ids)[rows].astype(np.int64))
        return subject_sum(
            (footer.subjects[int(number)], int(counts[number])) for number in np.flatnonzero(counts)
        )
    if not len(live.seqs):
        return 0
    sizes = numbers_at(blob, live.offsets + 6, 2).astype(np.int64)
    starts = live.offsets + 28
    names = Counter(
        blob[start:end]
        for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    )
    return subject_sum(names.items())
