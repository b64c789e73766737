"""`LiveMessages`: the seqs of a stream that hold a message, and what these messages come to.

All messages lie between `first_seq` and `last_seq`; what is missing between them is in `deleted`.
Of an empty stream `first_seq` is the seq after the last, and nothing is in `deleted`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from streamd.machine.digest import MASK64
from streamd.machine.indexes.columns import Columns
from streamd.machine.indexes.seqset import SeqSet, Span
from streamd.types import Seq


class MessagesState(NamedTuple):
    """A stream's messages in a snapshot: everything that is not in the blocks."""

    first_seq: Seq
    last_seq: Seq
    message_count: int
    byte_count: int
    digest: int
    last_ts: int
    deleted: list[Span]
    blocks: list[list[int]]  # `Block.to_state` of each


class LiveMessages:
    """Live seqs, and the totals of their messages: `count`, `bytes` as NATS counts them, `digest`.

    Changed by `StreamIndex` and its `Removal` alone; everybody may ask.
    """

    __slots__ = ("bytes", "count", "deleted", "digest", "first_seq", "last_seq", "last_ts")

    def __init__(self, first_seq: Seq) -> None:
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.last_ts = 0
        self.count = 0
        self.bytes = 0
        self.digest = 0
        self.deleted = SeqSet()

    def has(self, seq: Seq) -> bool:
        """True if `seq` is stored and not deleted."""
        return self.first_seq <= seq <= self.last_seq and (
            not self.deleted.count or seq not in self.deleted
        )

    def first_from(self, seq: Seq) -> Seq:
        """Return the first live seq >= `seq`; last_seq + 1 if there is none."""
        if seq <= self.first_seq:
            return self.first_seq
        if seq > self.last_seq:
            return self.last_seq + 1
        return self.deleted.next_absent(seq) if self.deleted.count else seq

    def newest(self) -> Seq:
        """Return the last live seq of a stream that has messages."""
        return max(self.deleted.prev_absent(self.last_seq), 0)

    def seqs(self, first: Seq, last: Seq) -> Iterator[Seq]:
        """Live seqs in first..last inclusive, ascending."""
        seq = self.first_from(first)
        last = min(last, self.last_seq)
        if not self.deleted.count:
            yield from range(seq, last + 1)
            return
        while seq <= last:
            yield seq
            seq = self.first_from(seq + 1)

    def count_from(self, seq: Seq) -> int:
        """Count the live messages with a seq >= `seq`."""
        if seq > self.last_seq:
            return 0
        if seq <= self.first_seq:
            return self.count
        return self.count - (seq - self.first_seq - self.deleted.count_below(seq))

    def lacks_any(self, columns: Columns, low: int, high: int) -> bool:
        """True if any message in the rows low..high-1 of a block is not live."""
        if low >= high:
            return False
        first = columns.seq_at(low)
        if first < self.first_seq:
            return True
        deleted = self.deleted
        return deleted.count > 0 and deleted.has_any(first, columns.seq_at(high - 1))

    # --- changes --------------------------------------------------------------------------------

    def skip(self, first: Seq, last: Seq) -> None:
        """Use up the seqs first..last without a message (`first` is last_seq + 1)."""
        assert first == self.last_seq + 1 and last >= first, (first, last, self.last_seq)
        self.last_seq = last
        if self.count:
            self.deleted.add_range(first, last)
        else:
            self.first_seq = last + 1

    def subtract(self, count: int, size: int, digest: int) -> None:
        """Take messages out of the totals. The seqs that held them are to leave next."""
        self.count -= count
        self.bytes -= size
        self.digest = (self.digest - digest) & MASK64

    def delete(self, seqs: Sequence[Seq]) -> None:
        """Delete live seqs, ascending."""
        deleted = self.deleted
        deleted.add_all(seqs)
        if seqs[0] == self.first_seq:
            self.first_seq = deleted.next_absent(seqs[0])
            deleted.discard_below(self.first_seq)

    def delete_front(self, last: Seq) -> None:
        """Delete all live seqs up to `last`."""
        self.first_seq = self.deleted.next_absent(last + 1) if self.count else self.last_seq + 1
        self.deleted.discard_below(self.first_seq)

    def close(self) -> None:
        """Note that no message is left."""
        self.first_seq = self.last_seq + 1
        self.deleted.clear()

    def clear(self) -> None:
        """Delete everything."""
        self.count = self.bytes = self.digest = 0
        self.close()

    def keep_last(self, size: int, digest: int) -> None:
        """Delete all but the message `last_seq`, which is live and counts `size` bytes."""
        self.deleted.clear()
        self.first_seq = self.last_seq
        self.count, self.bytes, self.digest = 1, size, digest

    # --- persistence ----------------------------------------------------------------------------

    def to_state(self, blocks: list[list[int]]) -> MessagesState:
        """Return the state for the snapshot; `blocks` comes from their table."""
        return MessagesState(
            self.first_seq,
            self.last_seq,
            self.count,
            self.bytes,
            self.digest,
            self.last_ts,
            self.deleted.to_state(),
            blocks,
        )

    def load(self, state: MessagesState) -> None:
        """Take over `to_state`."""
        (
            self.first_seq,
            self.last_seq,
            self.count,
            self.bytes,
            self.digest,
            self.last_ts,
            deleted,
            _,
        ) = state
        self.deleted = SeqSet.from_state(deleted)
