"""What the nodes of a cluster have seen of each other's logs, and tell each other when they meet.

Each start of a node begins a segment of its log, so of two starts the later one has the higher
number. A node that is told of a later start than the one it remembers, or of another one with the
number of this one, had all of its directory put back from an older copy: nothing in there shows it,
and it has forgotten what it promised since (I12). It starts again, in doubt about its log.

Who was away for all that time can't tell. Nor can anybody if the copy is of after the last start.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamd.errors import ConfigError, DiskError
from streamd.node import storedir
from streamd.types import NodeId

if TYPE_CHECKING:
    from streamd.node.node import Node

_SEEN = "seen"  # in node.json: node -> [its log, the segment that a start of it began, which start]
_SURELY_LATER = 1000  # segments; more than the end of this process may still begin

Start = list[Any]  # log id, segment, a random number: which start it was


class Sightings:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._own: Start = []

    def begin(self) -> None:
        """The log is open: this start has its segment."""
        node = self._node
        identity = node.identity
        which = node.env.disk.random_bytes(8).hex()
        self._own = [identity["log_id"], identity["log_segment"], which]

    def hello(self) -> dict[str, Any]:
        """What a peer is told when a link comes up."""
        return {"start": self._own, "seen": self._node.identity.get(_SEEN, {})}

    def check(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """Take over what a peer says. Raises ConfigError if it has seen more of this node."""
        node = self._node
        told: dict[NodeId, Start] = dict(hello.get(_SEEN, {}))
        mine = told.pop(node.server_name, None)
        if mine is not None and self._is_later(mine):
            self._begin_anew(node_id, mine)
            raise ConfigError(f"the data of {node.server_name!r} is an older copy")
        seen = node.identity.get(_SEEN, {})
        start = hello.get("start")
        news = told | ({node_id: start} if start else {})
        merged = seen | {
            name: one for name, one in news.items() if name == node_id or _is_news(one, seen, name)
        }
        if start and _is_put_back(start, seen.get(node_id)):
            merged[node_id] = seen[node_id]  # it is told so by us, and comes back with another one
        if merged != seen:
            node.identity[_SEEN] = merged
            with suppress(OSError):  # a full disk may go on: this is more than was ever promised
                storedir.save_identity(node.root, node.env.disk, node.identity)

    def _is_later(self, start: Start) -> bool:
        return _is_put_back(self._own, start)

    def _begin_anew(self, node_id: NodeId, start: Start) -> None:
        """Have the next start take its log for one that lost its end; promise nothing before."""
        node = self._node
        node.error(
            "the data of this node is an older copy: it starts anew, and relies on none of it",
            told_by=node_id, log_segment=self._own[1], seen_segment=start[1],
        )  # fmt: skip
        node.identity["log_segment"] = max(self._own[1], start[1]) + _SURELY_LATER
        err = DiskError(
            "the directory of this node was put back from an older copy: start it again"
        )
        if node.save_identity():
            node.wal.refuse(err)
            node.give_up(err)


def _is_put_back(start: Start, seen: Start | None) -> bool:
    """True if a node that was `seen` can't begin this `start` but with an older copy of its log."""
    if seen is None or seen[0] != start[0]:
        return False  # another log: whoever lost the one of before knows that
    return bool(seen[1] > start[1] or (seen[1] == start[1] and seen[2] != start[2]))


def _is_news(start: Start, seen: dict[NodeId, Start], name: NodeId) -> bool:
    """True if what another node says of a third one is later than what was seen here."""
    known = seen.get(name)
    return known is None or (known[0] == start[0] and start[1] > known[1])
