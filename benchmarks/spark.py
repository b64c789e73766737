"""Speed of Spark reading, writing, exporting and auditing streams on this machine, `local[2]`.

    make bench-spark                        # all rows, 2 to 5 million messages; about 17 minutes
    make bench-spark ARGS="--rows offline,audit --sizes 100 --count 1000000"

Servers fsync before they ack. Each row has a Spark session in a process of its own, as a job has.
Reads run `--runs` times after two that warm up, and the median counts; the others run once. Beside
the online reads: the same stream through nats-py, one process; and `ceiling`: a source whose rows
are ready, which is all that Spark takes from Python here.
Memory is the peak resident size of Spark's JVM and of its largest Python worker in that row.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.cluster import ClusterProcess
from benchmarks.generator import generate
from benchmarks.load import STREAM, SUBJECT, Api
from benchmarks.report import machine, number
from benchmarks.servers import ServerProcess, end_servers_on_sigterm

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
WARM_UPS: Final = 2  # the JVM still compiles in the second
MIB: Final = 1 << 20
NOTES: Final = """\
`ceiling` is a source whose rows are ready ([spark_ceiling.py](spark_ceiling.py)): no read through
Python can be faster. Each row has a session of its own. `export`, `audit` and the `ingest` rows run
once, so that the JVM's warming up is in their figures."""


@dataclass
class Result:
    """Row of the table. `seconds` of each run, the slowest first."""

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
    """Rows for one payload size, over one filled server."""

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self._options = options
        self._size = size
        self._count: int = options.count
        self._directory = Path(tempfile.mkdtemp(prefix="streamd-bench-spark-"))
        self.results: list[Result] = []

    def run(self) -> None:
        """Fill a server, read it in every way, write in every way."""
        wanted = self._options.rows
        try:
            if "ceiling" in wanted:
                self._spark("ceiling")
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
                seconds = asyncio.run(_read_nats_py(server.url, rows))
                self._note(Result("nats-py", self._size, rows, [seconds]))
            if "online" in wanted:
                self._spark("read", "online", {"servers": server.url})
            if "export" in wanted:
                self._spark("export", server.url)
        finally:
            server.stop()
        if "offline" in wanted:
            self._spark("read", "offline", {"path": str(server.store_dir)})
        if "audit" in wanted:
            self._audit(server.store_dir)

    def _audit(self, store: Path) -> None:
        replicas = {"n1": store}
        for label in ("n2", "n3"):
            replicas[label] = self._directory / f"copy-{label}"
            shutil.copytree(store, replicas[label])
        self._spark("audit", replicas)
        for label in ("n2", "n3"):
            shutil.rmtree(replicas[label])

    def _ingest(self, name: str, urls: str, port: int, replicas: int) -> None:
        api = Api(port)
        api.create_stream(num_replicas=replicas, allow_atomic=True, allow_direct=True)
        api.close()
        self._spark("ingest", name, urls)

    def _spark(self, row: str, *args: Any) -> None:
        """Run a row of `SparkRows` in a process and a JVM of its own, as any job is run."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found = pool.submit(
                _in_session, row, args, self._size, self._count, self._options.runs, self._directory
            )
            try:
                self._note(found.result())
            except SystemExit:  # the row need not come to its end first
                for child in multiprocessing.active_children():
                    child.terminate()
                raise

    def _note(self, found: Result) -> None:
        self.results.append(found)
        print(_line(found), flush=True)


def _in_session(
    row: str, args: tuple[Any, ...], size: int, count: int, runs: int, directory: Path
) -> Result:
    from spark_jobs.session import session

    spark = session("bench-spark", master="local[2]", conf={"spark.driver.memory": DRIVER_MEMORY})
    try:
        rows = SparkRows(spark, size=size, count=count, runs=runs, directory=directory)
        found: Result = getattr(rows, row)(*args)
        return found
    finally:
        spark.stop()


class SparkRows:
    """The rows that a Spark session measures."""

    def __init__(
        self, spark: SparkSession, *, size: int, count: int, runs: int, directory: Path
    ) -> None:
        self._spark = spark
        self._size = size
        self._count = count
        self._runs = runs
        self._directory = directory

    def ceiling(self) -> Result:
        """Time that Spark takes for rows that are ready, from Python into nothing."""
        from benchmarks.spark_ceiling import CeilingSource

        self._spark.dataSource.register(CeilingSource)
        reader = self._spark.read.format("ceiling")
        frame = reader.options(count=self._count, size=self._size).load()
        count = frame.count()
        return self._repeated("ceiling", count, lambda: _into_nothing(frame))

    def read(self, name: str, options: dict[str, str]) -> Result:
        """Read the whole stream into nothing."""
        found = self._repeated(name, self._count, lambda: _into_nothing(self._stream(options)))
        self._check(self._stream(options), self._count)
        return found

    def export(self, url: str) -> Result:
        """The job, into one Parquet directory."""
        from spark_jobs.export import export_job as export

        target = str(self._directory / "parquet")
        argv = ["--servers", url, "--stream", STREAM, "--to", target, "--quiet"]
        job = [*argv, "--partition-by", "none"]
        found = self._once("export", self._count, lambda: _job(export.main, job))
        self._check(self._spark.read.parquet(target), self._count)
        return found

    def audit(self, replicas: dict[str, Path]) -> Result:
        """The job, over directories of servers that do not run."""
        from spark_jobs.audit import audit_job as audit

        argv = ["--quiet", *(f"--replica={label}={path}" for label, path in replicas.items())]
        count = len(replicas) * self._count
        return self._once("audit", count, lambda: _job(audit.main, argv))

    def ingest(self, name: str, urls: str) -> Result:
        """Rows of a Parquet file into a new stream, through the ledger."""
        from pyspark.sql import functions as f

        count = min(INGEST_ROWS, self._count)
        source = str(self._directory / "source")
        if not os.path.exists(source):
            rows = self._spark.range(0, count, 1, 8)
            subject = f.lit(SUBJECT.decode()).alias("subject")
            # Different in every row, so that nothing on the way can compress it away.
            text = f.rpad(f.sha2(f.col("id").cast("string"), 256), self._size, "x")
            rows.select(subject, text.alias("payload")).write.parquet(source)
        writer = self._spark.read.parquet(source).write.format("streamd").mode("append")
        told = {"servers": urls, "stream": STREAM}
        writer = writer.options(**told, jobId=f"bench-{name}", prepareStream="true")
        found = self._once(name, count, writer.save)
        self._check(self._stream(told), count)
        return found

    def _stream(self, options: dict[str, str]) -> DataFrame:
        reader = self._spark.read.format("streamd").option("stream", STREAM)
        return reader.options(**options).load()

    def _repeated(self, name: str, count: int, read: Callable[[], None]) -> Result:
        for _ in range(WARM_UPS):
            read()
        with _watched() as memory:
            seconds = [_seconds(read) for _ in range(self._runs)]
        return Result(name, self._size, count, seconds, memory.jvm_mb, memory.worker_mb)

    def _once(self, name: str, count: int, work: Callable[[], object]) -> Result:
        with _watched() as memory:
            seconds = [_seconds(work)]
        return Result(name, self._size, count, seconds, memory.jvm_mb, memory.worker_mb)

    def _check(self, frame: DataFrame, count: int) -> None:
        found = frame.count()
        assert found == count, (found, count)


def _into_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


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
        f"{head}\n" + "\n".join(map(_line, results)) + f"\n\n{NOTES}\n"
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
    end_servers_on_sigterm()
    results: list[Result] = []
    for size in map(int, options.sizes.split(",")):
        bench = Bench(options, size)
        bench.run()
        results += bench.results
    Path(options.out).write_text(table(results), encoding="utf-8")
    print(f"written: {options.out}")
    return 1 if any(found.verdict().startswith("MISSED") for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
