"""`TurnReports`: what a group's turn brought that concerns the other members, or an operator."""

from __future__ import annotations

from streamd.node.catchup.service import CatchupService
from streamd.node.cluster.peering import Peering
from streamd.node.context import NodeContext
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.turn import Turn
from streamd.node.integrity.consistency_check import ConsistencyCheck
from streamd.node.integrity.discarded_entries import DiscardedEntries
from streamd.node.replicas.local_groups import LocalGroups
from streamd.types import NodeId, Uid


class TurnReports:
    """Follow-up of the turns of all groups of one node."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        catchups: CatchupService,
        discarded: DiscardedEntries,
        consistency: ConsistencyCheck,
        peering: Peering,
    ) -> None:
        self._context = context
        self._groups = groups
        self._catchups = catchups
        self._discarded = discarded
        self._consistency = consistency
        self._peering = peering
        self.ignored_count = 0  # entries that no machine here could apply

    def introduce(self, monitor: Monitor, members: tuple[NodeId, ...]) -> None:
        """Tell a group which of its new `members` are here."""
        self._peering.introduce(monitor, members)

    def follow(self, uid: Uid, turn: Turn) -> None:
        """Compare checkpoints, fetch a snapshot that was offered, and log what is wrong."""
        log = self._context.log
        for text in turn.alerts:
            log.error("replicas disagree", group=uid, reason=text)
        for index, reason in turn.effects.ignored:
            self.ignored_count += 1
            log.error(
                "a log entry that is no valid command is ignored",
                group=uid,
                index=index,
                reason=reason,
            )
        if turn.snapshot_offer is not None:
            leader, offer = turn.snapshot_offer
            self._catchups.start(uid, leader, offer.index)
        group = self._groups.group_of(uid)
        if group is None or not self._context.is_clustered:
            return
        if turn.alerts and group.raft.status()["has_diverged"]:
            self._discarded.keep_conflict(uid, turn.alerts[0])
        if turn.checkpoints:
            self._consistency.send(uid, group, turn.checkpoints)
