"""What a cursor sends: new messages as far as there is room, and those that are due again.

All of it leaves a trace for the log (`_propose_delivered`), in the same turn.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.node.delivery.client_requests import AckIntake
from streamd.node.delivery.cursor_state import Item
from streamd.node.delivery.flow_control import FLOW_REQUEST
from streamd.store.blocks.record_format import decode_run
from streamd.types import Seq


class CursorSending(AckIntake):
    """The part of `Cursor` that sends."""

    __slots__ = ()

    # --- planning ---------------------------------------------------------------------------------

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

    # --- new messages -----------------------------------------------------------------------------

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
                self._ask_for_acks()
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

    def _select(self, limit: int) -> tuple[list[Any], Seq]:
        """The next messages to send a first time, and where the search ended (exclusive)."""
        consumer = self.consumer
        if consumer.initial:
            locs = []
            locate = self._index.locate
            # Ahead of the applied list by what was sent already.
            begin = bisect_right(consumer.initial, self._sent_sseq, consumer.initial_at)
            for at in range(begin, len(consumer.initial)):
                loc = locate(consumer.initial[at])
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
        self._sent_sseq = self.consumer.sent_sseq = last
        if last >= self._next_sseq:
            self._next_sseq = last + 1
        self._ahead_new += sent
        self._has_sent = True

    # --- again ------------------------------------------------------------------------------------

    def _send_due(self, budget: int) -> int:
        """Send again what is due, in the order it came due. Returns how many went out."""
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

    # --- to the log -------------------------------------------------------------------------------

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
        self._propose_sent([commands.DELIVERED, ts, self.consumer.uid, items, self._resets])
        self._ask_for_acks()


def _with_size(headers: bytes, size: int) -> bytes:
    """`headers` saying how big the payload was that is not sent."""
    if headers:
        return b"%bNats-Msg-Size: %d\r\n\r\n" % (headers[:-2], size)
    return b"NATS/1.0\r\nNats-Msg-Size: %d\r\n\r\n" % size
