"""Auth callout with operators, and sealed; `tests/parity/test_auth_callout.py` has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.durations import SECOND_NS
from streamd.tokens.auth_callout import (
    Answer,
    CalloutPolicy,
    CalloutRefused,
    Question,
    place_by_claims,
    place_in_account,
    read_response,
    request_token,
    sealed_request,
)
from streamd.tokens.claims import (
    decode_account,
    decode_authorization_request,
    decode_operator,
)
from streamd.tokens.nkeys import KeyPair
from streamd.tokens.validation import Trust
from streamd.tokens.xkeys import CurveKeyPair
from tests.minted_tokens import (
    ACCOUNT,
    ACCOUNT_SIGNING,
    OTHER_ACCOUNT,
    SERVER,
    SYSTEM,
    USER,
    account,
    mint,
    operator,
    scope,
    scoped_user,
    user,
)

NOW_S = 1_800_000_000
TRUST = Trust.of([decode_operator(operator())])
SERVICE = decode_account(account(ACCOUNT, signing_keys=[ACCOUNT_SIGNING.public]))
TARGET = decode_account(
    account(
        OTHER_ACCOUNT,
        name="B",
        signing_keys=[scope(pub={"allow": ["{{tag(team)}}.>"]})],
        default_permissions={"sub": {"deny": ["secret"]}},
    )
)
QUESTION = Question(USER.public, SERVER.public)


def _policy(*allowed: str) -> CalloutPolicy:
    return CalloutPolicy(
        ACCOUNT.public, ACCOUNT.public, allowed_accounts=frozenset(allowed), claims=SERVICE
    )


def _response(token: str, issuer: KeyPair = ACCOUNT, **claims: Any) -> bytes:
    claims = {"aud": SERVER.public, "jwt": token, **claims}
    return mint("authorization_response", USER.public, issuer, **claims).encode()


def _read(
    payload: bytes, policy: CalloutPolicy | None = None, question: Question = QUESTION
) -> Answer:
    return read_response(payload, policy or _policy(), question, now_ns=NOW_S * SECOND_NS)


def _refusal(payload: bytes, policy: CalloutPolicy | None = None) -> str:
    with pytest.raises(CalloutRefused) as raised:
        _read(payload, policy)
    return str(raised.value)


def test_a_user_is_of_the_account_that_issued_it() -> None:
    answer = _read(_response(user(issuer=OTHER_ACCOUNT, exp=NOW_S + 9)), _policy("*"))
    assert answer.account == OTHER_ACCOUNT.public
    grant = place_by_claims(answer, _policy("*"), TARGET, TRUST)
    assert (grant.account, grant.account_name) == (OTHER_ACCOUNT.public, "B")
    assert (grant.name, grant.expires_ns) == ("u", (NOW_S + 9) * SECOND_NS)
    assert grant.permissions is not None
    assert grant.permissions.subscribe_deny == [b"secret"]


def test_a_scope_gives_the_permissions() -> None:
    policy = _policy(OTHER_ACCOUNT.public)
    token = scoped_user(issuer_account=OTHER_ACCOUNT.public, tags=["team:red"])
    grant = place_by_claims(_read(_response(token), policy), policy, TARGET, TRUST)
    assert grant.permissions is not None
    assert grant.permissions.publish_allow == [b"red.>"]
    token = scoped_user(issuer_account=OTHER_ACCOUNT.public, subs=5)
    with pytest.raises(CalloutRefused, match="User JWT is not valid: scoped users require no"):
        place_by_claims(_read(_response(token), policy), policy, TARGET, TRUST)


def test_users_of_other_accounts_need_to_be_allowed() -> None:
    token = user(issuer=OTHER_ACCOUNT)
    for allowed in ((), (SYSTEM.public,)):
        assert _refusal(_response(token), _policy(*allowed)) == (
            f'Account "{OTHER_ACCOUNT.public}" not permitted as valid account option for auth'
            f' callout for account "{ACCOUNT.public}"'
        )
    own = _read(_response(user()))
    assert own.account == ACCOUNT.public


def test_unknown_accounts_and_issuers_are_refused() -> None:
    policy = _policy("*")
    answer = _read(_response(user(issuer=OTHER_ACCOUNT)), policy)
    with pytest.raises(CalloutRefused, match=r"No valid account .* account missing"):
        place_by_claims(answer, policy, None, TRUST)
    token = user(issuer=SYSTEM, issuer_account=OTHER_ACCOUNT.public)
    with pytest.raises(CalloutRefused, match=r"User JWT issuer .* is not known"):
        place_by_claims(_read(_response(token), policy), policy, TARGET, TRUST)


def test_answers_are_signed_by_a_key_of_the_account() -> None:
    signed = _response(user(), ACCOUNT_SIGNING, issuer_account=ACCOUNT.public)
    assert _read(signed).account == ACCOUNT.public
    assert _read(_response(user(), ACCOUNT_SIGNING)).account == ACCOUNT.public
    assert _refusal(_response(user(), SYSTEM)) == "Auth callout signing key is unknown"


def test_sealed_answers_open_for_the_server_alone() -> None:
    """Whoever can seal knows the question's key: the signer of the answer is not looked at."""
    server, service = (CurveKeyPair(bytes([number]) * 32) for number in (1, 2))
    policy = CalloutPolicy(ACCOUNT.public, ACCOUNT.public, service.public, claims=SERVICE)
    question = Question(USER.public, SERVER.public, server)
    token = request_token(
        SERVER, policy, question, server={"name": "s"}, client={"host": "h"},
        connect={"user": "u", "jwt": "x"}, tls={"version": "1.3", "certs": []},
        now_s=NOW_S, timeout_s=2,
    )  # fmt: skip
    payload = sealed_request(token, policy, question, bytes(24))
    asked = decode_authorization_request(service.open(payload, server.public).decode())
    assert asked.content["server_id"] == {
        "name": "s", "id": SERVER.public, "xkey": server.public
    }  # fmt: skip
    assert asked.content["connect_opts"] == {"user": "u", "jwt": "x", "protocol": 0}
    assert asked.content["client_tls"] == {"version": "1.3"}
    assert asked.registered.expires_s == NOW_S + 2

    answer = service.seal(_response(user(), SYSTEM), server.public, bytes(24))
    assert _read(answer, policy, question).account == ACCOUNT.public
    stranger = CurveKeyPair(bytes([3]) * 32)
    with pytest.raises(CalloutRefused, match="Error decrypting auth callout response on account"):
        _read(stranger.seal(_response(user()), server.public, bytes(24)), policy, question)
    with pytest.raises(CalloutRefused, match="Error decrypting"):
        _read(b"garbage", policy, question)
    assert sealed_request(token, policy, QUESTION, bytes(24)) == token.encode()


def test_an_account_of_the_configuration_is_named() -> None:
    policy = CalloutPolicy("AUTH", ACCOUNT.public)
    answer = _read(_response(user(aud="APP", payload=5)), policy)
    grant = place_in_account(answer, policy, is_known=True)
    assert (grant.account, grant.permissions, grant.max_payload) == ("APP", None, -1)
    with pytest.raises(CalloutRefused, match='No valid account "APP" for auth callout response'):
        place_in_account(answer, policy, is_known=False)
