"""Changes of membership on their way: groups led here, taken step by step to their wanted members.

`rosters` says what the next step is, and who has the wrong members; here it is asked for every
group, when a step is committed or a learner is ready, and again and again until there is nothing
left to do. A member in memory with the wrong ones is opened again. As long as a stream has too few
voters for its acks to be on a majority of the disks that are asked for, that is told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from streamd import limits
from streamd.machine import commands
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.reconfiguration_steps import (
    ack_disk_count,
    has_wrong_members,
    next_roster,
    quorum_of,
)
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.membership import Membership
from streamd.types import META_UID, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


Tell = Callable[[str, dict[str, Any]], None]


class _Shortage(NamedTuple):
    """A stream's acks are on fewer disks than wanted."""

    found: int
    since_ms: int
    is_logged: bool


class Moves:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._moving: set[Uid] = set()  # led here, and not yet with the members they should have
        self._short: dict[Uid, _Shortage] = {}  # led here, and acked on too few disks

    def look(self) -> None:
        """Carry on with changes of membership that are not finished."""
        node = self._node
        node.replicas.departures.look()
        self.carry_on(META_UID)
        if node.is_meta_leader:
            node.removals.look_at_cluster()
        for uid in sorted((self._moving | self._short.keys()) - {META_UID}):
            self.carry_on(uid)
        for uid in node.amnesia.opened_in_memory():
            replica = node.replicas.get(uid)
            asset = node.meta.streams_by_uid.get(uid)
            if replica is not None and asset is not None:
                self.begin_anew_if_wrong(replica, asset)

    def carry_on(self, uid: Uid) -> None:
        """Take the next step of one group, if it is led here and there is one."""
        node = self._node
        if uid == META_UID:
            if node.is_meta_leader:
                self._look_at_meta()
            else:
                self._short.pop(uid, None)
            return
        replica = node.replicas.get(uid)
        asset = node.meta.streams_by_uid.get(uid)
        if replica is not None and replica.is_ready and asset is not None:
            self.look_at(replica, asset)
        else:
            self._moving.discard(uid)
            self._short.pop(uid, None)

    def is_under_way(self, uid: Uid) -> bool:
        """True of a group that is led here and has not yet the members it should have."""
        if uid == META_UID:
            group = self._node.meta_member.group
            return group is not None and meta_members(self._node) != {*group.raft.members.voters}
        return uid in self._moving

    def _look_at_meta(self) -> None:
        meta = self._node.meta_member
        if meta.group is not None and meta.monitor is not None:
            raft = meta.group.raft
            wanted = tuple(sorted(meta_members(self._node)))
            _move_on(meta.monitor, raft, wanted, are_all_wanted=False)
            tell = self._node.on_meta_event or _untold
            self._look_at_shortage(
                META_UID, raft.members, replica_count=len(wanted), tell=tell, name="_meta_"
            )

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
        self._look_at_shortage(
            asset.uid,
            raft.members,
            replica_count=asset.config.get("num_replicas", 1),
            tell=partial(self._node.replicas.announce, replica),
            name=asset.name,
        )

    def _look_at_shortage(
        self, uid: Uid, members: Membership, *, replica_count: int, tell: Tell, name: str
    ) -> None:
        """Tell whoever listens when acks come to be on fewer disks than a majority of the replicas
        that are asked for, and when that is over; the log too, if it lasts."""
        node = self._node
        found, wanted = ack_disk_count(members), quorum_of(replica_count)
        known = self._short.get(uid)
        before = known.found if known is not None else wanted
        if before != min(found, wanted):
            tell("write_quorum", {"write_quorum": found, "write_quorum_wanted": wanted})
        if found >= wanted:
            if self._short.pop(uid, None) is not None and known is not None and known.is_logged:
                node.info("acks are on enough disks again", group=uid, stream=name, disks=found)
            return
        now_ms = node.env.clock.monotonic_ms()
        since_ms = known.since_ms if known is not None else now_ms
        is_logged = known is not None and known.is_logged
        if not is_logged and now_ms - since_ms >= limits.SHORTAGE_LOGGED_MS:
            is_logged = True
            text = "acks are on fewer disks than wanted"
            node.warn(text, group=uid, stream=name, disks=found, wanted=wanted)
        self._short[uid] = _Shortage(found, since_ms, is_logged)

    def begin_anew_if_wrong(self, replica: LocalStream, asset: StreamAsset) -> None:
        """A member in memory learns from meta who belongs to its group by being opened again."""
        if replica.is_file or replica.group.failure or replica.monitor.on_stopped:
            return  # or it is being closed
        now_ms = self._node.env.clock.monotonic_ms()
        if has_wrong_members(replica.group.raft, asset, now_ms):
            self._node.replicas.reopen(replica.uid, before=lambda: None)


def meta_members(node: Node) -> set[NodeId]:
    """Who should belong to the meta group: its voters and the nodes that are here, but for servers
    that were removed."""
    group = node.meta_member.group
    voters = group.raft.members.voters if group is not None else ()
    return {*voters, *node.peering.known_members()} - node.meta.out


def _move_on(
    monitor: Monitor, raft: Any, wanted: tuple[NodeId, ...], *, are_all_wanted: bool = True
) -> bool:
    """Take the next step towards `wanted`; True if there is none left."""
    roster = next_roster(raft, wanted, are_all_wanted=are_all_wanted)
    if roster is not None:
        monitor.post(inbox.ChangeMembers(list(roster[0]), list(roster[1])))
    return set(raft.members.voters) == set(wanted)


def _untold(kind: str, fields: dict[str, Any]) -> None:
    """Nobody listens."""
