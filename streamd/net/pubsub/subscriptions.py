"""Subscriptions of one subject space: of clients, of the server itself, and interest of other
nodes; and watches, whose owners hear when interest in a subject appears or ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from streamd.net.pubsub.interest import RemoteInterest, sees_acks
from streamd.net.pubsub.leaf_routes import LeafInterest, LeafPeer
from streamd.net.pubsub.remote_routes import OtherNodes
from streamd.net.pubsub.subject_routes import RouteTable
from streamd.net.pubsub.sublist import Callback, Sublist, Subscription


class SubscriptionObserver(Protocol):
    """Follows the subscriptions of a subject space's clients."""

    def subscribed(self, sub: Subscription) -> None:
        """Note a subscription that was added."""

    def unsubscribed(self, sub: Subscription) -> None:
        """Note a subscription that was taken out."""


class Watch:
    """Request to hear when interest in a subject (of a queue group, if named) appears or ends."""

    __slots__ = ("has_interest", "on_change", "queue", "subject")

    def __init__(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> None:
        self.subject = subject
        self.queue = queue
        self.on_change = on_change
        self.has_interest = False


class Subscriptions:
    """Registry of subscriptions and interest, with the table of routes that follows from it."""

    def __init__(self) -> None:
        self.sublist: Sublist[Subscription] = Sublist()
        self.remote_interest = RemoteInterest()
        self.leaf_interest = LeafInterest()
        self.table = RouteTable(
            self.sublist, self.remote_interest.sublist, self.leaf_interest.sublist
        )
        self.watcher: SubscriptionObserver | None = None  # None: there are no leaf links
        self.remotes: OtherNodes | None = None  # None: no other nodes
        self.observers: tuple[SubscriptionObserver, ...] = ()
        self.internal: list[Subscription] = []  # of the server itself; they stay
        # Subscriptions of clients that could see acks; while 0, acks need no routing.
        self.ack_watcher_count = 0
        self._remote_ack_watcher_count = 0  # those of them at other nodes
        self._watches: dict[bytes, list[Watch]] = {}

    # --- subscriptions ----------------------------------------------------------------------------

    def subscribe(self, sub: Subscription) -> None:
        """Add a client's subscription, or one that is followed as such."""
        if sub.is_own:
            self.internal.append(sub)
        self.add(sub)
        for observer in self.observers:
            observer.subscribed(sub)

    def add(self, sub: Subscription) -> None:
        """Add a subscription that nobody but other nodes follows, such as that of an import."""
        self.sublist.insert(sub)
        self.table.on_interest_changed(sub.pattern)
        if sees_acks(sub.pattern):
            self.ack_watcher_count += 1
        if self.remotes is not None:
            self.remotes.subscribed(sub)
        if self.watcher is not None:
            self.watcher.subscribed(sub)
        if self._watches:
            self._tell_watches(sub.pattern)

    def unsubscribe(self, sub: Subscription) -> None:
        """Take a subscription out; it gets no message from here on."""
        sub.is_open = False
        self.sublist.remove(sub)
        self.table.on_interest_changed(sub.pattern)
        if sees_acks(sub.pattern):
            self.ack_watcher_count -= 1
        if sub.is_told and self.remotes is not None:
            self.remotes.unsubscribed(sub)
        if sub.is_followed and self.watcher is not None:
            self.watcher.unsubscribed(sub)
        if sub.callback is not None:
            self.internal.remove(sub)
        if self._watches:
            self._tell_watches(sub.pattern)
        if sub.is_followed and sub.parent is None:
            for observer in self.observers:
                observer.unsubscribed(sub)

    def subscribe_internal(
        self, pattern: bytes, callback: Callback, *, is_told: bool = False
    ) -> Subscription:
        """Subscribe the server itself: `callback(subject, reply, headers, payload, conn)` is called
        for each message of this node's clients; with `is_told` of all nodes' clients, and `conn`
        is then None for those of others."""
        sub = Subscription(pattern, callback=callback)
        sub.is_told = is_told
        self.internal.append(sub)
        self.sublist.insert(sub)
        self.table.on_interest_changed(pattern)
        if sees_acks(pattern):
            self.ack_watcher_count += 1
        if is_told and self.remotes is not None:
            self.remotes.subscribed(sub)
        return sub

    def has_interest(self, subject: bytes) -> bool:
        """True if anybody, a stream included, would receive a message on `subject`."""
        route = self.table.find(subject)
        return bool(route.plain or route.queues or route.streams or route.remote or route.leafs)

    def set_leaf_interest(self, peer: LeafPeer, pattern: bytes, queue: bytes, weight: int) -> int:
        """Note interest told by a leaf link (weight 0: it ends); returns its weight until now.

        Interest of links that others dialed is this node's, as other nodes see it.
        """
        before = self.leaf_interest.set(peer, pattern, queue, weight)
        if (before > 0) != (weight > 0):
            self.table.on_interest_changed(pattern)
            if _sees_all_acks(pattern):
                self.ack_watcher_count += 1 if weight else -1
            if self._watches:
                self._tell_watches(pattern)
        if self.remotes is not None and not peer.is_spoke:
            sub = Subscription(pattern, queue)
            for _ in range(weight - before):
                self.remotes.subscribed(sub)
            for _ in range(before - weight):
                self.remotes.unsubscribed(sub)
        return before

    # --- watches ----------------------------------------------------------------------------------

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        """See ports.Wires."""
        token = Watch(subject, queue, on_change)
        self._watches.setdefault(subject, []).append(token)
        token.has_interest = self._is_listened_to(subject, queue)
        on_change(token.has_interest)
        return token

    def unwatch(self, token: object) -> None:
        """End a watch; `token` is what `watch` returned."""
        assert isinstance(token, Watch)
        watches = self._watches.get(token.subject, [])
        if token in watches:
            watches.remove(token)
            if not watches:
                del self._watches[token.subject]

    def on_remote_interest(self, patterns: list[bytes] | None) -> None:
        """Follow a change of other nodes' interest: in `patterns`, or (None) in anything."""
        watcher_count = self.remote_interest.ack_watcher_count
        self.ack_watcher_count += watcher_count - self._remote_ack_watcher_count
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
        sublists = (self.sublist, self.remote_interest.sublist, self.leaf_interest.sublist)
        return any(sublist.has_literal(subject, queue) for sublist in sublists)


def _sees_all_acks(pattern: bytes) -> bool:
    """True if a leaf link wants acks, other than those of streams that are there: of one name here
    and there, acks of each go to its own."""
    return sees_acks(pattern) and not pattern.startswith((b"$JS.ACK.", b"$JS.FC."))
