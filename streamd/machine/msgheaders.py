"""The few things a stream machine must know about a message's headers.

A header block is `NATS/1.0\\r\\nKey: value\\r\\n...\\r\\n\\r\\n`. Keys of the server's own headers
are compared with their case, as nats-server does. The full parser lives in the protocol room.
"""

from __future__ import annotations

import re
from typing import Final

_SECOND: Final = 1_000_000_000
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
NEVER: Final = -1
_INT64_MAX: Final = (1 << 63) - 1
_INT64_DIGITS: Final = 19
_FRACTION_DIGITS: Final = 18  # any more are far below a nanosecond
_TTL_NS_MAX: Final = 1 << 62  # 146 years: any later date is past what timestamps can say


def get(block: bytes, key: bytes) -> bytes | None:
    """Return the value of the first header `key`, or None."""
    start = block.find(b"\r\n" + key + b":")
    if start < 0:
        return None
    start += len(key) + 3
    return block[start : block.find(b"\r\n", start)].strip()


def server_headers(block: bytes) -> dict[bytes, bytes]:
    """Return the headers whose key starts with `Nats-`; of repeated ones the first."""
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n"):
        if line[:5] == b"Nats-":
            key, _, value = line.partition(b":")
            found.setdefault(key, value.strip())
    return found


def without(block: bytes, key: bytes) -> bytes:
    """Return `block` without any header `key`."""
    lines = [line for line in block.split(b"\r\n") if line.partition(b":")[0] != key]
    return b"\r\n".join(lines)


def with_header(block: bytes, key: bytes, value: bytes) -> bytes:
    """Return `block` with `key: value` added at its end."""
    head = block[:-2] if block else b"NATS/1.0\r\n"
    return head + key + b": " + value + b"\r\n\r\n"


def parse_duration(text: str) -> int | None:
    """Return the ns of a Go duration such as `1h30m`; None if it is not one. Exact integers."""
    negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    total = 0
    position = 0
    while position < len(rest):
        part = _DURATION.match(rest, position)
        if part is None:
            return None
        whole, _, fraction = part[1].partition(".")
        whole, fraction = whole.lstrip("0"), fraction[:_FRACTION_DIGITS]
        if len(whole) > _INT64_DIGITS:
            return None  # Python refuses to read a number of thousands of digits
        unit = _UNITS[part[2]]
        total += int(whole or "0") * unit
        if fraction:
            total += int(fraction) * unit // 10 ** len(fraction)
        position = part.end()
    if position == 0 or total > _INT64_MAX:
        return None
    return -total if negative else total


def parse_ttl(value: bytes) -> int | None:
    """Return the ns of a `Nats-TTL`: NEVER, a positive time of whole seconds, or None if bad."""
    if value.lower() == b"never":
        return NEVER
    text = value.decode("ascii", "replace")
    if text.isdigit():
        text = text.lstrip("0")
        seconds = int(text or "0") if len(text) <= _INT64_DIGITS else 0
        return min(seconds * _SECOND, _TTL_NS_MAX) if 0 < seconds <= _INT64_MAX else None
    ns = parse_duration(text)
    return min(ns, _TTL_NS_MAX) if ns is not None and ns >= _SECOND else None


def parse_number(value: bytes) -> int:
    """Return the decimal number in `value`; -1 if it is none (and so equals no seq)."""
    return int(value) if value.isdigit() and len(value) < 20 else -1


def go_duration(ns: int) -> str:
    """Return `ns` as Go prints a duration of at least a second: `1m0s`, `1h0m0.5s`."""
    seconds, fraction = divmod(ns, _SECOND)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    text = f"{seconds}.{fraction:09d}".rstrip("0").rstrip(".") if fraction else str(seconds)
    text += "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
