"""Durations as Go writes them: `1h30m`, `250ms`. Amounts are ns."""

from __future__ import annotations

import re
from typing import Final

SECOND_NS: Final = 1_000_000_000
UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_INT64_MAX: Final = (1 << 63) - 1
_INT64_DIGITS: Final = 19
_FRACTION_DIGITS: Final = 18  # any more are far below a nanosecond


def parse_duration(text: str) -> int | None:
    """Return the ns of a duration; None if it is none, or one that 64 bits do not hold. Exact."""
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    total = 0
    position = 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            return None
        whole, _, fraction = part[1].partition(".")
        whole, fraction = whole.lstrip("0"), fraction[:_FRACTION_DIGITS]
        if len(whole) > _INT64_DIGITS:
            return None  # Python refuses to read a number of thousands of digits
        unit_ns = UNITS_NS[part[2]]
        total += int(whole or "0") * unit_ns
        if fraction:
            total += int(fraction) * unit_ns // 10 ** len(fraction)
        position = part.end()
    if position == 0 or total > _INT64_MAX:
        return None
    return -total if text[0] == "-" else total


def format_duration(duration_ns: int) -> str:
    """Return the duration as Go prints it (`2m0s`, `250ms`, `1.5s`)."""
    if duration_ns < 0:
        return "-" + format_duration(-duration_ns)
    if duration_ns < SECOND_NS:
        for unit in ("ms", "µs"):
            if duration_ns >= UNITS_NS[unit]:
                return _decimal(duration_ns, UNITS_NS[unit]) + unit
        return f"{duration_ns}ns" if duration_ns else "0s"
    minutes, rest_ns = divmod(duration_ns, UNITS_NS["m"])
    hours, minutes = divmod(minutes, 60)
    tail = _decimal(rest_ns, SECOND_NS) + "s"
    if hours:
        return f"{hours}h{minutes}m{tail}"
    return f"{minutes}m{tail}" if minutes else tail


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")
