"""Logins with tokens: may this client in, as which user of which account, with which rights?

`judge_login` is the whole order of nats-server. Where an account has to be fetched first, its two
halves are called instead: `read_user`, which tells the account, and `admit`. `verify_account` is
what a fetched account token has to pass.

Whatever the refusal, the client hears `Authorization Violation`; the text is for the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from ipaddress import IPv6Address, ip_address
from typing import Final

from streamd.config.user_options import Permissions
from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.tokens.account_validation import check_account
from streamd.tokens.claims import (
    ANY,
    AccountClaims,
    OperatorClaims,
    UserClaims,
    UserRights,
    decode_account,
    decode_user,
)
from streamd.tokens.issues import (
    Issues,
    check_rights,
    check_times,
    network_of,
    quoted,
    seconds_of,
    zone_of,
)
from streamd.tokens.nkeys import KeyKind, decode_signature, is_valid_public, verify
from streamd.tokens.permissions import as_permissions
from streamd.tokens.templates import filled

CONNECTION_TYPES: Final = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"}
)


class LoginRefused(TokenError):
    """A login that is refused. `is_error`: the log has it as an error, not for debugging."""

    def __init__(self, text: str, *, is_error: bool = False, is_about_pins: bool = False) -> None:
        super().__init__(text)
        self.is_error = is_error
        self.is_about_pins = is_about_pins


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials of a client, and its way to the server."""

    token: str
    signature: str  # of CONNECT, as text
    nonce: str  # of INFO
    client_ip: str
    connection_type: str  # "STANDARD"
    is_proxied: bool = False  # by a proxy that is trusted


@dataclass(frozen=True, slots=True)
class Trust:
    """Keys whose accounts are trusted, and accounts that alone may log in (None: any)."""

    keys: frozenset[str]
    strict_keys: frozenset[str] = frozenset()  # of operators whose accounts need signing keys
    pinned_accounts: frozenset[str] | None = None
    strict_operators: frozenset[str] = frozenset()  # own keys of these, which sign no account

    @classmethod
    def of(
        cls,
        operators: Iterable[OperatorClaims],
        keys: Iterable[str] = (),
        pinned_accounts: frozenset[str] | None = None,
    ) -> Trust:
        """Return the trust in operators, and in further keys."""
        listed = list(operators)
        trusted = [key for operator in listed for key in operator.trusted_keys]
        strict = [operator for operator in listed if operator.is_signing_key_required]
        return cls(
            frozenset((*trusted, *keys)),
            frozenset(key for operator in strict for key in operator.signing_keys),
            pinned_accounts,
            frozenset(operator.registered.subject for operator in strict),
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """A user who is let in. Limits of -1 are none; those of the account hold beside them."""

    user_key: str
    name: str
    account: str
    account_name: str  # for people
    issuer_key: str  # the account's own or a signing key
    permissions: Permissions | None
    max_payload: int
    max_subscriptions: int
    expires_ns: int  # unix time: of the token or the end of a window of time; 0: never
    is_bearer: bool
    tags: tuple[str, ...]
    connection_types: frozenset[str]
    issued_s: int  # what revocations are compared with
    has_permissions: bool = True  # of its own; else those of its account hold


def judge_login(
    login: Login,
    trust: Trust,
    account_of: Callable[[str], AccountClaims | None],
    *,
    now_ns: int,
    zone: tzinfo = UTC,
    default_sentinel: str = "",
) -> Grant:
    """Return what a login grants; raise LoginRefused if it grants nothing.

    `account_of` returns the claims of an account that is known; `zone` is the server's own, for
    windows of time without a location; `default_sentinel` see `read_user`.
    """
    user = read_user(login, trust, now_ns=now_ns, default_sentinel=default_sentinel)
    account = account_of(user.account)
    if account is None:
        raise LoginRefused("Account JWT lookup error: account missing")
    return admit(user, login, account, trust, now_ns=now_ns, zone=zone)


def read_user(login: Login, trust: Trust, *, now_ns: int, default_sentinel: str = "") -> UserClaims:
    """Return the claims of the user who logs in: its `account` is to be looked up.

    `default_sentinel` is the token, of a bearer, of clients that show none, or none that can be
    read: they go on to a service that decides on logins.
    """
    user = _decoded(login.token) or _decoded(default_sentinel)
    if user is None:
        raise LoginRefused("Authentication requires a user JWT")
    if issues := user_issues(user, now_ns // SECOND_NS):
        raise LoginRefused(f"User JWT no longer valid: {issues}")
    pinned = trust.pinned_accounts
    if pinned is not None and user.account not in pinned:
        text = f"Account {user.account} not listed as operator pinned account"
        raise LoginRefused(text, is_about_pins=True)
    return user


def _decoded(token: str) -> UserClaims | None:
    try:
        return decode_user(token)
    except TokenError:
        return None


def user_issues(user: UserClaims, now_s: int) -> Issues:
    """Return what is wrong with the claims of a user, whoever signed them."""
    issues = Issues()
    check_times(user.registered, now_s, issues)
    check_rights(user.rights, issues)
    if user.issuer_account and not is_valid_public(KeyKind.ACCOUNT, user.issuer_account):
        issues.add("account_id is not an account public key")
    return issues


def admit(
    user: UserClaims,
    login: Login,
    account: AccountClaims,
    trust: Trust,
    *,
    now_ns: int,
    zone: tzinfo = UTC,
) -> Grant:
    """Return what a user of this account is granted; raise LoginRefused if nothing."""
    now_s = now_ns // SECOND_NS
    rights = _rights_from(user, account, trust)
    if is_expired(account, now_s):
        raise LoginRefused("Account JWT has expired")
    if rights.is_bearer and account.limits.disallows_bearer:
        raise LoginRefused("Account does not allow bearer tokens")
    if rights.is_proxy_required and not login.is_proxied:
        raise LoginRefused("proxy connection required")
    connection_types = _check_connection_type(rights, login.connection_type)
    if not rights.is_bearer:
        _check_signature(user.registered.subject, login)
    if is_revoked(account.revocations, user.registered.subject, user.registered.issued_s):
        raise LoginRefused("User authentication revoked")
    if not is_allowed_source(rights.sources, login.client_ip):
        raise LoginRefused(f"Bad src Ip {login.client_ip}", is_error=True)
    window_end_ns = window_end(rights, now_ns, zone)
    if window_end_ns is None:
        raise LoginRefused("Outside connect times", is_error=True)
    return grant_of(user, rights, account, connection_types, window_end_ns)


def grant_of(
    user: UserClaims,
    rights: UserRights,
    account: AccountClaims,
    connection_types: frozenset[str],
    window_end_ns: int,
) -> Grant:
    """Return the grant to a user with these rights, of which all else is checked."""
    own = as_permissions(rights.permissions)
    ends = [end for end in (user.registered.expires_s * SECOND_NS, window_end_ns) if end]
    return Grant(
        user_key=user.registered.subject,
        name=user.registered.name,
        account=account.registered.subject,
        account_name=account.registered.name,
        issuer_key=user.registered.issuer,
        permissions=as_permissions(account.default_permissions) if own is None else own,
        max_payload=rights.max_payload,
        max_subscriptions=rights.max_subscriptions,
        expires_ns=min(ends, default=0),
        is_bearer=rights.is_bearer,
        tags=user.registered.tags,
        connection_types=connection_types,
        issued_s=user.registered.issued_s,
        has_permissions=own is not None,
    )


def verify_account(token: str, trust: Trust, *, now_ns: int) -> AccountClaims:
    """Return the claims of an account token that may be used; raise TokenError for any other."""
    account = decode_account(token)
    # The issuer first: only a trusted one is to cost the time that a long list takes.
    is_trusted = account.registered.issuer in trust.keys
    if not is_trusted or check_account(account, now_ns // SECOND_NS):
        raise TokenError("account validation failed")
    return account


def is_expired(account: AccountClaims, now_s: int) -> bool:
    return account.registered.expires_s != 0 and account.registered.expires_s <= now_s


def is_revoked(revocations: Mapping[str, int], key: str, issued_s: int) -> bool:
    """Return True if tokens of `key` that were issued then are revoked: by name, or all are."""
    return any(issued_s <= revocations[name] for name in (key, ANY) if name in revocations)


def scope_rights(user: UserClaims, account: AccountClaims) -> UserRights:
    """Return the rights of a user whose issuer is a key of the account, scope or not."""
    scope = account.signing_keys.get(user.registered.issuer)
    if scope is None:
        return user.rights
    if user.has_rights:
        raise LoginRefused(
            "User JWT is not valid: scoped users require no permissions or limits set"
        )
    try:
        return filled(scope.template, user, account)
    except TokenError:
        raise LoginRefused("User JWT generated invalid permissions") from None


def is_issuer_known(issuer: str, account: AccountClaims, trust: Trust) -> bool:
    """Return True if `issuer` signs for the account: a signing key, or its own if that may."""
    if issuer in account.signing_keys:
        return True
    is_strict = account.registered.issuer in trust.strict_keys
    return not is_strict and issuer == account.registered.subject


def _rights_from(user: UserClaims, account: AccountClaims, trust: Trust) -> UserRights:
    if account.registered.issuer not in trust.keys:
        raise LoginRefused("Account JWT not signed by trusted operator")
    if not is_issuer_known(user.registered.issuer, account, trust):
        raise LoginRefused("User JWT issuer is not known")
    return scope_rights(user, account)


def known_connection_types(listed: Iterable[str]) -> frozenset[str]:
    """Return the ways to connect that are known; raise LoginRefused if none of those listed is."""
    upper = [name.upper() for name in listed]
    known = frozenset(upper) & CONNECTION_TYPES
    if upper and not known:
        raise LoginRefused(f"invalid connection types [{' '.join(map(quoted, upper))}]")
    return known


def _check_connection_type(rights: UserRights, connection_type: str) -> frozenset[str]:
    allowed = known_connection_types(rights.connection_types)
    if allowed and connection_type not in allowed:
        raise LoginRefused("Connection type not allowed")
    return allowed


def _check_signature(user_key: str, login: Login) -> None:
    if not login.signature:
        raise LoginRefused("Signature missing")
    try:
        signature = decode_signature(login.signature)
    except TokenError:
        raise LoginRefused("Signature not valid base64") from None
    if not verify(user_key, login.nonce.encode(), signature):
        raise LoginRefused("Signature not verified")


def is_allowed_source(sources: Iterable[str], client_ip: str) -> bool:
    """Return True if the address is of one of the networks, or there are none."""
    listed = list(sources)
    if not listed:
        return True
    try:
        address = ip_address(client_ip)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    for source in listed:
        network = network_of(source)
        if network is None:
            return False  # a list of a scope, that nobody checked before
        if address.version == network.version and address in network:
            return True
    return False


def window_end(rights: UserRights, now_ns: int, zone: tzinfo) -> int | None:
    """Return when the last of the windows ends that are open now (unix ns); 0 if there are none at
    all, None if all are closed.

    A window that ends before it begins goes on until the next day.
    """
    if not rights.times:
        return 0
    if rights.location and rights.location != "Local":
        named = zone_of(rights.location)
        if named is None:
            return None
        zone = named
    last_ns = 0
    today = datetime.fromtimestamp(now_ns // SECOND_NS, zone).date()
    for window in rights.times:
        start, end = seconds_of(window.start), seconds_of(window.end)
        if start is None or end is None:
            return None
        lasts = 1 if start > end else 0
        for day in (today - timedelta(days=lasts), today):
            begins_ns = _instant(day, start, zone)
            ends_ns = _instant(day + timedelta(days=lasts), end, zone)
            if begins_ns < now_ns < ends_ns:
                last_ns = max(last_ns, ends_ns)
    return last_ns or None


def _instant(day: date, seconds: int, zone: tzinfo) -> int:
    """Return the unix time of a time of day, in ns."""
    hours, rest = divmod(seconds, 3600)
    moment = datetime.combine(day, time(hours, rest // 60, rest % 60), zone)
    return int(moment.timestamp()) * SECOND_NS
