"""When a stream's leader has messages expire."""

from __future__ import annotations

from typing import Any

from streamd.node.stream_groups import stream_inbox
from tests.unit.node.test_refused_proposals import Leader


class _Sink:
    def publish_acks(self, stream: bytes, replies: Any, outcomes: Any) -> None:
        """Nobody looks."""


def publish(leader: Leader, subject: bytes, ttl_s: int) -> None:
    headers = b"NATS/1.0\r\nNats-TTL: %ds\r\n\r\n" % ttl_s
    leader.post(stream_inbox.Publish([(subject, headers, b"x")], [b""], _Sink()))


def test_a_short_life_does_not_wait_for_the_end_of_a_longer_one() -> None:
    """The leader had looked up when the first one leaves, and looked again only then."""
    leader = Leader(allow_msg_ttl=True)
    publish(leader, b"s.1", 600)
    leader.pass_time(1000)
    publish(leader, b"s.2", 5)
    publish(leader, b"s.1", 3)
    left = []
    for _ in range(6):
        leader.pass_time(1001)
        left.append(leader.machine.state()["messages"])
    assert left == [3, 3, 2, 2, 1, 1]


def test_age_does_not_hide_a_shorter_life() -> None:
    leader = Leader(allow_msg_ttl=True, max_age=100 * 10**9)
    leader.publish(1)
    leader.pass_time(1000)
    publish(leader, b"s.2", 5)
    leader.pass_time(5001)
    assert leader.machine.state()["messages"] == 1
