"""A stream that can't be recovered is offline, and not one byte of its files is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.node.test_quorum_loss_recovery import body, contents, create, make, publish, save


async def filled(path: Path) -> int:
    """A stream with two snapshots and a log that begins after the newer; returns its uid."""
    node = make(path)
    await node.started()
    uid = await create(node, "S")
    for _ in range(3):
        await publish(node, "S", 300)
        await save(node, "S")
    await publish(node, "S", 10)  # with it the log lets go of what the newest covers
    await node.stopped()
    return uid


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_lost_snapshot_costs_no_block(tmp_path: Path, is_gone: bool) -> None:
    """The log begins after the snapshot that is left. Blocks were cut back to that one first: who
    then put the newest back from a copy had lost what it covers."""
    uid = await filled(tmp_path)
    files = tmp_path / "streamd" / "streams" / str(uid)
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    snapshots = sorted(path for path in files.iterdir() if path.suffix == ".snap")
    assert len(snapshots) == 2
    for path in snapshots if is_gone else snapshots[-1:]:
        if is_gone:
            path.unlink()
        else:
            path.write_bytes(before[path.name][:-1] + b"?")

    node = make(tmp_path)
    await node.started()
    assert ("$G", "S") in node.failed
    await node.stopped()
    for path in snapshots:
        path.write_bytes(before[path.name])
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before

    node = make(tmp_path)
    await node.started()
    assert await contents(node, "S") == [body("S", seq) for seq in range(1, 911)]
    await node.stopped()


async def test_with_accepted_loss_an_older_snapshot_and_blocks_serve(tmp_path: Path) -> None:
    uid = await filled(tmp_path)
    root = tmp_path / "streamd"
    newest = sorted((root / "streams" / str(uid)).glob("*.snap"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    node = make(tmp_path, accepts_loss=True)
    await node.started()
    wanted = [body("S", seq) for seq in range(1, 911)]
    assert await contents(node, "S") == wanted  # of after it blocks and outline say enough
    await node.stopped()
    assert list((root / "trash").glob(f"{uid}-lost-*/{newest.name}"))
    node = make(tmp_path)
    await node.started()
    assert await contents(node, "S") == wanted
    await node.stopped()
