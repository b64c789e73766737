"""Compaction of blocks that hold so little that is live that one should take their place.

Asked by the group of the stream's leader only. What is chosen here is a matter of cost, never of
correctness: the entry that is proposed says it all, and is void if the blocks are others by then.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.errors import StreamdError
from streamd.machine.base import BLOCK_HEADER_BYTES
from streamd.machine.indexes.columns import Block
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.indexes.rewriting import live_spans
from streamd.node.groups.block_port import BlockPort
from streamd.types import Seq

Propose = Callable[[list[int], list[Seq], bytes, Callable[[bool | StreamdError], None]], None]
"""(block_nos, ranges, records, done): propose a REWRITE; `done` with its outcome."""


class Compaction:
    """Rewrites of one stream's blocks, while this node leads it: at most one is under way."""

    def __init__(
        self,
        index: StreamIndex,
        blocks: BlockPort,
        propose: Propose,
        wake: Callable[[], None],
    ) -> None:
        self._index = index
        self._blocks = blocks
        self._propose = propose
        self._wake = wake  # have a turn look at the deadline
        self._seen = 0  # how many seqs were gone at the last look that left nothing to do
        self._sparse_since: dict[int, int] = {}  # blocks of which little is live, and since when
        self._unreadable: set[int] = set()  # the scrubber will say what is wrong with them
        self._damaged: set[int] = set()  # all that is live in them can be read
        self._is_busy = False
        self._now_ms = 0
        self._due_ms = 0

    def restart(self) -> None:
        """This node leads anew: nothing of before is under way."""
        self._is_busy = False
        self._seen = self._due_ms = 0
        self._sparse_since.clear()

    def renew(self, block_no: int) -> None:
        """Something dead in a block is damaged: what is live gets another, whatever its size."""
        self._unreadable.discard(block_no)
        self._damaged.add(block_no)
        if not self._is_busy:
            self._due_ms = self._now_ms + limits.REWRITE_LOOK_MS
            self._wake()

    def deadline_ms(self) -> int:
        """Monotonic ms of the next look; 0: none is needed until something is removed."""
        return 0 if self._is_busy else self._due_ms

    def tick(self, now_ms: int) -> None:
        """Begin a rewrite if one is due. Cheap if nothing was removed."""
        self._now_ms = now_ms
        gone = self._index.last_seq - self._index.count
        if gone != self._seen and not self._due_ms:
            self._due_ms = now_ms + limits.REWRITE_LOOK_MS + len(self._index.blocks)
        if self._due_ms and now_ms >= self._due_ms and not self._is_busy:
            self._look(gone)

    def _look(self, gone: int) -> None:
        chosen = self._choose()
        if chosen:
            self._is_busy = True
            self._read(chosen)
            return
        self._seen = gone
        self._due_ms = 0
        waiting = [since for since in self._sparse_since.values() if since > self._settled_ms()]
        if waiting:
            settled_ms = min(waiting) + limits.REWRITE_AFTER_MS
            self._due_ms = max(settled_ms, self._now_ms + limits.REWRITE_LOOK_MS)

    def _settled_ms(self) -> int:
        return self._now_ms - limits.REWRITE_AFTER_MS

    def _choose(self) -> list[Block]:
        """The neighbours that give back most; [] if none are worth it.

        A block must have been half dead for a while: in a queue, the rest dies soon as well. That
        the oldest messages leave says nothing either, for others will follow.
        """
        index = self._index
        room = index.blocks.block_bytes // 2
        settled_ms = self._settled_ms()
        sparse_before, self._sparse_since = self._sparse_since, {}
        best: list[Block] = []
        best_gain = room - 1  # less is not worth it
        damaged = [block for block in index.blocks if block.block_no in self._damaged]
        self._damaged = {block.block_no for block in damaged}
        for block in damaged:
            if block.is_sealed and block.live:
                return [block]
        run = _Run(room)
        for block in index.blocks[:-1]:
            size = block.end_offset - BLOCK_HEADER_BYTES
            live = size * block.live // max(block.count, 1)
            dead = size - live
            if block.first_seq < index.first_seq <= block.last_seq:
                span = block.last_seq - block.first_seq + 1
                dead = max(0, dead - size * (index.first_seq - block.first_seq) // span)
            is_ripe = size <= room // 4  # too small to stay alone
            if dead * 2 >= size:
                since = self._sparse_since[block.block_no] = sparse_before.get(
                    block.block_no, self._now_ms
                )
                is_ripe = is_ripe or since <= settled_ms
            if not is_ripe or block.block_no in self._unreadable:
                run = _Run(room)
                continue
            if not run.add(block, live, dead):
                run = _Run(room)
                run.add(block, live, dead)
            if run.dead > best_gain:
                best, best_gain = list(run.blocks), run.dead
        return best

    def _read(self, chosen: list[Block]) -> None:
        """Read what is live in `chosen`, one block after another; then propose."""
        index = self._index
        ranges: list[Seq] = []
        wanted: list[tuple[int, list[tuple[int, int]]]] = []
        for block in chosen:
            try:
                columns = index.blocks.columns(block)
            except StreamdError as err:  # nothing is worth that the stream stops for it
                self._leave(block.block_no, err)
                return
            found, spans = live_spans(columns, index.live.first_from, index.last_seq)
            ranges += found
            if spans:
                wanted.append((block.block_no, spans))
        wanted.reverse()
        pieces: list[bytes] = []

        def next_one() -> None:
            if wanted:
                self._blocks.read_spans(*wanted[-1], read)
                return
            block_nos = [block.block_no for block in chosen]
            self._propose(block_nos, ranges, b"".join(pieces), self._settle)

        def read(result: bytes | StreamdError) -> None:
            block_no, _ = wanted.pop()
            if isinstance(result, StreamdError):
                self._leave(block_no, result)
                return
            pieces.append(result)
            next_one()

        next_one()

    def _leave(self, block_no: int, err: StreamdError) -> None:
        """A block can't be read: it stays as it is."""
        self._unreadable.add(block_no)
        self._damaged.discard(block_no)
        self._settle(err)

    def _settle(self, outcome: bool | StreamdError) -> None:
        self._is_busy = False
        pause_ms = limits.REWRITE_PAUSE_MS if outcome is True else limits.REWRITE_AFTER_MS
        self._due_ms = self._now_ms + pause_ms
        self._wake()


class _Run:
    """Neighbouring blocks that one entry can rewrite."""

    def __init__(self, room: int) -> None:
        self.blocks: list[Block] = []
        self.dead = 0
        self._room = room
        self._rows = limits.REWRITE_ROWS_MAX
        self._msgs = limits.REWRITE_MSGS_MAX

    def add(self, block: Block, live: int, dead: int) -> bool:
        """Take one more; False, and nothing changed, if that is too much."""
        if (
            live > self._room
            or block.count > self._rows
            or block.live > self._msgs
            or len(self.blocks) >= limits.REWRITE_BLOCKS_MAX
        ):
            return False
        self.blocks.append(block)
        self.dead += dead
        self._room -= live
        self._rows -= block.count
        self._msgs -= block.live
        return True
