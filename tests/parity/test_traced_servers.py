"""Traces of messages that pass servers, by routes and by leaf links: the events of each server are
those of two real nats-servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.leaf_bed import Ends, LeafPair, Sides, page
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow

ACCOUNTS = """accounts {
  MAIN { users: [ {user: main, password: main} ]
    exports: [ {service: "svc", allow_trace: true}, {service: "dark"}, {stream: "ss.>"} ] }
  IMP { users: [ {user: imp, password: imp} ]
    imports: [ {service: {account: MAIN, subject: svc}}, {service: {account: MAIN, subject: dark}}
               {stream: {account: MAIN, subject: "ss.>"}, to: "st.>", allow_trace: true} ] }
  AUTO { users: [ {user: auto, password: auto} ], msg_trace: "tr.auto" }
}
"""
SAMPLED = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
Shown: TypeAlias = tuple[object, ...]
Scenario: TypeAlias = tuple[str, str, str, str, str, dict[str, str]]
"""(user of the sender, of the receiver, receiver's pattern, its queue, subject, headers)"""

SCENARIOS: dict[str, Scenario] = {
    "plain": ("main", "main", "d.1", "", "d.1", {}),
    "only": ("main", "main", "d.1", "", "d.1", {"Nats-Trace-Only": "1"}),
    "queue": ("main", "main", "d.*", "q", "d.1", {}),
    "nobody": ("main", "main", "e.1", "", "d.1", {}),
    "hop": ("main", "main", "d.1", "", "d.1", {"Nats-Trace-Hop": "9"}),
    "external": ("auto", "auto", "d.1", "", "d.1", SAMPLED),
    "external_not": ("auto", "auto", "d.1", "", "d.1", {"traceparent": "00-a-b-00"}),
    "service": ("imp", "main", "svc", "", "svc", {}),
    "service_only": ("imp", "main", "svc", "", "svc", {"Nats-Trace-Only": "1"}),
    "dark": ("imp", "main", "dark", "", "dark", {}),
    "export": ("main", "imp", "st.*", "", "ss.1", {}),
}
LEAF_SCENARIOS = ("plain", "only", "queue", "nobody", "hop", "external", "external_not")


def trace(sender: ServerProcess, receiver: ServerProcess, scenario: Scenario) -> Shown:
    """Publish at one server, and return all events and what came to the other one."""
    by, to, pattern, queue, subject, headers = scenario
    with (
        Wire(sender.port, CONNECT | {"user": by, "pass": by, "name": "S"}) as source,
        Wire(receiver.port, CONNECT | {"user": to, "pass": to, "name": "R"}) as target,
        Wire(sender.port, CONNECT | {"user": by, "pass": by, "name": "L"}) as listener,
        Wire(sender.port, CONNECT | {"user": to, "pass": to}) as probe,
        Wire(receiver.port, CONNECT | {"user": by, "pass": by}) as other,
    ):
        dest = "tr.auto" if by == "auto" else "tr.1"
        listener.subscribe(dest)
        listener.fence()
        target.subscribe(pattern, queue)
        target.fence()
        Ends(probe, target).sync()  # the sender's server knows who wants the message
        Ends(other, listener).sync()  # the receiver's server knows who wants the events
        own = {} if "traceparent" in headers else {"Nats-Trace-Dest": dest}
        source.publish(subject, b"x", headers={**own, **headers}, reply="r.1")
        source.fence()
        got = Ends(probe, target).arrived()
        last = {"Nats-Trace-Dest": dest, "Last": "1"}
        events: list[Any] = []
        # Events of both servers: each is asked for one more, behind those of the message.
        source.publish("last.here", headers=last)
        other.publish("last.there", headers=last)
        ends = 0
        deadline = time.monotonic() + 10
        while ends < 2:
            frame = listener.next(max(0.001, deadline - time.monotonic()))
            if frame.op != "MSG" or frame.subject != dest:
                continue
            event = frame.json()
            if event["request"]["header"].get("Last"):
                ends += 1
            else:
                events.append(shown(event))
        messages = [(f.subject, bool(f.reply), without_chance(f.headers), f.payload) for f in got]
        return sorted(map(str, events)), messages


def without_chance(headers: bytes) -> list[str]:
    lines = headers.decode().split("\r\n")[1:]
    return [
        "Nats-Trace-Dest: _R_" if line.startswith("Nats-Trace-Dest: _R_.") else line
        for line in lines
        if line and not line.startswith("Nats-Request-Info")
    ]


def shown(event: dict[str, Any]) -> str:
    event["server"] = event["server"]["name"]
    header = event["request"]["header"]
    header.pop("Nats-Request-Info", None)
    for key, values in header.items():
        header[key] = ["_R_" if value.startswith("_R_.") else value for value in values]
    event["request"].pop("msgsize")  # of what names servers and clients
    for each in event["events"]:
        for key in ("ts", "cid"):
            each.pop(key, None)
    return json.dumps(event, sort_keys=True)


# --- a cluster ------------------------------------------------------------------------------------


class Pair:
    """Two nodes of a cluster."""

    def __init__(self, binary: str, directory: Path) -> None:
        ports = [free_port(), free_port()]
        self.servers = []
        for at, name in enumerate("ab"):
            text = (
                f"server_name: {name}\n{ACCOUNTS}\ncluster {{ name: C, listen: "
                f'"127.0.0.1:{ports[at]}", pool_size: -1, compression: off, '
                f'routes: ["nats-route://127.0.0.1:{ports[1 - at]}"] }}'
            )
            self.servers.append(
                ServerProcess(binary, directory=directory / name, extra=text, is_jetstream=False)
            )

    def start(self) -> Pair:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait()
        for server in self.servers:
            until(lambda s=server: page(s, "varz")["routes"] >= 1, "a route")  # type: ignore[misc]
        return self

    def close(self) -> None:
        for server in self.servers:
            server.close()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pair, Pair]]:
    binaries = (ours_binary(), peer_binary())
    if not all(binaries):
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    pairs = [Pair(binary, tmp_path_factory.mktemp("traced")) for binary in binaries]
    for pair in pairs:
        pair.start()
    yield pairs[0], pairs[1]
    for pair in pairs:
        pair.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_traces_by_a_route(name: str, clusters: tuple[Pair, Pair]) -> None:
    ours, peer = clusters
    scenario = SCENARIOS[name]
    assert trace(*ours.servers, scenario) == trace(*peer.servers, scenario)


# --- a leaf link ----------------------------------------------------------------------------------


class Leafs:
    """Pairs of a hub and a leaf node, started when first wanted; and what the peer's showed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pairs: dict[str, list[LeafPair]] = {}
        self.seen: dict[tuple[str, bool], Shown] = {}

    def pair(self, topology: str, user: str) -> LeafPair:
        key = f"{topology}-{user}"
        if key not in self._pairs:
            binaries = {"ours": ours_binary(), "peer": peer_binary()}
            hub, _, leaf = topology.partition("-")
            sides = Sides(
                hub=ACCOUNTS,
                leaf=ACCOUNTS,
                remote=f"account: {user.upper()}",
                url=f"nats-leaf://{user}:{user}@127.0.0.1:{{port}}",
            )
            pair = LeafPair((binaries[hub], binaries[leaf]), self._directory / key, sides)
            self._pairs[key] = [pair.start()]
        return self._pairs[key][0]

    def close(self) -> None:
        for pairs in self._pairs.values():
            for pair in pairs:
                pair.close()


@pytest.fixture(scope="module")
def leafs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Leafs]:
    if not ours_binary() or not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    found = Leafs(tmp_path_factory.mktemp("traced"))
    yield found
    found.close()


@pytest.mark.parametrize("is_up", [True, False])
@pytest.mark.parametrize("topology", ["ours-peer", "peer-ours", "ours-ours"])
@pytest.mark.parametrize("name", LEAF_SCENARIOS)
def test_traces_by_a_leaf_link(name: str, topology: str, leafs: Leafs, *, is_up: bool) -> None:
    """`is_up`: from the leaf node to its hub."""
    scenario = SCENARIOS[name]

    def run(topology: str) -> Shown:
        pair = leafs.pair(topology, scenario[0])
        ends = (pair.leaf, pair.hub) if is_up else (pair.hub, pair.leaf)
        return trace(*ends, scenario)

    expected = leafs.seen.get((name, is_up))
    if expected is None:
        expected = leafs.seen[name, is_up] = run("peer-peer")
    assert run(topology) == expected
