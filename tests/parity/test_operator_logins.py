"""Logins with tokens: a real nats-server lets in, and refuses, what `judge_login` does.

One server with an operator and accounts in memory; each case is a token and a signature. The text
of a refusal is compared with the server's log, the permissions of a user with `$SYS.REQ.USER.INFO`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from streamd.tokens.account_validation import check_account, mapping_problem
from streamd.tokens.claims import decode_account, decode_operator
from streamd.tokens.issues import joined
from streamd.tokens.nkeys import KeyKind
from streamd.tokens.validation import Grant, Login, LoginRefused, Trust, judge_login
from tests.minted_tokens import (
    ACCOUNT,
    ACCOUNT_SIGNING,
    OPERATOR,
    OTHER_ACCOUNT,
    REVOKED_USER,
    SYSTEM,
    UNLIMITED,
    USER,
    account,
    connect_options,
    key,
    mint,
    operator,
    operator_config,
    scope,
    scoped_user,
    user,
)
from tests.parity.runner import peer_binary
from tests.wire import CONNECT, Wire

NOW_S = int(time.time())
STRANGER = key(KeyKind.ACCOUNT, "stranger")
ENTRIES = key(KeyKind.ACCOUNT, "entries")
NOTHING_LEFT = key(KeyKind.ACCOUNT, "nothing left")
BAD_DENY = key(KeyKind.ACCOUNT, "bad deny")
UNKNOWN_FUNCTION = key(KeyKind.ACCOUNT, "unknown function")
CLOSED_SCOPE = key(KeyKind.ACCOUNT, "closed")
ASK = ("$SYS.REQ.USER.INFO", "_INBOX.>")


def _clock(offset_s: int) -> str:
    return datetime.fromtimestamp(NOW_S + offset_s).strftime("%H:%M:%S")


ACCOUNTS = {
    ACCOUNT: account(
        tags=["region:eu", "region:us", "Zone:x"],
        signing_keys=[
            scope(pub={"allow": [*ASK, "{{tag(dept)}}.x"]}, sub={"allow": ASK}),
            scope(
                ENTRIES,
                pub={
                    "allow": [
                        *ASK,
                        "n.{{name()}}",
                        "s.{{subject()}}",
                        "a.{{account-name()}}.{{account-subject()}}",
                        "t.{{TAG(dept)}}.{{account-tag(region)}}",
                        "gone.{{tag(none)}}",
                        "{{ NAME() }}{{tag(DEPT)}}.{{tag(dept)}}{{tag(dept)}}",
                        "upper.{{TAG(dept)}}",
                        "open.{{name()",
                        "{{}}.x",
                        "zone.{{account-tag(Zone)}}",
                    ],
                    "deny": ["d.{{name()}}"],
                },
                sub={"allow": [*ASK, "q.{{tag(dept)}} group", "plain queue"]},
                payload=1000,
            ),
            scope(NOTHING_LEFT, pub={"allow": ["{{tag(none)}}.x"]}, sub={"allow": ASK}),
            scope(BAD_DENY, pub={"deny": ["{{tag(none)}}.x"]}),
            scope(UNKNOWN_FUNCTION, pub={"allow": ["x.{{foo()}}"]}),
            scope(CLOSED_SCOPE, times=[{"start": "x", "end": "y"}]),
        ],
        revocations={REVOKED_USER.public: NOW_S + 100_000},
    ),
    OTHER_ACCOUNT: account(
        OTHER_ACCOUNT,
        name="B",
        limits={**UNLIMITED, "disallow_bearer": True},
        revocations={"*": NOW_S - 100},
        default_permissions={"pub": {"allow": [*ASK, "default.>"]}, "resp": {"max": 0, "ttl": 0}},
    ),
}
Offer = Callable[[str], dict[str, str]]


def _offer(token: str, pair: Any = USER) -> Offer:
    return lambda nonce: connect_options(token, nonce, pair)


def _in_b(**claims: Any) -> str:
    return user(issuer=OTHER_ACCOUNT, **claims)


CASES: dict[str, Offer] = {
    "a user": _offer(user()),
    "nothing": lambda nonce: {},
    "no token": lambda nonce: {"jwt": "x"},
    "a token of an account": _offer(account()),
    "expired": _offer(user(exp=NOW_S - 10)),
    "not valid yet": _offer(user(nbf=NOW_S + 100_000)),
    "many issues": _offer(user(nbf=NOW_S + 100_000, exp=NOW_S - 10, src=["x"])),
    "unknown account": _offer(user(issuer=STRANGER)),
    "unknown issuer": _offer(user(issuer=STRANGER, issuer_account=ACCOUNT.public)),
    "of a scope": _offer(scoped_user(tags=["dept:a", "dept:b"])),
    "of a scope, with a limit": _offer(scoped_user(subs=-1)),
    "of a scope, with an empty list": _offer(scoped_user(pub={"allow": []})),
    "of a scope, with an empty object": _offer(scoped_user(pub={}, tags=["dept:a"])),
    "templates": _offer(scoped_user(issuer=ENTRIES, tags=["dept:a", "dept:b", "Dept:c"])),
    "templates without tags": _offer(scoped_user(issuer=ENTRIES)),
    "a template that leaves nothing": _offer(scoped_user(issuer=NOTHING_LEFT)),
    "a template that denies nothing": _offer(scoped_user(issuer=BAD_DENY)),
    "an unknown function": _offer(scoped_user(issuer=UNKNOWN_FUNCTION)),
    "a name that is a pattern": _offer(scoped_user(issuer=ENTRIES, name="*")),
    "a name that is a template": _offer(scoped_user(issuer=ENTRIES, name="{{subject()}}")),
    "a name with a space": _offer(scoped_user(issuer=ENTRIES, name="a b")),
    "a scope with bad times": _offer(scoped_user(issuer=CLOSED_SCOPE)),
    "bearer": _offer(user(bearer_token=True), None),
    "bearer, disallowed": _offer(_in_b(bearer_token=True), None),
    "default permissions": _offer(_in_b()),
    "permissions beside default ones": _offer(_in_b(sub={"deny": ["x"]})),
    "replies alone": _offer(user(resp={"max": 5, "ttl": 1000}, pub={"deny": ["x"]})),
    "revoked by name": _offer(user(REVOKED_USER), REVOKED_USER),
    "revoked with all": _offer(_in_b(now_s=NOW_S - 100)),
    "issued after all were revoked": _offer(_in_b(now_s=NOW_S - 99)),
    "no signature": _offer(user(), None),
    "a signature that is no base64": lambda nonce: {"jwt": user(), "sig": "!!"},
    "another's signature": _offer(user(), REVOKED_USER),
    "unknown way to connect": _offer(user(allowed_connection_types=["FOO"])),
    "another way to connect": _offer(user(allowed_connection_types=["WEBSOCKET"])),
    "two ways to connect": _offer(user(allowed_connection_types=["FOO", "standard"])),
    "another network": _offer(user(src=["10.0.0.0/8"])),
    "networks as text": _offer(user(src="10.0.0.0/8, 127.0.0.0/8")),
    "an address as network": _offer(user(src=["127.0.0.1"])),
    "a mapped network": _offer(user(src=["::ffff:127.0.0.0/104"])),
    "a closed window": _offer(user(times=[{"start": _clock(3600), "end": _clock(7200)}])),
    "an open window": _offer(user(times=[{"start": _clock(-60), "end": _clock(3600)}])),
    "a window over midnight": _offer(user(times=[{"start": _clock(7200), "end": _clock(3600)}])),
    "a short way to write times": _offer(user(times=[{"start": "0:00:00", "end": "23:59:59.5"}])),
    "bad times": _offer(user(times=[{"start": "x", "end": ""}])),
    "an unknown zone": _offer(user(times_location="No/Where")),
    "a zone": _offer(
        user(
            times=[
                {"start": "00:00:00", "end": "23:59:59"},
                {"start": "12:00:00", "end": "11:00:00"},
            ],
            times_location="Europe/Berlin",
        )
    ),
    "proxy": _offer(user(proxy_required=True)),
    "proxy, and another way to connect": _offer(
        user(proxy_required=True, allowed_connection_types=["WEBSOCKET"])
    ),
    "proxy, and no signature": _offer(user(proxy_required=True), None),
    "no account as issuer's account": _offer(user(issuer_account="x")),
    "signed by a user": _offer(mint("user", USER.public, USER, subs=-1)),
    "an account as user": _offer(mint("user", ACCOUNT.public, ACCOUNT, subs=-1)),
    "a claim of another type": _offer(user(subs="x")),
    "a queue to publish to": _offer(user(pub={"allow": ["a b"]})),
    "a bad subject": _offer(user(sub={"allow": ["a..b", ".c", "d e f"]})),
}
TRUST = Trust.of([decode_operator(operator())])
CLAIMS = {pair.public: decode_account(token) for pair, token in ACCOUNTS.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    config = operator_config(*ACCOUNTS.items()) + "debug: true\n"
    directory = tmp_path_factory.mktemp("operator")
    with ServerProcess(peer_binary(), directory=directory, extra=config, is_jetstream=False) as one:
        one.launch()
        one.wait()
        yield one


def _judge(options: dict[str, str], nonce: str) -> Grant | str:
    login = Login(options.get("jwt", ""), options.get("sig", ""), nonce, "127.0.0.1", "STANDARD")
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    try:
        return judge_login(login, TRUST, CLAIMS.get, now_ns=time.time_ns(), zone=zone)
    except LoginRefused as err:
        return str(err)


def _rules(grant: Grant) -> dict[str, Any]:
    """Return permissions as the server tells them."""
    permissions = grant.permissions
    if permissions is None:
        return {}
    told: dict[str, Any] = {}
    for name, allow, deny in (
        ("publish", permissions.publish_allow, permissions.publish_deny),
        ("subscribe", permissions.subscribe_allow, permissions.subscribe_deny),
    ):
        rules = {"allow": allow or [], "deny": deny}
        lists = {rule: sorted({each.decode() for each in of}) for rule, of in rules.items() if of}
        if lists:
            told[name] = lists
    if (response := permissions.allow_responses) is not None:
        told["responses"] = {"max": response.max_msgs, "ttl": response.ttl_ns}
    return told


def _sorted(permissions: dict[str, Any]) -> dict[str, Any]:
    for name in ("publish", "subscribe"):
        for rule, listed in permissions.get(name, {}).items():
            permissions[name][rule] = sorted(set(listed))
    return {name: rules for name, rules in permissions.items() if rules}


@pytest.mark.parametrize("case", CASES)
def test_a_login_is_judged_as_by_nats_server(case: str, server: ServerProcess) -> None:
    logged_before = len(server.log_file.read_text())
    with Wire(server.port, None) as wire:
        nonce = wire.info["nonce"]
        options = CASES[case](nonce)
        ours = _judge(options, nonce)
        wire.send(f"CONNECT {json.dumps(CONNECT | options)}\r\n".encode())
        answer = wire.fence()
        if isinstance(ours, Grant):
            assert answer == []
            reply = wire.ask("$SYS.REQ.USER.INFO")[0]
            if reply.op != "MSG":
                assert not _may_ask(ours), reply
                return
            told = reply.json()["data"]
            assert told["user"] == ours.user_key
            assert told["account"] == ours.account
            assert _sorted(told.get("permissions", {})) == _rules(ours)
            return
    assert [frame.text for frame in answer if frame.op == "-ERR"] == ["'Authorization Violation'"]
    logged = server.log_file.read_text()[logged_before:]
    assert f" - {ours}\n" in logged, logged


def _may_ask(grant: Grant) -> bool:
    permissions = grant.permissions
    if permissions is None or permissions.publish_allow is None:
        return permissions is None or b">" not in permissions.publish_deny
    return b"$SYS.REQ.USER.INFO" in permissions.publish_allow


B = OTHER_ACCOUNT.public


def _import(**fields: Any) -> dict[str, Any]:
    return {"imports": [{"subject": "s", "account": B, "type": "service", **fields}]}


def _export(**fields: Any) -> dict[str, Any]:
    return {"exports": [{"subject": "s", "type": "service", **fields}]}


def _token(*, to: str = ACCOUNT.public, by: Any = OTHER_ACCOUNT, **claims: Any) -> dict[str, Any]:
    return _import(token=mint("activation", to, by, **claims))


def _mapping(*destinations: dict[str, Any]) -> dict[str, Any]:
    return {"mappings": {"a": list(destinations)}}


UPDATES: dict[str, dict[str, Any]] = {
    "all is well": {},
    "no import": {"imports": [None]},
    "import of no type": {"imports": [{"subject": "s", "account": B}]},
    "import of an unknown type": _import(type="foo"),
    "import of no account": _import(account=""),
    "import of a bad subject": _import(subject=".a b..c"),
    "import of nothing": _import(subject=""),
    "reference too high": _import(subject="a.*", local_subject="b.$2"),
    "local subject without rest": _import(subject="a.>", local_subject="b"),
    "too few references": _import(subject="a.*.*", local_subject="b.$1"),
    "local subject and to": _import(local_subject="x", to="y"),
    "renamed": _import(subject="a.*", local_subject="b.$1"),
    "shared stream": _import(type="stream", share=True),
    "traced service import": _import(allow_trace=True),
    "overlapping imports": {
        "imports": [
            {"subject": subject, "account": B, "type": "service"} for subject in ("s.*", "s.a")
        ]
    },
    "the same of two accounts": {
        "imports": [
            {"subject": "s", "account": each, "type": "service"} for each in (B, SYSTEM.public)
        ]
    },
    "activation": _token(subject="s", kind="service"),
    "activation that is none": _import(token="x"),
    "activation of another kind": _token(subject="s", kind="stream"),
    "activation of no kind": _token(subject="s"),
    "activation of another account": _token(to=B, subject="s", kind="service"),
    "activation by another account": _token(by=SYSTEM, subject="s", kind="service"),
    "activation by a signing key": _token(by=SYSTEM, subject="s", kind="service", issuer_account=B),
    "activation of another subject": _token(subject="t", kind="service"),
    "activation of nothing": _token(kind="service"),
    "activation that is over": _token(subject="s", kind="service", exp=5),
    "no export": {"exports": [None]},
    "export of no type": {"exports": [{"subject": "s"}]},
    "export of an unknown type": _export(type="foo"),
    "unknown response type": _export(response_type="x"),
    "response type of a stream": _export(type="stream", response_type="Stream"),
    "traced stream export": _export(type="stream", allow_trace=True),
    "latency of a stream": _export(type="stream", service_latency={"sampling": 50, "results": "r"}),
    "latency by headers, to a pattern": _export(service_latency={"results": "r.*"}),
    "latency to nothing": _export(service_latency={"sampling": "headers", "results": ""}),
    "too much sampling": _export(service_latency={"sampling": 101, "results": "r"}),
    "negative threshold": _export(response_threshold=-5),
    "threshold of a stream": _export(type="stream", response_threshold=5),
    "position without a wildcard": _export(account_token_position=1),
    "position beyond": _export(subject="a.*", account_token_position=3),
    "position of no wildcard": _export(subject="a.*", account_token_position=1),
    "position": _export(subject="a.*", account_token_position=2),
    "no url": _export(info_url="x"),
    "url without a host": _export(info_url="http://"),
    "url": _export(info_url="http://h/x"),
    "covered export": {
        "exports": [{"subject": each, "type": "service"} for each in ("s.>", "s.a")]
    },
    "the same export twice": {"exports": [{"subject": "s", "type": "service"}] * 2},
    "the same as stream and service": {
        "exports": [{"subject": "s", "type": each} for each in ("service", "stream")]
    },
    "tier without a name": {"limits": {**UNLIMITED, "tiered_limits": {"R1": {}, "": {}}}},
    "bad default permissions": {
        "default_permissions": {"pub": {"allow": ["a b"]}, "sub": {"deny": ["a  c", "a..b q"]}}
    },
    "mapping beyond 100": _mapping({"subject": "b", "weight": 60}, {"subject": "c", "weight": 60}),
    "mapping of all and more": _mapping({"subject": "b"}, {"subject": "c", "weight": 1}),
    "mapping of a cluster beyond 100": _mapping(
        *({"subject": each, "cluster": "x", "weight": 60} for each in "bc")
    ),
    "mapping with one weight too high": _mapping({"subject": "b", "weight": 200}),
    "mapping to nothing": {"mappings": {"a..b": [{"subject": ""}]}},
    "mapping with an unknown function": _mapping({"subject": "{{foo(1)}}"}),
    "mapping with a wildcard too many": {"mappings": {"a.*": [{"subject": "b.$2"}]}},
    "mapping with functions": {"mappings": {"a.*": [{"subject": "b.{{partition(3,1)}}"}]}},
    "accounts without users": {"authorization": {"allowed_accounts": ["*"]}},
    "bad authorization": {
        "authorization": {"auth_users": ["x"], "allowed_accounts": ["*", "y"], "xkey": "z"}
    },
    "bad trace": {"trace": {"dest": "a.*", "sampling": 101}},
    "trace to nothing": {"trace": {}},
    "too many imports": {"limits": {**UNLIMITED, "imports": 0}, **_import()},
    "no limits": {"limits": {}, **_import(), **_export(subject="s.*")},
    "too many exports": {
        "limits": {**UNLIMITED, "exports": 0, "wildcards": False},
        **_export(subject="s.*"),
    },
    "wildcards with unlimited exports": {
        "limits": {**UNLIMITED, "wildcards": False},
        **_export(subject="s.*"),
    },
    "odd limits": {"limits": {**UNLIMITED, "imports": -5, "exports": -5}, **_import(), **_export()},
    "bad signing key": {"signing_keys": ["x"]},
    "bad scope": {"signing_keys": [{"kind": "user_scope", "key": "x"}]},
    "bad subjects in a scope": {"signing_keys": [scope(pub={"allow": ["a..b"]})]},
    "long texts": {"description": "x" * 9000, "info_url": "y" * 9000},
    "cluster traffic": {"cluster_traffic": "foo"},
    "expired": {"exp": 5},
    "not valid yet": {"nbf": NOW_S + 100_000},
}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A client of the system account of a server that stores accounts."""
    if not peer_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    directory = tmp_path_factory.mktemp("resolver")
    system = account(SYSTEM, name="SYS")
    config = (
        f"operator: {operator()}\nsystem_account: {SYSTEM.public}\n"
        f"resolver: {{type: full, dir: '{directory}/jwt'}}\n"
        f"resolver_preload: {{ {SYSTEM.public}: {system} }}\n"
    )
    with ServerProcess(peer_binary(), directory=directory, extra=config, is_jetstream=False) as one:
        one.launch()
        one.wait()
        with Wire(one.port, None) as wire:
            options = connect_options(user(issuer=SYSTEM), wire.info["nonce"])
            wire.send(f"CONNECT {json.dumps(CONNECT | options)}\r\n".encode())
            wire.fence()
            yield wire


@pytest.mark.parametrize("case", UPDATES)
def test_an_update_is_refused_for_the_same_reasons(case: str, admin: Wire) -> None:
    token = account(**UPDATES[case])
    answer = admin.ask("$SYS.REQ.CLAIMS.UPDATE", token.encode())[0].json()
    told = answer.get("error", {}).get("description", "") or answer["data"]["message"]
    try:
        claims = decode_account(token)
        errors = check_account(claims, NOW_S).errors
        problem = f"validation errors: {joined(errors)}" if errors else mapping_problem(claims)
        ours = f"jwt validation failed - {problem}" if problem else "jwt updated"
    except Exception as err:  # noqa: BLE001 - also those that must not be
        ours = f"jwt update resulted in error - {err}"
    assert ours == told


def test_accounts_of_other_operators_are_not_trusted() -> None:
    """A stranger's account is known and its user's token right, and yet the login is refused."""
    stranger = key(KeyKind.OPERATOR, "stranger")
    claims = decode_account(account(issuer=stranger))
    with pytest.raises(LoginRefused, match="Account JWT not signed by trusted operator"):
        judge_login(
            Login(user(bearer_token=True), "", "", "127.0.0.1", "STANDARD"),
            TRUST,
            lambda name: claims,
            now_ns=time.time_ns(),
        )
    assert OPERATOR.public in TRUST.keys
    assert ACCOUNT_SIGNING.public in CLAIMS[ACCOUNT.public].signing_keys
