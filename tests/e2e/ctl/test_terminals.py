"""`streamctl` at a real terminal and in real shells: keys of `top`, progress, completion."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e.ctl.conftest import Ctl

pytestmark = pytest.mark.slow

WITHIN_S = 60.0


class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        env = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "streamd.ctl.app", *words],
            stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, text: bytes) -> bytes:
        """Return what is written until `text` is, or the program ends."""
        begin = len(self.seen)
        deadline = time.monotonic() + WITHIN_S
        while text not in self.seen[begin:]:
            assert time.monotonic() < deadline, (text, self.seen[-2000:])
            if select.select([self._master], [], [], 1.0)[0]:
                try:
                    self.seen += os.read(self._master, 65536)
                except OSError:  # the terminal has been closed
                    break
        return self.seen[begin:]

    def ended(self) -> int:
        """Return the exit status, having read all that is written until then."""
        self.until(b"nothing more is to come")
        return self.process.wait(WITHIN_S)


def test_keys_change_what_top_shows(ctl: Ctl, shared_cluster: ClusterProcess) -> None:
    """Filter, order, help and the end, each at once though looks are an hour apart; the terminal
    is as it was afterwards."""
    for name in ("TKEYA", "TKEYB"):
        ctl("stream", "add", name, "--subject", name.lower())
    words = ["-s", shared_cluster.urls[0], "--timeout", "20s"]
    with Terminal(*words, "top", "streams", "--every", "1h", "--filter", "^TKEY") as screen:
        shown = screen.until(b"? keys")
        assert b"TKEYA" in shown and b"TKEYB" in shown
        screen.type(b"/TKEYB\r")
        screen.until(b"filter: TKEYB")
        screen.type(b"s")
        screen.until(b"sort: name")
        screen.type(b"r")
        screen.until(b"reversed")
        screen.type(b"?")
        screen.until(b"q quit")
        screen.type(b"q")
        assert screen.ended() == 0
        assert b"\x1b[?1049l" in screen.seen  # back from the other screen
    piped = ctl("top", "streams", "--once", "--every", "50ms", "--filter", "^TKEYA$")
    assert piped.status == 0
    assert piped.out.count("streamctl top") == 1 and "TKEYB" not in piped.out


def test_what_takes_long_shows_how_far_it_is(ctl: Ctl, shared_cluster: ClusterProcess) -> None:
    """A paced publish of two seconds: a bar from the first second on, none of it in the output."""
    words = ["-s", shared_cluster.urls[0], "pub", "bar.x", "x", "--count", "20", "--rate", "10"]
    with Terminal(*words) as screen:
        assert b"publishing to bar.x" in screen.until(b"/20")
        assert screen.ended() == 0
        assert b"20 messages published" in screen.seen


SHELLS = {
    "bash": """
        eval "$(streamctl completion bash)"
        COMP_WORDS=({words}); COMP_CWORD={at}
        _streamctl_completion streamctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        compdef() {{ }}
        compadd() {{ print -l -- "${{(@P)@[-1]}}" }}
        _describe() {{ local -a found; found=("${{(@P)3}}"); print -l -- "${{found[@]%%:*}}" }}
        eval "$(streamctl completion zsh)"
        words=({words}); CURRENT=$(({at} + 1))
        _streamctl_completion
    """,
    "fish": """
        streamctl completion fish | source
        complete -C '{words}'
    """,
}


@pytest.mark.parametrize("shell", SHELLS)
def test_names_of_servers_complete_in_a_real_shell(
    shell: str, ctl: Ctl, shared_cluster: ClusterProcess, tmp_path: Path
) -> None:
    """Streams, consumers of the stream before them, buckets, commands; else nothing."""
    program = shutil.which(shell)
    if not program:
        pytest.skip(f"there is no {shell} here")
    ctl("stream", "add", "CPLONE", "--subject", "cpl.one")
    ctl("stream", "add", "CPLTWO", "--subject", "cpl.two")
    ctl("consumer", "add", "CPLONE", "eater")
    ctl("kv", "add", "cplbucket")
    command = tmp_path / "streamctl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streamd.ctl.app "$@"\n')
    command.chmod(0o755)
    env = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NATS_URL": shared_cluster.urls[0],
        "HOME": str(tmp_path),
    }

    def complete(words: str, **changed: str) -> list[str]:
        script = SHELLS[shell].format(words=words, at=len(words.split()) - 1)
        done = subprocess.run(
            [program, "-c", script], env=env | changed, capture_output=True, text=True,
            timeout=WITHIN_S, check=False,
        )  # fmt: skip
        found = [line.split("\t")[0].strip() for line in done.stdout.splitlines()]
        return sorted(name for name in found if name)

    assert complete("streamctl stream info CPL") == ["CPLONE", "CPLTWO"]
    assert complete("streamctl consumer info CPLONE ea") == ["eater"]
    assert complete("streamctl kv get cpl") == ["cplbucket"]
    assert complete("streamctl stream sub") == ["subjects"]
    assert complete("streamctl stream info CPL", NATS_URL="nats://127.0.0.1:9") == []
