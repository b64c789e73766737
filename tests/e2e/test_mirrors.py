"""Mirrors and sources of real servers: leaders killed on either side, other accounts."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from benchmarks.cluster import ClusterProcess
from benchmarks.servers import ServerProcess
from tests.e2e.cluster import api
from tests.e2e.conftest import MakeCluster, Start
from tests.waiting import until
from tests.wire import CONNECT, Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WITHIN_S = 90.0
PART = 500


class Publisher:
    """Publishes numbered messages, each until it is acknowledged, until it is stopped."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
        self._is_over = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        wire: Wire | None = None
        while not self._is_over.is_set():
            number = self.count + 1
            try:
                wire = wire or self._connect()
                frames = wire.ask(
                    f"o.{number % 5}",
                    b"%d" % number,
                    headers={"Nats-Msg-Id": f"m{number}"},
                    within_s=2.0,
                )
                if frames and frames[0].op == "MSG" and b'"seq"' in frames[0].payload:
                    self.count = number
                else:
                    wire.close()
                    wire = None
            except (
                OSError,
                TimeoutError,
                ValueError,
            ):  # no server, or one that just begins or ends
                wire = None

    def _connect(self) -> Wire:
        for node in self._cluster.nodes.values():
            try:
                return Wire(node.port)
            except OSError:
                continue
        raise OSError("no node listens")


def contents(wire: Wire, stream: str) -> list[tuple[int, str, bytes]]:
    """All messages of a stream that allows direct gets: (seq, subject, payload)."""
    found: list[tuple[int, str, bytes]] = []
    seq = 1
    while True:
        frames = wire.ask(
            f"$JS.API.DIRECT.GET.{stream}",
            json.dumps({"seq": seq, "batch": PART}).encode(),
            within_s=10.0,
            is_last=lambda frame: bool(frame.status),
        )
        rows = [frame for frame in frames if not frame.status]
        for frame in rows:
            pairs = frame.pairs
            found.append((int(pairs["Nats-Sequence"]), pairs["Nats-Subject"], frame.payload))
        if not rows:
            return found
        seq = found[-1][0] + 1


def test_leaders_of_either_side_are_killed(make_cluster: MakeCluster) -> None:
    """Three nodes, publishes all the while. Afterwards the mirror is its origin, message by
    message, and the sourced stream has each message of its filter once, in order."""
    cluster = make_cluster()
    base = {"num_replicas": 3, "allow_direct": True}
    api(cluster, "STREAM.CREATE.O", base | {"name": "O", "subjects": ["o.>"]})
    api(cluster, "STREAM.CREATE.M", base | {"name": "M", "mirror": {"name": "O"}})
    sources = [{"name": "O", "filter_subject": "o.1"}]
    api(cluster, "STREAM.CREATE.S", base | {"name": "S", "sources": sources, "storage": "memory"})
    with Publisher(cluster) as publisher:
        for stream in ("O", "M", "S", "O"):
            before = publisher.count
            cluster.wait_until(lambda b=before: publisher.count > b + 200, "publishing", WITHIN_S)
            victim = cluster.leader(stream)
            cluster.kill(victim)
            before = publisher.count
            cluster.wait_until(lambda b=before: publisher.count > b + 50, "published on", WITHIN_S)
            cluster.nodes[victim].start()
            cluster.wait_healthy(cluster.nodes[victim])
    count = publisher.count

    def state(stream: str) -> dict[str, Any]:
        found: dict[str, Any] = api(cluster, f"STREAM.INFO.{stream}")["state"]
        return found

    last = state("O")["last_seq"]
    cluster.wait_until(lambda: state("M")["last_seq"] == last, "mirrored", WITHIN_S)
    with Wire(next(iter(cluster.nodes.values())).port) as wire:
        wanted = contents(wire, "O")
        assert [int(row[2]) for row in wanted][:count] == list(range(1, count + 1))
        assert contents(wire, "M") == wanted
        own = [row[1:] for row in wanted if row[1] == "o.1"]
        cluster.wait_until(lambda: state("S")["messages"] >= len(own), "sourced", WITHIN_S)
        assert [row[1:] for row in contents(wire, "S")] == own


ACCOUNTS = """accounts {
  A {
    jetstream: enabled, users: [{user: A, password: A}]
    exports: [
      {service: "$JS.API.CONSUMER.>"}, {service: "$JS.FC.>"}, {stream: "deliver.b.>"}
    ]
  }
  B {
    jetstream: enabled, users: [{user: B, password: B}]
    imports: [
      {service: {account: A, subject: "$JS.API.CONSUMER.>"}, to: "a.api.CONSUMER.>"}
      {service: {account: A, subject: "$JS.FC.>"}}
      {stream: {account: A, subject: "deliver.b.>"}}
    ]
  }
}
"""


def client(server: ServerProcess, user: str) -> Wire:
    return Wire(server.port, CONNECT | {"user": user, "pass": user})


def test_origin_in_another_account(make_server: Start) -> None:
    """By imports of its consumers' API, of flow control and of the messages; over a restart."""
    server = make_server(extra=ACCOUNTS)
    server.start()
    external = {"api": "a.api", "deliver": "deliver.b"}
    with client(server, "A") as own, client(server, "B") as other:
        own.api("STREAM.CREATE.O", {"name": "O", "subjects": ["o.>"]})
        for number in range(20):
            own.ask(f"o.{number}", b"x")
        config = {"name": "O", "mirror": {"name": "O", "external": external}}
        assert "error" not in other.api("STREAM.CREATE.O", config)
        source = {"name": "O", "filter_subject": "o.1", "external": external}
        assert "error" not in other.api("STREAM.CREATE.S", {"name": "S", "sources": [source]})
        wait_for(server, "O", 20)
        wait_for(server, "S", 1)
        for _ in range(4000):  # more than the first window of flow control
            own.publish("o.more", b"y" * 1000)
        own.fence(30)
        wait_for(server, "O", 4020)
    server.stop()
    server.start()
    with client(server, "A") as own:
        own.ask("o.1", b"z")
    wait_for(server, "O", 4021)
    wait_for(server, "S", 2)


def wait_for(server: ServerProcess, stream: str, count: int) -> None:
    """Wait until a stream of B has so many messages."""
    with client(server, "B") as wire:

        def has_all() -> bool:
            return bool(wire.api(f"STREAM.INFO.{stream}")["state"]["messages"] == count)

        until(has_all, f"{count} messages in {stream}", WITHIN_S)
