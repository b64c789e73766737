"""`Locations`: messages of a stream by seq, by time, and block by block."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from streamd import errors
from streamd.machine.base import HAS_HEADERS, LENGTH_MASK
from streamd.machine.indexes.block_table import BlockTable
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.message_sizes import MessageSizes
from streamd.types import Seq

Loc = tuple[Seq, int, int, int]
"""Where a message is: (seq, block_no, offset, length of its record)."""

_SIZES_AT_ONCE: Final = 256  # mostly few are asked for


class Locations:
    """Questions by seq and time; none changes anything."""

    def __init__(self, live: LiveMessages, blocks: BlockTable, sizes: MessageSizes) -> None:
        self._live = live
        self._blocks = blocks
        self._sizes = sizes

    # --- one seq ----------------------------------------------------------------------------------

    def locate(self, seq: Seq) -> Loc | None:
        """Return the location of the live message `seq`; None if there is none."""
        if not self._live.has(seq):
            return None
        block = self._blocks.of(seq)
        columns = self._blocks.columns(block)
        at = columns.position(seq)
        return seq, block.block_no, columns.offsets[at], columns.lengths[at] & LENGTH_MASK

    def subject_at(self, seq: Seq) -> bytes:
        """The subject of the live message `seq`."""
        columns = self._blocks.columns(self._blocks.of(seq))
        subject: bytes = columns.subjects[columns.subject_ids[columns.position(seq)]]
        return subject

    def ts_at(self, seq: Seq) -> int:
        """When the live message `seq` was stored."""
        block = self._blocks.of(seq)
        if seq == block.first_seq:
            return block.first_ts
        columns = self._blocks.columns(block)
        return columns.base_ts + int(columns.ts_deltas[columns.position(seq)])

    def first_ts(self) -> int:
        """When the first live message was stored, 0 if there is none. If its block can't be read:
        when the first in there was."""
        if not self._live.count:
            return 0
        try:
            return self.ts_at(self._live.first_seq)
        except errors.CorruptionError:
            return self._blocks.of(self._live.first_seq).first_ts

    def flags_at(self, seq: Seq) -> int:
        """The flags of the live message `seq` (machine.base: HAS_HEADERS ...)."""
        columns = self._blocks.columns(self._blocks.of(seq))
        return int(columns.lengths[columns.position(seq)]) & ~LENGTH_MASK

    def size_of(self, seq: Seq) -> int:
        """Return the share of the live message `seq` in `bytes`."""
        columns = self._blocks.columns(self._blocks.of(seq))
        return self._sizes.of_record(columns.lengths[columns.position(seq)])

    def crc_at(self, seq: Seq) -> int:
        """Return the crc32c with which the record of the live message `seq` ends."""
        columns = self._blocks.columns(self._blocks.of(seq))
        crc: int = columns.crcs[columns.position(seq)]
        return crc

    def seq_at_place(self, block_no: int, offset: int) -> Seq:
        """The message whose record begins at `offset` of a block of this index."""
        columns = self._blocks.columns(
            next(block for block in self._blocks if block.block_no == block_no)
        )
        return columns.seq_at(bisect_left(columns.offsets, offset))

    # --- the next one -----------------------------------------------------------------------------

    def next_without(self, flag: int, seq: Seq) -> Seq:
        """The first live seq >= `seq` that does not have `flag`; last_seq + 1 if there is none."""
        seq = self._live.first_from(seq)
        while seq <= self._live.last_seq:
            block = self._blocks.of(seq)
            columns = self._blocks.columns(block)
            if not columns.has_flags:
                return seq
            at, count = columns.position(seq), len(columns)
            seqs = columns.seqs_between(at, count)
            for found, length in zip(seqs, columns.lengths[at:], strict=True):
                if not length & flag and self._live.has(found):
                    return found
            seq = self._live.first_from(block.last_seq + 1)
        return seq

    def seq_at_time(self, ts_ns: int) -> Seq:
        """The first live seq stored at or after `ts_ns`; last_seq + 1 if there is none."""
        if not self._live.count or ts_ns > self._live.last_ts:
            return self._live.last_seq + 1
        for block in self._blocks:
            if not block.count or block.last_ts < ts_ns or block.last_seq < self._live.first_seq:
                continue
            if block.first_ts >= ts_ns:
                return self._live.first_from(block.first_seq)
            columns = self._blocks.columns(block)
            at = bisect_left(columns.ts_deltas, ts_ns - columns.base_ts)
            return self._live.first_from(columns.seq_at(at))
        return self._live.last_seq + 1

    # --- all of them ------------------------------------------------------------------------------

    def live_subjects(self) -> Iterator[tuple[Seq, bytes]]:
        """(seq, subject) of every live message, in order. Walks everything: rare."""
        seq = self._live.first_seq
        while seq <= self._live.last_seq:
            rows, seq = self.rows_from(seq, 1 << 62)
            yield from rows

    def rows_from(self, start: Seq, most: int) -> tuple[list[tuple[Seq, bytes]], Seq]:
        """(seq, subject) of the live ones among the `most` stored messages from `start` on, of one
        block at most; and the seq where to go on."""
        seq = max(start, self._live.first_seq)
        block = self._blocks.holding_from(seq) if seq <= self._live.last_seq else None
        if block is None:
            return [], self._live.last_seq + 1
        if not block.live:
            return [], block.last_seq + 1
        columns = self._blocks.columns(block)
        low = columns.position(seq)
        high = min(len(columns), low + most)
        subjects = map(columns.subjects.__getitem__, columns.subject_ids[low:high])
        rows = list(zip(columns.seqs_between(low, high), subjects, strict=True))
        if self._live.lacks_any(columns, low, high):
            rows = [row for row in rows if self._live.has(row[0])]
        return rows, columns.seq_at(high) if high < len(columns) else block.last_seq + 1

    def live_sizes(self) -> Iterator[tuple[Seq, int]]:
        """(seq, what it counts in `bytes`) of every live message, in order."""
        seq = self._live.first_seq
        less, extra = self._sizes.less, self._sizes.header_extra
        while seq <= self._live.last_seq:
            block = self._blocks.holding_from(seq)
            if block is None:
                return
            columns = self._blocks.columns(block)
            low = columns.position(seq)
            high = min(len(columns), low + _SIZES_AT_ONCE)
            seqs = columns.seqs_between(low, high)
            has_deleted = self._live.lacks_any(columns, low, high)
            for seq, length in zip(seqs, columns.lengths[low:high], strict=True):
                if has_deleted and not self._live.has(seq):
                    continue
                if length > LENGTH_MASK:
                    more = extra if length & HAS_HEADERS else 0
                    yield seq, (length & LENGTH_MASK) - less + more
                else:
                    yield seq, length - less
            seq += 1

    def stretch(self, start: Seq, limit: int) -> tuple[Seq, int, int, int, int] | None:
        """Live messages from `start` on whose records seem to be of one length, one behind
        another: (first seq, block_no, offset, record length, count). None if there are none or
        they are hard to tell. Lengths in between are not looked at: who reads them must check.
        """
        seq = max(start, self._live.first_seq)
        block = self._blocks.holding_from(seq) if seq <= self._live.last_seq else None
        if block is None or not block.live:
            return None
        columns = self._blocks.columns(block)
        if columns.seqs is not None:
            return None
        low = columns.position(seq)
        high = min(len(columns), low + limit)
        if self._live.lacks_any(columns, low, high):
            return None
        offsets = columns.offsets
        first = offsets[low]
        length = columns.lengths[low] & LENGTH_MASK
        good, bad = 1, high - low + 1  # that many fit; that many do not
        if offsets[high - 1] - first == (high - low - 1) * length:
            good = high - low
        else:
            while bad - good > 1:
                middle = (good + bad) // 2
                if offsets[low + middle - 1] - first == (middle - 1) * length:
                    good = middle
                else:
                    bad = middle
        return columns.seq_at(low), block.block_no, first, length, good
