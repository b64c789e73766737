"""Removal of messages from a stream's index: one by one, many of a block at once, or all.

What is removed leaves the counts, the digest and the bounds of its subject; its bytes stay in the
block until all of that is dead. All ways end in the same state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from operator import lt
from typing import Any, Final

from streamd.machine.base import HAS_HEADERS, LENGTH_MASK
from streamd.machine.digest import MASK64, mix64, mix_all, mix_run
from streamd.machine.indexes.columns import Block, Columns
from streamd.machine.indexes.lookup import IndexLookup
from streamd.machine.indexes.message_locations import COUNT, FIRST, LAST, SEQS, SubjectRow
from streamd.types import Seq

_FEW: Final = 8  # are removed one by one

Gone = tuple[list[Seq], list[bytes], list[int]]
"""What was removed: seqs, their subjects, and their flags."""


class IndexRemoval(IndexLookup):
    """The half of `StreamIndex` that removes."""

    def remove(self, seqs: Sequence[Seq]) -> Gone:
        """Remove the live ones among `seqs`; many at once are fastest if they ascend."""
        count = len(seqs)
        if count > 3 and seqs[0] == self.first_seq:
            first, last = seqs[0], seqs[-1]
            is_run = last - first == count - 1 and last <= self.last_seq
            if is_run and list(seqs) == list(range(first, last + 1)):
                if not self.deleted.has_any(first, last):
                    return self._remove_front(first, last)
        if count > _FEW and all(map(lt, seqs[:-1], seqs[1:])):
            return self._remove_many(seqs)
        gone: list[Seq] = []
        subjects: list[bytes] = []
        flags: list[int] = []
        block: Block | None = None
        columns: Columns | None = None
        for seq in seqs:
            if not self.is_live(seq):
                continue
            if block is None or columns is None or not block.first_seq <= seq <= block.last_seq:
                block = self._block_of(seq)
                columns = self._columns(block)
            at = columns.position(seq)
            subject = columns.subjects[columns.subject_ids[at]]
            length = columns.lengths[at]
            size = (length & LENGTH_MASK) - self._size_less
            if length & HAS_HEADERS:
                size += self._header_extra
            self.bytes -= size
            self.count -= 1
            mixed = mix64(seq, columns.crcs[at])
            self.digest = (self.digest - mixed) & MASK64
            block.digest = (block.digest - mixed) & MASK64
            block.live -= 1
            if not block.live and block.is_sealed:
                self.has_dead_blocks = True
            row = self.subjects[subject]
            row[COUNT] -= 1
            if not row[COUNT]:
                del self.subjects[subject]
            elif row[SEQS] is not None:
                row[SEQS].remove(seq)
                _note_bounds(row)
            elif row[COUNT] == 1 and row[LAST] > seq and self.is_live(row[LAST]):
                row[FIRST] = row[LAST]  # else the next one to ask would have to look for it
            if seq == self.first_seq:
                self.first_seq = self.deleted.next_absent(seq + 1)
                if self.deleted:
                    self.deleted.discard_below(self.first_seq)
            else:
                self.deleted.add(seq)
            gone.append(seq)
            subjects.append(subject)
            flags.append(length & ~LENGTH_MASK)
        if gone and not self.count:
            self.first_seq = self.last_seq + 1
            self.deleted.clear()
        return gone, subjects, flags

    def _remove_many(self, seqs: Sequence[Seq]) -> Gone:
        """`remove` of ascending seqs, block by block."""
        gone: Gone = ([], [], [])
        end = bisect_right(seqs, self.last_seq)
        # What was removed moves the first seq, also over what was removed long before.
        at = bisect_left(seqs, self.first_seq)
        while at < end:
            block = self._block_of(seqs[at])
            until = max(at + 1, bisect_right(seqs, block.last_seq, at, end))
            deleted = self.deleted
            mine: Sequence[Seq] = seqs[at:until]
            if deleted.has_any(mine[0], mine[-1]):
                mine = [seq for seq in mine if seq not in deleted]
            if mine:
                self._remove_rows(block, self._columns(block), mine, gone)
            at = bisect_left(seqs, self.first_seq, until, end)
        if gone[0] and not self.count:
            self.first_seq = self.last_seq + 1
            self.deleted.clear()
        return gone

    def _remove_rows(self, block: Block, columns: Columns, seqs: Sequence[Seq], gone: Gone) -> None:
        """Remove live messages of one block; add them to `gone`."""
        rows = columns.rows_of(seqs)
        lengths: list[int] = list(map(columns.lengths.__getitem__, rows))
        if columns.has_flags:
            flags = [length & ~LENGTH_MASK for length in lengths]
            lengths = [length & LENGTH_MASK for length in lengths]
            self.bytes -= self._header_extra * sum(1 for flag in flags if flag & HAS_HEADERS)
        else:
            flags = [0] * len(rows)
        self.bytes -= sum(lengths) - self._size_less * len(rows)
        self.count -= len(rows)
        block.live -= len(rows)
        if not block.live and block.is_sealed:
            self.has_dead_blocks = True
        mixed = mix_all(seqs, list(map(columns.crcs.__getitem__, rows)))
        self.digest = (self.digest - mixed) & MASK64
        block.digest = (block.digest - mixed) & MASK64
        self.deleted.add_all(seqs)
        if seqs[0] == self.first_seq:
            self.first_seq = self.deleted.next_absent(seqs[0])
            self.deleted.discard_below(self.first_seq)
        ids = list(map(columns.subject_ids.__getitem__, rows))
        names = columns.subjects
        last_of = dict(zip(ids, seqs, strict=True))
        for local, count in Counter(ids).items():
            self._leave(names[local], count, last_of[local])
        gone[0].extend(seqs)
        gone[1].extend(map(names.__getitem__, ids))
        gone[2].extend(flags)

    def _leave(self, subject: bytes, count: int, last: Seq) -> None:
        """`count` messages of `subject` were removed, `last` the last of them."""
        row = self.subjects[subject]
        row[COUNT] -= count
        if not row[COUNT]:
            del self.subjects[subject]
        elif row[SEQS] is not None:
            row[SEQS] = list(filter(self.is_live, row[SEQS]))
            _note_bounds(row)
        elif row[COUNT] == 1 and row[LAST] > last and self.is_live(row[LAST]):
            row[FIRST] = row[LAST]  # else the next one to ask would have to look for it

    def _remove_front(self, first: Seq, last: Seq) -> Gone:
        """Remove the oldest messages first..last, all of them live: per block, not one by one."""
        subjects: list[bytes] = []
        flags: list[int] = []
        rows = self.subjects
        seq = first
        while seq <= last:
            block = self._block_of(seq)
            columns = self._columns(block)
            low, high = columns.position(seq), columns.position(last + 1)
            lengths: Any = columns.lengths[low:high]
            if columns.has_flags:
                mine = [length & ~LENGTH_MASK for length in lengths]
                flags += mine
                lengths = [length & LENGTH_MASK for length in lengths]
                headers = sum(1 for flag in mine if flag & HAS_HEADERS)
                self.bytes -= self._header_extra * headers
            else:
                flags += [0] * (high - low)
            self.bytes -= sum(lengths) - self._size_less * (high - low)
            self.count -= high - low
            block.live -= high - low
            if not block.live and block.is_sealed:
                self.has_dead_blocks = True
            # All rows from low on are consecutive seqs: a gap in them would be a deleted seq.
            mixed = mix_run(seq, columns.crcs[low:high])
            self.digest = (self.digest - mixed) & MASK64
            block.digest = (block.digest - mixed) & MASK64
            ids = columns.subject_ids[low:high]
            names = columns.subjects
            subjects += map(names.__getitem__, ids)
            for local, count in Counter(ids).items():
                row = rows[names[local]]
                row[COUNT] -= count
                if not row[COUNT]:
                    del rows[names[local]]
                elif row[SEQS] is not None:
                    del row[SEQS][:count]
                    _note_bounds(row)
                elif row[COUNT] == 1 and row[LAST] > last and self.is_live(row[LAST]):
                    row[FIRST] = row[LAST]
            seq += high - low
        self.first_seq = self.deleted.next_absent(last + 1) if self.count else self.last_seq + 1
        self.deleted.discard_below(self.first_seq)
        return list(range(first, last + 1)), subjects, flags

    def remove_all(self) -> int:
        """Remove every message without looking at any of them. Returns how many there were."""
        count = self.count
        self.count = self.bytes = self.digest = 0
        self.first_seq = self.last_seq + 1
        self.deleted.clear()
        self.subjects.clear()
        for block in self.blocks:
            block.live = block.digest = 0
        self.has_dead_blocks = True
        return count

    def remove_all_but_newest(self) -> None:
        """Remove what is before the newest message, without looking at any of it. That one must
        be live, and in the active block."""
        seq, block, columns = self.last_seq, self.active, self.active.columns
        assert columns is not None and self.is_live(seq) and block.first_seq <= seq, seq
        at = columns.position(seq)
        length = columns.lengths[at]
        size = (length & LENGTH_MASK) - self._size_less
        if length & HAS_HEADERS:
            size += self._header_extra
        subject = columns.subjects[columns.subject_ids[at]]
        row = self.subjects[subject]
        self.remove_all()
        self.first_seq = row[FIRST] = row[LAST] = seq
        self.count = row[COUNT] = block.live = 1
        row[SEQS] = None
        self.subjects[subject] = row
        self.bytes = size
        self.digest = block.digest = mix64(seq, columns.crcs[at])


def _note_bounds(row: SubjectRow) -> None:
    """Correct a subject's bounds after some, and not all, of its messages have left its list."""
    held = row[SEQS]
    row[FIRST], row[LAST] = held[0], held[-1]
    if len(held) == 1:
        row[SEQS] = None
