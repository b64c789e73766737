"""`Incarnations`: detects that a node's data was put back from an older copy (rollback).

The nodes of a cluster tell each other, when they meet, which logs and starts they have seen. Each
start of a node begins a segment of its log, so of two starts the later one has the higher number; a
log that another one took the place of is not the node's any more; and a node writes down each start
that it tells anybody of, before it does. A node that is told of a later start than this one, of one
that it has not written down, or that it has had another log since, had all of its
directory put back from an older copy: nothing in there shows it, and it has forgotten what it
promised since (I12). It starts again, as a recovering member of
its groups.

A node that was away for all that time can't tell. No node can if the copy is of after the last
start.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from streamd.errors import ConfigError, DiskError
from streamd.node.context import NodeLog
from streamd.node.identity.node_identity import NodeIdentity
from streamd.protocol.node_hello import Hello, Start, Starts
from streamd.store.disk import Disk
from streamd.types import NodeId

_SEEN: Final = "seen"  # in node.json: node -> Start
_TOLD = "starts"  # in node.json: log, Told
_LIFE = "log_life"  # in node.json: random; what this node was told about its log is behind it
_LOGS_MAX = 16  # of before, for each node
_TOLD_MAX = 32  # starts
_SURELY_LATER = 1000  # segments; more than the end of this process may still begin
_NEVER = 1 << 62  # no start begins that segment


class Incarnations:
    """Starts of one node, and of those it met, as `node.json` keeps them.

    `on_put_back(err)` ends a node that runs on an older copy of its data.
    """

    def __init__(
        self,
        name: NodeId,
        identity: NodeIdentity,
        disk: Disk,
        log: NodeLog,
        on_put_back: Callable[[DiskError], None],
    ) -> None:
        self._name = name
        self._identity = identity
        self._disk = disk
        self._log = log
        self._on_put_back = on_put_back
        self._own: Start = []
        self._is_told = False

    def begin(self) -> None:
        """Number this start by its segment: the log is open. The caller saves the identity."""
        facts = self._identity.facts
        which = self._disk.random_bytes(8).hex()
        log, segment = facts["log_id"] + facts.get(_LIFE, ""), facts["log_segment"]
        self._own, self._is_told = [log, segment, which], False
        if facts.get(_TOLD, [None])[0] != log:
            facts[_TOLD] = [log, [segment, []]]

    def hello(self) -> Starts:
        """Return what a peer is told when a link comes up."""
        self._write_down()
        return {"start": self._start(), "seen": self._identity.facts.get(_SEEN, {})}

    def _start(self) -> Start:
        return [*self._own, [], self._identity.facts[_TOLD][1]]

    def _write_down(self) -> None:
        """Save this start before a peer is told of it."""
        if self._is_told:
            return
        self._is_told = True
        facts = self._identity.facts
        log, (since, told) = facts[_TOLD]
        told = [*told, self._own[1:]]
        if len(told) > _TOLD_MAX:
            since, told = told[0][0] + 1, told[1:]
        facts[_TOLD] = [log, [since, told]]
        try:
            self._identity.write()
        except OSError:  # a full disk may go on, but as a start that no peer looks for
            self._own[2] = ""

    def names(self) -> list[NodeId]:
        """Return every node that this one, or one that it met, has ever seen."""
        return list(self._identity.facts.get(_SEEN, {}))

    def check(self, node_id: NodeId, hello: Hello) -> None:
        """Take over what a peer says. Raises ConfigError if it has seen more of this node."""
        facts = self._identity.facts
        told: dict[NodeId, Start] = dict(hello.get(_SEEN, {}))
        mine = told.pop(self._name, None)
        if mine is not None and _is_put_back(self._start(), mine):
            self._begin_anew(node_id, mine)
            raise ConfigError(f"the data of {self._name!r} is an older copy")
        seen: dict[NodeId, Start] = facts.get(_SEEN, {})
        merged = seen | {
            name: _later(one, seen.get(name)) for name, one in told.items() if name != node_id
        }
        start = hello.get("start")
        if start:
            merged[node_id] = _met(start, seen.get(node_id))
        if merged != seen:
            facts[_SEEN] = merged
            with suppress(OSError):  # a full disk may go on: this is more than was ever promised
                self._identity.write()

    def _begin_anew(self, node_id: NodeId, seen: Start) -> None:
        """Make the next start take its log for one that lost its end; promise nothing before."""
        self._log.error(
            "the data of this server is an older copy: the server ends, and at its next start "
            "fetches its streams from other servers",
            told_by=node_id, log=self._own[:2], seen_log=seen[:2],
        )  # fmt: skip
        self._identity.facts["log_segment"] = self._own[1] + _SURELY_LATER
        self._identity.facts[_LIFE] = self._disk.random_bytes(8).hex()
        if self._identity.save():
            self._on_put_back(
                DiskError(
                    "the store directory of this server was put back from an older copy: start the "
                    "server again"
                )
            )


def _logs_before(start: Start) -> list[str]:
    return list(start[3])


def _is_put_back(start: Start, seen: Start) -> bool:
    """True if a node that was `seen` can't begin this `start` but with an older copy of its log."""
    if seen[0] != start[0]:
        return start[0] in _logs_before(seen)  # else the log was lost, and the node knows that
    return bool(seen[1] > start[1] or _is_another_life(start, seen))


def _is_another_life(start: Start, earlier: Start) -> bool:
    """True if the node that began `start` has no memory of an `earlier` one, by its number."""
    log, segment, which = earlier[:3]
    if log != start[0] or segment > start[1]:
        return False
    if segment == start[1]:
        return bool(which != start[2])
    if not which or len(start) < 5:
        return False  # not written down, or not said
    since, told = start[4]
    return segment >= since and [segment, which] not in told


def _met(start: Start, seen: Start | None) -> Start:
    """Return what is known of a node that was `seen` once it is here by this `start`."""
    if seen is None:
        return _with_logs(start)
    if _is_put_back(start, seen):
        return seen  # it is told so by us, and comes back with another one
    return _with_logs(start, _logs_before(seen), [seen[0]])


def _later(one: Start, known: Start | None) -> Start:
    """Return the later of what another node says of a third one, and what is known here."""
    if known is None:
        return one
    if one[0] == known[0]:
        newer, older = (one, known) if one[1] > known[1] else (known, one)
        if _is_another_life(newer, older):
            # It had a copy put back, and we can't tell which of the two it is now: neither will do.
            newer = [newer[0], _NEVER, ""]
        return _with_logs(newer, _logs_before(known), _logs_before(one))
    if known[0] in _logs_before(one) and one[0] not in _logs_before(known):
        return _with_logs(one, _logs_before(known), _logs_before(one))
    return known


def _with_logs(start: Start, *logs: list[str]) -> Start:
    """`start` with each of the `logs` of before once, the latest last."""
    before = dict.fromkeys(log for part in logs for log in part if log != start[0])
    return [*start[:3], list(before)[-_LOGS_MAX:], *start[4:5]]
