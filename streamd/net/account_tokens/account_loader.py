"""Accounts whose tokens are in use: loaded when a login or an import names them, and kept current.

Each token is verified, turned into the options of an account, and told to `on_options`. An account
whose imports lack an exporter is turned again once that is loaded; so are the importers of an
account whose token changes, for exports, revocations and signing keys decide on their imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from streamd.callbacks import ignore
from streamd.config.account_options import AccountOptions
from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.limits import ACCOUNTS_LOADED_WITH_ONE_MAX
from streamd.net.account_tokens.resolvers import Resolver
from streamd.tokens.account_claims import account_options
from streamd.tokens.claims import AccountClaims
from streamd.tokens.validation import Trust, verify_account

OnOptions = Callable[[AccountOptions, tuple[str, ...]], None]


class AccountLoader:
    """Claims of the accounts that this server uses."""

    def __init__(
        self,
        resolver: Resolver,
        trust: Trust,
        now_ns: Callable[[], int],
        on_options: OnOptions,
        on_gone: Callable[[str], None],
    ) -> None:
        """`on_options(options, problems)` takes an account that is new, or changed; `problems` are
        the imports that it cannot have, for the log. `on_gone` takes one whose token was deleted.
        """
        self._resolver = resolver
        self._trust = trust
        self._now_ns = now_ns
        self._on_options = on_options
        self._on_gone = on_gone
        self.on_settled: Callable[[], None] = ignore  # after each change, with all that follows
        self._wake = asyncio.Event()
        self._incomplete: set[str] = set()  # updated accounts whose exporters may not be loaded
        self._claims: dict[str, AccountClaims] = {}
        self._tokens: dict[str, str] = {}
        self._loading: dict[str, asyncio.Future[AccountClaims]] = {}

    def get(self, account: str) -> AccountClaims | None:
        """Return the claims of an account that is loaded."""
        return self._claims.get(account)

    def names(self) -> list[str]:
        return sorted(self._claims)

    async def load(self, account: str) -> AccountClaims:
        """Return the claims of an account, fetched if need be, as are those that it imports of.

        Raises TokenError if there is none that may be used.
        """
        claims = self._claims.get(account)
        if claims is None:
            claims = await self._load_once(account)
            await self._load_exporters(claims)
            self.on_settled()
        return claims

    async def refresh(self, account: str) -> None:
        """Fetch the token of an account anew: that which is loaded is over."""
        with suppress(TokenError):
            token = await self._resolver.fetch(account)
            if token is not None and token != self._tokens.get(account):
                self.update(account, token)

    async def run(self) -> None:
        """Load the accounts that updated ones import of; until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._incomplete:
                claims = self._claims.get(self._incomplete.pop())
                if claims is not None:
                    await self._load_exporters(claims)
                    self.on_settled()

    def update(self, account: str, token: str) -> bool:
        """Use a new token of an account that is loaded; return False if it is not.

        Raises TokenError if the token may not be used: the older one holds.
        """
        if account not in self._claims:
            return False
        claims = self._take(account, token)
        if any(exporter not in self._claims for exporter in _exporters(claims)):
            self._incomplete.add(account)
            self._wake.set()
        self.on_settled()
        return True

    def forget(self, account: str) -> None:
        """Know nothing of an account any more: its token was deleted."""
        if self._claims.pop(account, None) is not None:
            del self._tokens[account]
            self._on_gone(account)
            self._convert_importers(account)
            self.on_settled()

    async def _load_once(self, account: str) -> AccountClaims:
        """Return the claims of an account; two who ask at once have it fetched once."""
        waiting = self._loading.get(account)
        if waiting is not None:
            return await asyncio.shield(waiting)
        future: asyncio.Future[AccountClaims] = asyncio.get_running_loop().create_future()
        self._loading[account] = future
        try:
            token = await self._resolver.fetch(account)
            if token is None:
                raise TokenError("account missing")
            claims = self._take(account, token)
            future.set_result(claims)
            return claims
        except TokenError as err:
            future.set_exception(err)
            raise
        finally:
            del self._loading[account]
            if not future.done():
                future.set_exception(TokenError("the look-up was given up"))
            future.exception()  # seen, should nobody else wait

    async def _load_exporters(self, claims: AccountClaims) -> None:
        """Load the accounts that an account imports of, and theirs; those that fail are left."""
        wanted = _exporters(claims)
        seen = {claims.registered.subject}
        while wanted and len(seen) < ACCOUNTS_LOADED_WITH_ONE_MAX:
            account = wanted.pop(0)
            if account in seen or account in self._claims:
                continue
            seen.add(account)
            try:
                wanted += _exporters(await self._load_once(account))
            except TokenError:
                continue  # its importers say so: that is one of their problems

    def _take(self, account: str, token: str) -> AccountClaims:
        claims = verify_account(token, self._trust, now_ns=self._now_ns())
        if claims.registered.subject != account:
            raise TokenError("subject does not match jwt content")
        self._claims[account] = claims
        self._tokens[account] = token
        self._convert(claims)
        self._convert_importers(account)
        return claims

    def _convert_importers(self, account: str) -> None:
        for other in list(self._claims.values()):
            if other.registered.subject != account and account in _exporters(other):
                self._convert(other)

    def _convert(self, claims: AccountClaims) -> None:
        token = self._tokens[claims.registered.subject]
        now_s = self._now_ns() // SECOND_NS
        found = account_options(claims, token, self._claims.get, self._trust, now_s=now_s)
        self._on_options(found.options, found.problems)


def _exporters(claims: AccountClaims) -> list[str]:
    """Return the accounts that an account imports of."""
    return list(dict.fromkeys(item.account for item in claims.imports if item is not None))
