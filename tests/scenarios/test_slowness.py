"""Acks that do not come: the log of the server says whether it waits for the disk."""

from __future__ import annotations

from tests.scenarios.driver import Cluster

SLOW = "the disk is slow: nothing is acked until the log is written"


def test_a_disk_that_hangs_is_told_of_once_and_by_healthz(cluster: Cluster) -> None:
    cluster.create(replicas=3)
    cluster.publish(10)
    name = next(each for each in cluster.running() if each != cluster.leader("S"))
    wal = cluster.node(name).parts.context.wal
    assert cluster.health(name).status == 200
    cluster.process(name).run(wal.hold)
    cluster.run_ms(5000)
    assert cluster.events(SLOW) == 1
    assert "for the disk" not in cluster.health(name).text
    cluster.run_ms(8000)
    assert cluster.events(SLOW) == 1
    health = cluster.health(name)
    assert health.status == 503 and "s for the disk" in health.text
    cluster.process(name).run(wal.resume)
    cluster.run_ms(2000)
    assert cluster.events("the log is written again") == 1
    cluster.until_whole()
    assert cluster.health(name).status == 200


def test_a_server_that_stood_still_says_so(cluster: Cluster) -> None:
    cluster.create(replicas=3)
    name = cluster.leader("S")
    cluster.process(name).pause()
    cluster.run_ms(5000)
    cluster.process(name).resume()
    cluster.run_ms(3000)
    assert cluster.events("the server was suspended or blocked") == 1
    assert cluster.events(SLOW) == 0
