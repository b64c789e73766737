"""Auth callout, side by side: one service at each server, and the same clients."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.auth_callout import SUBJECT
from tests.certificates import Authority
from tests.leaf_bed import page
from tests.minted_tokens import ACCOUNT, REVOKED_USER
from tests.parity.login_bed import Servers, both, logged, outcome
from tests.parity.test_auth_callout import CASES, CONFIG, SERVICE_XKEY, Service, _of_user
from tests.parity.test_leaf import Raw
from tests.wire import CONNECT, Wire

_KEYS = re.compile(r"\bU[A-Z2-7]{55}\b")


class Pair:
    """Both servers, and the service of each."""

    def __init__(self, servers: Servers, services: list[Service]) -> None:
        self.servers = servers
        self.services = dict(zip(map(id, servers.all), services, strict=True))

    def told(self, server: ServerProcess, options: dict[str, Any], make: str) -> list[Any]:
        """Return what a client of a server is told."""
        self.services[id(server)].make = CASES[make]
        told = outcome(server, lambda nonce: options)
        for each in told:
            if isinstance(each, dict) and "expires" in each:
                each["expires"] = round(each["expires"] / 1e10)
        return told

    def compare(self, options: dict[str, Any], make: str) -> None:
        """Have a client log in at each; what ours logs of a refusal the other one logs, too, be it
        a moment after the client has gone."""
        ours, peer = self.servers.ours, self.servers.peer
        before, start = peer.log_file.read_text(), ours.log_file.stat().st_size
        told = self.servers.compare(lambda server: self.told(server, options, make))
        if "Authorization Violation" not in str(told):
            return
        for line in logged(ours, start):
            if not _KEYS.search(line):
                peer.wait_for_log(line, 5, count=before.count(line) + 1)


def _serve(directory: Any, xkey: str, config: str = CONFIG) -> Iterator[Pair]:
    config = config.replace("XKEY", f", xkey: {xkey}" if xkey else "")
    with both(directory, config) as servers:
        services = [Service(server.port) for server in servers.all]
        try:
            yield Pair(servers, services)
        finally:
            for service in services:
                service.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from _serve(tmp_path_factory.mktemp("callout"), "")


@pytest.fixture(scope="module")
def sealing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from _serve(tmp_path_factory.mktemp("sealed"), SERVICE_XKEY.public)


@pytest.mark.parametrize("case", CASES)
def test_an_answer_comes_to_the_same(case: str, pair: Pair) -> None:
    pair.compare({"user": "bob", "pass": "x"}, case)


@pytest.mark.parametrize(
    "options",
    [
        {"user": "bob", "pass": "x", "name": "n"},
        {"auth_token": "secret"},
        {"jwt": "eyJx", "nkey": REVOKED_USER.public, "sig": "abc"},
        {},
        {"user": "auth", "pass": "wrong"},
        {"user": "auth", "pass": "p"},
    ],
    ids=["user", "token", "nkey", "nothing", "service, wrong password", "service"],
)
def test_a_login_is_asked_about_alike(options: dict[str, Any], pair: Pair) -> None:
    """Also what the service is told of it."""

    def asked(server: ServerProcess) -> Any:
        service = pair.services[id(server)]
        service.question = None
        told = pair.told(server, options, "permissions")
        if service.question is None:
            return told, None
        content = dict(service.question.content)
        content["server_id"] = {key: type(value) for key, value in content["server_id"].items()}
        content["client_info"] = {**content["client_info"], "id": 0}
        content["user_nkey"] = ""
        reply = re.sub(r"\w{8}", "8", service.reply)
        return told, content, service.question.registered.subject, reply

    pair.servers.compare(asked)


@pytest.mark.parametrize("seals", [False, True], ids=["plain", "sealed"])
def test_questions_are_sealed_for_the_service(seals: bool, sealing: Pair) -> None:
    for service in sealing.services.values():
        service.seals = seals
    for case in ("a user", "an error"):
        sealing.compare({"user": "bob"}, case)
    for server in sealing.servers.all:
        with Wire(server.port, None) as wire:
            told = sealing.services[id(server)].headers["Nats-Server-Xkey"]
            assert wire.info["xkey"] == told and wire.info["server_id"].startswith("N")


def test_without_an_answer_the_time_for_logins_ends_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = CONFIG.replace("XKEY", "").replace("timeout: 3", "timeout: 1")
    with both(tmp_path_factory.mktemp("silent"), config) as servers:

        def refused(server: ServerProcess) -> list[str]:
            with Wire(server.port, CONNECT | {"user": "bob"}, is_ready=False) as wire:
                return [frame.text or frame.op for frame in wire.fence()]

        assert servers.compare(refused) == ["'Authorization Violation'", "CLOSED"]


def test_members_of_the_service_s_account_do_not_ask(pair: Pair) -> None:
    """A client that could would learn what other clients' logins come to."""

    def told(server: ServerProcess) -> list[str]:
        with Wire(server.port, CONNECT | {"user": "auth", "pass": "p"}) as wire:
            wire.publish(SUBJECT, b"x")
            return [frame.text for frame in wire.fence()]

    assert pair.servers.compare(told) == [f"'Permissions Violation for Publish to \"{SUBJECT}\"'"]


def test_a_user_s_token_ends(pair: Pair) -> None:
    """As it does without a service."""

    def told(server: ServerProcess) -> list[str]:
        service = pair.services[id(server)]
        service.make = _of_user(exp=int(time.time()) + 2)
        with Wire(server.port, CONNECT | {"user": "bob"}) as wire:
            return [wire.next(10).text, wire.next(10).op]

    assert pair.servers.compare(told) == ["'User Authentication Expired'", "CLOSED"]


def test_nor_do_users_whom_the_service_places_there(pair: Pair) -> None:
    def told(server: ServerProcess) -> list[str]:
        pair.services[id(server)].make = _of_user(aud="AUTH")
        with Wire(server.port, CONNECT | {"user": "bob"}) as wire:
            wire.publish(SUBJECT, b"x")
            return [frame.text for frame in wire.fence()]

    assert pair.servers.compare(told) == [f"'Permissions Violation for Publish to \"{SUBJECT}\"'"]


# --- users of the configuration, and leaf nodes ---------------------------------------------------

LISTED = f"""
accounts {{
  AUTH {{ users: [{{user: auth, password: p}}] }}
  APP {{ users: [{{user: inside, password: p}}] }}
  OUT {{ users: [{{user: outside, password: p}}] }}
}}
leafnodes {{ host: 127.0.0.1, port: -1, compression: off }}
authorization {{
  timeout: 3
  auth_callout {{
    issuer: {ACCOUNT.public}, auth_users: [auth], account: AUTH, allowed_accounts: [APP]
  }}
}}
"""


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from _serve(tmp_path_factory.mktemp("listed"), "", LISTED)


@pytest.mark.parametrize("password", ["p", "wrong"])
@pytest.mark.parametrize("user", ["inside", "outside", "auth", "bob"])
def test_users_of_accounts_that_are_left_out_are_not_asked_about(
    user: str, password: str, listed: Pair
) -> None:
    """All others are, those of the configuration too."""

    def asked(server: ServerProcess) -> Any:
        service = listed.services[id(server)]
        service.question = None
        told = listed.told(server, {"user": user, "pass": password}, "a user")
        return told, service.question is not None

    told, is_asked = listed.servers.compare(asked)
    if password == "p":
        assert is_asked == (user in ("inside", "bob")), told


def test_the_service_places_users_in_any_account(listed: Pair) -> None:
    def told(server: ServerProcess) -> list[Any]:
        listed.services[id(server)].make = _of_user(aud="OUT")
        return outcome(server, lambda nonce: {"user": "bob"})

    (found,) = listed.servers.compare(told)
    assert found["account"] == "OUT"


@pytest.mark.parametrize("user", ["bob", "outside", "auth"])
@pytest.mark.parametrize("make", ["a user", "an error"])
def test_leaf_nodes_are_asked_about(user: str, make: str, listed: Pair) -> None:
    """A leaf node of a user that is left out as well."""

    def asked(server: ServerProcess) -> Any:
        service = listed.services[id(server)]
        service.question, service.make = None, CASES[make]
        port = page(server, "varz")["leaf"]["port"]
        raw = Raw(socket.create_connection(("127.0.0.1", port), 5))
        raw.until(b"INFO")
        options = {"name": "X", "server_id": "NX", "version": "2.15.1", "cluster": "X"}
        connect = json.dumps(options | {"user": user, "pass": "p", "headers": True})
        raw.send(f"CONNECT {connect}".encode(), b"PING")
        lines = raw.until(b"PONG")
        raw.close()
        infos = [json.loads(line[5:]) for line in lines if line.startswith(b"INFO")]
        bound = [info.get("remote_account") for info in infos]
        told = [line for line in lines if line.startswith((b"-ERR", b"PONG"))]
        if service.question is None:
            return told, bound, None
        content = dict(service.question.content)
        client = {**content["client_info"], "id": 0}
        return told, bound, client, content["connect_opts"]

    listed.servers.compare(asked)


# --- TLS ------------------------------------------------------------------------------------------


def test_the_service_sees_the_certificates_of_a_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Ours without the authority's own in the chain: docs/tokens.md."""
    directory = tmp_path_factory.mktemp("secure")
    authority = Authority(directory)
    pair = authority.issue("server")
    client = authority.issue("client", "CN=alice")
    tls = f'tls {{ {pair.block}, ca_file: "{authority.cert}", verify: true }}'
    context = ssl.create_default_context(cafile=authority.cert)
    context.load_cert_chain(client.cert, client.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")

    def seen(server: ServerProcess) -> Any:
        service = served.services[id(server)]
        service.make = CASES["a user"]
        plain = socket.create_connection(("127.0.0.1", server.port), 10)
        assert plain.recv(65536).startswith(b"INFO ")
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            connect = json.dumps(CONNECT | {"user": "bob"})
            secure.sendall(f"CONNECT {connect}\r\nPING\r\n".encode())
            told = b""
            while b"PONG" not in told:
                chunk = secure.recv(65536)
                assert chunk, told
                told += chunk
        assert service.question is not None
        shown = dict(service.question.content["client_tls"])
        (chain,) = shown.pop("verified_chains")
        assert chain[0].strip() == Path(client.cert).read_text().strip()
        return shown

    config = f"{CONFIG}{tls}\nallow_non_tls: true\n"
    with contextmanager(_serve)(directory, "", config) as served:
        found = served.servers.compare(seen)
        assert sorted(found) == ["cipher", "version"], found


# --- a service that cannot be ---------------------------------------------------------------------


def test_what_the_block_names_and_nobody_has_is_logged(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The server starts, and nobody is let in. The real one has no log yet when it finds that."""
    config = CONFIG.replace("XKEY", "").replace("timeout: 3", "timeout: 1")
    config = config.replace("account: AUTH", "account: NOPE").replace("[auth]", "[auth, none]")
    with both(tmp_path_factory.mktemp("nobody"), config) as servers:
        told = servers.compare(lambda server: outcome(server, lambda nonce: {"user": "bob"}))
        assert told == ["'Authorization Violation'", "CLOSED"]
        log = servers.ours.log_file.read_text()
        assert re.findall(r"\[ERR\] (Authorization callout .*)", log) == [
            'Authorization callout account "NOPE" not valid',
            'Authorization callout user "none" not valid',
        ]
