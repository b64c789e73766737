"""A stream's snapshot without what can't be had of it any more, where that loss is accepted."""

from __future__ import annotations

from streamd.machine.base import BLOCK_HEADER_BYTES
from streamd.machine.digest import MASK64, mix_all
from streamd.machine.indexes.columns import Block, Columns
from streamd.machine.indexes.live_messages import MessagesState
from streamd.machine.indexes.seqset import SeqSet
from streamd.types import Seq


class Loss:
    """Stored messages as a snapshot describes them (`StreamIndex.to_state`), to be corrected for
    each block that is lost. How many bytes are left is for the index to count once it is loaded."""

    def __init__(self, messages: MessagesState) -> None:
        (
            self._first_seq,
            self._last_seq,
            self._count,
            self._bytes,
            self._digest,
            self._last_ts,
            deleted,
            blocks,
        ) = messages
        self._deleted = SeqSet.from_state(deleted)
        self.blocks = [Block.from_state(row) for row in blocks]  # changed by `leave` alone

    @property
    def tail(self) -> tuple[int, int]:
        """Position of the next record: (block_no, offset)."""
        return self.blocks[-1].block_no, self.blocks[-1].end_offset

    def live_seqs(self, block: Block) -> list[Seq]:
        """Return the live messages of one of the blocks, ascending."""
        first = max(block.first_seq, self._first_seq)
        live = [seq for seq in range(first, block.last_seq + 1) if seq not in self._deleted]
        assert len(live) == block.live, (block.block_no, len(live), block.live)
        return live

    def leave(self, block: Block, columns: Columns) -> None:
        """Keep of the live messages of `block` only those in `columns`, which are all
        that its file holds now."""
        left = list(columns.seqs_between(0, len(columns)))
        gone = sorted({*self.live_seqs(block)} - {*left})
        self._deleted.add_all(gone)
        self._count -= len(gone)
        digest = mix_all(left, list(columns.crcs))
        self._digest = (self._digest - block.digest + digest) & MASK64
        block.digest = digest
        block.count = block.live = len(left)
        block.end_offset = columns.end_offset if left else BLOCK_HEADER_BYTES
        block.first_seq, block.last_seq = (left[0], left[-1]) if left else (0, 0)
        block.first_ts = block.last_ts = columns.base_ts
        if left:
            block.last_ts += columns.ts_deltas[-1]

    def messages(self) -> MessagesState:
        """As the snapshot would have had it."""
        if not self._count:
            self._first_seq = self._last_seq + 1
            self._deleted.clear()
        else:
            self._first_seq = self._deleted.next_absent(self._first_seq)
            self._deleted.discard_below(self._first_seq)
        last = self.blocks[-1]
        return MessagesState(
            self._first_seq,
            self._last_seq,
            self._count,
            self._bytes,
            self._digest,
            self._last_ts,
            self._deleted.to_state(),
            [block.to_state() for block in self.blocks if block.live or block is last],
        )
