"""One batch of the log: appends that waited, as records for one write.

Who writes gathers and writes it; the event loop then reads from it which entries are where, and
tells who waits.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from streamd.store.wal import wal_format as wf
from streamd.types import Buffer, Entry, HardState, Index, Term, Uid

WalWrite: TypeAlias = tuple[Uid, list[Entry], HardState | None, Index]
"""(group, entries, hard state to remember, index from which older entries are void or 0)."""

Lazy: TypeAlias = tuple[int, Uid, Index, Term, int]  # record type, group, index, term, chain
Hints: TypeAlias = list[Index]
"""For each write: up to where its group was committed then; 0: not known."""

Append: TypeAlias = tuple[list[WalWrite], Callable[[], None] | None, list[Lazy], Hints]
"""The lazy ones come first."""

Placed: TypeAlias = tuple[Uid, HardState | None, Index, Index, "array[int]", "array[int]", Index]

RESET_MARK = -1  # as the first index of what was placed: here the group was reset
DESTROY_MARK = -2  # or destroyed
_MARKS = {wf.RESET: RESET_MARK, wf.DESTROY: DESTROY_MARK}
_NO_PLACES = array("Q")
_NO_LENGTHS = array("I")


class Batch:
    """What one write says, and what it did. Making one takes what waits, until that is
    `bytes_max` or more."""

    __slots__ = (
        "batch_no",
        "buffers",
        "dones",
        "fd",
        "heads",
        "lazy_count",
        "placed",
        "segment_no",
        "size",
        "start",
        "taken",
    )

    def __init__(self, waiting: deque[Append], bytes_max: int) -> None:
        # For who writes.
        self.buffers: list[Buffer] = [b""]  # the batch header's place
        self.heads: list[bytes] = []  # of the records: their headers, or all of them
        self.taken: list[tuple[list[WalWrite], list[Lazy], Hints]] = []
        # For the event loop.
        self.batch_no = 0  # 0: nothing was written
        self.segment_no = 0
        self.fd = -1
        self.start = 0  # where the batch starts; places are relative to it
        self.placed: list[Placed] = []  # (group, hard state, truncate_from, first index, ...)
        self.dones: list[Callable[[], None]] = []
        self.lazy_count = 0
        buffers, heads, placed = self.buffers, self.heads, self.placed
        size = wf.BATCH_HEADER_BYTES
        encode = wf.encode_entry_header
        while waiting and size < bytes_max:
            writes, done, lazy, hints = waiting.popleft()
            self.taken.append((writes, lazy, hints))
            if done is not None:
                self.dones.append(done)
            for kind, group, index, term, chain in lazy:
                record = wf.encode_record(kind, group, term=term, index=index, chain=chain)
                buffers.append(record)
                heads.append(record)
                size += wf.RECORD_HEADER_BYTES
                mark = _MARKS.get(kind)
                if mark is not None:
                    placed.append((group, None, 0, mark, _NO_PLACES, _NO_LENGTHS, 0))
            self.lazy_count += len(lazy)
            for (group, entries, hard_state, truncate_from), hint in zip(
                writes, hints, strict=True
            ):
                if hard_state is not None:
                    record = wf.encode_hard_state(group, hard_state)
                    buffers.append(record)
                    heads.append(record)
                    size += len(record)
                if truncate_from:
                    record = wf.encode_record(wf.TRUNCATE, group, term=0, index=truncate_from)
                    buffers.append(record)
                    heads.append(record)
                    size += len(record)
                offsets = array("Q")
                lengths = array("I")
                lag, last = 0, entries[-1] if hint and entries else None
                for entry in entries:
                    payload = entry.data
                    if entry is last:
                        lag = wf.lag_of(entry.index, hint)
                    head = encode(group, entry.term, entry.index, entry.chain, payload, lag)
                    buffers.append(head)
                    heads.append(head)
                    if payload:
                        buffers.append(payload)
                    offsets.append(size)
                    lengths.append(len(payload))
                    size += wf.RECORD_HEADER_BYTES + len(payload)
                first = entries[0].index if entries else 0
                placed.append((group, hard_state, truncate_from, first, offsets, lengths, hint))
        self.size = size
