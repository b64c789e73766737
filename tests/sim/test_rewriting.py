"""Blocks that hold little are rewritten: a bucket's cold keys do not keep its history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamd import limits
from streamd.machine.base import REWRITTEN
from tests.scenarios import driver
from tests.scenarios.driver import setting

pytestmark = pytest.mark.slow

BLOCK_BYTES = 16 * 1024  # as the simulator has them
ROUNDS = 40
HOT_KEYS = 20


class Cluster(driver.Cluster):
    """Has a bucket: the newest message of each subject stays."""

    def fill(self, **config: object) -> None:
        """Each round writes one key that is never written again, and all hot ones."""
        self.create(max_msgs_per_subject=1, **config)  # type: ignore[arg-type]
        for number in range(ROUNDS):
            self.publish(1, subject=f"cold{number}", size=100)
            for key in range(HOT_KEYS):
                self.publish(1, subject=f"hot{key}", size=1000)

    def block_numbers(self, name: str) -> list[int]:
        group = self.group(name, "S")
        assert group is not None
        return [block.block_no for block in group.machine.index.blocks]

    def is_small(self) -> bool:
        """True if every replica has but a few blocks, rewritten ones among them."""
        found = [self.block_numbers(name) for name in self.replicas()]
        return all(len(blocks) <= 8 and max(blocks) >= REWRITTEN for blocks in found)

    def replicas(self) -> list[str]:
        return [name for name in self.running() if self.group(name, "S") is not None]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, seed=1) as cluster:
        cluster.boot()
        yield cluster


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_cold_keys_do_not_keep_blocks(cluster: Cluster, replicas: int, storage: str) -> None:
    cluster.fill(replicas=replicas, storage=storage)
    written = ROUNDS * HOT_KEYS * 1000 // BLOCK_BYTES
    cluster.until("rewritten", cluster.is_small, 10)
    assert written > 40
    before = cluster.read(cluster.replicas()[0])
    assert len(before) == ROUNDS + HOT_KEYS
    cluster.until_whole()


def test_files_of_rewritten_blocks_go_and_a_restart_finds_the_rest(cluster: Cluster) -> None:
    with setting(limits, "RECLAIM_BYTES", 64 * 1024):
        cluster.fill()
        cluster.until("rewritten", cluster.is_small, 10)

        def held() -> int:
            inside = f"{cluster.directory('S')}/"
            return max(
                sum(len(h.disk.contents(p)) for p in h.disk.paths if p.startswith(inside))
                for h in cluster.hosts.values()
            )

        cluster.until("given back", lambda: held() < 12 * BLOCK_BYTES, 30)
    before = cluster.read(cluster.running()[0])
    for name in cluster.running():
        cluster.lose_power(name)
        cluster.boot(name)
        cluster.until_whole()
    assert cluster.read(cluster.running()[0]) == before


def test_a_replica_that_was_away_gets_rewritten_blocks_from_a_peer(cluster: Cluster) -> None:
    away = cluster.running()[-1]
    cluster.create(max_msgs_per_subject=1)
    cluster.stop(away)
    for number in range(ROUNDS):
        cluster.publish(1, subject=f"cold{number}", size=100)
        for key in range(HOT_KEYS):
            cluster.publish(1, subject=f"hot{key}", size=1000)
    cluster.until("rewritten", cluster.is_small, 10)
    uid = cluster.uid("S")
    for _ in range(2):
        cluster.save(uid, *cluster.running())
        cluster.publish(100, subject="hot0", size=1000)
    cluster.boot(away)
    cluster.until_whole()
    assert max(cluster.block_numbers(away)) >= REWRITTEN
