"""`MetaTurns`: follows the turns of this node's member of the meta group."""

from __future__ import annotations

from streamd.machine import commands
from streamd.node.cluster.leader_news import LeaderNews
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.reconfiguration import Reconfiguration
from streamd.node.cluster.turn_reports import TurnReports
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.group import MetaGroup
from streamd.node.groups.turn import Turn
from streamd.node.identity.amnesia import Amnesia
from streamd.node.meta_group.meta_events import MetaEvents
from streamd.node.recovery.forced_election import tell_election
from streamd.node.replicas.local_groups import LocalGroups
from streamd.types import META_UID, NodeId


class MetaTurns:
    """Follow-up of the meta group's turns on one node."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        news: LeaderNews,
        amnesia: Amnesia,
        reconfiguration: Reconfiguration,
        reports: TurnReports,
        events: MetaEvents,
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._news = news
        self._amnesia = amnesia
        self._reconfiguration = reconfiguration
        self._reports = reports
        self._events = events
        self._leader: NodeId = ""  # as the log was told
        if context.is_clustered:
            leaders.watch(self._on_leaders)

    def _on_leaders(self) -> None:
        """Log each new leader, in nats-server's words: tools wait for them."""
        context = self._context
        leader = self._leaders.leader_of(META_UID)
        if leader == self._leader or context.life.is_stopping:
            return
        self._leader = leader
        if leader == context.name:
            context.log.info("Self is new JetStream cluster metadata leader")
            if self._groups.meta_group is not None:
                tell_election(context.log, self._groups.meta_group.raft, group=META_UID)
        elif leader:
            cluster_name = context.options.cluster_name
            context.log.info(f"JetStream cluster new metadata leader: {leader}/{cluster_name}")
        else:
            context.log.info("JetStream cluster no metadata leader")

    def on_withdrawn(self, group: MetaGroup) -> None:
        """Tell the other nodes that this one leads the meta group no more."""
        self._news.record_own(META_UID, group.raft.term, is_ready=False)

    def on_turn(self, turn: Turn) -> None:
        """Follow a turn in which a role or the members changed, or peers must hear of something."""
        group = self._groups.meta_group
        if group is None or not self._context.life.is_running:
            return
        if turn.has_role_changed:
            self._news.record_own(META_UID, group.raft.term, is_ready=group.is_ready)
            self._use_up(group)
        if turn.has_members_news:
            self._reconfiguration.carry_on(META_UID)
        self._reports.follow(META_UID, turn)
        if group.raft.is_uncertain:
            return
        # What this node may have forgotten is behind it: the leader appended that entry after
        # it had heard of the loss.
        if self._amnesia.certify(group.raft.certified_index or group.raft.last_index):
            self._events.on_fresh()

    def _use_up(self, group: MetaGroup) -> None:
        """Append, as leader, entries up to the last index that a lost log may have used."""
        used_to = group.machine.used_to
        monitor = self._groups.meta_monitor
        if group.is_ready and monitor is not None:
            nothing = [commands.ACCEPT_LOSS, group.now.ns, used_to, used_to]
            for _ in range(used_to - group.raft.last_index):
                monitor.post(inbox.Propose(nothing, None, False))
