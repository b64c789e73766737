"""What a node tells the others about what it leads."""

from __future__ import annotations

from typing import Any

from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.peering import Peering


class _Links:
    def __init__(self) -> None:
        self.notes: list[tuple[str, str, list[Any]]] = []

    def nodes(self) -> list[str]:
        return ["b"]

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        self.notes.append((node_id, kind, args))


class _Node:
    """As much of a node as announcing needs."""

    server_name = "a"

    def __init__(self) -> None:
        self.leaders = Leaders("a", lambda: 0)
        self.soon: list[Any] = []
        self.env = self.loop = self

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append(callback)


def _told(fake: _Node, peering: Peering) -> list[list[Any]]:
    """The rows that the other node is sent when 7 is announced."""
    links: Any = peering.peers
    peering.announce(7)
    fake.soon.pop()()
    rows = [row for _, _, rows in links.notes for row in rows]
    links.notes.clear()
    return rows


def _leading() -> tuple[_Node, Peering]:
    fake = _Node()
    node: Any = fake
    peering = Peering(node)
    links: Any = _Links()
    peering.peers = links
    fake.leaders.note_own(7, 4, is_ready=True)
    assert _told(fake, peering) == [[7, 4, True]]
    return fake, peering


def test_a_withdrawn_leader_is_not_announced_as_one() -> None:
    """Members at rest notice by this note alone: the link to the node stays up. The group may be
    gone by then."""
    fake, peering = _leading()
    fake.leaders.note_own(7, 4, is_ready=False)  # its replica is being repaired
    assert _told(fake, peering) == [[7, 4, False]]


def test_who_was_elected_and_is_not_ready_does_not_say_that_it_leads_no_more() -> None:
    """Its followers would look for another leader."""
    fake, peering = _leading()
    fake.leaders.note_own(7, 4, is_ready=False)
    assert _told(fake, peering) == [[7, 4, False]]
    assert _told(fake, peering) == []  # elected again
    fake.leaders.note_own(7, 6, is_ready=True)
    assert _told(fake, peering) == [[7, 6, True]]


def test_the_end_of_one_term_is_not_that_of_the_next() -> None:
    """Deposed and elected again before it got to tell."""
    fake, peering = _leading()
    fake.leaders.note_own(7, 6, is_ready=False)
    assert _told(fake, peering) == [[7, 4, False]]
