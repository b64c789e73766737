"""What is left of a deleted stream when its deletion was cut short goes with the next start."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from streamd.machine import commands
from streamd.node.local_node import LocalNode
from tests.unit.node.test_quorum_loss_recovery import create, make, publish, save
from tests.unit.node.test_scrubber import Log


async def delete(node: LocalNode, name: str) -> None:
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.propose_meta([commands.DELETE_STREAM, 2, name, 0], told.set_result)
    assert await told is True


async def idle(node: LocalNode) -> None:
    """Until the block thread has done all that was begun so far, and what follows from it."""
    for _ in range(8):
        done = asyncio.Event()
        node.parts.context.block_thread.submit(lambda: None, lambda result, done=done: done.set())
        await done.wait()


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_start_destroys_log_entries_of_deleted_streams(
    tmp_path: Path, is_killed: bool
) -> None:
    """A deletion is told to the log with what is appended next; before that came, the server ended.
    The entries of the deleted stream then kept all segments after them, for ever."""
    node = make(tmp_path / "before")
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 20)
    await delete(node, "S")
    if is_killed:
        shutil.copytree(tmp_path / "before", tmp_path / "image")
    await node.stopped()
    again = make(tmp_path / "image" if is_killed else tmp_path / "before")
    await again.started()
    assert uid not in again.parts.context.wal.groups
    await create(again, "T")
    await publish(again, "T", 1)  # with it the log hears of it
    await again.stopped()
    assert list((Path(again.parts.context.root) / "streams").iterdir()) != []


async def test_a_failed_stream_that_is_deleted_leaves_log_and_disk(tmp_path: Path) -> None:
    """It was not open, so nobody removed anything: its files stayed, and so did its entries."""
    node = make(tmp_path)
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 20)
    await save(node, "S")
    await publish(node, "S", 20)
    await node.stopped()
    files = tmp_path / "streamd" / "streams" / str(uid)
    for path in files.glob("*.snap"):
        path.write_bytes(b"?")
    node = make(tmp_path)
    await node.started()
    assert ("$G", "S") in node.failed
    await delete(node, "S")
    await idle(node)
    assert uid not in node.parts.context.wal.groups
    assert not files.exists()
    assert list((tmp_path / "streamd" / "trash").iterdir()) == []
    assert ("$G", "S") not in node.failed
    await node.stopped()


async def test_files_that_can_not_be_moved_to_trash_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take room, and nothing else said why. The next start finds them."""
    log = Log()
    node = make(tmp_path)
    node._log._sink = log
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 20)

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "rename")

    with monkeypatch.context() as patch:
        patch.setattr(node.parts.context.env.disk, "replace", full)
        await delete(node, "S")
        await idle(node)
    (line,) = log.lines
    assert "could not be moved to trash" in line and str(uid) in line and "No space left" in line
    await node.stopped()
