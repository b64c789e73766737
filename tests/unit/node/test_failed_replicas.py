"""Streams that can't be served here: known by what they are, not by how they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.errors import DiskError
from streamd.machine import command_shapes
from streamd.node.groups import inbox
from tests.unit.node.test_orphans import delete, idle
from tests.unit.node.test_quorum_loss_recovery import create, make, publish


async def test_a_failed_stream_is_not_served_whatever_the_meta_group_says(tmp_path: Path) -> None:
    """Any word of it, and the name led to the group that had stopped: clients waited in vain."""
    node = make(tmp_path)
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 1)
    handle = node.streams()[0]
    handle.monitor.post(inbox.Failed(DiskError("1.blk: Input/output error")))
    await handle.monitor.stopped.wait()
    await idle(node)
    assert "Input/output error" in node.failed["$G", "S"] and node.stream("S") is None
    node.parts.replicas.replicas.reconcile_one(uid, ("$G", "S"))
    assert node.stream("S") is None
    await node.stopped()


async def test_a_new_stream_did_not_fail_because_one_of_its_name_did(tmp_path: Path) -> None:
    node = make(tmp_path)
    await node.started()
    first = await create(node, "S")
    await delete(node, "S")
    second = await create(node, "S")
    node.parts.replicas.replicas.fail(first, ("$G", "S"), DiskError("1.blk: Input/output error"))
    assert not node.failed and node.stream("S").uid == second
    await publish(node, "S", 1)
    await node.stopped()


async def test_an_entry_of_a_later_release_stops_its_stream_until_the_server_is_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at each start; other streams go on, and nothing is lost."""
    node = make(tmp_path)
    await node.started()
    for name in "ST":
        await create(node, name)
    await publish(node, "S", 1)
    handle = node.stream("S")
    handle.propose([999, 1, "of a later release"], None)
    await handle.monitor.stopped.wait()
    await idle(node)
    told = "holds command 999, which this release does not know: a later release wrote it; install"
    assert told in node.failed["$G", "S"] and node.stream("S") is None
    await publish(node, "T", 1)
    await node.stopped()
    node = make(tmp_path)
    await node.started()
    await idle(node)
    assert told in node.failed["$G", "S"]
    await publish(node, "T", 2)
    await node.stopped()
    monkeypatch.setattr(command_shapes, "_refuse_newer", lambda entry, command: None)
    node = make(tmp_path)
    await node.started()
    assert not node.failed and node.stream("S").machine.index.count == 1
    await publish(node, "S", 2)
    await node.stopped()
