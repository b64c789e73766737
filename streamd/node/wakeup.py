"""`Wakeup`: a group has something to do. Like an event, but fair to others on the loop."""

from __future__ import annotations

import asyncio
import time

from streamd import limits


class Wakeup:
    """Rung by anybody on the loop, waited for by one. For hot paths: what is asked most often,
    `is_rung`, is a plain attribute."""

    __slots__ = ("_since", "_waiter", "is_rung")

    def __init__(self) -> None:
        self.is_rung = False
        self._since = 0.0  # when the loop last came here; monotonic, s
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake who waits, or who is about to."""
        self.is_rung = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

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
