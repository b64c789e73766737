"""Imports of accounts with tokens: those hold here that hold at a real nats-server.

One server with an importer for each case; what it says of the importer, by
`$SYS.REQ.ACCOUNT.<account>.INFO`, is compared with the options made of the same claims.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.account_claims import account_options
from streamd.tokens.claims import decode_account, decode_operator
from streamd.tokens.nkeys import KeyKind, KeyPair
from streamd.tokens.validation import Trust
from tests.minted_tokens import (
    ACCOUNT_SIGNING,
    OTHER_ACCOUNT,
    SYSTEM,
    account,
    connect_options,
    key,
    mint,
    operator,
    operator_config,
    user,
)
from tests.parity.runner import peer_binary
from tests.wire import CONNECT, Wire

NOW_S = int(time.time())
B = OTHER_ACCOUNT.public
REVOKED = key(KeyKind.ACCOUNT, "revoked importer")
EXPORTER = account(
    OTHER_ACCOUNT,
    name="B",
    signing_keys=[ACCOUNT_SIGNING.public],
    exports=[
        {"subject": "public.>", "type": "service"},
        {"subject": "events.>", "type": "stream"},
        {"subject": "own.*", "type": "service", "account_token_position": 2},
        {
            "subject": "closed.*",
            "type": "service",
            "token_req": True,
            "revocations": {REVOKED.public: NOW_S + 100_000},
        },
    ],
)


def _import(subject: str, kind: str = "service", **fields: Any) -> dict[str, Any]:
    return {"subject": subject, "account": B, "type": kind, **fields}


def _activation(to: KeyPair, by: KeyPair = OTHER_ACCOUNT, **claims: Any) -> str:
    claims = {"subject": "closed.*", "kind": "service", **claims}
    return mint("activation", to.public, by, **claims)


def _importer(case: str) -> KeyPair:
    return REVOKED if case == "revoked activation" else key(KeyKind.ACCOUNT, case)


def _cases() -> dict[str, dict[str, Any]]:
    closed: dict[str, dict[str, Any]] = {
        "activation": {},
        "activation for a while": {"exp": NOW_S + 100_000},
        "activation by a signing key": {"by": ACCOUNT_SIGNING, "issuer_account": B},
        "activation by another key": {"by": SYSTEM, "issuer_account": B},
        "revoked activation": {},
        "activation that is over": {"exp": NOW_S - 10},
    }
    return {
        "public service": _import("public.x"),
        "renamed service": _import("public.x", local_subject="here"),
        "service as older tools write it": _import("here", to="public.x"),
        "renamed pattern": _import("public.*", local_subject="$1.here"),
        "wider than the export": _import(">"),
        "not exported": _import("other"),
        "a stream as service": _import("events.x"),
        "stream": _import("events.x", "stream"),
        "stream with a prefix": _import("events.x", "stream", to="pre"),
        "renamed stream": _import("events.*.*", "stream", local_subject="$2.$1"),
        "another's position": _import(f"own.{B}"),
        "any position": _import("own.*"),
        "own position": _import(f"own.{_importer('own position').public}"),
        "no activation": _import("closed.x"),
        **{
            case: _import("closed.x", token=_activation(_importer(case), **claims))
            for case, claims in closed.items()
        },
    }


CASES = _cases()
TOKENS = {case: account(_importer(case), imports=[item]) for case, item in CASES.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Wire]]:
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    accounts = [(_importer(case), token) for case, token in TOKENS.items()]
    config = operator_config((OTHER_ACCOUNT, EXPORTER), *accounts)
    directory = tmp_path_factory.mktemp("imports")
    with ServerProcess(peer_binary(), directory=directory, extra=config, is_jetstream=False) as one:
        one.launch()
        one.wait()
        with _client(one, SYSTEM) as wire:
            yield one, wire


def _client(server: ServerProcess, issuer: KeyPair) -> Wire:
    """Connect a user of an account."""
    wire = Wire(server.port, None)
    options = connect_options(user(issuer=issuer), wire.info["nonce"])
    wire.send(f"CONNECT {json.dumps(CONNECT | options)}\r\n".encode())
    assert wire.fence() == []
    return wire


@pytest.mark.parametrize("case", CASES)
def test_an_import_holds_as_at_nats_server(case: str, served: tuple[ServerProcess, Wire]) -> None:
    server, admin = served
    name = _importer(case).public
    with _client(server, _importer(case)):  # accounts are loaded with their first client
        told = admin.ask(f"$SYS.REQ.ACCOUNT.{name}.INFO")[0].json()["data"]
    theirs = [
        each
        for each in told.get("imports", [])
        if each["account"] == B and not each.get("invalid", False)
    ]
    claims = decode_account(TOKENS[case])
    found = account_options(
        claims,
        TOKENS[case],
        {B: decode_account(EXPORTER)}.get,
        Trust.of([decode_operator(operator())]),
        now_s=NOW_S,
    )
    assert len(found.options.imports) == len(theirs), (theirs, found.problems)
    assert len(found.problems) == 1 - len(theirs)
