"""At most so many unacked messages of a subject: order by key, through refusals and new leaders."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamd import limits
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_lag import lag_of
from streamd.machine.extension_settings import consumer_mistake
from tests.unit.consumer_bed import Bed, Inbox, ack_of

KEY = "streamd.max_ack_pending_per_subject"


def bed_of(*subjects: bytes, most: int = 1, **config: Any) -> Bed:
    bed = Bed()
    bed.create(max_ack_pending=1000, metadata={KEY: str(most)}, **config)
    bed.store(*subjects)
    return bed


def again(bed: Bed) -> None:
    """Another node leads: what was proposed is not in its log; the consumer is its state."""
    bed.proposed.clear()
    old = bed.consumers["C"]
    bed.cursors["C"].stop()
    bed.consumers["C"] = Consumer.from_state(old.to_state(), bed)
    bed.lead()


def test_one_of_a_subject_at_a_time_and_others_overtake_it() -> None:
    bed = bed_of(b"s.a", b"s.b", b"s.a", b"s.c", b"s.a")
    box = bed.pull(b"10")
    assert box.seqs() == [1, 2, 4]
    assert ack_of(box.msgs[-1])["pending"] == 2
    info = bed.info()
    assert (info.ack_pending, info.pending, info.delivered) == (3, 2, (3, 5))
    for sseq in (2, 4):
        bed.ack(sseq)
    assert bed.info().floor == (0, 0)
    bed.ack(1, b"+TERM")
    assert bed.info().floor == (3, 2)
    assert box.seqs() == [1, 2, 4, 3]
    assert ack_of(box.msgs[-1]) | {"ts": 0} == {
        "delivered": 1, "sseq": 3, "cseq": 4, "ts": 0, "pending": 1,
    }  # fmt: skip
    assert bed.info().floor[1] == 2
    bed.ack(3)
    bed.ack(5)
    assert box.seqs() == [1, 2, 4, 3, 5]
    info = bed.info()
    assert (info.floor, info.ack_pending, info.pending) == ((5, 5), 0, 0)


def test_the_floor_stays_below_messages_that_overtook_the_first_open_one() -> None:
    bed = bed_of(b"s.x", b"s.a", b"s.a", b"s.b")
    box = bed.pull(b"10")
    bed.ack(2)
    assert box.seqs() == [1, 2, 4, 3]
    bed.ack(1)
    assert bed.info().floor == (2, 2)  # 4 is the third that was sent, and not acked
    bed.ack(4)
    assert bed.info().floor == (2, 2)
    bed.ack(3)
    assert bed.info().floor == (4, 4)


def test_a_refused_message_comes_again_before_the_next_of_its_subject() -> None:
    bed = bed_of(b"s.a", b"s.a", b"s.b", ack_wait=10**9, max_deliver=3)
    box = bed.pull(b"10")
    bed.ack(1, b"-NAK")
    assert box.seqs() == [1, 3, 1]
    bed.advance(1000)
    assert [seq for seq in box.seqs() if seq < 3] == [1, 1, 1]
    bed.advance(1000)  # given up
    assert [seq for seq in box.seqs() if seq < 3] == [1, 1, 1, 2]


def test_a_terminated_message_makes_room_for_the_next() -> None:
    bed = bed_of(b"s.a", b"s.a", b"s.a")
    box = bed.pull(b"10")
    bed.ack(1, b"+TERM")
    assert box.seqs() == [1, 2]
    bed.remove(2)
    assert box.seqs() == [1, 2, 3]
    assert bed.info().ack_pending == 1


def test_parked_messages_that_leave_the_stream_are_waited_for_no_more() -> None:
    bed = bed_of(b"s.a", b"s.a", b"s.a", b"s.a")
    box = bed.pull(b"10")
    bed.remove(2)
    assert bed.info().pending == 2
    bed.ack(1)
    assert box.seqs() == [1, 3]
    bed.purge(99)
    info = bed.info()
    assert (info.pending, info.ack_pending, info.floor) == (0, 0, (2, 4))


def test_so_many_as_the_limit_says_and_another_limit_counts_at_once() -> None:
    bed = bed_of(*[b"s.a"] * 6, most=2)
    box = bed.pull(b"10")
    assert box.seqs() == [1, 2]
    cursor, consumer = bed.cursors["C"], bed.consumers["C"]
    for most, seqs in (("4", [1, 2, 3, 4]), ("", [1, 2, 3, 4, 5, 6])):
        consumer.update({**consumer.config, "metadata": {KEY: most}})
        cursor.on_applied([14, 0, "C"])
        bed.turn()
        assert box.seqs() == seqs
    assert cursor.pending.order is not None and not cursor.pending.order.unsent_count


def test_the_next_leader_knows_what_was_passed_over() -> None:
    bed = bed_of(b"s.a", b"s.b", b"s.a", b"s.a")
    bed.pull(b"10")
    again(bed)
    box = bed.pull(b"10", reply=b"other")
    assert not box.seqs()
    assert bed.info().pending == 2
    bed.ack(1)
    assert box.seqs() == [3]
    again(bed)
    box = bed.pull(b"10", reply=b"third")
    bed.store(b"s.a", b"s.c")
    assert box.seqs() == [6]
    for sseq in (3, 4):
        bed.ack(sseq)
    assert box.seqs() == [6, 4, 5]


def test_a_reset_consumer_passes_over_nothing_of_before() -> None:
    bed = bed_of(b"s.a", b"s.b", b"s.a", b"s.a")
    box = bed.pull(b"10")
    bed.apply_one([17, 0, "C", 2])
    bed.turn()
    assert box.seqs() == [1, 2, 2, 3]
    assert bed.info().pending == 1
    bed.ack(3)
    assert box.seqs() == [1, 2, 2, 3, 4]


def test_what_another_filter_would_not_let_through_is_delivered_all_the_same() -> None:
    """As what is delivered already: it was this consumer's when it was passed over."""
    bed = bed_of(b"s.a", b"s.a", b"s.b", b"s.a")
    box = bed.pull(b"10")
    consumer = bed.consumers["C"]
    consumer.update({**consumer.config, "filter_subject": "s.b"})
    bed.cursors["C"].on_applied([14, 0, "C"])
    bed.store(b"s.b", b"s.a")
    for sseq in (1, 2, 3, 4, 5):
        bed.ack(sseq)
    assert box.seqs() == [1, 3, 2, 4, 5]
    assert (bed.info().pending, bed.info().floor[1]) == (0, 5)


def test_a_push_consumer_keeps_to_it_as_well() -> None:
    bed = bed_of(b"s.a", b"s.b", b"s.a", deliver_subject="to")
    box = bed.interest()
    assert box.seqs() == [1, 2]
    bed.ack(1)
    assert box.seqs() == [1, 2, 3]


def test_no_more_than_so_many_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARKED_MSGS_MAX", 2)
    bed = bed_of(*[b"s.a"] * 4, b"s.b")
    box = bed.pull(b"10")
    assert box.seqs() == [1]
    assert bed.info().delivered == (1, 3)
    bed.ack(1)
    assert box.seqs() == [1, 2, 5]


def test_an_ack_before_the_delivery_is_applied_counts() -> None:
    """The delivery of a parked message is proposed and not applied when its ack comes."""
    bed = bed_of(b"s.a", b"s.a", ack_wait=10**9)
    box = bed.pull(b"10")
    bed.is_auto = False
    bed.ack(1)
    bed.apply()
    bed.turn()
    assert box.seqs() == [1, 2]
    bed.ack(2)
    bed.is_auto = True
    bed.turn()
    info = bed.info()
    assert (info.ack_pending, info.pending, info.floor) == (0, 0, (2, 2))
    bed.advance(5000)
    assert box.seqs() == [1, 2]


def test_a_late_log_does_not_lose_the_timer_of_a_parked_message() -> None:
    bed = bed_of(b"s.a", b"s.a", ack_wait=10**9)
    box = bed.pull(b"10")
    bed.is_auto = False
    bed.ack(1)
    bed.apply()
    bed.turn()
    bed.advance(3000)
    assert box.seqs() == [1, 2]
    bed.is_auto = True
    bed.turn()
    bed.advance(3000)
    assert box.seqs()[:3] == [1, 2, 2]


def test_the_oldest_unprocessed_message_may_be_a_parked_one() -> None:
    bed = bed_of(b"s.a", b"s.a", b"s.b")
    bed.pull(b"10")
    lag = lag_of(bed.consumers["C"])
    assert (lag.unprocessed_seq, lag.undelivered_seq) == (1, 2)
    bed.ack(1)
    bed.ack(2)
    lag = lag_of(bed.consumers["C"])
    assert (lag.unprocessed_seq, lag.undelivered_seq, lag.undelivered_ts) == (3, 0, 0)


@pytest.mark.parametrize("most", [1, 3])
def test_order_by_subject_holds_whatever_happens(most: int) -> None:
    """Acks, refusals, timeouts, removals, new leaders that know a part of it: a subject never has
    more than its share under way, and each first delivery of a leader is in order."""
    for seed in range(40):
        _random_run(random.Random(f"order/{most}/{seed}"), most)


def _random_run(rng: random.Random, most: int) -> None:
    bed = bed_of(most=most, ack_wait=10**9)
    boxes: list[Inbox] = []
    subjects: dict[int, bytes] = {}
    acked: set[int] = set()
    bed.pull(b"5", reply=b"in0")
    for step in range(60):
        choice = rng.random()
        consumer = bed.consumers["C"]
        if choice < 0.3:
            stored = [b"s.%d" % rng.randint(0, 3) for _ in range(rng.randint(1, 6))]
            first = bed.index.last_seq + 1
            subjects |= dict(enumerate(stored, first))
            bed.store(*stored)
        elif choice < 0.5:
            boxes.append(bed.pull(b"5", reply=b"in%d" % step))
        elif choice < 0.8 and consumer.pending:
            sseq = rng.choice(sorted(consumer.pending))
            verb = rng.choice((b"", b"", b"+TERM", b"-NAK"))
            if verb != b"-NAK":
                acked.add(sseq)
            bed.ack(sseq, verb)
        elif choice < 0.85:
            bed.advance(rng.choice((100, 1500)))
        elif choice < 0.9 and bed.index.rows:
            bed.remove(rng.choice(bed.index.rows)[0])
        elif choice < 0.95:
            bed.is_auto = not bed.is_auto
        else:
            again(bed)
        _check(bed, subjects, most)
    bed.is_auto = True
    for round_ in range(400):
        bed.turn()
        consumer = bed.consumers["C"]
        if not consumer.pending and not consumer.num_pending:
            break
        bed.pull(b"50", reply=b"end%d" % round_)
        for sseq in sorted(consumer.pending):
            bed.ack(sseq)
        bed.advance(300)
    assert not consumer.pending and not consumer.num_pending, (consumer.pending, consumer.info())
    assert consumer.floor_sseq == consumer.delivered_sseq


def _check(bed: Bed, subjects: dict[int, bytes], most: int) -> None:
    consumer = bed.consumers["C"]
    parked = consumer.remaining.parked
    assert list(parked) == sorted(parked)
    assert not parked.keys() & consumer.pending.keys()
    for subject in set(subjects.values()):
        held = [sseq for sseq in consumer.pending if subjects[sseq] == subject]
        assert len(held) <= most, (subject, held)
        waiting = [sseq for sseq in parked if subjects[sseq] == subject]
        assert not waiting or not held or min(waiting) > min(held), (held, waiting)
        assert not waiting or consumer.next_sseq > waiting[-1]
    assert all(consumer.floor_sseq < sseq for sseq in (*parked, *consumer.pending))
    assert Consumer.from_state(consumer.to_state(), bed).to_state() == consumer.to_state()


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "65537", "1.5"])
def test_a_value_that_makes_no_sense_is_refused(value: str) -> None:
    config: Any = {"ack_policy": "explicit", "metadata": {KEY: value}}
    assert consumer_mistake(config) == (
        f"metadata {KEY} must be a number from 1 to 65536, not '{value}'"
    )


def test_it_needs_explicit_acks() -> None:
    config: Any = {"ack_policy": "all", "metadata": {KEY: "1"}}
    assert consumer_mistake(config) == f"metadata {KEY} requires ack policy explicit"
