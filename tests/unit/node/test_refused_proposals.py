"""A leader whose log takes nothing for a while (a hand-over, a full backlog) and then leads on."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamd.node.groups import inbox
from streamd.node.stream_groups import stream_inbox
from streamd.raft.core import ProposalRejected, RaftCore
from streamd.types import Entry, Index
from tests.sim.crash import BLOCK_BYTES, SEGMENT_BYTES, Campaign, SimThreadOf, SimWires
from tests.sim.disk import SimDisk
from tests.sim.node import SimClock, SimNode

SECOND_NS = 10**9


class Leader:
    """One stream with consumer C on a simulated disk, whose log can be told to refuse."""

    def __init__(self, **config: Any) -> None:
        self.clock = SimClock()
        self.wires = SimWires()
        self.oracle: dict[Index, Entry] = {}
        self.disk = SimDisk(1)
        self._config: Any = (
            Campaign(1).config | {"max_msgs": -1, "max_msgs_per_subject": -1} | config
        )
        self.node = self._started()

    def _started(self) -> SimNode:
        node = SimNode(
            self.disk, SimThreadOf, clock=self.clock, rng=random.Random(1), config=self._config,
            wires=self.wires, oracle=self.oracle,
            segment_bytes=SEGMENT_BYTES, block_bytes=BLOCK_BYTES,
        )  # fmt: skip
        node.settle()
        return node

    def restart(self) -> None:
        """Lose the power, and start anew on the disk."""
        self.disk.crash()
        self.node = self._started()

    @property
    def machine(self) -> Any:
        return self.node.group.machine

    def post(self, message: inbox.InboxMessage) -> None:
        self.node.monitor.post(message)
        self.node.settle()

    def propose(self, command: list[Any]) -> None:
        self.post(inbox.Propose(command, lambda outcome: None, True))

    def publish(self, count: int) -> None:
        class Sink:
            def publish_acks(self, stream: bytes, replies: Any, outcomes: Any) -> None:
                """Nobody looks."""

        msgs = [(b"s.1", b"", b"x")] * count
        self.post(stream_inbox.Publish(msgs, [b""] * count, Sink()))

    def pull(self, batch: int) -> None:
        self.post(stream_inbox.Pull(b"C", b"inbox", b"", b'{"batch":%d,"no_wait":true}' % batch))

    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms
        self.post(inbox.Tick())


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise ProposalRejected("leadership is being handed over")


def test_deliveries_of_that_time_are_logged_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next delivery leaves a gap, and no replica can apply it."""
    leader = Leader()
    create = Campaign(1)._consumer()
    leader.propose(create)
    leader.publish(20)
    with monkeypatch.context() as refusing:
        refusing.setattr(RaftCore, "propose", _refuse)
        leader.pull(5)
        leader.pass_time(50)
        leader.pull(5)
        leader.pass_time(50)
        assert len(leader.wires.delivered) == 10  # delivery promises nothing and does not wait
        assert leader.machine.consumers["C"].delivered_cseq == 0
    leader.pull(5)
    leader.pass_time(50)
    assert not leader.node.errors
    assert leader.machine.consumers["C"].delivered_cseq == 15
    assert len(leader.machine.consumers["C"].pending) == 15


def test_messages_whose_time_was_over_then_expire_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = Leader(max_age=SECOND_NS)
    leader.publish(3)
    with monkeypatch.context() as refusing:
        refusing.setattr(RaftCore, "propose", _refuse)
        leader.pass_time(2000)
        assert leader.machine.index.last_seq == 3
        assert leader.machine.state()["messages"] == 3
    leader.pass_time(2000)
    assert leader.machine.state()["messages"] == 0
