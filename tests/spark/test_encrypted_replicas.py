"""The audit of a store that is encrypted and whose blocks are packed, with its key."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from streamd.api.stream_configs import normalise
from streamd.machine import commands
from streamd.store.frames import frame_format as ff
from tests.unit.node import test_compressed_stream as compressed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def made(path: Path) -> None:
    """A store with two packed blocks and a third, all of them encrypted."""
    node = await compressed.started(path, compressed.KEYS)
    config = normalise({"name": "S", "subjects": ["s"], "compression": "s2"})
    await compressed.meta(node, [commands.CREATE_STREAM, 1, config])
    await compressed.stored(node, 24)
    content, taken = await compressed.sizes(node, is_small=True)
    assert taken < content * 0.6
    await node.stopped()


def audited(path: Path, key: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the key in its environment, as an operator does."""
    command = [sys.executable, "-m", "spark_jobs.jobs", "audit", "--replica", f"n={path}"]
    return subprocess.run(
        [*command, "--level", "full", "--quiet"],
        env=os.environ | {"STREAMD_KEY": key},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_an_encrypted_store_is_audited_with_its_key(tmp_path: Path) -> None:
    """One byte of one packed block is damaged: that block has findings, and nothing else has, so
    all that is encrypted and packed was read. (Other keys: test_compressed_stream.py.)"""
    asyncio.run(made(tmp_path))
    block = next((tmp_path / "streamd" / "streams").glob("*/1.blk"))
    blob = bytearray(block.read_bytes())
    blob[blob.index(ff.FRAME_MAGIC, 2000) + ff.FRAME_HEADER_BYTES + 4] ^= 1
    block.write_bytes(blob)
    found = audited(tmp_path, compressed.KEYS.key)
    assert found.returncode == 2, found
    assert "1.blk" in found.stdout
    assert "2.blk" not in found.stdout and "3.blk" not in found.stdout
