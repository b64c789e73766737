"""Replicas whose stream has moved away: kept until the group's leader says that it has left them.

What the meta group says is not enough. It may be old news: by now the stream may be wanted here
again, and its leader, who knows that, may have made a member of this node and count what it acks.
Even its latest word may not be what the group does: a leader that has not heard of a move yet takes
it back. So the group itself is asked, and what is here goes only if nothing was promised meanwhile.

A deleted stream is not asked for: its uid never comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.core import RaftCore
from streamd.types import NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Departures:
    """What one node asks before it lets go of a replica, and what it answers as a leader."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[Uid, None] = {}  # those that were answered last at the end
        self._asked: set[Uid] = set()  # whose question is under way

    def begin(self, uid: Uid) -> None:
        """By what the meta group says, this node has nothing to do with the stream any more."""
        self._waiting[uid] = None
        self._ask(uid)

    def forget(self, uid: Uid) -> None:
        """The replica stays, or it is gone."""
        self._waiting.pop(uid, None)

    def look(self) -> None:
        """Ask again where nobody led, nobody answered, or the leader still counts on it."""
        for uid in list(self._waiting):
            self._ask(uid)

    def _ask(self, uid: Uid) -> None:
        node = self._node
        replica, leader = node.replicas.get(uid), node.leader_of(uid)
        if replica is None or uid in self._asked or len(self._asked) >= limits.DEPARTURES_MAX:
            return
        if node.peers is None or leader in ("", node.server_name):
            return
        promises = _promises(replica.group.raft)

        def answered(has_left: Any) -> None:
            self._asked.discard(uid)
            if uid not in self._waiting:
                return
            self._waiting[uid] = self._waiting.pop(uid)  # others first: there may be many
            if has_left is not True:
                return
            if node.replicas.get(uid) is replica and _promises(replica.group.raft) == promises:
                node.replicas.leave(uid)

        self._asked.add(uid)
        node.peers.call(leader, "has_left", [uid], answered, limits.DEPARTURE_MS)

    def answer(self, uid: Uid, node_id: NodeId, answer: Callable[[Any], None]) -> None:
        """As leader: True if nothing that `node_id` promised to the group so far matters to it."""
        replica = self._node.replicas.get(uid)
        if replica is None or not replica.is_ready or not _has_left(replica, node_id):
            answer(False)
            return
        # A majority has to say that nobody else leads by now, who might know better. If that comes
        # to nothing there is no answer: it is asked again.
        replica.read_barrier(lambda: answer(_has_left(replica, node_id)), lambda: None)


def _has_left(replica: LocalStream, node_id: NodeId) -> bool:
    """True if the group has committed a membership without `node_id`, and has no later one."""
    raft = replica.group.raft
    return raft.log.membership_index <= raft.commit and node_id not in raft.members.members()


def _promises(raft: RaftCore) -> tuple[Any, ...]:
    """What a member has promised: any vote, and any entry that it has taken, changes it."""
    last = raft.last_index
    return raft.term, raft.vote, raft.is_uncertain, last, raft.log.entry_id(last)
