"""Header blocks of many messages as one Arrow map column, without a Python object per message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_jobs.schema import ARROW_SCHEMA, parse_headers

_TYPE = ARROW_SCHEMA.field("headers").type
_CR, _LF, _COLON, _SPACE, _TAB = 13, 10, 58, 32, 9

Array = np.ndarray[Any, Any]


def header_maps(rows: int, owners: Array, data: Array, ends: Array) -> pa.MapArray:
    """A map for each of `rows` messages: key to the list of its values, both in the block's order.

    `owners` (ascending) are the rows that have a block, `data` all their blocks one behind
    another, `ends` where each ends in `data`. Rows without a block get an empty map. What cannot
    be read in a block is left out; bytes that are not UTF-8 become U+FFFD.
    """
    if not len(owners):
        return _assemble(rows, owners, np.zeros(0, np.int32), *_no_values())
    if data.max() > 127:
        return _slowly(rows, owners, data, ends)
    starts, lines_end, blocks = _lines(data, ends)
    colons = np.flatnonzero(data == _COLON)
    first = np.searchsorted(colons, starts)
    colon = np.append(colons, len(data))[first]
    whole = (colon < lines_end) & (colon > starts)  # a key, and a colon in this very line
    starts, lines_end, blocks, colon = (part[whole] for part in (starts, lines_end, blocks, colon))
    low, high = _stripped(data, colon + 1, lines_end)
    keys = _slices(data, starts, colon)
    values = _slices(data, low, high)
    list_sizes = np.ones(len(keys), np.int64)
    if len(blocks) > 1 and (blocks[1:] == blocks[:-1]).any():
        keys, values, blocks, list_sizes = _grouped(keys, values, blocks)
    counts = np.bincount(blocks, minlength=len(owners)).astype(np.int32)
    return _assemble(rows, owners, counts, keys, values, list_sizes)


def _no_values() -> tuple[pa.Array, pa.Array, Array]:
    empty = pa.array([], pa.string())
    return empty, empty, np.zeros(0, np.int64)


def _lines(data: Array, ends: Array) -> tuple[Array, Array, Array]:
    """(start, end, block) of each line but the first of every block, which has the version."""
    breaks = np.flatnonzero((data[:-1] == _CR) & (data[1:] == _LF))
    blocks = np.searchsorted(ends, breaks, side="right")
    begin = np.concatenate(([0], ends[:-1]))
    starts = np.empty(len(breaks), np.int64)
    starts[0:1] = 0
    starts[1:] = breaks[:-1] + 2
    is_first = np.empty(len(breaks), bool)
    is_first[0:1] = True
    is_first[1:] = blocks[1:] != blocks[:-1]
    starts = np.where(is_first, begin[blocks], starts)
    keep = ~is_first & (breaks > starts)
    return starts[keep], breaks[keep], blocks[keep]


def _stripped(data: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Move the bounds inwards past blanks."""
    low, high = low.copy(), high.copy()
    while True:
        at = np.minimum(low, len(data) - 1)
        blank = (low < high) & ((data[at] == _SPACE) | (data[at] == _TAB))
        if not blank.any():
            break
        low += blank
    while True:
        at = high - 1
        blank = (low < high) & ((data[at] == _SPACE) | (data[at] == _TAB))
        if not blank.any():
            break
        high -= blank
    return low, high


def _slices(data: Array, low: Array, high: Array) -> pa.Array:
    """The strings data[low:high], all at once."""
    sizes = high - low
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    # Each byte's place in `data`: its place here plus how far its string has been moved.
    places = np.arange(total) + np.repeat(low - (ends - sizes), sizes)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    offsets[1:] = ends
    return pa.StringArray.from_buffers(
        len(sizes), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data[places]))
    )


def _grouped(
    keys: pa.Array, values: pa.Array, blocks: Array
) -> tuple[pa.Array, pa.Array, Array, Array]:
    """Join the values of equal keys in one block; in the order of each key's first line."""
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy()
    pairs = blocks * len(encoded.dictionary) + codes
    _, firsts, inverse, sizes = np.unique(
        pairs, return_index=True, return_inverse=True, return_counts=True
    )
    if len(firsts) == len(pairs):
        return keys, values, blocks, np.ones(len(pairs), np.int64)
    # Groups by their first line: blocks ascend along the lines, so they stay together.
    order = np.argsort(firsts, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    lines = np.argsort(rank[inverse], kind="stable")
    heads = firsts[order]
    return keys.take(pa.array(heads)), values.take(pa.array(lines)), blocks[heads], sizes[order]


def _assemble(
    rows: int, owners: Array, counts: Array, keys: pa.Array, values: pa.Array, list_sizes: Array
) -> pa.MapArray:
    list_offsets = np.zeros(len(list_sizes) + 1, np.int32)
    np.cumsum(list_sizes, out=list_offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(list_offsets), values)
    per_row = np.zeros(rows, np.int32)
    per_row[owners] = counts
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(per_row, out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, lists, type=_TYPE)


def _slowly(rows: int, owners: Array, data: Array, ends: Array) -> pa.MapArray:
    """Blocks with bytes beyond ASCII: one by one."""
    blob = data.tobytes()
    found: list[list[tuple[str, list[str]]]] = [[] for _ in range(rows)]
    start = 0
    for owner, end in zip(owners.tolist(), ends.tolist(), strict=True):
        found[owner] = parse_headers(blob[start:end])
        start = end
    return pa.array(found, _TYPE)
