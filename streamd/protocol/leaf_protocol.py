"""Protocol of leaf links, for both ends: bytes in, events out; and the lines sent. Sans-IO.

A leaf link joins the subject spaces of two servers. It speaks the client protocol's INFO, CONNECT,
PING, PONG and -ERR, and instead of SUB and PUB::

    interest  = "LS+" subject [queue weight] eol  |  "LS-" subject [queue] eol
    message   = "LMSG" subject target size eol payload CRLF
              | "HMSG" subject target header-size size eol headers payload CRLF
    target    = "" | reply | "+" reply 1*queue | "|" 1*queue

One blank or more is between fields, `size` counts headers and payload. `weight` is how many members
the queue group has at the other end. A message is sent once to a link, with the queue groups that
the link was chosen for.

Each end may send any of these; which are legal when is decided by the session. After an `ERROR`
event the parser is dead and swallows everything; the link is to be closed. How bytes were cut into
chunks never changes what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamd.protocol.publish_grammar import CRLF, SizeFields

MSGS: Final = 1  # (MSGS, [LeafMsg, ...]): messages in order
SUB: Final = 2  # (SUB, subject, queue, weight): queue b"" and weight 1 for a plain one
UNSUB: Final = 3  # (UNSUB, subject, queue)
PING: Final = 4  # (PING,)
PONG: Final = 5  # (PONG,)
INFO: Final = 6  # (INFO, json)
CONNECT: Final = 7  # (CONNECT, json)
PEER_ERROR: Final = 8  # (PEER_ERROR, text): the other end refuses something
ERROR: Final = 9  # (ERROR, text, reason): as of `client_protocol`

LeafMsg = tuple[bytes, bytes, Sequence[bytes], bytes, bytes]
"""(subject, reply, queues, headers, payload)"""

Event = tuple[Any, ...]

_UNKNOWN: Final[Event] = (ERROR, b"Unknown Protocol Operation", "Protocol Violation")
_MALFORMED: Final[Event] = (ERROR, b"", "Protocol Violation")
_TOO_LONG: Final[Event] = (ERROR, b"maximum control line exceeded", "Maximum Control Line Exceeded")
_TOO_LARGE: Final[Event] = (
    ERROR,
    b"Maximum Payload Violation",
    "Maximum Message Payload Exceeded",
)
_NO_MSGS: Final[Event] = (ERROR, b"Authorization Violation", "Authentication Failure")
_VERBS: Final = (
    *(b"LMSG", b"HMSG", b"LS+", b"LS-", b"PING", b"PONG"),
    *(b"INFO", b"CONNECT", b"-ERR", b"+OK"),
)
_VERB_BYTES_MAX: Final = 8
_NONE: Final[Sequence[bytes]] = ()
_CR: Final = 13


class LeafParser:
    """Turns the bytes of a leaf link into events. One per link."""

    __slots__ = (
        "_held",
        "_is_dead",
        "_is_line_held",
        "_line_bytes_max",
        "_need",
        "_payload_bytes_max",
        "_sizes",
    )

    def __init__(self, *, line_bytes_max: int, payload_bytes_max: int) -> None:
        """`payload_bytes_max` 0: no message is legal, as before a login."""
        self._line_bytes_max = line_bytes_max
        self._payload_bytes_max = payload_bytes_max
        # What is not all there, and how many bytes it takes at least to go on; of a line nobody
        # knows, so that its end is looked for in what comes.
        self._held = bytearray()
        self._need = 0
        self._is_line_held = False
        self._is_dead = False
        self._sizes = SizeFields()

    def allow_payloads(self, payload_bytes_max: int) -> None:
        """Take messages of up to so many bytes from here on, those still to be parsed included."""
        self._payload_bytes_max = payload_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a line or message that is not complete."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes of the link and return the events that they complete.

        At most one CONNECT or INFO is returned, as the last event: what it says may change what is
        legal behind it. Feed b"" to go on.
        """
        if self._is_dead:
            return []
        held = self._held
        if held:
            is_verb_known = self._is_line_held and len(held) >= _VERB_BYTES_MAX
            held += data
            if len(held) < self._need:
                return []
            if is_verb_known and len(held) <= self._line_bytes_max + 1 and b"\n" not in data:
                return []  # not joined for each crumb of a long line
            data = bytes(held)
            held.clear()
            self._is_line_held = False
        events: list[Event] = []
        self._scan(data, events)
        return events

    def _scan(self, data: bytes, events: list[Event]) -> None:
        position, end = 0, len(data)
        find = data.find
        msgs: list[LeafMsg] = []
        failure: Event | None = None
        while position < end:
            eol = find(b"\n", position)
            if eol < 0:
                failure = self._hold_line(data, position)
                break
            if eol - position > self._line_bytes_max:
                failure = _TOO_LONG if _begins_well(data[position:eol]) else _UNKNOWN
                break
            line = data[position : eol - 1] if data[eol - 1] == _CR else data[position:eol]
            start = eol + 1
            fields = line.split()
            verb = fields[0] if fields and line[0] > 32 else b""
            if verb not in _VERBS:
                verb = verb.upper()
            if verb == b"LMSG" or verb == b"HMSG":
                if not self._payload_bytes_max:
                    failure = _NO_MSGS
                    break
                sizes = self._read_sizes(fields, has_headers=verb == b"HMSG")
                if sizes is None:
                    failure = _MALFORMED
                    break
                header_size, size, target = sizes
                if size > self._payload_bytes_max:
                    failure = _TOO_LARGE
                    break
                stop = start + size
                if data[stop : stop + 2] != CRLF:
                    failure = self._hold_payload(data, position, stop)
                    break
                reply, queues = target
                body = start + header_size
                msgs.append((fields[1], reply, queues, data[start:body], data[body:stop]))
                position = stop + 2
                continue
            if msgs:
                events.append((MSGS, msgs))
                msgs = []
            event = self._control(verb, line, fields)
            position = start
            if event is None:
                continue
            if event[0] == ERROR:
                failure = event
                break
            events.append(event)
            if event[0] == CONNECT or event[0] == INFO:
                if position < end:
                    self._hold(data[position:], 0)
                return
        if msgs:
            events.append((MSGS, msgs))
        if failure is not None:
            self._is_dead = True
            self._held.clear()
            events.append(failure)

    def _read_sizes(
        self, fields: list[bytes], *, has_headers: bool
    ) -> tuple[int, int, tuple[bytes, Sequence[bytes]]] | None:
        """Return (header size, size, (reply, queues)) of a message's control line."""
        last = len(fields) - (2 if has_headers else 1)
        if last < 2:
            return None
        sizes = self._sizes
        size = sizes.get(fields[-1])
        if size is None:
            size = sizes.learn(fields[-1])
        header_size: int | None = 0
        if has_headers:
            header_size = sizes.get(fields[-2])
            if header_size is None:
                header_size = sizes.learn(fields[-2])
        if size is None or header_size is None or header_size > size:
            return None
        if has_headers and not header_size:
            return None
        if last == 2:
            return header_size, size, (b"", _NONE)
        if last == 3:
            return header_size, size, (fields[2], _NONE)
        if fields[2] == b"+":
            return header_size, size, (fields[3], fields[4:last])
        if fields[2] == b"|":
            return header_size, size, (b"", fields[3:last])
        return None

    def _control(self, verb: bytes, line: bytes, fields: list[bytes]) -> Event | None:
        """Return the event of a line without payload; None for one that means nothing."""
        width = len(fields)
        if verb == b"LS+":
            if width == 2:
                return (SUB, fields[1], b"", 1)
            weight = self._sizes.learn(fields[3]) if width == 4 else None
            return (SUB, fields[1], fields[2], weight) if weight else _MALFORMED
        if verb == b"LS-":
            if width == 2:
                return (UNSUB, fields[1], b"")
            return (UNSUB, fields[1], fields[2]) if width == 3 else _MALFORMED
        if verb == b"PING":
            return (PING,)
        if verb == b"PONG":
            return (PONG,)
        if verb == b"INFO":
            return (INFO, line[4:].strip())
        if verb == b"CONNECT":
            return (CONNECT, line[7:].strip())
        if verb == b"-ERR":
            return (PEER_ERROR, line[4:].strip().strip(b"'"))
        return None if verb == b"+OK" else _UNKNOWN

    def _hold(self, rest: bytes, need: int) -> None:
        self._held += rest
        self._need = need

    def _hold_line(self, data: bytes, position: int) -> Event | None:
        """Keep a line that has no end yet, unless it can't become a good one."""
        rest = data[position:]
        if not _begins_well(rest):
            return _UNKNOWN
        if len(rest) > self._line_bytes_max + 1:
            return _TOO_LONG
        self._hold(rest, 0)
        self._is_line_held = True
        return None

    def _hold_payload(self, data: bytes, position: int, stop: int) -> Event | None:
        """Keep a message that is not all there; fail if its end is not where it must be."""
        if stop + 2 <= len(data):
            return _UNKNOWN
        self._hold(data[position:], stop + 2 - position)
        return None


def _begins_well(line: bytes) -> bool:
    """Return True if `line`, perhaps not all there, begins as one of a leaf link does."""
    words = line[:_VERB_BYTES_MAX].split(None, 1)
    if not words or line[0] <= 32:
        return False
    verb = words[0].upper()
    is_whole = len(verb) < min(len(line), _VERB_BYTES_MAX)
    return verb in _VERBS or (not is_whole and any(known.startswith(verb) for known in _VERBS))


# --- lines that are sent, without their CRLF ------------------------------------------------------


def sub_line(subject: bytes, queue: bytes, weight: int) -> bytes:
    """Return the line that tells of interest; of a queue group with the members that it has now."""
    return b"LS+ %b %b %d" % (subject, queue, weight) if queue else b"LS+ " + subject


def unsub_line(subject: bytes, queue: bytes) -> bytes:
    """Return the line that ends interest."""
    return b"LS- %b %b" % (subject, queue) if queue else b"LS- " + subject


def msg_line(
    subject: bytes, reply: bytes, queues: Sequence[bytes], *, header_size: int, size: int
) -> bytes:
    """Return the control line of a message; `size` counts the headers too."""
    if queues:
        names = b" ".join(queues)
        target = b" + %b %b " % (reply, names) if reply else b" | %b " % names
    else:
        target = b" %b " % reply if reply else b" "
    if header_size:
        return b"HMSG %b%b%d %d" % (subject, target, header_size, size)
    return b"LMSG %b%b%d" % (subject, target, size)


def error_line(text: str) -> bytes:
    """Return the line that refuses something, or ends the link."""
    return b"-ERR '%b'" % text.encode(errors="replace")
