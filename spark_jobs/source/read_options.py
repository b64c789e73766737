"""Options of a read: `ReadOptions`, every one checked, plain and picklable."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_jobs import schema as columns_of_streams
from spark_jobs.client.options import (
    CONNECT_NAMES,
    SEQ_MAX,
    ConnectOptions,
    OptionError,
    check_names,
    lowered,
    parse_bool,
    parse_int,
    parse_size,
    parse_time,
)
from streamd import subjects

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EARLIEST, LATEST = "earliest", "latest"
LEADER, ANY = "leader", "any"
BATCH_ROWS_MAX = 1_000_000
PARTITION_BYTES = 128 * 1024 * 1024  # as Spark's own spark.sql.files.maxPartitionBytes
READ_NAMES = (
    "stream",
    "path",
    "paths",
    "subjects",
    "subject",
    "startSeq",
    "startTime",
    "startingPosition",
    "endSeq",
    "endTime",
    "lastPerSubject",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "maxMsgsPerTrigger",
    "maxBytesPerTrigger",
    "minMsgsPerTrigger",
    "failOnDataLoss",
    "columns",
    "includeHeaders",
    "batchRows",
    "readFrom",
    "pushdown",
    "ackConsumer",
    "withDebug",
    "verify",
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A read of one stream. 0, "" and () mean not given; times are ns, bounds inclusive."""

    stream: str
    connection: ConnectOptions = field(default_factory=ConnectOptions)
    paths: tuple[str, ...] = ()  # data directories: read files instead of asking servers
    subjects: tuple[str, ...] = ()  # wildcards; (): all
    start_seq: int = 0
    start_time_ns: int = 0
    starting_position: str = EARLIEST
    end_seq: int = 0
    end_time_ns: int = 0
    last_per_subject: bool = False
    min_partitions: int = 0
    max_records_per_partition: int = 1_000_000
    max_bytes_per_partition: int = PARTITION_BYTES
    max_msgs_per_trigger: int = 0
    max_bytes_per_trigger: int = 0
    min_msgs_per_trigger: int = 0
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = columns_of_streams.COLUMNS  # what the read yields, in this order
    batch_rows: int = 10_000
    read_from: str = ""  # online: leader, any or a server's name; offline: a replica's name
    pushdown: bool = False
    ack_consumer: str = ""
    verify: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType | None = None) -> ReadOptions:
        """Check all of `options`. `schema` is one that the user gave: it names the columns.

        Raises OptionError naming the option and the rule.
        """
        check_names(options, (*READ_NAMES, *CONNECT_NAMES))
        given = lowered(options)
        stream = given.get("stream", "").strip()
        if not stream:
            raise OptionError('option stream is missing: .option("stream", "NAME")')

        def number(name: str, default: int = 0, low: int = 1, high: int = SEQ_MAX) -> int:
            text = given.get(name.lower(), "")
            return parse_int(name, text, low=low, high=high) if text else default

        def size(name: str, default: int = 0) -> int:
            text = given.get(name.lower(), "")
            return parse_size(name, text) if text else default

        def flag(name: str, default: bool) -> bool:
            text = given.get(name.lower(), "")
            return parse_bool(name, text) if text else default

        def moment(name: str) -> int:
            text = given.get(name.lower(), "")
            return parse_time(name, text) if text else 0

        start_seq, start_time = number("startSeq"), moment("startTime")
        position = given.get("startingposition", "").lower()
        if position not in ("", EARLIEST, LATEST):
            raise OptionError(
                f"option startingPosition is {position!r}, must be {EARLIEST} or {LATEST}"
            )
        if sum(map(bool, (start_seq, start_time, position))) > 1:
            raise OptionError("give one of startSeq, startTime and startingPosition, not several")
        end_seq, end_time = number("endSeq"), moment("endTime")
        if end_seq and end_time:
            raise OptionError("give one of endSeq and endTime, not both")
        if end_seq and start_seq > end_seq:
            raise OptionError(f"startSeq {start_seq} is after endSeq {end_seq}")
        if end_time and start_time > end_time:
            raise OptionError(f"startTime {given['starttime']} is after endTime {given['endtime']}")
        return cls(
            stream=stream,
            connection=ConnectOptions.parse(given),
            paths=_paths(given),
            subjects=_subjects(given),
            start_seq=start_seq,
            start_time_ns=start_time,
            starting_position=position or EARLIEST,
            end_seq=end_seq,
            end_time_ns=end_time,
            last_per_subject=flag("lastPerSubject", False),
            min_partitions=number("minPartitions", high=1_000_000),
            max_records_per_partition=number("maxRecordsPerPartition", 1_000_000),
            max_bytes_per_partition=size("maxBytesPerPartition", PARTITION_BYTES),
            max_msgs_per_trigger=number("maxMsgsPerTrigger"),
            max_bytes_per_trigger=size("maxBytesPerTrigger"),
            min_msgs_per_trigger=number("minMsgsPerTrigger"),
            fail_on_data_loss=flag("failOnDataLoss", True),
            columns=_columns(
                given,
                columns_of_streams.columns_of_schema(schema),
                with_headers=flag("includeHeaders", True),
                with_debug=flag("withDebug", False),
            ),
            batch_rows=number("batchRows", 10_000, high=BATCH_ROWS_MAX),
            read_from=given.get("readfrom", "").strip(),
            pushdown=flag("pushdown", False),
            ack_consumer=given.get("ackconsumer", "").strip(),
            verify=flag("verify", True),
        )

    @property
    def is_offline(self) -> bool:
        return bool(self.paths)

    def check_batch(self) -> None:
        """Raise OptionError for an option that a batch read would ignore."""
        for name, value in (
            ("maxMsgsPerTrigger", self.max_msgs_per_trigger),
            ("maxBytesPerTrigger", self.max_bytes_per_trigger),
            ("minMsgsPerTrigger", self.min_msgs_per_trigger),
            ("ackConsumer", self.ack_consumer),
        ):
            if value:
                raise OptionError(
                    f"option {name} is for spark.readStream: a batch read has no triggers and "
                    "reads all at once; startSeq and endSeq bound it"
                )

    @property
    def with_debug(self) -> bool:
        return any(name in columns_of_streams.DEBUG_COLUMNS for name in self.columns)


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """`path`, comma-separated, and `paths`, the JSON list that `load([...])` makes."""
    found = [part.strip() for part in given.get("path", "").split(",") if part.strip()]
    if given.get("paths"):
        try:
            more = json.loads(given["paths"])
        except ValueError:
            raise OptionError(f"option paths is {given['paths']!r}, must be a JSON list") from None
        if not isinstance(more, list):
            raise OptionError(f"option paths is {given['paths']!r}, must be a JSON list")
        found += [str(path) for path in more]
    plain: list[str] = []
    for path in found:
        scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*):", path)
        if scheme and scheme[1].lower() != "file":
            raise OptionError(
                f"option path: {path!r} is not a local directory; every executor must see it "
                "under the same local path"
            )
        if scheme:
            path = re.sub(r"^file:(//[^/]*)?", "", path)
        plain.append(path)
    return tuple(plain)


def _subjects(given: Mapping[str, str]) -> tuple[str, ...]:
    text = ",".join(filter(None, (given.get("subjects", ""), given.get("subject", ""))))
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for subject in found:
        if not subjects.is_valid(subject.encode()):
            raise OptionError(f"option subjects: {subject!r} is not a valid subject or wildcard")
    return found


def _columns(
    given: Mapping[str, str], named: tuple[str, ...], *, with_headers: bool, with_debug: bool
) -> tuple[str, ...]:
    """The columns to read: the user's schema, else option `columns`, else the usual ones."""
    if named:
        return named
    known = (*columns_of_streams.COLUMNS, *columns_of_streams.DEBUG_COLUMNS)
    text = given.get("columns", "")
    if text.strip():
        wanted = tuple(part.strip() for part in text.split(",") if part.strip())
        for name in wanted:
            if name not in known:
                raise OptionError(
                    f"option columns: a stream has no column {name!r}; its columns are "
                    + ", ".join(known)
                )
        if len(set(wanted)) < len(wanted):
            raise OptionError(f"option columns: {text!r} names a column twice")
    else:
        wanted = columns_of_streams.COLUMNS
    if not with_headers:
        wanted = tuple(name for name in wanted if name != "headers")
    if with_debug:
        wanted += tuple(name for name in columns_of_streams.DEBUG_COLUMNS if name not in wanted)
    return wanted
