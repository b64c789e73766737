"""S2's framed format: chunks of a type, a length and a checksum each. Pure.

`type u8, length u24`, little endian, then data: `0xff` names the format, `0x00` is a block behind
the masked crc32c of what it holds, `0x01` plain bytes behind theirs, from `0x80` on padding.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from streamd.archives.s2_block import BLOCK_BYTES_MAX, S2Error, compress_block, decompress_block

_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
_NAMES: Final = (b"S2sTwO", b"sNaPpY")
FRAME_BYTES: Final = 64 * 1024  # of plain bytes: readers of Snappy take no more


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class S2Writer:
    """Compresses a stream of bytes that comes in pieces."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._is_begun = False

    def write(self, data: bytes) -> bytes:
        """Return the frames that are complete with `data`."""
        self._waiting += data
        whole = len(self._waiting) // FRAME_BYTES * FRAME_BYTES
        return self._take(whole) if whole else b""

    def finish(self) -> bytes:
        """Return the last frame."""
        return self._take(len(self._waiting))

    def _take(self, size: int) -> bytes:
        data = bytes(self._waiting[:size])
        del self._waiting[:size]
        pieces = [] if self._is_begun else [_IDENTIFIER]
        self._is_begun = True
        for at in range(0, size, FRAME_BYTES):
            plain = data[at : at + FRAME_BYTES]
            packed = compress_block(plain)
            is_packed = len(packed) < len(plain) - len(plain) // 8
            body = packed if is_packed else plain
            head = (0 if is_packed else 1) | (len(body) + 4) << 8
            pieces += (head.to_bytes(4, "little"), _masked(plain), body)
        return b"".join(pieces)


class S2Reader:
    """Inverse of `S2Writer`, and of nats-server's own."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._is_begun = False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the frames that are complete with `data`. Raises S2Error."""
        waiting = self._waiting
        waiting += data
        pieces: list[bytes] = []
        at = 0
        while len(waiting) - at >= 4:
            if not self._is_begun and waiting[at] != 0xFF:
                raise S2Error("s2: corrupt input")  # whatever length its first bytes announce
            end = at + 4 + int.from_bytes(waiting[at + 1 : at + 4], "little")
            if len(waiting) < end:
                break
            piece = self._frame(waiting[at], bytes(waiting[at + 4 : end]))
            if piece:
                pieces.append(piece)
            at = end
        del waiting[:at]
        return b"".join(pieces)

    def finish(self) -> None:
        """Raise S2Error if the stream ends in a frame."""
        if self._waiting:
            raise S2Error("unexpected EOF")

    def _frame(self, kind: int, body: bytes) -> bytes:
        if kind == 0xFF:
            if body not in _NAMES:
                raise S2Error("s2: corrupt input")
            self._is_begun = True
            return b""
        if not self._is_begun:
            raise S2Error("s2: corrupt input")
        if kind >= 0x80:
            return b""
        if kind > 1 or len(body) < 4:
            raise S2Error("s2: unsupported input" if kind > 1 else "s2: corrupt input")
        plain = decompress_block(body[4:]) if kind == 0 else body[4:]
        if len(plain) > BLOCK_BYTES_MAX:
            raise S2Error("s2: corrupt input")
        if _masked(plain) != body[:4]:
            raise S2Error("s2: corrupt input, crc mismatch")
        return plain
