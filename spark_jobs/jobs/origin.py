"""Source of a job's rows: one stream, of a server or of files, with facts about it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from spark_jobs.jobs.command import JobError, connect_arguments, connect_options
from streamd.offline.server_text import rfc3339

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.client.wire import Wire
    from streamd.offline.stream_view import StreamView

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a stream at one moment. `created`: RFC 3339, differs between a stream and its
    recreation."""

    name: str
    created: str
    first_seq: int
    last_seq: int
    messages: int
    bytes: int
    first_ns: int = 0  # as of StreamFacts; 0: not known, or empty
    until_ns: int = 0
    log_damage: str = ""  # of files, if that is tolerated: there may be more messages


@dataclass(frozen=True, slots=True)
class Origin:
    """A stream with the options by which the data source reads it."""

    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        return self.options["stream"]

    @property
    def is_offline(self) -> bool:
        return "path" in self.options

    def __str__(self) -> str:
        where = self.options.get("path") or self.options.get("servers", "nats://127.0.0.1:4222")
        return f"{self.stream} at {_without_password(where)}"

    def with_options(self, **more: str) -> Origin:
        return Origin({**self.options, **more})

    def between(self, first_seq: int, last_seq: int) -> Origin:
        """The same with bounds, both inclusive; bounds by time are left out."""
        kept = {name: text for name, text in self.options.items() if name not in _BOUNDS}
        return Origin({**kept, "startSeq": str(max(1, first_seq)), "endSeq": str(last_seq)})

    def read(self, spark: SparkSession, *columns: str) -> DataFrame:
        """Its rows; with only these columns where some are named."""
        options = dict(self.options)
        if columns:
            options["columns"] = ",".join(columns)
        return spark.read.format("streamd").options(**options).load()

    def rows(self, spark: SparkSession, first_seq: int, last_seq: int, *columns: str) -> DataFrame:
        """The rows of a range of seqs, both inclusive; none if it ends before it begins."""
        if last_seq < max(1, first_seq):
            from spark_jobs.schema import COLUMNS, spark_schema

            return spark.createDataFrame([], spark_schema(columns or COLUMNS))
        return self.between(first_seq, last_seq).read(spark, *columns)

    def facts(self) -> Facts:
        """Ask now. Raises JobError when the stream is not there."""
        return self._offline_facts() if self.is_offline else self._online_facts()

    def last_seq_until(self, time: str) -> int:
        """The seq of the last message that is not later than `time`; 0 if there is none."""
        from spark_jobs.client.options import parse_time

        time_ns = parse_time("--as-of", time) + 1
        if self.is_offline:
            with self._view() as view:
                after = view.machine.index.locations.seq_at_time(time_ns)
                return (after or view.last_seq + 1) - 1
        from spark_jobs.client.stream_facts import seq_at_time, stream_facts

        def ask(wire: Wire) -> int:
            after = seq_at_time(wire, self.stream, time_ns)
            return after - 1 if after else stream_facts(wire, self.stream).last_seq

        return self._ask(ask)

    def live_seqs(self, first_seq: int, last_seq: int) -> NDArray[np.int64]:
        """The seqs in first_seq..last_seq of which files (option path) have to hold a message,
        whole or not, ascending."""
        import numpy as np

        with self._view() as view:
            return np.fromiter(view.machine.index.live.seqs(first_seq, last_seq), np.int64)

    def _view(self) -> StreamView:
        """The replica that the data source reads. Raises JobError."""
        from spark_jobs.source.offline import open_best
        from spark_jobs.source.read_options import ReadOptions
        from streamd.errors import StreamdError

        try:
            return open_best(ReadOptions.parse(self.options))
        except (StreamdError, OSError) as err:
            raise JobError(f"{self}: {err}") from err

    def _online_facts(self) -> Facts:
        from spark_jobs.client.stream_facts import stream_facts

        found = self._ask(lambda wire: stream_facts(wire, self.stream))
        return Facts(
            name=self.stream,
            created=rfc3339.format_ns(rfc3339.parse_ns(found.created)),
            first_seq=found.first_seq,
            last_seq=found.last_seq,
            messages=found.messages,
            bytes=found.size,
            first_ns=found.first_ns,
            until_ns=found.until_ns,
        )

    def _ask(self, work: Callable[[Wire], T]) -> T:
        """Ask a server. Raises JobError."""
        from spark_jobs.client.options import ConnectOptions
        from spark_jobs.client.wire import ApiError, WireError, with_retries

        connection = ConnectOptions.parse(self.options)
        try:
            return with_retries(connection, work)
        except ApiError as err:
            raise JobError(f"stream {self.stream!r}: {err.description} ({self})") from err
        except (WireError, OSError) as err:
            raise JobError(
                f"no answer from {', '.join(connection.servers)}: {err}; is a server running "
                "there? --servers says which, --path DIR reads files without one"
            ) from err

    def _offline_facts(self) -> Facts:
        with self._view() as view:
            return Facts(
                name=self.stream,
                created=rfc3339.format_ns(view.created_ns),
                first_seq=view.first_seq,
                last_seq=view.last_seq,
                messages=view.messages,
                bytes=view.bytes,
                log_damage=view.log_damage,
            )


_BOUNDS = frozenset({"startSeq", "endSeq", "startTime", "endTime", "startingPosition"})


def origin_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--stream`, `--path`, `--replica`, `--subjects` and the connection."""
    group = parser.add_argument_group("stream")
    group.add_argument("--stream", required=True, metavar="NAME")
    group.add_argument("--path", metavar="DIR", help="read files: a data directory or backup")
    group.add_argument(
        "--replica",
        metavar="NODE",
        help="name of the node whose files are read, or of the server that is asked",
    )
    group.add_argument(
        "--subjects", metavar="LIST", help="only these subjects: comma separated, with wildcards"
    )
    connect_arguments(parser)


def origin_from(args: argparse.Namespace) -> Origin:
    """The origin that `origin_arguments` describe."""
    options = {"stream": args.stream}
    if args.path:
        options["path"] = args.path
    else:
        options |= connect_options(args)
    if args.replica:
        options["readFrom"] = args.replica
    if args.subjects:
        options["subjects"] = args.subjects
    return Origin(options)


def _without_password(url: str) -> str:
    """`url`, comma-separated ones too, with the passwords in it hidden."""
    shown = []
    for part in url.split(","):
        scheme, separator, rest = part.rpartition("://")
        user, at, host = rest.rpartition("@")
        shown.append(f"{scheme}{separator}{user.partition(':')[0]}{at}{host}")
    return ",".join(shown)
