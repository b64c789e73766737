"""What a cursor knows: its host, its position, and how far it runs ahead of what is applied.

The bottom of three layers; `receivers`, `ack_intake` and `cursor` add what is done with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from streamd.errors import CorruptionError
from streamd.machine.consumers.consumer import Consumer
from streamd.node.delivery.flow_control import FlowWindow, RateLimit, Replay
from streamd.node.delivery.priority import Pin
from streamd.node.delivery.pulls import Waiting
from streamd.node.delivery.redelivery import Redelivery
from streamd.types import Seq

if TYPE_CHECKING:
    from streamd.machine.streams.stream import StreamMachine
    from streamd.node.delivery.cursor import Cursor
    from streamd.node.ports import DeliverSink

Item = tuple[bytes, bytes, bytes, bytes]
"""A delivery: (subject, ack reply, headers, payload)."""


class CursorHost(Protocol):
    """What a cursor asks of its group."""

    machine: StreamMachine
    decode_fields: Callable[[bytes, int], tuple[Seq, int, bytes, bytes, bytes]]
    """(blob, position in it) -> (seq, ts, subject, headers, payload): the codec's."""
    max_payload: int

    def now_ns(self) -> int: ...

    def now_ms(self) -> int:
        """Monotonic."""

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """(base, blob) holding the whole record at `offset`; None: a read was started and the
        group will call `plan` of this cursor again when it is done."""

    def on_lost_block(self, err: CorruptionError) -> None:
        """Where the next messages are can't be known. The cursor that plans is woken again."""

    def propose(self, command: list[Any], *, is_forced: bool, tag: Any = None) -> None:
        """Append `command` to the log. Not forced: may wait <= 10 ms for company. Once applied the
        group calls `cursor.on_applied(command, tag)` with the same two objects."""

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None: ...

    def watch_interest(self, subject: bytes, queue: bytes, cursor: Cursor) -> None:
        """From now on call `cursor.on_interest(bool)` when interest changes, and once soon with the
        present state (not from inside this call)."""

    def unwatch_interest(self, cursor: Cursor) -> None: ...

    def advise(self, kind: str, fields: dict[str, Any]) -> None:
        """An event as those of Effects.events, but the leader's own observation."""

    def wake_at(self, monotonic_ms: int, cursor: Cursor) -> None:
        """Call `cursor.on_tick(now_ms)`, then `plan`, at or soon after that time. 0 clears it. An
        earlier wake may stand: the cursor asks again for the later one."""

    def wait_for_room(self) -> None:
        """Who is to receive from the cursor that plans is congested: call its `plan` again when
        one that was has room."""

    def wake_soon(self, cursor: Cursor) -> None:
        """Call `cursor.plan` in this turn or the next."""

    def reply_empty(self, reply: bytes) -> None: ...


class CursorState:
    """The state of a cursor and the questions it answers; owned and changed by its group only."""

    __slots__ = (
        "_ack_first",
        "_ack_pending_max",
        "_ack_prefix",
        "_ack_replies",
        "_acked",
        "_acking",
        "_active_ms",
        "_ahead_counts",
        "_ahead_new",
        "_armed_ms",
        "_deliver_subject",
        "_has_acks",
        "_has_interest",
        "_has_sent",
        "_heartbeat_at_ms",
        "_heartbeat_ms",
        "_hold_until_ms",
        "_host",
        "_inactive_ms",
        "_index",
        "_is_acked_by_flow",
        "_is_headers_only",
        "_is_inactive_proposed",
        "_is_stopped",
        "_items",
        "_last_stamp",
        "_max_deliver",
        "_naks",
        "_next_sseq",
        "_out",
        "_pauses_under_way",
        "_pin",
        "_position_due_ms",
        "_priority_policy",
        "_progress",
        "_purged_cseq",
        "_queue_group",
        "_rate",
        "_redelivery",
        "_refilters",
        "_replay",
        "_resets",
        "_seen",
        "_seen_pending",
        "_sent_cseq",
        "_sent_sseq",
        "_sink",
        "_terms",
        "_waiting",
        "_window",
        "consumer",
        "is_push",
        "is_push_bound",
        "last_acked_ns",
        "last_delivered_ns",
    )

    def __init__(self, consumer: Consumer, host: CursorHost) -> None:
        self.consumer = consumer
        self._host = host
        self._index: Any = host.machine.index
        self.is_push_bound = False
        self.last_delivered_ns = consumer.delivered_ns  # with who led before
        self.last_acked_ns = consumer.acked_ns
        self._is_stopped = False
        self._waiting = Waiting()
        self._pin = Pin()
        self._sink: DeliverSink | None = None
        self._has_interest = False
        self._deliver_subject = b""
        self._queue_group = b""
        self._window: FlowWindow | None = None
        self._rate: RateLimit | None = None
        self._replay: Replay | None = None
        self._redelivery = Redelivery(consumer)
        # What clients said since the last flush, and who wants to hear that it is done.
        self._acked: list[Seq] = []
        self._ack_replies: list[bytes] = []
        self._naks: list[tuple[Seq, int]] = []
        self._terms: list[tuple[Seq, str]] = []
        self._progress: list[Seq] = []
        # Proposed and not yet applied.
        self._acking: set[Seq] = set()
        self._ahead_counts: dict[Seq, int] = {}
        self._items: list[tuple[Seq, Seq, int, bool]] = []  # of this plan, proposed at its end
        self._out: list[tuple[DeliverSink, bytes, Item]] = []  # handed out, with inbox, in order
        self._has_sent = False
        self._refilters = consumer.refilters  # of the consumer, when deliveries were proposed last
        self._last_stamp = 0
        self._armed_ms = 0
        self._hold_until_ms = 0
        self._active_ms = host.now_ms()
        self._is_inactive_proposed = False
        self._position_due_ms = 0
        self._pauses_under_way = 0  # in the log and not applied: the client's, and ends of one
        stream = host.machine.name.encode()
        self._ack_prefix = b"$JS.ACK.%b.%b." % (stream, consumer.name.encode())
        self._ack_first = self._ack_prefix.replace(b"%", b"%%") + b"1.%d.%d.%d.%d"
        # From the config, by `Cursor._configure`.
        self.is_push = False
        self._has_acks = False
        self._ack_pending_max = 0  # 0: no limit
        self._max_deliver = -1
        self._is_acked_by_flow = False
        self._is_headers_only = False
        self._inactive_ms = 0
        self._heartbeat_ms = 0
        self._heartbeat_at_ms = 0  # 0: none is due
        self._priority_policy = "none"
        self._take_position()

    def _take_position(self) -> None:
        consumer = self.consumer
        self._resets = consumer.resets
        self._next_sseq: Seq = consumer.next_sseq
        self._sent_sseq: Seq = consumer.delivered_sseq
        # Of the consumer, when messages last left the stream: (next, delivered, left to deliver).
        self._seen = (0, 0, 0)
        self._seen_pending = 0
        self._sent_cseq = consumer.delivered_cseq
        self._ahead_new = 0
        self._purged_cseq = 0  # without acks: all that was sent up to here is left to nobody
        consumer.sent_sseq = 0
        consumer.sent_gone = []

    @property
    def num_waiting(self) -> int:
        """Pulls that wait and whose clients still listen."""
        self._waiting.drop_closed()
        return len(self._waiting)

    @property
    def sent_count(self) -> int:
        """How many messages went out so far, the same one again included."""
        return self._sent_cseq

    @property
    def is_paused(self) -> bool:
        return self.consumer.paused_until_ns > self._host.now_ns()

    @property
    def pinned_id(self) -> str:
        return self._pin.pin_id

    @property
    def pinned_ns(self) -> int:
        return self._pin.since_ns

    def num_ack_pending(self) -> int:
        """Delivered and not acked, counting what is proposed but not applied yet."""
        if self.consumer.is_ack_all:
            return len(self.consumer.pending) + self._ahead_new
        return len(self.consumer.pending) + self._ahead_new - len(self._acking)

    def num_pending(self) -> int:
        """Messages not yet sent a first time."""
        consumer = self.consumer
        if consumer.matcher is None and not consumer.initial:
            index = self._index
            start = self._next_sseq
            last: int = index.last_seq
            if start > last or not index.count:
                return 0
            first: int = index.first_seq
            if start <= first:
                total: int = index.count
                return total
            if last - first + 1 == index.count:
                return last - start + 1
            counted: int = index.count_from(start, None)
            return counted
        ahead = self._ahead_new - len(consumer.sent_gone)
        return max(0, consumer.num_pending - ahead)

    def _is_pending(self, sseq: Seq) -> bool:
        if sseq in self._acking:
            return False
        return sseq in self.consumer.pending or sseq > self.consumer.delivered_sseq

    def _deliveries(self, sseq: Seq) -> int:
        ahead = self._ahead_counts.get(sseq)
        return ahead if ahead is not None else self.consumer.redelivered.get(sseq, 1)

    def _propose(
        self, kind: int, argument: Any, *, is_forced: bool = False, tag: Any = None
    ) -> int:
        ts = self._stamp()
        command = [kind, ts, self.consumer.uid, argument]
        self._host.propose(command, is_forced=is_forced, tag=tag)
        return ts

    def _propose_sent(self, command: list[Any]) -> None:
        """Propose a DELIVERED or POSITION. What was sent since the one before may have been chosen
        by a filter that is another by now."""
        if self._refilters:
            command.append(self._refilters)
        self._refilters = self.consumer.refilters
        self._host.propose(command, is_forced=False)

    def _stamp(self) -> int:
        """A time of its own for each command: timers recognise a delivery by it."""
        self._last_stamp = ts = max(self._host.now_ns(), self._last_stamp + 1)
        return ts

    def _hold(self, delay_ms: int) -> None:
        self._hold_until_ms = self._host.now_ms() + delay_ms
