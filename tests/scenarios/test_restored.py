"""Files that are whole, and not this node's newest: a backup put back, another node's directory.

What a node promised is in its log. One that has an older log, or somebody else's, has forgotten
promises although nothing is damaged; it must not count as if it remembered (I12).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamd.types import Seq
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import copy_of, put_back
from tests.sim.disk import SimDisk
from tests.sim.world import Violation

Files = dict[str, bytes]
WAL = f"{ROOT}/wal"


def forget(cluster: Cluster, restore: Callable[[Files], Files]) -> dict[Seq, bytes]:
    """n1 and n2 acknowledge what n3 never had; all stop; n2 gets what `restore` makes of a backup
    of its log, from before its latest start. Returns what was acknowledged."""
    cluster.create()
    cluster.publish(20)
    backup = copy_of(cluster.hosts["n2"].disk, WAL)
    cluster.stop("n2")
    cluster.boot("n2")
    cluster.lead("S", "n1")
    cluster.until_whole()
    cluster.kill("n3")
    cluster.publish(20)
    stored = cluster.read("n1")
    assert len(stored) == 40
    cluster.kill("n1", "n2")
    put_back(cluster.hosts["n2"].disk, WAL, restore(backup))
    return stored


@pytest.mark.parametrize("which", ["older", "another node's"])
def test_a_log_that_is_not_the_nodes_own_newest_is_not_believed(
    cluster: Cluster, which: str
) -> None:
    """n2 and n3 are a majority, and neither has what n1 and n2 acknowledged: nobody leads. With n1
    all have it."""

    def restore(backup: Files) -> Files:
        return backup if which == "older" else copy_of(cluster.hosts["n3"].disk, WAL)

    stored = forget(cluster, restore)
    cluster.boot("n2", "n3")
    cluster.run_ms(10_000)
    for name in ("n2", "n3"):
        group = cluster.group(name, "S")
        assert group is None or not group.is_ready, name
    cluster.boot("n1")
    cluster.until_whole()
    for name in cluster.names:
        assert cluster.read(name) == stored
    cluster.publish(5)


def test_the_directory_of_another_node_is_refused(cluster: Cluster) -> None:
    """n2 was made from a copy of n3: it would answer for what n3 promised, and not for its own
    promises."""
    forget(cluster, lambda backup: backup)
    one, other = (cluster.hosts[name].disk for name in ("n2", "n3"))
    files = copy_of(other, ROOT)
    put_all_back(one, files)
    with pytest.raises(Violation, match=r"ConfigError: .* belongs to node 'n3' of the cluster"):
        cluster.boot("n2")
        cluster.run_ms(1000)


def test_a_node_put_back_from_its_own_backup_is_whole_again(cluster: Cluster) -> None:
    """All of n2's directory is of an earlier day, n1 leads all the time. n2 can't know; n1 sees it,
    says so, and tells it what it lacks. It was behind for as long as n1 led."""
    cluster.create()
    cluster.publish(20)
    cluster.lead("S", "n1")
    cluster.until_whole()
    cluster.stop("n2")
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.boot("n2")
    cluster.until_whole()
    cluster.publish(20)
    cluster.until_whole()
    cluster.stop("n2")
    put_all_back(cluster.hosts["n2"].disk, backup)
    cluster.publish(5)
    cluster.boot("n2")
    cluster.until_whole()
    assert cluster.leader("S") == "n1"
    assert cluster.read("n2") == cluster.read("n1")
    assert cluster.events("error: replicas disagree")
    cluster.publish(5)


def put_all_back(disk: SimDisk, files: Files) -> None:
    """`files` are all there is below ROOT."""
    disk.wipe(ROOT)
    for directory in sorted({f"{ROOT}/{name}".rpartition("/")[0] for name in files}):
        below = directory.removeprefix(ROOT).lstrip("/")
        start = f"{below}/" if below else ""
        mine = {
            name.removeprefix(start): blob
            for name, blob in files.items()
            if name.startswith(start) and "/" not in name.removeprefix(start)
        }
        put_back(disk, directory, mine)
