"""Streams of several accounts on real servers: same names and subjects, restarts, old data."""

from __future__ import annotations

import json
import signal
import time

import pytest

from benchmarks.servers import ServerProcess
from tests.e2e.conftest import MakeCluster, Start
from tests.waiting import until
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow

ACCOUNTS = """accounts {
  A { jetstream: enabled, users: [{user: A, password: A}] }
  B { jetstream: enabled, users: [{user: B, password: B}] }
  C { jetstream: enabled, users: [{user: C, password: C}] }
}
"""
NAMES = ("A", "B", "C")


def client(server: ServerProcess, user: str) -> Wire:
    return Wire(server.port, CONNECT | {"user": user, "pass": user})


def put(wire: Wire, subject: str, payload: str) -> None:
    (frame,) = wire.ask(subject, payload.encode())
    assert "seq" in frame.json(), frame


def contents(wire: Wire) -> list[str]:
    """The payloads of the account's stream S."""
    last = wire.api("STREAM.INFO.S")["state"]["last_seq"]
    return [
        wire.ask("$JS.API.DIRECT.GET.S", json.dumps({"seq": seq}).encode())[0].payload.decode()
        for seq in range(1, last + 1)
    ]


def fill(server: ServerProcess, replicas: int) -> None:
    """Make a stream S of the same subjects in each account, and store what names the account."""
    for number, user in enumerate(NAMES, 1):
        with client(server, user) as wire:
            config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
            answer = wire.api("STREAM.CREATE.S", config | {"num_replicas": replicas})
            assert answer["did_create"] and "account" not in answer["config"]
            for at in range(number):
                put(wire, "s.x", f"{user}{at}")


def check(server: ServerProcess, users: tuple[str, ...] = NAMES) -> None:
    for user in users:
        with client(server, user) as wire:
            count = NAMES.index(user) + 1
            assert contents(wire) == [f"{user}{at}" for at in range(count)]
            assert wire.api("STREAM.NAMES")["streams"] == ["S"]
            assert wire.api("INFO")["streams"] == 1


def delete_one(server: ServerProcess) -> None:
    with client(server, "A") as wire:
        assert wire.api("STREAM.DELETE.S")["success"]
        assert wire.api("STREAM.INFO.S")["error"]["err_code"] == 10059


def test_accounts_keep_their_streams_over_a_restart(make_server: Start) -> None:
    """One server, stopped and killed: each account finds its own, and loses what it deletes."""
    server = make_server(extra=ACCOUNTS)
    server.start()
    fill(server, 1)
    check(server)
    server.stop()
    server.start()
    check(server)
    delete_one(server)
    check(server, ("B", "C"))
    server.kill()
    server.start()
    check(server, ("B", "C"))
    with client(server, "A") as wire:
        assert wire.api("STREAM.NAMES")["streams"] is None


def test_accounts_of_a_cluster_keep_their_streams(make_cluster: MakeCluster) -> None:
    """Three nodes: asked at each, and again when all were killed at once."""
    cluster = make_cluster(extra=ACCOUNTS)
    fill(cluster.nodes["n1"], 3)
    for node in cluster.nodes.values():
        check(node)
    cluster.kill_at_once()
    cluster.start()
    for node in cluster.nodes.values():
        check(node)
    delete_one(cluster.nodes["n2"])
    for node in cluster.nodes.values():
        check(node, ("B", "C"))


def test_directory_written_without_accounts_is_the_main_accounts(make_server: Start) -> None:
    """What a server without accounts stored is `$G`'s: while others are configured, which see
    nothing of it, and when they are not any more."""
    server = make_server()
    server.start()
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
    with Wire(server.port) as wire:
        assert wire.api("STREAM.CREATE.S", config)["did_create"]
        for at in range(3):
            put(wire, "s.x", f"G{at}")
    server.stop()
    server.configure(extra=ACCOUNTS)
    server.start()
    with client(server, "A") as wire:
        assert wire.api("STREAM.NAMES")["streams"] is None
        assert wire.api("STREAM.CREATE.S", config)["did_create"]
        put(wire, "s.x", "A0")
        assert contents(wire) == ["A0"]
    server.stop()
    server.configure(extra="")
    server.start()
    with Wire(server.port) as wire:
        assert contents(wire) == ["G0", "G1", "G2"]
        assert wire.api("STREAM.NAMES")["streams"] == ["S"]


LIMITED = """accounts {
  A { jetstream: {max_store: 60000, max_mem: 0}, users: [{user: A, password: A}] }
  B { jetstream: enabled, users: [{user: B, password: B}] }
}
"""


def publish_until_full(wire: Wire, subject: str) -> int:
    """Publish 1000 bytes at a time until the account's limit is met; return how many were acked."""
    for count in range(200):
        (frame,) = wire.ask(subject, bytes(1000))
        answer = frame.json()
        if "error" in answer:
            assert answer["error"]["err_code"] == 10002, answer
            return count
    raise AssertionError("nothing was refused")


def used(wire: Wire) -> int:
    return int(wire.api("INFO")["storage"])


def until_refused(wire: Wire, subject: str) -> None:
    """Publish until a node has heard of what other nodes' leaders store: a leader that does not
    know it yet takes what does not fit."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        (frame,) = wire.ask(subject, bytes(1000))
        if "error" in frame.json():
            return
        assert frame.json()["stream"]
    raise AssertionError("nothing was refused")


def test_a_clusters_account_stores_no_more_than_its_limit(make_cluster: MakeCluster) -> None:
    """All replicas count; room is what streams on any node leave; it is the same after all nodes
    were killed at once, and a limit that is gone by a reload limits no more."""
    cluster = make_cluster(extra=LIMITED)
    nodes = list(cluster.nodes.values())
    with client(nodes[0], "A") as wire, client(nodes[1], "B") as other:
        for name, replicas in (("R", 3), ("S", 1), ("T", 1)):
            config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas}
            assert wire.api(f"STREAM.CREATE.{name}", config)["did_create"]
        size = 1000 + len("R.a") + 30
        most = publish_until_full(wire, "R.a")
        assert most == 60000 // (3 * size)
        until(lambda: used(wire) == 3 * most * size, "all replicas have applied all")
        # What is left is too little for three replicas, yet not for one.
        single = publish_until_full(wire, "S.a")
        assert single == (60000 - 3 * most * size) // size
        until_refused(wire, "T.a")
        assert used(wire) <= 60000 + 200 * size
        (frame,) = wire.ask("R.a", bytes(1000))
        assert frame.json()["error"]["err_code"] == 10002
        config = {"name": "B", "subjects": ["b"], "num_replicas": 3}
        assert other.api("STREAM.CREATE.B", config)["did_create"]
        for _ in range(70):
            put(other, "b", "x" * 1000)
    cluster.kill_at_once()
    cluster.start()
    with client(nodes[2], "A") as wire:
        until_refused(wire, "R.a")
        assert wire.api("STREAM.PURGE.R")["success"]
        put(wire, "R.a", "x" * 1000)
        for node in nodes:
            text = node.config_file.read_text()
            node.config_file.write_text(text.replace("max_store: 60000", "max_store: -1"))
            node.send(signal.SIGHUP)
            node.wait_for_log("Reloaded server configuration")
        with client(nodes[0], "A") as again:
            for _ in range(100):
                put(again, "R.a", "x" * 1000)
