"""Logins with tokens: rights, expiry, windows of time, networks; each refusal in its own words.

`tests/parity/test_operator_logins.py` compares many more with a real nats-server.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.limits import SHARED_SUBJECTS_MAX, TEMPLATE_SUBJECTS_MAX
from streamd.tokens.account_validation import check_account
from streamd.tokens.claims import (
    AccountClaims,
    OperatorClaims,
    UserRights,
    decode_account,
    decode_operator,
)
from streamd.tokens.nkeys import KeyKind, KeyPair
from streamd.tokens.validation import (
    Grant,
    Login,
    LoginRefused,
    Trust,
    is_allowed_source,
    judge_login,
    verify_account,
    window_end,
)
from tests.minted_tokens import (
    ACCOUNT,
    ACCOUNT_SIGNING,
    OPERATOR,
    OPERATOR_SIGNING,
    OTHER_ACCOUNT,
    UNLIMITED,
    USER,
    account,
    connect_options,
    key,
    operator,
    scope,
    scoped_user,
    user,
)

NOW_S = 1_800_000_000
NOW_NS = NOW_S * SECOND_NS + 5
NONCE = "AAECAwQFBgcICQo"
TRUST = Trust.of([decode_operator(operator())])


def _known(token: str = "") -> dict[str, AccountClaims]:
    claims = decode_account(token or account())
    return {claims.registered.subject: claims}


def _login(
    token: str, pair: KeyPair | None = USER, *, ip: str = "10.1.2.3", **changes: Any
) -> Login:
    options = connect_options(token, NONCE, pair)
    login = Login(token, options.get("sig", ""), NONCE, ip, "STANDARD")
    return replace(login, **changes)


def _judge(login: Login, account_token: str = "", trust: Trust = TRUST) -> Grant:
    return judge_login(login, trust, _known(account_token).get, now_ns=NOW_NS)


def _refusal(login: Login, account_token: str = "", trust: Trust = TRUST) -> str:
    with pytest.raises(LoginRefused) as raised:
        _judge(login, account_token, trust)
    assert raised.value.is_error == str(raised.value).startswith(("Bad src", "Outside"))
    return str(raised.value)


def test_a_user_is_granted_what_the_token_says() -> None:
    token = user(
        exp=NOW_S + 100,
        pub={"allow": ["a.>"], "deny": ["a.b"]},
        resp={"max": 0, "ttl": 0},
        payload=500,
        subs=7,
        tags=["x:y"],
        allowed_connection_types=["standard", "FOO"],
        now_s=NOW_S - 10,
    )
    grant = _judge(_login(token))
    assert grant.permissions is not None
    assert grant.permissions.publish_allow == [b"a.>"]
    assert grant.permissions.publish_deny == [b"a.b"]
    assert grant.permissions.subscribe_allow is None
    assert grant.permissions.allow_responses is not None
    assert grant.permissions.allow_responses.max_msgs == 1
    assert grant.permissions.allow_responses.ttl_ns == 120 * SECOND_NS
    assert replace(grant, permissions=None) == Grant(
        user_key=USER.public,
        name="u",
        account=ACCOUNT.public,
        account_name="A",
        issuer_key=ACCOUNT.public,
        permissions=None,
        max_payload=500,
        max_subscriptions=7,
        expires_ns=(NOW_S + 100) * SECOND_NS,
        is_bearer=False,
        tags=("x:y",),
        connection_types=frozenset({"STANDARD"}),
        issued_s=NOW_S - 10,
    )


def test_a_user_without_rules_has_the_default_permissions_of_the_account() -> None:
    token = account(default_permissions={"sub": {"deny": ["x"]}})
    grant = _judge(_login(user()), token)
    assert grant.permissions is not None
    assert grant.permissions.subscribe_deny == [b"x"]
    own = _judge(_login(user(sub={"allow": ["y"]})), token)
    assert own.permissions is not None
    assert own.permissions.subscribe_deny == []
    assert _judge(_login(user())).permissions is None


def test_absent_limits_are_zero_and_those_of_a_template_are_none() -> None:
    """As to nats-server: a user token without `payload` may publish nothing."""
    assert _judge(_login(user(payload=None, subs=None))).max_payload == 0
    scoped = account(signing_keys=[scope(subs=3)])
    grant = _judge(_login(scoped_user()), scoped)
    assert (grant.max_payload, grant.max_subscriptions) == (-1, 3)
    assert grant.issuer_key == ACCOUNT_SIGNING.public


def test_only_pinned_accounts_may_log_in() -> None:
    others = replace(TRUST, pinned_accounts=frozenset({OTHER_ACCOUNT.public}))
    refusal = f"Account {ACCOUNT.public} not listed as operator pinned account"
    assert _refusal(_login(user()), trust=others) == refusal
    pinned = replace(TRUST, pinned_accounts=frozenset({ACCOUNT.public}))
    assert _judge(_login(user()), trust=pinned)


def test_strict_operators_want_signing_keys_everywhere() -> None:
    """The operator's own key makes no account, and the account's own no user."""
    claims = decode_operator(
        operator(strict_signing_key_usage=True, signing_keys=[OPERATOR_SIGNING.public])
    )
    trust = Trust.of([claims])
    assert trust.keys == {OPERATOR_SIGNING.public}
    own = account(signing_keys=[ACCOUNT_SIGNING.public])
    assert "not signed by trusted operator" in _refusal(_login(user()), own, trust)
    signed = account(ACCOUNT, OPERATOR_SIGNING, signing_keys=[ACCOUNT_SIGNING.public])
    assert _refusal(_login(user()), signed, trust) == "User JWT issuer is not known"
    token = user(issuer=ACCOUNT_SIGNING, issuer_account=ACCOUNT.public)
    assert _judge(_login(token), signed, trust).issuer_key == ACCOUNT_SIGNING.public


def test_trust_is_in_operators_and_further_keys() -> None:
    claims: OperatorClaims = decode_operator(operator(signing_keys=[OPERATOR_SIGNING.public]))
    other = key(KeyKind.OPERATOR, "other").public
    trust = Trust.of([claims], [other])
    assert trust.keys == {OPERATOR.public, OPERATOR_SIGNING.public, other}
    assert not trust.strict_keys


def test_an_account_that_is_over_lets_nobody_in() -> None:
    assert _refusal(_login(user()), account(exp=NOW_S)) == "Account JWT has expired"
    assert _judge(_login(user()), account(exp=NOW_S + 1))
    assert verify_account(account(exp=NOW_S), TRUST, now_ns=NOW_NS)
    for bad in (
        account(exp=NOW_S - 1),
        account(nbf=NOW_S + 1),
        account(issuer=key(KeyKind.OPERATOR, "other")),
        account(exports=[{"subject": "a..b", "type": "service"}]),
    ):
        with pytest.raises(TokenError, match="account validation failed"):
            verify_account(bad, TRUST, now_ns=NOW_NS)
    with pytest.raises(TokenError, match="not account claim"):
        verify_account(user(), TRUST, now_ns=NOW_NS)


def test_revocations_are_up_to_and_with_their_second() -> None:
    for name in (USER.public, "*"):
        token = account(revocations={name: NOW_S})
        assert _refusal(_login(user(now_s=NOW_S)), token) == "User authentication revoked"
        assert _judge(_login(user(now_s=NOW_S + 1)), token)
    other = account(revocations={key(KeyKind.USER, "x").public: NOW_S + 1000})
    assert _judge(_login(user(now_s=NOW_S)), other)


def test_a_bearer_needs_no_signature_where_the_account_lets_it() -> None:
    token = user(bearer_token=True)
    assert _judge(_login(token, None)).is_bearer
    denied = account(limits={**UNLIMITED, "disallow_bearer": True})
    assert _refusal(_login(token, None), denied) == "Account does not allow bearer tokens"


def test_a_proxy_may_be_required() -> None:
    token = user(proxy_required=True)
    assert _refusal(_login(token)) == "proxy connection required"
    assert _judge(_login(token, is_proxied=True))


def test_the_nonce_is_signed_by_the_user() -> None:
    assert _refusal(_login(user(), None)) == "Signature missing"
    assert _refusal(_login(user(), signature="!")) == "Signature not valid base64"
    assert _refusal(_login(user(), nonce="another")) == "Signature not verified"
    assert _refusal(_login(user(), ACCOUNT)) == "Signature not verified"


def test_a_default_sentinel_stands_in_for_a_token_that_cannot_be_read() -> None:
    sentinel = user(key(KeyKind.USER, "sentinel"), bearer_token=True, name="sentinel")

    def name_of(token: str, default_sentinel: str = sentinel) -> str:
        login = _login(token, None)
        known = _known().get
        return judge_login(
            login, TRUST, known, now_ns=NOW_NS, default_sentinel=default_sentinel
        ).name

    assert name_of("") == name_of("x") == name_of(account()) == "sentinel"
    assert name_of(user(bearer_token=True)) == "u"
    with pytest.raises(LoginRefused, match="claim is expired"):
        name_of(user(exp=5))
    with pytest.raises(LoginRefused, match="Authentication requires a user JWT"):
        name_of("", "x")


@pytest.mark.parametrize(
    ("sources", "address", "is_allowed"),
    [
        ([], "", True),
        (["10.0.0.0/8"], "10.255.0.1", True),
        (["10.1.2.3/8"], "10.255.0.1", True),
        (["192.168.0.0/16", "10.0.0.0/8"], "10.0.0.1", True),
        (["192.168.0.0/16"], "10.0.0.1", False),
        (["0.0.0.0/0"], "::1", False),
        (["::/0"], "10.0.0.1", False),
        (["2001:db8::/32"], "2001:db8::1", True),
        (["10.0.0.0/8"], "::ffff:10.0.0.1", True),
        (["::ffff:10.0.0.0/104"], "10.0.0.1", True),
        (["10.0.0.0"], "10.0.0.0", False),
        (["10.0.0.0/255.0.0.0"], "10.0.0.1", False),
        (["x", "10.0.0.0/8"], "10.0.0.1", False),
        (["10.0.0.0/8"], "", False),
        (["10.0.0.0/8"], "localhost", False),
    ],
)
def test_networks_a_user_may_come_from(sources: list[str], address: str, is_allowed: bool) -> None:
    assert is_allowed_source(sources, address) is is_allowed


def _window(start: str, end: str, location: str = "") -> UserRights:
    rights = decode_account(
        account(signing_keys=[scope(times=[{"start": start, "end": end}], times_location=location)])
    ).signing_keys[ACCOUNT_SIGNING.public]
    assert rights is not None
    return rights.template


def _at(text: str, zone: Any = UTC) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) * SECOND_NS


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("window", "now", "end"),
    [
        (_window("08:00:00", "16:30:00"), _at("2026-01-05T12:00"), _at("2026-01-05T16:30")),
        (_window("08:00:00", "16:30:00"), _at("2026-01-05T16:30"), None),
        (_window("08:00:00", "16:30:00"), _at("2026-01-05T08:00"), None),
        (_window("22:00:00", "06:00:00"), _at("2026-01-05T23:00"), _at("2026-01-06T06:00")),
        (_window("22:00:00", "06:00:00"), _at("2026-01-05T01:00"), _at("2026-01-05T06:00")),
        (_window("22:00:00", "06:00:00"), _at("2026-01-05T12:00"), None),
        (_window("8:00:00", "9:00:00", "Europe/Berlin"), _at("2026-07-01T06:30"),
         _at("2026-07-01T09:00", BERLIN)),
        (_window("8:00:00", "9:00:00", "Europe/Berlin"), _at("2026-07-01T08:30"), None),
        # The night in which clocks go forward: two hours of the clock are one.
        (_window("01:00:00", "04:00:00", "Europe/Berlin"), _at("2026-03-29T00:30"),
         _at("2026-03-29T02:00")),
        (_window("00:00:00", "23:59:59", "No/Where"), _at("2026-01-05T12:00"), None),
        (_window("00:00:00", "24:00:00"), _at("2026-01-05T12:00"), None),
        (_window("", ""), _at("2026-01-05T12:00"), None),
        (UserRights(), _at("2026-01-05T12:00"), 0),
    ],
)  # fmt: skip
def test_windows_of_time(window: UserRights, now: int, end: int | None) -> None:
    assert window_end(window, now, UTC) == end


def test_a_window_without_location_is_in_the_servers_zone() -> None:
    window = _window("08:00:00", "09:00:00")
    assert window_end(window, _at("2026-01-05T07:30"), BERLIN) == _at("2026-01-05T08:00")
    assert window_end(window, _at("2026-01-05T07:30"), UTC) is None


def test_a_grant_ends_with_the_token_or_the_window() -> None:
    day = _at("2026-01-05T00:00") // SECOND_NS
    login = _login(user(exp=day + 5 * 3600, times=[{"start": "01:00:00", "end": "04:00:00"}]))
    for exp, end in ((5, 4), (3, 3)):
        token = user(exp=day + exp * 3600, times=[{"start": "01:00:00", "end": "04:00:00"}])
        grant = judge_login(
            replace(login, token=token), TRUST, _known().get, now_ns=(day + 7200) * SECOND_NS
        )
        assert grant.expires_ns == (day + end * 3600) * SECOND_NS


def test_an_account_lists_so_many_subjects() -> None:
    """Patterns that all cover each other are compared in seconds at most; more are refused."""
    patterns = [f"{'*.' * (number % 8)}a{number}.>" for number in range(SHARED_SUBJECTS_MAX)]
    exports = [{"subject": each, "type": "stream"} for each in patterns]
    began = time.process_time()
    assert not check_account(decode_account(account(exports=exports)), NOW_S)
    assert time.process_time() - began < 30
    for name in ("exports", "imports"):
        token = account(**{name: [{"subject": "a", "type": "stream"}] * (SHARED_SUBJECTS_MAX + 1)})
        errors = check_account(decode_account(token), NOW_S).errors
        assert errors == [f"the account contains more than {SHARED_SUBJECTS_MAX} {name}"]


def test_tags_multiply_up_to_a_limit() -> None:
    """64 values of two tags are 4096 subjects; one more value refuses the login."""
    token = account(signing_keys=[scope(pub={"allow": ["{{tag(a)}}.{{tag(b)}}"]})])
    tags = [f"{name}:{number}" for name in "ab" for number in range(64)]
    grant = _judge(_login(scoped_user(tags=tags)), token)
    assert grant.permissions is not None
    assert len(grant.permissions.publish_allow or []) == TEMPLATE_SUBJECTS_MAX
    refusal = _refusal(_login(scoped_user(tags=[*tags, "a:x"])), token)
    assert refusal == "User JWT generated invalid permissions"
    many = [f"{{{{tag({name})}}}}" for name in "abcdefgh"]
    token = account(signing_keys=[scope(pub={"allow": [".".join(many)]})])
    tags = [f"{name}:{number}" for name in "abcdefgh" for number in range(100)]
    assert _refusal(_login(scoped_user(tags=tags)), token) == refusal


def test_templates_that_leave_nothing_deny_everything() -> None:
    token = account(signing_keys=[scope(sub={"allow": ["{{tag(team)}}.>"]})])
    grant = _judge(_login(scoped_user()), token)
    assert grant.permissions is not None
    assert grant.permissions.subscribe_deny == [b">"]
    assert grant.permissions.subscribe_allow is None
    grant = _judge(_login(scoped_user(tags=["team:red"])), token)
    assert grant.permissions is not None
    assert grant.permissions.subscribe_allow == [b"red.>"]


def test_values_of_templates_are_not_looked_through_again() -> None:
    token = account(signing_keys=[scope(pub={"allow": ["{{name()}}.{{tag(a)}}", "x"]})])
    login = _login(scoped_user(name="{{subject()}}", tags=["a:{{name()}}", "a:b"]))
    permissions = _judge(login, token).permissions
    assert permissions is not None
    assert permissions.publish_allow == [
        b"{{subject()}}.{{name()}}", b"{{subject()}}.b", b"x"
    ]  # fmt: skip
