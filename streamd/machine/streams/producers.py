"""`Producers`: up to which of its own sequences each producer's messages are stored in a stream.

A producer names itself and numbers what it publishes: `Nats-Producer-Id`, `Nats-Producer-Seq`. A
sequence that is stored is never stored again, however late it comes again: unlike message ids,
these have no window. Nothing is stored out of order either, so a producer may send without waiting
for acks: where one message is refused or lost, all behind it are refused until it comes.

    sequence <= last             it is stored already: acked as a duplicate
    last = previous              stored; `previous` is the sequence - 1 unless it is given
    otherwise                    refused, and told what is the next

`Nats-Producer-Previous: <n>` is for sequences with holes (offsets of a file, say): the one before.
`any`: there is no telling, the sequence need only be higher than the last; of an unknown producer
this, or 1, is how it begins.

Part of the replicated state: what counts is the last sequence, not time. A producer is forgotten
only after a silence that the stream's configuration names (`extension_settings`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from streamd import limits
from streamd.errors import JsError, JsErrorKind
from streamd.machine.commands import DUPLICATE
from streamd.machine.digest import MASK64, chain64
from streamd.machine.message_headers import parse_number
from streamd.types import Seq

ID: Final = b"Nats-Producer-Id"
SEQUENCE: Final = b"Nats-Producer-Seq"
PREVIOUS: Final = b"Nats-Producer-Previous"
HEADS: Final = b"Nats-Producer-"
ANY: Final = b"any"

# Codes of ours are beyond those of nats-server.
PRODUCER_HEADERS_INVALID = JsErrorKind(400, 10901, "producer headers are invalid: {err}")
PRODUCER_OUT_OF_SEQUENCE = JsErrorKind(
    400, 10902, "producer '{producer}' is at sequence {last}, {sequence} does not follow"
)
PRODUCERS_EXCEEDED = JsErrorKind(400, 10903, "stream knows {most} producers, no more are allowed")


class Claim(NamedTuple):
    """Message that its producer is about to have stored."""

    producer: bytes
    sequence: int


ProducersState = Iterable[Sequence[bytes | int]]
"""Rows of a snapshot, the producer that was silent longest first: (id, last, seq, ts)."""


class Standing(NamedTuple):
    """Newest message of one producer."""

    last: int  # its sequence
    seq: Seq  # as which it is stored
    ts: int
    share: int  # of the fingerprint


class Producers:
    """Producers of one stream."""

    __slots__ = ("_rows", "_sum")

    def __init__(self) -> None:
        self._rows: dict[bytes, Standing] = {}  # by their last message's time
        self._sum = 0

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, producer: bytes) -> Standing | None:
        """Return where a producer stands; None: it is not known."""
        return self._rows.get(producer)

    def judge(
        self, fields: dict[bytes, bytes], most: int
    ) -> Claim | JsError | tuple[int, Seq] | None:
        """Return what becomes of a message with these headers as far as its producer decides: to be
        stored for it, refused, or there before. None: it names no producer. `most`: so many may be
        known at a time."""
        producer, sequence_text = fields.get(ID, b""), fields.get(SEQUENCE, b"")
        if not producer and not sequence_text:
            return None
        sequence = parse_number(sequence_text)
        if not producer or len(producer) > limits.PRODUCER_ID_BYTES_MAX:
            return PRODUCER_HEADERS_INVALID(
                err=f"{ID.decode()} must have 1 to {limits.PRODUCER_ID_BYTES_MAX} bytes"
            )
        if not 0 <= sequence <= limits.PRODUCER_SEQUENCE_MAX:
            return PRODUCER_HEADERS_INVALID(
                err=f"{SEQUENCE.decode()} must be a number up to {limits.PRODUCER_SEQUENCE_MAX}"
            )
        previous_text = fields.get(PREVIOUS)
        previous = sequence - 1
        if previous_text and previous_text != ANY:
            previous = parse_number(previous_text)
            if not 0 <= previous < sequence:
                return PRODUCER_HEADERS_INVALID(
                    err=f"{PREVIOUS.decode()} must be 'any' or a number below the sequence"
                )
        known = self._rows.get(producer)
        last = known.last if known is not None else 0
        if known is not None and 0 < sequence <= last:
            return DUPLICATE, known.seq
        if not sequence or (previous_text != ANY and previous != last):
            return PRODUCER_OUT_OF_SEQUENCE(
                producer=producer.decode("utf-8", "replace"), last=last, sequence=sequence
            )
        if known is None and len(self._rows) >= most:
            return PRODUCERS_EXCEEDED(most=most)
        return Claim(producer, sequence)

    def note(self, claim: Claim, *, seq: Seq, ts: int) -> None:
        """A message that was judged so is stored as `seq` at `ts`."""
        producer, sequence = claim
        self._forget(producer)
        digest = hashlib.sha256(producer).digest()
        share = chain64((int.from_bytes(digest[:8], "little"), sequence, seq))
        self._rows[producer] = Standing(sequence, seq, ts, share)
        self._sum = (self._sum + share) & MASK64

    def observe(self, fields: dict[bytes, bytes], *, seq: Seq, ts: int) -> None:
        """A message with these headers is stored as `seq`, behind all that were noted: of a state
        that is made from blocks. The newest message says where its producer stands, also if its
        sequence is lower: a producer that was forgotten, or unknown after a restore, begins anew.
        """
        producer, sequence = fields.get(ID, b""), parse_number(fields.get(SEQUENCE, b""))
        if producer and sequence > 0:
            self.note(Claim(producer, sequence), seq=seq, ts=ts)

    def forget_before(self, ts: int) -> None:
        """Forget producers whose last message is no younger than that."""
        for producer, known in list(self._rows.items()):
            if known.ts > ts:
                break
            self._forget(producer)

    def _forget(self, producer: bytes) -> None:
        known = self._rows.pop(producer, None)
        if known is not None:
            self._sum = (self._sum - known.share) & MASK64

    def fingerprint(self) -> int:
        """Return 64 bits over all producers; 0 if there are none."""
        return chain64((len(self._rows), self._sum)) if self._rows else 0

    def to_state(self) -> list[list[bytes | int]]:
        """Return the rows for the snapshot, equal on all replicas."""
        return [[name, row.last, row.seq, row.ts] for name, row in self._rows.items()]

    def load(self, state: ProducersState) -> None:
        """Take over `to_state`."""
        for producer, last, seq, ts in state:
            assert isinstance(producer, bytes) and isinstance(last, int), producer
            self.note(Claim(producer, last), seq=int(seq), ts=int(ts))
