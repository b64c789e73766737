"""The store directory of a running node is removed, or another one takes its place."""

from __future__ import annotations

import pytest

from streamd import limits
from streamd.types import META_UID, NodeId
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster
from tests.sim.world import SECOND

NOTICED_S = limits.STORE_LOOK_S + 0.1


def leader_and_wipe(cluster: Cluster) -> NodeId:
    name = cluster.leader("S")
    cluster.hosts[name].excused_until_us = cluster.world.now_us + 30 * SECOND
    cluster.hosts[name].disk.wipe(ROOT)
    return name


def test_a_node_without_its_directory_acks_nothing_and_others_lead(cluster: Cluster) -> None:
    """`rm -rf` under the leader of an R3 stream, while it is written to. Within half a second the
    node says so and leads nothing; the others go on; started again, it catches up."""
    cluster.create()
    cluster.publish(50)
    cluster.lead("S", "n1")
    name = leader_and_wipe(cluster)
    cluster.until(
        "noticed", lambda: cluster.node(name).parts.integrity.store_watch.reason, NOTICED_S
    )
    health = cluster.health(name)
    assert health.status == 503
    assert "the store directory is gone" in health.text
    assert "No such file or directory" in health.text
    cluster.until("another leader", lambda: cluster.leader_name(cluster.uid("S")) not in ("", name))
    cluster.until("another meta leader", lambda: cluster.leader_name(META_UID) not in ("", name))
    other = next(one for one in cluster.names if one != name)
    cluster.publish(50, at=other)
    cluster.stop(name)
    left = [path for path in cluster.hosts[name].disk.paths if path.startswith(ROOT)]
    assert left == []  # not half a directory, which the next start would take for this one
    cluster.boot(name)
    cluster.until_whole()
    assert len(cluster.read(name)) == 100
    cluster.until("well", lambda: cluster.health(name).status == 200)


def test_a_single_node_acks_nothing_more_and_begins_anew(make: Make) -> None:
    """No ack for what is published after it was noticed; the next start has a fresh directory."""
    cluster = make(1)
    cluster.create(replicas=1)
    cluster.publish(20)
    name = leader_and_wipe(cluster)
    cluster.until(
        "noticed", lambda: cluster.node(name).parts.integrity.store_watch.reason, NOTICED_S
    )
    assert cluster.health(name).status == 503
    reply = cluster.reply(name)
    assert cluster.node(name).stream("S") is None  # so a publisher has nobody to wait for
    assert cluster.outcome(reply) is None
    assert "error" in cluster.ask("STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    cluster.stop(name)
    assert not [path for path in cluster.hosts[name].disk.paths if path.startswith(ROOT)]
    cluster.boot(name)
    cluster.until("well", lambda: cluster.health(name).status == 200)
    assert cluster.ask("STREAM.NAMES")["total"] == 0


def test_publishes_under_way_are_not_acked_once_the_loss_is_known(make: Make) -> None:
    """A batch that was written before the look, and of which the loop had not heard yet."""
    cluster = make(1)
    cluster.create(replicas=1)
    cluster.publish(20)
    name = leader_and_wipe(cluster)
    thread = cluster.process(name).threads["log"]
    thread.hold()
    replies = cluster.offer("S", [(b"S.x", b"", b"late")])
    cluster.until(
        "noticed", lambda: cluster.node(name).parts.integrity.store_watch.reason, NOTICED_S
    )
    thread.release()
    cluster.run_ms(2000)
    assert cluster.outcome(replies[0]) is None


@pytest.mark.parametrize("is_clustered", [True, False])
def test_a_directory_of_the_same_name_is_not_the_one_that_was_lost(
    make: Make, is_clustered: bool
) -> None:
    """A mount that came over it, or went: nothing is written into what is there now."""
    cluster = make(3 if is_clustered else 1)
    cluster.create(replicas=len(cluster.names))
    cluster.publish(20)
    name = leader_and_wipe(cluster)
    disk = cluster.hosts[name].disk
    for directory in (ROOT, f"{ROOT}/wal", f"{ROOT}/meta", f"{ROOT}/streams", f"{ROOT}/trash"):
        disk.make_dirs(directory)
    cluster.until(
        "noticed", lambda: cluster.node(name).parts.integrity.store_watch.reason, NOTICED_S
    )
    assert "another directory is there now" in cluster.health(name).text
    cluster.stop(name)
    assert not [path for path in disk.paths if path.startswith(ROOT)]


def test_the_newest_segment_alone_is_removed(make: Make) -> None:
    """All it says is in memory: it is written again within the second, and no start misses it."""
    cluster = make(1)
    cluster.create(replicas=1)
    cluster.publish(20)
    disk = cluster.hosts["n1"].disk
    newest = max(path for path in disk.paths if path.startswith(f"{ROOT}/wal/0"))
    disk.wipe(newest)
    cluster.until(
        "noticed", lambda: cluster.node("n1").parts.integrity.damage_log.damage_count, NOTICED_S
    )
    cluster.publish(5)
    cluster.until("whole", lambda: not cluster.node("n1").parts.integrity.corruption.log_fault, 30)
    cluster.kill("n1")
    cluster.boot("n1")
    cluster.until("led", lambda: cluster.leader_name(cluster.uid("S")))
    assert len(cluster.read("n1")) == 25
