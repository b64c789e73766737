"""Ack subjects and ack payloads: what a client says about a delivered message.

An ack is a message on the reply subject of a delivery. Two layouts exist:
`$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ts>.<pending>` (9 tokens) and
`$JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ts>.<pending>[...]`
(11 or more). We send the first and understand both.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from streamd.durations import parse_duration

PREFIX = b"$JS.ACK."
FLOW_PREFIX = b"$JS.FC."

_INT64_MAX = (1 << 63) - 1
_ARGUMENT_BYTES_MAX = 4096  # of a -NAK: what is longer is no delay

ACK, NAK, PROGRESS, TERM, NEXT = range(5)

PLAIN = frozenset((b"", b"+ACK", b"+OK"))  # payloads of a positive ack


class AckVerb(NamedTuple):
    """Request that an ack payload makes. `argument` belongs to the kind: see `parse_payload`."""

    kind: int
    delay_ns: int = 0  # NAK: wait that long before delivering again; 0: at once
    argument: bytes = b""  # TERM: the reason; NEXT: the pull request


def parse_target(subject: bytes) -> tuple[bytes, int] | None:
    """Return (consumer, sseq) of an ack subject; None for anything that is none."""
    tokens = subject.split(b".", 7)
    try:
        if len(tokens) == 8 and tokens[7].count(b".") == 1:
            return tokens[3], int(tokens[5])
        tokens = subject.split(b".")
        if len(tokens) >= 11:
            _, sseq, _ = map(int, tokens[6:9])
            return tokens[5], sseq
    except ValueError:
        pass
    return None


def parse_payload(payload: bytes) -> AckVerb | None:
    """Return what the payload of an ack asks for; None for what no server knows (ignored)."""
    if payload in PLAIN:
        return _PLAIN_ACK
    if payload.startswith(b"-NAK"):
        return AckVerb(NAK, _nak_delay_ns(payload[4:].strip()))
    if payload == b"+WPI":
        return AckVerb(PROGRESS)
    if payload.startswith(b"+TERM"):
        return AckVerb(TERM, 0, payload[5:].strip())
    if payload.startswith(b"+NXT"):
        return AckVerb(NEXT, 0, payload[4:].strip())
    return None


def _nak_delay_ns(argument: bytes) -> int:
    """The delay of a -NAK: JSON `{"delay": ns}` or a Go duration. Nonsense means no delay."""
    if not argument or len(argument) > _ARGUMENT_BYTES_MAX:
        return 0
    if argument.startswith(b"{"):
        try:
            delay = json.loads(argument).get("delay", 0)
        except (ValueError, RecursionError):
            return 0
        return delay if isinstance(delay, int) and 0 < delay <= _INT64_MAX else 0
    return max(parse_duration(argument.decode("utf-8", "replace")) or 0, 0)


_PLAIN_ACK = AckVerb(ACK)
