"""What monitoring may know of connections and subscriptions, as values taken at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from streamd.subjects import matches

if TYPE_CHECKING:
    from streamd.net.client_conn import ClientConn
    from streamd.net.pubsub import PubSub
    from streamd.net.sublist import Subscription

__all__ = [
    "ConnectionFacts",
    "Sources",
    "SublistFacts",
    "SubscriptionFacts",
    "Traffic",
    "closed_connections",
    "connection_facts",
    "matches",
    "open_connections",
    "sublist_facts",
    "subscriptions",
    "traffic",
]


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
    subscriptions: tuple[SubscriptionFacts, ...]
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
    matches: int
    cache_hits: int
    max_fanout: int
    avg_fanout: float


class Sources(NamedTuple):
    """Where the facts come from. All may be called at any time."""

    traffic: Callable[[], Traffic]
    open_connections: Callable[[], Iterable[ConnectionFacts]]
    closed_connections: Callable[[], Iterable[ConnectionFacts]]
    sublist: Callable[[], SublistFacts]
    subscriptions: Callable[[], Iterable[SubscriptionFacts]]
    matches: Callable[[bytes, bytes], bool]


def connection_facts(conn: ClientConn) -> ConnectionFacts:
    """Return what is shown of `conn`, which may be about to close."""
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
        subscriptions=tuple(_subscription_facts(sub) for sub in conn.subs.values()),
        subscription_count=len(conn.subs),
        name=conn.name,
        lang=conn.lang,
        version=conn.version,
        user=conn.user,
    )


def open_connections(pubsub: PubSub) -> list[ConnectionFacts]:
    """All connections there are now."""
    return [connection_facts(conn) for conn in pubsub.conns.values()]


def closed_connections(pubsub: PubSub) -> list[ConnectionFacts]:
    """The last ones that ended, oldest first."""
    return list(pubsub.closed)


def traffic(pubsub: PubSub) -> Traffic:
    """Return the counters since the start."""
    return Traffic(
        in_msgs=pubsub.in_msgs,
        in_bytes=pubsub.in_bytes,
        out_msgs=pubsub.out_msgs,
        out_bytes=pubsub.out_bytes,
        connections=len(pubsub.conns),
        total_connections=pubsub.connections_total,
        subscriptions=pubsub.sublist.count,
        slow_consumers=pubsub.slow_consumers_count,
        stale_connections=pubsub.stale_connections_count,
        stalled_clients=pubsub.stalled_count,
    )


def sublist_facts(pubsub: PubSub) -> SublistFacts:
    """Return how big the registry is. Lookups are not counted: they are the hot path."""
    sublist = pubsub.sublist
    routes = pubsub.table.routes.values()
    fanouts = [len(route.plain) + len(route.queues) for route in routes]
    return SublistFacts(
        subscriptions=sublist.count,
        cache_entries=len(fanouts),
        inserts=sublist.insert_count,
        removes=sublist.remove_count,
        matches=0,
        cache_hits=0,
        max_fanout=max(fanouts, default=0),
        avg_fanout=sum(fanouts) / len(fanouts) if fanouts else 0.0,
    )


def subscriptions(pubsub: PubSub) -> Iterator[SubscriptionFacts]:
    """All subscriptions, those of the server itself included."""
    return (_subscription_facts(sub) for sub in pubsub.sublist.all())


def _subscription_facts(sub: Subscription) -> SubscriptionFacts:
    return SubscriptionFacts(
        subject=sub.pattern.decode(errors="replace"),
        queue=sub.queue.decode(errors="replace"),
        sid=sub.sid.decode(errors="replace"),
        msgs=sub.delivered_count,
        max_msgs=sub.max_msgs,
        cid=0 if sub.callback is not None else sub.conn.cid,
    )
