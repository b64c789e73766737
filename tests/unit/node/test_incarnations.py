"""What nodes remember of each other's starts and logs, and what they tell each other of them."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.errors import ConfigError, DiskError
from streamd.node.identity.incarnations import Incarnations
from streamd.node.identity.node_identity import NodeIdentity
from tests.sim.disk import SimDisk
from tests.sim.host import ROOT
from tests.unit.node.contexts import QuietLog


class _Node:
    """Identity of a node, on its disk."""

    def __init__(self, name: str) -> None:
        self.server_name = name
        self.disk = SimDisk(int(name[1:]))
        self.disk.make_dirs(ROOT)
        disk: Any = self.disk
        self._identity = NodeIdentity(ROOT, disk, {})
        self.is_ended = False  # because its data is an older copy
        log: Any = QuietLog()
        self.incarnations = Incarnations(name, self._identity, disk, log, self._on_put_back)

    def _on_put_back(self, err: DiskError) -> None:
        self.is_ended = True

    @property
    def identity(self) -> dict[str, Any]:
        return self._identity.facts

    @identity.setter
    def identity(self, facts: dict[str, Any]) -> None:
        self._identity.facts = facts

    def begin(self, log: str, segment: int) -> None:
        self.identity.update({"log_id": log, "log_segment": segment})
        self.incarnations.begin()

    def meet(self, other: _Node) -> None:
        """Both take over what the other says. Raises ConfigError."""
        mine, theirs = self.incarnations.hello(), other.incarnations.hello()
        try:
            other.incarnations.check(self.server_name, mine)
        finally:
            self.incarnations.check(other.server_name, theirs)


@pytest.fixture
def nodes() -> list[_Node]:
    """Three, which have begun, and have met."""
    made = [_Node(name) for name in ("n1", "n2", "n3")]
    for node in made:
        node.begin("log of " + node.server_name, 1)
    a, b, c = made
    for one, other in ((a, b), (a, c), (b, c)):
        one.meet(other)
    return made


def test_a_later_start_and_a_lost_log_are_no_older_copy(nodes: list[_Node]) -> None:
    a, b, _ = nodes
    b.begin("log of n2", 2)
    a.meet(b)
    b.begin("another", 1)
    a.meet(b)
    b.begin("another", 2)
    a.meet(b)
    assert not b.is_ended


def test_a_node_told_of_a_later_log_takes_another_name(nodes: list[_Node]) -> None:
    """By n3, which heard of the other log from n1: it has not met n2 since."""
    a, b, c = nodes
    old = dict(b.identity)
    b.begin("another", 1)
    a.meet(b)
    a.meet(c)
    b.identity = old
    b.begin("log of n2", 5)
    with pytest.raises(ConfigError):
        c.meet(b)
    assert b.is_ended
    told = b.identity["log_segment"]
    assert told > 5  # its log ends before that: the next start takes it for damaged
    b.is_ended = False
    for segment in (told + 1, told + 2):
        b.begin("log of n2", segment)
        a.meet(b)
        c.meet(b)
    a.meet(c)
    a.meet(b)
    assert not b.is_ended


def test_a_node_that_confused_two_logs_convinces_no_peer(nodes: list[_Node]) -> None:
    """n3 lost all that it knew, and met n2 first with its new log, then with the old one."""
    a, b, c = nodes
    old = dict(b.identity)
    b.begin("another", 1)
    a.meet(b)
    c.identity.pop("seen")
    c.meet(b)
    b.identity = old
    b.begin("log of n2", 5)
    c.meet(b)
    assert not b.is_ended
    a.meet(c)
    with pytest.raises(ConfigError):
        a.meet(b)


def test_a_copy_that_was_started_often_before_it_met_anybody_is_told(nodes: list[_Node]) -> None:
    """Its number has passed the one that the others have seen; its memory has not."""
    a, b, _ = nodes
    copy = dict(b.identity)
    b.begin("log of n2", 2)
    a.meet(b)
    b.identity = copy
    for segment in range(2, 6):
        b.begin("log of n2", segment)
    with pytest.raises(ConfigError):
        a.meet(b)
    assert b.is_ended


def test_a_copy_that_met_others_meanwhile_is_recognised_by_a_node_that_was_away(
    nodes: list[_Node],
) -> None:
    a, b, c = nodes
    copy = dict(b.identity)
    b.begin("log of n2", 2)
    a.meet(b)
    b.identity = copy
    b.begin("log of n2", 2)
    b.begin("log of n2", 3)
    c.meet(b)
    assert not b.is_ended  # n3 was away when it was another
    with pytest.raises(ConfigError):
        a.meet(b)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_node_that_two_peers_saw_in_two_incarnations_keeps_neither(
    nodes: list[_Node], reverse: bool
) -> None:
    """n1 and n3 saw n2 once before and once after it was put back, and compare that."""
    a, b, c = nodes
    copy = dict(b.identity)
    b.begin("log of n2", 2)
    (c if reverse else a).meet(b)
    b.identity = copy
    b.begin("log of n2", 2)
    b.begin("log of n2", 3)
    (a if reverse else c).meet(b)
    a.meet(c)
    with pytest.raises(ConfigError):
        c.meet(b)
    assert b.is_ended
    b.is_ended = False
    for segment in (2000, 2001):  # it has begun anew
        b.begin("log of n2", segment)
        for one, other in ((c, b), (a, b), (a, c), (a, b), (c, b)):
            one.meet(other)
    assert not b.is_ended


def test_starts_that_no_peer_heard_of_are_not_written_down(nodes: list[_Node]) -> None:
    a, b, _ = nodes
    for segment in range(2, 500):
        b.begin("log of n2", segment)
    a.meet(b)
    assert not b.is_ended
    assert [segment for segment, _ in b.identity["starts"][1][1]] == [1, 499]


def test_starts_beyond_the_remembered_ones_are_no_evidence(nodes: list[_Node]) -> None:
    a, b, c = nodes
    for segment in range(2, 100):
        b.begin("log of n2", segment)
        a.meet(b)
    c.meet(b)
    a.meet(c)
    a.meet(b)
    assert not b.is_ended
    assert len(b.identity["starts"][1][1]) == 32


def test_a_start_that_could_not_be_written_down_is_not_missed_later(nodes: list[_Node]) -> None:
    a, b, c = nodes
    b.begin("log of n2", 2)
    before = dict(b.identity)
    b.disk.capacity, room = 0, b.disk.capacity
    a.meet(b)
    assert a.identity["seen"]["n2"][1:3] == [2, ""]
    b.disk.capacity = room
    b.identity = before
    b.begin("log of n2", 3)
    a.meet(b)
    c.meet(b)
    assert not b.is_ended
