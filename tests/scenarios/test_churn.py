"""Streams and consumers that come and go leave nothing behind, on any node."""

from __future__ import annotations

from tests.holdings import grown, sizes
from tests.scenarios.driver import Cluster

ROUND = 24


def come_and_go(cluster: Cluster, first: int) -> None:
    for number in range(first, first + ROUND):
        name, at = f"S{number}", cluster.names[number % 3]
        storage = "memory" if number % 2 else "file"
        cluster.create(name, at=at, replicas=1 + 2 * (number % 4 > 0), storage=storage)
        cluster.publish(3, name, at=at)
        cluster.consumer(name, "C")
        cluster.ack(cluster.pull(2, name, "C", at=at), name, at=at)
        if number % 3:
            cluster.ask(f"CONSUMER.DELETE.{name}.C", at=at)
        if number % 5 == 0:
            cluster.step_down(name)
        assert cluster.ask(f"STREAM.DELETE.{name}", at=at)["success"]


def test_nothing_is_kept_of_streams_that_are_gone(cluster: Cluster) -> None:
    come_and_go(cluster, 0)
    cluster.run_ms(3000)
    before = {name: sizes(cluster.node(name)) for name in cluster.names}
    come_and_go(cluster, ROUND)
    cluster.run_ms(3000)
    for name in cluster.names:
        kept = grown(before[name], sizes(cluster.node(name)), ROUND // 3)
        # Entries of the meta group's log: until its next snapshot.
        assert not {what for what in kept if not what.startswith("Entry.")}, name
