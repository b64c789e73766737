"""How far a consumer is behind: the oldest message that it has not done with, and its time."""

from __future__ import annotations

from streamd.machine import commands
from streamd.machine.consumers.consumer_lag import ConsumerLag, lag_of
from tests.unit.machine.box import Box


def test_the_oldest_message_that_is_not_acked_and_that_is_not_delivered() -> None:
    box = Box()
    consumer = box.consumer("C", filter_subject="a.x")
    assert lag_of(consumer) == ConsumerLag(0, 0, 0, 0)
    box.put(b"a.other")
    for _ in range(3):
        box.put(b"a.x", seconds=1)
    ts = {seq: box.machine.index.locations.ts_at(seq) for seq in range(1, 5)}
    assert lag_of(consumer) == ConsumerLag(2, ts[2], 2, ts[2])
    box.do(commands.DELIVERED, consumer.uid, [(2, 3, 1, False)], 0)
    assert lag_of(consumer) == ConsumerLag(2, ts[2], 4, ts[4])
    box.do(commands.ACKED, consumer.uid, [2])
    assert lag_of(consumer) == ConsumerLag(3, ts[3], 4, ts[4])
    box.do(commands.DEAD, consumer.uid, [3])  # given up: nobody is to do anything about it
    assert lag_of(consumer) == ConsumerLag(4, ts[4], 4, ts[4])
    box.do(commands.DELIVERED, consumer.uid, [(4, 4, 3, False)], 0)
    assert lag_of(consumer) == ConsumerLag(4, ts[4], 0, 0)
    box.do(commands.ACKED, consumer.uid, [4])
    assert lag_of(consumer) == ConsumerLag(0, 0, 0, 0)


def test_the_initial_list_comes_first_and_without_acks_delivered_is_done() -> None:
    box = Box()
    for subject in (b"a.1", b"a.2", b"a.1"):
        box.put(subject)
    last = box.consumer("L", deliver_policy="last_per_subject", filter_subject="a.>")
    assert lag_of(last).unprocessed_seq == 2
    plain = box.consumer("N", ack_policy="none")
    assert lag_of(plain).undelivered_seq == 1
    box.do(commands.POSITION, plain.uid, 2, 2, 0)
    assert lag_of(plain).unprocessed_seq == 3
