"""Delivery of one consumer's messages, on the leader: who gets what, when, and when again.

One mechanism serves replay and live, pull and push: a cursor reads the stream's index from its
position on, as far as somebody is there to take messages. A growing stream only rings its bell.
What was sent is proposed to the log (DELIVERED) in the same turn, without waiting for the commit:
delivery is at-least-once and promises nothing. So the cursor runs ahead of the replicated
`Consumer` by what it proposed and has not seen applied; `_ahead_*` and `_acking` are that
difference. Pure: no I/O, no clock but the host's.
"""

from __future__ import annotations

from typing import Any

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.consumer import Consumer
from streamd.node.ack_intake import AckIntake
from streamd.node.cursor_state import CursorHost, Item
from streamd.node.push_gate import FLOW_REQUEST, FlowWindow, RateLimit, Replay, burst_bytes
from streamd.store.format import decode_run
from streamd.types import Seq

__all__ = ["Cursor", "CursorHost"]

_MS = 1_000_000  # ns


class Cursor(AckIntake):
    """Made when the group leads and has applied its own no-op; `stop()`ped when it no longer does.

    After any `on_*` call the group calls `plan` once before its turn ends.
    """

    __slots__ = ()

    def __init__(self, consumer: Consumer, host: CursorHost) -> None:
        super().__init__(consumer, host)
        self._configure()
        self._redelivery.restore(now_ns=host.now_ns(), now_ms=host.now_ms())
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
        self._is_headers_only = bool(config.get("headers_only"))
        self._inactive_ms = (config.get("inactive_threshold") or 0) // _MS
        self._heartbeat_ms = (config.get("idle_heartbeat") or 0) // _MS
        is_beating = self._has_interest and self._heartbeat_ms
        self._heartbeat_at_ms = host.now_ms() + self._heartbeat_ms if is_beating else 0
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

    # --- from the group -------------------------------------------------------------------------

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

    def on_removed(self) -> bool:
        """Messages left the stream (purge, expiry, limits, delete, acks). False: of what this
        consumer waits for, or has sent, nothing has changed since this was asked last."""
        consumer = self.consumer
        seen = (consumer.next_sseq, consumer.delivered_sseq, consumer.num_pending)
        pending = len(consumer.pending)
        is_changed = seen != self._seen or pending < self._seen_pending
        self._seen, self._seen_pending = seen, pending
        if consumer.next_sseq > self._next_sseq:
            self._next_sseq = consumer.next_sseq
        if consumer.delivered_sseq > self._sent_sseq:
            self._sent_sseq = consumer.delivered_sseq
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
        """See Receivers: and those who stood by get their chance."""
        is_unpinned = super().unpin(reason)
        if is_unpinned:
            self._host.wake_soon(self)
        return is_unpinned

    # --- proposing ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Propose what is collected (acks of all kinds, position), for a read barrier covers only
        what is in the log."""
        if self._is_stopped:
            return
        self._flush_acks()
        if self._position_due_ms:
            self._propose_position()

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
            stretched = self._send_stretch(room)
            if stretched:
                sent_total += stretched
                if sent_total >= budget:
                    return sent_total, False, False
                continue
            try:
                locs, scanned_to = self._select(room)
            except CorruptionError as err:
                self._host.on_lost_block(err)
                return sent_total, False, True
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

    def _send_stretch(self, room: int) -> int:
        """Send messages that lie one behind another, laid out alike, without a look at each.

        Returns how many; 0 if it can't be done that way. What a replaying reader gets mostly.
        """
        consumer = self.consumer
        window = self._window
        if room < limits.STRETCH_MSGS_MIN or consumer.matcher is not None or consumer.initial:
            return 0
        if not self._is_unchanged() or not (self._is_plain() or self._is_only_windowed()):
            return 0
        try:
            found = self._index.stretch(self._next_sseq, room)
        except CorruptionError:
            return 0  # the usual way says what is wrong
        if found is None or found[4] < limits.STRETCH_MSGS_MIN:
            return 0
        seq, block_no, offset, length = found[:4]
        count: int = found[4]
        chunk = self._host.chunk(block_no, offset)
        if chunk is None:
            return 0  # it is being read; the usual way says that we wait for it
        base, blob = chunk
        count = min(count, (base + len(blob) - offset) // length)
        if window is not None:
            count = min(count, window.room_bytes() // length + 1)
        if count < 1:
            return 0
        columns = decode_run(blob, offset - base, length=length, count=count)
        if columns is None:
            return 0
        seqs, tss, subjects, payloads = columns
        if seqs[0] != seq or seqs[-1] != seq + count - 1:
            return 0
        cseq = self._sent_cseq + 1
        left = max(self.num_pending(), count)
        if self._has_acks:
            self._items.append((seq, seq + count - 1, cseq, False))
        self._sent_cseq += count
        self._sent_sseq = seq + count - 1
        self._next_sseq = max(self._next_sseq, seq + count)
        self._ahead_new += count
        self._has_sent = True
        sink = self._plain_sink()
        sink.deliver_run(
            self._ack_first,
            subjects,
            payloads,
            (seqs, range(cseq, cseq + count), tss, range(left - 1, left - 1 - count, -1)),
        )
        self._note_handed_over(count)
        if window is not None and window.sent(length * count):
            sink.status(FLOW_REQUEST, window.request())
        return count

    def _is_only_windowed(self) -> bool:
        return self.is_push and self._rate is None and self._window is not None

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
            try:
                loc = self._index.locate(sseq) if self._is_pending(sseq) else None
            except CorruptionError as err:
                host.on_lost_block(err)
                break
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
