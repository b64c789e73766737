"""The WebSocket listener answers as a real nats-server's: handshakes, frames, ends, logins."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.minted_tokens import ACCOUNT, account, operator_config, user
from tests.parity.runner import ours_binary, peer_binary
from tests.websocket_wire import (
    BINARY,
    CLOSE,
    DEFLATE,
    PING,
    PONG,
    TEXT,
    WebSocketWire,
    deflated,
    frame,
    inflated,
    request,
)

CONNECT = b'CONNECT {"verbose":false,"name":"x"}\r\nPING\r\n'
USERS = "authorization { users: [{user: u, password: p}, {user: v, password: q}], timeout: 1 }"


class Pair(NamedTuple):
    """Both servers with the same `websocket` block, each with its ports."""

    ours: ServerProcess
    peer: ServerProcess
    ports: dict[int, int]  # of WebSocket, by the port of clients

    def port(self, server: ServerProcess) -> int:
        return self.ports[server.port]


def started(directory: Path, block: str, *lines: str) -> Iterator[Pair]:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    servers, ports = [], {}
    for name, binary in (("ours", ours_binary()), ("peer", peer_binary())):
        port = free_port()
        listener = f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true, {block} }}'
        server = ServerProcess(
            binary,
            directory=directory / name,
            extra="\n".join([listener, *lines]),
            is_jetstream=False,
        )
        servers.append(server)
        ports[server.port] = port
        server.start()
    yield Pair(*servers, ports)
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    block = 'compression: true, allowed_origins: ["http://a.test:8080"], headers { X-A: b }'
    yield from started(tmp_path_factory.mktemp("ws"), block)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    block = (
        'user_cookie: cu, pass_cookie: cp, same_origin: true, handshake_timeout: "3s",'
        " authorization { timeout: 1 }"
    )
    yield from started(tmp_path_factory.mktemp("guarded"), block, USERS)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request(), id="granted"),
        pytest.param(request("GET /any/path?a=b HTTP/1.1"), id="path"),
        pytest.param(request("GET / HTTP/1.0"), id="HTTP/1.0"),
        pytest.param(request("POST / HTTP/1.1"), id="method"),
        pytest.param(request("GET /x/mqtt HTTP/1.1"), id="mqtt"),
        pytest.param(request("GET /mqttx HTTP/1.1"), id="no mqtt"),
        pytest.param(request("GET /leafnode HTTP/1.1"), id="leaf"),
        pytest.param(request(headers={"Host": ""}), id="no host"),
        pytest.param(request(headers={"Upgrade": ""}), id="no upgrade"),
        pytest.param(request(headers={"Upgrade": "h2c, WebSocket"}), id="list of upgrades"),
        pytest.param(request(headers={"Connection": "close"}), id="connection"),
        pytest.param(request(headers={"Sec-WebSocket-Key": ""}), id="no key"),
        pytest.param(request(headers={"Sec-WebSocket-Key": "abc"}), id="bad key"),
        pytest.param(request(headers={"Sec-WebSocket-Version": "8"}), id="version"),
        pytest.param(request(headers={"Sec-WebSocket-Version": "8, 13"}), id="list of versions"),
        pytest.param(request(headers={"Sec-WebSocket-Protocol": "nats"}), id="subprotocol"),
        pytest.param(request(headers={"Origin": "http://a.test:8080"}), id="allowed origin"),
        pytest.param(request(headers={"Origin": "http://A.test:8080"}), id="origin in capitals"),
        pytest.param(request(headers={"Origin": "http://a.test"}), id="origin's port"),
        pytest.param(request(headers={"Origin": "https://a.test:8080"}), id="origin's scheme"),
        pytest.param(request(headers={"Origin": "null"}), id="no page"),
        pytest.param(request(headers={"Sec-WebSocket-Origin": "http://b.test"}), id="old origin"),
        pytest.param(request(headers=DEFLATE), id="compression"),
        pytest.param(
            request(headers={"Sec-WebSocket-Extensions": "a, b; permessage-deflate; x=1"}),
            id="compression in a list",
        ),
        pytest.param(
            request(headers=DEFLATE | {"Nats-No-Masking": "true"}), id="compressed, no masks"
        ),
        pytest.param(request(headers={"Nats-No-Masking": "True"}), id="masks"),
        pytest.param(request() + frame(BINARY, CONNECT), id="data before the answer"),
        pytest.param(b"CONNECT {}\r\n\r\n", id="no HTTP"),
    ],
)
def test_requests_are_answered_alike(both: Pair, data: bytes) -> None:
    def told(server: ServerProcess) -> object:
        wire = WebSocketWire(both.port(server))
        line, headers, body = wire.ask(data)
        wire.close()
        if "X-Content-Type-Options" in headers:  # a check failed: ours closes
            headers.pop("Connection", None)
        headers.pop("Date", None)
        return line, list(headers.items()), body

    assert told(both.ours) == told(both.peer)


def closed_reason(server: ServerProcess, before: int) -> str:
    """The reason of the connection that ends after `before` others, once it has."""
    deadline = time.monotonic() + 5
    url = f"http://127.0.0.1:{server.http_port}/connz?state=closed&sort=stop&limit=1"
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url, timeout=30) as answer:
            document: dict[str, Any] = json.load(answer)
        if document["total"] > before:
            entry = document["connections"][0]
            assert entry["type"] == "websocket"
            return str(entry["reason"])
    raise AssertionError("no connection ended")


def closed_count(server: ServerProcess) -> int:
    url = f"http://127.0.0.1:{server.http_port}/connz?state=closed&limit=1"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return int(json.load(answer)["total"])


def conversation(
    pair: Pair, server: ServerProcess, data: bytes, headers: dict[str, str]
) -> tuple[list[tuple[int, bytes]], str]:
    """Frames that answer `data`, to the end of the connection, and its reason.

    How content is cut into frames is a matter of time, so it is shown whole.
    """
    before = closed_count(server)
    wire = WebSocketWire(pair.port(server))
    wire.upgrade(headers)
    info = wire.next()
    assert info is not None
    wire.send(data)
    came = wire.fence()
    if not wire.is_closed and not any(each.first & 0x0F in (BINARY, CLOSE) for each in came):
        # The peer may answer a ping ahead of what it wrote before.
        with contextlib.suppress(TimeoutError):
            came += filter(None, (wire.next(0.5),))
    frames: list[tuple[int, bytes]] = []
    for first, content in came:
        if frames and first == frames[-1][0] == 0x80 | BINARY:
            content = frames.pop()[1] + content
        frames.append((first, content))
    wire.close()
    return frames, closed_reason(server, before)


SERVED = {
    "binary": frame(BINARY, CONNECT),
    "text": frame(TEXT, CONNECT),
    "empty frames": frame(BINARY, b"") + frame(BINARY, CONNECT),
    "straddling lines": frame(BINARY, CONNECT[:9]) + frame(BINARY, CONNECT[9:]),
    "fragments": frame(BINARY, CONNECT[:9], fin=False) + frame(0, CONNECT[9:]),
    "ping": frame(BINARY, CONNECT[:9], fin=False) + frame(PING, b"abc") + frame(0, CONNECT[9:]),
    "pong": frame(PONG, b"abc") + frame(BINARY, CONNECT),
    "end without words": frame(BINARY, CONNECT) + frame(CLOSE, b""),
    "end": frame(BINARY, CONNECT) + frame(CLOSE, b"\x03\xe8bye"),
    "end with a code of its own": frame(CLOSE, b"\x0f\xa1bye"),
    "end in no UTF-8": frame(CLOSE, b"\x03\xe8\xff"),
    "payload": frame(BINARY, CONNECT + b"PUB a 9999999\r\n"),
    "control line": frame(BINARY, CONNECT + b"PUB " + b"a" * 5000 + b" 1\r\n"),
    "protocol": frame(BINARY, b'CONNECT {"protocol":9}\r\n'),
    "no responders": frame(BINARY, b'CONNECT {"no_responders":true}\r\n'),
    "account": frame(BINARY, b'CONNECT {"account":"A"}\r\n'),
}


@pytest.mark.parametrize("case", SERVED)
def test_frames_are_answered_alike(both: Pair, case: str) -> None:
    def told(server: ServerProcess) -> object:
        return conversation(both, server, SERVED[case], {})

    assert told(both.ours) == told(both.peer)


BROKEN = {
    "not masked": frame(BINARY, CONNECT, mask=False),
    "RSV2": frame(BINARY, CONNECT, rsv=2),
    "compressed without agreement": frame(BINARY, CONNECT, rsv=4),
    "opcode": frame(3, CONNECT),
    "control opcode": frame(11, b""),
    "nothing to continue": frame(0, CONNECT),
    "no continuation": frame(BINARY, b"", fin=False) + frame(BINARY, CONNECT),
    "ping in fragments": frame(PING, b"abc", fin=False),
    "long ping": frame(PING, b"a" * 126),
    "illegal code": frame(CLOSE, b"\x03\xed"),
    "unknown code": frame(CLOSE, b"\x03\xe7"),
    "half a code": frame(CLOSE, b"\x03"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_frames_end_connections_alike(both: Pair, case: str) -> None:
    """The peer's last frame is mostly lost; ours is always there, with the code that its has."""
    theirs, reason = conversation(both, both.peer, BROKEN[case], {})
    ours = conversation(both, both.ours, BROKEN[case], {})
    assert ours[1] == reason == "Read Error"
    assert [(first, data[:2]) for first, data in ours[0]] == [(0x80 | CLOSE, b"\x03\xea")]
    assert {data[:2] for first, data in theirs if first == 0x80 | CLOSE} <= {b"\x03\xea"}


COMPRESSED = {
    "whole": frame(BINARY, deflated(CONNECT), rsv=4),
    "fragments": frame(BINARY, deflated(CONNECT)[:9], rsv=4, fin=False)
    + frame(0, deflated(CONNECT)[9:]),
    "plain all the same": frame(BINARY, CONNECT),
    "large": frame(
        BINARY, deflated(CONNECT + b"PUB a 900000\r\n" + bytes(900_000) + b"\r\n"), rsv=4
    ),
}


@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_frames_are_answered_alike(both: Pair, case: str) -> None:
    def told(server: ServerProcess) -> object:
        return conversation(both, server, COMPRESSED[case], DEFLATE)

    assert told(both.ours) == told(both.peer)


@pytest.mark.parametrize(
    ("agent", "is_compressed"),
    [
        ("Go-http-client/1.1", False),
        ("Go-http-client/1.1", True),
        ("Mozilla/5.0 (X11) Chrome/120.0 Safari/537.36", False),
        ("Mozilla/5.0 (Macintosh) Version/17.0 Safari/605.1", True),
    ],
)
def test_output_is_framed_alike(both: Pair, agent: str, is_compressed: bool) -> None:
    """Frames of a message of 10,000 bytes: their kinds, the largest, and their content."""

    def told(server: ServerProcess) -> object:
        wire = WebSocketWire(both.port(server))
        wire.upgrade({"User-Agent": agent} | (DEFLATE if is_compressed else {}))
        info = wire.next()
        assert info is not None
        wire.send(frame(BINARY, b'CONNECT {"verbose":false}\r\nSUB a 1\r\n'))
        wire.fence()
        wire.send(frame(BINARY, b"PUB a 10000\r\n" + bytes(10_000) + b"\r\n"))
        content, firsts, sizes = b"", [], []
        while len(content) < 10_000:
            each = wire.next()
            assert each is not None
            firsts.append(each.first)
            content += inflated(each.data) if each.first & 0x40 else each.data
            sizes.append(0 if each.first & 0x40 else len(each.data))
        wire.close()
        return info.first, set(firsts), max(sizes), content

    assert told(both.ours) == told(both.peer)


def test_a_surplus_of_silence_and_wrong_words_end_alike(guarded: Pair) -> None:
    """Logins: none, wrong, by cookie, over a cookie; and their time."""
    cookie = {"Cookie": "cu=u; cp=p"}
    cases = {
        "none": (frame(BINARY, b"PING\r\n"), {}),
        "wrong": (frame(BINARY, b'CONNECT {"user":"u","pass":"x"}\r\n'), {}),
        "right": (
            frame(BINARY, b'CONNECT {"verbose":false,"user":"u","pass":"p"}\r\nPING\r\n'),
            {},
        ),
        "by cookie": (frame(BINARY, CONNECT), cookie),
        "wrong cookie": (frame(BINARY, CONNECT), {"Cookie": "cu=u; cp=x"}),
        "over the cookie": (
            frame(BINARY, b'CONNECT {"verbose":false,"user":"v","pass":"q"}\r\nPING\r\n'),
            cookie,
        ),
        "mixed": (frame(BINARY, b'CONNECT {"user":"v"}\r\n'), cookie),
    }

    def told(server: ServerProcess) -> object:
        found: dict[str, Any] = {
            name: conversation(guarded, server, data, headers)
            for name, (data, headers) in cases.items()
        }
        wire = WebSocketWire(guarded.port(server))
        wire.upgrade()
        found["silence"] = [(each.first, each.data) for each in wire.rest()[1:]]
        wire.close()
        return found

    assert told(guarded.ours) == told(guarded.peer)


def test_info_describes_the_listener_alike(guarded: Pair) -> None:
    def told(server: ServerProcess) -> object:
        wire = WebSocketWire(guarded.port(server))
        wire.upgrade()
        info = wire.next()
        wire.close()
        assert info is not None
        said = json.loads(info.data.removeprefix(b"INFO "))
        assert said["port"] == guarded.port(server)
        keys = ("host", "auth_required", "tls_required", "connect_urls", "client_ip", "proto")
        return {key: said.get(key) for key in keys}

    assert told(guarded.ours) == told(guarded.peer)


def test_varz_shows_the_block_alike(guarded: Pair) -> None:
    def told(server: ServerProcess) -> object:
        url = f"http://127.0.0.1:{server.http_port}/varz"
        with urllib.request.urlopen(url, timeout=30) as answer:
            shown: dict[str, Any] = json.load(answer)["websocket"]
        assert shown.pop("port") == guarded.port(server)
        return shown

    assert told(guarded.ours) == told(guarded.peer)


def test_same_origin_is_judged_alike(guarded: Pair) -> None:
    origins = ("http://a.test:8080", "http://A.TEST:8080", "http://a.test", "https://a.test:8080")

    def told(server: ServerProcess) -> object:
        found = []
        for origin in origins:
            wire = WebSocketWire(guarded.port(server))
            found.append(wire.ask(request(headers={"Origin": origin}))[0])
            wire.close()
        return found

    assert told(guarded.ours) == told(guarded.peer)


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    config = operator_config((ACCOUNT, account()))
    yield from started(tmp_path_factory.mktemp("operated"), "jwt_cookie: j", config)


def test_tokens_log_in_alike(operated: Pair) -> None:
    """By cookie, in CONNECT, both; and by ways to connect."""
    bearer = user(bearer_token=True)
    expired = user(bearer_token=True, exp=5)
    only = {
        kind: user(bearer_token=True, allowed_connection_types=[kind])
        for kind in ("WEBSOCKET", "STANDARD")
    }
    plain = frame(BINARY, CONNECT)
    given = json.dumps({"verbose": False, "jwt": bearer})
    cases = {
        "cookie": (plain, {"Cookie": f"j={bearer}"}),
        "no cookie": (plain, {}),
        "a cookie that is none": (plain, {"Cookie": "j=x"}),
        "expired": (plain, {"Cookie": f"j={expired}"}),
        "connect": (frame(BINARY, f"CONNECT {given}\r\nPING\r\n".encode()), {}),
        "over the cookie": (
            frame(BINARY, f"CONNECT {given}\r\nPING\r\n".encode()),
            {"Cookie": f"j={expired}"},
        ),
        "ws alone": (plain, {"Cookie": f"j={only['WEBSOCKET']}"}),
        "tcp alone": (plain, {"Cookie": f"j={only['STANDARD']}"}),
    }

    def told(server: ServerProcess) -> object:
        return {
            name: conversation(operated, server, data, headers)
            for name, (data, headers) in cases.items()
        }

    assert told(operated.ours) == told(operated.peer)
