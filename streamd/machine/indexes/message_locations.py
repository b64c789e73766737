"""Locations of a stream's messages: by seq, by time, and block by block.

The index's state lives here, in `IndexPlaces`. `lookup.IndexLookup` adds what is asked by subject,
`index.StreamIndex` what changes it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any, Final

from streamd import errors
from streamd.machine.base import HAS_HEADERS, LENGTH_MASK, ColumnSource, RecordCodec
from streamd.machine.indexes.columns import Block, Columns, ColumnsCache
from streamd.machine.indexes.seqset import SeqSet
from streamd.machine.indexes.subject_names import SubjectNames
from streamd.types import Msg, Seq

Loc = tuple[Seq, int, int, int]
"""Where a message is: (seq, block_no, offset, length of its record)."""

_SIZES_AT_ONCE: Final = 256  # mostly few are asked for

# A subject's row: [first, last, count, block its local id belongs to, local id, seqs or None].
# first and last are exact if live, else a lower and an upper bound. Where seqs are listed, last is
# exact, and there is a list of more than one: of a million keys most have one.
FIRST, LAST, COUNT, ID_BLOCK, LOCAL_ID, SEQS = range(6)
SubjectRow = list[Any]
SEQ_LIST_MAX: Final = 256  # per-subject limits up to this keep a list of each subject's seqs

Rescan = Callable[[int, int], Columns]
"""(block_no, end_offset) -> the block's columns read from its records, if its footer is bad."""


class IndexPlaces:
    """The messages of a stream, as seqs."""

    def __init__(
        self,
        *,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int,
        is_memory: bool,
        first_seq: Seq = 1,
    ) -> None:
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.count = 0
        self.bytes = 0
        self.digest = 0
        self.last_ts = 0
        self.deleted = SeqSet()  # not live, between first_seq and last_seq
        self.subjects: dict[bytes, SubjectRow] = {}
        self.names = SubjectNames(self.subjects)
        self.blocks: list[Block] = [Block(1)]
        self.active = self.blocks[0]
        self.active.columns = Columns()
        self.rescan: Rescan | None = None
        self.tracks_seqs = False
        self.has_dead_blocks = False  # sealed ones, to be dropped before the entry ends
        self._codec = codec
        self._source = columns
        self.block_bytes = block_bytes  # from here on the next message begins another
        # What NATS counts for a message, from the length of its record: file 30 + subject +
        # payload (+ 4 + headers), memory 16 + all; a record is 32 + all.
        self._size_less = 16 if is_memory else 2
        self._header_extra = 0 if is_memory else 4
        self._starts: list[Seq] = [0]  # first_seq of each block, for bisect
        self._ids: dict[bytes, int] = {}  # subject -> local id in the active block
        self._cache = ColumnsCache()
        self._cache_key = self._cache.key()
        self._just_made: list[Block] = []  # sealed by the last entry, with their columns
        # While a block is lost: what is live in the others, as (how many, their bytes).
        self._counted: dict[int, tuple[int, int]] = {}

    def use_cache(self, cache: ColumnsCache) -> None:
        """Keep columns in `cache` from now on, together with other streams of this thread. Not from
        the start: recovery runs in another thread."""
        self._cache = cache
        self._cache_key = cache.key()

    # --- one seq ----------------------------------------------------------------------------------

    def is_live(self, seq: Seq) -> bool:
        """True if `seq` is stored and not deleted."""
        return self.first_seq <= seq <= self.last_seq and (
            not self.deleted or seq not in self.deleted
        )

    def locate(self, seq: Seq) -> Loc | None:
        """Return the location of the live message `seq`; None if there is none."""
        if not self.is_live(seq):
            return None
        block = self._block_of(seq)
        columns = self._columns(block)
        at = columns.position(seq)
        return seq, block.block_no, columns.offsets[at], columns.lengths[at] & LENGTH_MASK

    def subject_at(self, seq: Seq) -> bytes:
        """The subject of the live message `seq`."""
        columns = self._columns(self._block_of(seq))
        subject: bytes = columns.subjects[columns.subject_ids[columns.position(seq)]]
        return subject

    def ts_at(self, seq: Seq) -> int:
        """When the live message `seq` was stored."""
        block = self._block_of(seq)
        if seq == block.first_seq:
            return block.first_ts
        columns = self._columns(block)
        return columns.base_ts + int(columns.ts_deltas[columns.position(seq)])

    def first_ts(self) -> int:
        """When the first live message was stored, 0 if there is none. If its block can't be read:
        when the first in there was."""
        if not self.count:
            return 0
        try:
            return self.ts_at(self.first_seq)
        except errors.CorruptionError:
            return self._block_of(self.first_seq).first_ts

    def flags_at(self, seq: Seq) -> int:
        """The flags of the live message `seq` (machine.base: HAS_HEADERS ...)."""
        columns = self._columns(self._block_of(seq))
        return int(columns.lengths[columns.position(seq)]) & ~LENGTH_MASK

    def size_of(self, seq: Seq) -> int:
        """Return the share of the live message `seq` in `bytes`."""
        columns = self._columns(self._block_of(seq))
        length = columns.lengths[columns.position(seq)]
        extra = self._header_extra if length & HAS_HEADERS else 0
        return int(length & LENGTH_MASK) - self._size_less + extra

    def crc_at(self, seq: Seq) -> int:
        """Return the crc32c with which the record of the live message `seq` ends."""
        columns = self._columns(self._block_of(seq))
        crc: int = columns.crcs[columns.position(seq)]
        return crc

    def size_as_stored(self, msg: Msg) -> int:
        """Return the share that `msg` will have in `bytes`."""
        subject, headers, payload = msg
        extra = self._header_extra if headers else 0
        fixed = 32 - self._size_less
        return fixed + len(subject) + len(headers) + len(payload) + extra

    def seq_at_place(self, block_no: int, offset: int) -> Seq:
        """The message whose record begins at `offset` of a block of this index."""
        columns = self._columns(next(block for block in self.blocks if block.block_no == block_no))
        return columns.seq_at(bisect_left(columns.offsets, offset))

    # --- the next one -----------------------------------------------------------------------------

    def next_live(self, seq: Seq) -> Seq:
        """The first live seq >= `seq`; last_seq + 1 if there is none."""
        if seq <= self.first_seq:
            return self.first_seq
        if seq > self.last_seq:
            return self.last_seq + 1
        return self.deleted.next_absent(seq) if self.deleted else seq

    def next_without(self, flag: int, seq: Seq) -> Seq:
        """The first live seq >= `seq` that does not have `flag`; last_seq + 1 if there is none."""
        seq = self.next_live(seq)
        while seq <= self.last_seq:
            block = self._block_of(seq)
            columns = self._columns(block)
            if not columns.has_flags:
                return seq
            at, count = columns.position(seq), len(columns)
            seqs = columns.seqs_between(at, count)
            for found, length in zip(seqs, columns.lengths[at:], strict=True):
                if not length & flag and self.is_live(found):
                    return found
            seq = self.next_live(block.last_seq + 1)
        return seq

    def seq_at_time(self, ts_ns: int) -> Seq:
        """The first live seq stored at or after `ts_ns`; last_seq + 1 if there is none."""
        if not self.count or ts_ns > self.last_ts:
            return self.last_seq + 1
        for block in self.blocks:
            if not block.count or block.last_ts < ts_ns or block.last_seq < self.first_seq:
                continue
            if block.first_ts >= ts_ns:
                return self.next_live(block.first_seq)
            columns = self._columns(block)
            at = bisect_left(columns.ts_deltas, ts_ns - columns.base_ts)
            return self.next_live(columns.seq_at(at))
        return self.last_seq + 1

    # --- all of them ------------------------------------------------------------------------------

    def live_seqs(self, first: Seq, last: Seq) -> Iterator[Seq]:
        """Live seqs in first..last inclusive, ascending."""
        seq = self.next_live(first)
        last = min(last, self.last_seq)
        if not self.deleted:
            yield from range(seq, last + 1)
            return
        while seq <= last:
            yield seq
            seq = self.next_live(seq + 1)

    def live_subjects(self) -> Iterator[tuple[Seq, bytes]]:
        """(seq, subject) of every live message, in order. Walks everything: rare."""
        seq = self.first_seq
        while seq <= self.last_seq:
            rows, seq = self.rows_from(seq, 1 << 62)
            yield from rows

    def rows_from(self, start: Seq, most: int) -> tuple[list[tuple[Seq, bytes]], Seq]:
        """(seq, subject) of the live ones among the `most` stored messages from `start` on, of one
        block at most; and the seq where to go on."""
        seq = max(start, self.first_seq)
        block = self._block_from(seq) if seq <= self.last_seq else None
        if block is None:
            return [], self.last_seq + 1
        if not block.live:
            return [], block.last_seq + 1
        columns = self._columns(block)
        low = columns.position(seq)
        high = min(len(columns), low + most)
        subjects = map(columns.subjects.__getitem__, columns.subject_ids[low:high])
        rows = list(zip(columns.seqs_between(low, high), subjects, strict=True))
        if self._has_deleted(columns, low, high):
            rows = [row for row in rows if self.is_live(row[0])]
        return rows, columns.seq_at(high) if high < len(columns) else block.last_seq + 1

    def live_sizes(self) -> Iterator[tuple[Seq, int]]:
        """(seq, what it counts in `bytes`) of every live message, in order."""
        seq = self.first_seq
        less, extra = self._size_less, self._header_extra
        while seq <= self.last_seq:
            block = self._block_from(seq)
            if block is None:
                return
            columns = self._columns(block)
            low = columns.position(seq)
            high = min(len(columns), low + _SIZES_AT_ONCE)
            seqs = columns.seqs_between(low, high)
            has_deleted = self._has_deleted(columns, low, high)
            for seq, length in zip(seqs, columns.lengths[low:high], strict=True):
                if has_deleted and not self.is_live(seq):
                    continue
                if length > LENGTH_MASK:
                    more = extra if length & HAS_HEADERS else 0
                    yield seq, (length & LENGTH_MASK) - less + more
                else:
                    yield seq, length - less
            seq += 1

    def unreadable_bytes(self, seqs: list[Seq], *, count_max: int) -> int | None:
        """Return what the live messages `seqs` count in `bytes`; of a block whose columns are lost
        too, all its live messages count: what every other message leaves of `bytes`.

        For that the other blocks are read once. None: they hold more than `count_max` messages
        that were not counted yet; asked again, this goes on from there.
        """
        found = 0
        lost: set[int] = set()
        for seq in seqs:
            block_no = self._block_of(seq).block_no
            if block_no not in lost:
                try:
                    found += self.size_of(seq)
                except errors.StreamdError:
                    lost.add(block_no)
        if not lost:
            self._counted.clear()
            return found
        kept = self._counted
        self._counted = {}
        others = 0
        is_whole = True
        for block in self.blocks:
            if block.block_no in lost or not block.live:
                continue
            known = kept.get(block.block_no)
            if known is None or known[0] != block.live or not block.is_sealed:
                if count_max <= 0:
                    is_whole = False
                    continue
                count_max -= block.count
                try:
                    known = block.live, self._live_bytes(block)
                except errors.StreamdError:
                    continue  # lost as well
            self._counted[block.block_no] = known
            others += known[1]
        return found + self.bytes - others if is_whole else None

    def _live_bytes(self, block: Block) -> int:
        """Return the share of the live messages of `block` in `bytes`."""
        columns = self._columns(block)
        flags = columns.lengths
        if block.live < len(columns):
            seqs = columns.seqs_between(0, len(columns))
            flags = array("I", compress(flags, map(self.is_live, seqs)))
        headers = sum(1 for length in flags if length & HAS_HEADERS) if columns.has_flags else 0
        lengths = (length & LENGTH_MASK for length in flags) if columns.has_flags else flags
        return sum(lengths) - self._size_less * len(flags) + self._header_extra * headers

    def deleted_ranges(self) -> Iterator[tuple[Seq, Seq]]:
        """Deleted seqs between first_seq and last_seq, as ascending inclusive ranges."""
        return self.deleted.ranges()

    def deleted_page(self, offset: int, size: int) -> list[Seq]:
        """Up to `size` deleted seqs between first_seq and last_seq, behind `offset` of them."""
        return self.deleted.page(offset, size)

    def stretch(self, start: Seq, limit: int) -> tuple[Seq, int, int, int, int] | None:
        """Live messages from `start` on whose records seem to be of one length, one behind
        another: (first seq, block_no, offset, record length, count). None if there are none or
        they are hard to tell. Lengths in between are not looked at: who reads them must check.
        """
        seq = max(start, self.first_seq)
        block = self._block_from(seq) if seq <= self.last_seq else None
        if block is None or not block.live:
            return None
        columns = self._columns(block)
        if columns.seqs is not None:
            return None
        low = columns.position(seq)
        high = min(len(columns), low + limit)
        if self._has_deleted(columns, low, high):
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

    # --- blocks and their columns -----------------------------------------------------------------

    def columns_of(self, block: Block) -> Columns:
        """The columns of a block of this index."""
        return self._columns(block)

    def _block_of(self, seq: Seq) -> Block:
        """The block that holds the stored `seq`."""
        return self.blocks[bisect_right(self._starts, seq) - 1]

    def _block_from(self, seq: Seq) -> Block | None:
        """The block with the first stored seq >= `seq`."""
        at = max(bisect_right(self._starts, seq) - 1, 0)
        while at < len(self.blocks):
            block = self.blocks[at]
            if block.count and block.last_seq >= seq:
                return block
            at += 1
        return None

    def _columns(self, block: Block) -> Columns:
        """The columns of `block`, from memory or its footer."""
        if block.columns is not None:
            return block.columns
        columns = self._cache.get(self._cache_key, block.block_no)
        if columns is None:
            try:
                columns = self._read_columns(block)
            except errors.CorruptionError as err:
                err.block_no = block.block_no
                raise
            self._cache.put(self._cache_key, block.block_no, columns)
        return columns

    def _read_columns(self, block: Block) -> Columns:
        try:
            view = self._codec.decode_footer(self._source.load_footer(block.block_no))
        except errors.CorruptionError:
            # The footer is a copy of what the records say, and each record has its own crc.
            if self.rescan is None:
                raise
            columns = self.rescan(block.block_no, block.end_offset)
        else:
            columns = Columns.from_view(view)
        if len(columns) != block.count:
            raise errors.CorruptionError(
                f"block {block.block_no}: {len(columns)} messages, expected {block.count}"
            )
        return columns

    def _has_deleted(self, columns: Columns, low: int, high: int) -> bool:
        """True if any row of low..high-1 is not live."""
        if low >= high:
            return False
        first = columns.seq_at(low)
        if first < self.first_seq:
            return True
        return bool(self.deleted) and self.deleted.has_any(first, columns.seq_at(high - 1))
