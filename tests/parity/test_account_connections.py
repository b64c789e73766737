"""Limits of an account's clients, on two nodes: the answers are those of a real nats-server.

Each kind of server is a cluster of two; clients come to one node or the other.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import CONNECT, Frame, Wire

pytestmark = pytest.mark.slow

ACCOUNTS = """accounts {
  A { limits: {max_connections: 4, max_subscriptions: 3, max_payload: 100},
      users: [{user: A, password: A}] }
  B { users: [{user: B, password: B}] }
  SYS { users: [{user: S, password: S}] }
}
system_account: SYS
"""
TOO_MANY = "'maximum account active connections exceeded'"


class Pair:
    """A cluster of two nodes of one kind."""

    def __init__(self, binary: str, directory: Path) -> None:
        ports = [free_port(), free_port()]
        self.servers: list[ServerProcess] = []
        self._wires: list[Wire] = []
        for at, port in enumerate(ports):
            cluster = (
                f"server_name: n{at}\ncluster {{ name: C, listen: '127.0.0.1:{port}',"
                f" routes: ['nats://127.0.0.1:{ports[1 - at]}'] }}\n"
            )
            self.servers.append(
                ServerProcess(
                    binary,
                    directory=directory / str(at),
                    extra=cluster + ACCOUNTS,
                    is_jetstream=False,
                )
            )

    def start(self) -> None:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_for_log("Server is ready")
        with self.client(0, "S") as asking:
            asking.subscribe(asking.inbox)

            def sees_both() -> bool:
                asking.publish("$SYS.REQ.SERVER.PING", reply=asking.inbox)
                return len(asking.collect(count=2, within_s=1)) == 2

            until(sees_both, "both servers answer")

    def client(self, node: int, user: str = "A", *, is_ready: bool = True) -> Wire:
        login = CONNECT | {"user": user, "pass": user}
        self._wires.append(Wire(self.servers[node].port, login, is_ready=is_ready))
        return self._wires[-1]

    def comes(self, node: int) -> tuple[Wire, Frame]:
        """A client that asks for a PONG, and what it gets first."""
        wire = self.client(node, is_ready=False)
        wire.send(b"PING\r\n")
        return wire, wire.next(10)

    def settles(self, node: int, *, is_full: bool) -> None:
        """Wait until clients are let in at a node, or are not: it has heard of the other's."""

        def has() -> bool:
            wire, frame = self.comes(node)
            wire.close()
            return (frame.op == "-ERR") is is_full

        until(has, f"full: {is_full}")

    def change(self, old: str, new: str) -> None:
        for server in self.servers:
            text = server.config_file.read_text()
            server.config_file.write_text(text.replace(old, new))
            count = server.log_file.read_text().count("Reloaded server configuration")
            server.send(signal.SIGHUP)
            server.wait_for_log("Reloaded server configuration", count=count + 1)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        for server in self.servers:
            server.close()


def is_ended(wire: Wire) -> bool:
    """True if a client was sent away; what it was told is the one text for that."""
    frames = wire.fence(10)
    assert all(frame.text == TOO_MANY for frame in frames if frame.op == "-ERR"), frames
    return frames[-1:] != [] and frames[-1].op == "CLOSED"


@pytest.fixture(params=["ours", "peer"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    binary = ours_binary() if request.param == "ours" else peer_binary()
    if not binary:
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    made = Pair(binary, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_clients_of_an_account_on_two_nodes(pair: Pair) -> None:
    """The same claims hold for both kinds of server."""
    wires = [pair.client(at % 2) for at in range(4)]
    for node in (0, 1):
        pair.settles(node, is_full=True)
        _, frame = pair.comes(node)
        assert (frame.op, frame.text) == ("-ERR", TOO_MANY)
    wires.pop(1).close()
    pair.settles(0, is_full=False)
    wires.append(pair.client(0))
    pair.settles(1, is_full=True)
    other = pair.client(1, "B")
    pair.change("max_connections: 4", "max_connections: 2")
    until(lambda: sum(map(is_ended, wires)) >= 2, "two are sent away")
    wires = [wire for wire in wires if not is_ended(wire)]
    assert not other.fence()

    # What an account's client may send and subscribe to.
    for wire in wires:
        wire.close()
    pair.settles(0, is_full=False)
    told = _connect_info(pair)
    assert told["max_payload"] == 100 and told["remote_account"] == "A"
    wire = pair.client(0)
    for at in range(4):
        wire.subscribe(f"s{at}")
    assert [frame.text for frame in wire.fence()] == ["'maximum subscriptions exceeded'"]
    wire.send(b"PUB s1 101\r\n" + b"x" * 101 + b"\r\n")
    assert [frame.text for frame in wire.fence()] == ["'Maximum Payload Violation'", ""]
    pair.settles(0, is_full=False)
    wire = pair.client(0)
    for at in range(2):
        wire.subscribe(f"s{at}")
    assert not wire.fence()
    pair.change("max_subscriptions: 3", "max_subscriptions: 1")
    frames = wire.collect(count=2, within_s=10)
    assert [frame.text for frame in frames] == ["'maximum subscriptions exceeded'", ""]
    assert frames[-1].op == "CLOSED"


def _connect_info(pair: Pair) -> dict[str, Any]:
    """The INFO that a client gets after its login."""
    wire = pair.client(0, is_ready=False)
    first = wire.info
    wire.info = {}  # else later ones are passed over
    wire.send(b"PING\r\n")
    found = ""
    while (frame := wire.next(10)).op != "CLOSED":
        if frame.op == "INFO":
            found = frame.text
            break
    wire.close()
    assert first["max_payload"] == 1048576
    told: dict[str, Any] = json.loads(found)
    assert told["connect_info"] is True
    return told
