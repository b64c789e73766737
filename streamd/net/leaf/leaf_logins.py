"""Logins of leaf nodes: which account, with which permissions, a CONNECT is for.

If the block `leafnodes` names logins these alone count; otherwise those of clients do.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final, cast

from streamd.config.leaf_options import LeafOptions
from streamd.errors import TokenError
from streamd.net.client.auth import (
    Approach,
    Check,
    ClientPolicy,
    Consultation,
    Identity,
    Verdict,
)
from streamd.protocol.connect_options import ConnectOptions
from streamd.types import ACCOUNT

LEAFNODE: Final = "LEAFNODE"
LEAFNODE_WS: Final = "LEAFNODE_WS"
"""Connection types, as users' `allowed_connection_types` names them."""


class LeafLogins:
    """Judges the CONNECT of a leaf node."""

    def __init__(self, options: LeafOptions, policy: ClientPolicy) -> None:
        """`policy` is that of clients, for one type of connections."""
        self._options = options
        self._policy = policy
        self._names_logins = bool(options.users or options.username or options.nkey)

    def account_of(self, identity: Identity) -> str:
        """Return the account that a link with this login is for: for clients' logins, the block's
        if it names one."""
        if self._names_logins:
            return identity.account
        return self._options.account or identity.account

    def judge(
        self, connect: Mapping[str, Any], approach: Approach
    ) -> Verdict | Check | Consultation:
        """Return the verdict, or what still has to be done: a `Check` to run, or a `Consultation`
        to begin."""
        options, nonce = self._options, approach.nonce
        if not self._names_logins:
            return self._policy.auth.judge(cast(ConnectOptions, connect), approach)
        name, password = _text(connect, "user"), _text(connect, "pass")
        if options.nkey and _text(connect, "nkey") == options.nkey:
            is_good = _is_signed(options.nkey, nonce, _text(connect, "sig"))
            return Identity(options.nkey, options.account or ACCOUNT) if is_good else None
        logins = [(user.name, user.password, user.account) for user in options.users]
        if options.username:
            logins.append((options.username, options.password, options.account))
        for user, wanted, account in logins:
            if user == name:
                identity = Identity(user, account or options.account or ACCOUNT)
                if wanted.startswith("$2"):
                    return Check(self._policy.auth, identity, password, wanted)
                is_good = hmac.compare_digest(wanted.encode(), password.encode())
                return identity if is_good else None
        return None


def _is_signed(public: str, nonce: str, signature: str) -> bool:
    from streamd.tokens import nkeys  # OpenSSL costs a tenth of a second, which others save

    try:
        return nkeys.verify(public, nonce.encode(), nkeys.decode_signature(signature))
    except TokenError:
        return False


def _text(connect: Mapping[str, Any], key: str) -> str:
    value = connect.get(key)
    return value if isinstance(value, str) else ""
