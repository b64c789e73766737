"""Whether the replica of a stream that moved away may go: what a node asks, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streamd import errors, limits
from streamd.node.replicas.replica_removal import ReplicaRemoval
from streamd.raft.membership import Membership, simple
from streamd.types import NodeId, Uid


class _Replica:
    """A member of a group, as far as it matters here."""

    def __init__(self, members: Membership) -> None:
        log = SimpleNamespace(membership_index=4, entry_id=lambda index: (self.raft.term, index))
        self.raft = SimpleNamespace(
            term=2, vote="b", is_uncertain=False, last_index=9, log=log, commit=9, members=members
        )
        self.group = SimpleNamespace(raft=self.raft)
        self.is_ready = True
        self.barriers: list[Callable[[], None]] = []

    def read_barrier(self, done: Callable[[], None], lost: Callable[[], None]) -> None:
        self.barriers.append(done)


class _Node:
    """As much of a node, its links and its replicas as is needed: `a`, and `b` leads all groups."""

    def __init__(self) -> None:
        self.leader = "b"
        self.by_uid: dict[Uid, _Replica] = {7: _Replica(simple("bcd"))}
        self.calls: list[tuple[NodeId, Uid, Callable[[Any], None]]] = []
        self.left: list[Uid] = []

    def leader_of(self, uid: Uid) -> NodeId:
        return self.leader

    def get(self, uid: Uid) -> _Replica | None:
        return self.by_uid.get(uid)

    def leave(self, uid: Uid) -> None:
        self.left.append(uid)

    def call(
        self, node_id: NodeId, method: str, args: list[Any], done: Any, timeout_ms: int
    ) -> None:
        assert method == "has_left"
        self.calls.append((node_id, args[0], done))


def begun() -> tuple[_Node, ReplicaRemoval]:
    fake = _Node()
    node: Any = fake
    removal = ReplicaRemoval("a", groups=node, leaders=node, peers=node)
    removal.on_left = fake.leave
    removal.begin(7)
    return fake, removal


def test_a_replica_leaves_by_its_leaders_word() -> None:
    node, removal = begun()
    removal.begin(7)
    removal.check()
    ((leader, uid, answer),) = node.calls  # one question at a time
    assert (leader, uid) == ("b", 7)
    answer(True)
    assert node.left == [7]


def _vote(node: _Node, removal: ReplicaRemoval) -> None:
    node.by_uid[7].raft.term, node.by_uid[7].raft.vote = 3, "c"


def _take(node: _Node, removal: ReplicaRemoval) -> None:
    node.by_uid[7].raft.last_index = 10


def _open_again(node: _Node, removal: ReplicaRemoval) -> None:
    node.by_uid[7] = _Replica(simple("bcd"))


@pytest.mark.parametrize("meanwhile", [_vote, _take, _open_again])
def test_a_replica_that_promised_something_asks_again(
    meanwhile: Callable[[_Node, ReplicaRemoval], None],
) -> None:
    """Whatever the leader was asked about, it was not this."""
    node, removal = begun()
    meanwhile(node, removal)
    node.calls.pop()[2](True)
    assert not node.left
    removal.check()
    node.calls.pop()[2](True)
    assert node.left == [7]


@pytest.mark.parametrize("outcome", [False, errors.CLUSTER_NOT_AVAIL(), errors.BAD_REQUEST()])
def test_a_replica_without_its_leaders_word_stays_and_asks_again(outcome: Any) -> None:
    node, removal = begun()
    node.calls.pop()[2](outcome)
    assert not node.left and not node.calls
    removal.check()
    assert len(node.calls) == 1


def test_a_replica_that_is_wanted_again_stays() -> None:
    node, removal = begun()
    removal.forget(7)
    node.calls.pop()[2](True)
    removal.check()
    assert not node.left and not node.calls


@pytest.mark.parametrize("leader", ["", "a"])
def test_a_replica_without_a_leader_asks_later(leader: NodeId) -> None:
    node, removal = begun()
    node.calls.pop()[2](False)
    node.leader = leader
    removal.check()
    assert not node.calls
    node.leader = "c"
    removal.check()
    assert node.calls[0][0] == "c"


def test_many_are_asked_for_in_turn() -> None:
    """No group that nobody answers for keeps the others waiting for ever."""
    node, removal = begun()
    uids = range(8, 8 + limits.DEPARTURES_MAX)
    for uid in uids:
        node.by_uid[uid] = _Replica(simple("bcd"))
        removal.begin(uid)
    assert [row[1] for row in node.calls] == [7, *uids[:-1]]
    while node.calls:
        node.calls.pop(0)[2](False)
    removal.check()
    assert node.calls[0][1] == uids[-1] and len(node.calls) == limits.DEPARTURES_MAX


@pytest.mark.parametrize(
    ("members", "commit", "is_leader"),
    [
        (simple("abc"), 9, True),
        (simple("bcd", "a"), 9, True),
        (Membership(("b", "c", "d"), voters_out=("a", "b", "c")), 9, True),
        (simple("bcd"), 3, True),  # may yet be undone
        (simple("bcd"), 9, False),
    ],
)
def test_a_replica_that_is_counted_on_is_told_at_once(
    members: Membership, commit: int, is_leader: bool
) -> None:
    node, removal = begun()
    replica = node.by_uid[7] = _Replica(members)
    replica.raft.commit, replica.is_ready = commit, is_leader
    answers: list[Any] = []
    removal.serve("a", [7], answers.append)
    assert answers == [False] and not replica.barriers


@pytest.mark.parametrize(("members", "has_left"), [(simple("bcd"), True), (simple("abc"), False)])
def test_a_departure_is_confirmed_after_a_read_barrier(members: Membership, has_left: bool) -> None:
    """And only if it is still so."""
    node, removal = begun()
    answers: list[Any] = []
    removal.serve("a", [7], answers.append)
    assert not answers
    node.by_uid[7].raft.members = members
    node.by_uid[7].barriers.pop()()
    assert answers == [has_left]
