"""What monitoring may know of connections and subscriptions, as values taken at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from streamd.limits import CLOSED_SUBSCRIPTIONS_MAX
from streamd.net.monitoring.sliced_pages import Steps, looked_at
from streamd.types import NodeId

if TYPE_CHECKING:
    from streamd.net.client.connection import ClientConn
    from streamd.net.pubsub.interest import RemoteSub
    from streamd.net.pubsub.message_router import PubSub
    from streamd.net.pubsub.sublist import Subscription


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
    subscriptions: Callable[[], Iterable[SubscriptionFacts]]  # asked for only if they are shown
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
        subscriptions=lambda: map(_subscription_facts, list(conn.subs.values())),
        subscription_count=len(conn.subs),
        name=conn.name,
        lang=conn.lang,
        version=conn.version,
        user=_user_of(conn),
    )


def _user_of(conn: ClientConn) -> str:
    """Return the user that a client is, or says it is where nobody asks; no token is shown."""
    if conn.user:
        return conn.user
    connect = conn.connect or {}
    return "[REDACTED]" if connect.get("auth_token") else str(connect.get("user") or "")


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
    """Where the facts come from. All may be called at any time; what is iterated over is a copy, so
    there may be pauses between."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    def open_connections(self) -> list[ClientConn]:
        """All connections there are now, to be asked for their facts one by one: those of ten
        thousand would make work for the garbage collector."""
        return list(self._pubsub.conns.values())

    def closed_connections(self) -> list[ConnectionFacts]:
        """The last ones that ended, oldest first."""
        return list(self._pubsub.closed)

    def facts(self, connection: ClientConn | ConnectionFacts) -> ConnectionFacts:
        """Return what is shown of a connection of either list."""
        if isinstance(connection, ConnectionFacts):
            return connection
        return connection_facts(connection)

    def traffic(self) -> Steps[Traffic]:
        """Add up the counters since the start."""
        pubsub = self._pubsub
        conns = list(pubsub.conns.values())
        # Taken with the list: who closes meanwhile is counted by its connection, once.
        in_msgs, in_bytes = pubsub.closed_in_msgs, pubsub.closed_in_bytes
        out_msgs, out_bytes = pubsub.closed_out_msgs, pubsub.closed_out_bytes
        for conn in looked_at(conns):
            if conn is None:
                yield
                continue
            in_msgs += conn.in_msgs
            in_bytes += conn.in_bytes
            out_msgs += conn.out_msgs
            out_bytes += conn.out_bytes
        return Traffic(
            in_msgs=in_msgs,
            in_bytes=in_bytes,
            out_msgs=out_msgs,
            out_bytes=out_bytes,
            connections=len(pubsub.conns),
            total_connections=pubsub.connections_total,
            subscriptions=pubsub.sublist.count,
            slow_consumers=pubsub.slow_consumers_count,
            stale_connections=pubsub.stale_connections_count,
            stalled_clients=pubsub.stalled_count,
        )

    def sublist(self) -> Steps[SublistFacts]:
        """Measure the registry and its cache."""
        sublist = self._pubsub.sublist
        routes = list(self._pubsub.table.routes.values())
        total = highest = 0
        for route in looked_at(routes):
            if route is None:
                yield
                continue
            fanout = len(route.plain) + len(route.queues)
            total += fanout
            highest = max(highest, fanout)
        return SublistFacts(
            subscriptions=sublist.count,
            cache_entries=len(routes),
            inserts=sublist.insert_count,
            removes=sublist.remove_count,
            max_fanout=highest,
            avg_fanout=total / len(routes) if routes else 0.0,
        )

    def subscriptions(self) -> Iterator[SubscriptionFacts]:
        """All subscriptions: those of the server itself, then connection by connection."""
        yield from map(_subscription_facts, list(self._pubsub.internal_subs))
        for conn in list(self._pubsub.conns.values()):
            yield from map(_subscription_facts, list(conn.subs.values()))

    def remote_subscriptions(self, node_id: NodeId) -> list[RemoteSub]:
        """What clients of another node want."""
        remotes = self._pubsub.remotes
        return [] if remotes is None else remotes.subscriptions(node_id)
