"""What nodes remember of each other's starts and logs, and what they tell each other of them."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.errors import ConfigError
from streamd.node.sightings import Sightings
from tests.sim.disk import SimDisk
from tests.sim.host import ROOT


class _Wal:
    is_refused = False

    def refuse(self, err: BaseException) -> None:
        self.is_refused = True


class _Node:
    """As much of a node as keeps sightings."""

    def __init__(self, name: str) -> None:
        self.server_name = name
        self.root = ROOT
        self.env = self
        self.disk = SimDisk(int(name[1:]))
        self.disk.mkdir(ROOT)
        self.identity: dict[str, Any] = {}
        self.wal = _Wal()
        self.sightings = Sightings(self)  # type: ignore[arg-type]

    def begin(self, log: str, segment: int) -> None:
        self.identity |= {"log_id": log, "log_segment": segment}
        self.sightings.begin()

    def meet(self, other: _Node) -> None:
        """Both take over what the other says. Raises ConfigError."""
        mine, theirs = self.sightings.hello(), other.sightings.hello()
        try:
            other.sightings.check(self.server_name, mine)
        finally:
            self.sightings.check(other.server_name, theirs)

    def save_identity(self) -> bool:
        return True

    def error(self, text: str, **facts: Any) -> None:
        """Nobody reads it."""

    def give_up(self, err: BaseException) -> None:
        """Its process would end."""


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
    assert not b.wal.is_refused


def test_who_was_told_is_another_from_then_on(nodes: list[_Node]) -> None:
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
    assert b.wal.is_refused
    told = b.identity["log_segment"]
    assert told > 5  # its log ends before that: the next start takes it for damaged
    b.wal.is_refused = False
    for segment in (told + 1, told + 2):
        b.begin("log of n2", segment)
        a.meet(b)
        c.meet(b)
    a.meet(c)
    a.meet(b)
    assert not b.wal.is_refused


def test_who_took_the_old_log_for_the_newer_one_convinces_nobody(nodes: list[_Node]) -> None:
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
    assert not b.wal.is_refused
    a.meet(c)
    with pytest.raises(ConfigError):
        a.meet(b)
