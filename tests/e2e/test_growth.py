"""Real processes: a stream gets two more replicas, and its leader or one of them goes at once."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster
from tests.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
MESSAGES = 200
LED_WITHIN_S = 5.0


def config(replicas: int) -> dict[str, Any]:
    return {"name": "S", "subjects": ["s.>"], "num_replicas": replicas}


def start(make_cluster: MakeCluster) -> tuple[ClusterProcess, str, Wire]:
    """A stream of one replica with messages; its node, and a connection to that."""
    cluster = make_cluster()
    if "nats-server" in cluster.nodes["n1"].binary:
        pytest.skip("nats-server has no learners: all replicas vote at once")
    load.api(cluster, "STREAM.CREATE.S", config(1))
    leader = cluster.wait_until(lambda: cluster.leader("S"), "a leader")
    wire = Wire(cluster.nodes[leader].port)
    for number in range(MESSAGES):
        assert "seq" in wire.ask("s.x", b"%d" % number)[0].json()
    return cluster, leader, wire


def ask(wire: Wire, subject: str, body: bytes = b"", message_id: str = "") -> dict[str, Any]:
    """The answer; empty if there is none in time, or nobody to answer."""
    headers = {"Nats-Msg-Id": message_id} if message_id else None
    try:
        frames = wire.ask(subject, body, headers=headers, within_s=1)
    except TimeoutError:
        return {}
    if not frames or frames[0].status:
        return {}
    found: dict[str, Any] = frames[0].json()
    return found


def grow(wire: Wire) -> None:
    answer = ask(wire, "$JS.API.STREAM.UPDATE.S", json.dumps(config(3)).encode())
    assert answer and "error" not in answer, answer


def replicas(wire: Wire) -> dict[str, dict[str, Any]]:
    info = ask(wire, "$JS.API.STREAM.INFO.S")
    return {row["name"]: row for row in info.get("cluster", {}).get("replicas", [])}


def until(what: str, is_true: Any, within_s: float = 20.0) -> None:
    """Ask without a pause: what is said is to be true in that very moment."""
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"not {what} within {within_s} s"


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.proof)]
)
def test_the_leader_may_go_as_soon_as_its_replicas_are_current(
    make_cluster: MakeCluster, how: signal.Signals
) -> None:
    cluster, leader, wire = start(make_cluster)
    grow(wire)

    def are_current() -> bool:
        rows = replicas(wire).values()
        return len(rows) == 2 and all(row["current"] for row in rows)

    until("current", are_current)
    cluster.nodes[leader].send(how)
    wire.close()
    other = next(name for name in cluster.nodes if name != leader)
    with_other = Wire(cluster.nodes[other].port)
    began = time.monotonic()
    last = 0

    def is_led() -> bool:
        nonlocal last
        last = ask(with_other, "s.x", b"more", "more").get("seq", 0)
        return last > 0

    until("led again", is_led, LED_WITHIN_S)
    print(f"led {time.monotonic() - began:.3f} s after {how.name}")
    assert last == MESSAGES + 1
    with_other.close()


def test_a_new_replica_votes_whatever_becomes_of_the_other(make_cluster: MakeCluster) -> None:
    cluster, leader, wire = start(make_cluster)
    gone, left = (name for name in cluster.nodes if name != leader)
    grow(wire)
    cluster.kill(gone)
    until("a second voter", lambda: replicas(wire).get(left, {}).get("current"))
    for number in range(100):
        assert "seq" in wire.ask("s.x", b"after-%d" % number)[0].json()
    cluster.nodes[leader].send(signal.SIGKILL)
    wire.close()
    cluster.nodes[gone].launch()
    cluster.nodes[gone].wait(60)
    with_left = Wire(cluster.nodes[left].port)

    def count() -> int:
        info = ask(with_left, "$JS.API.STREAM.INFO.S")
        return int(info.get("state", {}).get("messages", 0))

    until("led", count, 15)
    assert count() == MESSAGES + 100
    with_left.close()
