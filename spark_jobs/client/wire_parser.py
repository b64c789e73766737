"""Bytes of a NATS connection to messages and back: frames, header blocks, server addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from spark_jobs.client.wire_errors import WireError

LINE_BYTES_MAX: Final = 4 * 1024 * 1024  # INFO of a large cluster is the longest line there is
DEFAULT_PORT: Final = 4222
STATUS_LINE: Final = b"NATS/1.0"


class Msg(NamedTuple):
    """A message as the server sent it.

    `headers` is the whole block, b"" if there is none. `status` is the number of its first line,
    0 if that has none; `description` is the text behind the number.
    """

    subject: str
    reply: str
    headers: bytes
    payload: bytes
    status: int
    description: str


def parse_frames(
    data: bytes, on_line: Callable[[bytes], None], out: list[tuple[int, Msg]]
) -> tuple[int, int]:
    """Append the whole messages in `data` to `out` as (sid, message), in order.

    Other protocol lines (PING, INFO, -ERR, ...) go to `on_line` without their CRLF. Returns
    (bytes used, bytes the next frame needs in all, 0 while unknown). Raises WireError for what is
    no NATS protocol.
    """
    pos = 0
    find = data.find
    while True:
        eol = find(b"\n", pos)
        if eol < 0:
            if len(data) - pos > LINE_BYTES_MAX:
                raise WireError(f"the server sent a line of more than {LINE_BYTES_MAX} bytes")
            return pos, 0
        is_plain = data.startswith(b"MSG ", pos)
        if not is_plain and not data.startswith(b"HMSG ", pos):
            line = data[pos:eol].rstrip(b"\r")
            pos = eol + 1
            if line:
                on_line(line)
            continue
        fields = data[pos:eol].split()
        try:
            if is_plain:
                _, subject, sid, *reply, size_text = fields
                header_size, size = 0, int(size_text)
            else:
                _, subject, sid, *reply, header_text, size_text = fields
                header_size, size = int(header_text), int(size_text)
            number = int(sid)
        except ValueError:
            raise WireError(f"the server sent a malformed frame: {data[pos:eol]!r}") from None
        start = eol + 1
        end = start + size
        if end + 2 > len(data):
            return pos, end + 2 - pos
        if data[end : end + 2] != b"\r\n":
            raise WireError(f"the server sent a frame without its end: {data[pos:eol]!r}")
        headers = data[start : start + header_size]
        status, description = (0, "") if not headers else status_of(headers)
        message = Msg(
            text(subject),
            text(reply[0]) if reply else "",
            headers,
            data[start + header_size : end],
            status,
            description,
        )
        out.append((number, message))
        pos = end + 2


def text(raw: bytes) -> str:
    """Return bytes of a subject as text that encodes back to the same bytes."""
    return raw.decode("utf-8", "surrogateescape")


def raw(subject: str) -> bytes:
    """Return what `text` was made from. Raises WireError if it could not be sent as one word."""
    if subject.split() != [subject]:
        raise WireError(f"subject {subject!r} is empty or has white space in it")
    return subject.encode("utf-8", "surrogateescape")


def status_of(headers: bytes) -> tuple[int, str]:
    """Return (code, text) of a header block's first line; (0, "") if it has no code."""
    line = headers[len(STATUS_LINE) : headers.find(b"\r\n")].strip()
    code = line[:3]
    if not code.isdigit():
        return 0, ""
    return int(code), line[3:].strip().decode("utf-8", "replace")


def header(headers: bytes, name: bytes) -> bytes | None:
    """Return the first value of `name` (its exact case) in a header block, None if absent."""
    at = headers.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    at += len(name) + 3
    return headers[at : headers.find(b"\r\n", at)].strip()


def encode_headers(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block; b"" for no pairs.

    Raises WireError for a name or value that would break the block (a line end in it, a colon or
    white space in a name, an empty name).
    """
    lines: list[bytes] = []
    for name, value in pairs:
        if not name or ":" in name or name.split() != [name]:
            raise WireError(f"header name {name!r} is empty or has a colon or white space in it")
        if "\r" in value or "\n" in value:
            raise WireError(f"header {name!r} has a line end in its value {value!r}")
        lines.append(f"{name}: {value}\r\n".encode())
    if not lines:
        return b""
    return STATUS_LINE + b"\r\n" + b"".join(lines) + b"\r\n"


class Address(NamedTuple):
    """A server's host and port, and the credentials its URL carries ("" for none)."""

    host: str
    port: int
    is_tls: bool
    user: str = ""
    password: str = ""
    token: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Understand `nats://user:password@host:port`, `tls://...`, `host:port`, `host`.

    Raises WireError naming the URL.
    """
    whole = url.strip()
    if "://" not in whole:
        whole = f"nats://{whole}"
    try:
        parts = urlsplit(whole)
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError as err:
        raise WireError(f"server {url!r} is no URL: {err}") from None
    if parts.scheme not in ("nats", "tls"):
        raise WireError(f"server {url!r}: scheme {parts.scheme!r} is not one of nats, tls")
    if not parts.hostname:
        raise WireError(f"server {url!r} names no host")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if user and parts.password is None:
        return Address(parts.hostname, port, parts.scheme == "tls", token=user)
    return Address(parts.hostname, port, parts.scheme == "tls", user, password)
