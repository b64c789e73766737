"""Programs whose output nobody reads to its end, as in `streamd --help | head`: no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "words",
    [
        ["streamd.cli.server", "--help"],
        ["streamd.ctl.app", "--help"],
        ["streamd.ctl.app", "completion", "bash"],
        ["streamd.ctl.app", "context", "list"],
    ],
)
def test_a_reader_that_has_gone_is_no_error(words: list[str], tmp_path: Path) -> None:
    """Nothing on standard error: what is left of the output is dropped."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode in (0, 1)
