"""What memory keeps per message: the columns of one block, and the block's own summary.

Arrays instead of objects: 24 bytes for each message of a block that is in memory, and nothing but a
`Block` of a few hundred bytes for one that is not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, Self

from streamd.machine.base import BLOCK_HEADER_BYTES, LENGTH_MASK, ColumnsView
from streamd.subjects import Matcher
from streamd.types import Seq

_WANTED_CACHE_MAX: Final = 64  # matchers whose verdicts one block remembers


class Columns:
    """One row for each message stored in a block, dead or alive, in seq order."""

    __slots__ = (
        "_wanted",
        "base_ts",
        "crcs",
        "end_offset",
        "first_seq",
        "has_flags",
        "lengths",
        "offsets",
        "seqs",
        "subject_ids",
        "subjects",
        "ts_deltas",
    )

    def __init__(self, first_seq: Seq = 0, base_ts: int = 0) -> None:
        self.first_seq = first_seq
        self.base_ts = base_ts
        self.seqs: Any = None  # array('Q') once there is a gap
        self.offsets = array("I")
        self.lengths = array("I")
        self.ts_deltas = array("Q")
        self.crcs = array("I")
        self.subject_ids = array("I")
        self.subjects: list[bytes] = []
        self.end_offset = BLOCK_HEADER_BYTES
        self.has_flags = False  # any length with flag bits
        self._wanted: dict[Matcher, tuple[int, frozenset[int]]] = {}

    @classmethod
    def from_view(cls, view: ColumnsView) -> Self:
        """Take over what a footer held."""
        made = cls(view.first_seq, view.base_ts)
        made.seqs = view.seqs
        made.offsets = view.offsets
        made.lengths = view.lengths
        made.ts_deltas = view.ts_deltas
        made.crcs = view.crcs
        made.subject_ids = view.subject_ids
        made.subjects = list(view.subjects)
        made.end_offset = view.end_offset
        made.has_flags = bool(made.lengths) and max(made.lengths) > LENGTH_MASK
        return made

    def __len__(self) -> int:
        return len(self.offsets)

    def position(self, seq: Seq) -> int:
        """Return the row of the first message whose seq is >= `seq`."""
        if self.seqs is None:
            return min(max(seq - self.first_seq, 0), len(self.offsets))
        return bisect_left(self.seqs, seq)

    def seq_at(self, row: int) -> Seq:
        seq: Seq = self.first_seq + row if self.seqs is None else self.seqs[row]
        return seq

    def seqs_between(self, low: int, high: int) -> Iterable[Seq]:
        """The seqs of rows low..high-1."""
        if self.seqs is None:
            return range(self.first_seq + low, self.first_seq + high)
        part: Iterable[Seq] = self.seqs[low:high]
        return part

    def use_gaps(self) -> None:
        """From now on seqs are listed one by one: the next is not the last plus one."""
        if self.seqs is None:
            first = self.first_seq
            self.seqs = array("Q", range(first, first + len(self.offsets)))

    def wanted(self, matcher: Matcher) -> frozenset[int]:
        """The ids of this block's subjects that `matcher` matches."""
        known = self._wanted.get(matcher)
        count = len(self.subjects)
        if known is not None and known[0] == count:
            return known[1]
        if known is None:
            if len(self._wanted) >= _WANTED_CACHE_MAX:
                self._wanted.clear()
            start, ids = 0, frozenset[int]()
        else:
            start, ids = known
        matches = matcher.matches
        subjects = self.subjects
        ids |= {local for local in range(start, count) if matches(subjects[local])}
        self._wanted[matcher] = (count, ids)
        return ids


class Block:
    """What is always known of a block. Its columns are in memory only while it is the newest, or
    in the index's cache."""

    __slots__ = (
        "block_no",
        "columns",
        "count",
        "digest",
        "end_offset",
        "first_seq",
        "first_ts",
        "is_sealed",
        "last_seq",
        "last_ts",
        "live",
    )

    def __init__(self, block_no: int) -> None:
        self.block_no = block_no
        self.first_seq: Seq = 0  # of the messages ever stored in it; 0: none yet
        self.last_seq: Seq = 0
        self.first_ts = 0
        self.last_ts = 0
        self.count = 0  # messages ever stored in it
        self.live = 0
        self.digest = 0  # of its live messages
        self.end_offset = BLOCK_HEADER_BYTES  # where the next record goes
        self.is_sealed = False
        self.columns: Columns | None = None

    def to_state(self) -> list[Any]:
        return [
            self.block_no,
            self.first_seq,
            self.last_seq,
            self.first_ts,
            self.last_ts,
            self.count,
            self.live,
            self.digest,
            self.end_offset,
            self.is_sealed,
        ]

    @classmethod
    def from_state(cls, state: list[Any]) -> Self:
        """Inverse of `to_state`, without columns."""
        made = cls(state[0])
        (
            made.first_seq,
            made.last_seq,
            made.first_ts,
            made.last_ts,
            made.count,
            made.live,
            made.digest,
            made.end_offset,
            made.is_sealed,
        ) = state[1:]
        return made
