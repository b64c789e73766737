"""The follower's role: how a member answers the leader of its term, and when it differs from it.

    Append, SnapshotOffer, Heartbeat, Quiesce, Certify   ->   AppendReply, HeartbeatReply

An ack promises that all entries up to its index are the leader's and durable here, so it is held
until the write it rests on is reported. Entries that are not committed give way to the leader's.
A log that differs in what was committed has *diverged*: it takes no part until its shell has begun
it anew. `recovering` says what a recovering member may do.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd.raft import membership
from streamd.raft.election import FOLLOWER, NEVER, Clock, Standing
from streamd.raft.history import LogPosition, term_at
from streamd.raft.log import RaftLog, next_chain
from streamd.raft.messages import (
    Append,
    AppendReply,
    Certify,
    Heartbeat,
    HeartbeatReply,
    Quiesce,
    SnapshotOffer,
)
from streamd.raft.ready import Outbox
from streamd.raft.recovering import Recovery
from streamd.types import Index, NodeId, Term


class Follower:
    """Answers of one member to the leader of its term. It has heard of that leader by then."""

    role = FOLLOWER

    __slots__ = ("_clock", "_log", "_members_changed", "_outbox", "_recovery", "_standing")

    def __init__(
        self,
        standing: Standing,
        clock: Clock,
        recovery: Recovery,
        log: RaftLog,
        outbox: Outbox,
        *,
        members_changed: Callable[[], None],
    ) -> None:
        self._standing = standing
        self._clock = clock
        self._recovery = recovery
        self._log = log
        self._outbox = outbox
        self._members_changed = members_changed

    # --- entries --------------------------------------------------------------------------------

    def on_append(self, sender: NodeId, append: Append) -> None:
        """Take entries that follow what is here; refuse, or diverge, if they do not."""
        if self._recovery.has_diverged:
            return
        log = self._log
        previous = append.prev_index
        if previous < log.base_index:
            self._on_append_below(sender, append)
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
        self._hold_reply(sender, True, last)
        self._standing.first_commit = self._standing.first_commit or append.commit
        self._commit_to(min(append.commit, last))

    def _on_append_below(self, sender: NodeId, append: Append) -> None:
        """Answer entries that begin before what is left of this log."""
        log = self._log
        previous = append.prev_index
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
        self._hold_reply(sender, True, log.commit)

    def _has_another_history(self, append: Append) -> bool:
        """True if an entry of the leader's, all of which a snapshot covers here, is not the one
        that was committed: by its term, or by its chain where the history knows one."""
        index = append.prev_index
        covered = append.entries[: self._log.base_index - index]
        last = LogPosition(index, append.prev_term, append.prev_chain)
        theirs = {index: last}
        for entry in covered:
            index += 1
            last = theirs[index] = LogPosition(index, entry.term, entry.chain)
        if self._differs(theirs[append.prev_index]) or self._differs(last):
            return True
        known = self._log.history(self._log.base_index)
        return any(self._differs(theirs[at.index]) for at in known if at.index in theirs)

    def _differs(self, position: LogPosition) -> bool:
        """True if the leader's entry there is not the one that this log has, or that a snapshot
        covers, as far as the history tells. (In memory a group may have begun anew.)"""
        if self._recovery.may_begin_anew:
            return False
        log = self._log
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

    def _append_foreign(self, sender: NodeId, append: Append) -> bool:
        """Append what is new of a leader's entries; False if they can't follow our log."""
        log = self._log
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
                self._outbox.alert(text)
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
                # Void uncommitted entries that the leader does not have.
                self._outbox.drop(log.truncate(index), from_index=index)
                has_members_changed = True
            if log.last_chain != before:
                self._diverge(sender, index - 1, log.last_chain, before)
                is_taken = False
                break
            log.append(entry)
            has_members_changed |= entry.data[:1] == membership.MARK
        if has_members_changed:
            self._members_changed()
        if is_taken and append.entries:
            ours = log.entry_id(index)[1]
            if ours != chain:
                self._diverge(sender, index, ours, chain)
                return False
        return is_taken

    def _commit_to(self, index: Index) -> None:
        log = self._log
        if index > log.commit:
            assert index <= log.last_index, (index, log.last_index)
            log.commit = index
            if not self._recovery.is_incomplete:
                log.emit_to = min(index, log.stable)

    # --- snapshots ------------------------------------------------------------------------------

    def on_snapshot_offer(self, sender: NodeId, offer: SnapshotOffer) -> None:
        """Want the leader's snapshot, unless this member has all that it brings."""
        log = self._log
        is_whole = self._recovery.is_whole
        position = LogPosition(offer.index, offer.snapshot_term, offer.chain)
        differs = is_whole and self._differs(position)
        if is_whole and not differs and self.follows_leader_to(offer.index):
            self._hold_reply(sender, True, log.last_index)
        elif is_whole and offer.index <= log.commit:
            if differs:
                self._diverge(sender, log.base_index, log.base_chain, offer.chain)
            else:
                self._hold_reply(sender, True, log.commit)
        else:
            self._outbox.want_snapshot(sender, offer)

    def follows_leader_to(self, index: Index) -> bool:
        """Return True if acks of this member count, and its log is the leader's beyond `index`: an
        entry of this term is, and so is all before it. In memory a snapshot would take it away."""
        log = self._log
        return (
            self._is_counted() and log.last_index >= index and log.last_term == self._standing.term
        )

    # --- signs of life, and rest ----------------------------------------------------------------

    def on_heartbeat(self, sender: NodeId, beat: Heartbeat) -> None:
        """Answer a sign of life, and commit what it says as far as this log is the leader's."""
        recovery, log, standing = self._recovery, self._log, self._standing
        if not (recovery.has_diverged or recovery.is_uncertain):
            standing.first_commit = standing.first_commit or beat.commit
            # What it is known to hold it may have lost, knowingly or (`recovering`) not: a log that
            # ends with an entry of this term is the leader's.
            if log.last_term == standing.term:
                self._commit_to(min(beat.commit, log.last_index))
        may_have_begun_anew = log.commit or recovery.is_incomplete or recovery.may_begin_anew
        if may_have_begun_anew and not (recovery.has_told or recovery.has_diverged):
            # From a snapshot: the leader that offered it waits for this. Or without one: a leader
            # that saw it diverge sends it no entries until then.
            self._hold_reply(sender, True, log.commit)
        # No promise rests on a sign of life, so it does not wait for the disk.
        reply = HeartbeatReply(standing.term, beat.round_no, recovery.is_uncertain)
        self._outbox.send_now.append((sender, reply))

    def on_quiesce(self, sender: NodeId, message: Quiesce) -> None:
        """Stop to expect heartbeats if there is nothing that this member lacks."""
        log, clock, standing = self._log, self._clock, self._standing
        # The leader's last entry is of its own term: the same term there means the same log.
        has_all = log.last_index == message.last_index and log.last_term == message.term
        if self._recovery.lacks_something or not has_all:
            self._refuse(sender, message.last_index, message.term)
            return
        standing.first_commit = standing.first_commit or message.commit
        self._commit_to(message.commit)
        if log.stable == log.last_index:
            clock.is_quiescent = True
            clock.deadline_ms = NEVER
            log.give_up()

    # --- recovery ------------------------------------------------------------------------------

    def on_certify(self, sender: NodeId, message: Certify) -> None:
        """Let the leader vouch for this member; it is certain once that is durable."""
        recovery, log, standing = self._recovery, self._log, self._standing
        index = message.index
        if recovery.has_diverged or index > log.stable:
            return
        # A snapshot may have taken it in by now; one of this very term is the leader's.
        if log.term_at(max(index, log.base_index)) != message.term:
            return  # not the leader's entry: we have lost it since
        if not recovery.is_uncertain:
            self._hold_reply(sender, True, index)
        elif not recovery.is_certified:
            standing.vote = sender  # it did win this term, whatever else we may have promised
            recovery.is_certified = True
            standing.has_changed = True
            self._outbox.held.append((standing.node_id, message))

    def _is_counted(self) -> bool:
        """True if acks of this member commit entries."""
        is_voter = self._log.membership.is_voter(self._standing.node_id)
        return is_voter and not self._recovery.is_uncertain

    def _may_be_outlived(self) -> bool:
        """True in memory of a member whose acks count for nothing."""
        return self._recovery.may_begin_anew and not self._is_counted()

    # --- logs that differ -----------------------------------------------------------------------

    def _hold_reply(self, leader: NodeId, is_ok: bool, index: Index) -> AppendReply:
        reply = self._recovery.append_reply(self._standing.term, is_ok, index)
        self._outbox.held.append((leader, reply))
        return reply

    def _refuse(self, sender: NodeId, index: Index, term: Term) -> None:
        """Say that the leader's entry is not here, and from where on it should look for a common
        one."""
        hint = self._log.last_with_term_up_to(index, term)
        reply = self._hold_reply(sender, False, index)
        reply.hint_index, reply.hint_term = hint, self._log.term_at(hint)

    def _diverge(self, leader: NodeId, index: Index, ours: int, theirs: int) -> None:
        """Take no part until repaired: the log is not the leader's at `index`."""
        self._recovery.has_diverged = True
        text = f"log chain at index {index} is {ours:#010x} here, {theirs:#010x} at {leader}"
        self._outbox.alert(text)
        self._hold_reply(leader, False, index).is_diverged = True

    def _deny(self, leader: NodeId, index: Index, chain: int) -> None:
        """Diverge, since the leader's entry `index` is not the one that was committed here: all
        voters had forgotten that one, and the group went on without it. What came of it here is no
        part of the group any more."""
        self._diverge(leader, index, self._log.entry_id(index)[1], chain)

    def _outlive(self, leader: NodeId, commit: Index) -> None:
        """Diverge in memory: what all voters have forgotten is gone, the group has begun anew, and
        what this member holds is of the time before. (A late message of the same leader looks
        alike; nothing rests on such a member, so it may be begun anew then too.)"""
        self._recovery.has_diverged = True
        base = self._log.base_index
        self._outbox.alert(
            f"{leader} has committed {commit} entries, the log of this member in memory begins "
            f"after {base}"
        )
        self._hold_reply(leader, False, base).is_diverged = True
