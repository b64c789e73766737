"""Push consumers: interest, heartbeats, flow control, rate and replay, in virtual time."""

from __future__ import annotations

from streamd.machine import commands
from streamd.node.delivery.flow_control import FlowWindow, RateLimit
from tests.unit.consumer_bed import MS, Bed, ack_of

SECOND = 1_000_000_000
KIB = 1024


def push(bed: Bed, **config: object) -> None:
    bed.create(**{"deliver_subject": "dlv", "ack_policy": "none", **config})


def test_push_delivers_while_its_subject_has_a_subscriber() -> None:
    bed = Bed()
    bed.store(b"a", b"b")
    push(bed)
    box = bed.interest()
    assert box.seqs() == [1, 2]
    assert bed.cursors["C"].is_push_bound
    bed.interest(False)
    bed.store(b"c")
    assert box.seqs() == [1, 2]
    bed.interest()
    assert box.seqs() == [1, 2, 3]
    assert bed.pull(b"1", reply=b"p").log == [b"409 Consumer is push based"]


def test_explicit_acks_and_max_ack_pending_hold_for_push_too() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 5)
    push(bed, ack_policy="explicit", max_ack_pending=2, ack_wait=SECOND)
    box = bed.interest()
    assert box.seqs() == [1, 2]
    bed.ack(1)
    assert box.seqs() == [1, 2, 3]
    bed.advance(1001)
    assert box.seqs() == [1, 2, 3, 2, 3]
    assert [ack_of(m)["delivered"] for m in box.msgs] == [1, 1, 1, 2, 2]


def test_heartbeats_only_when_idle_and_listened_to() -> None:
    bed = Bed()
    push(bed, idle_heartbeat=500 * MS)
    bed.advance(2000)
    box = bed.interest()
    bed.advance(400)
    bed.store(b"a")
    bed.advance(499)
    assert box.log == [b"1"]
    bed.advance(2)
    assert box.log == [b"1", b"100 Idle Heartbeat"]
    assert b"Nats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n" in box.statuses[0]


def test_flow_control_asks_at_half_a_window_stalls_and_goes_on() -> None:
    bed = Bed()
    push(bed, flow_control=True, idle_heartbeat=SECOND)
    box = bed.interest()
    bed.store(*[b"a"] * 40, payload=b"x" * 64 * KIB)
    asked = [at for at, entry in enumerate(box.log) if entry == b"100 FlowControl Request"]
    assert asked == [16]  # after the message that made it more than half of 2 MiB
    reply = box.replies[0]
    assert reply.startswith(b"$JS.FC.S.C.") and len(reply) == len(b"$JS.FC.S.C.") + 4
    assert len(box.msgs) == 32  # a whole window
    bed.advance(1001)
    assert b"Nats-Consumer-Stalled: " + reply in box.statuses[-1]
    bed.cursors["C"].requests.on_flow_reply(b"$JS.FC.S.C.nope")
    bed.turn()
    assert len(box.msgs) == 32
    bed.cursors["C"].requests.on_flow_reply(reply)
    bed.turn()
    assert len(box.msgs) == 40


def test_answers_to_flow_control_ack_where_the_consumer_says_so() -> None:
    """Nothing else acks there, and nothing comes again for want of an ack. It is asked when as much
    is out as may be, or nothing is sent for a while; the answer names what was received."""
    bed = Bed()
    push(
        bed, ack_policy="flow_control", flow_control=True, idle_heartbeat=SECOND, max_ack_pending=4
    )
    box = bed.interest()
    last = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
    bed.store(*[b"a"] * 4)
    assert box.log == [b"1", b"2", b"3", b"4", b"100 FlowControl Request"]
    bed.store(*[b"a"] * 5)
    assert box.log[5:] == []
    bed.cursors["C"].requests.on_flow_reply(box.replies[-1], last % (4, 4))
    bed.turn()
    assert bed.info().floor == (4, 4)
    assert box.log[5:] == [b"5", b"6", b"7", b"8", b"100 FlowControl Request"]
    bed.cursors["C"].stop()
    bed.lead()
    bed.interest()
    assert box.log[10:] == [b"100 FlowControl Request"]
    bed.cursors["C"].requests.on_flow_reply(
        box.replies[-1]
    )  # acks nothing: it is not asked again at once
    bed.turn()
    assert box.log[11:] == []
    bed.advance(1001)
    assert box.log[11:] == [b"100 FlowControl Request"]
    asked = box.replies[-1]
    bed.advance(1001)
    assert b"Nats-Consumer-Stalled: " + asked in box.statuses[-1]
    bed.advance(60_000)
    assert len(box.msgs) == 8
    assert bed.info().ack_pending == 4
    bed.cursors["C"].requests.on_flow_reply(asked, last % (8, 8))
    bed.turn()
    assert bed.info().floor == (8, 8)


def test_flow_window_doubles_to_its_bound() -> None:
    window = FlowWindow(b"$JS.FC.S.C.")
    for _ in range(10):
        while not window.sent(64 * KIB):
            pass
        assert window.answered(window.request())
    assert window.window_bytes == 32 * KIB * KIB
    assert window.unanswered_bytes == 0


def test_rate_limit_spreads_messages_out() -> None:
    bed = Bed(max_msg_size=1000)
    bed.store(*[b"a"] * 3, payload=b"x" * 950)
    push(bed, rate_limit_bps=8000)  # 1000 bytes a second, and as many at once
    box = bed.interest()
    assert len(box.msgs) == 1
    bed.advance(900)
    assert len(box.msgs) == 1
    bed.advance(200)
    assert len(box.msgs) == 2
    bed.advance(1100)
    assert len(box.msgs) == 3


def test_a_full_rate_limit_bucket_lets_a_larger_message_through() -> None:
    limit = RateLimit(8000, 1000, now_ms=0)
    assert limit.delay_ms(5000, 0) == 0
    assert limit.delay_ms(5000, 0) == 1000
    assert limit.delay_ms(5000, 1000) == 0


def test_replay_original_keeps_the_gaps_until_it_has_caught_up() -> None:
    bed = Bed()
    for _ in range(3):
        bed.store(b"a")
        bed.advance(300)
    push(bed, replay_policy="original")
    box = bed.interest()
    assert len(box.msgs) == 1
    bed.advance(290)
    assert len(box.msgs) == 1
    bed.advance(15)
    assert len(box.msgs) == 2
    bed.advance(305)
    assert len(box.msgs) == 3
    bed.advance(10_000)
    bed.store(b"a", b"a")
    assert len(box.msgs) == 5


def test_push_ephemeral_without_interest_goes_away() -> None:
    bed = Bed()
    push(bed, inactive_threshold=SECOND)
    bed.interest()
    bed.advance(5000)
    assert "C" in bed.consumers
    bed.interest(False)
    bed.advance(900)
    assert "C" in bed.consumers
    bed.advance(200)
    assert "C" not in bed.consumers


def test_a_full_receiver_is_spared() -> None:
    bed = Bed()
    push(bed)
    box = bed.interest()
    box.is_full = True
    bed.store(*[b"a"] * 3)
    assert not box.log
    box.is_full = False
    bed.advance(50)
    assert box.seqs() == [1, 2, 3]


def test_a_new_deliver_subject_is_watched() -> None:
    bed = Bed()
    push(bed)
    old = bed.interest()
    consumer = bed.consumers["C"]
    config = {**consumer.config, "deliver_subject": "other"}
    consumer.update(config)
    bed.cursors["C"].on_applied([commands.CREATE_CONSUMER, 0, "C", config, "", False], None)
    new = bed.interest()
    bed.store(b"a")
    assert new is not old
    assert (old.seqs(), new.seqs()) == ([], [1])


def test_a_new_deliver_subject_gets_unacked_messages_first() -> None:
    """A client that lost its connection binds again with a new inbox; what the old one was sent
    is sent to it at once, before what is new, and not again when its ack was due."""
    bed = Bed()
    bed.store(*[b"a"] * 4)
    push(bed, ack_policy="explicit", ack_wait=SECOND, max_deliver=2)
    bed.interest()
    bed.ack(2)
    bed.ack(3, b'-NAK {"delay": 60000000000}')
    bed.interest(False)
    bed.store(b"a")
    for subject, seqs in (("other", [1, 3, 4, 5]), ("third", [5])):
        consumer = bed.consumers["C"]
        config = {**consumer.config, "deliver_subject": subject}
        consumer.update(config)
        bed.cursors["C"].on_applied([commands.CREATE_CONSUMER, 0, "C", config, "", False], None)
        box = bed.interest()
        assert box.seqs() == seqs
        bed.advance(900)
        assert box.seqs() == seqs
    assert list(bed.consumers["C"].pending) == [5]  # the others were delivered twice


def test_a_nak_under_way_outlives_a_new_deliver_subject() -> None:
    """It was the only timer of its message, which waited for ever once that was dropped."""
    bed = Bed()
    push(bed, ack_policy="explicit", ack_wait=SECOND, max_ack_pending=1)
    bed.interest()
    bed.is_auto = False
    bed.store(b"a", b"b")
    bed.ack(1, b"-NAK 2s")
    consumer = bed.consumers["C"]
    config = {**consumer.config, "deliver_subject": "other"}
    consumer.update(config)
    bed.cursors["C"].on_applied([commands.CREATE_CONSUMER, 0, "C", config, "", False], None)
    bed.is_auto = True
    box = bed.interest()
    assert box.seqs() == []
    bed.advance(2000)
    assert box.seqs() == [1]


def test_replay_and_live_are_one_read() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 100)
    push(bed, deliver_policy="by_start_sequence", opt_start_seq=50)
    box = bed.interest()
    for _ in range(20):
        bed.store(b"a", b"b")
    assert box.seqs() == list(range(50, 141))
    assert [ack_of(m)["cseq"] for m in box.msgs] == list(range(1, 92))
