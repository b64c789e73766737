"""The one place of the server that asks what time it is."""

from __future__ import annotations

import time


class SystemClock:
    """Wall clock for timestamps, monotonic clock for deadlines."""

    def now_ns(self) -> int:
        """Return ns since the epoch."""
        return time.time_ns()

    def monotonic_ms(self) -> int:
        """Return ms that never go back."""
        return time.monotonic_ns() // 1_000_000
