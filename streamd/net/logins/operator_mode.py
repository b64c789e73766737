"""Operator mode: accounts and users are those of tokens that operators sign. All its parts.

Resolver            where tokens come from             `net/account_tokens/resolvers.py`
TokenAccounts       accounts whose tokens are in use   `token_accounts.py`
ClaimsRequests      requests about tokens              `net/account_tokens/claims_requests.py`
TokenLogins         logins                             `token_logins.py`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from streamd import NATS_LEVEL
from streamd.config.operator_options import OperatorOptions, ResolverKind, ResolverOptions
from streamd.config.options import Options
from streamd.durations import SECOND_NS
from streamd.errors import ConfigError, TokenError, describe
from streamd.net.account_tokens.claims_requests import (
    Answers,
    ClaimsPolicy,
    ClaimsRequests,
    LookUps,
)
from streamd.net.account_tokens.resolvers import MemoryResolver, Resolver, make_resolver
from streamd.net.logins.callout_requests import CalloutRequests
from streamd.net.logins.consultations import Consultations
from streamd.net.logins.live_logins import LiveLogins
from streamd.net.logins.token_accounts import Accounts, TokenAccounts
from streamd.net.logins.token_logins import TokenLogins
from streamd.net.pubsub.message_router import MessageRouter
from streamd.obs.server_log import Log
from streamd.tokens.nkeys import KeyKind, is_valid_public
from streamd.tokens.operators import read_operators

if TYPE_CHECKING:
    from ssl import SSLContext

_PLACES: Final = {ResolverKind.FULL: "all", ResolverKind.CACHE: "some"}


class CreateTask(Protocol):
    """`TaskGroup.create_task` of the server."""

    def __call__(self, work: Coroutine[Any, Any, None], /, *, name: str) -> asyncio.Task[None]: ...


class ServerParts(NamedTuple):
    """Parts of the server that operator mode works with."""

    accounts: Accounts
    system: MessageRouter  # subject space of the system account
    answers: Answers
    live: LiveLogins
    callouts: CalloutRequests
    consultations: Consultations
    log: Log
    link: Callable[[Iterable[str]], None]


class OperatorMode:
    """Operators that this server trusts, and all that follows from that."""

    def __init__(self, options: Options, parts: ServerParts, server_id: str) -> None:
        """Raises ConfigError."""
        operators = options.operators
        self._parts = parts
        self.live = parts.live
        self._system_account = options.system_account
        self._tasks: list[asyncio.Task[None]] = []
        try:
            trust = read_operators(
                operators.tokens,
                operators.trusted_keys,
                server_version=NATS_LEVEL,
                system_account=options.system_account,
                pinned_accounts=operators.pinned_accounts,
                default_sentinel=operators.default_sentinel,
            ).trust
        except TokenError as err:
            raise ConfigError(str(err)) from err
        settings = operators.resolver or ResolverOptions(ResolverKind.MEMORY)
        timeout_s = settings.timeout_ns / SECOND_NS
        look_ups = LookUps(
            parts.system.subscriptions, parts.system.publish, server_id, timeout_s=timeout_s
        )
        self._settings = settings
        self._resolver: Resolver = make_resolver(
            settings, operators.preload, look_ups, time.time_ns, _tls_of(operators)
        )
        self.accounts = TokenAccounts(
            self._resolver,
            trust,
            parts.accounts,
            parts.live,
            parts.log,
            link=parts.link,
            now_ns=time.time_ns,
            call_later=asyncio.get_running_loop().call_later,
        )
        self._requests = ClaimsRequests(
            parts.system.subscriptions,
            parts.system.publish,
            parts.answers,
            self._resolver,
            self.accounts.loader,
            ClaimsPolicy(trust, options.system_account, settings.interval_ns / SECOND_NS),
            time.time_ns,
            server_id,
        )
        self.logins = TokenLogins(
            self.accounts,
            parts.callouts,
            parts.consultations,
            time.time_ns,
            operators.default_sentinel,
        )

    async def start(self, create_task: CreateTask, *, needed: Iterable[str]) -> None:
        """Open the resolver, and load the system account and, if they are there, others that are
        needed from the beginning. Raises ConfigError."""
        try:
            await self._resolver.start()
        except (TokenError, OSError) as err:
            raise ConfigError(describe(err)) from err
        directory = self._settings.directory
        if directory:
            which = _PLACES[self._settings.kind]
            self._parts.log.info(f"Managing {which} jwt in exclusive directory {directory}")
        self._tasks = [
            create_task(self.accounts.run(), name="token-accounts"),
            create_task(self.accounts.loader.run(), name="token-exporters"),
            create_task(self._requests.run(), name="token-requests"),
        ]
        if is_valid_public(KeyKind.ACCOUNT, self._system_account):
            try:
                await self.accounts.load(self._system_account)
            except TokenError as err:
                raise ConfigError(f"error resolving system account: {err}") from err
        for account in needed:
            try:
                await self.accounts.load(account)
            except TokenError:
                self.accounts.want(account)  # it may come

    def reload(self, options: Options) -> None:
        """Use another preload, sentinel and pinned accounts from here on. Accounts whose tokens are
        not there any more end, those whose tokens are others change."""
        operators = options.operators
        self.logins.default_sentinel = operators.default_sentinel
        pinned = operators.pinned_accounts
        self.accounts.trust = replace(
            self.accounts.trust,
            pinned_accounts=pinned | {options.system_account} if pinned else None,
        )
        if not isinstance(self._resolver, MemoryResolver):
            return
        self._resolver.replace(operators.preload)
        loader, log = self.accounts.loader, self._parts.log
        for account in loader.names():
            token = operators.preload.get(account)
            if token is None:
                log.info(f'Reloaded: deleting account [removed]: "{account}"')
                self.accounts.drop(account)
                continue
            try:
                loader.update(account, token)
            except TokenError:
                log.info(f'Reloaded: deleting account [bad claims]: "{account}"')
                self.accounts.drop(account)

    async def close(self) -> None:
        """End the tasks, and the resolver."""
        for task in self._tasks:
            task.cancel()
        self.accounts.close()
        await self._resolver.close()


def _tls_of(operators: OperatorOptions) -> SSLContext | None:
    if operators.resolver_tls is None:
        return None
    from streamd.net.tls.ssl_contexts import client_context  # OpenSSL costs a tenth of a second

    return client_context(operators.resolver_tls)
