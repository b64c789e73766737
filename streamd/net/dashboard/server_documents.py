"""Documents about the servers: the overview, connections, Raft groups."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from streamd import __version__
from streamd.api.times import format_ns
from streamd.config.cluster_options import join_address
from streamd.latency_histogram import BOUNDS_S, LatencyHistogram
from streamd.limits import CONGESTED_BYTES, DASHBOARD_SUMMED_STREAMS_PER_S, SLICE_GROUPS
from streamd.machine.meta import StreamAsset
from streamd.net.dashboard.grants import Grant
from streamd.net.dashboard.rates import Rates
from streamd.net.dashboard.stream_documents import group_document
from streamd.net.dashboard.surroundings import Surroundings
from streamd.net.monitoring.documents import resident_bytes
from streamd.net.monitoring.healthz import lag, not_current
from streamd.net.monitoring.sliced_pages import Steps, looked_at
from streamd.net.monitoring.stats import Connection, Traffic
from streamd.node.ports import GroupInfo, NodeHandle
from streamd.types import META_UID, SYSTEM_ACCOUNT, Document, NodeId, Uid

CONNECTION_SORTS: Final = (
    "cid", "name", "account", "user", "address", "client", "subscriptions", "pending", "idle",
    "rtt", "in_msgs", "in_bytes", "out_msgs", "out_bytes",
)  # fmt: skip
GROUP_SORTS: Final = (
    "group", "account", "stream", "role", "term", "leader", "commit", "applied", "log_bytes",
)  # fmt: skip
_NS: Final = 1_000_000_000
_OK: Final = 200
_HOST: Final = re.compile(r"[\w.:%-]+", re.ASCII)
_PATH: Final = re.compile(r"[\w./~-]*", re.ASCII)
_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")
_LOOPBACK: Final = ("127.", "::1", "localhost")


class Sums(NamedTuple):
    """Facts of a server that are known by looking at all streams."""

    health: Document
    led: Mapping[NodeId, int]  # streams by leader
    consumers: int
    stored_bytes: int  # of messages on this node's files


class ServerDocuments:
    """Builder of documents about this server and what it knows of others."""

    def __init__(self, around: Surroundings, rates: Rates[str]) -> None:
        self._around = around
        self._rates = rates
        self._start_s = time.monotonic()
        self._sums = Sums({"ok": True, "reasons": []}, {}, 0, 0)
        self._summed_s = -math.inf
        self._latencies = {name: Recent() for name in ("log_write", "apply")}

    # --- this node, for itself and others -------------------------------------------------------

    def node_facts(self) -> Steps[Document]:
        """Build facts about this node."""
        traffic = yield from self._around.stats.traffic()
        return self._own_facts(traffic, (yield from self._sums_over_streams()))

    def _own_facts(self, traffic: Traffic, sums: Sums) -> Document:
        around = self._around
        node = around.node
        return {
            "name": around.server_name,
            "id": around.server_id,
            "version": __version__,
            "uptime_s": int(time.monotonic() - self._start_s),
            "memory": resident_bytes(),
            "storage": sums.stored_bytes,
            "storage_limit": node.storage_max if node is not None else 0,
            "connections": traffic.connections,
            "ui": list(around.listened()),
        }

    # --- the overview ---------------------------------------------------------------------------

    def overview(self, told: Mapping[NodeId, tuple[float, Document]]) -> Steps[Document]:
        """Build the overview; `told`: what other nodes said of themselves, and when, monotonic
        seconds."""
        around = self._around
        node = around.node
        traffic = yield from around.stats.traffic()
        sums = yield from self._sums_over_streams()
        own = self._own_facts(traffic, sums)
        nodes = self._nodes(own, told, sums.led)
        writes, applies = {}, {}
        if node is not None:
            latencies = node.health.latencies
            writes = self._latencies["log_write"].quantiles(latencies["log_write"])
            applies = self._latencies["apply"].quantiles(latencies["apply"])
        return {
            "health": sums.health,
            "nodes": nodes,
            "meta_leader": node.meta_leader if node is not None and node.is_clustered else "",
            "rates": self._traffic_rates(traffic),
            "fsync": writes,
            "apply": applies,
            "memory": own["memory"],
            "disk": _disk(node, sums.stored_bytes),
            "streams": len(node.meta.streams_by_uid) if node is not None else 0,
            "consumers": sums.consumers,
            "connections": traffic.connections,
            "now": format_ns(time.time_ns()),
        }

    def _traffic_rates(self, traffic: Traffic) -> Document:
        return {
            name: round(self._rates.note(name, getattr(traffic, name)), 1)
            for name in ("in_msgs", "in_bytes", "out_msgs", "out_bytes")
        }

    def _health(self) -> Steps[Document]:
        """Build the verdict of /healthz, with its reasons in words."""
        status, document = yield from self._around.monitoring.healthz({"details": "1"})
        errors = document.get("errors")
        told = errors if isinstance(errors, list) else []
        reasons = [str(error.get("error", "")) for error in told if isinstance(error, dict)]
        return {"ok": status == _OK, "reasons": list(filter(None, reasons))}

    def _nodes(
        self,
        own: Document,
        told: Mapping[NodeId, tuple[float, Document]],
        led: Mapping[NodeId, int],
    ) -> list[Document]:
        around = self._around
        node = around.node
        here = around.server_name
        facts: GroupInfo = (node.group_info(META_UID) if node is not None else None) or {}
        members = {peer["name"]: peer for peer in facts.get("peers") or ()}
        names = {here, *members, *filter(around.is_up, told)}
        rows: list[Document] = []
        for name in sorted(names):
            is_here = name == here
            seen_s, said = (time.monotonic(), own) if is_here else told.get(name, (0.0, {}))
            peer = members.get(name)
            is_offline = not is_here and not around.is_up(name)
            is_current = not not_current(facts) if is_here and node is not None else True
            if peer is not None:
                is_current = peer["current"]
            known = (node.node_facts.get(name) or {}) if node is not None else {}
            rows.append(
                {
                    "name": name,
                    "id": said.get("id", known.get("server_id", "")),
                    "address": around.address_of(name),
                    "leader_of": led.get(name, 0),
                    "here": is_here,
                    "current": is_current and not is_offline,
                    "offline": is_offline,
                    "lag": (lag(facts) if is_here else peer["lag"] if peer is not None else 0),
                    "seen_ns": int((time.monotonic() - seen_s) * _NS) if seen_s else None,
                    "version": said.get("version", ""),
                    "uptime_s": said.get("uptime_s", 0),
                    "memory": said.get("memory", 0),
                    "storage": said.get("storage", known.get("storage_used", 0)),
                    "storage_limit": said.get("storage_limit", known.get("storage_max", 0)),
                    "connections": said.get("connections", 0),
                    "ui": "" if is_here else self.page_of(name, said),
                }
            )
        return rows

    def _sums_over_streams(self) -> Steps[Sums]:
        """Build what all streams have to be looked at for; of thousands not every second."""
        node = self._around.node
        assets = list(node.meta.streams_by_uid.values()) if node is not None else []
        now_s = time.monotonic()
        if now_s - self._summed_s < len(assets) / DASHBOARD_SUMMED_STREAMS_PER_S:
            return self._sums
        led: dict[NodeId, int] = {}
        consumers = stored_bytes = 0
        for asset in looked_at(assets):
            if asset is None or node is None:
                yield
                continue
            leader = node.leader_of(asset.uid) if node.is_clustered else node.server_name
            led[leader] = led.get(leader, 0) + 1
            replica = node.replica(asset.uid)
            if replica is not None:
                machine = replica.machine
                consumers += machine.listed_count
                stored_bytes += machine.index.live.bytes * asset.is_file
        self._sums = Sums((yield from self._health()), led, consumers, stored_bytes)
        self._summed_s = now_s
        return self._sums

    def page_of(self, name: NodeId, said: Document) -> str:
        """Return the address of another node's dashboard; "": it has none that a browser here
        could reach."""
        match said.get("ui"):
            case [("http" | "https") as scheme, str(host), int(port), str(base)] if port:
                reached = self._around.address_of(name)
                if host in _ANY_ADDRESS:
                    host = reached
                elif host.startswith(_LOOPBACK) and not reached.startswith(_LOOPBACK):
                    return ""
                # It becomes part of a header: of what is no address there is no page.
                if _HOST.fullmatch(host) and _PATH.fullmatch(base):
                    return f"{scheme}://{join_address(host, port)}{base}/ui/"
        return ""

    # --- connections ----------------------------------------------------------------------------

    def connections(self, grant: Grant) -> list[Connection]:
        """Return the client connections that `grant` sees."""
        found = self._around.stats.open_connections()
        if grant.sees_all:
            return found
        return [conn for conn in found if conn.account == grant.account]

    def connection_items(self, page: Sequence[Connection]) -> Iterator[Document]:
        """Iterate over the rows of a page."""
        now_ns = time.time_ns()
        for conn in page:
            stats = self._around.stats.stats_of(conn)
            yield {
                "cid": stats.cid,
                "name": stats.name,
                "account": stats.account,
                "user": stats.user,
                "address": join_address(stats.ip, stats.port),
                "language": stats.lang,
                "version": stats.version,
                "subscriptions": stats.subscription_count,
                "pending": stats.pending_bytes,
                "slow": stats.pending_bytes >= CONGESTED_BYTES,
                "idle": max(0, now_ns - stats.last_activity_ns),
                "rtt": stats.rtt_ns,
                "in_msgs": stats.in_msgs,
                "out_msgs": stats.out_msgs,
                "in_bytes": stats.in_bytes,
                "out_bytes": stats.out_bytes,
                "websocket": stats.is_websocket,
                "tls": stats.tls.version if stats.tls is not None else "",
            }

    # --- groups ---------------------------------------------------------------------------------

    def group_uids(self, grant: Grant, assets: Sequence[StreamAsset]) -> list[Uid]:
        """Return the groups with a member here that `grant` sees: the meta group first."""
        node = self._around.node
        if node is None:
            return []
        found = [META_UID] if grant.sees_all and node.is_clustered else []
        return found + [asset.uid for asset in assets if node.replica(asset.uid) is not None]

    def group_facts(self, uids: Sequence[Uid]) -> Steps[list[Document]]:
        """Build the rows of groups."""
        rows = []
        for uid in looked_at(uids, SLICE_GROUPS):
            if uid is None:
                yield
                continue
            row = self.group_item(uid)
            if row is not None:
                rows.append(row)
        return rows

    def group_item(self, uid: Uid) -> Document | None:
        """Return the row of a group; None: it has no member here."""
        node = self._around.node
        facts = node.group_info(uid) if node is not None else None
        if node is None or facts is None:
            return None
        shown = group_document(facts)
        asset = node.meta.streams_by_uid.get(uid)
        peers = [peer["name"] for peer in facts.get("peers") or ()]
        return {
            "group": shown.pop("name"),
            "account": asset.account if asset is not None else SYSTEM_ACCOUNT,
            "stream": asset.name if asset is not None else "",
            **shown,
            "members": sorted([node.server_name, *peers]),
            "recovering": facts.get("state") in ("recovering", "uncertain"),
            "waiting": facts.get("waiting_count", 0),
            "log_entries": facts.get("unsaved_count", 0),
            "log_bytes": facts.get("unsaved_bytes", 0),
        }


class Recent:
    """Quantiles of the durations that a histogram has counted lately: since the look before the
    last one, so that what happened hours ago does not hide what happens now."""

    def __init__(self) -> None:
        self._before = [0] * (len(BOUNDS_S) + 1)
        self._last = self._before
        self._looked_s = 0.0

    def quantiles(
        self, histogram: LatencyHistogram, clock: Callable[[], float] = time.monotonic
    ) -> Document:
        """Return p50 and p99 in ns, upper ends of their buckets, and how many they are of."""
        counts = list(histogram.counts)
        now_s = clock()
        if now_s - self._looked_s >= 10.0:
            self._before, self._last, self._looked_s = self._last, counts, now_s
        recent = LatencyHistogram()
        recent.counts = [now - then for now, then in zip(counts, self._before, strict=True)]
        if not any(recent.counts):
            recent = histogram
        return {
            "p50_ns": int(recent.quantile(0.5) * _NS),
            "p99_ns": int(recent.quantile(0.99) * _NS),
            "count": sum(recent.counts),
        }


def _disk(node: NodeHandle | None, used: int) -> Document:
    """Return what messages take on this node's disk, and what is free there."""
    if node is None:
        return {"used": 0, "free": 0}
    try:
        found = os.statvfs(node.store_dir)
    except OSError:  # it is gone, which /healthz tells
        return {"used": used, "free": 0}
    return {"used": used, "free": found.f_bavail * found.f_frsize}
