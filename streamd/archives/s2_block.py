"""Blocks of S2, a superset of Snappy's: compressed as Snappy, decompressed as either. Pure.

A block is the decoded length (uvarint), then literals and copies. S2 adds one thing to Snappy: a
copy of one byte offset 0 repeats the offset before, with a length of its own. Blocks without it,
which is most of what does not compress well, take the way of the library.
"""

from __future__ import annotations

from typing import Final

from cramjam import snappy

from streamd.errors import StreamdError

BLOCK_BYTES_MAX: Final = 4 << 20  # decoded: as nats-server's library has it


class S2Error(StreamdError):
    """Bytes that are no S2."""


def compress_block(data: bytes) -> bytes:
    """Return `data` as a block that readers of Snappy take as well."""
    return bytes(snappy.compress_raw(data))


def decompress_block(block: bytes) -> bytes:
    """Return what a block holds. Raises S2Error."""
    length, at = _decoded_length(block)
    if length > BLOCK_BYTES_MAX:
        raise S2Error(f"s2: decoded block of {length} bytes, {BLOCK_BYTES_MAX} are allowed")
    try:
        made = bytes(snappy.decompress_raw(block))
    except Exception:  # noqa: BLE001 - the library's error has no class that can be imported
        made = _decompress(block, at, length)
    if len(made) != length:
        raise S2Error(f"s2: block of {len(made)} bytes, {length} were announced")
    return made


def _decoded_length(block: bytes) -> tuple[int, int]:
    value = shift = 0
    for at, byte in enumerate(block[:5]):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise S2Error("s2: corrupt input: no length")


def _decompress(block: bytes, at: int, length: int) -> bytes:
    out = bytearray()
    offset = 0
    end = len(block)
    try:
        while at < end:
            tag = block[at]
            kind = tag & 3
            at += 1
            if kind == 0:
                size = tag >> 2
                if size >= 60:
                    wide = size - 59
                    size = int.from_bytes(block[at : at + wide], "little")
                    at += wide
                size += 1
                if at + size > end:
                    raise S2Error("s2: corrupt input: a literal is cut off")
                out += block[at : at + size]
                at += size
                continue
            if kind == 1:
                size = tag >> 2 & 7
                given = (tag & 0xE0) << 3 | block[at]
                at += 1
                if given:
                    offset = given
                elif size >= 5:
                    wide = size - 4
                    size = (4, 256, 65536)[wide - 1] + int.from_bytes(
                        block[at : at + wide], "little"
                    )
                    at += wide
                size += 4
            else:
                wide = 2 if kind == 2 else 4
                size = (tag >> 2) + 1
                offset = int.from_bytes(block[at : at + wide], "little")
                at += wide
            start = len(out) - offset
            if not offset or start < 0 or len(out) + size > length or at > end:
                raise S2Error("s2: corrupt input: a copy of what is not there")
            if offset >= size:
                out += out[start : start + size]
            else:
                piece = bytes(out[start:])
                out += (piece * (size // offset + 1))[:size]
    except IndexError:
        raise S2Error("s2: corrupt input: cut off") from None
    return bytes(out)
