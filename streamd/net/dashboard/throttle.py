"""`LoginThrottle`: failed logins slow down the address they come from.

A few mistakes are free; from then on each failure has the address wait, twice as long every time.
A login that succeeds takes back no failure: who has one could try others' passwords between its own
logins. Time does: after a quarter of an hour without a failure all are forgotten.

Only so many addresses are remembered, those that failed last: who has thousands of addresses is
held up by the bounded queue of password checks instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from streamd.limits import (
    DASHBOARD_FORGIVEN_S,
    DASHBOARD_FREE_FAILURES,
    DASHBOARD_PENALTY_S,
    DASHBOARD_PENALTY_S_MAX,
    DASHBOARD_SOURCES_MAX,
)


class LoginThrottle:
    """Failures by address. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # address -> (failures, when the next try may be made)
        self._sources: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, source: str) -> float:
        """Return how long `source` has to wait before it may try; 0: not at all."""
        _, until = self._sources.get(source, (0, 0.0))
        return max(0.0, until - self._clock())

    def begin(self, source: str) -> None:
        """Count a try as failed until it succeeds: many at once are no way around."""
        failures, until = self._sources.pop(source, (0, 0.0))
        failures = 1 if self._clock() - until >= DASHBOARD_FORGIVEN_S else failures + 1
        penalty_s = 0.0
        if failures > DASHBOARD_FREE_FAILURES:
            doublings = min(failures - DASHBOARD_FREE_FAILURES - 1, 16)
            penalty_s = min(DASHBOARD_PENALTY_S * 2**doublings, DASHBOARD_PENALTY_S_MAX)
        self._sources[source] = failures, self._clock() + penalty_s
        while len(self._sources) > DASHBOARD_SOURCES_MAX:
            self._sources.popitem(last=False)

    def succeed(self, source: str) -> None:
        """Count the last try of `source` as none that failed: it is let in, or was not judged."""
        failures, _ = self._sources.pop(source, (0, 0.0))
        if failures > 1:
            self._sources[source] = failures - 1, self._clock()
