"""Message header blocks: `NATS/1.0[ status]\\r\\n` (`Key: value\\r\\n`)* `\\r\\n`.

A block travels and is stored as the bytes that came; these functions look into it or make new
ones. Keys are case-sensitive and the first of equal keys wins, as the NATS server has it. Nothing
here raises on a malformed block: what cannot be read is not there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

VERSION: Final = b"NATS/1.0"
Pair = tuple[bytes, bytes]


def get(block: bytes, key: bytes) -> bytes | None:
    """Return the first value of `key` in `block`, without the blanks around it; None: absent."""
    at = block.find(b"\r\n" + key + b":")
    if at < 0:
        return None
    start = at + len(key) + 3
    end = block.find(b"\r\n", start)
    if end < 0:
        return None
    return block[start:end].strip(b" \t")


def status(block: bytes) -> bytes:
    """Return the inline status with its description (`404 No Messages`), b"" if there is none."""
    end = block.find(b"\r\n")
    return block[len(VERSION) : end].strip(b" ") if end > len(VERSION) else b""


def parse(block: bytes) -> list[Pair]:
    """Return all (key, value) pairs of `block` in order. The status line is not among them."""
    pairs: list[Pair] = []
    for line in block.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon and key:
            pairs.append((key, value.strip(b" \t")))
    return pairs


def build(pairs: Iterable[Pair], status: bytes = b"") -> bytes:
    """Return a block of `pairs`; `status` is e.g. b"408 Request Timeout"."""
    parts = [VERSION, b" ", status, b"\r\n"] if status else [VERSION, b"\r\n"]
    for key, value in pairs:
        parts += (key, b": ", value, b"\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)


def without(block: bytes, keys: Iterable[bytes]) -> bytes:
    """Return `block` without the lines of `keys`; b"" when no header and no status is left."""
    unwanted = frozenset(keys)
    lines = block.split(b"\r\n")
    kept = [line for line in lines[1:] if line and line.partition(b":")[0] not in unwanted]
    if not kept and lines[0].rstrip() == VERSION:
        return b""
    return b"\r\n".join([lines[0], *kept, b"", b""])


def append(block: bytes, pairs: Iterable[Pair]) -> bytes:
    """Return `block` (b"" for none) with `pairs` added at its end."""
    if not block:
        return build(pairs)
    added = b"".join([b"%b: %b\r\n" % pair for pair in pairs])
    return block[:-2] + added + b"\r\n"
