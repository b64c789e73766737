"""Maintenance of a stream: what its leader does without being asked, a little in each turn.

Messages whose time is over expire, large removals go in steps, blocks that hold little are
rewritten, and the space of dead ones is given back. Messages that the disk does not give back are
known here too. None of this is urgent, and all of it is proposed: replicas do what the log says.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import errors, limits
from streamd.errors import StreamdError
from streamd.machine import commands
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.group_shell import GroupShell, Proposer
from streamd.node.groups.inbox import Propose, Tick
from streamd.node.groups.turn import Turn, TurnTime
from streamd.node.integrity.unreadable import Unreadable
from streamd.node.stream_groups.bulk_delete import BulkDelete
from streamd.node.stream_groups.compaction import Compaction
from streamd.node.stream_groups.stream_hooks import StreamHooks
from streamd.node.stream_groups.stream_inbox import BlockReadable, UnreadableFound
from streamd.types import Seq


class Maintenance:
    """Order in what one stream stores. Most of it runs on the leader only."""

    def __init__(
        self,
        machine: StreamMachine,
        blocks: BlockPort,
        proposer: Proposer,
        shell: GroupShell,
        hooks: StreamHooks,
        now: TurnTime,
        *,
        has_room: Callable[[int], bool],
    ) -> None:
        self._machine = machine
        self._blocks = blocks
        self._proposer = proposer
        self._shell = shell
        self._hooks = hooks
        self._now = now
        self._has_room = has_room
        self._reclaim_at_ms = 0  # not before then: a snapshot, because the disk is full
        self._dead_blocks_at_ms = 0  # nor before then, because much of what it holds is dead
        self._is_snapshot_wanted = False  # in this turn
        self._expiry_at_ns = 0  # 0: not looked up since something changed
        self._is_expiry_proposed = False
        self._compaction = Compaction(
            machine.index,
            blocks,
            self._propose_rewrite,
            wake=self._wake,
        )
        self.bulk_delete = BulkDelete(
            machine,
            propose=lambda command, done: shell.post(Propose(command, done, is_forced=False)),
            wake=self._wake,
        )
        self.unreadable = Unreadable(
            machine.index,
            blocks,
            machine.name,
            on_found=self._on_unreadable_found,
            on_over=lambda: shell.call_soon(hooks.on_mended),
            renew=self._compaction.renew,
        )

    def release(self) -> None:
        """Cut what leads back here: the group is not needed any more."""
        self.unreadable.let_go()
        del self._compaction, self.bulk_delete

    # --- the turn ---------------------------------------------------------------------------

    def poll(self, turn: Turn, *, is_ready: bool, has_unsaved: bool) -> None:
        """Run what is due. `has_unsaved`: a snapshot would cover something new."""
        now = self._now
        if is_ready:
            self._poll_expiry(turn)
            self._compaction.tick(now.ms)
            bulk_delete = self.bulk_delete
            if bulk_delete.owes_sweep:
                bulk_delete.sweep()
            if bulk_delete.is_due:
                bulk_delete.go_on(now.ns)
        reclaimable_bytes = self._blocks.reclaimable_bytes
        if reclaimable_bytes >= limits.RECLAIM_BYTES:
            self._poll_dead_blocks(turn, is_ready=is_ready, has_unsaved=has_unsaved)
        if reclaimable_bytes and not is_ready:
            self._reclaim_if_short(turn, has_unsaved=has_unsaved)
        if self._is_snapshot_wanted:
            self._is_snapshot_wanted = False
            turn.snapshot_wanted = True

    def deadline_ms(self, *, is_ready: bool) -> int:
        """Return when `poll` has something to do, monotonic ms; 0: never."""
        now = self._now
        earliest = 0
        if self._blocks.reclaimable_bytes >= limits.RECLAIM_BYTES:
            if self._dead_blocks_at_ms > now.ms:
                earliest = self._dead_blocks_at_ms
        if is_ready:
            due_ms = self._compaction.deadline_ms()
            if due_ms and (not earliest or due_ms < earliest):
                earliest = due_ms
        if self._expiry_at_ns:
            due_ms = now.ms + max(0, self._expiry_at_ns - now.ns) // 1_000_000 + 1
            if not earliest or due_ms < earliest:
                earliest = due_ms
        return earliest

    def on_leader_ready(self) -> None:
        """Begin as leader."""
        self._compaction.restart()
        self.bulk_delete.sweep()  # the leader before may not have come to it

    def on_leadership_lost(self) -> None:
        """End as leader: removals in steps are refused, and go on nowhere."""
        for done in self.bulk_delete.stop():
            self._shell.call_soon(done, errors.CLUSTER_NOT_AVAIL())
        self.forget_expiry()

    def on_saved(self) -> None:
        """A snapshot is durable."""
        self._dead_blocks_at_ms = self._now.ms + limits.RECLAIM_AFTER_MS

    def _wake(self) -> None:
        self._shell.post(Tick())

    # --- expiry -----------------------------------------------------------------------------

    def forget_expiry(self) -> None:
        """Look up anew what expires next: messages left, or the config is another."""
        self._expiry_at_ns = 0
        self._is_expiry_proposed = False

    def _poll_expiry(self, turn: Turn) -> None:
        """Propose that messages whose time is over expire; the leader alone has the clock."""
        if self._is_expiry_proposed:
            return
        machine, now_ns = self._machine, self._now.ns
        if self._expiry_at_ns == 0:
            self._expiry_at_ns = machine.next_expiry_ns()
        elif 0 < machine.content.expiry.fresh_ns < self._expiry_at_ns:
            self._expiry_at_ns = machine.content.expiry.fresh_ns
        if self._expiry_at_ns and self._expiry_at_ns <= now_ns:
            command = machine.plan_expiry(now_ns)
            # Without one: what was to expire has left already, or is behind many that have.
            self._expiry_at_ns = machine.next_expiry_ns() if command is None else 0
            if command is not None:
                self._is_expiry_proposed = self._proposer.propose(command, None)
                turn.more = self._is_expiry_proposed
                if not self._is_expiry_proposed:
                    self._expiry_at_ns = now_ns + limits.EXPIRY_RETRY_NS

    # --- blocks -----------------------------------------------------------------------------

    def reclaim(self) -> None:
        """Give back space, for the disk is full: blocks that a purge emptied are unlinked by the
        second snapshot without them."""
        now_ms = self._now.ms
        if now_ms >= self._reclaim_at_ms:
            self._reclaim_at_ms = now_ms + limits.RECLAIM_EVERY_MS
            self._propose_checkpoint()
            self._is_snapshot_wanted = True

    def _reclaim_if_short(self, turn: Turn, *, has_unsaved: bool) -> None:
        """Give back space at a follower too, which hears of no refusal: what its leader lets in
        again as soon as there is room at the leader, it must store as well."""
        now_ms = self._now.ms
        if now_ms < self._reclaim_at_ms:
            return
        self._reclaim_at_ms = now_ms + limits.RECLAIM_EVERY_MS
        if has_unsaved and self._hooks.is_disk_short():
            turn.snapshot_wanted = True

    def _poll_dead_blocks(self, turn: Turn, *, is_ready: bool, has_unsaved: bool) -> None:
        """Give back what a purge emptied: such blocks are unlinked by the second snapshot without
        them, which is long in coming where little is stored."""
        now_ms = self._now.ms
        if now_ms < self._dead_blocks_at_ms:
            return
        if has_unsaved:
            self._dead_blocks_at_ms = now_ms + limits.RECLAIM_AFTER_MS
            turn.snapshot_wanted = True
        elif is_ready and self._proposer.is_all_applied(self._machine.applied):
            # A snapshot needs something new to cover.
            turn.more = self._propose_checkpoint()
            if not turn.more:
                self._dead_blocks_at_ms = now_ms + limits.RECLAIM_AFTER_MS

    def _propose_checkpoint(self) -> bool:
        machine = self._machine
        command = [commands.CHECKPOINT, self._now.ns, machine.applied, machine.digest]
        return self._proposer.propose(command, None)

    def _propose_rewrite(
        self,
        block_nos: list[int],
        ranges: list[Seq],
        records: bytes,
        done: Callable[[bool | errors.StreamdError], None],
    ) -> None:
        """Propose, in a turn, that one block takes the place of others."""
        if not self._has_room(len(records)):
            self._shell.call_soon(done, errors.INSUFFICIENT_RESOURCES())
            return
        command = [commands.REWRITE, self._now.ns, block_nos, ranges, records]
        self._shell.post(Propose(command, done, is_forced=False))

    # --- what the disk does not give back -----------------------------------------------------

    def on_unreadable(self, message: UnreadableFound) -> None:
        """Messages of a block were read in vain."""
        self.unreadable.note(message.block_no, message.seqs, message.reason)

    def on_readable(self, message: BlockReadable) -> None:
        """The whole of a block could be read."""
        self.unreadable.note_readable(message.block_no)

    def _on_unreadable_found(self, err: StreamdError, is_new: bool) -> None:
        self._shell.call_soon(self._hooks.on_damaged, err, is_new, 0)
