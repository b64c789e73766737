"""What a leader has delivered is in the log before it goes of its own will: nobody gets it twice.

Only a kill, or the loss of a node, makes consumers begin again a moment before where they were.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.scenarios.driver import Cluster

SECOND_NS = 10**9
NONE = {"ack_policy": "none", "ack_wait": 0}


def deliver_ten(cluster: Cluster, replicas: int = 3) -> None:
    """30 messages; a consumer with acks and one without get ten of them each, just now."""
    cluster.create(replicas=replicas)
    cluster.consumer(name="C")
    cluster.consumer(name="N", **NONE)
    cluster.publish(30)
    leader = cluster.leader("S")
    for name in "CN":
        assert [each.seq for each in cluster.pull(10, name=name, at=leader)] == [*range(1, 11)]


def expect_the_rest(cluster: Cluster) -> None:
    leader = cluster.leader("S")
    for name in "CN":
        got = cluster.pull(30, name=name, at=leader)
        assert [(each.seq, each.deliveries) for each in got] == [(at, 1) for at in range(11, 31)]


def test_deliveries_are_logged_before_a_leadership_transfer(cluster: Cluster) -> None:
    deliver_ten(cluster)
    cluster.step_down("S")
    expect_the_rest(cluster)


@pytest.mark.parametrize("replicas", [1, 3])
def test_deliveries_are_logged_before_a_stop(cluster: Cluster, replicas: int) -> None:
    deliver_ten(cluster, replicas)
    name = cluster.leader("S")
    cluster.stop(name)
    cluster.boot(name)
    expect_the_rest(cluster)


def test_one_whose_successor_does_not_answer_goes_on_delivering(cluster: Cluster) -> None:
    deliver_ten(cluster)
    leader, successor = cluster.leader("S"), cluster.followers("S")[0]
    group = cluster.group(leader, "S")
    assert group is not None
    cluster.isolate(successor)
    cluster.publish(5, at=leader)  # which the successor does not have
    told: list[Any] = []
    hand_over = cluster.node(leader).step_down
    cluster.process(leader).run(hand_over, cluster.uid("S"), successor, told.append)
    cluster.until("handing over", lambda: group.raft.is_handing_over, 1)
    reply = cluster.send("CONSUMER.MSG.NEXT.S.C", {"batch": 5, "expires": 5 * SECOND_NS}, leader)
    cluster.until("delivered", lambda: len(cluster.received(reply)) == 5, 2)
    assert cluster.leader("S") == leader
