"""Busy polling: after an ack the loop polls for the next publish instead of going to sleep.

A client that waits for each ack of its publishes sends the next one some 30 us after it, if it runs
on this machine or near it. To sleep for so long and be woken takes a processor as much time as to
poll again and again, and the client longer: by a sixth, measured with one publish in flight
(docs/adr/0029).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL_S = 50e-6  # the longest poll
MISSES_MAX = 4  # in a row; then the publisher is too far away, or in no hurry
REST_ACKS_MIN = 64  # as many acks are sent before the next poll, and twice as many after each miss
REST_ACKS_MAX = 4096


class BusyPoll:
    """Keeps the loop of one server awake for a moment after an ack. While it polls, the loop asks
    its sockets without waiting, and does all other work there is: nothing is held up."""

    __slots__ = (
        "_call_soon",
        "_clock",
        "_misses",
        "_rest",
        "_rest_left",
        "_until_s",
        "is_polling",
    )

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._call_soon: Callable[..., Any] | None = None
        self.is_polling = False
        self._until_s = 0.0
        self._misses = 0
        self._rest = REST_ACKS_MIN
        self._rest_left = 0

    def on_ack(self, call_soon: Callable[..., Any]) -> None:
        """Poll from now on: a publish that came alone was acked, so its client may send the next
        one at once."""
        if self._rest_left:
            self._rest_left -= 1
            return
        self._until_s = self._clock() + POLL_S
        if not self.is_polling:
            self.is_polling = True
            self._call_soon = call_soon
            call_soon(self._poll)

    def on_input(self) -> None:
        """End the poll that is going on: a client sent something."""
        self._until_s = 0.0
        self._misses = 0
        self._rest = REST_ACKS_MIN

    def _poll(self) -> None:
        if self._clock() < self._until_s:
            assert self._call_soon is not None
            self._call_soon(self._poll)
            return
        self.is_polling = False
        if not self._until_s:
            return
        self._misses += 1
        if self._misses >= MISSES_MAX:
            self._rest_left = self._rest
            self._rest = min(2 * self._rest, REST_ACKS_MAX)
