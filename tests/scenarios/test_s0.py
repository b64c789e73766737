"""S0: a snapshot is the state at one index, whatever stops, dies or is applied meanwhile.

Rejected publishes are decided from the log in `apply`, so there is no counter of them that could
differ; where a scenario compares such counters, digests, fingerprints and states are compared.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamd import errors
from streamd.machine.snapshot import decode_stream
from streamd.node.groups import inbox
from streamd.node.groups.snapshot_state import unwrap
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from streamd.types import META_UID, Index, NodeId, Seq
from tests.scenarios.conftest import ROUNDS, proof
from tests.scenarios.driver import ROOT, Cluster
from tests.sim.world import MS

HELD = pytest.mark.parametrize("held", ["log", "block"])
WRONG_LAST = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 7\r\n\r\n"
POINTS = (
    "SNAPSHOT_TMP_WRITTEN",
    "SNAPSHOT_TMP_SYNCED",
    "SNAPSHOT_RENAMED",
    "SNAPSHOT_DIR_SYNCED",
    "SNAPSHOT_OLD_REMOVED",
    "INDEX_RENAMED",
)


def newest(cluster: Cluster, name: NodeId) -> Snapshot:
    """The newest snapshot file of the stream on a node's disk."""
    disk, directory = cluster.hosts[name].disk, cluster.directory("S")
    found = SnapshotFile.load(disk, directory, "stream", group=cluster.uid("S"))
    assert found is not None
    return found


def last_seq_of(snapshot: Snapshot) -> Seq:
    return int(decode_stream(unwrap(snapshot.state)[1]).messages[1])


def held_stop(cluster: Cluster, name: NodeId, thread: str, then: Any) -> None:
    """Hold up a disk thread, do `then`, SIGTERM, go on: the node ends within 5 s."""
    held = cluster.process(name).threads[thread]
    held.hold()
    then()
    cluster.run_ms(20)
    cluster.hosts[name].stop()
    cluster.run_ms(300)
    held.release()
    cluster.until(f"{name} stopped", lambda: cluster.hosts[name].node is None, 5)


@HELD
def test_s0_1_stop_in_the_middle_of_apply(cluster: Cluster, held: str) -> None:
    """S0.1: a follower is stopped while the disk is stuck with the 101st message.

    Its newest snapshot must be (index, last seq) as after applying exactly the entries up to that
    index: L(i) is taken from the simulator's own fold of the committed log.
    """
    cluster.create()
    cluster.publish(100, chunk=1)
    cluster.until_whole()
    name = cluster.followers("S")[0]
    last_seqs: dict[Index, Seq] = {}
    truth = cluster.checkers.truths[cluster.uid("S")]
    last_seqs[truth.last] = truth.machine.index.last_seq
    other = cluster.leader("S")

    def publish() -> None:
        cluster.publish(1, at=other)
        last_seqs[truth.last] = truth.machine.index.last_seq

    held_stop(cluster, name, held, publish)
    found = newest(cluster, name)
    assert sorted(last_seqs.values()) == [100, 101]
    assert last_seq_of(found) == last_seqs[found.index]
    cluster.boot(name)
    cluster.until_whole()
    refused = cluster.publish_raw("S", [(b"S.x", WRONG_LAST, b"")] * 5)
    assert all(isinstance(each, errors.JsError) for each in refused)
    cluster.publish(50)
    cluster.until_whole()
    assert cluster.info()["state"]["last_seq"] == 151


@HELD
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_s0_2_stop_in_the_middle_of_an_ack(cluster: Cluster, held: str, who: str) -> None:
    """S0.2: a node is stopped while its disk is stuck with the ack of seq 50.

    A consumer is a part of its stream's state here, in the same log and snapshot. A leader applies
    what its own disk has: with its log stuck the client hears nothing, and acks again.
    """
    cluster.create()
    cluster.consumer()
    cluster.publish(60)
    cluster.consume(49)
    fiftieth = cluster.pull(1)
    leader, followers = cluster.leader("S"), cluster.followers("S")
    name = leader if who == "leader" else followers[0]
    at = followers[1]
    is_stuck = (who, held) == ("leader", "log")
    held_stop(cluster, name, held, lambda: cluster.ack(fiftieth, at=at, is_awaited=not is_stuck))
    cluster.boot(name)
    if is_stuck:
        cluster.ack(fiftieth, at=at)
    cluster.until_whole()
    for each in cluster.names:
        consumer = cluster.machine(each, "S").consumers["C"]
        assert (consumer.floor_sseq, consumer.delivered_sseq) == (50, 50)
        assert not consumer.redelivered
    rest = cluster.pull(20)
    assert [each.seq for each in rest] == list(range(51, 61))
    assert {each.deliveries for each in rest} == {1}


@HELD
def test_s0_3_stop_in_the_middle_of_a_creation(cluster: Cluster, held: str) -> None:
    """S0.3: a node is stopped while its disk is stuck with the entry that creates a stream, or
    with the opening of its files."""
    leader = cluster.leader_name(META_UID)
    name, other = [each for each in cluster.names if each != leader]
    held_stop(cluster, name, held, lambda: cluster.create(at=other))
    cluster.boot(name)
    cluster.until_whole()
    shown = set()
    for each in cluster.names:
        assets = list(cluster.node(each).meta.streams_by_uid.values())
        assert [asset.name for asset in assets] == ["S"]
        shown.add((assets[0].uid, assets[0].created_ns, cluster.info(at=each)["created"]))
    assert len(shown) == 1
    cluster.publish(10)
    cluster.until_whole()


class Publisher:
    """Publishes one message after another for ever; every fifth is made to be refused, or seen
    as a duplicate. What was acked is remembered."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(number)
        self.number = number
        self.acked: dict[Seq, bytes] = {}
        self.is_stopped = False
        self._count = 0
        self._last = 0
        self._next()

    def _next(self) -> None:
        if self.is_stopped:
            return
        cluster = self.cluster
        self._count += 1
        body = b"publisher %d message %d" % (self.number, self._count)
        headers = b""
        if self._count % 10 == 0:
            headers = WRONG_LAST
        elif self._count % 10 in (4, 5):
            body = b"publisher %d id %d" % (self.number, self._count // 10)
            headers = b"NATS/1.0\r\nNats-Msg-Id: " + body + b"\r\n\r\n"
        running = [name for name in cluster.running() if cluster.process(name).is_started]
        if running:
            at = self.rng.choice(running)
            (reply,) = cluster.offer("S", [(b"S.p%d" % self.number, headers, body)], at)
            self._look(reply, body, 40)
        else:
            cluster.world.after(50 * MS, self._next)

    def _look(self, reply: bytes, body: bytes, tries: int) -> None:
        """Wait for the answer, a fifth of a second at most; then go on elsewhere."""
        outcome = self.cluster.outcome(reply)
        if outcome is None and tries:
            self.cluster.world.after(5 * MS, self._look, reply, body, tries - 1)
            return
        if type(outcome) is int:
            assert outcome > self._last, (self.number, outcome, self._last)
            self._last = outcome
            self.acked[outcome] = body
        self.cluster.world.after(self.rng.randint(0, 50) * MS, self._next)


@pytest.mark.slow
def test_s0_4_rolling_restarts_under_load(cluster: Cluster) -> None:
    """S0.4: node after node is stopped by SIGTERM and started again under 8 publishers, a fifth
    of whose messages is refused or a duplicate, 30 times.

    After each restart all replicas are equal within 10 s; the checkers compare every state at
    every index with the fold of the log. Nothing acked is missing.
    """
    rolling_restarts(cluster, 30)


@proof
def test_s0_4_a_thousand_rolling_restarts(cluster: Cluster) -> None:
    """S0.4 in full."""
    rolling_restarts(cluster, ROUNDS or 1000)


def rolling_restarts(cluster: Cluster, rounds: int) -> None:
    rng = random.Random(4)
    cluster.create(max_msgs=-1)
    publishers = [Publisher(cluster, number) for number in range(8)]
    for at in range(rounds):
        name = cluster.names[at % 3]
        cluster.run_ms(100 + rng.randint(0, 50))
        cluster.stop(name)
        cluster.run_ms(rng.randint(0, 50))
        cluster.boot(name)
        cluster.until("equal", lambda: not cluster.missing("S"), 10)
    for publisher in publishers:
        publisher.is_stopped = True
    cluster.run_ms(300)
    cluster.until_whole()
    stored = cluster.read("n1")
    acked = {seq: body for each in publishers for seq, body in each.acked.items()}
    assert len(acked) == sum(len(each.acked) for each in publishers) > 10 * rounds
    assert {seq: stored.get(seq) for seq in acked} == acked
    assert not cluster.events("replica has drifted")


def test_s0_5_stop_in_the_middle_of_a_catch_up(cluster: Cluster) -> None:
    """S0.5: a follower has fetched some 40 % of the leader's snapshot when it is stopped.

    What is fetched lies in a directory of its own until it is complete, so the follower's snapshot
    files stay byte by byte what they were: none says what only a part of the leader's says. After
    the restart only the rest is fetched, and until then the replica is not current.
    """
    cluster.create()
    cluster.publish(500)
    name = cluster.followers("S")[0]
    cluster.save(cluster.uid("S"))
    cluster.kill(name)
    cluster.publish(9500, size=200)
    cluster.save(cluster.uid("S"))
    uid, disk = cluster.uid("S"), cluster.hosts[name].disk
    snaps = [path for path in disk.paths if path.endswith(".snap") and f"/{uid}/" in path]
    before = {path: disk.contents(path) for path in snaps}
    assert before
    cluster.boot(name)

    def fetched() -> float:
        node = cluster.hosts[name].node
        have, total = node.parts.recovery.catchups.progress(uid) if node is not None else (0, 0)
        return have / total if total else 0.0

    cluster.until("40 % there", lambda: fetched() >= 0.4, 20)
    assert fetched() < 0.9
    assert not cluster.is_current(name)
    assert not cluster.leader_says_current(name)
    cluster.hosts[name].stop()
    cluster.until("stopped", lambda: cluster.hosts[name].node is None, 5)
    snaps = [path for path in disk.paths if path.endswith(".snap") and f"/{uid}/" in path]
    assert {path: disk.contents(path) for path in snaps} == before
    whole = sum(len(disk.contents(path)) for path in disk.paths if ".catchup/" in path)
    assert whole > 0

    cluster.boot(name)
    cluster.until("catching up again", fetched)
    assert not cluster.is_current(name)
    assert fetched() >= 0.3  # what was whole is not fetched again
    cluster.until("whole", lambda: not cluster.missing("S"), 30)
    cluster.until_whole()
    assert cluster.machine(name, "S").index.last_seq == 10_000
    leader = cluster.leader("S")
    assert decode_stream(unwrap(newest(cluster, name).state)[1]) == decode_stream(
        unwrap(newest(cluster, leader).state)[1]
    )


@pytest.mark.parametrize("is_committed", [False, True])
def test_s0_7_a_snapshot_during_an_atomic_batch(cluster: Cluster, is_committed: bool) -> None:
    """S0.7: snapshots are taken while six of a batch's ten messages are there; then kill -9.

    Here a batch waits in its leader's memory and becomes one log entry when it is committed, so no
    snapshot can hold a part of it: after the restart all ten are there, or none.
    """
    cluster.create(allow_atomic=True)
    cluster.publish(20)
    cluster.until_whole()
    leader = cluster.leader("S")
    head = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: %d\r\n"
    heads = [head % at for at in range(11)]
    msgs = [(b"S.b", head + b"\r\n", b"in the batch") for head in heads[1:10]]
    last = (b"S.b", heads[10] + b"Nats-Batch-Commit: 1\r\n\r\n", b"in the batch")
    cluster.offer("S", msgs[:6], leader)
    cluster.run_ms(50)
    for name in cluster.names:
        monitor = cluster.node(name).groups.monitor_of(cluster.uid("S"))
        assert monitor is not None
        cluster.process(name).run(monitor.post, inbox.SnapshotWanted())
    cluster.run_ms(50)
    for name in cluster.names:
        assert last_seq_of(newest(cluster, name)) == 20
    if is_committed:
        replies = cluster.offer("S", [*msgs[6:], last], leader)
        cluster.until("committed", lambda: cluster.outcome(replies[-1]))
        cluster.save(cluster.uid("S"))
    cluster.kill(*cluster.names)
    cluster.boot()
    cluster.until_whole()
    batch = [seq for seq, body in cluster.read("n1").items() if body == b"in the batch"]
    assert batch == (list(range(21, 31)) if is_committed else [])


@pytest.mark.parametrize("is_power_lost", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("point", POINTS)
def test_s0_8_dead_within_a_snapshot(cluster: Cluster, point: str, is_power_lost: bool) -> None:
    """S0.8: kill -9, or the power goes, between any two steps of saving a snapshot; the log is
    released only after the last of them. A leftover .tmp is of no consequence."""
    cluster.create()
    cluster.publish(100)
    cluster.save(cluster.uid("S"))
    cluster.publish(100)
    name = cluster.followers("S")[0]
    host = cluster.hosts[name]
    host.is_cache_kept = not is_power_lost
    host.disk.crash_at_point = point
    monitor = cluster.node(name).groups.monitor_of(cluster.uid("S"))
    assert monitor is not None
    cluster.process(name).run(monitor.post, inbox.SnapshotWanted())
    cluster.until("dead", lambda: host.node is None)
    tmps = [path for path in host.disk.paths if path.endswith(".snap.tmp")]
    assert is_power_lost or bool(tmps) == point.startswith("SNAPSHOT_TMP")
    cluster.publish(50, at=cluster.leader("S"))
    cluster.boot(name)
    cluster.until_whole()
    assert not [path for path in host.disk.paths if path.endswith(".snap.tmp")]
    assert not [path for path in host.disk.paths if path.startswith(f"{ROOT}/trash/")]


def test_waiters_for_a_later_snapshot_ignore_the_one_under_way(cluster: Cluster) -> None:
    """One is being written when somebody needs what came after it: another follows at once."""
    cluster.create()
    cluster.publish(20)
    cluster.until_whole()
    uid, name = cluster.uid("S"), cluster.followers("S")[0]
    process, monitor = cluster.process(name), cluster.node(name).groups.monitor_of(uid)
    assert monitor is not None
    told: list[tuple[str, Index]] = []

    def ask(who: str) -> Index:
        index = cluster.machine(name, "S").applied
        process.run(
            monitor.when_saved, index, lambda: told.append((who, newest(cluster, name).index))
        )
        return index

    block = process.threads["block"]
    block.hold()
    first = ask("first")
    cluster.run_ms(5)
    cluster.publish(5, at=cluster.leader("S"))
    cluster.until("applied", lambda: cluster.machine(name, "S").index.last_seq == 25)
    second = ask("second")
    assert second > first
    assert not told
    block.release()
    cluster.until("both told", lambda: len(told) == 2)
    assert told == [("first", first), ("second", second)]
