"""One member's conduct: how it answers what the others say.

`Member` is the half of the core that other members see; `core.RaftCore` is the half that the
shell calls. What both do to a member's role is in `roles`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.raft import election, membership, recovering
from streamd.raft.election import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE
from streamd.raft.history import LogPosition, term_at
from streamd.raft.log import next_chain
from streamd.raft.messages import (
    Append,
    AppendReply,
    Certify,
    Heartbeat,
    HeartbeatReply,
    Message,
    Quiesce,
    ReadAnswer,
    ReadQuery,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)
from streamd.raft.progress import Peer
from streamd.raft.ready import ProposalRejected, ReadState
from streamd.raft.replication import Leadership
from streamd.raft.roles import LEADER_LOST_MS, Roles
from streamd.raft.state import NEVER
from streamd.types import Index, NodeId, Term


class Member(Roles):
    """Answers of one member of one group. Used only as the base of `RaftCore`."""

    __slots__ = ()

    # --- messages ---------------------------------------------------------------------------------

    def step(self, sender: NodeId, message: Message) -> None:
        """Take a message of `sender`. Old terms are refused, newer ones followed."""
        term = message.term
        if self.is_leader and type(message) in _LEADERS and self._is_of_before(sender, term):
            return
        if self.is_quiescent and type(message) is not Quiesce:
            if type(message) is Vote and term > self.term and not message.is_transfer:
                self._wake()  # but no help to depose a leader that only had nothing to say
                return
            self._wake()
        if term > self.term:
            if type(message) is Vote:
                if not message.is_transfer and self._hears_leader():
                    return  # silence, not a refusal: the term of a disturber is not ours
                if not message.is_pre:
                    self._become_follower(term, None)
            elif not (type(message) is VoteReply and message.is_pre and message.is_granted):
                is_leaders = type(message) in _LEADERS
                self._become_follower(term, sender if is_leaders else None)
        elif term < self.term:
            self._refuse_old_term(sender, message)
            return
        _HANDLERS[type(message)](self, sender, message)

    def _refuse_old_term(self, sender: NodeId, message: Message) -> None:
        """Tell a leader or candidate of an old term that it is one; ignore the rest."""
        if type(message) is Vote:
            self._held.append((sender, self._vote_reply(self.term, message.is_pre, False)))
        elif type(message) in _LEADERS:
            self._held.append((sender, self._append_reply(False, 0)))

    # --- elections --------------------------------------------------------------------------------

    def _on_vote(self, sender: NodeId, vote: Vote) -> None:
        log = self.log
        last_term, last_index = log.last_term, log.last_index
        if self.is_uncertain:
            last_term, last_index = max((last_term, last_index), self.left_at)
        is_granted = (
            not self._has_diverged
            and election.may_vote(
                vote, sender, term=self.term, voted_for=self.vote, leader_id=self.leader_id
            )
            and (
                self._is_mere_learner()
                or election.is_up_to_date(vote, last_term=last_term, last_index=last_index)
            )
        )
        if vote.is_pre:
            if not is_granted and self.leader_id is None and self.role == FOLLOWER:
                self._overtake(vote)
            term = vote.term if is_granted else self.term
            self._outbox.append((sender, self._vote_reply(term, True, is_granted)))
            return
        if is_granted and self.vote != sender:
            self.vote = sender
            self._hard_state_changed = True
        if is_granted:
            self._arm_election()
        self._held.append((sender, self._vote_reply(self.term, False, is_granted)))

    def _overtake(self, vote: Vote) -> None:
        """Who has less than we have stands before us, in vain: it is our turn."""
        low, high = LEADER_LOST_MS
        log = self.log
        is_less = (vote.last_term, vote.last_index) < (log.last_term, log.last_index)
        if is_less and self.deadline_ms != NEVER:
            soon_ms = self.now_ms + self._dice.below(high - low)
            self.deadline_ms = min(self.deadline_ms, soon_ms)

    def _on_vote_reply(self, sender: NodeId, reply: VoteReply) -> None:
        wanted_role, wanted_term = (
            (PRE_CANDIDATE, self.term + 1) if reply.is_pre else (CANDIDATE, self.term)
        )
        if self.role != wanted_role or (reply.is_granted and reply.term != wanted_term):
            return
        self._ballot.record(sender, is_granted=reply.is_granted, is_uncertain=reply.is_uncertain)
        self._count_votes()

    def _on_timeout_now(self, sender: NodeId, message: TimeoutNow) -> None:
        if self.role != LEADER:
            self._campaign(is_transfer=True)

    # --- entries and snapshots --------------------------------------------------------------------

    def _on_append(self, sender: NodeId, append: Append) -> None:
        self._follow(sender)
        if self._has_diverged:
            return
        log = self.log
        previous = append.prev_index
        if previous < log.base_index:
            if append.commit < log.base_index and self._may_be_outlived():
                self._outlive(sender, append.commit)
                return
            at_base = append.entries[log.base_index - previous - 1 :][:1]
            if at_base and (at_base[0].term, at_base[0].chain) != (log.base_term, log.base_chain):
                self._deny(sender, log.base_index, at_base[0].chain)
                return
            if self._has_another_history(append):
                # The leader lacks what was committed here, and a snapshot has.
                self._diverge(sender, log.base_index, log.base_chain, append.prev_chain)
                return
            # Compacted here, hence committed, hence equal.
            self._held.append((sender, self._append_reply(True, log.commit)))
            return
        if previous > log.last_index or log.term_at(previous) != append.prev_term:
            if previous <= log.commit:
                self._deny(sender, previous, append.prev_chain)
            else:
                self._refuse(sender, previous, append.prev_term)
            return
        chain = log.entry_id(previous)[1]
        if chain != append.prev_chain:
            self._diverge(sender, previous, chain, append.prev_chain)
            return
        last = previous + len(append.entries)
        if not self._append_foreign(sender, append):
            return
        self._held.append((sender, self._append_reply(True, last)))
        self.first_commit = self.first_commit or append.commit
        self._commit_to(min(append.commit, last))

    def _differs(self, position: LogPosition) -> bool:
        """True if the leader's entry there is not the one that this log has, or that a snapshot
        covers, as far as the history tells. (In memory a group may have begun anew.)"""
        if self.may_begin_anew:
            return False
        log = self.log
        index, term, chain = position
        if log.base_index <= index <= log.last_index:
            return log.entry_id(index) != (term, chain)
        history = log.history(index)
        if history and history[-1].index == index and history[-1].chain:
            return history[-1] != position
        known = term_at(history, index)
        if known is None:  # but terms never fall
            return index <= log.base_index and term > log.base_term
        return known != term

    def _has_another_history(self, append: Append) -> bool:
        """True if an entry of the leader's, all of which a snapshot covers here, is not the one
        that was committed: by its term, or by its chain where the history knows one."""
        index = append.prev_index
        covered = append.entries[: self.log.base_index - index]
        last = LogPosition(index, append.prev_term, append.prev_chain)
        theirs = {index: last}
        for entry in covered:
            index += 1
            last = theirs[index] = LogPosition(index, entry.term, entry.chain)
        if self._differs(theirs[append.prev_index]) or self._differs(last):
            return True
        known = self.log.history(self.log.base_index)
        return any(self._differs(theirs[at.index]) for at in known if at.index in theirs)

    def _refuse(self, sender: NodeId, index: Index, term: Term) -> None:
        """We lack the leader's entry; say from where on it should look for a common one."""
        hint = self.log.last_with_term_up_to(index, term)
        reply = self._append_reply(False, index)
        reply.hint_index, reply.hint_term = hint, self.log.term_at(hint)
        self._held.append((sender, reply))

    def _append_foreign(self, sender: NodeId, append: Append) -> bool:
        """Append what is new of a leader's entries; False if they can't follow our log."""
        log = self.log
        chain = append.prev_chain
        index = append.prev_index
        has_members_changed = False
        is_taken = True
        for entry in append.entries:
            index += 1
            before = chain
            chain = next_chain(before, entry.term, index, entry.data)
            if entry.index != index or entry.chain != chain:
                # Not what the leader logged: damaged on its way, or in its memory. Not acked.
                text = f"append from {sender}: entry {index} does not continue its hash chain"
                self._alert(text)
                is_taken = False
                break
            if index <= log.last_index:
                if log.term_at(index) == entry.term:
                    continue  # the chain of the last one like this speaks for all
                if index <= log.commit and self._may_be_outlived():
                    self._outlive(sender, append.commit)
                    return False
                if index <= log.commit:
                    self._deny(sender, index, chain)
                    return False
                self._truncate(index)
                has_members_changed = True
            if log.last_chain != before:
                self._diverge(sender, index - 1, log.last_chain, before)
                is_taken = False
                break
            log.append(entry)
            has_members_changed |= entry.data[:1] == membership.MARK
        if has_members_changed:
            self._follow_membership()
        if is_taken and append.entries:
            ours = log.entry_id(index)[1]
            if ours != chain:
                self._diverge(sender, index, ours, chain)
                return False
        return is_taken

    def _on_append_reply(self, sender: NodeId, reply: AppendReply) -> None:
        leadership = self._leadership
        if leadership is None or sender not in leadership.peers:
            return
        peer = leadership.peers[sender]
        peer.heard_ms = self.now_ms
        if reply.is_diverged:
            text = f"the log of {sender} has other content than ours at index {reply.index}"
            self._alert(text)
        if reply.is_ok and reply.index > self.log.last_index:
            text = f"{sender} acks index {reply.index}, our log ends at {self.log.last_index}"
            self._alert(text)
            leadership.probe_own_term(peer)  # it does not know that it differs: this shows it
            return
        has_put_back = not peer.is_uncertain and recovering.has_put_back(peer, reply)
        if has_put_back:
            text = f"{sender} lacks entry {reply.index}, which it had: is its data of a backup?"
            self._alert(text)
        is_doubtful = reply.is_uncertain or peer.is_uncertain or has_put_back
        is_news = is_doubtful and self._weigh(leadership, peer, reply)
        if leadership.on_append_reply(sender, reply) or is_news:
            self._advance_commit()
            if self._leadership is None:
                return
        if peer.is_uncertain:
            self._certify(sender, peer)
        if reply.needs_snapshot or peer.needs_snapshot:
            peer.needs_snapshot = reply.needs_snapshot
            if reply.needs_snapshot and self.now_ms - peer.offered_ms >= self._election_ms:
                leadership.offer_snapshot(sender, peer, self.now_ms)

    def _on_snapshot_offer(self, sender: NodeId, offer: SnapshotOffer) -> None:
        self._follow(sender)
        log = self.log
        is_whole = not (self.is_incomplete or self._has_diverged)
        differs = is_whole and self._differs(
            LogPosition(offer.index, offer.snapshot_term, offer.chain)
        )
        if is_whole and not differs and self._follows_leader_to(offer.index):
            self._held.append((sender, self._append_reply(True, log.last_index)))
        elif is_whole and offer.index <= log.commit:
            if differs:
                self._diverge(sender, log.base_index, log.base_chain, offer.chain)
            else:
                self._held.append((sender, self._append_reply(True, log.commit)))
        else:
            self._snapshot_wanted = (sender, offer)
            self._has_news = True

    def _follows_leader_to(self, index: Index) -> bool:
        """True if what we acked counts, and our log is the leader's beyond `index`: an entry of
        this term is, and so is all before it. In memory a snapshot would take it away."""
        log = self.log
        return self._is_counted() and log.last_index >= index and log.last_term == self.term

    # --- signs of life, and rest ------------------------------------------------------------------

    def _on_heartbeat(self, sender: NodeId, beat: Heartbeat) -> None:
        self._follow(sender)
        if not (self._has_diverged or self.is_uncertain):
            self.first_commit = self.first_commit or beat.commit
            # What it is known to hold it may have lost, knowingly or (`doubt`) not: a log that ends
            # with an entry of this term is the leader's.
            if self.log.last_term == self.term:
                self._commit_to(min(beat.commit, self.log.last_index))
        may_have_begun_anew = self.log.commit or self.is_incomplete or self.may_begin_anew
        if may_have_begun_anew and not (self._has_told or self._has_diverged):
            # From a snapshot: the leader that offered it waits for this. Or without one: a leader
            # that saw it diverge sends it no entries until then.
            self._held.append((sender, self._append_reply(True, self.log.commit)))
        # No promise rests on a sign of life, so it does not wait for the disk.
        self._outbox.append((sender, HeartbeatReply(self.term, beat.round_no, self.is_uncertain)))

    def _on_heartbeat_reply(self, sender: NodeId, reply: HeartbeatReply) -> None:
        leadership = self._leadership
        if leadership is None or sender not in leadership.peers:
            return
        peer = leadership.peers[sender]
        peer.heard_ms = self.now_ms
        if reply.is_uncertain and not peer.is_uncertain:
            self._doubt(leadership, peer)
        if peer.is_uncertain:
            self._certify(sender, peer)
        leadership.on_heartbeat_reply(sender, reply.round_no, self.now_ms, self._election_ms)
        self._settle_reads()

    def _on_quiesce(self, sender: NodeId, message: Quiesce) -> None:
        """Stop to expect heartbeats if there is nothing that we lack."""
        self._follow(sender)
        log = self.log
        is_whole = not self._lacks_something()
        # The leader's last entry is of its own term: the same term there means the same log.
        has_all = log.last_index == message.last_index and log.last_term == message.term
        if not (is_whole and has_all):
            self._refuse(sender, message.last_index, message.term)
            return
        self.first_commit = self.first_commit or message.commit
        self._commit_to(message.commit)
        if log.stable == log.last_index:
            self.is_quiescent = True
            self.deadline_ms = NEVER
            log.give_up()

    # --- reads ------------------------------------------------------------------------------------

    def _on_read_query(self, sender: NodeId, query: ReadQuery) -> None:
        leadership = self._leadership
        if leadership is None:
            self._outbox.append((sender, ReadAnswer(self.term, query.context, 0)))
            return
        try:
            leadership.add_read(sender, query.context)
        except ProposalRejected:
            leadership.answer(sender, query.context, 0)
        self._settle_reads()

    def _on_read_answer(self, sender: NodeId, answer: ReadAnswer) -> None:
        self._read_states.append(ReadState(answer.context, answer.index))

    # --- logs that differ -------------------------------------------------------------------------

    def _diverge(self, leader: NodeId, index: Index, ours: int, theirs: int) -> None:
        """Same term at `index`, other chain: one log is rotten. Take no part until repaired."""
        self._has_diverged = True
        text = f"log chain at index {index} is {ours:#010x} here, {theirs:#010x} at {leader}"
        self._alert(text)
        reply = self._append_reply(False, index)
        reply.is_diverged = True
        self._held.append((leader, reply))

    def _deny(self, leader: NodeId, index: Index, chain: int) -> None:
        """The leader's entry `index` is not the one that was committed here: all voters had
        forgotten that one, and the group went on without it. What came of it here is no part of
        the group any more."""
        self._diverge(leader, index, self.log.entry_id(index)[1], chain)

    def _is_mere_learner(self) -> bool:
        """True in memory of a member that was never a voter: nothing was committed by its acks, and
        should all voters have forgotten what it was told, it must not keep them from beginning
        anew. Who was one, and left, may be needed by those who have not heard that it left: it
        must not help them to go on without what came after."""
        return self.may_begin_anew and not self._may_have_voted

    def _may_be_outlived(self) -> bool:
        """True in memory of a member whose acks count for nothing."""
        return self.may_begin_anew and not self._is_counted()

    def _is_of_before(self, sender: NodeId, term: Term) -> bool:
        """True in memory of a leader here if `sender`, which leads in `term`, may do so of before
        the group began anew: in our term, or without a vote here. (If it is us who lead of before,
        nobody answers us, and we lead no more before long.)"""
        return self.may_begin_anew and (
            term == self.term
            or not any(members.is_voter(sender) for members in self.log.open_memberships())
        )

    def _is_counted(self) -> bool:
        """True if this member's acks commit entries."""
        return self.log.membership.is_voter(self.node_id) and not self.is_uncertain

    def _outlive(self, leader: NodeId, commit: Index) -> None:
        """In memory, what all voters have forgotten is gone: the group has begun anew, and what
        this member holds is of the time before. (A late message of the same leader looks alike;
        nothing rests on such a member, so it may be begun anew then too.)"""
        self._has_diverged = True
        base = self.log.base_index
        text = f"{leader} has committed {commit} entries, this member in memory begins after {base}"
        self._alert(text)
        reply = self._append_reply(False, base)
        reply.is_diverged = True
        self._held.append((leader, reply))

    # --- uncertain members ------------------------------------------------------------------------

    def _doubt(self, leadership: Leadership, peer: Peer) -> None:
        """Start to count on nothing of `peer`; the entry that may end this is appended now."""
        recovering.doubt(leadership, peer, self._append(b"", None, None))

    def _weigh(self, leadership: Leadership, peer: Peer, reply: AppendReply) -> bool:
        """Settle what a reply says about a peer's memory before it says anything else; True if
        the peer counts again from now on."""
        if (reply.is_uncertain and not peer.is_uncertain) or recovering.has_lost_more(peer, reply):
            self._doubt(leadership, peer)
            if not reply.is_ok and not reply.is_diverged:
                peer.next = reply.index + 1  # its hint applies to this
        elif reply.is_ok and not reply.is_uncertain and reply.index >= peer.certain_from:
            recovering.trust(leadership, peer)
            return True
        return False

    def _on_certify(self, sender: NodeId, message: Certify) -> None:
        """The leader vouches for us. Sent to ourselves once more, when that is durable."""
        log = self.log
        index = message.index
        if sender == self.node_id:
            self.is_uncertain = self._is_certified = False
            self.certified_index = index
            self._note_sole()
            self._role_changed = True  # it counts from now on: whoever runs it wants to know
            self._arm_election()
            if self.leader_id is not None:
                self._held.append((self.leader_id, self._append_reply(True, index)))
            return
        self._follow(sender)
        if self._has_diverged or index > log.stable:
            return
        # A snapshot may have taken it in by now; one of this very term is the leader's.
        if log.term_at(max(index, log.base_index)) != message.term:
            return  # not the leader's entry: we have lost it since
        if not self.is_uncertain:
            self._held.append((sender, self._append_reply(True, index)))
        elif not self._is_certified:
            self.vote = sender  # it did win this term, whatever else we may have promised
            self._is_certified = True
            self._hard_state_changed = True
            self._held.append((self.node_id, message))


_LEADERS = (Append, Heartbeat, SnapshotOffer, Quiesce, Certify)  # only a leader says these

_HANDLERS: dict[type, Callable[[Member, NodeId, Any], None]] = {
    Vote: Member._on_vote,
    VoteReply: Member._on_vote_reply,
    Append: Member._on_append,
    AppendReply: Member._on_append_reply,
    Heartbeat: Member._on_heartbeat,
    HeartbeatReply: Member._on_heartbeat_reply,
    SnapshotOffer: Member._on_snapshot_offer,
    TimeoutNow: Member._on_timeout_now,
    ReadQuery: Member._on_read_query,
    ReadAnswer: Member._on_read_answer,
    Quiesce: Member._on_quiesce,
    Certify: Member._on_certify,
}
