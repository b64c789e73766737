"""From the members a group has to the members it should have: the next safe step.

New members come in as learners, and vote only when they have nearly all of the log; then all
changes of voters happen in one joint step.
"""

from __future__ import annotations

from streamd import limits
from streamd.raft.core import RaftCore
from streamd.types import NodeId

Roster = tuple[tuple[NodeId, ...], tuple[NodeId, ...]]


def next_roster(raft: RaftCore, wanted: tuple[NodeId, ...]) -> Roster | None:
    """Return (voters, learners) to propose now; None: nothing to do, or not yet."""
    members = raft.members
    if not raft.is_leader or members.is_joint or raft.log.membership_index > raft.commit:
        return None
    voters, learners = set(members.voters), set(members.learners)
    missing = set(wanted) - voters
    if not missing and voters == set(wanted) and not learners:
        return None
    newcomers = missing - learners
    if newcomers:
        return members.voters, tuple(sorted(learners | newcomers))
    if not all(raft.is_close(name, limits.LEARNER_LAG_ENTRIES) for name in missing):
        return None
    return tuple(sorted(wanted)), ()
