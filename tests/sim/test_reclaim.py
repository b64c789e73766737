"""What is deleted gives its room on the disk back, also where nothing is stored any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamd import limits
from streamd.types import NodeId
from tests.scenarios import driver
from tests.scenarios.driver import setting

MSG_BYTES = 8 * 1024
MSGS = 160  # more than a block that is worth a new file


class Cluster(driver.Cluster):
    """Knows what its streams take on the disks."""

    def save_everywhere(self) -> None:
        uid = self.uid("S")
        self.save(uid, *[name for name in self.hosts if self.group(name, "S") is not None])

    def block_bytes(self) -> int:
        inside = f"{self.directory('S')}/"
        return sum(
            len(host.disk.contents(path))
            for host in self.hosts.values()
            for path in host.disk.paths
            if path.startswith(inside) and path.endswith(".blk")
        )


def block_bytes_at(cluster: Cluster, name: NodeId) -> int:
    inside, disk = f"{cluster.directory('S')}/", cluster.hosts[name].disk
    paths = [path for path in disk.paths if path.startswith(inside) and path.endswith(".blk")]
    return sum(len(disk.contents(path)) for path in paths)


@pytest.fixture(params=[1, 3])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(3, seed=1) as cluster:
        cluster.boot()
        cluster.create(replicas=request.param)
        cluster.publish(MSGS, size=MSG_BYTES)
        cluster.save_everywhere()
        assert cluster.block_bytes() >= MSGS * MSG_BYTES
        yield cluster


def test_a_purge_gives_back_the_room_though_nothing_is_stored_after_it(cluster: Cluster) -> None:
    held = cluster.block_bytes()
    within_s = 3 * limits.RECLAIM_AFTER_MS / 1000
    with setting(limits, "RECLAIM_BYTES", 256 * 1024):
        cluster.ask("STREAM.PURGE.S")
        cluster.until("given back", lambda: cluster.block_bytes() < held / 10, within_s)
    cluster.publish(10)
    cluster.until_whole()


def test_a_little_room_is_not_worth_snapshots(cluster: Cluster) -> None:
    held = cluster.block_bytes()
    cluster.ask("STREAM.PURGE.S")
    cluster.run_ms(4 * limits.RECLAIM_AFTER_MS)
    assert cluster.block_bytes() >= held


def test_followers_on_full_disks_give_room_back_as_soon_as_the_leader(cluster: Cluster) -> None:
    """Only the leader hears of refused publishes, but what it lets in again is stored by all."""
    uid = cluster.uid("S")
    members = [name for name in cluster.hosts if cluster.group(name, "S") is not None]
    held = {name: block_bytes_at(cluster, name) for name in members}
    for name in members:
        disk = cluster.hosts[name].disk
        disk.capacity = disk.used_bytes + cluster.node(name).parts.quotas.storage.reserve_bytes // 2
        cluster.node(name).parts.quotas.storage.reserve(
            limits.ROOM_LOOK_BYTES
        )  # looks at the disk again
    cluster.ask("STREAM.PURGE.S")
    leader = cluster.leader_name(uid)
    for _ in range(4):  # refused, or let in once there is room
        cluster.publish_raw("S", [(b"S.x", b"", b"x")], leader)
        cluster.run_ms(limits.RECLAIM_EVERY_MS)
    left = {name: block_bytes_at(cluster, name) for name in members}
    assert all(left[name] < held[name] / 10 for name in members), (left, held)
    for name in members:
        cluster.hosts[name].disk.capacity = 1 << 40
    cluster.until_whole()
