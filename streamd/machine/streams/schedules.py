"""`Schedules`: when the message schedules of a stream are due (`allow_msg_schedules`).

A schedule is the newest message of its subject, stored with a time at which it is due. Time is
data: that time, and each one after it, comes with an entry (STORE_SCHEDULED, FIRE), for what a
pattern names depends on time zones and on the clock. A schedule whose message is not the newest of
its subject any more, or is gone, is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from streamd.machine.indexes.index import StreamIndex
from streamd.types import Seq

UNKNOWN_DUE: Final = 0
"""Due time of a schedule of which no entry tells: its leader finds out, at once."""
_STALE: Final = 64  # so many rows may be there for nothing

ScheduleState = Iterable[Sequence[bytes | int]]
"""Rows of a snapshot: (subject, seq, due)."""


class Due(NamedTuple):
    """A schedule, and when it is due."""

    ns: int
    seq: Seq
    subject: bytes


class Schedules:
    """Due times of one stream's schedules."""

    __slots__ = ("_heap", "_index", "_rows", "is_changed")

    def __init__(self, index: StreamIndex) -> None:
        self._index = index
        self._rows: dict[bytes, Due] = {}
        self._heap: list[Due] = []  # some of them are of rows that are not there any more
        self.is_changed = False  # since the leader asked last

    def __bool__(self) -> bool:
        return bool(self._rows)

    def note(self, subject: bytes, seq: Seq, due_ns: int) -> None:
        """The message `seq`, stored or about to be, is a schedule that is due then."""
        due = Due(due_ns, seq, subject)
        self._rows[subject] = due
        heapq.heappush(self._heap, due)
        self.is_changed = True
        if len(self._heap) > _STALE + 2 * len(self._rows):
            self._sweep()

    def forget(self, subject: bytes) -> None:
        """The schedule of a subject has ended."""
        self._rows.pop(subject, None)

    def find(self, subject: bytes) -> Due | None:
        """Return the schedule of a subject, if it has one."""
        due = self._rows.get(subject)
        return due if due is not None and self._is_live(due) else None

    def first(self, up_to_ns: int, most: int) -> list[Due]:
        """Return the schedules that are due, at most so many, the first one first."""
        found: list[Due] = []
        heap = self._heap
        while heap and heap[0].ns <= up_to_ns and len(found) < most:
            due = heapq.heappop(heap)
            if self._rows.get(due.subject) == due and self._is_live(due):
                found.append(due)
        for due in found:
            heapq.heappush(heap, due)
        return found

    def next_due_ns(self) -> int | None:
        """Return when the next one is due; None: there is none."""
        self.is_changed = False
        heap = self._heap
        while heap:
            due = heap[0]
            if self._rows.get(due.subject) == due and self._is_live(due):
                return due.ns
            heapq.heappop(heap)
        return None

    def _is_live(self, due: Due) -> bool:
        return due.seq > self._index.last_seq or (
            due.seq == self._index.lookup.last_of(due.subject)
        )

    def _sweep(self) -> None:
        self._rows = {name: due for name, due in self._rows.items() if self._is_live(due)}
        self._heap = sorted(self._rows.values())

    def to_state(self) -> list[list[bytes | int]]:
        """Return the schedules, equal on all replicas."""
        return [
            [subject, due.seq, due.ns]
            for subject, due in sorted(self._rows.items())
            if self._is_live(due)
        ]

    def load(self, state: ScheduleState) -> None:
        """Take over what `to_state` gave."""
        for subject, seq, due_ns in state:
            assert isinstance(subject, bytes) and isinstance(seq, int), subject
            assert isinstance(due_ns, int), subject
            self.note(subject, seq, due_ns)
