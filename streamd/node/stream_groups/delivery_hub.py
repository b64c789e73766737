"""A stream's cursors: one per consumer, on the stream's leader. Deliveries go out here.

Told what happened (an ack, a pull, a time that came), a cursor is *dirty*, and plans once before
the turn is over. What cursors deliver and what clients ack waits to be proposed, together, and
without a hurry unless somebody was promised an answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.commands import Command, encode
from streamd.machine.streams.stream import StreamMachine
from streamd.node.delivery.cursor import Cursor
from streamd.node.groups.block_port import BlockPort
from streamd.node.ports import DeliverSink, Wires
from streamd.node.stream_groups import stream_inbox
from streamd.node.stream_groups.maintenance import StreamMaintenance
from streamd.protocol import acks
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.store.blocks.record_format import decode_fields
from streamd.types import Index, Seq, Uid

_FEW_WAKES = 64  # so many may be there for nothing

Fields = tuple[Seq, int, bytes, bytes, bytes]


class CursorTag:
    """Marks an entry as a cursor's own; carries what the cursor wants back with it."""

    __slots__ = ("tag",)

    def __init__(self, tag: Any) -> None:
        self.tag = tag


class StreamCursors(StreamMaintenance):
    """The part of `StreamGroup` that delivers. Implements `cursor.CursorHost`."""

    def __init__(
        self,
        *,
        uid: Uid,
        raft: RaftCore,
        machine: StreamMachine,
        blocks: BlockPort,
        snapshot_index: Index,
        wires: Wires,
        max_payload: int,
        has_room: Callable[[int], bool],
        all_know: Callable[[str], bool],
    ) -> None:
        super().__init__(
            uid=uid,
            raft=raft,
            machine=machine,
            blocks=blocks,
            snapshot_index=snapshot_index,
            has_room=has_room,
            all_know=all_know,
        )
        self.decode_fields: Callable[[bytes, int], Fields] = decode_fields
        self.max_payload = max_payload
        self._wires = wires
        self._unforced: list[tuple[Command, Any]] = []
        self._unforced_due_ms = 0  # 0: nothing waits
        self._is_forced = False
        self._cursors: dict[Uid, Cursor] = {}
        self._by_name: dict[bytes, Cursor] = {}
        self._dirty: dict[Cursor, None] = {}  # to plan before this turn is over, in order
        self._acked: dict[Cursor, None] = {}  # hold acks that are not proposed yet
        self._positioned: dict[Cursor, None] = {}  # may hold a position likewise
        self._held_back: dict[Cursor, None] = {}  # by receivers that were congested
        self._wakes: list[tuple[int, int, Cursor]] = []  # heap of (ms, tie, cursor)
        self._wake_of: dict[Cursor, int] = {}
        self._ties = count()
        self._watches: dict[Cursor, object] = {}
        self._planning: Cursor | None = None
        self._advices: list[tuple[str, dict[str, Any]]] = []
        self._is_closed = False
        self._is_gone = False  # closed, because the stream is
        handlers = self._handlers
        handlers[stream_inbox.Acks] = self._on_acks
        handlers[stream_inbox.Pull] = self._on_pull
        handlers[stream_inbox.FlowReply] = self._on_flow
        handlers[stream_inbox.InterestChanged] = self._on_interest
        handlers[stream_inbox.ChunkRead] = self._on_read
        handlers[stream_inbox.Drained] = self._on_drained

    def deliver(self) -> bool:
        """Plan the cursors that something happened to, until much is sent. True: there is more."""
        dirty = self._dirty
        if not dirty or self.raft.is_handing_over:  # what is sent now could not be logged
            return False
        self._dirty = {}
        left = limits.DELIVER_TURN_MSGS
        waiting = iter(dirty)
        for cursor in waiting:
            self._planning = cursor
            left += cursor.sent_count
            if cursor.plan(limits.DELIVER_BUDGET_MSGS):
                self._dirty[cursor] = None
            if cursor.holds_position:
                self._positioned[cursor] = None
            left -= cursor.sent_count
            if left <= 0:
                # Those that had their share come after those that did not.
                self._dirty = dict.fromkeys(waiting) | self._dirty
                break
        self._planning = None
        if self._advices:
            advices, self._advices = self._advices, []
            self.emit_events(advices)
        return bool(self._dirty) or self._is_forced

    # --- one per consumer -------------------------------------------------------------------

    def _on_leader_ready(self) -> None:
        super()._on_leader_ready()
        self._sync_cursors()

    def _on_leadership_lost(self) -> None:
        super()._on_leadership_lost()
        for cursor in list(self._cursors.values()):
            self._drop_cursor(cursor, b"409 Leadership Change")
        self._unforced = []
        self._unforced_due_ms = 0
        self._is_forced = False
        self._wakes = []
        self._wake_of.clear()
        self._dirty.clear()
        self._acked.clear()
        self._positioned.clear()
        self._held_back.clear()

    def _sync_cursors(self) -> None:
        """One cursor per consumer: make those that are missing, end those whose consumer is."""
        consumers = self.machine.consumers_by_uid
        if self._is_closed or consumers.keys() == self._cursors.keys():
            return
        for uid in [uid for uid in self._cursors if uid not in consumers]:
            self._drop_cursor(self._cursors[uid], b"409 Consumer Deleted")
        for uid in list(consumers):
            self._begin_cursor(uid)

    def _begin_cursor(self, uid: Uid) -> None:
        """The consumer `uid` may be there, and new."""
        consumer = self.machine.consumers_by_uid.get(uid)
        if consumer is None or uid in self._cursors or self._is_closed:
            return
        cursor = Cursor(consumer, self)
        self._cursors[uid] = cursor
        self._by_name[consumer.name.encode()] = cursor
        self._dirty[cursor] = None

    def _end_cursor(self, name: str) -> None:
        """A consumer of that name may be gone."""
        cursor = self._by_name.get(name.encode())
        if cursor is not None and cursor.consumer.uid not in self.machine.consumers_by_uid:
            self._drop_cursor(cursor, b"409 Consumer Deleted")

    def _drop_cursor(self, cursor: Cursor, status: bytes) -> None:
        cursor.stop(status)
        self.unwatch_interest(cursor)
        consumer = cursor.consumer
        self._cursors.pop(consumer.uid, None)
        name = consumer.name.encode()
        if self._by_name.get(name) is cursor:
            del self._by_name[name]
        self._dirty.pop(cursor, None)
        self._acked.pop(cursor, None)
        self._positioned.pop(cursor, None)
        self._held_back.pop(cursor, None)
        self._wake_of.pop(cursor, None)

    def cursor(self, name: str) -> Cursor | None:
        """Return the cursor of a consumer, for reports."""
        return self._by_name.get(name.encode())

    # --- messages from clients --------------------------------------------------------------

    def _on_acks(self, message: stream_inbox.Acks) -> None:
        subjects, replies, payloads = message.subjects, message.replies, message.payloads
        first = acks.parse_target(subjects[0])
        cursor = self._by_name.get(first[0]) if first is not None else None
        if cursor is None:
            return
        self._dirty[cursor] = None
        self._acked[cursor] = None
        if replies is None and acks.PLAIN.issuperset(payloads):
            try:
                cursor.requests.on_acks([int(subject.split(b".", 6)[5]) for subject in subjects])
                return
            except (ValueError, IndexError):
                pass  # an odd one among them, or the longer layout: one by one
        on_ack = cursor.requests.on_ack
        for at, subject in enumerate(subjects):
            target = acks.parse_target(subject)
            if target is not None:
                reply = replies[at] if replies is not None else b""
                on_ack(target[1], payloads[at], reply)

    def _on_pull(self, message: stream_inbox.Pull) -> None:
        cursor = self._by_name.get(message.consumer)
        if cursor is not None:
            cursor.requests.on_pull(message.reply, message.headers, message.payload)
            self._dirty[cursor] = None

    def _on_drained(self, message: stream_inbox.Drained) -> None:
        """Some client reads again: cursors that waited for theirs look whether it is."""
        self._dirty |= self._held_back
        self._held_back.clear()

    def _on_flow(self, message: stream_inbox.FlowReply) -> None:
        cursor = self._by_name.get(message.consumer)
        if cursor is not None:
            cursor.requests.on_flow_reply(message.subject, message.headers)
            self._dirty[cursor] = None
            self._acked[cursor] = None

    def _on_interest(self, message: stream_inbox.InterestChanged) -> None:
        cursor = message.cursor
        if cursor in self._watches:
            cursor.on_interest(message.has_interest)
            self._dirty[cursor] = None

    def _on_read(self, message: stream_inbox.ChunkRead) -> None:
        cursor = message.cursor
        if self._cursors.get(cursor.consumer.uid) is cursor:
            self._dirty[cursor] = None

    # --- CursorHost -------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self.at_ns

    def now_ms(self) -> int:
        return self.at_ms

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        found, again_ms = self.unreadable.chunk(block_no, offset, self.at_ms)
        cursor = self._planning
        assert cursor is not None
        if again_ms:
            self.wake_at(again_ms, cursor)
        elif found is None:
            self.blocks.read_chunk(
                block_no,
                offset,
                limits.READ_AHEAD_BYTES,
                lambda: self.post(stream_inbox.ChunkRead(cursor)),
            )
        return found

    def on_lost_block(self, err: CorruptionError) -> None:
        cursor = self._planning
        assert cursor is not None
        self.call_soon(self.on_damaged, err, True, err.block_no)
        self.wake_at(self.at_ms + limits.UNREADABLE_AGAIN_MS, cursor)

    def propose(self, command: Command, *, is_forced: bool, tag: Any = None) -> None:
        if command[0] == commands.DELETE_CONSUMER:
            command = self._trimmer.lightened(command, self.at_ms)
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
            self.call_soon(self.post, stream_inbox.InterestChanged(cursor, has_interest))

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

    def wait_for_room(self) -> None:
        cursor = self._planning
        assert cursor is not None
        if not self._held_back:
            self._wires.when_drained(self._tell_drained)
        self._held_back[cursor] = None

    def _tell_drained(self) -> None:
        self.post(stream_inbox.Drained())

    def wake_soon(self, cursor: Cursor) -> None:
        self._dirty[cursor] = None

    def reply_empty(self, reply: bytes) -> None:
        self._wires.publish(reply, b"", b"", b"")

    # --- the log ----------------------------------------------------------------------------

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
