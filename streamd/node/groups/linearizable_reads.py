"""Linearizable reads of one group: an answer may be given once all is applied that it must show.

With peers that takes a majority's word that nobody else leads by now (ReadIndex); then what was
committed at that moment has to be applied here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamd import limits
from streamd.raft.core import ProposalRejected, RaftCore
from streamd.raft.ready import ReadState
from streamd.types import Index

Callback = Callable[[], object]


class _Asked(NamedTuple):
    """A read that waits for a majority's word."""

    least: Index  # what it must see besides
    done: Callback
    lost: Callback
    asked_ms: int


class LinearizableReads:
    """Readers of one group. Each hears `done`, or `lost` if no leader can say what it must see."""

    def __init__(self, raft: RaftCore) -> None:
        self._raft = raft
        self._asked: dict[int, _Asked] = {}  # by ReadIndex context
        # Begins elsewhere in each life: the answer to an earlier one's question must not be taken
        # for the answer to ours.
        self._count = raft.nonce << 20
        self._barriers: list[tuple[Index, Callback, Callback]] = []  # wait for that to be applied

    def __bool__(self) -> bool:
        return bool(self._asked or self._barriers)

    def add(self, done: Callback, lost: Callback, at_ms: int) -> bool:
        """Begin a read. False: no leader is known that could be asked."""
        raft = self._raft
        if raft.log.is_sole:
            self._barriers.append((raft.last_index, done, lost))
            return True
        self._count += 1
        index = raft.last_index if raft.is_leader else 0
        self._asked[self._count] = _Asked(index, done, lost, at_ms)
        try:
            raft.read_index(self._count)
        except ProposalRejected:
            return self._asked.pop(self._count, None) is None
        return True

    def answered(self, state: ReadState) -> Callback | None:
        """Take the majority's word on a read. Returns the reader that is lost by it."""
        asked = self._asked.pop(state.context, None)
        if asked is None:
            return None
        if not state.index:  # no leader could say
            return asked.lost
        self._barriers.append((max(state.index, asked.least), asked.done, asked.lost))
        return None

    def passed(self, applied: Index) -> list[Callback]:
        """Return the readers that may be answered, for all up to `applied` is applied."""
        ready = [done for index, done, _ in self._barriers if index <= applied]
        if ready:
            self._barriers = [each for each in self._barriers if each[0] > applied]
        return ready

    def overdue(self, now_ms: int) -> list[Callback]:
        """Release and return the readers whose question or answer was lost on its way."""
        since_ms = now_ms - limits.RAFT_READ_LOST_MS
        lost = []
        while self._asked:
            oldest = next(iter(self._asked))
            if self._asked[oldest].asked_ms > since_ms:
                break
            lost.append(self._asked.pop(oldest).lost)
        return lost

    def clear(self) -> list[Callback]:
        """Release all readers that wait, and return them: what they must see is not known here."""
        lost = [asked.lost for asked in self._asked.values()]
        lost += [lost for _, _, lost in self._barriers]
        self._asked.clear()
        self._barriers = []
        return lost

    def deadline_ms(self) -> int:
        """Return when the oldest is overdue, monotonic ms; 0: none is asked."""
        if not self._asked:
            return 0
        return next(iter(self._asked.values())).asked_ms + limits.RAFT_READ_LOST_MS
