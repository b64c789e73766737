"""`ReplicaRemoval`: a replica whose stream has moved away stays until its leader says it left.

What the meta group says is not enough. It may be old news: by now the stream may be wanted here
again, and its leader, which knows that, may have made a member of this node and count what it acks.
Even its latest word may not be what the group does: a leader that has not heard of a move yet takes
it back. So the group itself is asked, and what is here goes only if nothing was promised meanwhile.

A deleted stream is not asked for: its uid never comes back.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.callbacks import ignore
from streamd.node.cluster.leaders import Leaders
from streamd.node.ports import Answer, Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.core import RaftCore
from streamd.types import NodeId, Uid


class ReplicaRemoval:
    """Questions of one node before it removes a replica, and its answers as a leader.

    `on_left(uid)`: the group has removed this node from its members.
    """

    def __init__(
        self,
        name: NodeId,
        groups: LocalGroups,
        leaders: Leaders,
        peers: Peers | None,
    ) -> None:
        self._name = name
        self._groups = groups
        self._leaders = leaders
        self._peers = peers
        self.on_left: Callable[[Uid], None] = ignore
        self._waiting: dict[Uid, None] = {}  # those that were answered last at the end
        self._asked: set[Uid] = set()  # whose question is under way

    def begin(self, uid: Uid) -> None:
        """Ask for a stream with which this node has nothing to do any more, by what the meta group
        says."""
        self._waiting[uid] = None
        self._ask(uid)

    def forget(self, uid: Uid) -> None:
        """Stop asking: the replica stays, or it is gone."""
        self._waiting.pop(uid, None)

    def check(self) -> None:
        """Ask again where no member led or answered, or the leader still counts on this one."""
        for uid in list(self._waiting):
            self._ask(uid)

    def _ask(self, uid: Uid) -> None:
        replica, leader = self._groups.get(uid), self._leaders.leader_of(uid)
        if replica is None or uid in self._asked or len(self._asked) >= limits.DEPARTURES_MAX:
            return
        if self._peers is None or leader in ("", self._name):
            return
        promises = _promises(replica.group.raft)

        def answered(has_left: object) -> None:
            self._asked.discard(uid)
            if uid not in self._waiting:
                return
            self._waiting[uid] = self._waiting.pop(uid)  # others first: there may be many
            if has_left is not True:
                return
            if self._groups.get(uid) is replica and _promises(replica.group.raft) == promises:
                self.on_left(uid)

        self._asked.add(uid)
        self._peers.call(leader, "has_left", [uid], answered, limits.DEPARTURE_MS)

    def serve(self, sender: NodeId, args: tuple[Uid], answer: Answer) -> None:
        """Answer the call `has_left`, as leader: [uid]. True if nothing that `sender` promised to
        the group so far matters to it."""
        replica = self._groups.get(args[0])
        if replica is None or not replica.is_ready or not _has_left(replica, sender):
            answer(False)
            return
        # A majority has to say that nobody else leads by now, who might know better. If that comes
        # to nothing there is no answer: it is asked again.
        replica.read_barrier(lambda: answer(_has_left(replica, sender)), lambda: None)


def _has_left(replica: LocalStream, node_id: NodeId) -> bool:
    """True if the group has committed a membership without `node_id`, and has no later one."""
    raft = replica.group.raft
    return raft.log.membership_index <= raft.commit and node_id not in raft.members.members()


def _promises(raft: RaftCore) -> tuple[object, ...]:
    """Return what a member has promised: any vote, and any entry that it has taken, changes it."""
    last = raft.last_index
    return raft.term, raft.vote, raft.is_uncertain, last, raft.log.entry_id(last)
