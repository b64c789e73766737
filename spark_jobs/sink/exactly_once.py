"""Rows of a task into a stream, each once: atomic batches chained by the ledger.

While one batch is committed the rows of the next are on their way; its commit waits for the ack
before it. Whatever goes wrong ends in the same way: put back what is not acknowledged, read the
ledger, skip what it says is done, go on. That is safe at any moment, since a commit that does not
follow on the last ledger entry is refused (docs/adr/0018-spark-sink-ledger.md).
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from spark_jobs.client.wire import ApiError, NoResponders, WireError, WireTimeout
from spark_jobs.sink import ledger
from spark_jobs.sink import rows as sink_rows
from spark_jobs.sink.acks import FAULTS, SinkWire
from spark_jobs.sink.feed import Feed, Pacer
from spark_jobs.sink.ledger import Entry, LedgerError, StreamFacts
from spark_jobs.sink.refused_rows import (
    DUPLICATE,
    INCOMPLETE,
    LEDGER_MOVED,
    TRY_AGAIN,
    DeadLetters,
    SinkError,
    is_about_stream,
)
from spark_jobs.sink.rows import Rows, Sums
from spark_jobs.sink.rules import Rejection, Rules
from spark_jobs.sink.sink_options import Layout, SinkOptions
from spark_jobs.sink.task import (
    Chunk,
    Outcome,
    Task,
    check_entry,
    check_not_gone,
    check_rows,
)

DEPTH: Final = 2  # batches sent and not acknowledged; a stream takes 50 of all tasks together
ACK_WITHIN_S: Final = 5.0  # then the ledger is asked
INCOMPLETE_MAX: Final = 3  # times in a row, before each row is asked about
_SAMPLES_MAX: Final = 5


class _Refused(Exception):
    """The server's answer to a batch, or to its first message."""

    def __init__(self, chunk: Chunk, code: int, text: str) -> None:
        super().__init__(code, text)
        self.chunk = chunk
        self.code = code
        self.text = text


class ExactWriter:
    """Writes the rows of one task attempt. One use."""

    def __init__(
        self,
        options: SinkOptions,
        layout: Layout,
        facts: StreamFacts,
        task: Task,
    ) -> None:
        self._options = options
        self._layout = layout
        self._facts = facts
        self._task = task
        self._subject = ledger.subject_of(options.stream, task.job, task.partition)
        self._rules = Rules(facts, task.partition)
        self._letters = DeadLetters(options, facts, f"{task}")
        self._pacer = Pacer(options.pace) if options.pace.rows_per_s or options.pace.speed else None
        self._nonce = os.urandom(6).hex()
        self._batches = 0
        self._link = SinkWire(options, facts, task)
        self._entry = Entry()  # the last of ours, as far as we know
        self._tip_sums: Sums = ()  # of all rows taken from the feed
        self._tip_rows = 0
        self._queue: deque[Chunk] = deque()
        self._verdicts: dict[int, tuple[str, int]] = {}  # by row number: what the server said
        self._limit = options.batch_rows
        self._incomplete = 0
        self.outcome = Outcome()

    def write(self, batches: Iterator[Any]) -> Outcome:
        """Write all rows and return what was done.

        Raises SinkError when a row or the stream refuses, LedgerError when the rows are not those
        that an earlier attempt wrote, WireError when no server answers in time.
        """
        feed = Feed(batches, self._layout)
        self._link.progressed()
        try:
            self._resume(feed, is_first=True)
            refused: _Refused | None = None
            while True:
                try:
                    if refused is not None:
                        why, refused = refused, None
                        self._on_refused(feed, why)
                    elif not self._step(feed):
                        break
                except FAULTS as err:
                    self._recover(feed, err)
                except _Refused as err:
                    refused = err
            self._tidy()
        finally:
            self._link.close()
        if self._entry.batch == self._task.batch:
            # Of the whole partition, by whichever attempt.
            self.outcome.duplicates = self._entry.duplicates
            self.outcome.rejected = self._entry.rejected
            self.outcome.last_seq = self._entry.seq
        return self.outcome

    # --- the usual way ------------------------------------------------------------------------

    def _step(self, feed: Feed) -> bool:
        """Send what may be sent, and wait for one ack. False: all is done."""
        while len(self._queue) < DEPTH:
            if self._queue and (self._pacer or self._queue[-1].is_last):
                break
            chunk = self._next_chunk(feed)
            if chunk is None:
                break
            self._queue.append(chunk)
            self._stage(chunk)
            self._commit_first()
        if not self._queue:
            return False
        self._await_ack()
        return True

    def _next_chunk(self, feed: Feed) -> Chunk | None:
        rows = feed.take(self._limit)
        if rows is None:
            return None
        if self._pacer is not None:
            due = self._pacer.wait(rows)
            feed.put_back(rows.slice(due, len(rows)))
            rows = rows.slice(0, due)
        is_last = feed.is_over()
        self._tip_sums = sink_rows.add_sums(self._tip_sums, rows)
        self._tip_rows += len(rows)
        duplicates = 0
        rejections: list[Rejection] = []
        sent = rows
        if self._options.has_row_ids:
            sent = sink_rows.with_ids(sent, self._task.id_prefix)
        lines = sink_rows.extra_lines(sent)
        refused = self._rules.rejections(sent, lines)
        if refused and self._refresh_facts():
            refused = self._rules.rejections(sent, lines)
        keep = np.ones(len(rows), dtype=bool)
        for at, rejection in refused.items():
            keep[at] = False
            rejections.append(rejection)
        for at in self._repeated(sent, keep):
            keep[at] = False
            duplicates += 1
        if self._verdicts:
            for at, number in enumerate(rows.numbers.tolist()):
                verdict = self._verdicts.get(number)
                if verdict is not None and keep[at]:
                    keep[at] = False
                    if verdict[1] == DUPLICATE:
                        duplicates += 1
                    else:
                        subject = rows.subject[at].as_py().decode("utf-8", "replace")
                        rejections.append(
                            Rejection(self._task.partition, number, subject, *verdict)
                        )
        if rejections and not self._letters.is_open:
            # What came before is written; the row itself stops the job, at each try.
            first = min(rejections, key=lambda each: each.row)
            raise SinkError(
                f"stream {self._options.stream}, {self._task}: refused row: {first}. Leave such "
                'rows out, or collect them: .option("dlq", "SUBJECT")'
            )
        if not keep.all():
            sent = sent.pick(keep)
        return Chunk(rows, sent, is_last, self._tip_sums, duplicates, rejections)

    def _repeated(self, rows: Rows, keep: Any) -> list[int]:
        """Places of rows whose id another row of the same batch has."""
        if self._layout.msg_id < 0 or len(rows) < 2:
            return []
        ids = rows.msg_id
        if ids.null_count == 0 and len(ids.unique()) == len(ids):
            return []
        seen: set[bytes] = set()
        found = []
        for at, one in enumerate(ids.to_pylist()):
            if one is None or not keep[at]:
                continue
            if one in seen:
                found.append(at)
            seen.add(one)
        return found

    def _stage(self, chunk: Chunk) -> None:
        """Send the rows of a batch; it is committed later."""
        wire = self._link.wire()
        chunk.number = self._next_number()
        chunk.batch_id = self._batch_id(chunk.number)
        chunk.messages = 0
        chunk.is_committing = False
        if len(chunk.sent):
            reply = f"{self._link.inbox}.s{chunk.number}"
            lines = sink_rows.extra_lines(chunk.sent)
            wire.publish_raw(
                bytes(
                    sink_rows.batch_frames(chunk.sent, lines, batch_id=chunk.batch_id, reply=reply)
                )
            )
            chunk.messages = len(chunk.sent)
        if chunk.rejections:
            chunk.messages = self._letters.send(
                wire, chunk.rejections, chunk.rows, chunk.batch_id, chunk.messages
            )

    def _commit_first(self) -> None:
        chunk = self._queue[0]
        if chunk.is_committing:
            return
        before = self._entry
        after = self._entry_after(chunk)
        headers = ledger.entry_headers(
            batch_id=chunk.batch_id,
            position=chunk.messages + 1,
            expected=before.seq,
            facts=self._facts,
            is_made_up=self._options.is_made_up,
        )
        wire = self._link.wire()
        reply = f"{self._link.inbox}.c{chunk.number}"
        wire.publish(self._subject, after.encode(), reply=reply, headers=headers)
        wire.flush()
        chunk.is_committing = True

    def _entry_after(self, chunk: Chunk) -> Entry:
        before = self._entry
        is_new = before.batch != self._task.batch
        has_old = before.seq and not self._facts.allows_rollup
        return Entry(
            batch=self._task.batch,
            rows=int(chunk.rows.numbers[-1]) + 1,
            is_done=chunk.is_last,
            sums=chunk.sums,
            duplicates=(0 if is_new else before.duplicates) + chunk.duplicates,
            rejected=(0 if is_new else before.rejected) + len(chunk.rejections),
            plan=self._options.plan,
            attempt=self._task.attempt,
            old=before.old + 1 if has_old else 0,
        )

    def _await_ack(self) -> None:
        """Wait until the first batch is committed. Raises _Refused, WireTimeout, WireLost."""
        wire = self._link.wire()
        chunk = self._queue[0]
        deadline = time.monotonic() + ACK_WITHIN_S
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WireTimeout(f"no ack of a batch within {ACK_WITHIN_S:g} s")
            for _, message in wire.receive(left):
                if message.status == 503:
                    raise NoResponders(self._subject)
                kind, number = message.subject[len(self._link.inbox) + 1 :][:1], 0
                if kind in ("s", "c"):
                    number = int(message.subject[len(self._link.inbox) + 2 :])
                about = next((one for one in self._queue if one.number == number), None)
                if about is None or not message.payload:
                    continue  # of a batch given up before; or its first message was taken
                try:
                    found = ledger.acked(message.payload, "batch")
                except ApiError as err:
                    raise _Refused(about, err.err_code, err.description) from None
                if kind == "c" and about is chunk:
                    self._on_committed(chunk, int(found["seq"]))
                    return

    def _on_committed(self, chunk: Chunk, seq: int) -> None:
        self._entry = replace(self._entry_after(chunk), seq=seq)
        self._queue.popleft()
        done = self.outcome
        done.rows += len(chunk.rows)
        done.sent += len(chunk.sent)
        done.payload_bytes += len(sink_rows.data_of(chunk.sent.payload))
        done.samples += [str(each) for each in chunk.rejections[:_SAMPLES_MAX]]
        del done.samples[_SAMPLES_MAX:]
        if self._verdicts:
            last = int(chunk.rows.numbers[-1])
            self._verdicts = {row: said for row, said in self._verdicts.items() if row > last}
        self._limit = min(self._limit * 2, self._options.batch_rows)
        self._incomplete = 0
        self._link.progressed()
        if self._queue:
            self._commit_first()

    # --- when something went wrong ------------------------------------------------------------

    def _on_refused(self, feed: Feed, refused: _Refused) -> None:
        """The server refused a batch: go on where the ledger is, without the rows it means."""
        code = refused.code
        if is_about_stream(code, refused.text):
            raise SinkError(
                f"stream {self._options.stream} takes no more: {refused.text} (error {code})"
            )
        if code in TRY_AGAIN:
            self._incomplete += 1
            if code != INCOMPLETE or self._incomplete < INCOMPLETE_MAX:
                self._recover(feed, WireTimeout(f"{refused.text} (error {code})"))
                return
        before = self._entry
        self._resume(feed, is_first=False)
        if self._entry.seq != before.seq:
            return  # another attempt's, or our own that we thought lost
        if code in LEDGER_MOVED - {DUPLICATE}:
            raise LedgerError(
                f"stream {self._options.stream}, {self._task}: the server refused the ledger "
                f"({refused.text}), but its last entry is still at sequence {before.seq}: is "
                f"something else published to {self._subject}?"
            )
        if not len(refused.chunk.sent):
            raise SinkError(f"{self._task}: the ledger is refused: {refused.text} (error {code})")
        self._ask_about(feed, refused)

    def _ask_about(self, feed: Feed, refused: _Refused) -> None:
        """Find out which rows of a refused batch the server means."""
        chunk = refused.chunk
        found = self._probe(chunk.sent)
        if self._layout.msg_id < 0 and any(code == DUPLICATE for _, code in found.values()):
            before = self._entry
            self._resume(feed, is_first=False)
            if self._entry.seq != before.seq:
                return  # another attempt stored them meanwhile
            raise LedgerError(
                f"stream {self._options.stream}, {self._task}: rows of this job are in the stream "
                f"but not in its ledger {self._subject}; was the ledger purged?"
            )
        for text, code in found.values():
            if is_about_stream(code, text):
                raise SinkError(f"stream {self._options.stream} takes no more: {text} ({code})")
        self._verdicts |= found
        if found:
            self._incomplete = 0
            return
        if len(chunk.rows) == 1:
            number = int(chunk.rows.numbers[0])
            self._verdicts[number] = (refused.text, refused.code)
            return
        self._limit = max(1, len(chunk.rows) // 2)  # together they are refused, alone none is

    def _probe(self, rows: Rows) -> dict[int, tuple[str, int]]:
        """By row number, why the server would refuse a row now: (text, code)."""
        wire = self._link.wire()
        count = len(rows)
        lines = sink_rows.extra_lines(rows)
        batch_ids = [self._batch_id(self._next_number()) for _ in range(count)]
        inbox = f"{self._link.inbox}.p{self._batches}."
        wire.publish_raw(
            sink_rows.probe_frames(
                rows, lines, batch_ids=batch_ids, inbox=inbox, entry=self._subject
            )
        )
        found: dict[int, tuple[str, int]] = {}
        waiting = count
        deadline = time.monotonic() + ACK_WITHIN_S
        while waiting:
            messages = wire.receive(max(0.0, deadline - time.monotonic()))
            if not messages:
                raise WireTimeout(f"no answers about rows within {ACK_WITHIN_S:g} s")
            for _, message in messages:
                if not message.subject.startswith(inbox):
                    continue
                kind, at = message.subject[len(inbox)], int(message.subject[len(inbox) + 1 :])
                waiting -= kind == "c"
                if message.status == 503:
                    raise NoResponders(self._subject)
                error = json.loads(message.payload)["error"] if message.payload else None
                if error is None or error["err_code"] in (LEDGER_MOVED | TRY_AGAIN) - {DUPLICATE}:
                    continue
                text, code = str(error["description"]), int(error["err_code"])
                found.setdefault(int(rows.numbers[at]), (text, code))
        return found

    def _recover(self, feed: Feed, fault: WireError) -> None:
        """Go on after a lost connection, leader or batch. Raises WireTimeout after too long."""
        while True:
            self._link.wait_after(fault)
            try:
                self._resume(feed, is_first=False)
                return
            except FAULTS as err:
                fault = err

    def _resume(self, feed: Feed, *, is_first: bool) -> None:
        """Read the ledger and take up the rows where it is."""
        for chunk in reversed(self._queue):
            feed.put_back(chunk.rows)
        if self._queue:
            self._tip_rows = int(self._queue[0].rows.numbers[0])
            self._tip_sums = self._entry.sums if self._entry.batch == self._task.batch else ()
            self._queue.clear()
        entry = self._read_entry() if not is_first else self._read_first()
        check_entry(self._options, self._task, entry)
        if not is_first:
            check_not_gone(self._facts, self._task, entry, before=self._entry)
        self._entry = entry
        wanted = entry.rows if entry.batch == self._task.batch else 0
        start = self._tip_rows
        skipped, self._tip_sums = feed.skip(wanted - start, self._tip_sums)
        self._tip_rows += skipped
        done = self.outcome
        done.rows += skipped
        done.resumed += skipped
        if entry.batch != self._task.batch:
            return
        check_rows(
            self._options, self._task, entry, self._tip_rows, self._tip_sums, is_over=feed.is_over()
        )

    def _read_entry(self) -> Entry:
        try:
            return ledger.read_entry(self._link.wire(), self._options.stream, self._subject)
        except ApiError as err:
            if err.code != 503:
                raise
            raise NoResponders(self._subject) from None

    def _read_first(self) -> Entry:
        """As `_read_entry`, but waits for a server and a leader."""
        while True:
            try:
                return self._read_entry()
            except FAULTS:
                if self._link.is_too_late():
                    raise
                self._link.wait()

    # --- helpers ------------------------------------------------------------------------------

    def _refresh_facts(self) -> bool:
        """Ask for the stream's config again if it may have changed for the better."""
        try:
            facts = StreamFacts.ask(self._link.wire(), self._options.stream)
        except WireError:
            return False  # the rows are judged by what is known
        if facts.config == self._facts.config:
            return False
        self._facts = facts
        self._rules = Rules(facts, self._task.partition)
        return True

    def _tidy(self) -> None:
        """Remove older entries of the ledger; those that stay do no harm."""
        entry = self._entry
        most = ledger.OLD_ENTRIES_MAX if self._task.is_streaming else 1
        if entry.old < most or not self._facts.allows_purge or not self.outcome.sent:
            return
        try:
            ledger.drop_old(self._link.wire(), self._facts, self._subject)
        except WireError:
            return

    def _next_number(self) -> int:
        self._batches += 1
        return self._batches

    def _batch_id(self, number: int) -> str:
        """20 bytes that no other batch has."""
        return f"{self._nonce}{number:08x}"
