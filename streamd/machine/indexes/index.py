"""`StreamIndex`: which messages a stream holds, where, and what each subject has.

A stored message costs 24 bytes in the columns of the newest block and, once that is sealed, nothing
until its columns are asked for again. The state is in three parts, each with an owner:

    live       LiveMessages   which seqs are live; count, bytes and digest of all
    blocks     BlockTable     which block holds a seq; columns of its messages
    subjects   SubjectTable   a row for each subject: count, bounds, perhaps a list of seqs

Each stored or removed message changes all three, so this class and `Removal` alone change them.
Questions are asked of `live`, of `locations` by seq and time, of `lookup` by filter.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamd.machine.base import BLOCK_HEADER_BYTES, ColumnSource, RecordCodec
from streamd.machine.digest import MASK64
from streamd.machine.indexes import rewriting
from streamd.machine.indexes.block_table import BlockTable
from streamd.machine.indexes.columns import Block
from streamd.machine.indexes.live_messages import LiveMessages, MessagesState
from streamd.machine.indexes.lookup import Lookup
from streamd.machine.indexes.message_locations import Locations
from streamd.machine.indexes.message_sizes import MessageSizes
from streamd.machine.indexes.removal import Removal
from streamd.machine.indexes.subject_table import IndexCache, SubjectTable
from streamd.machine.indexes.unreadable_bytes import UnreadableBytes
from streamd.types import Msg, Seq


class StreamIndex:
    """Index of a stream's messages. Owned and changed by its StreamMachine only."""

    def __init__(
        self,
        *,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int,
        is_memory: bool,
        first_seq: Seq = 1,
    ) -> None:
        live = self.live = LiveMessages(first_seq)
        blocks = self.blocks = BlockTable(
            codec=codec, source=columns, block_bytes=block_bytes, first_seq=first_seq
        )
        subjects = self.subjects = SubjectTable(live)
        sizes = self.sizes = MessageSizes(is_memory)
        self.locations = Locations(live, blocks, sizes)
        self.lookup = Lookup(live, blocks, subjects)
        self.unreadable = UnreadableBytes(live, blocks, sizes, self.locations)
        removal = Removal(live, blocks, subjects, sizes)
        self.remove = removal.remove
        self.remove_all = removal.remove_all
        self.remove_all_but_newest = removal.remove_all_but_newest

    # --- the numbers that stand for a stream ----------------------------------------------------

    @property
    def first_seq(self) -> Seq:
        """The first live seq; of an empty stream the seq after the last."""
        return self.live.first_seq

    @property
    def last_seq(self) -> Seq:
        """The last seq that was used up."""
        return self.live.last_seq

    @property
    def count(self) -> int:
        """The number of live messages."""
        return self.live.count

    # --- storing --------------------------------------------------------------------------------

    def append(
        self,
        *,
        first_ts: int,
        msgs: Sequence[Msg],
        lengths: list[int],
        crcs: list[int],
        flags: list[int] | None = None,
        tss: Sequence[int] | None = None,
    ) -> Seq:
        """Record that `msgs` were stored, one ns apart or at the times `tss`, which never fall,
        with the seqs after `last_seq`; their records, of these lengths and crcs, go to the end of
        the active block. Returns the first of the seqs."""
        live, blocks = self.live, self.blocks
        block = blocks.active
        first, count, start = live.last_seq + 1, len(lengths), block.end_offset
        mixed = blocks.append(first, first_ts, lengths, crcs, flags, tss)
        size = block.end_offset - start - self.sizes.less * count
        if flags is not None:
            size += self.sizes.extra_of(flags)
        if not live.count:
            live.first_seq = first
            live.deleted.clear()
        live.last_seq = block.last_seq
        live.last_ts = block.last_ts
        live.count += count
        live.bytes += size
        live.digest = (live.digest + mixed) & MASK64
        assert block.columns is not None
        self.subjects.append(msgs, first, block.block_no, block.columns)
        return first

    def skip(self, first: Seq, last: Seq) -> None:
        """Use up the seqs first..last without a message (`first` is last_seq + 1)."""
        self.live.skip(first, last)

    def roll(self) -> tuple[Block, bytes]:
        """Seal the active block and begin the next. Returns the sealed block and its footer."""
        return self.blocks.roll(self.live.last_seq + 1)

    def rewrite(
        self, block_nos: list[int], ranges: list[Seq], size: int, made_no: int
    ) -> tuple[Block, bytes] | None:
        """Put one block with the messages of `ranges`, whose records are `size` bytes, in the place
        of the neighbouring sealed blocks `block_nos`. Returns it with its footer. None, and nothing
        changed: these blocks are not there, or the ranges are not all that is live in them."""
        old = self.blocks.neighbours(block_nos)
        if not old:
            return None
        parts = []
        for block in old:
            columns = self.blocks.columns(block)
            parts.append((block, columns, rewriting.rows_of(columns, block, ranges)))
        wanted = sum(ranges[1::2]) - sum(ranges[::2]) + len(ranges) // 2
        if not wanted or sum(len(rows) for _, _, rows in parts) != wanted:
            return None
        made, columns = rewriting.merged(made_no, parts)
        made.digest &= MASK64
        if made.end_offset - BLOCK_HEADER_BYTES != size:
            return None
        seqs = columns.seqs_between(0, made.count)
        if sum(map(self.live.has, seqs)) != made.live:
            return None
        return made, self.blocks.replace(old, made, columns)

    def track_seqs(self, is_on: bool) -> None:
        """Begin or end to keep the list of each subject's seqs (small per-subject limits)."""
        if self.subjects.track_seqs(is_on):
            self.subjects.fill_seqs(self.locations.live_subjects())

    # --- persistence ----------------------------------------------------------------------------

    def to_state(self) -> MessagesState:
        """Return the state for the snapshot: everything that is not in the blocks."""
        return self.live.to_state(self.blocks.to_state())

    def to_cache(self) -> IndexCache:
        """Return a cache of what the blocks say as well: subjects and newest columns."""
        footer = self.blocks.active_footer() if self.blocks.active.count else b""
        return self.subjects.to_cache(footer)

    def load(self, state: MessagesState, cache: IndexCache | None) -> None:
        """Take over `to_state`, and `to_cache` if there is one; else read the blocks."""
        self.live.load(state)
        footer = b"" if cache is None else cache.footer
        self.blocks.load(state.blocks, footer, state.last_seq + 1)
        if cache is not None:
            self.subjects.load(cache)
            return
        holding = (block for block in self.blocks if block.live)
        self.subjects.rebuild(
            (self.blocks.columns(block), block.live == block.count) for block in holding
        )
