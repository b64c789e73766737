"""What a node tells the others about what it leads."""

from __future__ import annotations

from typing import Any

from streamd.node.leaders import Leaders
from streamd.node.peering import Peering


class _Links:
    def __init__(self) -> None:
        self.notes: list[tuple[str, str, list[Any]]] = []

    def nodes(self) -> list[str]:
        return ["b"]

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        self.notes.append((node_id, kind, args))


class _Group:
    """A group that led when its replica was withdrawn, and has had no turn since."""

    is_ready = True

    class raft:
        term = 4


class _Node:
    """As much of a node as announcing needs."""

    server_name = "a"

    def __init__(self) -> None:
        self.leaders = Leaders("a")
        self.soon: list[Any] = []
        self.env = self.loop = self
        self.groups: dict[int, Any] = {7: _Group()}

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append(callback)

    def group_of(self, uid: int) -> Any:
        return self.groups.get(uid)


def test_a_withdrawn_leader_is_not_announced_as_one() -> None:
    """Members at rest notice by this note alone: the link to the node stays up."""
    fake = _Node()
    node: Any = fake
    peering = Peering(node)
    links: Any = _Links()
    peering.peers = links
    fake.leaders.note_own(7, 4, is_ready=True)
    peering.announce(7)
    fake.soon.pop()()
    assert links.notes.pop() == ("b", "leaders", [[7, 4, True]])
    fake.leaders.note_own(7, 4, is_ready=False)  # its replica is being repaired
    peering.announce(7)
    fake.soon.pop()()
    assert links.notes.pop() == ("b", "leaders", [[7, 4, False]])
    del fake.groups[7]  # closed before anybody was told
    peering.announce(7)
    fake.soon.pop()()
    assert links.notes.pop()[2][0][::2] == [7, False]
