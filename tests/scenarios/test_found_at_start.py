"""What is damaged or missing when a node starts is told (WRN), counted, and made good."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamd.types import META_UID
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import check_blocks, cut, damages_of


def snaps(cluster: Cluster, directory: str) -> list[str]:
    """Paths of the snapshots there, the newest first."""
    disk = cluster.hosts["n2"].disk
    names = [name for name in disk.listdir(directory) if name.endswith(".snap")]
    return [f"{directory}/{name}" for name in sorted(names, reverse=True)]


def log_gone(cluster: Cluster) -> None:
    cluster.hosts["n2"].disk.wipe(f"{ROOT}/wal")


def stream_gone(cluster: Cluster) -> None:
    cluster.hosts["n2"].disk.wipe(cluster.directory("S"))


def streams_gone(cluster: Cluster) -> None:
    cluster.hosts["n2"].disk.wipe(f"{ROOT}/streams")


def snapshots_gone(cluster: Cluster) -> None:
    for path in snaps(cluster, cluster.directory("S")):
        cluster.hosts["n2"].disk.wipe(path)


def snapshots_flipped(cluster: Cluster) -> None:
    for path in snaps(cluster, cluster.directory("S")):
        cluster.hosts["n2"].disk.flip(path, 100)


def newest_snapshot_flipped(cluster: Cluster) -> None:
    cluster.hosts["n2"].disk.flip(snaps(cluster, cluster.directory("S"))[0], 100)


def newest_snapshot_cut(cluster: Cluster) -> None:
    cut(cluster.hosts["n2"].disk, snaps(cluster, cluster.directory("S"))[0], 40)


def meta_gone(cluster: Cluster) -> None:
    cluster.hosts["n2"].disk.wipe(f"{ROOT}/meta")


def meta_snapshots_gone(cluster: Cluster) -> None:
    for path in snaps(cluster, f"{ROOT}/meta"):
        cluster.hosts["n2"].disk.wipe(path)


def newest_meta_snapshot_flipped(cluster: Cluster) -> None:
    cluster.hosts["n2"].disk.flip(snaps(cluster, f"{ROOT}/meta")[0], 100)


def sealed_block_gone(cluster: Cluster) -> None:
    cluster.hosts["n2"].disk.wipe(f"{cluster.directory('S')}/1.blk")


def sealed_block_cut(cluster: Cluster) -> None:
    cut(cluster.hosts["n2"].disk, f"{cluster.directory('S')}/1.blk", 1000)


Loss = Callable[[Cluster], None]
LOSSES: list[Loss] = [
    log_gone, stream_gone, streams_gone, snapshots_gone, snapshots_flipped, newest_snapshot_flipped,
    newest_snapshot_cut, meta_gone, meta_snapshots_gone, newest_meta_snapshot_flipped,
    sealed_block_gone, sealed_block_cut,
]  # fmt: skip


def filled(cluster: Cluster, replicas: int) -> None:
    """Blocks that are sealed, and two snapshots of each group on each node."""
    cluster.create(replicas=replicas)
    for turn in range(2):
        cluster.publish(150, size=400)
        cluster.save(cluster.uid("S"))
        for name in cluster.names:
            cluster.save(META_UID, name)
        if not turn:
            cluster.create(f"T{turn}", replicas=replicas)


def told(cluster: Cluster) -> int:
    """Lines in the log that an operator would look at."""
    return sum(
        count
        for line, count in cluster.world.counts.items()
        if line.startswith(("log warning: ", "log error: "))
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_node_of_a_cluster_tells_and_counts_what_it_finds(cluster: Cluster, loss: Loss) -> None:
    filled(cluster, 3)
    cluster.until_whole()
    cluster.kill("n2")
    loss(cluster)
    before = told(cluster)
    cluster.boot("n2")
    cluster.until("counted", lambda: damages_of(cluster, "n2"), 5)
    assert told(cluster) > before
    cluster.until_whole()
    check_blocks(cluster)
    cluster.until("well", lambda: cluster.health("n2").status == 200)
    found = damages_of(cluster, "n2")
    cluster.run_ms(5000)
    assert damages_of(cluster, "n2") == found <= 3
    cluster.save(cluster.uid("S"), "n2")
    cluster.save(META_UID, "n2")
    cluster.kill("n2")
    cluster.boot("n2")
    cluster.until_whole()
    assert damages_of(cluster, "n2") == 0


def test_a_start_that_finds_all_tells_nothing(cluster: Cluster) -> None:
    filled(cluster, 3)
    for name in cluster.names:
        cluster.kill(name)
        cluster.boot(name)
        cluster.until_whole()
        assert damages_of(cluster, name) == 0


@pytest.mark.parametrize("loss", ["gone", "cut"])
def test_a_lost_block_of_the_only_copy_is_told_at_the_start(make: Make, loss: str) -> None:
    """As one that is lost while the server runs: the log, the metric, /healthz; the rest is
    served."""
    cluster = make(1)
    filled(cluster, 1)
    index = cluster.machine("n1", "S").index
    block = next(block for block in index.blocks if block.block_no == 1)
    sizes = {
        seq: index.locations.size_of(seq) for seq in range(block.first_seq, block.last_seq + 1)
    }
    cluster.kill("n1")
    path = f"{cluster.directory('S')}/1.blk"
    if loss == "gone":
        cluster.hosts["n1"].disk.wipe(path)
    else:
        cut(cluster.hosts["n1"].disk, path, 1000)
    cluster.boot("n1")
    cluster.until("counted", lambda: damages_of(cluster, "n1"), 2)
    assert damages_of(cluster, "n1") == 1
    assert "1.blk" in cluster.node("n1").parts.integrity.corruption.reasons[cluster.uid("S")]
    assert "1.blk" in cluster.health("n1").text
    lost = cluster.info()["state"]["lost"]
    assert lost == {"msgs": sorted(sizes), "bytes": sum(sizes.values())}
    assert 10 < max(sizes) < 100
    assert cluster.publish(10)[-1] == 310
