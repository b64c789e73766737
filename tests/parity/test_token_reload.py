"""Reloads of operators, tokens of accounts, sentinel and auth callout, side by side."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.nkeys import KeyKind
from tests.minted_tokens import (
    ACCOUNT,
    OTHER_ACCOUNT,
    REVOKED_USER,
    SYSTEM,
    USER,
    account,
    connect_options,
    key,
    mint,
    operator,
    operator_config,
    user,
)
from tests.parity.login_bed import Servers, both, login, outcome
from tests.parity.test_auth_callout import CONFIG
from tests.waiting import until
from tests.wire import Wire

STAYING, GOING = key(KeyKind.ACCOUNT, "staying"), key(KeyKind.ACCOUNT, "going")
LATE, PINNED = key(KeyKind.ACCOUNT, "late"), key(KeyKind.ACCOUNT, "pinned")
SENTINEL = user(REVOKED_USER, issuer=STAYING, bearer_token=True)
_NAMED = re.compile(r"config reload [^\n]*")
_RELOADED = re.compile(r"Reloaded server conf|Failed to reload")
_SECRETS = re.compile(r"(old|new)=.*")


def reload(server: ServerProcess, change: Callable[[str], str]) -> list[str]:
    """Change the configuration, and reload; return how that failed."""
    start = server.log_file.stat().st_size
    before = server.config_file.read_text()
    server.config_file.write_text(change(before))
    server.send(signal.SIGHUP)
    until(lambda: _RELOADED.search(_since(server, start)), "word of a reload")
    text = _since(server, start)
    failed = "Failed to reload" in text
    if failed:
        server.config_file.write_text(before)
    return [_SECRETS.sub(r"\1", each) for each in _NAMED.findall(text)] if failed else []


def _since(server: ServerProcess, start: int) -> str:
    return server.log_file.read_text()[start:]


def _enter(server: ServerProcess, issuer: Any) -> Wire:
    wire = login(server, lambda nonce: connect_options(user(issuer=issuer), nonce))
    assert wire.fence() == []
    return wire


def _told(wire: Wire) -> list[str]:
    return [frame.text or frame.op for frame in wire.fence()]


def _login(server: ServerProcess, issuer: Any) -> Any:
    return outcome(server, lambda nonce: connect_options(user(issuer=issuer), nonce))


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    tokens = [(pair, account(pair)) for pair in (ACCOUNT, OTHER_ACCOUNT, STAYING, GOING, PINNED)]
    with both(tmp_path_factory.mktemp("reload"), operator_config(*tokens)) as servers:
        yield servers


def test_tokens_that_are_preloaded_change(operated: Servers) -> None:
    revoking = account(revocations={USER.public: 2_000_000_000})
    denying = account(OTHER_ACCOUNT, default_permissions={"pub": {"deny": ["no"]}})
    broken = account(STAYING, issuer=key(KeyKind.OPERATOR, "stranger"))

    def line(pair: Any, token: str) -> str:
        return f"  {pair.public}: {token}\n"

    def change(text: str) -> str:
        lines = [each for each in text.splitlines() if f"  {GOING.public}:" not in each]
        new = {ACCOUNT.public: revoking, OTHER_ACCOUNT.public: denying, STAYING.public: broken}
        found = []
        for each in lines:
            name = each.strip().partition(":")[0]
            found.append(f"  {name}: {new[name]}" if name in new else each)
        joined = "\n".join(found) + "\n"
        return joined.replace("resolver_preload: {\n", "resolver_preload: {\n" + line(
            LATE, account(LATE)))  # fmt: skip

    def run(server: ServerProcess) -> list[Any]:
        pairs = (ACCOUNT, OTHER_ACCOUNT, STAYING, GOING)
        wires = [_enter(server, pair) for pair in pairs]
        told: list[Any] = [reload(server, change)]
        wires[1].publish("no")
        told += [_told(wire) for wire in wires]
        told += [_login(server, pair) for pair in (*pairs, LATE)]
        for wire in wires:
            wire.close()
        return told

    operated.compare(run)


def test_a_sentinel_changes(operated: Servers) -> None:
    def run(server: ServerProcess) -> list[Any]:
        offer = login(server, lambda nonce: {})
        with offer:
            told: list[Any] = [_told(offer)]
        told.append(reload(server, lambda text: f"{text}default_sentinel: {BEARER}\n"))
        told.append(outcome(server, lambda nonce: {}))
        return told

    operated.compare(run)


def test_pinned_accounts_change(operated: Servers) -> None:
    """Clients of others end."""

    def run(server: ServerProcess) -> list[Any]:
        with _enter(server, PINNED) as pinned, _enter(server, OTHER_ACCOUNT) as other:
            pins = f"resolver_pinned_accounts: [{OTHER_ACCOUNT.public}]\n"
            told: list[Any] = [
                reload(server, lambda text: text + pins),
                _told(pinned),
                _told(other),
            ]
        told += [_login(server, pair) for pair in (PINNED, OTHER_ACCOUNT, SYSTEM)]
        told.append(reload(server, lambda text: text.replace(pins, "")))
        return [*told, _login(server, PINNED)]

    operated.compare(run)


BEARER = user(REVOKED_USER, issuer=LATE, bearer_token=True)
REFUSED: dict[str, Callable[[str], str]] = {
    "another operator": lambda text: re.sub(
        r"operator: \S+", f"operator: {operator(assert_server_version='1.0.0')}", text
    ),
    "no operator": lambda text: re.sub(
        r"resolver_preload: \{[^}]*\}", "", re.sub(r"(operator|resolver): \S+\n", "", text)
    ),
    "another system account": lambda text: re.sub(
        r"operator: \S+", "operator: " + mint("operator", _O.public, _O), text
    ),
    "an operator that is none": lambda text: re.sub(r"operator: \S+", "operator: x", text),
    "accounts": lambda text: text + "accounts { A {} }\n",
}
_O = key(KeyKind.OPERATOR)


@pytest.mark.parametrize("case", REFUSED)
def test_a_reload_is_refused_alike(case: str, operated: Servers) -> None:
    """And nothing changes."""

    def run(server: ServerProcess) -> list[Any]:
        with _enter(server, SYSTEM) as wire:
            return [reload(server, REFUSED[case]), _told(wire)]

    operated.compare(run)


def test_a_callout_does_not_change(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = CONFIG.replace("XKEY", "")
    with both(tmp_path_factory.mktemp("callout"), config) as servers:
        cases: list[Callable[[str], str]] = [
            lambda text: text.replace("auth_users: [auth]", "auth_users: [auth, x]"),
            lambda text: re.sub(r"auth_callout \{[^}]*\}", "", text),
            lambda text: text.replace("password: p", "password: q"),
        ]
        servers.compare(lambda server: [reload(server, change) for change in cases])
