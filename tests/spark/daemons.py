"""Spark's own processes on loopback: a standalone cluster, ended by pid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_WITHIN_S = 180.0
ENDED_WITHIN_S = 20.0
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"  # short lives, few cores


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


class Daemon:
    """One process; its output is read as it comes."""

    def __init__(self, command: Sequence[str], env: dict[str, str], *, ready: str) -> None:
        self._ready = re.compile(ready)
        self._found: re.Match[str] | None = None
        self._is_ready = threading.Event()
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            found = self._ready.search(line)
            if found and self._found is None:
                self._found = found
                self._is_ready.set()
        self._is_ready.set()  # ended: nothing more to wait for

    def wait(self) -> re.Match[str]:
        """The line that says it is ready. AssertionError with the output if it never comes."""
        self._is_ready.wait(READY_WITHIN_S)
        assert self._found is not None, "".join(self.lines)
        return self._found

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def bare_python(directory: Path) -> Path:
    """A Python with the libraries of this one but not the packages of this checkout: what it
    imports of them must come from --py-files."""
    libraries = spark_home().parent
    path = directory / "python"
    path.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{libraries}"\nexec "{sys.executable}" -S "$@"\n'
    )
    path.chmod(0o755)
    return path


def environment(directory: Path) -> dict[str, str]:
    """Of master, workers and spark-submit."""
    from spark_jobs.session import java_home

    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    python = str(bare_python(directory))
    return {
        **kept,
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }


@contextmanager
def standalone(directory: Path, *, workers: int = 2) -> Iterator[str]:
    """A master and workers of one core each; yields spark://..."""
    env = environment(directory)
    start = str(spark_home() / "bin" / "spark-class")
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    loopback = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    running = [Daemon((start, master, *loopback), env, ready=r"master at (spark://[\d.:]+\d)")]
    try:
        url = running[0].wait()[1]
        for number in range(workers):
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"w{number}"))
            command = (start, worker, *loopback, *size, url)
            running.append(Daemon(command, env, ready="Successfully registered with master"))
        for each in running[1:]:
            each.wait()
        yield url
    finally:
        for each in reversed(running):
            each.close()


def submit(directory: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """spark-submit in `directory`, two executors of one core."""
    command = [
        *(str(spark_home() / "bin" / "spark-submit"), "--master", url),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.cores.max=2", "--conf", "spark.executor.cores=1"),
        *("--conf", "spark.sql.shuffle.partitions=2"),
        *("--driver-memory", "512m", "--executor-memory", "512m"),
        *("--driver-java-options", QUICK_JVM),
        *("--conf", f"spark.executor.extraJavaOptions={QUICK_JVM}"),
        *arguments,
    ]
    return subprocess.run(
        command, cwd=directory, env=environment(directory), capture_output=True, text=True
    )
