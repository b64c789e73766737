"""Elections: the term and the vote of a member, when it stands, and which candidate has won.

A member stands after a randomised silence, first asking whether it *would* be elected (pre-vote):
only then it raises the term. Where the leader is known to be gone voters take turns. Nobody grants
either kind while it hears a leader, so a member that is cut off half-way cannot depose a leader
that a majority can hear.
"""

from __future__ import annotations

from streamd.errors import CorruptionError
from streamd.raft.log import RaftLog
from streamd.raft.membership import Membership
from streamd.raft.messages import Vote, VoteReply
from streamd.raft.ready import Outbox
from streamd.raft.recovering import Recovery
from streamd.types import HardState, Index, NodeId, Term, Uid

FOLLOWER = 0
PRE_CANDIDATE = 1
CANDIDATE = 2
LEADER = 3

ROLE_NAMES = ("follower", "pre-candidate", "candidate", "leader")

NEVER = 0
"""`deadline_ms` of a core that no passing of time can move."""

LEADER_LOST_MS = (30, 200)  # patience once the leader's link is known to be gone
TURN_MS = 300  # later, for each voter that stands before this one
HURRIED_TRIES = 5  # elections lost in a row before patience returns

_MASK = (1 << 64) - 1


class Dice:
    """Pseudo-random numbers from a seed (splitmix64): the core may not ask the system."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        """Return a number in 0..bound-1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound


class Standing:
    """The term of one member, its vote in it, and the leader it knows of.

    Term and vote are durable before anything that follows from them leaves: `has_changed` asks for
    a write of the hard state.
    """

    __slots__ = (
        "first_commit",
        "group",
        "has_changed",
        "hinted",
        "is_leader",
        "is_sole",
        "leader_id",
        "led_terms",
        "node_id",
        "term",
        "vote",
    )

    def __init__(self, group: Uid, node_id: NodeId, hard_state: HardState) -> None:
        self.group = group
        self.node_id = node_id
        self.term: Term = hard_state.term
        self.vote: NodeId = hard_state.vote
        self.leader_id: NodeId | None = None
        self.is_leader = False
        self.is_sole = False  # the group has no other member, by the membership in force
        self.has_changed = False
        self.hinted: Index = hard_state.commit  # the commit index that was last made durable
        self.first_commit: Index = 0  # the first commit index that a leader told; 0: none yet
        self.led_terms: tuple[Term, ...] = ()  # since this member was made, the newest

    def check_log(self, last_term: Term, *, is_uncertain: bool) -> None:
        """Raise CorruptionError if the log is of a later term than the hard state."""
        if self.term < last_term:
            # Its vote is lost as well: it could vote twice in a term (I12).
            if not is_uncertain:
                raise CorruptionError(
                    f"hard state has term {self.term}, the log already term {last_term}"
                )
            self.term, self.vote = last_term, ""

    def enter(self, term: Term) -> None:
        """Go on to a later term, in which nothing is promised yet."""
        assert term > self.term, (term, self.term)
        self.term = term
        self.vote = ""  # and only here: a vote lasts as long as its term
        self.has_changed = True

    def vote_for(self, node_id: NodeId) -> None:
        """Give this term's vote to `node_id`."""
        if self.vote != node_id:
            self.vote = node_id
            self.has_changed = True

    def lead(self) -> None:
        """Note that this member leads its term."""
        self.is_leader = True
        self.leader_id = self.node_id
        self.led_terms = (*self.led_terms, self.term)[-LED_TERMS_MAX:]


LED_TERMS_MAX = 64  # remembered of a member; entries of earlier ones count as another leader's


class Clock:
    """The time as the shell last told it, the next deadline, and which nodes have a link up."""

    __slots__ = (
        "deadline_ms",
        "election_ms",
        "excused_ms",
        "heard_ms",
        "heartbeat_ms",
        "is_quiescent",
        "live",
        "now_ms",
        "rescue_until_ms",
    )

    def __init__(self, now_ms: int, *, election_ms: int, heartbeat_ms: int) -> None:
        self.now_ms = now_ms
        self.heard_ms = now_ms - election_ms  # last sign of a leader; none yet
        self.deadline_ms = NEVER
        self.election_ms = election_ms
        self.heartbeat_ms = heartbeat_ms
        self.excused_ms = 0  # when this member last was found to have stood still
        self.live: frozenset[NodeId] | None = None  # nodes with a link up; None: never told
        self.is_quiescent = False  # nothing is under way and time may pass
        self.rescue_until_ms = NEVER  # fewer than a majority are enough till then

    def has_live_quorum(self, members: Membership) -> bool:
        """Return whether the nodes with a link up are enough to elect or to commit."""
        return self.live is not None and members.has_quorum(self.live.__contains__)


class Ballot:
    """The votes of one campaign. Answers of nodes that are no members never count.

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
        """Return True with a majority of the certain voters, or if all voters without exception
        agree."""
        if self.everybody:
            return self.is_unanimous(membership)
        return self.has_quorum(membership) or self.is_unanimous(membership)

    def has_quorum(self, membership: Membership) -> bool:
        """Return True with a majority of voters that remember."""
        return membership.has_quorum(self._granted.__contains__)

    def is_unanimous(self, membership: Membership) -> bool:
        return all(
            node_id in self._granted or node_id in self.uncertain
            for node_id in (*membership.voters, *membership.voters_out, *self.everybody)
        )

    def is_lost(self, membership: Membership, live: frozenset[NodeId] | None = None) -> bool:
        """Return True once neither is possible any more. A node without a link (if `live` is known)
        will not answer."""
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


class Candidate:
    """The role of a member that stands: for a term, or (`is_pre`) asking whether it could win."""

    __slots__ = ("ballot", "is_pre")

    def __init__(self, ballot: Ballot, *, is_pre: bool) -> None:
        self.ballot = ballot
        self.is_pre = is_pre

    @property
    def role(self) -> int:
        return PRE_CANDIDATE if self.is_pre else CANDIDATE

    def on_vote_reply(self, sender: NodeId, reply: VoteReply, term: Term) -> bool:
        """Count an answer to this campaign, of a member in `term`; False if it is to another."""
        wanted_term = term + 1 if self.is_pre else term
        if reply.is_pre != self.is_pre or (reply.is_granted and reply.term != wanted_term):
            return False
        self.ballot.record(sender, is_granted=reply.is_granted, is_uncertain=reply.is_uncertain)
        return True


class Election:
    """Elections as one member takes part: when it stands, which members it asks, its vote.

    Owns the patience of a member that hears no leader. Does not change its role: the core does.
    """

    __slots__ = (
        "_clock",
        "_dice",
        "_log",
        "_outbox",
        "_patience_ms",
        "_recovery",
        "_standing",
        "everybody",
        "opening",
        "tries",
    )

    def __init__(
        self,
        standing: Standing,
        clock: Clock,
        recovery: Recovery,
        log: RaftLog,
        outbox: Outbox,
        dice: Dice,
    ) -> None:
        self._standing = standing
        self._clock = clock
        self._recovery = recovery
        self._log = log
        self._outbox = outbox
        self._dice = dice
        self._patience_ms = clock.election_ms  # drawn anew with each role
        self.everybody: frozenset[NodeId] = frozenset()  # all must agree; see `core.stand_in`
        self.opening = b""  # the command that its term begins with if they do
        self.tries = 0  # lost elections in a row, since a leader was heard

    # --- questions ------------------------------------------------------------------------------

    def hears_leader(self) -> bool:
        """Return True while a leader may be alive: no candidate is helped to depose it."""
        standing, clock = self._standing, self._clock
        if standing.is_leader:
            return True  # check-quorum makes us step down when no quorum follows us any more
        if standing.leader_id is None:
            return False
        return clock.is_quiescent or clock.now_ms < clock.heard_ms + clock.election_ms

    def may_stand(self) -> bool:
        """Return True for a voter that is whole, also for one whose removal is not known to be
        committed: until it is, the group may need the longer log that only this member has."""
        recovery, log = self._recovery, self._log
        if recovery.is_incomplete or recovery.has_diverged:
            return False
        if self.everybody:
            return True
        if recovery.is_uncertain:
            members = log.membership
            voters = {*members.voters, *members.voters_out}
            if not recovery.may_begin_anew or not recovery.named <= voters:
                return False  # all that it knows may be of before the others came
        node_id = self._standing.node_id
        return any(members.is_voter(node_id) for members in log.open_memberships())

    def needs_nobody(self) -> bool:
        """Return True if no other member has a say in this election."""
        return self._standing.is_sole and self.everybody <= {self._standing.node_id}

    # --- patience -------------------------------------------------------------------------------

    def arm(self) -> None:
        """Restart the patience of a member that may stand for election, or needs a leader."""
        if self._standing.is_leader:
            return
        clock = self._clock
        if not (self.may_stand() or self._recovery.lacks_something):
            clock.deadline_ms = NEVER
            return
        self._patience_ms = clock.election_ms + self._dice.below(clock.election_ms)
        clock.deadline_ms = clock.now_ms + self._patience_ms

    def hear_leader(self) -> None:
        """Note a sign of life of this term's leader."""
        clock = self._clock
        clock.heard_ms = clock.now_ms
        clock.is_quiescent = False
        self.tries = 0
        if clock.deadline_ms != NEVER:
            clock.deadline_ms = clock.now_ms + self._patience_ms
        else:
            self.arm()

    def hurry(self) -> None:
        """Stand soon: that there is no leader is known. Others know it too, so they take turns,
        another one first in each group; the dice are for groups that all lost theirs at once."""
        clock = self._clock
        if clock.deadline_ms != NEVER:
            low, high = LEADER_LOST_MS
            soon_ms = clock.now_ms + low + self._dice.below(high - low) + self._rank() * TURN_MS
            clock.deadline_ms = min(clock.deadline_ms, soon_ms)

    def _rank(self) -> int:
        """Return how many of the voters that are here stand before this one."""
        members, standing, live = self._log.membership, self._standing, self._clock.live
        voters = sorted({*members.voters, *members.voters_out, standing.node_id})
        if live is not None:
            voters = [name for name in voters if name in live or name == standing.node_id]
        return (voters.index(standing.node_id) - standing.group) % len(voters)

    def _overtake(self, vote: Vote) -> None:
        """Stand before a candidate that has less than this member, and so stands in vain."""
        low, high = LEADER_LOST_MS
        log, clock = self._log, self._clock
        is_less = (vote.last_term, vote.last_index) < (log.last_term, log.last_index)
        if is_less and clock.deadline_ms != NEVER:
            soon_ms = clock.now_ms + self._dice.below(high - low)
            clock.deadline_ms = min(clock.deadline_ms, soon_ms)

    # --- votes ----------------------------------------------------------------------------------

    def ask_for_votes(self, vote: Vote, *others: NodeId) -> None:
        """Send `vote` to all voters, to all members that must agree, and to `others`."""
        outbox = self._outbox
        channel = outbox.send_now if vote.is_pre else outbox.held
        members = self._log.membership
        for node_id in sorted({*members.voters, *members.voters_out, *self.everybody, *others}):
            if node_id != self._standing.node_id:
                channel.append((node_id, vote))

    def seek_leader(self) -> None:
        """Wake a leader that may be resting, and knows nothing of this member having begun anew, by
        a question whose answer does not matter: only a leader can give what this member lacks."""
        log, standing = self._log, self._standing
        standing.leader_id = None
        self._outbox.role_changed = True
        # The list of members may have been lost with the state.
        vote = Vote(standing.term + 1, True, log.last_index, log.last_term)
        self.ask_for_votes(vote, *self._recovery.named)

    def on_vote(self, sender: NodeId, vote: Vote, *, is_follower: bool) -> None:
        """Answer a candidate of this term, or of the next one if it only asks."""
        standing, recovery, outbox, log = self._standing, self._recovery, self._outbox, self._log
        last_term, last_index = log.last_term, log.last_index
        if recovery.is_uncertain:
            last_term, last_index = max((last_term, last_index), recovery.left_at)
        is_granted = (
            not recovery.has_diverged
            and may_vote(
                vote,
                sender,
                term=standing.term,
                voted_for=standing.vote,
                leader_id=standing.leader_id,
            )
            and (
                recovery.is_mere_learner
                or is_up_to_date(vote, last_term=last_term, last_index=last_index)
            )
        )
        if vote.is_pre:
            if not is_granted and standing.leader_id is None and is_follower:
                self._overtake(vote)
            term = vote.term if is_granted else standing.term
            outbox.send_now.append((sender, self.vote_reply(term, True, is_granted)))
            return
        if is_granted:
            standing.vote_for(sender)
            self.arm()
        outbox.held.append((sender, self.vote_reply(standing.term, False, is_granted)))

    def vote_reply(self, term: Term, is_pre: bool, is_granted: bool) -> VoteReply:
        return VoteReply(term, is_pre, is_granted, self._recovery.is_uncertain)


def is_up_to_date(vote: Vote, *, last_term: Term, last_index: Index) -> bool:
    """Return True if the candidate's log holds at least what ours does: later term, or as long."""
    return (vote.last_term, vote.last_index) >= (last_term, last_index)


def may_vote(
    vote: Vote, sender: NodeId, *, term: Term, voted_for: NodeId, leader_id: NodeId | None
) -> bool:
    """Return True if a vote in `vote.term` is still ours to give: one a term, and none once a
    leader of that term is known. A pre-vote promises nothing, so for a later term it always is."""
    if vote.is_pre and vote.term > term:
        return True
    return voted_for == sender or (not voted_for and leader_id is None)
