"""Recovering members: what a group may still build on one that has forgotten something.

A member is *uncertain* if it may have forgotten votes it gave or entries it acknowledged: its
disk was wiped, or part of its log is gone. It says so in every reply, and durably to itself. It
never stands for election of its own. It receives entries and answers votes by the ordinary rules,
but:

- Its vote counts only in a *unanimous* election. Otherwise a candidate needs a majority of
  members that remember. Two leaders of one term would need two sets of votes that share no
  member with a memory: two such majorities always share one, and "all" shares one with each.
  Whatever is committed is in the log of at least one member that remembers (as long as fewer
  than a majority forgot), all of those were asked, and none grants to a shorter log.
- Its acks commit nothing and its heartbeats confirm no read, because it may have voted, before
  it forgot, for a leader of a later term.

A leader ends this with `Certify(term, index)`, once the member holds the leader's entry `index`:

 i. at once, if the election of this very term was unanimous and the candidate knew of the
    uncertainty before it asked for votes (from the pre-vote). All voters then granted this term
    after the member forgot, so none of them was in a later term at that time: no forgotten vote
    can still elect a leader there. With few voters this is the only way.
 ii. else, when an entry appended after the leader heard of it is committed by certain members
    alone. Had the member voted for a candidate of a later term before it forgot, that candidate
    needs one more of this majority; who voted for it before acking the entry was in the later
    term and could not ack, who acked first refuses its vote because the candidate, which stood
    before the entry existed, lacks it.

In both cases the member then holds all that was committed before (leader completeness), so its
vote protects that again. It records the leader as its vote of the term: of that term's election
it has forgotten the rest, and the leader did win it. It acts as certain only when this is durable.

That a majority remembers does not hold for those who were members and left: their logs are gone,
and to a candidate that has not heard of it they may be all voters there are. So a node keeps where
such a log ended (`left_at`), and its next member, as long as it is recovering, refuses a candidate
that has less: the candidate would lack what said who was to come in its place.

A member whose data an older copy replaced does not know that it has forgotten. Its leader sees
it, and counts none of its acks until it holds all again; in the meantime it may vote, which cannot
be prevented.

Where all voters are recovering no member leads, and entries that they alone had may be lost. If an
operator accepts that, a member *stands in* (`core.stand_in`), be it recovering or a learner, and
wins if every member grants: all voters, and all whom the meta group names. Any voter there may be,
also by an entry that the candidate lacks, is among them, and has nothing that it lacks. So a later
leader, elected by whatever members, has seen this term; and as all voters granted it after they
forgot, i. holds. The rules of commitment stay as they are. A leader without a vote stays until it
has changed who belongs to the group.

A broken link may mean that it forgot once more: the leader then starts over with a new entry.
"""

from __future__ import annotations

from streamd.raft.messages import AppendReply
from streamd.raft.replication import PROBE, Progress, Replication
from streamd.types import Index, NodeId, Term


class Recovery:
    """Recovery of one member: what it may have forgotten, and what it lacks.

    `is_uncertain`: votes or acks may be forgotten (see the module). `is_incomplete`: the log is
    whole, the state below it is not. `has_diverged`: the log is not the leader's in what was
    committed. `may_begin_anew`: the group is in memory, and what all members forgot is gone.
    """

    __slots__ = (
        "certified_index",
        "forgetful",
        "has_diverged",
        "has_told",
        "is_certified",
        "is_incomplete",
        "is_uncertain",
        "left_at",
        "may_begin_anew",
        "may_have_voted",
        "named",
    )

    def __init__(
        self,
        *,
        is_uncertain: bool,
        is_incomplete: bool,
        may_begin_anew: bool,
        named: frozenset[NodeId],
        left_at: tuple[Term, Index],
    ) -> None:
        self.is_uncertain = is_uncertain
        self.is_incomplete = is_incomplete
        self.may_begin_anew = may_begin_anew
        self.named = named
        self.left_at = left_at
        self.has_diverged = False
        # Was a voter at some time, or can't say: entries may rest on what it acked.
        self.may_have_voted = is_uncertain
        self.certified_index: Index = 0  # no later entry was forgotten; 0: not readmitted yet
        self.is_certified = False  # a write says that the member is certain; not yet reported
        self.has_told = False  # a leader what its log holds, since it was made
        self.forgetful: set[NodeId] = set()  # voters that elected it, if no majority remembers

    @property
    def lacks_something(self) -> bool:
        """True of a member that only a leader can make whole."""
        return self.is_incomplete or self.has_diverged or self.is_uncertain

    @property
    def is_whole(self) -> bool:
        """True if log and state are the group's, as far as this member knows."""
        return not (self.is_incomplete or self.has_diverged)

    @property
    def is_mere_learner(self) -> bool:
        """True in memory of a member that was never a voter: nothing was committed by its acks, and
        should all voters have forgotten what it was told, it must not keep them from beginning
        anew. Who was one, and left, may be needed by those who have not heard that it left: it
        must not help them to go on without what came after."""
        return self.may_begin_anew and not self.may_have_voted

    def append_reply(self, term: Term, is_ok: bool, index: Index) -> AppendReply:
        """Return an answer to a leader that says in what state this member is."""
        self.has_told = True
        reply = AppendReply(term, is_ok, index)
        reply.is_uncertain = self.is_uncertain
        reply.needs_snapshot = self.is_incomplete
        return reply


class Readmission:
    """Readmission: which peers a leader takes for recovering, and when one counts again."""

    __slots__ = ("_replication",)

    def __init__(self, replication: Replication) -> None:
        self._replication = replication

    def begin(self, granted: set[NodeId], at_once: set[NodeId]) -> None:
        """Note which members were uncertain when they granted; the term's first entry comes after
        that. Those in `at_once` count again as soon as they hold it."""
        replication = self._replication
        for node_id in granted & replication.peers.keys():
            self.doubt(replication.peers[node_id], replication.term_start)
            replication.peers[node_id].is_certain_at_once = node_id in at_once

    def doubt(self, peer: Progress, certain_from: Index) -> None:
        """Count on nothing that `peer` acknowledged until it holds entry `certain_from`."""
        log = self._replication.log
        self._replication.has_doubts = True
        peer.is_uncertain = True
        peer.certain_from = certain_from
        peer.is_certain_at_once = False
        peer.match = 0
        peer.probe()
        # It may lack everything or only the last entry: look from the end, not from the beginning.
        peer.next = max(log.last_index, log.base_index + 1)

    def trust(self, peer: Progress) -> None:
        """Count on `peer` again: it says that it is certain, after the leader took it for
        recovering."""
        peer.is_uncertain = False
        peers = self._replication.peers
        self._replication.has_doubts = any(other.is_uncertain for other in peers.values())

    def may_certify(self, peer: Progress) -> bool:
        """Return True once one of the two conditions holds and the peer has what it needs."""
        return (
            peer.is_uncertain
            and peer.match >= peer.certain_from
            and (peer.is_certain_at_once or self._replication.log.commit >= peer.certain_from)
        )

    def is_stuck(self, since_ms: int) -> bool:
        """Return True if only a new, unanimous election can help: all members are there, but those
        that remember are no majority, and some peer cannot be readmitted at once."""
        peers = self._replication.peers
        members = self._replication.log.membership
        if all(peer.is_certain_at_once or not peer.is_uncertain for peer in peers.values()):
            return False
        heard = {node_id for node_id, peer in peers.items() if peer.heard_ms >= since_ms}
        heard.add(self._replication.node_id)
        if not all(node_id in heard for node_id in (*members.voters, *members.voters_out)):
            return False
        return not members.has_quorum(
            lambda node_id: node_id not in peers or not peers[node_id].is_uncertain
        )


def has_lost_more(peer: Progress, reply: AppendReply) -> bool:
    """Return True if a peer refuses what it has acknowledged."""
    return not reply.is_ok and not reply.is_diverged and 0 < reply.index <= peer.match


def has_put_back(peer: Progress, reply: AppendReply) -> bool:
    """Return True if a peer that says it is certain refuses the last entry that it has
    acknowledged: an older copy of its data was put back. It is asked twice: once may be an old
    answer."""
    if peer.state != PROBE or reply.index != peer.next - 1 or not has_lost_more(peer, reply):
        return False
    was_refused, peer.is_match_refused = peer.is_match_refused, True
    return was_refused
