"""The whole story on one machine: three nodes, Spark in and out, one byte of damage, its repair.

    make pipeline                                     # or: streamd-spark pipeline
    streamd-spark pipeline --flights 20000            # a small one

1. Three servers on loopback that fsync before they ack, a stream with three replicas.
2. `ingest`: the flights of 2013, by Spark, exactly once; meanwhile a streaming query keeps the
   delay per carrier in Parquet.
3. `export --verify`: the stream as Parquet, read again and compared.
4. One node is stopped and one byte of one of its block files flipped: `audit` must find just that
   record and exit with 2.
5. The node's copy of the stream is removed and the node started: it catches up; `audit` must be
   clean.

Everything stays in the directory: the Parquet files, and the audits' report.html. Exit status 0
only if all of it went like that.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.jobs.command import (
    EXIT_DAMAGE,
    EXIT_OK,
    JobError,
    job_parser,
    run_job,
    session_from,
    spark_arguments,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from streamd.cli.cluster_local import LocalCluster, LocalNode

STREAM: Final = "FLIGHTS"
SUBJECTS: Final = "flights.>"
TEMPLATE: Final = "flights.{origin}.{dest}.{carrier}"
KEY: Final = ("time_hour", "carrier", "flight", "origin")
SQL_FIELDS: Final = "carrier string, dep_delay string"
ROWS_PER_TRIGGER: Final = 50_000
KEPT_AGGREGATES: Final = 2  # the newest, and the one a reader may have open
CURRENT_WITHIN_S: Final = 120.0
POLL_S: Final = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the story; returns the exit status."""
    parser = job_parser("pipeline", __doc__)
    parser.add_argument(
        "--directory", default="data/pipeline", help="emptied at the start (default: %(default)s)"
    )
    parser.add_argument("--flights", type=int, default=0, help="only the first N (default: all)")
    parser.add_argument(
        "--port",
        type=int,
        default=4322,
        help="of the first node; three in a row each (default: %(default)s)",
    )
    parser.add_argument("--http-port", type=int, default=8322, help="(default: %(default)s)")
    parser.add_argument("--cluster-port", type=int, default=6322, help="(default: %(default)s)")
    spark_arguments(parser)
    return run_job(parser, _work, argv)


def _work(args: argparse.Namespace) -> int:
    from streamd.cli.cluster_local import LocalCluster, Ports, server_binary

    directory = Path(args.directory).resolve()
    if (directory / "cluster" / "cluster.json").exists():
        LocalCluster.load(directory / "cluster").stop()  # what a killed run left behind
    shutil.rmtree(directory, ignore_errors=True)
    source = _write_flights(directory / "input", args.flights)
    ports = Ports(args.port, args.http_port, args.cluster_port)
    cluster = LocalCluster.create(directory / "cluster", ports)
    try:
        cluster.start(server_binary())
        spark = session_from(args, "streamd pipeline")
        story = Story(spark, cluster, directory, source, is_quiet=args.quiet)
        return story.run(server_binary())
    finally:
        cluster.stop()


def _write_flights(directory: Path, count: int) -> Path:
    """The flights as one CSV file, the first `count` of them (0: all)."""
    from examples.flights import DemoError, flights_archive

    try:
        packed = flights_archive()
    except DemoError as err:
        raise JobError(str(err)) from err
    directory.mkdir(parents=True)
    target = directory / "flights.csv"
    with (
        zipfile.ZipFile(packed) as archive,
        archive.open(archive.namelist()[0]) as lines,
        target.open("wb") as file,
    ):
        for number, line in enumerate(lines):
            if count and number > count:
                break
            file.write(line)
    return target


class Story:
    """A run of the demonstration: each step checks its own outcome and raises JobError if that is
    wrong."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: LocalCluster,
        directory: Path,
        source: Path,
        *,
        is_quiet: bool,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._directory = directory
        self._source = source
        self._urls = ",".join(cluster.urls)
        self._quiet = ["--quiet"] if is_quiet else []
        self._rows: list[tuple[str, str]] = []

    def run(self, binary: str) -> int:
        """Take all steps in order and print their outcome. Returns the exit status."""
        began = time.perf_counter()
        source = self._spark.read.csv(str(self._source), header=True)
        count = source.count()
        self._note("flights", f"{count:,}")
        query = self._start_aggregate()
        try:
            self._timed("ingest into three replicas, exactly once", self._ingest)
            self._timed("the aggregate has seen all", query.processAllAvailable)
        finally:
            query.stop()
        self._check_aggregate(source)
        self._check_count(count)
        self._timed("export to Parquet, verified", self._export)
        node = self._cluster.nodes[-1]
        node.end()
        seq, file = flip_byte(node.store_dir)
        self._note(f"flipped one byte of {node.name}", f"seq {seq}, {file}")
        self._timed("audit finds that record", lambda: self._audit_damage(node, seq))
        shutil.rmtree(node.store_dir / "streamd" / "streams")
        self._timed("the node is whole again without its files", lambda: self._heal(node, binary))
        self._timed("audit is clean", self._audit_clean)
        self._note("in all", f"{time.perf_counter() - began:.1f} s")
        self._show()
        return EXIT_OK

    # --- steps ----------------------------------------------------------------------------------

    def _ingest(self) -> None:
        from spark_jobs.ingest import ingest_job as ingest

        self._job(
            ingest.main,
            [
                *("--servers", self._urls, "--stream", STREAM),
                *("--from", str(self._source), "--format", "csv", "--option", "header=true"),
                *("--subject-template", TEMPLATE, "--id-columns", ",".join(KEY)),
                *("--job-id", "flights-2013"),
            ],
        )

    def _start_aggregate(self) -> StreamingQuery:
        """Create the stream, and start to keep the delay per carrier."""
        from pyspark.sql import functions as f

        self._create_stream()
        reader = (
            self._spark.readStream.format("streamd")
            .option("servers", self._urls)
            .option("stream", STREAM)
            .option("maxMsgsPerTrigger", ROWS_PER_TRIGGER)
        )
        flight = f.from_json(f.col("payload").cast("string"), SQL_FIELDS).alias("flight")
        delays = _delays(_typed(reader.load().select(flight).select("flight.*")))
        target = self._directory / "delays"

        def keep(batch: DataFrame, number: int) -> None:
            # A batch that is done again writes the same files to the same place.
            batch.coalesce(1).write.mode("overwrite").parquet(f"{target}/batch_id={number}")
            old = target / f"batch_id={number - KEPT_AGGREGATES}"
            shutil.rmtree(old, ignore_errors=True)

        return (
            delays.writeStream.outputMode("complete")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .foreachBatch(keep)
            .start()
        )

    def _create_stream(self) -> None:
        from spark_jobs.client.options import ConnectOptions
        from spark_jobs.client.wire import Wire
        from spark_jobs.sink.ledger import pattern_of

        with Wire.connect(ConnectOptions.parse({"servers": self._urls})) as wire:
            wire.api(
                f"STREAM.CREATE.{STREAM}",
                {
                    "name": STREAM,
                    "subjects": [SUBJECTS, pattern_of(STREAM)],
                    "num_replicas": 3,
                    "allow_direct": True,
                    "allow_atomic": True,
                },
            )

    def _check_aggregate(self, source: DataFrame) -> None:
        """The newest aggregate must be what the file itself gives."""
        target = self._directory / "delays"
        newest = max(target.glob("batch_id=*"), key=lambda path: int(path.name.split("=")[1]))
        kept = self._spark.read.parquet(str(newest))
        told = {row.carrier: tuple(row) for row in kept.collect()}
        wanted = {row.carrier: tuple(row) for row in _delays(_typed(source)).collect()}
        if told != wanted:
            carriers = sorted(key for key in wanted if told.get(key) != wanted[key])
            raise JobError(f"the aggregate in {newest} differs from the input for {carriers}")
        self._note("aggregate: carriers, flights", f"{len(told)}, {_total(told):,}")

    def _check_count(self, count: int) -> None:
        found = self._spark.read.format("streamd").option("servers", self._urls)
        stored = found.option("stream", STREAM).load().count()
        if stored != count:
            raise JobError(f"{count:,} flights went in, the stream has {stored:,} messages")
        self._note("stored", f"{stored:,}")

    def _export(self) -> None:
        from spark_jobs.export import export_job as export

        target = str(self._directory / "parquet")
        origin = ["--servers", self._urls, "--stream", STREAM]
        self._job(export.main, [*origin, "--to", target, "--partition-by", "subject:2", "--verify"])

    def _audit(self, name: str) -> tuple[int, dict[str, Any]]:
        from spark_jobs.audit import audit_job as audit

        target = self._directory / name
        replicas = [f"--replica={node.name}={node.store_dir}" for node in self._cluster.nodes]
        status = audit.main([*replicas, "--stream", STREAM, "--output", str(target), *self._quiet])
        try:
            return status, json.loads((target / "findings.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise JobError(f"the audit could not run: exit status {status}") from None

    def _audit_damage(self, node: LocalNode, seq: int) -> None:
        status, found = self._audit("audit-damaged")
        told = [(each["replica"], each["seq_lo"], each["seq_hi"]) for each in found["findings"]]
        if status != EXIT_DAMAGE or set(told) != {(node.name, seq, seq)}:
            raise JobError(f"audit: exit status {status}, found {told}, not just {node.name} {seq}")

    def _heal(self, node: LocalNode, binary: str) -> None:
        """Start the node and wait until the leader calls its copy current, with equal digests."""
        node.start(binary)
        self._cluster.wait_healthy(node)
        deadline = time.monotonic() + CURRENT_WITHIN_S
        while not _are_equal(self._cluster):
            if time.monotonic() > deadline:
                raise JobError(f"{node.name} is not current after {CURRENT_WITHIN_S:g} s")
            time.sleep(POLL_S)

    def _audit_clean(self) -> None:
        status, found = self._audit("audit-clean")
        if status != EXIT_OK:
            raise JobError(f"audit: exit status {status} after the repair: {found['findings']}")

    # --- telling --------------------------------------------------------------------------------

    def _job(self, job: Callable[[Sequence[str]], int], argv: list[str]) -> None:
        status = job([*argv, *self._quiet])
        if status != EXIT_OK:
            raise JobError(f"{job.__module__.rpartition('.')[2]} ended with status {status}")

    def _timed(self, text: str, step: Callable[[], object]) -> None:
        began = time.perf_counter()
        step()
        self._note(text, f"{time.perf_counter() - began:.1f} s")

    def _note(self, name: str, value: str) -> None:
        self._rows.append((name, value))
        if not self._quiet:
            print(f"{name}: {value}", file=sys.stderr, flush=True)

    def _show(self) -> None:
        width = max(len(name) for name, _ in self._rows)
        print("\n".join(f"{name.ljust(width)}  {value}" for name, value in self._rows))
        print(f"\ndelays per carrier  {self._directory / 'delays'}")
        print(f"the stream          {self._directory / 'parquet'}")
        print(f"damage, found       {self._directory / 'audit-damaged' / 'report.html'}")
        print(f"after the repair    {self._directory / 'audit-clean' / 'report.html'}")


def _delays(flights: DataFrame) -> DataFrame:
    """(carrier, flights, delayed, delay): how many, how many with a known delay, its sum in min."""
    from pyspark.sql import functions as f

    return flights.groupBy("carrier").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("delayed"),
        f.sum("dep_delay").alias("delay_min"),
    )


def _typed(source: DataFrame) -> DataFrame:
    """The columns the aggregate uses, as the messages have them."""
    from pyspark.sql import functions as f

    delay = f.expr("try_cast(dep_delay as double)").alias("dep_delay")
    return source.select("carrier", delay)


def _total(delays: dict[str, Any]) -> int:
    return sum(int(row[1]) for row in delays.values())


def _are_equal(cluster: LocalCluster) -> bool:
    """True if every node has the stream, current, with one content."""
    contents = set()
    current = 0
    for node in cluster.nodes:
        try:
            found = node.get(f"/jsz?streams=1&digest=1&stream={STREAM}")
        except (OSError, ValueError):
            return False
        for account in found.get("account_details") or []:
            for stream in account.get("stream_detail") or []:
                if stream["name"] == STREAM:
                    state = stream.get("state", {})
                    contents.add((state.get("last_seq"), stream.get("digest")))
                    replicas = stream.get("cluster", {}).get("replicas") or []
                    if stream.get("cluster", {}).get("leader") == node.name:
                        current = sum(bool(one.get("current")) for one in replicas)
    return len(contents) == 1 and current == len(cluster.nodes) - 1


def flip_byte(store_dir: Path) -> tuple[int, Path]:
    """Flip one bit of the payload in the middle of a stopped node's stream; (seq, file)."""
    from spark_jobs.replica.decode import columns_of
    from streamd.offline.stream_view import find_stores, open_stream

    store = find_stores(store_dir)[0]
    with open_stream(store, STREAM) as view:
        block = view.blocks[len(view.blocks) // 2]
        columns = columns_of(block.read(), block)
    row = len(columns) // 2
    at = int(columns.offsets[row]) + int(columns.lengths[row]) - 8  # before the crc: the payload
    with open(block.path, "r+b") as file:
        file.seek(at)
        found = file.read(1)
        file.seek(at)
        file.write(bytes([found[0] ^ 0x10]))
    return int(columns.seqs[row]), Path(block.path)


if __name__ == "__main__":
    sys.exit(main())
