"""A stream to partitioned Parquet, once or again and again.

    streamd-spark export --stream ORDERS --to ./orders
    streamd-spark export --stream ORDERS --to ./orders --partition-by date,subject:2 --verify
    streamd-spark export --path ./data --stream ORDERS --to hdfs:///lake/orders
    streamd-spark export --stream ORDERS --to ./orders --as-of 2026-01-31T00:00:00Z

A second run adds what has come since. `_streamd_ledger/` in the directory says which files hold
which rows; a run that was killed is finished by the next one, without a row lost or twice. What a
file holds is read back and compared with what the stream gave before the file counts.

Exit status: 0 done, 1 --accept-damage and messages were lost, 2 --verify found a difference, 3
could not run or not to the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from spark_jobs.export.committed_rows import literal_url, read_files
from spark_jobs.export.export_ledger import (
    COMPACT,
    EXPORT,
    Commit,
    DataFile,
    Ledger,
    Source,
    add_digests,
)
from spark_jobs.export.files import open_files
from spark_jobs.export.plan import Plan, partitioning, plan_of
from spark_jobs.export.verify import verify
from spark_jobs.jobs.command import (
    EXIT_DIFFERENT,
    EXIT_OK,
    EXIT_WARNINGS,
    JobError,
    job_parser,
    run_job,
    session_from,
    spark_arguments,
)
from spark_jobs.jobs.origin import Origin, origin_arguments, origin_from
from spark_jobs.jobs.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COMMIT_ROWS: Final = 5_000_000
FILE_ROWS: Final = 2_000_000
SMALL_BYTES: Final = 64 << 20  # files below this are compacted
COMPACT_BYTES: Final = 2 << 30  # rewritten by one commit
HASHED: Final = ("seq", "subject", "ts_ns", "headers", "payload")
WRITE_CONF: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",  # `date` is the day in UTC
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; returns its exit status."""
    return run_job(_parser(), _work, argv)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("export", __doc__)
    origin_arguments(parser)
    group = parser.add_argument_group("export")
    group.add_argument("--to", required=True, metavar="DIR", help="a path or a Hadoop URL")
    group.add_argument(
        "--partition-by",
        metavar="LIST",
        help="date (of ts, UTC), subject:N (token N, from 1), both, or none (default: date)",
    )
    group.add_argument(
        "--start-seq", type=_positive, metavar="SEQ", help="first sequence to export"
    )
    group.add_argument(
        "--as-of", metavar="SEQ|TIME", help="last sequence or time to export, inclusive"
    )
    group.add_argument(
        "--accept-gaps",
        action="store_true",
        help="go on although messages left the stream before they were exported",
    )
    group.add_argument(
        "--accept-damage",
        action="store_true",
        help="with --path: leave out messages that are damaged; the ledger says which",
    )
    group.add_argument(
        "--commit-rows",
        type=_positive,
        default=COMMIT_ROWS,
        metavar="N",
        help="rows of one commit: a killed run repeats at most so many (default: %(default)s)",
    )
    group.add_argument(
        "--file-rows",
        type=_positive,
        default=FILE_ROWS,
        metavar="N",
        help="rows of one file (default: %(default)s)",
    )
    group.add_argument(
        "--compact", action="store_true", help="afterwards, merge small files into large ones"
    )
    group.add_argument(
        "--verify",
        action="store_true",
        help="afterwards, read all files again and compare them with the stream",
    )
    spark_arguments(parser)
    return parser


def _work(args: argparse.Namespace) -> int:
    origin = origin_from(args)
    if args.accept_damage:
        if not origin.is_offline:
            raise JobError("--accept-damage is for files: give --path")
        origin = origin.with_options(failOnDataLoss="false")
    wanted = partitioning(args.partition_by) if args.partition_by else None
    spark = session_from(args, f"streamd export {args.stream}")
    files = open_files(args.to, spark)
    with _settings(spark), files.lock():
        ledger = Ledger.open(files)
        for line in ledger.recover():
            print(line, file=sys.stderr)
        run = Export(
            spark,
            origin,
            ledger,
            file_rows=args.file_rows,
            is_quiet=args.quiet,
            accepts_damage=args.accept_damage,
        )
        plan = plan_of(origin, ledger, wanted, args)
        lost_before = ledger.lost_count
        rows = run.export(plan)
        lost = ledger.lost_count - lost_before
        if plan.log_damage:
            print(
                f"nothing is known of what is behind seq {plan.last_seq}: {plan.log_damage}",
                file=sys.stderr,
            )
        print(
            f"{origin}: {rows:,} rows exported to {args.to}"
            + (f", seqs {plan.first_seq}..{plan.last_seq}" if rows else "")
            + f"; {ledger.rows:,} rows in {len(ledger.live)} files, digest {ledger.digest}"
            + (
                f"; {lost:,} messages are damaged and left out, the ledger names them"
                if lost
                else ""
            )
        )
        if args.compact:
            before, after = run.compact()
            print(f"compacted: {before} files became {after}")
        if args.verify:
            report = verify(spark, origin, ledger)
            print(report.text)
            if not report.is_good:
                return EXIT_DIFFERENT
    return EXIT_WARNINGS if lost or plan.log_damage else EXIT_OK


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """`WRITE_CONF` inside; a session that goes on afterwards has its own settings again."""
    before = {name: spark.conf.get(name, None) for name in WRITE_CONF}
    for name, value in WRITE_CONF.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


class Export:
    """A run of the job, the only writer of the directory."""

    def __init__(
        self,
        spark: SparkSession,
        origin: Origin,
        ledger: Ledger,
        *,
        file_rows: int = FILE_ROWS,
        is_quiet: bool = True,
        accepts_damage: bool = False,
    ) -> None:
        self.spark = spark
        self.origin = origin
        self.ledger = ledger
        self.file_rows = file_rows
        self.is_quiet = is_quiet
        self.accepts_damage = accepts_damage

    def export(self, plan: Plan) -> int:
        """Commit by commit; returns how many rows came new."""
        rows = 0
        gap = plan.gap
        expected = max(0, plan.last_seq - plan.first_seq + 1)
        label = f"export {self.origin.stream}"
        with Progress(expected, label, unit="seqs", is_quiet=self.is_quiet) as progress:
            for first in range(plan.first_seq, plan.last_seq + 1, plan.seqs_per_commit):
                last = min(first + plan.seqs_per_commit - 1, plan.last_seq)
                commit = self._commit_range(plan, first, last, gap)
                rows += commit.rows
                gap = None
                progress.update(last - plan.first_seq + 1)
                progress.note(
                    f"commit {commit.number}: seqs {first}..{last}, {commit.rows:,} rows in "
                    f"{len(commit.files)} files"
                )
        return rows

    def _commit_range(
        self, plan: Plan, first: int, last: int, gap: tuple[int, int] | None
    ) -> Commit:
        commit = Commit(
            number=self.ledger.next_number,
            kind=EXPORT,
            source=plan.source,
            first_seq=first,
            last_seq=last,
            rows=0,
            digest=add_digests([]),
            files=(),
            gap=gap,
            as_of=plan.as_of,
            created_at=_now(),
            until_ns=plan.until_ns,
        )
        rows = self.origin.rows(self.spark, first, last)
        # Spark may leave out a part of a plan that has no rows, and what observes it with it.
        if not rows.isEmpty():
            commit = self._write(rows, commit)
        if self.accepts_damage:
            from spark_jobs.export.lost import lost_of
            from spark_jobs.replica.decode import ranges_text

            lost = lost_of(self.spark, self.origin, first, last, rows=commit.rows)
            commit = replace(commit, lost=lost)
            if lost:
                print(f"lost to damage: seqs {ranges_text(lost)}", file=sys.stderr)
        self.ledger.commit(commit)
        return commit

    def compact(self) -> tuple[int, int]:
        """Rewrite small files that share a partition; returns how many became how many."""
        source = self.ledger.source
        if source is None:
            return 0, 0
        groups: dict[str, list[DataFile]] = {}
        for each in self.ledger.live.values():
            if each.bytes < SMALL_BYTES:
                groups.setdefault(each.path.rpartition("/")[0], []).append(each)
        work: list[list[DataFile]] = [[]]
        for group in (group for group in groups.values() if len(group) > 1):
            if sum(each.bytes for each in (*work[-1], *group)) > COMPACT_BYTES and work[-1]:
                work.append([])
            work[-1] += group
        before = after = 0
        label = f"compact {source.stream}"
        chunks = [chunk for chunk in work if chunk]
        with Progress(len(chunks), label, unit="commits", is_quiet=self.is_quiet) as progress:
            for chunk in chunks:
                before += len(chunk)
                after += self._compact_files(source, chunk)
                progress.advance()
        return before, after

    def _compact_files(self, source: Source, small: list[DataFile]) -> int:
        commit = Commit(
            number=self.ledger.next_number,
            kind=COMPACT,
            source=source,
            first_seq=min(each.min_seq for each in small),
            last_seq=max(each.max_seq for each in small),
            rows=0,
            digest=add_digests([]),
            files=(),
            removed=tuple(each.path for each in small),
            created_at=_now(),
        )
        rows = read_files(self.spark, self.ledger, [each.path for each in small])
        commit = self._write(rows, commit, is_gathered=True)
        wanted = (sum(each.rows for each in small), add_digests(each.digest for each in small))
        if (commit.rows, commit.digest) != wanted:
            raise JobError(
                f"compaction: {wanted[0]} rows with digest {wanted[1]} became {commit.rows} with "
                f"{commit.digest}; nothing was changed: a file was damaged since it was written, "
                "--verify says which rows"
            )
        self.ledger.commit(commit)
        return len(commit.files)

    def _write(self, rows: DataFrame, commit: Commit, *, is_gathered: bool = False) -> Commit:
        """Write `rows` below the commit's staging and read them back; the commit with its files.

        Raises JobError if what was read back is not what the stream gave.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        from spark_jobs.jobs.row_hash import digest_of, digest_parts, row_hash

        partition_by = commit.source.partition_by
        columns = {name: _partition_column(name) for name in partition_by}
        names = [_column_name(name) for name in partition_by]
        seen = Observation("rows")
        observed = rows.observe(
            seen, F.count(F.lit(1)).alias("rows"), *digest_parts(row_hash(HASHED))
        )
        for (_, column), name in zip(columns.items(), names, strict=True):
            observed = observed.withColumn(name, column)
        if is_gathered or any(name.startswith("subject:") for name in partition_by):
            # Else every task would write a file for every subject it meets.
            observed = observed.hint("rebalance", *[F.col(name) for name in names])
            observed = observed.sortWithinPartitions(*names, "seq")
        target = f"{self.ledger.files.url}/{commit.staging}"
        writer = observed.write.mode("overwrite").option("compression", "zstd")
        writer = writer.option("maxRecordsPerFile", self.file_rows)
        (writer.partitionBy(*names) if names else writer).parquet(target)
        found = self._read_back(commit)
        given = seen.get
        commit = replace(
            commit,
            files=found,
            rows=sum(each.rows for each in found),
            digest=add_digests(each.digest for each in found),
        )
        digest = digest_of(int(given["digest_low"] or 0), int(given["digest_high"] or 0))
        if (commit.rows, commit.digest) != (given["rows"], digest):
            raise JobError(
                f"seqs {commit.first_seq}..{commit.last_seq}: {given['rows']} rows with digest "
                f"{digest} were read, but the files hold {commit.rows} with {commit.digest}; "
                "nothing was committed: run the export again, and check the disk if it repeats"
            )
        return commit

    def _read_back(self, commit: Commit) -> tuple[DataFile, ...]:
        """Read the staged files again and return rows, bounds and digests of each."""
        from pyspark.sql import functions as F

        from spark_jobs.jobs.row_hash import digest_of, digest_parts, row_hash
        from spark_jobs.schema import COLUMNS, spark_schema

        sizes = self.ledger.files.sizes(commit.staging)
        staged = [name for name in sizes if name.endswith(".parquet")]
        if not staged:
            return ()
        prefix = f"{commit.staging}/"
        read = self.spark.read.schema(spark_schema(COLUMNS))
        rows = read.parquet(literal_url(f"{self.ledger.files.url}/{commit.staging}"))
        per_file = rows.groupBy(F.col("_metadata.file_path").alias("path")).agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("seq").alias("min_seq"),
            F.max("seq").alias("max_seq"),
            *digest_parts(row_hash(HASHED)),
        )
        found = []
        for row in per_file.collect():
            name = unquote(row.path).partition(prefix)[2]
            found.append(
                DataFile(
                    path=name,
                    rows=row.rows,
                    bytes=sizes[prefix + name],
                    min_seq=row.min_seq,
                    max_seq=row.max_seq,
                    digest=digest_of(row.digest_low, row.digest_high),
                )
            )
        return tuple(sorted(found, key=lambda each: (each.min_seq, each.path)))


def _column_name(part: str) -> str:
    """date, subject_2."""
    return part.replace(":", "_")


def _partition_column(part: str) -> Column:
    from pyspark.sql import functions as F

    if part == "date":
        return F.to_date("ts")
    token = int(part.partition(":")[2])
    return F.try_element_at(F.split("subject", r"\."), F.lit(token))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
