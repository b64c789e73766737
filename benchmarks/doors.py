"""Ways into a server that a row of the benchmark may take: TLS, WebSocket, accounts.

A door is a configuration for the server, and for the load generator a socket that behaves as a
plain one: what is sent and received are the bytes of the client protocol.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
from pathlib import Path
from typing import Any, Final, Protocol

from benchmarks.servers import free_port
from tests.certificates import Authority

FRAME_BYTES: Final = 65536  # of content: as clients send that write a chunk at a time
SILENT_S: Final = 15.0
_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_ACCOUNTS = """accounts {
  A { jetstream: enabled, users: [{user: a, password: a}], exports: [{stream: core.data}] }
  B { users: [{user: b, password: b}], imports: [{stream: {account: A, subject: core.data}}] }
}
"""
NAMES: Final = ("tls", "ws", "account", "import")


class Socket(Protocol):
    """Work of the load generator with a socket."""

    def send(self, data: memoryview | bytes, /) -> int: ...

    def sendall(self, data: memoryview | bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def fileno(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def settimeout(self, seconds: float | None, /) -> None: ...

    def close(self) -> None: ...


def configure(name: str, directory: Path) -> tuple[str, dict[str, Any]]:
    """Return the lines of the server's configuration, and what the load generator must know."""
    if name == "tls":
        authority = Authority(directory)
        return f"tls {{ {authority.issue('server').block} }}", {"ca": authority.cert}
    if name == "ws":
        port = free_port()
        return f"websocket {{ host: 127.0.0.1, port: {port}, no_tls: true }}", {"ws_port": port}
    if name == "account":
        return _ACCOUNTS, {"user": "a", "reader": "a"}
    if name == "import":
        return _ACCOUNTS, {"user": "a", "reader": "b"}
    return "", {}


class Door:
    """Door of a running row, as the load generator goes through it."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._context = ssl.create_default_context(cafile=known["ca"]) if "ca" in known else None

    def open(self, port: int) -> Socket:
        """Return a connected socket on which INFO comes next, or has come already."""
        plain = socket.create_connection(("127.0.0.1", self._known.get("ws_port", port)), 10)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            return _TlsSocket(plain, self._context)
        if "ws_port" in self._known:
            return _WebSocket(plain)
        return plain

    def login(self, connect: bytes, *, is_reader: bool) -> bytes:
        """Return a CONNECT line with the user whose door this is."""
        user = self._known.get("reader" if is_reader else "user")
        if user is None:
            return connect
        given = json.loads(connect.partition(b" ")[2]) | {"user": user, "pass": user}
        return b"CONNECT " + json.dumps(given).encode() + b"\r\n"


class _TlsSocket:
    """TLS as a plain socket shows itself: what it would wait for is a BlockingIOError, and no byte
    waits unseen behind a file descriptor that is not readable."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        self._info = plain.recv(65536)
        self._tls = context.wrap_socket(plain, server_hostname="localhost")
        self.fileno = self._tls.fileno
        self.setblocking = self._tls.setblocking
        self.settimeout = self._tls.settimeout
        self.close = self._tls.close
        self.sendall = self._tls.sendall

    def send(self, data: memoryview | bytes) -> int:
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as err:
            raise BlockingIOError from err

    def recv(self, size: int) -> bytes:
        if self._info:
            info, self._info = self._info, b""
            return info
        try:
            data = self._tls.recv(size)
        except ssl.SSLWantReadError as err:
            raise BlockingIOError from err
        parts = [data]
        while data and self._tls.pending():
            data = self._tls.recv(size)
            parts.append(data)
        return b"".join(parts)


class _WebSocket:
    """Content of frames. Its masks are zero, which costs the server what any mask does."""

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self._data = b""  # received, and not a whole frame
        plain.sendall(_UPGRADE)
        while b"\r\n\r\n" not in self._data:
            chunk = plain.recv(65536)
            if not chunk:
                raise ConnectionError(f"no upgrade: {self._data[:100]!r}")
            self._data += chunk
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        if b" 101 " not in head:
            raise ConnectionError(head.decode(errors="replace"))
        self.fileno = plain.fileno
        self.setblocking = plain.setblocking
        self.settimeout = plain.settimeout
        self.close = plain.close

    def send(self, data: memoryview | bytes) -> int:
        """Send one frame of the beginning. A frame that is begun is sent whole, waiting for it."""
        content = memoryview(data)[:FRAME_BYTES]
        framed = memoryview(_frame(content))
        sent = self._plain.send(framed)
        while sent < len(framed):
            if not select.select([], [self._plain], [], SILENT_S)[1]:
                raise ConnectionError(f"the server read nothing for {SILENT_S} s")
            sent += self._plain.send(framed[sent:])
        return len(content)

    def sendall(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.send(view) :]

    def recv(self, size: int) -> bytes:
        """Return the content of the frames that have come; if none is whole yet, of the next."""
        while True:
            content = self._content()
            if content:
                return content
            chunk = self._plain.recv(size)
            if not chunk:
                return b""
            self._data += chunk

    def _content(self) -> bytes:
        data, at = self._data, 0
        parts: list[bytes] = []
        while at + 2 <= len(data):
            size, start = data[at + 1], at + 2
            if size == 126:
                size, start = int.from_bytes(data[at + 2 : at + 4]), at + 4
            elif size == 127:
                size, start = int.from_bytes(data[at + 2 : at + 10]), at + 10
            if start + size > len(data):
                break
            if data[at] & 0x0F == 8:
                raise ConnectionError(f"closed: {data[start : start + size]!r}")
            if data[at] & 0x0F < 8:  # not a ping
                parts.append(data[start : start + size])
            at = start + size
        self._data = data[at:]
        return b"".join(parts)


def _frame(content: memoryview) -> bytes:
    size = len(content)
    if size < 126:
        head = bytes((0x82, 0x80 | size))
    elif size < 65536:
        head = b"\x82\xfe" + size.to_bytes(2)
    else:
        head = b"\x82\xff" + size.to_bytes(8)
    return b"".join((head, bytes(4), content))
