"""Options of operators: whose signatures on account tokens count, and where such tokens are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from streamd import NATS_LEVEL
from streamd.config.tls_options import TlsOptions
from streamd.durations import SECOND_NS
from streamd.errors import ConfigError, TokenError
from streamd.tokens.claims import OperatorClaims, decode_user
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.tokens.operators import read_operators


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
    claims: tuple[OperatorClaims, ...] = ()  # of these tokens, in their order
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

    @property
    def system_account(self) -> str:
        """System account that the only operator names; "": none does."""
        return self.claims[0].system_account if len(self.claims) == 1 else ""

    def with_resolver(self) -> OperatorOptions:
        """Return these options with the resolver that the only operator names, if the
        configuration names none."""
        if self.resolver is not None or len(self.claims) != 1:
            return self
        url = f"{self.claims[0].account_server_url}/accounts/"
        return replace(self, resolver=ResolverOptions(ResolverKind.URL, url=url))

    def check(
        self,
        *,
        accounts: Collection[str],
        system_account: str,
        has_users: bool,
        has_callout: bool,
        no_auth_user: str,
    ) -> None:
        """Check what only makes sense with the other options; `accounts` are those that are
        configured directly, `system_account` is "" if none is named. Raises ConfigError."""
        if self.tokens:
            self._check_direct(accounts, has_users=has_users, has_callout=has_callout)
            self._check_claims(system_account)
            if no_auth_user:
                raise ConfigError("no_auth_user not compatible with Trusted Operator")
            for key in sorted(self.pinned_accounts):
                if not is_valid_public(KeyKind.ACCOUNT, key):
                    raise ConfigError(
                        f'pinned account key "{key}" is not a valid public account nkey'
                    )
        self._check_sentinel()
        if self.resolver is not None:
            self._check_resolver(self.resolver, system_account)

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

    def _check_claims(self, system_account: str) -> None:
        named = {claims.system_account for claims in self.claims} - {""}
        if system_account and named and system_account not in named:
            raise ConfigError("system_account in config and operator JWT must be identical")
        try:
            read_operators(self.tokens, server_version=NATS_LEVEL)
        except TokenError as err:
            raise ConfigError(str(err)) from err

    def _check_sentinel(self) -> None:
        if not self.default_sentinel:
            return
        if not self.tokens:
            raise ConfigError("default sentinel requires operators and accounts")
        try:
            user = decode_user(self.default_sentinel)
        except TokenError:
            raise ConfigError("default sentinel JWT not valid") from None
        if not user.rights.is_bearer:
            raise ConfigError("default sentinel must be a bearer token")

    def _check_resolver(self, resolver: ResolverOptions, system_account: str) -> None:
        if resolver.directory and self.tokens and not system_account:
            raise ConfigError(
                "using nats based account resolver - the system account needs to be specified in"
                " configuration or the operator jwt"
            )
        if self.preload and resolver.kind is ResolverKind.URL:
            raise ConfigError(
                "resolver preloads only available for writeable resolver types MEM/DIR/CACHE_DIR"
            )
        if resolver.kind is ResolverKind.URL:
            scheme, separator, _ = resolver.url.partition("://")
            if not separator or scheme.lower() not in ("http", "https"):
                raise ConfigError(
                    f'could not fetch <"{resolver.url}">: Get "{resolver.url}": unsupported'
                    f' protocol scheme "{scheme if separator else ""}"'
                )
        if self.has_trusted_keys and system_account:
            if not is_valid_public(KeyKind.ACCOUNT, system_account):
                raise ConfigError(
                    "error resolving system account: will only fetch valid account keys"
                )
            if resolver.kind is ResolverKind.MEMORY and system_account not in self.preload:
                raise ConfigError("error resolving system account: account missing")
        if resolver.directory and not self.has_trusted_keys:
            raise ConfigError("Could not start resolver: no operator key found")
