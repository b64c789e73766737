"""Blocks with few live messages become one: what a REWRITE puts in their place. Pure.

The entry carries the records, so that every replica writes the same bytes without reading any. What
the index knows of them (subjects, times, flags) comes from the columns that it has already.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import itemgetter

from streamd.machine.base import BLOCK_HEADER_BYTES, LENGTH_MASK
from streamd.machine.indexes.columns import Block, Columns
from streamd.types import Seq


def live_spans(
    columns: Columns, next_live: Callable[[Seq], Seq], last_seq: Seq
) -> tuple[list[Seq], list[tuple[int, int]]]:
    """Live messages of a block, up to `last_seq`: flat inclusive ranges of seqs, [first, last,
    ...], and where their records are, (offset, length), neighbours joined."""
    ranges: list[Seq] = []
    spans: list[tuple[int, int]] = []
    offsets, lengths = columns.offsets, columns.lengths
    row, count = 0, len(columns)
    while row < count:
        seq = columns.seq_at(row)
        live = next_live(seq)
        if live > last_seq:
            break
        if live != seq:
            row = columns.position(live)
            continue
        if ranges and ranges[-1] == seq - 1:
            ranges[-1] = seq
        else:
            ranges += (seq, seq)
        offset, length = offsets[row], lengths[row] & LENGTH_MASK
        if spans and sum(spans[-1]) == offset:
            spans[-1] = (spans[-1][0], spans[-1][1] + length)
        else:
            spans.append((offset, length))
        row += 1
    return ranges, spans


def rows_of(columns: Columns, block: Block, ranges: Sequence[Seq]) -> list[int]:
    """The rows of a block whose seqs are in `ranges`."""
    rows: list[int] = []
    for first, last in zip(ranges[::2], ranges[1::2], strict=True):
        if last < block.first_seq or first > block.last_seq:
            continue
        rows += range(columns.position(first), columns.position(last + 1))
    return rows


def merged(
    block_no: int, parts: Iterable[tuple[Block, Columns, list[int]]]
) -> tuple[Block, Columns]:
    """A sealed block with the rows of `parts`, (block, its columns, rows of them), in seq order."""
    made, columns = Block(block_no), Columns()
    seqs: list[Seq] = []
    tss: list[int] = []
    ids: dict[bytes, int] = {}
    for block, source, rows in parts:
        made.live += block.live
        made.digest += block.digest
        if not rows:
            continue
        pick: Callable[[array[int]], Sequence[int]] = itemgetter(slice(rows[0], rows[-1] + 1))
        if rows[-1] - rows[0] != len(rows) - 1:
            pick = itemgetter(*rows)
        if source.seqs is None:
            seqs += [source.first_seq + row for row in rows]
        else:
            seqs += pick(source.seqs)
        tss += [source.base_ts + delta for delta in pick(source.ts_deltas)]
        columns.lengths.extend(pick(source.lengths))
        columns.crcs.extend(pick(source.crcs))
        columns.has_flags = columns.has_flags or source.has_flags
        locals_: dict[int, int] = {}
        for local in pick(source.subject_ids):
            found = locals_.get(local)
            if found is None:
                found = locals_[local] = ids.setdefault(source.subjects[local], len(ids))
            columns.subject_ids.append(found)
    columns.subjects = list(ids)
    columns.first_seq = made.first_seq = seqs[0]
    columns.base_ts = made.first_ts = tss[0]
    made.last_seq, made.last_ts = seqs[-1], tss[-1]
    if seqs[-1] - seqs[0] != len(seqs) - 1:
        columns.seqs = array("Q", seqs)
    columns.ts_deltas.extend([ts - tss[0] for ts in tss])
    lengths = [length & LENGTH_MASK for length in columns.lengths]
    offsets = list(accumulate(lengths, initial=BLOCK_HEADER_BYTES))
    made.end_offset = columns.end_offset = offsets.pop()
    columns.offsets.extend(offsets)
    made.count = len(seqs)
    made.is_sealed = True
    return made, columns
