"""A disk that opens no file for a while has damaged nothing: all goes on when that is over."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from streamd import limits
from streamd.node.catchup import fetch
from streamd.types import NodeId
from tests.scenarios.conftest import Make
from tests.scenarios.driver import ROOT, Cluster
from tests.scenarios.files import damages_of, fast_scrubbing
from tests.scenarios.test_s4_last_copy import start
from tests.sim.world import SECOND

OVER_S = limits.OPEN_AGAIN_S + 2


@pytest.fixture(autouse=True)
def scrubbing() -> Iterator[None]:
    with fast_scrubbing():
        yield


def run_short(cluster: Cluster, name: NodeId, ms: float, *, code: int = errno.EMFILE) -> None:
    """Let some time pass in which that node can open no file, or has no memory to read one."""
    disk = cluster.hosts[name].disk
    disk.fail("pread" if code == errno.ENOMEM else "open", code, under=ROOT, count=0)
    cluster.run_ms(ms)
    assert sum(disk.fault_counts.values()) > 0
    disk.heal()


def check_unharmed(cluster: Cluster, name: NodeId) -> None:
    """Nothing was taken for damaged, set aside or stopped."""
    assert not damages_of(cluster, name)
    assert (
        not cluster.node(name).parts.integrity.corruption.reasons and not cluster.node(name).failed
    )
    check_no_trash(cluster, name)


def check_no_trash(cluster: Cluster, name: NodeId) -> None:
    trash = [path for path in cluster.hosts[name].disk.paths if path.startswith(f"{ROOT}/trash/")]
    assert not trash


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_scrub_that_can_open_nothing_finds_no_damage(
    cluster: Cluster, replicas: int, code: int
) -> None:
    uid = cluster.create(replicas=replicas)
    cluster.publish(500)
    name = cluster.leader("S")
    cluster.save(uid, name)
    run_short(cluster, name, 3000, code=code)
    cluster.run_ms(3000)
    check_unharmed(cluster, name)
    assert cluster.health(name).status == 200
    assert cluster.publish(10)[-1] == 510


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_a_reader_waits_until_files_can_be_opened(cluster: Cluster, code: int) -> None:
    name = start(cluster, scrubs=False)
    reply = cluster.send("DIRECT.GET.S", {"seq": 7}, at=name)
    disk = cluster.hosts[name].disk
    disk.fail("pread" if code == errno.ENOMEM else "open", code, under=ROOT, count=0)
    assert not cluster.pull(100, at=name)
    cluster.until("an answer", lambda: cluster.received(reply))
    disk.heal()
    cluster.run_ms(limits.UNREADABLE_AGAIN_MS)
    assert len(cluster.pull(100, at=name)) == 100
    check_unharmed(cluster, name)


def test_a_leader_without_memory_to_read_its_log_goes_on_with_its_turn(cluster: Cluster) -> None:
    """A follower lacks what is no longer in memory. The leader asked its disk for it again and
    again within one turn, and did nothing else until it was given."""
    cluster.create(replicas=3)
    name = cluster.leader("S")
    away = next(each for each in cluster.running() if each != name)
    cluster.stop(away)
    for _ in range(300):  # entries; 64 stay in memory
        cluster.publish(1)
    disk = cluster.hosts[name].disk
    disk.fail("pread", errno.ENOMEM, under=f"{ROOT}/wal", count=5000)
    cluster.boot(away)
    cluster.run_ms(2000)
    assert 0 < disk.fault_counts["pread"] < 200
    assert cluster.leader("S") == name
    assert cluster.publish(1)[-1] == 301
    disk.heal()
    cluster.until_whole()
    check_unharmed(cluster, name)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_stream_that_could_not_write_for_want_of_files_is_opened_again(
    cluster: Cluster, replicas: int
) -> None:
    """It was stopped until the next start of its server."""
    uid = cluster.create(replicas=replicas)
    cluster.publish(500)
    name = cluster.leader("S")
    cluster.save(uid, name)
    cluster.hosts[name].disk.fail("open", errno.EMFILE, under=cluster.directory("S"), count=0)
    cluster.publish(1)
    replica = cluster.node(name).groups.get(uid)
    assert replica is not None
    cluster.process(name).run(replica.store.flush)
    cluster.until("stopped", lambda: ("$G", "S") in cluster.node(name).failed)
    cluster.run_ms(OVER_S * 1000)
    assert ("$G", "S") in cluster.node(name).failed  # tried again, in vain
    assert cluster.events("error: stream stopped") == 1
    cluster.hosts[name].disk.heal()
    cluster.run_ms(OVER_S * 1000)
    check_unharmed(cluster, name)
    assert cluster.events("stream is open again") == 1
    cluster.until_whole()
    assert cluster.publish(1)[-1] == 502


@pytest.mark.parametrize("code", [errno.ENFILE, errno.EACCES])
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_start_without_files_sets_nothing_aside(
    cluster: Cluster, replicas: int, code: int
) -> None:
    """Replicas were moved to trash, and fetched again from their peers."""
    uid = cluster.create(replicas=replicas)
    cluster.publish(500)
    name = cluster.leader("S")
    cluster.save(uid, name)
    cluster.stop(name)
    cluster.hosts[name].disk.fail("open", code, under=cluster.directory("S"), count=0)
    cluster.boot(name)
    cluster.until("stopped", lambda: ("$G", "S") in cluster.node(name).failed)
    cluster.hosts[name].disk.heal()
    cluster.run_ms(OVER_S * 1000)
    check_unharmed(cluster, name)
    cluster.until_whole()
    assert cluster.publish(1)[-1] == 501


def test_a_start_that_may_not_read_a_stream_sets_nothing_aside(cluster: Cluster) -> None:
    """All servers ran as root once, and what they wrote then is root's: the streams were moved to
    trash everywhere, so that nobody had any of them to fetch."""
    uid = cluster.create()
    cluster.publish(500)
    cluster.until_whole()
    for name in cluster.names:
        cluster.save(uid, name)
    for name in cluster.names:
        cluster.stop(name)
        disk = cluster.hosts[name].disk
        disk.fail("open", errno.EACCES, under=cluster.directory("S"), count=0)
    for name in cluster.names:
        cluster.boot(name)
    cluster.until(
        "stopped", lambda: all(("$G", "S") in cluster.node(n).failed for n in cluster.names)
    )
    for name in cluster.names:
        check_no_trash(cluster, name)
        cluster.hosts[name].disk.heal()
    cluster.until_whole(within_s=OVER_S)
    assert cluster.publish(1)[-1] == 501


def test_a_fetched_stream_takes_its_place_when_files_can_be_opened_again(cluster: Cluster) -> None:
    """All of it was here, beside its place, and the replica stopped until the next start."""
    uid = cluster.create()
    cluster.publish(500)
    cluster.save(uid)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    node, disk = cluster.node(name), cluster.hosts[name].disk
    cluster.process(name).run(node.parts.replicas.control.repair, uid, "a test wants it")

    def is_about_to_swap() -> bool:
        running = node.parts.recovery.catchups._running.get(uid)
        return running is not None and running.state in (fetch.CLOSING, fetch.SWAPPING)

    assert cluster.world.run(cluster.world.now_us + 5 * SECOND, is_about_to_swap)
    disk.fail("open", errno.EMFILE, under=f"{ROOT}/streams", count=0)
    cluster.until("stopped", lambda: ("$G", "S") in node.failed)
    disk.heal()
    cluster.until_whole(within_s=OVER_S)
    assert not node.failed


def test_a_replica_that_can_not_be_set_aside_for_want_of_files_is_opened_again(
    cluster: Cluster,
) -> None:
    uid = cluster.create()
    cluster.publish(500)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    node, disk = cluster.node(name), cluster.hosts[name].disk
    disk.fail("sync_dir", errno.EMFILE, under=f"{ROOT}/trash")
    cluster.process(name).run(node.parts.replicas.control.repair, uid, "a test wants it")
    cluster.until("stopped", lambda: ("$G", "S") in node.failed)
    cluster.until_whole(within_s=OVER_S)
    assert not node.failed


@pytest.mark.parametrize("size", [1, 3])
def test_a_create_is_refused_before_files_run_out(make: Make, size: int) -> None:
    """The process has given up files that it kept for what is stored already. Streams that are
    there go on; one in memory needs no file."""
    cluster = make(size)
    cluster.create(replicas=size)
    for host in cluster.hosts.values():
        host.disk.is_out_of_files = True
    answer = cluster.ask("STREAM.CREATE.T", {"name": "T", "subjects": ["T.>"]})
    assert answer["error"]["err_code"] == 10023
    assert "ulimit -n" in answer["error"]["description"]
    assert len(cluster.publish(20)) == 20
    memory = {"name": "M", "subjects": ["M.>"], "storage": "memory"}
    assert "error" not in cluster.ask("STREAM.CREATE.M", memory)
    for host in cluster.hosts.values():
        host.disk.is_out_of_files = False
    assert "error" not in cluster.ask("STREAM.CREATE.T", {"name": "T", "subjects": ["T.>"]})
