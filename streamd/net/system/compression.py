"""Compression of answers, as far as a request accepts one."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

from streamd.net.monitoring.sliced_pages import Steps

_GZIP_WINDOW: Final = 31  # of zlib: the largest, with the header and trailer of gzip
_GZIP_LEVEL: Final = 1  # most of the gain at a fifth of the time


class Compressor(Protocol):
    """A stream that takes bytes and gives compressed ones."""

    def compress(self, data: bytes) -> bytes: ...

    def flush(self) -> bytes: ...


def encoding_of(accepted: str) -> str:
    """Return the encoding of the answer to a request with this `Accept-Encoding`: as in
    nats-server any mention decides. "": the header is not there, and the answer names none."""
    if not accepted:
        return ""
    words = accepted.lower()
    if "snappy" in words or "s2" in words:
        return "snappy"
    return "gzip" if "gzip" in words else "identity"


def compressor(encoding: str) -> Compressor | None:
    """Return what compresses to `encoding`; None: nothing has to."""
    if encoding == "snappy":
        return _Snappy()
    if encoding == "gzip":
        return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return None


def compress(pieces: list[bytes], encoding: str) -> Steps[bytes]:
    """Compress text a piece at a time."""
    stream = compressor(encoding)
    if stream is None:
        return b"".join(pieces)
    found = []
    for piece in pieces:
        found.append(stream.compress(piece))
        yield
    found.append(stream.flush())
    return b"".join(found)


class _Snappy:
    """Snappy's framed format, of the library that is loaded when somebody asks for it."""

    def __init__(self) -> None:
        from cramjam import snappy

        self._stream = snappy.Compressor()

    def compress(self, data: bytes) -> bytes:
        self._stream.compress(data)
        return bytes(self._stream.flush())

    def flush(self) -> bytes:
        return bytes(self._stream.finish())
