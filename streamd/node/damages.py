"""What was found wrong with this node's copies of streams, and what becomes of it.

A damaged replica is made anew from its peers, but only while another node leads the stream: so
that somebody is known to have it whole. A leader hands over first. Where that can't be, what is
left of this copy goes on serving, and the node says so until it is repaired, or until an operator
has deleted what can't be read (node/unreadable.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.errors import StreamdError
from streamd.types import META_UID, Uid

if TYPE_CHECKING:
    from streamd.node.node import Node


class Damages:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.damage_count = 0  # damaged or missing files found
        self.conflict_count = 0  # files or snapshots of another incarnation met
        self.reasons: dict[Uid, str] = {}  # of streams that are damaged here and not yet repaired
        self.conflicts: dict[Uid, str] = {}  # of streams that wait for a peer's files instead
        self.log_fault = ""  # of the log, as long as the next start would meet it

    def start(self) -> None:
        """Look now and then whether what could not be repaired can be by now."""
        self._node.again("damages", limits.DAMAGES_EVERY_S, self._look)

    def on_damaged(self, uid: Uid, err: StreamdError, is_new: bool = True) -> None:
        """A block of the newest state is missing or bad on this disk; or (not `is_new`) less of it
        than before."""
        node = self._node
        group = node.group_of(uid)
        if uid == META_UID or group is None or group.failure:
            return
        is_told = self.reasons.get(uid) == str(err)
        self.reasons[uid] = str(err)
        if not is_new:
            return
        self.damage_count += 1
        if len(group.raft.members.voters) > 1:
            if not is_told:
                node.error("block is damaged", group=uid, reason=str(err))
            self._repair(uid)
        elif not is_told:
            # Nobody has another copy: what is left of this one goes on serving.
            node.error("block is damaged, and there is no other copy", reason=str(err))

    def on_void_snapshot(self, uid: Uid, reason: str) -> None:
        """A snapshot's file is damaged or gone, of a group that runs and can write it again."""
        self.damage_count += 1
        self._node.error("snapshot is damaged, and written again", group=uid, reason=reason)

    def on_damaged_log(self, reason: str) -> None:
        """Part of the log can't be read: begin another. All it says is in memory; snapshots will
        say it before the damaged one goes."""
        self.damage_count += 1
        self.log_fault = reason
        self._node.error("log is damaged, and begun anew", reason=reason)
        self._node.wal.renew()

    def on_mended(self, uid: Uid) -> None:
        """Nothing that the stream holds is unreadable here any more."""
        if self.reasons.pop(uid, ""):
            self._node.info("all that is stored can be read again", group=uid)

    def on_conflict(self, uid: Uid, text: str) -> None:
        """Something of another incarnation was where this one's belongs. It is not used."""
        self.conflict_count += 1
        self.conflicts[uid] = text
        self._node.error("another incarnation of a stream", group=uid, reason=text)

    def forget(self, uid: Uid) -> None:
        """The replica begins anew, or is gone."""
        self.reasons.pop(uid, None)
        self.conflicts.pop(uid, None)

    def _look(self) -> None:
        if self.log_fault and not self._node.wal.is_renewing:
            self.log_fault = ""
            self._node.info("the log is whole again")
        for uid in list(self.reasons):
            group = self._node.group_of(uid)
            if group is not None and not group.failure and len(group.raft.members.voters) > 1:
                self._repair(uid)

    def _repair(self, uid: Uid) -> None:
        node = self._node
        leader = node.leader_of(uid)
        if leader == node.server_name:
            node.step_down(uid, "", partial(self._handed_over, uid))
        elif leader:
            self._begin_anew(uid)

    def _handed_over(self, uid: Uid, outcome: Any) -> None:
        if outcome is True and uid in self.reasons:
            self._begin_anew(uid)

    def _begin_anew(self, uid: Uid) -> None:
        self._node.replicas.repair(uid, self.reasons.pop(uid))
