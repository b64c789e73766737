"""`Wakeup`: a group has something to do. Like an event, but fair to others on the loop."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Rung by anybody on the loop, waited for by one. For hot paths: what is asked most often,
    `is_rung`, is a plain attribute."""

    __slots__ = ("_waiter", "is_rung")

    def __init__(self) -> None:
        self.is_rung = False
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
        """Return once it was rung; not before others on the loop had their turn, even if it is
        ringing already. (An asyncio.Event that is set returns at once, and who always has more to
        do would keep the loop.)"""
        if self.is_rung:
            await asyncio.sleep(0)
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
