"""S2: a consumer is never ahead of its stream; what one replica lost moves no consumer.

A consumer is a part of its stream's group here, so it has as many replicas as its stream and the
same leader. What concerns a stream without peers is in tests/e2e and tests/unit.
"""

from __future__ import annotations

import pytest

from streamd.types import NodeId
from tests.scenarios.driver import ROOT, Cluster


def lose_stream(cluster: Cluster) -> NodeId:
    """1,000 messages, all consumed; then a follower's directory of the stream is emptied while it
    is down, and the log that could bring it back is released. Returns its name."""
    cluster.create()
    cluster.consumer()
    cluster.publish(1000)
    assert cluster.consume(1000)[-1] == 1000
    cluster.until_whole()
    name = cluster.followers("S")[0]
    cluster.save(cluster.uid("S"))
    cluster.stop(name)
    cluster.hosts[name].disk.wipe(cluster.directory("S"))
    return name


def consumer_of(cluster: Cluster, name: NodeId) -> tuple[int, int, int, int]:
    """What the consumer's numbers are, at whoever leads."""
    info = cluster.ask("CONSUMER.INFO.S.C", at=name)
    delivered, floor = info["delivered"], info["ack_floor"]
    return (
        delivered["stream_seq"], delivered["consumer_seq"], floor["stream_seq"],
        info["num_redelivered"],
    )  # fmt: skip


@pytest.mark.parametrize("is_wanted", [False, True], ids=["follows", "is told to lead first"])
def test_s2_8_one_replica_emptied_moves_no_consumer(cluster: Cluster, is_wanted: bool) -> None:
    """S2.8: the emptied replica is not current until it holds everything again, and no number of
    the consumer changes; also not when that node is told to lead the consumer (that is, its
    stream) as soon as it is up: it comes to lead when it is whole and not before."""
    name = lose_stream(cluster)
    other = cluster.leader("S")
    before = consumer_of(cluster, other)
    assert before == (1000, 1000, 1000, 0)
    was_seen_behind = False
    cluster.boot(name)
    for _ in range(2000):
        cluster.run_ms(2)
        group = cluster.group(name, "S")
        if group is None:
            continue
        is_whole = group.machine.index.last_seq == 1000 and "C" in group.machine.consumers
        if not is_whole:
            was_seen_behind = True
            assert not cluster.is_current(name)
            assert not cluster.leader_says_current(name)
            assert not group.raft.is_leader
            if is_wanted and cluster.leader_name(group.uid):
                cluster.step_down("S", name)
                group = cluster.group(name, "S")
                is_behind = group is None or group.machine.index.last_seq < 1000
                assert not is_behind or cluster.leader_name(cluster.uid("S")) != name
        elif cluster.is_current(name):
            break
    assert was_seen_behind
    cluster.until_whole()
    assert consumer_of(cluster, other) == before
    cluster.lead("S", name)
    assert consumer_of(cluster, name) == before
    cluster.publish(10)
    assert [(each.seq, each.consumer_seq) for each in cluster.pull(20, at=name)] == [
        (seq, seq) for seq in range(1001, 1011)
    ]
    assert not cluster.hosts[name].disk.listdir(f"{ROOT}/trash")
