"""Sender of one consumer's messages: those due again first, then new ones while there is room.

Everything sent leaves a trace for the log in the same turn: DELIVERED, or, of a consumer without
acks, a POSITION a little later.
"""

from __future__ import annotations

from bisect import bisect_right

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.indexes.message_locations import Loc
from streamd.node.delivery.consumer_commands import ConsumerCommands
from streamd.node.delivery.cursor_settings import Activity, CursorSettings, Hold
from streamd.node.delivery.delivery_host import DeliveryHost, Item
from streamd.node.delivery.delivery_targets import DeliveryTargets
from streamd.node.delivery.flow_control import Replay
from streamd.node.delivery.pending_state import PendingState
from streamd.store.blocks.record_format import decode_run
from streamd.types import Seq


class Sender:
    """Reads the stream from the cursor's position on, and gives messages to the targets."""

    __slots__ = (
        "_ack_first",
        "_ack_prefix",
        "_activity",
        "_commands",
        "_consumer",
        "_has_acks",
        "_hold",
        "_host",
        "_index",
        "_is_headers_only",
        "_is_one_by_one",
        "_items",
        "_pending",
        "_replay",
        "_targets",
        "position_due_ms",
    )

    def __init__(
        self,
        host: DeliveryHost,
        pending: PendingState,
        targets: DeliveryTargets,
        commands_: ConsumerCommands,
        activity: Activity,
        hold: Hold,
    ) -> None:
        consumer = pending.consumer
        self._host = host
        self._consumer = consumer
        self._index = host.machine.index
        self._pending = pending
        self._targets = targets
        self._commands = commands_
        self._activity = activity
        self._hold = hold
        self._has_acks = False
        self._is_headers_only = False
        self._is_one_by_one = False  # who gets a message depends on what was sent before
        self._replay: Replay | None = None
        self._items: list[tuple[Seq, Seq, int, bool]] = []  # of this plan, proposed at its end
        self.position_due_ms = 0  # 0: no messages were sent that no entry tells of
        names = (host.machine.name.encode(), consumer.name.encode())
        self._ack_prefix = b"$JS.ACK.%b.%b." % names
        self._ack_first = self._ack_prefix.replace(b"%", b"%%") + b"1.%d.%d.%d.%d"

    def configure(self, settings: CursorSettings) -> None:
        """Take over how messages are sent."""
        self._has_acks = settings.has_acks
        self._is_headers_only = settings.is_headers_only
        self._is_one_by_one = settings.priority_policy == "overflow"

    def replay_at_original_speed(self) -> None:
        """Send what is stored now at the speed at which it was stored."""
        self._replay = Replay(self._index.last_seq)

    def send(self, budget: int) -> bool:
        """Send what is due again, then what is new, and propose that. True: there is more to do at
        once."""
        cseq = self._pending.sent_cseq
        is_more = self._send_all(budget)
        if self._pending.sent_cseq != cseq:
            self._propose_delivered()
        return is_more

    def _send_all(self, budget: int) -> bool:
        redelivery = self._pending.redelivery
        sent = 0
        if redelivery.has_due:
            sent = self._send_due(budget)
            if redelivery.has_due:
                # Blocked (a read, a full receiver, a spent budget): what is due goes first.
                return sent >= budget
        if sent >= budget:
            return True
        is_at_end, is_blocked = self._send_new(budget - sent)
        if is_at_end:
            self._targets.end_no_waits()
        return not is_at_end and not is_blocked

    # --- new messages -----------------------------------------------------------------------------

    def _send_new(self, budget: int) -> tuple[bool, bool]:
        """Send new messages. Returns (stream has no more, something must happen first)."""
        index, pending, targets = self._index, self._pending, self._targets
        if pending.next_sseq > index.last_seq and not self._consumer.remaining.initial:
            return True, True
        left = budget
        while True:
            room = targets.room(left)
            if pending.ack_pending_max and room > 0:
                room = min(room, pending.ack_pending_max - pending.num_ack_pending())
            if room <= 0:
                targets.ask_for_acks()
                return False, True
            if self._replay is not None or self._is_one_by_one:
                room = 1
            stretched = self._send_stretch(room)
            if stretched:
                left -= stretched
                if left <= 0:
                    return False, False
                continue
            try:
                locs, scanned_to = self._select(room)
            except CorruptionError as err:
                self._host.on_lost_block(err)
                return False, True
            if locs:
                sent, is_blocked = self._send_run(locs, targets.is_plain())
                left -= sent
                if is_blocked:
                    return False, True
            if len(locs) < room or not locs:
                pending.next_sseq = max(pending.next_sseq, scanned_to)
            if pending.next_sseq > index.last_seq and not self._has_initial_left():
                return True, True
            if left <= 0 or not locs:
                return False, False

    def _select(self, limit: int) -> tuple[list[Loc], Seq]:
        """Return the next messages to send a first time, and where the search ended (exclusive)."""
        consumer, pending = self._consumer, self._pending
        initial = consumer.remaining.initial
        if initial:
            locs = []
            locate = self._index.locations.locate
            # Ahead of the applied list by the messages that were sent already.
            begin = bisect_right(initial, pending.sent_sseq, consumer.remaining.initial_at)
            for at in range(begin, len(initial)):
                loc = locate(initial[at])
                if loc is not None:
                    locs.append(loc)
                    if len(locs) == limit:
                        break
            if locs:
                return locs, pending.next_sseq
        return self._index.lookup.select(
            pending.next_sseq, consumer.matcher, limit, limits.SCAN_MSGS_MAX
        )

    def _has_initial_left(self) -> bool:
        initial = self._consumer.remaining.initial
        return bool(initial) and initial[-1] > self._pending.sent_sseq

    def _send_run(self, locs: list[Loc], is_plain: bool) -> tuple[int, bool]:
        """Send the messages at `locs`. Returns (how many went out, is blocked)."""
        host, targets = self._host, self._targets
        decode = host.decode_fields
        ack_first = self._ack_first
        left = max(self._pending.num_pending(), len(locs))
        cseq = self._pending.sent_cseq
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
            self._record_sent(locs, sent)
            if is_plain:
                targets.plain_sink().deliver(out)
                targets.record_plain(sent)
        if not is_plain:
            targets.flush()
        return sent, sent < len(locs)

    def _send_stretch(self, room: int) -> int:
        """Send messages that lie one behind another, laid out alike, without looking at each, as
        a replaying reader mostly needs. Returns how many; 0 if it can't be done that way."""
        consumer, targets = self._consumer, self._targets
        if (
            room < limits.STRETCH_MSGS_MIN
            or consumer.matcher is not None
            or consumer.remaining.initial
        ):
            return 0
        if not self._is_unchanged() or not targets.takes_runs():
            return 0
        pending = self._pending
        try:
            found = self._index.locations.stretch(pending.next_sseq, room)
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
        count = targets.bound_run(count, length)
        if count < 1:
            return 0
        columns = decode_run(blob, offset - base, length=length, count=count)
        if columns is None:
            return 0
        seqs, tss, subjects, payloads = columns
        if seqs[0] != seq or seqs[-1] != seq + count - 1:
            return 0
        cseq = pending.sent_cseq + 1
        left = max(pending.num_pending(), count)
        if self._has_acks:
            self._items.append((seq, seq + count - 1, cseq, False))
        pending.sent_cseq += count
        pending.sent_sseq = seq + count - 1
        pending.next_sseq = max(pending.next_sseq, seq + count)
        pending.ahead_new += count
        targets.plain_sink().deliver_run(
            self._ack_first,
            subjects,
            payloads,
            (seqs, range(cseq, cseq + count), tss, range(left - 1, left - 1 - count, -1)),
        )
        targets.record_run(count, length * count)
        return count

    def _is_unchanged(self) -> bool:
        """True if messages go out as they are stored, as fast as they can."""
        return not self._is_headers_only and self._replay is None

    def _send_special(self, seq: Seq, ts: int, item: Item, out: list[Item], is_plain: bool) -> bool:
        """Send one message in one of the rare ways; False if it can't go out now."""
        if self._replay is not None and not self._is_replay_due(seq, ts):
            return False
        if self._is_headers_only:
            subject, ack, headers, payload = item
            item = (subject, ack, _with_size(headers, len(payload)), b"")
        if is_plain:
            out.append(item)
            return True
        return self._targets.offer(item)

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
            self._hold.until_ms = due_ms
            return False
        replay.sent(ts, now_ms)
        return True

    def _record_sent(self, locs: list[Loc], sent: int) -> None:
        """Move past the first `sent` of `locs`, which went out for the first time."""
        pending = self._pending
        cseq = pending.sent_cseq + 1
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
        pending.sent_cseq += sent
        pending.sent_sseq = self._consumer.sent_sseq = last
        if last >= pending.next_sseq:
            pending.next_sseq = last + 1
        pending.ahead_new += sent

    # --- again ------------------------------------------------------------------------------------

    def _send_due(self, budget: int) -> int:
        """Send again what is due, in the order it came due. Returns how many went out."""
        host, pending, targets = self._host, self._pending, self._targets
        redelivery = pending.redelivery
        offer = targets.offer
        sent = 0
        is_plain = targets.is_plain()
        room = targets.room(budget)
        out: list[Item] = []
        left = pending.num_pending()
        while redelivery.has_due and sent < room:
            sseq = redelivery.peek_due()
            try:
                loc = self._index.locations.locate(sseq) if pending.is_pending(sseq) else None
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
            count = pending.deliveries(sseq) + 1
            cseq = pending.sent_cseq + 1
            ack = b"%b%d.%d.%d.%d.%d" % (self._ack_prefix, count, sseq, cseq, ts, left)
            if is_plain:
                out.append((subject, ack, headers, payload))
            elif not offer((subject, ack, headers, payload)):
                break
            redelivery.pop_due()
            pending.sent_cseq = cseq
            pending.ahead_counts[sseq] = count
            self._record_redelivered(sseq, cseq)
            sent += 1
        if is_plain:
            if out:
                targets.plain_sink().deliver(out)
                targets.record_plain(len(out))
        else:
            targets.flush()
        return sent

    def _record_redelivered(self, sseq: Seq, cseq: int) -> None:
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
        host, pending = self._host, self._pending
        now_ms = host.now_ms()
        self._activity.last_delivered_ns = host.now_ns()
        self._activity.active_ms = now_ms
        if not self._has_acks:
            if not self.position_due_ms:
                self.position_due_ms = now_ms + limits.POSITION_EVERY_MS
            return
        ts = self._commands.stamp()
        redelivery = pending.redelivery
        for first, last, _, is_redelivery in items:
            if is_redelivery:
                for sseq in range(first, last + 1):
                    redelivery.delivered(
                        sseq, sseq, stamp=ts, now_ms=now_ms, deliveries=pending.deliveries(sseq)
                    )
            else:
                redelivery.delivered(first, last, stamp=ts, now_ms=now_ms, deliveries=1)
        uid = self._consumer.uid
        self._commands.propose_sent([commands.DELIVERED, ts, uid, items, pending.resets])
        self._targets.ask_for_acks()

    def propose_position(self) -> None:
        """Log how far a consumer without acks has come."""
        self.position_due_ms = 0
        pending = self._pending
        command = [
            commands.POSITION,
            self._commands.stamp(),
            self._consumer.uid,
            pending.sent_sseq,
            pending.sent_cseq,
            pending.resets,
        ]
        self._commands.propose_sent(command)


def _with_size(headers: bytes, size: int) -> bytes:
    """Return `headers` with the size of the payload that is not sent."""
    if headers:
        return b"%bNats-Msg-Size: %d\r\n\r\n" % (headers[:-2], size)
    return b"NATS/1.0\r\nNats-Msg-Size: %d\r\n\r\n" % size
