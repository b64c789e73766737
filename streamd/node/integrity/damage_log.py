"""`DamageLog`: counts damage found on this node's disks, and tells the operator of it."""

from __future__ import annotations

from streamd.node.context import NodeLog
from streamd.types import META_UID, Uid


class DamageLog:
    """Damage that one node has found since its start."""

    def __init__(self, log: NodeLog) -> None:
        self._log = log
        self.damage_count = 0  # damaged or missing files found
        self.conflict_count = 0  # files or snapshots of another incarnation met
        self.conflicts: dict[Uid, str] = {}  # of streams that wait for a peer's files instead

    def found_at_start(self, reason: str, uid: Uid = META_UID) -> None:
        """Record what was damaged or missing when this process began, and is made good."""
        self.damage_count += 1
        facts = {"group": uid} if uid != META_UID else {}
        self._log.warn("damage found at the start", **facts, reason=reason)

    def found_void_snapshot(self, uid: Uid, reason: str) -> None:
        """Record that a snapshot's file is damaged or gone, of a group that runs and can write it
        again."""
        self.damage_count += 1
        self._log.error("snapshot is damaged and is written again", group=uid, reason=reason)

    def found_conflict(self, uid: Uid, text: str) -> None:
        """Record that files of another incarnation were where this one's belong. They are not
        used."""
        self.conflict_count += 1
        self.conflicts[uid] = text
        self._log.error(
            "files of another stream of the same name are not used", group=uid, reason=text
        )

    def forget(self, uid: Uid) -> None:
        """Remove a replica that begins anew, or is gone."""
        self.conflicts.pop(uid, None)
