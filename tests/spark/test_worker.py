"""The standard error of a worker: Spark that has enough rows is no failure, all else is told."""

from __future__ import annotations

import io
import subprocess
import sys
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


@pytest.mark.parametrize(("main", "is_quiet"), [("pyspark.daemon", True), ("own", False)])
def test_a_process_of_sparks_daemon_is_quiet_from_its_import_of_the_format_on(
    main: str, is_quiet: bool
) -> None:
    """Planning processes never call `settle`; a driver's standard error is left alone."""
    program = (
        "import sys\n"
        "from importlib.machinery import ModuleSpec\n"
        f"sys.modules['__main__'].__spec__ = ModuleSpec({main!r}, None)\n"
        "import pyspark_streamd\n"
        "print(type(sys.stderr).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip() == "_WithoutBrokenPipes") is is_quiet, done.stderr


def test_only_a_pipe_that_spark_closed_is_not_told() -> None:
    assert printed(BrokenPipeError(32, "Broken pipe"), "x/pyspark/daemon.py") == ""
    assert "BrokenPipeError" in printed(BrokenPipeError(32, "Broken pipe"), "x/own.py")
    assert "ValueError: no" in printed(ValueError("no"), "x/pyspark/daemon.py")
    out = io.StringIO()
    print("plain", file=_WithoutBrokenPipes(out))
    assert out.getvalue() == "plain\n"
