"""Leaf links between two servers of either kind: clients see what they see with two nats-servers.

Each scenario runs in four topologies (hub and leaf node, ours and the peer's), and must come to the
same in all.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.leaf_bed import Ends, LeafPair, page, shown
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import Wire

pytestmark = pytest.mark.slow
TOPOLOGIES = ("ours-peer", "peer-ours", "ours-ours")
Scenario = Callable[[Ends, str, str], object]
"""(ends, domain of the receiver, domain of the sender) -> what was seen."""


class Beds:
    """Pairs of servers by topology, started when first wanted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pairs: dict[str, LeafPair] = {}
        self.seen: dict[tuple[str, str], object] = {}

    def pair(self, topology: str) -> LeafPair:
        pair = self._pairs.get(topology)
        if pair is None:
            binaries = {"ours": ours_binary(), "peer": peer_binary()}
            hub, _, leaf = topology.partition("-")
            directory = self._directory / topology
            pair = LeafPair((binaries[hub], binaries[leaf]), directory, has_jetstream=True)
            self._pairs[topology] = pair.start()
        return pair

    def close(self) -> None:
        for pair in self._pairs.values():
            pair.close()


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beds]:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    found = Beds(tmp_path_factory.mktemp("leaf"))
    yield found
    found.close()


# --- scenarios ------------------------------------------------------------------------------------


def overlapping(ends: Ends, there: str, here: str) -> object:
    """Plain, wildcard and double subscriptions; the receiver gets each, the link one message."""
    for subject in ("over.1", "over.*", "over.>", "over.1"):
        ends.receiver.subscribe(subject)
    ends.sync()
    ends.sender.publish("over.1", b"a", reply="to.me")
    ends.sender.publish("over.2", b"b", headers={"K": "v"})
    ends.sender.publish("other.1", b"c")
    return shown(ends.arrived())


def headers_and_sizes(ends: Ends, there: str, here: str) -> object:
    """Headers, empty and large payloads."""
    ends.receiver.subscribe("size.>")
    ends.sync()
    ends.sender.publish("size.h", b"", headers={"A": "b", "C": "d"}, reply="x.y")
    ends.sender.publish("size.e")
    ends.sender.publish("size.l", b"z" * 700_000)
    ends.sender.publish("size.lf", b"line\r\nLMSG a 1\r\nx")
    return shown(ends.arrived())


def order(ends: Ends, there: str, here: str) -> object:
    """A run of messages arrives in order."""
    ends.receiver.subscribe("ord.*")
    ends.sync()
    for number in range(300):
        ends.sender.publish(f"ord.{number % 3}", b"%d" % number)
    return [frame.payload for frame in ends.arrived()]


def groups(ends: Ends, there: str, here: str) -> object:
    """One member of each queue group there gets a message, a plain subscriber as well."""
    for queue in ("g", "g", "h", ""):
        ends.receiver.subscribe("grp.*", queue)
    ends.sync()
    for number in range(20):
        ends.sender.publish("grp.1", b"%d" % number)
    return shown(ends.arrived())


def members_here_come_first(ends: Ends, there: str, here: str) -> object:
    """A group with a member at the sender's server is served there."""
    ends.receiver.subscribe("near", "g")
    ends.sender.subscribe("near", "g")
    ends.sync()
    for number in range(10):
        ends.sender.publish("near", b"%d" % number)
    away = shown(ends.arrived())
    return away, shown([frame for frame in ends.sender.fence() if frame.op == "MSG"])


def request(ends: Ends, there: str, here: str) -> object:
    """Request and answer, by a queue group, with headers."""
    ends.receiver.subscribe("svc.*", "w")
    ends.sync()
    ends.sender.subscribe("answers.1")
    ends.sender.publish("svc.add", b"1+1", reply="answers.1", headers={"Q": "1"})
    asked = ends.receiver.next(5)
    ends.receiver.publish(asked.reply, b"2", headers={"R": "2"})
    answer = ends.sender.next(5)
    return shown([asked, answer])


def nobody(ends: Ends, there: str, here: str) -> object:
    """A request that nobody takes, anywhere, is answered at once."""
    return [frame.status for frame in ends.sender.ask("nobody.here")]


def nobody_any_more(ends: Ends, there: str, here: str) -> object:
    """Interest that ended is not there any more."""
    sid = ends.receiver.subscribe("gone.soon")
    ends.sync()
    ends.sender.publish("gone.soon", b"1")
    first = shown(ends.arrived())
    ends.receiver.unsubscribe(sid)
    ends.sync()
    return first, [frame.status for frame in ends.sender.ask("gone.soon")]


def auto_unsubscribe(ends: Ends, there: str, here: str) -> object:
    """A subscription that ends by itself ends the interest."""
    sid = ends.receiver.subscribe("twice")
    ends.receiver.unsubscribe(sid, 2)
    ends.sync()
    for number in range(4):
        ends.sender.publish("twice", b"%d" % number)
    return shown(ends.arrived())


def own_api(ends: Ends, there: str, here: str) -> object:
    """Each server answers for its own JetStream."""
    return [wire.api("INFO")["domain"] for wire in (ends.sender, ends.receiver)]


def api_of_a_domain(ends: Ends, there: str, here: str) -> object:
    """The other server's JetStream is asked by its domain, as is one's own."""
    answers = [ends.sender.ask(f"$JS.{domain}.API.INFO")[0] for domain in (there, here)]
    return [answer.json()["domain"] for answer in answers]


def unknown_domain(ends: Ends, there: str, here: str) -> object:
    return [frame.status for frame in ends.sender.ask("$JS.nodomain.API.INFO")]


def _stream(wire: Wire, name: str, **more: Any) -> None:
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory", **more}
    answer = wire.api(f"STREAM.CREATE.{name}", config)
    assert "error" not in answer, answer


def stored_afar(ends: Ends, there: str, here: str) -> object:
    """A publish into a stream of the other server; its ack names the domain."""
    name = f"FAR{there}"
    _stream(ends.receiver, name)
    ends.sync()
    return ends.sender.ask(f"{name}.1", b"x")[0].json()


def pulled_afar(ends: Ends, there: str, here: str) -> object:
    """A pull consumer of the other server: messages, and acks that are confirmed."""
    name = f"PULL{there}"
    _stream(ends.receiver, name)
    ends.receiver.ask(f"{name}.1", b"one", headers={"H": "1"})
    ends.receiver.ask(f"{name}.2", b"two")
    config = {"durable_name": "d", "ack_policy": "explicit"}
    created = ends.sender.ask(
        f"$JS.{there}.API.CONSUMER.DURABLE.CREATE.{name}.d",
        json.dumps({"stream_name": name, "config": config}).encode(),
    )[0].json()
    assert "error" not in created, created
    frames = ends.sender.ask(
        f"$JS.{there}.API.CONSUMER.MSG.NEXT.{name}.d", b'{"batch":2,"expires":5000000000}', count=2
    )
    confirmed = [ends.sender.ask(frame.reply, b"+ACK") for frame in frames]
    info = ends.sender.ask(f"$JS.{there}.API.CONSUMER.INFO.{name}.d")[0].json()
    replies = [re.sub(r"\d{10,}", "T", frame.reply) for frame in frames]
    seen = [(frame.subject, frame.headers, frame.payload) for frame in frames]
    return seen, replies, [len(each) for each in confirmed], info["ack_floor"]["stream_seq"]


def pushed_afar(ends: Ends, there: str, here: str) -> object:
    """A push consumer of the other server, with its messages under their own subjects."""
    name = f"PUSH{there}"
    _stream(ends.receiver, name)
    for number in range(5):
        ends.receiver.ask(f"{name}.{number}", b"%d" % number)
    ends.sender.subscribe(f"deliver.{name}")
    Ends(ends.receiver, ends.sender).sync()
    config = {
        "name": "p",
        "deliver_subject": f"deliver.{name}",
        "ack_policy": "none",
    }
    body = json.dumps({"stream_name": name, "config": config}).encode()
    ends.sender.subscribe(f"made.{name}")
    ends.sender.publish(f"$JS.{there}.API.CONSUMER.CREATE.{name}.p", body, reply=f"made.{name}")
    frames = ends.sender.collect(count=6, within_s=5)
    return [(frame.subject, frame.payload) for frame in frames if frame.subject.startswith(name)]


def direct_get_afar(ends: Ends, there: str, here: str) -> object:
    name = f"DIRECT{there}"
    _stream(ends.receiver, name, allow_direct=True)
    ends.receiver.ask(f"{name}.1", b"one")
    answer = ends.sender.ask(f"$JS.{there}.API.DIRECT.GET.{name}.{name}.1")[0]
    return answer.payload, answer.pairs["Nats-Subject"]


def key_value_by_domain(ends: Ends, there: str, here: str) -> object:
    """Keys are put by the domain's prefix, from afar and at the server itself."""
    bucket = f"B{there}"
    _stream(ends.receiver, f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"])
    puts = [
        wire.ask(f"$JS.{there}.API.$KV.{bucket}.k", b"v")[0].json()
        for wire in (ends.sender, ends.receiver)
    ]
    direct = [frame.status for frame in ends.sender.ask(f"$KV.{bucket}.k", b"v")]
    return puts, direct


SCENARIOS: tuple[Scenario, ...] = (
    *(overlapping, headers_and_sizes, order, groups, members_here_come_first, request, nobody),
    *(nobody_any_more, auto_unsubscribe, own_api, api_of_a_domain, unknown_domain, stored_afar),
    *(pulled_afar, pushed_afar, direct_get_afar, key_value_by_domain),
)


def run(beds: Beds, topology: str, scenario: Scenario) -> object:
    """Run a scenario in both directions; what was seen, kept for other topologies."""
    key = (topology, scenario.__name__)
    if key not in beds.seen:
        pair = beds.pair(topology)
        seen = []
        for sender, receiver, there, here in (
            (pair.hub, pair.leaf, "leaf", "hub"),
            (pair.leaf, pair.hub, "hub", "leaf"),
        ):
            wires = [Wire(server.port) for server in (sender, receiver)]
            try:
                seen.append(scenario(Ends(*wires), there, here))
            finally:
                for wire in wires:
                    wire.close()
        beds.seen[key] = seen
    return beds.seen[key]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_clients_see_the_same(beds: Beds, scenario: Scenario, topology: str) -> None:
    assert run(beds, topology, scenario) == run(beds, "peer-peer", scenario)


# --- the wire of a listener -----------------------------------------------------------------------

_NAMES = re.compile(rb"\$LDS\.\w{22}")


class Raw:
    """A bare connection to the port of a leaf listener, or from a server that dials."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self.is_over = False

    def send(self, *lines: bytes) -> None:
        self._connection.sendall(b"".join(line + b"\r\n" for line in lines))

    def until(self, word: bytes, within_s: float = 5.0) -> list[bytes]:
        """Return lines up to the one that begins with `word`, or the end."""
        found: list[bytes] = []
        deadline = time.monotonic() + within_s
        while not (found and found[-1].startswith(word)) and not self.is_over:
            line, eol, rest = self._rest.partition(b"\r\n")
            if eol:
                self._rest = rest
                found.append(line)
                continue
            self._connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                chunk = self._connection.recv(65536)
            except ConnectionError:
                chunk = b""
            self.is_over = not chunk
            self._rest += chunk
        return found

    def close(self) -> None:
        self._connection.close()


def errors(lines: list[bytes]) -> list[bytes]:
    return [_NAMES.sub(b"$LDS.N", line) for line in lines if line.startswith(b"-ERR")]


def refused(*lines: bytes) -> Callable[[Raw, int], object]:
    def scene(raw: Raw, port: int) -> object:
        raw.send(*lines)
        return errors(raw.until(b"\xff")), raw.is_over

    return scene


LEAF = (
    b'CONNECT {"name":"X","server_id":"NX","version":"2.15.1","cluster":"X","headers":true,'
    b'"remote_account":"R"}'
)


def shape_of_info(raw: Raw, port: int) -> object:
    """INFO of CONNECT says the account, and interest follows, the loop's own subject among it."""
    raw.send(LEAF, b"PING")
    lines = raw.until(b"PONG")
    (info,) = [json.loads(line[5:]) for line in lines if line.startswith(b"INFO")]
    kinds = {_NAMES.sub(b"$LDS.N", line) for line in lines if line.startswith(b"LS+ $LDS")}
    return info["connect_info"], info["remote_account"], info["leafnode_urls"] != [], kinds


def loop(raw: Raw, port: int) -> object:
    """The server's own loop subject comes back to it."""
    raw.send(LEAF, b"PING")
    (own,) = [line for line in raw.until(b"PONG") if line.startswith(b"LS+ $LDS.")]
    raw.send(own)
    return errors(raw.until(b"\xff")), raw.is_over


def duplicate(raw: Raw, port: int) -> object:
    """The second link of one leaf node ends the first."""
    raw.send(LEAF, b"PING")
    raw.until(b"PONG")
    other = Raw(socket.create_connection(("127.0.0.1", port), 5))
    other.until(b"INFO")
    other.send(LEAF, b"PING")
    is_good = other.until(b"PONG")[-1] == b"PONG"
    seen = errors(raw.until(b"\xff")), raw.is_over, is_good
    other.close()
    return seen


def messages(raw: Raw, port: int) -> object:
    """Interest and messages in both directions, as the lines that they are."""
    raw.send(LEAF, b"LS+ a.*", b"LS+ a.1 g 1", b"LS+ a.1 h 2", b"PING")
    raw.until(b"PONG")
    wire = Wire(_client_port[port])
    wire.subscribe("b.*")
    wire.subscribe("b.1", "q")
    wire.fence()
    told = {line for line in raw.until(b"LS+ b.1 q") if b" b." in line}
    wire.publish("a.1", b"x", reply="r", headers={"A": "b"})
    wire.publish("a.2", b"y")
    wire.publish("c", b"z")
    wire.fence()
    got = raw.until(b"y")
    raw.send(b"LMSG b.1 + rep q 1\r\nx", b"LMSG b.1 | nobody 1\r\ny", b"HMSG b.2 12 13")
    raw.send(b"NATS/1.0\r\n\r\nz", b"PING")
    raw.until(b"PONG")
    frames = wire.collect(count=4, within_s=5)
    wire.close()
    groups_of = sorted(got[0].split())  # which of two groups is named first is a matter of chance
    return told, groups_of, got[1:], shown(frames)


def error_is_noted(raw: Raw, port: int) -> object:
    """An error of the other end is for the log; the link goes on."""
    raw.send(LEAF, b"-ERR 'go away'", b"PING")
    return raw.until(b"PONG")[-1]


def silence(raw: Raw, port: int) -> object:
    """Who does not log in within two seconds is told so."""
    return errors(raw.until(b"\xff", 30)), raw.is_over


def isolated(raw: Raw, port: int) -> object:
    """A leaf node that wants to be kept apart is told what clients want, and not what other leaf
    nodes do; monitoring shows it."""
    raw.send(LEAF[:-1] + b',"isolate":true}', b"PING")
    raw.until(b"PONG")
    other = Raw(socket.create_connection(("127.0.0.1", port), 5))
    other.until(b"INFO")
    other.send(LEAF.replace(b'"X"', b'"Y"'), b"LS+ apart.leaf", b"PING")
    other.until(b"PONG")
    with Wire(_servers[port].port) as wire:
        wire.subscribe("apart.client")
        wire.fence()
        lines = raw.until(b"LS+ apart.client")
        rows = page(_servers[port], "leafz")["leafs"]
    other.close()
    # The other one of the same name may be there for another moment.
    apart = [sorted(row) for row in rows if row.get("is_isolated")]
    return [line for line in lines if b"apart." in line], apart[-1:]


def too_old_for_traces(raw: Raw, port: int) -> object:
    """A server of an older protocol gets messages, and none that are only to be traced."""
    raw.send(LEAF, b"LS+ told.*", b"PING")
    raw.until(b"PONG")
    with Wire(_servers[port].port) as wire:
        wire.subscribe("events")
        wire.fence()
        headers = {"Nats-Trace-Dest": "events"}
        wire.publish("told.1", b"first", headers=headers)
        wire.publish("told.1", b"second", headers=headers | {"Nats-Trace-Only": "1"})
        wire.publish("told.1", b"third")
        lines = raw.until(b"third")
        documents = [frame.json() for frame in wire.collect(count=2, within_s=5)]
    seen = []
    for document in documents:
        (left,) = [event for event in document["events"] if event["type"] == "eg"]
        left = {key: value for key, value in left.items() if key not in ("ts", "cid")}
        seen.append((left, document.get("hops")))
    return [line for line in lines if not line.startswith(b"LS")], seen


_client_port: dict[int, int] = {}
_servers: dict[int, ServerProcess] = {}
SCENES: dict[str, Callable[[Raw, int], object]] = {
    "client": refused(b'CONNECT {"lang":"go","verbose":false}', b"PING"),
    "ping first": refused(b"PING"),
    "interest first": refused(b"LS+ a"),
    "no JSON": refused(b'CONNECT {"name":'),
    "unknown": refused(b"FOO"),
    "unknown later": refused(LEAF, b"FOO"),
    "no weight": refused(LEAF, b"LS+ a b"),
    "no size": refused(LEAF, b"LMSG a b c"),
    "error": error_is_noted,
    "info": shape_of_info,
    "loop": loop,
    "duplicate": duplicate,
    "messages": messages,
    "silence": silence,
    "isolated": isolated,
    "too old for traces": too_old_for_traces,
}


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of a leaf listener of ours and of the peer's."""
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    directory = tmp_path_factory.mktemp("listeners")
    servers, ports = [], []
    for name, binary in (("ours", ours_binary()), ("peer", peer_binary())):
        port = free_port()
        text = f'server_name: HUB\nleafnodes {{ listen: "127.0.0.1:{port}", compression: off }}'
        server = ServerProcess(binary, directory=directory / name, extra=text, is_jetstream=False)
        servers.append(server)
        ports.append(port)
        _client_port[port] = server.port
        _servers[port] = server
        server.start()
    yield ports[0], ports[1]
    for server in servers:
        server.close()


@pytest.mark.parametrize("name", SCENES)
def test_a_listener_answers_the_same(listeners: tuple[int, int], name: str) -> None:
    seen = []
    for port in listeners:
        raw = Raw(socket.create_connection(("127.0.0.1", port), 5))
        assert raw.until(b"INFO")[0].startswith(b"INFO ")
        seen.append(SCENES[name](raw, port))
        raw.close()
    assert seen[0] == seen[1]


NOT_OURS = {"go", "ip"}
"""Go's version, and an address that no server looks at: docs/leaf.md."""


def test_a_listener_introduces_itself_alike(listeners: tuple[int, int]) -> None:
    seen = []
    for port in listeners:
        raw = Raw(socket.create_connection(("127.0.0.1", port), 5))
        info = json.loads(raw.until(b"INFO")[0][5:])
        raw.close()
        fixed = ("server_name", "proto", "headers", "auth_required", "max_payload", "compression",
                 "info_on_connect", "host")  # fmt: skip
        seen.append((set(info) - NOT_OURS, {key: info.get(key) for key in fixed}))
        assert info["leafnode_urls"] == [f"127.0.0.1:{port}"] and info["port"] == port
    assert seen[0] == seen[1]


# --- the wire of a dialer -------------------------------------------------------------------------

INFO = b'INFO {"server_id":"NH","server_name":"H","version":"2.15.1","proto":3,"client_id":7,%b}'
_URLS = b'"leafnode_urls":["127.0.0.1:1"],"info_on_connect":true,"nonce":"abc"'


def greeted(raw: Raw) -> dict[str, Any]:
    raw.send(INFO % _URLS)
    connect: dict[str, Any] = json.loads(raw.until(b"CONNECT")[-1][8:])
    return connect


def what_it_says(raw: Raw) -> object:
    connect = greeted(raw)
    for key in ("server_id", "version", "protocol"):
        assert connect.pop(key)
    return connect


def what_it_tells(raw: Raw) -> object:
    """Interest of clients and the loop's subject, less what the hub does not allow."""
    greeted(raw)
    more = b'%b,"connect_info":true,"remote_account":"A","import":{"allow":["x.>"]}' % _URLS
    raw.send(INFO % more, b"LS+ $LDS.ofthehub00000000000000", b"PING")
    lines = raw.until(b"PONG")
    return sorted(_NAMES.sub(b"$LDS.N", line) for line in lines if line.startswith(b"LS+ "))


def wrong_port(raw: Raw) -> object:
    raw.send(b'INFO {"server_id":"NH","client_id":7}')
    return errors(raw.until(b"\xff")), raw.is_over


DIALERS = (what_it_says, what_it_tells, wrong_port)


@pytest.mark.parametrize("scene", DIALERS, ids=lambda scene: scene.__name__)
def test_a_dialer_says_the_same(tmp_path: Path, scene: Callable[[Raw], object]) -> None:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    seen = []
    for name, binary in (("ours", ours_binary()), ("peer", peer_binary())):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(20)
            port = listening.getsockname()[1]
            text = (
                "server_name: L\nleafnodes { remotes: [ { compression: off, deny_imports: no.way,"
                f' url: "nats-leaf://us:pw@127.0.0.1:{port}" }} ] }}'
            )
            server = ServerProcess(
                binary, directory=tmp_path / name, extra=text, is_jetstream=False
            )
            server.launch()
            try:
                raw = Raw(listening.accept()[0])
                seen.append(scene(raw))
                raw.close()
            finally:
                server.close()
    assert seen[0] == seen[1]


def test_both_show_a_link_alike(beds: Beds) -> None:
    """`/leafz` and the part of `/varz` have the peer's keys."""
    from tests.leaf_bed import page

    shapes = []
    for topology in ("ours-ours", "peer-peer"):
        pair = beds.pair(topology)
        until(lambda p=pair: page(p.hub, "leafz")["leafs"][0]["rtt"] != "0s", "a ping")  # type: ignore[misc]
        rows = [page(server, "leafz?subs=1")["leafs"][0] for server in pair.servers]
        varz = [page(server, "varz") for server in pair.servers]
        assert [row["name"] for row in rows] == ["LEAF", "HUB"]
        assert [row["is_spoke"] for row in rows] == [False, True]
        assert [each["leafnodes"] for each in varz] == [1, 1]
        shapes.append([sorted(row) for row in rows] + [sorted(each["leaf"]) for each in varz])
    assert shapes[0] == shapes[1]


def _account_counters(beds: Beds, topology: str) -> list[object]:
    """Return what both servers say of the account of a link, behind ten messages down."""
    pair = beds.pair(topology)
    with Wire(pair.hub.port) as hub, Wire(pair.leaf.port) as leaf:
        ends = Ends(hub, leaf)
        leaf.subscribe("counted")
        ends.sync()
        before = [_main_account(server) for server in pair.servers]
        for _ in range(10):
            hub.publish("counted", b"12345")
        hub.fence()
        while leaf.next(5).op == "MSG" and _main_account(pair.leaf)["received"]["leafs"]["msgs"] < (
            before[1]["received"]["leafs"]["msgs"] + 10
        ):
            pass
        found: list[object] = []
        for server, was in zip(pair.servers, before, strict=True):
            now = _main_account(server)
            change = {
                (way, kind): now[way]["leafs"][kind] - was[way]["leafs"][kind]
                for way in ("sent", "received")
                for kind in ("msgs", "bytes")
            }
            detail = page(server, "accountz?acc=$G")["account_detail"]
            others = now["total_conns"] - now["conns"]
            found.append((now["leafnodes"], others, detail["leafnode_connections"], change))
        return found


def _main_account(server: ServerProcess) -> dict[str, Any]:
    counters = page(server, "accstatz?unused=1")["account_statz"]
    return next(each for each in counters if each["acc"] == "$G")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_accounts_count_their_leaf_links(topology: str, beds: Beds) -> None:
    assert _account_counters(beds, topology) == _account_counters(beds, "peer-peer")
