"""What a consumer costs that is behind in a key-value bucket, while others write to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamd.machine import commands
from tests.unit.consumer_bed import Bed
from tests.unit.machine.box import Box
from tests.unit.machine.test_lookup import Counting

KEYS = 1000


class Walked(list[int]):
    """A list that counts how many of its items were looked at."""

    looked = 0

    def __iter__(self) -> Iterator[int]:
        self.looked += len(self)
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        self.looked += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
        return super().__getitem__(key)


def keys(*numbers: int) -> list[tuple[bytes, bytes, bytes]]:
    return [(b"k.%d.x" % number, b"", b"v") for number in numbers]


def watcher(*, history: int) -> tuple[Box, Any]:
    """A bucket of so many values of each key, and somebody who reads the last of each."""
    box = Box(subjects=["k.>"], max_msgs_per_subject=history)
    for _ in range(history):
        box.store(*keys(*range(KEYS)))
    wanted = {"deliver_policy": "last_per_subject", "ack_policy": "none"}
    return box, box.consumer("w", filter_subject="k.*.x", **wanted)


def test_replacing_values_does_not_walk_the_keys_to_come() -> None:
    box, consumer = watcher(history=2)
    consumer.remaining.initial = initial = Walked(consumer.remaining.initial)
    box.store(*keys(*range(0, KEYS, 10)))  # 100 values leave that the list does not have
    assert consumer.num_pending == KEYS + 100
    assert initial.looked < KEYS, initial.looked
    assert consumer.remaining.initial is initial


def test_replaced_values_leave_the_keys_to_come() -> None:
    box, consumer = watcher(history=2)
    box.do(commands.POSITION, consumer.uid, KEYS + 100, 100, 0)
    for gone in ([7], [3, 150, 151, 999], [200], list(range(300, KEYS))):
        for _ in range(2):
            box.store(*keys(*gone))
        left = consumer.remaining.initial[consumer.remaining.initial_at :]
        assert left == list(box.machine.index.live.seqs(KEYS + 101, 2 * KEYS))
    box.do(commands.DELETE_MSG, KEYS + 102)
    assert box.restored().consumers["w"].num_pending == consumer.num_pending
    consumer.remaining.recount()
    assert box.restored().consumers["w"].num_pending == consumer.num_pending


def test_a_position_walks_no_keys_and_asks_about_those_it_passed() -> None:
    box, consumer = watcher(history=2)
    consumer.remaining.initial = initial = Walked(consumer.remaining.initial)
    box.do(commands.POSITION, consumer.uid, KEYS + 500, 500, 0)
    assert consumer.num_pending == KEYS - 500
    assert initial.looked < 100, initial.looked


def test_a_position_counts_what_it_passed_and_not_what_is_left() -> None:
    """While values are replaced ahead of the reader its count can't be kept up by the number of
    those it was sent."""
    box, consumer = watcher(history=1)
    box.store((b"k.other", b"", b""), *keys(*range(KEYS - 10, KEYS)))
    consumer.remaining.matcher = matcher = Counting(b"k.*.x")
    index = box.machine.index
    for sent in range(10, 60, 10):
        box.do(commands.POSITION, consumer.uid, sent, sent, 0)
        assert consumer.num_pending == KEYS - sent
    assert matcher.asked <= KEYS, matcher.asked  # once, of the block it is in
    box.do(commands.POSITION, consumer.uid, index.last_seq, KEYS, 0)
    assert consumer.num_pending == 0


def test_sending_does_not_walk_what_was_sent_before_it_is_logged() -> None:
    bed = Bed()
    bed.store(*[b"a.%d" % number for number in range(KEYS)])
    bed.create(deliver_policy="last_per_subject", ack_policy="none", filter_subject="a.*")
    consumer = bed.consumers["C"]
    consumer.remaining.initial = initial = Walked(consumer.remaining.initial)
    bed.is_auto = False
    bed.pull(b"%d" % (KEYS - 100))
    initial.looked = 0
    assert bed.pull(b"10", reply=b"n").seqs() == list(range(KEYS - 99, KEYS - 89))
    assert initial.looked < 100, initial.looked
