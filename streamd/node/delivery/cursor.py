"""Delivery of one consumer's messages, on the leader: who gets what, when, and when again.

One mechanism serves replay and live, pull and push: a cursor reads the stream's index from its
position on, as far as somebody is there to take messages. A growing stream only rings its bell.
What was sent is proposed to the log (DELIVERED) in the same turn, without waiting for the commit:
delivery is at-least-once and promises nothing. So the cursor runs ahead of the replicated
`Consumer` by what it proposed and has not seen applied; `_ahead_*` and `_acking` are that
difference. Pure: no I/O, no clock but the host's.

Here is what moves a cursor; how it sends is in `cursor_sending`, and below that what clients say.
"""

from __future__ import annotations

from typing import Any

from streamd.machine import commands
from streamd.machine.consumers.consumer import Consumer
from streamd.node.delivery.cursor_sending import CursorSending
from streamd.node.delivery.cursor_state import CursorHost
from streamd.node.delivery.flow_control import FlowWindow, RateLimit, Replay, burst_bytes
from streamd.types import Seq

__all__ = ["Cursor", "CursorHost"]

_MS = 1_000_000  # ns


class Cursor(CursorSending):
    """Made when the group leads and has applied its own no-op; `stop()`ped when it no longer does.

    After any `on_*` call the group calls `plan` once before its turn ends.
    """

    __slots__ = ()

    def __init__(self, consumer: Consumer, host: CursorHost) -> None:
        super().__init__(consumer, host)
        self._configure()
        self._last_stamp = self._redelivery.restore(now_ns=host.now_ns(), now_ms=host.now_ms())
        if consumer.config.get("replay_policy") == "original":
            self._replay = Replay(self._index.last_seq)

    def _configure(self) -> None:
        consumer = self.consumer
        config = consumer.config
        host = self._host
        self.is_push = consumer.is_push
        self._has_acks = not consumer.is_ack_none
        most = config.get("max_ack_pending") or 0
        self._ack_pending_max = most if self._has_acks and most > 0 else 0
        self._max_deliver = config.get("max_deliver") or -1
        self._is_acked_by_flow = config.get("ack_policy") == "flow_control"
        self._is_headers_only = bool(config.get("headers_only"))
        self._inactive_ms = (config.get("inactive_threshold") or 0) // _MS
        self._heartbeat_ms = (config.get("idle_heartbeat") or 0) // _MS
        is_beating = self._has_interest and self._heartbeat_ms
        self._heartbeat_at_ms = host.now_ms() + self._heartbeat_ms if is_beating else 0
        self._priority_policy = config.get("priority_policy") or "none"
        self._waiting.is_by_priority = self._priority_policy == "prioritized"
        self._pin.timeout_ms = (config.get("priority_timeout") or 0) // _MS
        self._redelivery.configure()
        if self._redelivery.has_due:  # how often it may be sent may be less by now
            self._make_due(self._redelivery.take_due())
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
                if subject != self._deliver_subject:
                    # Whoever was there is gone with what it held: a client that comes back has a
                    # new inbox, and is not to wait for the acks of the old one.
                    self._make_due(self._redelivery.all_waiting(self._acking))
            self._deliver_subject = subject
            self._queue_group = queue
            self._has_interest = self.is_push_bound = False
            self._sink = None
            host.watch_interest(subject, queue, self)

    # --- from the group ---------------------------------------------------------------------------

    def on_applied(self, command: list[Any], tag: Any = None) -> None:
        """An entry naming this consumer was applied, in log order: DELIVERED ... POSITION,
        and CREATE_CONSUMER (an update), PAUSE_CONSUMER, RESET_CONSUMER of this consumer."""
        kind = command[0]
        if kind == commands.DELIVERED:
            if command[4] != self._resets:
                return
            for first, last, _, is_redelivery in command[3]:
                if is_redelivery:
                    self._note_again_applied(first, last)
                else:
                    self._ahead_new -= last - first + 1
                    self._forget_gone(last)
                    if self._acking and self.consumer.may_lack(first):
                        self._forget_void_acks()
        elif kind == commands.ACKED or kind == commands.DEAD:
            self._acking.difference_update(command[3])
        elif kind == commands.TERMED:
            self._acking.difference_update([sseq for sseq, _ in command[3]])
        elif kind == commands.POSITION:
            if command[5] == self._resets:
                self._ahead_new = self._sent_cseq - max(command[4], self._purged_cseq)
                self._forget_gone(command[3])
        elif kind == commands.RESET_CONSUMER:
            if self.consumer.resets != self._resets:
                self._redelivery.clear()
                self._ahead_counts.clear()
                self._acking.clear()
                self._position_due_ms = 0
                self.last_delivered_ns = self.last_acked_ns = 0
                self._take_position()
        elif kind == commands.CREATE_CONSUMER:
            self._configure()
            # The scan may have run past what the new filter wants.
            self._next_sseq = max(self._sent_sseq + 1, self.consumer.next_sseq)
        elif kind == commands.PAUSE_CONSUMER:
            self._pauses_under_way = max(0, self._pauses_under_way - 1)
        if tag:
            reply_empty = self._host.reply_empty
            for reply in tag:
                reply_empty(reply)

    def _note_again_applied(self, first: Seq, last: Seq) -> None:
        """A redelivery was applied; of the same message another may be under way still."""
        consumer, counts = self.consumer, self._ahead_counts
        for sseq in range(first, last + 1):
            applied = consumer.redelivered.get(sseq, 1)
            if sseq not in consumer.pending or counts.get(sseq, 0) <= applied:
                counts.pop(sseq, None)

    def _forget_void_acks(self) -> None:
        """What has left the stream holds no place, and its ack makes no room."""
        applied, held = self.consumer.delivered_sseq, self.consumer.pending
        self._acking = {each for each in self._acking if each in held or each > applied}

    def _forget_gone(self, sseq: Seq) -> None:
        """Messages up to `sseq` are no longer ahead of what is applied."""
        gone = self.consumer.sent_gone
        if gone:
            self.consumer.sent_gone = [each for each in gone if each > sseq]

    def on_removed(self) -> bool:
        """Messages left the stream (purge, expiry, limits, delete, acks). False: of what this
        consumer waits for, or has sent, nothing has changed since this was asked last."""
        consumer = self.consumer
        seen = (consumer.next_sseq, consumer.delivered_sseq, consumer.num_pending)
        pending = len(consumer.pending)
        is_changed = seen != self._seen or pending < self._seen_pending
        self._seen, self._seen_pending = seen, pending
        if self._acking:
            self._forget_void_acks()
        if consumer.next_sseq > self._next_sseq:
            self._next_sseq = consumer.next_sseq
        if consumer.delivered_sseq >= self._sent_sseq:  # all that was sent is applied, or purged
            self._sent_sseq = consumer.delivered_sseq
            if consumer.is_ack_none:
                self._purged_cseq = self._sent_cseq
                self._ahead_new = 0
                consumer.sent_gone = []
        return is_changed

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
            self._window.asked_cseq = -1

    def on_tick(self, now_ms: int) -> None:
        """Time has passed: end pulls, send heartbeats, collect what is due again."""
        self._armed_ms = 0
        if self._is_stopped:
            return
        cseq, sseq = self._sent_cseq, self._sent_sseq
        most = self._ack_pending_max
        is_held = bool(most) and self.num_ack_pending() >= most
        if self._waiting.expire(now_ms, last_cseq=cseq, last_sseq=sseq, is_held=is_held):
            self._active_ms = now_ms
        self._ring(now_ms)
        if self._heartbeat_at_ms and now_ms >= self._heartbeat_at_ms:
            self._beat(now_ms)
        if self._position_due_ms and now_ms >= self._position_due_ms:
            self._propose_position()
        if self._pin.is_over(now_ms):
            self.unpin("timeout")
        if self._inactive_ms:
            self._look_at_activity(now_ms)

    def _look_at_activity(self, now_ms: int) -> None:
        if self._is_inactive_proposed or now_ms < self._active_ms + self._inactive_ms:
            return
        self._waiting.drop_closed()
        if self._has_interest or self._waiting.queue:
            self._active_ms = now_ms
            return
        if not self.is_push:
            # Whoever was given a message may be at work on it until its ack is due.
            due_ms = self._redelivery.ack_due_ms(now_ns=self._host.now_ns(), now_ms=now_ms)
            if due_ms:
                self._active_ms = due_ms
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
        """See Receivers: and those who stood by get their chance."""
        is_unpinned = super().unpin(reason)
        if is_unpinned:
            self._host.wake_soon(self)
        return is_unpinned

    # --- proposing --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Propose what is collected (acks of all kinds, position), for a read barrier covers only
        what is in the log."""
        if self._is_stopped:
            return
        self._flush_acks()
        if self._position_due_ms:
            self._propose_position()

    @property
    def holds_position(self) -> bool:
        """True if it sent messages that no entry tells of before it is flushed, or time passes."""
        return self._position_due_ms > 0

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
        self._propose_sent(command)

    # --- planning ---------------------------------------------------------------------------------

    def plan(self, budget_msgs: int) -> bool:
        """Flush collected acks, then deliver what can be. True: call again soon, more to do."""
        if self._is_stopped:
            return False
        if self._acked or self._naks or self._terms or self._progress or self._ack_replies:
            self._flush_acks()
        is_more = False
        self._hold_until_ms = 0  # also if nobody waits any more: a time that is over wakes for ever
        if self._waiting.queue or self._has_interest:
            if self.consumer.paused_until_ns and self.is_paused:
                self._end_no_waits()
            else:
                is_more = self._plan_deliveries(budget_msgs)
                if self._has_sent:
                    self._has_sent = False
                    self._propose_delivered()
        if self.consumer.paused_until_ns and not self._pauses_under_way:
            self._look_at_pause()
        self._arm()
        return is_more

    def note_pause_proposed(self) -> None:
        """A pause is to be set or ended. Until that is applied nobody says that one is over: it
        would be another one's end."""
        self._pauses_under_way += 1

    def _look_at_pause(self) -> None:
        until_ns = self.consumer.paused_until_ns
        now_ns = self._host.now_ns()
        if until_ns > now_ns:
            self._hold((until_ns - now_ns + _MS - 1) // _MS)
            return
        self.note_pause_proposed()
        command = [commands.PAUSE_CONSUMER, now_ns, self.consumer.name, until_ns]
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

    # --- the end ----------------------------------------------------------------------------------

    def stop(self, status: bytes = b"") -> None:
        """End: waiting pulls get `status` (e.g. b"409 Leadership Change", b"409 Consumer Deleted",
        b"409 Server Shutdown"; b"" tells nobody). Nothing is proposed any more."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._waiting.end_all(status)
        self._has_interest = self.is_push_bound = False
        self._sink = None
