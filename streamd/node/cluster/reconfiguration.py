"""`Reconfiguration`: takes groups led here, step by step, to the members they should have.

`reconfiguration_steps` says what the next step is, and which members are wrong; here it is asked
for every group, when a step is committed or a learner is ready, and again and again until nothing
is left to do. A member in memory with the wrong ones is opened again. As long as a stream has too
few voters for its acks to be on a majority of the disks that are asked for, that is told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from streamd import limits
from streamd.callbacks import ignore
from streamd.machine import commands
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.node_facts import NodeFacts
from streamd.node.cluster.reconfiguration_steps import (
    ack_disk_count,
    has_wrong_members,
    next_membership,
    quorum_of,
)
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.identity.amnesia import Amnesia
from streamd.node.meta_group.meta_proposals import MetaProposals
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.core import RaftCore
from streamd.raft.membership import Membership
from streamd.types import META_UID, NodeId, Uid

Tell = Callable[[str, dict[str, object]], None]


class _Shortage(NamedTuple):
    """Acks of a stream that are on fewer disks than wanted."""

    found: int
    since_ms: int
    is_logged: bool


class Reconfiguration:
    """Membership changes of the groups that one node leads.

    `reopen(uid)` opens a replica again, with the members that the meta group knows.
    """

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        facts: NodeFacts,
        amnesia: Amnesia,
        proposals: MetaProposals,
        reopen: Callable[[Uid], None],
    ) -> None:
        self._context = context
        self._groups = groups
        self._facts = facts
        self._amnesia = amnesia
        self._proposals = proposals
        self._reopen = reopen
        self._moving: set[Uid] = set()  # led here, and not yet with the members they should have
        self._short: dict[Uid, _Shortage] = {}  # led here, and acked on too few disks

    def check_all(self) -> None:
        """Carry on with changes of membership that are not finished."""
        for uid in sorted((self._moving | self._short.keys()) - {META_UID}):
            self.carry_on(uid)
        streams = self._groups.meta.streams_by_uid
        for uid in self._amnesia.opened_in_memory():
            replica, asset = self._groups.get(uid), streams.get(uid)
            if replica is not None and asset is not None:
                self.reopen_if_wrong(replica, asset)

    def carry_on(self, uid: Uid) -> None:
        """Take the next step of one group, if it is led here and there is one."""
        if uid == META_UID:
            if self._groups.is_meta_leader:
                self._check_meta()
            else:
                self._short.pop(uid, None)
            return
        replica = self._groups.get(uid)
        asset = self._groups.meta.streams_by_uid.get(uid)
        if replica is not None and replica.is_ready and asset is not None:
            self.check_stream(replica, asset)
        else:
            self._moving.discard(uid)
            self._short.pop(uid, None)

    def is_under_way(self, uid: Uid) -> bool:
        """True of a group that is led here and has not yet the members it should have."""
        if uid == META_UID:
            group = self._groups.meta_group
            return group is not None and self.meta_members() != {*group.raft.members.voters}
        return uid in self._moving

    def meta_members(self) -> set[NodeId]:
        """Return the members that the meta group should have: its voters and the nodes that are
        here, but for servers that were removed."""
        group = self._groups.meta_group
        voters = group.raft.members.voters if group is not None else ()
        return {*voters, *self._facts.known_members()} - self._groups.meta.out

    def _check_meta(self) -> None:
        group, monitor = self._groups.meta_group, self._groups.meta_monitor
        if group is not None and monitor is not None:
            raft = group.raft
            wanted = tuple(sorted(self.meta_members()))
            _propose_next(monitor, raft, wanted, are_all_wanted=False)
            tell = self._context.hooks.on_meta_event or ignore
            self._check_shortage(
                META_UID, raft.members, replica_count=len(wanted), tell=tell, name="_meta_"
            )

    def check_stream(self, replica: LocalStream, asset: StreamAsset) -> None:
        """Take the next step of a stream led here, if one is left; asked again until all is as the
        meta group wants it."""
        context = self._context
        if not context.is_clustered or not asset.peers:
            return
        raft = replica.group.raft
        self._moving.add(asset.uid)
        if _propose_next(replica.monitor, raft, asset.peers):
            members = raft.members
            is_settled = set(members.members()) == set(asset.peers) and not members.is_joint
            if is_settled and raft.log.membership_index <= raft.commit:
                if set(asset.members) == set(asset.peers):
                    self._moving.discard(asset.uid)
                else:
                    now_ns = context.env.clock.now_ns()
                    self._proposals.propose_anywhere(
                        [commands.MOVED, now_ns, asset.uid, list(asset.peers)]
                    )
        self._check_shortage(
            asset.uid,
            raft.members,
            replica_count=asset.config.get("num_replicas", 1),
            tell=partial(context.hooks.announce, replica),
            name=asset.name,
        )

    def _check_shortage(
        self, uid: Uid, members: Membership, *, replica_count: int, tell: Tell, name: str
    ) -> None:
        """Tell the rooms above when acks come to be on fewer disks than a majority of the replicas
        that are asked for, and when that is over; the log too, if it lasts."""
        log = self._context.log
        found, wanted = ack_disk_count(members), quorum_of(replica_count)
        known = self._short.get(uid)
        before = known.found if known is not None else wanted
        if before != min(found, wanted):
            tell("write_quorum", {"write_quorum": found, "write_quorum_wanted": wanted})
        if found >= wanted:
            if self._short.pop(uid, None) is not None and known is not None and known.is_logged:
                log.info(
                    "acknowledged messages are on enough disks again",
                    group=uid,
                    stream=name,
                    disks=found,
                )
            return
        now_ms = self._context.env.clock.monotonic_ms()
        since_ms = known.since_ms if known is not None else now_ms
        is_logged = known is not None and known.is_logged
        if not is_logged and now_ms - since_ms >= limits.SHORTAGE_LOGGED_MS:
            is_logged = True
            text = "acknowledged messages are on fewer disks than wanted"
            log.warn(text, group=uid, stream=name, disks=found, wanted=wanted)
        self._short[uid] = _Shortage(found, since_ms, is_logged)

    def reopen_if_wrong(self, replica: LocalStream, asset: StreamAsset) -> None:
        """Open a member in memory again if it has the wrong members: it learns from the meta group
        who belongs to its group by being opened."""
        if replica.is_file or replica.group.failure or replica.monitor.on_stopped:
            return  # or it is being closed
        now_ms = self._context.env.clock.monotonic_ms()
        if has_wrong_members(replica.group.raft, asset, now_ms):
            self._reopen(replica.uid)


def _propose_next(
    monitor: Monitor, raft: RaftCore, wanted: tuple[NodeId, ...], *, are_all_wanted: bool = True
) -> bool:
    """Propose the next step towards `wanted`; True if none is left."""
    step = next_membership(raft, wanted, are_all_wanted=are_all_wanted)
    if step is not None:
        monitor.post(inbox.ChangeMembers(list(step[0]), list(step[1])))
    return set(raft.members.voters) == set(wanted)
