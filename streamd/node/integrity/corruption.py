"""What was found wrong with this node's copies of streams, and what becomes of it.

A damaged block that is sealed is fetched from a peer and put in its place; nothing stops for that.
Any other damage, or a block of which peers have another, means a replica that is made anew from its
peers, but only while another node leads the stream: so that somebody is known to have it whole. A
leader hands over first. Where that can't be, what is left of this copy goes on serving, and the
node says so until it is repaired, or until an operator has deleted what can't be read
(node/integrity/unreadable.py).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.errors import StreamdError, is_passing
from streamd.node.groups import inbox
from streamd.node.identity import store_directory
from streamd.node.integrity.block_repair import DONE, NOWHERE, OTHER, VOID, BlockRepair
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import META_UID, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node

_RUNNING = float("inf")  # as the time of the next try


class Damages:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.damage_count = 0  # damaged or missing files found
        self.conflict_count = 0  # files or snapshots of another incarnation met
        self.reasons: dict[Uid, str] = {}  # of streams that are damaged here and not yet repaired
        self.conflicts: dict[Uid, str] = {}  # of streams that wait for a peer's files instead
        self._blocks: dict[Uid, dict[int, float]] = {}  # damaged ones, and when each is tried again
        self._tries: dict[tuple[Uid, int], int] = {}
        self._running_count = 0  # repairs of blocks
        self._whole: set[Uid] = set()  # replicas of which more than single blocks is wrong
        self.log_fault = ""  # of the log, as long as the next start would meet it

    def start(self) -> None:
        """Look now and then whether what could not be repaired can be by now."""
        self._node.timers.again("damages", limits.DAMAGES_EVERY_S, self._look)

    def on_damaged(
        self, uid: Uid, err: StreamdError, is_new: bool = True, block_no: int = 0
    ) -> None:
        """Something of the newest state is missing or bad on this disk, in a block if one is named;
        or (not `is_new`) less of it than before."""
        node = self._node
        if is_passing(err):
            node.warn("could not be read for now", group=uid, reason=str(err))
            return
        group = node.group_of(uid)
        if uid == META_UID or group is None or group.failure:
            return
        is_told = self.reasons.get(uid) == str(err)
        self.reasons[uid] = str(err)
        if not is_new:
            return
        self.damage_count += not is_told
        if len(group.raft.members.voters) > 1:
            if not is_told:
                node.error("block is damaged", group=uid, reason=str(err))
            self._note(uid, block_no)
            self._repair(uid)
        elif not is_told:
            # Nobody has another copy: what is left of this one goes on serving.
            node.error("block is damaged, and there is no other copy", reason=str(err))

    def _note(self, uid: Uid, block_no: int) -> None:
        """Which blocks is it? Those whose messages could not be read, if none is named."""
        replica = self._node.replicas.get(uid)
        assert replica is not None, uid
        named = {block_no} if block_no else replica.group.unreadable.block_nos
        is_growing = replica.machine.index.active.block_no in named
        if is_growing or not named or not replica.is_file:
            self._whole.add(uid)
        for no in named:
            self._blocks.setdefault(uid, {}).setdefault(no, 0)

    def on_found_at_start(self, reason: str, uid: Uid = META_UID) -> None:
        """Something was damaged or missing when this process began, and is made good."""
        self.damage_count += 1
        facts = {"group": uid} if uid != META_UID else {}
        self._node.warn("damage found at the start", **facts, reason=reason)

    def on_void_identity(self, reason: str) -> None:
        """A file of the node's identity is damaged or gone. All it says is in memory."""
        node = self._node
        self.damage_count += 1
        node.error("node.json is damaged, and written again", reason=reason)
        with suppress(OSError):  # met again in the next round
            store_directory.save_identity(node.root, node.env.disk, node.identity)

    def on_void_snapshot(self, uid: Uid, reason: str) -> None:
        """A snapshot's file is damaged or gone, of a group that runs and can write it again."""
        self.damage_count += 1
        self._node.error("snapshot is damaged, and written again", group=uid, reason=reason)

    def on_damaged_log(self, reason: str) -> None:
        """Part of the log can't be read: begin another. All it says is in memory; snapshots will
        say it before the damaged one goes."""
        if self.log_fault:
            return  # what this is about may be in what is given up already; else it is met again
        self.damage_count += 1
        self.log_fault = reason
        self._node.error("log is damaged, and begun anew", reason=reason)
        self._node.wal.renew()

    def on_mended(self, uid: Uid) -> None:
        """Nothing that the stream holds is unreadable here any more."""
        if uid in self._whole or uid in self._blocks:
            return
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
        self._whole.discard(uid)
        for no in self._blocks.pop(uid, ()):
            self._tries.pop((uid, no), None)

    def _look(self) -> None:
        if self.log_fault and not self._node.wal.is_renewing:
            self.log_fault = ""
            self._node.info("the log is whole again")
        for uid in list(self.reasons):
            group = self._node.group_of(uid)
            if group is not None and not group.failure and len(group.raft.members.voters) > 1:
                self._repair(uid)

    def _repair(self, uid: Uid) -> None:
        if uid in self._whole:
            self._repair_whole(uid)
            return
        replica = self._node.replicas.get(uid)
        if replica is None:
            return
        now_ms = self._node.env.clock.monotonic_ms()
        blocks = {block.block_no: block for block in replica.machine.index.blocks}
        for no, due_ms in list(self._blocks.get(uid, {}).items()):
            if no not in blocks:
                self._mended(replica, no)
            elif due_ms <= now_ms and self._running_count < limits.BLOCK_REPAIRS_MAX:
                self._blocks[uid][no] = _RUNNING
                self._running_count += 1
                over = partial(self._over, replica, no)
                BlockRepair(self._node, replica, blocks[no], over).begin()

    def _over(self, replica: LocalStream, no: int, end: str) -> None:
        uid = replica.uid
        self._running_count -= 1
        if self._node.replicas.get(uid) is not replica or no not in self._blocks.get(uid, {}):
            return  # the replica began anew meanwhile
        if end in (DONE, VOID):
            self._mended(replica, no)
            if end == DONE:
                self._node.info("block is repaired", group=uid, block=no)
                self._repair(uid)  # the next one
            return
        if end == OTHER:
            self._whole.add(uid)
        tries = self._tries[uid, no] = self._tries.get((uid, no), 0) + 1
        if end == NOWHERE and tries == 1:
            self._node.error("no replica has the block whole", group=uid, block=no)
        delay_s = min(limits.DAMAGES_EVERY_S * 2 ** min(tries - 1, 10), limits.BLOCK_RETRY_S_MAX)
        self._blocks[uid][no] = self._node.env.clock.monotonic_ms() + delay_s * 1000

    def _mended(self, replica: LocalStream, no: int) -> None:
        """The block is whole, or not needed any more: then who fetches a snapshot should not be
        given one that still names it."""
        uid = replica.uid
        if all(block.block_no != no for block in replica.machine.index.blocks):
            replica.monitor.post(inbox.SnapshotWanted())
        self._blocks[uid].pop(no, None)
        self._tries.pop((uid, no), None)
        replica.report_whole(no)
        if not self._blocks[uid]:
            del self._blocks[uid]
            if not replica.unreadable:
                self.on_mended(uid)

    def _repair_whole(self, uid: Uid) -> None:
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
        reason = self.reasons[uid]
        self.forget(uid)
        self._node.replicas.repair(uid, reason)
