"""`Removal`: messages leave a stream's index: one by one, many of a block at once, or all.

What is removed leaves the totals, the digests and the bounds of its subject; its bytes stay in the
block until all of that is dead. All ways end in the same state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from operator import lt
from typing import Final

from streamd.machine.base import HAS_HEADERS, LENGTH_MASK
from streamd.machine.digest import MASK64, mix64, mix_all, mix_run
from streamd.machine.indexes.block_table import BlockTable
from streamd.machine.indexes.columns import Block, Columns
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.message_sizes import MessageSizes
from streamd.machine.indexes.subject_table import SubjectTable
from streamd.types import Seq

_FEW: Final = 8  # are removed one by one

Gone = tuple[list[Seq], list[bytes], list[int]]
"""What was removed: seqs, their subjects, and their flags."""


class Removal:
    """Takes messages out of live seqs, blocks and subjects, which are always changed together."""

    def __init__(
        self,
        live: LiveMessages,
        blocks: BlockTable,
        subjects: SubjectTable,
        sizes: MessageSizes,
    ) -> None:
        self._live = live
        self._blocks = blocks
        self._subjects = subjects
        self._sizes = sizes

    def remove(self, seqs: Sequence[Seq]) -> Gone:
        """Remove the live ones among `seqs`; many at once are fastest if they ascend."""
        count = len(seqs)
        live = self._live
        if count > 3 and seqs[0] == live.first_seq:
            first, last = seqs[0], seqs[-1]
            is_run = last - first == count - 1 and last <= live.last_seq
            if is_run and list(seqs) == list(range(first, last + 1)):
                if not live.deleted.has_any(first, last):
                    return self._remove_front(first, last)
        if count > _FEW and all(map(lt, seqs[:-1], seqs[1:])):
            return self._remove_many(seqs)
        return self._remove_few(seqs)

    def _remove_few(self, seqs: Sequence[Seq]) -> Gone:
        """`remove` one by one, in any order."""
        live, blocks = self._live, self._blocks
        deleted = live.deleted
        less, header_extra = self._sizes.less, self._sizes.header_extra
        leave = self._subjects.leave_one
        gone: list[Seq] = []
        subjects: list[bytes] = []
        flags: list[int] = []
        block: Block | None = None
        columns: Columns | None = None
        for seq in seqs:
            if not live.has(seq):
                continue
            if block is None or columns is None or not block.first_seq <= seq <= block.last_seq:
                block = blocks.of(seq)
                columns = blocks.columns(block)
            at = columns.position(seq)
            subject = columns.subjects[columns.subject_ids[at]]
            length = columns.lengths[at]
            size = (length & LENGTH_MASK) - less
            if length & HAS_HEADERS:
                size += header_extra
            mixed = mix64(seq, columns.crcs[at])
            # Spelled out, for most messages of a work queue leave one by one.
            live.bytes -= size
            live.count -= 1
            live.digest = (live.digest - mixed) & MASK64
            block.digest = (block.digest - mixed) & MASK64
            block.live -= 1
            if not block.live and block.is_sealed:
                blocks.has_dead = True
            leave(subject, seq)
            if seq != live.first_seq:
                deleted.add(seq)
            elif deleted.count:
                live.first_seq = deleted.next_absent(seq + 1)
                deleted.discard_below(live.first_seq)
            else:
                live.first_seq = seq + 1
            gone.append(seq)
            subjects.append(subject)
            flags.append(length & ~LENGTH_MASK)
        if gone and not live.count:
            live.close()
        return gone, subjects, flags

    def _remove_many(self, seqs: Sequence[Seq]) -> Gone:
        """`remove` of ascending seqs, block by block."""
        live, blocks = self._live, self._blocks
        gone: Gone = ([], [], [])
        end = bisect_right(seqs, live.last_seq)
        # What was removed moves the first seq, also over what was removed long before.
        at = bisect_left(seqs, live.first_seq)
        while at < end:
            block = blocks.of(seqs[at])
            until = max(at + 1, bisect_right(seqs, block.last_seq, at, end))
            deleted = live.deleted
            mine: Sequence[Seq] = seqs[at:until]
            if deleted.has_any(mine[0], mine[-1]):
                mine = [seq for seq in mine if seq not in deleted]
            if mine:
                self._remove_rows(block, blocks.columns(block), mine, gone)
            at = bisect_left(seqs, live.first_seq, until, end)
        if gone[0] and not live.count:
            live.close()
        return gone

    def _remove_rows(self, block: Block, columns: Columns, seqs: Sequence[Seq], gone: Gone) -> None:
        """Remove live messages of one block; add them to `gone`."""
        rows = columns.rows_of(seqs)
        mixed = mix_all(seqs, list(map(columns.crcs.__getitem__, rows)))
        lengths = list(map(columns.lengths.__getitem__, rows))
        flags = self._subtract(block, lengths, mixed, has_flags=columns.has_flags)
        self._live.delete(seqs)
        ids = list(map(columns.subject_ids.__getitem__, rows))
        names = columns.subjects
        last_of = dict(zip(ids, seqs, strict=True))
        for local, count in Counter(ids).items():
            self._subjects.leave(names[local], count, last_of[local])
        gone[0].extend(seqs)
        gone[1].extend(map(names.__getitem__, ids))
        gone[2].extend(flags)

    def _remove_front(self, first: Seq, last: Seq) -> Gone:
        """Remove the oldest messages first..last, all of them live: per block, not one by one."""
        blocks, leave = self._blocks, self._subjects.leave_front
        subjects: list[bytes] = []
        flags: list[int] = []
        seq = first
        while seq <= last:
            block = blocks.of(seq)
            columns = blocks.columns(block)
            low, high = columns.position(seq), columns.position(last + 1)
            # All rows from low on are consecutive seqs: a gap in them would be a deleted seq.
            mixed = mix_run(seq, columns.crcs[low:high])
            lengths = columns.lengths[low:high]
            flags += self._subtract(block, lengths, mixed, has_flags=columns.has_flags)
            ids = columns.subject_ids[low:high]
            names = columns.subjects
            subjects += map(names.__getitem__, ids)
            for local, count in Counter(ids).items():
                leave(names[local], count, last)
            seq += high - low
        self._live.delete_front(last)
        return list(range(first, last + 1)), subjects, flags

    def _subtract(
        self, block: Block, lengths: Sequence[int], mixed: int, *, has_flags: bool
    ) -> list[int]:
        """Take messages of one block, with this share in the digest, out of its totals and the
        stream's. Returns the flags of each."""
        count = len(lengths)
        if has_flags:
            flags = [length & ~LENGTH_MASK for length in lengths]
            record_bytes = sum([length & LENGTH_MASK for length in lengths])
            size = self._sizes.of_records(record_bytes, count, flags)
        else:
            flags = [0] * count
            size = self._sizes.of_records(sum(lengths), count)
        self._live.subtract(count, size, mixed)
        self._blocks.subtract(block, count, mixed)
        return flags

    def remove_all(self) -> int:
        """Remove every message without looking at any of them. Returns how many there were."""
        count = self._live.count
        self._live.clear()
        self._subjects.clear()
        self._blocks.clear()
        return count

    def remove_all_but_newest(self) -> None:
        """Remove what is before the newest message, without looking at any of it. That one must
        be live, and in the active block."""
        live, block = self._live, self._blocks.active
        seq, columns = live.last_seq, block.columns
        assert columns is not None and live.has(seq) and block.first_seq <= seq, seq
        at = columns.position(seq)
        mixed = mix64(seq, columns.crcs[at])
        self._subjects.keep_only(columns.subjects[columns.subject_ids[at]], seq)
        self._blocks.clear()
        block.live, block.digest = 1, mixed
        live.keep_last(self._sizes.of_record(columns.lengths[at]), mixed)
