"""Parser of the client protocol: bytes of one connection in, events out. Sans-IO.

`ClientParser.feed` takes a whole socket chunk and returns what it held as a list of events, tuples
that begin with one of the kinds below. Publishes, which are nearly all there is, come as columns
(`PUBS`): lists of subjects, replies, header blocks and payloads, so that nobody need touch a
message one by one. How the bytes were cut into chunks never changes what they mean.

After an `ERROR` event the parser is dead and swallows everything; the connection is to be closed.
The grammar of publishes is in `publish_grammar`, with what the three readers of it promise each
other.
"""

from __future__ import annotations

from typing import Any, Final

from streamd.limits import PARSER_BULK_BYTES_MIN, PARSER_BULK_RETRY_MAX
from streamd.protocol import bulk_publish
from streamd.protocol.publish_grammar import (
    CRLF,
    FIELDS,
    FIELDS_WITH_REPLY,
    HPUB,
    HPUB_START,
    PUB,
    PUB_START,
    SizeFields,
    is_size,
)

PUBS: Final = 1
"""(PUBS, subjects, replies, headers, payloads): publishes in order. Lists of equal length; replies
and headers are None when no message of the batch has any, else b"" stands for none."""
SUB: Final = 2  # (SUB, subject, queue, sid): queue b"" for none
UNSUB: Final = 3  # (UNSUB, sid, max): max 0 means at once
PING: Final = 4  # (PING,)
PONG: Final = 5  # (PONG,)
CONNECT: Final = 6  # (CONNECT, json)
CLIENT_ERROR: Final = 7  # (CLIENT_ERROR,): the client sent -ERR and will go away
ERROR: Final = 8
"""(ERROR, text, reason): a violation; `text` is for `-ERR` (b"": close without a word), `reason`
is the closed state shown by monitoring."""

Event = tuple[Any, ...]

_UNKNOWN: Final[Event] = (ERROR, b"Unknown Protocol Operation", "Protocol Violation")
_VIOLATION: Final[Event] = (ERROR, b"", "Protocol Violation")
_TOO_LONG: Final[Event] = (
    ERROR,
    b"maximum control line exceeded",
    "Maximum Control Line Exceeded",
)
_TOO_LARGE: Final[Event] = (
    ERROR,
    b"Maximum Payload Violation",
    "Maximum Message Payload Exceeded",
)
_STARTS: Final = (
    *(PUB_START, HPUB_START, b"SUB ", b"UNSUB ", b"PING", b"PONG"),
    *(b"CONNECT", b"INFO", b"+OK", b"-ERR"),
)
_BLANKS: Final = bytes.maketrans(b"\t\r\x0b\x0c", b"    ")
_CR: Final = 13
_BLANK: Final = 32


class ClientParser:
    """Turns the bytes a client sends into events. One per connection."""

    __slots__ = (
        "_bulk_backoff",
        "_bulk_skip",
        "_is_dead",
        "_is_need_exact",
        "_max_control_line",
        "_max_payload",
        "_need",
        "_parts",
        "_parts_bytes",
        "_sizes",
    )

    def __init__(self, *, max_payload: int, max_control_line: int) -> None:
        self.limit(max_payload=max_payload, max_control_line=max_control_line)
        # What came of a message that is not all there, and how many bytes it takes to go on:
        # exactly up to the message's end (payload missing), or one more (control line missing).
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._need = 0
        self._is_need_exact = False
        self._is_dead = False
        self._sizes = SizeFields()
        # Reading in bulk is worth trying unless it just failed; then it rests for some chunks.
        self._bulk_skip = 0
        self._bulk_backoff = 1

    def limit(self, *, max_payload: int, max_control_line: int) -> None:
        """Allow so much from now on."""
        self._max_payload = max_payload
        self._max_control_line = max_control_line

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a message that is not complete."""
        return self._parts_bytes

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes of the connection and return the events they complete."""
        if self._is_dead:
            return []
        events: list[Event] = []
        position = 0
        if not self._parts:
            lone = self._lone(data)
            if lone is not None:
                return [lone]
        else:
            missing = self._need - self._parts_bytes
            if missing > len(data):
                self._parts.append(data)
                self._parts_bytes += len(data)
                return events
            if self._is_need_exact:
                # Complete just that message, so that the chunk behind it isn't copied for it.
                self._parts.append(data[:missing])
                whole = b"".join(self._parts)
                self._parts.clear()
                self._parts_bytes = 0
                self._scan(whole, 0, events)
                if self._is_dead:
                    return events
                position = missing
            else:
                self._parts.append(data)
                data = b"".join(self._parts)
                self._parts.clear()
                self._parts_bytes = 0
        if len(data) - position >= PARSER_BULK_BYTES_MIN:
            if self._bulk_skip:
                self._bulk_skip -= 1
            elif data.startswith(PUB_START, position):
                found = bulk_publish.parse(
                    data,
                    position,
                    max_payload=self._max_payload,
                    max_control_line=self._max_control_line,
                )
                if found is not None:
                    consumed, (subjects, replies, payloads) = found
                    position += consumed
                    events.append((PUBS, subjects, replies, None, payloads))
                    self._bulk_backoff = 1
                else:
                    self._bulk_skip = self._bulk_backoff
                    self._bulk_backoff = min(self._bulk_backoff * 2, PARSER_BULK_RETRY_MAX)
        if position < len(data):
            self._scan(data, position, events)
        return events

    # --- one publish ----------------------------------------------------------------------------

    def _lone(self, data: bytes) -> Event | None:
        """Return the event if `data` is one publish and nothing else, as of clients that wait for
        each ack: it costs less than `_scan`. None: look closer."""
        has_headers = data.startswith(HPUB_START)
        if not has_headers and not data.startswith(PUB_START):
            return None
        eol = data.find(b"\n")
        if not 0 < eol <= self._max_control_line:
            return None
        fields = data[:eol].split()
        count = len(fields) - has_headers
        size = self._sizes.get(fields[-1])
        if size is None or size > self._max_payload:
            return None
        if count != FIELDS_WITH_REPLY and count != FIELDS:
            return None
        if eol + size + 3 != len(data) or not data.endswith(CRLF):
            return None
        replies = [fields[2]] if count == FIELDS_WITH_REPLY else None
        start = eol + 1
        if not has_headers:
            return PUBS, [fields[1]], replies, None, [data[start:-2]]
        header_size = self._sizes.get(fields[-2])
        if not header_size or header_size > size:
            return None
        body = start + header_size
        return PUBS, [fields[1]], replies, [data[start:body]], [data[body:-2]]

    # --- one by one -----------------------------------------------------------------------------

    def _scan(self, data: bytes, position: int, events: list[Event]) -> None:
        """Parse `data` from `position` on, whatever it holds; keep what is incomplete."""
        subjects: list[bytes] = []
        replies: list[bytes] = []
        headers: list[bytes] = []
        payloads: list[bytes] = []
        end = len(data)
        find = data.find
        pub, hpub, crlf = PUB, HPUB, CRLF
        with_reply, without_reply = FIELDS_WITH_REPLY, FIELDS
        size_of, learn_size = self._sizes.get, self._sizes.learn
        max_payload, max_control_line = self._max_payload, self._max_control_line
        failure: Event | None = None
        while position < end:
            eol = find(b"\n", position)
            if eol < 0:
                failure = self._hold_line(data, position)
                break
            # (At position 0 an empty line makes eol - 1 wrap around; it is an error either way.)
            line = data[position : eol - 1] if data[eol - 1] == _CR else data[position:eol]
            if len(line) > max_control_line:
                if _is_too_long(line, max_control_line):
                    failure = _TOO_LONG if _begins_well(line) else _UNKNOWN
                    break
            fields = line.split()
            verb = fields[0] if fields and data[position] > _BLANK else b""
            is_plain = verb == pub
            if not is_plain and verb != hpub:
                verb = verb.upper()
                is_plain = verb == pub
            if is_plain or verb == hpub:
                size = size_of(fields[-1])
                if size is None:
                    size = learn_size(fields[-1])
                width = len(fields)
                header_size: int | None = 0
                if not is_plain:  # (of a lone `HPUB` this reads the verb: no size)
                    header_size = size_of(fields[-2 % width])
                    if header_size is None:
                        header_size = learn_size(fields[-2 % width])
                    width -= 1
                if (
                    size is None
                    or header_size is None
                    or header_size > size
                    or (width != with_reply and width != without_reply)
                ):
                    is_verb_alone = len(fields) == 1 and line[-1:] not in b" \t"
                    failure = _UNKNOWN if is_verb_alone else _VIOLATION
                    break
                if size > max_payload:
                    failure = _TOO_LARGE
                    break
                start = eol + 1
                stop = start + size
                if data[stop : stop + 2] != crlf:
                    failure = self._hold_payload(data, position, stop)
                    break
                subjects.append(fields[1])
                if width == with_reply:
                    replies.append(fields[2])
                else:
                    replies.append(b"")
                if header_size:
                    body = start + header_size
                    headers.append(data[start:body])
                    payloads.append(data[body:stop])
                else:
                    headers.append(b"")
                    payloads.append(data[start:stop])
                position = stop + 2
            else:
                if subjects:
                    events.append(_publishes(subjects, replies, headers, payloads))
                    subjects, replies, headers, payloads = [], [], [], []
                event = _control(verb, line, fields)
                if event is not None:
                    if event[0] == ERROR:
                        failure = event
                        break
                    events.append(event)
                position = eol + 1
        if subjects:
            events.append(_publishes(subjects, replies, headers, payloads))
        if failure is not None:
            self._is_dead = True
            self._parts.clear()
            self._parts_bytes = 0
            events.append(failure)

    def _hold_line(self, data: bytes, position: int) -> Event | None:
        """Keep a control line that has no end yet, unless it can't become a good one."""
        rest = data[position:]
        if not _begins_well(rest):
            return _UNKNOWN
        # One more than the limit may be the \r of the line's end.
        if _is_too_long(rest, self._max_control_line + 1):
            return _TOO_LONG
        self._parts.append(rest)
        self._parts_bytes = len(rest)
        self._need = len(rest) + 1
        self._is_need_exact = False
        return None

    def _hold_payload(self, data: bytes, position: int, stop: int) -> Event | None:
        """Keep a publish whose payload or its CRLF is not all there; fail if that CRLF is not."""
        if stop + 2 <= len(data):
            return _UNKNOWN
        rest = data[position:]
        self._parts.append(rest)
        self._parts_bytes = len(rest)
        self._need = stop + 2 - position
        self._is_need_exact = True
        return None


def _publishes(
    subjects: list[bytes], replies: list[bytes], headers: list[bytes], payloads: list[bytes]
) -> Event:
    return (
        PUBS,
        subjects,
        replies if any(replies) else None,
        headers if any(headers) else None,
        payloads,
    )


def _begins_well(line: bytes) -> bool:
    """Return True if `line`, perhaps not all there, begins as a control line of a client does."""
    start = line[:8].upper().translate(_BLANKS)
    return any(start.startswith(known) or known.startswith(start) for known in _STARTS)


def _is_too_long(line: bytes, limit: int) -> bool:
    """Return True if the arguments of a control line, perhaps not all there, exceed `limit` bytes;
    or if its verb does by more than the eight bytes that begin a known one."""
    words = line.split(None, 1)
    if len(words) == 2 and len(words[1]) > limit:
        return True
    return len(words[0] if len(words) == 2 else line) - 8 > limit


def _control(verb: bytes, line: bytes, fields: list[bytes]) -> Event | None:
    """Return the event of a control line without payload; None for one that means nothing."""
    width = len(fields)
    if verb == b"SUB":
        if width == 3:
            return (SUB, fields[1], b"", fields[2])
        if width == 4:
            return (SUB, fields[1], fields[2], fields[3])
        return _UNKNOWN if width == 1 and line[-1:] not in b" \t" else _VIOLATION
    if verb == b"UNSUB":
        if width == 2:
            return (UNSUB, fields[1], 0)
        if width == 3:
            text = fields[2]
            # As nats-server has it: what is no number unsubscribes at once.
            return (UNSUB, fields[1], int(text) if is_size(text) else 0)
        return _UNKNOWN if width == 1 and line[-1:] not in b" \t" else _VIOLATION
    start = line[:7].upper()
    if start.startswith(b"PING"):
        return (PING,)
    if start.startswith(b"PONG"):
        return (PONG,)
    if start == b"CONNECT":
        return (CONNECT, line[7:].strip())
    if start.startswith(b"-ERR"):
        return (CLIENT_ERROR,)
    if start.startswith((b"+OK", b"INFO")):
        return None
    return _UNKNOWN
