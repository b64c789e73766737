"""A stream's group: what its leader does beside applying. Publishes in, deliveries out.

Here is the order of things: what a turn looks at, what goes to the log before what, and who is told
of what was applied. The rest is in the classes it is built on: `stream_publishes` makes log entries
of publishes, `stream_cursors` delivers (one cursor per consumer), `stream_maintenance` keeps order
in what is stored, and `group` is the Raft member.
"""

from __future__ import annotations

import heapq

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.node.groups.group import Turn
from streamd.node.groups.inbox import InboxMessage, Propose, ReadBarrier, StepDown
from streamd.node.stream_groups.bulk_delete import Trimmed
from streamd.node.stream_groups.delivery_hub import CursorTag
from streamd.node.stream_groups.publish_intake import StreamPublishes
from streamd.types import Entry

_CURSOR_KINDS = frozenset(
    (
        commands.DELIVERED, commands.ACKED, commands.NAKED, commands.TERMED, commands.PROGRESS,
        commands.DEAD, commands.POSITION,
    )
)  # fmt: skip
_NAMED_KINDS = frozenset(
    (commands.CREATE_CONSUMER, commands.PAUSE_CONSUMER, commands.RESET_CONSUMER)
)
_FEW_CURSORS = 16  # are all told whatever happens
_REMOVING_KINDS = frozenset((commands.EXPIRE, commands.PURGE, commands.DELETE_MSG, commands.REMOVE))


class StreamGroup(StreamPublishes):
    """One stream with its consumers, on a node that may lead it."""

    # --- the turn ---------------------------------------------------------------------------

    def turn(self, now_ms: int, now_ns: int, inbox: list[InboxMessage]) -> Turn:
        """See Group.turn. Cursors are told what was applied; they deliver in `deliver`."""
        while self._wakes and self._wakes[0][0] <= now_ms:
            at, _, cursor = heapq.heappop(self._wakes)
            if self._wake_of.get(cursor) == at:
                del self._wake_of[cursor]
                self.at_ms, self.at_ns = now_ms, now_ns
                cursor.on_tick(now_ms)
                self._dirty[cursor] = None
        if self._stager.deadline_ms and now_ms >= self._stager.deadline_ms:
            self._stager.expire(now_ms, self._advices)
        turn = super().turn(now_ms, now_ns, inbox)
        if self._is_ready:
            self._look_at_expiry(turn)
            self._rewriter.tick(now_ms)
            if self._trimmer.owes_sweep:
                self._trimmer.sweep()
            if self._trimmer.is_due:
                self._trimmer.go_on(now_ns)
        if self.blocks.reclaimable_bytes >= limits.RECLAIM_BYTES:
            self._look_at_dead_blocks(turn)
        if self.blocks.reclaimable_bytes and not self._is_ready:
            self._reclaim_if_short(turn)
        if self._advices:
            turn.effects.events.extend(self._advices)
            self._advices = []
        return turn

    def deadline_ms(self) -> int:
        earliest = self._base_deadline_ms()
        due_ms = self._unforced_due_ms
        if due_ms and (not earliest or due_ms < earliest):
            earliest = due_ms
        due_ms = self._stager.deadline_ms
        if due_ms and (not earliest or due_ms < earliest):
            earliest = due_ms
        if self._wakes and (not earliest or self._wakes[0][0] < earliest):
            earliest = self._wakes[0][0]
        if self.blocks.reclaimable_bytes >= limits.RECLAIM_BYTES:
            due_ms = self._dead_blocks_at_ms
            if due_ms > self.at_ms and (not earliest or due_ms < earliest):
                earliest = due_ms
        if self._is_ready:
            due_ms = self._rewriter.deadline_ms()
            if due_ms and (not earliest or due_ms < earliest):
                earliest = due_ms
        if self._expiry_at_ns:
            due_ms = self.at_ms + max(0, self._expiry_at_ns - self.at_ns) // 1_000_000 + 1
            if not earliest or due_ms < earliest:
                earliest = due_ms
        return earliest

    # --- to the log, in order ---------------------------------------------------------------

    def _propose_collected(self) -> None:
        for cursor in self._acked:
            cursor.flush()
        self._acked.clear()
        if self._held:
            self._look_at_held()
        had_msgs = bool(self._msgs)
        if self._unforced and (self._is_forced or had_msgs or self.at_ms >= self._unforced_due_ms):
            self._propose_unforced()
        if had_msgs:
            self._propose_store()

    def _propose_all(self) -> None:
        for cursor in (*self._acked, *self._positioned):
            cursor.flush()
        self._acked.clear()
        self._positioned.clear()
        if self._unforced:
            self._propose_unforced()
        self._propose_store()

    @property
    def shows_all(self) -> bool:
        """True if a linearizable read may look at once: this member alone decides what is in the
        stream, it has applied all of its log, and nothing waits to be logged."""
        raft = self.raft
        return (
            self._is_ready
            and raft.log.is_sole
            and self.machine.applied == raft.last_index
            and not (self._msgs or self._unforced or self._held or self._reads)
            and not (self._acked or self._positioned)
        )

    def _on_barrier(self, message: ReadBarrier) -> None:
        """A linearizable read: what cursors and clients have done so far is logged first."""
        self._propose_all()
        self._begin_read(message.done, message.lost)

    def _on_propose(self, message: Propose) -> None:
        command, done = message.command, message.done
        self._propose_all()  # what happened before comes before, and its answer shows it
        if self._is_closed:
            if done is not None:
                done(self._undone())
            return
        if command[0] == commands.DELETE_CONSUMER:
            command = message.command = self._trimmer.lightened(command, self.at_ms)
        elif self._is_ready and type(done) is not Trimmed:
            if self._trimmer.takes(command, done, self.at_ns):
                return
        last = self.raft.last_index
        super()._on_propose(message)
        if command[0] == commands.PAUSE_CONSUMER and self.raft.last_index > last:
            cursor = self._by_name.get(command[2].encode())
            if cursor is not None:
                cursor.record_pause_proposed()

    def _on_step_down(self, message: StepDown) -> None:
        self._propose_all()  # who leads next must not deliver it again
        super()._on_step_down(message)

    # --- what was applied -------------------------------------------------------------------

    def _after_apply(self, entries: list[Entry], effects: Effects) -> None:
        cursors = self._cursors
        is_removed = False
        wakes_all = len(cursors) <= _FEW_CURSORS
        subjects: list[bytes] = []  # of what was stored, unless that wakes all
        for entry in entries:
            command = entry.command
            if command is None:
                continue
            kind = command[0]
            if kind == commands.STORE or kind == commands.STORE_BATCH:
                if not wakes_all:
                    msgs = command[2] if kind == commands.STORE else command[3]
                    subjects += [msg[0] for msg in msgs]
                if entry.tag is not None:
                    self._count_committed(len(entry.data))
            elif not self._is_ready:
                continue
            elif kind in _CURSOR_KINDS:
                cursor = cursors.get(command[2])
                if cursor is not None:
                    tag = entry.tag.tag if type(entry.tag) is CursorTag else None
                    cursor.on_applied(command, tag)
                    self._dirty[cursor] = None
            elif kind in _REMOVING_KINDS:
                is_removed = True
                wakes_all |= kind == commands.EXPIRE  # it may have stored markers
                self._expiry_at_ns = 0
                self._expiry_proposed = False
            else:
                if kind == commands.CREATE_CONSUMER:
                    self._begin_cursor(entry.index)
                elif kind == commands.DELETE_CONSUMER:
                    self._end_cursor(command[2])
                if kind in _NAMED_KINDS:
                    cursor = self._by_name.get(command[2].encode())
                    if cursor is not None:
                        cursor.on_applied(command, None)
                        self._dirty[cursor] = None
                    if kind == commands.RESET_CONSUMER:
                        self._trimmer.sweep()  # of what it passes over
                elif kind == commands.CONFIGURE:
                    wakes_all = True
                    self._expiry_at_ns = 0
                    self._expiry_proposed = False
                    is_removed = True
                elif kind == commands.DELETE_CONSUMER and command[5:] == [True]:
                    self._trimmer.sweep()
        if self.unreadable:
            self.unreadable.settle()
        if not self._is_ready:
            return
        bereft, effects.bereft = effects.bereft, {}
        for consumer in bereft:
            cursor = cursors.get(consumer.uid)
            if cursor is not None and cursor.on_removed():
                self._dirty[cursor] = None
        if wakes_all and (effects.stored_last or is_removed or bereft):
            self._dirty |= dict.fromkeys(cursors.values())
        elif subjects and effects.stored_last:
            interest = self.machine.interest()
            for wanting in (interest.of_all, interest.filtered(subjects)):
                for consumer in wanting:
                    cursor = cursors.get(consumer.uid)
                    if cursor is not None:
                        self._dirty[cursor] = None

    # --- the end ----------------------------------------------------------------------------

    def delete(self, *, is_gone: bool = False) -> None:
        """The stream is gone, or closed here because it is broken, fetched anew or elsewhere by
        now: cursors tell their clients and end."""
        self._is_closed = True
        self._is_gone |= is_gone
        self._stager.clear()
        for done in self._trimmer.stop():
            self.call_soon(done, self._in_doubt())
        for cursor in list(self._cursors.values()):
            self._drop_cursor(cursor, b"409 Consumer Deleted")

    def _undone(self) -> errors.JsError:
        return errors.STREAM_NOT_FOUND() if self._is_gone else super()._undone()

    def _in_doubt(self) -> errors.JsError:
        return errors.STREAM_NOT_FOUND() if self._is_gone else super()._in_doubt()

    def shut_down(self) -> None:
        """The server stops: waiting pulls hear of it, and the last turn logs what they got."""
        if self._is_ready:
            for cursor in self._cursors.values():
                cursor.flush()
            self._is_forced = True
        for cursor in list(self._cursors.values()):
            self._drop_cursor(cursor, b"409 Server Shutdown")

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.delete()
