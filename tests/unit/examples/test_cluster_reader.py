"""The reader of `make run`: its consumer is made through whatever happens to the servers."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nats", reason="the client is not installed: streamd-server[demo]")

from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import NotFoundError, ServiceUnavailableError

from examples import cluster_reader
from examples.cluster_demo import ClusterReport, ReadBeside
from examples.cluster_reader import Reader, seen_in
from examples.flights import DemoError, progress_bars
from streamd.cli.cluster_local import LocalCluster, Ports

COUNT = 30


class BusyContext:
    """As nats-py's context: the first requests for a consumer meet what `losses` say."""

    def __init__(self, *losses: Exception) -> None:
        self.losses = list(losses)
        self.left = list(range(1, COUNT + 1))

    async def add_consumer(self, stream: str, config: Any) -> None:
        assert (stream, config.durable_name) == ("S", "reader")
        if self.losses:
            raise self.losses.pop(0)

    async def pull_subscribe_bind(self, consumer: str, stream: str) -> BusyContext:
        assert not self.losses
        return self

    async def fetch(self, count: int, timeout: float) -> list[Any]:
        taken, self.left = self.left[:10], self.left[10:]
        return [message(seq) for seq in taken]


def message(seq: int) -> Any:
    async def ack() -> None:
        """Heard."""

    reply = f"$JS.ACK.S.reader.1.{seq}.{seq}.1.0"
    return SimpleNamespace(subject="s", headers={}, data=b"%d" % seq, reply=reply, ack=ack)


def read(context: Any, path: Path) -> list[int]:
    reader = Reader("S", "reader", path / "seen")
    reader._wanted = COUNT
    asyncio.run(reader._read(context))
    return [seq for seq, _ in seen_in(path / "seen")]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "RETRY_S", 0.0)


def test_a_consumer_that_meets_a_killed_leader_is_asked_for_again(tmp_path: Path) -> None:
    lost = "unable to perform operation on <TCPTransport closed=True>"
    context = BusyContext(
        ServiceUnavailableError(code=503, err_code=10008, description="unavailable"),
        NatsTimeout(),
        NoRespondersError(),
        RuntimeError(lost),
    )
    assert read(context, tmp_path) == list(range(1, COUNT + 1))


def test_a_consumer_that_can_not_be_is_asked_for_once(tmp_path: Path) -> None:
    gone = NotFoundError(code=404, err_code=10059, description="stream not found")
    with pytest.raises(NotFoundError):
        read(BusyContext(gone, NatsTimeout()), tmp_path)


def test_a_consumer_that_is_never_made_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_reader, "NEW_WITHIN_S", 0.0)
    with pytest.raises(NatsTimeout):
        read(BusyContext(NatsTimeout(), NatsTimeout()), tmp_path)


def test_the_reader_says_why_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = NotFoundError(code=404, err_code=10059, description="stream not found")

    async def nothing() -> None:
        """Nobody waits for it."""

    async def connect(servers: list[str], **_: Any) -> Any:
        assert servers == ["nats://one", "nats://two"]
        return SimpleNamespace(jetstream=lambda: BusyContext(gone), close=nothing)

    monkeypatch.setattr(cluster_reader.nats, "connect", connect)
    monkeypatch.setattr(Reader, "_listen", lambda self: asyncio.sleep(60))
    asked = ["--servers", "nats://one,nats://two", "--stream", "S", "--consumer", "reader"]
    assert cluster_reader.main([*asked, "--out", str(tmp_path / "seen")]) == 1
    told = capsys.readouterr().err
    assert "stream not found" in told
    assert "Traceback" not in told


def test_a_reader_that_ends_early_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    false = shutil.which("false")
    assert false is not None
    monkeypatch.setattr(sys, "executable", false)
    cluster = LocalCluster.create(tmp_path, Ports(1, 2, 3))

    async def run() -> None:
        with progress_bars() as progress:
            beside = ReadBeside(cluster, ClusterReport(), progress)
            await beside.start()
            await beside.follow(COUNT)

    with pytest.raises(DemoError, match="the reader ended with status 1"):
        asyncio.run(run())
