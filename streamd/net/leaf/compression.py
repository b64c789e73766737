"""Compression of leaf links: which mode two ends agree on, and how each end then writes.

Both ends name a mode in their first INFO; the end that dialed decides, and says so in an INFO of
its own, behind which all bytes in both directions are an S2 stream. Each end writes by its own
mode.
"""

from __future__ import annotations

from typing import Final

NOT_SUPPORTED: Final = "not supported"
OFF: Final = "off"
ACCEPT: Final = "accept"
AUTO: Final = "s2_auto"
UNCOMPRESSED: Final = "s2_uncompressed"
FAST: Final = "s2_fast"
BETTER: Final = "s2_better"
BEST: Final = "s2_best"
_MODES: Final = (AUTO, UNCOMPRESSED, FAST, BETTER, BEST)


def agreed_mode(own: str, other: str) -> str:
    """Return the mode of this end for a link to an end whose mode is `other`."""
    if not other or other == NOT_SUPPORTED:
        return NOT_SUPPORTED
    if OFF in (own, other) or (other != ACCEPT and other not in _MODES):
        return OFF
    if own != ACCEPT:
        return own
    if other == ACCEPT:
        return OFF
    return FAST if other == AUTO else other


def is_compressed(mode: str) -> bool:
    """Return True if a link with this mode is an S2 stream."""
    return mode in _MODES


def mode_by_rtt(rtt_ns: int, thresholds_ns: tuple[int, ...]) -> str:
    """Return the mode that `s2_auto` comes to: the longer the way, the smaller the bytes."""
    for mode, until_ns in zip((UNCOMPRESSED, FAST, BETTER), thresholds_ns, strict=False):
        if rtt_ns <= until_ns:
            return mode
    return BEST
