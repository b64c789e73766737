"""Judge of logins of which the configuration alone does not decide: made, reloaded and closed with
the server. Its rooms are imported where it has something to decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from streamd.config.account_options import AccountOptions
from streamd.config.options import Options
from streamd.config.values import quoted
from streamd.net.accounts.account_spaces import Accounts
from streamd.net.client.client_registry import ClientConnection
from streamd.net.logins.server_keys import ServerKeys
from streamd.net.system.answers import Answers
from streamd.net.system.server_description import ServerDescription
from streamd.obs.server_log import Log
from streamd.types import ACCOUNT

if TYPE_CHECKING:
    from streamd.net.client.auth import OutsideLogins
    from streamd.net.leaf.leaf_nodes import LeafNodes
    from streamd.net.logins.callout_requests import CalloutRequests
    from streamd.net.logins.consultations import Consultations
    from streamd.net.logins.operator_mode import CreateTask, OperatorMode


class LoginSurroundings(NamedTuple):
    """Parts of the server that logins work with."""

    description: ServerDescription
    answers: Answers  # in the system account
    log: Log
    link: Callable[[Iterable[str]], None]  # makes imports of accounts that changed anew
    create_task: CreateTask


class OutsideJudge:
    """Operator mode, auth callout or neither, and the keys of this server."""

    def __init__(self, options: Options) -> None:
        self._is_needed = options.operators.has_trusted_keys or options.callout is not None
        self.keys = ServerKeys(signs=self._is_needed)
        self.operators: OperatorMode | None = None
        self.judge: OutsideLogins | None = None  # None: the configuration decides
        self._options = options

    async def start(
        self,
        options: Options,
        accounts: Accounts,
        connections: Mapping[int, ClientConnection],
        around: LoginSurroundings,
    ) -> None:
        """Make what decides. Raises ConfigError."""
        if not self._is_needed:
            return
        from streamd.net.logins.callout_requests import CalloutRequests
        from streamd.net.logins.consultations import Consultations

        callouts = CalloutRequests(
            self.keys, accounts.router, around.description.for_services, lambda: self._options
        )
        consultations = Consultations(around.create_task)
        if options.operators.has_trusted_keys:
            await self._start_operators(
                options, accounts, connections, around, callouts, consultations
            )
        else:
            self._start_callouts(options, accounts, callouts, consultations)
            _report_missing(options, accounts, around.log)

    def _start_callouts(
        self,
        options: Options,
        accounts: Accounts,
        callouts: CalloutRequests,
        consultations: Consultations,
    ) -> None:
        from streamd.net.logins.callout_logins import CalloutLogins

        def options_of(name: str) -> AccountOptions | None:
            account = accounts.get(name)
            return account.options if account is not None else None

        assert options.callout is not None
        self.judge = CalloutLogins(options.callout, callouts, consultations, options_of)

    async def _start_operators(
        self,
        options: Options,
        accounts: Accounts,
        connections: Mapping[int, ClientConnection],
        around: LoginSurroundings,
        callouts: CalloutRequests,
        consultations: Consultations,
    ) -> None:
        from streamd.net.logins.live_logins import LiveLogins
        from streamd.net.logins.operator_mode import OperatorMode, ServerParts

        parts = ServerParts(
            accounts,
            accounts.system.router,
            around.answers,
            LiveLogins(connections, lambda name: accounts.obtain(name).cids, accounts.hold),
            callouts,
            consultations,
            around.log,
            around.link,
        )
        needed = {remote.account for remote in options.leaf.remotes} - {ACCOUNT}
        self.operators = mode = OperatorMode(options, parts, self.keys.server_id)
        self.judge = mode.logins
        await mode.start(around.create_task, needed=sorted(needed))

    def pinned_fails(self) -> int:
        """Return how many logins were to accounts that are not among the pinned ones."""
        return self.operators.logins.pinned_fails_count if self.operators is not None else 0

    def attach_leafs(self, nodes: LeafNodes) -> None:
        """Let changes of accounts end leaf links, too."""
        if self.operators is not None:
            self.operators.live.links = nodes

    def reload(self, options: Options) -> None:
        """Use a configuration that was read again."""
        self._options = options
        if self.operators is not None:
            self.operators.reload(options)

    async def close(self) -> None:
        """End the tasks of operator mode."""
        if self.operators is not None:
            await self.operators.close()


def _report_missing(options: Options, accounts: Accounts, log: Log) -> None:
    """Log what an `auth_callout` block names and the configuration does not have: the service can't
    log in then, and so nobody can."""
    callout = options.callout
    assert callout is not None
    if accounts.get(callout.account) is None:
        log.error(f"Authorization callout account {quoted(callout.account)} not valid")
    known = {user.identity for user in options.users}
    for name in callout.users:
        if name not in known:
            log.error(f"Authorization callout user {quoted(name)} not valid")
