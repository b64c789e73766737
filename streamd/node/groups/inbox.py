"""Messages that any group takes: everything that happens to a group is one of these.

A message stands for a batch (one chunk of a connection, one link's Raft message), so one small
object each is cheap. `Monitor.post` queues them; `Group.turn` hands each to its handler, in order.
Messages that only a stream's group takes are in `stream_groups/stream_inbox.py`.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass

from streamd.errors import JsError
from streamd.machine.commands import Command
from streamd.node.ports import Done
from streamd.raft.messages import Message
from streamd.raft.ready import Token
from streamd.types import Index, NodeId


class InboxMessage(ABC):  # noqa: B024 - a message is data; the group's handlers are the behaviour
    """Base of every message of an inbox."""

    __slots__ = ()


@dataclass(slots=True)
class Stop(InboxMessage):
    """Take no more turns after this one, but for a last snapshot."""


@dataclass(slots=True)
class Tick(InboxMessage):
    """Run a turn: every turn polls its deadlines."""


@dataclass(slots=True)
class Durable(InboxMessage):
    """The log has fsynced all that the token of a `Ready` covers."""

    token: Token


@dataclass(slots=True, kw_only=True)
class Saved(InboxMessage):
    """A snapshot at this entry is durable."""

    index: Index
    term: int
    chain: int


@dataclass(slots=True)
class Propose(InboxMessage):
    """Append a command to the log; `done` gets its outcome after apply."""

    command: Command
    done: Done | None
    is_forced: bool


@dataclass(slots=True)
class ReadBarrier(InboxMessage):
    """Call `done` when everything posted before is applied, or `lost` if that is unknown."""

    done: Callable[[], object]
    lost: Callable[[], object]


@dataclass(slots=True)
class SnapshotWanted(InboxMessage):
    """Take a snapshot: the log wants its old segments back, or a peer fetches one."""


@dataclass(slots=True)
class Step(InboxMessage):
    """A Raft message of a peer."""

    sender: NodeId
    message: Message


@dataclass(slots=True)
class Failed(InboxMessage):
    """The store or the log can't go on, so neither can the group."""

    error: BaseException


@dataclass(slots=True)
class StepDown(InboxMessage):
    """Transfer leadership to another member, the preferred one if it is named."""

    preferred: NodeId
    done: Callable[[bool | JsError], object]


@dataclass(slots=True)
class PeerUp(InboxMessage):
    """A link to a member is up; `live` are all nodes with a link."""

    node_id: NodeId
    live: frozenset[NodeId]


@dataclass(slots=True)
class PeerDown(InboxMessage):
    """The link to a member is down; `live` are all nodes with a link."""

    node_id: NodeId
    live: frozenset[NodeId]


@dataclass(slots=True)
class ChangeMembers(InboxMessage):
    """Change the members of the group to these."""

    voters: list[NodeId]
    learners: list[NodeId]


@dataclass(slots=True)
class RescueQuorum(InboxMessage):
    """Take so many voters for enough for a while: see `RaftCore.rescue`. `done` gets what was
    enough before, or a JsError."""

    quorum: int
    done: Callable[[int | JsError], object]


@dataclass(slots=True)
class WriterAt(InboxMessage):
    """A client of that node publishes, so it may read its own writes there."""

    node_id: NodeId


@dataclass(slots=True)
class ForceElection(InboxMessage):
    """Stand, and lead if all of `names` agree (docs/adr/0031). `used_to`: the last index that
    an operator accepts as lost, 0 if none is."""

    names: frozenset[NodeId]
    used_to: Index
