"""A small blocking NATS client that shows exactly what a server sends. For tests only.

It keeps nothing from the caller: every frame becomes a `Frame`, errors and closing included.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from typing import Any, ClassVar, NamedTuple, Protocol

ANSWERED_WITHIN_S = 20.0  # what is sure to come, on a busy machine too
CONNECT = {
    "verbose": False,
    "pedantic": False,
    "headers": True,
    "no_responders": True,
    "protocol": 1,
    "lang": "tests",
    "version": "1.0.0",
    "echo": True,
}


class Frame(NamedTuple):
    """One thing a server sent: op is MSG, +OK, -ERR, PING, PONG, INFO or CLOSED."""

    op: str
    subject: str = ""
    sid: str = ""
    reply: str = ""
    headers: bytes = b""
    payload: bytes = b""
    text: str = ""

    @property
    def status(self) -> str:
        """The status line's code and text, "" for an ordinary message."""
        line = self.headers.partition(b"\r\n")[0]
        return line.removeprefix(b"NATS/1.0").strip().decode()

    @property
    def pairs(self) -> dict[str, str]:
        """Headers by name; the last of equal names wins."""
        lines = self.headers.decode(errors="replace").split("\r\n")[1:]
        found = (line.partition(":") for line in lines if ":" in line)
        return {name: value.strip() for name, _, value in found}

    def json(self) -> Any:
        return json.loads(self.payload)


def header_block(pairs: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


class Observer(Protocol):
    """Is told of each message that a connection of the tests sends, and of each that comes."""

    def sent(self, wire: Wire, subject: str, headers: bytes, payload: bytes) -> None: ...

    def came(self, wire: Wire, frame: Frame) -> None: ...


class WireClosed(Exception):
    """The server closed the connection while an answer was awaited."""


class Wire:
    """One connection. `connect=None` sends nothing after INFO."""

    observer: ClassVar[Observer | None] = None
    _inboxes = itertools.count(1)

    def __init__(
        self, port: int, connect: dict[str, Any] | None = CONNECT, *, is_ready: bool = True
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWERED_WITHIN_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._is_closed = False
        self._sids = itertools.count(1)
        self.inbox = f"_INBOX.w{next(self._inboxes)}"
        self.info: dict[str, Any] = {}
        self.info = json.loads(self.next(5).text)
        if connect is not None:
            self.send(b"CONNECT " + json.dumps(connect).encode() + b"\r\n")
            if is_ready:
                self.fence()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self._is_closed = True

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: dict[str, str] | bytes | None = None,
    ) -> None:
        to = f"{subject} {reply}" if reply else subject
        block = headers if isinstance(headers, bytes) else header_block(headers) if headers else b""
        if self.observer is not None:
            self.observer.sent(self, subject, block, payload)
        if headers:
            whole = len(block) + len(payload)
            self.send(f"HPUB {to} {len(block)} {whole}\r\n".encode() + block + payload + b"\r\n")
        else:
            self.send(f"PUB {to} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def subscribe(self, subject: str, queue: str = "") -> str:
        sid = str(next(self._sids))
        middle = f"{subject} {queue}" if queue else subject
        self.send(f"SUB {middle} {sid}\r\n".encode())
        return sid

    def unsubscribe(self, sid: str, after: int = 0) -> None:
        self.send(f"UNSUB {sid}{f' {after}' if after else ''}\r\n".encode())

    def next(self, within_s: float) -> Frame:
        """Return the next frame; pings are answered and not shown.

        Raises TimeoutError when nothing whole arrived in time.
        """
        deadline = time.monotonic() + within_s
        while True:
            frame = self._take()
            if frame is not None:
                if frame.op == "PING":
                    self.send(b"PONG\r\n")
                    continue
                if frame.op == "INFO" and self.info:
                    continue  # a server may send INFO again at any time
                if self.observer is not None and frame.op == "MSG":
                    self.observer.came(self, frame)
                return frame
            if self._is_closed:
                return Frame("CLOSED")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing within {within_s} s; have {self._buffer[:100]!r}")
            self._socket.settimeout(left)
            try:
                chunk = self._socket.recv(1 << 18)
            except TimeoutError:
                continue
            except OSError:
                chunk = b""
            if chunk:
                self._buffer += chunk
            else:
                self._is_closed = True

    def _take(self) -> Frame | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        line = self._buffer[:end].decode(errors="replace")
        word, _, rest = line.partition(" ")
        if word not in ("MSG", "HMSG"):
            self._buffer = self._buffer[end + 2 :]
            return Frame(word, text=rest)
        parts = rest.split(" ")
        size = int(parts[-1])
        start = end + 2
        if len(self._buffer) < start + size + 2:
            return None
        body = self._buffer[start : start + size]
        self._buffer = self._buffer[start + size + 2 :]
        header_bytes = int(parts[-2]) if word == "HMSG" else 0
        named = parts[: -2 if word == "HMSG" else -1]
        reply = named[2] if len(named) > 2 else ""
        return Frame("MSG", named[0], named[1], reply, body[:header_bytes], body[header_bytes:])

    def fence(self, within_s: float = ANSWERED_WITHIN_S) -> list[Frame]:
        """PING and return all frames before the PONG."""
        self.send(b"PING\r\n")
        found: list[Frame] = []
        while True:
            frame = self.next(within_s)
            if frame.op == "PONG":
                return found
            found.append(frame)
            if frame.op == "CLOSED":
                return found

    def collect(self, *, count: int = 0, within_s: float, quiet_s: float = 0) -> list[Frame]:
        """Return frames until `count`, the time is over, or nothing came for `quiet_s`."""
        found: list[Frame] = []
        deadline = time.monotonic() + within_s
        while not count or len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                frame = self.next(min(left, quiet_s) if quiet_s and found else left)
            except TimeoutError:
                break
            found.append(frame)
            if frame.op == "CLOSED":
                break
        return found

    def ask(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: dict[str, str] | bytes | None = None,
        count: int = 1,
        within_s: float = ANSWERED_WITHIN_S,
        is_last: Any = None,
    ) -> list[Frame]:
        """Request and return the answers: `count` of them, or until `is_last(frame)`."""
        reply = f"{self.inbox}.{next(self._inboxes)}"
        sid = self.subscribe(reply)
        self.publish(subject, payload, reply=reply, headers=headers)
        found: list[Frame] = []
        deadline = time.monotonic() + within_s
        while True:
            try:
                frame = self.next(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                break
            if frame.op == "MSG" and frame.sid != sid:
                continue
            found.append(frame)
            if frame.op in ("CLOSED", "-ERR"):
                break
            if is_last(frame) if is_last else len(found) >= count:
                break
        self.unsubscribe(sid)
        return found

    def api(
        self, subject: str, body: Any = None, *, within_s: float = ANSWERED_WITHIN_S
    ) -> dict[str, Any]:
        """Return the JSON answer of `$JS.API.<subject>`."""
        data = b"" if body is None else json.dumps(body).encode()
        frames = self.ask(f"$JS.API.{subject}", data, within_s=within_s)
        if not frames or frames[0].op != "MSG":
            raise WireClosed(f"{subject}: no answer: {frames}")
        found: dict[str, Any] = frames[0].json()
        return found

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
