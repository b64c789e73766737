"""Cluster of three nodes for all tests of `streamctl`, and a way to run the program in them.

The program runs in this process (an interpreter's start costs more than a command), with pages of a
fixed width; standard input is no terminal.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.cluster import ClusterProcess
from streamd.ctl import app
from tests.e2e.ctl.output_schemas import check_output
from tests.parity.runner import ours_binary

CONFIG = """
accounts {
  APP { users: [{user: app, password: p}], jetstream: enabled }
  STORY { users: [{user: story, password: p}], jetstream: enabled }
  SYS { users: [{user: admin, password: p}] }
}
system_account: SYS
no_auth_user: app
"""
WIDTH = "120"
_TIMES = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?Z?")
_AGES = re.compile(r"\b\d+(?:\.\d+)?(?:ns|us|ms|s|m|h|d)(?:\d+s)?\b")


class Outcome(NamedTuple):
    """End of a run of the program."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The document that `--output json` printed."""
        return json.loads(self.out)

    @property
    def golden(self) -> str:
        """The output with times and ages, which change, as signs of the same kind."""
        return golden(self.out)


def golden(text: str) -> str:
    """Return an output with times and ages as signs of the same kind, two columns behind what is
    before them: right-aligned ones would tell how long they were."""
    text = _AGES.sub("AGE", _TIMES.sub("TIME", text))
    lines = (re.sub(r" {2,}(?=AGE|TIME)", "  ", line).rstrip() for line in text.splitlines())
    return "\n".join(lines)


Ctl = Callable[..., Outcome]


class _Input(io.TextIOWrapper):
    """Standard input with `text` in it; no terminal."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(io.BytesIO(text if isinstance(text, bytes) else text.encode()))


def run_ctl(*words: str, stdin: str | bytes = "") -> Outcome:
    """Run the program; its JSON is checked against the schema of the command."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    before, sys.stdin = sys.stdin, _Input(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = app.main(list(words))
    finally:
        sys.stdin = before
    out.flush()
    raw = out.buffer.getvalue()  # type: ignore[attr-defined]
    found = Outcome(status, raw.decode("utf-8", "surrogateescape"), err.getvalue())
    if "json" in words and found.out:
        check_output(words, found.out)
    return found


def check_golden(name: str, text: str) -> None:
    """Compare an output with the file of that name; STREAMD_REWRITE_GOLDEN=1 writes it instead."""
    path = Path(__file__).parent / "golden" / f"{name}.txt"
    if os.environ.get("STREAMD_REWRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Three nodes; a test uses names of streams of its own, and leaves the nodes running."""
    if not ours_binary():
        pytest.skip("streamd is not installed beside this interpreter")
    directory = tmp_path_factory.mktemp("ctl")
    found = ClusterProcess(ours_binary(), directory=directory, extra=CONFIG)
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of settings, and no variable that would choose a server."""
    for name in ("URL", "CONTEXT", "USER", "PASSWORD", "CREDS", "NKEY", "CERT", "KEY", "CA"):
        monkeypatch.delenv(f"NATS_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", WIDTH)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def admin(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> Ctl:
    """Runs the program at the shared cluster as a user of the system account."""

    def run(*words: str, stdin: str = "") -> Outcome:
        with monkeypatch.context() as changed:
            changed.setenv("NATS_USER", "admin")
            changed.setenv("NATS_PASSWORD", "p")
            return ctl(*words, stdin=stdin)

    return run


@pytest.fixture
def ctl(shared_cluster: ClusterProcess, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Ctl:
    """Runs the program at the shared cluster."""
    monkeypatch.setenv("NATS_URL", ",".join(shared_cluster.urls))
    monkeypatch.setenv("NATS_TIMEOUT", "20s")
    return run_ctl
