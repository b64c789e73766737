"""Users and accounts of tokens as operators and services see them, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.nkeys import KeyKind
from tests.minted_tokens import (
    ACCOUNT,
    ACCOUNT_SIGNING,
    OPERATOR,
    OTHER_ACCOUNT,
    SYSTEM,
    UNLIMITED,
    account,
    connect_options,
    key,
    mint,
    operator,
    operator_config,
    user,
)
from tests.parity.login_bed import Servers, both, login
from tests.wire import Wire

STRANGER = key(KeyKind.ACCOUNT, "not pinned")
_EXPORTS = [
    {"subject": "ask.>", "type": "service"},
    {"subject": "by.*", "type": "service", "account_token_position": 2},
    {"subject": "out", "type": "stream", "token_req": True},
]
_IMPORTS = [
    {"subject": "ask.shared", "account": ACCOUNT.public, "type": "service", "share": True},
    {"subject": "ask.plain", "account": ACCOUNT.public, "type": "service", "local_subject": "q"},
]
TOKENS = (
    (
        ACCOUNT,
        account(
            tags=["team:a"],
            exports=_EXPORTS,
            signing_keys=[ACCOUNT_SIGNING.public],
            mappings={"m": [{"subject": "n", "weight": 30, "cluster": "x"}, {"subject": "o"}]},
        ),
    ),
    (OTHER_ACCOUNT, account(OTHER_ACCOUNT, name="B", imports=_IMPORTS)),
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    config = operator_config(*TOKENS)
    config += f"resolver_pinned_accounts: [{ACCOUNT.public}, {OTHER_ACCOUNT.public}]\n"
    with both(tmp_path_factory.mktemp("pages"), config) as pair:
        yield pair


def _enter(server: ServerProcess, issuer: Any, **claims: Any) -> Wire:
    token = user(issuer=issuer, **claims)
    wire = login(server, lambda nonce: connect_options(token, nonce))
    assert wire.fence() == []
    return wire


def _operator(server: ServerProcess) -> Wire:
    return _enter(server, SYSTEM, name="op")


def _member(server: ServerProcess) -> Wire:
    return _enter(server, ACCOUNT_SIGNING, name="m", tags=["x:y"], issuer_account=ACCOUNT.public)


_VARYING = ("cid", "id", "start", "host", "server", "time", "timestamp", "stop", "rtt")


def _of(document: Any, *keys: str) -> dict[str, Any]:
    return {name: document.get(name) for name in keys}


def test_connections_show_their_tokens(servers: Servers) -> None:
    def shown(server: ServerProcess) -> Any:
        with _operator(server) as asking, _member(server):
            body = json.dumps({"auth": True, "acc": ACCOUNT.public}).encode()
            data = asking.ask("$SYS.REQ.SERVER.PING.CONNZ", body)[0].json()["data"]
            (row,) = data["connections"]
            return _of(row, "authorized_user", "account", "issuer_key", "name_tag", "tags"), len(
                row["jwt"]
            )

    servers.compare(shown)


def test_operators_are_shown(servers: Servers) -> None:
    def shown(server: ServerProcess) -> Any:
        refused = login(server, lambda nonce: connect_options(user(issuer=STRANGER), nonce))
        with refused, _operator(server) as asking:
            refused.fence()
            data = asking.ask("$SYS.REQ.SERVER.PING.VARZ")[0].json()["data"]
            names = ("trusted_operators_jwt", "trusted_operators_claim", "auth_required",
                     "pinned_account_fails", "system_account")  # fmt: skip
            return _of(data, *names)

    servers.compare(shown)


def test_accounts_show_their_tokens(servers: Servers) -> None:
    def shown(server: ServerProcess) -> Any:
        with _operator(server) as asking, _member(server):
            data = asking.ask(f"$SYS.REQ.ACCOUNT.{ACCOUNT.public}.INFO")[0].json()["data"]
            names = ("account_name", "is_system", "expired", "complete", "jwt",
                     "issuer_key", "name_tag", "tags")  # fmt: skip
            found = _of(data, *names)
            found["exports"] = sorted(map(json.dumps, data["exports"]))
            return found

    servers.compare(shown)


def test_events_tell_of_tokens(servers: Servers) -> None:
    def told(server: ServerProcess) -> Any:
        with _operator(server) as asking:
            asking.subscribe(f"$SYS.ACCOUNT.{ACCOUNT.public}.*")
            asking.fence()
            _member(server).close()
            found = []
            for frame in asking.collect(count=2, within_s=5):
                client = frame.json()["client"]
                client["jwt"] = len(client["jwt"])
                found.append({k: v for k, v in client.items() if k not in _VARYING})
            return found

    servers.compare(told)


def test_an_account_hears_whom_it_refused(servers: Servers) -> None:
    def told(server: ServerProcess) -> Any:
        with _member(server) as member:
            member.subscribe("$SYS.ACCOUNT.CLIENT.AUTH.ERR")
            member.fence()
            refused = login(
                server,
                lambda nonce: connect_options(user(issuer=ACCOUNT, src=["10.0.0.0/8"]), nonce),
            )
            with refused:
                refused.fence()
            found = []
            for frame in member.collect(count=1, within_s=2):
                event = frame.json()
                client = {k: v for k, v in event["client"].items() if k not in _VARYING}
                client["jwt"] = len(client.get("jwt", ""))
                found.append((event["type"], event["reason"], client))
            return found

    servers.compare(told)


def test_services_learn_who_asks(servers: Servers) -> None:
    def told(server: ServerProcess) -> Any:
        with _member(server) as service, _enter(server, OTHER_ACCOUNT, tags=["a:b"]) as asking:
            service.subscribe("ask.>")
            service.fence()
            found = []
            for subject in ("ask.shared", "q"):
                asking.publish(subject, b"?", reply="_INBOX.x")
                asking.fence()
                (frame,) = service.collect(count=1, within_s=5)
                info = json.loads(frame.pairs["Nats-Request-Info"])
                if "jwt" in info:
                    info["jwt"] = len(info["jwt"])
                hidden = (*_VARYING, "id")
                found.append({k: v for k, v in info.items() if k not in hidden})
            return found

    servers.compare(told)


def test_tiers_bound_streams(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Streams of a number of replicas for which there is no tier cannot be."""
    nothing = {"mem_storage": 0, "disk_storage": 0, "streams": 0, "consumer": 0}
    tier = {"mem_storage": 1_000_000, "disk_storage": 2_000_000, "streams": 1, "consumer": 2}
    limits = {**UNLIMITED, **nothing, "tiered_limits": {"R1": tier}}
    config = operator_config((ACCOUNT, account(limits=limits)))
    with both(tmp_path_factory.mktemp("tiers"), config, is_jetstream=True) as servers:

        def told(server: ServerProcess) -> list[Any]:
            with _enter(server, ACCOUNT) as wire:
                found: list[Any] = []
                for name, more in (
                    ("S", {}),
                    ("T", {}),
                    ("U", {"num_replicas": 3}),
                    ("S", {"max_bytes": 3_000_000}),
                ):
                    answer = wire.api(f"STREAM.CREATE.{name}", {"name": name, **more})
                    found.append(answer.get("error") or answer["config"]["name"])
                info = wire.api("INFO")
                names = ("memory", "storage", "streams", "consumers", "limits", "tiers")
                return [*found, _of(info, *names)]

        servers.compare(told)


def test_clients_of_a_deleted_account_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    system = account(SYSTEM, name="SYS")
    config = (
        f"operator: {operator()}\nsystem_account: {SYSTEM.public}\n"
        "resolver: {type: full, dir: 'DIR/jwt', allow_delete: true}\n"
        f"resolver_preload: {{ {SYSTEM.public}: {system}, {ACCOUNT.public}: {account()} }}\n"
    )
    with both(tmp_path_factory.mktemp("deleted"), config) as servers:

        def told(server: ServerProcess) -> list[Any]:
            with _operator(server) as asking, _enter(server, ACCOUNT) as wire:
                wish = mint("generic", OPERATOR.public, OPERATOR, accounts=[ACCOUNT.public])
                answer = asking.ask("$SYS.REQ.CLAIMS.DELETE", wish.encode())[0].json()
                found = [answer["data"]]
                return [*found, *(frame.text or frame.op for frame in wire.collect(within_s=5))]

        servers.compare(told)
