"""Columns of the messages of one block, and the block's own summary: the memory per message.

Arrays instead of objects: 24 bytes for each message of a block that is in memory, and nothing but a
`Block` of a few hundred bytes for one that is not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import compress, count
from typing import Final, Self

from streamd import limits
from streamd.machine.base import BLOCK_HEADER_BYTES, LENGTH_MASK, ColumnsView, PackedSubjects
from streamd.subjects import Matcher
from streamd.types import Seq

_WANTED_CACHE_MAX: Final = 64  # matchers whose verdicts one block remembers
_BYTES_OBJECT_BYTES: Final = 41  # of a bytes object and of what refers to it, beside its bytes


class Columns:
    """Columns with a row for each message stored in a block, dead or alive, in seq order."""

    __slots__ = (
        "_wanted",
        "added",
        "base_ts",
        "crcs",
        "end_offset",
        "first_seq",
        "has_flags",
        "lengths",
        "local_ids",
        "offsets",
        "seqs",
        "subject_ids",
        "subjects",
        "ts_deltas",
    )

    def __init__(self, first_seq: Seq = 0, base_ts: int = 0) -> None:
        self.first_seq = first_seq
        self.base_ts = base_ts
        self.seqs: array[int] | None = None  # once there is a gap
        self.offsets = array("I")
        self.lengths = array("I")
        self.ts_deltas = array("Q")
        self.crcs = array("I")
        self.subject_ids = array("I")
        self.added: list[bytes] = []  # the subjects, while more may come
        self.subjects: Sequence[bytes] = self.added  # or whatever sequence a footer gave
        self.local_ids: dict[bytes, int] = {}  # of `subjects`; only while more may come
        self.end_offset = BLOCK_HEADER_BYTES
        self.has_flags = False  # any length with flag bits
        self._wanted: dict[Matcher, Wanted] = {}

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
        made.subjects = view.subjects
        made.end_offset = view.end_offset
        made.has_flags = bool(made.lengths) and max(made.lengths) > LENGTH_MASK
        return made

    def reopen(self) -> None:
        """Make columns that come from a footer ready for more rows."""
        self.subjects = self.added = list(self.subjects)
        self.local_ids = {subject: local for local, subject in enumerate(self.subjects)}

    def close(self) -> None:
        """Release what only more rows would need."""
        self.local_ids = {}

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def byte_count(self) -> int:
        """About what they take in memory."""
        rows = len(self.offsets) * (24 if self.seqs is None else 32)
        subjects = self.subjects
        if isinstance(subjects, PackedSubjects):
            return rows + subjects.byte_count
        return rows + sum(map(len, subjects)) + len(subjects) * _BYTES_OBJECT_BYTES

    def position(self, seq: Seq) -> int:
        """Return the row of the first message whose seq is >= `seq`."""
        if self.seqs is None:
            return min(max(seq - self.first_seq, 0), len(self.offsets))
        return bisect_left(self.seqs, seq)

    def rows_of(self, seqs: Sequence[Seq]) -> list[int]:
        """The rows of messages that are all there."""
        if self.seqs is None:
            first = self.first_seq
            return [seq - first for seq in seqs]
        return [bisect_left(self.seqs, seq) for seq in seqs]

    def seq_at(self, row: int) -> Seq:
        return self.first_seq + row if self.seqs is None else self.seqs[row]

    def seqs_between(self, low: int, high: int) -> Iterable[Seq]:
        """The seqs of rows low..high-1."""
        if self.seqs is None:
            return range(self.first_seq + low, self.first_seq + high)
        return self.seqs[low:high]

    def use_gaps(self) -> None:
        """From now on seqs are listed one by one: the next is not the last plus one."""
        if self.seqs is None:
            first = self.first_seq
            self.seqs = array("Q", range(first, first + len(self.offsets)))

    def wanted(self, matcher: Matcher) -> Wanted:
        """Which of this block's subjects `matcher` matches."""
        found = self._wanted.get(matcher)
        if found is None:
            if len(self._wanted) >= _WANTED_CACHE_MAX:
                self._wanted.clear()
            found = self._wanted[matcher] = Wanted()
        if found.known < len(self.subjects):
            found.look_at(self.subjects, matcher)
        return found


class Wanted:
    """Which of a block's subjects a matcher matches: a byte for each. A set of the ids of those
    that do takes seventy, and there is one for each block and each consumer that came through."""

    __slots__ = ("_flags", "_only", "count", "known")

    def __init__(self) -> None:
        self.count = 0  # that match
        self.known = 0  # that were looked at
        self._only = -1  # the one that matches, if it is the only one
        self._flags = bytearray()  # by id; none for a literal, which is there once

    def look_at(self, subjects: Sequence[bytes], matcher: Matcher) -> None:
        """Take in those that are new."""
        start, self.known = self.known, len(subjects)
        if matcher.literal is not None:
            if not self.count:
                with suppress(ValueError):
                    self._only = subjects.index(matcher.literal, start)
                    self.count = 1
            return
        new = bytes(map(bool, map(matcher.test, subjects[start:] if start else subjects)))
        self._flags += new
        self.count += new.count(1)
        if self.count == 1:
            self._only = self._flags.index(1)

    def __bool__(self) -> bool:
        return self.count > 0

    def __contains__(self, local: int) -> bool:
        return local == self._only if self.count < 2 else bool(self._flags[local])

    def count_of(self, ids: array[int]) -> int:
        """Count the rows with these ids that match."""
        if self.count < 2:
            return ids.count(self._only) if self.count else 0
        return sum(map(self._flags.__getitem__, ids))

    def rows(self, ids: array[int], low: int, high: int) -> Iterable[int]:
        """Rows of low..high-1 that match; `ids`: of all rows."""
        if self.count < 2:
            return self._rows_of_one(ids, low, high) if self.count else ()
        if self.count == self.known:
            return range(low, high)
        return compress(range(low, high), map(self._flags.__getitem__, ids[low:high]))

    def _rows_of_one(self, ids: array[int], low: int, high: int) -> Iterator[int]:
        at = low
        while True:
            try:
                at = ids.index(self._only, at, high)
            except ValueError:
                return
            yield at
            at += 1


class ColumnsCache:
    """Columns of sealed blocks, of all streams of a node: those asked for last, and a few that were
    just sealed. What is not here is read from its footer, which takes about half a millisecond for
    10,000 messages.

    Most blocks are sealed and then not asked for: a stream that is only published to must not fill
    the cache. So columns that were sealed here have a small share of it until somebody asks.

    For one thread."""

    def __init__(
        self,
        bytes_max: int = limits.COLUMNS_CACHE_BYTES,
        *,
        sealed_bytes_max: int = limits.COLUMNS_SEALED_BYTES,
    ) -> None:
        self.bytes_max = bytes_max
        self.sealed_bytes_max = sealed_bytes_max
        self.byte_count = 0
        self._sealed_bytes = 0
        self._held: OrderedDict[tuple[int, int], tuple[Columns, int]] = OrderedDict()
        # Not asked for since they were sealed; the oldest first.
        self._sealed: OrderedDict[tuple[int, int], tuple[Columns, int]] = OrderedDict()
        self._keys = count()

    def key(self) -> int:
        """A number for one more stream. Columns of one that is gone are the first to go."""
        return next(self._keys)

    def get(self, key: int, block_no: int) -> Columns | None:
        """Return the columns that are held of a block."""
        found = self._held.get((key, block_no))
        if found is None:
            found = self._sealed.pop((key, block_no), None)
            if found is None:
                return None
            self._sealed_bytes -= found[1]
            self._held[key, block_no] = found
            return found[0]
        self._held.move_to_end((key, block_no))
        return found[0]

    def put(self, key: int, block_no: int, columns: Columns) -> None:
        """Hold columns that were asked for; those that were not for longest make room."""
        self.drop(key, block_no)
        size = columns.byte_count
        self._held[key, block_no] = columns, size
        self.byte_count += size
        self._make_room()

    def put_sealed(self, key: int, block_no: int, columns: Columns) -> None:
        """Hold the columns of a block that was just sealed, for a while: until more are, unless
        they are asked for."""
        self.drop(key, block_no)
        size = columns.byte_count
        self._sealed[key, block_no] = columns, size
        self._sealed_bytes += size
        self.byte_count += size
        while self._sealed_bytes > self.sealed_bytes_max and len(self._sealed) > 1:
            self._drop_oldest_sealed()
        self._make_room()

    def drop(self, key: int, block_no: int) -> None:
        """The block is gone."""
        found = self._held.pop((key, block_no), None)
        if found is None:
            found = self._sealed.pop((key, block_no), None)
            if found is None:
                return
            self._sealed_bytes -= found[1]
        self.byte_count -= found[1]

    def _make_room(self) -> None:
        while self.byte_count > self.bytes_max and len(self._held) + len(self._sealed) > 1:
            if len(self._held) > 1:
                _, (_, size) = self._held.popitem(last=False)
                self.byte_count -= size
            elif self._sealed:
                self._drop_oldest_sealed()

    def _drop_oldest_sealed(self) -> None:
        _, (_, size) = self._sealed.popitem(last=False)
        self._sealed_bytes -= size
        self.byte_count -= size


class Block:
    """Summary of a block, always in memory. Its columns are in memory only while it is the newest,
    or in the index's cache."""

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

    def to_state(self) -> list[int]:
        """Return the row of the block in a snapshot."""
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
    def from_state(cls, state: Sequence[int]) -> Self:
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
            is_sealed,
        ) = state[1:]
        made.is_sealed = bool(is_sealed)
        return made
