"""`RecoveryFindings`: reports and follows up what the recovery of a replica has found."""

from __future__ import annotations

from functools import partial

from streamd import limits
from streamd.errors import CorruptionError
from streamd.node.catchup.service import CatchupService
from streamd.node.context import NodeContext
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.integrity.scrubber import Scrubber
from streamd.node.recovery.quorum_loss_recovery import QuorumLossRecovery
from streamd.node.replicas.replica_recovery import Recovered, ReplicaRecovery
from streamd.node.replicas.replica_trash import ReplicaTrash
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import Uid


class RecoveryFindings:
    """Follow-up of all recoveries of one node."""

    def __init__(
        self,
        context: NodeContext,
        recovery: ReplicaRecovery,
        catchups: CatchupService,
        damage_log: DamageLog,
        scrubber: Scrubber,
        quorum_loss: QuorumLossRecovery,
        trash: ReplicaTrash,
    ) -> None:
        self._context = context
        self._recovery = recovery
        self._catchups = catchups
        self._damage_log = damage_log
        self._scrubber = scrubber
        self._quorum_loss = quorum_loss
        self._trash = trash

    def before_run(self, uid: Uid, found: Recovered) -> None:
        """Report what was damaged or missing, and tell the log of files that were installed."""
        if found.is_damaged:
            self._damage_log.damage_count += 1
        for text in found.faults:
            self._damage_log.found_at_start(text, uid)
        if found.conflict:
            self._damage_log.found_conflict(uid, found.conflict)
        if found.marker is not None:
            self._recovery.tell_log(uid, found.marker)
        if found.marker is not None or found.is_install_void:
            self._catchups.record_opened(uid, is_void=found.is_install_void)
            self._trash.empty(found.needless)

    def on_running(self, replica: LocalStream) -> None:
        """Save a stream anew that lost a block: its replica runs."""
        self._quorum_loss.on_opened(replica.uid, replica.monitor)

    def after_run(self, replica: LocalStream, found: Recovered) -> None:
        """Report blocks that are gone or cut, to be repaired."""
        for block_no, text in found.lacking:
            report = partial(self._scrubber.found_lacking, replica, block_no, CorruptionError(text))
            # A moment later where peers are to be asked for it: they may not be met yet.
            has_peers = len(replica.group.raft.members.voters) > 1
            delay_s = limits.DAMAGES_EVERY_S if has_peers else 0
            self._context.env.loop.call_later(delay_s, report)

    def record_differing(self, uid: Uid) -> None:
        """Record that what this node has of a group is not what was committed."""
        self._catchups.record_differing(uid)
