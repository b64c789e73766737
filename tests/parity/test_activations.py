"""Imports that need more than an export, side by side: activation tokens and token positions.

One importing account a case; each asks the service, and hears the stream, as far as it may.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.nkeys import KeyKind, KeyPair
from tests.minted_tokens import USER, account, connect_options, key, mint, operator_config, user
from tests.parity.login_bed import Servers, both, login
from tests.parity.test_token_updates import push
from tests.wire import Wire

NOW_S = int(time.time())
EXPORTER = key(KeyKind.ACCOUNT, "activating exporter")
SIGNING = key(KeyKind.ACCOUNT, "activating signing")
STRANGER = key(KeyKind.ACCOUNT, "activating stranger")
REVOKED = key(KeyKind.ACCOUNT, "importer revoked")
RENAMED = key(KeyKind.ACCOUNT, "importer renamed, and revoked")
EXPORTS: list[dict[str, Any]] = [
    {
        "subject": "ask",
        "type": "service",
        "token_req": True,
        "revocations": {REVOKED.public: NOW_S + 100_000, RENAMED.public: NOW_S + 100_000},
    },
    {"subject": "out.>", "type": "stream", "token_req": True},
    {"subject": "by.*.x", "type": "service", "account_token_position": 2},
]


def activation(
    importer: KeyPair, subject: str, kind: str, issuer: KeyPair = EXPORTER, **claims: Any
) -> str:
    return mint("activation", importer.public, issuer, subject=subject, kind=kind, **claims)


def _imports(importer: KeyPair, **how: Any) -> list[dict[str, Any]]:
    """Return imports of the service and the stream, with an activation each."""
    for_account = how.pop("for_account", importer)
    has_token = how.pop("has_token", True)
    renames = how.pop("renames", False)
    found = []
    for subject, kind in (("ask", "service"), ("out.>", "stream")):
        each: dict[str, Any] = {"subject": subject, "account": EXPORTER.public, "type": kind}
        if has_token:
            each["token"] = activation(for_account, subject, kind, **how)
        if renames:
            each["local_subject"] = f"my.{subject}"
        found.append(each)
    return found


CASES: dict[str, dict[str, Any]] = {
    "a token": {},
    "no token": {"has_token": False},
    "another's token": {"for_account": STRANGER},
    "a token of a stranger": {"issuer": STRANGER},
    "of a signing key": {"issuer": SIGNING, "issuer_account": EXPORTER.public},
    "of a signing key, without its account": {"issuer": SIGNING},
    "of an unknown key": {"issuer": STRANGER, "issuer_account": EXPORTER.public},
    "expired": {"exp": NOW_S - 100},
    "renamed, and revoked": {"renames": True},
    "not valid yet": {"nbf": NOW_S + 100_000},
    "revoked": {},
    "renamed": {"renames": True},
    "renamed, without a token": {"renames": True, "has_token": False},
}
IMPORTERS = {
    name: REVOKED if name == "revoked" else key(KeyKind.ACCOUNT, f"importer {name}")
    for name in CASES
}
POSITIONS = {
    "its own": "by.{own}.x",
    "another's": "by.{other}.x",
    "any": "by.*.x",
}
BY_POSITION = {name: key(KeyKind.ACCOUNT, f"position {name}") for name in POSITIONS}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    exporter = account(EXPORTER, exports=EXPORTS, signing_keys=[SIGNING.public])
    tokens = [(EXPORTER, exporter)]
    for name, how in CASES.items():
        pair = IMPORTERS[name]
        tokens.append((pair, account(pair, imports=_imports(pair, **how))))
    for name, subject in POSITIONS.items():
        pair = BY_POSITION[name]
        wanted = subject.format(own=pair.public, other=EXPORTER.public)
        one = {"subject": wanted, "account": EXPORTER.public, "type": "service"}
        tokens.append((pair, account(pair, imports=[one])))
    with both(tmp_path_factory.mktemp("activations"), operator_config(*tokens)) as pair_of:
        yield pair_of


def _enter(server: ServerProcess, issuer: KeyPair) -> Wire:
    return login(server, lambda nonce: connect_options(user(issuer=issuer), nonce, USER))


def _crossing(server: ServerProcess, importer: KeyPair, prefix: str = "") -> list[Any]:
    """Return what the importer's request and subscription come to."""
    with _enter(server, EXPORTER) as exporting, _enter(server, importer) as importing:
        exporting.subscribe("ask")
        exporting.fence()
        importing.subscribe(f"{prefix}out.*")
        importing.publish(f"{prefix}ask", b"?", reply=f"{importing.inbox}.x")
        told: list[Any] = [frame.status or frame.op for frame in importing.fence()]
        if "CLOSED" in told:  # its error may have been lost, for it went on to send
            return ["CLOSED"]
        told.append([frame.subject for frame in exporting.fence()])
        exporting.publish("out.1", b"!")
        exporting.fence()
        told.append([frame.subject for frame in importing.fence()])
        return told


@pytest.mark.parametrize("case", CASES)
def test_an_activation_comes_to_the_same(case: str, servers: Servers) -> None:
    prefix = "my." if "renamed" in case else ""
    servers.compare(lambda server: _crossing(server, IMPORTERS[case], prefix))


@pytest.mark.parametrize("case", POSITIONS)
def test_a_token_position_comes_to_the_same(case: str, servers: Servers) -> None:
    pair = BY_POSITION[case]

    def asked(server: ServerProcess) -> list[Any]:
        with _enter(server, EXPORTER) as exporting, _enter(server, pair) as importing:
            exporting.subscribe("by.>")
            exporting.fence()
            for name in (pair, EXPORTER):
                importing.publish(f"by.{name.public}.x", b"?", reply=f"{importing.inbox}.x")
            importing.fence()
            return [frame.subject for frame in exporting.fence()]

    servers.compare(asked)


def test_an_activation_ends(servers: Servers) -> None:
    """And it is revoked by an update of the exporter."""
    pair, renamed = IMPORTERS["a token"], IMPORTERS["renamed"]

    def run(server: ServerProcess) -> list[Any]:
        end_s = int(time.time()) + 4
        told: list[Any] = []
        for each in (pair, renamed):
            _crossing(server, each)  # so that it is loaded: others' updates are skipped
            imports = _imports(each, exp=end_s, renames=each is renamed)
            told.append(push(server, each, account(each, imports=imports)))
        told.append(_crossing(server, pair))
        told.append(_crossing(server, renamed, "my."))
        while time.time() < end_s + 1.5:
            time.sleep(0.1)  # until it is over for both: neither tells
        told.append(_crossing(server, pair))
        ended = _crossing(server, renamed, "my.")
        assert server is servers.peer or ended == [[], []], "an intended difference"
        told.append(push(server, pair, account(pair, imports=_imports(pair))))
        told.append(_crossing(server, pair))
        revoking = [dict(each) for each in EXPORTS]
        revoking[0]["revocations"] = {pair.public: NOW_S + 100_000}
        revoking[1]["revocations"] = {pair.public: NOW_S + 100_000}
        told.append(push(server, EXPORTER, account(EXPORTER, exports=revoking)))
        told.append(_crossing(server, pair))
        return told

    servers.compare(run)
