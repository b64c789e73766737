"""What is no stream of a node any more is not in its memory either."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.machine import commands
from streamd.node.local_node import LocalNode
from tests.unit.node.test_orphans import delete, idle
from tests.unit.node.test_quorum_loss_recovery import contents, create, make, publish


def parts_of(node: LocalNode, name: str) -> list[weakref.ref[Any]]:
    stream = node.stream(name)
    assert stream is not None
    index = stream.machine.index
    parts = [stream, stream.group, stream.monitor, stream.store, stream.machine, index]
    return [weakref.ref(part) for part in parts]


async def gone(node: LocalNode, parts: list[weakref.ref[Any]]) -> list[str]:
    """What is left of `parts` when the node has done what it had to do."""
    await idle(node)
    await asyncio.sleep(0)  # a round of the loop: callbacks that it still holds are called
    return [type(part()).__name__ for part in parts if part() is not None]


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_a_deleted_stream_leaves_the_memory_at_once(tmp_path: Path, storage: str) -> None:
    """Without the garbage collector, which hardly ever looks at what is old: a bucket with a
    million keys that was deleted kept a quarter of a gigabyte for as long as the server ran."""
    node = make(tmp_path)
    await node.started()
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    config = normalise({"name": "S", "subjects": ["S.>"], "storage": storage})
    node.propose_meta([commands.CREATE_STREAM, 1, config], told.set_result)
    await told
    await publish(node, "S", 50)
    assert len(await contents(node, "S")) == 50
    parts = parts_of(node, "S")
    gc.collect()
    gc.disable()
    try:
        await delete(node, "S")
        assert await gone(node, parts) == []
    finally:
        gc.enable()
    await node.stopped()


async def test_a_replica_opened_again_leaves_nothing_of_its_predecessor(tmp_path: Path) -> None:
    node = make(tmp_path)
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 50)
    parts = parts_of(node, "S")
    gc.collect()
    gc.disable()
    try:
        node.parts.replicas.replicas.reopen(uid, before=lambda: None)
        assert await gone(node, parts) == []
    finally:
        gc.enable()
    assert len(await contents(node, "S")) == 50
    await node.stopped()
