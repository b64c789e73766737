"""A consumer's replicated state: what was delivered, what waits for its ack, what is left.

A consumer lives in its stream's machine, log and snapshot, so it can't be ahead of its stream.
It knows nothing of clients: which client got a message, pulls, interest and timers belong to the
leader's `node/cursor.py`, which proposes DELIVERED, ACKED ... and learns the outcome from here.

Invariant I7, asserted after each transition: floor <= delivered <= the stream's last seq (except
for a start the user set beyond the end), and all that is pending lies between floor and delivered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.rfc3339 import format_ns, parse_ns
from streamd.subjects import Matcher
from streamd.types import Seq, Uid

_STATE_VERSION = 1
_FEW = 64  # seqs that are looked up one by one in a list that may be long
_DELETED_UNACKED = "Unacknowledged message was deleted"


class IndexView(Protocol):
    """What a consumer reads of its stream's index (machine/index.py)."""

    first_seq: Seq
    last_seq: Seq
    count: int

    def is_live(self, seq: Seq) -> bool: ...

    def count_from(self, seq: Seq, matcher: Matcher | None) -> int: ...

    def seq_at_time(self, ts_ns: int) -> Seq: ...

    def last_match(self, matcher: Matcher | None, before: Seq | None = None) -> Seq: ...

    def subjects_matching(self, matcher: Matcher | None) -> Iterable[Sequence[Any]]: ...


class StreamView(Protocol):
    """What a consumer knows of its stream (machine/stream.py)."""

    name: str
    config: dict[str, Any]
    index: Any

    def on_acked(self, consumer: Consumer, sseqs: Sequence[Seq]) -> None:
        """`consumer` needs `sseqs` no longer. Called only if retention is not "limits", after the
        consumer's own state changed; may call back `on_removed`. Some of them may be no matches
        of the consumer, or no longer stored."""


class Consumer:
    """One consumer of one stream."""

    __slots__ = (
        "_left",
        "_order",
        "_passed",
        "_removed_ahead_to",
        "_sample_percent",
        "_stream",
        "config",
        "created_ns",
        "delivered_cseq",
        "delivered_sseq",
        "floor_cseq",
        "floor_sseq",
        "initial",
        "initial_at",
        "is_ack_all",
        "is_ack_none",
        "is_push",
        "matcher",
        "naked",
        "name",
        "needs_store_hook",
        "next_sseq",
        "paused_until_ns",
        "pending",
        "redelivered",
        "resets",
        "uid",
    )

    def __init__(self, uid: Uid, name: str, config: dict[str, Any], created_ns: int) -> None:
        """Use `create` or `from_state`."""
        self.uid = uid
        self.name = name
        self.config = config
        self.created_ns = created_ns
        self.delivered_cseq = 0
        self.delivered_sseq: Seq = 0
        self.floor_cseq = 0
        self.floor_sseq: Seq = 0
        # Where the search for the next new message begins. After the initial list (deliver last
        # per subject) this is beyond delivered_sseq + 1.
        self.next_sseq: Seq = 1
        # sseq -> (cseq of its first delivery, ts of its latest delivery or progress), by sseq:
        # first deliveries come in that order and later ones change an entry in place.
        self.pending: dict[Seq, tuple[int, int]] = {}
        # sseq -> deliveries so far, if more than one. Stays for messages that reached max_deliver,
        # so that interest and workqueue retention keep them.
        self.redelivered: dict[Seq, int] = {}
        self.naked: dict[Seq, int] = {}  # sseq -> when to deliver again, for pending -NAKs
        self.initial: list[Seq] = []  # deliver last per subject: these first, from initial_at on
        self.initial_at = 0
        self.paused_until_ns = 0
        self.resets = 0  # deliveries planned before a reset must not be applied after it
        # Ranges [first, last] of delivered sseqs not yet known to be below the floor: finds the
        # first pending one in O(1) amortised (a dict that loses its head scans its graves).
        self._order: deque[list[int]] = deque()
        self._passed = 0  # unfiltered: live messages below next_sseq
        self._left = 0  # filtered: live matches from next_sseq on
        # Messages up to here may have left the stream before they were delivered, so deliveries
        # planned earlier must be checked against the index one by one.
        self._removed_ahead_to: Seq = 0
        self._stream: StreamView
        self._configure(config)

    def _configure(self, config: dict[str, Any]) -> None:
        self.config = config
        policy = config.get("ack_policy", "none")
        self.is_ack_none = policy == "none"
        self.is_ack_all = policy in ("all", "flow_control")
        self.is_push = bool(config.get("deliver_subject"))
        filters = filters_of(config)
        matcher = Matcher(filters) if filters else None
        self.matcher = None if matcher is None or matcher.is_all else matcher
        self.needs_store_hook = self.matcher is not None  # also while it starts beyond the end
        pause_until = config.get("pause_until")
        self.paused_until_ns = parse_ns(pause_until) if pause_until else 0
        self._sample_percent = sample_percent(config.get("sample_freq", ""))

    # --- birth, change, persistence -------------------------------------------------------------

    @classmethod
    def create(
        cls, *, uid: Uid, name: str, config: dict[str, Any], created_ns: int, stream: StreamView
    ) -> Consumer:
        """A new consumer of `stream`, positioned by its deliver policy. `config` was checked."""
        consumer = cls(uid, name, config, created_ns)
        consumer._stream = stream
        consumer._set_start(consumer._resolve_start())
        return consumer

    def _resolve_start(self) -> Seq:
        index = self._stream.index
        config = self.config
        policy = config.get("deliver_policy", "all")
        first: Seq = max(index.first_seq, 1)
        after_last: Seq = index.last_seq + 1
        if policy == "all":
            return first
        if policy == "last":  # the very first if none matches
            return max(self._last_match(), first)
        if policy == "new":
            return after_last
        if policy == "by_start_sequence":
            return max(int(config.get("opt_start_seq", 0)), first)
        if policy == "by_start_time":
            if not index.count:
                return after_last
            return max(int(index.seq_at_time(parse_ns(config["opt_start_time"]))), first)
        assert policy == "last_per_subject", policy
        if self._stream.config.get("max_msgs_per_subject") == 1:
            return first  # there are no others
        self.initial = sorted(row[2] for row in index.subjects_matching(self.matcher))
        self.initial_at = 0
        if not self.initial and index.last_seq >= first:
            return after_last - 1  # it is no match; peers show this position
        return after_last

    def _last_match(self) -> Seq:
        index = self._stream.index
        found: Seq = index.last_match(self.matcher) if index.count else 0
        return found or 0

    def _set_start(self, start: Seq) -> None:
        """Begin at `start` (new messages) after the initial list, with nothing delivered."""
        self.next_sseq = start
        begin = self.initial[0] if self.initial else start
        self.delivered_sseq = self.floor_sseq = begin - 1
        self.delivered_cseq = self.floor_cseq = 0
        self.pending.clear()
        self.redelivered.clear()
        self.naked.clear()
        self._order.clear()
        self._removed_ahead_to = 0
        self._recount()

    def update(self, config: dict[str, Any]) -> None:
        """Take over a new config (checked by consumer_checks)."""
        old = self.matcher.patterns if self.matcher else None
        self._configure(config)
        new = self.matcher.patterns if self.matcher else None
        if new != old:
            self._recount()

    def pause(self, until_ns: int) -> None:
        """Deliver nothing before `until_ns`; 0 resumes."""
        self.paused_until_ns = until_ns
        config = dict(self.config)
        config.pop("pause_until", None)
        if until_ns:
            config["pause_until"] = format_ns(until_ns)
        self.config = config

    def reset(self, seq: Seq) -> Seq:
        """Forget deliveries and begin anew at `seq` (0: after the ack floor), consumer seq 1.
        Returns where it begins. Whether `seq` is allowed: consumer_checks.check_reset."""
        start = seq if seq else self.floor_sseq + 1
        self.initial = []
        self.initial_at = 0
        self.resets += 1
        self._set_start(start)
        return start

    def to_state(self) -> list[Any]:
        """Everything that is replicated, for msgpack. Inverse: `from_state`."""
        rows: list[int] = []
        for sseq, (cseq, ts) in self.pending.items():
            rows += (sseq, cseq, ts)
        return [
            _STATE_VERSION,
            self.uid,
            self.name,
            self.config,
            self.created_ns,
            self.delivered_cseq,
            self.delivered_sseq,
            self.floor_cseq,
            self.floor_sseq,
            self.next_sseq,
            self.paused_until_ns,
            rows,
            sorted(self.redelivered.items()),
            sorted(self.naked.items()),
            self.initial[self.initial_at :],
            self.resets,
            self._removed_ahead_to,
            [list(delivered) for delivered in self._order],
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any], stream: StreamView) -> Consumer:
        """Rebuild from `to_state`; the stream's index must be complete already."""
        assert state[0] == _STATE_VERSION, state[0]
        consumer = cls(state[1], state[2], state[3], state[4])
        consumer._stream = stream
        (
            consumer.delivered_cseq,
            consumer.delivered_sseq,
            consumer.floor_cseq,
            consumer.floor_sseq,
            consumer.next_sseq,
            consumer.paused_until_ns,
            rows,
            redelivered,
            naked,
            initial,
            consumer.resets,
            consumer._removed_ahead_to,
            order,
        ) = state[5:18]
        consumer.initial = list(initial)
        # Not derivable: where the floor moves next depends on what was delivered and is gone.
        consumer._order = deque([first, last] for first, last in order)
        consumer.redelivered = dict(redelivered)
        consumer.naked = dict(naked)
        for at in range(0, len(rows), 3):
            consumer.pending[rows[at]] = (rows[at + 1], rows[at + 2])
        consumer._recount()
        return consumer

    # --- facts ----------------------------------------------------------------------------------

    @property
    def stream(self) -> StreamView:
        return self._stream

    @property
    def num_pending(self) -> int:
        """Matching messages not yet delivered a first time."""
        left = len(self.initial) - self.initial_at
        if self.matcher is not None:
            return left + self._left
        remaining: int = self._stream.index.count - self._passed
        return left + (remaining if remaining > 0 else 0)

    def needs(self, seq: Seq, subject: bytes) -> bool:
        """True while this consumer's interest keeps the message (interest, workqueue)."""
        return (self.matcher is None or self.matcher.matches(subject)) and self.awaits(seq)

    def awaits(self, seq: Seq) -> bool:
        """`needs` of a message that matches."""
        if seq > self.delivered_sseq:
            return seq >= self.next_sseq or self._is_initial(seq)
        return seq in self.pending or seq in self.redelivered

    def _is_initial(self, seq: Seq) -> bool:
        at = bisect_left(self.initial, seq, self.initial_at)
        return at < len(self.initial) and self.initial[at] == seq

    def info(self) -> dict[str, Any]:
        """The numbers of a ConsumerInfo."""
        redelivered = 0
        if self.config.get("max_deliver", -1) != 1:
            redelivered = len(self.redelivered)
        return {
            "delivered": {"consumer_seq": self.delivered_cseq, "stream_seq": self.delivered_sseq},
            "ack_floor": {"consumer_seq": self.floor_cseq, "stream_seq": self.floor_sseq},
            "num_ack_pending": len(self.pending),
            "num_redelivered": redelivered,
            "num_pending": self.num_pending,
        }

    # --- what happens to the stream -------------------------------------------------------------

    def on_stored_batch(self, first_seq: Seq, subjects: Sequence[bytes]) -> None:
        """Messages with consecutive seqs from `first_seq` were stored. Call only if
        `needs_store_hook`: unfiltered consumers count nothing per message."""
        start = self.next_sseq - first_seq  # a start beyond the end: what is below is not ours
        if self.matcher is None:
            self._passed += min(max(start, 0), len(subjects))
            self.needs_store_hook = start > len(subjects)
            return
        if start > 0:
            subjects = subjects[start:]
        self._left += self.matcher.count(subjects)

    def on_removed(
        self, seqs: Sequence[Seq], subjects: Sequence[bytes], out: Effects | None = None
    ) -> None:
        """Live messages `seqs` (ascending) left the stream: call once per consumer and batch of
        removals, after the index has changed. Pending ones are terminated."""
        next_sseq = self.next_sseq
        below = bisect_left(seqs, next_sseq)
        if self.matcher is None:
            self._passed -= below
        elif below < len(seqs):
            self._left -= self.matcher.count(subjects[below:])
        if seqs:
            self._note_removed(seqs[-1])
        if self.initial_at < len(self.initial):
            self._drop_initial(seqs)
        if below and (self.pending or self.redelivered):
            held_before = len(self.pending)
            for seq in seqs[:below]:
                if seq in self.pending:
                    self._terminate(seq, _DELETED_UNACKED, out)
                self.redelivered.pop(seq, None)
            if held_before > len(self.pending):
                self._advance_floor()
        self._check()

    def is_untouched_by(self, seqs: Sequence[Seq]) -> bool:
        """True if the removal of `seqs`, none of which matches the filter, means nothing more to
        this consumer than what this call does."""
        if self.pending or self.redelivered or self.initial:
            return False  # they may be of an earlier filter
        self._note_removed(seqs[-1])
        return True

    def _note_removed(self, last: Seq) -> None:
        if last > self.delivered_sseq:
            self._removed_ahead_to = max(self._removed_ahead_to, last)

    def on_purged(self, out: Effects | None = None) -> None:
        """Many messages left at once (purge): recount instead of counting each."""
        index = self._stream.index
        had_matches = self.matcher is not None and bool(self._left or self.pending)
        gone = [seq for seq in self.pending if not index.is_live(seq)]
        for seq in gone:
            self._terminate(seq, _DELETED_UNACKED, out)
        self.redelivered = {s: n for s, n in self.redelivered.items() if index.is_live(s)}
        rest = self.initial[self.initial_at :]
        self.initial = [seq for seq in rest if index.is_live(seq)]
        self.initial_at = 0
        if gone:
            self._advance_floor()
        start = index.first_seq
        if had_matches and not index.count_from(start, self.matcher):
            start = index.last_seq + 1  # all that it would have got is gone
        if self.next_sseq < start:
            self.next_sseq = start
            if not self.initial:
                self.delivered_sseq = start - 1
                if not self.pending:
                    self.floor_sseq = self.delivered_sseq
        self._removed_ahead_to = index.last_seq
        self._recount()
        self._check()

    def _drop_initial(self, seqs: Sequence[Seq]) -> None:
        initial = self.initial
        if len(seqs) > _FEW:
            gone = set(seqs)
            self.initial = [seq for seq in initial[self.initial_at :] if seq not in gone]
            self.initial_at = 0
            return
        for seq in seqs:
            at = bisect_left(initial, seq, self.initial_at)
            if at < len(initial) and initial[at] == seq:
                del initial[at]
        if self.initial_at == len(initial):
            self.initial = []
            self.initial_at = 0

    # --- commands -------------------------------------------------------------------------------

    def apply(self, command: commands.Command, out: Effects) -> None:
        """Apply a command that names this consumer by its uid: DELIVERED ... POSITION."""
        kind = command[0]
        if kind == commands.DELIVERED:
            if command[4] == self.resets:
                self.apply_delivered(command[1], command[3])
        elif kind == commands.ACKED:
            self.apply_acked(command[1], command[3], out)
        elif kind == commands.NAKED:
            self.apply_naked(command[1], command[3], out)
        elif kind == commands.TERMED:
            self.apply_termed(command[3], out)
        elif kind == commands.PROGRESS:
            self.apply_progress(command[1], command[3])
        elif kind == commands.DEAD:
            self.apply_dead(command[3], out)
        else:
            assert kind == commands.POSITION, kind
            if command[5] == self.resets:
                self.apply_position(command[3], command[4])
        self._check()

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

    def _pass(self, first: Seq, last: Seq) -> int:
        """New messages first..last are delivered: keep the counts; returns how many still live."""
        live = last - first + 1
        if first <= self._removed_ahead_to:
            live = sum(map(self._stream.index.is_live, range(first, last + 1)))
        if self.initial_at < len(self.initial) and last < self.next_sseq:
            at = self.initial_at
            while at < len(self.initial) and self.initial[at] <= last:
                at += 1
            self.initial_at = at
            if at == len(self.initial):
                self.initial = []
                self.initial_at = 0
        elif last >= self.next_sseq:
            self.next_sseq = last + 1
            if self.matcher is not None:
                self._left -= live
            else:
                self._passed += live
        return live

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
        """AckAll: everything delivered up to `sseq` is acked."""
        if sseq <= self.floor_sseq or sseq > self.delivered_sseq:
            return []
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

    def apply_naked(
        self, ts: int, items: Sequence[Sequence[int]], out: Effects | None = None
    ) -> None:
        """Negative acks: deliver again `delay_ns` after `ts`."""
        for sseq, delay_ns in items:
            held = self.pending.get(sseq)
            if held is None:
                continue
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

    def apply_position(self, sseq: Seq, cseq: int) -> None:
        """AckNone: all up to `sseq` has been sent, `cseq` messages so far."""
        assert self.is_ack_none, self.name
        if sseq <= self.delivered_sseq:
            # A purge has moved on from here, but what was sent keeps its number.
            self.delivered_cseq = self.floor_cseq = max(self.delivered_cseq, cseq)
            return
        # Otherwise some may be of the initial list, or have left the stream meanwhile.
        is_exact = self._removed_ahead_to < self.next_sseq == self.delivered_sseq + 1
        passed = range(self.delivered_sseq + 1, sseq + 1)
        count = cseq - self.delivered_cseq
        assert count >= 0, (cseq, self.delivered_cseq)
        self.delivered_sseq = self.floor_sseq = sseq
        self.delivered_cseq = self.floor_cseq = cseq
        if self.initial_at < len(self.initial):
            self.initial = [seq for seq in self.initial[self.initial_at :] if seq > sseq]
            self.initial_at = 0
        if sseq >= self.next_sseq:
            self.next_sseq = sseq + 1
            if not is_exact:
                self._recount()
            elif self.matcher is not None:
                self._left -= count
            else:
                self._passed += count
        self._tell_acked(passed)

    # --- keeping the books ----------------------------------------------------------------------

    def _tell_acked(self, sseqs: Sequence[Seq]) -> None:
        if self._stream.config.get("retention", "limits") != "limits":
            self._stream.on_acked(self, sseqs)

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
        if order[0][0] in pending:
            return  # the first one is still pending, and the floor stays where it was
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

    def _recount(self) -> None:
        """Count from the index what the hooks keep up incrementally."""
        index = self._stream.index
        self.needs_store_hook = self.matcher is not None or self.next_sseq > index.last_seq + 1
        if not index.count or self.next_sseq > index.last_seq:
            self._left = 0
            self._passed = index.count
        elif self.matcher is not None:
            self._left = index.count_from(self.next_sseq, self.matcher)
        elif self.next_sseq <= index.first_seq:
            self._passed = 0
        else:
            self._passed = index.count - index.count_from(self.next_sseq, None)

    def _event(self, sseq: Seq, cseq: int, deliveries: int) -> dict[str, Any]:
        return {
            "stream": self._stream.name,
            "consumer": self.name,
            "stream_seq": sseq,
            "consumer_seq": cseq,
            "deliveries": deliveries,
        }

    def _check(self) -> None:
        assert self.floor_sseq <= self.delivered_sseq, (self.floor_sseq, self.delivered_sseq)
        assert self.floor_cseq <= self.delivered_cseq, (self.floor_cseq, self.delivered_cseq)
        assert self.delivered_cseq == 0 or self.delivered_sseq <= self._stream.index.last_seq, (
            self.delivered_sseq,
            self._stream.index.last_seq,
        )


def filters_of(config: Mapping[str, Any]) -> list[bytes]:
    """The filter subjects of a consumer config, from either field; [] means everything."""
    single = config.get("filter_subject")
    if single:
        return [single.encode()]
    return [each.encode() for each in config.get("filter_subjects") or ()]


def sample_percent(text: str) -> int:
    """`sample_freq`: "30" or "30%" of acks are reported; anything else means none."""
    digits = text.removesuffix("%")
    return min(int(digits), 100) if digits.isdigit() else 0
