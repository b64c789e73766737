"""What the monitoring port answers, as plain dicts: /varz, /connz, /subsz, /jsz, /healthz ...

Reads the parts of the server and changes none. Field names, order, query parameters and error
texts are nats-server's, because dashboards and exporters parse them; `http.py` does the transport.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from streamd import NATS_LEVEL, __version__
from streamd.api.times import format_ns
from streamd.config.durations import format_duration
from streamd.config.options import Options
from streamd.net.jetstreamz import (
    ACCOUNT,
    SYSTEM_ACCOUNT,
    Health,
    JetStreamSources,
    JetStreamz,
    no_stats,
)
from streamd.net.query import BadQuery, Query, flag, number, page

_NO_STATS = {"clients": 0, "routes": 0, "gateways": 0, "leafs": 0}


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


class RouteView(Protocol):
    """What is shown of one link to another server."""

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
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int


class ClusterSources(Protocol):
    """The links to other servers: net/cluster.py."""

    name: str
    host: str
    port: int
    auth_timeout_s: float

    def routes(self) -> Sequence[Any]:
        """`RouteView`s of the links that are up, oldest first."""

    @property
    def configured_urls(self) -> list[str]: ...


class Monitoring:
    """Builds the documents of the monitoring port."""

    def __init__(
        self, options: Options, *, sources: Sources, server_id: str, server_name: str
    ) -> None:
        self._options = options
        self._sources = sources
        self._server_id = server_id
        self._server_name = server_name
        self._js: JetStreamz | None = None
        self._cluster: ClusterSources | None = None
        self._start_ns = time.time_ns()
        self._config_ns = self._start_ns
        self._requests: dict[str, int] = {}
        self._cpu = _CpuMeter()
        self.is_ready = False
        self.client_port = options.port  # the real ports, once they are known
        self.http_port = options.http_port

    def attach(self, js: JetStreamSources) -> None:
        """Streams are served from now on."""
        self._js = JetStreamz(
            js, self._options, server_id=self._server_id, server_name=self._server_name
        )

    def attach_cluster(self, cluster: ClusterSources) -> None:
        """There are links to other servers, or will be."""
        self._cluster = cluster

    def reloaded(self, options: Options) -> None:
        """The configuration was read again."""
        self._options = options
        if self._js is not None:
            self._js.options = options
        self._config_ns = time.time_ns()

    def count_request(self, path: str) -> None:
        self._requests[path] = self._requests.get(path, 0) + 1

    # --- /varz --------------------------------------------------------------------------------

    def varz(self, query: Query) -> dict[str, Any]:
        o, traffic = self._options, self._sources.traffic()
        route_count = len(self._routes())
        now = time.time_ns()
        document: dict[str, Any] = {
            "server_id": self._server_id,
            "server_name": self._server_name,
            "version": NATS_LEVEL,
            "proto": 1,
            "git_commit": f"streamd-{__version__}",
            "go": f"python{sys.version.split()[0]}",
            "host": o.host,
            "port": self.client_port,
            "auth_required": o.is_auth_required or None,
            "max_connections": o.max_connections,
            "max_subscriptions": o.max_subscriptions or None,
            "ping_interval": o.ping_interval_ns,
            "ping_max": o.ping_max,
            "http_host": o.http_host or o.host,
            "http_port": self.http_port,
            "http_base_path": o.http_base_path,
            "https_port": 0,
            "auth_timeout": o.auth_timeout_s,
            "max_control_line": o.max_control_line,
            "max_payload": o.max_payload,
            "max_pending": o.max_pending,
            "cluster": self._varz_cluster(),
            "gateway": {},
            "leaf": {},
            "mqtt": {},
            "websocket": {},
            "jetstream": self._varz_jetstream(),
            "tls_timeout": 2,
            "write_deadline": o.write_deadline_ns,
            "start": format_ns(self._start_ns),
            "now": format_ns(now),
            "uptime": _uptime(now - self._start_ns),
            "mem": _resident_bytes(),
            "cores": os.cpu_count() or 1,
            "gomaxprocs": 1,  # one event loop
            "cpu": self._cpu.percent(),
            "connections": traffic.connections,
            "total_connections": traffic.total_connections,
            "routes": route_count,
            "remotes": route_count,
            "leafnodes": 0,
            "in_msgs": traffic.in_msgs,
            "in_bytes": traffic.in_bytes,
            "in_client_msgs": traffic.in_msgs,
            "in_client_bytes": traffic.in_bytes,
            "out_msgs": traffic.out_msgs,
            "out_bytes": traffic.out_bytes,
            "out_client_msgs": traffic.out_msgs,
            "out_client_bytes": traffic.out_bytes,
            "slow_consumers": traffic.slow_consumers,
            "stale_connections": traffic.stale_connections,
            "stalled_clients": 0,
            "subscriptions": traffic.subscriptions,
            "http_req_stats": dict(sorted(self._requests.items())),
            "config_load_time": format_ns(self._config_ns),
            "config_digest": o.config_digest,
            "tags": o.server_tags or None,
            "metadata": o.server_metadata or None,
            "system_account": SYSTEM_ACCOUNT,
            "slow_consumer_stats": {**_NO_STATS, "clients": traffic.slow_consumers},
            "stale_connection_stats": {**_NO_STATS, "clients": traffic.stale_connections},
        }
        return {key: value for key, value in document.items() if value is not None}

    def _varz_jetstream(self) -> dict[str, Any]:
        return self._js.varz() if self._js is not None else {}

    # --- /connz -------------------------------------------------------------------------------

    def connz(self, query: Query) -> dict[str, Any]:
        sort = query.get("sort", "") or "cid"
        state = query.get("state", "") or "open"
        with_user = flag(query, "auth")
        is_detailed = query.get("subs") == "detail"
        with_subjects = not is_detailed and flag(query, "subs")
        offset, limit = page(query)
        cid = number(query, "cid")
        user, account = query.get("user", ""), query.get("acc", "")
        if state not in ("open", "closed", "any", "all"):
            raise BadQuery(f"Error decoding state for {state}")
        if sort not in _SORTS:
            raise BadQuery(f"invalid sorting option: {sort}")
        if sort in ("stop", "reason") and state != "closed":
            raise BadQuery(f"sort by {sort} only valid on closed connections")
        if user and not with_user:
            raise BadQuery("filter by user requires auth option")
        found: list[ConnectionFacts] = []
        if state != "closed":
            found.extend(self._sources.open_connections())
        if state != "open":
            found.extend(self._sources.closed_connections())
        now = time.time_ns()
        if cid:
            found, offset, limit = [facts for facts in found if facts.cid == cid], 0, 1
        if user:
            found = [facts for facts in found if facts.user == user]
        if account and account != ACCOUNT:
            found = []
        if subject := query.get("filter_subject", ""):
            found = [facts for facts in found if self._has_subject(facts, subject)]
        key, is_descending = _SORTS[sort]
        found.sort(key=lambda facts: key(facts, now), reverse=is_descending)
        shown = found[offset : offset + limit]
        return {
            "server_id": self._server_id,
            "now": format_ns(now),
            "num_connections": len(shown),
            "total": len(found),
            "offset": offset,
            "limit": limit,
            "connections": [
                _connection(facts, now, with_user, with_subjects, is_detailed) for facts in shown
            ],
        }

    def _has_subject(self, facts: ConnectionFacts, subject: str) -> bool:
        wanted = subject.encode()
        return any(
            self._sources.matches(sub.subject.encode(), wanted) for sub in facts.subscriptions
        )

    # --- /subsz -------------------------------------------------------------------------------

    def subsz(self, query: Query) -> dict[str, Any]:
        with_list = flag(query, "subs")
        offset, limit = page(query)
        test = query.get("test", "")
        account = query.get("acc", "")
        facts = self._sources.sublist()
        document: dict[str, Any] = {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "num_subscriptions": facts.subscriptions,
            "num_cache": facts.cache_entries,
            "num_inserts": facts.inserts,
            "num_removes": facts.removes,
            "num_matches": facts.matches,
            "cache_hit_rate": facts.cache_hits / facts.matches if facts.matches else 0,
            "max_fanout": facts.max_fanout,
            "avg_fanout": facts.avg_fanout,
            "total": 0,
            "offset": offset,
            "limit": limit,
        }
        if with_list:
            found = [
                sub
                for sub in self._sources.subscriptions()
                if not test or self._sources.matches(sub.subject.encode(), test.encode())
            ]
            if account and account != ACCOUNT:
                found = []
            shown = found[offset : offset + limit]
            document["total"] = len(shown)
            if shown:
                document["subscriptions_list"] = [
                    {"account": ACCOUNT, "account_tag": ACCOUNT, **_subscription(sub)}
                    for sub in shown
                ]
        return document

    # --- /jsz ---------------------------------------------------------------------------------

    def jsz(self, query: Query) -> dict[str, Any]:
        if self._js is not None:
            return self._js.jsz(query)
        now = format_ns(time.time_ns())
        return {**no_stats(), "server_id": self._server_id, "now": now, "disabled": True}

    def raftz(self, query: Query) -> dict[str, Any] | None:
        """None: there are no such groups, which is answered with 404."""
        return self._js.raftz(query) if self._js is not None else None

    def care(self) -> dict[str, int]:
        """Counters for /metrics that no other document has."""
        return {} if self._js is None else self._js.care()

    # --- /healthz -------------------------------------------------------------------------------

    def healthz(self, query: Query) -> tuple[int, dict[str, Any]]:
        """Return (HTTP status, document)."""
        status, kind, text, names = self._health(query)
        if status == 200:
            return 200, {"status": "ok"}
        if flag(query, "details"):
            error = {"type": kind, **names, "error": text}
            return status, {"status": "error", "errors": [error]}
        word = "error" if status == 400 else "unavailable"
        return status, {"status": word, "error": text}

    def _health(self, query: Query) -> Health:
        account, stream = query.get("account", ""), query.get("stream", "")
        consumer = query.get("consumer", "")
        needs_js = flag(query, "js-enabled-only") or flag(query, "js-enabled")
        for name in ("js-server-only", "js-meta-only"):
            flag(query, name)  # refused here if they mean nothing
        if consumer and not stream:
            text = '"stream" must not be empty when checking consumer health'
            return Health(400, "BAD_REQUEST", text)
        if stream and not account:
            text = '"account" must not be empty when checking stream health'
            return Health(400, "BAD_REQUEST", text)
        is_wanted = self._options.jetstream.is_enabled
        if self._js is None and (needs_js or is_wanted):
            word = "recovering" if is_wanted else "not enabled"
            return Health(503, "JETSTREAM", f"JetStream {word}")
        if not self.is_ready:
            return Health(503, "CONNECTION", "server is not accepting connections")
        if self._js is None or needs_js:
            return Health()
        return self._js.health(query)

    # --- the rest: what a single node has to say ------------------------------------------------

    def accountz(self, query: Query) -> dict[str, Any]:
        document: dict[str, Any] = {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "system_account": SYSTEM_ACCOUNT,
        }
        account = query.get("acc", "")
        if not account:
            return {**document, "accounts": [ACCOUNT]}
        if account != ACCOUNT:
            raise BadQuery(f"Account {account} does not exist")
        traffic = self._sources.traffic()
        document["account_detail"] = {
            "account_name": ACCOUNT,
            "update_time": format_ns(self._start_ns),
            "expired": False,
            "complete": True,
            "jetstream_enabled": self._js is not None,
            "leafnode_connections": 0,
            "client_connections": traffic.connections,
            "subscriptions": traffic.subscriptions,
        }
        return document

    def accstatz(self, query: Query) -> dict[str, Any]:
        traffic = self._sources.traffic()
        stats = []
        if traffic.connections or flag(query, "unused"):
            none = {"msgs": 0, "bytes": 0}
            others = {"gateways": none, "routes": none, "leafs": none}
            stats.append(
                {
                    "acc": ACCOUNT,
                    "name": ACCOUNT,
                    "conns": traffic.connections,
                    "leafnodes": 0,
                    "total_conns": traffic.connections,
                    "num_subscriptions": traffic.subscriptions,
                    "sent": {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes, **others},
                    "received": {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes, **others},
                    "slow_consumers": traffic.slow_consumers,
                }
            )
        return {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "account_statz": stats,
        }

    def routez(self, query: Query) -> dict[str, Any]:
        now = time.time_ns()
        routes = [_route(facts, now) for facts in self._routes()]
        return {
            "server_id": self._server_id,
            "server_name": self._server_name,
            "now": format_ns(now),
            "num_routes": len(routes),
            "routes": routes,
        }

    def _routes(self) -> Sequence[RouteView]:
        return self._cluster.routes() if self._cluster is not None else ()

    def _varz_cluster(self) -> dict[str, Any]:
        cluster = self._cluster
        if cluster is None:
            return {}
        shown: dict[str, Any] = {
            "name": cluster.name,
            "addr": cluster.host,
            "cluster_port": cluster.port,
            "auth_timeout": cluster.auth_timeout_s,
        }
        if cluster.configured_urls:
            shown["urls"] = cluster.configured_urls
        return shown | {"tls_timeout": 2, "pool_size": 1}

    def gatewayz(self, query: Query) -> dict[str, Any]:
        return {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "outbound_gateways": {},
            "inbound_gateways": {},
        }

    def leafz(self, query: Query) -> dict[str, Any]:
        return {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "leafnodes": 0,
            "leafs": [],
        }


# --- pieces -------------------------------------------------------------------------------------


_Sort = Callable[[ConnectionFacts, int], Any]
_SORTS: dict[str, tuple[_Sort, bool]] = {  # option -> (key, largest first)
    "cid": (lambda facts, now: facts.cid, False),
    "start": (lambda facts, now: (facts.start_ns, facts.cid), False),
    "subs": (lambda facts, now: facts.subscription_count, True),
    "pending": (lambda facts, now: facts.pending_bytes, True),
    "msgs_to": (lambda facts, now: facts.out_msgs, True),
    "msgs_from": (lambda facts, now: facts.in_msgs, True),
    "bytes_to": (lambda facts, now: facts.out_bytes, True),
    "bytes_from": (lambda facts, now: facts.in_bytes, True),
    "last": (lambda facts, now: facts.last_activity_ns, True),
    "idle": (lambda facts, now: now - facts.last_activity_ns, True),
    "uptime": (lambda facts, now: (facts.stop_ns or now) - facts.start_ns, True),
    "stop": (lambda facts, now: facts.stop_ns, True),
    "reason": (lambda facts, now: facts.reason, False),
    "rtt": (lambda facts, now: facts.rtt_ns, True),
}


def _connection(
    facts: ConnectionFacts, now: int, with_user: bool, with_subjects: bool, is_detailed: bool
) -> dict[str, Any]:
    until = facts.stop_ns or now
    entry: dict[str, Any] = {
        "cid": facts.cid,
        "kind": "Client",
        "type": "nats",
        "ip": facts.ip,
        "port": facts.port,
        "start": format_ns(facts.start_ns),
        "last_activity": format_ns(facts.last_activity_ns),
        "stop": format_ns(facts.stop_ns) if facts.stop_ns else None,
        "reason": facts.reason or None,
        "rtt": format_duration(facts.rtt_ns) if facts.rtt_ns else None,
        "uptime": _uptime(until - facts.start_ns),
        "idle": _uptime(until - facts.last_activity_ns),
        "pending_bytes": facts.pending_bytes,
        "in_msgs": facts.in_msgs,
        "out_msgs": facts.out_msgs,
        "in_bytes": facts.in_bytes,
        "out_bytes": facts.out_bytes,
        "subscriptions": facts.subscription_count,
        "name": facts.name or None,
        "lang": facts.lang or None,
        "version": facts.version or None,
        "authorized_user": facts.user or None if with_user else None,
        "account": ACCOUNT if with_user else None,
        "subscriptions_list": (
            [sub.subject for sub in facts.subscriptions] or None if with_subjects else None
        ),
        "subscriptions_list_detail": (
            [_subscription(sub) for sub in facts.subscriptions] or None if is_detailed else None
        ),
        "name_tag": ACCOUNT if with_user else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _route(facts: RouteView, now: int) -> dict[str, Any]:
    return {
        "rid": facts.rid,
        "remote_id": facts.remote_id,
        "remote_name": facts.remote_name,
        "did_solicit": facts.did_solicit,
        "is_configured": facts.is_configured,
        "ip": facts.ip,
        "port": facts.port,
        "start": format_ns(facts.start_ns),
        "last_activity": format_ns(facts.last_activity_ns),
        "rtt": format_duration(facts.rtt_ns),
        "uptime": _uptime(now - facts.start_ns),
        "idle": _uptime(now - facts.last_activity_ns),
        "pending_size": facts.pending_bytes,
        "in_msgs": facts.in_msgs,
        "out_msgs": facts.out_msgs,
        "in_bytes": facts.in_bytes,
        "out_bytes": facts.out_bytes,
        "subscriptions": 0,
    }


def _subscription(sub: SubscriptionFacts) -> dict[str, Any]:
    entry: dict[str, Any] = {"subject": sub.subject}
    if sub.queue:
        entry["qgroup"] = sub.queue
    entry["sid"] = sub.sid
    entry["msgs"] = sub.msgs
    if sub.max_msgs:
        entry["max"] = sub.max_msgs
    entry["cid"] = sub.cid
    return entry


def _uptime(duration_ns: int) -> str:
    """nats-server's long form: `1y2d3h4m5s`, without leading zero units."""
    seconds = max(0, duration_ns) // 1_000_000_000
    parts = (
        ("y", seconds // 31_536_000),
        ("d", seconds // 86_400 % 365),
        ("h", seconds // 3600 % 24),
        ("m", seconds // 60 % 60),
        ("s", seconds % 60),
    )
    first = next((i for i, (_, count) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for unit, count in parts[first:])


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc: the peak is the next best
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _CpuMeter:
    """Share of one core used since the last reading (or since the start)."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._used = 0.0
        self._percent = 0.0

    def percent(self) -> float:
        now, used = time.monotonic(), sum(os.times()[:2])
        passed = now - self._wall
        if passed >= 1.0:  # two readers at once would otherwise measure next to nothing
            self._percent = round((used - self._used) / passed * 100, 1)
            self._wall, self._used = now, used
        return self._percent
