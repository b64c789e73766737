"""`Wakeup`: a group has something to do. Like an event, but fair to others on the loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from streamd import limits


class Wakeup:
    """Rung by anybody on the loop, waited for by one. For hot paths: what is asked most often,
    `is_rung`, is a plain attribute."""

    __slots__ = ("_since", "_waiter", "is_next", "is_rung")

    def __init__(self) -> None:
        self.is_rung = False
        self.is_next = False  # of many (see DueTurns), its turn is one of the next
        self._since = 0.0  # when the loop last came here; monotonic, s
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> bool:
        """Wake who waits, or who is about to; True if somebody waits."""
        self.is_rung = True
        return self.release()

    def release(self) -> bool:
        """Let who waits go on; False if nobody does, or may already."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return False
        waiter.set_result(None)
        return True

    def clear(self) -> None:
        """What it rang for is seen to."""
        self.is_rung = False

    async def wait(self) -> None:
        """Return once it was rung. If it is ringing already: at once, as long as who waits has not
        had the loop for longer than its share; then others on the loop go first. (An asyncio.Event
        that is set always returns at once, so who always has more to do keeps the loop.)"""
        if self.is_rung:
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

    __slots__ = ("_next_count", "_waiting", "count")

    def __init__(self) -> None:
        self.count = 0
        self._next_count = 0
        self._waiting: deque[Wakeup] = deque()

    def ring(self, wakeup: Wakeup) -> None:
        """Have who waits for `wakeup`, which is not rung, take its turn soon."""
        self.count += 1
        if self._next_count >= limits.LOOP_TURNS_MAX:
            wakeup.is_rung = True  # who comes by without having waited goes on, as ever
            self._waiting.append(wakeup)
        elif wakeup.ring():  # who does not wait yet keeps nobody from going on
            self._next_count += 1
            wakeup.is_next = True

    def answer(self, wakeup: Wakeup) -> None:
        """It takes the turn for which `wakeup` rang, or none ever: one that waits is next."""
        self.count -= 1
        wakeup.is_rung = False
        if not wakeup.is_next:
            return
        wakeup.is_next = False
        waiting = self._waiting
        while waiting:
            other = waiting.popleft()
            if other.is_rung and not other.is_next and other.release():
                other.is_next = True
                return
        self._next_count -= 1
