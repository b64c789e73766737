"""When messages leave by age or by their own TTL, as the leader asks before it proposes EXPIRE.

Planning changes nothing that is replicated: what the plan names leaves when the EXPIRE is applied.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from streamd.machine import commands
from streamd.machine.base import IS_NEVER
from streamd.machine.commands import Command
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.streams.retention import Limits
from streamd.types import Seq

EXPIRE_MAX: Final = 20_000  # the oldest leave cheaply, 15 ms for these, and must leave as they come
EXPIRE_NAMED_MAX: Final = 4096  # seqs named one by one in an EXPIRE
_SECOND: Final = 1_000_000_000
_FEW_DUE: Final = 64  # so many may be there for nothing
_LOOKS: Final = 4  # at what may be dead, for each one that comes

Due = tuple[int, Seq]
"""(ns since the epoch, the message that leaves then)"""


class Expiry:
    """Due times of one stream's messages.

    Kept by the second, so that the order within one matters only when it comes: a snapshot of a
    million of them copies lists, and sorts each apart, in another thread.

    Those of messages that left before their time are forgotten by and by, when there are as many
    of them as of others: a key with a long life may be written anew each second.
    """

    __slots__ = (
        "_age_from",
        "_count",
        "_index",
        "_later",
        "_looks",
        "_many",
        "_seconds",
        "_soon",
        "_soon_second",
        "_unswept",
        "fresh_ns",
    )

    def __init__(self, index: StreamIndex) -> None:
        self._index = index
        # Dead seqs fall out late: in both, when their time has come, or by `_sweep`.
        self._soon: list[Due] = []  # heap: all that is due up to `_soon_second`
        self._soon_second = 0
        self._later: dict[int, list[Due]] = {}  # by second
        self._seconds: list[int] = []  # heap: those of `_later`, and of what was swept from it
        self._count = 0  # of all in `_soon` and `_later`
        self._many = _FEW_DUE  # as many are swept: more than twice what was left the last time
        self._unswept: list[int] = []  # seconds, while a sweep goes on
        self._looks = 0  # that it may still take
        self._age_from: Seq = 0  # all below it are dead or never expire: only a hint
        self.fresh_ns = 0  # the soonest of those that came since `next_due_ns` was asked; 0: none

    def watch(self, seq: Seq, due_ns: int) -> None:
        """The message `seq` leaves at `due_ns` unless it left before."""
        if not self.fresh_ns or due_ns < self.fresh_ns:
            self.fresh_ns = due_ns
        second = due_ns // _SECOND
        if second <= self._soon_second:
            heapq.heappush(self._soon, (due_ns, seq))
        else:
            bucket = self._later.get(second)
            if bucket is None:
                self._later[second] = [(due_ns, seq)]
                heapq.heappush(self._seconds, second)
            else:
                bucket.append((due_ns, seq))
        self._count += 1
        many = min(self._many, _FEW_DUE + 2 * self._index.count)
        if self._unswept or self._count > many:
            self._sweep()

    def _sweep(self) -> None:
        """Forget some of those that are dead: second by second, so that it takes no time to speak
        of when a message comes."""
        later, unswept = self._later, self._unswept
        if not unswept:
            self._soon = self._live(self._soon)
            heapq.heapify(self._soon)
            unswept += later
        self._looks += _LOOKS
        while unswept and len(later.get(unswept[-1], ())) < self._looks:
            second = unswept.pop()
            bucket = later.get(second, [])
            self._looks -= len(bucket) + 1
            kept = self._live(bucket)
            if kept:
                later[second] = kept
            else:
                later.pop(second, None)
        if not unswept:
            self._looks = 0
            self._many = _FEW_DUE + 2 * self._count
            if len(self._seconds) > _FEW_DUE + 2 * len(later):
                self._seconds = sorted(later)

    def _live(self, dues: list[Due]) -> list[Due]:
        is_live, last = self._index.live.has, self._index.last_seq
        kept = [due for due in dues if due[1] > last or is_live(due[1])]  # some are stored soon
        self._count -= len(dues) - len(kept)
        return kept

    def forget_hint(self) -> None:
        """The rules of age have changed."""
        self._age_from = 0

    def next_due_ns(self, limits: Limits) -> int:
        """When the next message must leave, or when to look again; 0: nothing will."""
        self.fresh_ns = 0
        if limits.is_restoring:
            return 0
        due = 0
        if limits.max_age_ns > 0:
            seq = self._first_aging(limits)
            if seq:
                due = self._index.locations.ts_at(seq) + limits.max_age_ns
        self._first()
        named_due = 0
        if self._soon:
            named_due = self._soon[0][0]
        elif self._seconds:
            named_due = self._seconds[0] * _SECOND
        return named_due if named_due and (not due or named_due < due) else due

    def plan(self, now_ns: int, limits: Limits) -> Command | None:
        """The EXPIRE to propose at `now_ns`, or None. Bounded: ask again after it is applied."""
        if limits.is_restoring:
            return None
        up_to = 0
        if limits.max_age_ns > 0:
            seq = self._first_aging(limits)
            if seq and self._index.locations.ts_at(seq) + limits.max_age_ns <= now_ns:
                young = self._index.locations.seq_at_time(now_ns - limits.max_age_ns + 1)
                up_to = min(young - 1, seq + EXPIRE_MAX)
        named: list[Seq] = []
        passed: list[Due] = []
        while len(named) < EXPIRE_NAMED_MAX:
            first = self._first()
            if first is None or first[0] > now_ns:
                break
            passed.append(heapq.heappop(self._soon))
            if first[1] > up_to:
                named.append(first[1])
        for item in passed:
            heapq.heappush(self._soon, item)
        if not up_to and not named:
            return None
        return [commands.EXPIRE, now_ns, up_to, sorted(named)]

    def aged(self, up_to: Seq, limits: Limits) -> list[Seq]:
        """Return the live messages up to `up_to` that age removes, ascending. Those in front of
        the first that it takes are not looked at again: there may be a million that never
        leave."""
        index = self._index
        first = self._first_aging(limits)
        due = list(index.live.seqs(first, up_to)) if first else []
        if limits.allows_ttl:
            due = [seq for seq in due if not index.locations.flags_at(seq) & IS_NEVER]
        return due

    def _first(self) -> Due | None:
        """The live one that is due first; it is the first of `_soon`. None may also mean that very
        many dead ones are before it, as after a purge: ask again."""
        soon, is_live = self._soon, self._index.live.has
        dead = 0
        while True:
            while soon and not is_live(soon[0][1]):
                if dead >= EXPIRE_MAX:
                    return None
                heapq.heappop(soon)
                self._count -= 1
                dead += 1
            if soon:
                return soon[0]
            if not self._seconds:
                return None
            self._soon_second = heapq.heappop(self._seconds)
            soon = self._soon = self._later.pop(self._soon_second, [])
            heapq.heapify(soon)

    def _first_aging(self, limits: Limits) -> Seq:
        """The first live message that age will remove; 0 if none."""
        index = self._index
        seq = max(self._age_from, index.first_seq)
        seq = (
            index.locations.next_without(IS_NEVER, seq)
            if limits.allows_ttl
            else index.live.first_from(seq)
        )
        self._age_from = seq
        return seq if seq <= index.last_seq else 0

    def freeze(self) -> Callable[[], list[list[Due]]]:
        """Copy the due times of live messages, equal on all replicas: in lists,
        which are to be joined. Copied now; the result can be called later, in any thread."""
        seconds = sorted(self._later)
        lists = [self._soon[:], *(self._later[second][:] for second in seconds)]
        first, last = self._index.first_seq, self._index.last_seq
        deleted = self._index.live.deleted.copy()

        def frozen() -> list[list[Due]]:
            return [
                sorted(due for due in each if first <= due[1] <= last and due[1] not in deleted)
                for each in lists
            ]

        return frozen

    def load(self, state: Iterable[Sequence[int]]) -> None:
        """Take over what `freeze` gave, joined."""
        for due, seq in state:
            self.watch(seq, due)
