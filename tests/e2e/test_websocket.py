"""WebSocket clients of real processes: nats-py, the JavaScript client, and what monitoring says."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import nats
import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.certificates import Authority, Pair
from tests.e2e.conftest import Run, Start
from tests.e2e.javascript import modules, run_node
from tests.websocket_wire import BINARY, CLOSE, WebSocketWire, frame, request

pytestmark = pytest.mark.slow
__all__ = ["modules"]  # a fixture


def serving(make_server: Start, block: str, *lines: str) -> tuple[ServerProcess, int]:
    port = free_port()
    listener = f'websocket {{ listen: "127.0.0.1:{port}", {block} }}'
    server: ServerProcess = make_server(extra="\n".join([listener, *lines]))
    server.launch()
    server.wait_for_log("Server is ready")
    return server, port


def test_the_listener_is_there_when_the_clients_port_is(make_server: Start) -> None:
    """Whoever starts a server waits for the port of clients."""
    port = free_port()
    block = f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}'
    server: ServerProcess = make_server(extra=block, is_jetstream=False)
    server.start()
    wire = WebSocketWire(port)
    wire.upgrade()
    wire.close()


def document(server: ServerProcess, path: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.http_port}{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


async def use_jetstream(nc: nats.NATS) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.>"])
    for at in range(20):
        await js.publish(f"s.{at}", b"x" * 20_000)
    sub = await js.pull_subscribe("s.>", "d")
    for msg in await sub.fetch(20, timeout=30):
        await msg.ack_sync()
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("nobody", b"")


def test_nats_py_stores_and_fetches_over_ws(make_server: Start, run: Run) -> None:
    server, port = serving(make_server, "no_tls: true, compression: true")

    async def body() -> None:
        nc = await nats.connect(f"ws://127.0.0.1:{port}", connect_timeout=30, name="framed")
        plain = await nats.connect(server.url, connect_timeout=30, name="plain")
        await use_jetstream(nc)
        sub = await plain.subscribe("a")
        await plain.flush()
        for at in range(500):
            await nc.publish("a", b"%d" % at)
        got = [int((await sub.next_msg(timeout=30)).data) for _ in range(500)]
        assert got == list(range(500))
        shown = {each["name"]: each for each in document(server, "/connz")["connections"]}
        assert shown["framed"]["type"] == "websocket" and shown["framed"]["kind"] == "Client"
        assert shown["plain"]["type"] == "nats"
        assert document(server, "/varz")["websocket"] == {
            "host": "127.0.0.1",
            "port": port,
            "no_tls": True,
            "compression": True,
        }
        await plain.close()
        await nc.close()

    run(body())
    assert "DO NOT USE IN PRODUCTION" in server.log_file.read_text()
    assert server.stop() == 0


def test_nats_py_stores_and_fetches_over_wss(make_server: Start, run: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    server, port = serving(make_server, f"tls {{ {pair.block} }}")
    context = ssl.create_default_context(cafile=authority.cert)

    async def body() -> None:
        nc = await nats.connect(f"wss://localhost:{port}", tls=context, connect_timeout=30)
        await use_jetstream(nc)
        (shown,) = document(server, "/connz")["connections"]
        assert (shown["type"], shown["tls_version"]) == ("websocket", "1.3")
        listener = document(server, "/varz")["websocket"]
        assert listener["tls_cert_not_after"].endswith("Z") and "no_tls" not in listener
        await nc.close()

    run(body())
    plain = WebSocketWire(port)
    plain.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    line, _, _ = plain.ask(b"")
    assert line == "HTTP/1.0 400 Bad Request"
    plain.close()
    wire = WebSocketWire(port, context)
    wire.upgrade()
    info = wire.next()
    assert info is not None
    said = json.loads(info.data.removeprefix(b"INFO "))
    assert (said["port"], said["tls_required"], said.get("tls_verify")) == (port, True, None)
    wire.close()
    assert f"Listening for websocket clients on wss://127.0.0.1:{port}" in (
        server.log_file.read_text()
    )
    assert server.stop() == 0


def test_cookies_log_in_and_connection_types_keep_out(make_server: Start, run: Run) -> None:
    users = (
        "authorization { users: [{user: web, password: w, allowed_connection_types: [WEBSOCKET]},"
        " {user: both, password: b}] }"
    )
    block = "no_tls: true, user_cookie: u, pass_cookie: p"
    server, port = serving(make_server, block, users)

    async def body() -> None:
        cookie = {"Cookie": ["u=web; p=w"]}
        nc = await nats.connect(f"ws://127.0.0.1:{port}", ws_connection_headers=cookie)
        (shown,) = document(server, "/connz?auth=1")["connections"]
        assert shown["authorized_user"] == "web"
        await nc.close()
        with pytest.raises(nats.errors.Error):
            await nats.connect(server.url, user="web", password="w", allow_reconnect=False)
        nc = await nats.connect(server.url, user="both", password="b")
        await nc.close()

    run(body())


def test_certificates_name_users_and_are_read_anew(
    make_server: Start, run: Run, tmp_path: Path
) -> None:
    """`verify_and_map` with a pinned key; a reload takes another certificate and drops nobody."""
    authority = Authority(tmp_path)
    pair, renewed = authority.issue("server"), authority.issue("renewed")
    carol, other = authority.issue("carol", "CN=carol"), authority.issue("other", "CN=carol")
    block = (
        f'tls {{ {pair.block}, ca_file: "{authority.cert}", verify_and_map: true,'
        f' pinned_certs: ["{carol.pin}"] }}'
    )
    server, port = serving(make_server, block, 'authorization { users: [{user: "CN=carol"}] }')

    def context_of(client: Pair) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=authority.cert)
        context.load_cert_chain(client.cert, client.key)
        return context

    async def body() -> None:
        url = f"wss://localhost:{port}"
        nc = await nats.connect(url, tls=context_of(carol), connect_timeout=30)
        (shown,) = document(server, "/connz?auth=1")["connections"]
        assert shown["authorized_user"] == "CN=carol"
        assert document(server, "/varz")["websocket"]["tls_map"] is True
        assert shown["tls_peer_certs"][0]["subject"] == "CN=carol"
        unpinned = WebSocketWire(port, context_of(other))
        assert unpinned.ask(request())[0] == ""
        unpinned.close()
        before = ssl.get_server_certificate(("127.0.0.1", port))
        shutil.copy(renewed.cert, pair.cert)
        shutil.copy(renewed.key, pair.key)
        server.send(signal.SIGHUP)
        async with asyncio.timeout(10):
            while ssl.get_server_certificate(("127.0.0.1", port)) == before:
                await asyncio.sleep(0.01)
        await nc.flush(timeout=30)
        await nc.close()

    run(body())
    assert server.stop() == 0


def test_the_end_of_a_server_is_told_in_a_frame(make_server: Start) -> None:
    server, port = serving(make_server, "no_tls: true")
    wire = WebSocketWire(port)
    wire.upgrade()
    wire.send(frame(BINARY, b"CONNECT {}\r\nPING\r\n"))
    wire.fence()
    server.send(signal.SIGTERM)
    frames = wire.rest()
    assert [(each.opcode, each.data) for each in frames] == [(CLOSE, b"\x03\xe9Server Shutdown")]
    wire.close()
    assert server.stop() == 0


def test_clients_of_a_cluster_are_told_of_websocket_listeners(make_server: Start, run: Run) -> None:
    """Each is told of the other's when it comes, and no more of it in lame duck mode."""
    ports, routes = [free_port(), free_port()], [free_port(), free_port()]
    servers = []
    for at in range(2):
        cluster = (
            f'cluster {{ name: c, listen: "127.0.0.1:{routes[at]}",'
            f' routes: ["nats://u:p@127.0.0.1:{routes[1 - at]}"],'
            " authorization { user: u, password: p } }"
        )
        block = f'websocket {{ listen: "127.0.0.1:{ports[at]}", no_tls: true }}'
        name = f"server_name: n{at}"
        servers.append(make_server(extra="\n".join([block, cluster, name]), is_jetstream=False))
    first, second = servers
    first.launch()
    first.wait_for_log("Server is ready")

    async def told(nc: nats.NATS, wanted: set[str]) -> None:
        async with asyncio.timeout(10):
            while {each.netloc for each in nc.servers} != wanted:
                await asyncio.sleep(0.01)

    async def body() -> None:
        nc = await nats.connect(f"ws://127.0.0.1:{ports[0]}", connect_timeout=30)
        second.launch()
        await told(nc, {f"127.0.0.1:{port}" for port in ports})
        await nc.close()

    run(body())


def test_the_javascript_client_connects_as_a_browser_would(
    modules: Path, make_server: Start
) -> None:
    flags = ["--experimental-websocket"]  # which Node has by itself from 22 on
    node = subprocess.run(
        ["node", *flags, "-p", "typeof WebSocket"], capture_output=True, text=True, check=False
    )
    if node.stdout.strip() != "function":
        pytest.skip("no Node with WebSocket here")
    server, port = serving(make_server, "no_tls: true, compression: true")
    run_node(modules, *flags, "ws.mjs", f"ws://127.0.0.1:{port}")
    assert server.stop() == 0
