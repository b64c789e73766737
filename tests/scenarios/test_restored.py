"""Files that are whole, and not this node's newest: a backup put back, another node's directory.

What a node promised is in its log. One that has an older log, or somebody else's, has forgotten
promises although nothing is damaged; it must not count as if it remembered (I12).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamd.types import META_UID, Seq
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import copy_of, put_all_back, put_back, put_back_all
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


def go_on_without_n1(
    cluster: Cluster, backup: dict[str, bytes], *, starts_alone: int = 0
) -> dict[Seq, bytes]:
    """n1 and n2 acknowledge more and end; n2 is back with `backup`, and n3. Return what n1 has.

    Before that n2 starts and is killed `starts_alone` times."""
    cluster.publish(20)
    stored = cluster.read("n1")
    cluster.kill("n1", "n2")
    put_back_all(cluster, "n2", backup)
    for _ in range(starts_alone):
        cluster.run_ms(500)
        cluster.kill("n2")
        cluster.boot("n2")
    cluster.net.heal()
    cluster.boot("n3")
    cluster.run_ms(10_000)
    return stored


def led_only_with_n1(cluster: Cluster, stored: dict[Seq, bytes]) -> None:
    """n2 and n3 elect nobody by what n2 has forgotten; with n1, which has all, all have."""
    for name in ("n2", "n3"):
        group = cluster.group(name, "S")
        assert group is None or not group.is_ready, name
    cluster.boot("n1")
    cluster.until_whole()
    for name in cluster.names:
        assert cluster.read(name) == stored
    cluster.publish(5)


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
    led_only_with_n1(cluster, stored)


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


@pytest.mark.parametrize("starts_alone", [0, 3])
@pytest.mark.parametrize("is_n3_started_anew", [False, True])
def test_a_peer_that_saw_a_later_start_tells_a_node_that_it_forgot(
    cluster: Cluster, is_n3_started_anew: bool, starts_alone: int
) -> None:
    """All of n2's directory is of before its latest start, which n3 has seen; n1, which has what n2
    acknowledged since, is down. n2 does not vote with what it has: it was believed, and elected n3,
    which lacks that. However often it starts before it meets n3."""
    cluster.create()
    cluster.publish(20)
    cluster.until_whole()
    cluster.stop("n2")
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.boot("n2")
    cluster.lead("S", "n1")
    cluster.until_whole()
    if is_n3_started_anew:
        cluster.kill("n3")
    else:
        cluster.isolate("n3")
    stored = go_on_without_n1(cluster, backup, starts_alone=starts_alone)
    told = (
        "the data of this server is an older copy: the server ends, and at its next start fetches "
        "its streams from other servers"
    )
    assert cluster.events(told) == 1
    led_only_with_n1(cluster, stored)
    cluster.lose_power(*cluster.names)
    cluster.boot()
    cluster.until_whole()


def test_the_disk_of_before_an_empty_one_is_not_believed(cluster: Cluster) -> None:
    """n2 was given an empty disk, and acknowledged with it; then it gets its old one back, and n1,
    which has what n2 acknowledged since, is down. n3 has seen n2 with another log since: n2 was
    believed, and elected n3, which lacks that."""
    uid = cluster.create()
    cluster.publish(20)
    cluster.until_whole()
    cluster.stop("n2")
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
    cluster.checkers.durability.copy_destroyed("n2")
    cluster.checkers.durability.log_lost("n2", [META_UID, uid])
    cluster.hosts["n2"].disk.wipe(ROOT)
    cluster.boot("n2")
    cluster.lead("S", "n1")
    cluster.until_whole()
    cluster.isolate("n3")
    stored = go_on_without_n1(cluster, backup)
    led_only_with_n1(cluster, stored)
    cluster.lose_power(*cluster.names)
    cluster.boot()
    cluster.until_whole()


def test_a_link_that_broke_is_no_other_start(cluster: Cluster) -> None:
    """Nor is a start after which nobody was told anything."""
    cluster.create()
    for _ in range(3):
        cluster.net.break_link("n1", "n2")
        cluster.run_ms(500)
    for name in ("n1", "n2", "n3"):
        cluster.kill(name)
        cluster.boot(name)
        cluster.kill(name)
        cluster.boot(name)
        cluster.until_whole()
    assert not cluster.world.counts["fatal errors"]


def test_a_node_put_back_from_its_own_backup_is_whole_again(cluster: Cluster) -> None:
    """All of n2's directory is of an earlier hour of its latest life, n1 leads all the time. Nobody
    has seen a later start; n1 sees what it lacks, says so, and tells it. It was behind for as long
    as n1 led."""
    cluster.create()
    cluster.publish(20)
    cluster.lead("S", "n1")
    cluster.until_whole()
    backup = copy_of(cluster.hosts["n2"].disk, ROOT)
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
