"""Promises of dead letters, producers and order by subject, as functions of what is stored.

One node (tests/sim/extensions.py) and clusters (tests/sim/extension_models.py) are judged by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from streamd.machine.message_headers import get
from streamd.types import Seq

SEQUENCE = b"Nats-Dead-Letter-Sequence"
BODY = b"Nats-Dead-Letter-Body"


def produced_wrongly(name: bytes, stored: Sequence[int], acked: int) -> str:
    """Return what is wrong with the sequences that are stored of a producer, of which those up to
    `acked` were acked: they are to be 1, 2, 3 ... and none of them missing."""
    if list(stored) != list(range(1, len(stored) + 1)):
        return f"of {name!r} are stored {list(stored)}"
    if acked > len(stored):
        return f"{acked} of {name!r} are acked, stored are {list(stored)}"
    return ""


def number_of(headers: bytes, head: bytes) -> int:
    """Return the number that a letter has under a header; -1: it has none."""
    text = get(headers, head) or b""
    return int(text) if text.isdigit() else -1


def letter_bodies(letters: Iterable[tuple[bytes, bytes]]) -> dict[Seq, bytes]:
    """Return the bodies of letters, given as (headers, payload), by the messages they are of.
    Raises AssertionError if two are of the same, or one has lost its body."""
    bodies: dict[Seq, bytes] = {}
    for headers, body in letters:
        seq = number_of(headers, SEQUENCE)
        assert seq > 0, f"a letter of nothing: {headers!r}"
        assert seq not in bodies, f"two letters of {seq}"
        assert body or get(headers, BODY), f"the letter of {seq} has lost its body"
        bodies[seq] = body
    return bodies


def overtaken(seq: Seq, subjects: Mapping[Seq, bytes], is_open: Callable[[Seq], bool]) -> list[Seq]:
    """Return the messages before `seq` on its subject that are not done yet."""
    subject = subjects[seq]
    return [
        each
        for each, other in subjects.items()
        if each < seq and other == subject and is_open(each)
    ]
