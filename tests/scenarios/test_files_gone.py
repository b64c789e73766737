"""Files of a stream, or whole directories, are removed under running nodes.

Whoever meets the gap first, a write, a snapshot or the scrubber: with peers it is damage like any
other, and comes back from them. No stream stops, and nothing acked is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import damages_of, fast_scrubbing


def stream(cluster: Cluster, name: str) -> list[str]:
    return [cluster.directory("S")]


def growing_block(cluster: Cluster, name: str) -> list[str]:
    return [
        f"{cluster.directory('S')}/{cluster.machine(name, 'S').index.blocks.active.block_no}.blk"
    ]


def snapshots(cluster: Cluster, name: str) -> list[str]:
    disk, directory = cluster.hosts[name].disk, cluster.directory("S")
    return [f"{directory}/{one}" for one in disk.listdir(directory) if one.endswith(".snap")]


def streams(cluster: Cluster, name: str) -> list[str]:
    return [f"{ROOT}/streams"]


def streams_and_trash(cluster: Cluster, name: str) -> list[str]:
    return [f"{ROOT}/streams", f"{ROOT}/trash"]


Gone = Callable[[Cluster, str], list[str]]
LOSSES: list[Gone] = [stream, growing_block, snapshots, streams, streams_and_trash]


def publish(cluster: Cluster, count: int) -> None:
    """Messages of 600 bytes: a block of the simulator's has 25 of them."""
    cluster.publish(count, size=600, chunk=10)


def check(cluster: Cluster, name: str, before: int) -> None:
    cluster.until("noticed", lambda: damages_of(cluster, name) > before, 30)
    cluster.until_whole()
    assert cluster.events("error: stream stopped") == 0
    assert cluster.health(name).status == 200


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_write_meets_the_missing_file(cluster: Cluster, loss: Gone, is_leader: bool) -> None:
    """No scrubber comes by: blocks are written, sealed, and snapshots taken."""
    cluster.create()
    publish(cluster, 100)
    leader = cluster.leader("S")
    name = leader if is_leader else cluster.followers("S")[0]
    cluster.save(cluster.uid("S"))
    before = damages_of(cluster, name)
    for path in loss(cluster, name):
        cluster.hosts[name].disk.wipe(path)
    publish(cluster, 200)
    replica = cluster.node(name).replica(cluster.uid("S"))
    assert replica is not None
    cluster.process(name).run(replica.store.flush)
    if loss is snapshots:
        cluster.save(cluster.uid("S"), name)
    if loss is not snapshots:  # which the next one makes good
        check(cluster, name, before)
    cluster.until_whole()
    for one in cluster.names:
        assert len(cluster.read(one)) == 300, one


@pytest.mark.parametrize("loss", LOSSES)
def test_the_scrubber_meets_the_gap(make: Make, loss: Gone) -> None:
    with fast_scrubbing():
        cluster = make()
        cluster.create()
        publish(cluster, 100)
        name = cluster.followers("S")[0]
        cluster.save(cluster.uid("S"))
        before = damages_of(cluster, name)
        cluster.run_ms(2000)
        for path in loss(cluster, name):
            cluster.hosts[name].disk.wipe(path)
        check(cluster, name, before)
        publish(cluster, 40)
        cluster.until_whole()


def test_the_meta_directory_is_gone(make: Make) -> None:
    """All it had is in memory: the next snapshot makes the directory again, on each node."""
    with fast_scrubbing():
        cluster = make()
        cluster.create()
        for name in cluster.names:
            cluster.save(0, name)
            cluster.hosts[name].disk.wipe(f"{ROOT}/meta")
        for name in cluster.names:
            cluster.until("told", lambda: damages_of(cluster, name))  # noqa: B023
        cluster.create("T")
        for name in cluster.names:
            cluster.save(0, name)
            cluster.kill(name)
            cluster.boot(name)
            assert damages_of(cluster, name) == 0
        cluster.until_whole("T")
