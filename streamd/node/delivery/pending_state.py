"""State of one consumer's deliveries: what was sent, what waits for its ack, what is due again.

The replicated `Consumer` says what is applied. Deliveries and acks that are proposed and not
applied yet are the difference that is kept here, so that nothing is sent twice meanwhile.
"""

from __future__ import annotations

from streamd.machine import commands
from streamd.machine.commands import Command
from streamd.machine.consumers.consumer import PARKED, UNPARKED, Consumer
from streamd.machine.indexes.index import StreamIndex
from streamd.node.delivery.consumer_commands import ConsumerCommands
from streamd.node.delivery.cursor_settings import CursorSettings
from streamd.node.delivery.redelivery import Redelivery
from streamd.node.delivery.subject_order import NO_LIMIT, SubjectOrder
from streamd.types import Seq


class PendingState:
    """Position of a cursor in the stream, and its messages that are not acked."""

    __slots__ = (
        "_commands",
        "_index",
        "_max_deliver",
        "_purged_cseq",
        "_seen",
        "ack_pending_max",
        "acking",
        "ahead_counts",
        "ahead_new",
        "ahead_parked",
        "consumer",
        "next_sseq",
        "order",
        "redelivery",
        "resets",
        "sent_cseq",
        "sent_sseq",
    )

    def __init__(self, consumer: Consumer, index: StreamIndex, commands: ConsumerCommands) -> None:
        self.consumer = consumer
        self._index = index
        self._commands = commands
        self.redelivery = Redelivery(consumer)
        self.acking: set[Seq] = set()  # proposed as acked or dead, and not applied
        self.ahead_counts: dict[Seq, int] = {}  # of redelivered messages: how often, likewise
        self.ack_pending_max = 0  # 0: no limit
        self._max_deliver = -1
        self.order: SubjectOrder | None = None  # None: subjects have no limit of their own
        self.restart()

    def configure(self, settings: CursorSettings) -> None:
        """Take over the consumer's present config, also for what waits already."""
        self.ack_pending_max = settings.ack_pending_max
        self._max_deliver = settings.max_deliver
        most = settings.per_subject_max or NO_LIMIT
        if self.order is not None:
            self.order.configure(most)
        elif settings.per_subject_max or self.consumer.remaining.parked:
            self.order = SubjectOrder(self.consumer, self._index, most)
        self.redelivery.configure()
        if self.redelivery.has_due:  # how often it may be sent may be less by now
            self._make_due(self.redelivery.clear_due())

    def restart(self) -> None:
        """Begin at the applied position of the consumer, with nothing ahead of it."""
        consumer = self.consumer
        self.resets = consumer.resets
        self.next_sseq: Seq = consumer.next_sseq
        self.sent_sseq: Seq = consumer.delivered_sseq
        # Of the consumer, when messages last left the stream: next, delivered, left, pending.
        self._seen = (0, 0, 0, 0)
        self.sent_cseq = consumer.delivered_cseq
        self.ahead_new = 0  # sent a first time, and not applied
        self.ahead_parked = 0  # passed over, likewise
        self._purged_cseq = 0  # without acks: all that was sent up to here is left to nobody
        consumer.sent_sseq = 0
        consumer.sent_gone = []

    # --- counts -----------------------------------------------------------------------------------

    def num_ack_pending(self) -> int:
        """Delivered and not acked, counting what is proposed but not applied yet."""
        if self.consumer.is_ack_all:
            return len(self.consumer.pending) + self.ahead_new
        return len(self.consumer.pending) + self.ahead_new - len(self.acking)

    def is_full(self) -> bool:
        """True if the consumer's limit of pending acks lets nothing new out."""
        return bool(self.ack_pending_max) and self.num_ack_pending() >= self.ack_pending_max

    def num_pending(self) -> int:
        """Messages not yet sent a first time."""
        order = self.order
        return self._num_new() + (order.unsent_count if order is not None else 0)

    def _num_new(self) -> int:
        """Messages not looked at yet."""
        consumer = self.consumer
        if consumer.matcher is None and not consumer.remaining.initial:
            index = self._index
            start = self.next_sseq
            last: int = index.last_seq
            if start > last or not index.count:
                return 0
            first: int = index.first_seq
            if start <= first:
                total: int = index.count
                return total
            if last - first + 1 == index.count:
                return last - start + 1
            counted: int = index.lookup.count_from(start, None)
            return counted
        remaining = consumer.remaining
        ahead = self.ahead_new + self.ahead_parked - len(self.redelivery.ahead)
        left = remaining.count - len(remaining.parked)
        return max(0, left - ahead + len(consumer.sent_gone))

    def is_pending(self, sseq: Seq) -> bool:
        """True if `sseq` waits for an ack that no client has sent, as far as is known here."""
        if sseq in self.acking:
            return False
        consumer = self.consumer
        if sseq in consumer.pending or sseq > consumer.delivered_sseq:
            return True
        return sseq in self.redelivery.ahead

    def deliveries(self, sseq: Seq) -> int:
        """Return how often `sseq` was delivered."""
        ahead = self.ahead_counts.get(sseq)
        return ahead if ahead is not None else self.consumer.redelivered.get(sseq, 1)

    # --- due again --------------------------------------------------------------------------------

    def poll_timers(self, now_ms: int) -> None:
        """Make due what was not acked in time."""
        redelivery = self.redelivery
        if redelivery.next_ms and redelivery.next_ms <= now_ms:
            self._make_due(redelivery.pop_expired(now_ms, self.acking))

    def make_all_due(self) -> None:
        """Make due all that is delivered and not acked: the client that had it is gone."""
        self._make_due(self.redelivery.all_waiting(self.acking))

    def _make_due(self, sseqs: list[Seq]) -> None:
        """Queue for redelivery; those delivered max_deliver times become dead instead."""
        if self._max_deliver > 0:
            most = self._max_deliver
            dead = [sseq for sseq in sseqs if self.deliveries(sseq) >= most]
            if dead:
                sseqs = [sseq for sseq in sseqs if self.deliveries(sseq) < most]
                self.acking.update(dead)
                self._commands.propose(commands.DEAD, dead)
        self.redelivery.schedule(sseqs)

    # --- what was applied -------------------------------------------------------------------------

    def on_applied(self, command: Command) -> None:
        """DELIVERED, ACKED, DEAD, TERMED or POSITION of this consumer was applied."""
        kind = command[0]
        if kind == commands.DELIVERED:
            if command[4] != self.resets:
                return
            for first, last, _, kind in command[3]:
                if kind == PARKED:
                    self.ahead_parked -= last - first + 1
                    self._forget_gone(last)
                elif kind == UNPARKED:
                    self.ahead_new -= last - first + 1
                    self.redelivery.ahead.difference_update(range(first, last + 1))
                elif kind:
                    self._resolve_again(first, last)
                else:
                    self.ahead_new -= last - first + 1
                    self._forget_gone(last)
                    if self.acking and self.consumer.may_lack(first):
                        self._forget_void_acks()
        elif kind == commands.ACKED or kind == commands.DEAD:
            self.acking.difference_update(command[3])
            if self.order is not None:
                self._release(command[3])
        elif kind == commands.TERMED:
            termed = [sseq for sseq, _ in command[3]]
            self.acking.difference_update(termed)
            if self.order is not None:
                self._release(termed)
        elif kind == commands.POSITION and command[5] == self.resets:
            self.ahead_new = self.sent_cseq - max(command[4], self._purged_cseq)
            self._forget_gone(command[3])

    def _release(self, sseqs: list[Seq]) -> None:
        """Let others of their subjects have the places of what is not waited for any more."""
        assert self.order is not None, self.consumer.name
        pending = self.consumer.pending
        self.order.release([sseq for sseq in sseqs if sseq not in pending])

    def on_reset(self) -> bool:
        """RESET_CONSUMER was applied; False if it changed nothing here."""
        if self.consumer.resets == self.resets:
            return False
        self.redelivery.clear()
        self.ahead_counts.clear()
        self.acking.clear()
        self.restart()
        if self.order is not None:
            self.order.restore()
        return True

    def rescan(self) -> None:
        """Search again what is not sent yet: the scan may have run past what a new filter wants."""
        self.next_sseq = max(self.sent_sseq + 1, self.consumer.next_sseq)

    def on_removed(self) -> bool:
        """Messages left the stream (purge, expiry, limits, delete, acks). False: of what this
        consumer waits for, or has sent, nothing has changed since this was asked last."""
        consumer = self.consumer
        pending = len(consumer.pending)
        seen = (consumer.next_sseq, consumer.delivered_sseq, consumer.num_pending)
        is_changed = seen != self._seen[:3] or pending < self._seen[3]
        self._seen = (*seen, pending)
        if self.order is not None:
            is_changed |= self.order.sweep()
        if self.acking:
            self._forget_void_acks()
        if consumer.next_sseq > self.next_sseq:
            self.next_sseq = consumer.next_sseq
        if consumer.delivered_sseq >= self.sent_sseq:  # all that was sent is applied, or purged
            self.sent_sseq = consumer.delivered_sseq
            if consumer.is_ack_none:
                self._purged_cseq = self.sent_cseq
                self.ahead_new = 0
                consumer.sent_gone = []
        return is_changed

    def _resolve_again(self, first: Seq, last: Seq) -> None:
        """A redelivery was applied; of the same message another may be under way still."""
        consumer, counts = self.consumer, self.ahead_counts
        for sseq in range(first, last + 1):
            applied = consumer.redelivered.get(sseq, 1)
            if sseq not in consumer.pending or counts.get(sseq, 0) <= applied:
                counts.pop(sseq, None)

    def _forget_void_acks(self) -> None:
        """Forget acks of messages that left the stream: those hold no place, so make no room."""
        applied, held = self.consumer.delivered_sseq, self.consumer.pending
        ahead = self.redelivery.ahead
        self.acking = {
            each for each in self.acking if each in held or each > applied or each in ahead
        }

    def _forget_gone(self, sseq: Seq) -> None:
        """Messages up to `sseq` are no longer ahead of what is applied."""
        gone = self.consumer.sent_gone
        if gone:
            self.consumer.sent_gone = [each for each in gone if each > sseq]
