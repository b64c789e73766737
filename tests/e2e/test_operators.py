"""Operator mode as users meet it: a cluster with full directories of tokens, and real clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path

import nats
import pytest
from nats.errors import Error

from benchmarks.servers import ServerProcess, free_port
from streamd.tokens.credentials import format_credentials
from streamd.tokens.nkeys import KeyPair
from tests.e2e.conftest import Run, Start
from tests.e2e.javascript import modules, run_node
from tests.e2e.test_accounts import launch
from tests.minted_tokens import (
    ACCOUNT,
    OTHER_ACCOUNT,
    REVOKED_USER,
    SYSTEM,
    UNLIMITED,
    USER,
    account,
    connect_options,
    operator,
    operator_config,
    user,
)
from tests.parity.test_auth_callout import CONFIG as CALLOUT
from tests.parity.test_auth_callout import SERVICE_XKEY, Service
from tests.waiting import until
from tests.wire import CONNECT, Wire

__all__ = ["modules"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NOW_S = int(time.time())
STORING = {
    **UNLIMITED,
    "tiered_limits": {
        "R3": {"mem_storage": -1, "disk_storage": -1, "streams": 1, "consumer": -1},
    },
}
WITHIN_S = 60.0


def start_nodes(make_server: Start) -> list[ServerProcess]:
    """Return three servers whose directories have the system account's token alone."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    system = account(SYSTEM, name="SYS")
    servers = []
    for at, port in enumerate(ports):
        server = make_server()
        server.configure(
            extra=f"server_name: n{at}\n"
            f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}\n"
            f"operator: {operator()}\nsystem_account: {SYSTEM.public}\n"
            f"resolver: {{type: full, dir: '{server.store_dir.parent / 'jwt'}', interval: '1s'}}\n"
            f"resolver_preload: {{ {SYSTEM.public}: {system} }}\n"
        )
        servers.append(server)
    launch(servers)
    return servers


def enter(server: ServerProcess, issuer: KeyPair, pair: KeyPair = USER) -> Wire:
    wire = Wire(server.port, None)
    options = connect_options(user(pair, issuer=issuer), wire.info["nonce"], pair)
    wire.send(f"CONNECT {json.dumps(CONNECT | options)}\r\n".encode())
    return wire


def push(server: ServerProcess, token: str) -> None:
    with enter(server, SYSTEM) as wire:
        answer = wire.ask("$SYS.REQ.CLAIMS.UPDATE", token.encode(), within_s=WITHIN_S)[0].json()
        assert answer["data"]["message"] == "jwt updated", answer


def held(server: ServerProcess, pair: KeyPair) -> str:
    """Return the token that a server's directory has."""
    file = server.store_dir.parent / "jwt" / f"{pair.public}.jwt"
    return file.read_text() if file.exists() else ""


def test_tokens_reach_all_nodes_and_outlive_them(make_server: Start) -> None:
    """A token that is pushed to one node holds at all, for streams, too; one that is pushed while
    a node is down comes to it once it is up; and all that after a restart."""
    servers = start_nodes(make_server)
    first = account(limits=STORING, now_s=NOW_S - 100)
    push(servers[0], first)
    until(lambda: all(held(each, ACCOUNT) == first for each in servers), "pushed to all")
    wires = [enter(server, ACCOUNT) for server in servers]
    for wire in wires:
        assert wire.fence(WITHIN_S) == []
    # Whoever leads the meta group may never have had a client of the account.
    config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
    made = wires[1].api("STREAM.CREATE.S", config, within_s=WITHIN_S)
    assert made.get("did_create") is True, made
    refused = wires[2].api("STREAM.CREATE.T", {"name": "T", "num_replicas": 3}, within_s=WITHIN_S)
    assert refused["error"]["err_code"] == 10027, refused
    (ack,) = wires[0].ask("s.1", b"x", within_s=WITHIN_S)
    assert ack.json()["seq"] == 1
    for wire in wires:
        wire.close()

    servers[2].kill()
    second = account(limits=STORING, revocations={REVOKED_USER.public: NOW_S + 100_000})
    push(servers[1], second)
    push(servers[1], account(OTHER_ACCOUNT))
    until(lambda: held(servers[0], ACCOUNT) == second, "pushed to those that are up")
    with enter(servers[0], ACCOUNT) as wire:
        (ack,) = wire.ask("s.1", b"x", within_s=WITHIN_S)
        assert ack.json()["seq"] == 2
    launch([servers[2]])
    until(lambda: held(servers[2], ACCOUNT) == second, "compared with the others")
    until(lambda: held(servers[2], OTHER_ACCOUNT) != "", "compared with the others")
    with enter(servers[2], ACCOUNT, REVOKED_USER) as wire:
        assert [frame.op for frame in wire.fence(WITHIN_S)] == ["-ERR", "CLOSED"]

    for server in servers:
        server.stop()
    launch(servers)
    for server in servers:
        with enter(server, ACCOUNT) as wire:
            assert wire.fence(WITHIN_S) == []
            info = wire.api("STREAM.INFO.S", within_s=WITHIN_S)
            assert info["state"]["messages"] == 2, info
        with enter(server, OTHER_ACCOUNT) as wire:
            assert wire.fence(WITHIN_S) == []


def test_a_service_decides_on_logins_at_any_node(make_server: Start) -> None:
    """It listens at one; the questions of others, and its answers, go by route. Clients that wait
    hold up nobody, and a service that is gone lets nobody in."""
    ports = [free_port() for _ in range(2)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    config = CALLOUT.replace("XKEY", f", xkey: {SERVICE_XKEY.public}")
    servers = [
        make_server(
            extra=f"server_name: n{at}\n"
            f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}\n{config}",
            is_jetstream=False,
        )
        for at, port in enumerate(ports)
    ]
    for server in servers:
        server.launch()
    for server in servers:
        server.wait_for_log("Server is ready")
    service = Service(servers[0].port)
    service.seals = True
    try:
        until(lambda: _is_let_in(servers[1]), "the service's interest is known at the other node")
        assert service.question is not None
        assert service.question.content["server_id"]["name"] == "n1"
        wires = [Wire(server.port, CONNECT | {"user": "bob"}) for server in servers]
        wires[0].subscribe("a")
        wires[0].fence()
        until(lambda: _arrives(wires[1], wires[0]), "both are in one account")
        for wire in wires:
            wire.close()
    finally:
        service.close()
    with Wire(servers[1].port, CONNECT | {"user": "bob"}, is_ready=False) as waiting:
        with Wire(servers[1].port, CONNECT | {"user": "auth", "pass": "p"}) as served:
            assert served.fence() == []
        assert [frame.text or frame.op for frame in waiting.fence(WITHIN_S)] == [
            "'Authorization Violation'",
            "CLOSED",
        ]


def _is_let_in(server: ServerProcess) -> bool:
    with Wire(server.port, CONNECT | {"user": "bob"}, is_ready=False) as wire:
        return wire.fence(WITHIN_S) == []


def _arrives(sender: Wire, receiver: Wire) -> bool:
    sender.publish("a", b"x")
    sender.fence()
    return bool(receiver.collect(count=1, within_s=0.05))


def test_a_client_logs_in_with_credentials(make_server: Start, run: Run, tmp_path: Path) -> None:
    """nats-py, with a `.creds` file; its connection ends when all users are revoked."""
    server = make_server(
        extra=operator_config((ACCOUNT, account(limits={**UNLIMITED, "mem_storage": -1})))
    )
    file = tmp_path / "user.creds"
    file.write_text(format_credentials(user(), USER))
    revoked = account(revocations={"*": NOW_S + 100_000})

    async def body() -> None:
        is_gone = asyncio.Event()

        async def on_end() -> None:
            is_gone.set()

        connection = await nats.connect(
            server.url,
            user_credentials=str(file),
            disconnected_cb=on_end,
            closed_cb=on_end,
            max_reconnect_attempts=1,
        )
        context = connection.jetstream()
        await context.add_stream(name="S", subjects=["s"], storage="memory")
        assert (await context.publish("s", b"x")).seq == 1
        system = tmp_path / "system.creds"
        system.write_text(format_credentials(user(issuer=SYSTEM), USER))
        operating = await nats.connect(server.url, user_credentials=str(system))
        subject = f"$SYS.REQ.ACCOUNT.{ACCOUNT.public}.CLAIMS.UPDATE"
        answer = await operating.request(subject, revoked.encode(), timeout=30)
        assert b"jwt updated" in answer.data
        async with asyncio.timeout(30):
            await is_gone.wait()
        await operating.close()
        await connection.close()
        with pytest.raises(Error):
            await nats.connect(server.url, user_credentials=str(file), allow_reconnect=False)

    server.launch()
    server.wait()
    run(body())


def test_javascript_clients_log_in_with_credentials(
    modules: Path, make_server: Start, tmp_path: Path
) -> None:
    """`@nats-io/transport-node`, and `wsconnect` where Node has a WebSocket."""
    port = free_port()
    config = operator_config((ACCOUNT, account(limits={**UNLIMITED, "disk_storage": -1})))
    server = make_server(
        extra=f'{config}websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}\n'
    )
    server.launch()
    server.wait_for_log("Server is ready")
    files = {
        "user": format_credentials(user(), USER),
        "system": format_credentials(user(issuer=SYSTEM), USER),
        "update": account(revocations={"*": NOW_S + 100_000}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    flags = ["--experimental-websocket"]  # which Node has by itself from 22 on
    node = subprocess.run(
        ["node", *flags, "-p", "typeof WebSocket"], capture_output=True, text=True, check=False
    )
    has_websocket = node.stdout.strip() == "function"
    run_node(
        modules,
        *(flags if has_websocket else ()),
        "creds.mjs",
        server.url,
        f"ws://127.0.0.1:{port}" if has_websocket else "",
        str(tmp_path / "user"),
        str(tmp_path / "system"),
        f"$SYS.REQ.ACCOUNT.{ACCOUNT.public}.CLAIMS.UPDATE",
        str(tmp_path / "update"),
    )
    assert server.stop() == 0
