"""`FreedMemory`: gives memory that was freed back to the kernel, once the process rests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from streamd import limits


class Later(Protocol):
    """Loop's `call_later`."""

    def __call__(self, delay_s: float, callback: Callable[[], None], /) -> Any: ...


def find_trim() -> Callable[[], object] | None:
    """Return the C library's `malloc_trim`; None: it has none, or returns memory by itself."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: trim(0)


class FreedMemory:
    """Looks at the process now and then, and has the C library return what is free in its heap.

    By itself that returns only what is free at the end of its heap: after a burst that waited for
    the disk, 100 MB and more stayed with a server that needs 60. While there is work to do the
    memory is left alone: it would be taken again, page by page. To return 100 MB takes the loop
    for 20 ms, once.
    """

    def __init__(
        self,
        later: Later,
        *,
        cpu_s: Callable[[], float],
        resident_bytes: Callable[[], int],
        trim: Callable[[], object],
    ) -> None:
        self._later = later
        self._cpu_s = cpu_s
        self._resident_bytes = resident_bytes
        self._trim = trim
        self._used_s = 0.0
        self._trimmed_bytes = 0  # resident after the last time
        self._timer: Any = None

    def start(self) -> None:
        """Look every few seconds, until `stop`."""
        self._used_s = self._cpu_s()
        self._timer = self._later(limits.TRIM_LOOK_S, self._check)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = self._later(limits.TRIM_LOOK_S, self._check)
        before_s, self._used_s = self._used_s, self._cpu_s()
        if self._used_s - before_s > limits.TRIM_CPU_SHARE * limits.TRIM_LOOK_S:
            return
        if self._resident_bytes() - self._trimmed_bytes >= limits.TRIM_BYTES_MIN:
            self._trim()
            self._trimmed_bytes = self._resident_bytes()
