"""`Accounts`: all subject spaces of a server, by the name of their account.

A message stays in the space in which it was published; what crosses to another was exported and
imported. The server's output, and its turns of the loop, are shared by all spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from streamd.callbacks import ignore
from streamd.config.account_options import AccountJetStream, AccountLimits, AccountOptions
from streamd.net.accounts.account import Account
from streamd.net.accounts.connection_counts import ConnectionCounts
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.message_tracing import MessageTracing
from streamd.net.pubsub.output_queue import OutputQueue
from streamd.types import ACCOUNT, SYSTEM_ACCOUNT, StorageLimit

OnAccount = Callable[[Account], None]


class Accounts:
    """The accounts of one server. Any name has a subject space as soon as it is asked for: another
    node may know the account already, or still."""

    def __init__(
        self,
        options: Mapping[str, AccountOptions],
        system_account: str = SYSTEM_ACCOUNT,
        *,
        domain: str = "",
    ) -> None:
        """`domain`: JetStream's, which acks name."""
        self.output_queue = OutputQueue()
        self.tracing = MessageTracing()
        self.system_account = system_account
        self._domain = domain
        self._on_made: list[OnAccount] = []
        self._by_name: dict[str, Account] = {}
        self._known: dict[str, Account] = {}  # those of them that are known here
        self.counts = ConnectionCounts(lambda: list(self._by_name.values()))
        self._of_tokens: set[str] = set()  # the configuration says nothing of these
        self.on_unknown: Callable[[str], None] = ignore  # a name that nobody asked for before
        self.settle: Callable[[str, Callable[[], None]], None] = _at_once  # see `when_settled`
        for each in options.values():
            self._make(each, is_known=True)
        self.main = self.obtain(ACCOUNT)
        self.system = self.obtain(system_account)

    def names(self) -> list[str]:
        """Return the names of all accounts that are known here, sorted."""
        return sorted(self._known)

    def get(self, name: str) -> Account | None:
        """Return the account called `name`; None: it is not known here."""
        return self._known.get(name)

    def obtain(self, name: str) -> Account:
        """Return the account called `name`, known here or not."""
        account = self._by_name.get(name)
        if account is None:
            is_known = name in (ACCOUNT, SYSTEM_ACCOUNT)
            account = self._make(AccountOptions(name), is_known=is_known)
            if not is_known:
                self.on_unknown(name)
        return account

    def all(self) -> list[Account]:
        """Return all accounts that have a subject space."""
        return list(self._by_name.values())

    def on_made(self, join: OnAccount) -> None:
        """Call `join` for each account: those that exist, now, and each that is made later."""
        self._on_made.append(join)
        for account in self.all():
            join(account)

    def change(self, options: Mapping[str, AccountOptions]) -> None:
        """Use these accounts of the configuration from here on; others that were known are not any
        more, but for those of tokens."""
        for name, each in options.items():
            if name not in self._of_tokens:
                self._use(each)
        kept = {ACCOUNT, self.system_account} | self._of_tokens | options.keys()
        for name, account in self._by_name.items():
            if name not in kept:
                self._forget(account)

    def put(self, options: AccountOptions) -> None:
        """Use an account of a signed token, which is new or has changed, from here on."""
        self._of_tokens.add(options.name)
        self._use(options)

    def hold(self, name: str) -> None:
        """Hold an account to its limits, which are others now: the newest clients end."""
        self.counts.hold(self.obtain(name))

    def remove(self, name: str) -> None:
        """Take back an account of a token: its subject space stays, and nobody gets in any more."""
        self._of_tokens.discard(name)
        account = self._by_name.get(name)
        if account is not None:
            self._forget(account)

    def _forget(self, account: Account) -> None:
        account.change(AccountOptions(account.name), is_known=False)
        self._known.pop(account.name, None)

    def _use(self, options: AccountOptions) -> None:
        account = self._by_name.get(options.name)
        if account is None:
            self._make(options, is_known=True)
        else:
            account.change(options)
            self._known[account.name] = account

    def _make(self, options: AccountOptions, *, is_known: bool) -> Account:
        router = MessageRouter(
            account=options.name,
            domain=self._domain,
            output_queue=self.output_queue,
            tracing=self.tracing,
        )
        account = Account(options, router, is_known=is_known)
        self._by_name[account.name] = account
        if is_known:
            self._known[account.name] = account
        for join in self._on_made:
            join(account)
        return account

    def known(self) -> Mapping[str, Account]:
        """Return the accounts that are known here, by name; as they are at any time."""
        return MappingProxyType(self._known)

    def resume_deliveries(self) -> None:
        """Resume deliveries that wait for room, in any subject space."""
        for account in self.all():
            account.router.on_drained()

    # --- for connections --------------------------------------------------------------------------

    def router(self, name: str) -> MessageRouter:
        """Return the subject space of an account, known here or not."""
        return self.obtain(name).router

    def enter(self, cid: int, name: str) -> bool:
        """Count a connection among the clients of an account; False: there are too many, here and
        at other nodes."""
        account = self.obtain(name)
        if not self.counts.has_room(account):
            return False
        account.cids.add(cid)
        self.counts.changed(account)
        return True

    def limits(self, name: str) -> AccountLimits:
        """Return the limits of an account's clients."""
        return self.obtain(name).options.limits

    def leave(self, cid: int, name: str) -> None:
        """Take a connection out of the clients of an account: it ends, or changes accounts."""
        account = self.obtain(name)
        account.cids.discard(cid)
        self.counts.changed(account)

    # --- for the node and the API -----------------------------------------------------------------

    def wires(self, account: str) -> MessageRouter:
        """See api.router.ApiAccounts, also for the next three."""
        return self.obtain(account).router

    def jetstream(self, account: str) -> AccountJetStream | None:
        return self.obtain(account).options.jetstream

    def storage_limit(self, account: str, is_file: bool, replicas: int) -> StorageLimit | None:
        """Return what an account's streams with so many replicas may store; None: any number of
        bytes, or it has no JetStream, or no tier for them, any more."""
        jetstream = self.jetstream(account)
        if jetstream is None:
            return None
        tiers = jetstream.tiers
        limits = tiers.get(f"R{replicas}") if tiers else jetstream.limits
        if limits is None:
            return None
        most = limits.max_storage if is_file else limits.max_memory
        return StorageLimit(most, bool(tiers)) if most >= 0 else None

    def when_settled(self, account: str, action: Callable[[], None]) -> None:
        self.settle(account, action)

    def with_jetstream(self) -> list[str]:
        return [name for name in self.names() if self._by_name[name].options.jetstream is not None]


def _at_once(account: str, action: Callable[[], None]) -> None:
    action()
