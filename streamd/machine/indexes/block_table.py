"""`BlockTable`: the blocks of a stream in seq order, and the columns of their messages.

Blocks are laid out here, not in the store, so replicas write identical files. The last block is the
active one: messages are appended to it until it is full, and then it is sealed. Columns of a sealed
block are in memory until the next entry, then in a cache, else they come back from its footer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import overload

from streamd import errors
from streamd.machine.base import ColumnSource, RecordCodec
from streamd.machine.digest import MASK64, mix64, mix_run
from streamd.machine.indexes.columns import Block, Columns, ColumnsCache
from streamd.types import Seq

Rescan = Callable[[int, int], Columns]
"""(block_no, end_offset) -> the block's columns read from its records, if its footer is bad."""


class BlockTable(Sequence[Block]):
    """Blocks of one stream. Changed by `StreamIndex` and the stream's machine alone."""

    def __init__(
        self, *, codec: RecordCodec, source: ColumnSource, block_bytes: int, first_seq: Seq
    ) -> None:
        self.active = Block(1)
        self.active.columns = Columns()
        self.rescan: Rescan | None = None
        self.has_dead = False  # sealed ones without a live message, to be dropped with the entry
        self.block_bytes = block_bytes  # from here on the next message begins another
        self._rows: list[Block] = [self.active]
        # The first seq of each block, for bisect; of an empty one the next seq, or one before it.
        self._starts: list[Seq] = [first_seq]
        self._codec = codec
        self._source = source
        self._cache = ColumnsCache()
        self._cache_key = self._cache.key()
        self._just_made: list[Block] = []  # sealed by the last entry, with their columns

    def use_cache(self, cache: ColumnsCache) -> None:
        """Keep columns in `cache` from now on, together with other streams of this thread. Not from
        the start: recovery runs in another thread."""
        self._cache = cache
        self._cache_key = cache.key()

    # --- which block ------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Block: ...
    @overload
    def __getitem__(self, at: slice) -> list[Block]: ...
    def __getitem__(self, at: int | slice) -> Block | list[Block]:
        return self._rows[at]

    def __iter__(self) -> Iterator[Block]:
        return iter(self._rows)

    def __reversed__(self) -> Iterator[Block]:
        return reversed(self._rows)

    def of(self, seq: Seq) -> Block:
        """Return the block that holds the stored `seq`."""
        return self._rows[bisect_right(self._starts, seq) - 1]

    def holding_from(self, seq: Seq) -> Block | None:
        """Return the block with the first stored seq >= `seq`."""
        rows = self._rows
        at = max(bisect_right(self._starts, seq) - 1, 0)
        while at < len(rows):
            block = rows[at]
            if block.count and block.last_seq >= seq:
                return block
            at += 1
        return None

    # --- columns ----------------------------------------------------------------------------------

    def columns(self, block: Block) -> Columns:
        """Return the columns of a block of this table, from memory or its footer."""
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

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        first: Seq,
        first_ts: int,
        lengths: list[int],
        crcs: list[int],
        flags: list[int] | None,
        tss: Sequence[int] | None = None,
    ) -> int:
        """Append to the active block the rows of messages with the seqs from `first` on, one ns
        apart or at the times `tss`; all but their subjects. Returns their share in the digest."""
        block = self.active
        columns = block.columns
        assert columns is not None and not block.is_sealed, block.block_no
        count = len(lengths)
        if not block.count:
            block.first_seq = columns.first_seq = first
            block.first_ts = columns.base_ts = first_ts
            self._starts[-1] = first
        elif columns.seqs is not None or first != block.last_seq + 1:
            columns.use_gaps()
        if columns.seqs is not None:
            columns.seqs.extend(range(first, first + count))
        if flags is not None:
            columns.has_flags = True
        if count == 1 and tss is None:  # publishers that wait for each ack send them so
            length = lengths[0]
            columns.offsets.append(block.end_offset)
            block.end_offset += length
            columns.lengths.append(length if flags is None else length | flags[0])
            columns.ts_deltas.append(first_ts - columns.base_ts)
            columns.crcs.append(crcs[0])
            mixed = mix64(first, crcs[0])
        else:
            offsets = list(accumulate(lengths, initial=block.end_offset))
            block.end_offset = offsets.pop()
            columns.offsets.extend(offsets)
            if flags is not None:
                lengths = [length | flag for length, flag in zip(lengths, flags, strict=True)]
            columns.lengths.extend(lengths)
            delta = first_ts - columns.base_ts
            if tss is None:
                columns.ts_deltas.extend(range(delta, delta + count))
            else:
                base_ts = columns.base_ts
                columns.ts_deltas.extend([ts - base_ts for ts in tss])
            columns.crcs.extend(crcs)
            mixed = mix_run(first, crcs)
        columns.end_offset = block.end_offset
        block.digest = (block.digest + mixed) & MASK64
        block.last_seq = first + count - 1
        block.last_ts = first_ts + count - 1 if tss is None else tss[-1]
        block.count += count
        block.live += count
        return mixed

    def reserve(self, length: int) -> int:
        """Give `length` bytes at the end of the active block to a record that is no message.
        Returns their offset."""
        offset = self.active.end_offset
        self.active.end_offset = offset + length
        assert self.active.columns is not None
        self.active.columns.end_offset = offset + length
        return offset

    def is_full(self) -> bool:
        """True when the next message belongs into a new block."""
        return self.active.end_offset >= self.block_bytes

    def roll(self, next_seq: Seq) -> tuple[Block, bytes]:
        """Seal the active block and begin the next, with `next_seq` or a later one. Returns the
        sealed block and its footer."""
        sealed = self.active
        footer = self.active_footer()
        assert sealed.columns is not None
        sealed.columns.close()
        sealed.is_sealed = True
        self._just_made.append(sealed)
        if not sealed.live:
            self.has_dead = True
        fresh = Block(sealed.block_no + 1)
        fresh.columns = Columns()
        self._rows.append(fresh)
        self._starts.append(next_seq)
        self.active = fresh
        return sealed, footer

    def active_footer(self) -> bytes:
        """Return the footer that the active block would have if it were sealed now."""
        assert self.active.columns is not None
        return self._codec.encode_footer(self.active.columns)

    def settle(self) -> None:
        """Release the columns of blocks that earlier entries sealed: the store has them by now."""
        for block in self._just_made:
            assert block.columns is not None
            self._cache.put_sealed(self._cache_key, block.block_no, block.columns)
            block.columns = None
        self._just_made.clear()

    # --- removal ----------------------------------------------------------------------------------

    def subtract(self, block: Block, count: int, digest: int) -> None:
        """Take `count` messages of a block, with this share in the digest, out of what lives."""
        block.digest = (block.digest - digest) & MASK64
        block.live -= count
        if not block.live and block.is_sealed:
            self.has_dead = True

    def clear(self) -> None:
        """Note that no message of any block is live any more."""
        for block in self._rows:
            block.live = block.digest = 0
        self.has_dead = True

    def take_dead(self) -> list[int]:
        """Forget sealed blocks without a live message and return their numbers."""
        if not self.has_dead:
            return []
        self.has_dead = False
        dead = [block.block_no for block in self._rows if block.is_sealed and not block.live]
        if dead:
            gone = set(dead)
            self._rows = [block for block in self._rows if block.block_no not in gone]
            self._starts[:-1] = [block.first_seq for block in self._rows[:-1]]
            for block_no in dead:
                self._cache.drop(self._cache_key, block_no)
        return dead

    # --- rewriting --------------------------------------------------------------------------------

    def neighbours(self, block_nos: list[int]) -> list[Block]:
        """Return the sealed blocks of these numbers if they are there, one behind another; else
        none."""
        at = next((i for i, b in enumerate(self._rows) if b.block_no == block_nos[0]), 0)
        found = self._rows[at : at + len(block_nos)]
        if [block.block_no for block in found] != block_nos or not found[-1].is_sealed:
            return []
        return found

    def replace(self, old: list[Block], made: Block, columns: Columns) -> bytes:
        """Put `made` in the place of the neighbours `old`. Returns its footer."""
        at = self._rows.index(old[0])
        self._rows[at : at + len(old)] = [made]
        self._starts[at : at + len(old)] = [made.first_seq]
        for block in old:
            block.live = 0  # whoever still holds it must know that its file will go
            self._cache.drop(self._cache_key, block.block_no)
        made.columns = columns
        self._just_made.append(made)
        return self._codec.encode_footer(columns)

    # --- persistence ------------------------------------------------------------------------------

    def to_state(self) -> list[list[int]]:
        """Return the rows of all blocks for the snapshot."""
        return [block.to_state() for block in self._rows]

    def load(self, state: list[list[int]], footer: bytes, next_seq: Seq) -> None:
        """Take over the rows of all blocks (`Block.to_state`). The columns of the active one come
        from `active_footer`, or if there is none, from its records."""
        self._rows = [Block.from_state(row) for row in state]
        self.active = block = self._rows[-1]
        self._starts = [each.first_seq for each in self._rows]
        if not self._starts[-1]:
            self._starts[-1] = next_seq
        if footer:
            columns = Columns.from_view(self._codec.decode_footer(footer))
        elif block.count:
            assert self.rescan is not None
            columns = self.rescan(block.block_no, block.end_offset)
        else:
            columns = Columns()
        columns.end_offset = block.end_offset
        assert len(columns) == block.count, (block.block_no, len(columns), block.count)
        columns.reopen()
        block.columns = columns
