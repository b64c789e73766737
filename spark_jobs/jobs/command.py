"""The command `streamd-spark`, and what its jobs share: arguments, the session, exit statuses,
errors as one line.

    streamd-spark export --servers nats://127.0.0.1:4222 --stream ORDERS --to ./orders
    streamd-spark stats --path ./data --stream ORDERS
    streamd-spark package --output dist          # what spark-submit needs

A job's `main(argv)` builds a parser with `job_parser`, and hands its work to `run_job`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from streamd.installation import how_to_install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


EXIT_OK: Final = 0
EXIT_WARNINGS: Final = 1  # audit: findings that lose nothing
EXIT_DIFFERENT: Final = 2  # diff, export --verify: the contents differ
EXIT_DAMAGE: Final = 2  # audit
EXIT_FAILED: Final = 3  # could not run, or not to the end
EXIT_INTERRUPTED: Final = 130

JOBS: Final = {
    "ingest": "JSON, CSV, Parquet or text files to a stream",
    "export": "a stream to partitioned Parquet, incrementally",
    "audit": "replicas, live nodes and backups: damage, drift, loss",
    "replay": "a stream to another stream",
    "stats": "rates, sizes, top subjects, skew and gaps of a stream",
    "diff": "two streams or clusters: are they equal, and where not",
    "pipeline": "the whole story with three nodes on this machine",
    "package": "write the files that spark-submit needs",
}
# The module of each job, whose `main(argv)` runs it and returns the exit status.
_MODULES: Final = {
    "ingest": "spark_jobs.ingest.ingest_job",
    "export": "spark_jobs.export.export_job",
    "audit": "spark_jobs.audit.audit_job",
    "replay": "spark_jobs.jobs.replay",
    "stats": "spark_jobs.jobs.stats",
    "diff": "spark_jobs.jobs.diff",
    "pipeline": "examples.pipeline",
    "package": "spark_jobs.jobs.package",
}
# The options of the data source that say how to connect, by argument.
CONNECTION: Final = {
    "servers": ("NATS_URL", "URLS", "comma separated (default: nats://127.0.0.1:4222)"),
    "user": ("NATS_USER", "NAME", "user"),
    "password": ("NATS_PASSWORD", "TEXT", "password"),
    "token": ("NATS_TOKEN", "TEXT", "token"),
    "tls.ca": ("NATS_CA", "FILE", "certificates that sign the server's"),
    "tls.cert": ("NATS_CERT", "FILE", "certificate of this client"),
    "tls.key": ("NATS_KEY", "FILE", "key of this client"),
    "domain": ("", "NAME", "JetStream domain"),
}


class JobError(Exception):
    """The job can't go on. Text: what, why, what to do; one line."""


class JobParser(argparse.ArgumentParser):
    """Ends with `EXIT_FAILED` for wrong arguments: 2 means something else to these jobs."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_FAILED, f"{self.prog}: {message}; see {self.prog} --help\n")


def job_parser(job: str, description: str | None) -> JobParser:
    """A parser for one job, with `--debug` and `--quiet`."""
    parser = JobParser(
        prog=f"streamd-spark {job}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--debug", action="store_true", help="errors with their traceback")
    return parser


def connect_arguments(
    parser: argparse.ArgumentParser,
    *,
    prefix: str = "",
    title: str = "connection (in brackets: the environment's variable for what is not given)",
    without: Sequence[str] = (),
) -> None:
    """Add `--servers`, `--user`, ... but `without`; with a prefix `--left-servers` and so on.

    Without a prefix the environment (NATS_URL, NATS_USER, ...) supplies what is not given.
    """
    group = parser.add_argument_group(title)
    for option, (variable, metavar, text) in CONNECTION.items():
        if option in without:
            continue
        name = f"{prefix}-{option}" if prefix else option
        fallback = os.environ.get(variable) if variable and not prefix else None
        group.add_argument(
            f"--{name.replace('.', '-')}",
            metavar=metavar,
            default=fallback or None,
            help=f"{text} [{variable}]" if variable and not prefix else text,
        )


def connect_options(args: argparse.Namespace, *, prefix: str = "") -> dict[str, str]:
    """Return the given arguments of `connect_arguments` as options of the data source."""
    found = {}
    for option in CONNECTION:
        name = f"{prefix}-{option}" if prefix else option
        value = getattr(args, name.replace(".", "_").replace("-", "_"), None)
        if value:
            found[option] = str(value)
    return found


def spark_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--master`, `--remote`, `--driver-memory` and `--conf`."""
    group = parser.add_argument_group("Spark (leave alone under spark-submit)")
    group.add_argument("--master", metavar="URL", help="default: local[*]")
    group.add_argument("--remote", metavar="URL", help="a Spark Connect server: sc://HOST:15002")
    group.add_argument("--driver-memory", metavar="SIZE", help="such as 2g (default: 1g)")
    group.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a Spark setting; may be repeated",
    )


def session_from(args: argparse.Namespace, name: str) -> SparkSession:
    """The session of a job: that of spark-submit, of Spark Connect, or one on this machine."""
    from spark_jobs.session import session

    conf: dict[str, str] = {}
    for each in args.conf:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise JobError(f"--conf {each!r} is not KEY=VALUE")
        conf[key] = value
    if args.driver_memory:
        conf.setdefault("spark.driver.memory", args.driver_memory)
    if args.remote and args.master:
        raise JobError("--remote and --master exclude each other: leave one out")
    if args.remote:
        _check_connect()
    made = session(name, master=args.remote or args.master, conf=conf)
    register(made)
    return made


def register(spark: SparkSession) -> None:
    """Make format "streamd" known to `spark`: by itself Spark looks for formats where Python is
    installed, not in what --py-files brings."""
    from spark_jobs.source.data_source import StreamdDataSource

    spark.dataSource.register(StreamdDataSource)


def _check_connect() -> None:
    """Raise JobError if the client of Spark Connect is not installed."""
    try:
        importlib.import_module("pyspark.sql.connect.session")
    except ImportError as err:
        raise JobError(
            f"--remote needs the client of Spark Connect ({err}): "
            f"type `{how_to_install('spark', 'connect')}`"
        ) from err


def run_job(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse, work, and return the exit status; an error is one line on stderr, `EXIT_FAILED`."""
    try:
        args = parser.parse_args(argv)
    except SystemExit as err:  # --help or wrong arguments
        return err.code if isinstance(err.code, int) else EXIT_FAILED
    try:
        return work(args)
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as err:  # noqa: BLE001 - the one place where any error becomes a line
        if args.debug:
            traceback.print_exc()
        else:
            print(f"{parser.prog}: {one_line(err)}", file=sys.stderr)
        return EXIT_FAILED


def one_line(error: BaseException) -> str:
    """Return an error as one line, without traceback; of a Spark error the Python error inside, if
    any."""
    text = str(error).strip()
    if type(error).__module__.startswith(("pyspark", "py4j")):
        if "Traceback (most recent call last)" in text:
            # A worker's traceback ends with "package.Error: text"; the last such line is the cause.
            raised = re.findall(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*: (.+)$", text, re.MULTILINE)
            if raised:
                return str(raised[-1]).strip()
        thrown = re.search(r"^: (?:[a-z]\w*\.)+(\w+: .+)$", text, re.MULTILINE)
        return thrown[1] if thrown else text.partition("\n")[0] or type(error).__name__
    first = " ".join(part.strip() for part in text.splitlines() if part.strip())
    if isinstance(error, KeyError | IndexError | AttributeError | TypeError | AssertionError):
        return f"{type(error).__name__}: {first} (a bug: --debug shows where)"
    return first or type(error).__name__


def main(argv: Sequence[str] | None = None) -> int:
    """`streamd-spark JOB ...`; returns the job's exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return EXIT_OK if arguments else EXIT_FAILED
    job = arguments[0]
    if job not in JOBS:
        print(
            f"streamd-spark: no job {job!r}; there are {', '.join(JOBS)}",
            file=sys.stderr,
        )
        return EXIT_FAILED
    missing = missing_packages() if job != "package" else ""
    if missing:
        print(f"streamd-spark {job}: {missing}", file=sys.stderr)
        return EXIT_FAILED
    try:
        module = importlib.import_module(_MODULES[job])
    except ModuleNotFoundError as err:
        if err.name not in ("examples", "examples.pipeline"):
            raise
        print(f"streamd-spark {job}: run it in a checkout of streamd, {err}", file=sys.stderr)
        return EXIT_FAILED
    status: int = module.main(arguments[1:])
    return status


def missing_packages() -> str:
    """Name the packages that are not installed and how to get them, in one line; "" if none is
    missing."""
    names = {"pyspark": "PySpark", "pyarrow": "PyArrow", "pandas": "pandas", "numpy": "NumPy"}
    absent = [title for name, title in names.items() if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    there = " and ".join(absent)
    how = f"type `{how_to_install('spark', 'java')}`"
    return f"{there} {'is' if len(absent) == 1 else 'are'} not installed; {how}"


def _usage() -> str:
    lines = [f"  {name:8} {text}" for name, text in JOBS.items()]
    return "\n".join(["usage: streamd-spark JOB [ARGUMENTS]   (JOB --help says which)", "", *lines])
