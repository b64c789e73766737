"""The system account of a server: all that it answers and publishes there, put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from streamd.config.options import Options
from streamd.net.client.open_connections import OpenConnections
from streamd.net.monitoring.account_views import AccountView
from streamd.net.monitoring.connz import label_of
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Slicer
from streamd.net.system.account_events import AccountEvents, Timer
from streamd.net.system.account_requests import AccountRequests, OwnRequests
from streamd.net.system.answers import Answers
from streamd.net.system.connection_events import ConnectionEvents
from streamd.net.system.event_outbox import EventOutbox
from streamd.net.system.server_description import ServerDescription
from streamd.net.system.server_events import ServerEvents
from streamd.net.system.server_requests import ServerControls, ServerRequests
from streamd.net.system.subscriber_counts import SubscriberCounts
from streamd.net.system.user_info import UserInfo


class Loop(Protocol):
    """The event loop, as far as it is needed here."""

    def call_soon(self, action: Callable[[], None], /) -> object: ...

    def call_later(self, delay: float, action: Callable[[], None], /) -> Timer: ...


class SystemAccount:
    """Serves the system account's subjects, and what other accounts may ask about themselves."""

    def __init__(
        self,
        stats: ServerStats,
        monitoring: Monitoring,
        description: ServerDescription,
        slicer: Slicer,
        loop: Loop,
        controls: ServerControls,
    ) -> None:
        accounts = stats.accounts
        router = accounts.system.router
        self._monitoring = monitoring
        self._description = description
        self._slicer = slicer
        self._label_of = partial(label_of, accounts)
        self.answers = Answers(router.publish, description, slicer)
        outbox = EventOutbox(router, description, loop.call_soon)
        self.connection_events = ConnectionEvents(outbox, accounts, description.server_id)
        self.account_events = AccountEvents(outbox, accounts, stats, slicer, loop.call_later)
        self.server_events = ServerEvents(outbox, monitoring, description, slicer, loop.call_later)
        subscriptions = router.subscriptions
        ServerRequests(subscriptions, monitoring, self.answers, self.server_events, controls)
        AccountRequests(subscriptions, monitoring, self.answers, self._send_connections)
        SubscriberCounts(
            router,
            accounts,
            description,
            slicer,
            has_clients=lambda account: bool(stats.clients_of(account).open),
            call_later=loop.call_later,
        )
        UserInfo(self.answers, self._label_of).serve_imports(subscriptions)

    def _send_connections(self, account: str, reply: bytes) -> None:
        self.account_events.send(account, lambda event: self.answers.send_bare(reply, event))

    def serve_account(self, account: AccountView) -> None:
        """Answer what the clients of an account ask about themselves, in its subject space."""
        router = account.router
        answers = Answers(router.publish, self._description, self._slicer)
        UserInfo(answers, self._label_of).serve_account(router.subscriptions)
        if account.name != self.system_name:
            OwnRequests(router.subscriptions, account.name, self._monitoring, answers)

    @property
    def system_name(self) -> str:
        """Name of the system account."""
        return self._monitoring.system_name

    def observe(self, connections: OpenConnections) -> None:
        """Publish what becomes of the connections of clients; those who count them come first."""
        # As nats-server does: the account's count, then the connection itself.
        connections.observe(self.account_events)
        connections.observe(self.connection_events)

    def start(self) -> None:
        """Publish statistics from here on: the server is ready."""
        self.server_events.start()

    def reloaded(self, options: Options) -> None:
        """Describe a configuration that was read again."""
        self._description.change(options)

    def lame_duck(self) -> None:
        """Tell that clients are sent away."""
        self.server_events.lame_duck()

    def shutdown(self) -> None:
        """Tell that the server ends."""
        self.account_events.stop()
        self.server_events.shutdown()
