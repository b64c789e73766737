"""Who takes a consumer's messages now: waiting pulls, or the deliver subject of a push consumer."""

from __future__ import annotations

from typing import Any

from streamd import limits
from streamd.node.delivery.cursor_state import CursorState, Item
from streamd.node.delivery.flow_control import FLOW_REQUEST
from streamd.node.delivery.priority import is_eligible
from streamd.node.delivery.pulls import IDLE, NO_MESSAGES, PullRequest
from streamd.node.ports import DeliverSink

_STALLED = (
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n"
    b"Nats-Consumer-Stalled: %b\r\n\r\n"
)
_BATCH_COMPLETED = b"409 Batch Completed"
_TOO_BIG = b"409 Message Size Exceeds MaxBytes"
_WRONG_PIN = b"423 Nats-Wrong-Pin-Id"


class Receivers(CursorState):
    """A cursor that can hand messages to whoever is there."""

    __slots__ = ()

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
                    self._wait_for_room()
                    return 0
                return min(budget, head.left)
            return self._waiting.open_left(budget)
        if self._window is not None and self._window.is_stalled:
            return 0
        sink = self._push_sink()
        if sink is None:
            return 0
        if sink.is_congested():
            self._wait_for_room()
            return 0
        return budget

    def _wait_for_room(self) -> None:
        self._host.wait_for_room()
        self._hold(limits.CONGESTED_RETRY_MS)

    def _push_sink(self) -> DeliverSink | None:
        if not self._has_interest:
            return None
        sink = self._sink
        if sink is None or not sink.is_open():
            sink = self._sink = self._host.sink(self._deliver_subject, self._queue_group)
        return sink

    def _is_plain(self) -> bool:
        """True if messages may go out in one run: one receiver, nothing to weigh per message."""
        if self.is_push:
            return self._window is None and self._rate is None
        queue = self._waiting.queue
        return len(queue) == 1 and not queue[0].has_bytes_max and self._priority_policy == "none"

    def _hand_over_plain(self, out: list[Item]) -> None:
        """All of `out` to the one receiver there is."""
        self._plain_sink().deliver(out)
        self._note_handed_over(len(out))

    def _plain_sink(self) -> DeliverSink:
        """Where the one receiver of `_is_plain` gets its messages."""
        if not self.is_push:
            return self._waiting.queue[0].sink
        assert self._sink is not None
        return self._sink

    def _note_handed_over(self, count: int) -> None:
        """The one receiver got `count` messages."""
        if self.is_push:
            if self._heartbeat_ms:
                self._heartbeat_at_ms = self._host.now_ms() + self._heartbeat_ms
            return
        queue = self._waiting.queue
        request = queue[0]
        request.left -= count
        request.delivered += count
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
            self._end_no_waits()  # what is left is not for them
            return False
        if self._priority_policy == "pinned_client":
            if not self._pin.pin_id:
                self._pin_client_of(request)
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
            # What is to be sent again goes first, and counts as the one that waits.
            left = self.num_pending() + self._redelivery.has_due
            unacked = self.num_ack_pending()
            for request in queue:
                if is_eligible(request.options, num_pending=left, num_ack_pending=unacked):
                    return request
            return None
        self._end_unpinned()
        if not self._pin.pin_id:
            return queue[0] if queue else None
        for request in queue:
            if self._pin.serves(request):
                return request
        return None

    def _pin_client_of(self, request: PullRequest) -> None:
        """The client of `request` has the consumer for itself. It hears of that with a message."""
        host = self._host
        pin_id = self._pin.take(request, self.consumer, host.now_ms(), host.now_ns())
        host.advise("consumer_pinned", self._pin_fields({"pinned_id": pin_id}))

    def _end_unpinned(self) -> None:
        """Whoever was pinned is told so, and stands behind those who waited for the place."""
        queue = self._waiting.queue
        for request in [each for each in queue if self._pin.is_of_another(each)]:
            queue.remove(request)
            request.end(_WRONG_PIN)

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

    def _ask_for_acks(self) -> None:
        """Where answers to flow-control requests are the acks: ask once all is out that may be."""
        window = self._window
        if window is None or not self._is_acked_by_flow or window.reply:
            return
        if self.num_ack_pending() < self._ack_pending_max or window.asked_cseq == self._sent_cseq:
            return
        sink = self._push_sink()
        if sink is not None:
            window.asked_cseq = self._sent_cseq
            sink.status(FLOW_REQUEST, window.request())

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
        """They get nothing more for now: pulls that don't wait, at least not for more, are over."""
        queue = self._waiting.queue
        over = [each for each in queue if each.is_over_for_now()]
        if over:
            self._hand_over()
        for request in over:
            queue.remove(request)
            request.sink.status(NO_MESSAGES)

    def _beat(self, now_ms: int) -> None:
        self._heartbeat_at_ms = now_ms + self._heartbeat_ms
        sink = self._push_sink()
        if sink is None:
            return
        window = self._window
        is_owed = self._is_acked_by_flow and self.num_ack_pending() > 0
        if window is not None and is_owed and not window.reply:
            sink.status(FLOW_REQUEST, window.request())
        elif window is not None and window.reply and (window.is_stalled or is_owed):
            sink.status(_STALLED % (self._sent_cseq, self._sent_sseq, window.reply))
        else:
            sink.status(IDLE % (self._sent_cseq, self._sent_sseq))

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
