"""Sender of one consumer's messages: those due again first, then new ones while there is room.

Everything sent leaves a trace for the log in the same turn: DELIVERED, or, of a consumer without
acks, a POSITION a little later.
"""

from __future__ import annotations

from bisect import bisect_right

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.consumers.consumer import PARKED, UNPARKED, Delivery
from streamd.machine.indexes.message_locations import Loc
from streamd.node.delivery.consumer_commands import ConsumerCommands
from streamd.node.delivery.cursor_settings import Activity, CursorSettings, Hold
from streamd.node.delivery.delivery_host import DeliveryHost, Item
from streamd.node.delivery.delivery_targets import DeliveryTargets
from streamd.node.delivery.flow_control import Replay
from streamd.node.delivery.pending_state import PendingState
from streamd.node.delivery.redelivery import Redelivery
from streamd.node.delivery.subject_order import SubjectOrder
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
        self._items: list[Delivery] = []  # of this plan, proposed at its end
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
        elif self._items:  # only passed over
            self._propose_items()
        return is_more

    def _send_all(self, budget: int) -> bool:
        redelivery, order = self._pending.redelivery, self._pending.order
        sent = 0
        if redelivery.has_due:
            sent = self._send_due(redelivery, budget)
            if redelivery.has_due:
                # Blocked (a read, a full receiver, a spent budget): what is due goes first.
                return sent >= budget
        if order is not None and order.has_due:
            sent += self._send_due(order, budget - sent)
            if order.has_due:
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
                if pending.order is not None:
                    sent, is_blocked = self._send_in_order(locs, pending.order)
                else:
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

    def _send_in_order(self, locs: list[Loc], order: SubjectOrder) -> tuple[int, bool]:
        """Send those of the messages at `locs` whose subjects have a place, and pass over others.
        Returns (how many of both, is blocked)."""
        run: list[Loc] = []
        done = 0
        for loc in locs:
            seq = loc[0]
            subject = order.subject_of(seq)
            if order.admits(subject):
                order.hold(seq, subject)
                run.append(loc)
                continue
            sent = self._send_held(run, order)
            done += sent
            if sent < len(run) or order.is_full:
                return done, True
            run = []
            order.park(seq, subject)
            self._record_parked(seq)
            done += 1
        sent = self._send_held(run, order)
        return done + sent, sent < len(run)

    def _send_held(self, run: list[Loc], order: SubjectOrder) -> int:
        """Send messages that have a place; returns how many. The others lose it again."""
        if not run:
            return 0
        sent, _ = self._send_run(run, self._targets.is_plain())
        order.release([unsent[0] for unsent in run[sent:]])
        return sent

    def _record_parked(self, seq: Seq) -> None:
        """Move past a message that is passed over."""
        pending, items = self._pending, self._items
        if items and items[-1][3] == PARKED and items[-1][1] + 1 == seq:
            items[-1] = (items[-1][0], seq, items[-1][2], PARKED)
        else:
            items.append((seq, seq, pending.sent_cseq + 1, PARKED))
        pending.ahead_parked += 1
        pending.sent_sseq = self._consumer.sent_sseq = seq
        pending.next_sseq = max(pending.next_sseq, seq + 1)

    def _send_stretch(self, room: int) -> int:
        """Send messages that lie one behind another, laid out alike, without looking at each, as
        a replaying reader mostly needs. Returns how many; 0 if it can't be done that way."""
        consumer, targets = self._consumer, self._targets
        if (
            room < limits.STRETCH_MSGS_MIN
            or consumer.matcher is not None
            or consumer.remaining.initial
            or self._pending.order is not None
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

    def _send_due(self, due: Redelivery | SubjectOrder, budget: int) -> int:
        """Send what is due, in the order it came due: again, or a first time after it was passed
        over. Returns how many went out."""
        host, pending, targets = self._host, self._pending, self._targets
        is_first = due is pending.order
        offer = targets.offer
        sent = 0
        is_plain = targets.is_plain()
        room = targets.room(budget)
        if is_first and pending.ack_pending_max:
            room = min(room, pending.ack_pending_max - pending.num_ack_pending())
        out: list[Item] = []
        left = pending.num_pending()
        while due.has_due and sent < room:
            sseq = due.peek_due()
            try:
                is_wanted = is_first or pending.is_pending(sseq)
                loc = self._index.locations.locate(sseq) if is_wanted else None
            except CorruptionError as err:
                host.on_lost_block(err)
                break
            if loc is None:
                due.pop_due()
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
            count = 1 if is_first else pending.deliveries(sseq) + 1
            cseq = pending.sent_cseq + 1
            shown = left - sent - 1 if is_first else left
            ack = b"%b%d.%d.%d.%d.%d" % (self._ack_prefix, count, sseq, cseq, ts, shown)
            if is_plain:
                out.append((subject, ack, headers, payload))
            elif not offer((subject, ack, headers, payload)):
                break
            due.pop_due()
            pending.sent_cseq = cseq
            if is_first:
                pending.ahead_new += 1
                pending.redelivery.ahead.add(sseq)
                self._items.append((sseq, sseq, cseq, UNPARKED))
            else:
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
            first, last, first_cseq, kind = items[-1]
            if kind is True and last + 1 == sseq and first_cseq + last - first + 1 == cseq:
                items[-1] = (first, sseq, first_cseq, True)
                return
        items.append((sseq, sseq, cseq, True))

    # --- to the log -------------------------------------------------------------------------------

    def _propose_delivered(self) -> None:
        """Log what this plan sent, and set the timers of what must be acked."""
        host = self._host
        now_ms = host.now_ms()
        self._activity.last_delivered_ns = host.now_ns()
        self._activity.active_ms = now_ms
        if not self._has_acks:
            if not self.position_due_ms:
                self.position_due_ms = now_ms + limits.POSITION_EVERY_MS
            return
        self._propose_items()
        self._targets.ask_for_acks()

    def _propose_items(self) -> None:
        items, self._items = self._items, []
        pending, now_ms = self._pending, self._host.now_ms()
        ts = self._commands.stamp()
        redelivery = pending.redelivery
        for first, last, _, kind in items:
            if kind is True:
                for sseq in range(first, last + 1):
                    redelivery.delivered(
                        sseq, sseq, stamp=ts, now_ms=now_ms, deliveries=pending.deliveries(sseq)
                    )
            elif kind != PARKED:
                redelivery.delivered(first, last, stamp=ts, now_ms=now_ms, deliveries=1)
        uid = self._consumer.uid
        self._commands.propose_sent([commands.DELIVERED, ts, uid, items, pending.resets])

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
