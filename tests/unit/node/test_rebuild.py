"""A single server's stream whose snapshots, or whose log, are gone: rebuilt from what is left."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.machine import commands
from streamd.machine.stream import StreamMachine
from streamd.node.node import Node
from tests.unit.node.test_accepted_loss import body, contents, make, publish, save

MSGS = 400


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for function in (StreamMachine.__init__, StreamMachine.restore.__func__,
                     StreamMachine.of_state.__func__):  # type: ignore[attr-defined]  # fmt: skip
        monkeypatch.setitem(function.__kwdefaults__, "block_bytes", 4096)
    yield


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


async def started(path: Path, *, accepts_loss: bool = False) -> Node:
    node = make(path, accepts_loss=accepts_loss)
    await node.started()
    return node


async def propose(node: Node, command: list[Any], name: str = "S") -> Any:
    stream = node.stream(name)
    assert stream is not None
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    stream.propose(command, told.set_result)
    return await told


async def create(node: Node, name: str = "S", **config: Any) -> int:
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    wanted = normalise({"name": name, "subjects": [f"{name}.>"], **config}, is_pedantic=False)
    node.propose_meta([commands.CREATE_STREAM, 1, wanted], told.set_result)
    uid: int = (await told).uid
    return uid


async def add_consumer(node: Node, name: str, **config: Any) -> Any:
    wanted = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
    await propose(node, [commands.CREATE_CONSUMER, 1, name, wanted, "", ""])
    stream = node.stream("S")
    assert stream is not None
    return stream.machine.consumers[name]


async def deliver(node: Node, name: str, count: int, *, acked: int) -> None:
    """The next `count` messages go to a client, which acks the last `acked` of them."""
    stream = node.stream("S")
    assert stream is not None
    machine = stream.machine
    consumer = machine.consumers[name]
    seqs, at = [], consumer.next_sseq
    for _ in range(count):
        seqs.append(machine.index.next_live(at))
        at = seqs[-1] + 1
    cseq = consumer.delivered_cseq + 1
    items = [(seq, seq, cseq + number, False) for number, seq in enumerate(seqs)]
    await propose(node, [commands.DELIVERED, 5, consumer.uid, items, consumer.resets])
    if acked:
        await propose(node, [commands.ACKED, 6, consumer.uid, seqs[-acked:]])


async def written(node: Node) -> None:
    """Have all blocks written to their files."""
    for stream in node.replicas:
        stream.store.flush()
    idle = asyncio.Event()
    node.block_thread.submit(lambda: None, lambda result: idle.set())
    await idle.wait()


def picture(node: Node, name: str = "S") -> dict[str, Any]:
    """All that clients can see of a stream's state, and the digest of its content."""
    stream = node.stream(name)
    assert stream is not None, node.failed
    machine = stream.machine
    index = machine.index
    return {
        "state": machine.state(),
        "digest": machine.digest,
        "subjects": {name: index.count_of(name) for name in sorted(index.subjects)},
        "deleted": list(index.deleted.ranges()),
        "consumers": {
            each.name: (each.info(), sorted(each.pending), each.config)
            for each in machine.consumers.values()
        },
        "dedupe": sorted(arrival[1:] for arrival in machine.dedupe.arrivals()),
        "config": machine.config,
    }


async def worked(path: Path) -> tuple[dict[str, Any], Path]:
    """A stream that has seen some of everything, and saved it twice; killed, all of it in `path`
    but nothing more written. What it was, and where."""
    node = await started(path / "work")
    uid = await create(node, max_msgs_per_subject=300)
    rng = random.Random(7)
    await add_consumer(node, "C")
    for at in range(8):
        await publish(node, "S", MSGS // 8)
        if at in (3, 5):
            await save(node, "S")
        for seq in sorted(rng.sample(range(at * 50 + 1, at * 50 + 40), 5)):
            await propose(node, [commands.DELETE_MSG, 3, seq, False])
        await deliver(node, "C", 20, acked=10 + at)
    await with_ids(node, 3)
    await written(node)
    before = picture(node)
    shutil.copytree(path / "work", path / "image", ignore=shutil.ignore_patterns("LOCK"))
    await node.stopped()
    return before, path / "image" / "streamd" / "streams" / str(uid)


async def with_ids(node: Node, count: int) -> None:
    stream = node.stream("S")
    assert stream is not None
    for number in range(count):
        headers = b"NATS/1.0\r\nNats-Msg-Id: id%d\r\n\r\n" % number
        await propose(node, [commands.STORE, 9, [(b"S.id", headers, b"x")]])


async def rebuilt(directory: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """What the image is after a start with the flag; and after ten more messages, one start more.
    Without the flag the stream is not served, and none of its files changes."""
    image = directory.parents[2]
    before = files(directory)
    node = make(image)
    try:
        await node.started()
    except Exception as err:
        assert "wal" in str(err)
        node._disk.unlock(node._lock)
    else:
        assert node.stream("S") is None
        await node.stopped()
    assert files(directory) == before
    node = await started(image, accepts_loss=True)
    assert not node.failed
    found = picture(node)
    lines = [line for report in node.accepted_loss.reports for line in report.lines()]
    await publish(node, "S", 10)
    after = picture(node)
    await node.stopped()
    node = await started(image)
    assert picture(node) == after
    assert after["state"]["last_seq"] == found["state"]["last_seq"] + 10
    await node.stopped()
    return found, after, lines


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def remove(directory: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in directory.glob(pattern):
            path.unlink()


def test_all_snapshots_gone(tmp_path: Path) -> None:
    """Blocks, outline and the log bring back all there was."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        remove(directory, "stream-*.snap")
        found, _, lines = await rebuilt(directory)
        assert found == before
        assert any("no message that any file names" in line for line in lines)

    run(main)
