"""The few things a stream machine must know about a message's headers.

A header block is `NATS/1.0\\r\\nKey: value\\r\\n...\\r\\n\\r\\n`. Keys of the server's own headers
are compared with their case, as nats-server does.
"""

from __future__ import annotations

from typing import Final

from streamd.durations import SECOND_NS, parse_duration

NEVER: Final = -1
_INT64_MAX: Final = (1 << 63) - 1
_INT64_DIGITS: Final = 19
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


def parse_ttl(value: bytes) -> int | None:
    """Return the ns of a `Nats-TTL`: NEVER, a positive time of whole seconds, or None if bad."""
    if value.lower() == b"never":
        return NEVER
    text = value.decode("ascii", "replace")
    if text.isdigit():
        text = text.lstrip("0")
        seconds = int(text or "0") if len(text) <= _INT64_DIGITS else 0
        return min(seconds * SECOND_NS, _TTL_NS_MAX) if 0 < seconds <= _INT64_MAX else None
    ns = parse_duration(text)
    return min(ns, _TTL_NS_MAX) if ns is not None and ns >= SECOND_NS else None


def parse_number(value: bytes) -> int:
    """Return the decimal number in `value`; -1 if it is none (and so equals no seq)."""
    return int(value) if value.isdigit() and len(value) < 20 else -1
