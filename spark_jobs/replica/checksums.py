"""Verification of many block records by one crc32c over all of them instead of one call for each.

A record ends with its own crc32c, so the crc32c of a whole record is a constant, `RESIDUE`. The
crc of records one behind another therefore depends on their lengths alone: it is the sum over all
records of RESIDUE, shifted by the bytes that follow the record. That sum is cheap in numpy, the
crc of the bytes is one call in C; if the two differ, some record is damaged. A change of up to 32
bits in a row is always seen, any other with the certainty of a crc of 32 bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from crc32c import crc32c

from streamd.offline.engine import RECORD_OVERHEAD_BYTES, RESIDUE

_POLYNOMIAL = 0x82F63B78  # crc32c, bits reflected
_STEP_BITS = 16
_STEP = 1 << _STEP_BITS  # bytes that one application of the large shift stands for
_FEW_GAPS = 8  # so few are walked in Python

Array = np.ndarray[Any, Any]
Blob = bytes | memoryview


def u32_at(blob: Blob, places: Array) -> Array:
    """The little-endian u32 at each of `places`, as int64; 0 where the blob is too short."""
    return ints_at(blob, places, "<u4")


def ints_at(blob: Blob, places: Array, kind: str) -> Array:
    """The number of numpy type `kind` at each of `places`, as int64; 0 where the blob is too
    short."""
    item = np.dtype(kind)
    if len(blob) < item.itemsize or not len(places):
        return np.zeros(len(places), np.int64)
    count = len(blob) - item.itemsize + 1
    words: Array = np.ndarray((count,), item, buffer=blob, strides=(1,))
    inside = (places >= 0) & (places < count)
    if inside.all():
        return words[places].astype(np.int64)
    return np.where(inside, words[np.where(inside, places, 0)].astype(np.int64), 0)


def are_whole(blob: Blob, starts: Array, ends: Array) -> bool:
    """True if the bytes from the first of `starts` to the last of `ends` are whole records.

    `starts`, `ends`: where known records begin and end, ascending. What lies between them must be
    whole records too. False says that some byte is damaged or missing, not which.
    """
    first, last = int(starts[0]), int(ends[-1])
    if last > len(blob):
        return False
    between = _ends_between(blob, ends[:-1], starts[1:])
    if between is None:
        return False
    all_ends = np.concatenate((ends, between)) if len(between) else ends
    return _crc_of_whole(last - all_ends) == crc32c(memoryview(blob)[first:last])


def record_starts(blob: Blob, starts: Array, ends: Array, *, first: int, end: int) -> Array | None:
    """Return where all records from `first` up to `end` begin, ascending; None if they are not
    whole.

    `starts`, `ends`: where some of them are said to begin and end, at least one, ascending. None
    says that some byte is damaged, or that a record is not where it is said to be.
    """
    low, high = np.append(first, ends), np.append(starts, end)
    if (low > high).any() or end > len(blob):
        return None
    between = _ends_between(blob, low, high)
    if between is None:
        return None
    all_ends = np.sort(np.concatenate((ends, between)), kind="stable")
    if all_ends[-1] != end or _crc_of_whole(end - all_ends) != crc32c(memoryview(blob)[first:end]):
        return None
    return np.append(first, all_ends[:-1])


def _ends_between(blob: Blob, low: Array, high: Array) -> Array | None:
    """Return where the records in the gaps low..high end; None if those can't be records."""
    wide = np.flatnonzero(low != high)
    low, high = low[wide], high[wide]
    found: list[Array] = []
    while len(low) > _FEW_GAPS:
        sizes = u32_at(blob, low)
        low = low + sizes
        if (sizes < RECORD_OVERHEAD_BYTES).any() or (low > high).any():
            return None
        found.append(low)
        left = np.flatnonzero(low < high)
        low, high = low[left], high[left]
    few: list[int] = []
    for start, end in zip(low.tolist(), high.tolist(), strict=True):
        while start < end:
            size = int.from_bytes(blob[start : start + 4], "little")
            start += size
            if size < RECORD_OVERHEAD_BYTES or start > end:
                return None
            few.append(start)
    found.append(np.array(few, np.int64))
    return np.concatenate(found)


def _crc_of_whole(followed_by: Array) -> int:
    """The crc32c of whole records, each followed by so many bytes of others."""
    near, far = _shifts()
    followed_by = np.sort(followed_by[::-1], kind="stable")  # mostly in order already
    groups = followed_by >> _STEP_BITS
    firsts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    sums = np.bitwise_xor.reduceat(near[followed_by & (_STEP - 1)], firsts)
    by_group = dict(zip(groups[firsts].tolist(), sums.tolist(), strict=True))
    low, middle, high, top = far
    crc = 0
    for group in range(int(groups[-1]), -1, -1):
        crc = (
            low[crc & 0xFF]
            ^ middle[crc >> 8 & 0xFF]
            ^ high[crc >> 16 & 0xFF]
            ^ top[crc >> 24]
            ^ by_group.get(group, 0)
        )
    return crc


@cache
def _shifts() -> tuple[Array, tuple[list[int], ...]]:
    """(RESIDUE shifted by 0.._STEP-1 bytes, the shift by _STEP bytes as a table per byte)."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    near = np.empty(_STEP, np.uint32)
    crc = RESIDUE
    for count in range(_STEP):
        near[count] = crc
        crc = crc >> 8 ^ table[crc & 0xFF]
    # What each single bit becomes after one byte; doubled until it is _STEP bytes.
    columns = [(1 << bit) >> 8 ^ table[(1 << bit) & 0xFF] for bit in range(32)]
    for _ in range(_STEP_BITS):
        columns = [_apply(columns, column) for column in columns]
    far = tuple([_apply(columns, byte << place) for byte in range(256)] for place in (0, 8, 16, 24))
    return near, far


def _apply(columns: list[int], value: int) -> int:
    """The linear map that takes bit i to columns[i]."""
    found = 0
    while value:
        bit = value & -value
        found ^= columns[bit.bit_length() - 1]
        value ^= bit
    return found
