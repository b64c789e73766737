"""Accounts of signed tokens, as the server has them: made, changed and ended with their tokens.

`AccountLoader` turns tokens into options; here these become accounts of the server, linked with
those they import of, and connections that a change concerns are judged by it. Links are made once
for all accounts that change together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from streamd.config.account_options import AccountOptions
from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.limits import ACCOUNTS_AGAIN_S, ACCOUNTS_AWAITED_MAX
from streamd.net.account_tokens.account_loader import AccountLoader
from streamd.net.account_tokens.resolvers import Resolver
from streamd.net.client.login_expiry import CallLater, LoginExpiry
from streamd.net.logins.live_logins import LiveLogins
from streamd.obs.server_log import Log
from streamd.tokens.claims import AccountClaims
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.tokens.validation import Trust, is_expired

_LOOKUP_FAILED: Final = "Account JWT lookup error"


class Accounts(Protocol):
    """The accounts of the server, to which those of tokens are added."""

    on_unknown: Callable[[str], None]
    settle: Callable[[str, Callable[[], None]], None]

    def put(self, options: AccountOptions) -> None: ...

    def remove(self, name: str) -> None: ...


class TokenAccounts:
    """Accounts whose tokens are in use on this server."""

    def __init__(
        self,
        resolver: Resolver,
        trust: Trust,
        accounts: Accounts,
        live: LiveLogins,
        log: Log,
        *,
        link: Callable[[Iterable[str]], None],
        now_ns: Callable[[], int],
        call_later: CallLater,
    ) -> None:
        """`link` makes the imports and mappings of accounts that changed."""
        self.trust = trust
        self.loader = AccountLoader(resolver, trust, now_ns, self._on_options, self._on_gone)
        self.loader.on_settled = self._carry_out
        self._accounts = accounts
        self._live = live
        self._log = log
        self._link = link
        self._now_ns = now_ns
        self._call_later = call_later
        self._changed: dict[str, AccountClaims | None] = {}  # not linked yet; claims before, if any
        self._known: dict[str, AccountClaims] = {}  # as of the last change that was carried out
        self._told: dict[str, tuple[str, ...]] = {}  # imports that cannot be, as logged last
        self._dropped: set[str] = set()  # by a reload, which judges connections itself
        self._expiries: dict[str, LoginExpiry] = {}
        self._wanted: dict[str, list[Callable[[], None]]] = {}  # by account that is being loaded
        self._has_wanted = asyncio.Event()
        self._queue: list[str] = []
        self._failed: set[str] = set()  # looked up in vain; tried again in a while
        accounts.on_unknown = self.want
        accounts.settle = self.when_settled

    async def load(self, account: str) -> AccountClaims:
        """Return the claims of an account, which is one of the server's then. Raises TokenError."""
        claims = self.loader.get(account)
        if claims is None:
            return await self.loader.load(account)
        if self._is_over(claims):  # there may be a newer one
            await self.loader.refresh(account)
        return self.loader.get(account) or claims

    def get(self, account: str) -> AccountClaims | None:
        """Return the claims of an account that is loaded, and whose token is not over."""
        claims = self.loader.get(account)
        return None if claims is None or self._is_over(claims) else claims

    def _is_over(self, claims: AccountClaims) -> bool:
        return is_expired(claims, self._now_ns() // SECOND_NS)

    def when_settled(self, account: str, action: Callable[[], None]) -> None:
        """Call `action` when the account is loaded, or cannot be: now, if that is known."""
        if self.loader.get(account) is not None or not is_valid_public(KeyKind.ACCOUNT, account):
            action()
        else:
            self._want(account, action)

    async def run(self) -> None:
        """Load accounts that other nodes name; until cancelled."""
        while True:
            await self._has_wanted.wait()
            self._has_wanted.clear()
            while self._queue:
                account = self._queue.pop(0)
                try:
                    await self.load(account)
                except TokenError as err:
                    self._log.debug(f"{_LOOKUP_FAILED}: {err}", account=account)
                    self._try_later(account)
                for action in self._wanted.pop(account, ()):
                    action()

    def _try_later(self, account: str) -> None:
        """Load an account that other nodes know when they may be asked again."""
        if len(self._failed) < ACCOUNTS_AWAITED_MAX:
            if not self._failed:
                self._call_later(ACCOUNTS_AGAIN_S, self._try_again)
            self._failed.add(account)

    def _try_again(self) -> None:
        failed, self._failed = sorted(self._failed), set()
        for account in failed:
            self.want(account)

    def want(self, account: str) -> None:
        """Load an account when others had their turn."""
        if self.loader.get(account) is None and is_valid_public(KeyKind.ACCOUNT, account):
            self._want(account, None)

    def drop(self, account: str) -> None:
        """Forget an account that the configuration has no more: its clients are judged anew."""
        self._dropped.add(account)
        self.loader.forget(account)

    def close(self) -> None:
        """Await the end of no token any more."""
        for expiry in self._expiries.values():
            expiry.close()
        self._expiries.clear()

    def _want(self, account: str, action: Callable[[], None] | None) -> None:
        waiting = self._wanted.get(account)
        if waiting is None:
            if len(self._wanted) >= ACCOUNTS_AWAITED_MAX:
                if action is not None:
                    action()
                return
            waiting = self._wanted[account] = []
            self._queue.append(account)
            self._has_wanted.set()
        if action is not None:
            waiting.append(action)

    # --- changes ----------------------------------------------------------------------------------

    def _on_options(self, options: AccountOptions, problems: tuple[str, ...]) -> None:
        name = options.name
        if self._told.get(name, ()) != problems:
            self._told[name] = problems
            for problem in problems:
                self._log.debug(f"{name}: {problem}")
        self._accounts.put(options)
        self._note(name)
        self._await_end(options)

    def _on_gone(self, name: str) -> None:
        self._told.pop(name, None)
        self._accounts.remove(name)
        self._note(name)
        expiry = self._expiries.pop(name, None)
        if expiry is not None:
            expiry.close()

    def _note(self, name: str) -> None:
        self._changed.setdefault(name, self._known.get(name))

    def _carry_out(self) -> None:
        """Link accounts that changed, and judge their connections by the change."""
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        self._link(changed)
        for name, before in changed.items():
            claims = self.loader.get(name)
            if claims is None:
                self._known.pop(name, None)
                if name not in self._dropped:
                    self._live.expire(name)
                else:
                    self._dropped.discard(name)
                    self._live.refuse_links(name)
                continue
            self._known[name] = claims
            if before is not None:
                self._live.change(claims, before, self.trust)

    def _await_end(self, options: AccountOptions) -> None:
        expiry = self._expiries.get(options.name)
        if expiry is None:
            if not options.expires_ns:
                return
            later = self._call_later
            on_end = partial(self._live.expire, options.name)
            expiry = self._expiries[options.name] = LoginExpiry(later, on_end, self._now_ns)
        expiry.start(options.expires_ns)
