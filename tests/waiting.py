"""Waiting with a deadline for what only a server's answers tell.

A test waits on an event where there is one: a frame, a line of a log, the end of a process. Where a
server can but be asked, these ask it again and again; a test has no loop of its own for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Answer = TypeVar("Answer")
WITHIN_S = 60.0
_PAUSE_S = 0.01


def until(ask: Callable[[], Answer], what: str, within_s: float = WITHIN_S) -> Answer:
    """Ask until the answer is true; return it. Fails once that takes too long."""
    deadline = time.monotonic() + within_s
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(_PAUSE_S)
    return answer


async def until_told(
    ask: Callable[[], Awaitable[Answer]], what: str, within_s: float = WITHIN_S
) -> Answer:
    """Ask until the answer is true; return it. Other coroutines run meanwhile."""
    deadline = time.monotonic() + within_s
    while not (answer := await ask()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(_PAUSE_S)
    return answer
