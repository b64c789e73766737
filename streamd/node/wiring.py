"""Wiring of a node: makes its parts, room by room, each from the parts that it names.

A part that needs one made later gets a callback, or a Protocol that `GroupControl` passes on; no
part reaches into another, and none gets this record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import ConfigError, DiskError
from streamd.node.catchup.service import CatchupService, SnapshotSources
from streamd.node.cluster.config_propagation import ConfigPropagation
from streamd.node.cluster.forwarded_requests import ForwardedRequests
from streamd.node.cluster.leader_news import LeaderNews
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.node_facts import NodeFacts
from streamd.node.cluster.peer_requests import PeerRequests
from streamd.node.cluster.peering import Peering
from streamd.node.cluster.placement import ClusterView
from streamd.node.cluster.reconfiguration import Reconfiguration
from streamd.node.cluster.replica_replacement import ReplicaReplacement
from streamd.node.cluster.server_removal import ServerRemoval
from streamd.node.cluster.turn_reports import TurnReports
from streamd.node.context import NodeContext
from streamd.node.groups.group_info import GroupHealth, GroupInfos
from streamd.node.groups.raft_members import RaftMembers
from streamd.node.identity.amnesia import Amnesia
from streamd.node.identity.store_watch import StoreWatch
from streamd.node.integrity.consistency_check import ConsistencyCheck
from streamd.node.integrity.corruption import CorruptionRepair
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.integrity.discarded_entries import DiscardedEntries
from streamd.node.integrity.scrubber import Scrubber
from streamd.node.meta_group.catalog import Catalogs
from streamd.node.meta_group.meta_events import MetaEvents
from streamd.node.meta_group.meta_member import MetaMember
from streamd.node.meta_group.meta_proposals import MetaProposals
from streamd.node.meta_group.meta_turns import MetaTurns
from streamd.node.node_health import LocalHealth, StreamHealth
from streamd.node.ports import Peers, Wires
from streamd.node.recovery.forced_election import ForcedElection
from streamd.node.recovery.meta_forced_election import MetaForcedElection
from streamd.node.recovery.quorum_loss_recovery import QuorumLossRecovery
from streamd.node.replicas.failed_replicas import FailedReplicas
from streamd.node.replicas.group_control import GroupControl
from streamd.node.replicas.group_runner import GroupRunner
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.orphans import Orphans
from streamd.node.replicas.recovery_findings import RecoveryFindings
from streamd.node.replicas.replica_closer import ReplicaCloser
from streamd.node.replicas.replica_maker import MemberMaker, ReplicaMaker
from streamd.node.replicas.replica_opener import ReplicaOpener
from streamd.node.replicas.replica_recovery import ReplicaRecovery
from streamd.node.replicas.replica_removal import ReplicaRemoval
from streamd.node.replicas.replica_roles import ReplicaRoles
from streamd.node.replicas.replica_set import ReplicaSet
from streamd.node.replicas.replica_table import ReplicaTable
from streamd.node.replicas.replica_trash import ReplicaTrash
from streamd.node.replicas.stream_places import StreamPlaces
from streamd.node.resources.account_storage import AccountStorage
from streamd.node.resources.disk_quota import Quotas
from streamd.node.resources.log_retention import LogRetention
from streamd.node.resources.stall_detector import StallDetector
from streamd.node.store_opening import OpenedStore
from streamd.node.stream_groups.publish_forwarding import PublishForwarding
from streamd.types import META_UID


class Base(NamedTuple):
    """Parts that exist before the store is open."""

    groups: LocalGroups
    leaders: Leaders
    catalogs: Catalogs
    requests: PeerRequests
    wires: Callable[[str], Wires]  # by account
    peers: Peers | None
    lock: int
    view: Callable[[], ClusterView]
    on_store_gone: Callable[[DiskError], None]


class IntegrityParts(NamedTuple):
    damage_log: DamageLog
    corruption: CorruptionRepair
    discarded: DiscardedEntries
    consistency: ConsistencyCheck
    scrubber: Scrubber
    store_watch: StoreWatch
    failed: FailedReplicas


class ClusterParts(NamedTuple):
    facts: NodeFacts
    news: LeaderNews
    peering: Peering
    removal: ServerRemoval
    reconfiguration: Reconfiguration
    replacement: ReplicaReplacement
    propagation: ConfigPropagation
    forwarding: PublishForwarding
    storage: AccountStorage


class RecoveryParts(NamedTuple):
    amnesia: Amnesia
    quorum_loss: QuorumLossRecovery
    catchups: CatchupService
    sources: SnapshotSources
    forced_election: ForcedElection
    meta_forced_election: MetaForcedElection


class ReplicaParts(NamedTuple):
    table: ReplicaTable
    trash: ReplicaTrash
    recovery: ReplicaRecovery
    opener: ReplicaOpener
    removal: ReplicaRemoval
    roles: ReplicaRoles
    replicas: ReplicaSet
    orphans: Orphans
    control: GroupControl


class MetaParts(NamedTuple):
    member: MetaMember
    proposals: MetaProposals


class NodeParts(NamedTuple):
    """Parts of one node, by room. The node alone holds this record."""

    context: NodeContext
    quotas: Quotas
    integrity: IntegrityParts
    cluster: ClusterParts
    recovery: RecoveryParts
    replicas: ReplicaParts
    meta: MetaParts
    stall: StallDetector
    log_retention: LogRetention
    infos: GroupInfos
    health: LocalHealth


def wire(base: Base, store: OpenedStore) -> NodeParts:
    """Make all parts of a node whose store is open. Nothing is started."""
    context, groups, leaders, peers = store.context, base.groups, base.leaders, base.peers
    table = ReplicaTable()
    control = GroupControl(table)
    trash = ReplicaTrash(context, groups)
    facts = NodeFacts(context, groups, peers)
    integrity = _integrity(base, store, table, control, trash)
    recovery = _recovery(base, store, integrity, control, facts)
    proposals = MetaProposals(groups, leaders, facts, peers)
    cluster = _cluster(base, store, integrity, recovery, control, facts, proposals)
    reports = TurnReports(
        context,
        groups,
        recovery.catchups,
        integrity.discarded,
        integrity.consistency,
        cluster.peering,
    )
    rafts = RaftMembers(
        context,
        peers,
        recovery.quorum_loss,
        on_made=integrity.discarded.record_start,
        on_damaged_log=integrity.corruption.on_damaged_log,
    )
    runner = GroupRunner(context, integrity.discarded, peers)
    replicas = _replicas(
        base, store, integrity, cluster, recovery, reports, rafts, runner, control, table, trash
    )
    events = MetaEvents(context, base.catalogs, cluster.peering, cluster.removal, replicas.replicas)
    turns = MetaTurns(
        context,
        groups,
        leaders,
        cluster.news,
        recovery.amnesia,
        cluster.reconfiguration,
        reports,
        events,
    )
    member = MetaMember(
        context,
        groups,
        rafts,
        runner,
        recovery.amnesia,
        integrity.damage_log,
        events,
        turns,
    )
    control.bind(member, replicas.replicas)
    proposals.wait_configured = partial(cluster.propagation.wait, timeout_ms=limits.CONFIGURED_MS)
    proposals.wait_closed = replicas.replicas.when_closed
    cluster.forwarding.relay.begin(rafts.next_nonce())
    stall = StallDetector(context, groups)
    parts = NodeParts(
        context,
        store.quotas,
        integrity,
        cluster,
        recovery,
        replicas,
        MetaParts(member, proposals),
        stall,
        LogRetention(context, groups, table, integrity.failed),
        _infos(base, context, integrity, cluster, recovery, table),
        _health(context, integrity, recovery, reports, stall, runner, table),
    )
    _serve_peers(base, parts)
    return parts


def _integrity(
    base: Base,
    store: OpenedStore,
    table: ReplicaTable,
    control: GroupControl,
    trash: ReplicaTrash,
) -> IntegrityParts:
    context, groups, peers = store.context, base.groups, base.peers
    damage_log = store.damage_log
    corruption = CorruptionRepair(context, groups, base.leaders, peers, damage_log, control)
    store_watch = StoreWatch(
        context,
        base.lock,
        on_gone=base.on_store_gone,
        on_log_cut=corruption.on_damaged_log,
    )
    return IntegrityParts(
        damage_log,
        corruption,
        DiscardedEntries(context, groups, peers, trash.directory, control),
        ConsistencyCheck(context, groups, peers, control),
        Scrubber(context, groups, corruption, damage_log),
        store_watch,
        FailedReplicas(context, groups, table, store_watch, damage_log),
    )


def _recovery(
    base: Base,
    store: OpenedStore,
    integrity: IntegrityParts,
    control: GroupControl,
    facts: NodeFacts,
) -> RecoveryParts:
    context, groups, peers = store.context, base.groups, base.peers
    sources = SnapshotSources(
        context, groups, integrity.consistency, integrity.corruption, integrity.damage_log
    )
    catchups = CatchupService(
        context,
        groups,
        peers,
        sources,
        integrity.discarded,
        integrity.damage_log,
        control,
        store.quotas.storage.reserve_bytes,
    )
    meta_election = MetaForcedElection(context, groups, peers, facts, store.incarnations)
    return RecoveryParts(
        Amnesia(context, groups),
        QuorumLossRecovery(
            context, groups, is_log_lost=store.is_log_lost, is_resumed=store.is_loss_resumed
        ),
        catchups,
        sources,
        ForcedElection(context, groups, peers, meta_election),
        meta_election,
    )


def _cluster(
    base: Base,
    store: OpenedStore,
    integrity: IntegrityParts,
    recovery: RecoveryParts,
    control: GroupControl,
    facts: NodeFacts,
    proposals: MetaProposals,
) -> ClusterParts:
    context, groups, leaders, peers = store.context, base.groups, base.leaders, base.peers
    news = LeaderNews(context, groups, leaders, base.catalogs, peers)
    peering = Peering(context, groups, peers, facts, news, store.incarnations)

    def on_removed_here(err: ConfigError) -> None:
        control.fail_all(err)
        # Not at once: this may be a turn of the meta group, or its start.
        context.env.loop.call_soon(control.close, META_UID, ignore)

    removal = ServerRemoval(
        context,
        groups,
        leaders,
        facts,
        peers,
        renew_hello=peering.renew_hello,
        on_removed_here=on_removed_here,
    )
    reconfiguration = Reconfiguration(
        context, groups, facts, recovery.amnesia, proposals, control.reopen
    )
    replacement = ReplicaReplacement(context, groups, facts, peers, proposals, base.view)
    propagation = ConfigPropagation(
        context, groups, leaders, base.catalogs, peers, integrity.failed
    )
    forwarding = PublishForwarding(context, groups, leaders, base.catalogs, peers)
    peering.on_link_down = forwarding.relay.on_down
    storage = AccountStorage(context, groups, peers)
    return ClusterParts(
        facts,
        news,
        peering,
        removal,
        reconfiguration,
        replacement,
        propagation,
        forwarding,
        storage,
    )


def _replicas(
    base: Base,
    store: OpenedStore,
    integrity: IntegrityParts,
    cluster: ClusterParts,
    recovery_parts: RecoveryParts,
    reports: TurnReports,
    rafts: RaftMembers,
    runner: GroupRunner,
    control: GroupControl,
    table: ReplicaTable,
    trash: ReplicaTrash,
) -> ReplicaParts:
    context, groups, leaders, peers = store.context, base.groups, base.leaders, base.peers
    amnesia, catchups = recovery_parts.amnesia, recovery_parts.catchups
    recovery = ReplicaRecovery(context, catchups, amnesia, recovery_parts.quorum_loss, trash)
    maker = ReplicaMaker(
        context,
        MemberMaker(context, rafts, amnesia),
        runner,
        base.wires,
        store.quotas,
        cluster.forwarding,
        integrity.corruption,
        cluster.storage,
    )
    findings = RecoveryFindings(
        context,
        recovery,
        catchups,
        integrity.damage_log,
        integrity.scrubber,
        recovery_parts.quorum_loss,
        trash,
    )
    opener = ReplicaOpener(
        context, groups, recovery, maker, findings, cluster.peering, amnesia, trash
    )
    orphans = Orphans(context, groups, table, trash)
    observers = (integrity.consistency, integrity.corruption, cluster.storage)
    closer = ReplicaCloser(context, groups, table, catchups, amnesia, trash, orphans, observers)
    places = StreamPlaces(
        context, groups, base.catalogs, leaders, peers, cluster.forwarding, integrity.failed
    )
    roles = ReplicaRoles(
        context,
        groups,
        places,
        cluster.news,
        cluster.propagation,
        cluster.reconfiguration,
        cluster.forwarding,
        reports,
    )
    removal = ReplicaRemoval(context.name, groups, leaders, peers)
    replicas = ReplicaSet(context, groups, table, opener, closer, roles, removal, integrity.failed)
    return ReplicaParts(table, trash, recovery, opener, removal, roles, replicas, orphans, control)


def _infos(
    base: Base,
    context: NodeContext,
    integrity: IntegrityParts,
    cluster: ClusterParts,
    recovery: RecoveryParts,
    table: ReplicaTable,
) -> GroupInfos:
    groups, leaders = base.groups, base.leaders
    health = GroupHealth(context, groups, leaders, table, recovery.catchups, integrity.corruption)
    return GroupInfos(
        context,
        groups,
        leaders,
        base.peers,
        integrity.consistency,
        cluster.reconfiguration,
        health,
    )


def _health(
    context: NodeContext,
    integrity: IntegrityParts,
    recovery: RecoveryParts,
    reports: TurnReports,
    stall: StallDetector,
    runner: GroupRunner,
    table: ReplicaTable,
) -> LocalHealth:
    streams = StreamHealth(
        context,
        integrity.failed,
        integrity.corruption,
        recovery.forced_election,
        integrity.consistency,
        table,
    )
    return LocalHealth(
        integrity.store_watch,
        stall,
        streams,
        integrity.damage_log,
        integrity.scrubber,
        integrity.discarded,
        reports,
        {
            "log_write": context.wal.write_times,
            "turn": runner.turn_times,
            "apply": runner.apply_times,
        },
    )


def _serve_peers(base: Base, parts: NodeParts) -> None:
    """Fill the table of calls and notes of peers."""
    integrity, cluster, recovery = parts.integrity, parts.cluster, parts.recovery
    call_later = parts.context.env.loop.call_later
    forwarded = ForwardedRequests(base.groups, base.peers, base.wires, call_later)
    base.requests.calls |= {
        "configured": cluster.propagation.serve,
        "has_left": parts.replicas.removal.serve,
        "recall": recovery.meta_forced_election.serve_recall,
        "stand_in": recovery.forced_election.serve,
        "terms": integrity.discarded.serve_terms,
        "held": integrity.discarded.serve_held,
        "manifest": recovery.sources.serve_manifest,
        "block": recovery.sources.serve_block,
        "judge": forwarded.serve_judge,
    }
    base.requests.notes |= {
        "leaders": cluster.news.on_note,
        "digests": integrity.consistency.on_digests,
        "facts": cluster.facts.on_note,
        "stored": cluster.storage.on_note,
        "hello": cluster.peering.on_hello_renewed,
        "meta": parts.meta.proposals.on_note,
        "publish": forwarded.on_publish,
        "pubacks": cluster.forwarding.on_pubacks,
        "given_back": cluster.forwarding.on_given_back_note,
        "pull": forwarded.on_pull,
        "acks": forwarded.on_acks,
        "flow": forwarded.on_flow,
    }
