"""Auth callout, side by side: one service at each server, and the same clients."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.auth_callout import SUBJECT
from tests.minted_tokens import REVOKED_USER
from tests.parity.login_bed import Servers, both, logged, outcome
from tests.parity.test_auth_callout import CASES, CONFIG, SERVICE_XKEY, Service, _of_user
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


def _serve(directory: Any, xkey: str) -> Iterator[Pair]:
    config = CONFIG.replace("XKEY", f", xkey: {xkey}" if xkey else "")
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
        return told, content, service.question.registered.subject

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
