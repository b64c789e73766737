"""`CounterTotals`: the totals of a counter stream, by subject (`allow_msg_counter`).

A publish to a counter brings `Nats-Incr` and no body. What is stored has the new total as its body,
`{"val":"<integer>"}`, so the newest message of a subject says what the counter stands at. Bodies
are in blocks, which `apply` does not read: totals are kept here as well, each with the sequence of
the message that has it. A total whose message is not the newest of its subject any more counts for
nothing: with no message left the counter begins at 0 again; with an older one it is broken, until
somebody tells what that one has (`note`, by DELETE_MSG).

Integers have no bound but that of a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from streamd import errors
from streamd.machine import message_headers
from streamd.machine.indexes.index import StreamIndex
from streamd.types import Msg, Seq

SOURCES: Final = b"Nats-Counter-Sources"
_match_body = re.compile(rb'\{"val":"(-?[0-9]+)"\}').fullmatch
_DIGITS: Final = 4000  # Python reads and writes no more at once
_CHUNK: Final = 10**_DIGITS
_STALE: Final = 64  # so many rows, and as many as those that count, may be there for nothing

CounterState = Sequence[Sequence[bytes | int]]
"""Rows of a snapshot: (subject, seq, total as text, sources)."""


class Total(NamedTuple):
    """The total of one subject."""

    seq: Seq  # of the message that has it; 0: there is none
    value: int
    sources: bytes  # value of `Nats-Counter-Sources` of that message; b"": none


_NONE: Final = Total(0, 0, b"")


class CounterTotals:
    """Totals of the counters of one stream."""

    __slots__ = ("_index", "_prune_above", "_rows")

    def __init__(self, index: StreamIndex) -> None:
        self._index = index
        self._rows: dict[bytes, Total] = {}
        self._prune_above = _STALE  # rows; each prune is paid for by as many new ones

    def of(self, subject: bytes) -> Total | None:
        """Return the total of `subject`, with that of a message which is about to be stored; None:
        what its newest message has is not known."""
        index = self._index
        total = self._rows.get(subject)
        if total is not None and total.seq > index.last_seq:
            return total
        last = index.lookup.last_of(subject)
        if not last:
            return _NONE
        return total if total is not None and total.seq == last else None

    def note(self, subject: bytes, total: Total) -> None:
        """The newest message of `subject`, stored or about to be, has `total`."""
        rows = self._rows
        rows[subject] = total
        if len(rows) > self._prune_above:
            self._rows = {name: row for name, row in rows.items() if self._is_live(name, row)}
            self._prune_above = _STALE + 2 * len(self._rows)

    def observe(self, first: Seq, msgs: Iterable[Msg]) -> None:
        """Note the totals of messages that were stored as they came, from `first` on: copies of
        counters, and markers, which stand for 0."""
        for seq, (subject, headers, payload) in enumerate(msgs, first):
            total = read_total(seq, headers, payload)
            if total is not None:
                self.note(subject, total)

    def _is_live(self, subject: bytes, total: Total) -> bool:
        last = self._index.last_seq
        return total.seq > last or total.seq == self._index.lookup.last_of(subject)

    def to_state(self) -> list[list[bytes | int]]:
        """Return the totals that count, equal on all replicas."""
        return [
            [subject, total.seq, write_integer(total.value), total.sources]
            for subject, total in sorted(self._rows.items())
            if self._is_live(subject, total)
        ]

    def load(self, state: CounterState) -> None:
        """Take over what `to_state` gave."""
        for subject, seq, value, sources in state:
            assert isinstance(subject, bytes) and isinstance(seq, int), subject
            assert isinstance(value, bytes) and isinstance(sources, bytes), subject
            self._rows[subject] = Total(seq, read_integer(value), sources)


def counted(
    total: Total, msg: Msg, increment: bytes, seq: Seq
) -> tuple[Msg, Total] | errors.JsError:
    """Return what is stored as `seq` of a publish that adds `increment` to `total`, and its total.

    What is known of sources goes on with each message, in place of what the publisher says; only
    the first message of a counter may bring its own.
    """
    subject, headers, _ = msg
    value = total.value + read_integer(increment)
    sources = message_headers.get(headers, SOURCES) or b""
    if total.sources:
        known = canonical_sources(total.sources)
        if known is None:
            return errors.MESSAGE_COUNTER_BROKEN()
        if known:
            sources = known
            headers = message_headers.with_header(
                message_headers.without(headers, SOURCES), SOURCES, known
            )
    body = b'{"val":"%b"}' % write_integer(value)
    return (subject, headers, body), Total(seq, value, sources)


def read_total(seq: Seq, headers: bytes, payload: bytes) -> Total | None:
    """Return the total that a stored message has; None: its body is none. A body that is empty, as
    that of a marker, stands for 0."""
    found = _match_body(payload)
    if found is None and payload:
        return None
    value = read_integer(found[1]) if found is not None else 0
    return Total(seq, value, message_headers.get(headers, SOURCES) or b"")


def counted_from(
    total: Total, msg: Msg, seq: Seq, *, stream: str, origin_subject: str, increment: bytes
) -> tuple[Msg, Total] | None:
    """Return what is stored as `seq` of a counter's message that came from the source `stream`,
    and its total: the counter moves by as much as the origin's did since the last message of
    `origin_subject` that came from there. None: the message is none of a counter."""
    subject, headers, payload = msg
    found = _match_body(payload)
    if found is None or not message_headers.get(headers, increment):
        return None
    known = canonical_sources(total.sources) if total.sources else b""
    sources: dict[str, dict[str, str] | None] = json.loads(known) if known else {}
    seen = sources.get(stream) or {}
    value = read_integer(found[1])
    delta = value - read_integer(seen.get(origin_subject, "0").encode() or b"0")
    sources[stream] = seen | {origin_subject: found[1].decode()}
    lines = headers.split(b"\r\n")  # the increment changes where it stands
    lines = [
        b"%b: %b" % (increment, write_integer(delta)) if line.startswith(increment + b":") else line
        for line in lines
    ]
    headers = message_headers.without(b"\r\n".join(lines), SOURCES)
    headers = message_headers.with_header(headers, SOURCES, write_sources(sources))
    value = total.value + delta
    body = b'{"val":"%b"}' % write_integer(value)
    return (subject, headers, body), Total(seq, value, write_sources(sources))


# --- what is known of the sources of a counter ----------------------------------------------------


def canonical_sources(text: bytes) -> bytes | None:
    """Return the JSON of totals by origin and subject as it is stored, keys in order; b"" if there
    are none; None: it is no such JSON."""
    try:
        found = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not found:
        return b"" if found is None or type(found) is dict else None
    if type(found) is not dict:
        return None
    for by_subject in found.values():
        if by_subject is None:
            continue
        if type(by_subject) is not dict:
            return None
        if not all(value is None or type(value) is str for value in by_subject.values()):
            return None
        by_subject |= {key: "" for key, value in by_subject.items() if value is None}
    return write_sources(found)


def write_sources(sources: dict[str, dict[str, str] | None]) -> bytes:
    """Return the JSON of totals by origin and subject, as Go writes it."""
    text = json.dumps(sources, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        if character in text:
            text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace")


# --- integers of any size -------------------------------------------------------------------------


def read_integer(text: bytes) -> int:
    """Return the integer of digits behind an optional sign, however many they are."""
    if len(text) <= _DIGITS:
        return int(text)
    is_negative = text[:1] == b"-"
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    value = 0
    for at in range(0, len(digits), _DIGITS):
        piece = digits[at : at + _DIGITS]
        value = value * 10 ** len(piece) + int(piece)
    return -value if is_negative else value


def write_integer(value: int) -> bytes:
    """Return the digits of `value`, however many they are."""
    if -_CHUNK < value < _CHUNK:
        return b"%d" % value
    pieces: list[bytes] = []
    rest = abs(value)
    while rest >= _CHUNK:
        rest, low = divmod(rest, _CHUNK)
        pieces.append(b"%0*d" % (_DIGITS, low))
    pieces.append(b"%d" % rest)
    return (b"-" if value < 0 else b"") + b"".join(reversed(pieces))
