"""A block of a single server's stream is lost: it stops what must remove a part of it, until the
loss is accepted. Then all that can be read is there, and nothing else is missing."""

from __future__ import annotations

import asyncio
import errno
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.machine import commands
from streamd.machine.streams.stream import StreamMachine
from streamd.node.local_node import LocalNode
from streamd.node.recovery import lost_blocks
from streamd.node.recovery.quorum_loss_recovery import QuorumLossRecovery
from streamd.store.blocks.footer import FOOTER_MAGIC, TRAILER_BYTES
from tests.unit.node.test_quorum_loss_recovery import body, contents, create, make, publish, save

MSGS = 200


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for function in (StreamMachine.__init__, StreamMachine.restore.__func__):  # type: ignore[attr-defined]
        monkeypatch.setitem(function.__kwdefaults__, "block_bytes", 4096)
    yield


async def fill(path: Path, **config: Any) -> tuple[LocalNode, Path]:
    """A node whose stream S has some blocks, and a snapshot of them all; and where they are."""
    node = make(path)
    await node.started()
    if config:
        known = {"name": "S", "subjects": ["S.>"], **config}
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        wanted = normalise(known, is_pedantic=False)
        node.propose_meta([commands.CREATE_STREAM, 1, wanted], told.set_result)
        uid = (await told).uid
    else:
        uid = await create(node, "S")
    for _ in range(10):
        await publish(node, "S", MSGS // 10)
    await save(node, "S")
    return node, path / "streamd" / "streams" / str(uid)


async def consumer(node: LocalNode, name: str) -> Any:
    """Make a consumer, or find the one of that name."""
    stream = node.stream("S")
    assert stream is not None
    machine = stream.machine
    if name not in machine.consumers:
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        config = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all"}
        stream.propose([commands.CREATE_CONSUMER, 1, name, config, "", ""], made.set_result)
        await made
    return machine.consumers[name]


def block_of(node: LocalNode, seq: int) -> Any:
    stream = node.stream("S")
    assert stream is not None
    return next(b for b in stream.machine.index.blocks if b.first_seq <= seq <= b.last_seq)


def flip(path: Path, *offsets: int) -> None:
    blob = bytearray(path.read_bytes())
    for offset in offsets:
        blob[offset] ^= 0x20
    path.write_bytes(blob)


def footer_and_a_record(path: Path, block: Any) -> set[int]:
    """Damage the footer and the third message; returns what is lost."""
    _spoil_footer(path)
    flip(path, _place(path, 2))
    return {block.first_seq + 2}


def length_of_a_record(path: Path, block: Any) -> set[int]:
    """Where the record after it begins must be found."""
    blob = bytearray(path.read_bytes())
    start = _place(path, 4) - 100
    blob[start : start + 90] = bytes(90)
    path.write_bytes(blob)
    _spoil_footer(path)
    return {block.first_seq + 4}


def cut_off(path: Path, block: Any) -> set[int]:
    """The file is shorter, and ends amid its sixth message."""
    path.write_bytes(path.read_bytes()[: _place(path, 5)])
    return set(range(block.first_seq + 5, block.last_seq + 1))


def header_and_footer(path: Path, block: Any) -> set[int]:
    """No message is lost."""
    flip(path, 3)
    _spoil_footer(path)
    return set()


def all_zeros(path: Path, block: Any) -> set[int]:
    path.write_bytes(bytes(path.stat().st_size))
    return set(range(block.first_seq, block.last_seq + 1))


def missing(path: Path, block: Any) -> set[int]:
    path.unlink()
    return set(range(block.first_seq, block.last_seq + 1))


def _spoil_footer(path: Path) -> None:
    """Of a block that has one."""
    if path.read_bytes().endswith(FOOTER_MAGIC):
        flip(path, path.stat().st_size - TRAILER_BYTES - 20)


def _place(path: Path, at: int) -> int:
    """An offset amid the payload of a block's message number `at`."""
    found = list(re.finditer(rb"S-[0-9]+[.]{9}", path.read_bytes()))  # checksums are random bytes
    return found[at].start() + 100


DAMAGES = (
    footer_and_a_record, length_of_a_record, cut_off, header_and_footer, all_zeros, missing,
)  # fmt: skip


@pytest.mark.parametrize("which", ["first", "middle", "last"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_intact_records_of_a_damaged_block_stay(
    tmp_path: Path, damage: Callable[[Path, Any], set[int]], which: str
) -> None:
    async def run() -> None:
        node, directory = await fill(tmp_path)
        await consumer(node, "C")
        await save(node, "S")
        block = block_of(node, {"first": 1, "middle": MSGS // 2, "last": MSGS}[which])
        seqs = range(block.first_seq, block.last_seq + 1)
        path = directory / f"{block.block_no}.blk"
        await node.stopped()
        lost = damage(path, block)
        assert lost <= set(seqs)
        before = path.read_bytes() if path.exists() else b""

        node = make(tmp_path, accepts_loss=True)
        await node.started()
        wanted = [body("S", seq) for seq in range(1, MSGS + 1) if seq not in lost]
        assert await contents(node, "S") == wanted
        kept = [each.read_bytes() for each in (tmp_path / "streamd" / "trash").glob("*-lost-*/*")]
        assert kept == ([before] if before else [])
        await publish(node, "S", 30)
        await node.stopped()

        node = make(tmp_path)  # nothing has to be accepted any more
        await node.started()
        assert not node.failed
        wanted += [body("S", seq) for seq in range(MSGS + 1, MSGS + 31)]
        assert await contents(node, "S") == wanted
        stream = node.stream("S")
        assert stream is not None
        index = stream.machine.index
        assert (index.count, index.last_seq) == (len(wanted), MSGS + 30)
        assert index.live.bytes == sum(size for _, size in index.locations.live_sizes())
        assert index.subjects.rows[b"S.x"][2] == len(wanted)
        assert stream.machine.consumers["C"].num_pending == len(wanted)
        await node.stopped()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_limit_that_comes_to_a_lost_block(tmp_path: Path) -> None:
    """It stops the stream, which names the way on; with it the stream takes messages again."""

    async def run() -> None:
        node, directory = await fill(tmp_path, max_msgs=MSGS)
        block = block_of(node, 1)
        await node.stopped()
        (directory / f"{block.block_no}.blk").unlink()

        node = make(tmp_path)
        await node.started()
        stream = node.stream("S")
        assert stream is not None, node.failed
        stopped = asyncio.Event()
        stream.monitor.on_stopped.append(stopped.set)
        stream.publish([(b"S.x", b"", body("S", MSGS + 1))], [b"r"], _Deaf())
        await stopped.wait()
        assert ("$G", "S") in node.failed
        await node.stopped()

        node = make(tmp_path, accepts_loss=True)
        await node.started()
        assert not node.failed
        assert any("damaged block is replaced" in line for line in node._log._sink.warnings)
        await publish(node, "S", MSGS)
        assert len(await contents(node, "S")) == MSGS
        await node.stopped()

    asyncio.run(asyncio.wait_for(run(), 60))


class _Deaf:
    """A publisher that hears nothing."""

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None: ...


@pytest.mark.parametrize("seed", range(6))
def test_a_start_that_is_cut_short_is_finished_by_the_next(tmp_path: Path, seed: int) -> None:
    """Some blocks were replaced, and no snapshot says so yet."""

    async def run() -> None:
        rng = random.Random(seed)
        node, directory = await fill(tmp_path)
        stream = node.stream("S")
        assert stream is not None
        blocks = rng.sample(stream.machine.index.blocks, 3)
        await node.stopped()
        lost: set[int] = set()
        for block in blocks:
            lost |= rng.choice(DAMAGES)(directory / f"{block.block_no}.blk", block)

        node = make(tmp_path, accepts_loss=True)
        reached = asyncio.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QuorumLossRecovery, "finish", lambda recovery, done: reached.set())
            starting = asyncio.ensure_future(node.started())
            await reached.wait()
        left = tmp_path / "left"
        _copy(tmp_path / "streamd", left / "streamd")
        starting.cancel()

        node = make(left)  # unasked
        await node.started()
        wanted = [body("S", seq) for seq in range(1, MSGS + 1) if seq not in lost]
        assert await contents(node, "S") == wanted
        await node.stopped()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("which", [1, MSGS])
def test_a_crash_between_the_old_file_and_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """What is left is still found, where the old file was moved."""

    async def run() -> None:
        node, directory = await fill(tmp_path)
        block = block_of(node, which)
        await node.stopped()
        path = directory / f"{block.block_no}.blk"
        lost = footer_and_a_record(path, block)
        before = path.read_bytes()

        def fail(*args: Any, **options: Any) -> None:
            raise OSError(errno.EIO, "just now")

        with monkeypatch.context() as patched:
            patched.setattr(lost_blocks, "put_in_place", fail)
            node = make(tmp_path, accepts_loss=True)
            await node.started()
            assert ("$G", "S") in node.failed
            await node.stopped()
        assert not path.exists()
        node = make(tmp_path, accepts_loss=True)
        await node.started()
        wanted = [body("S", seq) for seq in range(1, MSGS + 1) if seq not in lost]
        assert await contents(node, "S") == wanted
        await node.stopped()
        kept = list((tmp_path / "streamd" / "trash").glob("*-lost-*/*"))
        assert [each.read_bytes() for each in kept] == [before]

    asyncio.run(asyncio.wait_for(run(), 60))


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        there = target / path.relative_to(source)
        if path.is_dir():
            there.mkdir(parents=True, exist_ok=True)
        elif path.name != "LOCK":
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(path.read_bytes())
