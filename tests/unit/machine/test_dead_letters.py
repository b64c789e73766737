"""Dead letters are decided in apply: each once, and its message is kept until it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.extension_settings import consumer_mistake
from tests.unit.machine.box import Box


def boxed(retention: str = "workqueue", **config: Any) -> tuple[Box, Any]:
    """A stream with three messages, delivered to a consumer with a dead-letter subject."""
    box = Box(retention=retention)
    consumer = box.consumer("C", max_deliver=1, metadata={"streamd.dead_letter": "dlq.a"}, **config)
    for number in range(3):
        box.put(b"a.%d" % number)
    box.do(commands.DELIVERED, consumer.uid, [(1, 3, 1, False)], 0)
    return box, consumer


def letters(box: Box) -> list[tuple[Any, ...]]:
    return [
        (each.number, each.sseq, each.reason, each.text, each.deliveries, each.subject)
        for each in box.machine.content.letters.after(0)
    ]


def test_what_is_given_up_leaves_a_work_queue_once_its_letter_is_stored() -> None:
    box, consumer = boxed()
    box.do(commands.DEAD, consumer.uid, [1])
    box.do(commands.TERMED, consumer.uid, [(2, "no such\r\ncustomer")])
    assert letters(box) == [
        (1, 1, b"max_deliver", b"", 1, b"dlq.a"),
        (2, 2, b"terminated", b"no such\r\ncustomer", 1, b"dlq.a"),
    ]
    assert box.live() == [1, 2, 3]
    assert box.do(commands.LETTERS_SENT, [2, 7]) == 1
    assert box.live() == [1, 3]
    assert box.do(commands.LETTERS_SENT, [1, 2]) == 1
    assert box.live() == [3]
    assert consumer.info()["num_redelivered"] == 0
    box.do(commands.ACKED, consumer.uid, [3])
    assert not box.live() and not letters(box)


def test_without_a_subject_nothing_is_different() -> None:
    box, consumer = boxed()
    box.consumer("C", max_deliver=1)
    box.do(commands.DEAD, consumer.uid, [1])
    box.do(commands.TERMED, consumer.uid, [(2, "")])
    assert not letters(box) and box.live() == [1, 3]
    assert not box.machine.content.features_state()


def test_they_are_there_after_a_restart_and_numbers_go_on() -> None:
    box, consumer = boxed()
    fingerprint = box.machine.fingerprint()
    box.do(commands.DEAD, consumer.uid, [1, 2])
    box.do(commands.LETTERS_SENT, [1])
    again = box.restored()
    assert again.snapshot() == box.machine.snapshot()
    assert again.fingerprint() == box.machine.fingerprint() != fingerprint
    box.machine = again
    assert [row[:2] for row in letters(box)] == [(2, 2)]
    box.do(commands.DEAD, consumer.uid, [3])
    box.do(commands.LETTERS_SENT, [2])
    assert [row[:2] for row in letters(box)] == [(3, 3)]
    assert box.live() == [3]


def test_an_ack_that_comes_too_late_does_not_take_the_message_of_a_letter() -> None:
    box, consumer = boxed()
    box.do(commands.DEAD, consumer.uid, [1])
    box.do(commands.ACKED, consumer.uid, [1])
    assert box.live() == [1, 2, 3]
    box.do(commands.LETTERS_SENT, [1])
    assert box.live() == [2, 3]


def test_a_message_stays_for_its_letter_when_its_consumer_is_deleted() -> None:
    box, consumer = boxed("interest")
    box.do(commands.TERMED, consumer.uid, [(1, "")])
    box.do(commands.DELETE_CONSUMER, "C", 0, "")
    assert box.live() == [1]
    box.do(commands.LETTERS_SENT, [1])
    assert not box.live()


def test_with_interest_another_consumer_still_gets_it() -> None:
    box, consumer = boxed("interest")
    other = box.consumer("D", deliver_policy="new")
    box.put(b"a.4")
    box.do(commands.DELIVERED, consumer.uid, [(4, 4, 4, False)], 0)
    box.do(commands.TERMED, consumer.uid, [(4, "")])
    box.do(commands.LETTERS_SENT, [1])
    assert 4 in box.live()
    box.do(commands.DELIVERED, other.uid, [(4, 4, 1, False)], 0)
    box.do(commands.ACKED, other.uid, [4])
    assert 4 not in box.live()


def test_a_stream_of_limits_keeps_what_it_has() -> None:
    box, consumer = boxed("limits")
    box.do(commands.DEAD, consumer.uid, [1])
    box.do(commands.TERMED, consumer.uid, [(2, "")])
    box.do(commands.LETTERS_SENT, [1, 2])
    assert box.live() == [1, 2, 3] and not letters(box)


def test_two_consumers_give_up_the_same_message_twice() -> None:
    box, consumer = boxed("interest")
    other = box.consumer("D", deliver_policy="new", metadata={"streamd.dead_letter": "dlq.b"})
    box.put(b"a.4")
    for each, first in ((consumer, 4), (other, 1)):
        box.do(commands.DELIVERED, each.uid, [(4, 4, first, False)], 0)
        box.do(commands.TERMED, each.uid, [(4, "")])
    assert [row[-1] for row in letters(box)] == [b"dlq.a", b"dlq.b"]
    box.do(commands.LETTERS_SENT, [1])
    assert 4 in box.live()
    box.do(commands.LETTERS_SENT, [2])
    assert 4 not in box.live()


@pytest.mark.parametrize("subject", ["", "a.*", "a.>", "a..b", "$JS.API.STREAM.NAMES", "a b"])
def test_a_subject_that_can_not_be_is_refused(subject: str) -> None:
    config: Any = {"ack_policy": "explicit", "metadata": {"streamd.dead_letter": subject}}
    assert f"not '{subject}'" in consumer_mistake(config)


def test_a_consumer_without_acks_gives_nothing_up() -> None:
    config: Any = {"ack_policy": "none", "metadata": {"streamd.dead_letter": "dlq"}}
    assert consumer_mistake(config) == "metadata streamd.dead_letter requires an ack policy"
    config["ack_policy"] = "all"
    assert not consumer_mistake(config)


def test_letters_to_the_consumer_itself_are_refused() -> None:
    box = Box()
    refused = box.consumer("C", metadata={"streamd.dead_letter": "a.dead"})
    assert isinstance(refused, JsError)
    assert refused.description == (
        "dead letters on 'a.dead' would be delivered to the consumer itself"
    )
    metadata = {"streamd.dead_letter": "a.dead"}
    assert not isinstance(box.consumer("C", filter_subject="a.x", metadata=metadata), JsError)
