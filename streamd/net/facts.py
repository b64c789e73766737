"""What monitoring may know of connections and subscriptions, as values taken at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from streamd.limits import CLOSED_SUBSCRIPTIONS_MAX

if TYPE_CHECKING:
    from streamd.net.client_conn import ClientConn
    from streamd.net.pubsub import PubSub
    from streamd.net.sublist import Subscription


class ConnectionFacts(NamedTuple):
    """What is shown of one client connection."""

    cid: int
    ip: str
    port: int
    start_ns: int
    last_activity_ns: int
    stop_ns: int  # 0: still open
    reason: str
    rtt_ns: int
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    subscriptions: Callable[[], list[SubscriptionFacts]]  # asked for only if they are shown
    subscription_count: int
    name: str
    lang: str
    version: str
    user: str


class SubscriptionFacts(NamedTuple):
    """What is shown of one subscription; cid 0 is the server itself."""

    subject: str
    queue: str
    sid: str
    msgs: int
    max_msgs: int
    cid: int


class Traffic(NamedTuple):
    """Counters of all client connections since the start."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int
    connections: int
    total_connections: int
    subscriptions: int
    slow_consumers: int
    stale_connections: int
    stalled_clients: int


class SublistFacts(NamedTuple):
    """How the subscription registry works."""

    subscriptions: int
    cache_entries: int
    inserts: int
    removes: int
    max_fanout: int
    avg_fanout: float


def connection_facts(conn: ClientConn) -> ConnectionFacts:
    """Return what is shown of `conn`, which is open."""
    return ConnectionFacts(
        cid=conn.cid,
        ip=conn.ip,
        port=conn.port,
        start_ns=conn.start_ns,
        last_activity_ns=conn.last_activity_ns,
        stop_ns=conn.stop_ns,
        reason=conn.reason,
        rtt_ns=conn.rtt_ns,
        pending_bytes=conn.pending_bytes,
        in_msgs=conn.in_msgs,
        out_msgs=conn.out_msgs,
        in_bytes=conn.in_bytes,
        out_bytes=conn.out_bytes,
        subscriptions=lambda: list(map(_subscription_facts, conn.subs.values())),
        subscription_count=len(conn.subs),
        name=conn.name,
        lang=conn.lang,
        version=conn.version,
        user=conn.user,
    )


def last_facts(conn: ClientConn) -> ConnectionFacts:
    """Return what is shown of `conn` once it is gone: of many subscriptions the first alone."""
    subs = list(map(_subscription_facts, islice(conn.subs.values(), CLOSED_SUBSCRIPTIONS_MAX)))
    return connection_facts(conn)._replace(subscriptions=lambda: subs)


def _subscription_facts(sub: Subscription) -> SubscriptionFacts:
    return SubscriptionFacts(
        subject=sub.pattern.decode(errors="replace"),
        queue=sub.queue.decode(errors="replace"),
        sid=sub.sid.decode(errors="replace"),
        msgs=sub.delivered_count,
        max_msgs=sub.max_msgs,
        cid=0 if sub.callback is not None else sub.conn.cid,
    )


class Sources:
    """Where the facts come from. All may be called at any time."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def open_connections(self) -> list[ConnectionFacts]:
        """All connections there are now."""
        return [connection_facts(conn) for conn in self._pubsub.conns.values()]

    def closed_connections(self) -> list[ConnectionFacts]:
        """The last ones that ended, oldest first."""
        return list(self._pubsub.closed)

    def traffic(self) -> Traffic:
        """Return the counters since the start."""
        return Traffic(
            in_msgs=self._pubsub.in_msgs,
            in_bytes=self._pubsub.in_bytes,
            out_msgs=self._pubsub.out_msgs,
            out_bytes=self._pubsub.out_bytes,
            connections=len(self._pubsub.conns),
            total_connections=self._pubsub.connections_total,
            subscriptions=self._pubsub.sublist.count,
            slow_consumers=self._pubsub.slow_consumers_count,
            stale_connections=self._pubsub.stale_connections_count,
            stalled_clients=self._pubsub.stalled_count,
        )

    def sublist(self) -> SublistFacts:
        """Return how big the registry is."""
        sublist = self._pubsub.sublist
        routes = self._pubsub.table.routes.values()
        fanouts = [len(route.plain) + len(route.queues) for route in routes]
        return SublistFacts(
            subscriptions=sublist.count,
            cache_entries=len(fanouts),
            inserts=sublist.insert_count,
            removes=sublist.remove_count,
            max_fanout=max(fanouts, default=0),
            avg_fanout=sum(fanouts) / len(fanouts) if fanouts else 0.0,
        )

    def subscriptions(self) -> Iterator[SubscriptionFacts]:
        """All subscriptions, those of the server itself included."""
        return (_subscription_facts(sub) for sub in self._pubsub.sublist.all())
