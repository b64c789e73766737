"""`DeadLetters`: messages that consumers gave up, on their way to a dead-letter subject.

A consumer with the setting `streamd.dead_letter` gives a message up when it was delivered
`max_deliver` times, or when a client terminates it (`+TERM`). That is decided here, in `apply`,
with a number of its own: a letter. The leader sends letters in the order of their numbers and has
them taken out (LETTERS_SENT) once another stream has stored them; to that stream it is a producer
(see `producers`) whose sequences are these numbers, so each letter is stored once, whoever leads
here or there, and however often it is sent.

While a letter waits its message is kept where retention asks for interest; a work queue lets it go
when the letter is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from streamd.machine.digest import MASK64, chain64
from streamd.types import Seq, Uid

MAX_DELIVER: Final = b"max_deliver"
TERMINATED: Final = b"terminated"

LettersState = Iterable[Sequence[bytes | int]]
"""Rows of a snapshot: (the last number), then a row for each letter."""


class Letter(NamedTuple):
    """Message that a consumer gave up."""

    number: int
    sseq: Seq
    consumer_uid: Uid
    deliveries: int
    ts: int  # of when it was given up
    consumer: bytes
    subject: bytes  # to which the letter goes
    reason: bytes
    text: bytes  # of the client that terminated it


class DeadLetters:
    """Letters of one stream that are not stored yet where they go."""

    __slots__ = ("_counts", "_open", "_sum", "held", "last_number")

    def __init__(self) -> None:
        self._open: dict[int, Letter] = {}  # ascending
        self._counts: dict[Uid, int] = {}  # how many are of a consumer
        self._sum = 0
        self.last_number = 0
        self.held: dict[Seq, int] = {}  # how many letters are of a message

    def __len__(self) -> int:
        return len(self._open)

    def add(
        self,
        *,
        sseq: Seq,
        consumer_uid: Uid,
        deliveries: int,
        ts: int,
        consumer: bytes,
        subject: bytes,
        reason: bytes,
        text: bytes = b"",
    ) -> None:
        """A consumer has given up the message `sseq`."""
        self.last_number += 1
        self._put(
            Letter(
                self.last_number,
                sseq,
                consumer_uid,
                deliveries,
                ts,
                consumer,
                subject,
                reason,
                text,
            )
        )

    def _put(self, letter: Letter) -> None:
        self._open[letter.number] = letter
        for counts, key in ((self.held, letter.sseq), (self._counts, letter.consumer_uid)):
            counts[key] = counts.get(key, 0) + 1
        self._sum = (self._sum + _share(letter)) & MASK64

    def take(self, number: int) -> Letter | None:
        """Remove a letter: it is stored where it was to go. None: there is none of this number."""
        letter = self._open.pop(number, None)
        if letter is None:
            return None
        self._sum = (self._sum - _share(letter)) & MASK64
        for counts, key in ((self.held, letter.sseq), (self._counts, letter.consumer_uid)):
            left = counts.pop(key) - 1
            if left:
                counts[key] = left
        return letter

    def find(self, number: int) -> Letter | None:
        """Return the letter with this number, if it is still to be sent."""
        return self._open.get(number)

    def after(self, number: int) -> Iterator[Letter]:
        """Iterate over the letters beyond a number, in order."""
        if self.last_number - number > len(self._open):
            yield from (letter for letter in self._open.values() if letter.number > number)
            return
        for each in range(number + 1, self.last_number + 1):
            letter = self._open.get(each)
            if letter is not None:
                yield letter

    def count_of(self, consumer_uid: Uid) -> int:
        """Return how many letters of a consumer wait."""
        return self._counts.get(consumer_uid, 0)

    def fingerprint(self) -> int:
        """Return 64 bits over all letters; 0 if there never was one."""
        return chain64((self.last_number, self._sum)) if self.last_number else 0

    def to_state(self) -> list[list[bytes | int]]:
        """Return the rows for the snapshot, equal on all replicas."""
        if not self.last_number:
            return []
        rows: list[list[bytes | int]] = [[self.last_number]]
        for letter in self._open.values():
            rows.append([*letter])
        return rows

    def load(self, state: LettersState) -> None:
        """Take over `to_state`."""
        for at, row in enumerate(state):
            if not at:
                self.last_number = int(row[0])
                continue
            *numbers, consumer, subject, reason, text = row
            assert isinstance(consumer, bytes) and isinstance(subject, bytes), row
            assert isinstance(reason, bytes) and isinstance(text, bytes), row
            number, sseq, uid, deliveries, ts = map(int, numbers)
            self._put(Letter(number, sseq, uid, deliveries, ts, consumer, subject, reason, text))


def _share(letter: Letter) -> int:
    return chain64((letter.number, letter.sseq, letter.consumer_uid, letter.deliveries))
