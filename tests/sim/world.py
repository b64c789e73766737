"""Virtual time: one heap of things to do, dice from one seed, and a hash of all that happened.

Things due at the same moment are done in an order drawn by dice, so that seeds explore orders.
Every component draws from dice of its own name, so that one more draw here shifts nothing there.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

MS = 1000  # virtual time is counted in microseconds
SECOND = 1000 * MS
AT_ONCE_MAX = 50_000  # things done at one moment; more means that somebody wakes for ever
TRACE_KEPT = 2000  # last lines shown when a seed fails


class Violation(AssertionError):
    """A promise was broken; the seed that did it replays it."""


class World:
    """Time, dice, counters and the trace of one seed."""

    def __init__(self, seed: int, *, is_verbose: bool = False) -> None:
        self.seed = seed
        self.now_us = 0
        self.counts: Counter[str] = Counter()
        self.recent: list[str] = []
        self._is_verbose = is_verbose
        self._hash = hashlib.blake2b(digest_size=8)
        self._due: list[tuple[int, int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._ties = self.rng("ties")
        self._order = count()

    def rng(self, name: str) -> random.Random:
        """Dice for one component."""
        return random.Random(f"{self.seed}/{name}")

    def at(self, time_us: int, callback: Callable[..., object], *args: Any) -> None:
        """Have `callback` called at `time_us`."""
        assert time_us >= self.now_us, (time_us, self.now_us)
        item = (time_us, self._ties.getrandbits(24), next(self._order), callback, args)
        heapq.heappush(self._due, item)

    def after(self, delay_us: int, callback: Callable[..., object], *args: Any) -> None:
        """Have `callback` called in `delay_us`."""
        self.at(self.now_us + max(0, delay_us), callback, *args)

    def run(self, until_us: int, is_over: Callable[[], bool] | None = None) -> bool:
        """Let time pass up to `until_us`; True if `is_over` said to stop before."""
        due = self._due
        looked_us, left = self.now_us, AT_ONCE_MAX
        while due and due[0][0] <= until_us:
            self.now_us, _, _, callback, args = heapq.heappop(due)
            callback(*args)
            self.counts["events"] += 1
            left -= 1
            if not left:
                need(self.now_us > looked_us, f"time stands still: {callback} again and again")
                looked_us, left = self.now_us, AT_ONCE_MAX
            if is_over is not None and is_over():
                return True
        self.now_us = until_us
        return False

    # --- what happened ----------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        text = f"{self.now_us / SECOND:10.6f} {line}"
        self._hash.update(text.encode())
        self.recent.append(text)
        if len(self.recent) > 2 * TRACE_KEPT:
            del self.recent[:TRACE_KEPT]
        if self._is_verbose:
            print(text)

    def fault(self, kind: str, line: str = "") -> None:
        """Count an injected fault, and trace it if there is something to say."""
        self.counts[f"fault {kind}"] += 1
        if line:
            self.note(f"! {kind} {line}")

    def reached(self, point: str) -> None:
        """Count a place in the code under test that a campaign must reach."""
        self.counts[f"point {point}"] += 1

    def trace_hash(self) -> str:
        """The same for the same seed, wherever and whenever it runs."""
        return self._hash.hexdigest()


def need(condition: object, text: str) -> None:
    """Raise a Violation that says `text` unless `condition` holds."""
    if not condition:
        raise Violation(text)
