"""`ReplicaRoles`: what follows when a replica begins or ceases to lead its stream."""

from __future__ import annotations

from collections.abc import Callable

from streamd import errors
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.config_propagation import ConfigPropagation
from streamd.node.cluster.leader_news import LeaderNews
from streamd.node.cluster.reconfiguration import Reconfiguration
from streamd.node.cluster.turn_reports import TurnReports
from streamd.node.context import NodeContext
from streamd.node.groups.turn import Turn
from streamd.node.recovery.forced_election import tell_election
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.stream_places import StreamPlaces
from streamd.node.stream_groups.publish_forwarding import PublishForwarding
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import StreamKey, Uid


class ReplicaRoles:
    """Leaderships of one node's replicas: told to the peers, and their duties taken up."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        places: StreamPlaces,
        news: LeaderNews,
        propagation: ConfigPropagation,
        reconfiguration: Reconfiguration,
        forwarding: PublishForwarding,
        reports: TurnReports,
    ) -> None:
        self._context = context
        self._groups = groups
        self._places = places
        self._news = news
        self._propagation = propagation
        self._reconfiguration = reconfiguration
        self._forwarding = forwarding
        self._reports = reports
        self._led_since_ns: dict[Uid, int] = {}  # when this node last began to lead
        self._waiters: dict[Uid, list[Callable[[], None]]] = {}  # to lead, or to have failed

    def when_ready(self, uid: Uid, done: Callable[[], None]) -> None:
        """Call `done` when the stream's replica leads, or has failed."""
        self._waiters.setdefault(uid, []).append(done)

    def _notify_ready(self, uid: Uid) -> None:
        for waiting in self._waiters.pop(uid, []):
            waiting()

    def place(self, key: StreamKey) -> None:
        """Make a stream's name lead where its requests are served now."""
        self._places.place(key)

    def led_since_ns(self, uid: Uid) -> int:
        """Return when this node began to lead the stream, ns since the epoch; 0: it does not."""
        replica = self._groups.get(uid)
        return self._led_since_ns.get(uid, 0) if replica is not None and replica.is_ready else 0

    def on_asset(self, replica: LocalStream, asset: StreamAsset) -> None:
        """Bring a running replica's group to the config and the members that the meta group has."""
        if replica.is_ready:
            self._propagation.carry_over(replica, asset)
            self._reconfiguration.check_stream(replica, asset)
        else:
            self._reconfiguration.reopen_if_wrong(replica, asset)

    def on_turn(self, replica: LocalStream, turn: Turn) -> None:
        """Follow a turn in which a role or the members changed, or peers must hear of something."""
        uid = replica.uid
        if turn.newcomers:
            # Their links, up before they were members, were none of this group's business then.
            self._reports.introduce(replica.monitor, turn.newcomers)
        if turn.has_role_changed:
            self._on_role(replica)
        if turn.has_members_news and replica.is_ready:
            self._reconfiguration.carry_on(uid)
        self._propagation.resolve(uid)
        self._reports.follow(uid, turn)

    def _on_role(self, replica: LocalStream) -> None:
        context, group, uid = self._context, replica.group, replica.uid
        if context.is_clustered:
            self._news.record_own(uid, group.raft.term, is_ready=group.is_ready)
        if replica.is_ready == group.is_ready:
            return
        replica.is_ready = group.is_ready
        asset = self._groups.meta.streams_by_uid.get(uid)
        if group.is_ready and asset is not None:
            self.on_asset(replica, asset)
        if group.is_ready:
            self._forwarding.on_leading(uid)
        self._places.place(replica.key)
        if group.is_ready:
            self._notify_ready(uid)
            self._led_since_ns[uid] = context.env.clock.now_ns()
            if replica.is_file:
                last_seq = replica.machine.index.last_seq
                tell_election(
                    context.log, group.raft, stream=replica.name, uid=uid, last_seq=last_seq
                )
            if not group.raft.log.is_sole:
                context.hooks.announce(replica, "leader_elected", {})
            if replica.config.get("restoring"):
                context.hooks.announce(replica, "restore_led", {})

    def withdraw(self, replica: LocalStream) -> None:
        """Withdraw a replica: it serves no client from here on."""
        replica.is_ready = False
        if self._context.is_clustered:
            self._news.record_own(replica.uid, replica.group.raft.term, is_ready=False)
        self._places.place(replica.key)

    def fail(self, uid: Uid, key: StreamKey, reason: str) -> None:
        """Refuse all callers that wait for a stream that can't be served here."""
        self._places.place(key)
        self._notify_ready(uid)
        self._propagation.fail(uid, errors.STREAM_OFFLINE_REASON(err=reason))

    def begin_close(self, uid: Uid) -> bool:
        """Record that a replica is being closed for good; True if it led until now."""
        is_led = self.led_since_ns(uid) > 0
        self._led_since_ns.pop(uid, None)
        return is_led

    def forget(self, uid: Uid) -> None:
        """Remove a deleted stream: its leader is asked for no more."""
        self._news.forget(uid)
        self._forwarding.forget(uid)
