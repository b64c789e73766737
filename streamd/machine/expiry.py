"""When messages leave by age or by their own TTL, as the leader asks before it proposes EXPIRE.

Planning changes nothing that is replicated: what the plan names leaves when the EXPIRE is applied.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final

from streamd.limits import TRIM_MSGS
from streamd.machine import commands
from streamd.machine.base import IS_NEVER
from streamd.machine.commands import Command
from streamd.machine.lookup import IndexLookup
from streamd.machine.retention import Limits
from streamd.types import Seq

EXPIRE_NAMED_MAX: Final = 4096  # seqs named one by one in an EXPIRE


class Expiry:
    """Due times of one stream's messages."""

    __slots__ = ("_age_from", "_due", "_index")

    def __init__(self, index: IndexLookup) -> None:
        self._index = index
        self._due: list[tuple[int, Seq]] = []  # heap of (due, seq); dead seqs fall out late
        self._age_from: Seq = 0  # all below it are dead or never expire: only a hint

    def watch(self, seq: Seq, due_ns: int) -> None:
        """The message `seq` leaves at `due_ns` unless it left before."""
        heapq.heappush(self._due, (due_ns, seq))

    def forget_hint(self) -> None:
        """The rules of age have changed."""
        self._age_from = 0

    def next_due_ns(self, limits: Limits) -> int:
        """When the next message must leave; 0: nothing will."""
        due = 0
        if limits.max_age_ns > 0:
            seq = self._first_aging(limits)
            if seq:
                due = self._index.ts_at(seq) + limits.max_age_ns
        heap = self._due
        while heap and not self._index.is_live(heap[0][1]):
            heapq.heappop(heap)
        if heap and (not due or heap[0][0] < due):
            due = heap[0][0]
        return due

    def plan(self, now_ns: int, limits: Limits) -> Command | None:
        """The EXPIRE to propose at `now_ns`, or None. Bounded: ask again after it is applied."""
        up_to = 0
        if limits.max_age_ns > 0:
            seq = self._first_aging(limits)
            if seq and self._index.ts_at(seq) + limits.max_age_ns <= now_ns:
                young = self._index.seq_at_time(now_ns - limits.max_age_ns + 1)
                up_to = min(young - 1, seq + TRIM_MSGS)
        named: list[Seq] = []
        passed: list[tuple[int, Seq]] = []
        heap = self._due
        while heap and heap[0][0] <= now_ns and len(named) < EXPIRE_NAMED_MAX:
            item = heapq.heappop(heap)
            if self._index.is_live(item[1]):
                passed.append(item)
                if item[1] > up_to:
                    named.append(item[1])
        for item in passed:
            heapq.heappush(heap, item)
        if not up_to and not named:
            return None
        return [commands.EXPIRE, now_ns, up_to, sorted(named)]

    def _first_aging(self, limits: Limits) -> Seq:
        """The first live message that age will remove; 0 if none."""
        index = self._index
        seq = index.next_live(max(self._age_from, index.first_seq))
        if limits.allows_ttl:
            while seq <= index.last_seq and index.flags_at(seq) & IS_NEVER:
                seq = index.next_live(seq + 1)
        self._age_from = seq
        return seq if seq <= index.last_seq else 0

    def to_state(self) -> list[tuple[int, Seq]]:
        """Who leaves when, without those that are gone already: equal on all replicas."""
        return sorted(item for item in self._due if self._index.is_live(item[1]))

    def load(self, state: Iterable[Sequence[int]]) -> None:
        """Inverse of `to_state`. A sorted list is a heap."""
        self._due = [(due, seq) for due, seq in state]
