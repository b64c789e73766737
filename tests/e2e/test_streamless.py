"""A server without JetStream in a cluster whose other servers have it serves streams as they do."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.e2e.conftest import Start
from tests.waiting import until
from tests.wire import Wire

FOUNDED_WITHIN_S = 30.0


def start_cluster(make_server: Start, *, who_names_whom: str) -> dict[str, ServerProcess]:
    """Start `a` without JetStream, and b, c, d with it."""
    names = ["a", "b", "c", "d"]
    ports = {name: free_port() for name in names}
    named = {
        "all": names,
        "only the one without": ["a"],
        "nobody but those with": ["b", "c", "d"],
    }[who_names_whom]
    servers = {}
    for name in names:
        routes = ", ".join(f'"nats://127.0.0.1:{ports[one]}"' for one in named)
        block = f"cluster {{ name: c, listen: 127.0.0.1:{ports[name]}, routes: [{routes}] }}"
        servers[name] = make_server(extra=f"server_name: {name}\n{block}", is_jetstream=name != "a")
        servers[name].launch()
    for server in servers.values():
        server.wait()
    for name in "bcd":
        until(lambda one=servers[name]: _is_healthy(one), name, FOUNDED_WITHIN_S)  # type: ignore[misc]
    return servers


def _page(server: ServerProcess, path: str) -> dict[str, object]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.http_port}/{path}", timeout=30
    ) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def _is_healthy(server: ServerProcess) -> bool:
    url = f"http://127.0.0.1:{server.http_port}/healthz"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30) as answer:
        return bool(json.load(answer) == {"status": "ok"})
    return False


def shown_as_without_streams(server: ServerProcess, wire: Wire) -> None:
    """Its own pages and INFO say so, and the others place and look for nothing there."""
    assert "jetstream" not in wire.info
    assert _page(server, "jsz")["disabled"] is True
    assert _page(server, "varz")["jetstream"] == {}
    for query in ("", "?js-server-only=true", "?js-enabled-only=true"):
        assert _page(server, f"healthz{query}") == {"status": "ok"}

    def code(subject: str, body: dict[str, object]) -> int:
        return int(wire.api(subject, body)["error"]["err_code"])

    assert code("STREAM.PEER.REMOVE.S", {"peer": "a"}) == 10040
    assert code("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "a"}}) == 10005
    assert code("STREAM.CREATE.W", {"name": "W", "subjects": ["w"], "num_replicas": 5}) == 10005


@pytest.mark.parametrize(
    "named",
    [
        "all",
        pytest.param("only the one without", marks=pytest.mark.proof),
        pytest.param("nobody but those with", marks=pytest.mark.proof),
    ],
)
def test_its_clients_use_streams_as_those_of_any_other(make_server: Start, named: str) -> None:
    """API, publishes with acks and in order, pulls, acks of deliveries, direct gets."""
    servers = start_cluster(make_server, who_names_whom=named)
    wires = [Wire(server.port) for server in servers.values()]
    wire = wires[0]
    made = wire.api(
        "STREAM.CREATE.S",
        {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "allow_direct": True},
    )
    assert made["config"]["num_replicas"] == 3, made
    shown_as_without_streams(servers["a"], wire)
    inbox = f"{wire.inbox}.acks"
    wire.subscribe(f"{inbox}.*")
    for number in range(200):  # at once: it can be published to as soon as it was answered
        wire.publish(f"s.{number % 3}", b"%d" % number, reply=f"{inbox}.{number}")
    acks = wire.collect(count=200, within_s=10)
    assert [ack.json().get("seq") for ack in acks] == list(range(1, 201))
    config = {"durable_name": "d", "ack_policy": "explicit"}
    made = wire.api("CONSUMER.DURABLE.CREATE.S.d", {"stream_name": "S", "config": config})
    assert made["name"] == "d", made
    pulled = f"{wire.inbox}.pulled"
    wire.subscribe(pulled)
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", b'{"batch":200}', reply=pulled)
    found = wire.collect(count=200, within_s=10)
    assert [frame.payload for frame in found] == [b"%d" % number for number in range(200)]
    for frame in found:
        wire.publish(frame.reply, b"+ACK")
    deadline = time.monotonic() + 10
    while (info := wire.api("CONSUMER.INFO.S.d"))["ack_floor"]["stream_seq"] < 200:
        assert time.monotonic() < deadline, info
    (got,) = wire.ask("$JS.API.DIRECT.GET.S", b'{"seq":7}')
    assert got.payload == b"6"
    (nobody,) = wire.ask("nobody.listens", b"")
    assert nobody.status.startswith("503")
    for other in wires[1:]:
        assert other.api("STREAM.INFO.S")["state"]["messages"] == 200
    for each in wires:
        each.close()


def test_a_server_without_streams_publishes_by_another_one_when_its_relay_is_killed(
    make_server: Start,
) -> None:
    """The one that took what its clients published is killed."""
    servers = start_cluster(make_server, who_names_whom="all")
    wire = Wire(servers["a"].port)
    wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    (ack,) = wire.ask("s", b"one")
    assert ack.json()["seq"] == 1
    servers["b"].kill()
    deadline = time.monotonic() + 30
    while True:
        answers = wire.ask("s", b"two", headers={"Nats-Msg-Id": "two"}, within_s=1)
        if answers and answers[0].payload:
            break
        assert time.monotonic() < deadline, servers["a"].log_tail()
    assert answers[0].json()["seq"] == 2
    assert wire.api("STREAM.INFO.S")["state"]["messages"] == 2
    wire.close()
