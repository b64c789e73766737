"""Fast batches of real clients: nats-py by the wire, and `@nats-io/jetstream`'s fast ingest."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest

from benchmarks.servers import ServerProcess
from streamd.backup.stream_transfer import api_request
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster, Run
from tests.e2e.fast_publisher import FastPublisher
from tests.e2e.javascript import modules, run_node

__all__ = ["modules"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# What `nats bench js pub --create` asks for: atomic and fast batches on one stream.
BENCH: dict[str, Any] = {
    "name": "benchstream", "subjects": ["benchsubject.>"], "retention": "limits",
    "max_consumers": -1, "max_msgs": -1, "max_bytes": 1 << 30, "discard": "new", "max_age": 0,
    "max_msgs_per_subject": -1, "max_msg_size": -1, "storage": "file", "num_replicas": 1,
    "duplicate_window": 120_000_000_000, "compression": "none", "allow_direct": False,
    "mirror_direct": False, "sealed": False, "deny_delete": False, "deny_purge": False,
    "allow_rollup_hdrs": False, "consumer_limits": {}, "allow_msg_ttl": False,
    "allow_atomic": True, "allow_batched": True, "metadata": None,
}  # fmt: skip


async def stored(client: Any, stream: str) -> list[tuple[int, bytes]]:
    """Return all messages: seq and payload."""
    js = client.jetstream()
    sub = await js.subscribe("", stream=stream, ordered_consumer=True)
    found: list[tuple[int, bytes]] = []
    last = (await js.stream_info(stream)).state.last_seq
    while not found or found[-1][0] < last:
        msg = await sub.next_msg(timeout=60)
        found.append((msg.metadata.sequence.stream, msg.data))
    return found


def test_a_batch_of_nats_py_is_stored_in_order_and_acked_ever_more_seldom(
    server: ServerProcess, run: Run
) -> None:
    async def main() -> None:
        client = await nats.connect(server.url)
        made = await api_request(client, "STREAM.CREATE.benchstream", BENCH)
        assert made["config"]["allow_batched"] and made["config"]["allow_atomic"]
        batch = FastPublisher(client, flow=200)
        for number in range(5000):
            await batch.add(f"benchsubject.{number % 7}", b"%d" % number)
        result = await batch.commit("benchsubject.last", b"5000")
        assert (result["stream"], result["seq"], result["count"]) == ("benchstream", 5001, 5001)
        assert batch.flows[-1] == max(batch.flows) == 200 and not batch.gaps
        assert len(batch.flows) < 100
        found = await stored(client, "benchstream")
        assert found == [(number + 1, b"%d" % number) for number in range(5001)]
        await client.close()

    run(main())


def test_several_batches_and_plain_publishes_side_by_side(server: ServerProcess, run: Run) -> None:
    """Refused messages are told where the batch goes on; each batch keeps its own order."""

    async def main() -> None:
        client = await nats.connect(server.url)
        js = client.jetstream()
        config = BENCH | {"name": "F", "subjects": ["f.>"]}
        await api_request(client, "STREAM.CREATE.F", config)

        async def ingest(name: str) -> FastPublisher:
            batch = FastPublisher(client, flow=50, is_ok=True)
            for number in range(300):
                payload = b"%b %d" % (name.encode(), number)
                wrong = {"Nats-Expected-Last-Sequence": "999999"} if number % 100 == 50 else None
                await batch.add(f"f.{name}", payload, wrong)
            await batch.end()
            return batch

        async def publish() -> None:
            for number in range(100):
                await js.publish("f.plain", b"plain %d" % number)

        *batches, _ = await asyncio.gather(*map(ingest, "abcd"), publish())
        for batch in batches:
            assert batch.result is not None and batch.result["count"] == 300
            assert [error["seq"] for error in batch.errors] == [51, 151, 251]
            assert {error["error"]["err_code"] for error in batch.errors} == {10071}
        found = [payload.split() for _, payload in await stored(client, "F")]
        for name in (b"a", b"b", b"c", b"d"):
            assert [int(row[1]) for row in found if row[0] == name] == [
                number for number in range(300) if number % 100 != 50
            ]
        assert sum(row[0] == b"plain" for row in found) == 100
        await client.close()

    run(main())


def test_a_batch_goes_on_when_the_leader_is_killed(make_cluster: MakeCluster, run: Run) -> None:
    """What was lost on the way is told as a gap, nothing comes twice, and the end is acked."""
    cluster = make_cluster()
    config = BENCH | {"name": "R", "subjects": ["r.>"], "num_replicas": 3}
    created = load.api(cluster, "STREAM.CREATE.R", config)
    assert "error" not in created, created
    leader = cluster.leader("R")
    cluster.wait_until(lambda: cluster.is_whole("R"), "whole")
    other = next(node for name, node in cluster.nodes.items() if name != leader)

    async def main() -> None:
        client = await nats.connect(other.url, max_reconnect_attempts=-1)
        batch = FastPublisher(client, is_ok=True)
        for number in range(1, 3001):
            await batch.add(f"r.{number % 3}", b"%d" % number)
            if number == 1000:
                cluster.kill(leader)
        result = await batch.end()
        assert result.get("count") == 3000, result
        found = [int(payload) for _, payload in await stored(client, "R")]
        assert found == sorted(set(found))
        missing = set(range(1, 3001)) - set(found)
        assert missing <= {number for gap in batch.gaps for number in gap} | {
            error["seq"] for error in batch.errors
        }
        assert found[-1] == 3000 and len(found) > 2000
        await client.close()

    run(main())


def test_javascript_fast_ingest(modules: Path, server: ServerProcess) -> None:
    run_node(modules, "fast.mjs", server.url)
