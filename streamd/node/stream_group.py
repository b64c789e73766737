"""A stream's group: what its leader does beside applying. Publishes in, deliveries out.

Publishes of one turn become one entry. Cursors (one per consumer) read what is applied; what they
deliver and what clients ack is proposed back, together, and without a hurry unless somebody was
promised an answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from streamd import errors, limits
from streamd.errors import StreamdError
from streamd.machine import commands
from streamd.machine.audience import Audience
from streamd.machine.base import Effects
from streamd.machine.commands import Command, encode, encode_store
from streamd.machine.stream import StreamMachine
from streamd.node import group as g
from streamd.node.batches import BatchStager
from streamd.node.cursor import Cursor
from streamd.node.group import BlockPort, Group, Turn
from streamd.node.ports import DeliverSink, PublishSink, Wires
from streamd.node.rewriter import Rewriter
from streamd.node.trimmer import Trimmed, Trimmer
from streamd.node.unreadable import Unreadable
from streamd.protocol import acks
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.store.format import decode_fields
from streamd.types import Entry, Index, Msg, NodeId, Seq, Uid

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
_FEW_WAKES = 64  # so many may be there for nothing
_PLAIN_ACKS = frozenset((b"", b"+ACK", b"+OK"))
_REMOVING_KINDS = frozenset((commands.EXPIRE, commands.PURGE, commands.DELETE_MSG, commands.REMOVE))

Waiter = tuple[PublishSink, list[bytes]]
Fields = tuple[Seq, int, bytes, bytes, bytes]


def _size(msg: Msg) -> int:
    return len(msg[1]) + len(msg[2])


class CursorTag:
    """Marks an entry as a cursor's own; carries what the cursor wants back with it."""

    __slots__ = ("tag",)

    def __init__(self, tag: Any) -> None:
        self.tag = tag


class StreamGroup(Group):
    """Implements `cursor.CursorHost`."""

    machine: StreamMachine

    def __init__(
        self,
        *,
        uid: Uid,
        raft: RaftCore,
        machine: StreamMachine,
        blocks: BlockPort,
        snapshot_index: Index,
        wires: Wires,
        stager: BatchStager,
        max_payload: int,
        has_room: Callable[[int], bool],
        all_know: Callable[[str], bool] = lambda command: True,
    ) -> None:
        super().__init__(
            uid=uid, raft=raft, machine=machine, blocks=blocks, snapshot_index=snapshot_index
        )
        self.name_bytes = machine.name.encode()
        self.decode_fields: Callable[[bytes, int], Fields] = decode_fields
        self.max_payload = max_payload
        self.post: Callable[[tuple[Any, ...]], None] = lambda message: None
        self._wires = wires
        self._has_room = has_room
        self._stager = stager
        self._msgs: list[Msg] = []
        self._msgs_bytes = 0  # of their headers and payloads
        self._waiters: list[Waiter] = []
        self._unforced: list[tuple[Command, Any]] = []
        self._unforced_due_ms = 0  # 0: nothing waits
        self._is_forced = False
        self._uncommitted_bytes = 0
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
            propose=lambda command, done: self.post((g.PROPOSE, command, done, False)),
            may_remove=lambda: all_know("removes"),
            wake=self._wake,
        )
        # That something is damaged (is it news?), and that nothing is any more.
        self.on_damaged: Callable[[StreamdError, bool], object] = lambda err, is_new: None
        self.on_mended: Callable[[], object] = lambda: None
        self.unreadable = Unreadable(
            machine.index,
            blocks,
            machine.name,
            on_found=lambda err, is_new: self.call_soon(self.on_damaged, err, is_new),
            on_over=lambda: self.call_soon(self.on_mended),
            renew=self._rewriter.renew,
        )
        self._next_ts = 0
        self._cursors: dict[Uid, Cursor] = {}
        self._by_name: dict[bytes, Cursor] = {}
        self._audience: Audience[Cursor] | None = None  # of `_cursors`, as they are now
        self._dirty: dict[Cursor, None] = {}  # to plan before this turn is over, in order
        self._acked: dict[Cursor, None] = {}  # hold acks that are not proposed yet
        self._wakes: list[tuple[int, int, Cursor]] = []  # heap of (ms, tie, cursor)
        self._wake_of: dict[Cursor, int] = {}
        self._ties = count()
        self._watches: dict[Cursor, object] = {}
        self._planning: Cursor | None = None
        self._advices: list[tuple[str, dict[str, Any]]] = []
        self._seen_first = 0
        self._expiry_at_ns = 0  # 0: not looked up since something changed
        self._expiry_proposed = False
        self._is_closed = False
        handlers = self._handlers
        handlers[g.DRAINED] = self._on_drained
        handlers[g.UNREADABLE] = self.unreadable.note
        handlers[g.READABLE] = self._on_readable
        handlers[6:12] = [
            self._on_publish, self._on_acks, self._on_pull, self._on_flow, self._on_interest,
            self._on_read,
        ]  # fmt: skip

    # --- the turn ---------------------------------------------------------------------------

    def turn(self, now_ms: int, now_ns: int, inbox: list[tuple[Any, ...]]) -> Turn:
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
            if self._trimmer.is_due:
                self._trimmer.go_on(now_ns)
        if self.blocks.reclaimable_bytes >= limits.RECLAIM_BYTES:
            self._look_at_dead_blocks(turn)
        if self._advices:
            turn.effects.events.extend(self._advices)
            self._advices = []
        return turn

    def deliver(self) -> bool:
        """Plan every cursor that something happened to. True: some have more to send."""
        dirty = self._dirty
        if not dirty or self.raft.is_handing_over:  # what is sent now could not be logged
            return False
        self._dirty = {}
        for cursor in dirty:
            self._planning = cursor
            if cursor.plan(limits.DELIVER_BUDGET_MSGS):
                self._dirty[cursor] = None
        self._planning = None
        if self._advices:
            advices, self._advices = self._advices, []
            self.emit_events(advices)
        return bool(self._dirty) or self._is_forced

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

    def delete(self) -> None:
        """The stream is gone (or broken here): cursors tell their clients and end."""
        self._is_closed = True
        self._stager.clear()
        for done in self._trimmer.stop():
            self.call_soon(done, errors.STREAM_NOT_FOUND())
        for cursor in list(self._cursors.values()):
            self._drop_cursor(cursor, b"409 Consumer Deleted")

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

    # --- publishes --------------------------------------------------------------------------

    def _on_publish(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        if not self.raft.is_leader or self._is_closed:
            return  # nobody may ack; the client's timeout is the honest answer
        if self._uncommitted_bytes > limits.PUBLISH_BACKLOG_BYTES_MAX:
            refused = [errors.STREAM_TOO_MANY_REQUESTS()] * len(msgs)
            sink.publish_acks(self.name_bytes, replies, refused)
            return
        size = 0
        for _, headers, payload in msgs:
            if headers:
                if b"Nats-Batch-" in headers:
                    self._stage(msgs, replies, sink)
                    return
                size += len(headers)
            size += len(payload)
        if size > limits.STORE_BATCH_BYTES and len(msgs) > 1:
            for msg, reply in zip(msgs, replies, strict=True):
                self._collect([msg], [reply], sink, _size(msg))
        else:
            self._collect(msgs, replies, sink, size)

    def _collect(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink, size: int) -> None:
        """Keep messages of `size` bytes for this turn's log entry, or for its next one."""
        if self._msgs_bytes + size > limits.STORE_BATCH_BYTES:
            self._propose_store()
        if self._msgs:
            self._msgs.extend(msgs)
        else:
            self._msgs = list(msgs)
        self._msgs_bytes += size
        self._waiters.append((sink, replies))
        if len(self._msgs) >= limits.STORE_BATCH_MSGS:
            self._propose_store()  # which also counts it, so the backlog above is honest

    def _stage(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """Messages of atomic batches go to the stager; what lies between them as usual."""
        stager = self._stager
        at = 0
        while at < len(msgs):
            msg, reply = msgs[at], replies[at]
            if not (msg[1] and b"Nats-Batch-" in msg[1]):
                self._collect([msg], [reply], sink, _size(msg))
                at += 1
                continue
            if not reply:
                taken = stager.stage_run(msgs, replies, at, self.machine.config, now_ms=self.at_ms)
                if taken > at:
                    at = taken
                    continue
            at += 1
            result = stager.stage(
                msg, self.machine.config, now_ms=self.at_ms, advices=self._advices
            )
            if result is None:
                if reply:
                    self._wires.publish(reply, b"", b"", b"")
            elif isinstance(result, errors.JsError):
                sink.publish_acks(self.name_bytes, [reply], [result])
            elif not result[0]:
                self._collect([msg], [reply], sink, _size(msg))
            else:
                self._propose_store()
                batch_id, staged = result
                ts = self._stamp(len(staged))
                done = partial(self._batch_done, sink, reply, batch_id)
                command: Command = [commands.STORE_BATCH, ts, batch_id, staged]
                self._track(command, encode(command), done)

    def _batch_done(self, sink: PublishSink, reply: bytes, batch_id: str, outcome: Any) -> None:
        if not isinstance(outcome, errors.JsError):
            outcome = (outcome[0], outcome[1], batch_id)
        sink.publish_acks(self.name_bytes, [reply], [outcome])

    def _propose_store(self) -> None:
        if not self._msgs:
            return
        msgs, self._msgs, self._msgs_bytes = self._msgs, [], 0
        waiters, self._waiters = self._waiters, []
        command: Command = [commands.STORE, self._stamp(len(msgs)), msgs]
        self._track(command, encode_store(command), waiters)

    def _track(self, command: Command, data: bytes, tag: Any) -> None:
        if not self._has_room(len(data)):
            self._refuse(tag)
            return
        try:
            self.raft.propose(data, command, tag)
        except (NotLeader, ProposalRejected):
            self._decline(tag, errors.CLUSTER_NOT_AVAIL())
        else:
            self._uncommitted_bytes += len(data)

    def _refuse(self, tag: Any) -> None:
        """Nothing more can be stored on this node; what is stored is safe."""
        self._decline(tag, errors.INSUFFICIENT_RESOURCES())
        if self.at_ms >= self._reclaim_at_ms:
            # Blocks that a purge emptied are unlinked by the second snapshot without them.
            self._reclaim_at_ms = self.at_ms + limits.RECLAIM_EVERY_MS
            self._propose_checkpoint()
            self._turn_out.snapshot_wanted = True

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
        self.post((g.PROPOSE, command, done, False))

    def _wake(self) -> None:
        self.post((g.TICK, None, None, None))

    def _on_saved(self, index: Index, term: int, chain: int) -> None:
        self._dead_blocks_at_ms = self.at_ms + limits.RECLAIM_AFTER_MS
        super()._on_saved(index, term, chain)

    def _propose_checkpoint(self) -> bool:
        machine = self.machine
        command = [commands.CHECKPOINT, self.at_ns, machine.applied, machine.digest]
        return self.propose_now(command, None)

    def _decline(self, tag: Any, error: errors.JsError) -> None:
        if type(tag) is list:
            for sink, replies in tag:
                sink.publish_acks(self.name_bytes, replies, [error] * len(replies))
        else:
            tag(error)

    def _stamp(self, msg_count: int) -> int:
        """Return the entry's time; its messages are one ns apart, so no two are ever equal."""
        ts = max(self.at_ns, self._next_ts)
        self._next_ts = ts + msg_count
        return ts

    def _propose_collected(self) -> None:
        for cursor in self._acked:
            cursor.flush()
        self._acked.clear()
        had_msgs = bool(self._msgs)
        if self._unforced and (self._is_forced or had_msgs or self.at_ms >= self._unforced_due_ms):
            self._propose_unforced()
        if had_msgs:
            self._propose_store()

    def _propose_unforced(self) -> None:
        waiting, self._unforced = self._unforced, []
        self._unforced_due_ms = 0
        self._is_forced = False
        for at, (command, tag) in enumerate(waiting):
            try:
                self.raft.propose(encode(command), command, CursorTag(tag))
            except NotLeader:
                return  # what is not acked there is delivered again
            except ProposalRejected:
                # Kept, in order: a hand-over may come to nothing, and then the log must not lack
                # what the cursors have counted already.
                self._unforced = waiting[at:]
                self._unforced_due_ms = self.at_ms + limits.UNFORCED_DELAY_MS
                return

    def emit_outcomes(
        self, outcomes: list[tuple[Any, Any]], ready_callbacks: list[Callable[[], None]]
    ) -> None:
        """Acks of publishes to their connections; every other outcome to its callback."""
        name = self.name_bytes
        for tag, result in outcomes:
            if type(tag) is list:
                if len(tag) == 1:
                    sink, replies = tag[0]
                    sink.publish_acks(name, replies, result)
                else:
                    at = 0
                    for sink, replies in tag:
                        end = at + len(replies)
                        sink.publish_acks(name, replies, result[at:end])
                        at = end
            elif type(tag) is not CursorTag:
                self.call_soon(tag, result)
        for callback in ready_callbacks:
            self.call_soon(callback)

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
                    subjects += [msg[0] for msg in command[-1]]
                if entry.tag is not None:
                    # Entries of an earlier term of ours are not counted any more.
                    self._uncommitted_bytes = max(0, self._uncommitted_bytes - len(entry.data))
            elif not self._is_ready:
                continue
            elif kind in _CURSOR_KINDS:
                cursor = cursors.get(command[2])
                if cursor is not None:
                    tag = entry.tag.tag if type(entry.tag) is CursorTag else None
                    cursor.on_applied(command, tag)
                    self._dirty[cursor] = None
                if kind != commands.DELIVERED and kind != commands.POSITION:
                    # What is acked leaves, unless limits alone say what stays.
                    stream_limits = self.machine.limits
                    is_removed |= stream_limits.is_interest or stream_limits.is_workqueue
            elif kind in _REMOVING_KINDS:
                is_removed = True
                wakes_all |= kind == commands.EXPIRE  # it may have stored markers
                self._expiry_at_ns = 0
                self._expiry_proposed = False
            else:
                self._sync_cursors()
                self._audience = None
                if kind in _NAMED_KINDS:
                    cursor = self._by_name.get(command[2].encode())
                    if cursor is not None:
                        cursor.on_applied(command, None)
                        self._dirty[cursor] = None
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
        first = self.machine.index.first_seq
        if is_removed or first != self._seen_first:
            self._seen_first = first
            for cursor in cursors.values():
                if cursor.on_removed() or wakes_all:
                    self._dirty[cursor] = None
        if effects.stored_last:
            if wakes_all:
                self._dirty |= dict.fromkeys(cursors.values())
            elif subjects:
                audience = self._cursor_audience()
                self._dirty |= dict.fromkeys(audience.of_all)
                self._dirty |= dict.fromkeys(audience.filtered(subjects))

    def _cursor_audience(self) -> Audience[Cursor]:
        if self._audience is None:
            cursors = self._cursors.values()
            self._audience = Audience((each, each.consumer.matcher) for each in cursors)
        return self._audience

    def _on_leader_ready(self) -> None:
        self._next_ts = self.machine.state()["last_ts"] + 1
        self._seen_first = self.machine.index.first_seq
        self._rewriter.restart()
        self._trimmer.sweep()  # the leader before may not have come to it
        self._sync_cursors()

    def _sync_cursors(self) -> None:
        """One cursor per consumer: make those that are missing, end those whose consumer is."""
        consumers = self.machine.consumers_by_uid
        if self._is_closed or consumers.keys() == self._cursors.keys():
            return
        for uid in [uid for uid in self._cursors if uid not in consumers]:
            self._drop_cursor(self._cursors[uid], b"409 Consumer Deleted")
        self._audience = None
        for uid, consumer in list(consumers.items()):
            if uid not in self._cursors:
                cursor = Cursor(consumer, self)
                self._cursors[uid] = cursor
                self._by_name[consumer.name.encode()] = cursor
                self._dirty[cursor] = None

    def _drop_cursor(self, cursor: Cursor, status: bytes) -> None:
        cursor.stop(status)
        self._audience = None
        self.unwatch_interest(cursor)
        consumer = cursor.consumer
        self._cursors.pop(consumer.uid, None)
        name = consumer.name.encode()
        if self._by_name.get(name) is cursor:
            del self._by_name[name]
        self._dirty.pop(cursor, None)
        self._acked.pop(cursor, None)
        self._wake_of.pop(cursor, None)

    def _look_at_expiry(self, turn: Turn) -> None:
        """Propose that messages whose time is over expire; the leader alone has the clock."""
        if self._expiry_proposed:
            return
        if self._expiry_at_ns == 0:
            self._expiry_at_ns = self.machine.next_expiry_ns()
        elif 0 < self.machine.expiry.fresh_ns < self._expiry_at_ns:
            self._expiry_at_ns = self.machine.expiry.fresh_ns
        if self._expiry_at_ns and self._expiry_at_ns <= self.at_ns:
            command = self.machine.plan_expiry(self.at_ns)
            self._expiry_at_ns = 0
            if command is not None:
                self._expiry_proposed = self.propose_now(command, None)
                turn.more = self._expiry_proposed
                if not self._expiry_proposed:
                    self._expiry_at_ns = self.at_ns + limits.EXPIRY_RETRY_NS

    # --- messages from clients --------------------------------------------------------------

    def _on_acks(
        self, subjects: list[bytes], replies: list[bytes] | None, payloads: list[bytes]
    ) -> None:
        first = acks.parse_target(subjects[0])
        cursor = self._by_name.get(first[0]) if first is not None else None
        if cursor is None:
            return
        self._dirty[cursor] = None
        self._acked[cursor] = None
        if replies is None and _PLAIN_ACKS.issuperset(payloads):
            try:
                cursor.on_acks([int(subject.split(b".", 6)[5]) for subject in subjects])
                return
            except (ValueError, IndexError):
                pass  # an odd one among them, or the longer layout: one by one
        for at, subject in enumerate(subjects):
            target = acks.parse_target(subject)
            if target is not None:
                reply = replies[at] if replies is not None else b""
                cursor.on_ack(target[1], 0, 0, payloads[at], reply)

    def _on_pull(self, name: bytes, reply: bytes, request: tuple[bytes, bytes]) -> None:
        cursor = self._by_name.get(name)
        if cursor is not None:
            cursor.on_pull(reply, request[0], request[1])
            self._dirty[cursor] = None

    def _on_drained(self, a: Any, b: Any, c: Any) -> None:
        """Some client reads again: cursors that waited for theirs look whether it is."""
        for cursor in self._cursors.values():
            self._dirty[cursor] = None

    def _on_flow(self, name: bytes, subject: bytes, c: Any) -> None:
        cursor = self._by_name.get(name)
        if cursor is not None:
            cursor.on_flow_reply(subject)
            self._dirty[cursor] = None

    def _on_interest(self, cursor: Cursor, has_interest: bool, c: Any) -> None:
        if cursor in self._watches:
            cursor.on_interest(has_interest)
            self._dirty[cursor] = None

    def _on_readable(self, block_no: int, b: Any, c: Any) -> None:
        self.unreadable.note_readable(block_no)

    def _on_read(self, cursor: Cursor, b: Any, c: Any) -> None:
        if self._cursors.get(cursor.consumer.uid) is cursor:
            self._dirty[cursor] = None

    def _on_barrier(self, done: Callable[[], None], b: Any, c: Any) -> None:
        """A linearizable read: what cursors and clients have done so far is logged first."""
        self._propose_all()
        self._add_barrier(done)

    def _on_propose(self, command: Command, done: Any, is_forced: Any) -> None:
        self._propose_all()  # what happened before comes before, and its answer shows it
        if self._is_closed:
            if done is not None:
                done(errors.STREAM_NOT_FOUND())
            return
        if command[0] == commands.DELETE_CONSUMER:
            command = self._trimmer.lightened(command)
        elif self._is_ready and type(done) is not Trimmed:
            if self._trimmer.takes(command, done, self.at_ns):
                return
        super()._on_propose(command, done, is_forced)

    def _on_step_down(self, preferred: NodeId, done: Callable[[Any], None], c: Any) -> None:
        self._propose_all()  # who leads next must not deliver it again
        super()._on_step_down(preferred, done, c)

    def _on_leadership_lost(self) -> None:
        """Another member leads, or nobody: who waits here hears of it, and asks there."""
        self._stager.clear()
        for done in self._trimmer.stop():
            self.call_soon(done, errors.CLUSTER_NOT_AVAIL())
        for cursor in list(self._cursors.values()):
            self._drop_cursor(cursor, b"409 Leadership Change")
        self._msgs, self._msgs_bytes, self._waiters = [], 0, []
        self._unforced = []
        self._unforced_due_ms = 0
        self._is_forced = False
        self._uncommitted_bytes = 0
        self._wakes = []
        self._wake_of.clear()
        self._dirty.clear()
        self._acked.clear()
        self._expiry_at_ns = 0
        self._expiry_proposed = False

    def _on_dropped(self, entry: Entry) -> None:
        tag = entry.tag
        if type(tag) is list:
            error = errors.CLUSTER_NOT_AVAIL()
            for sink, replies in tag:
                sink.publish_acks(self.name_bytes, replies, [error] * len(replies))
        elif type(tag) is not CursorTag:
            super()._on_dropped(entry)

    def _propose_all(self) -> None:
        for cursor in self._cursors.values():
            cursor.flush()
        self._acked.clear()
        if self._unforced:
            self._propose_unforced()
        self._propose_store()

    # --- CursorHost -------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.at_ns

    def now_ms(self) -> int:
        return self.at_ms

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        found, again_ms = self.unreadable.chunk(block_no, offset, self.at_ms)
        cursor = self._planning
        if again_ms:
            assert cursor is not None
            self.wake_at(again_ms, cursor)
        elif found is None:
            self.blocks.read_chunk(
                block_no,
                offset,
                limits.READ_AHEAD_BYTES,
                lambda: self.post((g.READ, cursor, None, None)),
            )
        return found

    def propose(self, command: Command, *, is_forced: bool, tag: Any = None) -> None:
        if command[0] == commands.DELETE_CONSUMER:
            command = self._trimmer.lightened(command)
        self._unforced.append((command, tag))
        if is_forced:
            self._is_forced = True
        if self._unforced_due_ms == 0:
            self._unforced_due_ms = self.at_ms + limits.UNFORCED_DELAY_MS

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        return self._wires.sink(subject, queue)

    def watch_interest(self, subject: bytes, queue: bytes, cursor: Cursor) -> None:
        def on_change(has_interest: bool) -> None:
            # Told at once, taken later: whoever creates a consumer is answered before it delivers.
            cursor.is_push_bound = has_interest
            self.call_soon(self.post, (g.INTEREST, cursor, has_interest, None))

        self._watches[cursor] = None
        self._watches[cursor] = self._wires.watch(subject, queue, on_change)

    def unwatch_interest(self, cursor: Cursor) -> None:
        token = self._watches.pop(cursor, None)
        if token is not None:
            self._wires.unwatch(token)

    def advise(self, kind: str, fields: dict[str, Any]) -> None:
        self._advices.append((kind, fields))

    def wake_at(self, monotonic_ms: int, cursor: Cursor) -> None:
        """See CursorHost. An earlier wake that stands is kept: it fires, and asks again."""
        if monotonic_ms == 0:
            self._wake_of.pop(cursor, None)
            return
        standing = self._wake_of.get(cursor)
        if standing is None or monotonic_ms < standing:
            self._wake_of[cursor] = monotonic_ms
            heapq.heappush(self._wakes, (monotonic_ms, next(self._ties), cursor))
            if len(self._wakes) > _FEW_WAKES + 2 * len(self._wake_of):
                # Most are void: of cursors that are gone, or that asked for an earlier time since.
                self._wakes = [(at, next(self._ties), one) for one, at in self._wake_of.items()]
                heapq.heapify(self._wakes)

    def wake_soon(self, cursor: Cursor) -> None:
        self._dirty[cursor] = None

    def reply_empty(self, reply: bytes) -> None:
        self._wires.publish(reply, b"", b"", b"")

    def cursor(self, name: str) -> Cursor | None:
        """Return the cursor of a consumer, for reports."""
        return self._by_name.get(name.encode())
