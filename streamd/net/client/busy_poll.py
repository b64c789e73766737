"""Looking for what comes next without going to sleep, for a moment after an ack.

Who waits for each ack of its publishes sends the next one some 30 us after it, if it runs on this
machine or near it. To sleep for so long and be woken takes a processor as much time as to look
again and again, and the client longer: by a sixth, measured with one publish in flight
(docs/adr/0029).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LOOK_S = 50e-6  # the longest look
MISSES_MAX = 4  # in a row; then whoever publishes here is too far away, or in no hurry
REST_ACKS_MIN = 64  # as many acks are sent before the next look, and twice as many after each miss
REST_ACKS_MAX = 4096


class Attention:
    """One server's. While it looks the loop polls its sockets without waiting, and does whatever
    there is to do: nothing else is held up."""

    __slots__ = ("_call_soon", "_clock", "_misses", "_rest", "_rest_left", "_until_s", "is_looking")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._call_soon: Callable[..., Any] | None = None
        self.is_looking = False
        self._until_s = 0.0
        self._misses = 0
        self._rest = REST_ACKS_MIN
        self._rest_left = 0

    def acked(self, call_soon: Callable[..., Any]) -> None:
        """A publish that came alone was acked: its client may send the next one at once."""
        if self._rest_left:
            self._rest_left -= 1
            return
        self._until_s = self._clock() + LOOK_S
        if not self.is_looking:
            self.is_looking = True
            self._call_soon = call_soon
            call_soon(self._look)

    def came(self) -> None:
        """Something did come, while this looked."""
        self._until_s = 0.0
        self._misses = 0
        self._rest = REST_ACKS_MIN

    def _look(self) -> None:
        if self._clock() < self._until_s:
            assert self._call_soon is not None
            self._call_soon(self._look)
            return
        self.is_looking = False
        if not self._until_s:
            return
        self._misses += 1
        if self._misses >= MISSES_MAX:
            self._rest_left = self._rest
            self._rest = min(2 * self._rest, REST_ACKS_MAX)
