"""What the nodes of a cluster have seen of each other's logs, and tell each other when they meet.

Each start of a node begins a segment of its log, so of two starts the later one has the higher
number; and a log that another one took the place of is not the node's any more. A node that is told
of a later start than the one it remembers, of another one with the number of this one, or that it
has had another log since, had all of its directory put back from an older copy: nothing in there
shows it, and it has forgotten what it promised since (I12). It starts again, in doubt about it.

Who was away for all that time can't tell. Nor can anybody if the copy is of after the last start,
or if it was started so often before it met anybody that its number is no lower than the last one's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamd.errors import ConfigError, DiskError
from streamd.node import storedir
from streamd.types import NodeId

if TYPE_CHECKING:
    from streamd.node.node import Node

_SEEN = "seen"  # in node.json: node -> Start, then a list of the logs that it had before
_LIFE = "log_life"  # in node.json: random; what this node was told about its log is behind it
_LOGS_MAX = 16  # of before, for each node
_SURELY_LATER = 1000  # segments; more than the end of this process may still begin

Start = list[Any]  # log, segment that this start of the node began, a random number: which start


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
        self._own = [identity["log_id"] + identity.get(_LIFE, ""), identity["log_segment"], which]

    def hello(self) -> dict[str, Any]:
        """What a peer is told when a link comes up."""
        return {"start": self._own, "seen": self._node.identity.get(_SEEN, {})}

    def names(self) -> list[NodeId]:
        """Every node that this one, or one that it met, has ever seen."""
        return list(self._node.identity.get(_SEEN, {}))

    def check(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """Take over what a peer says. Raises ConfigError if it has seen more of this node."""
        node = self._node
        told: dict[NodeId, Start] = dict(hello.get(_SEEN, {}))
        mine = told.pop(node.server_name, None)
        if mine is not None and _is_put_back(self._own, mine):
            self._begin_anew(node_id, mine)
            raise ConfigError(f"the data of {node.server_name!r} is an older copy")
        seen: dict[NodeId, Start] = node.identity.get(_SEEN, {})
        merged = seen | {
            name: _later(one, seen.get(name)) for name, one in told.items() if name != node_id
        }
        start = hello.get("start")
        if start:
            merged[node_id] = _met(start, seen.get(node_id))
        if merged != seen:
            node.identity[_SEEN] = merged
            with suppress(OSError):  # a full disk may go on: this is more than was ever promised
                storedir.save_identity(node.root, node.env.disk, node.identity)

    def _begin_anew(self, node_id: NodeId, seen: Start) -> None:
        """Have the next start take its log for one that lost its end; promise nothing before."""
        node = self._node
        node.error(
            "the data of this node is an older copy: it starts anew, and relies on none of it",
            told_by=node_id, log=self._own[:2], seen_log=seen[:2],
        )  # fmt: skip
        node.identity["log_segment"] = self._own[1] + _SURELY_LATER
        node.identity[_LIFE] = node.env.disk.random_bytes(8).hex()
        err = DiskError(
            "the directory of this node was put back from an older copy: start it again"
        )
        if node.save_identity():
            node.wal.refuse(err)
            node.give_up(err)


def _logs_before(seen: Start) -> list[str]:
    return list(seen[3]) if len(seen) > 3 else []  # earlier servers kept none


def _is_put_back(start: Start, seen: Start) -> bool:
    """True if a node that was `seen` can't begin this `start` but with an older copy of its log."""
    if seen[0] != start[0]:
        return start[0] in _logs_before(seen)  # else the log was lost, and the node knows that
    return bool(seen[1] > start[1] or (seen[1] == start[1] and seen[2] != start[2]))


def _met(start: Start, seen: Start | None) -> Start:
    """What is known of a node that was `seen` once it is here by this `start`."""
    if seen is None:
        return [*start, []]
    if _is_put_back(start, seen):
        return seen  # it is told so by us, and comes back with another one
    return _with_logs(start, _logs_before(seen), [seen[0]])


def _later(one: Start, known: Start | None) -> Start:
    """Of what another node says of a third one, and what is known here, what is later."""
    if known is None:
        return one
    if one[0] == known[0]:
        newer = one if one[1] > known[1] else known
        return _with_logs(newer, _logs_before(known), _logs_before(one))
    if known[0] in _logs_before(one) and one[0] not in _logs_before(known):
        return _with_logs(one, _logs_before(known), _logs_before(one))
    return known


def _with_logs(start: Start, *logs: list[str]) -> Start:
    """`start` with each of the `logs` of before once, the latest last."""
    before = dict.fromkeys(log for part in logs for log in part if log != start[0])
    return [*start[:3], list(before)[-_LOGS_MAX:]]
