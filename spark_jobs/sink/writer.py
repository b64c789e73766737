"""`df.write.format("streamd")` and `writeStream`: rows into a stream.

    df.select("subject", "payload").write.format("streamd").mode("append") \\
        .option("servers", "127.0.0.1:4222").option("stream", "ORDERS").save()

Columns: subject, payload or data, and, if wanted, headers, msg_id and ttl. Delivery is exactly
once by default (exactly_once.py), at least once with option delivery (at_least_once.py).
A batch write with option jobId resumes: rows that an earlier run of that job wrote are skipped.
A streaming query is resumed by its checkpoint. Options: sink_options.py.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_jobs.client.options import OptionError
from spark_jobs.client.wire import Wire, with_retries
from spark_jobs.sink import ledger
from spark_jobs.sink import refused_rows as sink_refused
from spark_jobs.sink import summary as sink_report
from spark_jobs.sink.at_least_once import PlainWriter
from spark_jobs.sink.exactly_once import ExactWriter
from spark_jobs.sink.ledger import LedgerError, StreamFacts
from spark_jobs.sink.sink_options import Layout, SinkOptions
from spark_jobs.sink.task import Outcome, Task
from spark_jobs.worker import settle

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """Outcome of one task; goes to the driver."""

    partition: int
    job: str
    outcome: Outcome


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of `df.write`. Raises OptionError for what can be known before any row is sent."""
    if overwrite:
        raise OptionError(
            'mode("overwrite") is not supported, a stream is only appended to: use '
            'mode("append"), and purge the stream before if that is meant'
        )
    parsed = SinkOptions.parse(options)
    if not parsed.job:
        parsed = replace(parsed, job=f"w{uuid.uuid4().hex[:20]}", is_made_up=True)
    layout = Layout.of(schema, pace_column=parsed.pace_column)
    return BatchWriter(parsed, layout, _ready(parsed))


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StreamWriter:
    """The writer of `df.writeStream`. Raises OptionError."""
    if overwrite:
        raise OptionError('outputMode("complete") is not supported: use append or update')
    parsed = SinkOptions.parse(options)
    if parsed.job:
        raise OptionError("option jobId is for df.write: a streaming query has an id of its own")
    layout = Layout.of(schema, pace_column=parsed.pace_column)
    return StreamWriter(parsed, layout, _ready(parsed))


def _ready(options: SinkOptions) -> StreamFacts:
    """The stream's facts, once it can be written in the way asked for."""

    def look(wire: Wire) -> StreamFacts:
        facts = ledger.ready_stream(
            wire, options.stream, with_ledger=options.is_exact, may_change=options.may_prepare
        )
        if options.dlq:
            sink_refused.letter_subject(wire, options.dlq)
        return facts

    return with_retries(options.connection, look, deadline_s=options.timeout_s)


def _write(
    options: SinkOptions,
    layout: Layout,
    facts: StreamFacts,
    batches: Iterator[Any],
    *,
    is_streaming: bool,
) -> Written:
    """Run one task attempt."""
    settle()
    context = TaskContext.get()
    if context is None:
        raise OptionError("the sink writes inside a Spark task only")
    job, batch = options.job, 0
    if is_streaming:
        job = context.getLocalProperty(_QUERY_ID) or ""
        number = context.getLocalProperty(_BATCH_ID)
        if not job or number is None:
            raise OptionError(
                f"Spark tells this task neither {_QUERY_ID} nor {_BATCH_ID}, without which a "
                "streaming write can't be told from its repetition"
            )
        batch = int(number)
    attempt = f"{socket.gethostname()}/{os.getpid()}/{context.attemptNumber()}"
    task = Task(job, context.partitionId(), batch, is_streaming, attempt)
    writer: ExactWriter | PlainWriter
    if options.is_exact:
        writer = ExactWriter(options, layout, facts, task)
    else:
        writer = PlainWriter(options, layout, facts, task)
    return Written(task.partition, job, writer.write(batches))


def _check_partitions(options: SinkOptions, job: str, *, batch: int, partition_count: int) -> None:
    """Raise LedgerError if this job was begun with more partitions than have been written now:
    rows of those that are missing may have been written again under other numbers."""

    def look(wire: Wire) -> None:
        for partition in ledger.partitions_of(wire, options.stream, job):
            if partition < partition_count:
                continue
            subject = ledger.subject_of(options.stream, job, partition)
            entry = ledger.read_entry(wire, options.stream, subject)
            if entry.batch == batch and entry.rows:
                raise LedgerError(
                    f"stream {options.stream}, job {job}: partition {partition} was written with "
                    f"{entry.rows} rows by a run that had more than the {partition_count} "
                    "partitions of now: rows may be doubled. Resume with the same partitions"
                )

    with_retries(options.connection, look, deadline_s=options.timeout_s)


def summary_of(messages: Sequence[Written | None], options: SinkOptions) -> dict[str, Any]:
    """Sum up the outcomes of all tasks, for options summaryFile and summarySubject."""
    done = [message for message in messages if message is not None]
    found: dict[str, Any] = {"job": options.job, "partitions": len(messages)}
    for name in ("rows", "resumed", "sent", "duplicates", "rejected", "payload_bytes"):
        found[name] = sum(asdict(each.outcome)[name] for each in done)
    found["last_seq"] = max((each.outcome.last_seq for each in done), default=0)
    found["samples"] = [text for each in done for text in each.outcome.samples][:10]
    return found


class BatchWriter(DataSourceArrowWriter):
    """A `df.write`."""

    def __init__(self, options: SinkOptions, layout: Layout, facts: StreamFacts) -> None:
        self._options = options
        self._layout = layout
        self._facts = facts

    def write(self, iterator: Iterator[Any]) -> Written:
        return _write(self._options, self._layout, self._facts, iterator, is_streaming=False)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check the ledger and tell the summary: every task has succeeded, its rows are stored."""
        options = self._options
        if options.is_exact and not options.is_made_up:
            _check_partitions(options, options.job, batch=0, partition_count=len(messages))
        if options.summary_file or options.summary_subject:
            known = [each if isinstance(each, Written) else None for each in messages]
            sink_report.tell(options, summary_of(known, options))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Rows that were written stay; the same job id goes on behind them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """A `df.writeStream`."""

    def __init__(self, options: SinkOptions, layout: Layout, facts: StreamFacts) -> None:
        self._options = options
        self._layout = layout
        self._facts = facts

    def write(self, iterator: Iterator[Any]) -> Written:
        return _write(self._options, self._layout, self._facts, iterator, is_streaming=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Check the ledger: every task of the micro-batch has succeeded, its rows are stored."""
        job = next((each.job for each in messages if isinstance(each, Written)), "")
        if self._options.is_exact and job:
            _check_partitions(self._options, job, batch=batchId, partition_count=len(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Rows that were written stay; the batch goes on behind them when it is repeated."""
