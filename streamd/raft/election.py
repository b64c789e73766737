"""Rules of elections: when to stand, whom to vote for, who has won. No state of the log.

A member stands after a randomised silence, first asking whether it *would* be elected (pre-vote):
only then it raises the term. Where the leader is known to be gone voters take turns. Nobody grants
either kind while it hears a leader, so a member that is cut off half-way cannot depose a leader
that a majority can hear.
"""

from __future__ import annotations

from streamd.raft.membership import Membership
from streamd.raft.messages import Vote
from streamd.types import Index, NodeId, Term

FOLLOWER = 0
PRE_CANDIDATE = 1
CANDIDATE = 2
LEADER = 3

ROLE_NAMES = ("follower", "pre-candidate", "candidate", "leader")

_MASK = (1 << 64) - 1


class Dice:
    """Pseudo-random numbers from a seed (splitmix64): the core may not ask the system."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """A number in 0..bound-1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound


class Ballot:
    """The votes of one campaign. Who is not a member may answer, but never counts.

    `known`: members whose uncertainty was heard of before this campaign began. `everybody`, if
    any: all of them must grant as well, voters or not.
    """

    __slots__ = ("_granted", "_refused", "everybody", "known", "uncertain")

    def __init__(
        self,
        known: frozenset[NodeId] = frozenset(),
        everybody: frozenset[NodeId] = frozenset(),
    ) -> None:
        self._granted: set[NodeId] = set()
        self._refused: set[NodeId] = set()
        self.uncertain: set[NodeId] = set()  # granted, but may have forgotten other promises
        self.known = known
        self.everybody = everybody

    def record(self, node_id: NodeId, *, is_granted: bool, is_uncertain: bool = False) -> None:
        """Count the first answer of each member."""
        if node_id in self._granted or node_id in self._refused or node_id in self.uncertain:
            return
        if not is_granted:
            self._refused.add(node_id)
        elif is_uncertain:
            self.uncertain.add(node_id)
        else:
            self._granted.add(node_id)

    def is_won(self, membership: Membership) -> bool:
        """True with a majority of those who remember, or if all voters without exception agree."""
        if self.everybody:
            return self.is_unanimous(membership)
        return self.has_quorum(membership) or self.is_unanimous(membership)

    def has_quorum(self, membership: Membership) -> bool:
        """True with a majority of those who remember."""
        return membership.has_quorum(self._granted.__contains__)

    def is_unanimous(self, membership: Membership) -> bool:
        return all(
            node_id in self._granted or node_id in self.uncertain
            for node_id in (*membership.voters, *membership.voters_out, *self.everybody)
        )

    def is_lost(self, membership: Membership, live: frozenset[NodeId] | None = None) -> bool:
        """True once neither is possible any more. Who has no link (if `live` is known) will not
        answer."""
        refused = self._refused
        if live is not None:
            voters = {*membership.voters, *membership.voters_out}
            refused = refused | ((voters | self.everybody) - live)
        if self.everybody:
            return any(
                membership.is_voter(node_id) or node_id in self.everybody for node_id in refused
            )
        if not any(membership.is_voter(node_id) for node_id in refused):
            return False
        return not membership.has_quorum(
            lambda node_id: node_id not in refused and node_id not in self.uncertain
        )


def is_up_to_date(vote: Vote, *, last_term: Term, last_index: Index) -> bool:
    """True if the candidate's log holds at least what ours does: later term, or as long."""
    return (vote.last_term, vote.last_index) >= (last_term, last_index)


def may_vote(
    vote: Vote, sender: NodeId, *, term: Term, voted_for: NodeId, leader_id: NodeId | None
) -> bool:
    """True if a vote in `vote.term` is still ours to give: one a term, and none once a leader of
    that term is known. A pre-vote promises nothing, so for a later term it always is."""
    if vote.is_pre and vote.term > term:
        return True
    return voted_for == sender or (not voted_for and leader_id is None)
