"""Consumer and Cursor against a small model: sets of what a client got, acked, and may expect."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from streamd.machine import commands
from streamd.machine.consumers.consumer import Consumer
from tests.unit.consumer_bed import Bed, Inbox, ack_of

SECOND = 1_000_000_000
SUBJECTS = (b"a.1", b"a.2", b"b.1")


class ConsumerMachine(RuleBasedStateMachine):
    """One pull consumer, mostly with acks; commands are applied at once, or later in one go."""

    @initialize(
        filters=st.sampled_from([[], ["a.*"], ["a.1", "b.1"]]),
        max_deliver=st.sampled_from([-1, 2]),
        most=st.sampled_from([-1, 3]),
        before=st.integers(0, 6),
        start=st.sampled_from(["all", "new", "last_per_subject", "seq"]),
        policy=st.sampled_from(["explicit", "explicit", "all", "none"]),
    )
    def begin(
        self, filters: list[str], max_deliver: int, most: int, before: int, start: str, policy: str
    ) -> None:
        self.bed = Bed()
        if before:
            self.bed.store(*[SUBJECTS[at % 3] for at in range(before)])
        config: dict[str, Any] = {"deliver_policy": start}
        if start == "seq":
            config = {"deliver_policy": "by_start_sequence", "opt_start_seq": before + 3}
        self.bed.create(
            filter_subjects=filters,
            ack_wait=5 * SECOND,
            max_deliver=max_deliver,
            max_ack_pending=most,
            ack_policy=policy,
            **config,
        )
        self.has_acks = policy != "none"
        self.is_ack_all = policy == "all"
        self.initial = set(self.consumer.remaining.initial)
        self.start = self.consumer.next_sseq
        self.most = most
        self.boxes: list[Inbox] = []
        self.seen = 0
        self.got: list[int] = []  # first deliveries, in order
        self.unacked: set[int] = set()
        self.last_cseq = 0
        self.removed: set[int] = set()

    @property
    def consumer(self) -> Consumer:
        return self.bed.consumers["C"]

    def matches(self, seq: int) -> bool:
        matcher = self.consumer.matcher
        return matcher is None or matcher.matches(self.bed.bodies[seq][1])

    def take(self) -> None:
        """Read what the one inbox received since the last look."""
        box = self.bed.inbox(b"in")
        for msg in box.msgs[self.seen :]:
            ack = ack_of(msg)
            assert ack["cseq"] == self.last_cseq + 1
            self.last_cseq = ack["cseq"]
            assert self.matches(ack["sseq"])
            if ack["delivered"] == 1:
                assert not self.got or ack["sseq"] > self.got[-1]
                self.got.append(ack["sseq"])
                if self.has_acks:
                    self.unacked.add(ack["sseq"])
            else:
                assert ack["sseq"] in self.got
        self.seen = len(box.msgs)

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=5))
    def store(self, subjects: list[bytes]) -> None:
        self.bed.store(*subjects)
        self.take()

    @rule(batch=st.integers(1, 6), is_no_wait=st.booleans())
    def pull(self, batch: int, is_no_wait: bool) -> None:
        request = {"batch": batch, "no_wait": is_no_wait, "expires": 0 if is_no_wait else SECOND}
        self.bed.pull(json.dumps(request).encode())
        self.take()

    @precondition(lambda self: self.unacked)
    @rule(pick=st.integers(0, 99), payload=st.sampled_from([b"", b"+ACK", b"+TERM x"]))
    def ack(self, pick: int, payload: bytes) -> None:
        sseq = sorted(self.unacked)[pick % len(self.unacked)]
        self.bed.ack(sseq, payload)
        self.take()
        self.note_acked(sseq)

    def note_acked(self, sseq: int) -> None:
        self.unacked.discard(sseq)
        if self.is_ack_all:
            self.unacked = {each for each in self.unacked if each > sseq}

    @precondition(lambda self: self.got)
    @rule(pick=st.integers(0, 99), payload=st.sampled_from([b"", b"-NAK", b"-NAK 2s", b"+WPI"]))
    def ack_anything(self, pick: int, payload: bytes) -> None:
        sseq = self.got[pick % len(self.got)]
        self.bed.ack(sseq, payload)
        self.take()
        if not payload:
            self.note_acked(sseq)

    @precondition(lambda self: self.bed.index.rows)
    @rule(picks=st.sets(st.integers(0, 99), min_size=1, max_size=4))
    def remove(self, picks: set[int]) -> None:
        rows = self.bed.index.rows
        gone = {rows[pick % len(rows)][0] for pick in picks}
        self.bed.remove(*gone)
        self.take()
        self.removed |= gone
        self.unacked -= gone

    @precondition(lambda self: self.bed.index.rows)
    @rule(keep=st.integers(0, 3), pattern=st.sampled_from([b">", b"a.*"]))
    def purge(self, keep: int, pattern: bytes) -> None:
        before = {row[0] for row in self.bed.index.rows}
        self.bed.purge(self.bed.index.last_seq - keep, pattern)
        self.take()
        gone = before - {row[0] for row in self.bed.index.rows}
        self.removed |= gone
        self.unacked -= gone

    @rule(ms=st.sampled_from([10, 1500, 6000]))
    def advance(self, ms: int) -> None:
        self.bed.advance(ms)
        self.take()

    @rule(is_auto=st.booleans())
    def let_log_lag(self, is_auto: bool) -> None:
        self.bed.is_auto = is_auto
        self.bed.turn()
        self.take()

    @rule()
    def another_leads(self) -> None:
        self.settle()
        state = commands.decode(commands.encode(self.consumer.to_state()))
        again = Consumer.from_state(state, self.bed)
        assert again.to_state() == self.consumer.to_state()
        initial = len(again.remaining.initial) - again.remaining.initial_at
        left = self.bed.index.lookup.count_from(again.next_sseq, again.matcher)
        assert again.num_pending == self.consumer.num_pending == initial + left
        self.bed.cursors["C"].stop()
        self.bed.consumers["C"] = again
        self.bed.wakes.clear()
        self.bed.lead()
        self.take()

    def settle(self) -> None:
        self.bed.cursors["C"].flush()  # as a leader does that hands over
        auto, self.bed.is_auto = self.bed.is_auto, True
        self.bed.turn()
        self.bed.is_auto = auto
        self.take()

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "bed"):
            return
        consumer, index = self.consumer, self.bed.index
        assert consumer.floor_sseq <= consumer.delivered_sseq
        assert consumer.floor_cseq <= consumer.delivered_cseq
        assert all(index.live.has(sseq) for sseq in consumer.pending)
        assert list(consumer.pending) == sorted(consumer.pending)
        left = [
            seq
            for seq in consumer.remaining.initial[consumer.remaining.initial_at :]
            if index.live.has(seq)
        ]
        counted = index.lookup.count_from(consumer.next_sseq, consumer.matcher)
        assert consumer.num_pending == len(left) + counted
        if self.most > 0:
            assert len(consumer.pending) <= self.most
        if self.bed.proposed:
            return
        if self.has_acks:
            assert consumer.delivered_cseq == self.last_cseq
        else:  # its position is logged now and then
            assert consumer.floor_cseq == consumer.delivered_cseq <= self.last_cseq
        dead = {sseq for sseq in consumer.redelivered if sseq not in consumer.pending}
        assert set(consumer.pending) == self.unacked - dead
        assert all(sseq > consumer.floor_sseq for sseq in consumer.pending)
        # Gap-free: everything live that matches and lies behind the position was delivered.
        got = set(self.got)
        for seq, _, _ in index.rows:
            if self.start <= seq < consumer.next_sseq and self.matches(seq):
                assert seq in got, seq


TestConsumerMachine = ConsumerMachine.TestCase
TestConsumerMachine.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
