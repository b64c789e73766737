"""`streamctl kv` and `object` at three nodes, beside nats-py's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e.ctl.conftest import Ctl

pytestmark = pytest.mark.slow


def test_keys_and_values(ctl: Ctl, shared_cluster: ClusterProcess) -> None:
    """Put, get, create, update, delete, purge, history, keys; another client sees the same."""
    assert ctl("kv", "add", "cfg", "--history", "3", "--replicas", "3").status == 0
    assert ctl("kv", "put", "cfg", "a.x", "one").out == "a.x  revision 1\n"
    assert ctl("kv", "put", "cfg", "a.x", stdin="two").out == "a.x  revision 2\n"
    assert ctl("kv", "get", "cfg", "a.x", "--raw").out == "two"
    assert ctl("kv", "get", "cfg", "a.x", "--revision", "1", "--raw").out == "one"
    there = ctl("kv", "create", "cfg", "a.x", "three")
    assert there.status == 1 and "has a value" in there.err
    stale = ctl("kv", "update", "cfg", "a.x", "three", "--revision", "1")
    assert stale.status == 1 and "is at revision 2, not at 1" in stale.err
    assert ctl("kv", "update", "cfg", "a.x", "three", "--revision", "2").status == 0
    assert ctl("kv", "create", "cfg", "b", "fresh").status == 0
    assert ctl("kv", "keys", "cfg").out == "a.x\nb\n"

    async def read() -> bytes | None:
        nc = await nats.connect(shared_cluster.urls[1])
        try:
            return (await (await nc.jetstream().key_value("cfg")).get("a.x")).value
        finally:
            await nc.close()

    assert asyncio.run(read()) == b"three"
    assert ctl("kv", "delete", "cfg", "a.x").status == 0
    gone = ctl("kv", "get", "cfg", "a.x")
    assert gone.status == 1 and "has no key 'a.x'" in gone.err
    assert ctl("kv", "create", "cfg", "a.x", "again").status == 0
    operations = [e["operation"] for e in ctl("kv", "history", "cfg", "a.x", "-o", "json").data]
    assert operations == ["PUT", "DEL", "PUT"]
    assert ctl("kv", "purge", "cfg", "a.x").status == 2
    assert ctl("kv", "purge", "cfg", "a.x", "--yes").status == 0
    assert len(ctl("kv", "history", "cfg", "a.x", "-o", "json").data) == 1
    watched = ctl("kv", "watch", "cfg", "--count", "2", "-o", "json")
    assert watched.status == 0 and '"operation": "PURGE"' in watched.out
    (row,) = [r for r in ctl("kv", "list", "-o", "json").data if r["bucket"] == "cfg"]
    assert (row["history"], row["replicas"]) == (3, 3)
    for words in (["get", "cfg", ".x"], ["put", "a.b", "x", "y"]):
        assert ctl("kv", *words).status == 2
    assert "no bucket 'nope'" in ctl("kv", "info", "nope").err
    assert ctl("kv", "remove", "cfg").status == 2
    assert ctl("kv", "remove", "cfg", "--yes").status == 0


def test_objects(ctl: Ctl, shared_cluster: ClusterProcess, tmp_path: Path) -> None:
    """Stored in chunks, fetched with their digest verified, replaced, deleted."""
    assert ctl("object", "add", "files").status == 0
    content = bytes(range(256)) * 2000
    source = tmp_path / "source.bin"
    source.write_bytes(content)
    put = ctl("object", "put", "files", str(source), "-o", "json").data
    assert (put["size"], put["chunks"]) == (len(content), 4)

    async def read() -> bytes | None:
        nc = await nats.connect(shared_cluster.urls[1])
        try:
            return (await (await nc.jetstream().object_store("files")).get("source.bin")).data
        finally:
            await nc.close()

    assert asyncio.run(read()) == content
    target = tmp_path / "target.bin"
    assert ctl("object", "get", "files", "source.bin", "--to", str(target)).status == 0
    assert target.read_bytes() == content
    assert ctl("object", "get", "files", "source.bin", "--to", str(target)).status == 2
    source.write_bytes(b"short")
    ctl("object", "put", "files", str(source))
    ctl("object", "get", "files", "source.bin", "--to", str(target), "--force")
    assert target.read_bytes() == b"short"
    (row,) = ctl("object", "list", "files", "-o", "json").data
    assert (row["name"], row["size"]) == ("source.bin", 5)
    state = ctl("stream", "info", "OBJ_files", "-o", "json").data["state"]
    assert state["messages"] == 2  # the old chunks are gone
    assert ctl("object", "delete", "files", "source.bin").status == 2
    assert ctl("object", "delete", "files", "source.bin", "--yes").status == 0
    missing = ctl("object", "get", "files", "source.bin", "--to", str(tmp_path / "none"))
    assert missing.status == 1 and "has no object 'source.bin'" in missing.err
    assert ctl("object", "remove", "files", "--yes").status == 0
    assert not list(tmp_path.glob(".*.part"))
