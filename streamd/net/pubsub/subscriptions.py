"""Who listens to what on one server: clients, the server itself, other nodes; and who wants to hear
of changes. Connections and their totals are counted here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamd.config.options import Options
from streamd.net.monitoring.stats import ConnectionFacts, last_facts
from streamd.net.pubsub.interest import RemoteInterest, sees_acks
from streamd.net.pubsub.subject_routes import RouteTable
from streamd.net.pubsub.sublist import Callback, Sublist, Subscription
from streamd.net.route.remote_messages import Remotes

if TYPE_CHECKING:
    from streamd.net.client.connection import ClientConn


class Watch:
    """Somebody who wants to know when interest in a subject appears or ends."""

    __slots__ = ("has_interest", "on_change", "queue", "subject")

    def __init__(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> None:
        self.subject = subject
        self.queue = queue
        self.on_change = on_change
        self.has_interest = False


class Subscriptions:
    """The part of `PubSub` that knows who wants which messages."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sublist = Sublist()
        self._remote_interest = RemoteInterest()
        self.table = RouteTable(self.sublist, self._remote_interest.sublist)
        self.remotes: Remotes | None = None  # None: no other nodes
        self.conns: dict[int, ClientConn] = {}  # by cid; registered by the listener
        self.internal_subs: list[Subscription] = []  # of the server itself; they stay
        self.closed: deque[ConnectionFacts] = deque(maxlen=max(0, options.max_closed_clients))
        # Totals of connections that are gone; the living are added when somebody asks.
        self.closed_in_msgs = self.closed_in_bytes = 0
        self.closed_out_msgs = self.closed_out_bytes = 0
        self.slow_consumers_count = 0
        self.stale_connections_count = 0
        self.stalled_count = 0
        self.connections_total = 0
        self._watches: dict[bytes, list[Watch]] = {}
        # Subscriptions of clients that could see acks; while 0, acks need no routing.
        self._ack_watcher_count = 0
        self._remote_ack_watcher_count = 0  # those of them at other nodes

    # --- connections ------------------------------------------------------------------------------

    def conn_closing(self, conn: ClientConn) -> None:
        """A connection ends: its counters join the totals, its facts the ring of closed ones."""
        if self.conns.pop(conn.cid, None) is None:
            return
        self.closed_in_msgs += conn.in_msgs
        self.closed_in_bytes += conn.in_bytes
        self.closed_out_msgs += conn.out_msgs
        self.closed_out_bytes += conn.out_bytes
        self.closed.append(last_facts(conn))

    # --- subscriptions ----------------------------------------------------------------------------

    def subscribe(self, sub: Subscription) -> None:
        """Add a client's subscription."""
        self.sublist.insert(sub)
        self.table.on_interest_changed(sub.pattern)
        if sees_acks(sub.pattern):
            self._ack_watcher_count += 1
        if self.remotes is not None:
            self.remotes.subscribed(sub)
        if self._watches:
            self._tell_watches(sub.pattern)

    def unsubscribe(self, sub: Subscription) -> None:
        """Take a subscription out; it gets no message from here on."""
        sub.is_open = False
        self.sublist.remove(sub)
        self.table.on_interest_changed(sub.pattern)
        if sub.callback is None:
            if sees_acks(sub.pattern):
                self._ack_watcher_count -= 1
            if self.remotes is not None:
                self.remotes.unsubscribed(sub)
        else:
            self.internal_subs.remove(sub)
        if self._watches:
            self._tell_watches(sub.pattern)

    def subscribe_internal(
        self, pattern: bytes, callback: Callback, *, is_told: bool = False
    ) -> Subscription:
        """Have `callback(subject, reply, headers, payload, conn)` called for each message of this
        node's clients; with `is_told` of all nodes', and `conn` is None for others'."""
        sub = Subscription(pattern, callback=callback)
        sub.is_told = is_told
        self.internal_subs.append(sub)
        self.sublist.insert(sub)
        self.table.on_interest_changed(pattern)
        if is_told and self.remotes is not None:
            self.remotes.subscribed(sub)
        return sub

    def has_interest(self, subject: bytes) -> bool:
        route = self.table.find(subject)
        return bool(route.plain or route.queues or route.streams or route.remote)

    # --- who wants to hear of interest ------------------------------------------------------------

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        token = Watch(subject, queue, on_change)
        self._watches.setdefault(subject, []).append(token)
        token.has_interest = self._is_listened_to(subject, queue)
        on_change(token.has_interest)
        return token

    def unwatch(self, token: object) -> None:
        assert isinstance(token, Watch)
        watches = self._watches.get(token.subject, [])
        if token in watches:
            watches.remove(token)
            if not watches:
                del self._watches[token.subject]

    def on_remote_interest(self, patterns: list[bytes] | None) -> None:
        """What other nodes want of `patterns` changed (None: of anything)."""
        watcher_count = self._remote_interest.ack_watcher_count
        self._ack_watcher_count += watcher_count - self._remote_ack_watcher_count
        self._remote_ack_watcher_count = watcher_count
        if patterns is None:
            self.table.clear()
            for subject in list(self._watches):
                self._tell_watches(subject)
        for pattern in patterns or ():
            self.table.on_interest_changed(pattern)
            if self._watches:
                self._tell_watches(pattern)

    def _tell_watches(self, pattern: bytes) -> None:
        for watch in list(self._watches.get(pattern, ())):
            has_interest = self._is_listened_to(watch.subject, watch.queue)
            if has_interest != watch.has_interest:
                watch.has_interest = has_interest
                watch.on_change(has_interest)

    def _is_listened_to(self, subject: bytes, queue: bytes) -> bool:
        elsewhere = self._remote_interest.sublist
        return self.sublist.has_literal(subject, queue) or elsewhere.has_literal(subject, queue)
