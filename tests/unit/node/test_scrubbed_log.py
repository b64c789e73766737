"""The log of a single server rots while it runs: it would have refused the next start."""

from __future__ import annotations

import asyncio
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamd import limits
from streamd.errors import CorruptionError
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.store.wal import wal_format as wf
from tests.sim.crash import SimWires
from tests.unit.node.test_quorum_loss_recovery import body, contents, create, publish


class Log:
    """Sets an event at each of the lines that are waited for."""

    def __init__(self) -> None:
        self.is_damaged = asyncio.Event()
        self.is_whole = asyncio.Event()
        self.lines: list[str] = []

    def info(self, text: str, **facts: Any) -> None:
        if text == "the log is whole again":
            self.is_whole.set()

    def warning(self, text: str, **facts: Any) -> None:
        self.lines.append(f"{text} {facts}")

    def error(self, text: str, **facts: Any) -> None:
        self.warning(text, **facts)
        if text.startswith("log is damaged"):
            self.is_damaged.set()


def make(path: Path, log: Any = None) -> LocalNode:
    return LocalNode(NodeOptions(str(path), "N", "n"), SimWires(), log=log)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCRUB_FIRST_S", "SCRUB_EVERY_S", "SCRUB_PAUSE_S"):
        monkeypatch.setattr(limits, name, 0.01)
    monkeypatch.setattr(limits, "SCRUB_LOG_BYTES_PER_S", 8 * 1024 * 1024)
    for name in ("STRAGGLER_CHECK_S", "DAMAGES_EVERY_S"):
        monkeypatch.setattr(limits, name, 0.05)


def rot(path: Path, what: str) -> None:
    """Damage a part of the log that a start reads."""
    directory = path / "streamd" / "wal"
    if what == "manifest":
        (directory / "manifest").write_bytes(bytes(8192))
        return
    segment = max(directory.glob("*.wal"))
    with segment.open("r+b") as file:
        blob = file.read()
        batches = [at for at in range(4096, len(blob), 512) if blob[at : at + 8] == b"STRDBAT1"]
        spots = {
            "header": [0, 2048],
            "first batch": [batches[0]],
            "a batch": [batches[len(batches) // 2] + wf.BATCH_HEADER_BYTES + 50],
            "last batch": [batches[-1] + wf.BATCH_HEADER_BYTES],
        }
        for offset in spots[what]:
            file.seek(offset)
            file.write(bytes([blob[offset] ^ 1]))


def copy_files(node: LocalNode, source: Path, target: Path) -> None:
    """Copy a running node's directory between two jobs of its threads, all at rest meanwhile."""
    parked, go_on = [threading.Event(), threading.Event()], threading.Event()

    def park(is_parked: threading.Event) -> None:
        is_parked.set()
        go_on.wait(60)

    for thread, is_parked in zip(
        (node._log_thread, node.parts.context.block_thread), parked, strict=True
    ):
        thread.submit(partial(park, is_parked), None)
    try:
        assert all(is_parked.wait(60) for is_parked in parked)
        shutil.copytree(source, target)
    finally:
        go_on.set()


@pytest.mark.parametrize("what", ["header", "first batch", "a batch", "last batch", "manifest"])
@pytest.mark.parametrize("is_sudden", [False, True])
def test_all_is_there_after_the_next_start(tmp_path: Path, what: str, is_sudden: bool) -> None:
    asyncio.run(asyncio.wait_for(_rotten(tmp_path, what, is_sudden), 60))


async def _rotten(path: Path, what: str, is_sudden: bool) -> None:
    log = Log()
    node = make(path, log)
    await node.started()
    names = [f"S{at}" for at in range(5)]
    for name in names:
        await create(node, name)
        for _ in range(4):
            await publish(node, name, 25)
    rot(path, what)
    await log.is_damaged.wait()
    await publish(node, "S0", 10)
    await log.is_whole.wait()
    assert node.parts.integrity.damage_log.damage_count == 1
    assert len(log.lines) == 1
    if is_sudden:  # the files as they are now, as a SIGKILL would leave them
        copy_files(node, path / "streamd", path / "copy" / "streamd")
    await node.stopped()
    again = make(path / "copy" if is_sudden else path)
    await again.started()
    for name in names:
        count = 110 if name == "S0" else 100
        assert await contents(again, name) == [body(name, at + 1) for at in range(count)]
    await again.stopped()


def test_without_it_the_next_start_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is about."""
    monkeypatch.setattr(limits, "SCRUB_FIRST_S", 3600.0)
    asyncio.run(asyncio.wait_for(_refused(tmp_path), 60))


async def _refused(path: Path) -> None:
    node = make(path)
    await node.started()
    await create(node, "S")
    await publish(node, "S", 25)
    rot(path, "first batch")
    await node.stopped()
    with pytest.raises(CorruptionError):
        await make(path).started()
