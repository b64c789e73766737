"""The few things a stream machine must know about a message's headers.

A header block is `NATS/1.0\\r\\nKey: value\\r\\n...\\r\\n\\r\\n`. Keys of the server's own headers
are compared with their case, and blanks before a value are skipped; a tab, and any blank behind the
value, is part of it: as nats-server does.
"""

from __future__ import annotations

from typing import Final

from streamd.durations import SECOND_NS, parse_duration
from streamd.subjects import is_valid_literal

TRACE_DEST: Final = b"Nats-Trace-Dest"
TRACE_ONLY: Final = b"Nats-Trace-Only"
REQUEST_INFO: Final = b"Nats-Request-Info"
TRACE_DISABLED: Final = b"trace disabled"
"""The destination of a message that was stored: it is traced on its way in, not on its way out."""

VERSION: Final = b"NATS/1.0"
_VERSION_LINE: Final = VERSION + b"\r\n"
_NO_HEADERS: Final = _VERSION_LINE + b"\r\n"
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
    return block[start : block.find(b"\r\n", start)].lstrip(b" ")


def server_headers(block: bytes) -> dict[bytes, bytes]:
    """Return the headers whose key starts with `Nats-`; of repeated ones the first."""
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n"):
        if line[:5] == b"Nats-":
            key, _, value = line.partition(b":")
            found.setdefault(key, value.lstrip(b" "))
    return found


def without(block: bytes, key: bytes) -> bytes:
    """Return `block` without any header `key`."""
    lines = [line for line in block.split(b"\r\n") if line.partition(b":")[0] != key]
    return b"\r\n".join(lines)


def without_heads(block: bytes, head: bytes) -> bytes:
    """Return `block` without the headers whose key begins with `head`."""
    return b"\r\n".join(line for line in block.split(b"\r\n") if not line.startswith(head))


def with_header(block: bytes, key: bytes, value: bytes) -> bytes:
    """Return `block` with `key: value` added at its end."""
    head = block[:-2] if block else b"NATS/1.0\r\n"
    return head + key + b": " + value + b"\r\n\r\n"


def are_stored_as_sent(blocks: bytes) -> bool:
    """Return True if `as_stored` changes none of these header blocks, joined; False: perhaps."""
    # Wherever the version stands, the line ends behind it: so it does at the begin of each.
    return (
        blocks.count(VERSION) == blocks.count(_VERSION_LINE)
        and TRACE_DEST not in blocks
        and REQUEST_INFO not in blocks
    )


def as_stored(block: bytes) -> bytes:
    """Return the headers of a publish as a stream keeps them: without the text of the status line,
    for a client that gets the message must not take it for word from the server; without what
    another server said of who asks; and so that it is not traced again when it leaves."""
    stored = block
    if TRACE_DEST in block and block.startswith(_VERSION_LINE):
        destination = (get(block, TRACE_DEST) or b"").strip()
        if destination != TRACE_DISABLED and is_valid_literal(destination):
            start = block.find(b"\r\n" + TRACE_DEST + b":") + len(TRACE_DEST) + 3
            start += 1 if block.startswith(b" ", start) else 0
            stored = block[:start] + TRACE_DISABLED + block[block.find(b"\r\n", start) :]
    if REQUEST_INFO in stored:
        stored = without(stored, REQUEST_INFO)
    if stored.startswith(VERSION):
        end = stored.find(b"\r\n")
        if end > len(VERSION):
            stored = VERSION + stored[end:]
    return b"" if stored == _NO_HEADERS and stored != block else stored


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
