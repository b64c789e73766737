"""When a pull consumer that nobody uses asks to be deleted, in virtual time."""

from __future__ import annotations

import pytest

from tests.unit.consumer_bed import Bed

SECOND = 1_000_000_000


def test_inactive_consumer_asks_to_be_deleted() -> None:
    bed = Bed()
    bed.create(inactive_threshold=5 * SECOND)
    bed.pull(b'{"batch": 1, "expires": 12000000000}')
    bed.advance(9900)  # a waiting pull is activity
    assert "C" in bed.consumers
    bed.pull(b'{"batch": 1, "expires": 1000000000}')
    bed.advance(4900)
    assert "C" in bed.consumers
    bed.advance(3000)
    assert "C" not in bed.consumers


@pytest.mark.parametrize("payload", [b"+ACK", b"+WPI", b"-NAK", b"+TERM", b"nonsense"])
def test_any_reply_about_a_message_is_activity(payload: bytes) -> None:
    """It works on one for long, and asks for no other meanwhile: its consumer was deleted."""
    bed = Bed()
    bed.store(b"a")
    bed.create(inactive_threshold=5 * SECOND, ack_wait=SECOND // 10)
    bed.pull(b"1")
    for _ in range(4):
        bed.advance(4000)
        bed.ack(1, payload)
    assert "C" in bed.consumers
    bed.advance(5200)
    assert "C" not in bed.consumers


def test_a_consumer_is_not_inactive_before_its_acks_are_due() -> None:
    """A client works on one message for longer than the threshold, and says nothing meanwhile."""
    bed = Bed()
    bed.store(b"a", b"b", b"c")
    bed.create(inactive_threshold=5 * SECOND, ack_wait=60 * SECOND)
    bed.pull(b"3")
    bed.advance(64_000)
    assert "C" in bed.consumers
    bed.advance(1100)
    assert "C" not in bed.consumers


def test_a_consumer_with_all_acked_is_inactive_from_then_on() -> None:
    """By backoff, too, and one that was refused for a time counts until that is over."""
    bed = Bed()
    bed.store(b"a", b"b")
    bed.create(inactive_threshold=5 * SECOND, backoff=[20 * SECOND, 40 * SECOND])
    bed.pull(b"2")
    bed.ack(1, b'-NAK {"delay": 30000000000}')
    bed.ack(2)
    bed.advance(34_000)
    assert "C" in bed.consumers
    bed.pull(b'{"batch": 1, "no_wait": true}')  # the second time: 40 s
    bed.advance(44_000)
    assert "C" in bed.consumers
    bed.ack(1)
    bed.advance(4900)
    assert "C" in bed.consumers
    bed.advance(200)
    assert "C" not in bed.consumers


def test_a_pull_counts_as_activity_until_it_ends() -> None:
    """Also one that ends just when its consumer has been silent for long enough."""
    bed = Bed()
    bed.create(inactive_threshold=5 * SECOND)
    box = bed.pull(b'{"batch": 1, "expires": 5000000000}')
    bed.advance(5000)
    assert box.statuses[-1].startswith(b"NATS/1.0 408")
    bed.advance(4900)
    assert "C" in bed.consumers
    bed.advance(200)
    assert "C" not in bed.consumers
