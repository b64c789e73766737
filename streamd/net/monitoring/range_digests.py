"""Digests of ranges of a replica's messages: `range_digests`.

Replicas that differ are compared range by range, and what differs in finer ones, until the
sequences are known. Blocks that lie in a range as a whole are told by their summaries; only of
those at its ends the columns are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Final

from streamd.errors import StreamdError
from streamd.limits import DIGEST_RANGES_MAX
from streamd.net.monitoring.query import BadQuery, Query, number
from streamd.net.monitoring.sliced_pages import Steps
from streamd.types import Document, Seq

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.machine.indexes.columns import Block
    from streamd.machine.streams.stream import StreamMachine

_NUMBERS: Final = re.compile(r"\d{1,19}(?:,\d{1,19})*", re.ASCII)


def range_digests(machine: StreamMachine, query: Query) -> Steps[Document]:
    """Build the digests of ranges from `first` to `last` (default: of all that is live).

    `starts` has the first sequences of the ranges, with commas between them; without it they begin
    where blocks do, or are parts of one block. `is_still` is false if the replica applied anything
    meanwhile: then the digests are of no one moment."""
    applied, live = machine.applied, machine.index.live
    first = number(query, "first") or live.first_seq
    last = number(query, "last") or live.last_seq
    starts = _starts(machine, query.get("starts", ""), first, last)
    rows: list[Document] = []
    for start, after in pairwise([*starts, last + 1]):
        try:
            count, digest = yield from _digest(machine, start, after - 1)
        except StreamdError as err:
            raise BadQuery(f"sequences {start} to {after - 1} can't be read: {err}") from err
        row = {"first_seq": start, "last_seq": after - 1, "messages": count}
        rows.append({**row, "digest": f"{digest:016x}"})
    return {
        "applied": applied,
        "is_still": machine.applied == applied,
        "first_seq": live.first_seq,
        "last_seq": live.last_seq,
        "messages": live.count,
        "digest": f"{machine.digest:016x}",
        "ranges": rows,
    }


def _starts(machine: StreamMachine, given: str, first: Seq, last: Seq) -> Sequence[Seq]:
    """Return where ranges begin. Raises BadQuery."""
    if last < first:
        return ()
    if given:
        if not _NUMBERS.fullmatch(given):
            raise BadQuery("starts: must be sequences with commas between them")
        starts = [int(text) for text in given.split(",")]
        if len(starts) > DIGEST_RANGES_MAX:
            raise BadQuery(f"starts: at most {DIGEST_RANGES_MAX} ranges, not {len(starts)}")
        if starts[0] != first or starts[-1] > last or any(a >= b for a, b in pairwise(starts)):
            raise BadQuery("starts: must ascend from the first sequence, and not pass the last")
        return starts
    blocks = machine.index.blocks
    found = [first, *(b.first_seq for b in blocks if b.count and first < b.first_seq <= last)]
    if len(found) == 1:
        step = -(-(last - first + 1) // DIGEST_RANGES_MAX)
        return range(first, last + 1, step)
    return found[:: -(-len(found) // DIGEST_RANGES_MAX)]


def _digest(machine: StreamMachine, first: Seq, last: Seq) -> Steps[tuple[int, int]]:
    """Return count and digest of the live messages from `first` to `last`."""
    from streamd.machine.digest import MASK64

    count = digest = 0
    blocks = machine.index.blocks
    block = blocks.holding_from(first)
    while block is not None and block.first_seq <= last:
        if first <= block.first_seq and block.last_seq <= last:
            count, digest = count + block.live, digest + block.digest
        elif block.live:
            part_count, part = _part(machine, block, first, last)
            count, digest = count + part_count, digest + part
        yield
        block = blocks.holding_from(block.last_seq + 1)
    return count, digest & MASK64


def _part(machine: StreamMachine, block: Block, first: Seq, last: Seq) -> tuple[int, int]:
    """Return count and digest of the live messages of a block that lie in a range."""
    from streamd.machine.digest import mix_all

    index = machine.index
    columns = index.blocks.columns(block)
    low, high = columns.position(first), columns.position(last + 1)
    seqs, crcs = list(columns.seqs_between(low, high)), list(columns.crcs[low:high])
    if block.live != block.count:
        is_live = [index.live.has(seq) for seq in seqs]
        seqs, crcs = list(compress(seqs, is_live)), list(compress(crcs, is_live))
    return len(seqs), mix_all(seqs, crcs)
