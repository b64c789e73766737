"""Linearizable reads of a stream that one node has alone: at once, or behind what is under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from streamd.api.consumer_configs import normalise
from streamd.machine import commands
from streamd.node.groups import inbox
from tests.unit.node.test_quorum_loss_recovery import create, make
from tests.unit.node.test_scrubber import Sink


def never() -> None:
    raise AssertionError("the read was lost")


async def test_a_read_waits_for_nothing_where_nothing_is_under_way(tmp_path: Path) -> None:
    """And for all that was asked before where something is: a publish, an ack."""
    node = make(tmp_path)
    await node.started()
    await create(node, "S")
    stream = node.stream("S")
    assert stream is not None
    sink = Sink()
    stream.publish([(b"S.x", b"NATS/1.0\r\nA: 1\r\n\r\n", b"")], [b"r"], sink)
    await sink.is_acked.wait()
    seen: list[int] = []

    stream.read_barrier(lambda: seen.append(0), never)
    assert seen == [0], "in the same call: no turn of the group lies between"

    read = asyncio.Event()

    def look() -> None:
        seen.append(stream.machine.index.last_seq)
        read.set()

    stream.publish([(b"S.x", b"", b"x")], [b""], Sink())
    stream.read_barrier(look, never)
    assert seen == [0], "the publish has had no turn yet"
    await read.wait()
    assert seen == [0, 2]

    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    config = normalise({"durable_name": "C", "ack_policy": "explicit"}, stream.config)
    command = [commands.CREATE_CONSUMER, 1, "C", config, "", False]
    stream.propose(command, told.set_result)
    consumer = await told
    stream.pull("C", b"inbox", b"", b"1")
    while not consumer.delivered_sseq:
        await turn(stream)
    stream.acks([b"$JS.ACK.S.C.1.1.1.0.1"], None, [b""])
    await turn(stream)  # it is noted, and logged only with what comes next, or a little later
    floor: list[int] = []
    stream.read_barrier(lambda: floor.append(consumer.floor_sseq), never)
    while not floor:
        await turn(stream)
    assert floor == [1]

    await node.stopped()
    lost: list[bool] = []
    stream.read_barrier(lambda: lost.append(False), lambda: lost.append(True))
    await asyncio.sleep(0)
    assert lost == [True], "nobody can say what it would have to show"


async def turn(stream: Any) -> None:
    """One turn of the group, with whatever it has to do."""
    stream.monitor.post(inbox.Tick())
    while not stream.monitor.has_nothing_to_do:
        await asyncio.sleep(0)
