"""One round's publishes of many connections are several log entries if they are large.

An entry travels in one frame: one of 300 MB would be refused by every follower, for ever.
"""

from __future__ import annotations

from typing import Any

import pytest

from streamd import limits
from streamd.machine import commands
from streamd.node.stream_groups import stream_inbox
from streamd.types import Msg
from tests.unit.node.test_refused_proposals import Leader

BOUND = 1000


class Acks:
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def publish_acks(self, stream: bytes, replies: Any, outcomes: Any) -> None:
        assert len(replies) == len(outcomes)
        self.got += replies


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(limits, "STORE_BATCH_BYTES", BOUND)
    return Leader()


def entry_sizes(leader: Leader) -> list[list[int]]:
    """Return the sizes of the messages of each entry that stores some."""
    stores = (entry.command for entry in leader.oracle.values())
    return [
        [len(headers) + len(payload) for _, headers, payload in command[2]]
        for command in stores
        if command and command[0] == commands.STORE
    ]


def msg(size: int, headers: bytes = b"") -> Msg:
    return b"s.1", headers, b"x" * (size - len(headers))


def test_a_round_of_many_connections(leader: Leader) -> None:
    acks = Acks()
    for number in range(10):
        leader.node.monitor.post(stream_inbox.Publish([msg(400)], [b"%d" % number], acks))
    leader.node.settle()
    assert entry_sizes(leader) == [[400, 400]] * 5
    assert acks.got == [b"%d" % number for number in range(10)]
    assert leader.machine.state()["messages"] == 10


def test_a_long_run_of_one_connection(leader: Leader) -> None:
    """Such runs come over the link of another node, which passes on what its clients publish."""
    acks = Acks()
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    sizes = [300, 600, 200, 1500, 10, 20]
    run = [msg(size, header if size == 600 else b"") for size in sizes]
    leader.post(stream_inbox.Publish(run, [b"%d" % size for size in sizes], acks))
    assert entry_sizes(leader) == [[300, 600], [200], [1500], [10, 20]]
    assert acks.got == [b"%d" % size for size in sizes]


def test_messages_between_those_of_batches_count(leader: Leader) -> None:
    acks = Acks()
    batch = msg(100, b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\n\r\n")
    leader.post(stream_inbox.Publish([msg(600), batch, msg(600)], [b"a", b"b", b"c"], acks))
    assert entry_sizes(leader) == [[600], [600]]


def test_small_messages_share_an_entry() -> None:
    leader = Leader()
    leader.post(stream_inbox.Publish([msg(100)] * 3000, [b""] * 3000, Acks()))
    assert entry_sizes(leader) == [[100] * 3000]
