"""Wakeups of groups that have something to do: like an event, but fair to others on the loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from streamd import limits
from streamd.latency_histogram import LatencyHistogram
from streamd.node.groups.group import Group
from streamd.node.groups.inbox import InboxMessage
from streamd.node.groups.turn import Turn


class Wakeup:
    """Signal to one monitor, given by any code on the loop. For hot paths: the question asked
    most often, `is_scheduled`, is a plain attribute."""

    __slots__ = ("_since", "_waiter", "is_next", "is_scheduled")

    def __init__(self) -> None:
        self.is_scheduled = False
        self.is_next = False  # of many (see DueTurns), its turn is one of the next
        self._since = 0.0  # when the loop last came here; monotonic, s
        self._waiter: asyncio.Future[None] | None = None

    def schedule(self) -> bool:
        """Wake the monitor that waits, or is about to; True if it waits."""
        self.is_scheduled = True
        return self.release()

    def release(self) -> bool:
        """Let the monitor go on; False if it does not wait, or may already."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False
        waiter.set_result(None)
        return True

    def clear(self) -> None:
        """Mark the turn as begun."""
        self.is_scheduled = False

    async def wait(self) -> None:
        """Return once a turn is scheduled. If one is already: at once, as long as the caller has
        not had the loop for longer than its share; then others on the loop go first. (An
        asyncio.Event that is set always returns at once, so a task that always has more to do
        keeps the loop.)"""
        if self.is_scheduled:
            if time.monotonic() - self._since >= limits.LOOP_SHARE_S:
                await asyncio.sleep(0)
                self._since = time.monotonic()
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self._since = time.monotonic()


class DueTurns:
    """The groups of a node that have a turn due: some in this round of the loop, the rest later.

    Of ten thousand groups each may have one at once, as after an election timeout. All of them in
    one round would keep the loop for seconds: no socket is read meanwhile, peers take this node
    for dead, and their links, once cut, give every group a turn again.
    """

    __slots__ = ("_next_count", "_waiting", "apply_times", "count", "times")

    def __init__(self) -> None:
        self.count = 0
        self.times = LatencyHistogram()  # of turns that `measure` ran
        self.apply_times = LatencyHistogram()  # of what `measure_apply` ran, if it applied
        self._next_count = 0
        self._waiting: deque[Wakeup] = deque()

    def schedule(self, wakeup: Wakeup) -> None:
        """Schedule the turn of the monitor of `wakeup`, which has none scheduled."""
        self.count += 1
        if self._next_count >= limits.LOOP_TURNS_MAX:
            wakeup.is_scheduled = True  # a monitor that did not wait goes on, as ever
            self._waiting.append(wakeup)
        elif wakeup.schedule():  # one that does not wait yet holds up no other
            self._next_count += 1
            wakeup.is_next = True

    def begin(self, wakeup: Wakeup) -> None:
        """Mark the turn of `wakeup` as begun, or never to come: another that waits is next."""
        self.count -= 1
        wakeup.is_scheduled = False
        if not wakeup.is_next:
            return
        wakeup.is_next = False
        waiting = self._waiting
        while waiting:
            other = waiting.popleft()
            if other.is_scheduled and not other.is_next and other.release():
                other.is_next = True
                return
        self._next_count -= 1

    def measure(self, turn: Callable[[], None]) -> None:
        """Run a turn and record how long it had the loop."""
        began = time.perf_counter()
        turn()
        self.times.record(time.perf_counter() - began)

    def measure_apply(
        self, group: Group, now_ms: int, now_ns: int, inbox: list[InboxMessage]
    ) -> Turn:
        """Run a group's turn; record how long it took if it applied committed entries."""
        applied = group.machine.applied
        began = time.perf_counter()
        turn = group.turn(now_ms, now_ns, inbox)
        if group.machine.applied != applied:
            self.apply_times.record(time.perf_counter() - began)
        return turn
