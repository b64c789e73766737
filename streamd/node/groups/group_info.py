"""What one group looks like from this node, for operators and for what asks about replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamd.node.cluster.reconfiguration import meta_members
from streamd.node.cluster.reconfiguration_steps import ack_disk_count, quorum_of
from streamd.types import META_UID, Index, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.groups.group import Group
    from streamd.node.local_node import Node


def group_info(node: Node, uid: Uid) -> dict[str, Any] | None:
    """See ports.NodeHandle."""
    group = node.group_of(uid)
    if group is None:
        return None
    status = group.raft.status()
    index, digest = node.peering.comparisons.latest(uid)
    state, reason = _state(node, uid, group, status)
    return {
        "raft_group": _group_name(node, uid, group),
        "leader": node.leader_of(uid),
        "leader_since_ns": node.replicas.led_since_ns(uid),
        "role": "stopped" if group.failure else status["role"],
        "term": status["term"],
        "commit": status["commit"],
        "applied": group.machine.applied,
        "last_index": status["last_index"],
        "last_term": group.raft.log.last_term,
        "vote": status["vote"],
        "first_index": group.raft.log.snapshot_index + 1,
        **_of_monitor(node, uid, group),
        "peers": _peers(node, group, status["peers"]),
        "is_changing": _is_changing(node, uid, group),
        "write_quorum": ack_disk_count(group.raft.members),
        "write_quorum_wanted": _write_quorum_wanted(node, uid),
        "state": state,
        "reason": reason,
        "digest": digest,
        "digest_index": index,
        "at_ms": node.env.clock.monotonic_ms(),
    }


def _of_monitor(node: Node, uid: Uid, group: Group) -> dict[str, Any]:
    """What waits for the group's turn, and what its next snapshot would cover."""
    monitor = node.monitor_of(uid)
    if monitor is None:
        return {}
    return {
        "waiting_count": monitor.waiting_count,
        "unsaved_count": max(0, group.machine.applied - group.snapshot_index),
        "unsaved_bytes": group.applied_bytes,
        "saved_ns": monitor.saved_ns,
        "saving_ns": monitor.saving_ns,
    }


def _peers(
    node: Node, group: Group, progress: dict[NodeId, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The other members; `progress` is what a leader knows of them, empty elsewhere.

    Only a voter is current: who waits for that before it stops the leader counts on its vote.
    """
    links = node.peers
    rows = []
    for name in group.raft.members.members():
        if name == node.server_name:
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


def _state(node: Node, uid: Uid, group: Group, status: dict[str, Any]) -> tuple[str, str]:
    """One word for how this member is, the gravest first; and why."""
    conflict = node.damages.conflicts.get(uid, "")
    damage = node.damages.reasons.get(uid, "")
    reason = group.failure or node.replicas.reasons.get(uid, "") or conflict
    if group.failure:
        return "failed", reason
    if conflict:
        return "conflict", reason
    if status["has_diverged"] or reason:
        return "diverged", reason
    if status["is_uncertain"]:
        return "uncertain", ""
    if status["is_incomplete"] or node.replicas.catch_ups.is_running(uid):
        return "recovering", ""
    if damage:
        return "damaged", damage
    if node.leader_of(uid) and not group.raft.is_leader and not _has_caught_up(group):
        return "recovering", ""
    if node.is_clustered and not group.raft.has_vote(node.server_name):
        return "learner", "it has no vote yet"
    return "ok", ""


def _has_caught_up(group: Group) -> bool:
    """True once a follower has applied all that was committed when it first heard its leader: its
    own log does not say how far that is."""
    first_commit: Index = group.raft.first_commit
    return bool(0 < first_commit <= group.machine.applied)


def _write_quorum_wanted(node: Node, uid: Uid) -> int:
    """A majority of the replicas that are asked for: on so many disks each ack should be."""
    if not node.is_clustered:
        return 1
    if uid == META_UID:
        return quorum_of(len(meta_members(node)))
    asset = node.meta.streams_by_uid.get(uid)
    return quorum_of(asset.config.get("num_replicas", 1) if asset is not None else 1)


def _is_changing(node: Node, uid: Uid, group: Group) -> bool:
    """True while a change of the group's members is under way."""
    members, log = group.raft.members, group.raft.log
    if members.is_joint or log.membership_index > group.raft.commit:
        return True
    return uid == META_UID and not node.meta.out.isdisjoint(members.members())


def _group_name(node: Node, uid: Uid, group: Group) -> str:
    if uid == META_UID:
        return "_meta_"
    count = len(group.raft.members.voters)
    replica = node.replicas.get(uid)
    storage = "F" if replica is None or replica.is_file else "M"
    return f"S-R{count}{storage}-{uid:08d}"
