"""Streams and consumers that come and go leave nothing behind in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.machine import commands
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.node.stream_groups import stream_inbox
from tests.holdings import grown, sizes
from tests.sim.crash import SimWires
from tests.unit.node.test_many_cursors import create, publish, pull
from tests.unit.node.test_refused_proposals import Leader

ROUND = 40  # streams that come and go before each look


async def _propose(node: LocalNode, command: list[Any]) -> Any:
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.propose_meta(command, outcome.set_result)
    return await outcome


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_nothing_is_kept_of_streams_that_are_gone(tmp_path: Path, storage: str) -> None:
    async def come_and_go(node: LocalNode, first: int) -> None:
        for number in range(first, first + ROUND):
            name = f"S{number}"
            told = {"name": name, "subjects": [f"s.{number}"], "storage": storage}
            config = normalise(told, is_pedantic=False)
            await _propose(node, [commands.CREATE_STREAM, 1, config])
            assert await _propose(node, [commands.DELETE_STREAM, 2, name, 0]) is True

    node = LocalNode(NodeOptions(str(tmp_path), "N", "n"), SimWires())
    await node.started()
    try:
        await come_and_go(node, 0)
        before = sizes(node)
        await come_and_go(node, ROUND)
        after = sizes(node)
    finally:
        await node.stopped()
    assert grown(before, after, ROUND) == {}


def test_acked_messages_leave_no_timers() -> None:
    """A timer stood until the ack wait was over: 3,600 for each message a second of one hour."""
    leader = Leader(max_msgs_per_subject=5)
    create(leader, "C", ack_wait=3600 * 10**9)
    create(leader, "OLD", ack_wait=3600 * 10**9)
    publish(leader, b"s.2")
    pull(leader, "C", 1)
    pull(leader, "OLD", 1)  # never acked, so its ack floor stays
    leader.pass_time(20)

    def deliver_and_ack(count: int) -> dict[str, int]:
        for _ in range(count):
            publish(leader, b"s.1")
            for name in ("C", "OLD"):
                pull(leader, name, 1)
            leader.pass_time(20)
            for _, ack, *_ in leader.wires.delivered[-2:]:
                leader.post(stream_inbox.Acks([ack], None, [b"+ACK"]))
            leader.pass_time(20)
        return sizes(leader.node.group)

    before = deliver_and_ack(200)
    assert len(leader.machine.consumers["C"].pending) == 1
    assert len(leader.machine.consumers["OLD"].pending) == 1
    assert "Redelivery._timers" not in grown(before, deliver_and_ack(200), 50)


def test_messages_that_left_are_not_waited_for_to_be_delivered_again() -> None:
    """They were remembered until the delay of their -NAK was over, a day perhaps."""
    leader = Leader(max_msgs=3)
    create(leader, "C")

    def deliver_and_nak(count: int) -> dict[str, int]:
        for _ in range(count):
            publish(leader, b"s.1")
            pull(leader, "C", 1)
            leader.pass_time(20)
            ack = leader.wires.delivered[-1][1]
            leader.post(stream_inbox.Acks([ack], None, [b'-NAK {"delay": 86400000000000}']))
            leader.pass_time(20)
        return sizes(leader.node.group)

    before = deliver_and_nak(100)
    assert len(leader.machine.consumers["C"].naked) == 3
    kept = grown(before, deliver_and_nak(200), 50)
    assert not {what for what in kept if what.startswith("Redelivery.")}
    leader.pass_time(86_400_000)
    for _ in range(4):
        pull(leader, "C", 1)
        leader.pass_time(20)
    again = [int(ack.split(b".")[5]) for _, ack, *_ in leader.wires.delivered[300:] if ack]
    assert again == [298, 299, 300]


def test_consumers_that_are_gone_are_woken_no_more() -> None:
    leader = Leader()
    publish(leader, b"s.1")

    def come_and_go(first: int) -> dict[str, int]:
        for number in range(first, first + 200):
            create(leader, f"C{number}", inactive_threshold=3600 * 10**9)
            pull(leader, f"C{number}", 1)
            leader.pass_time(20)
            uid = leader.machine.consumers[f"C{number}"].uid
            leader.propose([commands.DELETE_CONSUMER, leader.clock.now_ns(), f"C{number}", uid, ""])
        return sizes(leader.node.group)

    before = come_and_go(0)
    assert not leader.machine.consumers
    assert grown(before, come_and_go(200), 100) == {}
