"""Events that count the connections of an account.

    $SYS.ACCOUNT.<account>.SERVER.CONNS     when a connection came or went, and every 30 s while
    $SYS.SERVER.ACCOUNT.<account>.CONNS     there are some; the second is the older name of the same

`$G` has none. The same document answers `$SYS.REQ.ACCOUNT.<account>.CONNS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streamd.limits import CONNECTIONS_EVENT_S, CONNECTIONS_REST_S, MONITORING_PAGE
from streamd.net.client.client_registry import ClientConnection
from streamd.net.monitoring.account_documents import account_counters
from streamd.net.monitoring.account_views import AccountsView, AccountView
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Document, Slicer, Steps
from streamd.net.system.event_outbox import EventOutbox
from streamd.types import ACCOUNT


class Timer(Protocol):
    """Timer that `call_later` returns."""

    def cancel(self) -> None: ...


class AccountEvents:
    """Observer of client connections that tells how many an account has. It is told after the
    account's clients were counted."""

    def __init__(
        self,
        outbox: EventOutbox,
        accounts: AccountsView,
        stats: ServerStats,
        slicer: Slicer,
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._outbox = outbox
        self._accounts = accounts
        self._stats = stats
        self._slicer = slicer
        self._call_later = call_later
        self._account_of: dict[int, str] = {}  # by cid, as it was told
        self._timers: dict[str, Timer] = {}
        # Accounts whose event is being built, or rests after that: True, if it changed meanwhile.
        self._building: dict[str, bool] = {}

    def admitted(self, conn: ClientConnection) -> None:
        """Nothing is told before a client has logged in."""

    def identified(self, conn: ClientConnection) -> None:
        before = self._account_of.get(conn.cid)
        self._account_of[conn.cid] = conn.account
        if before is not None and before != conn.account:
            self._changed(before)
        self._changed(conn.account)

    def refused(self, conn: ClientConnection) -> None:
        """Nothing changes: the end follows."""

    def closed(self, conn: ClientConnection) -> None:
        account = self._account_of.pop(conn.cid, None)
        if account is not None:
            self._changed(account)

    def links_changed(self, account: str) -> None:
        """Tell of an account whose leaf links are others now."""
        self._changed(account)

    def _connection_count(self, account: str) -> int:
        return len(self._stats.clients_of(account).open) + len(self._stats.leafs_of(account))

    def stop(self) -> None:
        """Tell no more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def send(self, name: str, publish: Callable[[Document], None]) -> None:
        """Build the event of an account that has connections, and pass it on."""
        account = self._accounts.get(name)
        if account is None or not self._connection_count(name):
            return
        self._slicer.start(self._event(account), publish, _raise)

    def _changed(self, name: str) -> None:
        account = self._accounts.get(name)
        if account is None or name == ACCOUNT:
            return
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if self._connection_count(name):
            self._timers[name] = self._call_later(CONNECTIONS_EVENT_S, lambda: self._changed(name))
        self._tell(account)

    def _tell(self, account: AccountView) -> None:
        """Publish the event; one that is being built stands for all changes until it is."""
        name = account.name
        if name in self._building:
            self._building[name] = True
            return
        subjects = [f"$SYS.SERVER.ACCOUNT.{name}.CONNS", f"$SYS.ACCOUNT.{name}.SERVER.CONNS"]
        wanted = [subject for subject in subjects if self._outbox.has_interest(subject)]
        if not wanted:
            return
        self._building[name] = False

        def put(event: Document) -> None:
            for subject in wanted:
                self._outbox.put(subject, event)
            count = len(self._stats.clients_of(name).open)
            rest_s = min(1.0, count * CONNECTIONS_REST_S) if count >= MONITORING_PAGE else 0.0
            self._call_later(rest_s, rested)

        def rested() -> None:
            if self._building.pop(name, False):
                self._tell(account)

        def failed(err: Exception) -> None:
            self._building.pop(name, None)
            raise err

        self._slicer.start(self._event(account), put, failed)

    def _event(self, account: AccountView) -> Steps[Document]:
        head = self._outbox.head("account_connections")
        return {**head, **(yield from account_counters(account, self._stats))}


def _raise(err: Exception) -> None:
    raise err
