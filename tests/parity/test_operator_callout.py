"""Auth callout in operator mode, side by side: an account's claims name the service's own users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.auth_callout import SUBJECT
from streamd.tokens.claims import AuthorizationRequestClaims
from streamd.tokens.nkeys import KeyKind
from tests.minted_tokens import (
    ACCOUNT,
    ACCOUNT_SIGNING,
    OTHER_ACCOUNT,
    REVOKED_USER,
    USER,
    account,
    connect_options,
    key,
    mint,
    operator_config,
    scope,
    user,
)
from tests.parity.login_bed import Offer, Servers, both, logged, login, outcome
from tests.parity.test_auth_callout import SERVICE_XKEY, Make, Service
from tests.parity.test_callout_logins import _KEYS
from tests.wire import Wire

AUTH = key(KeyKind.ACCOUNT, "auth")
SEALED = key(KeyKind.ACCOUNT, "sealed auth")
OUTSIDE = key(KeyKind.ACCOUNT, "outside")
GONE = key(KeyKind.USER, "gone")
SENTINEL = user(REVOKED_USER, issuer=AUTH, bearer_token=True, pub={"deny": [">"]})
ACCOUNTS = {
    AUTH: account(
        AUTH,
        name="AUTH",
        revocations={GONE.public: 2_000_000_000},
        authorization={
            "auth_users": [USER.public],
            "allowed_accounts": [ACCOUNT.public, OTHER_ACCOUNT.public],
        },
    ),
    SEALED: account(
        SEALED,
        name="SEALED",
        authorization={
            "auth_users": [USER.public],
            "allowed_accounts": ["*"],
            "xkey": SERVICE_XKEY.public,
        },
    ),
    ACCOUNT: account(
        signing_keys=[
            scope(pub={"allow": ["$SYS.REQ.USER.INFO", "{{name()}}.>"]}, subs=-1, payload=-1)
        ],
    ),
    OTHER_ACCOUNT: account(
        OTHER_ACCOUNT,
        name="B",
        default_permissions={"pub": {"allow": ["$SYS.REQ.USER.INFO", "default"]}},
        limits={"conn": 0},
    ),
    OUTSIDE: account(OUTSIDE, name="OUTSIDE"),
}


def _answer(question: AuthorizationRequestClaims, **claims: Any) -> bytes:
    issuer = claims.pop("issuer", AUTH)
    server = question.content["server_id"]["id"]
    token = mint("authorization_response", question.user_nkey, issuer, aud=server, **claims)
    return token.encode()


def _of_user(issuer: Any, *, answers: Any = AUTH, **claims: Any) -> Make:
    def make(question: AuthorizationRequestClaims) -> bytes:
        named = {"name": "bob", **claims}
        if issuer.public != ACCOUNT_SIGNING.public:
            named = {"subs": -1, "data": -1, "payload": -1} | named
        return _answer(
            question, issuer=answers, jwt=mint("user", question.user_nkey, issuer, **named)
        )

    return make


MAKES: dict[str, Make] = {
    "another account": _of_user(ACCOUNT),
    "its own account": _of_user(AUTH),
    "a scope": _of_user(ACCOUNT_SIGNING, issuer_account=ACCOUNT.public),
    "a scope, and rights": _of_user(ACCOUNT_SIGNING, issuer_account=ACCOUNT.public, subs=1),
    "an unknown signing key": _of_user(OUTSIDE, issuer_account=ACCOUNT.public),
    "an account that is not allowed": _of_user(OUTSIDE),
    "an account that is full": _of_user(OTHER_ACCOUNT),
    "permissions": _of_user(ACCOUNT, pub={"allow": ["$SYS.REQ.USER.INFO", "x"]}),
    "no permissions to ask": _of_user(ACCOUNT, pub={"allow": ["x"]}),
    "an error": lambda question: _answer(question, error="no"),
    "nothing": lambda question: b"",
    "an answer of a stranger": _of_user(ACCOUNT, answers=OUTSIDE),
}
OFFERS: dict[str, Offer] = {
    "a bearer": lambda nonce: {"jwt": SENTINEL},
    "a bearer with a name": lambda nonce: {"jwt": SENTINEL, "user": "alice", "pass": "x"},
    "nothing": lambda nonce: {"user": "alice"},
    "a token that is none": lambda nonce: {"jwt": "x"},
    "a user with a key": lambda nonce: connect_options(
        user(REVOKED_USER, issuer=AUTH), nonce, REVOKED_USER
    ),
    "a user with a wrong signature": lambda nonce: connect_options(
        user(REVOKED_USER, issuer=AUTH), nonce, USER
    ),
    "a user from elsewhere": lambda nonce: connect_options(
        user(REVOKED_USER, issuer=AUTH, src=["10.0.0.0/8"]), nonce, REVOKED_USER
    ),
    "a revoked user": lambda nonce: connect_options(user(GONE, issuer=AUTH), nonce, GONE),
    "the service's own": lambda nonce: connect_options(user(issuer=AUTH), nonce),
    "a user of another account": lambda nonce: connect_options(user(), nonce),
}


class Pair:
    """Both servers, and the services of each, by the key of their account."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.services = {
            (id(server), pair.public): Service(
                server.port, lambda nonce, pair=pair: connect_options(user(issuer=pair), nonce)
            )
            for server in servers.all
            for pair in (AUTH, SEALED)
        }

    def of(self, server: ServerProcess, pair: Any = AUTH) -> Service:
        return self.services[(id(server), pair.public)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    config = operator_config(*ACCOUNTS.items()) + f"default_sentinel: {SENTINEL}\n"
    config += "authorization { timeout: 3 }\n"
    with both(tmp_path_factory.mktemp("callout"), config) as servers:
        made = Pair(servers)
        try:
            yield made
        finally:
            for service in made.services.values():
                service.close()


def _compare(pair: Pair, offer: Offer, make: Make, auth: Any = AUTH) -> None:
    def told(server: ServerProcess) -> list[Any]:
        pair.of(server, auth).make = make
        return [_known(each) for each in outcome(server, offer)]

    ours, peer = pair.servers.ours, pair.servers.peer
    before, start = peer.log_file.read_text(), ours.log_file.stat().st_size
    if "Authorization Violation" in str(pair.servers.compare(told)):
        for line in logged(ours, start):
            if not _KEYS.search(line):
                peer.wait_for_log(line, 5, count=before.count(line) + 1)


def _known(value: Any) -> Any:
    """Return what was told, without keys that are made for one question."""
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if k != "user" or not _KEYS.search(v)}
    return value


@pytest.mark.parametrize("make", MAKES)
def test_an_answer_comes_to_the_same(make: str, pair: Pair) -> None:
    _compare(pair, OFFERS["a bearer"], MAKES[make])


@pytest.mark.parametrize("offer", OFFERS)
def test_a_login_comes_to_the_same(offer: str, pair: Pair) -> None:
    _compare(pair, OFFERS[offer], MAKES["another account"])


@pytest.mark.parametrize("offer", ["a bearer", "a bearer with a name", "nothing"])
def test_a_question_is_made_alike(offer: str, pair: Pair) -> None:
    def asked(server: ServerProcess) -> Any:
        service = pair.of(server)
        service.make, service.question = MAKES["an error"], None
        outcome(server, OFFERS[offer])
        assert service.question is not None
        content = dict(service.question.content)
        content["server_id"] = sorted(content["server_id"])
        content["client_info"] = {**content["client_info"], "id": 0}
        content["client_info"].pop("nonce", None)
        content["connect_opts"] = {**content["connect_opts"], "sig": ""}
        content["user_nkey"] = ""
        return content, service.question.registered.subject

    pair.servers.compare(asked)


@pytest.mark.parametrize("seals", [False, True], ids=["plain", "sealed"])
def test_questions_are_sealed(seals: bool, pair: Pair) -> None:
    for server in pair.servers.all:
        pair.of(server, SEALED).seals = seals
    bearer = user(REVOKED_USER, issuer=SEALED, bearer_token=True)
    make = _of_user(OUTSIDE, answers=SEALED)
    _compare(pair, lambda nonce: {"jwt": bearer}, make, SEALED)


def test_members_of_the_account_do_not_ask(pair: Pair) -> None:
    def told(server: ServerProcess) -> list[str]:
        offer = login(server, OFFERS["the service's own"])
        with offer as wire:
            wire.publish(SUBJECT, b"x")
            return _texts(wire)

    pair.servers.compare(told)


def _texts(wire: Wire) -> list[str]:
    return [frame.text or frame.op for frame in wire.fence()]
