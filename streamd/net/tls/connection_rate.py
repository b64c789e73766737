"""Limit of TLS handshakes begun per second: they are what a connection costs most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ConnectionRate:
    """Counts connections in spans of a second, which begin with the first one after the last."""

    def __init__(
        self,
        per_s_max: int,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[int], None],
    ) -> None:
        """`per_s_max` 0: no limit. `report(count)` is called at the end of a span with refusals."""
        self._max = per_s_max
        self._loop = loop
        self._report = report
        self._until = 0.0
        self._count = self._refused = 0

    def allow(self) -> bool:
        """Count a connection; False: there were too many in this second."""
        if not self._max:
            return True
        now = self._loop.time()
        if now >= self._until:
            self._until = now + 1
            self._count = 0
        self._count += 1
        if self._count <= self._max:
            return True
        if not self._refused:
            self._loop.call_later(self._until - now, self._tell)
        self._refused += 1
        return False

    def _tell(self) -> None:
        refused, self._refused = self._refused, 0
        self._report(refused)
