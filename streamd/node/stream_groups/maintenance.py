"""A stream's maintenance: what its leader does without being asked, a little in each turn.

Messages whose time is over expire, large removals go in steps, blocks that hold little are
rewritten, and the space of dead ones is given back. What the disk does not give back is known here
too. Nothing of this is urgent, and all of it is proposed: replicas do what the log says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups import inbox
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.group import Group, Turn
from streamd.node.integrity.unreadable import Unreadable
from streamd.node.stream_groups import stream_inbox
from streamd.node.stream_groups.bulk_delete import Trimmer
from streamd.node.stream_groups.compaction import Rewriter
from streamd.raft.core import RaftCore
from streamd.types import Index, Seq, Uid


class StreamMaintenance(Group):
    """The part of `StreamGroup` that keeps order in what is stored."""

    machine: StreamMachine

    def __init__(
        self,
        *,
        uid: Uid,
        raft: RaftCore,
        machine: StreamMachine,
        blocks: BlockPort,
        snapshot_index: Index,
        has_room: Callable[[int], bool],
        all_know: Callable[[str], bool],
    ) -> None:
        super().__init__(
            uid=uid, raft=raft, machine=machine, blocks=blocks, snapshot_index=snapshot_index
        )
        self.post: Callable[[inbox.InboxMessage], None] = lambda message: None
        self._has_room = has_room
        self.is_disk_short: Callable[[], bool] = lambda: False
        self._reclaim_at_ms = 0  # not before then: a snapshot, because the disk is full
        self._dead_blocks_at_ms = 0  # nor before then, because much of what it holds is dead
        self._rewriter = Rewriter(
            machine.index,
            blocks,
            self._post_rewrite,
            may_rewrite=lambda: all_know("rewrites"),
            wake=self._wake,
        )
        self._trimmer = Trimmer(
            machine,
            propose=lambda command, done: self.post(inbox.Propose(command, done, False)),
            may_remove=lambda: all_know("removes"),
            wake=self._wake,
        )
        # That something is damaged (is it news? in which block, if it is known), and that nothing
        # is any more.
        self.on_damaged: Callable[..., object] = lambda err, is_new, block_no=0: None
        self.on_mended: Callable[[], object] = lambda: None
        self.unreadable = Unreadable(
            machine.index,
            blocks,
            machine.name,
            on_found=lambda err, is_new: self.call_soon(self.on_damaged, err, is_new),
            on_over=lambda: self.call_soon(self.on_mended),
            renew=self._rewriter.renew,
        )
        self._expiry_at_ns = 0  # 0: not looked up since something changed
        self._expiry_proposed = False
        handlers = self._handlers
        handlers[stream_inbox.UnreadableFound] = self._on_unreadable
        handlers[stream_inbox.BlockReadable] = self._on_readable

    def let_go(self) -> None:
        super().let_go()
        self.post = lambda message: None
        self.on_damaged = self.on_mended = lambda *_: None
        self.unreadable.let_go()
        del self._rewriter, self._trimmer

    def _on_leader_ready(self) -> None:
        self._rewriter.restart()
        self._trimmer.sweep()  # the leader before may not have come to it

    def _on_leadership_lost(self) -> None:
        for done in self._trimmer.stop():
            self.call_soon(done, errors.CLUSTER_NOT_AVAIL())
        self._expiry_at_ns = 0
        self._expiry_proposed = False

    def _compares_at_rest(self) -> bool:
        return len(self.machine.consumers) <= limits.REST_CONSUMERS_MAX

    def _wake(self) -> None:
        self.post(inbox.Tick())

    # --- expiry -----------------------------------------------------------------------------

    def _look_at_expiry(self, turn: Turn) -> None:
        """Propose that messages whose time is over expire; the leader alone has the clock."""
        if self._expiry_proposed:
            return
        if self._expiry_at_ns == 0:
            self._expiry_at_ns = self.machine.next_expiry_ns()
        elif 0 < self.machine.content.expiry.fresh_ns < self._expiry_at_ns:
            self._expiry_at_ns = self.machine.content.expiry.fresh_ns
        if self._expiry_at_ns and self._expiry_at_ns <= self.at_ns:
            command = self.machine.plan_expiry(self.at_ns)
            # Without one: what was to expire has left already, or is behind many that have.
            self._expiry_at_ns = self.machine.next_expiry_ns() if command is None else 0
            if command is not None:
                self._expiry_proposed = self.propose_now(command, None)
                turn.more = self._expiry_proposed
                if not self._expiry_proposed:
                    self._expiry_at_ns = self.at_ns + limits.EXPIRY_RETRY_NS

    # --- blocks -----------------------------------------------------------------------------

    def _reclaim(self) -> None:
        """The disk is full: blocks that a purge emptied are unlinked by the second snapshot
        without them."""
        if self.at_ms >= self._reclaim_at_ms:
            self._reclaim_at_ms = self.at_ms + limits.RECLAIM_EVERY_MS
            self._propose_checkpoint()
            self._turn_out.snapshot_wanted = True

    def _reclaim_if_short(self, turn: Turn) -> None:
        """The same at a follower, who hears of no refusal: what its leader lets in again as soon
        as there is room at the leader, it must store too."""
        if self.at_ms < self._reclaim_at_ms:
            return
        self._reclaim_at_ms = self.at_ms + limits.RECLAIM_EVERY_MS
        if self.machine.applied > self.snapshot_index and self.is_disk_short():
            turn.snapshot_wanted = True

    def _look_at_dead_blocks(self, turn: Turn) -> None:
        """Give back what a purge emptied: such blocks are unlinked by the second snapshot without
        them, which is long in coming where little is stored."""
        if self.at_ms < self._dead_blocks_at_ms:
            return
        if self.machine.applied > self.snapshot_index:
            self._dead_blocks_at_ms = self.at_ms + limits.RECLAIM_AFTER_MS
            turn.snapshot_wanted = True
        elif self._is_ready and self.raft.last_index == self.machine.applied:
            # A snapshot needs something new to cover.
            turn.more = self._propose_checkpoint()
            if not turn.more:
                self._dead_blocks_at_ms = self.at_ms + limits.RECLAIM_AFTER_MS

    def _on_saved(self, message: inbox.Saved) -> None:
        self._dead_blocks_at_ms = self.at_ms + limits.RECLAIM_AFTER_MS
        super()._on_saved(message)

    def _propose_checkpoint(self) -> bool:
        machine = self.machine
        command = [commands.CHECKPOINT, self.at_ns, machine.applied, machine.digest]
        return self.propose_now(command, None)

    def _post_rewrite(
        self,
        block_nos: list[int],
        ranges: list[Seq],
        records: bytes,
        done: Callable[[Any], None],
    ) -> None:
        """Propose, in a turn, that one block takes the place of others."""
        if not self._has_room(len(records)):
            self.call_soon(done, errors.INSUFFICIENT_RESOURCES())
            return
        command = [commands.REWRITE, self.at_ns, block_nos, ranges, records]
        self.post(inbox.Propose(command, done, False))

    def _on_unreadable(self, message: stream_inbox.UnreadableFound) -> None:
        self.unreadable.note(message.block_no, message.seqs, message.reason)

    def _on_readable(self, message: stream_inbox.BlockReadable) -> None:
        self.unreadable.note_readable(message.block_no)
