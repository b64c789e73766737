"""A node whose store is encrypted: its start with every kind of key, and what is on its disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamd.api.stream_configs import normalise
from streamd.errors import ConfigError, CorruptionError
from streamd.machine import commands
from streamd.node.env import Completion
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.store.frames.keyring import EncryptionKeys
from tests.sim.crash import SimWires

SECRET = b"the cardinal's letters"


def keys(key: str, previous: str = "", cipher: str = "chacha") -> EncryptionKeys:
    return EncryptionKeys(cipher, key, previous, scrypt_n=1 << 10)


async def started(path: Path, encryption: EncryptionKeys | None) -> LocalNode:
    node = LocalNode(NodeOptions(str(path), "N", "n", encryption=encryption), SimWires())
    await node.started()
    return node


async def stored(node: LocalNode, texts: list[bytes]) -> None:
    """Make the stream S, if need be, and publish `texts` to it."""
    if node.stream("S") is None:
        made: Completion[object] = Completion()
        config = normalise({"name": "S", "subjects": ["s"]})
        node.propose_meta([commands.CREATE_STREAM, 1, config], made.done)
        await made.wait()
    for text in texts:
        acked: Completion[object] = Completion()
        stream = node.stream("S")
        assert stream is not None
        stream.propose([commands.STORE, 2, [(b"s", b"", text)]], acked.done)
        await acked.wait()


def held(node: LocalNode) -> int:
    stream = node.stream("S")
    assert stream is not None
    return int(stream.machine.index.last_seq)


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "LOCK"
    }


async def test_an_encrypted_store_starts_again_with_its_key_alone(tmp_path: Path) -> None:
    """Nothing that was published is in any file; another key, or none, is refused with a reason
    and no byte of the directory changes; the right one finds all."""
    node = await started(tmp_path, keys("k"))
    await stored(node, [SECRET, b"2"])
    await node.stopped()
    before = tree(tmp_path)
    assert not [name for name, blob in before.items() if SECRET in blob]
    assert any(b"STRDFRF1" in blob for blob in before.values())
    with pytest.raises(ConfigError, match="not with the configured `key`: nothing was changed"):
        await started(tmp_path, keys("other"))
    with pytest.raises(ConfigError, match="nor with `prev_key`"):
        await started(tmp_path, keys("other", "third"))
    with pytest.raises(ConfigError, match="no key is configured"):
        await started(tmp_path, None)
    assert tree(tmp_path) == before
    node = await started(tmp_path, keys("k", cipher="aes"))  # the cipher is that of each file
    assert held(node) == 2
    await stored(node, [b"3"])
    await node.stopped()
    node = await started(tmp_path, keys("k"))
    assert held(node) == 3
    await node.stopped()


async def test_a_new_key_opens_the_store_where_the_previous_one_is_named_once(
    tmp_path: Path,
) -> None:
    """`prev_key` opens the store and the new key is written down; afterwards it is enough, and
    the old one opens nothing."""
    node = await started(tmp_path, keys("old"))
    await stored(node, [SECRET])
    await node.stopped()
    await (await started(tmp_path, keys("new", "old"))).stopped()
    with pytest.raises(ConfigError, match="not with the configured"):
        await started(tmp_path, keys("old"))
    node = await started(tmp_path, keys("new"))
    assert held(node) == 1
    await node.stopped()


async def test_a_plain_store_is_encrypted_at_its_first_start_with_a_key(tmp_path: Path) -> None:
    """All that was there is found again, and no file holds it readably any more; a file of
    nobody's stays as it is."""
    node = await started(tmp_path, None)
    await stored(node, [SECRET, SECRET])
    await node.stopped()
    foreign = tmp_path / "streamd" / "wal" / "backup.wal"
    foreign.write_bytes(SECRET)
    assert [
        name for name, blob in tree(tmp_path).items() if SECRET in blob and "backup" not in name
    ]
    node = await started(tmp_path, keys("k"))
    assert held(node) == 2
    await stored(node, [b"3"])
    await node.stopped()
    assert [name for name, blob in tree(tmp_path).items() if SECRET in blob] == [
        str(foreign.relative_to(tmp_path))
    ]
    node = await started(tmp_path, keys("k"))
    assert held(node) == 3
    await node.stopped()


async def test_a_store_whose_keys_are_lost_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    """One copy of encryption.json is enough and makes the other again; without both the start says
    so and changes nothing."""
    node = await started(tmp_path, keys("k"))
    await stored(node, [SECRET])
    await node.stopped()
    root = tmp_path / "streamd"
    (root / "encryption.json").write_bytes(b"{}")
    node = await started(tmp_path, keys("k"))
    assert held(node) == 1
    await node.stopped()
    assert (root / "encryption.json").read_bytes() == (root / "encryption-2.json").read_bytes()
    for name in ("encryption.json", "encryption-2.json"):
        os.unlink(root / name)
    before = tree(tmp_path)
    for encryption in (keys("k"), None):
        with pytest.raises(CorruptionError, match=r"encryption-2\.json are lost"):
            await started(tmp_path, encryption)
    assert tree(tmp_path) == before


def test_keys_are_not_shown() -> None:
    """The representation of keys, of a node's options too, shows none."""
    options = NodeOptions("d", "N", "n", encryption=keys("hush", "quiet"))
    assert "hush" not in repr(options) and "quiet" not in repr(options)
