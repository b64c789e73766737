"""`Consumer`: the replicated state of one consumer: its deliveries, acks, and remaining messages.

A consumer lives in its stream's machine, log and snapshot, so it can't be ahead of its stream.
It knows nothing of clients: which client got a message, pulls, interest and timers belong to the
leader's `node/delivery/cursor.py`, which proposes DELIVERED, ACKED ... and learns the outcome
from here.

The way of a message, by its seq in the stream:

    remaining ----> pending ----> acked, terminated, or gone from the stream
    (remaining.py)    |  ^ -NAK, ack wait over: delivered again, still pending
                      v
                    dead: delivered `max_deliver` times; still in `redelivered`, so that interest
                    and workqueue retention keep it

With `max_ack_pending_per_subject` a remaining message may become *parked* first: passed over, for
its subject has enough that is pending, and delivered, as any other, once that is less.

`delivered_*` is the last delivery, by consumer seq and stream seq; `floor_*` lies just below the
oldest message that is pending, or at `delivered_*` if none is.

Invariant I7, asserted after each transition: floor <= delivered <= the stream's last seq (except
for a start the user set beyond the end), and all that is pending lies between floor and delivered.
Called only from `StreamConsumers`, inside `apply`; anybody may read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.base import Effects
from streamd.machine.consumers.remaining import Remaining, filters_of
from streamd.machine.extension_settings import ack_pending_per_subject, dead_letter
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.rfc3339 import format_ns, parse_ns
from streamd.subjects import Matcher
from streamd.types import Seq, Uid

_STATE_VERSION = 2
_FEW_RANGES: Final = 64  # so many may be there for nothing
_DELETED_UNACKED = "Unacknowledged message was deleted"

PARKED: Final = 2
UNPARKED: Final = 3

Delivery = tuple[Seq, Seq, int, int]
"""An item of a DELIVERED: (first_sseq, last_sseq, first_cseq, kind). See commands.DELIVERED."""


class StreamView(Protocol):
    """A consumer's view of its stream (machine/streams/stream_consumers.py)."""

    name: str

    @property
    def config(self) -> StreamConfig: ...

    @property
    def index(self) -> StreamIndex: ...

    def on_acked(self, consumer: Consumer, sseqs: Sequence[Seq]) -> None:
        """`consumer` needs `sseqs` no longer. Called only if retention is not "limits", after the
        consumer's own state changed; may call back `on_removed`. Some of them may be no matches
        of the consumer, or no longer stored."""

    def on_given_up(
        self, consumer: Consumer, sseq: Seq, *, deliveries: int, ts: int, reason: str | None
    ) -> None:
        """`consumer`, which has a dead-letter subject, gives up `sseq`: `reason` is that of the
        client that terminated it; None: it was delivered max_deliver times."""


class Consumer:
    """Replicated state of one consumer of one stream. Use `create` or `from_state`."""

    __slots__ = (
        "_order",
        "_sample_percent",
        "_stream",
        "acked_ns",
        "config",
        "created_ns",
        "delivered_cseq",
        "delivered_ns",
        "delivered_sseq",
        "floor_cseq",
        "floor_sseq",
        "is_ack_all",
        "is_ack_none",
        "naked",
        "name",
        "paused_until_ns",
        "pending",
        "redelivered",
        "refilters",
        "remaining",
        "resets",
        "sent_gone",
        "sent_sseq",
        "uid",
    )

    def __init__(
        self, uid: Uid, name: str, config: ConsumerConfig, created_ns: int, stream: StreamView
    ) -> None:
        self.uid = uid
        self.name = name
        self.created_ns = created_ns
        self._stream = stream
        self.remaining = Remaining(stream.index)
        self.delivered_cseq = 0
        self.delivered_sseq: Seq = 0
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
        self.paused_until_ns = 0
        # Times of the last delivery and ack that were applied since the process began: for the
        # next leader to show, and no part of the state.
        self.delivered_ns = self.acked_ns = 0
        self.resets = 0  # deliveries planned before a reset must not be applied after it
        self.refilters = 0  # messages that an earlier filter let through are not counted by this
        # Of the leader's cursor, and not replicated: how far it has sent, ahead of what is applied,
        # and which of these messages have left the stream, so that none is counted as left twice.
        self.sent_sseq: Seq = 0
        self.sent_gone: list[Seq] = []
        self._configure(config)

    def _configure(self, config: ConsumerConfig) -> None:
        self.config = config
        self.remaining.set_filters(filters_of(config))
        pause_until = config.get("pause_until")
        self.paused_until_ns = parse_ns(pause_until) if pause_until else 0
        policy = config.get("ack_policy", "none")
        self.is_ack_none = policy == "none"
        self.is_ack_all = policy in ("all", "flow_control")
        self._sample_percent = sample_percent(config.get("sample_freq", ""))

    # --- views ----------------------------------------------------------------------------------

    @property
    def stream(self) -> StreamView:
        """The stream of this consumer."""
        return self._stream

    @property
    def is_push(self) -> bool:
        """True if messages are pushed to a subject, False if clients pull them."""
        return bool(self.config.get("deliver_subject"))

    @property
    def matcher(self) -> Matcher | None:
        """The filter; None lets all messages through."""
        return self.remaining.matcher

    @property
    def next_sseq(self) -> Seq:
        """Return the seq at which the search for the next new message begins."""
        return self.remaining.next_sseq

    @property
    def num_pending(self) -> int:
        """The number of matching messages not yet delivered a first time."""
        return self.remaining.count

    def may_lack(self, first: Seq) -> bool:
        """Return True if of the messages sent from `first` on some may have left before their
        delivery was applied."""
        return first <= self.remaining.removed_ahead_to

    # --- birth and change -----------------------------------------------------------------------

    @classmethod
    def create(
        cls, *, uid: Uid, name: str, config: ConsumerConfig, created_ns: int, stream: StreamView
    ) -> Consumer:
        """Make a consumer of `stream`, positioned by its deliver policy. `config` was checked."""
        consumer = cls(uid, name, config, created_ns, stream)
        consumer._set_start(consumer.remaining.resolve_start(config, stream.config))
        return consumer

    def _set_start(self, start: Seq) -> None:
        """Begin at `start` (new messages) after the initial list, with nothing delivered."""
        initial = self.remaining.initial
        begin = initial[0] if initial else start
        self.delivered_sseq = self.floor_sseq = begin - 1
        self.delivered_cseq = self.floor_cseq = 0
        self.pending.clear()
        self.redelivered.clear()
        self.naked.clear()
        self._order.clear()
        self.remaining.begin(start)

    def begin_at(self, seq: Seq) -> None:
        """Begin at `seq`, whatever the deliver policy says: before the first delivery."""
        self.remaining.skip_initial()
        self._set_start(seq)

    def skip_to(self, *, cseq: int, sseq: Seq) -> None:
        """Deliveries up to consumer seq `cseq` were made that nobody remembers, of messages below
        `sseq` (0: that is not known either). What was delivered so waits for its acks. Where that
        can't be, deliveries that were planned before are void, and what follows comes again."""
        gap = cseq - self.delivered_cseq
        if gap <= 0:
            return
        has_initial = bool(self.remaining.initial)
        seqs = [] if has_initial else self.remaining.seqs_below(sseq)
        if len(seqs) > gap or has_initial or self.is_ack_none:
            self.resets += 1
            return
        first = self.delivered_cseq + 1
        self.apply_delivered(0, [(seq, seq, first + at, False) for at, seq in enumerate(seqs)])
        self.delivered_cseq = cseq
        self._check()

    def take_over(self, state: Sequence[Any]) -> None:
        """Take over the position that this consumer had in another stream with the same messages;
        `state` as in commands.IMPORT_CONSUMER. Called before the first delivery. What left that
        stream, or never was in this one, is not waited for."""
        cseq, sseq, floor_cseq, floor_sseq, pending, redelivered = state
        if not cseq:
            if sseq:
                self.begin_at(sseq + 1)
            return
        index = self._stream.index
        self.remaining.skip_initial()
        self.delivered_cseq, self.delivered_sseq = cseq, min(sseq, index.last_seq)
        self.floor_cseq, self.floor_sseq = self.delivered_cseq, self.delivered_sseq
        self.remaining.begin(self.delivered_sseq + 1)
        if self.is_ack_none:
            return
        self.floor_cseq = min(floor_cseq, self.delivered_cseq)
        self.floor_sseq = min(floor_sseq, self.delivered_sseq)
        is_live = index.live.has
        for each, its_cseq, ts in sorted(pending):
            if self.floor_sseq < each <= self.delivered_sseq and is_live(each):
                self.pending[each] = (its_cseq, ts)
                self._remember_order(each, each)
        self.redelivered = {
            each: count
            for each, count in sorted(redelivered)
            if count > 1 and each <= self.delivered_sseq and is_live(each)
        }
        self._check()

    def update(self, config: ConsumerConfig) -> None:
        """Take over a new config (checked by consumer_checks), but for its pause: `pause` may have
        changed that since the request was made."""
        config = config.copy()
        config.pop("pause_until", None)
        if self.config.get("pause_until"):
            config["pause_until"] = self.config["pause_until"]
        old = self.matcher.patterns if self.matcher else None
        paused_until_ns = self.paused_until_ns  # 0 once it is over, whatever the config says
        self._configure(config)
        self.paused_until_ns = paused_until_ns
        new = self.matcher.patterns if self.matcher else None
        if new != old:
            self.refilters += 1
            self.remaining.recount()

    def pause(self, until_ns: int, *, now_ns: int) -> bool:
        """Deliver nothing before `until_ns`; 0 resumes, and the time that is set already ends the
        pause if it has come. Returns whether that is to be told.

        The config keeps a time that is over, which pauses nobody: who compares it with what was
        asked for finds no difference.
        """
        text = self.config.get("pause_until")
        if until_ns != (parse_ns(text) if text else 0):
            self.paused_until_ns = until_ns if until_ns > now_ns else 0
            config = self.config.copy()
            config.pop("pause_until", None)
            if until_ns:
                config["pause_until"] = format_ns(until_ns)
            self.config = config
            return True
        if not self.paused_until_ns or until_ns > now_ns:
            return False
        self.paused_until_ns = 0
        return until_ns > self.created_ns  # else it was over from the start

    def reset(self, seq: Seq) -> Seq:
        """Forget deliveries and begin anew at `seq` (0: after the ack floor), consumer seq 1.
        Returns where it begins. Whether `seq` is allowed: consumer_checks.check_reset."""
        start = seq if seq else self.floor_sseq + 1
        self.remaining.skip_initial()
        self.resets += 1
        self.delivered_ns = self.acked_ns = 0
        self._set_start(start)
        return start

    # --- facts ----------------------------------------------------------------------------------

    def awaits(self, seq: Seq) -> bool:
        """True while this consumer's interest keeps a message that its filter matches (interest,
        workqueue)."""
        if seq > self.delivered_sseq:
            return seq >= self.remaining.next_sseq or self.remaining.is_initial(seq)
        return seq in self.pending or seq in self.redelivered or seq in self.remaining.parked

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

    # --- messages that leave the stream ---------------------------------------------------------

    def on_removed(
        self, seqs: Sequence[Seq], subjects: Sequence[bytes], out: Effects | None = None
    ) -> None:
        """Take note that live messages `seqs` (ascending) left the stream: call once per consumer
        and batch of removals, after the index has changed. Pending ones are terminated. May be left
        out if none of them matches the filter, and that was the only filter so far."""
        if self.sent_sseq > self.delivered_sseq:
            self._note_sent_gone(seqs, subjects)
        below = bisect_left(seqs, self.next_sseq)
        self.remaining.on_removed(
            seqs,
            subjects,
            delivered_sseq=self.delivered_sseq,
            is_refiltered=bool(self.refilters),
        )
        parked = self.remaining.parked
        if below and (self.pending or self.redelivered or parked):
            held_before = len(self.pending) + len(parked)
            for seq in seqs[:below]:
                if seq in self.pending:
                    self._terminate(seq, _DELETED_UNACKED, out)
                self.redelivered.pop(seq, None)
                if parked:
                    parked.pop(seq, None)
            if held_before > len(self.pending) + len(parked):
                self._advance_floor()
        self._check()

    def on_purged(self, *, is_front: bool = False) -> None:
        """Take note that many messages left at once (purge): count anew instead of counting each,
        and report none. `is_front`: all that left lay below the message that is the first now."""
        index, remaining = self._stream.index, self.remaining
        is_beyond = is_front and remaining.next_sseq >= index.first_seq
        had_matches = remaining.matcher is not None and bool(remaining.left or self.pending)
        gone = [seq for seq in self.pending if not index.live.has(seq)]
        for seq in gone:
            self._terminate(seq, _DELETED_UNACKED, None)
        self.redelivered = {s: n for s, n in self.redelivered.items() if index.live.has(s)}
        if remaining.parked:
            gone += [seq for seq in remaining.parked if not index.live.has(seq)]
            remaining.parked = dict.fromkeys(filter(index.live.has, remaining.parked))
        remaining.keep_live_initial()
        if gone:
            self._advance_floor()
        start = index.first_seq
        if had_matches and not index.lookup.count_from(start, remaining.matcher):
            start = index.last_seq + 1  # all that it would have got is gone
        if remaining.next_sseq < start:
            remaining.next_sseq = start
            if not remaining.initial:
                self.delivered_sseq = start - 1
                if not self.pending and not remaining.parked:
                    self.floor_sseq = self.delivered_sseq
        remaining.removed_ahead_to = index.last_seq
        if remaining.matcher is None or not is_beyond:
            remaining.recount()
        self._check()

    def _note_sent_gone(self, seqs: Sequence[Seq], subjects: Sequence[bytes]) -> None:
        """Keep those of `seqs`, which leave the stream, that were sent and count as remaining."""
        low = bisect_right(seqs, self.delivered_sseq)
        for at in range(low, bisect_right(seqs, self.sent_sseq, low)):
            if self.remaining.lets_through(seqs[at], subjects[at]):
                self.sent_gone.append(seqs[at])

    # --- commands -------------------------------------------------------------------------------

    def apply(self, command: commands.Command, out: Effects) -> None:
        """Apply a command that names this consumer by its uid: DELIVERED ... POSITION."""
        kind = command[0]
        if kind == commands.DELIVERED:
            if command[4] == self.resets:
                self.delivered_ns = command[1]
                self.apply_delivered(command[1], command[3])
                if command[5:] != self._filter_count():
                    self.remaining.recount()
        elif kind == commands.ACKED:
            if command[3]:
                self.acked_ns = command[1]
            self.apply_acked(command[1], command[3], out)
        elif kind == commands.NAKED:
            self.apply_naked(command[1], command[3], out)
        elif kind == commands.TERMED:
            self.acked_ns = command[1]
            self.apply_termed(command[3], out, ts=command[1])
        elif kind == commands.PROGRESS:
            self.apply_progress(command[1], command[3])
        elif kind == commands.DEAD:
            self.apply_dead(command[3], out, ts=command[1])
        else:
            assert kind == commands.POSITION, kind
            if command[5] == self.resets:
                self.delivered_ns = command[1]
                is_refiltered = command[6:] != self._filter_count()
                self.apply_position(command[3], command[4], is_refiltered=is_refiltered)
        self._check()

    def _filter_count(self) -> list[int]:
        """Return the end of a DELIVERED or POSITION that was planned with the present filter."""
        return [self.refilters] if self.refilters else []

    def _check(self) -> None:
        assert self.floor_sseq <= self.delivered_sseq, (self.floor_sseq, self.delivered_sseq)
        assert self.floor_cseq <= self.delivered_cseq, (self.floor_cseq, self.delivered_cseq)
        assert self.delivered_cseq == 0 or self.delivered_sseq <= self._stream.index.last_seq, (
            self.delivered_sseq,
            self._stream.index.last_seq,
        )

    # --- persistence ----------------------------------------------------------------------------

    def to_state(self) -> list[object]:
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
            self.remaining.next_sseq,
            self.paused_until_ns,
            rows,
            sorted(self.redelivered.items()),
            sorted(self.naked.items()),
            self.remaining.initial[self.remaining.initial_at :],
            self.resets,
            self.remaining.removed_ahead_to,
            [list(delivered) for delivered in self._order],
            self.refilters,
            self.remaining.left,
            *([list(self.remaining.parked)] if self.remaining.parked else ()),
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any], stream: StreamView) -> Consumer:
        """Rebuild from `to_state`; the stream's index must be complete already. Raises
        CorruptionError for what a later version wrote."""
        if state[0] != _STATE_VERSION:
            raise CorruptionError(f"consumer {state[2]!r} has unknown version {state[0]}")
        consumer = cls(state[1], state[2], state[3], state[4], stream)
        remaining = consumer.remaining
        (
            consumer.delivered_cseq,
            consumer.delivered_sseq,
            consumer.floor_cseq,
            consumer.floor_sseq,
            remaining.next_sseq,
            consumer.paused_until_ns,
            rows,
            redelivered,
            naked,
            initial,
            consumer.resets,
            remaining.removed_ahead_to,
            order,
            consumer.refilters,
            left,
            *more,
        ) = state[5:]
        if len(more) > 1:
            raise CorruptionError(f"consumer {state[2]!r} has {len(more) - 1} unknown fields")
        if more:
            remaining.parked = dict.fromkeys(more[0])
        remaining.initial = list(initial)
        # Not derivable: where the floor moves next depends on what was delivered and is gone.
        consumer._order = deque([first, last] for first, last in order)
        consumer.redelivered = dict(redelivered)
        consumer.naked = dict(naked)
        for at in range(0, len(rows), 3):
            consumer.pending[rows[at]] = (rows[at + 1], rows[at + 2])
        if remaining.matcher is None:
            remaining.recount()
        else:  # to count it again for each of a thousand consumers takes seconds
            remaining.left = left
            remaining.needs_store_hook = True
        return consumer

    # --- deliveries -----------------------------------------------------------------------------

    def apply_delivered(self, ts: int, items: Sequence[Delivery]) -> None:
        """Messages were sent to a client: first deliveries become pending, redeliveries count."""
        pending = self.pending
        for first, last, first_cseq, kind in items:
            if kind == PARKED:
                self._park(first, last)
                continue
            count = last - first + 1
            assert first_cseq == self.delivered_cseq + 1, (first_cseq, self.delivered_cseq)
            self.delivered_cseq += count
            if kind:
                if kind == UNPARKED:
                    self._unpark(range(first, last + 1), first_cseq, ts)
                    continue
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
            live = self.remaining.deliver(first, last)
            if live == count:
                cseqs = zip(range(first_cseq, first_cseq + count), repeat(ts), strict=False)
                pending.update(zip(range(first, last + 1), cseqs, strict=True))
            else:
                # Some left the stream between planning and now: nothing to wait for.
                is_live = self._stream.index.live.has
                for sseq in range(first, last + 1):
                    if is_live(sseq):
                        pending[sseq] = (first_cseq + sseq - first, ts)
            self._remember_order(first, last)

    def _park(self, first: Seq, last: Seq) -> None:
        """Pass over new messages: they are delivered later, and the floor waits for them."""
        first = max(first, self.delivered_sseq + 1)  # a purge moved on from here meanwhile
        if last < first:
            return
        self.delivered_sseq = last
        self.remaining.deliver(first, last)
        is_live = self._stream.index.live.has
        self.remaining.parked.update(dict.fromkeys(filter(is_live, range(first, last + 1))))
        self._remember_order(first, last)

    def _unpark(self, sseqs: Iterable[Seq], cseq: int, ts: int) -> None:
        """Messages that were passed over are delivered."""
        parked = self.remaining.parked
        for at, sseq in enumerate(sseqs):
            if sseq in parked:
                del parked[sseq]
                self.pending[sseq] = (cseq + at, ts)

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
        remaining = self.remaining
        is_exact = remaining.removed_ahead_to < self.delivered_sseq == remaining.next_sseq - 1
        is_exact = is_exact and not is_refiltered
        passed = range(self.delivered_sseq + 1, sseq + 1)
        count = cseq - self.delivered_cseq
        assert count >= 0, (cseq, self.delivered_cseq)
        self.delivered_sseq = self.floor_sseq = sseq
        self.delivered_cseq = self.floor_cseq = cseq
        remaining.deliver_up_to(sseq, count if is_exact else None)
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

    def apply_termed(
        self, items: Sequence[tuple[Seq, str]], out: Effects | None = None, *, ts: int = 0
    ) -> None:
        """Terminated by the client: acked, never to be delivered again."""
        termed = []
        for sseq, reason in items:
            if sseq in self.pending:
                deliveries = self.redelivered.get(sseq, 1)
                self._terminate(sseq, reason, out)
                termed.append(sseq)
                if dead_letter(self.config):
                    self._stream.on_given_up(
                        self, sseq, deliveries=deliveries, ts=ts, reason=reason
                    )
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

    def apply_dead(self, sseqs: Sequence[Seq], out: Effects | None = None, *, ts: int = 0) -> None:
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
            if dead_letter(self.config):
                self._stream.on_given_up(self, sseq, deliveries=deliveries, ts=ts, reason=None)

    def forget_dead(self, sseq: Seq) -> None:
        """Wait no more for a message that was given up: its dead letter is stored."""
        if sseq not in self.pending:
            self.redelivered.pop(sseq, None)

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
        if self.remaining.parked:
            self._advance_floor_to_open()
            return
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
                oldest_cseq = pending[first][0]
                if ack_pending_per_subject(self.config):  # one that was parked was overtaken
                    oldest_cseq = min(oldest_cseq, next(iter(pending.values()))[0])
                self.floor_cseq = oldest_cseq - 1
                self.floor_sseq = first - 1
                return
            order.popleft()
        raise AssertionError("pending messages that were never delivered")

    def _advance_floor_to_open(self) -> None:
        """Move the floor to just below the first message that is pending or parked."""
        order, pending, parked = self._order, self.pending, self.remaining.parked
        while order:
            first, last = order[0]
            while first <= last and first not in pending and first not in parked:
                first += 1
            if first <= last:
                order[0][0] = first
                self.floor_sseq = first - 1
                # The first that is pending was delivered first of them: others overtook it by seq.
                oldest = next(iter(pending.values()), None)
                self.floor_cseq = oldest[0] - 1 if oldest is not None else self.delivered_cseq
                if len(order) > _FEW_RANGES + 2 * (len(pending) + len(parked)):
                    self._forget_acked()
                return
            order.popleft()
        raise AssertionError("parked messages that were never passed over")

    def _forget_acked(self) -> None:
        """Leave only ranges of what is pending behind the first one: while that waits, everything
        else may come and go, with gaps in between."""
        first = self._order[0]
        self._order = deque([first])
        # Sorted, for parked ones are delivered out of order.
        for sseq in sorted((*self.pending, *self.remaining.parked)):
            if sseq > first[1]:
                self._remember_order(sseq, sseq)

    def _event(self, sseq: Seq, cseq: int, deliveries: int) -> dict[str, object]:
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
