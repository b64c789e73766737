"""Monitoring of streams and their groups: /jsz and /raftz.

In a cluster a node shows the replicas it has, whoever leads them: comparing nodes is what these
documents are for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from streamd import API_LEVEL
from streamd.api.times import format_ns
from streamd.config.options import JetStreamOptions, Options
from streamd.durations import format_duration
from streamd.limits import MONITORING_PAGE, MONITORING_ROWS_MAX, SLICE_GROUPS
from streamd.net.monitoring.healthz import lag, lost_streams, not_current
from streamd.net.monitoring.query import BadQuery, NotLeader, Query, flag, page
from streamd.net.monitoring.range_digests import range_digests
from streamd.net.monitoring.sliced_pages import Rows, Steps, looked_at
from streamd.net.monitoring.stream_samples import SampleMaker, agreement_of
from streamd.net.monitoring.stream_totals import Totals, TotalsKeeper, added, share_of
from streamd.obs.metrics import StreamSamples
from streamd.types import META_UID, SYSTEM_ACCOUNT, Document, NodeId, Uid

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.api.router import Router
    from streamd.machine.asset_configs import StreamConfig
    from streamd.machine.consumers.consumer import Consumer
    from streamd.node.ports import GroupInfo, MemberInfo, NodeHandle, StreamHandle

_META_GROUP = "_meta_"
_SYNC_INTERVAL_NS = 120_000_000_000  # what nats-server shows, also where each ack is synced
_ROLES = {
    "leader": "LEADER",
    "candidate": "CANDIDATE",
    "pre-candidate": "CANDIDATE",
    "stopped": "CLOSED",
}


class JetStreamSources:
    """Source of what is shown about streams. Made when JetStream runs; its imports are then loaded
    anyway."""

    def __init__(self, node: NodeHandle, router: Router) -> None:
        from streamd.api import cluster_infos, infos, stream_configs

        self.node = node
        self._router = router
        self._infos = infos
        self._cluster_infos = cluster_infos
        self._shown = stream_configs.shown

    def api_totals(self) -> tuple[int, int]:
        """Return the counts of requests and errors of the JetStream API."""
        counts = self._router.counts
        return counts.total, counts.errors

    def account_totals(self, account: str) -> tuple[int, int]:
        """Return the counts of an account's API requests and errors."""
        counts = self._router.context_of(account).counts
        return counts.total, counts.errors

    def accounts(self) -> list[str]:
        """Return the names of the accounts that may use JetStream, sorted."""
        return self._router.jetstream_accounts()

    def api_pending(self) -> int:
        """Return the count of API requests that are being served."""
        return int(self._router.counts.pending)

    def stream_state(self, handle: StreamHandle) -> Document:
        machine = handle.machine
        state: Document = self._infos.stream_state(machine.state(), machine.config)
        return state

    def origins(self, handle: StreamHandle) -> Document:
        """Return what a mirror, or a stream with sources, tells of what it copies."""
        found: Document = self._infos.origins(handle)
        return found

    def stream_config(self, handle: StreamHandle) -> StreamConfig:
        return self._shown(handle.machine.config)

    def consumer_info(
        self, handle: StreamHandle, consumer: Consumer, *, has_lag: bool = False
    ) -> Document:
        context = self._router.context_of(handle.account)
        info: Document = self._infos.consumer_info(
            context, handle, consumer, is_listed=True, has_lag=has_lag
        )
        return info

    def cluster_block(self, handle: StreamHandle) -> Document:
        """Return the `cluster` object of a replica here."""
        config = handle.machine.config
        block: Document = self._cluster_infos.cluster_block(self.node, handle.uid, config)
        return block

    def consumer_group(self, handle: StreamHandle, consumer: Consumer) -> str:
        config = handle.machine.config
        group: str = self._cluster_infos.raft_group(handle.uid, config, consumer_uid=consumer.uid)
        return group

    def blocks(self, uid: Uid) -> Document:
        """Return what a stream's blocks take on this node's disk."""
        found: Document = self._infos.blocks(self.node, uid)
        return found

    def stream_numbers(self, handle: StreamHandle) -> tuple[int, ...]:
        """Return numbers of a stream, as they stand in `STREAM_GAUGES`."""
        found: tuple[int, ...] = self._infos.stream_numbers(handle.machine)
        return found

    def block_sizes(self, uid: Uid) -> tuple[int, ...]:
        """Return what a stream's blocks hold, and what they take on this node's disk; empty if it
        has no files here."""
        return self.node.block_bytes(uid) or ()

    def consumer_numbers(self, handle: StreamHandle, consumer: Consumer) -> tuple[int, ...]:
        """Return numbers of a consumer, as they stand in `CONSUMER_GAUGES`."""
        found: tuple[int, ...] = self._infos.consumer_numbers(handle, consumer)
        return found

    def consumer_ages(self, consumer: Consumer) -> tuple[int, ...]:
        """Return how late a consumer is in ns, as in `LAG_GAUGES`; empty if nobody can say."""
        now_ns = self._router.server.clock.now_ns()
        found: tuple[int, ...] = self._infos.consumer_ages(consumer, now_ns)
        return found

    def replica_rows(self, facts: GroupInfo) -> list[Document]:
        rows: list[Document] = self._cluster_infos.replica_rows(facts)
        return rows

    def peer_id(self, name: NodeId) -> str:
        """Return the name by which nats-server's tools know a server."""
        found: str = self._cluster_infos.short_hash(name)
        return found


class _Page:
    """Selection of accounts, streams and consumers that one /jsz shows."""

    def __init__(self, query: Query) -> None:
        offset, self._limit = page(query)
        account, self.stream = query.get("acc", ""), query.get("stream", "")
        self.accounts_offset = 0 if account else offset
        self.streams_offset = offset if account and not self.stream else 0
        self.consumers_offset = offset if account and self.stream else 0

    def streams(
        self, replicas: Sequence[StreamHandle], *, has_consumers: bool
    ) -> Sequence[StreamHandle]:
        """Return the streams of this page: it ends early if they have many consumers."""
        limit = 1 if self.stream else self._limit
        shown = replicas[self.streams_offset : self.streams_offset + limit]
        rows = 0
        for at, replica in enumerate(shown):
            rows += 1 + has_consumers * min(MONITORING_PAGE, len(replica.machine.consumers))
            if at and rows > MONITORING_ROWS_MAX:
                return shown[:at]
        return shown

    def accounts(self, names: Sequence[str]) -> Sequence[str]:
        """Return the accounts of this page."""
        return names[self.accounts_offset : self.accounts_offset + self._limit]

    def consumers(self, names: Iterable[str]) -> list[str]:
        """Return those of a stream's consumers that are shown."""
        in_order = sorted(names)
        limit = self._limit if self.stream else MONITORING_PAGE
        return in_order[self.consumers_offset : self.consumers_offset + limit]


class JetStreamz:
    """Builds the documents about streams."""

    def __init__(
        self, js: JetStreamSources, options: Options, *, server_id: str, server_name: str
    ) -> None:
        self.js = js
        self.options = options
        self._server_id = server_id
        self._server_name = server_name
        self._sample_maker = SampleMaker(js, server_id)
        self._totals_keeper = TotalsKeeper()

    @property
    def is_clustered(self) -> bool:
        """True if there may be other nodes."""
        return bool(self.js.node.is_clustered)

    def replicas(self) -> Steps[list[StreamHandle]]:
        """Collect the streams of which this node has a replica, by account and name."""
        node = self.js.node
        if not self.is_clustered:
            return list(node.streams())
        by_key = node.meta.streams_by_key
        found = []
        for key in looked_at(sorted(by_key)):
            if key is None:
                yield
                continue
            asset = by_key.get(key)
            replica = node.replica(asset.uid) if asset is not None else None
            if replica is not None:
                found.append(replica)
        return found

    def _totals_of(self, replicas: Sequence[StreamHandle]) -> Steps[Totals]:
        """Add up what some streams hold and set aside."""
        totals = Totals()
        for at in range(0, len(replicas), SLICE_GROUPS):
            some = replicas[at : at + SLICE_GROUPS]
            shares = [share_of(each.machine, leads=self._leads(each)) for each in some]
            totals = added(totals, *shares)
            yield
        return totals

    # --- /jsz ---------------------------------------------------------------------------------

    def jsz(self, query: Query) -> Steps[Document]:
        """Build /jsz. Offset and limit are of accounts; with `acc` of its streams, and with `acc`
        and `stream` of its consumers."""
        flags = {
            name: flag(query, name)
            for name in (
                "accounts",
                "streams",
                "consumers",
                "config",
                "digest",
                "lag",
                "raft",
                "leader-only",
                "stream-leader-only",
                "direct-consumers",
            )
        }
        account = query.get("acc", "")
        part = _Page(query)
        if self.is_clustered and flags["leader-only"] and not self.js.node.is_meta_leader:
            raise NotLeader("filtered response: not leader")
        replicas = yield from self.replicas()
        totals = yield from self._totals_keeper.totals(replicas, self._leads)
        has_streams = flags["streams"] or flags["consumers"] or flags["digest"]
        document: Document = {
            **self._stats(totals),
            "server_id": self._server_id,
            "now": format_ns(time.time_ns()),
            "config": self.config(),
            "limits": self.limits(),
            "streams": totals.streams,
        }
        if self.is_clustered and totals.streams_led:
            document["streams_leader"] = totals.streams_led
        document["consumers"] = totals.consumers
        if self.is_clustered and totals.consumers_led:
            document["consumers_leader"] = totals.consumers_led
        document["messages"] = totals.messages
        document["bytes"] = totals.bytes
        if self.is_clustered:
            document["meta_cluster"] = self.meta_cluster()
        wants_accounts = flags["accounts"] or has_streams or bool(account)
        accounts = self.js.accounts()
        if wants_accounts:
            named = [account] if account in accounts else []
            details = []
            # A query that names an account pages through its streams.
            for name in named if account else part.accounts(accounts):
                own = [replica for replica in replicas if replica.account == name]
                detail = self._account_detail(name, (yield from self._totals_of(own)))
                if has_streams:
                    shown = own
                    if self.is_clustered and flags["stream-leader-only"]:
                        shown = [replica for replica in own if self._leads(replica)]
                    if part.stream:
                        shown = [replica for replica in shown if replica.name == part.stream]
                    detail |= self._stream_details(shown, part, flags)
                details.append(detail)
            if details:
                document["account_details"] = details
        document["total"] = len(accounts)
        return document

    def digests(self, query: Query) -> Steps[Document]:
        """Build the digests of ranges of one stream's replica here: `acc` and `stream` name it."""
        account, name = query.get("acc", ""), query.get("stream", "")
        for replica in (yield from self.replicas()):
            if (replica.account, replica.name) == (account, name):
                return (yield from range_digests(replica.machine, query))
        raise BadQuery(f"no replica of stream {name!r} of account {account!r} is here")

    def _stream_details(
        self, replicas: Sequence[StreamHandle], part: _Page, flags: dict[str, bool]
    ) -> Document:
        """Return one page of the streams. Where it is not all, it says how many there are."""
        shown = part.streams(replicas, has_consumers=flags["consumers"])
        details: Document = {}
        if len(shown) < len(replicas):
            details["streams_total"] = len(replicas)
            details["streams_offset"] = part.streams_offset
        rows = (self._stream_detail(replica, part, flags) for replica in shown)
        details["stream_detail"] = Rows(rows)
        return details

    def _leads(self, replica: StreamHandle) -> bool:
        if not self.is_clustered:
            return True
        return bool(self.js.node.leader_of(replica.uid) == self._server_name)

    def meta_cluster(self) -> Document:
        """Return the state of the meta group, as this node sees it."""
        node = self.js.node
        facts = node.group_info(META_UID) or {}
        leader = node.meta_leader
        size = _voter_count(facts)
        shown: Document = {"name": node.cluster_name}
        if leader:
            shown["leader"] = leader
            shown["peer"] = self.js.peer_id(leader)
        rows = self.js.replica_rows(facts)
        if rows:
            shown["replicas"] = sorted(rows, key=lambda row: str(row["name"]))
        shown["cluster_size"] = size
        shown["quorum_needed"] = _quorum_needed(facts)
        if facts.get("rescue_quorum"):
            shown["rescue"] = True
        shown["pending"] = lag(facts)
        shown["pending_requests"] = 0
        shown["pending_infos"] = 0
        shown["snapshot"] = {
            "pending_entries": facts.get("unsaved_count", 0),
            "pending_size": facts.get("unsaved_bytes", 0),
            "last_time": format_ns(facts.get("saved_ns", 0)),
        }
        if facts.get("saving_ns"):
            shown["snapshot"]["last_duration"] = facts["saving_ns"]
        return shown

    def _account_detail(self, account: str, totals: Totals) -> Document:
        stats = self._stats(totals)
        total, errors = self.js.account_totals(account)
        stats["accounts"] = 0
        stats["api"] = {"level": 0, "total": total, "errors": errors}
        return {"name": account, "id": account, **stats}

    def _stream_detail(
        self, replica: StreamHandle, part: _Page, flags: dict[str, bool]
    ) -> Document:
        js = self.js
        machine = replica.machine
        cluster: Document = {"leader": self._server_name}
        if self.is_clustered:
            cluster = js.cluster_block(replica)
        detail: Document = {
            "name": replica.name,
            "created": format_ns(machine.created_ns),
            "cluster": cluster,
        }
        if flags["config"]:
            detail["config"] = js.stream_config(replica)
        detail["state"] = js.stream_state(replica)
        detail |= js.origins(replica)
        if flags["digest"]:
            detail["uid"] = machine.uid
            detail["applied"] = machine.applied
            detail["digest"] = f"{machine.digest:016x}"
            detail |= self.js.blocks(replica.uid)
            if machine.content.letters.last_number:
                detail["dead_letters"] = len(machine.content.letters)
            if self.is_clustered:
                detail |= self._replica_detail(replica.uid)
        names = part.consumers(machine.listed_names()) if flags["consumers"] else []
        if names:
            if len(names) < machine.listed_count:
                detail["consumers_total"] = machine.listed_count
                detail["consumers_offset"] = part.consumers_offset
            detail["consumer_detail"] = Rows(self._consumer_rows(replica, names, flags))
        if flags["direct-consumers"] and flags["consumers"]:
            direct = machine.direct_names
            if direct:
                rows = self._consumer_rows(replica, direct, flags)
                detail["direct_consumer_detail"] = Rows(rows)
        if flags["raft"] and self.is_clustered:
            if "raft_group" in cluster:
                detail["stream_raft_group"] = cluster["raft_group"]
                detail |= self._consumer_groups(replica, names)
        return detail

    def _consumer_rows(
        self, replica: StreamHandle, names: Sequence[str], flags: dict[str, bool]
    ) -> Iterator[Document]:
        """Make the rows of a stream's consumers; those deleted meanwhile are left out."""
        for name in names:
            consumer = replica.machine.consumers.get(name)
            if consumer is None:
                continue
            info = self.js.consumer_info(replica, consumer, has_lag=flags["lag"])
            if not flags["config"]:
                info.pop("config", None)
            yield info

    def _consumer_groups(self, replica: StreamHandle, names: Sequence[str]) -> Document:
        """Name the groups of consumers as tools know them; here they are part of their stream's."""
        group_of = self.js.consumer_group
        rows = [
            {"name": name, "raft_group": group_of(replica, consumer)}
            for name in names
            if (consumer := replica.machine.consumers.get(name)) is not None
        ]
        return {"consumer_raft_groups": rows} if rows else {}

    def _replica_detail(self, uid: Uid) -> Document:
        """Return the state of this node's replica: what tells it from the others."""
        facts = self.js.node.group_info(uid) or {}
        reason = not_current(facts)
        equal, differing = agreement_of(facts)
        shown: Document = {
            "role": facts.get("role", ""),
            "current": not reason,
            "lag": lag(facts),
            "replica_state": facts.get("state", ""),
            "checkpoint": {
                "index": facts.get("digest_index", 0),
                "fingerprint": f"{facts.get('digest', 0):016x}",
                "equal": equal,
                "differing": differing,
            },
        }
        if reason:
            shown["reason"] = reason
        return shown

    def config(self) -> Document:
        """Return the configuration of JetStream as it is shown."""
        node = self.js.node
        o: JetStreamOptions = self.options.jetstream
        config: Document = {
            "max_memory": node.memory_max,
            "max_storage": node.storage_max,
            "store_dir": node.store_dir,
        }
        config["sync_interval"] = o.sync_interval_ns or _SYNC_INTERVAL_NS
        if o.is_sync_always:
            config["sync_always"] = True
        if o.domain:
            config["domain"] = o.domain
        if o.unique_tag:
            config["unique_tag"] = o.unique_tag
        config["strict"] = o.is_strict
        return config

    def limits(self) -> Document:
        """Return the settings of `jetstream { limits {} }`, as they are shown."""
        o: JetStreamOptions = self.options.jetstream
        shown = {
            "max_request_batch": o.max_request_batch,
            "max_ack_pending": o.max_ack_pending,
            "max_ha_assets": o.max_ha_assets,
            "max_duplicate_window": o.duplicate_window_ns,
            "max_batch_inflight_per_stream": o.max_batches_per_stream,
            "max_batch_inflight_total": o.max_batches_total,
            "max_batch_size": o.max_batch_msgs,
            "max_batch_timeout": o.batch_timeout_ns,
        }
        return {key: value for key, value in shown.items() if value > 0}

    def _stats(self, totals: Totals) -> Document:
        """Return what is used and set aside, and the API's counters."""
        total, errors = self.js.api_totals()
        return {
            "memory": totals.memory,
            "storage": totals.storage,
            "reserved_memory": totals.reserved_memory,
            "reserved_storage": totals.reserved_storage,
            "accounts": len(self.js.accounts()),
            "ha_assets": totals.ha_assets,
            "api": {"level": API_LEVEL, "total": total, "errors": errors},
        }

    def varz(self) -> Steps[Document]:
        """Build the `jetstream` object of /varz."""
        replicas = yield from self.replicas()
        totals = yield from self._totals_keeper.totals(replicas, self._leads)
        shown: Document = {
            "config": self.config(),
            "stats": self._stats(totals),
            "limits": self.limits(),
        }
        if self.is_clustered:
            shown["meta"] = self.meta_cluster()
        return shown

    def disk_waits(self) -> Document:
        """Return how long the log kept an append waiting, of one that asks every second."""
        waits = self.js.node.health.log_waits()
        return {
            "waiters": int(waits.now_s > 0),
            "waits": waits.waited,
            "wait_time": waits.total_ns,
            "max_wait_time": waits.longest_ns,
        }

    # --- /raftz ---------------------------------------------------------------------------------

    def raftz(self, query: Query) -> Steps[Document | None]:
        """Build /raftz: the groups of an account by name; None where there can be none.

        The meta group belongs to the system account, streams' groups to theirs.
        """
        if not self.is_clustered:
            return None
        account = query.get("acc", "") or self.options.system_account
        only = query.get("group", "")
        offset, limit = page(query)
        uids: list[Uid] = []
        if account == self.options.system_account:
            uids = [META_UID]
        else:
            replicas = yield from self.replicas()
            uids = [replica.uid for replica in replicas if replica.account == account]
        groups: Document = {}
        for uid in looked_at(uids, SLICE_GROUPS):
            if uid is None:
                yield
                continue
            facts = self.js.node.group_info(uid)
            if facts is None:
                continue
            name = _META_GROUP if uid == META_UID else str(facts["raft_group"])
            if only not in ("", name):
                continue
            if offset:
                offset -= 1
            elif len(groups) < limit:
                groups[name] = self._group(uid, facts)
            else:
                break
        return {account: groups} if groups else {}

    def _group(self, uid: Uid, facts: GroupInfo) -> Document:
        js = self.js
        size = _voter_count(facts)
        leader = facts.get("leader", "")
        shown: Document = {
            "id": js.peer_id(self._server_name),
            "state": _ROLES.get(facts["role"], "FOLLOWER"),
            "size": size,
            "quorum_needed": _quorum_needed(facts),
            "committed": facts["commit"],
            "applied": facts["applied"],
        }
        if facts.get("state") == "recovering":
            shown["catching_up"] = True
        if leader:
            shown["leader"] = js.peer_id(leader)
        if leader and facts.get("leader_since_ns"):
            shown["leader_since"] = format_ns(facts["leader_since_ns"])
        shown |= {"ever_had_leader": bool(leader), "term": facts["term"]}
        if facts.get("vote"):
            shown["voted_for"] = js.peer_id(facts["vote"])
        shown |= {
            "pterm": facts.get("last_term", 0),
            "pindex": facts["last_index"],
            "system_account": True,
            "traffic_account": self.options.system_account,
            # One inbox takes what is proposed, what peers say and what was committed.
            "ipq_proposal_len": facts.get("waiting_count", 0),
            "ipq_entry_len": 0,
            "ipq_resp_len": 0,
            "ipq_apply_len": max(0, facts["commit"] - facts["applied"]),
            "replica_state": facts.get("state", "ok"),
        }
        if facts.get("reason"):
            shown["wal_error"] = facts["reason"]
        if uid != META_UID:
            shown["uid"] = uid
            shown["digest_index"] = facts.get("digest_index", 0)
            shown["digest"] = f"{facts.get('digest', 0):016x}"
        shown["peers"] = {
            js.peer_id(peer["name"]): _raft_peer(peer, facts["last_index"])
            for peer in facts.get("peers") or ()
        }
        return shown

    # --- /ipqueuesz -----------------------------------------------------------------------------

    def queues(self, is_shown: Callable[[str, int], bool]) -> Steps[dict[str, int]]:
        """Collect what waits, by the name of its queue: API requests, and each group's turn."""
        found = {"JetStream API queue": self.js.api_pending()}
        found = {name: count for name, count in found.items() if is_shown(name, count)}
        node = self.js.node
        replicas = yield from self.replicas()
        meta = ((META_UID, SYSTEM_ACCOUNT),) if self.is_clustered else ()
        for row in looked_at(chain(meta, ((one.uid, one.account) for one in replicas))):
            if row is None:
                yield
                continue
            uid, account = row
            waiting_count = node.waiting_count(uid)
            if waiting_count is None:
                continue
            group = _META_GROUP if uid == META_UID else f"S-{uid:08d}"
            name, count = f"[ACC:{account}] RAFT '{group}' inbox", waiting_count
            if is_shown(name, count):
                found[name] = count
        return found

    # --- for /metrics ---------------------------------------------------------------------------

    def groups(self) -> Document:
        """Return `meta_cluster`; in a server that is alone nothing."""
        return {"meta_cluster": self.meta_cluster()} if self.is_clustered else {}

    def samples(self) -> Steps[Iterator[StreamSamples | None]]:
        """Find the streams here; returns their samples, which are made on the way."""
        replicas = yield from self.replicas()
        return self._sample_maker.samples(replicas)

    def care(self) -> Steps[dict[str, int]]:
        """Count what was found wrong with this node's copies since its start, and what was read."""
        lost = yield from lost_streams(self.js.node)
        counts: dict[str, int] = self.js.node.health.counts()
        return counts | {"lost_streams": len(lost)}


def no_stats() -> Document:
    """`JetStreamz.stats` of a server without JetStream."""
    return {
        "memory": 0,
        "storage": 0,
        "reserved_memory": 0,
        "reserved_storage": 0,
        "accounts": 0,
        "ha_assets": 0,
        "api": {"level": API_LEVEL, "total": 0, "errors": 0},
    }


def _raft_peer(peer: MemberInfo, last_index: int) -> Document:
    shown: Document = {"name": peer["name"], "known": True}
    shown["last_replicated_index"] = max(0, last_index - peer.get("lag", 0))
    if peer.get("active_ns"):
        shown["last_seen"] = format_duration(peer["active_ns"])
    if not peer.get("is_voter", True):
        shown["is_learner"] = True
    return shown


def _quorum_needed(facts: GroupInfo) -> int:
    majority = _voter_count(facts) // 2 + 1
    return min(majority, facts.get("rescue_quorum") or majority)


def _voter_count(facts: GroupInfo) -> int:
    """Voters of a group; its peers are the others. A learner counts itself among them too, until
    it knows better."""
    return 1 + sum(bool(peer.get("is_voter", True)) for peer in facts.get("peers") or ())
