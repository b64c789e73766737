"""Links between servers on real loopback sockets: who meets whom, what arrives, who is refused."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ipaddress
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509

from streamd import limits
from streamd.config.cluster_options import ClusterOptions, RouteUrl
from streamd.config.options import Options
from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.errors import (
    BAD_REQUEST,
    CLUSTER_NOT_AVAIL,
    STREAM_NOT_FOUND,
    ConfigError,
    RequestError,
)
from streamd.net.route import link_exchange, link_table
from streamd.net.route import links as cluster_module
from streamd.net.route.links import ClusterLinks
from streamd.node.clock import SystemClock
from streamd.obs.server_log import Log
from streamd.protocol import peer_frames, route_proof
from streamd.raft.messages import Append, TimeoutNow
from streamd.types import Entry
from tests.certificates import Authority, Pair


class Handler:
    """Records what it is told; answers calls by name."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.refuses: set[str] = set()
        self.words: dict[str, Any] = {"voters": ["a", "b"], "is_virgin": True}
        self.changed = asyncio.Event()
        self.late: list[Callable[[Any], None]] = []

    def add(self, *event: Any) -> None:
        self.events.append(event)
        self.changed.set()

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == kind]

    async def until(self, is_true: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not is_true():
                self.changed.clear()
                await self.changed.wait()

    def hello(self) -> dict[str, Any]:
        return self.words

    def on_peer_up(self, node_id: str, hello: dict[str, Any]) -> None:
        if node_id in self.refuses:
            raise ConfigError(f"node {node_id} belongs elsewhere")
        self.add("up", node_id, hello)

    def on_peer_down(self, node_id: str) -> None:
        self.add("down", node_id)

    def on_raft(self, sender: str, uid: int, messages: list[Any]) -> None:
        self.add("raft", sender, uid, messages)

    def on_call(
        self, sender: str, method: str, args: list[Any], answer: Callable[[Any], None]
    ) -> None:
        self.add("call", sender, method, args)
        if method == "echo":
            answer(args)
        elif method == "no":
            answer(STREAM_NOT_FOUND())
        elif method == "odd":
            answer(RequestError("odd"))
        else:
            self.late.append(answer)

    def on_note(self, sender: str, kind: str, args: list[Any]) -> None:
        self.add("note", sender, kind, args)


class Server:
    """The links of one server with their handler and log."""

    def __init__(self, name: str, tasks: asyncio.TaskGroup, /, **settings: Any) -> None:
        settings = {"name": "c", "host": "127.0.0.1", "port": -1} | settings
        self.name = name
        self.tasks = tasks
        self.handler = Handler()
        self.log = _LoudLog(self.handler)
        self.cluster = ClusterLinks(
            Options(server_name=name, cluster=ClusterOptions(**settings)),
            server_name=name,
            log=self.log,
            clock=SystemClock(),
            loop=asyncio.get_running_loop(),
            server_id=f"N{name}",
        )
        self.cluster.serve_node(self.handler)

    @property
    def url(self) -> RouteUrl:
        return RouteUrl("127.0.0.1", self.cluster.port)

    async def start(self) -> Server:
        await self.cluster.start(self.tasks)
        return self

    async def until_up(self, *names: str) -> None:
        await self.handler.until(lambda: self.cluster.nodes() == sorted(names))

    def wake_at_each_hello(self) -> None:
        """Whoever waits looks again when another server has said who it is."""
        judge = self.cluster.table.why_not

        def why_not(*about: Any) -> str:
            self.handler.changed.set()
            return judge(*about)

        self.cluster.table.why_not = why_not  # type: ignore[method-assign]

    async def until_logged(self, words: str) -> None:
        await self.handler.until(lambda: words in self.log.text)


class _LoudLog(Log):
    """A log whose lines wake whoever waits for them."""

    __slots__ = ("_handler", "_sink")

    def __init__(self, handler: Handler) -> None:
        self._sink = io.StringIO()
        self._handler = handler
        super().__init__(stream=self._sink)

    @property
    def text(self) -> str:
        return self._sink.getvalue()

    def _write(self, level: str, text: str, fields: dict[str, Any]) -> None:
        super()._write(level, text, fields)
        self._handler.changed.set()


@asynccontextmanager
async def bed() -> AsyncIterator[Callable[..., Server]]:
    """Servers that end with the test."""
    servers: list[Server] = []
    async with asyncio.TaskGroup() as tasks:

        def make(name: str, /, **settings: Any) -> Server:
            servers.append(Server(name, tasks, **settings))
            return servers[-1]

        try:
            yield make
        finally:
            for server in servers:
                await server.cluster.close()


async def pair(make: Callable[..., Server], **settings: Any) -> tuple[Server, Server]:
    """Two servers with a link."""
    a = await make("a", **settings).start()
    b = await make("b", routes=(a.url,), **settings).start()
    await a.until_up("b")
    await b.until_up("a")
    return a, b


async def test_two_servers_meet_and_talk() -> None:
    """Raft, notes and calls; each arrives once and in order."""
    async with bed() as make:
        a, b = await pair(make, password="secret")
        assert a.handler.of("up") == [("b", a.handler.words)]
        assert a.cluster.is_up("b") and not a.cluster.is_up("x")
        entry = Entry(2, 6, b"data", "command", "tag", 9)
        a.cluster.send("b", 4, [Append(2, 5, 1, 7, [entry], 3), TimeoutNow(2)])
        a.cluster.note("b", "words", [1, b"x", {"k": [None]}])
        a.cluster.send("x", 4, [TimeoutNow(1)])
        a.cluster.note("x", "words", [])
        await b.handler.until(lambda: b.handler.of("note"))
        ((sender, uid, messages),) = b.handler.of("raft")
        assert (sender, uid, messages[0].entries[0].data) == ("a", 4, b"data")
        assert messages[0].entries[0].command is None and messages[1] == TimeoutNow(2)
        assert b.handler.of("note") == [("a", "words", [1, b"x", {"k": [None]}])]
        assert a.log.text.count("Route connection created") == 1
        assert f"Listening for route connections on 127.0.0.1:{a.cluster.port}" in a.log.text


async def test_an_exception_of_a_handler_ends_one_message_and_no_link() -> None:
    """A note, a call, Raft messages and an answer: each is counted, the first of a kind is told,
    and what comes behind it on the same link arrives."""
    async with bed() as make:
        a, b = await pair(make)

        def broken(sender: str, kind: str, args: list[Any]) -> None:
            if args:
                raise KeyError(args[0])
            b.handler.add("note", sender, kind, args)

        def broken_call(sender: str, method: str, args: list[Any], answer: Any) -> None:
            raise ValueError(method)

        def broken_raft(sender: str, uid: int, messages: list[Any]) -> None:
            raise AssertionError(uid)

        b.handler.on_note = broken  # type: ignore[method-assign]
        b.handler.on_call = broken_call  # type: ignore[method-assign]
        b.handler.on_raft = broken_raft  # type: ignore[method-assign]
        outcomes: list[Any] = []

        def done(value: Any) -> None:
            outcomes.append(value)
            a.handler.changed.set()

        for _ in range(3):
            a.cluster.note("b", "words", ["lost"])
        a.cluster.send("b", 4, [TimeoutNow(2)])
        a.cluster.call("b", "ask", [], done)
        a.cluster.call("b", "configured", ["x"], done)
        a.cluster.note("b", "words", [])
        await b.handler.until(lambda: b.handler.of("note"))
        await a.handler.until(lambda: len(outcomes) == 2)
        assert outcomes == [CLUSTER_NOT_AVAIL(), BAD_REQUEST()]
        assert a.cluster.nodes() == ["b"] and b.cluster.nodes() == ["a"]
        assert b.cluster.failed_count == 6
        text = "a message of a peer could not be handled"
        assert b.log.text.count(text) == 4, b.log.text
        for words in ("NOTE words", "CALL ask", "CALL configured", "RAFT", "KeyError: 'lost'"):
            assert words in b.log.text

        def odd(value: Any) -> None:
            raise KeyError("answer")

        b.handler.on_call = lambda sender, method, args, answer: answer("no bytes")  # type: ignore[method-assign]
        a.cluster.call("b", "block", [1, 2, 3, 4, 5], done)
        a.cluster.call("b", "ask", [], odd)
        await a.handler.until(lambda: a.cluster.failed_count == 2)
        assert outcomes[2] == CLUSTER_NOT_AVAIL()  # it is no block: as if nobody had answered
        assert a.cluster.nodes() == ["b"]


async def test_a_frame_that_cannot_be_decoded_ends_the_link() -> None:
    """Its sender is no peer of this version, and nothing behind it can be believed."""
    async with bed() as make:
        a, b = await pair(make)
        link = a.cluster._up["b"]
        link.writer.write(peer_frames.frame(peer_frames.RAFT, 4, [[99]]))
        await b.handler.until(lambda: b.handler.of("down"))
        assert "Protocol Violation: raft message of unknown class 99" in b.log.text


async def test_a_malformed_welcome_ends_its_own_link_alone() -> None:
    """A node that says nonsense of itself is not met; the server that heard it goes on."""
    async with bed() as make:
        a = await make("a").start()
        b = make("b", routes=(a.url,))
        b.handler.words["voters"] = 7
        await b.start()
        await a.until_logged("malformed hello of a node")
        b.handler.words["voters"] = []
        await a.until_up("b")


async def test_a_welcome_may_be_long() -> None:
    """It names all servers that were ever removed, and comes with the proof, in one chunk: by the
    bound for strangers the link was refused, on each try."""
    async with bed() as make:
        a = await make("a").start()
        removals = {f"server-{number:050}": number for number in range(3000)}
        a.handler.words["removals"] = removals
        b = await make("b", routes=(a.url,)).start()
        await b.until_up("a")
        await a.until_up("b")
        assert b.handler.of("up")[0][1]["removals"] == removals


async def test_calls_have_one_outcome_each() -> None:
    """An answer, an error, silence, a lost link or no link at all."""
    async with bed() as make:
        a, b = await pair(make)
        outcomes: dict[str, Any] = {}

        def ask(node: str, method: str, timeout_ms: int = 5000) -> None:
            def done(value: Any) -> None:
                assert method not in outcomes
                outcomes[method] = value
                a.handler.changed.set()

            a.cluster.call(node, method, [1, "two"], done, timeout_ms)
            assert method not in outcomes  # never at once

        ask("b", "echo"), ask("b", "no"), ask("b", "odd"), ask("x", "nobody")
        ask("b", "slow", 1), ask("b", "lost")
        await a.handler.until(lambda: len(outcomes) == 5)
        assert outcomes["echo"] == [1, "two"]
        assert outcomes["no"] == STREAM_NOT_FOUND()
        assert isinstance(outcomes["odd"], RequestError) and str(outcomes["odd"]) == "odd"
        assert outcomes["nobody"] == outcomes["slow"] == CLUSTER_NOT_AVAIL()
        await b.handler.until(lambda: len(b.handler.late) == 2)
        b.handler.late[0]("too late")
        await b.cluster.close()
        await a.handler.until(lambda: len(outcomes) == 6)
        assert outcomes["lost"] == CLUSTER_NOT_AVAIL()
        b.handler.late[1]("nobody listens")


async def test_notes_of_a_prefix_go_where_they_belong() -> None:
    """The longest prefix wins; the rest is the handler's."""
    async with bed() as make:
        a, b = await pair(make)
        taken: list[Any] = []
        b.cluster.on_note_prefix("net.", lambda *note: taken.append(("net", *note)))
        b.cluster.on_note_prefix("net.odd", lambda *note: taken.append(("odd", *note)))
        for kind in ("net.some", "net.odd", "words", "net.some"):
            a.cluster.note("b", kind, [])
        await b.handler.until(lambda: b.handler.of("note"))
        assert b.handler.of("note") == [("a", "words", [])]
        await b.handler.until(lambda: len(taken) == 3) if len(taken) < 3 else None
        assert [(to, kind) for to, _, kind, _ in taken] == [
            ("net", "net.some"), ("odd", "net.odd"), ("net", "net.some"),
        ]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
async def test_both_dial_and_one_link_is_kept(first: str, second: str) -> None:
    """Whoever begins: neither side ever sees a link come and go."""
    async with bed() as make:
        one = await make(first).start()
        two = await make(second, routes=(one.url,)).start()
        one.cluster._dialer.learn(second, two.url.address)  # type: ignore[union-attr]
        await one.until_up(second)
        await two.until_up(first)
        one.cluster.call(second, "echo", [], lambda _: one.handler.add("done"))
        await one.handler.until(lambda: one.handler.of("done"))
        assert [len(s.handler.of("up")) for s in (one, two)] == [1, 1]
        assert [len(s.handler.of("down")) for s in (one, two)] == [0, 0]
        assert len(one.cluster.routes()) == len(two.cluster.routes()) == 1


async def test_all_dial_all_at_once_and_no_link_comes_and_goes() -> None:
    """Five servers with one list of routes, as in a configuration they share."""
    names = "abcde"
    with contextlib.ExitStack() as probes:
        ports = [
            probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for _ in names
        ]
    routes = tuple(RouteUrl("127.0.0.1", port) for port in ports)
    async with bed() as make:
        servers = [make(n, port=p, routes=routes) for n, p in zip(names, ports, strict=True)]
        for server in servers:
            await server.start()
        for server in servers:
            await server.until_up(*sorted(set(names) - {server.name}))
            assert server.cluster.expected_size() == 5
        for server in servers:
            kinds = [event[0] for event in server.handler.events]
            assert kinds == ["up"] * 4, (server.name, server.log.text)
            facts = server.cluster.routes()
            assert sorted(f.remote_name for f in facts) == server.cluster.nodes()


async def test_servers_that_know_one_of_them_find_each_other() -> None:
    """Gossip: b and c know only a; a learns of d by its dialing in."""
    async with bed() as make:
        a = await make("a").start()
        others = [await make(name, routes=(a.url,)).start() for name in "bcd"]
        await a.until_up("b", "c", "d")
        for server in others:
            await server.until_up(*sorted({"a", "b", "c", "d"} - {server.name}))
        assert [f.remote_name for f in a.cluster.routes()] != []
        facts = {f.remote_name: f for f in others[0].cluster.routes()}
        assert facts["a"].is_configured and facts["a"].did_solicit
        assert facts["a"].remote_id == "Na" and not facts["c"].is_configured


async def test_two_routes_to_one_server_count_once_it_was_met() -> None:
    """Before that nobody can tell: it could be two."""
    async with bed() as make:
        a = await make("a").start()
        b = make("b", routes=(a.url, RouteUrl("localhost", a.cluster.port)))
        b.wake_at_each_hello()
        assert b.cluster.expected_size() == 1  # nothing is known before the start
        await b.start()
        assert b.cluster.expected_size() == 3
        await b.handler.until(lambda: b.cluster.expected_size() == 2)
        await b.until_up("a")
        assert b.handler.of("up") == [("a", a.handler.words)]


async def test_a_server_without_jetstream_is_not_waited_for() -> None:
    """It is named in a route like any other; who meets it knows better."""
    async with bed() as make:
        plain = make("plain")
        plain.handler.words = {}
        await plain.start()
        b = await make("b").start()
        a = make("a", routes=(plain.url, b.url))
        await a.start()
        assert a.cluster.expected_size() == 3
        assert a.cluster.unreached() == [plain.url.address, b.url.address]
        await a.until_up("b", "plain")
        assert a.cluster.expected_size() == 2
        assert a.cluster.unreached() == []
        assert plain.cluster.expected_size() == 1
        await plain.cluster.close()
        await a.until_up("b")
        assert a.cluster.expected_size() == 2  # it has not changed while it is away
        assert a.cluster.unreached() == [plain.url.address]


async def test_routes_may_be_changed() -> None:
    """A reload: new ones are dialed, those that are gone are not dialed again, links stay."""
    async with bed() as make:
        b, c = await make("b").start(), await make("c").start()
        c.handler.refuses.add("b")  # lest it tell a of b
        a = await make("a", routes=(b.url,)).start()
        await a.until_up("b")
        both = replace(a.cluster.local.options, routes=(b.url, c.url))
        a.cluster.change_routes(both)
        await a.until_up("b", "c")
        assert a.handler.of("down") == []
        assert a.cluster.expected_size() == 3
        assert a.cluster.configured_urls == [b.url.address, c.url.address]

        a.cluster.change_routes(replace(both, routes=(c.url,)))
        assert a.cluster.expected_size() == 2
        facts = {f.remote_name: f for f in a.cluster.routes()}
        assert not facts["b"].is_configured
        assert facts["c"].is_configured
        assert a.handler.of("down") == []
        await b.cluster.close()
        await a.until_up("c")
        await c.cluster.close()
        await a.until_up()
        again = await make("b", port=b.cluster.port).start()
        await make("c", port=c.cluster.port).start()
        await a.until_up("c")
        assert again.handler.events == []


async def test_a_name_that_can_be_none_is_a_route_that_leads_nowhere() -> None:
    """Of the configuration, or told by another server: what the resolver refuses to look up ended
    the task that dials, and with it the server; told by one, each server of the cluster."""
    async with bed() as make:
        nowhere = RouteUrl("a..b", 6222)
        a = await make("a", routes=(nowhere,)).start()
        await a.until_logged("a..b")
        b = await make("b", routes=(a.url,), advertise=f"{'x' * 64}.example:6222").start()
        await a.until_up("b")
        await b.until_up("a")
        c = await make("c", routes=(a.url,)).start()  # hears of where b should be dialed
        await c.until_logged("x" * 64)
        assert c.cluster.is_up("a")


async def test_a_route_to_oneself_is_forgotten() -> None:
    """Every server of a cluster may have the same list of routes."""
    async with bed() as make:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        own = RouteUrl("127.0.0.1", port)
        a = await make("a", port=port, routes=(own, RouteUrl("h", 1))).start()
        assert a.cluster.expected_size() == 2  # its very address: seen without dialing
        await a.cluster.close()
        # That 127.0.0.2 is its own address too is found out by dialing.
        routes = (own, RouteUrl("127.0.0.2", port))
        b = make("b", host="0.0.0.0", port=port, routes=routes)
        b.wake_at_each_hello()
        await b.start()
        assert b.cluster.expected_size() == 2
        await b.handler.until(lambda: b.cluster.expected_size() == 1)
        assert b.handler.events == []
        assert "refused" not in b.log.text


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"password": "wrong"}, "b", "Authorization Violation"),
        ({"username": "other", "password": "right"}, "b", "Authorization Violation"),
        ({"password": "right", "name": "d"}, "b", "Cluster Name Conflict: 'd' and 'c'"),
        ({"password": "right"}, "a", "Duplicate Server Name: a"),
    ],
)
async def test_a_server_that_does_not_belong_is_refused_and_both_say_why(
    settings: dict[str, Any], name: str, words: str
) -> None:
    """Once on each side, although the dialer keeps trying."""
    async with bed() as make:
        a = await make("a", password="right").start()
        b = await make(name, routes=(a.url,), **settings).start()
        await a.until_logged(words)
        await b.until_logged("route connection refused")
        if "'" not in words:
            assert words in b.log.text
        before = b.cluster._dialer.explicit[0].tries  # type: ignore[union-attr]
        while b.cluster._dialer.explicit[0].tries < before + 2:  # type: ignore[union-attr]
            await asyncio.sleep(0.005)
        assert a.log.text.count("refused") == b.log.text.count("refused") == 1
        assert a.handler.events == b.handler.events == []


async def test_credentials_of_a_route_replace_the_clusters_own() -> None:
    """`nats://user:password@host` as in nats-server."""
    async with bed() as make:
        a = await make("a", username="u", password="p").start()
        url = RouteUrl("127.0.0.1", a.cluster.port, "u", "p")
        b = await make("b", routes=(url,), username="v", password="q").start()
        await b.until_up("a")


async def test_the_handler_may_refuse_a_node() -> None:
    """Another cluster's data: the link ends, is tried again ever slower, and logged once."""
    async with bed() as make:
        for refusing in ("a", "b"):
            a = make("a")
            await a.start()
            b = make("b", routes=(a.url,))
            by_name = {"a": a, "b": b}
            by_name[refusing].handler.refuses = {"a", "b"}
            await b.start()
            await by_name[refusing].until_logged("belongs elsewhere")
            other = by_name["ab".replace(refusing, "")]
            await other.until_logged("belongs elsewhere")
            assert by_name[refusing].handler.events == []
            assert by_name[refusing].log.text.count("belongs elsewhere") == 1
            await a.cluster.close()
            await b.cluster.close()


async def _read_close(reader: asyncio.StreamReader) -> str:
    """The reason with which the server closed."""
    async with asyncio.timeout(30):
        frames = peer_frames.FrameReader().feed(await reader.read())
    assert frames[-1][0] == peer_frames.CLOSE
    return str(frames[-1][1])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "Protocol Violation: frame of"),
        (b'CONNECT {"verbose":false}\r\nPING\r\n', "Protocol Violation: frame of"),
        (b"\x7f\xff\xff\xff", "Protocol Violation: frame of 2147483647 bytes"),
        (b"\x00\x00\x00\x01\xc1", "Protocol Violation: frame of 1 bytes is not msgpack"),
        (b"\x00\x00\x01\x00half", "Authentication Timeout"),
        (peer_frames.frame(peer_frames.NOTE, "x", []), "Protocol Violation: NOTE before HELLO"),
        (
            peer_frames.frame(peer_frames.HELLO, peer_frames.MAGIC, 5, {}),
            "speaks the newer peer format 5, this server speaks 4",
        ),
        (peer_frames.hello({}), "HELLO without a name"),
    ],
)
async def test_garbage_is_refused_and_the_server_stays_up(data: bytes, words: str) -> None:
    """Two strangers with one fault make one line; then a real peer is welcome."""
    async with bed() as make:
        a = await make("a", auth_timeout_s=0.05).start()
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", a.cluster.port)
            writer.write(data)
            assert words in await _read_close(reader)
            writer.close()
        assert a.log.text.count("refused") == 1
        a.cluster.local.auth_timeout_s = 2.0
        b = await make("b", routes=(a.url,)).start()
        await b.until_up("a")


async def _frames(reader: asyncio.StreamReader, count: int) -> list[list[Any]]:
    """The next frames of the other side: so many, or as many as come before its end."""
    found: list[list[Any]] = []
    reading = peer_frames.FrameReader()
    async with asyncio.timeout(30):
        while len(found) < count and (data := await reader.read(65536)):
            found += reading.feed(data)
    return found


def _stranger(server: Server) -> dict[str, Any]:
    """What a stranger that does not know the password says of itself."""
    return server.cluster.local.hello() | {"name": "b", "boot": "1", "nonce": b"n"}


async def test_a_stranger_that_dials_is_refused_whatever_it_sends() -> None:
    """It gets a proof of the acceptor's, and can't use it: sent back it is no dialer's. There is no
    welcome without a proof, and nothing else before one."""
    async with bed() as make:
        a = await make("a", password="p").start()

        async def say(*frames: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", a.cluster.port)
            writer.writelines(frames)
            return reader, writer

        own = peer_frames.hello(_stranger(a))
        reader, writer = await say(own)
        hello, auth = await _frames(reader, 2)
        expected = route_proof.proofs(
            route_proof.stretched("", "p"), own[4:], peer_frames.hello(hello[3])[4:]
        )
        assert auth[:2] == [peer_frames.AUTH, expected.acceptor]
        writer.write(peer_frames.frame(peer_frames.AUTH, auth[1]))  # as it came
        assert await _read_close(reader) == "Authorization Violation"
        writer.close()

        # The very bytes of a link that came up are refused on another.
        reader, writer = await say(own)
        await _frames(reader, 2)
        writer.write(peer_frames.frame(peer_frames.AUTH, expected.dialer))
        assert await _read_close(reader) == "Authorization Violation"
        writer.close()

        for frame in (
            peer_frames.frame(peer_frames.WELCOME, {}),
            peer_frames.frame(peer_frames.NOTE, "net.peers", []),
        ):
            reader, writer = await say(own, frame)
            assert "during the handshake" in await _read_close(reader)
            writer.close()
        assert a.handler.events == []


async def test_an_impostor_that_is_dialed_gets_no_proof() -> None:
    """The dialer says who it is, and proves nothing to one that has not proven itself."""
    heard: list[list[Any]] = []
    over = asyncio.Event()

    async def stand_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (hello,) = await _frames(reader, 1)
        writer.write(
            peer_frames.hello(_stranger(a)) + peer_frames.frame(peer_frames.AUTH, b"?" * 32)
        )
        heard.extend([hello, *await _frames(reader, 9)])
        writer.close()
        over.set()

    server = await asyncio.start_server(stand_in, "127.0.0.1", 0)
    async with bed() as make:
        port = server.sockets[0].getsockname()[1]
        a = make("a", password="p", routes=(RouteUrl("127.0.0.1", port),))
        await a.start()
        async with asyncio.timeout(30):
            await over.wait()
        assert [frame[0] for frame in heard] == [peer_frames.HELLO, peer_frames.CLOSE]
        assert heard[1][1] == "Authorization Violation"
        server.close()


async def test_one_side_with_a_password_and_one_without_do_not_meet() -> None:
    """Whoever of the two dials."""
    for passwords in (("p", ""), ("", "p")):
        async with bed() as make:
            a = await make("a", password=passwords[0]).start()
            b = await make("b", password=passwords[1], routes=(a.url,)).start()
            await a.until_logged("Authorization Violation")
            await b.until_logged("Authorization Violation")
            assert a.handler.events == b.handler.events == []


async def test_strangers_cannot_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that prove nothing are bounded, and do not keep other servers out."""
    monkeypatch.setattr(link_table, "PEER_HANDSHAKES_MAX", 2)
    async with bed() as make:
        a = await make("a").start()
        # They would be let go of for their silence in the end; nobody waits for that here.
        a.cluster.local.auth_timeout_s = 60
        streams = [await asyncio.open_connection("127.0.0.1", a.cluster.port) for _ in "123"]
        with contextlib.suppress(ConnectionResetError):
            assert await streams[0][0].read() == b""
        b = await make("b", routes=(a.url,)).start()
        await a.until_up("b")
        await b.until_up("a")
        for _, writer in streams:
            writer.close()


async def test_a_silent_link_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that hangs keeps its socket open; beats tell."""
    monkeypatch.setattr(cluster_module, "PEER_BEAT_S", 0.005)
    async with bed() as make:
        a, b = await pair(make)
        (link,) = a.cluster._up.values()
        async with asyncio.timeout(30):
            while not link.rtt_ns:  # each beat is answered
                await asyncio.sleep(0)
        assert b.cluster._beat_timer is not None
        b.cluster._beat_timer.cancel()
        (theirs,) = b.cluster._up.values()
        theirs.writer._transport.pause_reading()  # type: ignore[union-attr]
        await a.handler.until(lambda: a.handler.of("down"))
        assert "Stale Connection" in a.log.text


async def test_a_lost_link_is_told_at_once_and_comes_back() -> None:
    """A reset, as of a killed process: down, then up again on both sides."""
    async with bed() as make:
        a, b = await pair(make)
        downs: list[str] = []
        ups: list[str] = []
        a.cluster.on_down(downs.append)
        a.cluster.on_up(ups.append)
        (link,) = b.cluster._up.values()
        link.writer._transport.abort()  # type: ignore[union-attr]
        await a.handler.until(lambda: len(a.handler.of("up")) == 2)
        await b.handler.until(lambda: len(b.handler.of("up")) == 2)
        assert (downs, ups) == (["b"], ["b"])
        kinds = [event[0] for event in a.handler.events]
        assert kinds == ["up", "down", "up"]


async def test_a_restarted_server_is_met_at_its_new_address() -> None:
    """It comes back on another port; those who knew the old one learn the new one."""
    async with bed() as make:
        a, b = await pair(make)
        await b.cluster.close()
        await a.handler.until(lambda: a.handler.of("down") == [("b",)])
        again = await make("b", routes=(a.url,)).start()
        await a.until_up("b")
        await again.until_up("a")
        (facts,) = a.cluster.routes()
        assert facts.remote_name == "b"
        route = a.cluster._dialer._implicit["b"]  # type: ignore[union-attr]
        assert route.url.port == again.cluster.port


async def test_a_second_server_of_one_name_is_kept_out() -> None:
    """While the first is alive. Both it and the third server say so."""
    async with bed() as make:
        a, _b = await pair(make)
        impostor = await make("b", routes=(a.url,)).start()
        await impostor.until_logged("Duplicate Server Name: b")
        await a.until_logged("Duplicate Server Name: b")
        assert impostor.handler.events == []
        assert a.cluster.nodes() == ["b"] and len(a.handler.of("up")) == 1


async def test_appends_are_lost_before_notes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is behind loses what Raft repeats; if notes don't fit either it is closed."""
    monkeypatch.setattr(link_exchange, "PEER_APPEND_BUFFER_BYTES_MAX", 1000)
    monkeypatch.setattr(link_exchange, "PEER_BUFFER_BYTES_MAX", 5000)
    async with bed() as make:
        a, b = await pair(make)
        append = Append(1, 0, 0, 0, [Entry(1, 1, bytes(1500), chain=1)], 0)
        a.cluster.send("b", 1, [append])
        assert a.cluster.buffered_bytes("b") > 1500
        a.cluster.send("b", 2, [append, TimeoutNow(5)])
        a.cluster.send("b", 3, [append])
        a.cluster.note("b", "x", [])
        await b.handler.until(lambda: b.handler.of("note"))
        assert [(uid, len(some)) for _, uid, some in b.handler.of("raft")] == [(1, 1), (2, 1)]
        assert a.cluster.buffered_bytes("b") == a.cluster.buffered_bytes("x") == 0
        a.cluster.note("b", "x", [bytes(6000)])
        assert a.handler.of("down") == [("b",)]
        assert "Slow Consumer" in a.log.text


async def test_a_link_can_be_ended_for_a_reason() -> None:
    """The node of a server that was removed: both sides know at once, and say why."""
    async with bed() as make:
        a, b = await pair(make)
        a.cluster.refuse("c", "nobody of this name is here")
        a.cluster.refuse("b", "not any more")
        assert not a.cluster.is_up("b") and a.handler.of("down") == [("b",)]
        assert "route connection refused: not any more" in a.log.text
        await b.handler.until(lambda: b.handler.of("down"))
        assert "Router connection closed: not any more" in b.log.text


def test_a_drained_link_is_told() -> None:
    """Whoever paused because of `buffered_bytes` goes on."""

    async def main() -> None:
        async with bed() as make:
            a, b = await pair(make)
            drained: list[str] = []
            a.cluster.on_drained(drained.append)
            a.cluster.on_drained(lambda _: a.handler.changed.set())
            (link,) = a.cluster._up.values()
            (theirs,) = b.cluster._up.values()
            assert link.writer._transport is not None and theirs.writer._transport is not None
            theirs.writer._transport.pause_reading()
            count = 0
            while link.writer._transport.get_write_buffer_size() <= limits.REMOTE_CONGESTED_BYTES:
                a.cluster.note("b", "x", [bytes(limits.REMOTE_CONGESTED_BYTES // 2)])
                count += 1
                await asyncio.sleep(0)  # until the kernel takes no more
            assert drained == []
            theirs.writer._transport.resume_reading()
            await a.handler.until(lambda: drained)
            await b.handler.until(lambda: len(b.handler.of("note")) == count)
            assert drained == ["b"] and a.cluster.buffered_bytes("b") == 0

    # The loop that servers run on: of the others, those of Python 3.12.0 to 3.13.1 do not say when
    # what `writelines` left is sent (python/cpython#127655).
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_a_link_is_shown_with_its_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PEER_BEAT_S", 3600.0)
    async with bed() as make:
        before_ns = time.time_ns()
        a, b = await pair(make)
        (shown,), (theirs,) = a.cluster.routes(), b.cluster.routes()
        assert (shown.in_msgs, shown.out_msgs) == (0, 0)
        assert (shown.remote_name, shown.remote_id) == ("b", "Nb")
        assert (shown.ip, theirs.port) == ("127.0.0.1", a.cluster.port)
        assert (shown.did_solicit, theirs.did_solicit) == (False, True)
        assert before_ns <= shown.start_ns <= shown.last_activity_ns <= time.time_ns()
        answers: list[Any] = []

        def answered(value: Any) -> None:
            answers.append(value)
            a.handler.changed.set()

        a.cluster.send("b", 4, [TimeoutNow(2)])
        a.cluster.note("b", "x", [bytes(1000)])
        a.cluster.call("b", "echo", [1], answered, 5000)
        await a.handler.until(lambda: answers)
        (now,), (theirs,) = a.cluster.routes(), b.cluster.routes()
        assert (now.out_msgs, now.in_msgs) == (theirs.in_msgs, theirs.out_msgs) == (3, 1)
        assert now.out_bytes > shown.out_bytes + 1000 and now.in_bytes > shown.in_bytes
        assert (now.out_bytes, now.in_bytes) == (theirs.in_bytes, theirs.out_bytes)


async def test_too_many_calls_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_exchange, "PEER_CALLS_MAX", 2)
    async with bed() as make:
        a, _ = await pair(make)
        outcomes: list[Any] = []

        def answered(value: Any) -> None:
            outcomes.append(value)
            a.handler.changed.set()

        for number in range(3):
            a.cluster.call("b", "echo", [number], answered, 5000)
        await a.handler.until(lambda: len(outcomes) == 3)
        assert outcomes == [CLUSTER_NOT_AVAIL(), [0], [1]]


async def test_a_link_lives_while_anything_comes() -> None:
    async with bed() as make:
        a, _ = await pair(make)
        (link,) = a.cluster._up.values()
        for _ in range(3 * limits.PEER_SILENT_BEATS_MAX):
            link.beat()
            link.data_received(peer_frames.frame(peer_frames.NOTE, "x", []))
        assert a.cluster.is_up("b") and not link.is_doubtful
        link.beat(), link.beat()
        assert link.is_doubtful


async def test_clients_learn_where_else_to_connect() -> None:
    """URLs of all servers, gone again with their server; a silent server tells none."""
    async with bed() as make:
        a = await make("a").start()
        a.cluster.set_client_urls(["h:1"])
        seen: list[list[str]] = []
        a.cluster.on_urls(seen.append)
        a.cluster.on_urls(lambda _: a.handler.changed.set())
        b = await make("b", routes=(a.url,)).start()
        await a.until_up("b")
        b.cluster.set_client_urls(["h:2", "i:2"])
        silent = await make("s", routes=(a.url,), has_advertise=False).start()
        silent.cluster.set_client_urls(["h:3"])
        await a.until_up("b", "s")
        await a.handler.until(lambda: seen and seen[-1] == ["h:1", "h:2", "i:2"])
        await b.cluster.close()
        await a.handler.until(lambda: seen[-1] == ["h:1"])


async def test_clocks_that_differ_are_mentioned() -> None:
    """Tolerated, but an operator wants to know."""

    class Late(SystemClock):
        def now_ns(self) -> int:
            return super().now_ns() - 2 * limits.PEER_CLOCK_SKEW_NS

    async with bed() as make:
        a = await make("a").start()
        b = make("b", routes=(a.url,))
        b.cluster.local.clock = Late()
        await b.start()
        await b.until_up("a")
        await a.until_up("b")
        assert "clocks differ" in a.log.text and "clocks differ" in b.log.text


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificate with openssl"
)


def certificate(directory: Path) -> TlsOptions:
    """A new one, which is its own authority."""
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", key, "-out", cert, "-days", "1", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return TlsOptions((CertificatePair(cert, key),), ca_file=cert)


@needs_openssl
async def test_certificates_are_read_anew(tmp_path: Path) -> None:
    """The files are replaced, as before a certificate expires: who has read them anew meets who
    started with the new ones. A key that does not fit changes nothing."""
    tls = certificate(tmp_path)
    async with bed() as make:
        a = await make("a", tls=tls, password="p").start()
        old_key = Path(tls.certificates[0].key_file).read_bytes()
        certificate(tmp_path)
        new_key = Path(tls.certificates[0].key_file).read_bytes()
        Path(tls.certificates[0].key_file).write_bytes(old_key)
        assert a.cluster.tls is not None
        with pytest.raises(ConfigError, match="private key does not match public key"):
            a.cluster.tls.read_anew()
        Path(tls.certificates[0].key_file).write_bytes(new_key)
        a.cluster.tls.read_anew()
        b = await make("b", routes=(a.url,), tls=tls, password="p").start()
        await b.until_up("a")


async def test_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    async with bed() as make:
        with pytest.raises(ConfigError, match=r"open .*/nowhere.pem: no such file"):
            pair = CertificatePair(f"{tmp_path}/nowhere.pem", "key.pem")
            await make("a", tls=TlsOptions((pair,))).start()


@pytest.mark.parametrize(
    ("settings", "names", "is_let_in"),
    [
        ({}, (), True),
        ({"pinned_certs": frozenset({"ab" * 32})}, (), False),
        ({"checks_known_urls": True}, ("known.test",), True),
        ({"checks_known_urls": True}, ("*.test",), True),
        ({"checks_known_urls": True}, ("other.test",), False),
        ({"is_mapping": True}, ("router",), True),
        ({"is_mapping": True}, ("known.test",), False),
    ],
)
async def test_a_server_is_known_by_its_certificate(
    tmp_path: Path, settings: dict[str, Any], names: tuple[str, ...], is_let_in: bool
) -> None:
    """Pinned keys, names of configured routes, the cluster's user: who dials must have them."""
    authority = Authority(tmp_path)
    own = authority.issue("own")
    subject = [x509.DNSName(name) for name in (*names, "localhost")]
    other = authority.issue(
        "other", "CN=x", [*subject, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )

    def tls(pair: Pair, **more: Any) -> TlsOptions:
        files = (CertificatePair(pair.cert, pair.key),)
        return TlsOptions(files, ca_file=authority.cert, **more)

    async with bed() as make:
        routes = (RouteUrl("known.test", 1),)
        common = {"username": "router", "password": "p"}
        a = await make("a", tls=tls(own, **settings), routes=routes, **common).start()
        b = await make("b", tls=tls(other), routes=(a.url,), **common).start()
        if is_let_in:
            await b.until_up("a")
        else:
            await a.until_logged("certificate not pinned, or not of a known server")
            assert b.cluster.nodes() == []


async def test_a_server_dials_only_pinned_keys(tmp_path: Path) -> None:
    """The log of who dials says why there is no link."""
    authority = Authority(tmp_path)
    one, two = authority.issue("one"), authority.issue("two")

    def tls(pair: Pair, *pins: str) -> TlsOptions:
        files = (CertificatePair(pair.cert, pair.key),)
        return TlsOptions(files, ca_file=authority.cert, pinned_certs=frozenset(pins))

    async with bed() as make:
        a = await make("a", tls=tls(one), password="p").start()
        b = await make("b", tls=tls(two, two.pin), routes=(a.url,), password="p").start()
        await b.until_logged("certificate not pinned")
        c = await make("c", tls=tls(two, one.pin), routes=(a.url,), password="p").start()
        await c.until_up("a")
        assert b.cluster.nodes() == []


@needs_openssl
async def test_links_may_be_encrypted(tmp_path: Path) -> None:
    """Both ends show a certificate of one authority; without one there is no link."""
    tls = certificate(tmp_path)
    async with bed() as make:
        a, b = await pair(make, tls=tls, password="p")
        a.cluster.note("b", "x", [bytes(100_000)])
        await b.handler.until(lambda: b.handler.of("note"))
        c = await make("c", routes=(a.url,), password="p", auth_timeout_s=0.2).start()
        await c.until_logged("route connection refused")
        assert a.cluster.nodes() == ["b"] and c.cluster.nodes() == []


async def test_a_port_that_is_taken_is_an_os_error() -> None:
    """The process says which; nothing is left running."""
    async with bed() as make:
        a = await make("a").start()
        with pytest.raises(OSError, match="in use"):
            await make("b", port=a.cluster.port).start()
        with pytest.raises(OverflowError):
            await make("b", port=70000).start()
