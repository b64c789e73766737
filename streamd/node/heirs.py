"""Who leads a group on whose voters may have forgotten, where an operator accepts that loss.

A voter in doubt does not stand for election (`raft/doubt.py`), so a group all of whose voters are
in doubt has no leader, also if its learners have everything: its only voter may have acked what
nobody else was told. `--accept-loss` at a voter in doubt says that this is lost. Then each
member, this one too, is asked in turn to stand, and leads if everybody that belongs to the group,
or may belong to it, grants: it has the most, then, of all that there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.machine.meta import StreamAsset
from streamd.node import group as g
from streamd.node.rosters import named_by
from streamd.types import NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.node import Node


class Heirs:
    """One node's. It asks only if it was started so; it answers whoever asks.

    What it says of a group it says once until that is over."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turns: dict[Uid, int] = {}  # members asked, or how often it was told

    def look(self) -> None:
        """Ask the next member of each group that is in doubt here and has no leader; where nobody
        has accepted anything, say once that there is one."""
        node = self._node
        doubtful = [asset for asset in node.meta.streams_by_uid.values() if self._is_stuck(asset)]
        monitor = node.meta_member.monitor
        if not node.accepts_doubt:
            for asset in doubtful:
                if not self._turns.setdefault(asset.uid, 0):
                    self._turns[asset.uid] = 1
                    node.warn(
                        "a stream has no leader, and what its replica here remembers is in doubt",
                        stream=asset.name, uid=asset.uid, members=" ".join(sorted(named_by(asset))),
                        advice="start those of its servers that are down; if nobody has what this "
                        "one may have forgotten: --accept-loss",
                    )  # fmt: skip
        elif doubtful and monitor is not None:
            # Who may have more is known to the meta group alone, and here perhaps of long ago.
            monitor.post((g.BARRIER, self._look_now, _nothing, None))
        for uid in list(self._turns):
            replica = node.replicas.get(uid)
            if replica is None or not replica.group.raft.is_uncertain:
                del self._turns[uid]
                node.warn("the replica is not in doubt any more", uid=uid)

    def _is_stuck(self, asset: StreamAsset) -> bool:
        replica = self._node.replicas.get(asset.uid)
        if replica is None or not asset.is_file or replica.group.failure:
            return False
        raft = replica.group.raft
        now_ms = self._node.env.clock.monotonic_ms()
        is_led = raft.leader_id is not None or now_ms < raft.heard_ms + limits.LEADERLESS_MS
        return raft.is_uncertain and not is_led

    def _look_now(self) -> None:
        for asset in list(self._node.meta.streams_by_uid.values()):
            if self._is_stuck(asset):
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
            node.peering.peers.call(asked, "stand_in", [uid, names], _ignore)

    def serve(self, args: list[Any], answer: Callable[[Any], None]) -> None:
        """A voter in doubt asks this node's member to stand."""
        uid, names = args
        asset = self._node.meta.streams_by_uid.get(uid)
        answer(errors.BAD_REQUEST() if asset is None else True)
        if asset is not None:
            self._stand_in(asset, names)

    def _stand_in(self, asset: StreamAsset, names: list[NodeId]) -> None:
        replica = self._node.replicas.get(asset.uid)
        if replica is not None and not replica.group.failure:
            everybody = frozenset((*names, *named_by(asset)))
            replica.monitor.post((g.STAND_IN, everybody, None, None))


def _nothing() -> None:
    """It is asked again."""


def _ignore(answer: Any) -> None:
    """What comes of it shows in who leads."""
