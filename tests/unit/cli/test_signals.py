"""`-sl`: which process is meant, and what is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from streamd.cli import signals
from streamd.errors import ConfigError


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        ("bogus=5", 'unknown signal "bogus"'),
        ("", 'unknown signal ""'),
        ("stop=/nofile", "invalid pid: /nofile"),
        ("stop=-1", "invalid pid: -1"),
        ("stop=0", "invalid pid: 0"),
        ("stop=1", "invalid pid: 1"),
        ("stop=4194304999", "invalid pid: 4194304999"),
    ],
)
def test_refusals(request_text: str, words: str) -> None:
    """Never a signal to a group, to everybody or to init."""
    with pytest.raises(ConfigError, match=words):
        signals.send(request_text, "no-such-program")


def test_nothing_runs_under_that_name() -> None:
    """Without a pid the program's name is looked for."""
    with pytest.raises(ConfigError, match="no no-such-program processes running"):
        signals.send("stop", "no-such-program")


def test_a_signal_arrives_by_pid_and_by_pid_file(tmp_path: Path) -> None:
    """Sent to this very process."""
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        signals.send(f"reopen={os.getpid()}", "x")
        file = tmp_path / "pid"
        file.write_text(f"{os.getpid()}\n")
        signals.send(f"reopen={file}", "x")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert got == [signal.SIGUSR1, signal.SIGUSR1]


def test_an_empty_pid_file_is_refused(tmp_path: Path) -> None:
    """It may belong to a server that is just starting."""
    file = tmp_path / "pid"
    file.write_text("")
    with pytest.raises(ConfigError, match="invalid pid"):
        signals.send(f"stop={file}", "x")
