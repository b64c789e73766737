"""Batch reads from servers: the driver plans ranges of seqs, tasks read them.

The end is frozen when the read is planned: what is published later is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark_jobs.client.options import SEQ_MAX, OptionError
from spark_jobs.client.stream_facts import DataLost, StreamFacts, seq_at_time, stream_facts
from spark_jobs.client.wire import Wire, with_retries
from spark_jobs.source.online_last import LastPerSubjectRead
from spark_jobs.source.online_pushdown import SeqFilters
from spark_jobs.source.online_read import RangeRead, filters_of, first_server
from spark_jobs.source.read_options import ANY, LATEST, LEADER, ReadOptions
from spark_jobs.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PARTITIONS_MAX: Final = 100_000
_PLAN_CONSUMER_NS: Final = 5_000_000_000


class SeqRange(InputPartition):
    """The messages `start`..`end` (inclusive) of the stream created at `created`; none if
    `end` < `start`. `server_name`: where to begin reading, "" for anywhere."""

    def __init__(self, start: int, end: int, created: str, server_name: str = "") -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end
        self.created = created
        self.server_name = server_name

    def __repr__(self) -> str:
        return f"SeqRange({self.start}, {self.end})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeqRange) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.start, self.end, self.created))


class OnlineReader(DataSourceReader):
    """Reads a stream as it is now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Ask a server and plan. Raises WireError, OptionError, DataLost."""
        return list(plan(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SeqRange), partition
        return read_range(self._options, partition)


class PushdownReader(DataSourceReader):
    """Reads a stream as it is now, within the bounds that the query's filters set."""

    def __init__(self, options: ReadOptions) -> None:
        self._taken = SeqFilters(options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be taken exactly; yield the others, which Spark applies."""
        for each in filters:
            if not self._taken.take(each):
                yield each

    def partitions(self) -> list[InputPartition]:
        """Ask a server and plan. Raises WireError, OptionError, DataLost."""
        taken = self._taken
        return list(plan(taken.options, low=taken.low, high=taken.high))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SeqRange), partition
        return read_range(self._taken.options, partition)


def make_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return the reader of a batch; `schema` has the columns that `options` name."""
    return PushdownReader(options) if options.pushdown else OnlineReader(options)


def read_range(options: ReadOptions, part: SeqRange) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one planned range."""
    settle()
    if part.end < part.start:
        return iter(())
    if options.last_per_subject:
        return LastPerSubjectRead(options, part.created, part.server_name).batches()
    reading = RangeRead(
        options,
        start=part.start,
        end=part.end,
        created=part.created,
        server_name=part.server_name,
    )
    return reading.batches()


def plan(options: ReadOptions, *, low: int = 1, high: int = SEQ_MAX) -> list[SeqRange]:
    """Return the ranges of a batch read, in order; at least one, which may be empty.

    Between `maxRecordsPerPartition`, `maxBytesPerPartition` and `minPartitions`, all ranges have
    about the same number of seqs. What is not in `low`..`high` is left out. Raises WireError,
    OptionError, and DataLost for a start that was purged already.
    """
    if options.starting_position == LATEST:
        raise OptionError(
            "option startingPosition is latest: a batch read from there would be empty; "
            "leave it out, or use readStream"
        )
    if options.last_per_subject and (
        options.start_seq or options.start_time_ns or options.end_seq or options.end_time_ns
    ):
        raise OptionError(
            "option lastPerSubject reads the newest message of each subject of the whole stream: "
            "it can't be combined with startSeq, startTime, endSeq or endTime"
        )
    if options.read_from not in ("", ANY, LEADER):
        # Here, not in every task: does such a server exist at all?
        Wire.connect(options.connection, server_name=options.read_from).close()
    return with_retries(options.connection, lambda wire: _plan(wire, options, low, high))


def _plan(wire: Wire, options: ReadOptions, low: int, high: int) -> list[SeqRange]:
    facts = stream_facts(wire, options.stream)
    server = first_server(options, facts.leader)
    start, end = bounds(wire, facts, options)
    start, end = max(start, low), min(end, high)
    if end < start or not facts.messages:
        return [SeqRange(1, 0, facts.created, server)]
    if options.last_per_subject:
        return [SeqRange(start, end, facts.created, server)]
    messages = _matching(wire, facts, options, start) if options.subjects else facts.messages
    span = facts.last_seq - (start if options.subjects else facts.first_seq) + 1
    count = partition_count(
        options,
        seqs=end - start + 1,
        messages=max(1, messages * (end - start + 1) // max(1, span)),
        average_size=facts.average_size,
    )
    return [
        SeqRange(first, last, facts.created, server) for first, last in split(start, end, count)
    ]


def bounds(wire: Wire, facts: StreamFacts, options: ReadOptions) -> tuple[int, int]:
    """Return the first and the last seq (inclusive) that the options ask for and that there are.

    Raises DataLost if `startSeq` was removed and failOnDataLoss is set.
    """
    start, end = max(1, facts.first_seq), facts.last_seq
    if options.start_seq:
        if options.start_seq < start and not facts.is_compacting and options.fail_on_data_loss:
            raise DataLost(
                f"stream {facts.name!r} begins at seq {facts.first_seq}, startSeq is "
                f"{options.start_seq}: what was before is gone; leave startSeq out to read from "
                "the beginning, or set failOnDataLoss=false"
            )
        start = max(start, options.start_seq)
    elif options.start_time_ns:
        start = seq_at_time(wire, facts.name, options.start_time_ns) or end + 1
    if options.end_seq:
        end = min(end, options.end_seq)
    elif options.end_time_ns:
        behind = seq_at_time(wire, facts.name, options.end_time_ns + 1)
        end = min(end, behind - 1) if behind else end
    return start, end


def partition_count(options: ReadOptions, *, seqs: int, messages: int, average_size: int) -> int:
    """Return into how many ranges `seqs` seqs that hold about `messages` messages are split."""
    by_records = -(-messages // options.max_records_per_partition)
    by_bytes = -(-messages * average_size // options.max_bytes_per_partition)
    count = max(1, by_records, by_bytes, options.min_partitions)
    return min(count, seqs, max(PARTITIONS_MAX, options.min_partitions))


def split(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Return `count` ranges that cover `start`..`end`, whose sizes differ by at most one."""
    size, more = divmod(end - start + 1, count)
    found = []
    for number in range(count):
        last = start + size - (number >= more)
        found.append((start, last))
        start = last + 1
    return found


def _matching(wire: Wire, facts: StreamFacts, options: ReadOptions, start: int) -> int:
    """Return how many messages from `start` on have a subject that is asked for.

    Streams that a consumer would interfere with, or that take no more of them, are taken to match
    as a whole.
    """
    if facts.retention != "limits":
        return facts.messages
    config = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": _PLAN_CONSUMER_NS,
        **filters_of(options.subjects),
    }
    body = {"stream_name": facts.name, "config": config}
    made = wire.api(f"CONSUMER.CREATE.{facts.name}", body)
    wire.publish(wire.api_subject(f"CONSUMER.DELETE.{facts.name}.{made['name']}"), b"")
    return int(made["num_pending"])
