"""Comparison of two streams: of one server, two clusters, files, or a nats-server.

    streamd-spark diff --stream ORDERS --left-servers nats://a:4222 --right-servers nats://b:4222
    streamd-spark diff --stream ORDERS --left-path ./backup --right-servers nats://a:4222
    streamd-spark diff --left-stream ORDERS --right-stream COPY --by msg-id

Counts and digests first, per 4096 seqs (or per bucket of keys); only where they differ the records
are compared. `--by seq` is for copies that keep the seqs (backups, mirrors); `--by msg-id` and
`--by subject` are for migrated streams whose seqs differ, and ignore ts unless --fields has it.
Both streams are compared as they were when the job began.

Exit status: 0 equal, 2 different, 3 could not run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.jobs.command import (
    EXIT_DIFFERENT,
    EXIT_OK,
    JobError,
    connect_arguments,
    connect_options,
    job_parser,
    run_job,
    session_from,
    spark_arguments,
)
from spark_jobs.jobs.origin import Facts, Origin
from spark_jobs.jobs.progress import follow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.jobs.compare import Comparison, Rule, Side

SIDES: Final = ("left", "right")
FIELDS: Final = ("subject", "ts", "headers", "payload")
READ: Final = ("subject", "seq", "ts_ns", "headers", "payload")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    return run_job(_parser(), _work, argv)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("diff", __doc__)
    parser.add_argument("--stream", metavar="NAME", help="name of the stream on both sides")
    parser.add_argument("--subjects", metavar="LIST", help="only these subjects, with wildcards")
    for side in SIDES:
        group = parser.add_argument_group(f"{side} stream")
        group.add_argument(
            f"--{side}-stream",
            metavar="NAME",
            help="name of the stream on this side, if the names differ",
        )
        group.add_argument(f"--{side}-path", metavar="DIR", help="read files, ask no server")
        group.add_argument(
            f"--{side}-replica",
            metavar="NODE",
            help="name of the node whose files are read, or of the server that is asked",
        )
        connect_arguments(parser, prefix=side, title=f"connection of the {side} stream")
    group = parser.add_argument_group("diff")
    group.add_argument(
        "--by", choices=("seq", "msg-id", "subject"), default="seq", help="(default: %(default)s)"
    )
    group.add_argument(
        "--fields", metavar="LIST", help=f"fields that must be equal, of {','.join(FIELDS)}"
    )
    group.add_argument(
        "--ignore-headers", metavar="LIST", default="", help="headers that may differ, by name"
    )
    group.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="count of records shown (default: %(default)s)",
    )
    group.add_argument("--output", choices=("table", "json", "parquet"), default="table")
    group.add_argument("--to", metavar="DIR", help="directory for --output parquet")
    spark_arguments(parser)
    return parser


def _work(args: argparse.Namespace) -> int:
    from spark_jobs.jobs.compare import compare

    if args.output == "parquet" and not args.to:
        raise JobError("--output parquet needs --to DIR")
    left, right = (_origin(args, side) for side in SIDES)
    if left.options == right.options:
        raise JobError(
            f"both sides are {left}; say --left-servers, --left-path or --left-stream for one"
        )
    rule = _rule(args)
    left_facts, right_facts = left.facts(), right.facts()
    spark = session_from(args, f"streamd diff {left.stream}")
    with follow(spark, "diff", is_quiet=args.quiet):
        found = compare(_side(spark, left, left_facts), _side(spark, right, right_facts), rule)
    try:
        _show(args, found, rule, (left, right), (left_facts, right_facts))
    finally:
        if found.differing is not None:
            found.differing.unpersist()
    return EXIT_OK if found.is_equal else EXIT_DIFFERENT


def _origin(args: argparse.Namespace, side: str) -> Origin:
    stream = getattr(args, f"{side}_stream") or args.stream
    if not stream:
        raise JobError(f"no stream given: --stream NAME, or --{side}-stream NAME")
    options = {"stream": stream}
    path = getattr(args, f"{side}_path")
    connection = connect_options(args, prefix=side)
    if path and connection:
        raise JobError(f"--{side}-path reads files: leave out --{side}-{next(iter(connection))}")
    options |= {"path": path} if path else connection
    replica = getattr(args, f"{side}_replica")
    if replica:
        options["readFrom"] = replica
    if args.subjects:
        options["subjects"] = args.subjects
    return Origin(options)


def _rule(args: argparse.Namespace) -> Rule:
    from spark_jobs.jobs.compare import SEQ, Rule

    usual = FIELDS if args.by == SEQ else ("subject", "headers", "payload")
    fields = tuple(filter(None, (args.fields or "").split(","))) or usual
    for name in fields:
        if name not in FIELDS:
            raise JobError(f"--fields {args.fields!r}: {name!r} is none of {', '.join(FIELDS)}")
    headers = tuple(filter(None, args.ignore_headers.split(",")))
    return Rule(args.by, tuple("ts_ns" if name == "ts" else name for name in fields), headers)


def _side(spark: SparkSession, origin: Origin, facts: Facts) -> Side:
    from spark_jobs.jobs.compare import Side

    def read(first: int, last: int) -> Any:
        return origin.rows(spark, first, last, *READ)

    return Side(read, facts.first_seq, facts.last_seq)


def _show(
    args: argparse.Namespace,
    found: Comparison,
    rule: Rule,
    origins: tuple[Origin, Origin],
    facts: tuple[Facts, Facts],
) -> None:
    on = ["seq"] if rule.by == "seq" else ["key", "occurrence"]
    samples: list[Any] = []
    if found.differing is not None and args.output != "parquet":
        samples = found.differing.orderBy(*on).limit(max(0, args.limit)).collect()
    if args.output == "json":
        _print_json(found, origins, facts, samples)
        return
    digests = (found.left_digest, found.right_digest)
    rows = (found.left_rows, found.right_rows)
    for side, origin, fact, count, digest in zip(SIDES, origins, facts, rows, digests, strict=True):
        print(
            f"{side:5} {origin}: {count:,} records, seqs {fact.first_seq}..{fact.last_seq}, "
            f"digest {digest}"
        )
    if found.is_equal:
        print(f"equal, by {rule.by}, in {', '.join(_plain(rule.fields))}")
        return
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.kinds.items()))
    fields = ", ".join(f"{name} {count:,}" for name, count in _by_plain_name(found.fields).items())
    print(
        f"DIFFERENT: {kinds or 'records there more than once'}"
        + (f" (in {fields})" if fields else "")
        + f"; {found.bucket_differ:,} of {found.bucket_count:,} ranges"
    )
    if args.output == "parquet":
        if found.differing is not None:
            found.differing.write.mode("overwrite").parquet(args.to)
        print(f"the records that differ are in {args.to}")
        return
    for row in samples:
        print("  " + _sample_line(row, rule))
    more = sum(found.kinds.values()) - len(samples)
    if more > 0:
        print(f"  and {more:,} more: --limit N, or --output parquet --to DIR")
    if set(found.fields) == {"ts_ns"} and set(found.kinds) == {"changed"}:
        print("only times differ: --fields subject,headers,payload leaves them out")


def _sample_line(row: Any, rule: Rule) -> str:
    where = f"seq {row.seq}" if rule.by == "seq" else f"{row.key} #{row.occurrence}"
    shown = []
    for side in SIDES:
        if row[f"{side}_seq"] is not None:
            seq = f"seq {row[f'{side}_seq']}, " if rule.by != "seq" else ""
            shown.append(f"{side} {seq}{row[f'{side}_subject']}, {row[f'{side}_size']} bytes")
    fields = f" in {', '.join(_plain(row.fields))}" if row.fields else ""
    return f"{where}: {row.kind}{fields}: {'; '.join(shown)}"


def _print_json(
    found: Comparison,
    origins: tuple[Origin, Origin],
    facts: tuple[Facts, Facts],
    samples: list[Any],
) -> None:
    sides = {
        side: {
            "stream": fact.name,
            "from": str(origin),
            "records": rows,
            "first_seq": fact.first_seq,
            "last_seq": fact.last_seq,
            "digest": digest,
        }
        for side, origin, fact, rows, digest in zip(
            SIDES,
            origins,
            facts,
            (found.left_rows, found.right_rows),
            (found.left_digest, found.right_digest),
            strict=True,
        )
    }
    document = {
        "equal": found.is_equal,
        **sides,
        "ranges": found.bucket_count,
        "ranges_different": found.bucket_differ,
        "kinds": found.kinds,
        "fields": _by_plain_name(found.fields),
        "records": [{**row.asDict(), "fields": _plain(row.fields)} for row in samples],
    }
    print(json.dumps(document, indent=2))


def _plain(fields: Sequence[str]) -> list[str]:
    """As the user names them."""
    return ["ts" if name == "ts_ns" else name for name in fields]


def _by_plain_name(counts: dict[str, int]) -> dict[str, int]:
    return {_plain([name])[0]: count for name, count in counts.items()}
