"""`UnreadableBytes`: the size of messages whose block, and the columns of it, can't be read."""

from __future__ import annotations

from array import array
from itertools import compress

from streamd import errors
from streamd.machine.base import HAS_HEADERS, LENGTH_MASK
from streamd.machine.indexes.block_table import BlockTable
from streamd.machine.indexes.columns import Block
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.message_locations import Locations
from streamd.machine.indexes.message_sizes import MessageSizes
from streamd.types import Seq


class UnreadableBytes:
    """Counts once what lives in the blocks that can be read, while another one can't."""

    def __init__(
        self, live: LiveMessages, blocks: BlockTable, sizes: MessageSizes, locations: Locations
    ) -> None:
        self._live = live
        self._blocks = blocks
        self._sizes = sizes
        self._locations = locations
        # While a block is lost: what is live in the others, as (how many, their bytes).
        self._counted: dict[int, tuple[int, int]] = {}

    def bytes_of(self, seqs: list[Seq], *, count_max: int) -> int | None:
        """Return what the live messages `seqs` count in `bytes`; of a block whose columns are lost
        too, all its live messages count: what every other message leaves of `bytes`.

        For that the other blocks are read once. None: they hold more than `count_max` messages
        that were not counted yet; asked again, this goes on from there.
        """
        found = 0
        lost: set[int] = set()
        for seq in seqs:
            block_no = self._blocks.of(seq).block_no
            if block_no not in lost:
                try:
                    found += self._locations.size_of(seq)
                except errors.StreamdError:
                    lost.add(block_no)
        if not lost:
            self._counted.clear()
            return found
        kept = self._counted
        self._counted = {}
        others = 0
        is_whole = True
        for block in self._blocks:
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
        return found + self._live.bytes - others if is_whole else None

    def _live_bytes(self, block: Block) -> int:
        """Return the share of the live messages of `block` in `bytes`."""
        columns = self._blocks.columns(block)
        flags = columns.lengths
        if block.live < len(columns):
            seqs = columns.seqs_between(0, len(columns))
            flags = array("I", compress(flags, map(self._live.has, seqs)))
        headers = sum(1 for length in flags if length & HAS_HEADERS) if columns.has_flags else 0
        lengths = (length & LENGTH_MASK for length in flags) if columns.has_flags else flags
        return sum(lengths) - self._sizes.less * len(flags) + self._sizes.header_extra * headers
