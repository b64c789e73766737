"""Trash of a running node, as operators ask for it: listed, put back, destroyed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from streamd.node.local_node import LocalNode
from tests.unit.node.test_quorum_loss_recovery import create, make, publish, save


async def ask(node: LocalNode, action: str, *names: str) -> Any:
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.parts.replicas.trash.requests.serve(action, names, told.set_result)
    return await told


async def test_it_is_listed_and_destroyed_by_name(tmp_path: Path) -> None:
    """Files and directories; names that are none, and paths, change nothing."""
    node = make(tmp_path)
    await node.started()
    trash = tmp_path / "streamd" / "trash"
    assert await ask(node, "list") == {"total": 0, "items": []}
    (trash / "9-damaged-1" / "below").mkdir(parents=True)
    (trash / "9-damaged-1" / "1.blk").write_bytes(b"x" * 3000)
    (trash / "9-damaged-1" / "below" / "2.blk").write_bytes(b"x" * 500)
    (trash / "2-tail-4-5-0000abcd.jsonl").write_bytes(b"{}\n")
    (trash / "77").mkdir()
    found = (await ask(node, "list"))["items"]
    assert {item["name"]: (item["kind"], item["bytes"]) for item in found} == {
        "9-damaged-1": ("kept by the server", 3500),
        "2-tail-4-5-0000abcd.jsonl": ("log entries that were set aside", 3),
        "77": ("deleted stream, on its way out", 0),
    }
    assert all(item["mtime_ns"] > 0 for item in found)
    for names, told in (
        (["nothing"], "'nothing' is not in the trash"),
        (["9-damaged-1", "../streams"], "'../streams' is not in the trash"),
        (["77"], "being removed already"),
    ):
        assert told in await ask(node, "purge", *names)
    assert (trash / "9-damaged-1" / "1.blk").exists()
    names = ["9-damaged-1", "2-tail-4-5-0000abcd.jsonl"]
    assert await ask(node, "purge", *names) == {"destroyed": names}
    assert [path.name for path in trash.iterdir()] == ["77"]
    assert "must be list, purge, or restore of one name" in await ask(node, "burn", "77")
    assert "must be list, purge, or restore of one name" in await ask(node, "restore")
    await node.stopped()


async def test_only_what_the_next_start_takes_is_put_back(tmp_path: Path) -> None:
    """Not beside a replica that is served, and not of a stream that nobody knows."""
    node = make(tmp_path)
    await node.started()
    uid = await create(node, "S")
    await publish(node, "S", 20)
    await save(node, "S")
    trash, streams = tmp_path / "streamd" / "trash", tmp_path / "streamd" / "streams"
    (trash / f"orphan-{uid}-1").mkdir()
    (trash / "orphan-99-1").mkdir()
    assert "has a replica here that is served" in await ask(node, "restore", f"orphan-{uid}-1")
    assert "no stream has the uid 99" in await ask(node, "restore", "orphan-99-1")
    assert "only a directory of a stream" in await ask(node, "restore", "77")
    await publish(node, "S", 20)
    await node.stopped()
    (trash / f"orphan-{uid}-1").rmdir()

    kept = sorted(path.name for path in (streams / str(uid)).iterdir())
    for path in (streams / str(uid)).glob("*.snap"):
        path.write_bytes(b"?")
    again = make(tmp_path)
    await again.started()
    assert again.failed  # known, and not served
    aside = trash / f"orphan-{uid}-2"
    (streams / str(uid)).rename(aside)
    (streams / str(uid)).mkdir()
    assert "exists: move it away first" in await ask(again, "restore", aside.name)
    (streams / str(uid)).rmdir()
    assert await ask(again, "restore", aside.name) == {"restored": str(streams / str(uid))}
    assert sorted(path.name for path in (streams / str(uid)).iterdir()) == kept
    await again.stopped()
