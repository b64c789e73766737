"""Options of operators: whose signatures on account tokens count, and where such tokens are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from streamd.config.tls_options import TlsOptions
from streamd.durations import SECOND_NS
from streamd.errors import ConfigError
from streamd.tokens.nkeys import KeyKind, is_valid_public


class ResolverKind(Enum):
    """Place in which account tokens are looked up."""

    MEMORY = "memory"  # preloaded ones and those that were sent
    URL = "url"  # a web server
    FULL = "full"  # a directory with the tokens of all accounts
    CACHE = "cache"  # a directory with some; others are asked for the rest


class DeletedTokens(Enum):
    """Fate of the file of an account token that an operator deletes."""

    REFUSED = "refused"  # nothing is deleted
    RENAMED = "renamed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ResolverOptions:
    """A `resolver`. Times are ns."""

    kind: ResolverKind
    url: str = ""
    directory: str = ""
    deleted: DeletedTokens = DeletedTokens.REFUSED
    limit: int = 0  # tokens; 0: any number of a full directory, 1000 of a cache
    interval_ns: int = 60 * SECOND_NS  # between comparisons of full directories
    ttl_ns: int = 0  # of a token in a cache; 0: for ever
    timeout_ns: int = 1_900_000_000  # of a look-up


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Operators that a server trusts, and what goes with them."""

    tokens: tuple[str, ...] = ()  # operators' JWTs, without decoration
    trusted_keys: tuple[str, ...] = ()  # public operator keys; never beside `tokens`
    resolver: ResolverOptions | None = None
    resolver_tls: TlsOptions | None = None
    preload: Mapping[str, str] = field(default_factory=dict)  # account key: JWT
    pinned_accounts: frozenset[str] = frozenset()  # only they, if any, and the system account
    default_sentinel: str = ""  # JWT of clients that show none

    @property
    def has_trusted_keys(self) -> bool:
        """True if accounts and users are those of signed tokens."""
        return bool(self.tokens or self.trusted_keys)

    def check(
        self,
        *,
        accounts: Collection[str],
        has_users: bool,
        has_callout: bool,
        no_auth_user: str,
    ) -> None:
        """Check what only makes sense with the other options; `accounts` are those that are
        configured directly. Raises ConfigError."""
        if self.tokens:
            self._check_direct(accounts, has_users=has_users, has_callout=has_callout)
            if no_auth_user:
                raise ConfigError("no_auth_user not compatible with Trusted Operator")
            for key in sorted(self.pinned_accounts):
                if not is_valid_public(KeyKind.ACCOUNT, key):
                    raise ConfigError(
                        f'pinned account key "{key}" is not a valid public account nkey'
                    )
        if self.default_sentinel and not self.tokens:
            raise ConfigError("default sentinel requires operators and accounts")
        if self.resolver is None:
            return
        if self.preload and self.resolver.kind is ResolverKind.URL:
            raise ConfigError(
                "resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR"
            )
        if self.resolver.directory and not self.has_trusted_keys:
            raise ConfigError("Could not start resolver: no operator key found")

    def _check_direct(
        self, accounts: Collection[str], *, has_users: bool, has_callout: bool
    ) -> None:
        if self.resolver is None:
            raise ConfigError("operators require an account resolver to be configured")
        if accounts:
            raise ConfigError("operators do not allow Accounts to be configured directly")
        if has_users:
            raise ConfigError("operators do not allow users to be configured directly")
        if has_callout:
            raise ConfigError(
                "operators do not allow authorization callouts to be configured directly"
            )
        if self.trusted_keys:
            raise ConfigError("conflicting options for 'TrustedKeys' and 'TrustedOperators'")
