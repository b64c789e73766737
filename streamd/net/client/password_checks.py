"""bcrypt checks of passwords: on a few threads of their own, behind a bounded queue.

A check takes a processor for as long as an attacker may ask for one, by nothing but a CONNECT. So
they run neither on the loop nor on threads that disks or others wait for, and on no more of them
than leave a processor to the server. Sources (addresses) take turns: who guesses in a storm waits
behind its own guesses, and others do not. Checks of connections that are gone are not run.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from streamd.limits import PASSWORD_CHECKS_WAITING_MAX
from streamd.net.client.auth import Check, Identity

Done = Callable[[Identity | None], None]

THREADS: Final = max(1, min(4, (os.cpu_count() or 1) // 2))


class _Waiting(NamedTuple):
    check: Check
    is_gone: Callable[[], bool]
    done: Done


class PasswordChecks:
    """Password checks of one listener. All methods are called on the loop, as is `done`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None  # made when the first password comes
        self._queues: dict[str, deque[_Waiting]] = {}  # by source; the next in turn comes first
        self._running = 0
        self.waiting_count = 0

    def has_room(self) -> bool:
        """Return False if so many wait that the next would wait in vain."""
        if self.waiting_count >= PASSWORD_CHECKS_WAITING_MAX:
            self._drop_gone()
        return self.waiting_count < PASSWORD_CHECKS_WAITING_MAX

    def submit(
        self,
        loop: asyncio.AbstractEventLoop,
        source: str,
        check: Check,
        *,
        is_gone: Callable[[], bool],
        done: Done,
    ) -> None:
        """Run `check` when it is its turn, and call `done` with its outcome, later, once; with None
        if `is_gone` by then: a crowd that only guesses must not have others wait for each guess."""
        self._queues.setdefault(source, deque()).append(_Waiting(check, is_gone, done))
        self.waiting_count += 1
        self._run_next(loop)

    def close(self) -> None:
        """Start no more checks; those that run end by themselves."""
        self._queues.clear()
        self.waiting_count = 0
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._running < THREADS and self._queues:
            source = next(iter(self._queues))
            queue = self._queues.pop(source)
            waiting = queue.popleft()
            self.waiting_count -= 1
            if queue:
                self._queues[source] = queue  # behind all others
            if waiting.is_gone():
                waiting.done(None)
                continue
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
            self._running += 1
            running = loop.run_in_executor(self._pool, waiting.check.run)
            running.add_done_callback(partial(self._on_finished, loop, waiting.done))

    def _on_finished(
        self, loop: asyncio.AbstractEventLoop, done: Done, running: asyncio.Future[Identity | None]
    ) -> None:
        self._running -= 1
        try:
            if not running.cancelled():
                done(running.result())
        finally:
            self._run_next(loop)

    def _drop_gone(self) -> None:
        for source, queue in list(self._queues.items()):
            gone = [waiting for waiting in queue if waiting.is_gone()]
            if not gone:
                continue
            self.waiting_count -= len(gone)
            left = deque(waiting for waiting in queue if not waiting.is_gone())
            if left:
                self._queues[source] = left
            else:
                del self._queues[source]
            for waiting in gone:
                waiting.done(None)
