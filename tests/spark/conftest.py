"""One local Spark session for all tests, a real server per test, and quick ways to fill it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parity.runner import ours_binary
from tests.spark.daemons import QUICK_JVM
from tests.spark.servers import SparkTestServer

StartServer = Callable[..., SparkTestServer]
TIMEOUT_S = 300  # a test that is cut off leaves a session that no later test can use


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give Spark tests more time than others: JVM and Python workers have to start first."""
    for item in items:
        is_here = item.nodeid.startswith("tests/spark/")
        if is_here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on local[2] with small partitions and a warehouse of its own."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: make spark")
    from spark_jobs.session import JavaMissing, session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="streamd-spark-") as scratch:
        try:
            made = session(
                "streamd tests",
                master="local[2]",
                conf={
                    "spark.driver.memory": "1g",
                    "spark.driver.extraJavaOptions": QUICK_JVM,
                    "spark.local.dir": scratch,
                    "spark.sql.warehouse.dir": f"{scratch}/warehouse",
                    "spark.sql.streaming.checkpoint.fileManagerClass": (
                        "org.apache.spark.sql.execution.streaming.checkpointing."
                        "FileSystemBasedCheckpointFileManager"
                    ),
                },
            )
        except JavaMissing as err:
            pytest.skip(str(err))
        yield made
        made.stop()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers, each on free ports and in a directory of its own; ends them by pid."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    made: list[SparkTestServer] = []

    def start(name: str = "", **options: Any) -> SparkTestServer:
        directory = tmp_path / (name or f"server{len(made)}")
        made.append(SparkTestServer(binary, directory, **options))
        made[-1].start()
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.fixture
def server(start_server: StartServer) -> SparkTestServer:
    """One running server: `url`, `monitoring_url`, `store_dir`, `pid`; see servers.py."""
    return start_server()
