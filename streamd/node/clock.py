"""Clocks: no other file of the server asks what time it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from streamd.limits import CLOCK_STEP_NS


class Clock(Protocol):
    def now_ns(self) -> int:
        """Wall clock, ns since the epoch."""

    def monotonic_ms(self) -> int:
        """Never goes back; only differences mean anything."""


class SystemClock:
    """Wall clock for timestamps, monotonic clock for deadlines."""

    def now_ns(self) -> int:
        """Return ns since the epoch."""
        return time.time_ns()

    def monotonic_ms(self) -> int:
        """Return ms that never go back."""
        return time.monotonic_ns() // 1_000_000


class ClockWatch:
    """Notices that the wall clock was set: the monotonic clock did not go with it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ns = self._read()

    def check(self, warn: Callable[..., object]) -> None:
        """Log that the clock was set, once: ages and times of messages go by this clock."""
        before, self._ahead_ns = self._ahead_ns, self._read()
        step_ns = self._ahead_ns - before
        if abs(step_ns) >= CLOCK_STEP_NS:
            warn("the clock was set", seconds=round(step_ns / 1e9))

    def _read(self) -> int:
        return self._clock.now_ns() - self._clock.monotonic_ms() * 1_000_000
