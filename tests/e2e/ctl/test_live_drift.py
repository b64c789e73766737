"""`streamctl audit --servers` on real nodes, one of which holds another message than the others.

Servers heal that by themselves as soon as a majority tells which is right. Of a stream of four
replicas that takes three that are equal, so while one of four is away nothing is healed, and the
stream is served.
"""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from streamd import limits
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.streams.stream import StreamMachine
from streamd.store.disk import OsDisk
from streamd.types import Entry
from tests.e2e.conftest import MakeCluster
from tests.e2e.ctl.conftest import CONFIG, run_ctl
from tests.scenarios.files import falsify_files, open_files

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAST = 61
TRUTH, LIE = "as it was acked", b"as nobody sent it"
HEALED_WITHIN_S = 120.0


def stored_lie(machine: StreamMachine) -> list[tuple[Any, ...]]:
    """For `falsify_files`: the last message has other bytes."""
    out = Effects()
    command = [commands.STORE, 1, [(b"s", b"", LIE)]]
    machine.apply(Entry(1, machine.applied + 1, commands.encode(command), command), out)
    return list(out.block_ops)


def falsify_last_message(cluster: ClusterProcess, wrong: str, right: str) -> None:
    """Give the replica of a stopped node, which ends a message earlier than the others, a last
    message of its own."""

    def files(name: str) -> Path:
        (found,) = cluster.nodes[name].store_dir.glob("streamd/streams/[0-9]*")
        return found

    disk, uid = OsDisk(), int(files(wrong).name)
    like = open_files(disk, str(files(right)), uid)
    falsify_files(open_files(disk, str(files(wrong)), uid), stored_lie, like=like)


def await_last_seq(cluster: ClusterProcess, seq: int, *names: str) -> None:
    """Wait until these nodes' replicas end at `seq`."""

    def ends() -> set[int]:
        details = (cluster.detail(cluster.nodes[name], "S") for name in names)
        return {detail.get("state", {}).get("last_seq", -1) for detail in details}

    cluster.wait_until(lambda: ends() == {seq}, f"at {seq}")


def drifted(cluster: ClusterProcess, name: str) -> float:
    """Return how many of a node's replicas it has found to be wrong."""
    url = f"http://127.0.0.1:{cluster.nodes[name].http_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        page = answer.read().decode()
    (line,) = (one for one in page.splitlines() if one.startswith("streamd_drifted_replicas_total"))
    return float(line.rpartition(" ")[2])


def test_drift_is_told_by_stream_server_and_sequence_until_it_is_healed(
    make_cluster: MakeCluster, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas end at one sequence, and all checksums are right; status 1 names what differs, and
    where. When the fourth is back the wrong one begins anew: status 0."""
    cluster = make_cluster(extra=CONFIG, size=4)
    for name, value in {
        "URL": ",".join(cluster.urls), "TIMEOUT": "30s", "USER": "app", "PASSWORD": "p",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"NATS_{name}", value)
    run_ctl("stream", "add", "S", "--subject", "s", "--replicas", "4")
    # Enough for a node that stops to leave a snapshot, and not only its log.
    body = "x" * (2 * limits.SNAPSHOT_AT_STOP_BYTES // LAST)
    assert run_ctl("pub", "s", "--count", str(LAST - 1), "--stream", stdin=body).status == 0
    cluster.wait_until(lambda: cluster.is_whole("S"), "whole")
    cluster.nodes["n3"].stop()
    assert run_ctl("pub", "s", TRUTH, "--stream").status == 0
    await_last_seq(cluster, LAST, "n1", "n2")
    cluster.nodes["n4"].stop()
    cluster.nodes["n1"].stop()
    falsify_last_message(cluster, "n3", "n1")
    for name in ("n1", "n3"):
        cluster.nodes[name].launch()
    await_last_seq(cluster, LAST, "n1", "n2", "n3")
    monkeypatch.setenv("NATS_USER", "admin")

    found = run_ctl("audit", "--servers", "--wait", "60", "-o", "json")
    assert found.status == 1, found
    (row,) = found.data
    assert (row["stream"], row["verdict"], row["seqs"]) == ("APP/S", "drift", [LAST])
    assert row["odd"] == [{"replicas": ["n3"], "seqs": [LAST]}]
    assert (row["read"], row["missing"]) == (["n1", "n2", "n3"], ["n4"])
    assert f"APP/S: n3: other messages at {LAST}" in found.err
    assert drifted(cluster, "n3") == 0

    cluster.nodes["n4"].start()
    deadline = time.monotonic() + HEALED_WITHIN_S
    while (found := run_ctl("audit", "--servers", "-o", "json")).status:
        assert time.monotonic() < deadline, found
    assert found.data[0]["read"] == [*cluster.nodes] and not found.data[0]["reasons"]
    assert [drifted(cluster, name) for name in cluster.nodes] == [0, 0, 1, 0]
    stores = [str(node.store_dir) for node in cluster.nodes.values()]
    assert run_ctl("audit", *stores).status == 0  # it reads every message of all
    told = run_ctl("--user", "app", "stream", "get", "S", str(LAST), "-o", "json").data
    assert told["data"] == TRUTH
