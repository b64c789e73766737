"""A stream to another stream, in the same cluster or another: each message once, under an id.

    streamd-spark replay --stream ORDERS --to-stream ARCHIVE --create --map 'orders.>=archive.>'
    streamd-spark replay --stream ORDERS --to-stream TEST --to-servers nats://other:4222 \\
        --where "size < 1000 AND subject LIKE 'orders.eu.%'" --job-id copy1
    streamd-spark replay --stream ORDERS --to-stream DEMO --speed 60     # an hour in a minute

Messages get the id `<stream>:<seq>` of where they come from. Their headers stay, but for those that
mean something to a server once only (Nats-Batch-*, Nats-Expected-*, Nats-Rollup, schedules); a TTL
stays with --keep-ttl. --map takes NATS subject mappings: `*` and a last `>` on the left, $1 or
{{wildcard(1)}} and `>` on the right; the first that matches counts, else the subject stays.

Ranges are written at the same time, so messages keep their order within a range only; --ordered
keeps it throughout. --speed sends messages at the distances of their times, divided by SPEED.

With --job-id a job that ended early goes on when it is started again with the same settings: up to
the end that it had at first. Exit status: 0, 1 some messages went to the dead letters, 3 failed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spark_jobs.client.wire import ApiError, Wire, with_retries
from spark_jobs.jobs.command import (
    JobError,
    connect_options,
    job_parser,
    run_job,
    session_from,
)
from spark_jobs.jobs.origin import Origin, origin_arguments, origin_from
from spark_jobs.jobs.stream_writing import (
    plan_of,
    prepared,
    sink_arguments,
    sink_options,
    write_stream,
)
from spark_jobs.sink import ledger
from streamd import subjects as matching

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_jobs.client.options import ConnectOptions

ROWS_PER_PARTITION: Final = 1_000_000
_ONCE_ONLY: Final = (
    r"(?i)^Nats-(Batch-.*|Expected-.*|Msg-Id|TTL|Rollup|Stream-Source|Schedule.*|Incr|"
    r"Required-Api-Level)$"
)
_WILDCARD: Final = re.compile(r"\$(\d+)|\{\{\s*wildcard\((\d+)\)\s*\}\}", re.IGNORECASE)
_WRONG_LAST: Final = 10071
_BOUNDS: Final = ("start_seq", "end_seq", "start_time", "end_time")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    return run_job(_parser(), _work, argv)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("replay", __doc__)
    origin_arguments(parser)
    group = parser.add_argument_group("what")
    group.add_argument("--start-seq", type=int, metavar="N")
    group.add_argument("--end-seq", type=int, metavar="N")
    group.add_argument(
        "--start-time", metavar="TIME", help="first time to read, such as 2026-01-31T00:00:00Z"
    )
    group.add_argument("--end-time", metavar="TIME")
    group.add_argument(
        "--where",
        metavar="SQL",
        help="only rows for which this is true (columns subject, payload, headers, seq, ts, ...)",
    )
    group.add_argument("--map", metavar="SRC=DST", action="append", default=[])
    group.add_argument("--keep-ttl", action="store_true", help="the target must allow TTLs")
    group.add_argument(
        "--ordered", action="store_true", help="keep the order: one range, read by one task"
    )
    group.add_argument(
        "--speed",
        type=float,
        metavar="X",
        help="publish this many times as fast as the original; implies --ordered",
    )
    parser.add_argument("--to-stream", required=True, metavar="NAME")
    sink_arguments(parser, prefix="to")
    return parser


def _work(args: argparse.Namespace) -> int:
    if args.speed is not None and args.speed <= 0:
        raise JobError(f"--speed is {args.speed:g}, must be above 0")
    mappings = [parse_mapping(text) for text in args.map]
    origin = origin_from(args)
    target = _target(args)
    source_stream, args.stream = args.stream, args.to_stream  # the sink's arguments mean that one
    if args.to_stream == source_stream and not connect_options(args, prefix="to"):
        raise JobError(f"--to-stream is {source_stream}, the stream that is read: name another")
    options = target | sink_options(args)
    connection = prepared(args, options, default_subjects=[f"{args.to_stream.lower()}.>"])
    spark = session_from(args, "streamd replay")
    source, plan = _source(args, origin, spark, connection)
    messages = messages_of(
        source,
        source_stream,
        mappings=mappings,
        where=args.where or "",
        keeps_ttl=args.keep_ttl,
        has_pace=bool(args.speed),
    )
    if args.speed:
        options |= {"paceColumn": "pace", "paceSpeed": repr(args.speed)}
    if args.job_id:
        settings = {"map": str(args.map), "where": args.where or "", "ttl": str(args.keep_ttl)}
        options["planId"] = plan_of(settings | plan, messages)
    label = f"replay {source_stream} to {args.to_stream}"
    return write_stream("replay", messages, options, args, label=label, connection=connection)


def _target(args: argparse.Namespace) -> dict[str, str]:
    """Return how to reach the stream that is written: as the one that is read, or as another user
    there, or elsewhere."""
    source, target = connect_options(args), connect_options(args, prefix="to")
    if not target:
        return source
    return {key: source[key] for key in ("servers",) if key in source} | target


def _source(
    args: argparse.Namespace, origin: Origin, spark: SparkSession, connection: ConnectOptions
) -> tuple[DataFrame, dict[str, str]]:
    """The messages to replay, and what must be the same when the job is started again."""
    facts = origin.facts()
    more: dict[str, str] = {}
    for name, value in (
        ("startSeq", args.start_seq),
        ("endSeq", args.end_seq),
        ("startTime", args.start_time),
        ("endTime", args.end_time),
    ):
        if value is not None:
            more[name] = str(value)
    if "startSeq" not in more and "startTime" not in more:
        more["startSeq"] = str(max(1, facts.first_seq))
    if "endSeq" not in more and "endTime" not in more:
        # A stream without messages begins behind its end.
        more["endSeq"] = str(max(facts.last_seq, int(more.get("startSeq", 1))))
    is_one = args.ordered or bool(args.speed)
    partitions = 1 if is_one else max(2, -(-facts.messages // ROWS_PER_PARTITION))
    plan = more | {"partitions": str(partitions), "created": facts.created}
    if args.job_id and args.delivery == "exactly-once":
        plan = with_retries(connection, lambda wire: _begun(wire, args, plan))
        if plan["created"] != facts.created:
            raise JobError(
                f"stream {origin.stream} was created anew since job {args.job_id} began "
                f"({plan['created']}, now {facts.created}): give another --job-id, or --forget"
            )
    for name in ("startSeq", "endSeq", "startTime", "endTime"):
        if name in plan:
            more[name] = plan[name]
    if not origin.is_offline:
        # Ranges that follow from the bounds alone: a repetition has the same.
        more |= {"minPartitions": plan["partitions"], "maxRecordsPerPartition": str(10**12)}
        more["maxBytesPerPartition"] = str(10**15)
    found = origin.with_options(**more).read(spark)
    return (found.coalesce(1) if is_one else found), plan


def _begun(wire: Wire, args: argparse.Namespace, plan: dict[str, str]) -> dict[str, str]:
    """The plan that this job was begun with; `plan` if it begins now."""
    facts = ledger.StreamFacts.ask(wire, args.to_stream)
    head = ledger.read_head(wire, args.to_stream, args.job_id)
    if head is None:
        try:
            ledger.write_head(wire, facts, args.job_id, {"plan": plan}, expected=0)
            return plan
        except ApiError as err:
            if err.err_code != _WRONG_LAST:
                raise
            head = ledger.read_head(wire, args.to_stream, args.job_id)
    found = (head or {}).get("plan")
    if not isinstance(found, dict):
        raise JobError(
            f"job {args.job_id} in {args.to_stream} is no replay job: use another --job-id"
        )
    return {str(key): str(value) for key, value in found.items()}


def messages_of(
    source: DataFrame,
    stream: str,
    *,
    mappings: Sequence[tuple[str, str]] = (),
    where: str = "",
    keeps_ttl: bool = False,
    has_pace: bool = False,
) -> DataFrame:
    """Rows of the data source as the sink takes them. `mappings` are those of `parse_mapping`."""
    from pyspark.sql import functions as f

    if where:
        source = source.where(where)
    subject: Column = f.col("subject")
    for pattern, replacement in reversed(mappings):
        mapped = f.regexp_replace(f.col("subject"), pattern, replacement)
        subject = f.when(f.col("subject").rlike(pattern), mapped).otherwise(subject)
    columns: list[Column] = [
        subject.alias("subject"),
        f.col("payload"),
        f.map_filter("headers", lambda key, _: ~key.rlike(_ONCE_ONLY)).alias("headers"),
        f.concat(f.lit(f"{stream}:"), f.col("seq").cast("string")).alias("msg_id"),
    ]
    if keeps_ttl:
        columns.append(f.try_element_at(f.col("headers"), f.lit("Nats-TTL"))[0].alias("ttl"))
    if has_pace:
        columns.append(f.col("ts_ns").alias("pace"))
    return source.select(*columns)


def parse_mapping(text: str) -> tuple[str, str]:
    """`SRC=DST` as a regular expression and its replacement, as Java has them. Raises JobError."""
    source, equals, target = (part.strip() for part in text.partition("="))
    if not equals or not matching.is_valid(source.encode()) or not target:
        raise JobError(f"--map {text!r} must be SRC=DST, such as 'orders.>=archive.>'")
    if source.endswith(">") != target.endswith(">"):
        raise JobError(f"--map {text!r}: both sides must end in >, or neither")
    tokens, groups = [], 0
    for token in source.split("."):
        groups += token in ("*", ">")
        literal = "".join(f"\\{char}" if not char.isalnum() else char for char in token)
        tokens.append({"*": "([^.]+)", ">": "(.+)"}.get(token, literal))
    stars = groups - source.endswith(">")

    def group(found: re.Match[str]) -> str:
        number = int(found[1] or found[2])
        if not 1 <= number <= stars:
            raise JobError(f"--map {text!r}: there is no wildcard {number} on the left")
        return f"\x00{number}\x00"

    made = []
    for at, token in enumerate(target.split(".")):
        if token == ">" and at == target.count("."):
            made.append(f"\x00{groups}\x00")
            continue
        if "*" in token or ">" in token or not token:
            raise JobError(f"--map {text!r}: the right side takes $1 or {{{{wildcard(1)}}}}, no *")
        made.append(_WILDCARD.sub(group, token))
    whole = ".".join(made).replace("\\", "\\\\").replace("$", "\\$")
    return "^" + r"\.".join(tokens) + "$", re.sub("\x00(\\d+)\x00", r"$\1", whole)
