"""Updates of accounts' tokens, side by side: what they change for connections that are open.

Each case has an account of its own, so that all share two servers: clients log in, a token is
pushed by a user of the system account, and clients tell what they hear.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.nkeys import KeyKind, KeyPair
from tests.minted_tokens import (
    SYSTEM,
    UNLIMITED,
    USER,
    account,
    connect_options,
    key,
    operator_config,
    scope,
    user,
)
from tests.parity.login_bed import Servers, both, login, outcome
from tests.waiting import until
from tests.wire import Wire

NOW_S = int(time.time())
ENDS = "ends"  # clients end a moment after the update, or not at once
JETSTREAM = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


@dataclass
class Case:
    """An account before and after; `do` is done by each client before and after the update."""

    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    users: tuple[dict[str, Any], ...] = ({},)
    first: Callable[[Wire], list[str]] = lambda wire: []
    then: Callable[[Wire], list[str]] = lambda wire: _texts(wire.fence())
    has_signing_key: bool = False


def _texts(frames: list[Any]) -> list[str]:
    return [frame.text or frame.payload.decode(errors="replace") or frame.op for frame in frames]


def _until_end(wire: Wire) -> list[str]:
    """Return all that comes until the connection is closed."""
    return _texts(wire.collect(within_s=10))


def _subscribe(*subjects: str) -> Callable[[Wire], list[str]]:
    def do(wire: Wire) -> list[str]:
        for subject in subjects:
            wire.subscribe(subject)
        return _texts(wire.fence())

    return do


def _publish(subject: str, size: int = 1) -> Callable[[Wire], list[str]]:
    def do(wire: Wire) -> list[str]:
        wire.publish(subject, b"x" * size)
        return _texts(wire.fence())

    return do


def _echo(published: str, heard: str) -> Callable[[Wire], list[str]]:
    def do(wire: Wire) -> list[str]:
        wire.subscribe(heard)
        wire.publish(published, b"hello")
        return [frame.subject or frame.text for frame in wire.fence()]

    return do


def _create_stream(wire: Wire) -> list[str]:
    answer = wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "memory"})
    return [json.dumps(answer.get("error") or answer["config"]["name"])]


def _limits(**limits: int | bool) -> dict[str, Any]:
    return {"limits": {**UNLIMITED, **limits}}


CASES = {
    "nothing": Case(),
    "a revoked user": Case({}, {"revocations": {USER.public: NOW_S + 100_000}}),
    "all are revoked": Case({}, {"revocations": {"*": NOW_S + 100_000}}),
    "another is revoked": Case({}, {"revocations": {SYSTEM.public: NOW_S + 100_000}}),
    "older tokens are revoked": Case({}, {"revocations": {USER.public: NOW_S - 1000}}),
    "fewer connections": Case({}, _limits(conn=1), users=({}, {}, {}), then=_until_end),
    "no connections": Case({}, _limits(conn=0), users=({}, {}), then=_until_end),
    "no bearers": Case({}, _limits(disallow_bearer=True), users=({"bearer_token": True}, {})),
    "a signing key that goes": Case(has_signing_key=True, then=_until_end),
    "smaller messages": Case({}, _limits(payload=10), then=_publish("a", 11)),
    "larger messages": Case(_limits(payload=10), {}, then=_publish("a", 11)),
    "a user of small messages": Case({}, {}, users=({"payload": 10},), then=_publish("a", 11)),
    "fewer subscriptions": Case({}, _limits(subs=1), first=_subscribe("a", "b"), then=_until_end),
    "as many subscriptions": Case(
        {}, _limits(subs=3), first=_subscribe("a", "b"), then=_subscribe("c", "d")
    ),
    "a user of few subscriptions": Case(
        users=({"subs": 2},), first=_subscribe("a"), then=_subscribe("b", "c")
    ),
    "default permissions": Case(
        {},
        {"default_permissions": {"pub": {"deny": ["no"]}, "sub": {"deny": ["b"]}}},
        first=_subscribe("a", "b"),
        then=_publish("no"),
    ),
    "other default permissions": Case(
        {"default_permissions": {"pub": {"allow": ["yes"]}}},
        {"default_permissions": {"pub": {"allow": ["no"]}}},
        first=_publish("yes"),
        then=_publish("yes"),
    ),
    "default permissions that go": Case(
        {"default_permissions": {"pub": {"allow": ["yes"]}}},
        {},
        first=_publish("no"),
        then=_publish("no"),
    ),
    "default permissions beside own": Case(
        {},
        {"default_permissions": {"pub": {"deny": ["no"]}}},
        users=({"pub": {"allow": ["no"]}},),
        then=_publish("no"),
    ),
    "a mapping": Case(
        {}, {"mappings": {"a": [{"subject": "b"}]}}, first=_echo("a", "b"), then=_echo("a", "b")
    ),
    "a mapping that goes": Case(
        {"mappings": {"a": [{"subject": "b"}]}}, {}, first=_echo("a", "b"), then=_echo("a", "b")
    ),
    "an account that ends": Case({}, {"exp": NOW_S + 100_000}),
    "JetStream comes": Case({}, _limits(**JETSTREAM), first=_create_stream, then=_create_stream),
    "JetStream goes": Case(_limits(**JETSTREAM), {}, first=_create_stream, then=_create_stream),
    "fewer streams": Case(
        _limits(**JETSTREAM),
        _limits(**{**JETSTREAM, "streams": 1, "mem_storage": 1000}),
        first=_create_stream,
        then=lambda wire: [
            json.dumps(wire.api("STREAM.CREATE.T", {"name": "T", "storage": "memory"})["error"])
        ],
    ),
    "a token of a stranger": Case({}, {"issuer": key(KeyKind.OPERATOR, "stranger")}),
    "a token that is none": Case({}, {"exports": [{"subject": "a..b", "type": "stream"}]}),
}
KEYS = {name: key(KeyKind.ACCOUNT, f"update {name}") for name in CASES}


def _signing(name: str) -> KeyPair:
    return key(KeyKind.ACCOUNT, f"signing {name}")


def _token(name: str, claims: dict[str, Any], *, has_signing_key: bool) -> str:
    keys = [_signing(name).public] if has_signing_key else []
    return account(KEYS[name], **{"signing_keys": keys, **claims})


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    tokens = [
        (KEYS[name], _token(name, case.before, has_signing_key=case.has_signing_key))
        for name, case in CASES.items()
    ]
    coming = key(KeyKind.ACCOUNT, "update JetStream goes and comes")
    tokens.append((coming, account(coming, **_limits(**JETSTREAM))))
    config = operator_config(*tokens, *SHARING.items())
    directory = tmp_path_factory.mktemp("updates")
    with both(directory, config, is_jetstream=True) as pair:
        yield pair


def push(server: ServerProcess, pair: KeyPair, token: str) -> dict[str, Any]:
    """Update an account by a request in the system account; return what is answered."""
    offer = login(server, lambda nonce: connect_options(user(issuer=SYSTEM), nonce))
    with offer as wire:
        assert wire.fence() == []
        subject = f"$SYS.REQ.ACCOUNT.{pair.public}.CLAIMS.UPDATE"
        answer: dict[str, Any] = wire.ask(subject, token.encode())[0].json()
        answer.pop("server")
        return answer


def enter(server: ServerProcess, issuer: KeyPair, **claims: Any) -> Wire:
    is_bearer = claims.get("bearer_token")
    token = user(issuer=issuer, **claims)
    return login(server, lambda nonce: connect_options(token, nonce, None if is_bearer else USER))


@pytest.mark.parametrize("name", CASES)
def test_an_update_comes_to_the_same(name: str, servers: Servers) -> None:
    """For each client that is there; and for one that logs in afterwards."""
    case, pair = CASES[name], KEYS[name]
    issuer, more = pair, {}
    if case.has_signing_key:
        issuer, more = _signing(name), {"issuer_account": pair.public}

    def run(server: ServerProcess) -> list[Any]:
        wires = []
        told: list[Any] = []
        for claims in case.users:
            wire = enter(server, issuer, **claims, **more)
            told.append(_texts(wire.fence()))
            wires.append(wire)  # one after another: the youngest is known
        told += [case.first(wire) for wire in wires]
        told.append(push(server, pair, _token(name, case.after, has_signing_key=False)))
        told += [case.then(wire) for wire in wires]
        cids = [wire.info["client_id"] for wire in wires]
        for wire in wires:
            wire.close()
        told.append([_reason(server, cid) for cid in cids])
        token = user(issuer=issuer, **more)
        late = outcome(server, lambda nonce: connect_options(token, nonce))
        return [*told, late]

    servers.compare(run)


_OWN_ENDS = ("Client Closed", "Read Error", "Write Error")  # which of them is chance


def _reason(server: ServerProcess, cid: int) -> str:
    """Why a connection that is closed, or about to be, was."""
    url = f"http://127.0.0.1:{server.http_port}/connz?state=closed&cid={cid}"

    def closed() -> list[dict[str, Any]]:
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)["connections"]
        return found

    reason = str(until(closed, f"connection {cid} is closed")[0]["reason"])
    return "" if reason in _OWN_ENDS else reason


def test_streams_outlive_the_time_without_jetstream(servers: Servers) -> None:
    pair = key(KeyKind.ACCOUNT, "update JetStream goes and comes")
    storing = _limits(**JETSTREAM)

    def run(server: ServerProcess) -> list[Any]:
        with enter(server, pair) as wire:
            told: list[Any] = [_texts(wire.fence())]
            told.append(wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}).get("error"))
            told.append([frame.json()["seq"] for frame in wire.ask("s", b"kept")])
            for claims in ({}, storing):
                told.append(push(server, pair, account(pair, **claims)))
                answer = wire.api("STREAM.INFO.S")
                state = answer.get("state", {})
                told.append((answer.get("error"), state.get("messages"), state.get("last_seq")))
        return told

    told = servers.compare(run)
    assert told[-1] == (None, 1, 1)


# --- exports and imports ---

EXPORTER, IMPORTER = key(KeyKind.ACCOUNT, "exporter"), key(KeyKind.ACCOUNT, "importer")
_EXPORTS = [{"subject": "ask", "type": "service"}, {"subject": "out.>", "type": "stream"}]
_IMPORTS = [
    {"subject": "ask", "account": EXPORTER.public, "type": "service"},
    {"subject": "out.>", "account": EXPORTER.public, "type": "stream"},
]
SHARING = {
    EXPORTER: account(EXPORTER, exports=_EXPORTS, name="EXPORTER"),
    IMPORTER: account(IMPORTER, imports=_IMPORTS, name="IMPORTER"),
}


def test_exports_and_imports_follow_tokens(servers: Servers) -> None:
    """An import is there as soon as an export of it is, and as long."""

    def ask(exporting: Wire, importing: Wire) -> list[str]:
        inbox = f"{importing.inbox}.x"
        importing.publish("ask", b"?", reply=inbox)
        heard = [frame.status or frame.op for frame in importing.fence()]
        found = exporting.fence()
        exporting.publish("out.1", b"!")
        exporting.fence()
        return heard + [frame.subject for frame in found + importing.fence()]

    def run(server: ServerProcess) -> list[Any]:
        told: list[Any] = []
        with enter(server, EXPORTER) as exporting, enter(server, IMPORTER) as importing:
            exporting.subscribe("ask")
            importing.subscribe("out.*")
            importing.subscribe("_INBOX.>")
            exporting.fence()
            importing.fence()
            told.append(ask(exporting, importing))
            push(server, EXPORTER, account(EXPORTER, name="EXPORTER"))
            told.append(ask(exporting, importing))
            push(server, EXPORTER, account(EXPORTER, exports=_EXPORTS, name="EXPORTER"))
            told.append(ask(exporting, importing))
            push(server, IMPORTER, account(IMPORTER, name="IMPORTER"))
            told.append(ask(exporting, importing))
            push(server, IMPORTER, account(IMPORTER, imports=_IMPORTS, name="IMPORTER"))
            told.append(ask(exporting, importing))
        return told

    told = servers.compare(run)
    assert told[0] != told[1] and told[0] == told[2] == told[4], told


# --- the end of tokens ---


def test_tokens_end(servers: Servers) -> None:
    """A user's, an account's, and the window of time in which a user may be here."""
    ending = key(KeyKind.ACCOUNT, "update an account that ends")

    def run(server: ServerProcess) -> list[Any]:
        end_s = int(time.time()) + 3
        window = [{"start": "00:00:00", "end": time.strftime("%H:%M:%S", time.localtime(end_s))}]
        with (
            enter(server, KEYS["nothing"], exp=end_s) as wire,
            enter(server, ending) as of_account,
            enter(server, KEYS["nothing"], times=window) as of_window,
        ):
            for each in (wire, of_account, of_window):
                assert each.fence() == []
            told: list[Any] = [push(server, ending, account(ending, exp=end_s))]
            ends = (wire, of_account, of_window)
            told += [_until_end(each) for each in ends]
            told += [_reason(server, each.info["client_id"]) for each in ends]
        late = outcome(server, lambda nonce: connect_options(user(issuer=ending), nonce))
        return [*told, late]

    servers.compare(run)


# --- scopes ---


def test_a_scope_that_changes_ends_its_users(servers: Servers) -> None:
    pair, signing = KEYS["another is revoked"], _signing("scope")

    def token(**template: Any) -> str:
        return account(pair, signing_keys=[scope(signing, subs=-1, payload=-1, **template)])

    def run(server: ServerProcess) -> list[Any]:
        told: list[Any] = [push(server, pair, token(pub={"allow": ["a"]}))]
        from tests.minted_tokens import scoped_user

        scoped = scoped_user(issuer=signing, issuer_account=pair.public)
        with login(server, lambda nonce: connect_options(scoped, nonce)) as wire:
            told.append(_publish("a")(wire))
            told.append(_publish("b")(wire))
            told.append(push(server, pair, token(pub={"allow": ["b"]})))
            told.append(_until_end(wire))
        return told

    servers.compare(run)
