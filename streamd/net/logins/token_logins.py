"""Logins by signed tokens, in operator mode.

A login whose account is loaded is judged at once, others when the account's token was looked up.
Accounts that have logins decided by a service (`authorization` of their claims) ask it about all
users but those whom they name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from streamd.errors import TokenError
from streamd.net.client.auth import (
    Approach,
    Authenticator,
    Consultation,
    Identity,
    Refusal,
    TokenFacts,
    Verdict,
)
from streamd.net.logins.callout_requests import CalloutAsk, CalloutRequests
from streamd.net.logins.consultations import Consultations
from streamd.net.logins.local_zone import local_zone
from streamd.net.logins.token_accounts import TokenAccounts
from streamd.protocol.connect_options import ConnectOptions
from streamd.tokens.auth_callout import (
    SUBJECT,
    CalloutPolicy,
    CalloutRefused,
    place_by_claims,
)
from streamd.tokens.claims import AccountClaims, UserClaims
from streamd.tokens.validation import Grant, Login, LoginRefused, admit, read_user

_SUBJECT: Final = SUBJECT.encode()


class TokenLogins:
    """Judge of logins in operator mode (`auth.OutsideLogins`)."""

    needs_nonce = True

    def __init__(
        self,
        accounts: TokenAccounts,
        callouts: CalloutRequests,
        consultations: Consultations,
        now_ns: Callable[[], int],
        default_sentinel: str = "",
    ) -> None:
        self._accounts = accounts
        self._callouts = callouts
        self._consultations = consultations
        self._now_ns = now_ns
        self.default_sentinel = default_sentinel
        self.pinned_fails_count = 0  # logins to accounts that are not among the pinned ones

    def judge(
        self, connect: ConnectOptions, approach: Approach, configured: Authenticator
    ) -> Verdict | Consultation:
        """See `auth.OutsideLogins`."""
        login = Login(
            connect.get("jwt", ""),
            connect.get("sig", ""),
            approach.nonce,
            approach.ip,
            configured.connection_type,
        )
        try:
            user = read_user(
                login,
                self._accounts.trust,
                now_ns=self._now_ns(),
                default_sentinel=self.default_sentinel,
            )
        except LoginRefused as err:
            self.pinned_fails_count += err.is_about_pins
            return refusal_of(err)
        claims = self._accounts.get(user.account)
        if claims is None or _is_asked(user, claims):
            return self._consultations.of(
                lambda: self._decide(user, login, connect, approach, configured)
            )
        return self._admit(user, login, claims, configured)

    async def _decide(
        self,
        user: UserClaims,
        login: Login,
        connect: ConnectOptions,
        approach: Approach,
        configured: Authenticator,
    ) -> Verdict:
        """Judge a login of which others have to be asked."""
        try:
            claims = await self._accounts.load(user.account)
        except TokenError as err:
            return Refusal(f"Account JWT lookup error: {err}")
        verdict = self._admit(user, login, claims, configured)
        if not _is_asked(user, claims) or not isinstance(verdict, Identity):
            return verdict
        token = login.token or self.default_sentinel
        ask = CalloutAsk({**connect, "jwt": token}, approach, configured.connection_type, user)
        return await self._ask(claims, ask, verdict, configured)

    def _admit(
        self, user: UserClaims, login: Login, claims: AccountClaims, configured: Authenticator
    ) -> Verdict:
        zone = local_zone()
        try:
            grant = admit(
                user, login, claims, self._accounts.trust, now_ns=self._now_ns(), zone=zone
            )
        except LoginRefused as err:
            return refusal_of(err)
        token = login.token or self.default_sentinel
        identity = identity_of(grant, user=grant.user_key, token=token)
        if claims.authorization.auth_users:
            identity = identity.without_publish(_SUBJECT)
        return configured.admit(identity)

    async def _ask(
        self,
        claims: AccountClaims,
        ask: CalloutAsk,
        shown: Identity,
        configured: Authenticator,
    ) -> Verdict:
        """Let the service of an account decide on a user who is `shown` by its token."""
        name, settings = claims.registered.subject, claims.authorization
        policy = CalloutPolicy(
            name, name, settings.xkey, frozenset(settings.allowed_accounts), claims
        )
        try:
            answer = await self._callouts.ask(policy, ask)
            placed = await self._placed(answer.account)
            grant = place_by_claims(answer, policy, placed, self._accounts.trust)
        except CalloutRefused as err:
            return Refusal(str(err), level="warning", account=name)
        except LoginRefused as err:
            return refusal_of(err, account=name)
        except TokenError as err:  # the question can't be made, as with a weak curve key
            return Refusal(str(err), level="warning", account=name)
        identity = identity_of(grant, user=grant.name or shown.user)
        if identity.token is not None and shown.token is not None:
            # Its own token is what revocations are about, and what is told of the client.
            own = shown.token
            facts = replace(
                identity.token,
                token=own.token,
                user_key=own.user_key,
                name=own.name,
                tags=own.tags,
                issued_s=own.issued_s,
                is_bearer=own.is_bearer,
            )
            identity = replace(identity, token=facts)
        if identity.account == name:
            identity = identity.without_publish(_SUBJECT)
        return configured.admit(identity)

    async def _placed(self, account: str) -> AccountClaims | None:
        try:
            return await self._accounts.load(account)
        except TokenError:
            return None


def _is_asked(user: UserClaims, claims: AccountClaims) -> bool:
    """Return True if the account's service decides on the user."""
    named = claims.authorization.auth_users
    return bool(named) and user.registered.subject not in named


def refusal_of(err: LoginRefused, account: str = "") -> Refusal:
    return Refusal(str(err), level="error" if err.is_error else "debug", account=account)


def identity_of(grant: Grant, *, user: str, token: str = "") -> Identity:
    """Return who a user is to the server; `token` is what the client showed of its own."""
    facts = TokenFacts(
        token=token,
        user_key=grant.user_key,
        issuer_key=grant.issuer_key,
        name=grant.name,
        tags=grant.tags,
        expires_ns=grant.expires_ns,
        max_payload=grant.max_payload,
        max_subscriptions=grant.max_subscriptions,
        issued_s=grant.issued_s,
        is_bearer=grant.is_bearer,
        has_permissions=grant.has_permissions,
    )
    return Identity(user, grant.account, grant.permissions, token=facts)
