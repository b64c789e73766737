"""`Rates`: messages a second of counters that only grow, by looking at them now and then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from streamd.limits import DASHBOARD_RATE_S, DASHBOARD_RATE_S_MAX

K = TypeVar("K", bound=Hashable)


class Rates(Generic[K]):
    """Rates by the name of their counter. `clock` counts seconds.

    Nothing is measured until somebody asks: the first answer is 0, the next ones are the mean since
    the look before.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[K, tuple[float, int, float]] = {}  # when, count, rate until then

    def note(self, key: K, count: int) -> float:
        """Look at a counter; return its rate."""
        now = self._clock()
        seen = self._seen.get(key)
        if seen is None or now - seen[0] > DASHBOARD_RATE_S_MAX or count < seen[1]:
            self._seen[key] = now, count, 0.0
            return 0.0
        then, before, rate = seen
        if now - then >= DASHBOARD_RATE_S:
            rate = (count - before) / (now - then)
            self._seen[key] = now, count, rate
        return rate

    def rate(self, key: K) -> float:
        """Return the rate of a counter at the last look."""
        seen = self._seen.get(key)
        return seen[2] if seen is not None else 0.0

    def keep(self, keys: Collection[K]) -> None:
        """Forget counters that are gone, when they are as many as those that are there."""
        if len(self._seen) > 2 * len(keys) + 64:
            self._seen = {key: seen for key, seen in self._seen.items() if key in keys}
