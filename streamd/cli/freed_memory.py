"""Memory that was freed: kept for the next use while there is work, given back to the kernel once
the process rests (`FreedMemory`)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Protocol

from streamd import limits

# Options of glibc's `mallopt`, from its malloc.h, and the environment's names for them.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_OF_OPERATOR = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")


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


def keep_for_reuse() -> bool:
    """Make the C library keep some memory that is free at the end of its heap, and take buffers of
    up to some MiB from the heap; False: it has no such options, or the operator has set them.

    By itself it gives free memory beyond 128 KiB back at once, and pages that it asks for anew the
    kernel fills with zeros: with each chunk of a client's messages, two fifths of a core publish.
    """
    if any(name in os.environ for name in _OF_OPERATOR):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(
        (
            mallopt(_M_MMAP_THRESHOLD, limits.HEAP_BUFFER_BYTES_MAX),
            mallopt(_M_TRIM_THRESHOLD, limits.HEAP_KEPT_BYTES),
            mallopt(_M_TOP_PAD, limits.HEAP_STEP_BYTES),
        )
    )


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
