"""What all jobs share: arguments, exit statuses, errors as one line, progress, the package."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spark_jobs.jobs import command as jobs
from spark_jobs.jobs.command import JobError, connect_arguments, job_parser, one_line, run_job
from spark_jobs.jobs.package import PACKAGES, package
from spark_jobs.jobs.progress import Progress
from streamd.installation import how_to_install


class PythonException(Exception):
    """As the one of pyspark, by its module."""


PythonException.__module__ = "pyspark.errors.exceptions.captured"

WORKER_ERROR = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/zip/spark_jobs/source/offline.py", line 9, in read
    raise DataLoss(text)
spark_jobs.source.offline.DataLoss: stream ORDERS: messages 1 to 9 are gone

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/zip/spark_jobs/source/offline.py", line 9, in read
spark_jobs.source.offline.DataLoss: stream ORDERS: messages 1 to 9 are gone
"""


def test_the_cause_in_a_worker_is_what_the_user_reads() -> None:
    assert one_line(PythonException(WORKER_ERROR)) == "stream ORDERS: messages 1 to 9 are gone"
    java = "An error occurred while calling o1.x.\n: java.io.IOException: disk full\n\tat a.b"
    assert one_line(PythonException(java)) == "IOException: disk full"
    assert one_line(JobError("two\nlines")) == "two lines"
    assert "a bug" in one_line(KeyError("x"))


def test_wrong_arguments_exit_with_3_not_with_the_2_of_a_difference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = job_parser("diff", "text")
    assert run_job(parser, lambda args: 0, ["--no-such"]) == jobs.EXIT_FAILED
    assert "streamd-spark diff: unrecognized arguments: --no-such" in capsys.readouterr().err
    assert run_job(parser, lambda args: 0, ["--help"]) == jobs.EXIT_OK


def test_an_error_is_one_line_and_debug_adds_the_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(args: object) -> int:
        raise JobError("what, why, what to do")

    assert run_job(job_parser("export", ""), work, []) == jobs.EXIT_FAILED
    assert capsys.readouterr().err == "streamd-spark export: what, why, what to do\n"
    assert run_job(job_parser("export", ""), work, ["--debug"]) == jobs.EXIT_FAILED
    assert "Traceback" in capsys.readouterr().err


def test_every_job_has_help_and_an_unknown_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for job in jobs.JOBS:
        assert jobs.main([job, "--help"]) == jobs.EXIT_OK, job
        assert f"usage: streamd-spark {job} " in capsys.readouterr().out
    assert jobs.main(["exprot"]) == jobs.EXIT_FAILED
    assert "no job 'exprot'; there are ingest, export" in capsys.readouterr().err


def test_the_environment_fills_in_missing_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://a:1")
    monkeypatch.setenv("NATS_PASSWORD", "secret")
    parser = job_parser("stats", "")
    connect_arguments(parser)
    args = parser.parse_args(["--user", "me", "--tls-ca", "ca.pem"])
    found = jobs.connect_options(args)
    assert found == {
        "servers": "nats://a:1",
        "user": "me",
        "password": "secret",
        "tls.ca": "ca.pem",
    }
    other = job_parser("diff", "")
    connect_arguments(other, prefix="left")
    args = other.parse_args(["--left-servers", "nats://b:2"])
    assert jobs.connect_options(args, prefix="left") == {"servers": "nats://b:2"}


def test_progress_without_a_terminal_ends_with_one_line() -> None:
    out = io.StringIO()
    with Progress(10, "export X", stream=out) as progress:
        progress.advance(4)
        progress.note("a note")
        progress.advance(6)
    lines = out.getvalue().splitlines()
    assert lines[0] == "a note"
    assert len(lines) == 2
    assert lines[1].startswith("export X: 10/10 rows, ")
    with Progress(None, "quiet", stream=out, is_quiet=True) as progress:
        progress.advance()
    assert len(out.getvalue().splitlines()) == 2


def test_the_package_is_the_same_every_time_and_runs_from_the_zip(tmp_path: Path) -> None:
    made = package(tmp_path / "a")
    assert made.read_bytes() == package(tmp_path / "b").read_bytes()
    names = zipfile.ZipFile(made).namelist()
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    # -S -E would hide the libraries; the zip comes before the working directory's packages.
    done = subprocess.run(
        [sys.executable, str(made.with_name("streamd-spark.py")), "package"],
        env={"PYTHONPATH": str(made), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == jobs.EXIT_FAILED
    assert "it is packaged already" in done.stderr


def test_progress_of_which_nothing_is_known_shows_no_zeros() -> None:
    out = io.StringIO()
    with Progress(None, "stats X", unit="tasks", stream=out):
        pass
    assert out.getvalue().startswith("stats X: 0.")
    assert "tasks" not in out.getvalue()


def test_without_pyspark_a_job_says_in_one_line_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = jobs.importlib.util.find_spec
    monkeypatch.setattr(
        jobs.importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name)
    )
    assert jobs.main(["stats", "--stream", "X"]) == jobs.EXIT_FAILED
    said = capsys.readouterr().err
    what_to_type = how_to_install("spark", "java")
    assert said == f"streamd-spark stats: PySpark is not installed; type `{what_to_type}`\n"
