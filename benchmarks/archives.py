"""Backup and restore of one stream: how fast, and what memory the server takes for it.

    python -m benchmarks.archives                      # 1 GiB in messages of 1 KiB
    python -m benchmarks.archives --peer PATH          # a nats-server beside it
    python -m benchmarks.archives --mib 50             # to try it

The archive goes to a file and comes back from it, over one connection of nats-py, which takes its
share of the other core; half of each body compresses. A row says MiB of messages a second each way,
and how much the server's memory grew at most.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import nats
from nats.aio.client import Client

from benchmarks.servers import ServerProcess
from streamd.backup.stream_transfer import Download, api_request, upload
from streamd.types import Document
from tests.parity.runner import ours_binary

BODY_BYTES = 1024
AT_ONCE = 512
PIECE_BYTES = 1 << 20


async def fill(nc: Client, count: int) -> None:
    """Publish `count` messages into the stream B, and wait for their acks."""
    config = {"name": "B", "subjects": ["b.>"], "storage": "file", "num_replicas": 1}
    await api_request(nc, "STREAM.CREATE.B", config | {"retention": "limits"})
    for first in range(0, count, AT_ONCE):
        asks = [
            nc.request(f"b.{at % 100}", os.urandom(BODY_BYTES // 2).ljust(BODY_BYTES), timeout=60)
            for at in range(first, min(first + AT_ONCE, count))
        ]
        await asyncio.gather(*asks)


async def back_up(nc: Client, path: Path) -> Document:
    """Take the archive of B to a file."""
    download = Download(nc, "B")
    begun = await download.begin()
    with path.open("wb") as file:
        async for chunk in download.chunks():
            file.write(chunk)
    return begun


async def restore(nc: Client, path: Path, begun: Document) -> Document:
    """Make B of a file's archive."""

    async def pieces() -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    return await upload(nc, begun["config"], begun["state"], pieces())


async def measure(server: ServerProcess, mib: int, path: Path) -> str:
    """Return the row of one server."""
    count = mib * (1 << 20) // BODY_BYTES
    nc = await nats.connect(server.url)
    await fill(nc, count)
    before_mb = _begin(server)
    began = time.perf_counter()
    begun = await back_up(nc, path)
    out_s = time.perf_counter() - began
    out_mb = server.memory_mb()[1] - before_mb
    await api_request(nc, "STREAM.DELETE.B")
    before_mb = _begin(server)
    began = time.perf_counter()
    info = await restore(nc, path, begun)
    in_s = time.perf_counter() - began
    in_mb = server.memory_mb()[1] - before_mb
    await nc.close()
    assert info["state"]["messages"] == count, info["state"]
    size = path.stat().st_size / (1 << 20)
    return (
        f"| {mib} MiB, archive {size:.0f} MiB | backup {mib / out_s:.0f} MiB/s, +{out_mb:.0f} MiB "
        f"| restore {mib / in_s:.0f} MiB/s, +{in_mb:.0f} MiB |"
    )


def _begin(server: ServerProcess) -> float:
    """Have the highest memory counted from here on; return what it is now."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    return server.memory_mb()[0]


def main() -> None:
    """Run it for each server, and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--peer", default=os.environ.get("STREAMD_PEER", ""))
    arguments = parser.parse_args()
    for binary in filter(None, (ours_binary(), arguments.peer)):
        with (
            tempfile.TemporaryDirectory(prefix="streamd-bench-") as directory,
            ServerProcess(binary, directory=Path(directory) / "s") as server,
        ):
            server.start()
            path = Path(directory) / "archive"
            row = asyncio.run(measure(server, arguments.mib, path))
        print(f"{Path(binary).name}: {row}", flush=True)


if __name__ == "__main__":
    main()
