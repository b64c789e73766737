"""Wakes of a stream's cursors: the times at which they want a tick, for all in one heap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from streamd.node.delivery.cursor import Cursor

_FEW_WAKES = 64  # so many may be there for nothing


class CursorWakes:
    """Monotonic times, at most one per cursor."""

    __slots__ = ("_at_of", "_heap", "_ties")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Cursor]] = []  # (ms, tie, cursor); some are void
        self._at_of: dict[Cursor, int] = {}
        self._ties = count()

    def next_ms(self) -> int:
        """Return the earliest time, or that of a void wake; 0: there is none."""
        return self._heap[0][0] if self._heap else 0

    def pop_due(self, now_ms: int) -> Iterator[Cursor]:
        """Yield the cursors whose time has come, the earliest first."""
        heap, at_of = self._heap, self._at_of
        while heap and heap[0][0] <= now_ms:
            at, _, cursor = heapq.heappop(heap)
            if at_of.get(cursor) == at:
                del at_of[cursor]
                yield cursor

    def set(self, monotonic_ms: int, cursor: Cursor) -> None:
        """Wake `cursor` then. An earlier wake that stands is kept: it fires, and asks again. 0: it
        wants none."""
        if monotonic_ms == 0:
            self._at_of.pop(cursor, None)
            return
        standing = self._at_of.get(cursor)
        if standing is None or monotonic_ms < standing:
            self._at_of[cursor] = monotonic_ms
            heapq.heappush(self._heap, (monotonic_ms, next(self._ties), cursor))
            if len(self._heap) > _FEW_WAKES + 2 * len(self._at_of):
                # Most are void: of cursors that are gone, or that asked for an earlier time since.
                self._heap[:] = [(at, next(self._ties), one) for one, at in self._at_of.items()]
                heapq.heapify(self._heap)

    def drop(self, cursor: Cursor) -> None:
        """Forget a cursor that ended."""
        self._at_of.pop(cursor, None)

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        self._at_of.clear()
