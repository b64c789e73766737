"""`node.json` and its copy: whose data this is, and what it may have forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamd.store.node_file import NAMES
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import cut, damages_of, fast_scrubbing
from tests.sim.disk import SimDisk

Harm = Callable[[SimDisk, str], None]
HARMS: dict[str, Harm] = {
    "flipped": lambda disk, path: disk.flip(path, 30, 4),
    "cut": lambda disk, path: cut(disk, path, 20),
    "empty": lambda disk, path: cut(disk, path, 0),
    "removed": lambda disk, path: disk.wipe(path),
}
PATHS = [f"{ROOT}/{name}" for name in NAMES]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("paths", [PATHS[:1], PATHS[1:], PATHS], ids=["first", "second", "both"])
def test_damage_while_the_node_runs_is_mended_at_once(
    make: Make, harm: str, paths: list[str]
) -> None:
    """The scrubber reads both files. What they say is in memory; the next start has it."""
    with fast_scrubbing():
        cluster = make(1)
        disk = cluster.hosts["n1"].disk
        before = dict(cluster.node("n1").parts.context.identity.facts)
        for path in paths:
            HARMS[harm](disk, path)
        cluster.until("told", lambda: cluster.events("node.json is damaged and is written again"))
        assert damages_of(cluster, "n1") == 1
        cluster.run_ms(2000)
        assert damages_of(cluster, "n1") == 1
        cluster.kill("n1")
        cluster.boot("n1")
        assert cluster.node("n1").parts.context.identity.facts["id"] == before["id"]
        assert damages_of(cluster, "n1") == 0


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("path", PATHS)
def test_a_start_mends_one_of_the_two(cluster: Cluster, harm: str, path: str) -> None:
    cluster.create()
    cluster.publish(20)
    cluster.kill("n2")
    HARMS[harm](cluster.hosts["n2"].disk, path)
    cluster.boot("n2")
    assert damages_of(cluster, "n2") == 1
    assert cluster.events("warning: damage found at the start") == 1
    cluster.until_whole()


@pytest.mark.parametrize("harm", HARMS)
def test_a_node_of_a_cluster_that_lost_both_joins_as_one_that_forgot(
    cluster: Cluster, harm: str
) -> None:
    """As with an empty directory. What was there is set aside: nobody can say whose it is."""
    cluster.create()
    cluster.publish(20)
    cluster.kill("n2")
    disk = cluster.hosts["n2"].disk
    for path in PATHS:
        HARMS[harm](disk, path)
    cluster.boot("n2")
    assert damages_of(cluster, "n2") == 1
    cluster.until("joined", lambda: cluster.node("n2").parts.context.identity.cluster_id)
    cluster.until_whole()
    assert cluster.publish(20)
    cluster.until_whole()
    assert any(path.startswith(f"{ROOT}/trash/unknown-1/wal/") for path in disk.paths)


def test_leftovers_of_an_interrupted_rm_are_no_data_of_a_cluster(cluster: Cluster) -> None:
    """`rm -rf` beside a server that writes: a log segment is there, and no word of whose it is."""
    cluster.create()
    cluster.publish(20)
    cluster.kill("n2")
    disk = cluster.hosts["n2"].disk
    for path in disk.paths:
        if "/wal/0" not in path:
            disk.wipe(path)
    cluster.boot("n2")
    cluster.until_whole()


def test_a_single_server_takes_its_data_for_its_own_when_told_so(make: Make) -> None:
    """Without the flag it refuses and changes nothing; with it nothing is lost."""
    cluster = make(1)
    cluster.create(replicas=1)
    cluster.publish(20)
    cluster.kill("n1")
    for path in PATHS:
        cluster.hosts["n1"].disk.wipe(path)
    cluster.hosts["n1"].accepts_loss = True
    cluster.boot("n1")
    cluster.until("led", lambda: cluster.leader_name(cluster.uid("S")))
    assert len(cluster.read("n1")) == 20
    cluster.kill("n1")
    cluster.hosts["n1"].accepts_loss = False
    cluster.boot("n1")
    cluster.until("led", lambda: cluster.leader_name(cluster.uid("S")))
    assert len(cluster.read("n1")) == 20
