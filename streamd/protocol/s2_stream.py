"""S2 streams, in which servers compress links: frames of Snappy's format with blocks of S2, which
is Snappy's with one thing more (a copy may repeat the last offset).

Frames are written with blocks that both formats share, and read with those of S2. A frame is a
type, three bytes of length, and a body; that of a block begins with a masked CRC-32C of what it
stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cramjam import DecompressionError, snappy
from crc32c import crc32c

from streamd.errors import StreamdError

_BLOCK_BYTES: Final = 65536  # of blocks that are written
BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024  # of blocks that are read: the most that S2 has
_PIECE_BYTES: Final = 16384  # of a block that is read, handed on at once
_FRAME_ROOM: Final = 65536  # what a frame may have beyond its block: blocks need not compress
_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_SKIPPABLE: Final = 0x80
_IDENTIFIER: Final = 0xFF
_NAMES: Final = (b"S2sTwO", b"sNaPpY")
_BEGIN: Final = b"\xff\x06\x00\x00S2sTwO"
_REPEATED: Final = ((1, 4), (2, 1 << 8), (3, 1 << 16))  # bytes of a length, and what is added


class S2Error(StreamdError):
    """Bytes that are no S2 stream."""


class S2Writer:
    """Encodes what is written to a link."""

    def __init__(self, *, is_compressing: bool) -> None:
        """`is_compressing` may change at any time; without it blocks are frames of plain bytes."""
        self.is_compressing = is_compressing
        self._has_begun = False

    def encode(self, data: bytes) -> bytes:
        """Return the frames of `data`."""
        pieces: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            pieces.append(_BEGIN)
        for at in range(0, len(data), _BLOCK_BYTES):
            block = data[at : at + _BLOCK_BYTES]
            kind, body = _PLAIN, block
            if self.is_compressing:
                packed = bytes(snappy.compress_raw(block))
                if len(packed) < len(block):
                    kind, body = _COMPRESSED, packed
            head = bytes((kind,)) + (len(body) + 4).to_bytes(3, "little")
            pieces += (head, _checksum(block), body)
        return b"".join(pieces)


class S2Reader:
    """Decodes what is read from a link."""

    def __init__(self, block_bytes_max: int = BLOCK_BYTES_MAX) -> None:
        """`block_bytes_max` may change at any time: of a stranger, blocks can be kept small."""
        self.block_bytes_max = block_bytes_max
        self._buffer = b""
        self._at = 0  # of the next frame
        self._block = b""
        self._block_at = 0  # of the block's next piece

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Iterate over what complete blocks stand for, in pieces of 16 KiB at most: few
        bytes may stand for many. What is not asked for stays for the next call, which may also come
        in between. Raises S2Error."""
        self._buffer = self._buffer[self._at :] + data
        self._at = 0
        yield from self._pieces()
        while len(self._buffer) >= self._at + 4:
            buffer, start = self._buffer, self._at + 4
            kind, size = buffer[self._at], int.from_bytes(buffer[self._at + 1 : start], "little")
            if size > self.block_bytes_max + _FRAME_ROOM:
                raise S2Error(
                    f"a frame of {size} bytes, more than {self.block_bytes_max + _FRAME_ROOM}"
                )
            if len(buffer) < start + size:
                return
            self._at = start + size
            body = buffer[start : self._at]
            if kind in (_COMPRESSED, _PLAIN):
                self._block = _content(kind, body, self.block_bytes_max)
                self._block_at = 0
                yield from self._pieces()
            elif kind == _IDENTIFIER:
                if body not in _NAMES:
                    raise S2Error(f"a stream of another format: {body[:16]!r}")
            elif kind < _SKIPPABLE:
                raise S2Error(f"a frame of unknown type {kind:#04x}")

    def _pieces(self) -> Iterator[bytes]:
        while self._block_at < len(self._block):
            start = self._block_at
            self._block_at += _PIECE_BYTES
            piece = self._block[start : self._block_at]
            if self._block_at >= len(self._block):
                self._block = b""
            yield piece


def _content(kind: int, body: bytes, block_bytes_max: int) -> bytes:
    block = body[4:]
    if kind == _COMPRESSED:
        block = decode_block(block, block_bytes_max)
    elif len(block) > block_bytes_max:
        raise S2Error(f"a block of {len(block)} bytes, more than {block_bytes_max}")
    if _checksum(block) != body[:4]:
        raise S2Error("a block with a wrong checksum")
    return block


def _checksum(data: bytes) -> bytes:
    crc = crc32c(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked.to_bytes(4, "little")


def decode_block(data: bytes, block_bytes_max: int = BLOCK_BYTES_MAX) -> bytes:
    """Return what a block of S2 or Snappy stands for. Raises S2Error."""
    size, at = _length_of(data)
    if size > block_bytes_max:
        raise S2Error(f"a block of {size} bytes, more than {block_bytes_max}")
    try:
        found = bytes(snappy.decompress_raw(data))
    except DecompressionError:
        found = _decode(data, at, size)
    if len(found) != size:
        raise S2Error(f"a block of {len(found)} bytes instead of {size}")
    return found


def _length_of(data: bytes) -> tuple[int, int]:
    """Return the varint at the beginning, and where it ends."""
    value = shift = 0
    for at, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise S2Error("a block without a length")


def _decode(data: bytes, at: int, size: int) -> bytes:
    """Decode a block whose copies repeat offsets: tag by tag, each a literal or a copy."""
    out = bytearray()
    offset = 0
    end = len(data)
    try:
        while at < end:
            tag = data[at]
            kind = tag & 3
            length = tag >> 2
            at += 1
            if kind == 0:
                if length >= 60:
                    width = length - 59
                    length = int.from_bytes(data[at : at + width], "little")
                    at += width
                length += 1
                if at + length > end:
                    raise S2Error("a literal beyond its block")
                out += data[at : at + length]
                at += length
            else:
                if kind == 1:
                    given = (tag & 0xE0) << 3 | data[at]
                    at += 1
                    length &= 7
                    if given:
                        offset = given
                    elif length >= 5:
                        width, more = _REPEATED[length - 5]
                        length = int.from_bytes(data[at : at + width], "little") + more
                        at += width
                    length += 4
                else:
                    width = 2 if kind == 2 else 4
                    offset = int.from_bytes(data[at : at + width], "little")
                    at += width
                    length += 1
                start = len(out) - offset
                if not offset or start < 0 or at > end:
                    raise S2Error("a copy of what is not there")
                if len(out) + length > size:
                    raise S2Error("a copy beyond the length of its block")
                if offset >= length:
                    out += out[start : start + length]
                else:
                    pattern = bytes(out[start:])
                    out += (pattern * (length // offset + 1))[:length]
    except IndexError as err:
        raise S2Error("a block that ends in a tag") from err
    return bytes(out)
