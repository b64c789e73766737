"""Accounts over a cluster: each is one subject space on all nodes, with streams of its own."""

from __future__ import annotations

import time

from benchmarks.servers import ServerProcess, free_port
from tests.e2e.conftest import Start
from tests.e2e.test_streamless import FOUNDED_WITHIN_S, _is_healthy
from tests.waiting import until
from tests.wire import CONNECT, Wire

ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [{user: a, password: a}]
      exports: [{stream: "out.>"}, {service: "ask"}] }
  B { jetstream: enabled, users: [{user: b, password: b}]
      imports: [{stream: {account: A, subject: "out.>"}, prefix: a}
                {service: {account: A, subject: "ask"}, to: "ask.a"}] }
}
"""


def start_nodes(make_server: Start) -> list[ServerProcess]:
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = []
    for at, port in enumerate(ports):
        block = f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
        servers.append(make_server(extra=f"server_name: n{at}\n{block}\n{ACCOUNTS}"))
    launch(servers)
    return servers


def launch(servers: list[ServerProcess]) -> None:
    for server in servers:
        server.launch()
    for server in servers:
        server.wait()
        until(lambda server=server: _is_healthy(server), "healthy", FOUNDED_WITHIN_S)  # type: ignore[misc]


def wires(servers: list[ServerProcess]) -> dict[str, list[Wire]]:
    """Connections of each account to each node."""
    return {
        user.upper(): [
            Wire(server.port, CONNECT | {"user": user, "pass": user}) for server in servers
        ]
        for user in "ab"
    }


def test_each_account_has_its_own_subjects_and_streams_on_all_nodes(make_server: Start) -> None:
    """Also after a restart; what crosses from one to the other was exported and imported."""
    servers = start_nodes(make_server)
    of = wires(servers)
    hearing = of["B"][1]
    hearing.subscribe("a.out.*")
    hearing.subscribe("private.*")
    of["A"][2].subscribe("ask")
    for wire in (hearing, of["A"][2]):
        wire.fence()
    deadline = time.monotonic() + 10
    while not (found := hearing.collect(count=1, within_s=0.2)):  # until interest got around
        of["A"][0].publish("private.1", b"no")
        of["A"][0].publish("out.1", b"yes")
        assert time.monotonic() < deadline
    assert {(frame.subject, frame.payload) for frame in found} == {("a.out.1", b"yes")}
    inbox = f"{of['B'][0].inbox}.answer"
    of["B"][0].subscribe(inbox)
    of["B"][0].publish("ask.a", b"?", reply=inbox)
    (asked,) = of["A"][2].collect(count=1, within_s=10)
    assert asked.reply.startswith("_R_.") and b'"acc":"B"' in asked.headers
    of["A"][2].publish(asked.reply, b"!")
    (answer,) = of["B"][0].collect(count=1, within_s=10)
    assert answer.payload == b"!"
    for account, count in (("A", 3), ("B", 5)):
        wire = of[account][0]
        config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
        assert wire.api("STREAM.CREATE.S", config)["did_create"] is True
        for number in range(count):
            (ack,) = wire.ask("s.1", b"%d" % number)
            assert ack.json()["seq"] == number + 1
        assert wire.api("INFO")["streams"] == 1
    for server in servers:
        server.stop()
    launch(servers)
    of = wires(servers)
    for account, count in (("A", 3), ("B", 5)):
        info = of[account][1].api("STREAM.INFO.S")
        assert info["state"]["messages"] == count and "account" not in info["config"]
    assert of["A"][0].api("STREAM.DELETE.S")["success"] is True
    assert of["B"][2].api("STREAM.INFO.S")["state"]["messages"] == 5
