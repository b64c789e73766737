"""Documents of the monitoring port: /varz, /connz, /subsz, /jsz, /healthz ...

Reads the parts of the server and changes none. Field names, order, query parameters and error
texts are nats-server's, because dashboards and exporters parse them; `http.py` does the transport.
Each document is built in steps (`sliced_pages.py`), for there may be thousands of what it is about.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from streamd import NATS_LEVEL, __version__
from streamd.api.times import format_ns
from streamd.config.duration_values import format_uptime
from streamd.config.options import Options
from streamd.config.tls_options import TLS_TIMEOUT_S, TlsOptions
from streamd.durations import format_duration
from streamd.latency_histogram import LatencyHistogram
from streamd.limits import MONITORING_PAGE, SLICE_GROUPS
from streamd.net.monitoring.account_documents import account_counters, account_detail
from streamd.net.monitoring.account_views import AccountView
from streamd.net.monitoring.connz import Connz
from streamd.net.monitoring.healthz import Health, judge, store_gone
from streamd.net.monitoring.jetstreamz import JetStreamSources, JetStreamz, no_stats
from streamd.net.monitoring.query import BadQuery, Query, flag, page
from streamd.net.monitoring.server_stats import ServerStats
from streamd.net.monitoring.sliced_pages import Document, Rows, Steps, looked_at
from streamd.net.monitoring.stacks import command_line, stacks
from streamd.net.monitoring.stats import LeafRow, LeafTable, Routes, RouteStats
from streamd.net.pubsub.interest import RemoteSub
from streamd.obs.metrics import StreamSamples
from streamd.tokens.jwt import take_apart
from streamd.types import stream_label

# What nats-server's switches choose between: the answer is what this server does.
FEATURE_FLAGS = {
    "js_ack_fc_v2": False,
    "js_api_reply_v2": False,
    "js_raft_delete_range": False,
    "js_snapshot_sources": False,
}
_NO_WAITS = {"waiters": 0, "waits": 0, "wait_time": 0, "max_wait_time": 0}
_NO_STATS = {"clients": 0, "routes": 0, "gateways": 0, "leafs": 0}


class Monitoring:
    """Builds the documents of the monitoring port."""

    def __init__(
        self, options: Options, *, stats: ServerStats, server_id: str, server_name: str
    ) -> None:
        self._options = options
        self._stats = stats
        self._connz = Connz(stats, server_id=server_id)
        self._server_id = server_id
        self._server_name = server_name
        self._js: JetStreamz | None = None
        self._cluster: Routes | None = None
        self._leafs: LeafTable | None = None
        self._start_ns = time.time_ns()
        self._config_ns = self._start_ns
        self._ends = _CertificateEnds.of(options)
        self._requests: dict[str, int] = {}
        self._cpu = _CpuMeter()
        self.is_ready = False
        self.pinned_fails: Callable[[], int] = lambda: 0
        self.client_port = options.port  # the real ports, once they are known
        self.http_port = options.http_port
        self.https_port = options.https_port
        self.websocket_port = options.websocket.port

    @property
    def system_name(self) -> str:
        """Name of the system account."""
        return self._stats.accounts.system.name

    def attach(self, js: JetStreamSources) -> None:
        """Show streams from here on."""
        self._js = JetStreamz(
            js, self._options, server_id=self._server_id, server_name=self._server_name
        )

    def attach_leafs(self, leafs: LeafTable) -> None:
        """Show the leaf links of this server."""
        self._leafs = leafs

    def attach_pins(self, count: Callable[[], int]) -> None:
        """Show how many logins were to accounts that are not among the pinned ones."""
        self.pinned_fails = count

    def attach_cluster(self, cluster: Routes) -> None:
        """Show links to other servers from here on."""
        self._cluster = cluster

    def reloaded(self, options: Options) -> None:
        """Show a configuration that was read again."""
        self._options = options
        if self._js is not None:
            self._js.options = options
        self._ends = _CertificateEnds.of(options)
        self._config_ns = time.time_ns()

    def count_request(self, path: str) -> None:
        self._requests[path] = self._requests.get(path, 0) + 1

    # --- /varz ------------------------------------------------------------------------------------

    def varz(self, query: Query) -> Steps[Document]:
        o = self._options
        traffic = yield from self._stats.traffic()
        jetstream = (yield from self._js.varz()) if self._js is not None else {}
        route_count = len(self._routes())
        now = time.time_ns()
        document: Document = {
            "server_id": self._server_id,
            "server_name": self._server_name,
            "version": NATS_LEVEL,
            "proto": 1,
            "git_commit": f"streamd-{__version__}",
            "go": f"python{sys.version.split()[0]}",
            "host": o.host,
            "port": self.client_port,
            "auth_required": o.is_auth_required or None,
            "tls_required": (o.tls is not None and not o.allows_non_tls) or None,
            "tls_verify": (o.tls is not None and o.tls.is_verifying) or None,
            "connect_urls": self._connect_urls(),
            "max_connections": o.max_connections,
            "max_subscriptions": o.max_subscriptions or None,
            "ping_interval": o.ping_interval_ns,
            "ping_max": o.ping_max,
            "http_host": o.http_host or o.host,
            "http_port": self.http_port,
            "http_base_path": o.http_base_path,
            "https_port": self.https_port,
            "auth_timeout": o.auth_timeout_s,
            "max_control_line": o.max_control_line,
            "max_payload": o.max_payload,
            "max_pending": o.max_pending,
            "cluster": self._varz_cluster(),
            "gateway": {},
            "leaf": self._varz_leaf(),
            "mqtt": {},
            "websocket": self._varz_websocket(),
            "jetstream": jetstream,
            "tls_timeout": o.tls.timeout_s if o.tls is not None else TLS_TIMEOUT_S,
            "write_deadline": o.write_deadline_ns,
            "start": format_ns(self._start_ns),
            "now": format_ns(now),
            "uptime": format_uptime(now - self._start_ns),
            "mem": resident_bytes(),
            "cores": os.cpu_count() or 1,
            "gomaxprocs": 1,  # one event loop
            "cpu": self._cpu.percent(),
            "connections": traffic.connections,
            "total_connections": traffic.total_connections,
            "routes": route_count,
            "remotes": route_count,
            "leafnodes": len(self._leaf_rows()),
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
            "stalled_clients": traffic.stalled_clients,
            "subscriptions": traffic.subscriptions,
            "http_req_stats": dict(sorted(self._requests.items())),
            "config_load_time": format_ns(self._config_ns),
            "config_digest": o.config_digest,
            "tags": o.server_tags or None,
            "metadata": o.server_metadata or None,
            "feature_flags": dict(FEATURE_FLAGS),
            "trusted_operators_jwt": list(o.operators.tokens) or None,
            "trusted_operators_claim": [take_apart(each).claims for each in o.operators.tokens]
            or None,
            "system_account": self.system_name,
            "pinned_account_fails": self.pinned_fails() or None,
            "slow_consumer_stats": {**_NO_STATS, "clients": traffic.slow_consumers},
            "stale_connection_stats": {**_NO_STATS, "clients": traffic.stale_connections},
            "disk_io_wait_stats": self._js.disk_waits() if self._js is not None else _NO_WAITS,
            "tls_cert_not_after": self._ends.clients,
        }
        return {key: value for key, value in document.items() if value is not None}

    def _connect_urls(self) -> list[str] | None:
        """Return where clients of the cluster connect; None: no other server tells its own."""
        return (self._cluster.client_urls() or None) if self._cluster is not None else None

    def _varz_websocket(self) -> Document:
        settings = self._options.websocket
        if not settings.is_enabled:
            return {}
        shown: Document = {
            "host": settings.host,
            "port": self.websocket_port,
            "advertise": settings.advertise or None,
            "no_auth_user": settings.no_auth_user or None,
            "jwt_cookie": settings.jwt_cookie or None,
            "handshake_timeout": settings.handshake_timeout_ns or None,
            "auth_timeout": settings.auth_timeout_s or None,
            "no_tls": settings.has_no_tls or None,
            "same_origin": settings.is_same_origin or None,
            "allowed_origins": list(settings.allowed_origins) or None,
            "compression": settings.is_compressing or None,
            "tls_map": (settings.tls is not None and settings.tls.is_mapping) or None,
            "tls_cert_not_after": self._ends.websocket,
        }
        return {key: value for key, value in shown.items() if value is not None}

    def _varz_cluster(self) -> Document:
        cluster = self._cluster
        if cluster is None:
            return {}
        shown: Document = {
            "name": cluster.name,
            "addr": cluster.host,
            "cluster_port": cluster.port,
            "auth_timeout": cluster.auth_timeout_s,
        }
        if cluster.configured_urls:
            shown["urls"] = cluster.configured_urls
        tls = self._options.cluster.tls
        shown["tls_timeout"] = tls.timeout_s if tls is not None else TLS_TIMEOUT_S
        if tls is not None:
            shown |= {"tls_required": True, "tls_verify": True}
        shown["pool_size"] = 1
        if self._ends.cluster is not None:
            shown["tls_cert_not_after"] = self._ends.cluster
        return shown

    def statsz(self) -> Steps[Document]:
        """Build the statistics that servers publish."""
        traffic = yield from self._stats.traffic()
        jetstream = (yield from self._js.varz()) if self._js is not None else None
        if jetstream is not None:
            del jetstream["config"]["store_dir"]
        sent = {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes}
        received = {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes}
        routes = self._routes()
        slow, stale = traffic.slow_consumers, traffic.stale_connections
        document: Document = {
            "start": format_ns(self._start_ns),
            "mem": resident_bytes(),
            "cores": os.cpu_count() or 1,
            "cpu": self._cpu.percent(),
            "connections": traffic.connections,
            "total_connections": traffic.total_connections,
            "active_accounts": sum(
                bool(self._stats.clients_of(name).open) for name in self._stats.accounts.names()
            ),
            "subscriptions": traffic.subscriptions,
            "sent": sent,
            "sent_to_clients": sent,
            "received": received,
            "received_from_clients": received,
            "slow_consumers": slow,
            "slow_consumer_stats": {**_NO_STATS, "clients": slow} if slow else None,
            "stale_connections": stale or None,
            "stale_connection_stats": {**_NO_STATS, "clients": stale} if stale else None,
            "routes": [_route_counters(route) for route in routes] or None,
            "active_servers": 1 + len({route.remote_id for route in routes}),
            "jetstream": jetstream,
            "gomaxprocs": 1,  # one event loop
        }
        return {key: value for key, value in document.items() if value is not None}

    # --- /connz, /subsz ---------------------------------------------------------------------------

    def connz(self, query: Query) -> Steps[Document]:
        return self._connz.connz(query)

    def subsz(self, query: Query) -> Steps[Document]:
        return self._connz.subsz(query)

    # --- /jsz -------------------------------------------------------------------------------------

    def jsz(self, query: Query) -> Steps[Document]:
        """Build /jsz."""
        if self._js is not None:
            return (yield from self._js.jsz(query))
        now = format_ns(time.time_ns())
        return {**no_stats(), "server_id": self._server_id, "now": now, "disabled": True}

    def digests(self, query: Query) -> Steps[Document]:
        """Build the digests of ranges of a replica here; a BadQuery if there is none."""
        if self._js is None:
            raise BadQuery("JetStream not enabled")
        return (yield from self._js.digests(query))

    def account_jsz(self, query: Query) -> Steps[Document]:
        """Build what /jsz says of one account alone; a BadQuery if it has no streams."""
        name = query.get("acc", "")
        account = self._stats.accounts.get(name)
        if account is None:
            raise BadQuery(f'account "{name}" not found')
        if self._js is None or not self._has_streams(account):
            raise BadQuery(f'account "{name}" not jetstream enabled')
        document = yield from self._js.jsz(query)
        details: list[Document] = document.get("account_details", [])
        if not details:
            raise BadQuery(f'account "{name}" not jetstream enabled')
        return details[0]

    def raftz(self, query: Query) -> Steps[Document | None]:
        """Build /raftz; None: no such groups exist, which is answered with 404."""
        return (yield from self._js.raftz(query)) if self._js is not None else None

    def latencies(self) -> Mapping[str, LatencyHistogram]:
        """Return the durations that /metrics shows; none without JetStream."""
        return {} if self._js is None else self._js.js.node.health.latencies

    def jetstream(self) -> Document:
        """Return what /jsz says of JetStream itself: `disabled`, or in a cluster `meta_cluster`."""
        return self._js.groups() if self._js is not None else {"disabled": True}

    def samples(self) -> Steps[Iterator[StreamSamples | None]]:
        """Find the samples of all streams and consumers here, for /metrics; a None among them is a
        pause."""
        return (yield from self._js.samples()) if self._js is not None else iter(())

    def care(self) -> Steps[dict[str, int]]:
        """Collect the counters for /metrics that no other document has."""
        counts = {} if self._js is None else (yield from self._js.care())
        if self._cluster is not None:
            counts["peer_messages_failed"] = self._cluster.failed_count
        return counts

    # --- /healthz ---------------------------------------------------------------------------------

    def healthz(self, query: Query) -> Steps[tuple[int, Document]]:
        """Build (HTTP status, document)."""
        is_detailed = flag(query, "details")
        status, kind, text, names, lost = yield from self._health(query)
        if status == 200 and not text:
            return 200, {"status": "ok"}
        word = "error" if status == 400 or is_detailed else "unavailable"
        if status == 200:
            word = "degraded"
        if is_detailed:
            errors = [{"type": kind, **names, "error": text}]
            errors += [
                {"type": kind, **names, "account": account, "stream": name, "error": reason}
                for (account, name), reason in lost.items()
                if (account, name) != (names["account"], names["stream"])
            ]
            return status, {"status": word, "errors": errors[:MONITORING_PAGE]}
        document: Document = {"status": word, "error": text}
        if lost:
            document["lost"] = [stream_label(key) for key in lost][:MONITORING_PAGE]
        return status, document

    def _health(self, query: Query) -> Steps[Health]:
        account, stream = query.get("account", ""), query.get("stream", "")
        consumer = query.get("consumer", "")
        needs_js = flag(query, "js-enabled-only") or flag(query, "js-enabled")
        for name in ("js-server-only", "js-meta-only", "strict"):
            flag(query, name)  # refused here if they mean nothing
        if consumer and not stream:
            text = '"stream" must not be empty when checking consumer health'
            return Health(400, "BAD_REQUEST", text)
        if stream and not account:
            text = '"account" must not be empty when checking stream health'
            return Health(400, "BAD_REQUEST", text)
        is_wanted = self._options.jetstream.is_enabled
        if self._js is None and is_wanted:
            return Health(503, "JETSTREAM", "JetStream recovering")
        if self._js is not None and self._js.js.node.health.store_fault:
            return store_gone(self._js.js.node)  # which is also why it accepts none
        if not self.is_ready:
            return Health(503, "CONNECTION", "server is not accepting connections")
        if self._js is None or needs_js:
            return Health()
        return (yield from judge(self._js.js.node, query))

    # --- the rest: what a single node has to say --------------------------------------------------

    def accountz(self, query: Query) -> Steps[Document]:
        document: Document = {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "system_account": self.system_name,
        }
        account = query.get("acc", "")
        if not account:
            return {**document, "accounts": list(self._stats.accounts.names())}
        return {**document, "account_detail": (yield from self.account_info(account))}

    def account_info(self, name: str) -> Steps[Document]:
        """Build what is said of an account; a BadQuery if there is none of that name."""
        account = self._stats.accounts.get(name)
        if account is None:
            raise BadQuery(f"Account {name} does not exist")
        return (
            yield from account_detail(
                account,
                self._stats,
                is_system=name == self.system_name,
                has_jetstream=self._js is not None and self._has_streams(account),
                offers_jetstream=self._js is not None or self._options.jetstream.is_enabled,
            )
        )

    def _has_streams(self, account: AccountView) -> bool:
        return account.options.jetstream is not None

    def accstatz(self, query: Query) -> Steps[Document]:
        return (yield from self.account_statistics(None, has_unused=flag(query, "unused")))

    def account_statistics(
        self, names: Sequence[str] | None, *, has_unused: bool
    ) -> Steps[Document]:
        """Build the statistics of accounts: of those named, or (None) of all. Accounts without
        connections are left out unless they are asked for."""
        stats = self._stats
        chosen = stats.every_account()
        if names is not None:
            chosen = [account for account in map(stats.accounts.get, names) if account is not None]
        rows = []
        for account in looked_at(chosen, SLICE_GROUPS):
            if account is None:
                yield
            elif stats.clients_of(account.name).open or has_unused:
                rows.append((yield from account_counters(account, stats)))
        return {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "account_statz": rows,
        }

    def routez(self, query: Query) -> Steps[Document]:
        """Build /routez; with `subs` it lists what clients of each server want."""
        is_detailed = query.get("subs") == "detail"
        with_subjects = not is_detailed and flag(query, "subs")
        offset, limit = page(query)
        now = time.time_ns()
        every = self._routes()
        routes = []
        for stats in every[offset : offset + limit]:
            yield
            route = _route(stats, now)
            subs = self._stats.remote_subscriptions(stats.remote_name)
            route["subscriptions"] = len(subs)
            if subs and (is_detailed or with_subjects):
                key = "subscriptions_list_detail" if is_detailed else "subscriptions_list"
                route[key] = Rows(_remote_rows(subs[:MONITORING_PAGE], stats.rid, is_detailed))
            route["compression"] = "off"
            routes.append(route)
        return {
            "server_id": self._server_id,
            "server_name": self._server_name,
            "now": format_ns(now),
            "num_routes": len(every),
            "routes": routes,
        }

    def ipqueuesz(self, query: Query) -> Steps[Document]:
        """Build /ipqueuesz: what waits somewhere; with `all` also where nothing waits."""
        shows_all, wanted = flag(query, "all"), query.get("queues", "")
        offset, limit = page(query)
        seen = 0

        def is_shown(name: str, count: int) -> bool:
            nonlocal seen
            if not (count or shows_all) or (wanted and wanted not in name):
                return False
            seen += 1
            return offset < seen <= offset + limit

        found = (yield from self._js.queues(is_shown)) if self._js is not None else {}
        return {name: {"pending": count} for name, count in found.items()}

    def stacksz(self) -> Steps[str]:
        """Write down the stack of each thread and task."""
        return stacks()

    def debug_vars(self, query: Query) -> Steps[Document]:
        """Build /debug/vars: of what Go publishes there, what has a meaning here."""
        yield
        memory = resident_bytes()
        return {
            "cmdline": command_line(),
            "memstats": {
                "Alloc": memory,
                "Sys": memory,
                "HeapAlloc": memory,
                "NumGC": sum(one["collections"] for one in gc.get_stats()),
            },
        }

    def _leaf_rows(self) -> list[LeafRow]:
        return self._leafs.rows() if self._leafs is not None else []

    def _varz_leaf(self) -> Document:
        leaf = self._options.leaf
        document: Document = {}
        if leaf.is_enabled and self._leafs is not None:
            document = {
                "host": leaf.host,
                "port": self._leafs.port,
                "auth_timeout": leaf.auth_timeout_s or self._options.auth_timeout_s,
                "tls_timeout": leaf.tls.timeout_s if leaf.tls is not None else TLS_TIMEOUT_S,
            }
            if leaf.tls is not None:
                document["tls_required"] = True
        if leaf.remotes:
            document["remotes"] = [
                {"local_account": remote.account, "urls": remote.addresses}
                for remote in leaf.remotes
            ]
        return document

    def _routes(self) -> Sequence[RouteStats]:
        return self._cluster.routes() if self._cluster is not None else ()

    def gatewayz(self, query: Query) -> Steps[Document]:
        yield
        return {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "outbound_gateways": {},
            "inbound_gateways": {},
        }

    def leafz(self, query: Query) -> Steps[Document]:
        yield
        account = query.get("acc", "")
        has_subjects = flag(query, "subs")
        rows = [row for row in self._leaf_rows() if not account or row.account == account]
        return {
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "leafnodes": len(rows),
            "leafs": [_leaf(row, has_subjects=has_subjects) for row in rows],
        }


def _leaf(row: LeafRow, *, has_subjects: bool) -> Document:
    document = {
        "id": row.lid,
        "name": row.name,
        "is_spoke": row.is_spoke,
        "is_isolated": row.is_isolated or None,
        "account": row.account,
        "ip": row.ip,
        "port": row.port,
        "rtt": format_duration(row.rtt_ns),
        "in_msgs": row.in_msgs,
        "out_msgs": row.out_msgs,
        "in_bytes": row.in_bytes,
        "out_bytes": row.out_bytes,
        "subscriptions": len(row.subjects),
        "subscriptions_list": row.subjects if has_subjects else None,
        "compression": row.compression,
        "websocket": row.is_websocket or None,
    }
    return {key: value for key, value in document.items() if value is not None}


def _route(stats: RouteStats, now: int) -> Document:
    return {
        "rid": stats.rid,
        "remote_id": stats.remote_id,
        "remote_name": stats.remote_name,
        "did_solicit": stats.did_solicit,
        "is_configured": stats.is_configured,
        "ip": stats.ip,
        "port": stats.port,
        "start": format_ns(stats.start_ns),
        "last_activity": format_ns(stats.last_activity_ns),
        "rtt": format_duration(stats.rtt_ns),
        "uptime": format_uptime(now - stats.start_ns),
        "idle": format_uptime(now - stats.last_activity_ns),
        "pending_size": stats.pending_bytes,
        "in_msgs": stats.in_msgs,
        "out_msgs": stats.out_msgs,
        "in_bytes": stats.in_bytes,
        "out_bytes": stats.out_bytes,
    }


def _route_counters(stats: RouteStats) -> Document:
    return {
        "rid": stats.rid,
        "name": stats.remote_name,
        "sent": {"msgs": stats.out_msgs, "bytes": stats.out_bytes},
        "received": {"msgs": stats.in_msgs, "bytes": stats.in_bytes},
        "pending": stats.pending_bytes,
    }


def _remote_rows(subs: list[RemoteSub], rid: int, is_detailed: bool) -> Iterator[object]:
    for sub in subs:
        subject = sub.pattern.decode(errors="replace")
        if not is_detailed:
            yield subject
            continue
        row: Document = {"subject": subject}
        if sub.queue:
            row["qgroup"] = sub.queue.decode(errors="replace")
        yield row | {"sid": subject, "msgs": 0, "cid": rid}


def resident_bytes() -> int:
    """Return the memory of this process that is resident."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc: the peak is the next best
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class _CertificateEnds(NamedTuple):
    """Ends of the server's own certificates by listener; None: it shows none there."""

    clients: str | None
    cluster: str | None
    websocket: str | None

    @classmethod
    def of(cls, options: Options) -> _CertificateEnds:
        """Read the certificates that `options` name."""
        blocks = (options.tls, options.cluster.tls, options.websocket.tls)
        return cls(*map(_certificate_end, blocks))


def _certificate_end(tls: TlsOptions | None) -> str | None:
    """Return when the server's own certificate expires; None: it shows none."""
    if tls is None:
        return None
    from streamd.net.tls.certificates import earliest_end

    end = earliest_end(tls)
    return end.strftime("%Y-%m-%dT%H:%M:%SZ") if end is not None else None


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
