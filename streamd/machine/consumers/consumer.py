"""A consumer's replicated state: what was delivered, what waits for its ack, what is left.

A consumer lives in its stream's machine, log and snapshot, so it can't be ahead of its stream.
It knows nothing of clients: which client got a message, pulls, interest and timers belong to the
leader's `node/delivery/cursor.py`, which proposes DELIVERED, ACKED ... and learns the outcome
from here.

Invariant I7, asserted after each transition: floor <= delivered <= the stream's last seq (except
for a start the user set beyond the end), and all that is pending lies between floor and delivered.

Here are its birth, the commands it gets, what a removal means to it, and its bytes. What is left to
deliver is in `consumer_position`, what was delivered in `consumer_acks`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.asset_configs import ConsumerConfig
from streamd.machine.base import Effects
from streamd.machine.consumers.consumer_acks import ConsumerAcks
from streamd.machine.consumers.consumer_position import StreamView
from streamd.machine.rfc3339 import format_ns, parse_ns
from streamd.types import Seq, Uid

_STATE_VERSION = 2
_UNCOUNTED_VERSION = 1  # had the refilters last, if any, and not what is left
_DELETED_UNACKED = "Unacknowledged message was deleted"


class Consumer(ConsumerAcks):
    """Replicated state of one consumer of one stream. Use `create` or `from_state`."""

    __slots__ = ()

    # --- birth and change -----------------------------------------------------------------------

    @classmethod
    def create(
        cls, *, uid: Uid, name: str, config: ConsumerConfig, created_ns: int, stream: StreamView
    ) -> Consumer:
        """A new consumer of `stream`, positioned by its deliver policy. `config` was checked."""
        consumer = cls(uid, name, config, created_ns)
        consumer._stream = stream
        consumer._set_start(consumer._resolve_start())
        return consumer

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

    def begin_at(self, seq: Seq) -> None:
        """Begin at `seq`, whatever the deliver policy says: before the first delivery."""
        self.initial = []
        self.initial_at = 0
        self._set_start(seq)

    def skip_to(self, *, cseq: int, sseq: Seq) -> None:
        """Deliveries up to consumer seq `cseq` were made that nobody remembers, of messages below
        `sseq` (0: that is not known either). What was delivered so waits for its acks. Where that
        can't be, deliveries that were planned before are void, and what follows comes again."""
        gap = cseq - self.delivered_cseq
        if gap <= 0:
            return
        index = self._stream.index
        seqs: list[Seq] = []
        end = min(sseq - 1, index.last_seq)
        if self.next_sseq <= end and not self.initial:
            if self.matcher is None:
                seqs = list(index.live_seqs(self.next_sseq, end))
            else:
                rows = end + 1 - self.next_sseq
                found, _ = index.select(self.next_sseq, self.matcher, rows, rows)
                seqs = [loc[0] for loc in found if loc[0] <= end]
        if len(seqs) > gap or self.initial or self.is_ack_none:
            self.resets += 1
            return
        first = self.delivered_cseq + 1
        self.apply_delivered(0, [(seq, seq, first + at, False) for at, seq in enumerate(seqs)])
        self.delivered_cseq = cseq
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
            self._recount()

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
        self.initial = []
        self.initial_at = 0
        self.resets += 1
        self.delivered_ns = self.acked_ns = 0
        self._set_start(start)
        return start

    # --- facts ----------------------------------------------------------------------------------

    def awaits(self, seq: Seq) -> bool:
        """True while this consumer's interest keeps a message that its filter matches (interest,
        workqueue)."""
        if seq > self.delivered_sseq:
            return seq >= self.next_sseq or self._is_initial(seq)
        return seq in self.pending or seq in self.redelivered

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
        """Live messages `seqs` (ascending) left the stream: call once per consumer and batch of
        removals, after the index has changed. Pending ones are terminated. May be left out if none
        of them matches the filter, and it was the only one so far."""
        if self.sent_sseq > self.delivered_sseq:
            self._note_sent_gone(seqs, subjects)
        next_sseq = self.next_sseq
        below = bisect_left(seqs, next_sseq)
        if self.matcher is None:
            self._passed -= below
            is_concerned = True
        else:
            count = self.matcher.count
            mine = count(subjects[below:]) if below < len(seqs) else 0
            self._left -= mine
            is_concerned = bool(mine or self.refilters)
            if not is_concerned and self.initial:
                ahead = bisect_right(seqs, self.delivered_sseq)
                is_concerned = bool(count(subjects[ahead:below]))
        if seqs and is_concerned:
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

    def on_purged(self, *, is_front: bool = False) -> None:
        """Many messages left at once (purge): recount instead of counting each, and tell of none.
        `is_front`: all that left lay below what is the first message by now."""
        index = self._stream.index
        is_beyond = is_front and self.next_sseq >= index.first_seq
        had_matches = self.matcher is not None and bool(self._left or self.pending)
        gone = [seq for seq in self.pending if not index.is_live(seq)]
        for seq in gone:
            self._terminate(seq, _DELETED_UNACKED, None)
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
        if self.matcher is None or not is_beyond:
            self._recount()
        self._check()

    # --- commands -------------------------------------------------------------------------------

    def apply(self, command: commands.Command, out: Effects) -> None:
        """Apply a command that names this consumer by its uid: DELIVERED ... POSITION."""
        kind = command[0]
        if kind == commands.DELIVERED:
            if command[4] == self.resets:
                self.delivered_ns = command[1]
                self.apply_delivered(command[1], command[3])
                if command[5:] != self._filter_count():
                    self._recount()
        elif kind == commands.ACKED:
            if command[3]:
                self.acked_ns = command[1]
            self.apply_acked(command[1], command[3], out)
        elif kind == commands.NAKED:
            self.apply_naked(command[1], command[3], out)
        elif kind == commands.TERMED:
            self.acked_ns = command[1]
            self.apply_termed(command[3], out)
        elif kind == commands.PROGRESS:
            self.apply_progress(command[1], command[3])
        elif kind == commands.DEAD:
            self.apply_dead(command[3], out)
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
            self.refilters,
            self._left,
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any], stream: StreamView) -> Consumer:
        """Rebuild from `to_state`; the stream's index must be complete already. Raises
        CorruptionError for what a later version wrote."""
        version = state[0]
        if version not in (_STATE_VERSION, _UNCOUNTED_VERSION):
            raise CorruptionError(f"consumer {state[2]!r} has unknown version {version}")
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
        consumer.refilters = state[18] if len(state) > 18 else 0
        consumer.initial = list(initial)
        # Not derivable: where the floor moves next depends on what was delivered and is gone.
        consumer._order = deque([first, last] for first, last in order)
        consumer.redelivered = dict(redelivered)
        consumer.naked = dict(naked)
        for at in range(0, len(rows), 3):
            consumer.pending[rows[at]] = (rows[at + 1], rows[at + 2])
        if consumer.matcher is None or version == _UNCOUNTED_VERSION:
            consumer._recount()
        else:  # to count it again for each of a thousand consumers takes seconds
            consumer._left = state[19]
            consumer.needs_store_hook = True
        return consumer
