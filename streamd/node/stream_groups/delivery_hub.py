"""Hub of a stream's deliveries: one cursor per consumer, on the stream's leader.

Told what happened (an ack, a pull, a time that came), a cursor is *dirty*, and plans once before
the turn is over. What cursors deliver and what clients ack waits to be proposed, together, and
without a hurry unless a client was promised an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine.commands import Command
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.streams.stream import StreamMachine
from streamd.node.delivery.cursor import Cursor
from streamd.node.groups.group_shell import Events, GroupShell
from streamd.node.groups.turn import TurnTime
from streamd.node.ports import DeliverSink, Wires
from streamd.node.stream_groups.consumer_proposals import ConsumerProposals
from streamd.node.stream_groups.cursor_wakes import CursorWakes
from streamd.node.stream_groups.message_reader import Chunk, MessageReader
from streamd.node.stream_groups.stream_inbox import (
    Acks,
    ChunkRead,
    Drained,
    FlowReply,
    InterestChanged,
    Pull,
)
from streamd.protocol import acks
from streamd.store.blocks.record_format import decode_fields
from streamd.types import Seq, Uid

_FEW_CURSORS = 16  # are all told whatever happens

Fields = tuple[Seq, int, bytes, bytes, bytes]


class Advisories:
    """Events that a stream's leader observed itself in this turn."""

    __slots__ = ("events",)

    def __init__(self) -> None:
        self.events: Events = []

    def clear(self) -> Events:
        """Return the events; none are left."""
        events, self.events = self.events, []
        return events


class DeliveryHub:
    """Cursors of one stream, and when each plans. Implements `cursor.CursorHost`."""

    def __init__(
        self,
        machine: StreamMachine,
        reader: MessageReader,
        proposals: ConsumerProposals,
        advisories: Advisories,
        shell: GroupShell,
        now: TurnTime,
        *,
        wires: Wires,
        max_payload: int,
    ) -> None:
        self.machine = machine
        self.max_payload = max_payload
        self.decode_fields: Callable[[bytes, int], Fields] = decode_fields
        self._reader = reader
        self._proposals = proposals
        self.advisories = advisories
        self._shell = shell
        self._now = now
        self._wires = wires
        self._cursors: dict[Uid, Cursor] = {}
        self._by_name: dict[bytes, Cursor] = {}
        self._dirty: dict[Cursor, None] = {}  # to plan before this turn is over, in order
        self._acked: dict[Cursor, None] = {}  # hold acks that are not proposed yet
        self._positioned: dict[Cursor, None] = {}  # may hold a position likewise
        self._held_back: dict[Cursor, None] = {}  # by receivers that were congested
        self._wakes = CursorWakes()
        self._watches: dict[Cursor, object] = {}
        self._planning: Cursor | None = None
        self.is_closed = False

    # --- planning ---------------------------------------------------------------------------

    def poll_wakes(self, now_ms: int) -> None:
        """Tell cursors whose time has come; they plan before the turn is over."""
        for cursor in self._wakes.pop_due(now_ms):
            cursor.on_tick(now_ms)
            self._dirty[cursor] = None

    def wakes_ms(self) -> int:
        """Return when `poll_wakes` has something to do; 0: never."""
        return self._wakes.next_ms()

    @property
    def has_dirty(self) -> bool:
        """True if some cursor is to plan."""
        return bool(self._dirty)

    def deliver(self) -> bool:
        """Plan the cursors that something happened to, until much is sent. True: there is more."""
        dirty, self._dirty = self._dirty, {}
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
        return bool(self._dirty)

    def flush_acks(self) -> None:
        """Propose the acks that clients sent in this turn."""
        for cursor in self._acked:
            cursor.flush()
        self._acked.clear()

    def flush(self) -> None:
        """Propose all that cursors hold back, positions too."""
        for cursor in (*self._acked, *self._positioned):
            cursor.flush()
        self._acked.clear()
        self._positioned.clear()

    def flush_all(self) -> None:
        """Propose all that any cursor collected: the last turn logs it."""
        for cursor in self._cursors.values():
            cursor.flush()

    @property
    def holds_unproposed(self) -> bool:
        """True if a cursor may hold acks or a position that is not proposed."""
        return bool(self._acked or self._positioned)

    # --- one per consumer -------------------------------------------------------------------

    def sync(self) -> None:
        """Begin cursors that are missing, and end those whose consumer is."""
        consumers = self.machine.consumers_by_uid
        if self.is_closed or consumers.keys() == self._cursors.keys():
            return
        for uid in [uid for uid in self._cursors if uid not in consumers]:
            self._drop(self._cursors[uid], b"409 Consumer Deleted")
        for uid, consumer in list(consumers.items()):
            if not consumer.config.get("direct"):  # that one ends with the leader that served it
                self.begin(uid)

    def begin(self, uid: Uid) -> None:
        """Begin the cursor of the consumer `uid`, if it is there, and new."""
        consumer = self.machine.consumers_by_uid.get(uid)
        if consumer is None or uid in self._cursors or self.is_closed:
            return
        cursor = Cursor(consumer, self)
        self._cursors[uid] = cursor
        self._by_name[consumer.name.encode()] = cursor
        self._dirty[cursor] = None

    def end_if_gone(self, name: str) -> None:
        """End the cursor of that name if its consumer is gone."""
        cursor = self._by_name.get(name.encode())
        if cursor is not None and cursor.consumer.uid not in self.machine.consumers_by_uid:
            self._drop(cursor, b"409 Consumer Deleted")

    def end_all(self, status: bytes) -> None:
        """End all cursors; clients that wait hear `status`."""
        for cursor in list(self._cursors.values()):
            self._drop(cursor, status)

    def clear(self) -> None:
        """Forget what only a leader knows; its cursors have ended."""
        self._wakes.clear()
        self._dirty.clear()
        self._acked.clear()
        self._positioned.clear()
        self._held_back.clear()

    def close(self) -> None:
        """End all cursors for good."""
        self.is_closed = True
        self.end_all(b"409 Consumer Deleted")

    def _drop(self, cursor: Cursor, status: bytes) -> None:
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
        self._wakes.drop(cursor)

    def cursor(self, name: str) -> Cursor | None:
        """Return the cursor of a consumer, for reports."""
        return self._by_name.get(name.encode())

    # --- what was applied -------------------------------------------------------------------

    def on_applied(self, command: Command, tag: list[bytes] | None) -> None:
        """An entry of one consumer's deliveries or acks was applied."""
        cursor = self._cursors.get(command[2])
        if cursor is not None:
            cursor.on_applied(command, tag)
            self._dirty[cursor] = None

    def on_configured(self, command: Command) -> None:
        """CREATE_CONSUMER, PAUSE_CONSUMER or RESET_CONSUMER was applied."""
        cursor = self._by_name.get(command[2].encode())
        if cursor is not None:
            cursor.on_applied(command, None)
            self._dirty[cursor] = None

    def on_pause_proposed(self, name: str) -> None:
        """A pause of that consumer, or the end of one, is in the log."""
        cursor = self._by_name.get(name.encode())
        if cursor is not None:
            cursor.record_pause_proposed()

    def on_removed(self, bereft: Iterable[Consumer]) -> None:
        """Messages that these consumers were to get, or had got, left the stream."""
        for consumer in bereft:
            cursor = self._cursors.get(consumer.uid)
            if cursor is not None and cursor.on_removed():
                self._dirty[cursor] = None

    @property
    def has_few(self) -> bool:
        """True if there are so few cursors that all may plan whatever happens."""
        return len(self._cursors) <= _FEW_CURSORS

    def wake_all(self) -> None:
        """Wake all cursors: each plans once."""
        self._dirty |= dict.fromkeys(self._cursors.values())

    def wake_interested(self, subjects: list[bytes]) -> None:
        """Wake the cursors whose consumers want messages on these subjects."""
        interest = self.machine.interest()
        for wanting in (interest.of_all, interest.filtered(subjects)):
            for consumer in wanting:
                cursor = self._cursors.get(consumer.uid)
                if cursor is not None:
                    self._dirty[cursor] = None

    # --- messages from clients --------------------------------------------------------------

    def on_acks(self, message: Acks) -> None:
        """Give a chunk of acks to their consumer's cursor."""
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

    def on_pull(self, message: Pull) -> None:
        """Give a pull to its consumer's cursor."""
        cursor = self._by_name.get(message.consumer)
        if cursor is not None:
            cursor.requests.on_pull(message.reply, message.headers, message.payload)
            self._dirty[cursor] = None

    def on_drained(self, message: Drained) -> None:
        """Wake the cursors that waited for a congested client: one of those reads again."""
        self._dirty |= self._held_back
        self._held_back.clear()

    def on_flow(self, message: FlowReply) -> None:
        """Give a flow-control answer to its consumer's cursor."""
        cursor = self._by_name.get(message.consumer)
        if cursor is not None:
            cursor.requests.on_flow_reply(message.subject, message.headers)
            self._dirty[cursor] = None
            self._acked[cursor] = None

    def on_interest(self, message: InterestChanged) -> None:
        """Tell a push consumer's cursor whether its subject has a subscriber."""
        cursor = message.cursor
        if cursor in self._watches:
            cursor.on_interest(message.has_interest)
            self._dirty[cursor] = None

    def on_read(self, message: ChunkRead) -> None:
        """Wake the cursor that waited for a block read."""
        cursor = message.cursor
        if self._cursors.get(cursor.consumer.uid) is cursor:
            self._dirty[cursor] = None

    # --- CursorHost -------------------------------------------------------------------------

    def now_ns(self) -> int:
        return self._now.ns

    def now_ms(self) -> int:
        return self._now.ms

    def chunk(self, block_no: int, offset: int) -> Chunk | None:
        cursor = self._planning
        assert cursor is not None
        found, again_ms = self._reader.chunk(block_no, offset)
        if again_ms:
            self._wakes.set(again_ms, cursor)
        elif found is None:
            shell = self._shell
            self._reader.read(block_no, offset, lambda: shell.post(ChunkRead(cursor)))
        return found

    def on_lost_block(self, err: CorruptionError) -> None:
        cursor = self._planning
        assert cursor is not None
        self._wakes.set(self._reader.on_lost_block(err), cursor)

    def propose(self, command: Command, *, is_forced: bool, tag: list[bytes] | None = None) -> None:
        self._proposals.add(command, is_forced=is_forced, tag=tag)

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        return self._wires.sink(subject, queue)

    def watch_interest(self, subject: bytes, queue: bytes, cursor: Cursor) -> None:
        def on_change(has_interest: bool) -> None:
            # Told at once, taken later: a consumer's creator is answered before it delivers.
            cursor.is_push_bound = has_interest
            shell.call_soon(shell.post, InterestChanged(cursor, has_interest))

        shell = self._shell
        self._watches[cursor] = None
        self._watches[cursor] = self._wires.watch(subject, queue, on_change)

    def unwatch_interest(self, cursor: Cursor) -> None:
        token = self._watches.pop(cursor, None)
        if token is not None:
            self._wires.unwatch(token)

    def advise(self, kind: str, fields: dict[str, object]) -> None:
        self.advisories.events.append((kind, fields))

    def wake_at(self, monotonic_ms: int, cursor: Cursor) -> None:
        self._wakes.set(monotonic_ms, cursor)

    def wake_soon(self, cursor: Cursor) -> None:
        self._dirty[cursor] = None

    def wait_for_room(self) -> None:
        cursor = self._planning
        assert cursor is not None
        if not self._held_back:
            self._wires.when_drained(self._post_drained)
        self._held_back[cursor] = None

    def _post_drained(self) -> None:
        self._shell.post(Drained())

    def reply_empty(self, reply: bytes) -> None:
        self._wires.publish(reply, b"", b"", b"")
