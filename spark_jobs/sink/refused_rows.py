"""Rows and batches that are refused: what the server's codes mean, and where rejected rows go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from spark_jobs.client.options import OptionError
from spark_jobs.client.wire import ApiError, Wire
from spark_jobs.client.wire_parser import encode_headers
from spark_jobs.sink import ledger
from spark_jobs.sink.ledger import StreamFacts
from spark_jobs.sink.rows import Rows
from spark_jobs.sink.rules import Rejection
from spark_jobs.sink.sink_options import SinkOptions
from streamd import subjects as matching

INCOMPLETE: Final = 10176
DUPLICATE: Final = 10201
# The ledger has moved on, or (a duplicate) rows of this batch are stored already.
LEDGER_MOVED: Final = frozenset((10071, 10164, DUPLICATE))
# Nothing is wrong with the rows: a batch was lost with its leader, or there are too many.
TRY_AGAIN: Final = frozenset((INCOMPLETE, 10210, 10167, 10008, 10163, 10158))
_ABOUT_STREAM: Final = frozenset((10109, 10023, 10002, 10174, 10060, 10185, 10059))
_FULL: Final = ("maximum messages exceeded", "maximum bytes exceeded")
_STORE_FAILED: Final = 10077
_REASON_BYTES_MAX: Final = 512
_LETTER_HEADER_BYTES: Final = 4096  # more than the headers of a letter ever take


class SinkError(Exception):
    """A row, or the stream, refuses to be written; the text says which and why."""


def is_about_stream(code: int, text: str) -> bool:
    """True if no row could be stored now: it is full, sealed, or may not be written."""
    return code in _ABOUT_STREAM or (code == _STORE_FAILED and text in _FULL)


def letter_subject(wire: Wire, dlq: str) -> tuple[str, str]:
    """Return the place of rejected rows, as (subject, stream): `dlq` is a subject, or
    `stream:NAME`.

    Raises OptionError if no stream would keep them.
    """
    if not dlq.startswith("stream:"):
        if not matching.is_valid_literal(dlq.encode()) or ledger.is_ledger(dlq):
            raise OptionError(f"option dlq is {dlq!r}, must be a subject or stream:NAME")
        names = wire.api("STREAM.NAMES", {"subject": dlq}).get("streams") or []
        if not names:
            raise OptionError(f"option dlq: no stream captures subject {dlq!r}")
        return dlq, str(names[0])
    name = dlq.removeprefix("stream:").strip()
    try:
        facts = StreamFacts.ask(wire, name)
    except OptionError:
        raise OptionError(f"option dlq: there is no stream {name!r}") from None
    for pattern in facts.subjects:
        if not ledger.is_ledger(pattern):
            tokens = ["rejected" if token in ("*", ">") else token for token in pattern.split(".")]
            return ".".join(tokens), name
    raise OptionError(f"option dlq: stream {name!r} has no subject to publish to")


class DeadLetters:
    """Sends rejected rows where option `dlq` says: in the same atomic batch if that is the same
    stream, else as a message of its own, acknowledged before the batch is committed."""

    def __init__(self, options: SinkOptions, facts: StreamFacts, writer: str) -> None:
        self.is_open = bool(options.dlq)
        self._dlq = options.dlq
        self._facts = facts
        self._writer = writer
        self._subject = ""
        self._is_own = False

    def send(
        self, wire: Wire, rejections: Sequence[Rejection], rows: Rows, batch_id: str, count: int
    ) -> int:
        """Send them; `count` messages of batch `batch_id` are sent. Returns how many are then.

        `batch_id` "": there is no batch. Raises WireTimeout, WireLost, ApiError, OptionError.
        """
        if not self._subject:
            self._subject, stream = letter_subject(wire, self._dlq)
            self._is_own = stream == self._facts.name
        first = int(rows.numbers[0])
        for each in rejections:
            payload = rows.payload[each.row - first].as_py()
            pairs = self._pairs(each)
            room = max(0, (self._facts.max_payload or 1 << 20) - _LETTER_HEADER_BYTES)
            if self._is_own and self._facts.max_msg_size:
                room = min(room, max(0, self._facts.max_msg_size - _LETTER_HEADER_BYTES))
            if len(payload) > room:
                pairs.append(("Streamd-Cut-From", str(len(payload))))
                payload = payload[:room]
            if self._is_own and batch_id:
                count += 1
                pairs += [("Nats-Batch-Id", batch_id), ("Nats-Batch-Sequence", str(count))]
                wire.publish(self._subject, payload, headers=encode_headers(pairs))
                continue
            answer = wire.request(self._subject, payload, headers=encode_headers(pairs))
            try:
                ledger.acked(answer.payload, f"dlq {self._subject}")
            except ApiError as err:
                raise SinkError(f"{each}; and the dlq refused it: {err}") from None
        return count

    def _pairs(self, each: Rejection) -> list[tuple[str, str]]:
        """The headers that tell what happened. The id makes a second try a duplicate."""
        shown = json.dumps(each.subject[:_REASON_BYTES_MAX])[1:-1]
        return [
            ("Nats-Msg-Id", f"dlq:{self._writer.replace(' ', ':')}:{each.row}"),
            ("Streamd-Reason", each.rule[:_REASON_BYTES_MAX].replace("\r", " ").replace("\n", " ")),
            ("Streamd-Code", str(each.code)),
            ("Streamd-Stream", self._facts.name),
            ("Streamd-Subject", shown),
            ("Streamd-Writer", self._writer),
            ("Streamd-Row", str(each.row)),
        ]
