"""A day of an operator: from the wheel in a clean environment to a drained node, by `streamctl`.

Each line is typed into a shell that knows nothing of this checkout. What is waited for is what the
commands themselves say.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.servers import free_ports
from tests.browser import Browser
from tests.e2e.installation import install, outside, packages

__all__ = ["packages"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODES = ("node1", "node2", "node3")
WITHIN_S = 120.0
BODY_BYTES = 128 * 1024
BODIES = 100  # of this size: a block of 8 MiB is full, and its successor grows


class Said(NamedTuple):
    """End of a command."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The document that `--output json` printed."""
        return json.loads(self.out)


class Operator:
    """Person at a shell in a directory, with the programs that were installed."""

    def __init__(self, programs: Path, home: Path) -> None:
        self._programs = programs
        self.home = home
        self._env = outside(
            PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
            HOME=str(home),
            XDG_CONFIG_HOME=str(home / "config"),
            NATS_TIMEOUT="30s",
            COLUMNS="140",
        )

    def types(self, *words: str, status: int = 0, stdin: bytes = b"") -> Said:
        """Run `streamctl`; it must end with `status`."""
        said = self._type(words, stdin)
        assert said.status == status, (words, said)
        return said

    def types_until(self, *words: str) -> Said:
        """Run `streamctl` again and again, until it ends with 0."""
        deadline = time.monotonic() + WITHIN_S
        while (said := self._type(words)).status:
            assert time.monotonic() < deadline, (words, said)
        return said

    def _type(self, words: tuple[str, ...], stdin: bytes = b"") -> Said:
        done = subprocess.run(
            [str(self._programs / "streamctl"), *words],
            cwd=self.home, env=self._env, input=stdin, capture_output=True, check=False,
            timeout=300,
        )  # fmt: skip
        return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def operator(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """Operator who has just installed the wheel; servers that are still up at the end go."""
    for name in [name for name in os.environ if name.startswith("NATS_")]:
        monkeypatch.delenv(name)
    programs = install(packages, tmp_path / "venv")
    home = tmp_path / "home"
    home.mkdir()
    yield Operator(programs, home)
    for file in home.glob("data/cluster/*/pid"):
        number = int(file.read_text(encoding="ascii"))
        command = Path(f"/proc/{number}/cmdline")
        if command.exists() and str(file.parent).encode() in command.read_bytes():
            os.kill(number, signal.SIGKILL)


def read(port: int, path: str) -> tuple[int, str]:
    """Return status and text of a page of the monitoring port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as err:
        return err.code, err.read().decode()


def metric(port: int, name: str) -> float:
    """Return the sum of a metric's samples."""
    _, page = read(port, "/metrics")
    lines = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    assert lines, name
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_day_of_an_operator(operator: Operator) -> None:
    """Install, cluster up, create, bench, top, lag, a killed node (told by the dashboard), a
    flipped byte, scrub, repair, backup, restore under another name, rolling restart, drain."""
    types, until = operator.types, operator.types_until
    clients, monitoring, routes = (free_ports(len(NODES)) for _ in range(3))

    # A cluster, and a name for each of the operator's two hats.
    up = ("cluster", "up", "--port", str(clients), "--http-port", str(monitoring))
    said = types(*up, "--cluster-port", str(routes)).out
    (password,) = [line.rpartition(" ")[2] for line in said.splitlines() if "--password" in line]
    urls = ",".join(f"nats://127.0.0.1:{clients + at}" for at in range(len(NODES)))
    types("--server", urls, "context", "save", "app", "--select")
    types("--server", urls, "--user", "admin", "--password", password, "context", "save", "ops")
    ops = ("--context", "ops")
    assert [row["name"] for row in types(*ops, "server", "list", "-o", "json").data] == [*NODES]

    # A stream, some load, and how it goes.
    types("stream", "add", "ORDERS", "--subject", "orders.>", "--replicas", "3")
    body = b"o" * BODY_BYTES
    load = ("pub", "orders.new", "--count", str(BODIES), "--stream", "-o", "json")
    assert types(*load, stdin=body).data["acks"][-1]["seq"] == BODIES
    rows = types("bench", "js-pub", "--count", "500", "--replicas", "3", "-o", "json").data
    assert rows
    types("consumer", "add", "ORDERS", "billing")
    types("consumer", "next", "ORDERS", "billing")
    lag = types("lag", "--max-messages", "10", "-o", "json", status=1).data
    assert [(row["stream"], row["name"], row["messages"]) for row in lag] == [
        ("ORDERS", "billing", BODIES - 1)
    ]
    assert "ORDERS" in types("top", "streams", "--times", "1").out
    assert "node2" in types(*ops, "top", "servers", "--times", "1").out

    # A node dies. Everybody says so, and publishers go on; it comes back and is well.
    nodes = {row["node"]: row for row in types("cluster", "status", "-o", "json").data}
    page = Browser(monitoring)
    assert page.log_in("admin", password)["role"] == "administrator"
    with page.stream("live") as live:
        live.wait("overview")
        os.kill(nodes["node2"]["pid"], signal.SIGKILL)
        for name, document in live.events():
            if name == "overview" and [
                node["name"] for node in document["nodes"] if node["offline"]
            ] == ["node2"]:
                break
    said = types("cluster", "status", "-o", "json", status=1)
    assert {row["node"]: row["health"] for row in said.data}["node2"] == "not running"
    types("health", f"http://127.0.0.1:{monitoring + 1}/healthz", status=1)
    assert "node2" in types(*ops, "server", "list", status=1).err
    types("pub", "orders.new", "while one is away", "--stream")
    types("cluster", "up")
    until(*ops, "server", "report", "health")

    # A byte of a block flips on one disk: found, told, and made good from the others.
    there = Browser(monitoring + 2)
    there.log_in("admin", password)
    store = operator.home / "data" / "cluster" / "node3" / "store"
    (block,) = store.glob("streamd/streams/*/1.blk")
    content = block.read_bytes()
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 1
    block.write_bytes(flipped)
    found = {row["server"]: row for row in types(*ops, "scrub", "-o", "json", status=1).data}
    assert found["node3"]["new_damages"] >= 1
    assert not found["node1"]["new_damages"] and not found["node2"]["new_damages"]
    until(*ops, "scrub")
    assert metric(monitoring + 2, "streamd_repaired_blocks_total") == 1
    assert metric(monitoring + 2, "streamd_damaged_streams") == 0
    told = [item["text"] for item in there.get("events")["items"] if item["kind"] == "repair"]
    assert any("block is repaired" in text for text in told), told
    assert block.read_bytes() == content
    stores = [f"data/cluster/{name}/store" for name in NODES]
    until("audit", *stores)
    assert types("inspect", stores[0]).out

    # A backup, and the stream again under another name.
    types("backup", "create", "backups", "ORDERS")
    types("backup", "verify", "backups")
    types("backup", "restore", "backups", "ORDERS", "--as", "COPY", "--subject", "copy.>")
    assert types("stream", "info", "COPY", "-o", "json").data["state"]["messages"] == BODIES + 1

    # One node after the other is restarted; one is drained for good; the day ends.
    said = types("cluster", "restart").out
    assert [f"{name}: all nodes are ready again" in said for name in NODES] == [True] * 3
    assert types(*ops, "server", "drain", "node3", "--yes").out == "node3 has stopped\n"
    types("cluster", "status", status=1)
    last = types("stream", "get", "ORDERS", str(BODIES + 1), "-o", "json").out
    assert last
    assert "node1, node2" in types("cluster", "down").out
