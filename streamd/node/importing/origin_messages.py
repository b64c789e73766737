"""Messages of an origin as a stream keeps them: subjects transformed, headers of the way removed.

Pure. What chance decides (`{{random(n)}}`) is decided here, by the leader, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from streamd.machine import message_headers
from streamd.machine.asset_configs import StreamSource
from streamd.machine.digest import chain64
from streamd.machine.streams.origins import index_name
from streamd.subject_mapping import first_transform

_SOURCE: Final = b"Nats-Stream-Source"
_OF_THE_WAY: Final = (b"Nats-Expected-", b"Nats-Batch-")


class MessageForm:
    """Form in which the messages of one origin are stored."""

    def __init__(self, source: StreamSource, *, is_mirror: bool) -> None:
        self._is_mirror = is_mirror
        self._counter = 0
        self._salt = 0
        self._become: Callable[[bytes], bytes | None] | None = None
        transforms = source.get("subject_transforms")
        if transforms:
            rules = [
                (each.get("src", "").encode() or b">", each.get("dest", "").encode())
                for each in transforms
            ]
            self._become = first_transform(rules, self._below)
        stream, filters, destinations = index_name(source).split(" ", 2)
        self._head = b"Nats-Stream-Source: " + stream.encode() + b" "
        self._tail = f" {filters} {destinations} ".encode()

    def subject(self, subject: bytes, seq: int) -> bytes | None:
        """Return the subject under which a message is stored; None: it is not wanted."""
        if self._become is None:
            return subject
        self._salt = seq
        return self._become(subject)

    def headers(self, headers: bytes, subject: bytes, seq: int, identity: str) -> bytes:
        """Return the headers that a message of the origin is stored with. `subject` and `seq` are
        those of the origin."""
        if headers and (_OF_THE_WAY[0] in headers or _OF_THE_WAY[1] in headers):
            headers = _without_prefixes(headers, _OF_THE_WAY)
        if self._is_mirror:
            return headers
        if headers and _SOURCE in headers:
            headers = message_headers.without(headers, _SOURCE)
        line = b"%b%d%b%b" % (self._head, seq, self._tail, subject)
        if identity:
            line += b" " + identity.encode()
        return (headers[:-2] if headers else b"NATS/1.0\r\n") + line + b"\r\n\r\n"

    def _below(self, count: int) -> int:
        self._counter += 1
        return chain64((self._salt, self._counter)) % count


def _without_prefixes(headers: bytes, prefixes: tuple[bytes, ...]) -> bytes:
    lines = [line for line in headers.split(b"\r\n") if not line.startswith(prefixes)]
    return b"" if lines == [message_headers.VERSION, b"", b""] else b"\r\n".join(lines)
