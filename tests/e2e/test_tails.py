"""Real processes: an old copy of a store directory put back, a third node that was away.

What was acknowledged meanwhile is set aside by who has it, told, and published again.
"""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request

import pytest

from benchmarks.cluster import ClusterProcess
from streamd.ctl import app as ctl
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster
from tests.wire import Wire

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]
COUNT = 2000


def metric(cluster: ClusterProcess, name: str, wanted: str) -> float:
    url = f"http://127.0.0.1:{cluster.nodes[name].http_port}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(wanted + "{"))


def publish(wire: Wire, count: int, text: str) -> None:
    for number in range(count):
        assert "seq" in wire.ask("s.x", f"{text}-{number}".encode())[0].json()


def lead(cluster: ClusterProcess, name: str) -> None:
    def does() -> bool:
        if cluster.leader("S") == name:
            return True
        body = {"placement": {"preferred": name}}
        load.api(cluster, "STREAM.LEADER.STEPDOWN.S", body)
        return cluster.leader("S") == name

    cluster.wait_until(does, f"{name} leads")


def test_lost_acked_messages_are_reported_and_can_be_published_again(
    make_cluster: MakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster()
    if "nats-server" in cluster.nodes["n1"].binary:
        pytest.skip("nats-server sets nothing aside")
    n1, n2, n3 = (cluster.nodes[name] for name in ("n1", "n2", "n3"))
    load.api(cluster, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3})
    lead(cluster, "n1")
    wire = Wire(n1.port)
    publish(wire, 50, "first")
    n2.send(signal.SIGSTOP)
    copy = cluster.directory / "copy-of-n2"
    shutil.copytree(n2.store_dir, copy)
    n2.send(signal.SIGCONT)
    n3.stop()
    cluster.wait_until(lambda: cluster.leader("S") == "n1", "n1 leads on")
    publish(wire, COUNT, "acked")
    cluster.kill("n1", "n2")
    wire.close()
    shutil.rmtree(n2.store_dir)
    shutil.copytree(copy, n2.store_dir)
    for node in (n2, n3):
        node.launch()
    for node in (n2, n3):
        node.wait(60)
    cluster.wait_until(lambda: cluster.leader("S") in ("n2", "n3"), "another leader")
    wire = Wire(n3.port)
    publish(wire, 50, "later")
    n1.launch()
    n1.wait(60)
    trash = next(n1.store_dir.rglob("trash"))
    (path,) = cluster.wait_until(lambda: list(trash.glob("*-tail-*.jsonl")), "set aside", 60, n1)
    cluster.wait_until(
        lambda: cluster.get(n1, "/healthz").get("status") == "degraded", "degraded", 60, n1
    )
    assert metric(cluster, "n1", "streamd_tails_set_aside_total") >= 1
    records = [json.loads(line) for line in path.read_text().splitlines()]
    payloads = {row["payload"] for row in records if "payload" in row}
    assert payloads == {f"acked-{number}" for number in range(COUNT)}
    assert records[0]["proof"] == "committed"
    assert records[-1]["end"]["first_seq"] == 51 and records[-1]["end"]["last_seq"] == 50 + COUNT
    assert ctl.main(["discarded", "replay", str(path), "--server", n3.url]) == 0
    assert f"{COUNT} messages published" in capsys.readouterr().out
    state = wire.api("STREAM.INFO.S")["state"]
    assert state["messages"] == 100 + COUNT
    assert not path.exists()
    wire.close()
