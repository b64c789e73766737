"""`LocalHealth`: what is wrong with a node, for /healthz and /metrics."""

from __future__ import annotations

from collections.abc import Mapping

from streamd.latency_histogram import LatencyHistogram
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.turn_reports import TurnReports
from streamd.node.context import NodeContext
from streamd.node.identity.store_watch import StoreWatch
from streamd.node.integrity.consistency_check import ConsistencyCheck
from streamd.node.integrity.corruption import CorruptionRepair
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.integrity.discarded_entries import DiscardedEntries
from streamd.node.integrity.scrubber import Scrubber
from streamd.node.ports import LogWaits
from streamd.node.recovery.forced_election import ForcedElection
from streamd.node.recovery.lost_copies import lost_copy_reason
from streamd.node.replicas.failed_replicas import FailedReplicas
from streamd.node.replicas.replica_table import ReplicaTable
from streamd.node.resources.stall_detector import StallDetector
from streamd.types import StreamKey, Uid


class StreamHealth:
    """Health of one node's copies of streams."""

    def __init__(
        self,
        context: NodeContext,
        failed: FailedReplicas,
        corruption: CorruptionRepair,
        forced_election: ForcedElection,
        consistency: ConsistencyCheck,
        table: ReplicaTable,
    ) -> None:
        self._context = context
        self._failed = failed
        self._corruption = corruption
        self._forced_election = forced_election
        self._consistency = consistency
        self._table = table

    def damage_reasons(self) -> dict[Uid, str]:
        """Return why copies of streams are damaged here; what is left of them is served."""
        return self._corruption.reasons

    def lost_copy_reason(self, asset: StreamAsset) -> str:
        """Return why a stream whose only copy is here is not served, or not all of it, and what to
        do about that; "": it is."""
        failure = self._failed.error(asset.uid)
        damage = self._corruption.reasons.get(asset.uid, "")
        is_stuck = self._context.is_clustered and self._forced_election.is_stuck(asset)
        if failure is None and not damage and not is_stuck:
            return ""  # at once: pages ask about all of thousands
        return lost_copy_reason(
            self._context, asset, failure=failure, is_stuck=is_stuck, damage=damage
        )

    def counts(self) -> dict[str, int]:
        """Return how many copies here are wrong now, were found to be, and were mended."""
        return {
            "damaged_streams": len(self._corruption.reasons),
            "drifted_replicas": self._consistency.drift_count,
            "repaired_blocks": self._corruption.repaired_count,
            "renewed_replicas": self._table.renewed_count,
        }


class LocalHealth:
    """Health of one node. Implements `ports.NodeHealth`."""

    def __init__(
        self,
        store_watch: StoreWatch,
        stall: StallDetector,
        streams: StreamHealth,
        damage_log: DamageLog,
        scrubber: Scrubber,
        discarded: DiscardedEntries,
        reports: TurnReports,
        latencies: Mapping[str, LatencyHistogram],
    ) -> None:
        self.latencies = latencies
        self._store_watch = store_watch
        self._stall = stall
        self._streams = streams
        self._damage_log = damage_log
        self._scrubber = scrubber
        self._discarded = discarded
        self._reports = reports
        self.damage_reasons = streams.damage_reasons
        self.lost_copy_reason = streams.lost_copy_reason

    @property
    def store_fault(self) -> str:
        """Reason why nothing is stored here any more; empty: the store directory is there."""
        return self._store_watch.reason

    @property
    def verified_ns(self) -> tuple[int, int]:
        """Begin and end of the last whole verification of all files; (0, 0): none yet."""
        return self._scrubber.verified_ns

    def log_waits(self) -> LogWaits:
        """Return how long appends to the log have waited for the disk."""
        stall = self._stall
        return LogWaits(stall.waits_s, stall.wait_count, stall.waited_ns, stall.waited_ns_max)

    def discarded_reasons(self) -> dict[StreamKey, str]:
        """Return, by stream, what was acknowledged, or may have been, and is only kept aside."""
        return self._discarded.reasons

    def counts(self) -> dict[str, int]:
        """Return what was found wrong with this node's copies since its start, what became of it,
        and how much was read to find out."""
        scrub = self._scrubber.status
        return self._streams.counts() | {
            "incarnation_conflicts": self._damage_log.conflict_count,
            "damages": self._damage_log.damage_count,
            "scrubbed_bytes": self._scrubber.read_bytes,
            "scrub_rounds": scrub.rounds,
            "scrub_files": scrub.files,
            "scrub_files_left": scrub.files_left,
            "scrub_skipped": scrub.skipped,
            "tails_set_aside": self._discarded.count,
            "tails_open": self._discarded.open_count,
            "tails_kept": len(self._discarded.found),
            "ignored_entries": self._reports.ignored_count,
        }
