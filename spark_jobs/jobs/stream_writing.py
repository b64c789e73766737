"""Parts of the jobs that write a stream: arguments, the stream itself, the write, its numbers."""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.client.options import ConnectOptions, OptionError
from spark_jobs.client.wire import ApiError, Wire, WireError, with_retries
from spark_jobs.jobs.command import (
    EXIT_OK,
    EXIT_WARNINGS,
    JobError,
    connect_arguments,
    spark_arguments,
)
from spark_jobs.jobs.progress import Progress
from spark_jobs.sink import ledger
from spark_jobs.sink.ledger import StreamFacts
from spark_jobs.sink.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from spark_jobs.sink.summary import Listener

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POLL_S: Final = 1.0
_NO_STREAM: Final = 10059
_NS: Final = 1_000_000_000
_UNKNOWN: Final[dict[str, Any]] = dict.fromkeys(
    ("rows", "resumed", "sent", "duplicates", "payload_bytes"), -1
) | {"rejected": 0, "samples": []}


def sink_arguments(parser: argparse.ArgumentParser, *, prefix: str = "") -> None:
    """Add what all jobs that write a stream take after their own arguments: how rows are written,
    what may be done to the stream before, its servers (`prefix` as of `connect_arguments`), and
    Spark's."""
    _writing_arguments(parser)
    _prepare_arguments(parser)
    if prefix:
        title = (
            "connection of the stream that is written (default: all as for the one that is read)"
        )
        connect_arguments(parser, prefix=prefix, title=title)
    else:
        connect_arguments(parser)
    spark_arguments(parser)


def _writing_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("writing")
    group.add_argument("--delivery", choices=(EXACTLY_ONCE, AT_LEAST_ONCE), default=EXACTLY_ONCE)
    group.add_argument(
        "--job-id",
        metavar="ID",
        help="id by which a run is resumed; letters, digits, _ = -, up to 64",
    )
    group.add_argument(
        "--forget",
        action="store_true",
        help="drop the progress of --job-id, and begin anew; ids of rows that it wrote are still "
        "refused for the stream's duplicate window (2 minutes by default)",
    )
    group.add_argument("--rate", type=float, metavar="N", help="at most this many rows per second")
    group.add_argument(
        "--dlq",
        metavar="SUBJECT",
        help="subject for refused rows; or stream:NAME (ingest: malformed records too, also to "
        "dir:PATH). Without: an error",
    )
    group.add_argument(
        "--no-row-ids",
        action="store_true",
        help="rows without an id of their own get none: fewer bytes per message",
    )


def _prepare_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the stream that is written")
    group.add_argument(
        "--create", action="store_true", help="create the stream if it does not exist"
    )
    group.add_argument(
        "--prepare",
        action="store_true",
        help="let the stream's config be changed for exactly-once writes",
    )
    group.add_argument("--new-subjects", metavar="A,B", help="of a new stream")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="of a new stream")
    group.add_argument("--storage", choices=("file", "memory"), default="file")
    group.add_argument("--max-age", type=float, default=0, metavar="SECONDS")
    group.add_argument("--max-bytes", type=int, default=-1, metavar="N")


def sink_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the arguments of `sink_arguments` about the write itself, as options of the sink."""
    found = {"stream": args.stream, "delivery": args.delivery}
    if args.job_id:
        found["jobId"] = args.job_id
    elif args.forget:
        raise JobError("--forget needs --job-id: the job whose progress is dropped")
    if args.dlq:
        found["dlq"] = args.dlq
    if args.no_row_ids:
        found["rowIds"] = "false"
    if args.rate is not None:
        if args.rate <= 0:
            raise JobError(f"--rate is {args.rate:g}, must be above 0")
        found["rate"] = repr(args.rate)
    if args.create or args.prepare:
        found["prepareStream"] = "true"
    return found


def stream_config(args: argparse.Namespace, default_subjects: Sequence[str]) -> dict[str, Any]:
    """The config of a stream made for `args`."""
    subjects = [each.strip() for each in (args.new_subjects or "").split(",") if each.strip()]
    config: dict[str, Any] = {
        "name": args.stream,
        "subjects": subjects or list(default_subjects),
        "num_replicas": args.replicas,
        "storage": args.storage,
        "max_age": int(args.max_age * _NS),
        "max_bytes": args.max_bytes,
        "allow_direct": True,
    }
    if args.delivery == EXACTLY_ONCE:
        config["subjects"] = [*config["subjects"], ledger.pattern_of(args.stream)]
        config |= {"allow_atomic": True, "allow_msg_ttl": True}
    return config


def prepared(
    args: argparse.Namespace, options: Mapping[str, str], *, default_subjects: Sequence[str]
) -> ConnectOptions:
    """Create the stream if asked to, check that it can be written, and return the connection."""
    parsed = SinkOptions.parse(options)

    def look(wire: Wire) -> None:
        try:
            wire.api(f"STREAM.INFO.{args.stream}")
        except ApiError as err:
            if err.err_code != _NO_STREAM:
                raise
            if not args.create:
                raise JobError(
                    f"there is no stream {args.stream}: create it first, or give --create"
                ) from None
            wire.api(f"STREAM.CREATE.{args.stream}", stream_config(args, default_subjects))
        try:
            facts = ledger.ready_stream(
                wire, args.stream, with_ledger=parsed.is_exact, may_change=parsed.may_prepare
            )
        except OptionError as err:
            text = str(err).replace('.option("prepareStream", "true")', "--prepare")
            raise JobError(
                text.replace('.option("delivery", "at-least-once")', "--delivery at-least-once")
            ) from None
        if args.forget:
            ledger.forget(wire, facts, args.job_id)

    with_retries(parsed.connection, look)
    return parsed.connection


def plan_of(settings: Mapping[str, str], messages: DataFrame) -> str:
    """A fingerprint of input files, partitions and settings: a job resumes with the same only."""
    found: dict[str, Any] = dict(settings)
    files = []
    for name in sorted(messages.inputFiles()):
        path = Path(name.removeprefix("file://").removeprefix("file:"))
        size = [path.stat().st_size, path.stat().st_mtime_ns] if path.exists() else []
        files.append([name, *size])
    found["files"] = files
    if hasattr(messages, "rdd"):
        found["partitions"] = _partition_count(messages)
    text = json.dumps(found, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _partition_count(messages: DataFrame) -> int:
    """Count the tasks of a write of `messages`; 0 if the session can't tell (Spark Connect)."""
    if "connect" in type(messages).__module__:
        return 0
    return int(messages.rdd.getNumPartitions())


def write_stream(
    job: str,
    messages: DataFrame,
    options: Mapping[str, str],
    args: argparse.Namespace,
    *,
    label: str,
    connection: ConnectOptions,
) -> int:
    """Write `messages` to stream `args.stream`, print what was done, and return the exit status
    of `job`."""
    summary = _run_write(messages, options, label=label, is_quiet=args.quiet, connection=connection)
    _finish(job, args.stream, summary)
    return EXIT_WARNINGS if summary["rejected"] else EXIT_OK


def _run_write(
    messages: DataFrame,
    options: Mapping[str, str],
    *,
    label: str,
    is_quiet: bool,
    connection: ConnectOptions,
) -> dict[str, Any]:
    """Write `messages`, with the progress on stderr; return the summary of all tasks.

    Counts are -1 if the driver of a Spark Connect server could not tell them.
    """
    given = dict(options)
    is_remote = "connect" in type(messages).__module__
    if "rate" in given:
        tasks = max(1, _partition_count(messages))
        at_once = 1 if is_remote else messages.sparkSession.sparkContext.defaultParallelism
        given["rate"] = repr(float(given["rate"]) / min(tasks, at_once))
    with (
        _summary(connection, is_remote=is_remote) as (option, summary),
        _watched(connection, given["stream"], label, is_quiet=is_quiet) as progress,
    ):
        writer = messages.write.format("streamd").mode("append")
        writer.options(**given, **option).save()
        return _UNKNOWN | summary() | {"seconds": progress.elapsed_s}


@contextmanager
def _summary(
    connection: ConnectOptions, *, is_remote: bool
) -> Iterator[tuple[dict[str, str], Callable[[], dict[str, Any]]]]:
    """The option that has the driver tell what a write did, and what returns that afterwards."""
    if is_remote:
        with Listener(connection) as listener:
            yield {"summarySubject": listener.subject}, listener.summary
        return
    with tempfile.TemporaryDirectory(prefix="streamd-job-") as scratch:
        path = Path(scratch) / "summary.json"
        yield {"summaryFile": str(path)}, lambda: json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def _watched(
    connection: ConnectOptions, stream: str, label: str, *, is_quiet: bool
) -> Iterator[Progress]:
    """Show how many messages the stream has got since."""

    def last_seq() -> int:
        found = with_retries(connection, lambda wire: wire.api(f"STREAM.INFO.{stream}"), tries=1)
        return int(found["state"]["last_seq"])

    before = 0 if is_quiet else last_seq()
    is_over = threading.Event()

    def watch(progress: Progress) -> None:
        while not is_over.wait(POLL_S):
            try:
                progress.update(last_seq() - before)
            except WireError:
                continue  # it is being elected, or restarted: the write itself waits for it

    with Progress(None, label, unit="messages", is_quiet=is_quiet) as progress:
        watcher = threading.Thread(target=watch, args=(progress,), name="progress", daemon=True)
        if not is_quiet:
            watcher.start()
        try:
            yield progress
        finally:
            is_over.set()
            if not is_quiet:
                watcher.join()


def _finish(job: str, stream: str, summary: Mapping[str, Any]) -> None:
    """Print what was done, one line and one per sample of a refused row."""
    if summary["rows"] < 0:
        print(
            f"{job}: written to {stream} in {summary['seconds']:.1f} s; Spark's driver did not "
            "tell how many rows, or how many were refused"
        )
        return
    rate = (summary["rows"] - summary["resumed"]) / max(summary["seconds"], 1e-9)
    print(
        f"{job}: {summary['rows']:,} rows to {stream}: {summary['sent']:,} sent, "
        f"{summary['resumed']:,} there before, {summary['duplicates']:,} duplicates, "
        f"{summary['rejected']:,} refused; {summary['seconds']:.1f} s, {rate:,.0f} rows/s"
    )
    for text in summary["samples"]:
        print(f"  refused: {text}")


def refused_rows(
    args: argparse.Namespace,
    options: Mapping[str, str],
    sample: Sequence[Any],
    *,
    default_subjects: str,
) -> tuple[str, dict[int, str]]:
    """Return what the sink would say to these rows: (a note on the stream, text by place)."""
    import pyarrow as pa

    from spark_jobs.sink import rows as sink_rows
    from spark_jobs.sink.rules import Rules
    from spark_jobs.sink.sink_options import Layout

    parsed = SinkOptions.parse(options)
    try:
        with Wire.connect(parsed.connection) as wire:
            facts = StreamFacts.ask(wire, args.stream)
            faults = [*facts.faults()]
            if parsed.is_exact:
                faults += facts.ledger_faults()
                if facts.ledger_changes() and not parsed.may_prepare:
                    faults.append(f"it needs {json.dumps(facts.ledger_changes())}: give --prepare")
            note = f"stream {args.stream}: " + ("; ".join(faults) or "can be written")
    except (WireError, OptionError) as err:
        config = stream_config(args, [default_subjects])
        subjects = tuple(config["subjects"])
        facts = StreamFacts(args.stream, subjects, 1 << 20, allows_ttl="allow_msg_ttl" in config)
        note = f"{err}; checked against subjects {', '.join(subjects)}"
    if not sample:
        return note, {}
    names = list(sample[0].asDict())
    types = {"payload": pa.binary(), "headers": pa.map_(pa.string(), pa.string())}
    columns = []
    for name in names:
        values = [row[name] for row in sample]
        if name == "payload":
            values = [each.encode() if isinstance(each, str) else each for each in values]
        elif name == "headers":
            values = [None if each is None else list(each.items()) for each in values]
        columns.append(pa.array(values, types.get(name, pa.string())))
    layout = Layout(
        **{("payload" if name == "data" else name): at for at, name in enumerate(names)}
    )
    rows = sink_rows.rows_of(pa.record_batch(columns, names=names), layout, first=0)
    found = Rules(facts, is_exact=parsed.is_exact).rejections(rows, sink_rows.extra_lines(rows))
    return note, {at: str(each) for at, each in found.items()}
