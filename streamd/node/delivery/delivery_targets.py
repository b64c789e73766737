"""Targets of a consumer's messages: waiting pulls, or the deliver subject of a push consumer.

A cursor has the one or the other for its whole life: a pull consumer never becomes a push consumer.
"""

from __future__ import annotations

from typing import Protocol

from streamd import limits
from streamd.node.delivery.cursor_settings import CursorSettings, Hold
from streamd.node.delivery.delivery_host import DeliveryHost, Item
from streamd.node.delivery.flow_control import FLOW_REQUEST, FlowWindow, RateLimit, burst_bytes
from streamd.node.delivery.pending_state import PendingState
from streamd.node.delivery.priority import Pin, is_eligible
from streamd.node.delivery.pulls import IDLE, NO_MESSAGES, PullOptions, PullRequest, Waiting
from streamd.node.ports import DeliverSink

_STALLED = (
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n"
    b"Nats-Consumer-Stalled: %b\r\n\r\n"
)
_BATCH_COMPLETED = b"409 Batch Completed"
_TOO_BIG = b"409 Message Size Exceeds MaxBytes"
_WRONG_PIN = b"423 Nats-Wrong-Pin-Id"

Handed = tuple[DeliverSink, bytes, Item]
"""An item that has a receiver: (sink, inbox, item)."""


class DeliveryTargets(Protocol):
    """Receivers of one consumer's messages, as the cursor and its sender see them."""

    def has_takers(self) -> bool:
        """True if a client may be there to take messages."""

    def room(self, budget: int) -> int:
        """Return how many messages receivers take now, `budget` at most."""

    def is_plain(self) -> bool:
        """True if messages may go out in one run: one receiver, nothing to weigh per message."""

    def takes_runs(self) -> bool:
        """True if messages that lie one behind another may go out in one call."""

    def bound_run(self, count: int, length: int) -> int:
        """Return how many of `count` records of `length` bytes may go out in one call."""

    def plain_sink(self) -> DeliverSink:
        """Return the sink of the one receiver of `is_plain` and `takes_runs`."""

    def record_plain(self, count: int) -> None:
        """Count messages that the one receiver of `is_plain` was given."""

    def record_run(self, count: int, byte_count: int) -> None:
        """Count messages that the one receiver of `takes_runs` was given."""

    def offer(self, item: Item) -> bool:
        """Assign one message to the next receiver; False if none can take it now."""

    def flush(self) -> None:
        """Send what is assigned."""

    def end_no_waits(self) -> None:
        """End the pulls that don't wait for messages, or for no more of them."""

    def ask_for_acks(self) -> None:
        """Ask for acks where answers to flow-control requests are those, once all is out."""

    def expire(self, now_ms: int) -> bool:
        """End receivers whose time is over; True if some client was there until then."""

    def poll(self, now_ms: int) -> bool:
        """Run what is due at this time; True if others may get messages by that."""

    def next_event_ms(self) -> int:
        """Return when `expire` or `poll` has something to do; 0: never."""

    def has_listeners(self) -> bool:
        """True if some client listens now."""

    def end(self, status: bytes) -> None:
        """Tell waiting clients that the cursor ends, with `status` if there is one."""


class PullTargets:
    """Waiting pulls of one consumer: each takes so many messages, in turn or by priority."""

    __slots__ = ("_handed", "_hold", "_host", "_pending", "_policy", "pin", "waiting")

    def __init__(self, host: DeliveryHost, pending: PendingState, hold: Hold) -> None:
        self._host = host
        self._pending = pending
        self._hold = hold
        self._policy = "none"
        self._handed: list[Handed] = []  # assigned and not sent, in order
        self.waiting = Waiting()
        self.pin = Pin()

    def configure(self, settings: CursorSettings) -> None:
        """Take over the priority policy."""
        self._policy = settings.priority_policy
        self.waiting.is_by_priority = self._policy == "prioritized"
        self.pin.timeout_ms = settings.pin_timeout_ms

    def has_takers(self) -> bool:
        return bool(self.waiting.queue)

    def room(self, budget: int) -> int:
        queue = self.waiting.queue
        if not queue:
            return 0
        if len(queue) == 1:
            head = queue[0]
            if not head.sink.is_open():
                queue.popleft()
                return 0
            if head.sink.is_congested():
                _wait_for_room(self._host, self._hold)
                return 0
            return min(budget, head.left)
        return self.waiting.open_left(budget)

    def is_plain(self) -> bool:
        queue = self.waiting.queue
        return len(queue) == 1 and not queue[0].has_bytes_max and self._policy == "none"

    takes_runs = is_plain

    def bound_run(self, count: int, length: int) -> int:
        return count

    def plain_sink(self) -> DeliverSink:
        return self.waiting.queue[0].sink

    def record_plain(self, count: int) -> None:
        queue = self.waiting.queue
        request = queue[0]
        request.left -= count
        request.delivered += count
        if request.left <= 0:
            queue.popleft()
        elif request.heartbeat_ms:
            request.heartbeat_at_ms = self._host.now_ms() + request.heartbeat_ms

    def record_run(self, count: int, byte_count: int) -> None:
        self.record_plain(count)

    def offer(self, item: Item) -> bool:
        size = len(item[0]) + len(item[1]) + len(item[2]) + len(item[3])
        queue = self.waiting.queue
        request = self._next_request()
        while request is not None:
            if not request.has_bytes_max:
                break
            if size <= request.bytes_left:
                request.bytes_left -= size
                if request.bytes_left == 0:
                    request.left = 1  # all bytes are used up: complete
                break
            self.flush()
            request.end(_TOO_BIG)
            queue.remove(request)
            request = self._next_request()
        if request is None:
            self.end_no_waits()  # what is left is not for them
            return False
        if self._policy == "pinned_client":
            if not self.pin.pin_id:
                self._pin_client_of(request)
            item = (item[0], item[1], self.pin.mark(item[2]), item[3])
        self._handed.append((request.sink, request.reply, item))
        request.left -= 1
        request.delivered += 1
        if request.heartbeat_ms:
            request.heartbeat_at_ms = self._host.now_ms() + request.heartbeat_ms
        if request.left <= 0:
            if request.bytes_left > 0:
                self.flush()
                request.end(_BATCH_COMPLETED)
            queue.remove(request)
        elif queue[0] is request and len(queue) > 1:
            self.waiting.rotate()
        return True

    def flush(self) -> None:
        handed = self._handed
        if handed:
            self._handed = []
            _deliver(handed)

    def end_no_waits(self) -> None:
        queue = self.waiting.queue
        over = [each for each in queue if each.is_over_for_now()]
        if over:
            self.flush()
        for request in over:
            queue.remove(request)
            request.sink.status(NO_MESSAGES)

    def ask_for_acks(self) -> None:
        """Pulls have no flow control."""

    def expire(self, now_ms: int) -> bool:
        pending = self._pending
        cseq, sseq = pending.sent_cseq, pending.sent_sseq
        is_held = pending.is_full()
        return self.waiting.expire(now_ms, last_cseq=cseq, last_sseq=sseq, is_held=is_held)

    def poll(self, now_ms: int) -> bool:
        return self.pin.is_over(now_ms) and self.unpin("timeout")

    def next_event_ms(self) -> int:
        event_ms, pin_ms = self.waiting.next_event_ms, self.pin.until_ms
        return min(event_ms, pin_ms) if event_ms and pin_ms else event_ms or pin_ms

    def has_listeners(self) -> bool:
        self.waiting.drop_closed()
        return bool(self.waiting.queue)

    def end(self, status: bytes) -> None:
        self.waiting.end_all(status)

    def refusal(self, options: PullOptions, now_ms: int) -> bytes | None:
        """Return a status for a pull that names the wrong pin; the right one is prolonged."""
        if self._policy != "pinned_client":
            return None
        return self.pin.refusal(options, now_ms)

    def unpin(self, reason: str) -> bool:
        """Take the place of the pinned client; False if there was none."""
        if not self.pin.pin_id:
            return False
        self._host.advise("consumer_unpinned", self._pin_fields({"reason": reason}))
        self.pin.clear()
        return True

    def _next_request(self) -> PullRequest | None:
        """Return the pull that gets the next message."""
        queue = self.waiting.queue
        policy = self._policy
        if policy == "none" or policy == "prioritized":
            return queue[0] if queue else None
        if policy == "overflow":
            # What is to be sent again goes first, and counts as the one that waits.
            pending = self._pending
            left = pending.num_pending() + pending.redelivery.has_due
            unacked = pending.num_ack_pending()
            for request in queue:
                if is_eligible(request.options, num_pending=left, num_ack_pending=unacked):
                    return request
            return None
        self._end_unpinned()
        if not self.pin.pin_id:
            return queue[0] if queue else None
        for request in queue:
            if self.pin.serves(request):
                return request
        return None

    def _pin_client_of(self, request: PullRequest) -> None:
        """Give the consumer to the client of `request` alone, which learns so with a message."""
        host = self._host
        pin_id = self.pin.assign(request, self._pending.consumer, host.now_ms(), host.now_ns())
        host.advise("consumer_pinned", self._pin_fields({"pinned_id": pin_id}))

    def _end_unpinned(self) -> None:
        """End the pulls of a client that was pinned: others waited for the place before it."""
        queue = self.waiting.queue
        for request in [each for each in queue if self.pin.is_of_another(each)]:
            queue.remove(request)
            request.end(_WRONG_PIN)

    def _pin_fields(self, more: dict[str, object]) -> dict[str, object]:
        consumer = self._pending.consumer
        groups = consumer.config.get("priority_groups") or [""]
        return {
            "stream": self._host.machine.name,
            "consumer": consumer.name,
            "group": groups[0],
            **more,
        }


class PushTarget:
    """Deliver subject of a push consumer: held back by flow control, a rate limit, congestion."""

    __slots__ = (
        "_handed",
        "_has_interest",
        "_heartbeat_at_ms",
        "_heartbeat_ms",
        "_hold",
        "_host",
        "_is_acked_by_flow",
        "_pending",
        "_rate",
        "_sink",
        "queue_group",
        "subject",
        "window",
    )

    def __init__(self, host: DeliveryHost, pending: PendingState, hold: Hold) -> None:
        self._host = host
        self._pending = pending
        self._hold = hold
        self._handed: list[Handed] = []  # assigned and not sent, in order
        self._sink: DeliverSink | None = None
        self._has_interest = False
        self.subject = b""
        self.queue_group = b""
        self.window: FlowWindow | None = None
        self._rate: RateLimit | None = None
        self._is_acked_by_flow = False
        self._heartbeat_ms = 0
        self._heartbeat_at_ms = 0  # 0: none is due

    def configure(self, settings: CursorSettings) -> bool:
        """Take over where messages go and how fast. True: another subject or queue group is to be
        watched, and nobody is known to listen there yet."""
        host = self._host
        self._is_acked_by_flow = settings.is_acked_by_flow
        self._heartbeat_ms = settings.heartbeat_ms
        is_beating = self._has_interest and self._heartbeat_ms
        self._heartbeat_at_ms = host.now_ms() + self._heartbeat_ms if is_beating else 0
        if settings.has_flow_control:
            if self.window is None:
                names = (host.machine.name.encode(), self._pending.consumer.name.encode())
                self.window = FlowWindow(b"$JS.FC.%b.%b." % names)
        else:
            self.window = None
        bps = settings.rate_limit_bps
        burst = burst_bytes(host.machine.config, host.max_payload)
        self._rate = RateLimit(bps, burst, host.now_ms()) if bps > 0 else None
        place = (settings.deliver_subject, settings.deliver_group)
        if place == (self.subject, self.queue_group):
            return False
        self.subject, self.queue_group = place
        self._has_interest = False
        self._sink = None
        return True

    def on_interest(self, has_interest: bool) -> None:
        """Interest in the deliver subject appeared or ended."""
        self._has_interest = has_interest
        self._sink = None
        self._heartbeat_at_ms = 0
        if has_interest and self._heartbeat_ms:
            self._heartbeat_at_ms = self._host.now_ms() + self._heartbeat_ms
        if not has_interest and self.window is not None:
            # The next client starts with a window of its own.
            self.window.reply = b""
            self.window.unanswered_bytes = 0
            self.window.asked_cseq = -1

    def has_takers(self) -> bool:
        return self._has_interest

    def room(self, budget: int) -> int:
        if self.window is not None and self.window.is_stalled:
            return 0
        sink = self._open_sink()
        if sink is None:
            return 0
        if sink.is_congested():
            _wait_for_room(self._host, self._hold)
            return 0
        return budget

    def is_plain(self) -> bool:
        return self.window is None and self._rate is None

    def takes_runs(self) -> bool:
        return self._rate is None

    def bound_run(self, count: int, length: int) -> int:
        window = self.window
        return count if window is None else min(count, window.room_bytes() // length + 1)

    def plain_sink(self) -> DeliverSink:
        assert self._sink is not None
        return self._sink

    def record_plain(self, count: int) -> None:
        if self._heartbeat_ms:
            self._heartbeat_at_ms = self._host.now_ms() + self._heartbeat_ms

    def record_run(self, count: int, byte_count: int) -> None:
        self.record_plain(count)
        window = self.window
        if window is not None and window.sent(byte_count):
            self.plain_sink().status(FLOW_REQUEST, window.request())

    def offer(self, item: Item) -> bool:
        sink = self._sink
        assert sink is not None
        size = len(item[0]) + len(item[1]) + len(item[2]) + len(item[3])
        window = self.window
        if window is not None and window.is_stalled:
            return False
        if self._rate is not None:
            now_ms = self._host.now_ms()
            delay_ms = self._rate.delay_ms(size, now_ms)
            if delay_ms:
                self._hold.until_ms = now_ms + delay_ms
                return False
        self._handed.append((sink, b"", item))
        if window is not None and window.sent(size):
            self.flush()
            sink.status(FLOW_REQUEST, window.request())
        return True

    def flush(self) -> None:
        handed = self._handed
        if handed:
            self._handed = []
            _deliver(handed)
            if self._heartbeat_ms:
                self._heartbeat_at_ms = self._host.now_ms() + self._heartbeat_ms

    def end_no_waits(self) -> None:
        """Leave it: a push consumer has no pulls."""

    def ask_for_acks(self) -> None:
        window = self.window
        if window is None or not self._is_acked_by_flow or window.reply:
            return
        pending = self._pending
        is_room_left = pending.num_ack_pending() < pending.ack_pending_max
        if is_room_left or window.asked_cseq == pending.sent_cseq:
            return
        sink = self._open_sink()
        if sink is not None:
            window.asked_cseq = pending.sent_cseq
            sink.status(FLOW_REQUEST, window.request())

    def expire(self, now_ms: int) -> bool:
        return False

    def poll(self, now_ms: int) -> bool:
        """Send the idle heartbeat, if it is due."""
        if self._heartbeat_at_ms and now_ms >= self._heartbeat_at_ms:
            self._beat(now_ms)
        return False

    def next_event_ms(self) -> int:
        return self._heartbeat_at_ms

    def has_listeners(self) -> bool:
        return self._has_interest

    def end(self, status: bytes) -> None:
        self._has_interest = False
        self._sink = None

    def _open_sink(self) -> DeliverSink | None:
        if not self._has_interest:
            return None
        sink = self._sink
        if sink is None or not sink.is_open():
            sink = self._sink = self._host.sink(self.subject, self.queue_group)
        return sink

    def _beat(self, now_ms: int) -> None:
        self._heartbeat_at_ms = now_ms + self._heartbeat_ms
        sink = self._open_sink()
        if sink is None:
            return
        window, pending = self.window, self._pending
        is_owed = self._is_acked_by_flow and pending.num_ack_pending() > 0
        if window is not None and is_owed and not window.reply:
            sink.status(FLOW_REQUEST, window.request())
        elif window is not None and window.reply and (window.is_stalled or is_owed):
            sink.status(_STALLED % (pending.sent_cseq, pending.sent_sseq, window.reply))
        else:
            sink.status(IDLE % (pending.sent_cseq, pending.sent_sseq))


def _wait_for_room(host: DeliveryHost, hold: Hold) -> None:
    host.wait_for_room()
    hold.until_ms = host.now_ms() + limits.CONGESTED_RETRY_MS


def _deliver(handed: list[Handed]) -> None:
    """Send what is assigned to its sinks, in order: several pulls may share an inbox (or one
    subscription may see several), and a subscriber's messages must not be shuffled."""
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
