"""Logins that a service decides upon, without operators: `auth_callout` of the configuration.

The service is asked about everybody but its own users, and but users of accounts that the block
leaves out. An answer names the account of the configuration to which the user comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from streamd.config.account_options import AccountOptions
from streamd.config.callout_options import CalloutOptions
from streamd.errors import TokenError
from streamd.net.client.auth import (
    Approach,
    Authenticator,
    Check,
    Consultation,
    Identity,
    Refusal,
    Verdict,
    named_in,
)
from streamd.net.logins.callout_requests import CalloutAsk, CalloutRequests
from streamd.net.logins.consultations import Consultations
from streamd.net.logins.token_logins import identity_of, refusal_of
from streamd.protocol.connect_options import ConnectOptions
from streamd.tokens.auth_callout import (
    SUBJECT,
    CalloutPolicy,
    CalloutRefused,
    place_in_account,
)
from streamd.tokens.validation import LoginRefused
from streamd.types import ACCOUNT

_SUBJECT: Final = SUBJECT.encode()
_LEAF_TYPES: Final = ("LEAFNODE", "LEAFNODE_WS")


class CalloutLogins:
    """Judge of logins with `auth_callout` (`auth.OutsideLogins`)."""

    needs_nonce = False

    def __init__(
        self,
        options: CalloutOptions,
        callouts: CalloutRequests,
        consultations: Consultations,
        options_of: Callable[[str], AccountOptions | None],
    ) -> None:
        """`options_of` returns the options of an account of the configuration."""
        self._options = options
        self._policy = CalloutPolicy(options.account, options.issuer, options.xkey)
        self._callouts = callouts
        self._consultations = consultations
        self._options_of = options_of

    def judge(
        self, connect: ConnectOptions, approach: Approach, configured: Authenticator
    ) -> Verdict | Consultation | Check:
        """See `auth.OutsideLogins`."""
        verdict = configured.judge_configured(connect, approach)
        identity = verdict.identity if isinstance(verdict, Check) else verdict
        is_leaf = configured.connection_type in _LEAF_TYPES
        if isinstance(identity, Identity) and not is_leaf and not self._is_asked_of(identity):
            return verdict
        named = named_in(connect) or (identity.user if isinstance(identity, Identity) else "")
        if named not in self._options.users:
            return self._consultations.of(lambda: self._ask(connect, approach, configured))
        if isinstance(identity, Identity) and identity.account == self._options.account:
            quiet = identity.without_publish(_SUBJECT)
            return verdict.of(quiet) if isinstance(verdict, Check) else quiet
        return verdict

    def _is_asked_of(self, identity: Identity) -> bool:
        """Return True if the service decides on users of this account, who are configured."""
        allowed = self._options.allowed_accounts
        return not allowed or identity.account == ACCOUNT or identity.account in allowed

    async def _ask(
        self, connect: ConnectOptions, approach: Approach, configured: Authenticator
    ) -> Verdict:
        own = self._options.account
        ask = CalloutAsk(connect, approach, configured.connection_type)
        try:
            answer = await self._callouts.ask(self._policy, ask)
            placed = self._options_of(answer.account)
            grant = place_in_account(answer, self._policy, is_known=placed is not None)
        except CalloutRefused as err:
            return Refusal(str(err), level="warning", account=own)
        except LoginRefused as err:
            return refusal_of(err, account=own)
        except TokenError as err:  # the question can't be made, as with a weak curve key
            return Refusal(str(err), level="warning", account=own)
        assert placed is not None
        if grant.permissions is None:
            grant = replace(grant, permissions=placed.default_permissions)
        user = grant.name or named_in(connect)
        identity = identity_of(replace(grant, name="", tags=()), user=user)
        if identity.account == own:
            identity = identity.without_publish(_SUBJECT)
        return configured.admit(identity)
