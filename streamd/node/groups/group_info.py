"""`GroupInfos`: facts about one group on this node, for operators and for cluster decisions."""

from __future__ import annotations

from typing import Any

from streamd.node.catchup.service import CatchupService
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.reconfiguration import Reconfiguration
from streamd.node.cluster.reconfiguration_steps import ack_disk_count, quorum_of
from streamd.node.context import NodeContext
from streamd.node.groups.group import Group
from streamd.node.integrity.consistency_check import ConsistencyCheck
from streamd.node.integrity.corruption import CorruptionRepair
from streamd.node.ports import GroupInfo, MemberInfo, MonitorInfo, Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.replica_table import ReplicaTable
from streamd.types import META_UID, Index, NodeId, Uid


class GroupHealth:
    """Judgement on how a member of a group is, in one word and with the reason."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        table: ReplicaTable,
        catchups: CatchupService,
        corruption: CorruptionRepair,
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._table = table
        self._catchups = catchups
        self._corruption = corruption

    def state(self, uid: Uid, group: Group, status: dict[str, Any]) -> tuple[str, str]:
        """Return one word for how this node's member is, the gravest first; and why."""
        conflict = self._corruption.conflict(uid)
        damage = self._corruption.reasons.get(uid, "")
        reason = group.failure or self._table.reasons.get(uid, "") or conflict
        if group.failure:
            return "failed", reason
        if conflict:
            return "conflict", reason
        if status["has_diverged"] or reason:
            return "diverged", reason
        if status["is_uncertain"]:
            return "uncertain", ""
        if status["is_incomplete"] or self._catchups.is_running(uid):
            return "recovering", ""
        if damage:
            return "damaged", damage
        is_led = bool(self._leaders.leader_of(uid))
        if is_led and not group.raft.is_leader and not _has_caught_up(group):
            return "recovering", ""
        if self._context.is_clustered and not group.raft.has_vote(self._context.name):
            return "learner", "it has no vote yet"
        return "ok", ""


class GroupInfos:
    """Facts about the groups of one node."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        peers: Peers | None,
        consistency: ConsistencyCheck,
        reconfiguration: Reconfiguration,
        health: GroupHealth,
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._peers = peers
        self._consistency = consistency
        self._reconfiguration = reconfiguration
        self._health = health

    def of(self, uid: Uid, led_since_ns: int) -> GroupInfo | None:
        """Return facts about this node's member of a group; see ports.NodeHandle.group_info."""
        group = self._groups.group_of(uid)
        if group is None:
            return None
        status = group.raft.status()
        index, digest = self._consistency.latest(uid)
        state, reason = self._health.state(uid, group, status)
        return {
            "raft_group": self._group_name(uid, group),
            "leader": self._leaders.leader_of(uid),
            "leader_since_ns": led_since_ns,
            "role": "stopped" if group.failure else status["role"],
            "term": status["term"],
            "commit": status["commit"],
            "applied": group.machine.applied,
            "last_index": status["last_index"],
            "last_term": group.raft.log.last_term,
            "vote": status["vote"],
            "first_index": group.raft.log.snapshot_index + 1,
            **self._of_monitor(uid, group),
            "peers": self._peer_rows(group, status["peers"]),
            "is_changing": self._is_changing(uid, group),
            "write_quorum": ack_disk_count(group.raft.members),
            "write_quorum_wanted": self._write_quorum_wanted(uid),
            "rescue_quorum": group.raft.rescue_quorum,
            "state": state,
            "reason": reason,
            "digest": digest,
            "digest_index": index,
            "agreement": self._consistency.agreement(uid),
            "at_ms": self._context.env.clock.monotonic_ms(),
        }

    def _of_monitor(self, uid: Uid, group: Group) -> MonitorInfo:
        """Return what waits for the group's turn, and what its next snapshot would cover."""
        monitor = self._groups.monitor_of(uid)
        if monitor is None:
            return {}
        return {
            "waiting_count": monitor.waiting_count,
            "unsaved_count": max(0, group.machine.applied - group.snapshot_index),
            "unsaved_bytes": group.applied_bytes,
            "saved_ns": monitor.saved_ns,
            "saving_ns": monitor.saving_ns,
        }

    def _peer_rows(self, group: Group, progress: dict[NodeId, dict[str, Any]]) -> list[MemberInfo]:
        """Return a row for each other member; `progress` is what a leader knows of them, empty
        elsewhere.

        Only a voter is current: an operator who waits for that before stopping the leader counts
        on its vote.
        """
        links = self._peers
        rows: list[MemberInfo] = []
        for name in group.raft.members.members():
            if name == self._context.name:
                continue
            known = progress.get(name, {})
            is_up = links is not None and links.is_up(name)
            lag = max(0, group.raft.last_index - known["match"]) if known else 0
            rows.append(
                {
                    "name": name,
                    "current": is_up
                    and group.raft.has_vote(name)
                    and (not known or (known["state"] == "replicate" and lag <= 1000))
                    and not known.get("is_uncertain", False)
                    and not known.get("needs_snapshot", False),
                    "offline": not is_up,
                    "active_ns": max(0, known.get("heard_ms_ago", 0)) * 1_000_000,
                    "lag": lag,
                    "is_voter": group.raft.members.is_voter(name),
                }
            )
        return rows

    def _write_quorum_wanted(self, uid: Uid) -> int:
        """Return a majority of the replicas that are asked for: each ack should be on so many
        disks."""
        if not self._context.is_clustered:
            return 1
        if uid == META_UID:
            return quorum_of(len(self._reconfiguration.meta_members()))
        asset = self._groups.meta.streams_by_uid.get(uid)
        return quorum_of(asset.config.get("num_replicas", 1) if asset is not None else 1)

    def _is_changing(self, uid: Uid, group: Group) -> bool:
        """True while a change of the group's members is under way."""
        members, log = group.raft.members, group.raft.log
        if members.is_joint or log.membership_index > group.raft.commit:
            return True
        return uid == META_UID and not self._groups.meta.out.isdisjoint(members.members())

    def _group_name(self, uid: Uid, group: Group) -> str:
        if uid == META_UID:
            return "_meta_"
        count = len(group.raft.members.voters)
        replica = self._groups.get(uid)
        storage = "F" if replica is None or replica.is_file else "M"
        return f"S-R{count}{storage}-{uid:08d}"


def _has_caught_up(group: Group) -> bool:
    """True once a follower has applied all that was committed when it first heard its leader: its
    own log does not say how far that is."""
    first_commit: Index = group.raft.first_commit
    return bool(0 < first_commit <= group.machine.applied)
