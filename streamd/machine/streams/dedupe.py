"""The duplicate window: message ids seen lately, and the seq each was stored as.

Time is the entries' time, so replicas forget the same ids at the same index.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from streamd.types import Seq

Arrival = tuple[int, bytes, Seq]
"""(ts, id, seq)"""


def columns_of(arrivals: Iterable[Arrival]) -> tuple[bytes, bytes]:
    """The times and the seqs of `arrivals`, u64 each."""
    times, seqs = array("Q"), array("Q")
    for ts, _, seq in arrivals:
        times.append(ts)
        seqs.append(seq)
    return times.tobytes(), seqs.tobytes()


class DedupeState(NamedTuple):
    """Remembered ids in a snapshot, in order; `times` and `seqs` as `columns_of` makes them."""

    ids: list[bytes]
    times: bytes
    seqs: bytes


class DedupeWindow:
    """Ids of the last `window_ns`. A window of 0 remembers nothing."""

    __slots__ = ("_arrivals", "_seqs", "window_ns")

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self._seqs: dict[bytes, Seq] = {}
        self._arrivals: deque[Arrival] = deque()

    def __len__(self) -> int:
        return len(self._seqs)

    def find(self, msg_id: bytes) -> Seq:
        """The seq `msg_id` was stored as; 0 if it was not seen. Call `forget_before` first."""
        return self._seqs.get(msg_id, 0)

    def is_remembered(self, msg_id: bytes, now_ts: int) -> bool:
        """True if `msg_id` was seen within the window before `now_ts`; forgets nothing."""
        if msg_id not in self._seqs:
            return False
        limit = now_ts - self.window_ns
        return any(seen == msg_id and ts > limit for ts, seen, _ in reversed(self._arrivals))

    def remember(self, msg_id: bytes, *, seq: Seq, ts: int) -> None:
        """`msg_id` was stored as `seq` at `ts`."""
        if self.window_ns > 0:
            self._seqs[msg_id] = seq
            self._arrivals.append((ts, msg_id, seq))

    def forget_before(self, now_ts: int) -> None:
        """Forget what arrived longer than the window before `now_ts`."""
        arrivals = self._arrivals
        limit = now_ts - self.window_ns
        while arrivals and arrivals[0][0] <= limit:
            _, msg_id, seq = arrivals.popleft()
            if self._seqs.get(msg_id) == seq:
                del self._seqs[msg_id]

    def resize(self, window_ns: int) -> None:
        """Use another window from now on."""
        self.window_ns = window_ns
        if window_ns <= 0:
            self._seqs.clear()
            self._arrivals.clear()

    def arrivals(self) -> list[Arrival]:
        """Return a copy of the remembered ids, in order: the content of a snapshot
        (`columns_of`)."""
        return list(self._arrivals)

    def to_state(self) -> DedupeState:
        ids = [msg_id for _, msg_id, _ in self._arrivals]
        return DedupeState(ids, *columns_of(self._arrivals))

    def load(self, state: DedupeState) -> None:
        """Take over `to_state` of another window of the same size."""
        ids, times, seqs = state
        rows = zip(array("Q", times), ids, array("Q", seqs), strict=True)
        self._arrivals = deque(rows)
        self._seqs = {msg_id: seq for _, msg_id, seq in self._arrivals}
