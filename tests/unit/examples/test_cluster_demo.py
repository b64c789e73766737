"""The publisher of `make run`: what it does when its connection is lost under its hands."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nats", reason="the client is not installed: streamd-server[demo]")

from examples import cluster_demo
from examples.cluster_demo import ClusterReport, Publisher
from examples.flights import Flights

KEYS = [f"key {number}" for number in range(20)]


class LosingContext:
    """As nats-py's context: each third publish meets a closed socket, each fifth is refused."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()
        self.calls = 0

    async def publish_async(self, _: str, __: bytes, *, headers: dict[str, str]) -> Any:
        self.calls += 1
        self.tries[headers["Nats-Msg-Id"]] += 1
        if self.calls % 3 == 0:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")
        future = asyncio.get_running_loop().create_future()
        if self.calls % 5 == 0:
            future.set_exception(ConnectionError("no responders"))
        else:
            future.set_result(SimpleNamespace(seq=self.calls))
        return future


def test_failed_publishes_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_demo, "PAUSE_S", 0.0)
    context = LosingContext()
    connection: Any = SimpleNamespace(jetstream=lambda **_: context)
    flights = Flights(KEYS, ["flights.a"] * len(KEYS), [b"{}"] * len(KEYS))
    report = ClusterReport()
    advanced: list[int] = []
    asyncio.run(Publisher(connection, flights, report, advanced.append).run())
    assert sorted(report.acked) == list(range(len(KEYS)))
    assert sum(advanced) == len(KEYS)
    assert set(context.tries) == set(KEYS)
    assert report.published == context.calls > len(KEYS)
