"""Rows of a task into a stream, each at least once: plain publishes, many on their way at once.

A row sent twice has the same `Nats-Msg-Id`, so within the stream's duplicate window it is stored
once. Rows keep their order unless a connection is lost in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from spark_jobs.client.wire import ApiError, NoResponders, WireError, WireTimeout
from spark_jobs.sink import ledger
from spark_jobs.sink import rows as sink_rows
from spark_jobs.sink.acks import FAULTS, SinkWire
from spark_jobs.sink.feed import Feed, Pacer
from spark_jobs.sink.ledger import StreamFacts
from spark_jobs.sink.refused_rows import TRY_AGAIN, DeadLetters, SinkError, is_about_stream
from spark_jobs.sink.rows import Rows
from spark_jobs.sink.rules import Rejection, Rules
from spark_jobs.sink.sink_options import Layout, SinkOptions
from spark_jobs.sink.task import Outcome, Task

CHUNK_ROWS: Final = 1000
ACK_WITHIN_S: Final = 5.0
_SAMPLES_MAX: Final = 5


@dataclass(slots=True)
class _Chunk:
    rows: Rows  # as they were read
    sent: Rows
    lines: Any
    payload_bytes: int = 0
    waiting: set[int] = field(default_factory=set)  # places in `sent` without an ack
    rejections: list[Rejection] = field(default_factory=list)


class PlainWriter:
    """Writes the rows of one task attempt. One use."""

    def __init__(
        self, options: SinkOptions, layout: Layout, facts: StreamFacts, task: Task
    ) -> None:
        self._options = options
        self._layout = layout
        self._facts = facts
        self._task = task
        self._rules = Rules(facts, task.partition, is_exact=False)
        self._letters = DeadLetters(options, facts, f"{task}")
        self._pacer = Pacer(options.pace) if options.pace.rows_per_s or options.pace.speed else None
        self._link = SinkWire(options, facts, task)
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._waiting = 0  # rows without an ack
        self._numbers = 0
        self.outcome = Outcome()

    def write(self, batches: Iterator[Any]) -> Outcome:
        """Write all rows. Raises SinkError for a refused row, WireError when nobody answers."""
        feed = Feed(batches, self._layout)
        self._link.progressed()
        is_over = False
        try:
            while not is_over or self._chunks:
                try:
                    if is_over or self._waiting >= self._options.window_rows:
                        self._receive()
                        continue
                    is_over = not self._send_next(feed)
                except FAULTS as err:
                    self._recover(err)
        finally:
            self._link.close()
        return self.outcome

    def _send_next(self, feed: Feed) -> bool:
        """Send the next rows; False if there are none."""
        rows = feed.take(min(CHUNK_ROWS, self._options.window_rows))
        if rows is None:
            return False
        if self._pacer is not None:
            due = self._pacer.wait(rows)
            feed.put_back(rows.slice(due, len(rows)))
            rows = rows.slice(0, due)
        sent = rows
        if self._options.has_row_ids:
            sent = sink_rows.with_ids(sent, self._task.id_prefix)
        lines = sink_rows.extra_lines(sent)
        refused = self._rules.rejections(sent, lines)
        chunk = _Chunk(rows, sent, lines, rejections=list(refused.values()))
        if refused:
            self._refuse(chunk.rejections)
            keep = np.ones(len(rows), dtype=bool)
            keep[list(refused)] = False
            chunk.sent = sent.pick(keep)
            chunk.lines = sink_rows.extra_lines(chunk.sent)
        chunk.waiting = set(range(len(chunk.sent)))
        chunk.payload_bytes = len(sink_rows.data_of(chunk.sent.payload))
        self._numbers += 1
        self._chunks[self._numbers] = chunk
        self._waiting += len(chunk.waiting)
        self._publish(self._numbers, chunk)
        return True

    def _publish(self, number: int, chunk: _Chunk) -> None:
        wire = self._link.wire()
        if len(chunk.sent):
            inbox = f"{self._link.inbox}.{number}."
            wire.publish_raw(bytes(sink_rows.plain_frames(chunk.sent, chunk.lines, inbox=inbox)))
        if not chunk.waiting:
            self._finish(number, chunk)

    def _receive(self) -> None:
        """Take some acks. Raises WireTimeout if there are none for long."""
        messages = self._link.wire().receive(ACK_WITHIN_S)
        if not messages:
            raise WireTimeout(f"no ack within {ACK_WITHIN_S:g} s")
        skip = len(self._link.inbox) + 1
        for _, message in messages:
            if message.status == 503:
                raise NoResponders(self._options.stream)
            name, _, place = message.subject[skip:].partition(".")
            number, at = int(name), int(place)
            chunk = self._chunks.get(number)
            if chunk is None or at not in chunk.waiting:
                continue
            if b'"error"' in message.payload:
                self._on_error(chunk, at, message.payload)
            elif b'"duplicate":' in message.payload:
                self.outcome.duplicates += 1
            chunk.waiting.discard(at)
            self._waiting -= 1
            if not chunk.waiting:
                self._finish(number, chunk)

    def _on_error(self, chunk: _Chunk, at: int, payload: bytes) -> None:
        try:
            ledger.acked(payload, "row")
        except ApiError as err:
            if err.err_code in TRY_AGAIN:
                raise WireTimeout(f"{err.description} (error {err.err_code})") from None
            if is_about_stream(err.err_code, err.description):
                raise SinkError(
                    f"stream {self._options.stream} takes no more: {err.description} "
                    f"(error {err.err_code})"
                ) from None
            subject = chunk.sent.subject[at].as_py().decode("utf-8", "replace")
            row = int(chunk.sent.numbers[at])
            one = Rejection(self._task.partition, row, subject, err.description, err.err_code)
            self._refuse([one])
            chunk.rejections.append(one)

    def _refuse(self, rejections: list[Rejection]) -> None:
        if not self._letters.is_open:
            raise SinkError(
                f"stream {self._options.stream}, {self._task}: refused row: {rejections[0]}. "
                'Leave such rows out, or collect them: .option("dlq", "SUBJECT")'
            )

    def _finish(self, number: int, chunk: _Chunk) -> None:
        """Count a chunk whose rows are all answered; its refused rows go to the dead letters."""
        if chunk.rejections:
            self._letters.send(self._link.wire(), chunk.rejections, chunk.rows, "", 0)
        del self._chunks[number]
        done = self.outcome
        done.rows += len(chunk.rows)
        done.rejected += len(chunk.rejections)
        done.sent += len(chunk.rows) - len(chunk.rejections)
        done.payload_bytes += chunk.payload_bytes
        done.samples += [str(each) for each in chunk.rejections[:_SAMPLES_MAX]]
        del done.samples[_SAMPLES_MAX:]
        self._link.progressed()

    def _recover(self, fault: WireError) -> None:
        """Connect again and send again what has no ack; raises `fault` if it has taken too long."""
        while True:
            self._link.wait_after(fault)
            try:
                for number, chunk in list(self._chunks.items()):
                    if len(chunk.waiting) < len(chunk.sent):
                        keep = np.zeros(len(chunk.sent), dtype=bool)
                        keep[list(chunk.waiting)] = True
                        chunk.sent = chunk.sent.pick(keep)
                        chunk.lines = sink_rows.extra_lines(chunk.sent)
                        chunk.waiting = set(range(len(chunk.sent)))
                    self._publish(number, chunk)
                return
            except FAULTS as err:
                fault = err
