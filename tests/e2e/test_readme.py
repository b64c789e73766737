"""The README's snippets, as typed: Python against a server, commands against the examples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Start

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_of_the_readme_runs(make_server: Start, tmp_path: Path) -> None:
    """With the very client that `make setup` installs; only the port is another."""
    pytest.importorskip("nats", reason="the client is not installed: streamd-server[dev]")
    server = make_server()
    server.start()
    (snippet,) = blocks("python")
    assert snippet.count("127.0.0.1:4222") == 1
    example = tmp_path / "example.py"
    example.write_text(snippet.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "PubAck(stream='ORDERS', seq=1" in done.stdout


def test_the_checks_of_configurations_in_the_readme_pass() -> None:
    """Each `streamd -t` line, in a checkout."""
    lines = [
        line.partition("#")[0].split() for block in blocks("sh") for line in block.splitlines()
    ]
    checks = [words for words in lines if words[:2] == ["streamd", "-t"]]
    assert len(checks) == 2
    for words in checks:
        command = [str(Path(sys.executable).parent / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_command_of_the_readme_is_one_of_ours() -> None:
    """Programs and make targets that are there, so that nothing has to be guessed."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    scripts = {path.name for path in Path(sys.executable).parent.iterdir()}
    for line in (line for block in blocks("sh") for line in block.splitlines() if line.strip()):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0] == "make":
            assert words[1] in targets, line
        elif words[0].startswith("streamd") or words[0] == "streamctl":
            assert words[0] in scripts, line
