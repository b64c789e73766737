"""A whole node on a real directory, without sockets."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.machine import commands
from streamd.node.node import Node
from streamd.store.snapshots import SnapshotFile
from tests.sim.crash import SimWires


def test_routes_looked_up_during_an_update_are_forgotten_after_it(tmp_path: Path) -> None:
    """Meta has the new subjects before the stream does; a route cached in between is stale."""
    asyncio.run(asyncio.wait_for(_update_with_a_look_midway(tmp_path), 30))


async def _update_with_a_look_midway(path: Path) -> None:
    node = Node(store_dir=str(path), wires=SimWires(), server_id="N", server_name="n")
    await node.started()
    try:
        old = normalise({"name": "S", "subjects": ["old"]}, is_pedantic=False)
        await _propose(node, [commands.CREATE_STREAM, 1, old])
        told = node._on_meta_events

        def look(events: list[tuple[str, dict[str, Any]]]) -> None:
            told(events)
            assert node.streams_for(b"new") == ()  # somebody publishes just now

        assert node._meta_group is not None
        node._meta_group.on_events = look
        before = node.topology_version
        new = normalise({"name": "S", "subjects": ["new"]}, is_pedantic=False)
        await _propose(node, [commands.UPDATE_STREAM, 2, "S", new])
        assert [handle.name for handle in node.streams_for(b"new")] == ["S"]
        assert node.streams_for(b"old") == ()
        assert node.topology_version > before + 1  # after meta's, once more after the stream's
    finally:
        await node.stopped()


async def _propose(node: Node, command: list[Any]) -> None:
    done = asyncio.Event()
    node.propose_meta(command, lambda outcome: done.set())
    await done.wait()


def test_stopped_twice_at_once_it_stops_once(tmp_path: Path) -> None:
    """A second SIGTERM, or a fatal error meanwhile: seed 20369 unlocked the directory twice."""

    async def run() -> None:
        node = Node(store_dir=str(tmp_path), wires=SimWires(), server_id="N", server_name="n")
        await node.started()
        await asyncio.gather(node.stopped(), node.stopped())
        await node.stopped()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_meta_group_that_can_not_begin_anew_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read error then went to nobody, and the node lived on without a meta group: seed 21110."""
    reasons: list[BaseException] = []

    def unreadable(*args: Any, **options: Any) -> None:
        raise OSError(errno.EIO, "pread")

    async def run() -> None:
        node = Node(
            store_dir=str(tmp_path),
            wires=SimWires(),
            server_id="N",
            server_name="n",
            on_fatal=reasons.append,
        )
        await node.started()
        closed = asyncio.Event()
        node.close_meta(closed.set)
        await closed.wait()
        monkeypatch.setattr(SnapshotFile, "load", unreadable)
        node.open_meta()
        await node.stopped()

    asyncio.run(asyncio.wait_for(run(), 30))
    assert [type(reason) for reason in reasons] == [OSError]
