"""Who leads a group on whose voters may have forgotten, where an operator accepts that loss.

A voter in doubt does not stand for election (`raft/recovering.py`), so a group all of whose
voters are in doubt has no leader, also if its learners have everything: its only voter may have
acked what nobody else was told. `--accept-loss` at a voter in doubt says that this is lost. Then
each member, this one too, is asked in turn to stand, and leads if everybody that belongs to the
group, or may belong to it, grants: it has the most, then, of all that there is. Who may belong to
the meta group: `meta_heirs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.callbacks import ignore
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.reconfiguration_steps import named_by
from streamd.node.groups import inbox
from streamd.node.recovery.meta_forced_election import MetaHeirs
from streamd.raft.core import RaftCore
from streamd.types import META_UID, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.groups.group import Group
    from streamd.node.local_node import Node


class Heirs:
    """One node's. It asks only if it was started so; it answers whoever asks.

    What it says of a group it says once until that is over."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.meta = MetaHeirs(node)
        self._turns: dict[Uid, int] = {}  # members asked, or how often it was told

    def begin(self) -> None:
        """The node starts."""
        node = self._node
        node.timers.again(
            "heirs", limits.HEIR_EVERY_S if node.accepts_doubt else limits.DOUBT_TOLD_S, self.look
        )
        if node.accepts_doubt:
            node.warn(
                "--accept-loss: as long as this server runs, groups whose voters all forgot go on "
                "without what nobody has",
                advice="leave it out at the next start",
            )  # fmt: skip

    def look(self) -> None:
        """Ask the next member of each group that is in doubt here and has no leader; where nobody
        has accepted anything, say once that there is one."""
        node = self._node
        doubtful = [asset for asset in node.meta.streams_by_uid.values() if self.is_stuck(asset)]
        group, monitor = node.meta_member.group, node.meta_member.monitor
        if group is not None and self._is_in_doubt(group):
            advice = "start those servers that are down"
            if not node.accepts_doubt:
                advice += (
                    "; if they all are up, and nobody has what this one may have forgotten, start "
                    "this one once with --accept-loss"
                )
            self._tell(
                META_UID,
                "the meta group has no leader, and what this server remembers of it is in doubt",
                advice=advice,
            )
            if node.accepts_doubt:
                self.meta.look()
        elif not node.accepts_doubt:
            for asset in doubtful:
                self._tell(
                    asset.uid,
                    "a stream has no leader, and what its replica here remembers is in doubt",
                    stream=asset.name, uid=asset.uid, members=" ".join(sorted(named_by(asset))),
                    advice="start those of its servers that are down; if nobody has what this one "
                    "may have forgotten, start this one once with --accept-loss",
                )  # fmt: skip
        elif doubtful and monitor is not None:
            # Who may have more is known to the meta group alone, and here perhaps of long ago.
            # Asked again if it is not answered.
            monitor.post(inbox.ReadBarrier(self._look_now, ignore))
        for uid in list(self._turns):
            self._look_if_over(uid)

    def _tell(self, uid: Uid, text: str, /, **facts: Any) -> None:
        """Once, until it is over."""
        if not self._turns.setdefault(uid, 0):
            self._turns[uid] = 1
            self._node.warn(text, **facts)

    def _look_if_over(self, uid: Uid) -> None:
        node = self._node
        asset = node.meta.streams_by_uid.get(uid)
        if uid != META_UID and (asset is None or node.server_name not in named_by(asset)):
            del self._turns[uid]  # deleted, or moved away
            return
        group = node.group_of(uid)
        if group is None or group.failure or group.raft.is_uncertain:
            return  # or it is being opened again
        del self._turns[uid]
        facts = {"group": uid} if asset is None else {"stream": asset.name, "uid": uid}
        node.warn("the replica is not in doubt any more", **facts)

    def tell_election(self, raft: RaftCore, **facts: Any) -> None:
        """A group in files is led from here: was it elected by who may have forgotten?"""
        if raft.forgetful:
            self._node.warn(
                "a majority of the voters may have forgotten: what they alone had is lost",
                **facts, forgot=" ".join(sorted(raft.forgetful)),
            )  # fmt: skip

    def is_stuck(self, asset: StreamAsset) -> bool:
        """True if the stream's replica here may have forgotten something, and nobody leads it."""
        replica = self._node.replicas.get(asset.uid)
        return replica is not None and asset.is_file and self._is_in_doubt(replica.group)

    def _is_in_doubt(self, group: Group) -> bool:
        """True if the member here may have forgotten something, and nobody leads."""
        raft = group.raft
        now_ms = self._node.env.clock.monotonic_ms()
        is_led = raft.leader_id is not None or now_ms < raft.heard_ms + limits.LEADERLESS_MS
        return raft.is_uncertain and not is_led and not group.failure

    def _look_now(self) -> None:
        for asset in list(self._node.meta.streams_by_uid.values()):
            if self.is_stuck(asset):
                self._ask_next(asset)

    def _ask_next(self, asset: StreamAsset) -> None:
        node, uid = self._node, asset.uid
        names = sorted(named_by(asset))
        turn = self._turns.get(uid, 0)
        self._turns[uid] = turn + 1
        if not turn:
            node.warn(
                "the voters of a group are in doubt: whoever has most of it is to lead",
                stream=asset.name, uid=uid, members=" ".join(names),
            )  # fmt: skip
        asked = names[turn % len(names)]
        if asked == node.server_name:
            self._stand_in(asset, names)
        elif node.peering.peers is not None:
            # The outcome shows in the leader that comes.
            node.peering.peers.call(asked, "stand_in", [uid, names], ignore)

    def serve(self, args: list[Any], answer: Callable[[Any], None]) -> None:
        """A voter in doubt asks this node's member to stand."""
        uid, names, *used_to = args
        if uid == META_UID:
            answer(True)
            self.meta.stand_in(names, *used_to)
            return
        asset = self._node.meta.streams_by_uid.get(uid)
        answer(errors.BAD_REQUEST() if asset is None else True)
        if asset is not None:
            self._stand_in(asset, names)

    def _stand_in(self, asset: StreamAsset, names: list[NodeId]) -> None:
        replica = self._node.replicas.get(asset.uid)
        if replica is not None and not replica.group.failure:
            everybody = frozenset((*names, *named_by(asset)))
            replica.monitor.post(inbox.ForceElection(everybody, 0))
