"""A range of a stream, read from servers: every message of it once, in order, or an error.

Messages come through an ordered pull consumer made for the read (the server's fastest way: it
formats whole runs of records at once), or, where a consumer would change what the stream keeps
(interest and work queue retention), by batched direct gets. When the connection, the server or
the consumer is gone in the middle, the read goes on at the next seq, on another server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.client.stream_facts import DataLost, StreamFacts, next_seq, same_stream
from spark_jobs.client.wire import (
    ApiError,
    NoResponders,
    Wire,
    WireError,
    WireLost,
    WireTimeout,
    lent,
)
from spark_jobs.source.online_columns import batch_of
from spark_jobs.source.online_direct import direct_rows
from spark_jobs.source.online_frames import Frames, Rows
from spark_jobs.source.read_options import ANY, LEADER, ReadOptions

PULL_BYTES: Final = 4 * 1024 * 1024  # asked for at once: fits into the sockets' buffers
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # of payloads and headers in one Arrow batch, about
SILENCE_S: Final = 5.0  # without a byte of what was asked for; then another server is asked
GIVES_UP_S: Final = 60.0  # without a message
_INACTIVE_NS: Final = 60 * 1_000_000_000  # the server drops our consumer after that
PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 1.0
_MAX_CONSUMERS: Final = 10026

log = logging.getLogger(__name__)


class Interrupted(WireError):
    """The consumer of a read is gone; a new one can go on where it ended."""


MENDABLE: Final = (WireLost, WireTimeout, NoResponders, Interrupted)


class RangeRead:
    """The messages `start`..`end` (inclusive) of the stream created at `created`.

    `position` is the next seq to read; `server_name` the server to begin with, "" for any.
    """

    def __init__(
        self, options: ReadOptions, *, start: int, end: int, created: str, server_name: str = ""
    ) -> None:
        self._options = options
        self._start = start
        self._end = end
        self._created = created
        self._server_name = server_name
        self._connection = options.connection
        if options.read_from == ANY:
            # Tasks of one read begin at different servers.
            servers = options.connection.servers
            first = start % len(servers)
            turned = servers[first:] + servers[:first]
            self._connection = replace(options.connection, servers=turned)
        self._first_gap = 0  # lowest seq that did not come while later ones did; 0: none
        self.position = start

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages with the options' columns, at most `batch_rows` at a time.

        Raises StreamChanged, DataLost (if the options say so), ApiError, or the last fault of a
        connection when nothing could be read for `GIVES_UP_S`.
        """
        connection = self._connection
        avoid: list[str] = []
        server_name = self._server_name
        is_at_leader = self._options.read_from not in ("", LEADER)  # or need not be
        pause_s = PAUSE_S_MIN
        deadline = time.monotonic() + GIVES_UP_S
        while True:
            place, was_at = "", self.position
            try:
                with lent(connection, avoid=avoid, server_name=server_name) as wire:
                    place = str(wire.address)
                    facts = same_stream(wire, self._options.stream, self._created)
                    if not is_at_leader and facts.leader not in ("", wire.server_name):
                        # Every message would go through two servers.
                        server_name, is_at_leader = facts.leader, True
                        continue
                    if self.position <= self._end:
                        self._check_head(facts)
                        for batch in self._attempt(wire, facts):
                            yield batch
                            deadline = time.monotonic() + GIVES_UP_S
                        self._check_tail(wire)
                    self._check_end(same_stream(wire, self._options.stream, self._created))
                    return
            except MENDABLE as err:
                fault: WireError = err
            except ApiError as err:
                if not err.is_temporary:
                    raise
                fault = err
            if self.position > was_at:
                pause_s = PAUSE_S_MIN
                is_at_leader = self._options.read_from not in ("", LEADER)
            if server_name and not place:
                # The leader, or who was asked for, is not to be had: another server will do.
                server_name, is_at_leader = "", True
                continue
            if time.monotonic() + pause_s > deadline:
                raise fault
            log.warning(
                "read of %s goes on at seq %d: %s", self._options.stream, self.position, fault
            )
            avoid, server_name = [place] if place else [], ""
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _attempt(self, wire: Wire, facts: StreamFacts) -> Iterator[pa.RecordBatch]:
        """Yield batches over one connection until the range is read."""
        pieces: Iterator[list[Rows]]
        if facts.retention == "limits":
            pieces = self._pulled(wire, facts)
        else:
            pieces = direct_rows(wire, facts, self.position, self._end, self._options)
        try:
            for rows in pieces:
                yield from self._batches_of(rows, wire.server_name)
        except ApiError as err:
            if err.err_code != _MAX_CONSUMERS or not facts.allows_direct:
                raise
            for rows in direct_rows(wire, facts, self.position, self._end, self._options):
                yield from self._batches_of(rows, wire.server_name)

    def _batches_of(self, pieces: list[Rows], server: str) -> Iterator[pa.RecordBatch]:
        """Yield what of `pieces` is in the range, and move the position behind it."""
        options = self._options
        kept = []
        for piece in pieces:
            count = int(np.searchsorted(piece.seqs, self._end, side="right"))
            if count == 0:
                break
            self._note_gaps(piece.seqs[:count])
            kept.append(piece if count == len(piece.seqs) else piece.cut(count))
        if kept:
            yield batch_of(
                kept,
                options.columns,
                stream=options.stream,
                server=server,
                with_ledger=bool(options.subjects),
            )

    def _note_gaps(self, seqs: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        first, last = int(seqs[0]), int(seqs[-1])
        if first < self.position:
            raise WireError(
                f"stream {self._options.stream!r}: seq {first} came where {self.position} or a "
                "later one was due"
            )
        if not self._first_gap:
            if first > self.position:
                self._first_gap = self.position
            elif last - first + 1 != len(seqs):
                self._first_gap = first + int(np.argmax(np.diff(seqs) != 1)) + 1
        self.position = last + 1

    # --- by a pull consumer -----------------------------------------------------------------

    def _pulled(self, wire: Wire, facts: StreamFacts) -> Iterator[list[Rows]]:
        """Yield the rows of one pull after the other, some beyond the end at last."""
        stream, end = self._options.stream, self._end
        inbox = wire.inbox()
        sid = wire.subscribe(inbox)
        name = ""
        try:
            made = wire.api(f"CONSUMER.CREATE.{stream}", self._consumer(stream))
            name = made["name"]
            density = int(made["num_pending"]) / max(1, facts.last_seq - self.position + 1)
            subject = wire.api_subject(f"CONSUMER.MSG.NEXT.{stream}.{name}")
            frames = Frames(sid, wire.on_line)
            average = facts.average_size
            is_over = False
            asked = self._ask(wire, subject, inbox, density, average, self.position)
            while not is_over:
                for rows in self._received(wire, frames, asked):
                    yield rows
                is_over = frames.status is not None or frames.last_seq >= end
                average = max(1, frames.received_size // frames.received) if frames.received else 1
                rows = frames.take()
                if not is_over:
                    # Before the batch is handed out: the server works while Spark does.
                    asked += self._ask(wire, subject, inbox, density, average, frames.last_seq + 1)
                if rows:
                    yield rows
        finally:
            with suppress(WireError):
                wire.unsubscribe(sid)
                if name:
                    wire.publish(wire.api_subject(f"CONSUMER.DELETE.{stream}.{name}"), b"")

    def _received(self, wire: Wire, frames: Frames, asked: int) -> Iterator[list[Rows]]:
        """Take what a pull brings, until `asked` messages came since the beginning, or a status,
        or the end of the range; yield rows already when they are many bytes."""
        while frames.received < asked and frames.status is None and frames.last_seq < self._end:
            receive(wire, frames)
            if frames.size >= BATCH_BYTES_MAX:
                yield frames.take()
        check_status(wire, frames)

    def _ask(
        self, wire: Wire, subject: str, inbox: str, density: float, average: int, position: int
    ) -> int:
        """Send a pull and return its batch: what is left of the range by the look of it."""
        left = self._end - position + 1
        likely = int(left * density * 1.02) + 16  # too few cost a round trip, too many bytes
        batch = max(1, min(left, likely, self._options.batch_rows, PULL_BYTES // average))
        wire.publish(subject, b'{"batch":%d,"no_wait":true}' % batch, reply=inbox)
        return batch

    def _consumer(self, stream: str) -> dict[str, Any]:
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.position,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_NS,
            "description": "streamd spark read",
        }
        config |= filters_of(self._options.subjects)
        return {"stream_name": stream, "config": config}

    # --- is it all there --------------------------------------------------------------------

    def _check_head(self, facts: StreamFacts) -> None:
        """Raise DataLost if what is to be read next was purged."""
        if facts.first_seq <= self.position or facts.is_compacting:
            return
        self._lose(self.position, min(self._end, facts.first_seq - 1), facts)

    def _check_tail(self, wire: Wire) -> None:
        """Raise Interrupted if there is more to read although whoever was asked said there isn't:
        on servers whose consumers need not be where the stream's leader is, they may lag."""
        if self.position <= self._end:
            seq = next_seq(wire, self._options.stream, self._options.subjects, self.position)
            if 0 < seq <= self._end:
                raise Interrupted(f"{wire.address} ended before seq {seq}")

    def _check_end(self, facts: StreamFacts) -> None:
        """Raise DataLost if messages left the stream before they were read.

        Single messages deleted within the stream are no loss. If there were such holes already,
        or filters hide what is missing, a head that moved past the range's start counts as loss.
        """
        if facts.last_seq < self._end:
            self._lose(facts.last_seq + 1, self._end, facts)
        if facts.first_seq <= self._start or facts.is_compacting:
            return
        gap = self._start if self._options.subjects else self._first_gap
        if gap and gap < facts.first_seq:
            self._lose(gap, min(self._end, facts.first_seq - 1), facts)

    def _lose(self, first: int, last: int, facts: StreamFacts) -> None:
        text = (
            f"stream {facts.name!r}: seqs {first}..{last} were removed before they were read (it "
            f"now has {facts.first_seq}..{facts.last_seq}); set failOnDataLoss=false to read on "
            "without them"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(text)
        log.warning("%s", text)


def filters_of(subjects: Sequence[str]) -> dict[str, Any]:
    """Return the part of a consumer's configuration that names `subjects`."""
    if not subjects:
        return {}
    if len(subjects) == 1:
        return {"filter_subject": subjects[0]}
    return {"filter_subjects": list(subjects)}


def first_server(options: ReadOptions, leader: str) -> str:
    """Return the name of the server that a read begins with, "" for any."""
    if options.read_from in ("", LEADER):
        return leader
    return "" if options.read_from == ANY else options.read_from


def receive(wire: Wire, frames: Frames) -> None:
    """Take the next bytes of a pull's answer. Raises Interrupted if deliveries are left out."""
    data = wire.read_chunk(SILENCE_S)
    if not data:
        raise WireTimeout(f"{wire.address} sent nothing for {SILENCE_S:g} s")
    used, needed = frames.feed(data)
    if used < len(data):
        wire.keep(data[used:], needed=needed)
    wire.check()
    if frames.last_cseq != frames.received:
        raise Interrupted(
            f"{wire.address} left out deliveries: {frames.received} came, the last says "
            f"it is number {frames.last_cseq}"
        )


def check_status(wire: Wire, frames: Frames) -> None:
    """Raise Interrupted or WireError if a pull ended otherwise than by the end of the messages."""
    if frames.status is not None and frames.status[0] != 404:
        code, text = frames.status
        whole = f"{wire.address} ended a pull: {code} {text}".rstrip()
        raise Interrupted(whole) if code in (408, 409, 503) else WireError(whole)
