"""The unit for systemd: systemd's own tools accept it, and it keeps the server in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.cli.server import main

PACKAGING = Path(__file__).parents[2] / "packaging" / "systemd"
BINARY = "/opt/streamd/bin/streamd"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine."""
    file = tmp_path / "streamd.service"
    text = (PACKAGING / "streamd.service").read_text(encoding="utf-8")
    assert text.count(BINARY) == 2  # the check of the configuration, and the server
    file.write_text(text.replace(BINARY, sys.executable), encoding="utf-8")
    return file


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit_and_finds_it_sandboxed(unit: Path) -> None:
    """No key is unknown, and the exposure that systemd computes stays below 2.5 of 10."""
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
    )
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged.stdout)
    assert exposure is not None, judged.stdout + judged.stderr
    assert float(exposure[1]) < 2.5


def test_the_unit_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Installable, its own user, as many files as the server wants; its configuration is valid and
    keeps the data where the unit lets it write."""
    text = (PACKAGING / "streamd.service").read_text(encoding="utf-8")
    for line in ("[Install]", "User=streamd", "LimitNOFILE=65536", "StateDirectory=streamd"):
        assert f"\n{line}\n" in text
    assert "u streamd " in (PACKAGING / "streamd.sysusers").read_text(encoding="utf-8")
    config = PACKAGING / "streamd.conf"
    assert "store_dir: /var/lib/streamd" in config.read_text(encoding="utf-8")
    assert main(["-t", "--strict", "-c", str(config)]) == 0
    assert "is valid" in capsys.readouterr().err
