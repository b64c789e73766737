"""`streamctl bench`, `top`, `doctor` and `recover`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e.conftest import Start
from tests.e2e.ctl.conftest import Ctl, run_ctl
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_every_workload_is_measured_and_leaves_nothing(
    ctl: Ctl, shared_cluster: ClusterProcess
) -> None:
    """All of them, few operations each, at two servers side by side; their streams are gone."""
    n1, n2 = shared_cluster.urls[:2]
    words = ["bench", "all", "--count", "60", "--size", "64", "--window", "10", "--replicas", "3"]
    found = ctl(*words, "-s", n1, "--against", n2, "-o", "json")
    assert found.status == 0, found.err
    names = [row["workload"] for row in found.data]
    assert names[::2] == ["pub", "js-pub", "fetch", "push", "kv-put", "kv-get", "request"]
    assert names[::2] == names[1::2]
    for row in found.data:
        assert row["messages_per_s"] > 0
        assert sum(step["count"] for step in row["histogram"]) == row["count"] > 0
    assert {row["server"] for row in found.data} == {n1[7:], n2[7:]}
    left = ctl("stream", "list", "--names", "-o", "json").data
    assert not [name for name in left if name.startswith(("BENCH", "KV_bench"))]
    table = ctl("bench", "request", "--count", "20", "-s", n1, "--against", n2)
    assert "times the rate of" in table.out and "p99.9" in table.out and "#" in table.out
    unknown = ctl("bench", "guess")
    assert unknown.status == 2 and "no workload 'guess'" in unknown.err


def test_top_shows_rates(ctl: Ctl, admin: Ctl) -> None:
    """Looks behind each other where there is no terminal; what an account may not see is told."""
    ctl("stream", "add", "TOP", "--subject", "top", "--replicas", "3")
    ctl("consumer", "add", "TOP", "reader")
    ctl("pub", "top", "x", "--count", "30", "--stream")
    words = ["top", "streams", "--filter", "^TOP$", "--times", "2", "--every", "50ms"]
    found = ctl(*words, "-o", "json")
    first, second = (json.loads(line) for line in found.out.splitlines())
    (row,) = second["views"]["streams"]
    assert (row["name"], row["messages"], row["rate"]) == ("TOP", 30, 0.0)
    assert first["views"]["streams"][0]["leader"] in ("n1", "n2", "n3")
    shown = ctl("--timeout", "2s", "top", "--times", "1", "--filter", "TOP|reader")
    assert "this takes a user of the system account" in shown.out
    assert "reader" in shown.out and "growth" in shown.out
    servers = admin("top", "servers", "--times", "1")
    assert "n1" in servers.out and "msgs in/s" in servers.out
    wrong = ctl("top", "--sort", "beauty", "--times", "1")
    assert wrong.status == 2 and "--sort beauty: there are" in wrong.err


def test_the_doctor_measures_this_machine_and_asks_the_servers(admin: Ctl, tmp_path: Path) -> None:
    """Each finding with its state and advice; what it wrote is gone."""

    def is_healthy() -> bool:  # replicas of streams that other tests made are there
        rows = admin("server", "report", "health", "-o", "json").data
        return [row["status"] for row in rows] == ["ok"] * 3

    until(is_healthy, "all servers are healthy")
    found = admin("doctor", "--dir", str(tmp_path), "--syncs", "20", "-o", "json")
    assert found.status in (0, 1), found.err
    by_name = {row["check"]: row for row in found.data}
    sync = by_name["fsync latency"]
    assert sync["count"] == 20 and sync["p99_ns"] > 0
    assert by_name["servers"]["found"] == "n1, n2, n3"
    assert by_name["health of n2"]["state"] == "ok"
    assert by_name["versions"]["state"] == "ok" and by_name["cluster size"]["state"] == "ok"
    assert all(row["advice"] for row in found.data if row["state"] in ("warning", "bad"))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".streamctl")]
    missing = admin("doctor", "--dir", str(tmp_path / "none"))
    assert missing.status == 2 and "no such directory" in missing.err
    alone = run_ctl(
        "-s", "nats://127.0.0.1:9", "doctor", "--dir", str(tmp_path), "--syncs", "10", "-o", "json"
    )
    assert {row["check"]: row for row in alone.data}["servers"]["state"] == "not checked"
    assert alone.status in (1, 2)


def test_a_recovery_is_tried_before_it_is_done(make_server: Start, own_home: Path) -> None:
    """Losses are told, and nothing changes; a directory in use is refused."""
    server = make_server()
    server.start()
    url = ["-s", server.url]
    run_ctl(*url, "stream", "add", "R", "--subject", "r")
    run_ctl(*url, "pub", "r", "x", "--count", "10", "--stream")
    words = ["recover", "--config", str(server.config_file), "--binary", server.binary]
    held = run_ctl(*words)
    assert held.status == 1 and "the dry run failed" in held.err
    server.stop()
    before = sorted(
        (str(path), path.stat().st_size) for path in server.store_dir.rglob("*") if path.is_file()
    )
    found = run_ctl(*words, "-o", "json")
    assert found.status == 0, found
    assert found.data["report"]
    assert "nothing was changed" in found.err
    unasked = run_ctl(*words, "--start")
    assert unasked.status == 2 and "nobody was asked" in unasked.err
    after = sorted(
        (str(path), path.stat().st_size) for path in server.store_dir.rglob("*") if path.is_file()
    )
    assert after == before
