"""A commit index rides with entries where it can, and goes alone where somebody waits for it."""

from __future__ import annotations

from streamd.raft.messages import Append
from tests.unit.raft.cluster import Cluster

DELAY_MS = 5


def settled() -> Cluster:
    """Three members, `a` leads, all know that its first entry is committed."""
    cluster = Cluster(list("abc"))
    for member in cluster.members.values():
        member.core.commit_delay_ms = DELAY_MS
    cluster.elect("a")
    cluster.pass_time(DELAY_MS, step_ms=1)
    assert [cluster.core(name).applied for name in "abc"] == [1, 1, 1]
    cluster.trace.clear()
    return cluster


def appends_sent(cluster: Cluster) -> list[tuple[str, int, int]]:
    """Run until nothing is left: (receiver, entries, commit) of every append on the way."""
    sent = []
    send_all = cluster.take

    def take(node_id: str):  # type: ignore[no-untyped-def]
        ready = send_all(node_id)
        for receiver, message in ready.send_now if ready is not None else []:
            if isinstance(message, Append):
                sent.append((receiver, len(message.entries), message.commit))
        return ready

    cluster.take = take  # type: ignore[method-assign]
    cluster.run()
    del cluster.take
    return sorted(sent)


def test_a_commit_waits_and_then_goes_alone() -> None:
    cluster = settled()
    cluster.core("a").propose(b"x")
    assert appends_sent(cluster) == [("b", 1, 1), ("c", 1, 1)]
    assert cluster.core("a").applied == 2  # the leader itself waits for nothing
    assert cluster.core("b").applied == 1
    assert cluster.core("a").deadline_ms <= cluster.now_ms + DELAY_MS
    cluster.tick(DELAY_MS - 1)
    assert appends_sent(cluster) == []
    cluster.tick(1)
    assert appends_sent(cluster) == [("b", 0, 2), ("c", 0, 2)]
    assert [cluster.core(name).applied for name in "bc"] == [2, 2]
    cluster.tick(DELAY_MS)
    assert appends_sent(cluster) == []  # and only once


def test_a_commit_rides_with_the_next_entries() -> None:
    cluster = settled()
    for number in range(20):
        cluster.core("a").propose(b"x")
        assert appends_sent(cluster) == [("b", 1, 1 + number), ("c", 1, 1 + number)]
        cluster.tick(DELAY_MS - 1)
        assert appends_sent(cluster) == []


def test_commits_are_told_at_once_to_nodes_whose_clients_wrote() -> None:
    cluster = settled()
    cluster.core("a").hasten_commit("b")
    cluster.core("a").propose(b"x")
    assert appends_sent(cluster) == [("b", 0, 2), ("b", 1, 1), ("c", 1, 1)]
    assert [cluster.core(name).applied for name in "bc"] == [2, 1]
    cluster.tick(1000)
    cluster.run()
    cluster.core("a").propose(b"y")
    assert appends_sent(cluster) == [("b", 1, 2), ("c", 1, 2)]  # that was long ago


def test_a_hastened_entry_is_told_to_all() -> None:
    cluster = settled()
    cluster.core("a").hasten_commit()
    cluster.core("a").propose(b"x")
    assert appends_sent(cluster) == [("b", 0, 2), ("b", 1, 1), ("c", 0, 2), ("c", 1, 1)]
    cluster.core("a").propose(b"y")
    assert appends_sent(cluster) == [("b", 1, 2), ("c", 1, 2)]


def test_a_read_at_a_follower_does_not_wait_for_the_delay() -> None:
    cluster = settled()
    cluster.core("a").propose(b"x")
    cluster.run()
    cluster.core("b").read_index(7)
    cluster.run()
    assert cluster.members["b"].read_states == [(7, 2)]
    assert cluster.core("b").applied == 2


def test_a_follower_with_a_full_window_hears_of_it_later() -> None:
    cluster = settled()
    cluster.cuts = {("b", "a")}  # b's answers are lost, so its window fills
    for _ in range(70):
        cluster.core("a").propose(b"x")
        cluster.run()
        cluster.tick(1)
    assert cluster.core("a").applied == 71
    cluster.cuts = set()
    cluster.pass_time(1000)
    assert cluster.core("b").applied == 71
