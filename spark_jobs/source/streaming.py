"""The streaming source: a query follows a stream by sequence numbers.

An offset is `{"v": 1, "seq": <next seq>, "epoch": <when the stream was created>}`, with `until`, a
time after which none of its messages was stored, and `life`, how often the stream has begun anew
within its epoch (see `has_begun_anew`), unless they are 0. What lies between two offsets is always
the same messages in the same partitions, whatever the server holds by then; so a query that starts
again from its checkpoint repeats a batch exactly.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.client.options import OptionError
from spark_jobs.client.stream_facts import (
    DataLost,
    StreamChanged,
    StreamFacts,
    has_begun_anew,
    seq_at_time,
    stream_facts,
)
from spark_jobs.client.wire import Wire, WireError, with_retries
from spark_jobs.source.ack_consumer import move_consumer
from spark_jobs.source.online import SeqRange, read_range, split
from spark_jobs.source.online_read import GIVES_UP_S, first_server
from spark_jobs.source.read_options import LATEST, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

VERSION: Final = 1
Offset = dict[str, Any]

log = logging.getLogger(__name__)


class StreamdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one stream. Lives on the driver; `read` runs in tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: Offset | None = None  # where a query with trigger availableNow ends

    def initialOffset(self) -> Offset:
        """Return where a new query begins. Raises WireError; DataLost for a `startSeq` that is
        gone."""
        return with_retries(self._options.connection, self._initial)

    def _initial(self, wire: Wire) -> Offset:
        options = self._options
        facts = stream_facts(wire, options.stream)
        first, behind = max(1, facts.first_seq), facts.last_seq + 1
        if options.start_seq:
            found = offset_of(options.start_seq, facts)
            if options.start_seq < first:
                self._check_head(found, facts)
            return found
        if options.start_time_ns:
            return offset_of(seq_at_time(wire, facts.name, options.start_time_ns) or behind, facts)
        return offset_of(behind if options.starting_position == LATEST else first, facts)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The first of maxMsgsPerTrigger, maxBytesPerTrigger and minMsgsPerTrigger that is set.

        Spark passes it back to `latestOffset`, which then heeds all three.
        """
        options = self._options
        if options.max_msgs_per_trigger:
            return ReadMaxRows(options.max_msgs_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_msgs_per_trigger:
            return ReadMinRows(options.min_msgs_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return where the next batch ends; `start` if there is nothing (or not enough) to read.

        Raises StreamChanged if the stream is another one by now (failOnDataLoss=false: the batch
        is what the new one holds), DataLost if messages from `start` on were purged.
        """
        facts = self._facts()
        seq, until, life = seq_of(start), int(start.get("until", 0)), int(start.get("life", 0))
        is_same = start["epoch"] == facts.created
        if not is_same:
            self._may_change(
                start,
                f"was deleted and created again at {facts.created}",
                f"that of {start['epoch']}",
            )
            life = 0
        elif has_begun_anew(
            first_seq=facts.first_seq, first_ns=facts.first_ns, last_seq=seq - 1, until_ns=until
        ):
            is_same = False
            self._may_change(
                start,
                "was forgotten by its server, as streams in memory are, and has begun anew",
                "it",
            )
            life += 1
        if is_same:
            self._check_head(start, facts)
        else:
            seq, until = max(1, facts.first_seq), 0
        behind = facts.last_seq + 1
        if self._target is not None and self._target["epoch"] == facts.created:
            behind = min(behind, self._target["seq"])
        # What a head moved past holds no rows, so it does not count.
        begin = max(seq, facts.first_seq)
        end = begin + self._rows_allowed(max(0, behind - begin), limit, facts)
        end = min(end, max(behind, seq))
        if end <= seq and is_same:
            return start
        return offset_of(max(end, seq), facts, until_ns=until, life=life)

    def _rows_allowed(self, available: int, limit: ReadLimit, facts: StreamFacts) -> int:
        """Return how many of `available` seqs the next batch takes."""
        if isinstance(limit, ReadAllAvailable):
            return available
        options = self._options
        most_rows, most_bytes = options.max_msgs_per_trigger, options.max_bytes_per_trigger
        least = options.min_msgs_per_trigger
        if isinstance(limit, ReadMaxRows):
            most_rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            most_bytes = limit.max_bytes
        elif isinstance(limit, ReadMinRows):
            least = limit.min_rows
        # A query that is to end with what is there can't wait for more.
        if available < least and self._target is None:
            return 0
        if most_rows:
            available = min(available, most_rows)
        if most_bytes:
            available = min(available, max(1, most_bytes // facts.average_size))
        return available

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the end of now; `latestOffset` goes no further."""
        facts = self._facts()
        self._target = offset_of(facts.last_seq + 1, facts)

    def reportLatestOffset(self) -> Offset | None:
        """The end of the stream, for the query's progress; None if nobody can be asked."""
        try:
            facts = with_retries(
                self._options.connection,
                lambda wire: stream_facts(wire, self._options.stream),
                tries=1,
            )
        except WireError:
            return None
        return offset_of(facts.last_seq + 1, facts)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Cut start..end at the multiples of `maxRecordsPerPartition`, or finer if `minPartitions`
        asks for more. Depends on the arguments and options alone."""
        first = seq_of(start) if _life_of(start) == _life_of(end) else 1
        last = seq_of(end) - 1
        options = self._options
        cells = grid(first, last, options.max_records_per_partition)
        if 0 < len(cells) < options.min_partitions:
            cells = split(first, last, min(options.min_partitions, last - first + 1))
        epoch = str(end["epoch"])
        server = first_server(options, leader="")
        return [SeqRange(low, high, epoch, server) for low, high in cells]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SeqRange), partition
        return read_range(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Move the durable consumer of option `ackConsumer` to `end`.

        It serves to watch the query's lag only: what fails here is logged and the query goes on.
        """
        if not self._options.ack_consumer:
            return
        try:
            with_retries(
                self._options.connection,
                lambda wire: move_consumer(wire, self._options, seq_of(end)),
                tries=2,
            )
        except WireError as err:
            log.warning("consumer %s was not moved: %s", self._options.ack_consumer, err)

    def _facts(self) -> StreamFacts:
        """Ask for as long as a task asks for messages: a query outlives a server's restart."""
        return with_retries(
            self._options.connection,
            lambda wire: stream_facts(wire, self._options.stream),
            tries=0,
            deadline_s=GIVES_UP_S,
        )

    def _check_head(self, start: Offset, facts: StreamFacts) -> None:
        seq = seq_of(start)
        if facts.is_compacting:
            return
        if facts.first_seq > seq:
            what = f"seqs {seq}..{facts.first_seq - 1} were removed before the query read them"
        elif seq > facts.last_seq + 1:
            what = f"the query has read up to seq {seq - 1} already"
        else:
            return
        text = (
            f"stream {facts.name!r} holds {facts.first_seq}..{facts.last_seq}, but {what}; set "
            "failOnDataLoss=false to go on with what there is"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(text)
        log.warning("%s", text)

    def _may_change(self, start: Offset, what: str, which: str) -> None:
        """Raise StreamChanged unless the query goes on with what is another stream by now."""
        text = (
            f"stream {self._options.stream!r} {what}: the query has read {which} up to seq "
            f"{seq_of(start) - 1}"
        )
        if self._options.fail_on_data_loss:
            raise StreamChanged(
                f"{text}; start with a new checkpoint, or set failOnDataLoss=false to read the "
                "new one from its beginning"
            )
        log.warning("%s", text)


def make_stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """Return the streaming reader; `schema` has the columns that `options` name.

    Raises OptionError for options that make no sense in a query that does not end.
    """
    if options.end_seq or options.end_time_ns:
        raise OptionError(
            "options endSeq and endTime are for spark.read; a query ends with the trigger "
            "availableNow, or when it is stopped"
        )
    if options.last_per_subject:
        raise OptionError("option lastPerSubject is for spark.read")
    return StreamdStreamReader(options)


def offset_of(seq: int, facts: StreamFacts, *, until_ns: int = 0, life: int = 0) -> Offset:
    """The offset `seq` of the stream as it is now; `until_ns` and `life` are of the one before."""
    made: Offset = {"v": VERSION, "seq": seq, "epoch": facts.created}
    if seq <= facts.last_seq + 1:
        until_ns = max(until_ns, facts.until_ns)
    if until_ns:
        made["until"] = until_ns
    if life:
        made["life"] = life
    return made


def _life_of(offset: Offset) -> tuple[str, int]:
    return str(offset["epoch"]), int(offset.get("life", 0))


def seq_of(offset: Offset) -> int:
    """Return the next seq an offset tells. Raises WireError if a newer version wrote it."""
    if offset.get("v") != VERSION:
        raise WireError(
            f"the checkpoint's offset {offset} has version {offset.get('v')}, this reads {VERSION}"
        )
    return int(offset["seq"])


def grid(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """Return `first`..`last` cut so that each range ends at a multiple of `size`, or at `last`."""
    found = []
    while first <= last:
        high = min(last, -(-first // size) * size)
        found.append((first, high))
        first = high + 1
    return found
