"""A stream with compression s2 on a real node: its blocks shrink, and nothing else changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.errors import ConfigError
from streamd.machine import commands
from streamd.node.env import Completion
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.offline.store_dirs import find_stores
from streamd.offline.stream_view import open_stream
from streamd.store.blocks import record_format as fmt
from streamd.store.frames.keyring import EncryptionKeys
from tests.sim.crash import SimWires

KEYS = EncryptionKeys("aes", "k", scrypt_n=1 << 10)
TEXT = b'{"origin":"JFK","dest":"LAX","delay":12}' * 20_000  # 800 KB


async def started(path: Path, keys: EncryptionKeys | None) -> LocalNode:
    node = LocalNode(NodeOptions(str(path), "N", "n", encryption=keys), SimWires())
    await node.started()
    return node


async def meta(node: LocalNode, command: list[Any]) -> None:
    done: Completion[object] = Completion()
    node.propose_meta(command, done.done)
    await done.wait()


def stream_of(node: LocalNode) -> LocalStream:
    stream = node.stream("S")
    assert isinstance(stream, LocalStream)
    return stream


async def stored(node: LocalNode, count: int) -> None:
    for _ in range(count):
        done: Completion[object] = Completion()
        stream_of(node).propose([commands.STORE, 2, [(b"s", b"", TEXT)], 1], done.done)
        await done.wait()


async def sizes(node: LocalNode, *, is_small: bool) -> tuple[int, int]:
    """What the blocks are and take, once packing is done, if there is some."""
    files = stream_of(node).files
    assert files is not None
    async with asyncio.timeout(60):
        while is_small and files.stored_bytes[1] > files.stored_bytes[0] * 0.6:
            done: Completion[object] = Completion()
            node.parts.context.block_thread.submit(lambda: None, done.done)
            await done.wait()
    return files.stored_bytes


def read_offline(
    path: Path, digest: int, keys: EncryptionKeys | None, patch: pytest.MonkeyPatch
) -> None:
    """Programs beside the server read the same, with the key in the environment."""
    (store,) = find_stores(str(path))
    if keys is not None:
        for key, error in (("", "give its key"), ("other", "not with the key")):
            patch.setenv("STREAMD_KEY", key)
            with pytest.raises(ConfigError, match=error):
                open_stream(store, "S").close()
        patch.setenv("STREAMD_KEY", keys.key)
    with open_stream(store, "S") as view:
        assert (view.messages, view.digest) == (32, digest)
        for block in view.blocks:
            blob = bytes(block.read())
            records = [record for record in fmt.scan(blob[64:], 64) if record.type == fmt.MSG]
            assert [record.payload for record in records] == [TEXT] * block.count


@pytest.mark.slow
@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
async def test_a_compressed_stream_takes_less_room_and_is_the_same(
    tmp_path: Path, keys: EncryptionKeys | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25 MB of text: less than half on disk, the same digest as without compression, every message
    as it was, after a start too; switched off, what comes next is plain."""
    digests = []
    for compression in ("none", "s2"):
        path = tmp_path / compression
        node = await started(path, keys)
        config = normalise({"name": "S", "subjects": ["s"], "compression": compression})
        await meta(node, [commands.CREATE_STREAM, 1, config])
        await stored(node, 32)
        content, taken = await sizes(node, is_small=compression == "s2")
        assert content > 25_000_000
        assert (taken < content * 0.5) == (compression == "s2")
        digests.append(stream_of(node).machine.digest)
        await node.stopped()
        read_offline(path, digests[-1], keys, monkeypatch)
        on_disk = sum(file.stat().st_size for file in path.rglob("*.blk"))
        assert (on_disk < content * 0.5) == (compression == "s2")
        node = await started(path, keys)
        stream = stream_of(node)
        assert stream.files is not None
        assert stream.machine.digest == digests[-1]
        assert stream.files.stored_bytes[1] < content * 1.01
        for block in stream.machine.index.blocks:
            if block.is_sealed:
                rows = stream.files.verify(
                    block.block_no, end_offset=block.end_offset, is_sealed=True
                )
                assert len(rows.seqs) == block.live
        if compression == "s2":
            off = config | {"compression": "none"}
            await meta(node, [commands.UPDATE_STREAM, 2, "S", off])
            before = stream.files.stored_bytes
            await stored(node, 22)
            after = await sizes(node, is_small=False)
            assert after[1] - before[1] > 16_000_000
        await node.stopped()
    assert digests[0] == digests[1]
