"""Durations as configuration files have them, and how long a server has been up. Amounts are ns."""

from __future__ import annotations

import json
import re

from streamd import durations
from streamd.durations import UNITS_NS

_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([a-zµμ]*)")


def parse_duration(text: str) -> int:
    """Return the ns of a Go duration (`1h30m`, `250ms`). Raises ValueError that says why not."""
    ns = durations.parse_duration(text)
    if ns is None:
        raise ValueError(f'"{text}" is not a duration, such as "500ms" or "1h30m": {_fault(text)}')
    return ns


def parse_go_duration(text: str) -> int:
    """Return the ns of a duration. Raises ValueError with the text that Go has for it."""
    ns = durations.parse_duration(text)
    if ns is not None:
        return ns
    shown = json.dumps(text, ensure_ascii=False)
    fault = _fault(text)
    if fault == "a unit is missing":
        raise ValueError(f"time: missing unit in duration {shown}")
    if fault.startswith("unknown unit"):
        raise ValueError(f"time: {fault} in duration {shown}")
    raise ValueError(f"time: invalid duration {shown}")


def _fault(text: str) -> str:
    body = text[1:] if text[:1] in ("-", "+") else text
    at = 0
    for part in _PART.finditer(body):
        if part.start() != at:
            break
        at = part.end()
        if not part[2]:
            return "a unit is missing"
        if part[2] not in UNITS_NS:
            return f'unknown unit "{part[2]}"'
    return "it cannot be read"


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
