"""Durations as Go writes them: `1h30m`, `250ms`. Amounts are ns."""

from __future__ import annotations

import re

SECOND_NS = 1_000_000_000

_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)([a-zµμ]*)")
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
}


def parse_duration(text: str) -> int:
    """Return the ns of a Go duration (`1h30m`, `250ms`). Raises ValueError with Go's words."""
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return 0
    total, at = 0.0, 0
    for part in _DURATION_PART.finditer(body):
        if part.start() != at:
            break
        at = part.end()
        number, unit = part.groups()
        if not unit:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if unit not in _UNITS_NS:
            raise ValueError(f'time: unknown unit "{unit}" in duration "{text}"')
        total += float(number) * _UNITS_NS[unit]
    if not body or at != len(body):
        raise ValueError(f'time: invalid duration "{text}"')
    return -round(total) if text[0] == "-" else round(total)


def format_duration(duration_ns: int) -> str:
    """Return the duration as Go prints it (`2m0s`, `250ms`, `1.5s`)."""
    if duration_ns < 0:
        return "-" + format_duration(-duration_ns)
    if duration_ns < SECOND_NS:
        for unit, size in (("ms", 1_000_000), ("µs", 1_000)):
            if duration_ns >= size:
                return f"{_trim(duration_ns, size)}{unit}"
        return f"{duration_ns}ns" if duration_ns else "0s"
    seconds, rest = divmod(duration_ns, SECOND_NS)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    tail = f"{_trim(seconds * SECOND_NS + rest, SECOND_NS)}s"
    if hours:
        return f"{hours}h{minutes}m{tail}"
    return f"{minutes}m{tail}" if minutes else tail


def format_uptime(duration_ns: int) -> str:
    """nats-server's long form: `1y2d3h4m5s`, without leading zero units."""
    seconds = max(0, duration_ns) // 1_000_000_000
    parts = (
        ("y", seconds // 31_536_000),
        ("d", seconds // 86_400 % 365),
        ("h", seconds // 3600 % 24),
        ("m", seconds // 60 % 60),
        ("s", seconds % 60),
    )
    first = next((i for i, (_, count) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for unit, count in parts[first:])


def _trim(amount: int, size: int) -> str:
    whole, rest = divmod(amount, size)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(size)) - 1}d}".rstrip("0")
