"""`StreamCut`: one stream with its consumers, exactly as of one applied entry, read piece by piece.

Made between two turns on the node that leads the stream. The stream goes on meanwhile: what is
stored later has higher seqs, what is deleted later is still in the blocks, which are held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamd.errors import StreamdError
from streamd.machine.asset_configs import ConsumerConfig
from streamd.machine.base import BLOCK_HEADER_BYTES
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.held_blocks import HeldBlocks
from streamd.store.blocks.record_format import MSG, decode_fields, stated_length
from streamd.types import Index, Seq

CutRow = tuple[Seq, int, bytes, bytes, bytes]
"""(seq, time, subject, headers, payload)"""
CutRead = Callable[[list[CutRow] | StreamdError | None], None]
"""Called with messages, perhaps none of this piece; None: all were read; or the error."""


class ConsumerCut(NamedTuple):
    """A consumer at that moment. `redelivered`: deliveries of what was delivered more than once."""

    name: str
    config: ConsumerConfig
    delivered: tuple[int, Seq]  # consumer seq, stream seq
    floor: tuple[int, Seq]
    pending: dict[Seq, tuple[int, int]]  # consumer seq, time of the latest delivery
    redelivered: dict[Seq, int]


class StreamCut:
    """A stream of one moment. `close` it."""

    def __init__(self, machine: StreamMachine, held: HeldBlocks, start_seq: Seq = 0) -> None:
        """Messages before `start_seq` are not read."""
        index = machine.index
        self.applied: Index = machine.applied
        self.config = machine.config
        self.created_ns = machine.created_ns
        self.state = machine.state()
        self.first_seq: Seq = index.first_seq
        self.last_seq: Seq = index.last_seq
        self.consumers = [_cut(each) for _, each in sorted(machine.consumers.items())]
        self._deleted = index.live.deleted.copy()
        self._blocks = [
            (block.block_no, block.end_offset)
            for block in index.blocks
            if block.live and block.last_seq >= start_seq
        ]
        self._start_seq = max(start_seq, self.first_seq)
        self._held = held
        self._at = 0  # in `_blocks`
        self._offset = BLOCK_HEADER_BYTES
        self._is_closed = False

    def removals(self) -> list[tuple[Seq, Seq]]:
        """Return what was deleted among the messages that are not read: inclusive ranges."""
        end = self._start_seq - 1
        return [(low, min(high, end)) for low, high in self._deleted.ranges() if low <= end]

    def read(self, size: int, done: CutRead) -> None:
        """Call `done` with the messages among the next `size` bytes or so, perhaps at once. One
        read at a time."""
        if self._at >= len(self._blocks):
            done(None)
            return
        block_no, end = self._blocks[self._at]
        offset = self._offset

        def read(blob: bytes | StreamdError) -> None:
            done(blob if isinstance(blob, StreamdError) else self._rows(blob, end - offset))

        self._held.read(block_no, offset, min(size, end - offset), read)

    def _rows(self, blob: bytes, size: int) -> list[CutRow]:
        """Take the live messages of whole records that begin where the last read ended, with
        `size` bytes to the end of the block."""
        rows: list[CutRow] = []
        deleted, first, last = self._deleted, self._start_seq, self.last_seq
        pos, end = 0, min(len(blob), size)
        while pos < end:
            length = stated_length(blob[pos : pos + 32])
            if blob[pos + 4] == MSG:
                seq, ts, subject, headers, payload = decode_fields(blob, pos)
                if first <= seq <= last and seq not in deleted:
                    rows.append((seq, ts, subject, headers, payload))
            pos += length
        self._offset += pos
        if pos >= size:
            self._at += 1
            self._offset = BLOCK_HEADER_BYTES
        return rows

    def close(self) -> None:
        """Let the stream have its blocks back. More than one call does nothing more."""
        if not self._is_closed:
            self._is_closed = True
            self._held.close()


def _cut(consumer: Consumer) -> ConsumerCut:
    # Archives know no parked messages: those are as if delivered long ago, and come again.
    parked = dict.fromkeys(
        consumer.remaining.parked, (consumer.delivered_cseq, consumer.created_ns)
    )
    return ConsumerCut(
        consumer.name,
        consumer.config,
        (consumer.delivered_cseq, consumer.delivered_sseq),
        (consumer.floor_cseq, consumer.floor_sseq),
        dict(sorted((consumer.pending | parked).items())) if parked else dict(consumer.pending),
        dict(consumer.redelivered),
    )
