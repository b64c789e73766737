"""Trace of one message (ADR-41): the events of its way through this server, and where they go.

A message is traced if its headers name a destination (`Nats-Trace-Dest`), or if they say by
`traceparent` that somebody samples it and the account has a destination of its own. The server
sends one document of all events when the message has been delivered, and streams have answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

from streamd.callbacks import ignore
from streamd.machine.message_headers import TRACE_DEST, TRACE_DISABLED, TRACE_ONLY, VERSION
from streamd.machine.rfc3339 import format_ns

HOP: Final = b"Nats-Trace-Hop"
ORIGIN_ACCOUNT: Final = b"Nats-Trace-Origin-Account"
TRACEPARENT: Final = b"traceparent"
_TRUE: Final = ("1", "true", "on")
_VERSION_LINE: Final = VERSION + b"\r\n"

TraceEvent: TypeAlias = dict[str, object]
HeaderValues: TypeAlias = dict[str, list[str]]


class Kind(IntEnum):
    """Kinds of connections, as events number them."""

    CLIENT = 0
    ROUTE = 1
    LEAF = 4


class MessageTrace:
    """Events of one message at this server."""

    __slots__ = (
        "_awaited_count",
        "_is_over",
        "_send",
        "account",
        "destination",
        "encoding",
        "events",
        "header",
        "hop",
        "hop_count",
        "ingress_account",
        "is_external",
        "is_only",
        "size",
    )

    def __init__(
        self,
        send: Callable[[MessageTrace], None],
        header: HeaderValues,
        size: int,
        *,
        account: str,
        destination: bytes,
        is_only: bool,
        is_external: bool = False,
    ) -> None:
        """`account`: where `destination` is, to which `send` will send the document."""
        self._send = send
        self._awaited_count = 0  # streams that have not answered
        self._is_over = False
        self.header = header
        self.size = size  # of headers and payload
        self.account = account
        self.ingress_account = account
        self.destination = destination  # empty: nothing is sent
        self.is_only = is_only  # nothing is delivered or stored
        self.is_external = is_external
        self.encoding = ", ".join(_values(header, "accept-encoding"))  # accepted ones
        self.hop = ""  # of this server; empty: the message was published here
        self.hop_count = 0
        self.events: list[TraceEvent] = []

    def _add(self, event_type: str, fields: TraceEvent) -> TraceEvent:
        event: TraceEvent = {"type": event_type, "ts": format_ns(time.time_ns()), **fields}
        self.events.append(event)
        return event

    def came_in(self, kind: Kind, cid: int, name: str, account: str, subject: bytes) -> None:
        """Note where the message came from: the first event."""
        self.ingress_account = account
        named = {"name": name} if name else {}
        place = {"acc": account, "subj": _text(subject)}
        self._add("in", {"kind": int(kind), "cid": cid, **named, **place})

    def refused(self, text: str) -> None:
        """Note that the message was not let in."""
        self.events[0]["error"] = text

    def mapped(self, subject: bytes) -> None:
        """Note the subject that a mapping of the account led to; empty: the message is dropped."""
        self._add("sm", {"to": _text(subject)})

    def exported(self, account: str, subject: bytes) -> None:
        """Note that another account imports the message as `subject`."""
        self._add("se", {"acc": account, "to": _text(subject)})

    def asked(self, account: str, before: bytes, after: bytes) -> None:
        """Note that the message is a request to a service of another account."""
        self._add("si", {"acc": account, "from": _text(before), "to": _text(after)})

    def left(
        self,
        kind: Kind,
        cid: int,
        name: str,
        *,
        hop: str = "",
        account: str = "",
        pattern: bytes = b"",
        queue: bytes = b"",
        error: str = "",
    ) -> None:
        """Note a delivery to a subscription, or to another server by `hop`; `account`: the
        receiver's."""
        optional = {
            "name": name,
            "hop": hop,
            "acc": account if account != self.ingress_account else "",
            "sub": _text(pattern),
            "queue": _text(queue),
            "error": error,
        }
        given = {key: value for key, value in optional.items() if value}
        self._add("eg", {"kind": int(kind), "cid": cid, **given})

    def next_hop(self) -> str:
        """Return the number of the next server that the message goes to."""
        self.hop_count += 1
        return f"{self.hop}.{self.hop_count}" if self.hop else str(self.hop_count)

    def stored(self, stream: str) -> TraceEvent:
        """Note that a stream captures the message; its answer is to be given to `answered`."""
        self._awaited_count += 1
        return self._add("js", {"stream": stream})

    def answered(self, event: TraceEvent, **fields: object) -> None:
        """Complete an event of `stored`."""
        event.update({key: value for key, value in fields.items() if value})
        self._awaited_count -= 1
        self._send_if_complete()

    def finish(self) -> None:
        """Note that the message has gone wherever it goes; the document is sent, if no stream has
        to answer yet."""
        self._is_over = True
        self._send_if_complete()

    def _send_if_complete(self) -> None:
        if self._is_over and not self._awaited_count and self.destination:
            send, self._send = self._send, ignore
            send(self)

    def document(self) -> dict[str, object]:
        """Return what is sent, but for the description of the server."""
        request: dict[str, object] = {"header": self.header, "msgsize": self.size}
        hops = {"hops": self.hop_count} if self.hop_count else {}
        return {"request": request, **hops, "events": self.events}


# --- headers --------------------------------------------------------------------------------------


def header_values(block: bytes) -> HeaderValues:
    """Return the headers of a block with their values, as documents show them: trimmed, without
    empty ones. A line without a colon belongs to the key of the next one, as in nats-server."""
    found: HeaderValues = {}
    if not block.startswith(_VERSION_LINE):
        return found
    at = len(_VERSION_LINE)
    while at < len(block):
        colon = block.find(b":", at)
        end = block.find(b"\r\n", colon)
        if colon < 0 or end < 0:
            break
        value = _text(block[colon + 1 : end].strip())
        if value:
            found.setdefault(_text(block[at:colon]), []).append(value)
        at = end + 2
    return found


def first_value(header: HeaderValues, key: bytes) -> str:
    """Return the first value of a header with just this key; empty: there is none."""
    return header.get(key.decode(), [""])[0]


def is_only_traced(header: HeaderValues) -> bool:
    """Return True if the headers ask for a trace of a message that reaches nobody."""
    return first_value(header, TRACE_ONLY).lower() in _TRUE


def is_sampled(header: HeaderValues) -> bool:
    """Return True if a `traceparent`, in any case, has the flag of sampled messages."""
    for value in _values(header, "traceparent")[:1]:
        fields = value.split("-")
        if len(fields) == 4 and len(fields[3]) == 2:
            try:
                return bool(int(fields[3], 16) & 1)
            except ValueError:
                return False
    return False


def has_traceparent(blocks: bytes) -> bool:
    """Return True if a header block among these may have a `traceparent`."""
    return TRACEPARENT in blocks.lower()


def disabled(block: bytes) -> bytes:
    """Return a header block with which the message is traced no further."""
    return replaced(block, TRACE_DEST, TRACE_DISABLED)


def replaced(block: bytes, key: bytes, value: bytes) -> bytes:
    """Return a header block with another value of `key`, behind all others."""
    kept = [line for line in block[:-2].split(b"\r\n") if line.partition(b":")[0] != key]
    return b"\r\n".join(kept) + key + b": " + value + b"\r\n\r\n"


def _values(header: HeaderValues, key: str) -> list[str]:
    return [value for name, found in header.items() if name.lower() == key for value in found]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
