"""Delivery of one consumer's messages, on the leader: who gets what, when, and when again.

One mechanism serves replay and live, pull and push: a cursor reads the stream's index from its
position on, as far as somebody is there to take messages. A growing stream only rings its bell.
What was sent is proposed to the log (DELIVERED) in the same turn, without waiting for the commit:
delivery is at-least-once and promises nothing. So the cursor runs ahead of the replicated
`Consumer` by what it proposed and has not seen applied; `_ahead_*` and `_acking` are that
difference. Pure: no I/O, no clock but the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from streamd import limits
from streamd.machine import commands
from streamd.machine.consumer import Consumer
from streamd.node.priority import Pin, is_eligible, priority_refusal
from streamd.node.pulls import (
    API_LEVEL,
    EXCEEDED_MAX_WAITING,
    EXPIRED_BEFORE,
    IDLE,
    NO_MESSAGES,
    PUSH_BASED,
    REQUESTS_PENDING,
    BadRequestError,
    PullRequest,
    Waiting,
    bad_request,
    parse_options,
    refusal,
    waiting_max,
)
from streamd.node.push_gate import FLOW_REQUEST, FlowWindow, RateLimit, Replay, burst_bytes
from streamd.node.redelivery import Redelivery
from streamd.protocol import acks
from streamd.protocol import headers as msg_headers
from streamd.types import Seq

if TYPE_CHECKING:
    from streamd.machine.stream import StreamMachine
    from streamd.node.ports import DeliverSink

_MS = 1_000_000  # ns
_PLAIN_ACKS = (b"", b"+ACK", b"+OK")
_STALLED = (
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n"
    b"Nats-Consumer-Stalled: %b\r\n\r\n"
)
_BATCH_COMPLETED = b"409 Batch Completed"
_TOO_BIG = b"409 Message Size Exceeds MaxBytes"

Item = tuple[bytes, bytes, bytes, bytes]


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

    def wake_soon(self, cursor: Cursor) -> None:
        """Call `cursor.plan` in this turn or the next."""

    def reply_empty(self, reply: bytes) -> None: ...


class Cursor:
    """Made when the group leads and has applied its own no-op; `stop()`ped when it no longer does.

    After any `on_*` call the group calls `plan` once before its turn ends.
    """

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
        "_is_headers_only",
        "_is_inactive_proposed",
        "_is_resume_proposed",
        "_is_stopped",
        "_items",
        "_last_stamp",
        "_max_deliver",
        "_naks",
        "_next_sseq",
        "_out",
        "_pin",
        "_position_due_ms",
        "_priority_policy",
        "_progress",
        "_queue_group",
        "_rate",
        "_redelivery",
        "_replay",
        "_resets",
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
        self.last_delivered_ns = 0
        self.last_acked_ns = 0
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
        self._last_stamp = 0
        self._armed_ms = 0
        self._hold_until_ms = 0
        self._active_ms = host.now_ms()
        self._is_inactive_proposed = False
        self._position_due_ms = 0
        self._is_resume_proposed = False
        stream = host.machine.name.encode()
        self._ack_prefix = b"$JS.ACK.%b.%b." % (stream, consumer.name.encode())
        self._ack_first = self._ack_prefix.replace(b"%", b"%%") + b"1.%d.%d.%d.%d"
        self._take_position()
        self._configure()
        self._redelivery.restore(now_ns=host.now_ns(), now_ms=host.now_ms())
        if consumer.config.get("replay_policy") == "original":
            self._replay = Replay(self._index.last_seq)

    def _take_position(self) -> None:
        consumer = self.consumer
        self._resets = consumer.resets
        self._next_sseq: Seq = consumer.next_sseq
        self._sent_sseq: Seq = consumer.delivered_sseq
        self._sent_cseq = consumer.delivered_cseq
        self._ahead_new = 0

    def _configure(self) -> None:
        consumer = self.consumer
        config = consumer.config
        host = self._host
        self.is_push = consumer.is_push
        self._has_acks = not consumer.is_ack_none
        most = config.get("max_ack_pending") or 0
        self._ack_pending_max = most if self._has_acks and most > 0 else 0
        self._max_deliver = config.get("max_deliver") or -1
        self._is_headers_only = bool(config.get("headers_only"))
        self._inactive_ms = (config.get("inactive_threshold") or 0) // _MS
        self._heartbeat_ms = (config.get("idle_heartbeat") or 0) // _MS
        self._heartbeat_at_ms = 0
        self._priority_policy = config.get("priority_policy") or "none"
        self._waiting.is_by_priority = self._priority_policy == "prioritized"
        self._pin.timeout_ms = (config.get("priority_timeout") or 0) // _MS
        self._redelivery.configure()
        name = host.machine.name.encode()
        if not self.is_push:
            return
        if config.get("flow_control"):
            if self._window is None:
                fc_prefix = b"$JS.FC.%b.%b." % (name, consumer.name.encode())
                self._window = FlowWindow(fc_prefix)
        else:
            self._window = None
        bps = config.get("rate_limit_bps") or 0
        burst = burst_bytes(host.machine.config, host.max_payload)
        self._rate = RateLimit(bps, burst, host.now_ms()) if bps > 0 else None
        subject = config["deliver_subject"].encode()
        queue = (config.get("deliver_group") or "").encode()
        if subject != self._deliver_subject or queue != self._queue_group:
            if self._deliver_subject:
                host.unwatch_interest(self)
            self._deliver_subject = subject
            self._queue_group = queue
            self._has_interest = self.is_push_bound = False
            self._sink = None
            host.watch_interest(subject, queue, self)

    # --- facts ----------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Pulls that wait and whose clients still listen."""
        self._waiting.drop_closed()
        return len(self._waiting)

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
        return max(0, consumer.num_pending - self._ahead_new)

    # --- from clients ---------------------------------------------------------------------------

    def on_pull(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        """A pull request: queue it, or answer it with a status."""
        host = self._host
        sink = host.sink(reply)
        if sink is None or self._is_stopped:
            return
        now_ms = host.now_ms()
        if self.is_push:
            sink.status(PUSH_BASED)
            return
        if headers:
            wanted = msg_headers.get(headers, b"Nats-Required-Api-Level")
            if wanted is not None and not _is_level_served(wanted):
                sink.status(API_LEVEL)
                return
        try:
            options = parse_options(payload)
        except BadRequestError as err:
            sink.status(bad_request(str(err)))
            return
        self._active_ms = now_ms
        config = self.consumer.config
        refused = refusal(options, config) or priority_refusal(options, config)
        if refused is not None:
            sink.status(refused)
            return
        if self._priority_policy == "pinned_client":
            refused = self._pin.refusal(options, now_ms)
            if refused is not None:
                sink.status(refused)
                return
        if options.expires_ns < 0:
            sink.status(EXPIRED_BEFORE)
            return
        waiting = self._waiting
        if options.is_no_wait:
            available = self.num_pending() + self._redelivery.due_count
            if not available and not options.expires_ns:
                sink.status(NO_MESSAGES)
                return
            if available and waiting.queue and waiting.total_left(available + 1) > available:
                sink.status(REQUESTS_PENDING)
                return
        if len(waiting) >= waiting_max(config):
            waiting.drop_closed()
            if len(waiting) >= waiting_max(config):
                if not options.heartbeat_ns:
                    sink.status(EXCEEDED_MAX_WAITING)
                return
        waiting.add(PullRequest(reply, options, sink, now_ms))

    def on_ack(self, sseq: Seq, cseq: int, delivered: int, payload: bytes, reply: bytes) -> None:
        """An ack of any kind. Of what was never delivered: ignored, and so is its reply."""
        if payload in _PLAIN_ACKS:
            if sseq <= self._sent_sseq and self._has_acks:
                self._acked.append(sseq)
                if reply:
                    self._ack_replies.append(reply)
            return
        if sseq > self._sent_sseq or not self._has_acks:
            return
        verb = acks.parse_payload(payload)
        if verb is not None and verb.kind == acks.NEXT:
            self._acked.append(sseq)
            if reply:
                self.on_pull(reply, b"", verb.argument)
            return
        if reply:
            self._ack_replies.append(reply)
        if verb is None:
            return  # means nothing, but whoever asks is answered
        if verb.kind == acks.ACK:
            self._acked.append(sseq)
        elif not self._is_pending(sseq):
            return
        elif verb.kind == acks.NAK:
            self._naks.append((sseq, verb.delay_ns))
        elif verb.kind == acks.PROGRESS:
            self._progress.append(sseq)
        elif verb.kind == acks.TERM:
            self._terms.append((sseq, verb.argument.decode(errors="replace")))

    def on_flow_reply(self, subject: bytes, headers: bytes = b"") -> None:
        """The client has processed everything before a flow-control request."""
        if self._window is None or not self._window.answered(subject):
            return
        if self.consumer.config.get("ack_policy") == "flow_control" and headers:
            last = msg_headers.get(headers, b"Nats-Last-Stream")
            if last is not None and last.isdigit() and int(last) <= self._sent_sseq:
                self._acked.append(int(last))

    def _is_pending(self, sseq: Seq) -> bool:
        if sseq in self._acking:
            return False
        return sseq in self.consumer.pending or sseq > self.consumer.delivered_sseq

    # --- from the group -------------------------------------------------------------------------

    def on_stored(self, last_seq: Seq) -> None:
        """The stream grew: the only bell; `plan` looks for itself."""

    def on_applied(self, command: list[Any], tag: Any = None) -> None:
        """An entry naming this consumer was applied, in log order: DELIVERED ... POSITION,
        and CREATE_CONSUMER (an update), PAUSE_CONSUMER, RESET_CONSUMER of this consumer."""
        kind = command[0]
        if kind == commands.DELIVERED:
            if command[4] != self._resets:
                return
            for first, last, _, is_redelivery in command[3]:
                if is_redelivery:
                    for sseq in range(first, last + 1):
                        self._ahead_counts.pop(sseq, None)
                else:
                    self._ahead_new -= last - first + 1
        elif kind == commands.ACKED or kind == commands.DEAD:
            self._acking.difference_update(command[3])
        elif kind == commands.TERMED:
            self._acking.difference_update([sseq for sseq, _ in command[3]])
        elif kind == commands.POSITION:
            if command[5] == self._resets:
                self._ahead_new = self._sent_cseq - command[4]
        elif kind == commands.RESET_CONSUMER:
            if self.consumer.resets != self._resets:
                self._redelivery.clear()
                self._ahead_counts.clear()
                self._position_due_ms = 0
                self._take_position()
        elif kind == commands.CREATE_CONSUMER:
            self._configure()
            if not self.consumer.initial:
                # The scan may have run past what the new filter wants.
                self._next_sseq = max(self._sent_sseq + 1, self.consumer.next_sseq)
        elif kind == commands.PAUSE_CONSUMER:
            self._is_resume_proposed = False
        if tag:
            reply_empty = self._host.reply_empty
            for reply in tag:
                reply_empty(reply)

    def on_removed(self) -> None:
        """Messages left the stream (purge, expiry, limits, delete, acks)."""
        consumer = self.consumer
        if consumer.next_sseq > self._next_sseq:
            self._next_sseq = consumer.next_sseq
        if consumer.delivered_sseq > self._sent_sseq:
            self._sent_sseq = consumer.delivered_sseq

    def on_interest(self, has_interest: bool) -> None:
        """Interest in the deliver subject appeared or ended."""
        now_ms = self._host.now_ms()
        self._has_interest = self.is_push_bound = has_interest
        self._active_ms = now_ms
        self._sink = None
        self._heartbeat_at_ms = 0
        if has_interest and self._heartbeat_ms:
            self._heartbeat_at_ms = now_ms + self._heartbeat_ms
        if not has_interest and self._window is not None:
            # Whoever comes next starts with a window of its own.
            self._window.reply = b""
            self._window.unanswered_bytes = 0

    def on_tick(self, now_ms: int) -> None:
        """Time has passed: end pulls, send heartbeats, collect what is due again."""
        self._armed_ms = 0
        if self._is_stopped:
            return
        self._waiting.expire(now_ms, last_cseq=self._sent_cseq, last_sseq=self._sent_sseq)
        self._ring(now_ms)
        if self._heartbeat_at_ms and now_ms >= self._heartbeat_at_ms:
            self._beat(now_ms)
        if self._position_due_ms and now_ms >= self._position_due_ms:
            self._propose_position()
        if self._pin.is_over(now_ms):
            self.unpin("timeout")
        if self._inactive_ms:
            self._look_at_activity(now_ms)

    def _ring(self, now_ms: int) -> None:
        redelivery = self._redelivery
        if redelivery.next_ms and redelivery.next_ms <= now_ms:
            self._make_due(redelivery.ring(now_ms, self._acking))

    def _make_due(self, sseqs: list[Seq]) -> None:
        """Queue for redelivery; those delivered max_deliver times are given up instead."""
        if self._max_deliver > 0:
            most = self._max_deliver
            dead = [sseq for sseq in sseqs if self._deliveries(sseq) >= most]
            if dead:
                sseqs = [sseq for sseq in sseqs if self._deliveries(sseq) < most]
                self._acking.update(dead)
                self._propose(commands.DEAD, dead)
        self._redelivery.queue(sseqs)

    def _deliveries(self, sseq: Seq) -> int:
        ahead = self._ahead_counts.get(sseq)
        return ahead if ahead is not None else self.consumer.redelivered.get(sseq, 1)

    def _beat(self, now_ms: int) -> None:
        self._heartbeat_at_ms = now_ms + self._heartbeat_ms
        sink = self._push_sink()
        if sink is None:
            return
        window = self._window
        if window is not None and window.is_stalled and window.reply:
            sink.status(_STALLED % (self._sent_cseq, self._sent_sseq, window.reply))
        else:
            sink.status(IDLE % (self._sent_cseq, self._sent_sseq))

    def _look_at_activity(self, now_ms: int) -> None:
        if self._is_inactive_proposed or now_ms < self._active_ms + self._inactive_ms:
            return
        self._waiting.drop_closed()
        if self._has_interest or self._waiting.queue:
            self._active_ms = now_ms
            return
        self._is_inactive_proposed = True
        consumer = self.consumer
        command = [
            commands.DELETE_CONSUMER,
            self._host.now_ns(),
            consumer.name,
            consumer.uid,
            "inactive",
        ]
        self._host.propose(command, is_forced=True)

    def unpin(self, reason: str) -> bool:
        """The pinned client loses its place; False if there was none."""
        if not self._pin.pin_id:
            return False
        self._host.advise("consumer_unpinned", self._pin_fields({"reason": reason}))
        self._pin.clear()
        return True

    def _pin_fields(self, more: dict[str, Any]) -> dict[str, Any]:
        groups = self.consumer.config.get("priority_groups") or [""]
        return {
            "stream": self._host.machine.name,
            "consumer": self.consumer.name,
            "group": groups[0],
            **more,
        }

    # --- proposing ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Propose what is collected (acks of all kinds, position), for a read barrier covers only
        what is in the log."""
        if self._is_stopped:
            return
        self._flush_acks()
        if self._position_due_ms:
            self._propose_position()

    def _flush_acks(self) -> None:
        replies, self._ack_replies = self._ack_replies, []
        if self._progress:
            self._flush_progress()
        if self._naks:
            self._flush_naks()
        if self._terms:
            terms, self._terms = self._terms, []
            self._acking.update(sseq for sseq, _ in terms)
            self._propose(commands.TERMED, terms)
        if self._acked or replies:
            acked, self._acked = self._acked, []
            if not self.consumer.is_ack_all:
                acking = self._acking
                pending = self.consumer.pending
                applied = self.consumer.delivered_sseq
                given_up = self.consumer.redelivered
                acked = [
                    sseq
                    for sseq in acked
                    if (sseq in pending or sseq > applied or sseq in given_up)
                    and sseq not in acking
                ]
                is_forced = bool(replies)
                acking.update(acked)
            else:
                most = self._ack_pending_max
                is_forced = bool(replies) or 0 < most <= self.num_ack_pending()
                acked = [max(acked)] if acked else []
            self.last_acked_ns = self._host.now_ns()
            self._active_ms = self._host.now_ms()
            if acked or replies:
                self._propose(commands.ACKED, acked, is_forced=is_forced, tag=replies or None)

    def _flush_progress(self) -> None:
        progress, self._progress = self._progress, []
        ts = self._propose(commands.PROGRESS, progress)
        now_ms = self._host.now_ms()
        for sseq in progress:
            self._redelivery.delivered(
                sseq, sseq, stamp=ts, now_ms=now_ms, deliveries=self._deliveries(sseq)
            )

    def _flush_naks(self) -> None:
        naks, self._naks = self._naks, []
        self._propose(commands.NAKED, naks)
        now_ms = self._host.now_ms()
        for sseq, delay_ns in naks:
            self._redelivery.nak(sseq, now_ms + (delay_ns + _MS - 1) // _MS)
        self._ring(now_ms)

    def _propose(
        self, kind: int, argument: Any, *, is_forced: bool = False, tag: Any = None
    ) -> int:
        ts = self._stamp()
        command = [kind, ts, self.consumer.uid, argument]
        self._host.propose(command, is_forced=is_forced, tag=tag)
        return ts

    def _stamp(self) -> int:
        """A time of its own for each command: timers recognise a delivery by it."""
        self._last_stamp = ts = max(self._host.now_ns(), self._last_stamp + 1)
        return ts

    def _propose_position(self) -> None:
        self._position_due_ms = 0
        command = [
            commands.POSITION,
            self._stamp(),
            self.consumer.uid,
            self._sent_sseq,
            self._sent_cseq,
            self._resets,
        ]
        self._host.propose(command, is_forced=False)

    # --- planning -------------------------------------------------------------------------------

    def plan(self, budget_msgs: int) -> bool:
        """Flush collected acks, then deliver what can be. True: call again soon, more to do."""
        if self._is_stopped:
            return False
        if self._acked or self._naks or self._terms or self._progress or self._ack_replies:
            self._flush_acks()
        is_more = False
        if self._waiting.queue or self._has_interest:
            self._hold_until_ms = 0
            if not (self.consumer.paused_until_ns and self.is_paused):
                is_more = self._plan_deliveries(budget_msgs)
                if self._has_sent:
                    self._has_sent = False
                    self._propose_delivered()
        if self.consumer.paused_until_ns and not self._is_resume_proposed:
            self._look_at_pause()
        self._arm()
        return is_more

    def _plan_deliveries(self, budget: int) -> bool:
        """Send what is due again, then what is new. True: there is more to do at once."""
        sent = 0
        if self._redelivery.has_due:
            sent = self._send_due(budget)
            if self._redelivery.has_due:
                # Blocked (a read, a full receiver, a spent budget): what is due goes first.
                return sent >= budget
        if sent >= budget:
            return True
        _, is_at_end, is_blocked = self._send_new(budget - sent)
        if is_at_end and self._waiting.queue:
            self._end_no_waits()
        return not is_at_end and not is_blocked

    def _room(self, budget: int) -> int:
        """How many messages somebody would take now."""
        if not self.is_push:
            queue = self._waiting.queue
            if not queue:
                return 0
            if len(queue) == 1:
                head = queue[0]
                if not head.sink.is_open():
                    queue.popleft()
                    return 0
                if head.sink.is_congested():
                    self._hold(limits.CONGESTED_RETRY_MS)
                    return 0
                return min(budget, head.left)
            self._waiting.drop_closed()
            return self._waiting.total_left(budget)
        if self._window is not None and self._window.is_stalled:
            return 0
        sink = self._push_sink()
        if sink is None:
            return 0
        if sink.is_congested():
            self._hold(limits.CONGESTED_RETRY_MS)
            return 0
        return budget

    def _push_sink(self) -> DeliverSink | None:
        if not self._has_interest:
            return None
        sink = self._sink
        if sink is None or not sink.is_open():
            sink = self._sink = self._host.sink(self._deliver_subject, self._queue_group)
        return sink

    def _hold(self, delay_ms: int) -> None:
        self._hold_until_ms = self._host.now_ms() + delay_ms

    def _is_plain(self) -> bool:
        """True if messages may go out in one run: one receiver, nothing to weigh per message."""
        if self.is_push:
            return self._window is None and self._rate is None
        queue = self._waiting.queue
        return len(queue) == 1 and not queue[0].has_bytes_max and self._priority_policy == "none"

    def _select(self, limit: int) -> tuple[list[Any], Seq]:
        """The next messages to send a first time, and where the search ended (exclusive)."""
        consumer = self.consumer
        if consumer.initial:
            locs = []
            locate = self._index.locate
            # Ahead of the applied list by what was sent already.
            for at in range(consumer.initial_at, len(consumer.initial)):
                sseq = consumer.initial[at]
                if sseq <= self._sent_sseq:
                    continue
                loc = locate(sseq)
                if loc is not None:
                    locs.append(loc)
                    if len(locs) == limit:
                        break
            if locs:
                return locs, self._next_sseq
        found: tuple[list[Any], Seq] = self._index.select(
            self._next_sseq, consumer.matcher, limit, limits.SCAN_MSGS_MAX
        )
        return found

    def _send_new(self, budget: int) -> tuple[int, bool, bool]:
        """Send new messages. Returns (count, stream has no more, something must happen first)."""
        index = self._index
        if self._next_sseq > index.last_seq and not self.consumer.initial:
            return 0, True, True
        sent_total = 0
        while True:
            room = self._room(budget - sent_total)
            if self._ack_pending_max and room > 0:
                room = min(room, self._ack_pending_max - self.num_ack_pending())
            if room <= 0:
                return sent_total, False, True
            if self._replay is not None or self._priority_policy == "overflow":
                room = 1  # who gets it, or when, depends on what was sent before
            locs, scanned_to = self._select(room)
            if locs:
                sent, is_blocked = self._send_run(locs, self._is_plain())
                sent_total += sent
                if is_blocked:
                    return sent_total, False, True
            if len(locs) < room or not locs:
                self._next_sseq = max(self._next_sseq, scanned_to)
            if self._next_sseq > index.last_seq and not self._has_initial_left():
                return sent_total, True, True
            if sent_total >= budget or not locs:
                return sent_total, False, False

    def _has_initial_left(self) -> bool:
        initial = self.consumer.initial
        return bool(initial) and initial[-1] > self._sent_sseq

    def _send_run(self, locs: list[Any], is_plain: bool) -> tuple[int, bool]:
        """Send the messages at `locs`. Returns (how many went out, is blocked)."""
        host = self._host
        decode = host.decode_fields
        ack_first = self._ack_first
        left = max(self.num_pending(), len(locs))
        cseq = self._sent_cseq
        out: list[Item] = []
        append = out.append if is_plain and self._is_unchanged() else None
        block_no = -1
        base = end = 0
        blob = b""
        sent = 0
        for seq, block, offset, length in locs:
            if block != block_no or offset < base or offset + length > end:
                found = host.chunk(block, offset)
                if found is None:
                    break
                base, blob = found
                block_no = block
                end = base + len(blob)
            _, ts, subject, headers, payload = decode(blob, offset - base)
            sent += 1
            ack = ack_first % (seq, cseq + sent, ts, left - sent)
            if append is not None:
                append((subject, ack, headers, payload))
            elif not self._send_special(seq, ts, (subject, ack, headers, payload), out, is_plain):
                sent -= 1
                break
        if sent:
            self._note_sent(locs, sent)
            if is_plain:
                self._hand_over_plain(out)
        if not is_plain:
            self._hand_over()
        return sent, sent < len(locs)

    def _is_unchanged(self) -> bool:
        """True if messages go out as they are stored, as fast as they can."""
        return not self._is_headers_only and self._replay is None

    def _send_special(self, seq: Seq, ts: int, item: Item, out: list[Item], is_plain: bool) -> bool:
        """The rare ways of sending one message; False if it can't go out now."""
        if self._replay is not None and not self._is_replay_due(seq, ts):
            return False
        if self._is_headers_only:
            subject, ack, headers, payload = item
            item = (subject, ack, _with_size(headers, len(payload)), b"")
        if is_plain:
            out.append(item)
            return True
        return self._hand_out(item)

    def _note_sent(self, locs: list[Any], sent: int) -> None:
        """The first `sent` of `locs` went out for the first time: move on, remember for the log."""
        cseq = self._sent_cseq + 1
        first: Seq = locs[0][0]
        last: Seq = locs[sent - 1][0]
        if self._has_acks:
            if last - first + 1 == sent:
                self._items.append((first, last, cseq, False))
            else:
                run_first = run_last = first
                for at in range(1, sent):
                    seq = locs[at][0]
                    if seq != run_last + 1:
                        self._items.append((run_first, run_last, cseq, False))
                        cseq += run_last - run_first + 1
                        run_first = seq
                    run_last = seq
                self._items.append((run_first, run_last, cseq, False))
        self._sent_cseq += sent
        self._sent_sseq = last
        if last >= self._next_sseq:
            self._next_sseq = last + 1
        self._ahead_new += sent
        self._has_sent = True

    def _send_due(self, budget: int) -> int:
        """Send again what is due, lowest seq first. Returns how many went out."""
        redelivery = self._redelivery
        host = self._host
        sent = 0
        is_plain = self._is_plain()
        out: list[Item] = []
        room = self._room(budget)
        left = self.num_pending()
        while redelivery.has_due and sent < room:
            sseq = redelivery.peek_due()
            loc = self._index.locate(sseq) if self._is_pending(sseq) else None
            if loc is None:
                redelivery.pop_due()
                continue
            _, block, offset, _ = loc
            found = host.chunk(block, offset)
            if found is None:
                break
            base, blob = found
            _, ts, subject, headers, payload = host.decode_fields(blob, offset - base)
            if self._is_headers_only:
                headers = _with_size(headers, len(payload))
                payload = b""
            count = self._deliveries(sseq) + 1
            cseq = self._sent_cseq + 1
            ack = b"%b%d.%d.%d.%d.%d" % (self._ack_prefix, count, sseq, cseq, ts, left)
            if is_plain:
                out.append((subject, ack, headers, payload))
            elif not self._hand_out((subject, ack, headers, payload)):
                break
            redelivery.pop_due()
            self._sent_cseq = cseq
            self._ahead_counts[sseq] = count
            self._add_redelivered(sseq, cseq)
            sent += 1
        if is_plain:
            if out:
                self._hand_over_plain(out)
        else:
            self._hand_over()
        return sent

    def _add_redelivered(self, sseq: Seq, cseq: int) -> None:
        self._has_sent = True
        items = self._items
        if items:
            first, last, first_cseq, is_redelivery = items[-1]
            if is_redelivery and last + 1 == sseq and first_cseq + last - first + 1 == cseq:
                items[-1] = (first, sseq, first_cseq, True)
                return
        items.append((sseq, sseq, cseq, True))

    def _is_replay_due(self, sseq: Seq, ts: int) -> bool:
        """Replay at original speed: True if the message may go out now."""
        replay = self._replay
        assert replay is not None
        now_ms = self._host.now_ms()
        if sseq > replay.until_sseq:
            self._replay = None
            return True
        due_ms = replay.due_ms(ts, now_ms)
        if due_ms > now_ms:
            self._hold_until_ms = due_ms
            return False
        replay.sent(ts, now_ms)
        return True

    # --- handing messages to receivers ----------------------------------------------------------

    def _hand_over_plain(self, out: list[Item]) -> None:
        """All of `out` to the one receiver there is."""
        if self.is_push:
            sink = self._sink
            assert sink is not None
            sink.deliver(out)
            if self._heartbeat_ms:
                self._heartbeat_at_ms = self._host.now_ms() + self._heartbeat_ms
            return
        queue = self._waiting.queue
        request = queue[0]
        request.left -= len(out)
        request.delivered += len(out)
        request.sink.deliver(out)
        if request.left <= 0:
            queue.popleft()
        elif request.heartbeat_ms:
            request.heartbeat_at_ms = self._host.now_ms() + request.heartbeat_ms

    def _hand_out(self, item: Item) -> bool:
        """One message to whoever is next; False if nobody can take it now."""
        if self.is_push:
            return self._hand_out_push(item)
        size = len(item[0]) + len(item[1]) + len(item[2]) + len(item[3])
        queue = self._waiting.queue
        request = self._next_request()
        while request is not None:
            if not request.has_bytes_max:
                break
            if size <= request.bytes_left:
                request.bytes_left -= size
                if request.bytes_left == 0:
                    request.left = 1  # all bytes are used up: complete
                break
            self._hand_over()
            request.end(_TOO_BIG)
            queue.remove(request)
            request = self._next_request()
        if request is None:
            return False
        if self._priority_policy == "pinned_client":
            item = (item[0], item[1], self._pin.mark(item[2]), item[3])
        self._out.append((request.sink, request.reply, item))
        request.left -= 1
        request.delivered += 1
        if request.heartbeat_ms:
            request.heartbeat_at_ms = self._host.now_ms() + request.heartbeat_ms
        if request.left <= 0:
            if request.bytes_left > 0:
                self._hand_over()
                request.end(_BATCH_COMPLETED)
            queue.remove(request)
        elif queue[0] is request and len(queue) > 1:
            self._waiting.rotate()
        return True

    def _next_request(self) -> PullRequest | None:
        """The pull that gets the next message."""
        queue = self._waiting.queue
        policy = self._priority_policy
        if policy == "none" or policy == "prioritized":
            return queue[0] if queue else None
        if policy == "overflow":
            left = self.num_pending()
            unacked = self.num_ack_pending()
            for request in queue:
                if is_eligible(request.options, num_pending=left, num_ack_pending=unacked):
                    return request
            return None
        now_ms = self._host.now_ms()
        for request in queue:
            if self._pin.serves(request):
                return request
        if not self._pin.pin_id and queue:
            request = queue[0]
            pin_id = self._pin.take(request, self.consumer, now_ms, self._host.now_ns())
            self._host.advise("consumer_pinned", self._pin_fields({"pinned_id": pin_id}))
            return request
        return None

    def _hand_out_push(self, item: Item) -> bool:
        sink = self._sink
        assert sink is not None
        size = len(item[0]) + len(item[1]) + len(item[2]) + len(item[3])
        if self._window is not None and self._window.is_stalled:
            return False
        if self._rate is not None:
            delay_ms = self._rate.delay_ms(size, self._host.now_ms())
            if delay_ms:
                self._hold(delay_ms)
                return False
        self._out.append((sink, b"", item))
        if self._window is not None and self._window.sent(size):
            self._hand_over()
            sink.status(FLOW_REQUEST, self._window.request())
        return True

    def _hand_over(self) -> None:
        """Everything handed out goes to its sinks, in order: several pulls may share an inbox (or
        one subscription may see several), and a subscriber's messages must not be shuffled."""
        handed = self._out
        if not handed:
            return
        self._out = []
        sink, inbox, item = handed[0]
        batch = [item]
        for each in handed[1:]:
            if each[1] == inbox:
                batch.append(each[2])
            else:
                sink.deliver(batch)
                sink, inbox, item = each
                batch = [item]
        sink.deliver(batch)
        if self.is_push and self._heartbeat_ms:
            self._heartbeat_at_ms = self._host.now_ms() + self._heartbeat_ms

    def _end_no_waits(self) -> None:
        """Nothing more is stored: pulls that don't wait and got something are over."""
        queue = self._waiting.queue
        over = [each for each in queue if each.is_no_wait and each.delivered]
        for request in over:
            queue.remove(request)
            request.sink.status(NO_MESSAGES)

    def _propose_delivered(self) -> None:
        """Log what this plan sent, and set the timers of what must be acked."""
        items, self._items = self._items, []
        host = self._host
        now_ms = host.now_ms()
        self.last_delivered_ns = host.now_ns()
        self._active_ms = now_ms
        if not self._has_acks:
            if not self._position_due_ms:
                self._position_due_ms = now_ms + limits.POSITION_EVERY_MS
            return
        ts = self._stamp()
        redelivery = self._redelivery
        for first, last, _, is_redelivery in items:
            if is_redelivery:
                for sseq in range(first, last + 1):
                    redelivery.delivered(
                        sseq, sseq, stamp=ts, now_ms=now_ms, deliveries=self._deliveries(sseq)
                    )
            else:
                redelivery.delivered(first, last, stamp=ts, now_ms=now_ms, deliveries=1)
        command = [commands.DELIVERED, ts, self.consumer.uid, items, self._resets]
        host.propose(command, is_forced=False)

    def _look_at_pause(self) -> None:
        until_ns = self.consumer.paused_until_ns
        now_ns = self._host.now_ns()
        if until_ns > now_ns:
            self._hold((until_ns - now_ns + _MS - 1) // _MS)
            return
        self._is_resume_proposed = True
        command = [commands.PAUSE_CONSUMER, now_ns, self.consumer.name, 0]
        self._host.propose(command, is_forced=True)

    def _arm(self) -> None:
        """Ask for the earliest wake any of the timers needs."""
        soonest = self._redelivery.next_ms
        for at_ms in (
            self._waiting.next_event_ms,
            self._heartbeat_at_ms,
            self._position_due_ms,
            self._hold_until_ms,
            self._pin.until_ms,
        ):
            if at_ms and (soonest == 0 or at_ms < soonest):
                soonest = at_ms
        if self._inactive_ms and not self._is_inactive_proposed:
            at_ms = self._active_ms + self._inactive_ms
            if soonest == 0 or at_ms < soonest:
                soonest = at_ms
        if soonest and (self._armed_ms == 0 or soonest < self._armed_ms):
            self._armed_ms = soonest
            self._host.wake_at(soonest, self)

    def stop(self, status: bytes = b"") -> None:
        """End: waiting pulls get `status` (e.g. b"409 Leadership Change", b"409 Consumer Deleted",
        b"409 Server Shutdown"; b"" tells nobody). Nothing is proposed any more."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._waiting.end_all(status)
        self._has_interest = self.is_push_bound = False
        self._sink = None


def _with_size(headers: bytes, size: int) -> bytes:
    """`headers` saying how big the payload was that is not sent."""
    if headers:
        return b"%bNats-Msg-Size: %d\r\n\r\n" % (headers[:-2], size)
    return b"NATS/1.0\r\nNats-Msg-Size: %d\r\n\r\n" % size


def _is_level_served(wanted: bytes) -> bool:
    return wanted.isdigit() and int(wanted) <= limits.API_LEVEL
