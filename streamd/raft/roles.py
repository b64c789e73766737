"""One member's role: who may lead, how it changes, and what is committed then.

Below what a member does with messages (`member`) and what its shell asks of it (`core`). All work
on one set of fields, `state.State`.
"""

from __future__ import annotations

from typing import Any

from crc32c import crc32c

from streamd.raft import membership, recovering
from streamd.raft.election import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE, Ballot
from streamd.raft.log import pack_identity
from streamd.raft.membership import Membership
from streamd.raft.messages import AppendReply, Certify, Vote, VoteReply
from streamd.raft.progress import Peer
from streamd.raft.ready import ReadState
from streamd.raft.replication import Leadership
from streamd.raft.state import NEVER, State
from streamd.types import Entry, Index, NodeId, Term

LEADER_LOST_MS = (30, 200)  # patience once the leader's link is known to be gone
TURN_MS = 300  # later, for each voter that stands before this one
HURRIED_TRIES = 5  # elections lost in a row before patience returns


class Roles(State):
    """Roles, time and commits of one member of one group. Used only as the base of `Member`."""

    __slots__ = ()

    def _begin(self) -> None:
        """Who has nobody else to wait for leads at once."""
        self._follow_membership()
        if self.log.membership.voters == (self.node_id,):
            self._campaign()

    # --- roles ------------------------------------------------------------------------------------

    def _hears_leader(self) -> bool:
        """True while a leader may be alive: nobody is helped to depose it."""
        if self.is_leader:
            return True  # check-quorum makes us step down when nobody follows us any more
        if self.leader_id is None:
            return False
        return self.is_quiescent or self.now_ms < self.heard_ms + self._election_ms

    def _follow(self, leader: NodeId) -> None:
        assert not self.is_leader, f"{leader} and {self.node_id} both lead term {self.term}"
        if self.role != FOLLOWER or self.leader_id != leader:
            self._become_follower(self.term, leader)
        self.heard_ms = self.now_ms
        self.is_quiescent = False
        self._tries = 0
        if self.deadline_ms != NEVER:
            self.deadline_ms = self.now_ms + self._patience_ms
        else:
            self._arm_election()

    def _become_follower(self, term: Term, leader: NodeId | None) -> None:
        assert term >= self.term, (term, self.term)
        if term > self.term:
            self.term = term
            self.vote = ""  # and only here: a vote lasts as long as its term
            self._held.clear()  # promises of a term that is over
            self._is_certified = False
            self._hard_state_changed = True
        self.is_quiescent = False
        self._end_leadership()
        self._everybody, self._opening = frozenset(), b""
        self.role = FOLLOWER
        self.leader_id = leader
        self._role_changed = True
        self._arm_election()

    def _end_leadership(self) -> None:
        leadership = self._leadership
        self.is_leader = self.is_leader_ready = False
        self._leadership = None
        self._uncommitted_bytes = 0
        if leadership is None:
            return
        for requester, context in leadership.unconfirmed_reads():
            if requester == self.node_id:
                self._read_states.append(ReadState(context, 0))
            else:
                leadership.answer(requester, context, 0)

    def _campaign(self, *, is_transfer: bool = False) -> None:
        """Stand for election: for the term at once if nobody else has a say, or the leader
        asked for it; else ask first whether it could be won."""
        log = self.log
        if not self._may_stand():
            if self._lacks_something():
                self._seek_leader()
            return
        self._ballot = Ballot(everybody=self._everybody)
        self._role_changed = True
        self.leader_id = None
        if not (is_transfer or self._needs_nobody()):
            self.role = PRE_CANDIDATE
            self._ask_for_votes(Vote(self.term + 1, True, log.last_index, log.last_term))
            # Promises nothing, and counts like everybody's if we have forgotten something.
            self._ballot.record(self.node_id, is_granted=True, is_uncertain=self.is_uncertain)
            self._count_votes()
            return
        self._stand(is_transfer=is_transfer)

    def _seek_leader(self) -> None:
        """We lack something that only a leader can give, and hear none: it may be resting, and know
        nothing of our having begun anew. A question whose answer does not matter wakes it."""
        log = self.log
        self.leader_id = None
        self._role_changed = True
        # Whom the members were may have been lost with the state.
        self._ask_for_votes(Vote(self.term + 1, True, log.last_index, log.last_term), *self.named)

    def _stand(self, *, is_transfer: bool) -> None:
        """Raise the term and ask for real votes, our own included."""
        log = self.log
        self.term += 1
        self.vote = self.node_id
        self._hard_state_changed = True
        self.role = CANDIDATE
        self._ballot = Ballot(frozenset(self._ballot.uncertain), self._everybody)
        self._arm_election()
        if self._needs_nobody():
            # Term, vote and no-op go into one write, and nothing leaves before it is durable.
            self._become_leader()
            return
        # Requests wait for the disk as well: they claim a log and a term that must survive us,
        # or a grant could be counted by a later incarnation that has less.
        self._ask_for_votes(Vote(self.term, False, log.last_index, log.last_term, is_transfer))
        self._held.append((self.node_id, self._vote_reply(self.term, False, True)))

    def _needs_nobody(self) -> bool:
        """True if nobody else has a say in this election."""
        return self._is_sole and self._everybody <= {self.node_id}

    def _ask_for_votes(self, vote: Vote, *others: NodeId) -> None:
        channel = self._outbox if vote.is_pre else self._held
        log_members = self.log.membership
        for node_id in sorted(
            {*log_members.voters, *log_members.voters_out, *self._everybody, *others}
        ):
            if node_id != self.node_id:
                channel.append((node_id, vote))

    def _count_votes(self) -> None:
        members = self.log.membership
        if self._ballot.is_won(members):
            if self.role == PRE_CANDIDATE:
                self._stand(is_transfer=False)
            else:
                self._become_leader()
        elif self._ballot.is_lost(members, self._live):
            self._become_follower(self.term, None)
            if self._live is not None and members.has_quorum(self._live.__contains__):
                # Votes were split, or another has the longer log: no leader is to be waited for.
                self._tries += 1
                if self._tries <= HURRIED_TRIES:
                    self._hurry()

    def _become_leader(self) -> None:
        self.role = LEADER
        self.is_leader = True
        self.led_terms.append(self.term)
        self.leader_id = self.node_id
        self._role_changed = True
        self._uncommitted_bytes = 0
        self._everybody = frozenset()
        self._leadership = Leadership(
            node_id=self.node_id,
            term=self.term,
            log=self.log,
            outbox=self._outbox,
            now_ms=self.now_ms,
            commit_delay_ms=self.commit_delay_ms,
        )
        self._leadership.quorum_at_ms = self.now_ms + self._election_ms
        ballot = self._ballot
        if ballot.uncertain:
            is_unanimous = ballot.is_unanimous(self.log.membership)
            at_once = ballot.uncertain & ballot.known if is_unanimous else set()
            recovering.begin(self._leadership, ballot.uncertain, at_once)
        self.forgetful = ballot.uncertain | ({self.node_id} if self.is_uncertain else set())
        if ballot.has_quorum(self.log.membership):
            self.forgetful = set()
        if self.is_uncertain:
            # All voters, or a majority that remembers, granted this term after we forgot: nobody
            # else can be elected in it, and nobody has an entry that we lack.
            self.is_uncertain = False
            self._note_sole()
            self._hard_state_changed = True
        # Commits what earlier terms left, once it is committed.
        self._append(self._opening, None, None)
        self._opening = b""
        if not self._is_sole:
            self._leadership.send_heartbeats()
            self._leadership.heartbeat_at_ms = self.now_ms + self._heartbeat_ms
        self._arm_leader()

    def _lacks_something(self) -> bool:
        return self.is_incomplete or self._has_diverged or self.is_uncertain

    def _may_stand(self) -> bool:
        """True for a voter that is whole, also for one whose removal is not known to be committed:
        until it is, the group may need the longer log that only the removed member has."""
        if self.is_incomplete or self._has_diverged:
            return False
        if self._everybody:
            return True
        if self.is_uncertain:
            members = self.log.membership
            voters = {*members.voters, *members.voters_out}
            if not self.may_begin_anew or not self.named <= voters:
                return False  # all that it knows may be of before the others came
        return any(members.is_voter(self.node_id) for members in self.log.open_memberships())

    # --- log and commit ---------------------------------------------------------------------------

    def _append(self, data: bytes, command: Any, tag: Any) -> Index:
        log = self.log
        index = log.last_index + 1
        term = self.term
        chain = crc32c(data, crc32c(pack_identity(log.last_chain, term, index)))
        log.append(Entry(term, index, data, command, tag, chain))
        return index

    def _append_membership(self, members: Membership) -> Index:
        index = self._append(membership.encode(members), None, None)
        self._follow_membership()
        return index

    def _truncate(self, from_index: Index) -> None:
        """Void uncommitted entries that the leader does not have."""
        voided = self.log.truncate(from_index)
        self._dropped.extend(entry for entry in voided if entry.tag is not None)
        self._has_news = True
        for write in self._writes:  # what they report durable from here on is void on disk too
            write.last_index = min(write.last_index, from_index - 1)

    def _note_sole(self) -> None:
        """Alone is who knows it: a founder that forgot, or whose snapshot is lost, may have been
        given company, or left."""
        self.log.is_sole = self._is_sole and not (self.is_uncertain or self.is_incomplete)

    def _follow_membership(self) -> None:
        """Take the membership in force into account, here and in the leadership."""
        members = self.log.membership
        self._may_have_voted |= any(held.is_voter(self.node_id) for _, held in self.log.memberships)
        self._is_sole = members.voters == (self.node_id,) and not (
            members.voters_out or members.learners
        )
        self._note_sole()
        if self._leadership is not None:
            self._leadership.follow_membership(self.now_ms)
            if self.deadline_ms == NEVER:
                # A sole voter is not told the time; count others' silence from the next tick.
                self._leadership.quorum_at_ms = 0
            self._arm_leader()
        elif self.deadline_ms == NEVER:
            self._arm_election()  # a voter, perhaps only now

    def _commit_to(self, index: Index) -> None:
        log = self.log
        if index > log.commit:
            assert index <= log.last_index, (index, log.last_index)
            log.commit = index
            if not self.is_incomplete:
                self._emit_to = min(index, log.stable)

    def _advance_commit(self) -> None:
        """Commit what a majority has durable; only ever by an entry of this term."""
        leadership = self._leadership
        assert leadership is not None
        log = self.log
        index = leadership.quorum_match()
        if index <= log.commit or index < leadership.term_start:
            return
        log.commit = index
        leadership.note_commit(self.now_ms)
        self._emit_to = min(index, log.stable)
        self._settle_reads()
        if leadership.has_doubts:
            for node_id, peer in leadership.peers.items():
                self._certify(node_id, peer)
        if log.membership_index <= index:
            self._on_membership_committed()

    def _on_membership_committed(self) -> None:
        """Leave a joint membership; step down if the group has moved on without us."""
        leadership = self._leadership
        assert leadership is not None
        members = self.log.membership
        if members.is_joint:
            self._append_membership(members.left_joint())
        elif not members.is_voter(self.node_id) and not self._stands_in():
            leadership.eager_to = self.log.commit
            leadership.send_appends(self.now_ms)  # so that the others learn of this commit
            self._become_follower(self.term, None)

    def _stands_in(self) -> bool:
        """True of a leader whom everybody elected although it has no vote, until it has changed
        who belongs to the group."""
        leadership = self._leadership
        return (
            leadership is not None
            and bool(self._ballot.everybody)
            and self.log.membership_index < leadership.term_start
        )

    def _certify(self, node_id: NodeId, peer: Peer) -> None:
        leadership = self._leadership
        if leadership is not None and recovering.may_certify(leadership, peer):
            self._outbox.append((node_id, Certify(self.term, peer.certain_from)))

    def _settle_reads(self) -> None:
        leadership = self._leadership
        if leadership is None:
            return
        for requester, context, index in leadership.confirmed_reads():
            if requester == self.node_id:
                self._read_states.append(ReadState(context, index))
            else:
                leadership.answer(requester, context, index)

    # --- time -------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Something happens again: measure time from now."""
        self.is_quiescent = False
        leadership = self._leadership
        if leadership is None:
            self._arm_election()
            # Who leads may rest on, unaware that it is missed: to ask it ourselves comes before
            # helping somebody who may just be cut off from it.
            self.heard_ms = max(self.now_ms, self.deadline_ms - self._election_ms)
            return
        leadership.expect_signs_from(self.now_ms)
        leadership.quiet_index = self.log.last_index
        leadership.is_round_due = True  # so that those who doubt it hear that we lead
        leadership.heartbeat_at_ms = self.now_ms + self._heartbeat_ms
        leadership.quorum_at_ms = self.now_ms + self._election_ms
        self._arm_leader()

    def _arm_election(self) -> None:
        """Restart the patience of a member that may stand for election, or needs a leader."""
        if self.is_leader:
            return
        if not (self._may_stand() or self._lacks_something()):
            self.deadline_ms = NEVER
            return
        self._patience_ms = self._election_ms + self._dice.below(self._election_ms)
        self.deadline_ms = self.now_ms + self._patience_ms

    def _hurry(self) -> None:
        """Stand soon: that there is no leader is known. Others know it too, so they take turns,
        another one first in each group; the dice are for groups that all lost theirs at once."""
        if self.deadline_ms != NEVER:
            low, high = LEADER_LOST_MS
            soon_ms = self.now_ms + low + self._dice.below(high - low) + self._rank() * TURN_MS
            self.deadline_ms = min(self.deadline_ms, soon_ms)

    def _rank(self) -> int:
        """How many of the voters that are here stand before this one."""
        members = self.log.membership
        voters = sorted({*members.voters, *members.voters_out, self.node_id})
        if self._live is not None:
            voters = [name for name in voters if name in self._live or name == self.node_id]
        return (voters.index(self.node_id) - self.group) % len(voters)

    def _arm_leader(self) -> None:
        leadership = self._leadership
        assert leadership is not None
        if self._is_sole or self.is_quiescent:
            self.deadline_ms = NEVER
            return
        deadline_ms = max(min(leadership.heartbeat_at_ms, leadership.quorum_at_ms), 1)
        if leadership.transfer_to:
            deadline_ms = min(deadline_ms, leadership.transfer_by_ms)
        if self.now_ms < leadership.commit_at_ms < deadline_ms:
            deadline_ms = leadership.commit_at_ms
        self.deadline_ms = deadline_ms

    # --- what others are told ---------------------------------------------------------------------

    def _alert(self, text: str) -> None:
        self._alerts.append(text)
        self._has_news = True

    def _append_reply(self, is_ok: bool, index: Index) -> AppendReply:
        self._has_told = True
        reply = AppendReply(self.term, is_ok, index)
        reply.is_uncertain = self.is_uncertain
        reply.needs_snapshot = self.is_incomplete
        return reply

    def _vote_reply(self, term: Term, is_pre: bool, is_granted: bool) -> VoteReply:
        return VoteReply(term, is_pre, is_granted, self.is_uncertain)
