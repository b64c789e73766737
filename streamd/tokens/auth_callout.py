"""Auth callout (ADR-26): logins that a service decides upon, as far as texts and values go.

The server asks with a token that it signs, of a user key made for this question alone; the service
answers with a token of its own, which holds the token of that user, or an error. Both may be sealed
with curve keys. `request_token` and `sealed_request` make the question; `read_response` judges the
answer, and `place_in_account` or `place_by_claims` where the user comes to be: without operators
the account whose name the user's token has as audience, with them the account that issued it.

Whatever the refusal, the client hears `Authorization Violation`; the text is a warning in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Any, Final

from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.tokens.claims import (
    ANY,
    NO_LIMIT,
    AccountClaims,
    AuthorizationResponseClaims,
    UserClaims,
    decode_authorization_response,
    decode_user,
)
from streamd.tokens.issues import Issues, check_times, quoted
from streamd.tokens.jwt import encode
from streamd.tokens.nkeys import KeyKind, KeyPair, is_valid_public
from streamd.tokens.permissions import as_permissions
from streamd.tokens.validation import (
    Grant,
    LoginRefused,
    Trust,
    is_issuer_known,
    known_connection_types,
    scope_rights,
    user_issues,
    window_end,
)
from streamd.tokens.xkeys import CurveKeyPair

SUBJECT: Final = "$SYS.REQ.USER.AUTH"
AUDIENCE: Final = "nats-authorization-request"
XKEY_HEADER: Final = "Nats-Server-Xkey"
REDACTED: Final = "[REDACTED]"  # in place of a token as the client's name
_CONNECT_FIELDS: Final = (
    "jwt",
    "nkey",
    "sig",
    "auth_token",
    "user",
    "pass",
    "name",
    "lang",
    "version",
)
_TOKEN_PREFIX: Final = b"eyJ"  # an answer that begins so is not sealed


class CalloutRefused(TokenError):
    """An answer by which nobody is let in; the text is what the server logs as a warning."""


@dataclass(frozen=True, slots=True)
class CalloutPolicy:
    """Callouts of one account."""

    account: str  # in which the service listens
    issuer: str  # key of an account, which signs answers and users
    xkey: str = ""  # of the service; "": nothing is sealed
    allowed_accounts: frozenset[str] = frozenset()  # with operators: others that users may be of
    claims: AccountClaims | None = None  # of `account`; None: without operators


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the service."""

    user_key: str  # made for it
    server_id: str
    xkey: CurveKeyPair | None = None  # of the server, if the question was sealed


@dataclass(frozen=True, slots=True)
class Answer:
    """A user whom the service lets in, before its account is known to be there."""

    user: UserClaims
    account: str
    window_end_ns: int
    connection_types: frozenset[str]


def request_token(
    key: KeyPair,
    policy: CalloutPolicy,
    question: Question,
    *,
    server: Mapping[str, Any],
    client: Mapping[str, Any],
    connect: Mapping[str, Any],
    tls: Mapping[str, Any] | None = None,
    now_s: int,
    timeout_s: int,
) -> str:
    """Return the question as a token signed by the server's `key`.

    `server` has name, host, version and perhaps cluster and tags; `client` host, id, kind, type and
    perhaps user, name, tags, name_tag, mqtt_id and nonce; `connect` is the client's CONNECT, of
    which the service sees who the client says it is; `tls` has version, cipher and certs or
    verified_chains. Fields that are empty are left out.
    """
    content: dict[str, Any] = {
        "server_id": {**_filled(server), "id": question.server_id},
        "user_nkey": question.user_key,
        "client_info": _filled(client),
        "connect_opts": {
            **_filled({name: connect.get(name) for name in _CONNECT_FIELDS}),
            "protocol": connect.get("protocol", 0),
        },
    }
    if question.xkey is not None:
        content["server_id"]["xkey"] = question.xkey.public
    if connect.get("auth_token"):
        content["client_info"]["user"] = REDACTED
    if policy.claims is None:
        content["connect_opts"].pop("jwt", None)
    if not connect.get("sig"):
        content["client_info"].pop("nonce", None)
    if tls is not None:
        content["client_tls"] = _filled(tls)
    claims = {
        "sub": policy.issuer,
        "aud": AUDIENCE,
        "exp": now_s + timeout_s,
        "nats": {**content, "type": "authorization_request"},
    }
    return encode(claims, key, issued_s=now_s)


def sealed_request(token: str, policy: CalloutPolicy, question: Question, nonce: bytes) -> bytes:
    """Return the payload of a question: sealed, if the service has a curve key."""
    if question.xkey is None:
        return token.encode("ascii")
    return question.xkey.seal(token.encode("ascii"), policy.xkey, nonce)


def read_response(
    payload: bytes,
    policy: CalloutPolicy,
    question: Question,
    *,
    now_ns: int,
    zone: tzinfo = UTC,
) -> Answer:
    """Return whom an answer lets in; raise CalloutRefused if nobody."""
    now_s = now_ns // SECOND_NS
    token, is_sealed = _opened(payload, policy, question)
    try:
        response = decode_authorization_response(token)
    except TokenError as err:
        raise _refused(str(err)) from None
    _check_response(response, question, now_s)
    if response.error:
        raise _refused(f"auth callout service returned an error: {response.error}")
    if not is_sealed:
        _check_signer(response, policy)
    try:
        user = decode_user(response.token)
    except TokenError as err:
        raise _refused(str(err)) from None
    issues = user_issues(user, now_s)
    if issues:
        raise CalloutRefused(f"Error validating user JWT: {issues.first}")
    if user.registered.subject != question.user_key:
        raise CalloutRefused(
            f"Expected authorized user of {quoted(question.user_key)} but got"
            f" {quoted(user.registered.subject)} on account {quoted(policy.account)}"
        )
    window_end_ns = window_end(user.rights, now_ns, zone)
    if window_end_ns is None:
        raise _refused(
            f"authorized user on account {quoted(policy.account)} outside of valid connect times"
        )
    try:
        connection_types = known_connection_types(user.rights.connection_types)
    except LoginRefused:
        raise _refused(
            f"authorized user on account {quoted(policy.account)} using invalid connection type"
        ) from None
    return Answer(user, _account_of(user, policy), window_end_ns, connection_types)


def place_in_account(answer: Answer, policy: CalloutPolicy, *, is_known: bool) -> Grant:
    """Return the grant in an account of the configuration, whose name `answer` tells."""
    if not is_known:
        raise _refused(
            f"no valid account {quoted(answer.account)} for auth callout response on account"
            f" {quoted(policy.account)}: account missing"
        )
    return _grant(answer, answer.user, account_name="")


def place_by_claims(
    answer: Answer, policy: CalloutPolicy, account: AccountClaims | None, trust: Trust
) -> Grant:
    """Return the grant in the account of these claims, which issued the user itself."""
    if account is None:
        raise _refused(
            f"no valid account {quoted(answer.account)} for auth callout response on account"
            f" {quoted(policy.account)}: account missing"
        )
    issuer = answer.user.registered.issuer
    if not is_issuer_known(issuer, account, trust):
        raise _refused(f"user JWT issuer {quoted(issuer)} is not known")
    try:
        rights = scope_rights(answer.user, account)
    except LoginRefused as err:
        raise _refused(str(err)) from None
    user = UserClaims(answer.user.registered, rights, True, answer.user.issuer_account)
    grant = _grant(answer, user, account_name=account.registered.name)
    if grant.permissions is not None:
        return grant
    default = as_permissions(account.default_permissions)
    return replace(grant, permissions=default, has_permissions=False)


def _opened(payload: bytes, policy: CalloutPolicy, question: Question) -> tuple[str, bool]:
    """Return the token in an answer, and whether it was sealed."""
    if not payload:
        account = quoted(policy.account)
        raise _refused(f'auth callout violation: "no reason supplied" on account {account}')
    is_sealed = question.xkey is not None and not payload.startswith(_TOKEN_PREFIX)
    if is_sealed:
        assert question.xkey is not None
        try:
            payload = question.xkey.open(payload, policy.xkey)
        except TokenError as err:
            raise _refused(
                f"error decrypting auth callout response on account {quoted(policy.account)}: {err}"
            ) from None
    return payload.decode("latin-1"), is_sealed


def _check_response(response: AuthorizationResponseClaims, question: Question, now_s: int) -> None:
    registered = response.registered
    issues = Issues()
    if not is_valid_public(KeyKind.USER, registered.subject):
        issues.add("Subject must be a user public key")
    if not is_valid_public(KeyKind.SERVER, registered.audience):
        issues.add("Audience must be a server public key")
    if not response.error and not response.token:
        issues.add("Error or Jwt is required")
    if response.error and response.token:
        issues.add("Only Error or Jwt can be set")
    if response.issuer_account and not is_valid_public(KeyKind.ACCOUNT, response.issuer_account):
        issues.add("issuer_account is not an account public key")
    check_times(registered, now_s, issues)
    if issues:
        raise _refused(f"authorization response had validation errors: {issues.first}")
    if registered.subject != question.user_key:
        raise _refused("auth callout violation: auth callout response is not for expected user")
    if registered.audience != question.server_id:
        raise _refused("auth callout violation: auth callout response is not for server")


def _check_signer(response: AuthorizationResponseClaims, policy: CalloutPolicy) -> None:
    signer = response.issuer_account or response.registered.issuer
    keys = policy.claims.signing_keys if policy.claims is not None else ()
    if signer != policy.issuer and signer not in keys:
        raise _refused("auth callout signing key is unknown")


def _account_of(user: UserClaims, policy: CalloutPolicy) -> str:
    """Return the account that a user is to be of."""
    issuer, account = user.registered.issuer, quoted(policy.account)
    if policy.claims is None:
        if user.issuer_account:
            raise _refused(
                f"error non operator mode account {account}: attempted to use issuer_account"
            )
        if issuer != policy.issuer:
            raise _refused(
                f"wrong issuer for auth callout response on account {account},"
                f" expected {quoted(policy.issuer)} got {quoted(issuer)}"
            )
        return user.registered.audience
    if user.account != policy.issuer and not policy.allowed_accounts & {user.account, ANY}:
        raise _refused(
            f"account {quoted(issuer)} not permitted as valid account option for auth callout"
            f" for account {account}"
        )
    return user.account


def _grant(answer: Answer, user: UserClaims, *, account_name: str) -> Grant:
    ends = (user.registered.expires_s * SECOND_NS, answer.window_end_ns)
    return Grant(
        user_key=user.registered.subject,
        name=user.registered.name,
        account=answer.account,
        account_name=account_name,
        issuer_key=user.registered.issuer,
        permissions=as_permissions(user.rights.permissions),
        max_payload=NO_LIMIT,  # as in nats-server: the limits of such a user do not hold
        max_subscriptions=NO_LIMIT,
        expires_ns=min((end for end in ends if end), default=0),
        is_bearer=False,
        tags=user.registered.tags,
        connection_types=answer.connection_types,
        issued_s=user.registered.issued_s,
    )


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _refused(text: str) -> CalloutRefused:
    return CalloutRefused(text[:1].upper() + text[1:])
