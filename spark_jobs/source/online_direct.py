"""A range of a stream by batched direct gets: leaves no trace on the server, but is slower."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from spark_jobs.client.stream_facts import StreamFacts, next_seq
from spark_jobs.client.wire import Msg, Wire, WireError, WireTimeout
from spark_jobs.client.wire_parser import header
from spark_jobs.source.online_frames import Rows
from spark_jobs.source.read_options import ReadOptions
from streamd.subjects import Matcher

BATCH_BYTES: Final = 4 * 1024 * 1024
SILENCE_S: Final = 5.0
_EOB, _NOT_FOUND, _UNAVAILABLE = 204, 404, 503
_ORIGIN: Final = b"Nats-Stream: "  # the first of the lines that the server adds


def direct_rows(
    wire: Wire, facts: StreamFacts, position: int, end: int, options: ReadOptions
) -> Iterator[list[Rows]]:
    """Yield the messages from `position` to at least `end`, some may lie beyond.

    Raises WireError if the stream does not allow direct gets, WireTimeout if answers stay away or
    the server that answers lags behind.
    """
    if not facts.allows_direct:
        raise WireError(
            f"stream {facts.name!r} has {facts.retention} retention, which a consumer of "
            "this read would change, and no allow_direct: set allow_direct on the stream"
        )
    filters = [subject.encode() for subject in options.subjects]
    # A request takes one filter; of several, what comes is filtered here.
    asked = options.subjects[0] if len(filters) == 1 else ""
    matcher = Matcher(filters) if len(filters) > 1 else None
    batch = max(1, min(options.batch_rows, BATCH_BYTES // facts.average_size))
    inbox = wire.inbox()
    sid = wire.subscribe(inbox)
    subject = wire.api_subject(f"DIRECT.GET.{facts.name}")
    try:
        while position <= end:
            body = {"seq": position, "batch": batch, "max_bytes": BATCH_BYTES}
            if asked:
                body["next_by_subj"] = asked  # type: ignore[assignment]
            wire.publish(subject, json.dumps(body).encode(), reply=inbox)
            messages = _batch_of(wire, sid)
            if not messages:
                if 0 < next_seq(wire, facts.name, options.subjects, position) <= end:
                    raise WireTimeout(f"{wire.address} answers from a replica that lags behind")
                return
            rows = _rows_of(messages, matcher)
            position = int(header(messages[-1].headers, b"Nats-Sequence") or b"0") + 1
            if len(rows.seqs):
                yield [rows]
    finally:
        wire.unsubscribe(sid)


def _batch_of(wire: Wire, sid: int) -> list[Msg]:
    """Return the messages of one batch, [] if there is none."""
    found: list[Msg] = []
    deadline = time.monotonic() + SILENCE_S
    while True:
        arrived = wire.receive(max(0.0, deadline - time.monotonic()))
        if not arrived:
            raise WireTimeout(f"{wire.address} sent nothing for {SILENCE_S:g} s")
        deadline = time.monotonic() + SILENCE_S
        for number, message in arrived:
            if number != sid:
                continue
            if not message.status:
                found.append(message)
            elif message.status in (_EOB, _NOT_FOUND):
                return found
            elif message.status == _UNAVAILABLE:
                raise WireTimeout(f"{wire.address}: no server answers direct gets at the moment")
            else:
                raise WireError(f"direct get: {message.status} {message.description}")


def _rows_of(messages: list[Msg], matcher: Matcher | None) -> Rows:
    seqs: list[int] = []
    times: list[bytes] = []
    subjects: list[bytes] = []
    blocks: list[bytes] = []
    payloads: list[bytes] = []
    for message in messages:
        at = message.headers.rfind(_ORIGIN)
        added = message.headers[at - 2 :]
        subject = header(added, b"Nats-Subject") or b""
        if matcher is not None and not matcher.matches(subject):
            continue
        block = message.headers[:at]
        subjects.append(subject)
        seqs.append(int(header(added, b"Nats-Sequence") or b"0"))
        times.append(header(added, b"Nats-Time-Stamp") or b"")
        blocks.append(block + b"\r\n" if block != b"NATS/1.0\r\n" else b"")
        payloads.append(message.payload)
    moments = pa.array(times, pa.string()).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    return Rows(
        np.array(seqs, np.int64),
        moments.to_numpy(),
        pa.array(subjects, pa.binary()),
        pa.array(blocks, pa.binary()),
        pa.array(payloads, pa.binary()),
    )
