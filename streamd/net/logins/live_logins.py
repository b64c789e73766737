"""Live connections of accounts whose tokens change: who stays, with which rights, and who goes.

The order is nats-server's: connections beyond the limit, bearers that are not allowed any more,
revoked users, users whose signing key is gone. Those who stay have the limits and the default
permissions of the new token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from streamd.config.user_options import Permissions
from streamd.net.client.auth import Identity, TokenFacts
from streamd.net.client.client_registry import ClientConnection
from streamd.tokens.claims import AccountClaims
from streamd.tokens.permissions import as_permissions
from streamd.tokens.validation import Trust, is_issuer_known, is_revoked

_REVOKED: Final = "User Authentication Revoked"
_VIOLATION: Final = "Authorization Violation"
_EXPIRED: Final = "Account Authentication Expired"


class Link(Protocol):
    """A leaf link to an account here."""

    @property
    def identity(self) -> Identity | None: ...

    def close(self, reason: str, text: str = "") -> None: ...


class Links(Protocol):
    """Leaf links of a server, as far as accounts end them."""

    def links_of(self, account: str) -> Sequence[Link]:
        """Return the links that leaf nodes have to an account, the oldest first."""


class End(NamedTuple):
    """Reason for the end of a connection, and its text; "": without a word."""

    reason: str
    text: str = ""


class LiveLogins:
    """Connections of clients, by account."""

    def __init__(
        self,
        open_connections: Mapping[int, ClientConnection],
        cids_of: Callable[[str], Collection[int]],
        hold: Callable[[str], None],
    ) -> None:
        """`hold` ends the newest connections of an account that has too many."""
        self._open = open_connections
        self._cids_of = cids_of
        self._hold = hold
        self.links: Links | None = None

    def expire(self, account: str) -> None:
        """End the connections of an account: its token is over, or was deleted."""
        for conn in self._of(account):
            conn.close("Authentication Expired", _EXPIRED.encode())
        for link in self._links_of(account):
            link.close("Authentication Expired", _EXPIRED)

    def refuse_links(self, account: str) -> None:
        """End the leaf links to an account that is no more."""
        for link in self._links_of(account):
            link.close("Authentication Failure", _VIOLATION)

    def change(self, claims: AccountClaims, before: AccountClaims, trust: Trust) -> None:
        """Judge the connections of an account by its new token."""
        account = claims.registered.subject
        default = as_permissions(claims.default_permissions)
        self._hold(account)
        for conn in self._of(account):
            conn.apply_options()
            token = _token_of(conn.profile.identity)
            if token is None or conn.is_closed:
                continue
            end = _end_of(token, claims, before, trust)
            if end is not None:
                conn.close(end.reason, end.text.encode())
            else:
                self._give_default(conn, default)
        for link in self._links_of(account):
            token = _token_of(link.identity)
            end = None if token is None else _end_of(token, claims, before, trust)
            if end is not None:
                link.close(*end)

    def _give_default(self, conn: ClientConnection, default: Permissions | None) -> None:
        identity = conn.profile.identity
        if identity is None or identity.token is None or identity.token.has_permissions:
            return
        if identity.permissions != default:
            conn.judge_again(replace(identity, permissions=default))

    def _of(self, account: str) -> list[ClientConnection]:
        """Return the connections of an account, the oldest first."""
        found = (self._open.get(cid) for cid in sorted(self._cids_of(account)))
        return [conn for conn in found if conn is not None]

    def _links_of(self, account: str) -> Sequence[Link]:
        return self.links.links_of(account) if self.links is not None else ()


def _token_of(identity: Identity | None) -> TokenFacts | None:
    return identity.token if identity is not None else None


def _end_of(
    token: TokenFacts, claims: AccountClaims, before: AccountClaims, trust: Trust
) -> End | None:
    """Return why a user of an account may not stay; None: it may."""
    issuer = token.issuer_key
    if token.is_bearer and claims.limits.disallows_bearer:
        return End("Authentication Failure", _VIOLATION)
    if token.token and is_revoked(claims.revocations, token.user_key, token.issued_s):
        return End("Credentials Revoked", _REVOKED)
    was_scope, scope = before.signing_keys.get(issuer), claims.signing_keys.get(issuer)
    if not is_issuer_known(issuer, claims, trust) or scope != was_scope:
        return End("Authentication Failure")
    return None
