"""`streamctl consumer` and `lag` at three nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamd.ctl import app
from tests.e2e.ctl.conftest import Ctl, check_golden

pytestmark = pytest.mark.slow


@pytest.fixture
def orders(ctl: Ctl) -> str:
    """A stream with five messages on two subjects, made anew."""
    ctl("stream", "delete", "ORD", "--yes")
    assert ctl("stream", "add", "ORD", "--subject", "ord.*", "--replicas", "3").status == 0
    for number in range(1, 6):
        ctl("pub", f"ord.{'ab'[number % 2]}", f"m{number}", "--stream")
    return "ORD"


def test_a_consumer_is_made_read_and_changed(ctl: Ctl, orders: str) -> None:
    """Its fields, position and filters; what an edit does not name stays."""
    made = ctl("consumer", "add", orders, "bill", "--filter", "ord.b", "--ack-wait", "1m")
    assert made.status == 0, made.err
    config = ctl("consumer", "info", orders, "bill", "-o", "json").data["config"]
    assert (config["filter_subject"], config["ack_wait"]) == ("ord.b", 60 * 10**9)
    other = ctl("consumer", "add", orders, "bill", "--ack-wait", "2m")
    assert other.status == 1 and "with another configuration" in other.err
    edited = ctl("consumer", "edit", orders, "bill", "--max-pending", "77")
    assert "max_ack_pending: 1000 -> 77" in edited.err
    config = ctl("consumer", "info", orders, "bill", "-o", "json").data["config"]
    assert (config["filter_subject"], config["max_ack_pending"]) == ("ord.b", 77)

    kept = ctl("consumer", "next", orders, "bill", "--no-ack", "-o", "json").data
    assert [message["data"] for message in kept] == ["m1"]
    taken = ctl("consumer", "next", orders, "bill", "-n", "2", "-o", "json").data
    assert [message["seq"] for message in taken] == [3, 5]
    empty = ctl("consumer", "next", orders, "bill", "--wait", "100ms")
    assert empty.status == 1 and "no messages for bill within 100ms" in empty.err
    shown = ctl("consumer", "list", orders)
    check_golden("consumer_list", shown.golden)

    ctl("consumer", "reset", orders, "bill", "--seq", "3", "--yes")
    taken = ctl("consumer", "next", orders, "bill", "-n", "5", "--wait", "500ms", "-o", "json")
    assert [message["seq"] for message in taken.data] == [3, 5]
    assert ctl("consumer", "reset", orders, "bill").status == 2

    paused = ctl("consumer", "pause", orders, "bill", "--for", "1h")
    assert "bill is paused for" in paused.out
    (row,) = ctl("consumer", "report", orders, "-o", "json").data
    assert row["paused"] is True
    assert ctl("consumer", "resume", orders, "bill").out == "bill goes on\n"
    (row,) = ctl("consumer", "report", orders, "-o", "json").data
    assert row["paused"] is False

    assert ctl("consumer", "delete", orders, "bill").status == 2
    assert ctl("consumer", "delete", orders, "bill", "--yes").status == 0
    gone = ctl("consumer", "info", orders, "bill")
    assert gone.status == 1
    assert "try: streamctl consumer list ORD" in gone.err


def test_lag_is_told_worst_first_and_by_exit_status(ctl: Ctl, orders: str) -> None:
    """Messages that were not acked count, and the age of the oldest; 1 past a threshold."""
    ctl("consumer", "add", orders, "fast")
    ctl("consumer", "next", orders, "fast", "-n", "5")
    ctl("consumer", "add", orders, "slow")
    ctl("consumer", "next", orders, "slow", "-n", "2", "--no-ack")
    deadline = time.monotonic() + 30  # a delivery counts a moment after it was sent
    while ctl("consumer", "info", orders, "slow", "-o", "json").data["num_ack_pending"] < 2:
        assert time.monotonic() < deadline
    found = ctl("lag", orders, "-o", "json")
    assert found.status == 0
    (row,) = found.data
    assert (row["name"], row["messages"], row["pending"], row["in_flight"]) == ("slow", 5, 3, 2)
    assert row["time_ns"] > 0
    rows = ctl("lag", orders, "--all", "-o", "json").data
    assert [row["name"] for row in rows] == ["slow", "fast"]
    late = ctl("lag", orders, "--max-messages", "4")
    assert late.status == 1 and "LATE" in late.out
    assert "1 of 2 consumers are past the threshold" in late.err
    assert ctl("lag", orders, "--max-messages", "5").status == 0
    assert ctl("lag", orders, "--max-time", "1ns").status == 1
    assert ctl("lag", orders, "--max-time", "1d").status == 0


def test_names_complete(
    ctl: Ctl, orders: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Streams and their consumers, as the server has them."""
    ctl("consumer", "add", orders, "by-hand")
    monkeypatch.setenv("_STREAMCTL_COMPLETE", "zsh_complete")
    for words, wanted in (
        ("streamctl stream info OR", "ORD"),
        ("streamctl consumer info ORD by", "by-hand"),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        with pytest.raises(SystemExit):
            app.main([])
        assert wanted in capsys.readouterr().out.splitlines()


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
def test_bash_completes_commands_and_names(ctl: Ctl, orders: str) -> None:
    """By the script that the program prints, as the shell calls it."""
    ctl("consumer", "add", orders, "in-bash")
    script = """
    eval "$(streamctl completion bash)"
    for words in "stream inf" "stream info OR" "consumer info ORD in-"; do
      COMP_WORDS=(streamctl $words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
      _streamctl_completion streamctl
      echo "${COMPREPLY[@]}"
    done
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.stdout.split("\n") == ["info", "ORD", "in-bash", ""], done.stderr
