"""`StreamIndex`: which messages a stream holds, where, and what each subject has.

Blocks are laid out here, not in the store, so replicas write identical files. A stored message
costs 24 bytes in the columns of the newest block and, soon after that is sealed, nothing until its
columns are asked for again (they come back from the block's footer into a small cache). Deleted
seqs are a `SeqSet`; a subject's first and last seq are bounds that are corrected when somebody
asks, because most deletes are never asked about.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from streamd.machine.base import BLOCK_HEADER_BYTES, HAS_HEADERS
from streamd.machine.digest import MASK64, mix64, mix_run
from streamd.machine.indexes import rewriting
from streamd.machine.indexes.columns import Block, Columns
from streamd.machine.indexes.message_locations import (
    COUNT,
    FIRST,
    ID_BLOCK,
    LAST,
    LOCAL_ID,
    SEQS,
    Loc,
    SubjectRow,
)
from streamd.machine.indexes.removal import IndexRemoval
from streamd.machine.indexes.seqset import SeqSet
from streamd.machine.indexes.subject_names import SubjectNames
from streamd.types import Msg, Seq

__all__ = ["Loc", "StreamIndex"]


class StreamIndex(IndexRemoval):
    """Index of a stream's messages. Owned and changed by its StreamMachine only."""

    # --- storing --------------------------------------------------------------------------------

    def append(
        self,
        *,
        first_ts: int,
        msgs: Sequence[Msg],
        lengths: list[int],
        crcs: list[int],
        flags: list[int] | None = None,
    ) -> Seq:
        """Record that `msgs` were stored, one ns apart, with the seqs after `last_seq`; their
        records, of these lengths and crcs, go to the end of the active block. Returns the first
        of the seqs."""
        block = self.active
        columns = block.columns
        assert columns is not None and not block.is_sealed, block.block_no
        count = len(lengths)
        first = self.last_seq + 1
        if not block.count:
            block.first_seq = columns.first_seq = first
            block.first_ts = columns.base_ts = first_ts
            self._starts[-1] = first
        elif columns.seqs is not None or first != block.last_seq + 1:
            columns.use_gaps()
        if columns.seqs is not None:
            columns.seqs.extend(range(first, first + count))
        if count == 1:
            size, mixed = self._append_row(block, columns, first_ts, lengths[0], crcs[0], flags)
        else:
            size, mixed = self._append_rows(block, columns, first_ts, lengths, crcs, flags)
        self.digest = (self.digest + mixed) & MASK64
        block.digest = (block.digest + mixed) & MASK64
        if not self.count:
            self.first_seq = first
            self.deleted.clear()
        self._enter_subjects(msgs, first, block.block_no, columns)
        self.last_seq = block.last_seq = first + count - 1
        self.last_ts = block.last_ts = first_ts + count - 1
        self.count += count
        self.bytes += size
        block.count += count
        block.live += count
        return first

    def _append_rows(
        self,
        block: Block,
        columns: Columns,
        first_ts: int,
        lengths: list[int],
        crcs: list[int],
        flags: list[int] | None,
    ) -> tuple[int, int]:
        """Fill the columns; return what the messages count in bytes and in the digest."""
        count = len(lengths)
        record_bytes = sum(lengths)
        offsets = list(accumulate(lengths, initial=block.end_offset))
        block.end_offset = columns.end_offset = offsets.pop()
        columns.offsets.extend(offsets)
        size = record_bytes - self._size_less * count
        if flags is not None:
            columns.has_flags = True
            with_headers = flags.count(HAS_HEADERS)  # most have this flag or none
            if with_headers < count:
                with_headers = sum(1 for flag in flags if flag & HAS_HEADERS)
            size += self._header_extra * with_headers
            lengths = [length | flag for length, flag in zip(lengths, flags, strict=True)]
        columns.lengths.extend(lengths)
        delta = first_ts - columns.base_ts
        columns.ts_deltas.extend(range(delta, delta + count))
        columns.crcs.extend(crcs)
        return size, mix_run(self.last_seq + 1, crcs)

    def _append_row(
        self,
        block: Block,
        columns: Columns,
        ts: int,
        length: int,
        crc: int,
        flags: list[int] | None,
    ) -> tuple[int, int]:
        """`_append_rows` for one: publishers that wait for each ack send them so."""
        size = length - self._size_less
        columns.offsets.append(block.end_offset)
        block.end_offset = columns.end_offset = block.end_offset + length
        if flags is not None:
            columns.has_flags = True
            if flags[0] & HAS_HEADERS:
                size += self._header_extra
            length |= flags[0]
        columns.lengths.append(length)
        columns.ts_deltas.append(ts - columns.base_ts)
        columns.crcs.append(crc)
        return size, mix64(self.last_seq + 1, crc)

    def _enter_subjects(
        self, msgs: Sequence[Msg], first: Seq, block_no: int, columns: Columns
    ) -> None:
        seq = first
        get = self.subjects.get
        add_id = columns.subject_ids.append
        if not self.tracks_seqs:
            for subject, _, _ in msgs:
                row = get(subject)
                if row is None or row[3] != block_no:
                    row = self._enter(subject, row, seq)
                row[1] = seq
                row[2] += 1
                add_id(row[4])
                seq += 1
            return
        for subject, _, _ in msgs:
            row = get(subject)
            if row is None or row[ID_BLOCK] != block_no:
                row = self._enter(subject, row, seq)
            if row[COUNT]:
                if row[SEQS] is None:
                    row[SEQS] = [row[LAST]]
                row[SEQS].append(seq)
            row[LAST] = seq
            row[COUNT] += 1
            add_id(row[LOCAL_ID])
            seq += 1

    def _enter(self, subject: bytes, row: SubjectRow | None, seq: Seq) -> SubjectRow:
        """Give `subject` an id in the active block, and a row if it has none."""
        local = self._ids.get(subject)
        if local is None:
            columns = self.active.columns
            assert columns is not None
            local = self._ids[subject] = len(columns.subjects)
            columns.subjects.append(subject)
        if row is None:
            row = self.subjects[subject] = [seq, 0, 0, self.active.block_no, local, None]
            if self.names.is_asked:
                self.names.note(subject)
        else:
            row[ID_BLOCK] = self.active.block_no
            row[LOCAL_ID] = local
        return row

    def skip(self, first: Seq, last: Seq) -> None:
        """Use up the seqs first..last without a message (`first` is last_seq + 1)."""
        assert first == self.last_seq + 1 and last >= first, (first, last, self.last_seq)
        self.last_seq = last
        if self.count:
            self.deleted.add_range(first, last)
        else:
            self.first_seq = last + 1

    def reserve(self, length: int) -> int:
        """Give `length` bytes at the end of the active block to a record that is no message.
        Returns their offset."""
        offset = self.active.end_offset
        self.active.end_offset = offset + length
        assert self.active.columns is not None
        self.active.columns.end_offset = offset + length
        return offset

    def is_block_full(self) -> bool:
        """True when the next message belongs into a new block."""
        return self.active.end_offset >= self.block_bytes

    def roll(self) -> tuple[Block, bytes]:
        """Seal the active block and begin the next. Returns the sealed block and its footer."""
        sealed = self.active
        columns = sealed.columns
        assert columns is not None
        footer = self._codec.encode_footer(columns)
        sealed.is_sealed = True
        self._just_made.append(sealed)
        if not sealed.live:
            self.has_dead_blocks = True
        fresh = Block(sealed.block_no + 1)
        fresh.columns = Columns()
        self.blocks.append(fresh)
        self._starts.append(self.last_seq + 1)
        self.active = fresh
        self._ids = {}
        return sealed, footer

    def take_dead_blocks(self) -> list[int]:
        """Forget sealed blocks without a live message and return their numbers."""
        if not self.has_dead_blocks:
            return []
        self.has_dead_blocks = False
        dead = [block.block_no for block in self.blocks if block.is_sealed and not block.live]
        if dead:
            gone = set(dead)
            self.blocks = [block for block in self.blocks if block.block_no not in gone]
            self._starts = [block.first_seq for block in self.blocks[:-1]]
            self._starts.append(self.active.first_seq or self.last_seq + 1)
            for block_no in dead:
                self._cache.drop(self._cache_key, block_no)
        return dead

    def rewrite(
        self, block_nos: list[int], ranges: list[Seq], size: int, made_no: int
    ) -> tuple[Block, bytes] | None:
        """Put one block with the messages of `ranges`, whose records are `size` bytes, in the place
        of the neighbouring sealed blocks `block_nos`. Returns it with its footer. None, and nothing
        changed: these blocks are not there, or the ranges are not all that is live in them."""
        at = next((i for i, b in enumerate(self.blocks) if b.block_no == block_nos[0]), 0)
        old = self.blocks[at : at + len(block_nos)]
        if [block.block_no for block in old] != block_nos or not old[-1].is_sealed:
            return None
        parts = []
        for block in old:
            columns = self._columns(block)
            parts.append((block, columns, rewriting.rows_of(columns, block, ranges)))
        wanted = sum(ranges[1::2]) - sum(ranges[::2]) + len(ranges) // 2
        if not wanted or sum(len(rows) for _, _, rows in parts) != wanted:
            return None
        made, columns = rewriting.merged(made_no, parts)
        made.digest &= MASK64
        if made.end_offset - BLOCK_HEADER_BYTES != size:
            return None
        seqs = columns.seqs_between(0, made.count)
        if sum(map(self.is_live, seqs)) != made.live:
            return None
        self.blocks[at : at + len(old)] = [made]
        self._starts[at : at + len(old)] = [made.first_seq]
        for block in old:
            block.live = 0  # whoever still holds it must know that its file will go
            self._cache.drop(self._cache_key, block.block_no)
        made.columns = columns
        self._just_made.append(made)
        return made, self._codec.encode_footer(columns)

    def settle(self) -> None:
        """Release the columns of blocks that earlier entries sealed: the store has them by now."""
        for block in self._just_made:
            assert block.columns is not None
            self._cache.put_sealed(self._cache_key, block.block_no, block.columns)
            block.columns = None
        self._just_made.clear()

    # --- the lists of seqs ----------------------------------------------------------------------

    def track_seqs(self, is_on: bool) -> None:
        """Begin or end to keep the list of each subject's seqs (small per-subject limits)."""
        if is_on == self.tracks_seqs:
            return
        self.tracks_seqs = is_on
        for row in self.subjects.values():
            row[SEQS] = None
        if is_on:
            self._relist()

    def _relist(self) -> None:
        """Fill the lists. Where every subject has one message, as in a bucket that is to remember
        more from now on, nothing is read for it."""
        lists: dict[bytes, list[Seq]] = {
            name: []
            for name, row in self.subjects.items()
            if row[COUNT] > 1 or not self.is_live(row[LAST])
        }
        if not lists:
            return
        for seq, subject in self.live_subjects():
            if subject in lists:
                lists[subject].append(seq)
        for name, held in lists.items():
            row = self.subjects[name]
            row[FIRST], row[LAST] = held[0], held[-1]
            row[SEQS] = held if len(held) > 1 else None

    # --- persistence ----------------------------------------------------------------------------

    def to_state(self) -> list[Any]:
        """Return the state for the snapshot: everything that is not in the blocks."""
        return [
            self.first_seq,
            self.last_seq,
            self.count,
            self.bytes,
            self.digest,
            self.last_ts,
            self.deleted.to_state(),
            [block.to_state() for block in self.blocks],
        ]

    def to_cache(self) -> list[Any]:
        """Return a cache of what the blocks say as well: subjects and newest columns."""
        names = list(self.subjects)
        rows = list(self.subjects.values())
        active = self.active.columns
        assert active is not None
        return [
            names,
            array("Q", [row[FIRST] for row in rows]).tobytes(),
            array("Q", [row[LAST] for row in rows]).tobytes(),
            array("Q", [row[COUNT] for row in rows]).tobytes(),
            self._codec.encode_footer(active) if self.active.count else b"",
        ]

    def load(self, state: list[Any], cache: list[Any] | None) -> None:
        """Take over `to_state`, and `to_cache` if there is one; else read the blocks."""
        (
            self.first_seq,
            self.last_seq,
            self.count,
            self.bytes,
            self.digest,
            self.last_ts,
            deleted,
            blocks,
        ) = state
        self.deleted = SeqSet.from_state(deleted)
        self.blocks = [Block.from_state(row) for row in blocks]
        self.active = self.blocks[-1]
        self._starts = [block.first_seq for block in self.blocks]
        if not self._starts[-1]:
            self._starts[-1] = self.last_seq + 1
        footer = b""
        if cache is not None:
            names, firsts, lasts, counts, footer = cache
            table = zip(
                names, array("Q", firsts), array("Q", lasts), array("Q", counts), strict=True
            )
            self.subjects = {name: [f, z, n, 0, 0, None] for name, f, z, n in table}
        self._load_active(footer)
        if cache is None:
            self._rebuild_subjects()
        self.names = SubjectNames(self.subjects)

    def _load_active(self, footer: bytes) -> None:
        block = self.active
        if footer:
            columns = Columns.from_view(self._codec.decode_footer(footer))
        elif block.count:
            assert self.rescan is not None
            columns = self.rescan(block.block_no, block.end_offset)
        else:
            columns = Columns()
        columns.end_offset = block.end_offset
        assert len(columns) == block.count, (block.block_no, len(columns), block.count)
        columns.subjects = list(columns.subjects)  # more will come
        block.columns = columns
        self._ids = {name: local for local, name in enumerate(columns.subjects)}

    def _rebuild_subjects(self) -> None:
        table: dict[bytes, SubjectRow] = {}
        for block in self.blocks:
            if not block.live:
                continue
            columns = self._columns(block)
            names = list(columns.subjects)
            rows: list[SubjectRow | None] = [None] * len(names)  # by local id
            pairs = zip(columns.subject_ids, columns.seqs_between(0, len(columns)), strict=True)
            for local, seq in pairs:
                if block.live < block.count and not self.is_live(seq):
                    continue
                row = rows[local]
                if row is None:
                    row = table.get(names[local])
                    if row is None:
                        row = table[names[local]] = [seq, seq, 0, 0, 0, None]
                    rows[local] = row
                row[LAST] = seq
                row[COUNT] += 1
        self.subjects = table
        assert sum(row[COUNT] for row in table.values()) == self.count, self.count
