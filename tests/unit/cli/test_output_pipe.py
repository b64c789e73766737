"""Programs whose output is not taken: its reader has gone, as in `streamd --help | head`, its disk
is full, or it is closed. No traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


programs = pytest.mark.parametrize(
    "words",
    [
        ["streamd.cli.server", "--help"],
        ["streamd.ctl.app", "--help"],
        ["streamd.ctl.app", "completion", "bash"],
        ["streamd.ctl.app", "context", "list"],
        ["streamd.ctl.app", "context", "list", "-o", "json"],
    ],
)


def ended(
    words: list[str], home: Path, output: int, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[bytes]:
    """Run a program whose standard output is this file to its end."""
    return subprocess.run(
        [*before, sys.executable, "-m", *words],
        stdout=output,
        stderr=subprocess.PIPE,
        env=os.environ | {"XDG_CONFIG_HOME": str(home), "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )


@programs
def test_a_reader_that_has_gone_is_no_error(words: list[str], tmp_path: Path) -> None:
    """Nothing on standard error: what is left of the output is dropped."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = ended(words, tmp_path, writing)
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (0, 1)


@programs
def test_a_full_disk_is_told_in_one_line(words: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = ended(words, tmp_path, full.fileno())
    assert done.stderr.endswith(b"No space left on device\n"), done.stderr
    assert done.stderr.count(b"\n") == 1
    assert done.returncode in (0, 1)


@programs
def test_a_closed_output_is_no_error(words: list[str], tmp_path: Path) -> None:
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh"]
    done = ended(words, tmp_path, subprocess.DEVNULL, closed)
    assert (done.returncode, done.stderr) == (0, b"")
