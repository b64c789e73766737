"""Pull consumers: batches, statuses, acks and redelivery, in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd.machine import commands
from streamd.machine.consumers.consumer_checks import check_create
from tests.unit.consumer_bed import Bed, Inbox, ack_of


def req(**fields: object) -> bytes:
    return json.dumps(fields).encode()


SECOND = 1_000_000_000
HOUR_MS = 3_600_000


def test_fetch_and_ack_moves_delivered_floor_and_pending() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 10)
    bed.create()
    box = bed.pull(req(batch=4))
    assert box.seqs() == [1, 2, 3, 4]
    assert [ack_of(m)["pending"] for m in box.msgs] == [9, 8, 7, 6]
    assert [ack_of(m)["cseq"] for m in box.msgs] == [1, 2, 3, 4]
    info = bed.info()
    assert (info.delivered, info.floor, info.ack_pending, info.pending) == ((4, 4), (0, 0), 4, 6)
    bed.ack(2)
    assert bed.info().floor == (0, 0)
    bed.ack(1)
    assert bed.info().floor == (2, 2)
    bed.ack(3)
    bed.ack(4)
    info = bed.info()
    assert (info.floor, info.ack_pending) == ((4, 4), 0)


def test_waiting_pull_is_served_as_messages_arrive_and_then_done() -> None:
    bed = Bed()
    bed.create()
    box = bed.pull(b"2")
    assert not box.log
    bed.store(b"a")
    bed.store(b"b", b"c")
    assert box.seqs() == [1, 2]
    assert not box.statuses
    assert bed.cursors["C"].num_waiting == 0


def test_two_pulls_get_messages_in_turn() -> None:
    bed = Bed()
    bed.create()
    one = bed.pull(b"3", reply=b"one")
    two = bed.pull(b"3", reply=b"two")
    bed.store(*[b"a"] * 6)
    assert one.seqs() == [1, 3, 5]
    assert two.seqs() == [2, 4, 6]


def test_no_wait_on_empty_and_after_partial_batch() -> None:
    bed = Bed()
    bed.create()
    assert bed.pull(req(batch=5, no_wait=True)).log == [b"404 No Messages"]
    bed.store(b"a", b"b")
    box = bed.pull(req(batch=5, no_wait=True), reply=b"in2")
    assert box.log == [b"1", b"2", b"404 No Messages"]
    assert bed.cursors["C"].num_waiting == 0


def test_no_wait_with_expires_waits_for_the_first_message_only() -> None:
    bed = Bed()
    bed.create()
    box = bed.pull(req(batch=5, no_wait=True, expires=SECOND))
    assert not box.log
    bed.store(b"a")
    assert box.log == [b"1", b"404 No Messages"]


def test_a_pull_that_does_not_wait_ends_at_a_tick_while_acks_are_owed() -> None:
    """Of those that got some, or have no time of their own; the others wait for theirs."""
    bed = Bed()
    bed.store(*[b"a"] * 9)
    bed.create(max_ack_pending=3)
    got = bed.pull(req(batch=5, no_wait=True, expires=SECOND))
    assert got.log == [b"1", b"2", b"3"]
    beats = bed.pull(
        req(batch=1, no_wait=True, expires=SECOND, idle_heartbeat=SECOND // 5), reply=b"in2"
    )
    bare = bed.pull(req(batch=1, no_wait=True), reply=b"in3")
    bed.advance(199)
    assert (got.log[3:], beats.log, bare.log) == ([], [], [])
    bed.advance(2)
    assert got.log[3:] == bare.log == [b"404 No Messages"]
    assert beats.log == [b"100 Idle Heartbeat"]
    bed.advance(799)
    assert beats.log == [b"100 Idle Heartbeat"] * 4 + [b"408 Request Timeout"]


def test_a_pull_that_does_not_wait_survives_a_tick_while_messages_can_come() -> None:
    """Its messages are being read from the disk, say: they are there, and it is not held."""
    bed = Bed()
    bed.store(*[b"a"] * 9)
    bed.create(max_ack_pending=3)
    got = bed.pull(req(batch=5, no_wait=True, expires=SECOND, idle_heartbeat=SECOND // 5))
    assert got.log == [b"1", b"2", b"3"]
    bed.ack(1)
    assert got.log[3:] == [b"4"], "an ack lets one more flow to it"


def test_expiry_sends_408_with_the_remaining_count() -> None:
    bed = Bed()
    bed.store(b"a")
    bed.create()
    box = bed.pull(req(batch=3, expires=SECOND))
    bed.advance(999)
    assert box.log == [b"1"]
    bed.advance(2)
    assert box.statuses == [
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 0\r\n\r\n"
    ]


def test_expiry_repeats_what_was_asked_for() -> None:
    """Clients see the batch they wrote, were it nonsense, until something was delivered."""
    bed = Bed()
    bed.create()
    ended = (
        b"NATS/1.0 408 Request Timeout\r\n"
        b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n"
    )
    box = bed.pull(req(batch=0, expires=SECOND), reply=b"1")
    other = bed.pull(req(batch=-1, expires=SECOND), reply=b"2")
    bed.advance(1001)
    assert (box.statuses, other.statuses) == ([ended % (0, 0)], [ended % (-1, 0)])
    box = bed.pull(req(batch=2, max_bytes=700, expires=-1), reply=b"3")
    assert box.statuses == [ended % (2, 700)]
    box = bed.pull(req(expires=SECOND), reply=b"4")
    bed.advance(1001)
    assert box.statuses == [ended % (0, 0)]


def test_only_acks_and_terms_count_as_acks() -> None:
    bed = Bed()
    bed.store(b"a", b"a", b"a")
    cursor = bed.create()
    bed.pull(b"3")
    for payload in (b"-NAK", b"+WPI", b"nonsense"):
        bed.ack(1, payload, reply=b"r")
        assert cursor.last_acked_ns == 0, payload
    bed.ack(1)
    assert cursor.last_acked_ns == bed.now_ns()
    bed.advance(10)
    bed.ack(2, b"+TERM")
    assert cursor.last_acked_ns == bed.now_ns()


def test_heartbeats_while_idle() -> None:
    bed = Bed()
    bed.store(b"a")
    bed.create()
    box = bed.pull(req(batch=3, expires=SECOND, idle_heartbeat=SECOND // 4))
    bed.advance(800)
    assert box.log[1:] == [b"100 Idle Heartbeat"] * 3
    assert b"Nats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n" in box.statuses[0]
    bad = bed.pull(req(batch=3, expires=SECOND, idle_heartbeat=SECOND), reply=b"bad")
    assert bad.log == [b"400 Bad Request - heartbeat value too large"]


def test_max_bytes_too_small_and_batch_completed_with_bytes_left() -> None:
    bed = Bed()
    bed.store(b"a", b"a", payload=b"x" * 100)
    bed.create()
    box = bed.pull(req(batch=2, max_bytes=50))
    assert box.log == [b"409 Message Size Exceeds MaxBytes"]
    size = sum(len(part) for part in bed.pull(b"1", reply=b"probe").msgs[0])
    box = bed.pull(req(batch=1, max_bytes=size + 7), reply=b"in2")
    assert box.log == [b"x" * 100, b"409 Batch Completed"]
    assert b"Nats-Pending-Messages: 0\r\nNats-Pending-Bytes: 7\r\n" in box.statuses[0]
    bed.store(b"a", payload=b"x" * 100)
    box = bed.pull(req(batch=5, max_bytes=size), reply=b"in3")
    assert box.log == [b"x" * 100]
    assert bed.cursors["C"].num_waiting == 0


def test_limits_of_the_consumer_refuse_pulls() -> None:
    bed = Bed()
    bed.create(max_batch=10, max_expires=SECOND, max_bytes=100, max_waiting=1)
    assert bed.pull(b"11", reply=b"1").log == [b"409 Exceeded MaxRequestBatch of 10"]
    assert bed.pull(req(expires=SECOND + 1), reply=b"2").log == [
        b"409 Exceeded MaxRequestExpires of 1s"
    ]
    assert bed.pull(req(max_bytes=101), reply=b"3").log == [
        b"409 Exceeded MaxRequestMaxBytes of 100"
    ]
    assert not bed.pull(b"1", reply=b"4").log
    assert bed.pull(b"1", reply=b"5").log == [b"409 Exceeded MaxWaiting"]
    bed.inbox(b"4").is_gone = True
    assert not bed.pull(b"1", reply=b"6").log


def test_redelivery_after_ack_wait_comes_before_new_messages() -> None:
    bed = Bed()
    bed.store(b"a", b"b")
    bed.create(ack_wait=SECOND)
    bed.pull(b"2")
    bed.ack(2)
    bed.advance(1001)
    bed.store(b"c")
    box = bed.pull(b"2", reply=b"again")
    assert [(ack_of(m)["sseq"], ack_of(m)["delivered"], ack_of(m)["cseq"]) for m in box.msgs] == [
        (1, 2, 3),
        (3, 1, 4),
    ]
    info = bed.info()
    assert (info.redelivered, info.ack_pending, info.delivered) == (1, 2, (4, 3))
    bed.ack(1)
    assert bed.info().floor == (3, 2)
    assert bed.info().redelivered == 0


def test_a_backoff_of_zero_is_the_ack_wait() -> None:
    """Not a redelivery at once, and the next: that would use up `max_deliver` in no time."""
    bed = Bed()
    bed.store(b"a")
    bed.create(backoff=[SECOND, 0, 3 * SECOND], ack_wait=SECOND, max_deliver=4)
    box = bed.pull(b"10")
    seen = []
    for ms in (1010, 900, 110, 2900, 110):
        bed.advance(ms)
        seen.append(len(box.msgs))
    assert seen == [2, 2, 3, 3, 4]


def test_backoff_stretches_the_ack_wait() -> None:
    bed = Bed()
    bed.store(b"a")
    bed.create(backoff=[SECOND, 3 * SECOND], ack_wait=SECOND, max_deliver=4)
    box = bed.pull(b"10")
    bed.advance(1010)
    assert len(box.msgs) == 2
    bed.advance(2900)
    assert len(box.msgs) == 2
    bed.advance(110)
    assert len(box.msgs) == 3
    bed.advance(3010)
    assert len(box.msgs) == 4
    bed.advance(60_000)
    assert len(box.msgs) == 4
    info = bed.info()
    assert (info.ack_pending, info.floor) == (0, (0, 0))
    kind, fields = bed.effects.events[-1]
    assert kind == "consumer_max_deliver"
    assert (fields["stream_seq"], fields["deliveries"]) == (1, 4)


def test_nak_at_once_and_with_delay() -> None:
    bed = Bed()
    bed.store(b"a")
    bed.create(ack_wait=30 * SECOND)
    box = bed.pull(b"10")
    bed.ack(1, b"-NAK")
    assert box.seqs() == [1, 1]
    bed.ack(1, b'-NAK {"delay": 2000000000}')
    bed.advance(1990)
    assert len(box.msgs) == 2
    bed.advance(20)
    assert len(box.msgs) == 3
    bed.ack(1, b"-NAK 60s")
    bed.advance(31_000)  # the ack timer of the delivery no longer counts
    assert len(box.msgs) == 3
    bed.advance(30_000)
    assert len(box.msgs) == 4
    assert bed.info().redelivered == 1


def test_repeated_naks_hold_back_no_message_due_before() -> None:
    """Messages come again in the order in which they came due, not the lowest first."""
    bed = Bed()
    bed.store(*[b"a"] * 4)
    bed.create()
    assert bed.pull(b"3").seqs() == [1, 2, 3]
    bed.ack(2, b"-NAK")
    bed.ack(1, b"-NAK")
    for sseq in (2, 1, 2, 1):
        assert bed.pull(b"1", reply=b"again").seqs()[-1] == sseq
        bed.ack(sseq, b"-NAK")
    bed.ack(1)
    bed.ack(2)
    assert bed.pull(b"1", reply=b"new").seqs() == [4]


def test_progress_restarts_the_clock_and_term_ends_it() -> None:
    bed = Bed()
    bed.store(b"a")
    bed.create(ack_wait=SECOND)
    box = bed.pull(b"10")
    for _ in range(5):
        bed.advance(800)
        bed.ack(1, b"+WPI")
    assert len(box.msgs) == 1
    bed.ack(1, b"+TERM no good")
    bed.advance(5000)
    assert len(box.msgs) == 1
    assert bed.effects.events[-1][0] == "consumer_terminated"
    assert bed.effects.events[-1][1]["reason"] == "no good"
    assert bed.info().ack_pending == 0


def test_double_ack_is_answered_after_apply_and_only_if_delivered() -> None:
    bed = Bed()
    bed.store(b"a", b"b")
    bed.create()
    bed.pull(b"1")
    bed.is_auto = False
    bed.ack(1, b"", reply=b"r1")
    assert not bed.emptied
    assert bed.forced == 1
    bed.apply()
    assert bed.emptied == [b"r1"]
    bed.is_auto = True
    bed.ack(1, b"+ACK", reply=b"r2")
    bed.ack(2, b"+ACK", reply=b"never")
    assert bed.emptied == [b"r1", b"r2"]


def test_next_acks_and_asks() -> None:
    bed = Bed()
    bed.store(b"a", b"b", b"c")
    bed.create()
    bed.pull(b"1")
    box = bed.inbox(b"nxt")
    bed.ack(1, b"+NXT 2", reply=b"nxt")
    assert box.seqs() == [2, 3]
    assert bed.info().floor == (1, 1)
    assert not bed.emptied


def test_max_ack_pending_stops_new_messages_until_acks_are_seen() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 10)
    bed.create(max_ack_pending=3)
    box = bed.pull(b"10")
    assert box.seqs() == [1, 2, 3]
    bed.is_auto = False  # an ack counts when it is proposed, not when it is applied
    bed.ack(2)
    assert box.seqs() == [1, 2, 3, 4]
    bed.ack(2)
    assert box.seqs() == [1, 2, 3, 4]
    bed.apply()
    assert bed.info().ack_pending == 3


def test_acks_of_dead_messages_make_no_room() -> None:
    """They held no place, yet were counted as if they gave one back: twice as many went out."""
    bed = Bed()
    bed.create(max_deliver=1, max_ack_pending=3, ack_wait=SECOND)
    bed.store(*[b"a"] * 12)
    box = bed.pull(b'{"batch":12,"expires":60000000000}')
    bed.advance(1100)
    assert box.seqs() == [1, 2, 3, 4, 5, 6]  # 1 to 3 are given up
    bed.is_auto = False
    bed.cursors["C"].requests.on_acks([1, 2, 3])
    bed.turn()
    bed.apply()
    assert list(bed.consumers["C"].pending) == [4, 5, 6]


@pytest.mark.parametrize("is_purge", [False, True])
def test_acks_of_removed_messages_make_no_room(is_purge: bool) -> None:
    """What left gave its place back when it left, before its ack was applied."""
    bed = Bed()
    bed.create(max_ack_pending=3)
    bed.store(*[b"a"] * 12)
    box = bed.pull(b'{"batch":12,"expires":60000000000}')
    bed.is_auto = False
    bed.cursors["C"].requests.on_acks([1, 2])
    bed.turn()
    assert box.seqs() == [1, 2, 3, 4, 5]
    if is_purge:
        bed.purge(3)
    else:
        bed.remove(1, 2)
    bed.apply()
    assert list(bed.consumers["C"].pending) == [3, 4, 5]


def test_acks_of_messages_removed_before_their_delivery_was_applied_make_no_room() -> None:
    bed = Bed()
    bed.create(max_ack_pending=3)
    bed.is_auto = False
    bed.store(*[b"a"] * 12)
    bed.pull(b'{"batch":12,"expires":60000000000}')
    bed.cursors["C"].requests.on_acks([1, 2])
    bed.remove(1, 2)
    sent = len(bed.inbox(b"in").msgs)
    bed.apply_one(*bed.proposed.pop(0))  # the first delivery; the acks are under way still
    bed.turn()
    assert bed.cursors["C"].pending.num_ack_pending() == sent - 2 == 3
    bed.apply()
    assert list(bed.consumers["C"].pending) == [3, 4, 5]


def test_deliveries_are_counted_while_several_are_under_way() -> None:
    """The first of two redeliveries is applied: that the second was sent must not be forgotten."""
    bed = Bed()
    bed.create(max_deliver=3)
    bed.store(b"a")
    box = bed.pull(b"9")
    bed.is_auto = False
    bed.ack(1, b"-NAK")
    under_way = len(bed.proposed)
    bed.ack(1, b"-NAK")
    for _ in range(under_way):
        bed.apply_one(*bed.proposed.pop(0))
    bed.ack(1, b"-NAK")
    bed.apply()
    assert [ack_of(msg)["delivered"] for msg in box.msgs] == [1, 2, 3]
    assert bed.consumers["C"].redelivered == {1: 3}


def test_ack_all() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 10)
    bed.create(ack_policy="all")
    bed.pull(b"6")
    bed.ack(4)
    info = bed.info()
    assert (info.floor, info.ack_pending) == ((4, 4), 2)
    bed.ack(3)
    assert bed.info().floor == (4, 4)
    bed.ack(6)
    assert bed.info().floor == (6, 6)


def test_ack_none_logs_its_position_once_a_second() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 10)
    bed.create(ack_policy="none")
    bed.is_auto = False
    for _ in range(3):
        bed.pull(b"2")
    assert not bed.proposed
    bed.advance(1001)
    assert [c[0] for c, _ in bed.proposed] == [commands.POSITION]
    bed.apply()
    info = bed.info()
    assert (info.delivered, info.floor, info.pending) == ((6, 6), (6, 6), 4)
    assert bed.pull(b"1", reply=b"n").seqs() == [7]
    assert ack_of(bed.inbox(b"n").msgs[0])["pending"] == 3


def test_filtered_consumer_counts_and_skips() -> None:
    bed = Bed()
    bed.store(b"a.1", b"b.1", b"a.2", b"b.2")
    bed.create(filter_subject="a.*")
    assert bed.info().pending == 2
    box = bed.pull(b"10")
    bed.store(b"b.3", b"a.3")
    assert box.seqs() == [1, 3, 6]
    assert [ack_of(m)["pending"] for m in box.msgs] == [1, 0, 0]
    assert [ack_of(m)["cseq"] for m in box.msgs] == [1, 2, 3]
    bed.ack(1)
    assert bed.info().floor == (1, 2)


def test_deliver_policies_choose_the_start() -> None:
    bed = Bed()
    bed.store(b"a", b"b", b"a", b"c")
    for name, config, expected in (
        ("last", {"deliver_policy": "last"}, [4]),
        ("lastf", {"deliver_policy": "last", "filter_subject": "a"}, [3]),
        ("new", {"deliver_policy": "new"}, []),
        ("seq", {"deliver_policy": "by_start_sequence", "opt_start_seq": 2}, [2, 3, 4]),
        ("beyond", {"deliver_policy": "by_start_sequence", "opt_start_seq": 6}, []),
        ("lps", {"deliver_policy": "last_per_subject", "filter_subject": ">"}, [2, 3, 4]),
    ):
        bed.create(name, **config)
        assert bed.pull(b"100", name=name, reply=name.encode()).seqs() == expected, name
    bed.store(b"a")
    assert bed.inbox(b"lps").seqs() == [2, 3, 4, 5]
    assert bed.inbox(b"new").seqs() == [5]
    assert bed.inbox(b"beyond").seqs() == []
    assert bed.info("beyond").pending == 0
    bed.store(b"a", b"b")
    assert bed.inbox(b"beyond").seqs() == [6, 7]
    assert [ack_of(m)["pending"] for m in bed.inbox(b"beyond").msgs] == [1, 0]


def test_removed_messages_are_skipped_and_unacked_ones_terminated() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 6)
    bed.create(ack_wait=SECOND)
    box = bed.pull(b"2")
    bed.remove(1, 3, 4)
    assert bed.info().pending == 2
    assert bed.info().ack_pending == 1
    assert bed.effects.events[-1][1]["reason"] == "Unacknowledged message was deleted"
    assert bed.info().floor == (1, 1)
    bed.pull(b"10")
    assert box.seqs() == [1, 2, 5, 6]
    bed.advance(1500)
    assert sorted(box.seqs()[4:]) == [2, 5, 6]


def test_message_removed_between_planning_and_apply_is_not_counted_twice() -> None:
    for subject in ("", "a"):
        bed = Bed()
        bed.store(*[b"a"] * 4)
        bed.create(filter_subject=subject)
        bed.is_auto = False
        bed.pull(b"2")
        bed.remove(2)
        bed.apply()
        info = bed.info()
        assert (info.delivered, info.ack_pending, info.pending) == ((2, 2), 1, 2)


def test_purge_moves_the_consumer_along() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 6)
    bed.create()
    bed.pull(b"2")
    bed.is_auto = False
    box = bed.pull(b"1", reply=b"late")
    bed.purge(below=5)
    bed.apply()
    info = bed.info()
    assert (info.delivered, info.ack_pending, info.pending) == ((3, 4), 0, 2)
    bed.is_auto = True
    bed.pull(b"1", reply=b"late")
    assert box.seqs() == [3, 5]
    assert bed.info().delivered == (4, 5)


def test_a_new_leader_takes_over_timers() -> None:
    bed = Bed()
    bed.store(b"a", b"b", b"c")
    bed.create(ack_wait=10 * SECOND)
    bed.pull(b"3")
    bed.ack(2)
    bed.ack(3, b"-NAK 3s")
    state = commands.decode(commands.encode(bed.consumers["C"].to_state()))
    bed.advance(2000)
    consumer = type(bed.consumers["C"]).from_state(state, bed)
    bed.consumers["C"] = consumer
    bed.wakes.clear()
    bed.lead()
    box = bed.pull(b"9", reply=b"new")
    bed.advance(900)
    assert box.seqs() == []
    bed.advance(200)
    assert box.seqs() == [3]
    bed.advance(6000)
    assert box.seqs() == [3]
    bed.advance(1000)
    assert box.seqs() == [3, 1]


def test_a_new_leader_whose_clock_is_behind_by_an_hour_delivers_again_in_time() -> None:
    bed = Bed()
    bed.at_ms = 2 * HOUR_MS
    bed.store(b"a", b"b", b"c")
    bed.create(ack_wait=10 * SECOND)
    bed.pull(b"3")
    bed.ack(2, b"-NAK")
    bed.ack(3, b"-NAK 3s")
    bed.cursors["C"].flush()
    bed.apply()
    bed.at_ms -= HOUR_MS
    bed.wakes.clear()
    bed.lead()
    box = bed.pull(b"9", reply=b"new")
    bed.advance(2900)
    assert box.seqs() == [2]
    bed.advance(200)
    assert box.seqs() == [2, 3]
    bed.advance(7000)
    assert box.seqs() == [2, 3, 1, 2]


def test_a_nak_by_a_clock_ahead_of_the_delivery_waits_no_longer_than_it_says() -> None:
    bed = Bed()
    bed.at_ms = HOUR_MS
    bed.store(b"a")
    bed.create(ack_wait=10 * SECOND)
    bed.pull(b"1")
    for payload, ahead_ms in ((b"-NAK 3s", HOUR_MS), (b"", -HOUR_MS)):
        bed.cursors["C"].flush()
        bed.apply()
        bed.at_ms += ahead_ms
        bed.wakes.clear()
        bed.lead()
        if payload:
            bed.ack(1, payload)
    box = bed.pull(b"9", reply=b"new")
    bed.advance(2900)
    assert box.seqs() == []
    bed.advance(200)
    assert box.seqs() == [1]


def led_by_a_clock_behind(count: int) -> Bed:
    """Messages were delivered; then somebody leads whose clock is an hour behind."""
    bed = Bed()
    bed.at_ms = 2 * HOUR_MS
    bed.store(*[b"a"] * count)
    bed.create(ack_wait=10 * SECOND)
    bed.pull(b"%d" % count)
    bed.cursors["C"].flush()
    bed.apply()
    bed.at_ms -= HOUR_MS
    bed.wakes.clear()
    bed.lead()
    return bed


def test_deliveries_by_a_clock_ahead_are_redelivered() -> None:
    """While a redelivery is in the log, what it covers has a time of the future. Its timer was
    taken for one that a later delivery had replaced, and the message never came again."""
    count = 200  # more timers than are kept unlooked at
    bed = led_by_a_clock_behind(count)
    bed.is_auto = False
    box = bed.pull(b"5000", reply=b"new")
    bed.advance(10_000)
    assert box.seqs() == list(range(1, count + 1))
    bed.cursors["C"].flush()
    bed.apply()
    bed.is_auto = True
    bed.advance(10_100)
    assert box.seqs() == list(range(1, count + 1)) * 2


def test_progress_on_deliveries_of_a_clock_ahead_sets_one_timer() -> None:
    """It rang each 50 ms, until the clocks met."""
    bed = led_by_a_clock_behind(1)
    box = bed.pull(b"9", reply=b"new")
    bed.ack(1, b"+WPI")
    bed.cursors["C"].flush()
    bed.apply()
    bed.advance(9900)
    assert box.seqs() == []
    bed.advance(200)
    assert box.seqs() == [1]
    bed.apply()
    assert bed.cursors["C"].pending.redelivery.next_ms > bed.now_ms() + 9000


def test_redeliveries_beyond_max_deliver_are_given_up() -> None:
    """max_deliver is lowered below what a refused message was delivered already."""
    bed = Bed()
    bed.store(b"a", b"b", b"c")
    bed.create()
    bed.pull(b"2")
    bed.ack(1, b"-NAK")
    assert bed.pull(b"1", reply=b"again").seqs() == [1]
    bed.ack(1, b"-NAK")
    bed.ack(2, b"-NAK")
    consumer = bed.consumers["C"]
    config = {**consumer.config, "max_deliver": 2}
    consumer.update(config)
    bed.cursors["C"].on_applied([commands.CREATE_CONSUMER, 0, "C", config, "", False], None)
    assert bed.pull(b"2", reply=b"then").seqs() == [2, 3]
    assert list(consumer.pending) == [2, 3]


def test_stop_tells_waiting_pulls() -> None:
    bed = Bed()
    bed.create()
    box = bed.pull(b"1")
    bed.cursors["C"].stop(b"409 Consumer Deleted")
    assert box.statuses == [b"NATS/1.0 409 Consumer Deleted\r\n\r\n"]


def test_pause_holds_messages_back_and_ends_by_itself() -> None:
    bed = Bed()
    bed.store(b"a")
    bed.create()
    bed.apply_one([commands.PAUSE_CONSUMER, 0, "C", bed.now_ns() + 5 * SECOND])
    box = bed.pull(b"1")
    assert not box.log
    bed.advance(4990)
    assert not box.log
    bed.advance(20)
    assert box.seqs() == [1]
    assert bed.consumers["C"].paused_until_ns == 0


def test_the_end_of_a_pause_wakes_once_without_waiting_pulls() -> None:
    bed = Bed()
    cursor = bed.create()
    bed.apply_one([commands.PAUSE_CONSUMER, 0, "C", bed.now_ns() + 5 * SECOND])
    bed.turn()
    bed.advance(6000)  # the bed counts how often
    assert bed.consumers["C"].paused_until_ns == 0
    assert cursor not in bed.wakes


def test_a_slow_client_that_left_wakes_no_cursor() -> None:
    bed = Bed()
    bed.store(b"a")
    cursor = bed.create()
    box = bed.inbox(b"in")
    box.is_full = True
    bed.pull(req(batch=1, expires=SECOND))
    bed.advance(6000)
    assert box.log == [b"408 Request Timeout"]
    assert cursor not in bed.wakes


def test_a_pause_is_over_also_for_a_change_that_was_asked_for_before() -> None:
    """And a consumer is the same, paused or not: so a request to create it again is answered."""
    bed = Bed()
    bed.store(b"a")
    bed.create(pause_until="2100-01-01T00:00:00Z")
    consumer = bed.consumers["C"]
    asked = {**consumer.config, "description": "new"}
    consumer.pause(0, now_ns=bed.now_ns())
    consumer.update(asked)
    assert consumer.config["description"] == "new"
    assert "pause_until" not in consumer.config
    assert bed.pull(b"1").seqs() == [1]
    again = {**consumer.config, "pause_until": "2000-01-01T00:00:00Z"}
    consumers = {"C": consumer}
    assert check_create("C", again, "create", stream_config={}, consumers=consumers) is None


def test_a_pull_that_does_not_wait_is_answered_during_a_pause() -> None:
    bed = Bed()
    bed.store(b"a", b"a")
    cursor = bed.create(pause_until="2100-01-01T00:00:00Z")
    box = bed.pull(req(batch=2, no_wait=True))
    assert box.log == [b"404 No Messages"]
    assert cursor.num_waiting == 0


def test_a_client_that_unsubscribed_claims_no_messages() -> None:
    """Those who wait for what `max_ack_pending` holds back, and have gone, are not in the way."""
    bed = Bed()
    bed.store(*[b"a"] * 3)
    bed.create(max_ack_pending=1)
    bed.pull(b"1")
    bed.pull(req(batch=9, no_wait=True), reply=b"gone").is_gone = True
    box = bed.pull(req(batch=2, no_wait=True, expires=SECOND), reply=b"later")
    assert box.log == []
    bed.ack(1)
    assert box.seqs() == [2]


def test_a_term_of_a_dead_message_covers_earlier_ones() -> None:
    """As any ack of it would: it was dropped, and what it covers was delivered again."""
    bed = Bed()
    bed.store(b"a", b"a")
    bed.create(ack_policy="all", max_deliver=2)
    bed.pull(b"2")
    bed.ack(2, b"-NAK")
    bed.pull(b"1")
    bed.advance(31_000)
    assert (bed.info().ack_pending, bed.info().floor) == (1, (0, 0))
    bed.ack(2, b"+TERM")
    assert (bed.info().ack_pending, bed.info().floor) == (0, (3, 2))


def test_the_next_leader_knows_the_last_activity() -> None:
    """An operator reads there whether anybody still takes messages: a change of leaders is no
    reason to forget it."""
    bed = Bed()
    bed.store(b"a", b"a")
    cursor = bed.create()
    bed.advance(10)
    bed.pull(b"1")
    delivered_ns = bed.now_ns()
    bed.advance(10)
    bed.ack(1)
    acked_ns = bed.now_ns()
    bed.advance(10)
    again = type(cursor)(cursor.consumer, bed)
    assert (again.last_delivered_ns, again.last_acked_ns) == (delivered_ns, acked_ns)


def test_a_reset_starts_anew_and_voids_deliveries_under_way() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 6)
    bed.create()
    bed.pull(b"3")
    bed.ack(1)
    bed.is_auto = False
    bed.pull(b"1")
    bed.proposed.insert(0, ([commands.RESET_CONSUMER, 0, "C", 0], None))
    bed.apply()
    info = bed.info()
    assert (info.delivered, info.ack_pending, info.pending) == ((0, 1), 0, 5)
    assert (bed.cursors["C"].last_delivered_ns, bed.cursors["C"].last_acked_ns) == (0, 0)
    bed.is_auto = True
    box = bed.pull(b"9", reply=b"new")
    assert box.seqs() == [2, 3, 4, 5, 6]
    assert [ack_of(m)["cseq"] for m in box.msgs] == [1, 2, 3, 4, 5]
    assert {ack_of(m)["delivered"] for m in box.msgs} == {1}


def test_headers_only_tells_the_size() -> None:
    bed = Bed()
    bed.store(b"a", payload=b"hello")
    bed.store(b"a", payload=b"", headers=b"NATS/1.0\r\nA: b\r\n\r\n")
    bed.create(headers_only=True)
    box = bed.pull(b"2")
    assert [m[2:] for m in box.msgs] == [
        (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b""),
        (b"NATS/1.0\r\nA: b\r\nNats-Msg-Size: 0\r\n\r\n", b""),
    ]


def test_a_chunk_not_in_memory_holds_the_plan_until_it_is() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 4)
    bed.create()
    bed.missing_chunks = {3}
    box = bed.pull(b"4")
    assert box.seqs() == [1, 2]
    bed.missing_chunks = set()
    bed.turn()
    assert box.seqs() == [1, 2, 3, 4]


def test_bad_requests() -> None:
    bed = Bed()
    bed.create()
    for payload in (b"{", b"{]}", b'{"batch":"y"}', b'{"expires":1.5}'):
        box = bed.pull(payload, reply=payload)
        assert box.log[0].startswith(b"400 Bad Request - "), payload


def test_numbers_no_client_can_mean_are_bad_requests_and_harmless() -> None:
    """Python refuses to read thousands of digits, msgpack to write more than 64 bits, and JSON that
    is nested deeply: none of that may reach the group's turn, where it would end the stream."""
    bed = Bed()
    bed.store(*[b"a"] * 3)
    bed.create()
    huge = b"1" + b"0" * 400
    for payload, text in (
        (b'{"expires":%b}' % huge, "json: cannot unmarshal number "),
        (b'{"batch":9223372036854775808}', "json: cannot unmarshal number 9223372036854775808 "),
        (b'{"batch":%b}' % (b"9" * 5000), ""),
        (b'{"a":%b' % (b"[" * 100_000), "exceeded max depth"),
        (b"{\xed\xa0\x80}", "invalid character "),
    ):
        box = bed.pull(payload, reply=payload)
        assert box.log[0].startswith(b"400 Bad Request - " + text.encode()), payload[:50]
    assert bed.pull(b"9" * 5000, reply=b"digits").seqs() == [1]  # as anything that is no number
    assert bed.pull(b"9223372036854775808", reply=b"more").seqs() == [2]
    level = b"NATS/1.0\r\nNats-Required-Api-Level: %b\r\n\r\n" % (b"9" * 5000)
    bed.cursors["C"].requests.on_pull(b"digits", level, b"")
    assert bed.inbox(b"digits").log[-1] == b"412 Required Api Level"


@pytest.mark.parametrize(
    ("before", "after", "due_ms"),
    [
        ({"ack_wait": 30 * SECOND}, {"ack_wait": SECOND}, 1000),
        ({"ack_wait": SECOND}, {"ack_wait": 10 * SECOND}, 10_000),
        ({"ack_wait": SECOND}, {"backoff": [3 * SECOND, 9 * SECOND], "ack_wait": SECOND}, 3000),
        ({"backoff": [3 * SECOND], "ack_wait": SECOND}, {"ack_wait": SECOND}, 1000),
    ],
)
def test_a_new_ack_wait_holds_for_earlier_deliveries(
    before: dict[str, Any], after: dict[str, Any], due_ms: int
) -> None:
    bed = Bed()
    bed.store(*[b"a"] * 4)
    cursor = bed.create(**before)
    box = bed.pull(b'{"batch":3}')
    bed.ack(3, b"-NAK 20s")
    bed.advance(500)
    consumer = bed.consumers["C"]
    plain = {key: consumer.config[key] for key in consumer.config if key not in before}
    consumer.update(plain | after)
    cursor.on_applied([commands.CREATE_CONSUMER, 0, "C"])
    bed.turn()
    bed.pull(b'{"batch":9}')
    bed.advance(due_ms - 510)
    assert box.seqs() == [1, 2, 3, 4]
    bed.advance(20)
    assert box.seqs() == [1, 2, 3, 4, 1, 2]


def test_another_filter_finds_what_was_looked_at_while_the_first_messages_went_out() -> None:
    """Last per subject: the cursor has sent those, and looked at what came after, before any of it
    is applied. What did not match then may match by the filter that is applied now."""
    bed = Bed()
    bed.store(b"a", b"b")
    cursor = bed.create(deliver_policy="last_per_subject", filter_subject="a")
    bed.is_auto = False
    box = bed.pull(req(batch=9, expires=SECOND))
    bed.store(b"b", b"a")
    assert box.seqs() == [1, 4]
    consumer = bed.consumers["C"]
    assert consumer.remaining.initial == [1]
    changed = {key: consumer.config[key] for key in consumer.config if key != "filter_subject"}
    consumer.update(changed)
    cursor.on_applied([commands.CREATE_CONSUMER, 0, "C"])
    bed.store(b"b")
    bed.is_auto = True
    bed.turn()
    assert box.seqs() == [1, 4, 5]
    assert consumer.num_pending == 0


def test_another_filter_finds_what_no_first_message_followed() -> None:
    """The same, where nothing that matches came after them."""
    bed = Bed()
    bed.store(b"a", b"b")
    cursor = bed.create(deliver_policy="last_per_subject", filter_subject="a")
    bed.is_auto = False
    box = bed.pull(req(batch=9, expires=SECOND))
    bed.store(b"b")
    consumer = bed.consumers["C"]
    changed = {key: consumer.config[key] for key in consumer.config if key != "filter_subject"}
    consumer.update(changed)
    cursor.on_applied([commands.CREATE_CONSUMER, 0, "C"])
    bed.is_auto = True
    bed.turn()
    assert box.seqs() == [1, 3]
    assert consumer.num_pending == 0


def test_an_ack_counts_while_its_message_is_being_given_up() -> None:
    """The last ack wait is over and DEAD is proposed; then the ack comes, and is answered."""
    bed = Bed(retention="workqueue")
    bed.store(b"a", b"a")
    bed.create(max_deliver=1, ack_wait=SECOND)
    bed.pull()
    bed.is_auto = False
    bed.advance(1500)
    assert [command[0] for command, _ in bed.proposed] == [commands.DEAD]
    bed.ack(1, reply=b"done")
    bed.is_auto = True
    bed.turn()
    assert bed.emptied == [b"done"]
    assert bed.acked == [("C", [1])]
    assert not bed.consumers["C"].redelivered


def test_interest_retention_hears_of_every_ack() -> None:
    bed = Bed(retention="workqueue")
    bed.store(*[b"a"] * 4)
    bed.create()
    bed.pull(b"4")
    bed.ack(2)
    bed.ack(2)
    bed.ack(1, b"+TERM")
    assert bed.acked == [("C", [2]), ("C", [1])]
    consumer = bed.consumers["C"]
    assert [consumer.awaits(seq) for seq in (1, 2, 3, 4, 5)] == [False, False, True, True, True]


def test_pulls_that_share_an_inbox_get_messages_in_order() -> None:
    bed = Bed()
    bed.create()
    bed.pull(b"3")
    box = bed.pull(b"3")
    bed.store(*[b"a"] * 6)
    assert box.seqs() == [1, 2, 3, 4, 5, 6]


def test_sent_and_replaced_messages_are_subtracted_once() -> None:
    """Without acks, where a reader is gets logged once a second. Meanwhile what it was sent may
    leave the stream (a newer value of a key): what comes then is all the same left to deliver."""
    bed = Bed()
    bed.is_auto = False
    bed.create(ack_policy="none", filter_subject="s.*")
    bed.store(b"s.a", b"s.b", b"other")
    assert bed.pull(b"2").seqs() == [1, 2]
    bed.remove(1, 3)
    bed.store(b"s.a")
    box = bed.pull(req(batch=2, no_wait=True), reply=b"more")
    assert box.seqs() == [4]
    assert box.log[1:] == [b"404 No Messages"]
    bed.remove(2)
    bed.store(b"s.b", b"s.b")
    box = bed.pull(b"1", reply=b"again")
    assert [ack_of(msg)["pending"] for msg in box.msgs] == [1]
    assert bed.info().pending == 1
    assert bed.pull(b"1", reply=b"last").seqs() == [6]


@pytest.mark.parametrize("filters", [[], ["a"]])
def test_sent_and_purged_messages_are_not_subtracted_from_later_ones(filters: list[str]) -> None:
    """Without acks a position is logged once a second. A purge within that second moves on from it,
    and the next position tells of messages that were sent before the purge as well."""
    bed = Bed()
    bed.create(ack_policy="none", filter_subjects=filters)
    bed.store(b"a", b"a", b"b")
    assert bed.pull(req(batch=2, no_wait=True)).seqs() == [1, 2]
    bed.purge(4)
    bed.store(b"a")
    assert bed.pull(b"1").seqs() == [1, 2, 4]
    bed.advance(1100)
    assert bed.info().pending == 0
    bed.store(b"a")
    assert bed.info().pending == 1
    assert bed.pull(req(batch=1, no_wait=True)).seqs() == [1, 2, 4, 5]


def test_a_turn_does_not_walk_all_waiting_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_waiting` may be large: 100,000 pulls took 20 s of the loop."""
    bed = Bed()
    bed.create(max_waiting=5000)
    asked = 0
    is_open = Inbox.is_open

    def counted(box: Inbox) -> bool:
        nonlocal asked
        asked += 1
        return is_open(box)

    monkeypatch.setattr(Inbox, "is_open", counted)
    for at in range(2000):
        bed.pull(req(batch=10, expires=10**12), reply=b"in%d" % at)
    asked = 0
    bed.store(b"a")
    assert asked < 500
    gone, stays = bed.inbox(b"in1"), bed.inbox(b"in2")
    gone.is_gone = True
    bed.store(b"b")
    assert gone.seqs() == [] and stays.seqs() == [2]


def test_last_per_subject_counts_a_message_sent_and_replaced_once() -> None:
    """As above, for those of the list that was made at the beginning: how a watcher of keys knows
    that it has seen all of them."""
    bed = Bed()
    bed.is_auto = False
    bed.store(b"s.a", b"s.a", b"s.b", b"s.c", b"s.d")
    bed.create(ack_policy="none", filter_subject="s.*", deliver_policy="last_per_subject")
    assert bed.pull(b"2").seqs() == [2, 3]
    bed.remove(1, 2)
    bed.store(b"s.a")
    box = bed.pull(b"9", reply=b"rest")
    assert [(ack_of(m)["sseq"], ack_of(m)["pending"]) for m in box.msgs] == [(4, 2), (5, 1), (6, 0)]
    assert bed.info().pending == 0


def test_messages_removed_by_a_rollup_are_not_pending() -> None:
    bed = Bed()
    bed.is_auto = False
    bed.create(ack_policy="none", filter_subject="s.*")
    bed.store(b"s.a", b"s.b", b"s.c")
    assert bed.pull(b"3").seqs() == [1, 2, 3]
    bed.store(b"s.a")
    bed.purge(4)
    box = bed.pull(req(batch=2, no_wait=True), reply=b"more")
    assert box.seqs() == [4]
    assert bed.info().pending == 0
