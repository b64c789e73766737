"""A single server whose log is damaged: it refuses, and goes on when the loss is accepted."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.node.recovery.quorum_loss_recovery import QuorumLossRecovery
from tests.sim.crash import SimWires
from tests.unit.node.test_scrubber import Sink

STREAMS = 6


class Log:
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def info(self, text: str, **facts: Any) -> None: ...

    def warning(self, text: str, **facts: Any) -> None:
        self.warnings.append(text)

    error = warning


def make(path: Path, *, accepts_loss: bool = False) -> LocalNode:
    options = NodeOptions(str(path), "N", "n", accepts_loss=accepts_loss)
    return LocalNode(options, SimWires(), log=Log())


async def create(node: LocalNode, name: str) -> int:
    config = normalise({"name": name, "subjects": [f"{name}.>"]}, is_pedantic=False)
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.propose_meta([commands.CREATE_STREAM, 1, config], told.set_result)
    uid: int = (await told).uid
    return uid


async def publish(node: LocalNode, name: str, count: int) -> None:
    stream = node.stream(name)
    assert stream is not None
    first = stream.machine.index.last_seq + 1
    msgs = [(f"{name}.x".encode(), b"", body(name, first + at)) for at in range(count)]
    sink = Sink()
    stream.publish(msgs, [b"r"] * count, sink)
    await sink.is_acked.wait()


def body(name: str, seq: int) -> bytes:
    return f"{name}-{seq}".encode().ljust(200, b".")


async def save(node: LocalNode, name: str) -> int:
    """Take a snapshot of a stream; returns its last seq then."""
    stream = node.stream(name)
    assert stream is not None
    saved = asyncio.Event()
    last: int = stream.machine.index.last_seq
    stream.monitor.when_saved(stream.machine.applied, saved.set)
    await saved.wait()
    return last


async def contents(node: LocalNode, name: str) -> list[bytes]:
    stream = node.stream(name)
    assert stream is not None
    index = stream.machine.index
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    stream.read(list(range(index.first_seq, index.last_seq + 1)), told.set_result)
    return [message.payload for message in await told if message is not None]


async def crashed(path: Path, image: Path, rng: random.Random) -> tuple[dict[str, int], str, int]:
    """Work in `path`, and what a crash leaves of it in `image`. Returns the streams with the seqs
    that snapshots have of them, the one that was deleted, and the highest uid."""
    node = make(path)
    await node.started()
    saved = {}
    uid = 0
    for number in range(STREAMS):
        name = f"S{number}"
        uid = await create(node, name)
        await publish(node, name, rng.randint(1, 300))
        saved[name] = await save(node, name)
    gone = f"S{rng.randrange(STREAMS)}"
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.propose_meta([commands.DELETE_STREAM, 2, gone, 0], told.set_result)
    await told
    del saved[gone]
    for _ in range(20):
        await publish(node, rng.choice(list(saved)), rng.randint(1, 200))
    idle = asyncio.Event()
    node.parts.context.block_thread.submit(lambda: None, lambda result: idle.set())
    await idle.wait()
    shutil.copytree(path, image, ignore=shutil.ignore_patterns("trash"))  # it is being emptied
    (image / "streamd" / "trash").mkdir()
    await node.stopped()
    return saved, gone, uid


def damage(image: Path, rng: random.Random) -> None:
    wal = image / "streamd" / "wal"
    if rng.random() < 0.3:
        shutil.rmtree(wal)
        return
    segments = sorted(wal.glob("*.wal"))
    segment = rng.choice(segments)
    blob = bytearray(segment.read_bytes())
    used = len(bytes(blob).rstrip(b"\0"))
    for _ in range(rng.choice([1, 1, 3])):
        blob[rng.randrange(used)] ^= 1 << rng.randrange(8)
    segment.write_bytes(blob)


@pytest.mark.parametrize("seed", range(12))
async def test_proven_messages_stay(tmp_path: Path, seed: int) -> None:
    """Each stream is what it was at some moment after its snapshot; no uid is used twice; and all
    of it is so after the next start too, which needs no word of anybody."""
    rng = random.Random(seed)
    image = tmp_path / "image"
    saved, gone, last_uid = await crashed(tmp_path / "work", image, rng)
    damage(image, rng)
    shutil.copytree(image, tmp_path / "other")  # a start that fails keeps its lock
    refused = make(tmp_path / "other")
    is_refused = False
    try:
        await refused.started()
    except CorruptionError:
        is_refused = True
    else:
        await refused.stopped()

    node = make(image, accepts_loss=True)
    await node.started()
    assert is_refused == bool(node._log._sink.warnings)
    found = {}
    for name, least in saved.items():
        found[name] = await contents(node, name)
        assert found[name] == [body(name, seq) for seq in range(1, len(found[name]) + 1)]
        assert len(found[name]) >= least
    names = {stream.name for stream in node.groups}
    assert names - set(saved) <= {gone}  # that it was deleted may be lost too
    assert await create(node, "NEW") > last_uid
    await publish(node, "NEW", 10)
    for name in saved:
        await publish(node, name, 5)
    await node.stopped()

    again = make(image)
    await again.started()
    assert {stream.name for stream in again.groups} == {*names, "NEW"}
    for name in saved:
        count = len(found[name]) + 5
        assert await contents(again, name) == [body(name, seq) for seq in range(1, count + 1)]
    assert len(await contents(again, "NEW")) == 10
    await again.stopped()


async def test_messages_in_blocks_after_the_newest_snapshot_stay(tmp_path: Path) -> None:
    """It is in no log any more, and all of it was acked."""
    node = make(tmp_path / "work")
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 100)
    await save(node, "S")
    await publish(node, "S", 7000)  # enough for the block to be written
    stream = node.stream("S")
    assert stream is not None
    stream.store.flush()
    idle = asyncio.Event()
    node.parts.context.block_thread.submit(lambda: None, lambda result: idle.set())
    await idle.wait()
    shutil.copytree(tmp_path / "work", tmp_path / "image")
    await node.stopped()
    root = tmp_path / "image" / "streamd"
    whole = (root / "streams" / str(uid) / "1.blk").read_bytes()
    shutil.rmtree(root / "wal")
    node = make(tmp_path / "image", accepts_loss=True)
    await node.started()
    assert body("S", 7100) in whole
    wanted = [body("S", seq) for seq in range(1, 7101)]
    assert await contents(node, "S") == wanted
    await publish(node, "S", 1)
    await node.stopped()
    node = make(tmp_path / "image")
    await node.started()
    assert await contents(node, "S") == [*wanted, body("S", 7101)]
    await node.stopped()


@pytest.mark.parametrize("is_saved", [False, True])
async def test_a_log_that_ends_before_the_stored_files_is_refused(
    tmp_path: Path, is_saved: bool
) -> None:
    """wal/ comes from a backup, the rest is newer: each of its batches is whole, and it ends before
    what snapshots, or blocks, say was done. What was acked since is not cut off in silence."""
    node = make(tmp_path)
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 100)
    await save(node, "S")
    root = tmp_path / "streamd"
    shutil.copytree(root / "wal", tmp_path / "backup")
    await publish(node, "S", 50)
    if is_saved:
        await save(node, "S")
    await node.stopped()
    whole = (root / "streams" / str(uid) / "1.blk").read_bytes()
    assert body("S", 150) in whole
    shutil.rmtree(root / "wal")
    shutil.copytree(tmp_path / "backup", root / "wal")

    node = make(tmp_path)
    await node.started()
    assert ("$G", "S") in node.failed and "older" in node.failed["$G", "S"], node.failed
    await node.stopped()
    assert (root / "streams" / str(uid) / "1.blk").read_bytes() == whole

    node = make(tmp_path, accepts_loss=True)
    await node.started()
    count = 150
    wanted = [body("S", seq) for seq in range(1, count + 1)]
    assert await contents(node, "S") == wanted
    await publish(node, "S", 20)
    await node.stopped()
    node = make(tmp_path)
    await node.started()
    assert len(await contents(node, "S")) == count + 20
    await node.stopped()


async def test_a_log_of_before_the_latest_start_is_refused(tmp_path: Path) -> None:
    """node.json knows a segment that is not there. What the older log has is kept, if that loss is
    accepted, and the next start needs no word of anybody."""
    node = make(tmp_path)
    await node.started()
    await create(node, "S")
    await publish(node, "S", 30)
    await node.stopped()
    wal = tmp_path / "streamd" / "wal"
    shutil.copytree(wal, tmp_path / "backup")
    node = make(tmp_path)
    await node.started()
    await publish(node, "S", 5)
    await node.stopped()
    shutil.rmtree(wal)
    shutil.copytree(tmp_path / "backup", wal)

    shutil.copytree(tmp_path, tmp_path / "other")  # a start that fails keeps its lock
    with pytest.raises(CorruptionError, match=r"log segment [0-9a-f]+\.wal is missing"):
        await make(tmp_path / "other").started()
    for accepts_loss in (True, False):
        node = make(tmp_path, accepts_loss=accepts_loss)
        await node.started()
        found = await contents(node, "S")
        assert found[:30] == [body("S", seq) for seq in range(1, 31)]
        assert not node.failed
        await publish(node, "S", 1)
        await node.stopped()


@pytest.mark.parametrize("seed", range(4))
async def test_a_start_that_is_cut_short_is_finished_by_the_next(tmp_path: Path, seed: int) -> None:
    """The log shows no damage any more by then, and the meta group does not know all streams."""
    image, later = tmp_path / "image", tmp_path / "later"
    saved, _, last_uid = await crashed(tmp_path / "work", image, random.Random(seed))
    shutil.rmtree(image / "streamd" / "wal")
    node = make(image, accepts_loss=True)
    reached = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuorumLossRecovery, "adopt_streams", lambda recovery, done: reached.set())
        node.start(lambda result: None)
        await reached.wait()
    shutil.copytree(image, later)
    await node.stopped()

    node = make(later)
    await node.started()
    for name, count in saved.items():
        assert await contents(node, name) == [body(name, seq) for seq in range(1, count + 1)]
    assert await create(node, "NEW") > last_uid
    await node.stopped()
    assert b"accepting" not in (later / "streamd" / "node.json").read_bytes()


async def test_without_damage_it_changes_nothing(tmp_path: Path) -> None:
    image = tmp_path / "image"
    await crashed(tmp_path / "work", image, random.Random(1))
    states = []
    for accepts_loss in (False, True, False):
        node = make(image, accepts_loss=accepts_loss)
        await node.started()
        states.append({s.name: (s.uid, s.machine.state()) for s in node.groups})
        assert node.meta.applied < 100
        await node.stopped()
    assert states[0] == states[1] == states[2]
    assert not list((image / "streamd" / "trash").glob("*-end-*"))


async def test_an_adopted_stream_keeps_its_latest_config(tmp_path: Path) -> None:
    """Its own log has a config later than the snapshot by which it is known again: with the earlier
    limit it would drop what was stored since."""
    node = make(tmp_path)
    await node.started()
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    limited = {"name": "S", "subjects": ["S.>"], "max_msgs": 50}
    config = normalise(limited, is_pedantic=False)
    node.propose_meta([commands.CREATE_STREAM, 1, config], told.set_result)
    uid = (await told).uid
    await publish(node, "S", 50)
    await save(node, "S")
    told = asyncio.get_running_loop().create_future()
    unlimited = config | {"max_msgs": -1}
    node.propose_meta([commands.UPDATE_STREAM, 2, "S", unlimited], told.set_result)
    await told
    await publish(node, "S", 100)
    await node.stopped()

    node = make(tmp_path, accepts_loss=True)
    told = asyncio.get_running_loop().create_future()
    adopt = QuorumLossRecovery.adopt_streams

    def forget(recovery: QuorumLossRecovery, done: Any) -> None:
        """As if the meta group's entries were lost, and nothing else."""
        recovery.is_meta_lost = True
        command = [commands.DELETE_STREAM, 3, "S", 0]
        node.propose_meta(command, lambda outcome: adopt(recovery, done))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuorumLossRecovery, "adopt_streams", forget)
        await node.started()
    stream = node.stream("S")
    assert stream is not None
    assert stream.uid == uid
    assert stream.machine.config["max_msgs"] == -1
    assert len(await contents(node, "S")) == 150
    await publish(node, "S", 1)
    assert len(await contents(node, "S")) == 151
    await node.stopped()
