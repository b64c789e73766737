"""Timers of a node: callbacks that run once or again and again, until the node stops."""

from __future__ import annotations

from collections.abc import Callable

from streamd.node.groups.monitor import Loop, Timer


class Timers:
    """Timers of one node by name. `stop` cancels the one that was set last under each name."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._timers: dict[str, Timer] = {}
        self._is_stopped = False

    def later(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        """Call once, in `delay_s` seconds."""
        self._timers[name] = self._loop.call_later(delay_s, callback)

    def again(self, name: str, every_s: float, callback: Callable[[], None]) -> None:
        """Call every `every_s` seconds until `stop`, whatever one call ends with."""

        def fire() -> None:
            if not self._is_stopped:
                self.later(name, every_s, fire)
                callback()

        self.later(name, every_s, fire)

    def stop(self) -> None:
        """Cancel all timers; nothing is called any more."""
        self._is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
