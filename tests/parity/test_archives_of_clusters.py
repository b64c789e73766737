"""Archives between clusters of three, streams with one and with three replicas, every client at
another node than the stream's leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from benchmarks.cluster import ClusterProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.parity.test_archives import api, archive, content, fill, publish, restore
from tests.waiting import until_told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ClusterProcess]]:
    binaries = {"ours": ours_binary(), "peer": peer_binary()}
    if not all(binaries.values()):
        pytest.skip("streamd or nats-server (STREAMD_PEER) is not here")
    found: dict[str, ClusterProcess] = {}
    try:
        for name, binary in binaries.items():
            found[name] = ClusterProcess(binary, directory=tmp_path_factory.mktemp(name))
            found[name].start()
        yield found
    finally:
        for cluster in found.values():
            cluster.close()


def floors(consumers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What an archive of a cluster of nats-server tells of consumers: all but what they delivered
    beyond the ack floor."""
    return [
        {key: each[key] for key in ("name", "config")}
        | ({"ack_floor": each["ack_floor"]} if each["ack_floor"]["consumer_seq"] else {})
        for each in consumers
    ]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("source,target", [("ours", "peer"), ("peer", "ours"), ("ours", "ours")])
def test_an_archive_goes_from_cluster_to_cluster(
    clusters: dict[str, ClusterProcess], source: str, target: str, replicas: int
) -> None:
    """From each node of one to each node of the other."""
    stream = f"C_{source}_{target}_{replicas}"

    async def run() -> None:
        one = await nats.connect(clusters[source].urls[0])
        try:
            await fill(one, stream, replicas)
            before = await content(one, stream)
            for at, (from_url, to_url) in enumerate(
                zip(clusters[source].urls, clusters[target].urls, strict=True)
            ):
                reader, writer = await nats.connect(from_url), await nats.connect(to_url)
                begun, blob = await archive(reader, stream, chunk_bytes=8192)
                if source == target:
                    await api(reader, f"STREAM.DELETE.{stream}")
                info = await restore(writer, begun, blob)
                assert info["config"]["num_replicas"] == replicas

                def told(found: list[Any]) -> list[Any]:
                    return [*found[:2], floors(found[2])] if source == "peer" else found

                wanted = told(before)

                async def is_same(writer: Client = writer, wanted: list[Any] = wanted) -> bool:
                    return told(await content(writer, stream)) == wanted

                # In a cluster of nats-server consumers come later, and what they had later still.
                await until_told(is_same, f"{before} at {to_url}")
                await publish(writer, f"{stream}.next.{at}", b"on")
                if source == target:
                    before = await content(writer, stream)
                else:
                    await api(writer, f"STREAM.DELETE.{stream}")
                await reader.close()
                await writer.close()
        finally:
            await one.close()

    asyncio.run(run())
