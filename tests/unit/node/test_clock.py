"""An operator hears that the clock was set, once; not that it is a bit off, or that time passes."""

from __future__ import annotations

from streamd.limits import CLOCK_STEP_NS
from streamd.node.clock import ClockWatch

HOUR_S = 3600


class Clock:
    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000_000_000_000
        self.up_ns = 0

    def now_ns(self) -> int:
        return self.wall_ns

    def monotonic_ms(self) -> int:
        return self.up_ns // 1_000_000

    def go_on(self, seconds: float, *, wall_s: float = 0.0) -> None:
        """Time passes, and the wall clock is set by `wall_s`."""
        self.up_ns += round(seconds * 1e9)
        self.wall_ns += round((seconds + wall_s) * 1e9)


def test_a_clock_that_is_set_is_told_once() -> None:
    clock = Clock()
    watch = ClockWatch(clock)
    told: list[object] = []

    def look() -> None:
        watch.check(lambda text, **facts: told.append((text, facts["seconds"])))

    clock.go_on(HOUR_S)
    look()
    for _ in range(100):  # slewed, as by NTP
        clock.go_on(5, wall_s=0.9 * CLOCK_STEP_NS / 1e9)
        look()
    assert told == []
    clock.go_on(5, wall_s=HOUR_S)
    look()
    clock.go_on(5)
    look()
    assert told == [("the clock was set", HOUR_S)]
    clock.go_on(5, wall_s=-HOUR_S)
    look()
    assert told[1:] == [("the clock was set", -HOUR_S)]
