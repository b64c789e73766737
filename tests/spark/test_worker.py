"""The standard error of a worker: Spark that has enough rows is no failure, all else is told."""

from __future__ import annotations

import io
import traceback

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from spark_jobs.worker import _WithoutBrokenPipes


def printed(error: Exception, file_name: str) -> str:
    """What of the error's traceback, raised in `file_name`, comes through."""
    out = io.StringIO()
    code = compile("def f(error):\n    raise error\nf(error)", file_name, "exec")
    try:
        exec(code, {"error": error})
    except type(error):
        traceback.print_exc(file=_WithoutBrokenPipes(out))
    return out.getvalue()


def test_only_a_pipe_that_spark_closed_is_not_told() -> None:
    assert printed(BrokenPipeError(32, "Broken pipe"), "x/pyspark/daemon.py") == ""
    assert "BrokenPipeError" in printed(BrokenPipeError(32, "Broken pipe"), "x/own.py")
    assert "ValueError: no" in printed(ValueError("no"), "x/pyspark/daemon.py")
    out = io.StringIO()
    print("plain", file=_WithoutBrokenPipes(out))
    assert out.getvalue() == "plain\n"
