"""When delivered messages must be delivered again: ack timers, -NAKs, and what is due now.

The leader's view, rebuilt from the consumer's replicated state by the next leader. A timer
covers a whole run of messages and is checked against the consumer's pending table when it expires,
so an ack that arrives in time costs nothing here.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection

from streamd.machine.consumers.consumer import Consumer
from streamd.types import Seq

_MS = 1_000_000  # ns
_UNAPPLIED_RETRY_MS = 50  # a timer expired before its delivery was applied: the log is slow
_NAK = -1  # stamp of a timer that stands for a -NAK
_FEW_TIMERS = 64  # so many may be there for nothing


class Redelivery:
    """Timers and the queue of due messages of one consumer."""

    __slots__ = (
        "_backoff_ms",
        "_consumer",
        "_due",
        "_is_timed",
        "_nak_due_ms",
        "_prune_at",
        "_queued",
        "_timers",
        "_wait_ms",
        "ahead",
    )

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._wait_ms = 0
        self._backoff_ms: list[int] = []
        # Heap of (due_ms, first, last, stamp): stamp is the time in the DELIVERED (or PROGRESS)
        # command; a pending entry with a later time has a later timer of its own.
        self._timers: list[tuple[int, Seq, Seq, int]] = []
        self._prune_at = _FEW_TIMERS  # how many timers are too many, unless they are needed
        self._nak_due_ms: dict[Seq, int] = {}
        # In the order in which they came due. Not the lowest first: one that is refused again and
        # again would keep back all behind it.
        self._due: deque[Seq] = deque()
        self._queued: set[Seq] = set()
        # Parked ones that were sent, and that is not applied: below what is delivered, else.
        self.ahead: set[Seq] = set()
        self.configure()

    def configure(self) -> None:
        """Take ack_wait and backoff from the consumer's present config, also for what waits. A wait
        of 0 in a backoff is the ack_wait."""
        config = self._consumer.config
        self._is_timed = config.get("ack_policy") != "flow_control"  # else it is asked for acks
        before = self._wait_ms, self._backoff_ms
        wait_ns = config.get("ack_wait") or 30_000 * _MS
        self._wait_ms = max(1, wait_ns // _MS)
        self._backoff_ms = [max(1, (ns or wait_ns) // _MS) for ns in config.get("backoff") or ()]
        if self._timers and before != (self._wait_ms, self._backoff_ms):
            self._move_timers(*before)

    def _move_timers(self, wait_ms: int, backoff_ms: list[int]) -> None:
        """Timers were set by these waits, and go by others from now on."""
        counts = self._consumer.redelivered
        moved: list[tuple[int, Seq, Seq, int]] = []
        for due_ms, first, last, stamp in self._timers:
            if stamp != _NAK:
                count = counts.get(first, 1)
                longer_ms = self.wait_ms(count) - _wait_of(count, wait_ms, backoff_ms)
                due_ms = max(1, due_ms + longer_ms)
            moved.append((due_ms, first, last, stamp))
        heapq.heapify(moved)
        self._timers = moved

    def restore(self, *, now_ns: int, now_ms: int) -> int:
        """Set timers for all that is pending: this node leads from now on. Returns the newest stamp
        among it: whoever led before may have had a clock ahead of ours, and what comes must be
        told from it as later."""
        newest = 0
        run: list[int] = []  # [first, last, ts, deliveries]
        redelivered = self._consumer.redelivered
        naked = self._consumer.naked
        for sseq, (_, ts) in self._consumer.pending.items():
            newest = max(newest, ts)
            if sseq in naked:
                # By the clock of the leader before, which may be ahead of ours by any time: no
                # longer than was asked for.
                left_ns = naked[sseq] - max(now_ns, ts)
                self.nak(sseq, now_ms + max(0, left_ns) // _MS)
                continue
            deliveries = redelivered.get(sseq, 1)
            if run and run[1] + 1 == sseq and run[2] == ts and run[3] == deliveries:
                run[1] = sseq
                continue
            self._restore_run(run, now_ns, now_ms)
            run = [sseq, sseq, ts, deliveries]
        self._restore_run(run, now_ns, now_ms)
        return newest

    def _restore_run(self, run: list[int], now_ns: int, now_ms: int) -> None:
        if run and self._is_timed:
            first, last, ts, deliveries = run
            passed_ms = max(0, now_ns - ts) // _MS
            due_ms = now_ms + max(0, self.wait_ms(deliveries) - passed_ms)
            self._add((due_ms, first, last, ts))

    def _add(self, timer: tuple[int, Seq, Seq, int]) -> None:
        heapq.heappush(self._timers, timer)
        if len(self._timers) > self._prune_at:
            # What was acked in time leaves its timer: with a long ack wait those would be millions.
            self._timers = [each for each in self._timers if self._is_needed(*each)]
            heapq.heapify(self._timers)
            self._prune_at = _FEW_TIMERS + 2 * len(self._timers)

    def _is_needed(self, due_ms: int, first: Seq, last: Seq, stamp: int) -> bool:
        """False if `pop_expired` would find nothing to do for a timer, whenever it expires."""
        consumer = self._consumer
        if stamp == _NAK:
            if self._nak_due_ms.get(first) != due_ms:
                return False
            if self._is_open(first):
                return True
            del self._nak_due_ms[first]  # acked all the same, or it left the stream
            return False
        if last <= consumer.floor_sseq:
            return False
        if last > consumer.delivered_sseq:
            return True  # the delivery is not applied yet
        pending, ahead = consumer.pending, self.ahead
        for sseq in range(first, last + 1):
            held = pending.get(sseq)
            if (held is not None and held[1] <= stamp) or sseq in ahead:
                return True
        return False

    def _is_open(self, sseq: Seq) -> bool:
        """True if a message that was sent is not acked, by what is applied."""
        consumer = self._consumer
        is_ahead = sseq > consumer.delivered_sseq or sseq in self.ahead
        return is_ahead or sseq in consumer.pending

    def wait_ms(self, deliveries: int) -> int:
        """Return the time that an ack may take, of a message that was delivered so many times."""
        return _wait_of(deliveries, self._wait_ms, self._backoff_ms)

    def delivered(self, first: Seq, last: Seq, *, stamp: int, now_ms: int, deliveries: int) -> None:
        """Set a timer for messages that were just sent (or, deliveries unchanged, are in work)."""
        if self._is_timed:
            self._add((now_ms + self.wait_ms(deliveries), first, last, stamp))
        if self._nak_due_ms:
            for sseq in range(first, last + 1):
                self._nak_due_ms.pop(sseq, None)

    def nak(self, sseq: Seq, due_ms: int) -> None:
        """Deliver `sseq` again at `due_ms`, whatever its ack timer says."""
        if sseq not in self._queued:
            self._nak_due_ms[sseq] = due_ms
            self._add((due_ms, sseq, sseq, _NAK))

    def ack_due_ms(self, *, now_ns: int, now_ms: int) -> int:
        """Return when one of the acks that are not overdue yet is due; 0: there are none."""
        consumer = self._consumer
        naked, counts = consumer.naked, consumer.redelivered
        for sseq, (_, ts) in reversed(consumer.pending.items()):  # the latest is soon found
            left_ms = (naked.get(sseq, 0) - now_ns) // _MS
            if left_ms <= 0:
                left_ms = self.wait_ms(counts.get(sseq, 1)) - (now_ns - ts) // _MS
            if left_ms > 0:
                return now_ms + left_ms
        return 0

    @property
    def next_ms(self) -> int:
        """When `pop_expired` should be called next; 0: never."""
        return self._timers[0][0] if self._timers else 0

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    @property
    def due_count(self) -> int:
        return len(self._due)

    def pop_expired(self, now_ms: int, acking: Collection[Seq]) -> list[Seq]:
        """Return the messages whose time has come, ascending; they are not queued yet."""
        timers = self._timers
        pending = self._consumer.pending
        expired: list[Seq] = []
        while timers and timers[0][0] <= now_ms:
            due_ms, first, last, stamp = heapq.heappop(timers)
            if stamp == _NAK:
                if self._nak_due_ms.get(first) == due_ms:
                    del self._nak_due_ms[first]
                    if self._is_open(first) and first not in acking:
                        expired.append(first)
                continue
            if last <= self._consumer.floor_sseq:
                continue
            retry: list[Seq] = []
            for sseq in range(first, last + 1):
                if sseq in acking or sseq in self._queued or sseq in self._nak_due_ms:
                    continue
                held = pending.get(sseq)
                if held is None:
                    if sseq > self._consumer.delivered_sseq or sseq in self.ahead:
                        retry.append(sseq)
                elif held[1] == stamp:
                    expired.append(sseq)
                elif held[1] < stamp:
                    retry.append(sseq)
            if retry:
                again = (now_ms + _UNAPPLIED_RETRY_MS, retry[0], retry[-1], stamp)
                heapq.heappush(timers, again)
        expired.sort()
        return expired

    def all_waiting(self, acking: Collection[Seq]) -> list[Seq]:
        """Return what is delivered and not acked, ascending, as if its time had come; not queued
        yet. A -NAK's delay is over as well."""
        queued = self._queued
        pending = self._consumer.pending
        waiting = sorted(sseq for sseq in pending if sseq not in acking and sseq not in queued)
        for sseq in waiting:  # of what is not applied yet, a -NAK is the only timer left
            self._nak_due_ms.pop(sseq, None)
        return waiting

    def schedule(self, sseqs: Collection[Seq]) -> None:
        """Queue messages that are due, behind those that were due before."""
        for sseq in sseqs:
            if sseq not in self._queued:
                self._queued.add(sseq)
                self._due.append(sseq)

    def peek_due(self) -> Seq:
        return self._due[0]

    def pop_due(self) -> None:
        self._queued.discard(self._due.popleft())

    def clear_due(self) -> list[Seq]:
        """Return what is due, in its order; none is queued any more."""
        due = list(self._due)
        self._due.clear()
        self._queued.clear()
        return due

    def clear(self) -> None:
        """Forget everything (the consumer was reset)."""
        self._timers.clear()
        self._nak_due_ms.clear()
        self._due.clear()
        self._queued.clear()
        self.ahead.clear()


def _wait_of(deliveries: int, wait_ms: int, backoff_ms: list[int]) -> int:
    return backoff_ms[min(deliveries, len(backoff_ms)) - 1] if backoff_ms else wait_ms
