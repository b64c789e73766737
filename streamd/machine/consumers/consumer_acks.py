"""Deliveries of a consumer: those that wait for an ack, and the outcome of the rest.

Acks move the floor: to just below the oldest message that still waits, or up to the last delivered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

from streamd.machine.asset_configs import ConsumerConfig
from streamd.machine.base import Effects
from streamd.machine.consumers.consumer_position import ConsumerPosition
from streamd.types import Seq, Uid

_FEW_RANGES: Final = 64  # so many may be there for nothing


class ConsumerAcks(ConsumerPosition):
    """The part of `Consumer` that follows deliveries."""

    __slots__ = (
        "_order",
        "_sample_percent",
        "floor_cseq",
        "floor_sseq",
        "is_ack_all",
        "is_ack_none",
        "naked",
        "pending",
        "redelivered",
    )

    def __init__(self, uid: Uid, name: str, config: ConsumerConfig, created_ns: int) -> None:
        super().__init__(uid, name, config, created_ns)
        self.floor_cseq = 0
        self.floor_sseq: Seq = 0
        # sseq -> (cseq of its first delivery, ts of its latest delivery or progress), by sseq:
        # first deliveries come in that order and later ones change an entry in place.
        self.pending: dict[Seq, tuple[int, int]] = {}
        # sseq -> deliveries so far, if more than one. Stays for messages that reached max_deliver,
        # so that interest and workqueue retention keep them.
        self.redelivered: dict[Seq, int] = {}
        self.naked: dict[Seq, int] = {}  # sseq -> when to deliver again, for pending -NAKs
        # Ranges [first, last] of delivered sseqs not yet known to be below the floor: finds the
        # first pending one in O(1) amortised (a dict that loses its head scans its graves).
        self._order: deque[list[int]] = deque()

    def _configure(self, config: ConsumerConfig) -> None:
        super()._configure(config)
        policy = config.get("ack_policy", "none")
        self.is_ack_none = policy == "none"
        self.is_ack_all = policy in ("all", "flow_control")
        self._sample_percent = sample_percent(config.get("sample_freq", ""))

    # --- deliveries -----------------------------------------------------------------------------

    def apply_delivered(self, ts: int, items: Sequence[Sequence[Any]]) -> None:
        """Messages were sent to a client: first deliveries become pending, redeliveries count."""
        pending = self.pending
        for first, last, first_cseq, is_redelivery in items:
            count = last - first + 1
            assert first_cseq == self.delivered_cseq + 1, (first_cseq, self.delivered_cseq)
            self.delivered_cseq += count
            if is_redelivery:
                for sseq in range(first, last + 1):
                    held = pending.get(sseq)
                    if held is not None:
                        pending[sseq] = (held[0], ts)
                        self.redelivered[sseq] = self.redelivered.get(sseq, 1) + 1
                        self.naked.pop(sseq, None)
                continue
            if first <= self.delivered_sseq:
                # A purge moved on from here after this was planned. Only what it left counts.
                first_cseq += self.delivered_sseq + 1 - first
                first = self.delivered_sseq + 1
                if last < first:
                    continue
                count = last - first + 1
            self.delivered_sseq = last
            live = self._pass(first, last)
            if live == count:
                cseqs = zip(range(first_cseq, first_cseq + count), repeat(ts), strict=False)
                pending.update(zip(range(first, last + 1), cseqs, strict=True))
            else:
                # Some left the stream between planning and now: nothing to wait for.
                is_live = self._stream.index.is_live
                for sseq in range(first, last + 1):
                    if is_live(sseq):
                        pending[sseq] = (first_cseq + sseq - first, ts)
            self._remember_order(first, last)

    def apply_position(self, sseq: Seq, cseq: int, *, is_refiltered: bool = False) -> None:
        """AckNone: all up to `sseq` has been sent, `cseq` messages so far; some of them, if it is
        refiltered, because they match an earlier filter."""
        assert self.is_ack_none, self.name
        if sseq <= self.delivered_sseq:
            # A purge has moved on from here, but what was sent keeps its number.
            self.delivered_cseq = self.floor_cseq = max(self.delivered_cseq, cseq)
            return
        # Otherwise some may be of the initial list, or have left the stream meanwhile; or a purge
        # of all moved on to here, and `cseq` counts what had been sent before it.
        is_exact = self._removed_ahead_to < self.delivered_sseq == self.next_sseq - 1
        is_exact = is_exact and not is_refiltered
        passed = range(self.delivered_sseq + 1, sseq + 1)
        count = cseq - self.delivered_cseq
        assert count >= 0, (cseq, self.delivered_cseq)
        self.delivered_sseq = self.floor_sseq = sseq
        self.delivered_cseq = self.floor_cseq = cseq
        if self.initial:
            self.initial_at = bisect_right(self.initial, sseq, self.initial_at)
            if self.initial_at == len(self.initial):
                self.initial = []
                self.initial_at = 0
        if sseq >= self.next_sseq:
            if not is_exact:
                count = self._stream.index.count_between(self.next_sseq, sseq, self.matcher)
            self.next_sseq = sseq + 1
            if self.matcher is not None:
                self._left -= count
            else:
                self._passed += count
        self._tell_acked(passed)

    # --- acks -----------------------------------------------------------------------------------

    def apply_acked(self, ts: int, sseqs: Sequence[Seq], out: Effects | None = None) -> None:
        """Positive acks. Of what is not pending they mean nothing."""
        held_before = len(self.pending)
        if self.is_ack_all:
            acked = self._ack_up_to(max(sseqs, default=0))
        elif self._sample_percent or self.redelivered or self.naked:
            acked = self._ack_each(ts, sseqs, out)
        else:
            pop = self.pending.pop
            acked = [sseq for sseq in sseqs if pop(sseq, None) is not None]
        if acked:
            if not self.is_ack_all and held_before > len(self.pending):
                self._advance_floor()
            self._tell_acked(acked)

    def _ack_each(self, ts: int, sseqs: Sequence[Seq], out: Effects | None) -> list[Seq]:
        acked = []
        for sseq in sseqs:
            held = self.pending.pop(sseq, None)
            deliveries = self.redelivered.pop(sseq, 0)
            if held is None:
                if deliveries:  # given up after max_deliver, and acked all the same
                    acked.append(sseq)
                continue
            deliveries = deliveries or 1
            self.naked.pop(sseq, None)
            acked.append(sseq)
            if self._sample_percent and out is not None:
                if held[0] * 61 % 100 < self._sample_percent:  # spread, and equal on replicas
                    fields = self._event(sseq, held[0], deliveries)
                    fields["ack_time"] = ts - held[1]
                    out.events.append(("consumer_ack", fields))
        return acked

    def _ack_up_to(self, sseq: Seq) -> list[Seq]:
        """AckAll: everything delivered up to `sseq` is acked, what was given up as well."""
        if sseq > self.delivered_sseq:
            return []
        acked = self._ack_pending_to(sseq) if sseq > self.floor_sseq else []
        if self.redelivered:
            given_up = sorted(each for each in self.redelivered if each <= sseq)
            for each in given_up:
                del self.redelivered[each]
            acked += given_up
        return acked

    def _ack_pending_to(self, sseq: Seq) -> list[Seq]:
        acked = []
        pop = self.pending.pop
        cseq = 0
        while self._order and self._order[0][0] <= sseq:
            first, last = self._order[0]
            upto = min(last, sseq)
            for each in range(first, upto + 1):
                held = pop(each, None)
                if held is not None:
                    cseq = held[0]
                    acked.append(each)
                    if self.redelivered:
                        self.redelivered.pop(each, None)
                    if self.naked:
                        self.naked.pop(each, None)
            if upto < last:
                self._order[0][0] = upto + 1
                break
            self._order.popleft()
        self.floor_sseq = sseq
        self.floor_cseq = max(self.floor_cseq, cseq)
        if not self.pending and sseq == self.delivered_sseq:
            self.floor_cseq = self.delivered_cseq
        return acked

    def _tell_acked(self, sseqs: Sequence[Seq]) -> None:
        if self._stream.config.get("retention", "limits") != "limits":
            self._stream.on_acked(self, sseqs)

    # --- no acks --------------------------------------------------------------------------------

    def apply_naked(
        self, ts: int, items: Sequence[Sequence[int]], out: Effects | None = None
    ) -> None:
        """Negative acks: deliver again `delay_ns` after `ts`, by the clock that made both."""
        for sseq, delay_ns in items:
            held = self.pending.get(sseq)
            if held is None:
                continue
            self.pending[sseq] = (held[0], ts)
            self.naked[sseq] = ts + delay_ns
            if out is not None:
                deliveries = self.redelivered.get(sseq, 1)
                out.events.append(("consumer_naked", self._event(sseq, held[0], deliveries)))

    def apply_termed(self, items: Sequence[Sequence[Any]], out: Effects | None = None) -> None:
        """Terminated by the client: acked, never to be delivered again."""
        termed = []
        for sseq, reason in items:
            if sseq in self.pending:
                self._terminate(sseq, reason, out)
                termed.append(sseq)
        if termed:
            self._advance_floor()
            self._tell_acked(termed)

    def _terminate(self, sseq: Seq, reason: str, out: Effects | None) -> None:
        cseq, _ = self.pending.pop(sseq)
        deliveries = self.redelivered.pop(sseq, 1)
        self.naked.pop(sseq, None)
        if out is not None:
            fields = self._event(sseq, cseq, deliveries)
            fields["reason"] = reason
            out.events.append(("consumer_terminated", fields))

    def apply_progress(self, ts: int, sseqs: Sequence[Seq]) -> None:
        """The client still works on these: their ack clocks start anew."""
        for sseq in sseqs:
            held = self.pending.get(sseq)
            if held is not None:
                self.pending[sseq] = (held[0], ts)
                self.naked.pop(sseq, None)

    def apply_dead(self, sseqs: Sequence[Seq], out: Effects | None = None) -> None:
        """Delivered max_deliver times without an ack: no longer pending, but still stored.

        The ack floor follows with the next ack, as clients know it from other servers."""
        for sseq in sseqs:
            held = self.pending.pop(sseq, None)
            if held is None:
                continue
            self.naked.pop(sseq, None)
            deliveries = self.redelivered.setdefault(sseq, 1)
            if out is not None:
                out.events.append(("consumer_max_deliver", self._event(sseq, held[0], deliveries)))

    # --- the floor ------------------------------------------------------------------------------

    def _remember_order(self, first: Seq, last: Seq) -> None:
        order = self._order
        if order and order[-1][1] + 1 == first:
            order[-1][1] = last
        else:
            order.append([first, last])

    def _advance_floor(self) -> None:
        """Move the floor to just below the first pending message, or up to all delivered."""
        order = self._order
        pending = self.pending
        if not pending:
            order.clear()
            self.floor_cseq = self.delivered_cseq
            self.floor_sseq = self.delivered_sseq
            return
        if order[0][0] in pending:  # still, and the floor stays where it was
            if len(order) > _FEW_RANGES + 2 * len(pending):
                self._forget_acked()
            return
        while order:
            first, last = order[0]
            while first <= last and first not in pending:
                first += 1
            if first <= last:
                order[0][0] = first
                self.floor_cseq = pending[first][0] - 1
                self.floor_sseq = first - 1
                return
            order.popleft()
        raise AssertionError("pending messages that were never delivered")

    def _forget_acked(self) -> None:
        """Leave only ranges of what is pending behind the first one: while that waits, everything
        else may come and go, with gaps in between."""
        first = self._order[0]
        self._order = deque([first])
        for sseq in self.pending:
            if sseq > first[1]:
                self._remember_order(sseq, sseq)

    def _event(self, sseq: Seq, cseq: int, deliveries: int) -> dict[str, Any]:
        return {
            "stream": self._stream.name,
            "consumer": self.name,
            "stream_seq": sseq,
            "consumer_seq": cseq,
            "deliveries": deliveries,
        }


def sample_percent(text: str) -> int:
    """`sample_freq`: "30" or "30%" of acks are reported; anything else means none."""
    digits = text.removesuffix("%")
    return min(int(digits), 100) if digits.isdigit() else 0
