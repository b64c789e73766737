"""Counters and schedules of nats-py's clients while the leader is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster
from tests.waiting import until_told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 120
ATTEMPT_S = 3


async def connected(cluster: ClusterProcess) -> Any:
    servers = [f"nats://127.0.0.1:{node.port}" for node in cluster.nodes.values()]
    return await nats.connect(
        servers, max_reconnect_attempts=-1, reconnect_time_wait=0.1, allow_reconnect=True
    )


async def insist(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """Do it again until it is answered."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(TimeoutError, nats.errors.Error, nats.js.errors.ServiceUnavailableError):
                return await asyncio.wait_for(attempt(), ATTEMPT_S)


def create(cluster: ClusterProcess, name: str, **config: Any) -> None:
    body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3, **config}
    created = load.api(cluster, f"STREAM.CREATE.{name}", body)
    assert "error" not in created, created
    cluster.leader(name)


def test_a_counter_counts_each_increment_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    create(cluster, "C", allow_msg_counter=True, allow_direct=True)

    async def main() -> int:
        client = await connected(cluster)
        js = client.jetstream(timeout=ATTEMPT_S)
        total = 0
        for number in range(1, 61):
            headers = {"Nats-Incr": str(number), "Nats-Msg-Id": f"i{number}"}
            await insist(lambda headers=headers: js.publish("C.a", b"", headers=headers))
            total += number
            if number in (20, 40):
                victim = cluster.leader("C")
                cluster.kill(victim)
                cluster.nodes[victim].launch()
        message = await insist(lambda: js.get_last_msg("C", "C.a"))
        await client.close()
        assert int(json.loads(message.data)["val"]) == total
        return int(message.seq)

    assert asyncio.run(main()) == 60


def test_schedules_fire_each_time_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    create(cluster, "S", allow_msg_schedules=True)

    async def main() -> None:
        client = await connected(cluster)
        js = client.jetstream(timeout=ATTEMPT_S)
        for number in range(3):
            headers = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": f"S.t.{number}"}
            await insist(
                lambda headers=headers, number=number: js.publish(
                    f"S.p.{number}", b"x", headers=headers
                )
            )
        past = {"Nats-Schedule": "@at 2001-01-01T00:00:00Z", "Nats-Schedule-Target": "S.once"}
        await insist(lambda: js.publish("S.past", b"once", headers=past))
        for _ in range(2):
            await fired(js, more=4)
            victim = cluster.leader("S")
            cluster.kill(victim)
            cluster.nodes[victim].launch()
        await fired(js, more=6)
        info = await insist(lambda: js.stream_info("S"))
        brought: list[tuple[str, str]] = []
        for seq in range(1, info.state.last_seq + 1):
            with suppress(nats.js.errors.NotFoundError):
                message = await js.get_msg("S", seq)
                if message.headers and "Nats-Scheduler" in message.headers:
                    next_time = message.headers["Nats-Schedule-Next"]
                    brought.append((message.headers["Nats-Scheduler"], next_time))
        await client.close()
        assert len(brought) == len(set(brought)), brought
        assert brought.count(("S.past", "purge")) == 1
        assert {name for name, _ in brought} == {"S.past", "S.p.0", "S.p.1", "S.p.2"}

    async def fired(js: Any, more: int) -> None:
        async def last() -> int:
            return int((await insist(lambda: js.stream_info("S"))).state.last_seq)

        async def has_fired(wanted: int = await last() + more) -> bool:
            return await last() >= wanted

        await until_told(has_fired, f"{more} more messages", DEADLINE_S)

    asyncio.run(main())
