"""`EntryChanges`: the messages that one log entry stores and removes, until the entry ends.

An entry changes the index at once. The bytes of its records are collected and become one write
to the block file; the seqs that left are collected, so that consumers hear of them once and the
block gets one tombstone. Between two entries nothing is collected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamd.machine.base import APPEND, DROP, SEAL, Effects, RecordCodec
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.indexes.removal import Gone
from streamd.types import Index, Msg, Pieces, Seq

_ROLL_DEAD_BYTES: Final = 1024 * 1024  # an all-dead active block this big is worth a new file
_BULKY_PIECE_BYTES: Final = 4096  # on average: they are not copied together before they are read


class EntryChanges:
    """Collects the changes of the entry that is applied. `begin`, any steps, `finish`."""

    def __init__(self, index: StreamIndex, codec: RecordCodec) -> None:
        self._index = index
        self._codec = codec
        self._blob: list[bytes] = []
        self._blob_offset = 0
        self.stored: list[tuple[Seq, Sequence[Msg]]] = []
        self.gone_seqs: list[Seq] = []
        self.gone_subjects: list[bytes] = []
        self.is_purged = False  # too many left at once to be named one by one
        self.out = Effects()

    def begin(self, out: Effects) -> None:
        """Begin an entry, whose block operations and events go to `out`."""
        self.out = out
        self._index.blocks.settle()
        self._blob_offset = self._index.blocks.active.end_offset

    # --- steps ----------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Begin another block if the active one is full."""
        if self._index.blocks.is_full():
            self._roll()

    def write(self, ts: int, msgs: list[Msg], flags: list[int] | None) -> Seq:
        """Store `msgs`, admitted already, with the next seqs. Returns the first of them."""
        index = self._index
        pieces, lengths, crcs = self._codec.encode_batch(index.last_seq + 1, ts, msgs)
        first = index.append(first_ts=ts, msgs=msgs, lengths=lengths, crcs=crcs, flags=flags)
        self._blob += pieces
        self.stored.append((first, msgs))
        return first

    def write_timed(
        self, tss: Sequence[int], msgs: list[Msg], flags: list[int] | None, *, is_told: bool
    ) -> Seq:
        """`write` of messages that have a time of their own each, none before the last message's.
        Consumers hear of them if `is_told`: in a stream that is being restored are none yet."""
        index = self._index
        pieces, lengths, crcs = self._codec.encode_timed(index.last_seq + 1, tss, msgs)
        first = index.append(
            first_ts=tss[0], msgs=msgs, lengths=lengths, crcs=crcs, flags=flags, tss=tss
        )
        self._blob += pieces
        if is_told:
            self.stored.append((first, msgs))
        return first

    def skip(self, first: Seq, last: Seq, index: Index) -> None:
        """Use up the seqs first..last, the next ones, without a message."""
        self._reserve(self._codec.encode_skip(first, last, index))
        self._index.skip(first, last)

    def remove(self, seqs: Sequence[Seq]) -> Gone:
        """Remove the live ones among `seqs`. Consumers hear of it when the entry ends."""
        gone, subjects, flags = self._index.remove(seqs)
        self.gone_seqs += gone
        self.gone_subjects += subjects
        return gone, subjects, flags

    def _roll(self) -> None:
        """Seal the active block; further records of the entry go into the next one."""
        sealed, footer = self._index.roll()
        self.out.block_ops.append((SEAL, sealed.block_no, sealed.end_offset, footer))
        self._blob_offset = self._index.blocks.active.end_offset

    def _reserve(self, record: bytes) -> None:
        self._index.blocks.reserve(len(record))
        self._blob.append(record)

    # --- the end of an entry --------------------------------------------------------------------

    @property
    def has_gone(self) -> bool:
        """True if messages left by this entry."""
        return self.is_purged or bool(self.gone_seqs)

    def finish(self, tombstone: bytes, index: Index, ts: int) -> None:
        """Write the records of the entry as one blob, behind them `tombstone` and the frame of
        the entry; drop the blocks that hold no live message any more."""
        if self._blob or tombstone:
            active = self._index.blocks.active
            self._reserve(tombstone + self._codec.encode_frame(index, ts))
            pieces, self._blob = self._blob, []
            size = active.end_offset - self._blob_offset
            is_bulky = size >= len(pieces) * _BULKY_PIECE_BYTES
            blob = Pieces(pieces, size) if is_bulky else b"".join(pieces)
            assert self._blob_offset + len(blob) == active.end_offset, active.end_offset
            self.out.block_ops.append((APPEND, active.block_no, self._blob_offset, blob))
        if self.has_gone or self._index.blocks.has_dead:
            self._drop_dead()
            self.forget_gone()

    def _drop_dead(self) -> None:
        active = self._index.blocks.active
        if active.count and not active.live and active.end_offset >= _ROLL_DEAD_BYTES:
            self._roll()
        for block_no in self._index.blocks.take_dead():
            self.out.block_ops.append((DROP, block_no))

    def take_stored(self) -> list[tuple[Seq, Sequence[Msg]]]:
        """Return the runs of messages that were stored: (first seq, messages); then none is."""
        stored, self.stored = self.stored, []
        return stored

    def forget_gone(self) -> None:
        """Consumers have heard of all that left."""
        self.gone_seqs = []
        self.gone_subjects = []
        self.is_purged = False
