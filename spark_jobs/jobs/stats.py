"""Content of a stream in figures: rates, sizes, top subjects, skew, and gaps between times.

    streamd-spark stats --stream ORDERS
    streamd-spark stats --path ./data --stream ORDERS --output json
    streamd-spark stats --stream ORDERS --output parquet --to ./orders-stats

One pass over the stream: every task counts in numpy what it reads, Spark adds the counts up.
Minima, maxima and counts are exact; a percentile is right to 5% (one of 16 steps per power of 2).
A time that is before that of the preceding seq counts as a gap of 0 and under "backwards".

Exit status: 0, or 3 could not run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.jobs.command import (
    EXIT_OK,
    JobError,
    job_parser,
    run_job,
    session_from,
    spark_arguments,
)
from spark_jobs.jobs.origin import Origin, origin_arguments, origin_from
from spark_jobs.jobs.progress import follow
from spark_jobs.worker import settle
from streamd.offline.server_text import rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS: Final = 16  # of a histogram, per power of two
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
GAPS_SHOWN: Final = 5
PARTS_MAX: Final = 200
MESSAGES_PER_PART: Final = 500_000  # of what is counted, in one part of the counts
NS: Final = 1_000_000_000
COUNTS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.string()),
        ("number", pa.int64()),
        ("count", pa.int64()),
        ("bytes", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)
COUNTS_DDL: Final = (
    "kind string, key string, number bigint, count bigint, bytes bigint, low bigint, high bigint"
)
SUBJECT, SIZE, GAP, SECOND, EDGE, LONG_GAP = "subject", "size", "gap", "second", "edge", "long gap"


@dataclass(slots=True)
class Spread:
    """Distribution of a value. `percentiles`: "p50" and so on."""

    min: int = 0
    max: int = 0
    mean: float = 0.0
    percentiles: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Stats:
    """The outcome; times RFC 3339, sizes bytes, gaps seconds."""

    stream: str
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    missing_seqs: int = 0  # deleted, expired or filtered away between the first and the last
    first_time: str = ""
    last_time: str = ""
    rate_mean: float = 0.0  # messages/s between the first and the last time
    rate_peak: int = 0  # messages of the busiest second
    rate_peak_at: str = ""
    bytes_peak: int = 0  # of the second with most bytes
    seconds_active: int = 0
    size: Spread = field(default_factory=Spread)
    gap_ns: Spread = field(default_factory=Spread)
    backwards: int = 0
    long_gaps: list[dict[str, Any]] = field(default_factory=list)
    subjects: int = 0
    top_subjects: list[dict[str, Any]] = field(default_factory=list)
    skew: float = 0.0  # messages of the largest subject / mean over subjects
    top_share: float = 0.0  # share of the shown subjects in all messages


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    return run_job(_parser(), _work, argv)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("stats", __doc__)
    origin_arguments(parser)
    group = parser.add_argument_group("stats")
    group.add_argument(
        "--start-time", metavar="TIME", help="first time to read, such as 2026-01-31T00:00:00Z"
    )
    group.add_argument("--end-time", metavar="TIME")
    group.add_argument(
        "--top",
        type=int,
        default=10,
        metavar="N",
        help="count of subjects shown (default: %(default)s)",
    )
    group.add_argument("--output", choices=("table", "json", "parquet"), default="table")
    group.add_argument("--to", metavar="DIR", help="directory for --output parquet")
    spark_arguments(parser)
    return parser


def _work(args: argparse.Namespace) -> int:
    if args.output == "parquet" and not args.to:
        raise JobError("--output parquet needs --to DIR")
    if args.top < 1:
        raise JobError(f"--top {args.top} must be at least 1")
    origin = origin_from(args)
    if args.start_time:
        origin = origin.with_options(startTime=args.start_time)
    if args.end_time:
        origin = origin.with_options(endTime=args.end_time)
    facts = origin.facts()  # a missing stream or server is found before Spark starts
    spark = session_from(args, f"streamd stats {args.stream}")
    with follow(spark, f"stats {args.stream}", is_quiet=args.quiet):
        counts = count(spark, origin, messages=facts.messages).cache()
        found = summarize(counts, args.stream, top=args.top)
    if args.output == "parquet":
        counts.where(f"kind in ('{SUBJECT}', '{SECOND}')").write.mode("overwrite").partitionBy(
            "kind"
        ).parquet(args.to)
        print(f"{found.subjects:,} subjects and {found.seconds_active:,} seconds in {args.to}")
    elif args.output == "json":
        print(json.dumps(asdict(found), indent=2))
    else:
        _print_table(found)
    counts.unpersist()
    return EXIT_OK


def count(spark: SparkSession, origin: Origin, *, messages: int) -> DataFrame:
    """The counts of all tasks added up, columns `COUNTS`; small beside the stream. `messages`: how
    many the stream has, about."""
    from pyspark.sql import functions as F

    rows = origin.read(spark, "subject", "seq", "ts_ns", "size")
    parts = rows.mapInArrow(count_partition, COUNTS_DDL)
    # As many parts as the counts need, at most one row a message: each of the figures is a query of
    # its own over them, and Spark's 200 parts would make thousands of tasks of a small stream.
    part_count = max(1, min(PARTS_MAX, messages // MESSAGES_PER_PART))
    return (
        parts.repartition(part_count, "kind", "key", "number")
        .groupBy("kind", "key", "number")
        .agg(
            F.sum("count").alias("count"),
            F.sum("bytes").alias("bytes"),
            F.min("low").alias("low"),
            F.max("high").alias("high"),
        )
    )


def count_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The counts of one partition, whose rows come in order of seq.

    subject: key, count, bytes, low..high = first and last ts_ns. size, gap: number = step of the
    histogram, low..high exact. second: number = s since 1970. edge: number = first seq,
    count = last seq, low..high = their ts_ns. long gap: number = seq after it, count = ns.
    Holds one entry per distinct key: at most as many as the partition has rows.
    """
    settle()
    made = _Counts()
    edge: tuple[int, int] | None = None
    last = (0, 0)
    for batch in batches:
        if not batch.num_rows:
            continue
        seqs = batch.column("seq").to_numpy()
        times = batch.column("ts_ns").to_numpy()
        sizes = batch.column("size").to_numpy().astype(np.int64)
        made.add_subjects(batch.column("subject"), times, sizes)
        made.add_histogram(SIZE, sizes, sizes)
        made.add_by(SECOND, times // NS, sizes, times)
        before = times[:1] if edge is None else np.array([last[1]])
        gaps = np.diff(times, prepend=before)
        if edge is None:
            edge = (int(seqs[0]), int(times[0]))
            gaps, followers = gaps[1:], seqs[1:]
        else:
            followers = seqs
        made.add_gaps(followers, gaps)
        last = (int(seqs[-1]), int(times[-1]))
    if edge is not None:
        made.row(EDGE, "", edge[0], last[0], 0, edge[1], last[1])
        yield from made.batches()


class _Counts:
    """Sums of one task: (kind, key, number) to [count, bytes, low, high]."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, int], list[int]] = {}
        self._long: list[tuple[int, int]] = []  # (ns, seq after it)

    def row(
        self, kind: str, key: str, number: int, count: int, size: int, low: int, high: int
    ) -> None:
        found = self._sums.get((kind, key, number))
        if found is None:
            self._sums[kind, key, number] = [count, size, low, high]
            return
        found[0] += count
        found[1] += size
        found[2] = min(found[2], low)
        found[3] = max(found[3], high)

    def add_subjects(self, column: pa.Array, times: Any, sizes: Any) -> None:
        coded = column.dictionary_encode()
        ids = coded.indices.to_numpy(zero_copy_only=False)
        names = coded.dictionary.to_pylist()
        for number, *sums in _grouped(ids, sizes, times):
            self.row(SUBJECT, names[number], 0, *sums)

    def add_by(self, kind: str, keys: Any, sizes: Any, extent: Any) -> None:
        """Group by integer `keys`; low and high are those of `extent`."""
        for number, *sums in _grouped(keys, sizes, extent):
            self.row(kind, "", number, *sums)

    def add_histogram(self, kind: str, values: Any, sizes: Any) -> None:
        self.add_by(kind, _steps(values), sizes, values)

    def add_gaps(self, seqs: Any, gaps: Any) -> None:
        if not len(gaps):
            return
        negative = int((gaps < 0).sum())
        if negative:
            self.row("backwards", "", 0, negative, 0, 0, 0)
        gaps = np.maximum(gaps, 0)
        self.add_histogram(GAP, gaps, gaps)
        order = np.argsort(gaps, kind="stable")[-GAPS_SHOWN:]
        self._long += [(int(gaps[at]), int(seqs[at])) for at in order]
        self._long = sorted(self._long)[-GAPS_SHOWN:]

    def batches(self) -> Iterator[pa.RecordBatch]:
        for length, seq in self._long:
            self.row(LONG_GAP, "", seq, length, 0, 0, 0)
        columns: list[list[Any]] = [[] for _ in COUNTS]
        for (kind, key, number), sums in self._sums.items():
            for column, value in zip(columns, (kind, key, number, *sums), strict=True):
                column.append(value)
        yield from pa.table(columns, schema=COUNTS).to_batches(max_chunksize=10_000)


def _grouped(keys: Any, sizes: Any, extent: Any) -> Iterator[tuple[int, int, int, int, int]]:
    """(key, count, sum of sizes, min and max of extent) for each distinct key."""
    order = np.argsort(keys, kind="stable")
    found, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    sums = np.add.reduceat(sizes[order], starts)
    lows = np.minimum.reduceat(extent[order], starts)
    highs = np.maximum.reduceat(extent[order], starts)
    for each in zip(found, counts, sums, lows, highs, strict=True):
        key, count, size, low, high = map(int, each)
        yield key, count, size, low, high


def _steps(values: Any) -> Any:
    """The histogram step of each non-negative value; 0 and 1 have their own."""
    return np.where(values > 0, np.floor(np.log2(np.maximum(values, 1)) * STEPS) + 1, 0).astype(
        np.int64
    )


def _step_value(step: int) -> int:
    """A value in the middle of a step."""
    return 0 if step <= 0 else round(float(2 ** ((step - 0.5) / STEPS)))


def summarize(counts: DataFrame, stream: str, *, top: int) -> Stats:
    """The figures from what `count` gave; the driver holds `top` subjects and the histograms."""
    from pyspark.sql import functions as F

    made = Stats(stream)
    edges = counts.where(f"kind = '{EDGE}'").orderBy("number").collect()
    if not edges:
        return made
    subjects = counts.where(f"kind = '{SUBJECT}'")
    total = subjects.agg(
        F.count(F.lit(1)).alias("subjects"),
        F.sum("count").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.min("low").alias("low"),
        F.max("high").alias("high"),
    ).first()
    assert total is not None
    made.subjects, made.messages, made.bytes = total.subjects, total.messages, total.bytes
    made.first_seq, made.last_seq = edges[0].number, max(row["count"] for row in edges)
    made.missing_seqs = made.last_seq - made.first_seq + 1 - made.messages
    made.first_time, made.last_time = map(rfc3339.format_ns, (total.low, total.high))
    made.rate_mean = made.messages * NS / max(total.high - total.low, 1)
    for row in subjects.orderBy(F.desc("count"), "key").limit(top).collect():
        share = row["count"] / made.messages
        made.top_subjects.append(
            {"subject": row.key, "messages": row["count"], "bytes": row.bytes, "share": share}
        )
        made.top_share += share
    made.skew = made.top_subjects[0]["messages"] / (made.messages / made.subjects)
    seconds = counts.where(f"kind = '{SECOND}'")
    made.seconds_active = seconds.count()
    busiest = seconds.orderBy(F.desc("count"), "number").first()
    heaviest = seconds.agg(F.max("bytes").alias("bytes")).first()
    assert busiest is not None and heaviest is not None
    made.rate_peak, made.bytes_peak = busiest["count"], heaviest.bytes
    made.rate_peak_at = rfc3339.format_ns(busiest.number * NS)
    made.size = _spread(_histogram(counts, SIZE), made.bytes)
    _summarize_gaps(made, counts, edges)
    return made


def _histogram(counts: DataFrame, kind: str) -> list[tuple[int, int, int, int, int]]:
    rows = counts.where(f"kind = '{kind}'").orderBy("number").collect()
    return [(row.number, row["count"], row.bytes, row.low, row.high) for row in rows]


def _summarize_gaps(made: Stats, counts: DataFrame, edges: list[Any]) -> None:
    """The gaps inside the tasks' parts, and those between one part and the next."""
    steps = {step: list(sums) for step, *sums in _histogram(counts, GAP)}
    wrong = counts.where("kind = 'backwards'").first()
    made.backwards = wrong["count"] if wrong else 0
    longest = [(row["count"], row.number) for row in counts.where(f"kind = '{LONG_GAP}'").collect()]
    for before, after in pairwise(edges):
        gap = after.low - before.high
        made.backwards += gap < 0
        gap = max(gap, 0)
        step = int(_steps(np.array([gap]))[0])
        found = steps.setdefault(step, [0, 0, gap, gap])
        found[0] += 1
        found[1] += gap
        found[2], found[3] = min(found[2], gap), max(found[3], gap)
        longest.append((gap, after.number))
    rows = [(step, *sums) for step, sums in sorted(steps.items())]
    made.gap_ns = _spread(rows, sum(row[2] for row in rows))  # type: ignore[arg-type]
    for length, seq in sorted(longest, reverse=True)[:GAPS_SHOWN]:
        made.long_gaps.append({"seconds": length / NS, "before_seq": seq})


def _spread(rows: list[tuple[int, int, int, int, int]], total: int) -> Spread:
    """Summarize (step, count, sum, low, high) in order of step."""
    if not rows:
        return Spread()
    count = sum(row[1] for row in rows)
    low, high = min(row[3] for row in rows), max(row[4] for row in rows)
    made = Spread(min=low, max=high, mean=total / count)
    for share in PERCENTILES:
        wanted, seen = share * count, 0
        for step, number, _, step_low, step_high in rows:
            seen += number
            if seen >= wanted:
                value = min(max(_step_value(step), step_low), step_high)
                made.percentiles[f"p{share * 100:g}"] = value
                break
    return made


def _print_table(found: Stats) -> None:
    for name, value in _lines(found):
        print(f"{name:18} {value}")
    if not found.messages:
        return
    wide = max(7, *(len(row["subject"]) for row in found.top_subjects))
    print(f"\n{'subject':{wide}} {'messages':>14} {'bytes':>16} {'share':>7}")
    for row in found.top_subjects:
        print(
            f"{row['subject']:{wide}} {row['messages']:>14,} {row['bytes']:>16,} "
            f"{row['share']:>7.2%}"
        )
    print(f"\n{'longest gaps':18} before seq")
    for row in found.long_gaps:
        print(f"{row['seconds']:>16,.6f} s {row['before_seq']}")


def _lines(found: Stats) -> Iterator[tuple[str, str]]:
    yield "stream", found.stream
    yield "messages", f"{found.messages:,}"
    if not found.messages:
        return
    yield "bytes", f"{found.bytes:,} of payload"
    missing = f", {found.missing_seqs:,} of them not there" if found.missing_seqs else ""
    yield "seqs", f"{found.first_seq}..{found.last_seq}{missing}"
    yield "time", f"{found.first_time} .. {found.last_time}"
    yield (
        "rate",
        (
            f"{found.rate_mean:,.1f}/s mean, {found.rate_peak:,}/s at most "
            f"({found.rate_peak_at}); {found.bytes_peak:,} bytes/s at most"
        ),
    )
    yield "payload bytes", _spread_text(found.size, lambda value: f"{value:,.0f}")
    yield "gap between ts", _spread_text(found.gap_ns, lambda value: f"{value / NS:.6f} s")
    if found.backwards:
        yield "backwards", f"{found.backwards:,} messages have a time before their predecessor's"
    yield (
        "subjects",
        (
            f"{found.subjects:,}; the largest has {found.skew:,.1f} times the mean, "
            f"the first {len(found.top_subjects)} have {found.top_share:.1%}"
        ),
    )


def _spread_text(spread: Spread, show: Callable[[float], str]) -> str:
    percentiles = ", ".join(f"{name} {show(value)}" for name, value in spread.percentiles.items())
    return f"{show(spread.min)} .. {show(spread.max)}, mean {show(spread.mean)}; {percentiles}"
