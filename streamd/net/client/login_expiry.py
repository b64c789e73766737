"""End of a login at the time that its token names."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from streamd.callbacks import ignore

_LOOK_EVERY_S: Final = 3600.0  # a clock that is set meanwhile is noticed by then


class TimerHandle(Protocol):
    """A timer of the loop."""

    def cancel(self) -> None: ...


class CallLater(Protocol):
    """The loop's timers."""

    def __call__(self, delay: float, action: Callable[[], None], /) -> TimerHandle: ...


class LoginExpiry:
    """Calls back when unix time has reached the end of a login; a login without an end costs no
    timer."""

    __slots__ = ("_call_later", "_ends_ns", "_on_end", "_timer", "_wall_ns")

    def __init__(
        self,
        call_later: CallLater,
        on_end: Callable[[], None],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._call_later = call_later
        self._on_end = on_end
        self._wall_ns = wall_ns
        self._ends_ns = 0
        self._timer: TimerHandle | None = None

    def start(self, ends_ns: int) -> None:
        """Await this end from here on, and no other; 0: there is none."""
        self._cancel()
        if ends_ns:
            self._ends_ns = ends_ns
            self._wait()

    def close(self) -> None:
        """Await no end any more, and forget whom to call."""
        self._cancel()
        self._on_end = ignore

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        left_s = max(0.0, (self._ends_ns - self._wall_ns()) / 1e9)
        self._timer = self._call_later(min(left_s, _LOOK_EVERY_S), self._look)

    def _look(self) -> None:
        self._timer = None
        if self._wall_ns() >= self._ends_ns:
            self._on_end()
        else:
            self._wait()
