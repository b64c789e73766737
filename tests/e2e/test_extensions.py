"""Producers and dead letters of nats-py's clients while the leaders are killed."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from contextlib import suppress
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster
from tests.e2e.test_stream_features import ATTEMPT_S, DEADLINE_S, connected, create, insist
from tests.waiting import until_told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COUNT = 90


def test_each_message_is_stored_once_and_ends_once(make_cluster: MakeCluster) -> None:
    """A producer fills a work queue; of its messages a third is acked, a third terminated, a third
    refused until it is given up. The leaders of both streams are killed under way. Each message is
    stored once, none is left, and each that was not acked is one dead letter."""
    cluster = make_cluster()
    create(cluster, "Q", retention="workqueue", duplicate_window=100_000_000)
    create(cluster, "D", duplicate_window=100_000_000)
    config = {
        "durable_name": "C", "ack_policy": "explicit", "ack_wait": 2_000_000_000, "max_deliver": 2,
        "metadata": {"streamd.dead_letter": "D.q", "streamd.lag": "true"},
    }  # fmt: skip
    made = load.api(cluster, "CONSUMER.CREATE.Q.C", {"stream_name": "Q", "config": config})
    assert "error" not in made, made
    assert made["dead_letters"] == {"subject": "D.q", "waiting": 0}

    async def main() -> None:
        client = await connected(cluster)
        js = client.jetstream(timeout=ATTEMPT_S)
        for number in range(1, COUNT + 1):
            headers = {"Nats-Producer-Id": "orders", "Nats-Producer-Seq": str(number)}
            body = str(number).encode()
            await insist(
                lambda body=body, headers=headers: js.publish("Q.a", body, headers=headers)
            )
            if number == COUNT // 2:
                kill(cluster, "Q")
        last = {"Nats-Producer-Id": "orders", "Nats-Producer-Seq": str(COUNT)}
        again = await insist(lambda: js.publish("Q.a", b"again", headers=last))
        assert again.duplicate
        check_lag(cluster)
        work = asyncio.create_task(consume(client))
        for stream in ("D", "Q"):
            await stored(js, "D", COUNT // 6)
            kill(cluster, stream)

        async def is_empty() -> bool:
            return not (await insist(lambda: js.stream_info("Q"))).state.messages

        await until_told(is_empty, "the queue is empty", DEADLINE_S)
        work.cancel()
        info = await insist(lambda: js.stream_info("D"))
        bodies: Counter[int] = Counter()
        reasons: Counter[str] = Counter()
        for seq in range(1, info.state.last_seq + 1):
            letter = await insist(lambda seq=seq: js.get_msg("D", seq))
            bodies[int(letter.data)] += 1
            reasons[letter.headers["Nats-Dead-Letter-Reason"]] += 1
            assert letter.headers["Nats-Dead-Letter-Subject"] == "Q.a"
        await client.close()
        wanted = [number for number in range(1, COUNT + 1) if number % 3]
        assert sorted(bodies.elements()) == wanted
        assert reasons.keys() == {"terminated", "max_deliver"}

    asyncio.run(main())


async def consume(client: Any) -> None:
    """Ack, terminate or refuse each message by its number."""
    js = client.jetstream(timeout=ATTEMPT_S)
    pull = await insist(lambda: js.pull_subscribe_bind("C", "Q"))
    while True:
        with suppress(TimeoutError, nats.errors.Error, nats.js.errors.Error):
            for message in await pull.fetch(10, timeout=1):
                kind = int(message.data) % 3
                if not kind:
                    await message.ack()
                elif kind == 1:
                    await message.term()
                else:
                    await message.nak()


async def stored(js: Any, stream: str, least: int) -> None:
    async def has_them() -> bool:
        return bool((await insist(lambda: js.stream_info(stream))).state.messages >= least)

    await until_told(has_them, f"{least} messages in {stream}", DEADLINE_S)


def kill(cluster: ClusterProcess, stream: str) -> None:
    victim = cluster.leader(stream)
    cluster.kill(victim)
    cluster.nodes[victim].launch()


def check_lag(cluster: ClusterProcess) -> None:
    """Nothing is consumed yet: the first message is the oldest, in the info and in /metrics."""
    info = load.api(cluster, "CONSUMER.INFO.Q.C")
    assert info["lag"]["unprocessed_seq"] == info["lag"]["undelivered_seq"] == 1
    assert info["lag"]["unprocessed_age"] > 0
    leader = cluster.nodes[cluster.leader("Q")]
    with urllib.request.urlopen(f"http://127.0.0.1:{leader.http_port}/metrics", timeout=30) as page:
        text = page.read().decode()
    (line,) = [
        line for line in text.splitlines()
        if line.startswith("streamd_consumer_oldest_unprocessed_age_seconds{") and '"C"' in line
    ]  # fmt: skip
    assert float(line.rpartition(" ")[2]) > 0
