"""Changes of membership on their way: groups led here, taken step by step to their wanted members.

`rosters` says what the next step is, and who has the wrong members; here it is asked for every
group, again and again until there is nothing left to do. A member in memory with the wrong ones is
opened again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamd.machine import commands
from streamd.machine.meta import StreamAsset
from streamd.node import group as g
from streamd.node.monitor import Monitor
from streamd.node.rosters import has_wrong_members, next_roster
from streamd.node.stream_handle import LocalStream
from streamd.types import NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.node import Node


class Moves:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._moving: set[Uid] = set()  # led here, and not yet with the members they should have

    def look(self) -> None:
        """Carry on with changes of membership that are not finished."""
        node = self._node
        node.replicas.departures.look()
        meta = node.meta_member
        if node.is_meta_leader and meta.group is not None and meta.monitor is not None:
            raft = meta.group.raft
            names = {*raft.members.voters, *node.peering.known_members()} - node.meta.out
            _move_on(meta.monitor, raft, tuple(sorted(names)))
            node.removals.look_at_cluster()
        for uid in sorted(self._moving):
            replica = node.replicas.get(uid)
            asset = node.meta.streams_by_uid.get(uid)
            if replica is not None and replica.is_ready and asset is not None:
                self.look_at(replica, asset)
            else:
                self._moving.discard(uid)
        for uid in node.amnesia.opened_in_memory():
            replica = node.replicas.get(uid)
            asset = node.meta.streams_by_uid.get(uid)
            if replica is not None and asset is not None:
                self.begin_anew_if_wrong(replica, asset)

    def look_at(self, replica: LocalStream, asset: StreamAsset) -> None:
        """As leader: take the next step, if one is left; seen again until all is as meta wants
        it."""
        if not self._node.is_clustered or not asset.peers:
            return
        raft = replica.group.raft
        self._moving.add(asset.uid)
        if _move_on(replica.monitor, raft, asset.peers):
            members = raft.members
            is_settled = set(members.members()) == set(asset.peers) and not members.is_joint
            if is_settled and raft.log.membership_index <= raft.commit:
                if set(asset.members) == set(asset.peers):
                    self._moving.discard(asset.uid)
                else:
                    now_ns = self._node.env.clock.now_ns()
                    self._node.meta_member.propose_anywhere(
                        [commands.MOVED, now_ns, asset.uid, list(asset.peers)]
                    )

    def begin_anew_if_wrong(self, replica: LocalStream, asset: StreamAsset) -> None:
        """A member in memory learns from meta who belongs to its group by being opened again."""
        if replica.is_file or replica.group.failure or replica.monitor.on_stopped:
            return  # or it is being closed
        now_ms = self._node.env.clock.monotonic_ms()
        if has_wrong_members(replica.group.raft, asset, now_ms):
            self._node.replicas.reopen(replica.uid, before=lambda: None)


def _move_on(monitor: Monitor, raft: Any, wanted: tuple[NodeId, ...]) -> bool:
    """Take the next step towards `wanted`; True if there is none left."""
    roster = next_roster(raft, wanted)
    if roster is not None:
        monitor.post((g.MEMBERS, list(roster[0]), list(roster[1]), None))
    return set(raft.members.voters) == set(wanted)
