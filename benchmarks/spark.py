"""How fast Spark reads, writes, exports and audits streams, on this machine, `local[2]`.

    make bench-spark                        # all rows, 2 to 5 million messages; about 15 minutes
    make bench-spark ARGS="--rows offline,audit --sizes 100 --count 1000000"

Servers fsync before they ack. Each read runs `--runs` times after two that warm up, and the median
counts; the others run once. Beside the online reads: the same stream through nats-py, one process;
and `ceiling`: a source whose rows are ready, which is all that Spark takes from Python here.
Memory is the peak resident size of Spark's JVM and of its largest Python worker in that row.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.cluster import ClusterProcess
from benchmarks.generator import generate
from benchmarks.load import STREAM, SUBJECT, Api
from benchmarks.report import machine, number
from benchmarks.servers import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
ROWS: Final = (
    "ceiling", "nats-py", "online", "offline", "export", "audit", "ingest", "ingest-r3",
)  # fmt: skip
# What we mean to reach on two cores: rows/s, or MB/s of payload, by (row, payload bytes).
WANTED_ROWS: Final = {
    ("online", 100): 150e3,
    ("offline", 100): 1.5e6,
    ("audit", 100): 0.8e6,
    ("ingest", 100): 60e3,
    ("ingest-r3", 100): 30e3,
}
WANTED_MB: Final = {("offline", 1024): 800.0}
NATS_PY_ROWS: Final = 200_000  # it is slow; its rate does not depend on how many
INGEST_ROWS: Final = 2_000_000  # enough to measure
DRIVER_MEMORY: Final = "1g"
SAMPLE_S: Final = 0.05
MIB: Final = 1 << 20


@dataclass
class Result:
    """One row of the table. `seconds` of each run, the slowest first."""

    name: str
    size: int
    count: int
    seconds: list[float]
    jvm_mb: float = 0.0
    worker_mb: float = 0.0

    @property
    def rate(self) -> float:
        return self.count / statistics.median(self.seconds)

    @property
    def mb_s(self) -> float:
        return self.rate * self.size / 1e6

    def verdict(self) -> str:
        key = (self.name, self.size)
        if key in WANTED_ROWS:
            wanted = WANTED_ROWS[key]
            return f"{'reached' if self.rate >= wanted else 'MISSED'}: {number(wanted)}/s"
        if key in WANTED_MB:
            wanted = WANTED_MB[key]
            return f"{'reached' if self.mb_s >= wanted else 'MISSED'}: {number(wanted)} MB/s"
        return ""


@dataclass
class Memory:
    """Peak resident sizes of this process's descendants, MiB."""

    jvm_mb: float = 0.0
    worker_mb: float = 0.0
    _is_over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._is_over.wait(SAMPLE_S):
            for pid, name in _descendants(os.getpid()):
                try:
                    size = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page / MIB
                except (OSError, IndexError):
                    continue
                if name == "java":
                    self.jvm_mb = max(self.jvm_mb, size)
                elif name.startswith("python"):
                    self.worker_mb = max(self.worker_mb, size)

    def stop(self) -> None:
        self._is_over.set()


def _descendants(root: int) -> list[tuple[int, str]]:
    """(pid, command) of all processes under `root`."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            head, _, rest = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")
        except OSError:
            continue
        parent = int(rest.split()[1])
        children.setdefault(parent, []).append((int(entry), head.partition("(")[2]))
    found = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child[0])
    return found


@contextmanager
def _watched() -> Iterator[Memory]:
    memory = Memory()
    watcher = threading.Thread(target=memory.watch, name="memory", daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        memory.stop()
        watcher.join()


class Bench:
    """All rows for one payload size, over one filled server."""

    def __init__(self, options: argparse.Namespace, spark: SparkSession, size: int) -> None:
        self._options = options
        self._spark = spark
        self._size = size
        self._count: int = options.count
        self._directory = Path(tempfile.mkdtemp(prefix="streamd-bench-spark-"))
        self.results: list[Result] = []

    def run(self) -> None:
        """Fill a server, read it in every way, write in every way."""
        wanted = self._options.rows
        if "ceiling" in wanted:
            self._ceiling()
        try:
            if {"nats-py", "online", "offline", "export", "audit"} & set(wanted):
                self._reads(wanted)
            if "ingest" in wanted:
                server = ServerProcess(self._options.ours, directory=self._directory / "w")
                server.start()
                try:
                    self._ingest("ingest", server.url, server.port, 1)
                finally:
                    server.stop()
                shutil.rmtree(self._directory / "w")
            if "ingest-r3" in wanted:
                cluster = ClusterProcess(self._options.ours, directory=self._directory / "c")
                cluster.start()
                try:
                    port = next(iter(cluster.ports.values()))
                    self._ingest("ingest-r3", ",".join(cluster.urls), port, 3)
                finally:
                    cluster.stop()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _reads(self, wanted: list[str]) -> None:
        server = ServerProcess(self._options.ours, directory=self._directory / "n1")
        server.start()
        try:
            generate(server.port, "fill", {"size": self._size, "count": self._count})
            if "nats-py" in wanted:
                rows = min(NATS_PY_ROWS, self._count)
                self._note("nats-py", rows, [asyncio.run(_read_nats_py(server.url, rows))])
            if "online" in wanted:
                self._repeat("online", {"servers": server.url})
            if "export" in wanted:
                self._export(server.url)
        finally:
            server.stop()
        if "offline" in wanted:
            self._repeat("offline", {"path": str(server.store_dir)})
        if "audit" in wanted:
            self._audit(server.store_dir)

    def _ceiling(self) -> None:
        """What Spark takes for rows that are ready, from Python into nothing."""
        from benchmarks.spark_ceiling import CeilingSource

        self._spark.dataSource.register(CeilingSource)
        reader = self._spark.read.format("ceiling")
        frame = reader.options(count=self._count, size=self._size).load()
        count = frame.count()

        def read() -> None:
            frame.write.format("noop").mode("overwrite").save()

        _warm_up(read)
        self._note("ceiling", count, [_seconds(read) for _ in range(self._options.runs)])

    def _repeat(self, name: str, options: dict[str, str]) -> None:
        """Read the whole stream into nothing."""

        def read() -> None:
            self._frame(options).write.format("noop").mode("overwrite").save()

        _warm_up(read)
        with _watched() as memory:
            seconds = [_seconds(read) for _ in range(self._options.runs)]
        found = self._frame(options).count()
        assert found == self._count, (found, self._count)
        self._note(name, self._count, seconds, memory)

    def _frame(self, options: dict[str, str]) -> DataFrame:
        reader = self._spark.read.format("streamd").option("stream", STREAM)
        return reader.options(**options).load()

    def _export(self, url: str) -> None:
        from spark_jobs import export

        target = str(self._directory / "parquet")
        argv = ["--servers", url, "--stream", STREAM, "--to", target, "--quiet"]
        with _watched() as memory:
            seconds = _seconds(lambda: _job(export.main, [*argv, "--partition-by", "none"]))
        found = self._spark.read.parquet(target).count()
        assert found == self._count, (found, self._count)
        self._note("export", self._count, [seconds], memory)

    def _audit(self, store: Path) -> None:
        from spark_jobs import audit

        argv = ["--quiet", f"--replica=n1={store}"]
        for label in ("n2", "n3"):
            copy = self._directory / f"copy-{label}"
            shutil.copytree(store, copy)
            argv.append(f"--replica={label}={copy}")
        with _watched() as memory:
            seconds = _seconds(lambda: _job(audit.main, argv))
        self._note("audit", 3 * self._count, [seconds], memory)
        for label in ("n2", "n3"):
            shutil.rmtree(self._directory / f"copy-{label}")

    def _ingest(self, name: str, urls: str, port: int, replicas: int) -> None:
        """Rows of a Parquet file into a new stream, through the ledger."""
        from pyspark.sql import functions as f

        api = Api(port)
        count = min(INGEST_ROWS, self._count)
        api.create_stream(num_replicas=replicas, allow_atomic=True, allow_direct=True)
        source = str(self._directory / "source")
        if not os.path.exists(source):
            rows = self._spark.range(0, count, 1, 8)
            subject = f.lit(SUBJECT.decode()).alias("subject")
            # Different in every row, so that nothing on the way can compress it away.
            text = f.rpad(f.sha2(f.col("id").cast("string"), 256), self._size, "x")
            rows.select(subject, text.alias("payload")).write.parquet(source)
        frame = self._spark.read.parquet(source)
        with _watched() as memory:
            seconds = _seconds(
                lambda: (
                    frame.write.format("streamd")
                    .options(
                        servers=urls, stream=STREAM, jobId=f"bench-{name}", prepareStream="true"
                    )
                    .mode("append")
                    .save()
                )
            )
        stored = self._spark.read.format("streamd").options(servers=urls, stream=STREAM).load()
        found = stored.count()
        assert found == count, (found, count)
        api.close()
        self._note(name, count, [seconds], memory)

    def _note(
        self, name: str, count: int, seconds: list[float], memory: Memory | None = None
    ) -> None:
        found = Result(name, self._size, count, seconds)
        if memory is not None:
            found.jvm_mb, found.worker_mb = memory.jvm_mb, memory.worker_mb
        self.results.append(found)
        print(_line(found), flush=True)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _warm_up(read: Callable[[], None]) -> None:
    """Let the JVM compile what it runs: it still does in the second run."""
    read()
    read()


def _job(main: Callable[[list[str]], int], argv: list[str]) -> None:
    """Run a job without its output; it must end well."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        status = main(argv)
    if status != 0:
        raise RuntimeError(f"{argv}: exit status {status}\n{told.getvalue()}")


async def _read_nats_py(url: str, count: int) -> float:
    """Seconds that an ordered consumer of nats-py takes for the first `count` messages."""
    import nats

    connection = await nats.connect(url)
    subscription = await connection.jetstream().subscribe(
        SUBJECT.decode(), stream=STREAM, ordered_consumer=True
    )
    began = time.perf_counter()
    for _ in range(count):
        await subscription.next_msg(timeout=10)
    took = time.perf_counter() - began
    await connection.close()
    return took


def _line(found: Result) -> str:
    memory = f"{found.jvm_mb:.0f} / {found.worker_mb:.0f}" if found.jvm_mb else "-"
    return (
        f"| {found.name} | {found.size} B | {found.count:,} | {number(found.rate)} | "
        f"{number(found.mb_s)} | {memory} | {found.verdict()} |"
    )


def table(results: list[Result]) -> str:
    """The table as Markdown."""
    import pyarrow
    import pyspark

    head = (
        "| row | payload | rows | rows/s | MB/s of payload | JVM / worker MiB | to reach |\n"
        "|---|---|---|---|---|---|---|"
    )
    return (
        f"# Spark\n\nMeasured by `make bench-spark`: {machine()}, PySpark {pyspark.__version__}, "
        f"pyarrow {pyarrow.__version__}, `local[2]`, driver memory {DRIVER_MEMORY}. Servers fsync "
        "before they ack and run on the same cores. Audit counts the records of three replicas.\n\n"
        f"{head}\n" + "\n".join(map(_line, results)) + "\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the rows and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="default: %(default)s")
    parser.add_argument("--sizes", default="100,1024", help="payload bytes (default: %(default)s)")
    parser.add_argument(
        "--count", type=int, default=5_000_000, help="messages of a stream (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each read (default: 3)")
    parser.add_argument("--ours", default=str(Path(sys.executable).parent / "streamd"))
    parser.add_argument("--out", default=str(HERE / "SPARK.md"), help="default: %(default)s")
    options = parser.parse_args(argv)
    options.rows = options.rows.split(",")
    unknown = sorted(set(options.rows) - set(ROWS))
    if unknown:
        parser.error(f"no row is named {unknown[0]!r}; there are {', '.join(ROWS)}")
    from spark_jobs.session import session

    spark = session("bench-spark", master="local[2]", conf={"spark.driver.memory": DRIVER_MEMORY})
    results: list[Result] = []
    for size in map(int, options.sizes.split(",")):
        bench = Bench(options, spark, size)
        bench.run()
        results += bench.results
    Path(options.out).write_text(table(results), encoding="utf-8")
    print(f"written: {options.out}")
    return 1 if any(found.verdict().startswith("MISSED") for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
