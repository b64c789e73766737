"""docs/move.md: its commands, as they stand there, from a real nats-server to streamd and back."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import nats
import pytest

from benchmarks.servers import ServerProcess
from tests.e2e.ctl.conftest import run_ctl
from tests.parity.test_archives import content, fill

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "move.md"


def commands(old: str, new: str, place: Path) -> list[list[str]]:
    """The command lines of the page, for these servers and that directory."""
    lines = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    ")]
    made = []
    for line in lines:
        line = line.replace("nats://old:4222", old).replace("nats://new:4222", new)
        made.append(shlex.split(line.replace("/backups", str(place)))[1:])
    return made


def test_the_commands_of_the_page_move_streams_there_and_back(
    ours: ServerProcess, peer: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step both servers have the same: messages, and consumers."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NATS_TIMEOUT", "20s")

    async def state(url: str) -> list[object]:
        nc = await nats.connect(url)
        try:
            return await content(nc, "ORDERS")
        finally:
            await nc.close()

    async def begin() -> None:
        nc = await nats.connect(peer.url)
        await fill(nc, "ORDERS")
        await nc.close()

    asyncio.run(begin())
    before = asyncio.run(state(peer.url))
    lines = commands(peer.url, ours.url, tmp_path / "backups")
    assert len(lines) == 11
    for words in lines:
        done = run_ctl(*words)
        assert done.status == 0, (words, done.err)
        if "restore" in words:
            where = peer.url if peer.url in words else ours.url
            assert asyncio.run(state(where)) == before, words
    for server in (ours, peer):
        assert run_ctl("--server", server.url, "stream", "delete", "ORDERS", "--yes").status == 0
