"""`streamctl cluster` with real nodes: one that is frozen, dead, or in another cluster's place."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers import free_ports
from streamd.cli.cluster_local import LocalCluster
from streamd.ctl import app as ctl

NODES = 3
Captured = pytest.CaptureFixture[str]


def _up(directory: Path, ports: tuple[int, int, int], *more: str) -> int:
    flags = zip(("--port", "--http-port", "--cluster-port"), map(str, ports), strict=True)
    return ctl.main(
        [
            "cluster",
            "up",
            "--dir",
            str(directory),
            *(word for pair in flags for word in pair),
            *more,
        ]
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a cluster may be made; what runs of it ends with the test."""
    made = tmp_path / "cluster"
    yield made
    if (made / "cluster.json").exists():
        cluster = LocalCluster.load(made)
        for node in cluster.nodes:
            if node.pid():
                os.kill(node.pid(), signal.SIGCONT)
                node.end(signal.SIGKILL)


@pytest.mark.slow
def test_a_day_of_a_cluster(directory: Path, tmp_path: Path, capsys: Captured) -> None:
    """Up, a second one in its place, a frozen node, a restart, logs, down."""
    ports = free_ports(NODES), free_ports(NODES), free_ports(NODES)
    assert _up(directory, ports) == 0
    assert f"connect to nats://127.0.0.1:{ports[0]}," in capsys.readouterr().out

    # Another directory, the same ports: nothing is started, and it is told whose they are.
    other = tmp_path / "other"
    assert _up(other, (free_ports(NODES), ports[1], free_ports(NODES))) == 1
    said = capsys.readouterr().err
    assert f"node1 can't listen on {ports[1]}: in use, by server 'node1'" in said
    assert str(directory) in said
    assert not any(node.pid() for node in LocalCluster.load(other).nodes)

    # A frozen node is told within two seconds; the others answer.
    cluster = LocalCluster.load(directory)
    frozen = cluster.nodes[1]
    os.kill(frozen.pid(), signal.SIGSTOP)
    began = time.monotonic()
    assert ctl.main(["cluster", "status", "--dir", str(directory), "--json"]) == 1
    assert time.monotonic() - began < 2
    os.kill(frozen.pid(), signal.SIGCONT)
    rows = json.loads(capsys.readouterr().out)
    assert [row["node"] for row in rows] == ["node1", "node2", "node3"]
    assert "no answer" in rows[1]["health"]
    assert all("messages" not in row for row in rows)  # of streams that live elsewhere

    before = frozen.pid()
    assert ctl.main(["cluster", "restart", "--dir", str(directory), "node2"]) == 0
    assert "node2: all nodes are ready again after " in capsys.readouterr().out
    assert frozen.pid() != before

    assert ctl.main(["cluster", "logs", "--dir", str(directory), "-n", "500", "node2"]) == 0
    assert "Server is ready" in capsys.readouterr().out
    assert ctl.main(["cluster", "logs", "--dir", str(directory), "node9"]) == 1
    assert "no node 'node9': there are node1, node2, node3" in capsys.readouterr().err
    assert ctl.main(["cluster", "down", "--dir", str(directory)]) == 0
    assert capsys.readouterr().out == "stopped node1, node2, node3\n"


def test_a_node_that_ends_is_told_at_once_with_its_last_lines(
    directory: Path, capsys: Captured
) -> None:
    """The third, although the first two wait for it: not after a minute, and not the first."""
    store = directory / "node3" / "store"
    store.parent.mkdir(parents=True)
    store.write_text("a file")
    began = time.monotonic()
    assert _up(directory, (free_ports(NODES), free_ports(NODES), free_ports(NODES))) == 1
    assert time.monotonic() - began < 20
    said = capsys.readouterr().err
    assert said.startswith("streamctl: node3 ended with status 1; its last lines in ")
    assert "[FTL] Can't start JetStream: storage directory is not a directory" in said
    assert not any(node.pid() for node in LocalCluster.load(directory).nodes)


def test_as_many_nodes_as_asked_for(directory: Path, capsys: Captured) -> None:
    """`--nodes 1` is a single server; the same directory never becomes a cluster of others."""
    ports = free_ports(NODES), free_ports(NODES), free_ports(NODES)
    assert _up(directory, ports, "--nodes", "1") == 0
    assert len(LocalCluster.load(directory).nodes) == 1
    assert ctl.main(["cluster", "down", "--dir", str(directory)]) == 0
    assert _up(directory, ports, "--nodes", "3") == 1
    assert "has 1 node, not 3: use another directory" in capsys.readouterr().err
    assert _up(directory, ports, "--nodes", "99") == 1
    assert "--nodes 99: must be 1 to 9" in capsys.readouterr().err
