"""A blocking WebSocket client that shows exactly what a server sends, for tests that compare."""

from __future__ import annotations

import socket
import ssl
import struct
import time
import zlib
from typing import NamedTuple

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
HEADERS = {
    "Host": "a.test:8080",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}
DEFLATE = {"Sec-WebSocket-Extensions": "permessage-deflate"}
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class WsFrame(NamedTuple):
    """A frame as it came: its first byte, and its content, not inflated."""

    first: int
    data: bytes

    @property
    def opcode(self) -> int:
        return self.first & 0x0F


def request(line: str = "GET / HTTP/1.1", headers: dict[str, str] | None = None) -> bytes:
    """A request; a header that is given as "" is left out."""
    wanted = {name: value for name, value in (HEADERS | (headers or {})).items() if value}
    return "\r\n".join([line, *(f"{k}: {v}" for k, v in wanted.items()), "", ""]).encode()


def frame(opcode: int, data: bytes, *, fin: bool = True, rsv: int = 0, mask: bool = True) -> bytes:
    """A frame of a client; its mask is zero."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    bit, size = (0x80 if mask else 0), len(data)
    if size < 126:
        head = struct.pack("!BB", first, bit | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, bit | 127, size)
    return head + (bytes(4) if mask else b"") + data


def deflated(data: bytes) -> bytes:
    """`data` as the content of one compressed message."""
    packer = zlib.compressobj(wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def inflated(data: bytes) -> bytes:
    """The content of one compressed message."""
    return zlib.decompressobj(wbits=-15).decompress(data + b"\x00\x00\xff\xff")


class WebSocketWire:
    """One connection, whose handshake is done by `upgrade`."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._socket: socket.socket = socket.create_connection(("127.0.0.1", port), 5)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._buffer = b""
        self.is_closed = False

    def send(self, data: bytes) -> None:
        """Send; a server that has closed is no error."""
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True

    def ask(self, data: bytes, within_s: float = 5) -> tuple[str, dict[str, str], bytes]:
        """Send a request; return the line of the answer's status, its headers, and its body as far
        as it says how long it is. Nothing came: an empty line."""
        self.send(data)
        if not self._fill(lambda: b"\r\n\r\n" in self._buffer, within_s):
            return "", {}, b""
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        size = int(headers.get("Content-Length", 0))
        self._fill(lambda: len(self._buffer) >= size, within_s)
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return line, headers, body

    def upgrade(self, headers: dict[str, str] | None = None) -> dict[str, str]:
        """Do the handshake; return the headers of the answer."""
        line, found, _ = self.ask(request(headers=headers))
        assert line == "HTTP/1.1 101 Switching Protocols", line
        return found

    def next(self, within_s: float = 5) -> WsFrame | None:
        """Return the next frame; None: the server closed. Raises TimeoutError."""
        if not self._fill(lambda: self._whole() > 0, within_s):
            if self.is_closed:
                return None
            raise TimeoutError(f"have {self._buffer[:100]!r}")
        end, start = self._whole(), self._start()
        found = WsFrame(self._buffer[0], self._buffer[start:end])
        self._buffer = self._buffer[end:]
        return found

    def rest(self, within_s: float = 5) -> list[WsFrame]:
        """Return the frames until the server closes."""
        found = []
        while (each := self.next(within_s)) is not None:
            found.append(each)
        return found

    def fence(self, within_s: float = 5) -> list[WsFrame]:
        """Send a PING of WebSocket; return the frames before its answer."""
        self.send(frame(PING, b"fence"))
        found = []
        while (each := self.next(within_s)) is not None:
            if each == WsFrame(0x80 | PONG, b"fence"):
                break
            found.append(each)
        return found

    def close(self) -> None:
        self._socket.close()

    def _start(self) -> int:
        return {126: 4, 127: 10}.get(self._buffer[1] & 0x7F, 2)

    def _whole(self) -> int:
        """Return where the first frame ends; 0: it is not whole."""
        if len(self._buffer) < 2 or len(self._buffer) < self._start():
            return 0
        size = self._buffer[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(self._buffer[2 : self._start()], "big")
        end = self._start() + size
        return end if len(self._buffer) >= end else 0

    def _fill(self, is_enough: object, within_s: float) -> bool:
        assert callable(is_enough)
        deadline = time.monotonic() + within_s
        while not is_enough():
            left = deadline - time.monotonic()
            if self.is_closed or left <= 0:
                return False
            self._socket.settimeout(left)
            try:
                chunk = self._socket.recv(1 << 18)
            except TimeoutError:
                return False
            except OSError:
                chunk = b""
            self._buffer += chunk
            self.is_closed = not chunk
        return True
