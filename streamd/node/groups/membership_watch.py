"""Watch over a group's members: news of a change of them, for the node that carries it on."""

from __future__ import annotations

from streamd import limits
from streamd.node.groups.turn import Turn
from streamd.raft.core import RaftCore
from streamd.types import NodeId


class MembershipWatch:
    """Members of one group as of its last turn."""

    __slots__ = ("_is_change_open", "_members", "_raft", "_ready_learners")

    def __init__(self, raft: RaftCore) -> None:
        self._raft = raft
        self._members = raft.members
        self._ready_learners: frozenset[NodeId] = frozenset()
        self._is_change_open = True  # members changed, and that is not committed; or some learn

    def poll(self, turn: Turn) -> bool:
        """Report changes of the members in `turn`; True if there was one."""
        raft = self._raft
        has_changed = raft.log.membership is not self._members
        if has_changed:
            before, self._members = self._members.members(), raft.members
            turn.newcomers = tuple(name for name in self._members.members() if name not in before)
            self._is_change_open = True
        if self._is_change_open:
            self._poll_change(turn)
        return has_changed

    def _poll_change(self, turn: Turn) -> None:
        """Report a change of members that is committed, and learners that are ready to vote: until
        the next step an ack may be on fewer disks than are wanted."""
        raft = self._raft
        members = raft.members
        is_committed = raft.log.membership_index <= raft.commit
        ready = frozenset(
            name for name in members.learners if raft.is_close(name, limits.LEARNER_LAG_ENTRIES)
        )
        is_open = not is_committed or members.is_joint or bool(members.learners)
        if is_committed:
            is_news = not is_open or bool(ready - self._ready_learners)
            turn.has_members_news = is_news and raft.is_leader
            self._ready_learners = ready
        self._is_change_open = is_open
