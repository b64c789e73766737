"""A lone node reads its blocks in the background and says what is damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamd import limits
from streamd.api.stream_configs import normalise
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.node.integrity.scrubber import Scrubber
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from tests.sim.crash import SimWires
from tests.unit.node.contexts import context_of


class Log:
    """Sets an event at the first error."""

    def __init__(self) -> None:
        self.has_error = asyncio.Event()
        self.lines: list[str] = []

    def info(self, text: str, **facts: Any) -> None: ...

    warning = info

    def error(self, text: str, **facts: Any) -> None:
        self.lines.append(f"{text} {facts}")
        self.has_error.set()


class Sink:
    """Sets an event at the acks."""

    def __init__(self) -> None:
        self.is_acked = asyncio.Event()

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        self.is_acked.set()


@pytest.mark.parametrize("pause_s", [0.01, 3600.0])
def test_rot_of_the_only_copy_is_reported(pause_s: float, tmp_path: Path, monkeypatch: Any) -> None:
    """A flipped bit: an error in the log, a counter, a reason; the stream goes on. However many
    files there are, pauses between them do not put off the end of a round."""
    monkeypatch.setattr(limits, "SCRUB_FIRST_S", 0.01)
    monkeypatch.setattr(limits, "SCRUB_EVERY_S", 0.01)
    monkeypatch.setattr(limits, "SCRUB_PAUSE_S", pause_s)
    asyncio.run(asyncio.wait_for(_rot(tmp_path), 30))


async def _rot(path: Path) -> None:
    log = Log()
    node = LocalNode(NodeOptions(str(path), "N", "n"), SimWires(), log=log)
    await node.started()
    try:
        created = asyncio.Event()
        config = normalise({"name": "S", "subjects": ["s"]}, is_pedantic=False)
        node.propose_meta([commands.CREATE_STREAM, 1, config], lambda outcome: created.set())
        await created.wait()
        stream = node.stream("S")
        assert await publish(stream, 100)
        saved = asyncio.Event()
        stream.monitor.when_saved(stream.machine.applied, saved.set)
        await saved.wait()
        assert not log.lines
        block = path / "streamd" / "streams" / str(stream.uid) / "1.blk"
        blob = bytearray(block.read_bytes())
        blob[len(blob) // 2] ^= 4
        block.write_bytes(blob)
        await log.has_error.wait()
        assert "there is no other copy" in log.lines[0]
        assert "1.blk" in node.parts.integrity.corruption.reasons[stream.uid]
        assert node.parts.integrity.damage_log.damage_count >= 1
        assert node.parts.integrity.scrubber.read_bytes > 0
        assert await publish(stream, 1)
        assert len(log.lines) == 1  # not again in every round
    finally:
        await node.stopped()


async def publish(stream: Any, count: int) -> bool:
    sink = Sink()
    stream.publish([(b"s", b"", b"x" * 100)] * count, [b"r"] * count, sink)
    return await sink.is_acked.wait()


def test_damage_of_an_unknown_stream_is_ignored(tmp_path: Path) -> None:
    """A read that ends after its stream was deleted reports nothing."""
    asyncio.run(asyncio.wait_for(_unknown(tmp_path), 30))


async def _unknown(path: Path) -> None:
    node = LocalNode(NodeOptions(str(path), "N", "n"), SimWires())
    await node.started()
    node.parts.integrity.corruption.on_damaged(77, CorruptionError("of a stream that is gone"))
    assert not node.parts.integrity.corruption.reasons
    assert node.parts.integrity.damage_log.damage_count == 0
    await node.stopped()


def test_pauses_after_small_files_are_made_in_one() -> None:
    """A node with thousands of them wakes up once a second, not for each; the pace is the same."""
    timers: list[float] = []
    loop = SimpleNamespace(call_later=lambda delay_s, callback: timers.append(delay_s))
    unused: Any = None
    context = context_of(env=SimpleNamespace(loop=loop))
    scrubber = Scrubber(context, unused, unused, unused)
    scrubber._pause_s = 0.25
    went_on: list[int] = []
    for _ in range(8):
        scrubber._was_read(100, lambda: went_on.append(1))
    assert timers == [1.0, 1.0]
    assert len(went_on) == 6  # the other two when the pauses are over
    scrubber._was_read(3 * limits.SCRUB_BYTES_PER_S, lambda: went_on.append(1))
    assert timers[2:] == [3.0]
    scrubber._was_read(limits.SCRUB_LOG_BYTES_PER_S, lambda: None, limits.SCRUB_LOG_BYTES_PER_S)
    assert timers[3:] == [1.0]


def test_a_round_that_is_asked_for_begins_at_once_and_tells_how_far_it_is(tmp_path: Path) -> None:
    """Not after a minute, and not at the pace of others; what it read and found is counted."""
    asyncio.run(asyncio.wait_for(_asked_for(tmp_path), 60))


async def _asked_for(path: Path) -> None:
    log = Log()
    node = LocalNode(NodeOptions(str(path), "N", "n"), SimWires(), log=log)
    await node.started()
    try:
        created = asyncio.Event()
        config = normalise({"name": "S", "subjects": ["s"]}, is_pedantic=False)
        node.propose_meta([commands.CREATE_STREAM, 1, config], lambda outcome: created.set())
        await created.wait()
        stream = node.stream("S")
        assert await publish(stream, 100)
        scrubber = node.parts.integrity.scrubber
        assert scrubber.status.rounds == 0 and not scrubber.status.is_running
        scrubber.begin_now()
        assert scrubber.status.is_running and scrubber.status.files >= 4
        while scrubber.status.is_running:
            await asyncio.sleep(0)
        status = scrubber.status
        assert (status.rounds, status.files_left, status.skipped) == (1, 0, 0)
        assert status.read_bytes > 100 * 100
        scrubber.begin_now()
        scrubber.begin_now()  # again, while it runs: one round, from the beginning
        while scrubber.status.is_running:
            await asyncio.sleep(0)
        assert scrubber.status.rounds == 2
        assert not log.lines
    finally:
        await node.stopped()
