"""`CorruptionRepair`: damage found in this node's copies of streams, and its repair.

A damaged block that is sealed is fetched from a peer and put in its place; nothing stops for that.
Any other damage, or a block of which peers have another, means a replica that is made anew from its
peers, but only while another node leads the stream, so that a whole copy is known to exist. A
leader transfers its leadership first. Where that can't be, what is left of this copy goes on
serving, and the node says so until it is repaired, or until an operator has deleted what can't be
read (node/integrity/unreadable.py).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from streamd import limits
from streamd.errors import StreamdError, is_passing
from streamd.node.cluster.leaders import Leaders
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.integrity.block_repair import DONE, NOWHERE, OTHER, VOID, BlockRepair
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.ports import Peers
from streamd.node.replicas.group_control import GroupControl
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import META_UID, Uid

_RUNNING = float("inf")  # as the time of the next try


class CorruptionRepair:
    """Damage of one node that is not repaired yet."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        peers: Peers | None,
        damage_log: DamageLog,
        control: GroupControl,
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._peers = peers
        self._damage_log = damage_log
        self._control = control
        self.reasons: dict[Uid, str] = {}  # of streams that are damaged here and not yet repaired
        self._blocks: dict[Uid, dict[int, float]] = {}  # damaged ones, and when each is tried again
        self._tries: dict[tuple[Uid, int], int] = {}
        self._running_count = 0  # repairs of blocks
        self._whole: set[Uid] = set()  # replicas of which more than single blocks is wrong
        self.log_fault = ""  # of the log, as long as the next start would meet it
        self.repaired_count = 0  # damaged blocks that a peer's whole ones took the place of

    def start(self) -> None:
        """Try again, now and then, what could not be repaired."""
        self._context.timers.again("damages", limits.DAMAGES_EVERY_S, self._retry)

    def on_damaged(
        self, uid: Uid, err: StreamdError, is_new: bool = True, block_no: int = 0
    ) -> None:
        """Repair what is missing or bad of the newest state on this disk, in a block if one is
        named; `is_new` is False if it is less than before."""
        log = self._context.log
        if is_passing(err):
            log.warn("a file cannot be read at the moment", group=uid, reason=str(err))
            return
        group = self._groups.group_of(uid)
        if uid == META_UID or group is None or group.failure:
            return
        is_told = self.reasons.get(uid) == str(err)
        self.reasons[uid] = str(err)
        if not is_new:
            return
        self._damage_log.damage_count += not is_told
        if len(group.raft.members.voters) > 1:
            if not is_told:
                log.error("block is damaged", group=uid, reason=str(err))
            self._record_blocks(uid, block_no)
            self._repair(uid)
        elif not is_told:
            # No other copy exists: what is left of this one goes on serving.
            log.error("block is damaged, and there is no other copy", group=uid, reason=str(err))

    def _record_blocks(self, uid: Uid, block_no: int) -> None:
        """Record the damaged blocks: those whose messages could not be read, if none is named."""
        replica = self._groups.get(uid)
        assert replica is not None, uid
        named = {block_no} if block_no else replica.group.unreadable.block_nos
        is_growing = replica.machine.index.blocks.active.block_no in named
        if is_growing or not named or not replica.is_file:
            self._whole.add(uid)
        for no in named:
            self._blocks.setdefault(uid, {}).setdefault(no, 0)

    def on_void_identity(self, reason: str) -> None:
        """Write a file of the node's identity again that is damaged or gone. All it says is in
        memory."""
        self._damage_log.damage_count += 1
        self._context.log.error("node.json is damaged and is written again", reason=reason)
        with suppress(OSError):  # met again in the next round
            self._context.identity.write()

    def on_damaged_log(self, reason: str) -> None:
        """Begin another log, for part of this one can't be read. All it says is in memory;
        snapshots will say it before the damaged one goes."""
        if self.log_fault:
            return  # what this is about may be in what is retired already; else it is met again
        self._damage_log.damage_count += 1
        self.log_fault = reason
        self._context.log.error("log is damaged and a new one is begun", reason=reason)
        self._context.wal.renew()

    def on_mended(self, uid: Uid) -> None:
        """Clear the damage of a stream of which nothing is unreadable here any more."""
        if uid in self._whole or uid in self._blocks:
            return
        if self.reasons.pop(uid, ""):
            self._context.log.info("all messages of a stream can be read again", group=uid)

    def conflict(self, uid: Uid) -> str:
        """Say which other incarnation a stream's files here are of; "": none."""
        return self._damage_log.conflicts.get(uid, "")

    def forget(self, uid: Uid) -> None:
        """Remove a replica that begins anew, or is gone."""
        self.reasons.pop(uid, None)
        self._damage_log.forget(uid)
        self._whole.discard(uid)
        for no in self._blocks.pop(uid, ()):
            self._tries.pop((uid, no), None)

    def _retry(self) -> None:
        if self.log_fault and not self._context.wal.is_renewing:
            self.log_fault = ""
            self._context.log.info("the log is whole again")
        for uid in list(self.reasons):
            group = self._groups.group_of(uid)
            if group is not None and not group.failure and len(group.raft.members.voters) > 1:
                self._repair(uid)

    def _repair(self, uid: Uid) -> None:
        if uid in self._whole:
            self._repair_whole(uid)
            return
        replica = self._groups.get(uid)
        if replica is None or self._peers is None:
            return
        now_ms = self._context.env.clock.monotonic_ms()
        blocks = {block.block_no: block for block in replica.machine.index.blocks}
        for no, due_ms in list(self._blocks.get(uid, {}).items()):
            if no not in blocks:
                self._mended(replica, no)
            elif due_ms <= now_ms and self._running_count < limits.BLOCK_REPAIRS_MAX:
                self._blocks[uid][no] = _RUNNING
                self._running_count += 1
                BlockRepair(
                    self._context,
                    self._groups,
                    self._leaders,
                    self._peers,
                    replica,
                    blocks[no],
                    partial(self._on_repaired, replica, no),
                ).begin()

    def _on_repaired(self, replica: LocalStream, no: int, end: str) -> None:
        uid = replica.uid
        self._running_count -= 1
        if self._groups.get(uid) is not replica or no not in self._blocks.get(uid, {}):
            return  # the replica began anew meanwhile
        if end in (DONE, VOID):
            self._mended(replica, no)
            if end == DONE:
                self.repaired_count += 1
                self._context.log.info("block is repaired", group=uid, block=no)
                self._repair(uid)  # the next one
            return
        if end == OTHER:
            self._whole.add(uid)
        tries = self._tries[uid, no] = self._tries.get((uid, no), 0) + 1
        if end == NOWHERE and tries == 1:
            self._context.log.error(
                "no replica has an undamaged copy of the block", group=uid, block=no
            )
        delay_s = min(limits.DAMAGES_EVERY_S * 2 ** min(tries - 1, 10), limits.BLOCK_RETRY_S_MAX)
        self._blocks[uid][no] = self._context.env.clock.monotonic_ms() + delay_s * 1000

    def _mended(self, replica: LocalStream, no: int) -> None:
        """Clear a block that is whole, or not needed any more: then a snapshot that peers fetch
        should not name it."""
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
        leader = self._leaders.leader_of(uid)
        if leader == self._context.name:
            self._groups.step_down(uid, "", partial(self._handed_over, uid))
        elif leader:
            self._begin_anew(uid)

    def _handed_over(self, uid: Uid, outcome: object) -> None:
        if outcome is True and uid in self.reasons:
            self._begin_anew(uid)

    def _begin_anew(self, uid: Uid) -> None:
        reason = self.reasons[uid]
        self.forget(uid)
        self._control.repair(uid, reason)
