"""Logins with nkeys: who is let in, as whom, and what the log says, as by a real nats-server."""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.nkeys import KeyKind, KeyPair
from tests.minted_tokens import REVOKED_USER, USER, key
from tests.parity.login_bed import Offer, Servers, both, logged, login, outcome, texts
from tests.parity.runner import peer_binary
from tests.websocket_wire import WebSocketWire
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow

ELSEWHERE = key(KeyKind.USER, "by websocket")
STRANGER = key(KeyKind.USER, "stranger")
NOBODY = key(KeyKind.USER, "no auth user")
U = USER.public
USERS = f"""authorization {{ users: [
  {{nkey: {U}}}
  {{nkey: {REVOKED_USER.public}, permissions: {{publish: ["$SYS.REQ.USER.INFO", "a.>"]
    subscribe: ["_INBOX.>"]}}}}
  {{nkey: {ELSEWHERE.public}, allowed_connection_types: [WEBSOCKET]}}
  {{user: u, password: p}}
] }}
"""


def _signed(nonce: str, pair: KeyPair = USER) -> bytes:
    return pair.sign(nonce.encode())


def _raw(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


CASES: dict[str, Offer] = {
    "a key": lambda nonce: {"nkey": U, "sig": _raw(_signed(nonce))},
    "a key with permissions": lambda nonce: {
        "nkey": REVOKED_USER.public,
        "sig": _raw(_signed(nonce, REVOKED_USER)),
    },
    "standard base64": lambda nonce: {
        "nkey": U,
        "sig": base64.b64encode(_signed(nonce)).decode(),
    },
    "padded base64 of URLs": lambda nonce: {
        "nkey": U,
        "sig": base64.urlsafe_b64encode(b"\xff" * 61 + b"\x01\x02\x03").decode(),
    },
    "standard base64 without padding": lambda nonce: {
        "nkey": U,
        "sig": base64.b64encode(b"\xfb\xff" * 32).decode().rstrip("="),
    },
    "no signature": lambda nonce: {"nkey": U},
    "an empty signature": lambda nonce: {"nkey": U, "sig": ""},
    "no base64": lambda nonce: {"nkey": U, "sig": "!!"},
    "a short signature": lambda nonce: {"nkey": U, "sig": _raw(b"x")},
    "a signature over more": lambda nonce: {"nkey": U, "sig": _raw(_signed(nonce + "x"))},
    "a signature over the bytes": lambda nonce: {
        "nkey": U,
        "sig": _raw(USER.sign(base64.urlsafe_b64decode(nonce + "="))) if nonce else "",
    },
    "another's signature": lambda nonce: {"nkey": U, "sig": _raw(_signed(nonce, STRANGER))},
    "an unknown key": lambda nonce: {
        "nkey": STRANGER.public,
        "sig": _raw(_signed(nonce, STRANGER)),
    },
    "no key": lambda nonce: {"nkey": "x", "sig": _raw(_signed(nonce))},
    "an unknown key beside a good password": lambda nonce: {
        "nkey": STRANGER.public,
        "sig": _raw(_signed(nonce, STRANGER)),
        "user": "u",
        "pass": "p",
    },
    "a key beside a wrong password": lambda nonce: {
        "nkey": U,
        "sig": _raw(_signed(nonce)),
        "user": "u",
        "pass": "wrong",
    },
    "a key for other ways to connect": lambda nonce: {
        "nkey": ELSEWHERE.public,
        "sig": _raw(_signed(nonce, ELSEWHERE)),
    },
    "a password": lambda nonce: {"user": "u", "pass": "p"},
    "a wrong password": lambda nonce: {"user": "u", "pass": "x"},
    "the key as a name": lambda nonce: {"user": U, "sig": _raw(_signed(nonce))},
    "nothing": lambda nonce: {},
    "a signature alone": lambda nonce: {"sig": _raw(_signed(nonce))},
    "a token": lambda nonce: {"auth_token": "t"},
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with both(tmp_path_factory.mktemp("nkeys"), USERS) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
def test_a_login_is_judged_as_by_nats_server(case: str, servers: Servers) -> None:
    before = [len(server.log_file.read_text()) for server in servers.all]
    servers.compare(lambda server: outcome(server, CASES[case]))
    theirs, mine = map(logged, servers.all, before)
    assert mine == theirs


def test_every_connection_has_a_nonce_of_its_own(servers: Servers) -> None:
    def nonces(server: ServerProcess) -> list[Any]:
        wires = [login(server, CASES["a key"]) for _ in range(2)]
        try:
            first, second = (wire.info["nonce"] for wire in wires)
            keys = [set(wire.info) & {"nonce", "auth_required"} for wire in wires]
            return [len(first), len(second), first != second, keys]
        finally:
            for wire in wires:
                wire.close()

    assert servers.compare(nonces)[:3] == [15, 15, True]


WITHOUT: dict[str, str] = {
    "a key": f"no_auth_user: {NOBODY.public}\nauthorization {{ users: [\n"
    f"  {{nkey: {NOBODY.public}}}\n  {{user: u, password: p}} ] }}\n",
    "a user": f"no_auth_user: u\nauthorization {{ users: [\n"
    f"  {{nkey: {NOBODY.public}}}\n  {{user: u, password: p}} ] }}\n",
    "a user without keys": "no_auth_user: u\nauthorization { users: [{user: u, password: p}] }\n",
}
CREDENTIALS: dict[str, Offer] = {
    "nothing": lambda nonce: {},
    "the key without a signature": lambda nonce: {"nkey": NOBODY.public},
    "an unknown key": lambda nonce: {"nkey": STRANGER.public},
    "a token": lambda nonce: {"auth_token": "t"},
    "a JWT": lambda nonce: {"jwt": "x"},
    "a wrong name": lambda nonce: {"user": "v"},
    "a password": lambda nonce: {"pass": "p"},
    "a signature": lambda nonce: {"sig": "x"},
}


@pytest.mark.parametrize("config", WITHOUT)
def test_a_client_without_credentials_is_the_configured_user(config: str, tmp_path: Path) -> None:
    """nats-server shows the key that such a client names as its user, though it proved nothing;
    here the user is the configured one."""
    with both(tmp_path, WITHOUT[config]) as servers:
        for offer in CREDENTIALS.values():
            theirs, mine = (_let_in(outcome(server, offer)) for server in servers.all)
            assert mine == theirs
        servers.compare(_silent)


def _let_in(told: list[Any]) -> list[Any]:
    return [{**each, "user": ""} if isinstance(each, dict) else each for each in told]


def _silent(server: ServerProcess) -> list[Any]:
    with Wire(server.port, None) as wire:
        return [texts(wire.fence()), "nonce" in wire.info, wire.info.get("auth_required")]


SYSTEM_ALONE = "accounts { $SYS { users: [{user: s, password: p}] } }\n"
DEMANDS = {
    "a user for those without a login": WITHOUT["a user without keys"],
    "users of the system account alone": SYSTEM_ALONE,
    "users": "authorization { users: [{user: u, password: p}] }\n",
    "no users": "",
}


@pytest.mark.parametrize("case", DEMANDS)
def test_info_says_alike_whether_a_login_is_due(case: str, tmp_path: Path) -> None:
    """The first one on a plain socket, one after a login, that of WebSocket, and monitoring."""
    listener = 'websocket { listen: "127.0.0.1:-1", no_tls: true }\n'

    def told(server: ServerProcess) -> list[Any]:
        found: list[Any] = []
        user = {"user": "u", "pass": "p"} if case == "users" else {}
        with Wire(server.port, None) as wire:
            found.append(wire.info.get("auth_required"))
            wire.info = {}  # else later ones are passed over
            wire.send(f"CONNECT {json.dumps(CONNECT | user)}\r\nPING\r\n".encode())
            infos = [each for each in wire.collect(count=2, within_s=5) if each.op == "INFO"]
            found += [json.loads(each.text).get("auth_required") for each in infos]
        (port,) = re.findall(r"clients on ws://127.0.0.1:(\d+)", server.log_file.read_text())
        framed = WebSocketWire(int(port))
        framed.upgrade()
        first = framed.next()
        framed.close()
        assert first is not None
        found.append(json.loads(first.data.removeprefix(b"INFO ")).get("auth_required"))
        url = f"http://127.0.0.1:{server.http_port}/varz"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found.append(json.load(answer).get("auth_required"))
        return found

    with both(tmp_path, listener + DEMANDS[case]) as servers:
        servers.compare(told)


def test_clients_beside_users_of_the_system_account(tmp_path: Path) -> None:
    """Who shows nothing is in `$G`; wrong credentials fail. nats-server makes up a name."""

    def told(server: ServerProcess) -> list[Any]:
        found: list[Any] = []
        offers: tuple[Offer, ...] = (
            lambda nonce: {},
            lambda nonce: {"user": "s", "pass": "p"},
            lambda nonce: {"user": "s", "pass": "x"},
            lambda nonce: {"user": "x"},
        )
        for offer in offers:
            each = outcome(server, offer)
            if isinstance(each[0], dict) and each[0]["account"] == "$G":
                name = each[0].pop("user", "")
                assert re.fullmatch(r"nats-\w{8}" if server.binary == peer_binary() else "", name)
            found.append(each)
        return found

    with both(tmp_path, SYSTEM_ALONE) as servers:
        servers.compare(told)
