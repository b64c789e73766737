"""`ForcedElection`: a leader for a group all of whose voters may have forgotten something.

A recovering voter does not stand for election (`raft/recovering.py`), so a group all of whose
voters are recovering has no leader, also if its learners have everything: its only voter may have
acked what nobody else was told. `--accept-loss` at a recovering voter says that this is lost. Then
each member, this one too, is asked in turn to stand, and leads if everybody that belongs to the
group, or may belong to it, grants: it has the most, then, of all that there is. The members that
the meta group may have: `meta_forced_election`.
"""

from __future__ import annotations

from streamd import errors, limits
from streamd.callbacks import ignore
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.reconfiguration_steps import named_by
from streamd.node.context import NodeContext, NodeLog
from streamd.node.groups import inbox
from streamd.node.groups.group import Group
from streamd.node.ports import Answer, Peers
from streamd.node.recovery.meta_forced_election import MetaForcedElection
from streamd.node.replicas.local_groups import LocalGroups
from streamd.raft.core import RaftCore
from streamd.types import META_UID, Index, NodeId, Uid


class ForcedElection:
    """Forced elections as one node takes part in them. It asks only if the operator accepts the
    loss; it answers every call. It logs each group once until it has recovered."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        peers: Peers | None,
        meta: MetaForcedElection,
    ) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self._meta = meta
        self._turns: dict[Uid, int] = {}  # members asked, or how often it was told

    def start(self) -> None:
        """Check again and again, from the node's start on."""
        accepts = self._context.accepts_doubt
        every_s = limits.HEIR_EVERY_S if accepts else limits.DOUBT_TOLD_S
        self._context.timers.again("heirs", every_s, self.check)
        if accepts:
            self._context.log.warn(
                "--accept-loss: while this server runs, groups whose voters all lost entries "
                "continue without the entries that no replica has",
                advice="start without --accept-loss next time",
            )  # fmt: skip

    def check(self) -> None:
        """Ask the next member of each group that is recovering here and has no leader; where the
        operator has accepted nothing, log once that it has none."""
        accepts = self._context.accepts_doubt
        streams = self._groups.meta.streams_by_uid
        doubtful = [asset for asset in streams.values() if self.is_stuck(asset)]
        group, monitor = self._groups.meta_group, self._groups.meta_monitor
        if group is not None and self._is_in_doubt(group):
            advice = "start the servers that are down"
            if not accepts:
                advice += (
                    "; if all are up, and none has the entries that this server may have lost, "
                    "start this server once with --accept-loss"
                )
            self._tell(
                META_UID,
                "the meta group has no leader, and this server may have lost entries of it",
                advice=advice,
            )
            if accepts:
                self._meta.check()
        elif not accepts:
            for asset in doubtful:
                self._tell(
                    asset.uid,
                    "a stream has no leader, and its replica here may have lost entries",
                    stream=asset.name, uid=asset.uid, members=" ".join(sorted(named_by(asset))),
                    advice="start those of its servers that are down; if none has the entries that "
                    "this server may have lost, start this server once with --accept-loss",
                )  # fmt: skip
        elif doubtful and monitor is not None:
            # The meta group alone knows who may have more; what is known here may be of long ago.
            monitor.post(inbox.ReadBarrier(self._ask_all, ignore))
        for uid in list(self._turns):
            self._clear_if_over(uid)

    def _tell(self, uid: Uid, text: str, /, **facts: object) -> None:
        """Log once, until the group has recovered."""
        if not self._turns.setdefault(uid, 0):
            self._turns[uid] = 1
            self._context.log.warn(text, **facts)

    def _clear_if_over(self, uid: Uid) -> None:
        asset = self._groups.meta.streams_by_uid.get(uid)
        if uid != META_UID and (asset is None or self._context.name not in named_by(asset)):
            del self._turns[uid]  # deleted, or moved away
            return
        group = self._groups.group_of(uid)
        if group is None or group.failure or group.raft.is_uncertain:
            return  # or it is being opened again
        del self._turns[uid]
        facts = {"group": uid} if asset is None else {"stream": asset.name, "uid": uid}
        self._context.log.warn("the replica has recovered", **facts)

    def is_stuck(self, asset: StreamAsset) -> bool:
        """True if the stream's replica here may have forgotten something, and it has no leader."""
        replica = self._groups.get(asset.uid)
        return replica is not None and self._is_in_doubt(replica.group) and asset.is_file

    def _is_in_doubt(self, group: Group) -> bool:
        """True if the member here may have forgotten something, and no member leads."""
        raft = group.raft
        if not raft.is_uncertain or group.failure:
            return False
        now_ms = self._context.env.clock.monotonic_ms()
        return raft.leader_id is None and now_ms >= raft.heard_ms + limits.LEADERLESS_MS

    def _ask_all(self) -> None:
        for asset in list(self._groups.meta.streams_by_uid.values()):
            if self.is_stuck(asset):
                self._ask_next(asset)

    def _ask_next(self, asset: StreamAsset) -> None:
        uid = asset.uid
        names = sorted(named_by(asset))
        turn = self._turns.get(uid, 0)
        self._turns[uid] = turn + 1
        if not turn:
            self._context.log.warn(
                "forced election of a stream's leader: the member with the longest log is to lead",
                stream=asset.name, uid=uid, members=" ".join(names),
            )  # fmt: skip
        asked = names[turn % len(names)]
        if asked == self._context.name:
            self._stand_in(asset, names)
        elif self._peers is not None:
            self._peers.call(asked, "stand_in", [uid, names], ignore)

    def serve(
        self, sender: NodeId, args: tuple[Uid, list[NodeId], *tuple[Index, ...]], answer: Answer
    ) -> None:
        """Make this node's member stand: the call `stand_in` of a recovering voter."""
        uid, names, *used_to = args
        if uid == META_UID:
            answer(True)
            self._meta.stand_in(names, *used_to)
            return
        asset = self._groups.meta.streams_by_uid.get(uid)
        answer(errors.BAD_REQUEST() if asset is None else True)
        if asset is not None:
            self._stand_in(asset, names)

    def _stand_in(self, asset: StreamAsset, names: list[NodeId]) -> None:
        replica = self._groups.get(asset.uid)
        if replica is not None and not replica.group.failure:
            everybody = frozenset((*names, *named_by(asset)))
            replica.monitor.post(inbox.ForceElection(everybody, 0))


def tell_election(log: NodeLog, raft: RaftCore, **facts: object) -> None:
    """Warn if a group in files, led from here now, was elected by voters that may have
    forgotten."""
    if raft.forgetful:
        log.warn(
            "a majority of the voters may have lost entries: those that only they had are gone",
            **facts, voters=" ".join(sorted(raft.forgetful)),
        )  # fmt: skip
