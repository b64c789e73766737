"""`streamctl server` and `scrub`: by the system account, at the shared cluster and at one of its
own that is damaged and drained."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e.conftest import MakeCluster
from tests.e2e.ctl.conftest import CONFIG, Ctl, run_ctl
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_servers_are_listed_and_reported(ctl: Ctl, admin: Ctl) -> None:
    """Tables and documents of all three; an ordinary user is told what it takes."""
    rows = admin("server", "list", "-o", "json").data
    assert [row["name"] for row in rows] == ["n1", "n2", "n3"]
    assert sorted(row["meta"] for row in rows) == ["follower", "follower", "leader"]
    assert "n2" in admin("server", "list").out
    assert admin("server", "info", "n2", "-o", "json").data["server_name"] == "n2"
    assert "Server n2" in admin("server", "info", "n2").out
    unknown = admin("server", "info", "n9")
    assert unknown.status == 2 and "there are n1, n2, n3" in unknown.err
    ctl("stream", "add", "REP", "--subject", "rep", "--replicas", "3")

    def health() -> list[str]:
        rows = admin("server", "report", "health", "-o", "json").data
        return [row["status"] for row in rows]

    until(lambda: health() == ["ok"] * 3, "all replicas of a new stream are there")
    rows = admin("server", "report", "jetstream", "-o", "json").data
    assert sum(row["led"] for row in rows) >= 1 and all(row["streams"] >= 1 for row in rows)
    rows = admin("server", "report", "connections", "--sort", "cid", "-o", "json").data
    assert any(row["user"] == "admin" and row["name"] == "streamctl" for row in rows)
    assert admin("server", "report", "connections", "--sort", "nonsense").status == 2
    denied = ctl("--timeout", "500ms", "server", "list")
    assert denied.status == 1
    assert "this takes a user of the system account" in denied.err


def test_leaders_step_down(ctl: Ctl, admin: Ctl) -> None:
    """Of a stream, to a server that is named; of the cluster, to any."""
    ctl("stream", "add", "STEP", "--subject", "step", "--replicas", "3")
    before = ctl("stream", "info", "STEP", "-o", "json").data["cluster"]["leader"]
    wanted = next(name for name in ("n1", "n2", "n3") if name != before)
    assert ctl("server", "step-down", "--stream", "STEP", "--to", wanted).status == 2
    done = ctl("server", "step-down", "--stream", "STEP", "--to", wanted, "--yes", "-o", "json")
    assert done.data == {"stream": "STEP", "leader": wanted}
    rows = admin("server", "list", "-o", "json").data
    led = next(row["name"] for row in rows if row["meta"] == "leader")
    moved = admin("server", "step-down", "--yes", "-o", "json")
    assert moved.status == 0 and moved.data["leader"] != led


def test_all_files_are_verified_on_demand(ctl: Ctl, admin: Ctl) -> None:
    """Each server reads its own; the exit status says that all is whole."""
    ctl("stream", "add", "SCRUB", "--subject", "scrub", "--replicas", "3")
    ctl("pub", "scrub", "x", "--count", "50", "--stream")
    found = admin("scrub", "-o", "json")
    assert found.status == 0, found
    assert [row["state"] for row in found.data] == ["verified"] * 3
    assert all(row["files"] > 2 and row["read_bytes"] > 50 * 40 for row in found.data)
    assert "verified" in admin("scrub", "n1", "--status").out
    assert ctl("--timeout", "500ms", "scrub").status == 1


def test_damage_is_found_a_missing_server_is_told_and_a_drained_one_stops(
    make_cluster: MakeCluster, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte of a sealed or growing block turns on one server: status 1 and its name; healed by
    the others, 0 again; with a server gone, 2."""
    cluster = make_cluster(extra=CONFIG)
    monkeypatch.setenv("NATS_URL", ",".join(cluster.urls))
    monkeypatch.setenv("NATS_TIMEOUT", "20s")
    assert run_ctl("stream", "add", "S", "--subject", "s", "--replicas", "3").status == 0
    run_ctl("pub", "s", "x" * 100, "--count", "200", "--stream")
    monkeypatch.setenv("NATS_USER", "admin")
    monkeypatch.setenv("NATS_PASSWORD", "p")
    assert run_ctl("scrub").status == 0
    _flip(cluster, "n3")
    damaged = run_ctl("scrub", "-o", "json")
    assert damaged.status == 1, damaged
    by_name = {row["server"]: row for row in damaged.data}
    assert by_name["n3"]["new_damages"] >= 1
    assert not by_name["n1"]["new_damages"] and not by_name["n1"]["damaged"]
    cluster.wait_until(lambda: run_ctl("scrub").status == 0, "healed")

    assert run_ctl("server", "drain", "n2").status == 2
    drained = run_ctl("server", "drain", "n2", "--yes")
    assert drained.status == 0, drained
    assert drained.out == "n2 has stopped\n"
    cluster.wait_until(lambda: not cluster.nodes["n2"].is_running(), "n2 has ended")
    listed = run_ctl("server", "list")
    assert listed.status == 1 and "no answer from n2" in listed.err
    partial = run_ctl("scrub", "-o", "json")
    assert partial.status == 2
    assert {row["server"]: row["state"] for row in partial.data}["n2"] == "no answer"


def _flip(cluster: ClusterProcess, name: str) -> None:
    """Change a byte in the middle of the stream's first block."""
    (block,) = cluster.nodes[name].store_dir.glob("streamd/streams/*/1.blk")
    content = bytearray(block.read_bytes())
    content[len(content) // 2] ^= 4
    block.write_bytes(content)
