"""Stats that monitoring shows: of connections, subscriptions and routes, as values of one moment.

The rooms that serve clients and routes fill these in, or are read through the Protocols here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from streamd.api.remote_client import ClientFacts
from streamd.limits import CLOSED_SUBSCRIPTIONS_MAX
from streamd.net.pubsub.sublist import Subscription
from streamd.net.tls.facts import TlsFacts
from streamd.protocol.connect_options import ConnectOptions
from streamd.types import ACCOUNT


class LoginStats(NamedTuple):
    """Token by which a client logged in."""

    jwt: str = ""  # "": none
    issuer_key: str = ""
    tags: tuple[str, ...] = ()


class Connection(ClientFacts, Protocol):
    """A client connection, as monitoring reads it."""

    @property
    def port(self) -> int: ...
    @property
    def is_websocket(self) -> bool: ...
    @property
    def last_activity_ns(self) -> int: ...
    @property
    def stop_ns(self) -> int:
        """0: still open."""

    @property
    def reason(self) -> str:
        """Reason of its end."""

    @property
    def pending_bytes(self) -> int: ...
    @property
    def in_msgs(self) -> int: ...
    @property
    def out_msgs(self) -> int: ...
    @property
    def in_bytes(self) -> int: ...
    @property
    def out_bytes(self) -> int: ...
    @property
    def subs(self) -> Mapping[bytes, Subscription]: ...
    @property
    def account(self) -> str:
        """Account of its user; that of clients without one, before it is known."""

    @property
    def tls(self) -> TlsFacts | None:
        """None: it speaks in clear."""

    @property
    def connect(self) -> ConnectOptions | None:
        """Options of its CONNECT; None: there was none yet."""

    @property
    def login(self) -> LoginStats:
        """Token of its user."""


class Clients(Protocol):
    """The client connections of a server, and totals of those that are gone."""

    @property
    def open(self) -> Mapping[int, Connection]: ...
    @property
    def closed(self) -> Iterable[ConnectionStats]: ...
    @property
    def closed_in_msgs(self) -> int: ...
    @property
    def closed_in_bytes(self) -> int: ...
    @property
    def closed_out_msgs(self) -> int: ...
    @property
    def closed_out_bytes(self) -> int: ...
    @property
    def slow_consumers_count(self) -> int: ...
    @property
    def stale_connections_count(self) -> int: ...
    @property
    def connections_total(self) -> int: ...


class Routes(Protocol):
    """The links to other servers of the cluster, and the cluster's own settings."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def auth_timeout_s(self) -> float: ...
    @property
    def configured_urls(self) -> list[str]:
        """Configured routes as `host:port`."""

    @property
    def failed_count(self) -> int:
        """Messages of other servers that could not be handled."""

    def routes(self) -> Sequence[RouteStats]:
        """Stats of the links that are up, oldest first."""

    def client_urls(self) -> list[str]:
        """Addresses that clients can connect to, this server's first."""


class ConnectionStats(NamedTuple):
    """State and counters of one client connection."""

    cid: int
    ip: str
    port: int
    is_websocket: bool
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
    subscriptions: Callable[[], Iterable[SubscriptionStats]]  # asked for only if they are shown
    subscription_count: int
    name: str
    lang: str
    version: str
    user: str
    tls: TlsFacts | None = None  # None: it speaks in clear
    account: str = ACCOUNT
    login: LoginStats = LoginStats()


class SubscriptionStats(NamedTuple):
    """State of one subscription; cid 0 is the server itself."""

    subject: str
    queue: str
    sid: str
    msgs: int
    max_msgs: int
    cid: int


@dataclass(slots=True)
class RouteStats:
    """State and counters of one link to another server, which is up."""

    rid: int
    remote_id: str
    remote_name: str
    did_solicit: bool
    is_configured: bool
    ip: str
    port: int
    start_ns: int
    last_activity_ns: int
    rtt_ns: int
    pending_bytes: int
    in_msgs: int  # frames, beats left out
    out_msgs: int
    in_bytes: int
    out_bytes: int


@dataclass(slots=True)
class LeafRow:
    """State and counters of one leaf link, which is up."""

    lid: int
    name: str
    is_spoke: bool
    is_isolated: bool
    account: str
    ip: str
    port: int
    rtt_ns: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    is_websocket: bool
    compression: str
    subjects: list[str]


class LeafTable(Protocol):
    """The leaf links of this server, as monitoring reads them."""

    @property
    def port(self) -> int:
        """Port of the listener; 0: there is none."""

    def rows(self) -> list[LeafRow]:
        """The links that are up."""


class Traffic(NamedTuple):
    """Counters of all client connections since the start, or of those of one account."""

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


class SublistStats(NamedTuple):
    """Size of the subscription registry and its cache."""

    subscriptions: int
    cache_entries: int
    inserts: int
    removes: int
    max_fanout: int
    avg_fanout: float


def connection_stats(conn: Connection) -> ConnectionStats:
    """Return what is shown of `conn`, which is open."""
    return ConnectionStats(
        cid=conn.cid,
        ip=conn.ip,
        port=conn.port,
        is_websocket=conn.is_websocket,
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
        subscriptions=lambda: map(subscription_stats, list(conn.subs.values())),
        subscription_count=len(conn.subs),
        name=conn.name,
        lang=conn.lang,
        version=conn.version,
        user=_user_of(conn),
        tls=conn.tls,
        account=conn.account,
        login=conn.login,
    )


def _user_of(conn: Connection) -> str:
    """Return the user that a client is, or says it is where nobody asks; no token is shown."""
    if conn.user:
        return conn.user
    connect = conn.connect or {}
    return "[REDACTED]" if connect.get("auth_token") else str(connect.get("user") or "")


def last_stats(conn: Connection) -> ConnectionStats:
    """Return what is shown of `conn` once it is gone: of many subscriptions the first alone, and no
    certificates."""
    tls = conn.tls._replace(certificates=()) if conn.tls is not None else None
    subs = list(map(subscription_stats, islice(conn.subs.values(), CLOSED_SUBSCRIPTIONS_MAX)))
    return connection_stats(conn)._replace(subscriptions=lambda: subs, tls=tls)


def subscription_stats(sub: Subscription) -> SubscriptionStats:
    """Return what is shown of a subscription."""
    return SubscriptionStats(
        subject=sub.pattern.decode(errors="replace"),
        queue=sub.queue.decode(errors="replace"),
        sid=sub.sid.decode(errors="replace"),
        msgs=sub.delivered_count,
        max_msgs=sub.max_msgs,
        cid=0 if sub.callback is not None else sub.conn.cid,
    )
