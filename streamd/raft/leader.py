"""The leader's role: what only the leader of a term does, from its first entry to its end.

A `Leader` is made when an election is won and thrown away when the term is over. It appends, counts
what a quorum has durable, confirms reads, readmits recovering peers, transfers its leadership, and
puts the group to rest. The core owns it, and ends it: `step_down` and `members_changed` are the
core's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from streamd.limits import UNCOMMITTED_BYTES_MAX
from streamd.raft import membership
from streamd.raft.election import LEADER, NEVER, Clock, Standing
from streamd.raft.log import RaftLog, pack_identity
from streamd.raft.membership import Membership
from streamd.raft.messages import (
    AppendReply,
    Certify,
    HeartbeatReply,
    ReadQuery,
    TimeoutNow,
)
from streamd.raft.read_index import ReadIndex
from streamd.raft.ready import Outbox, Outgoing, ProposalRejected, ReadState
from streamd.raft.recovering import Readmission, has_lost_more, has_put_back
from streamd.raft.replication import (
    DIVERGED,
    PROBE,
    REPLICATE,
    STATE_NAMES,
    Progress,
    Replication,
)
from streamd.types import Entry, Index, NodeId


class Transfer:
    """A transfer of leadership to another voter, at most one at a time."""

    __slots__ = ("_is_sent", "_replication", "_send_now", "by_ms", "to")

    def __init__(self, replication: Replication, send_now: list[Outgoing]) -> None:
        self._replication = replication
        self._send_now = send_now
        self.to: NodeId = ""
        self.by_ms = 0
        self._is_sent = False

    def start(self, node_id: NodeId, *, by_ms: int) -> None:
        """Take no more proposals, bring `node_id` up to date, then have it campaign."""
        peer = self._replication.peers.get(node_id)
        if peer is None or not self._replication.log.membership.is_voter(node_id):
            raise ProposalRejected(f"{node_id} is not another voter of this group")
        if peer.is_uncertain or peer.needs_snapshot or peer.state == DIVERGED:
            raise ProposalRejected(f"{node_id} lacks entries or has diverged")
        self.to = node_id
        self.by_ms = by_ms
        self._is_sent = False
        self.advance()

    def best_target(self, preferred: NodeId, is_live: Callable[[NodeId, Progress], bool]) -> NodeId:
        """Return the live voter that would lead soonest: `preferred` if it can, else the one with
        the longest log; "" if there is none.

        Not one that a joint phase is bringing in: once this leader is gone, it could not end it.
        """
        log = self._replication.log
        fit = [
            (-peer.match, node_id)
            for node_id, peer in self._replication.peers.items()
            if log.has_vote(node_id)
            and peer.state in (PROBE, REPLICATE)
            and not (peer.is_uncertain or peer.needs_snapshot)
            and is_live(node_id, peer)
        ]
        if any(node_id == preferred for _, node_id in fit):
            return preferred
        return min(fit)[1] if fit else ""

    def advance(self) -> None:
        """Say "now" once the target holds everything."""
        peer = self._replication.peers.get(self.to)
        if peer is None:
            self.to = ""
        elif peer.match == self._replication.log.last_index and not self._is_sent:
            self._send_now.append((self.to, TimeoutNow(self._replication.term)))
            self._is_sent = True


class Quiescence:
    """Whether a group may rest: nothing was appended for a heartbeat, and nothing is under way."""

    __slots__ = ("_reads", "_replication", "_transfer", "quiet_index")

    def __init__(self, replication: Replication, reads: ReadIndex, transfer: Transfer) -> None:
        self._replication = replication
        self._reads = reads
        self._transfer = transfer
        # Where the log ended a heartbeat ago; from here on with what begins the term, or wakes it.
        self.quiet_index: Index = replication.term_start

    def may_rest(self, live: frozenset[NodeId]) -> bool:
        """Return True when nothing was appended since the last call, and nothing is under way."""
        last = self._replication.log.last_index
        is_quiet = last == self.quiet_index
        self.quiet_index = last
        if not is_quiet or self._transfer.to or self._reads.has_reads:
            return False
        return self._replication.is_settled(live)


class Leader:
    """Leader of one term. Every method is for a member that leads this term."""

    role = LEADER

    __slots__ = (
        "_clock",
        "_commit_seen",
        "_log",
        "_members_changed",
        "_outbox",
        "_readmission",
        "_standing",
        "_step_down",
        "heartbeat_at_ms",
        "is_elected_by_all",
        "is_ready",
        "quiescence",
        "quorum_at_ms",
        "reads",
        "replication",
        "transfer",
        "uncommitted_bytes",
    )

    def __init__(
        self,
        standing: Standing,
        clock: Clock,
        log: RaftLog,
        outbox: Outbox,
        replication: Replication,
        *,
        step_down: Callable[[], None],
        members_changed: Callable[[], None],
    ) -> None:
        self._standing = standing
        self._clock = clock
        self._log = log
        self._outbox = outbox
        self._step_down = step_down
        self._members_changed = members_changed
        self.replication = replication
        self.reads = ReadIndex(replication)
        self.transfer = Transfer(replication, outbox.send_now)
        self.quiescence = Quiescence(replication, self.reads, self.transfer)
        self._readmission = Readmission(replication)
        self.is_elected_by_all = False  # every member granted: see `stands_in`
        self.is_ready = False  # the no-op of this term was given out as committed
        self.uncommitted_bytes = 0
        self._commit_seen: Index = 0  # the commit index an election timeout ago or longer
        self.heartbeat_at_ms = clock.now_ms
        self.quorum_at_ms = clock.now_ms + clock.election_ms

    def begin(self, *, uncertain: set[NodeId], at_once: set[NodeId], opening: bytes) -> None:
        """Append the entry that commits entries of earlier terms, and announce the leader."""
        if uncertain:
            self._readmission.begin(uncertain, at_once)
        self.append(opening, None, None)
        if not self._standing.is_sole:
            self.replication.send_heartbeats()
            self.heartbeat_at_ms = self._clock.now_ms + self._clock.heartbeat_ms
        self.arm()

    def end(self) -> None:
        """Leave reads unconfirmed: the term is over."""
        for requester, context in self.reads.unconfirmed():
            self._answer_read(requester, context, 0)

    # --- proposals ------------------------------------------------------------------------------

    def append(self, data: bytes, command: object, tag: object) -> Index:
        """Append an entry of this term; return its index."""
        log = self._log
        index = log.last_index + 1
        term = self.replication.term
        chain = crc32c(data, crc32c(pack_identity(log.last_chain, term, index)))
        log.append(Entry(term, index, data, command, tag, chain))
        return index

    def propose(self, data: bytes, command: object, tag: object) -> Index:
        """Append a command; ProposalRejected when the backlog is full, or a transfer runs."""
        if self.uncommitted_bytes >= UNCOMMITTED_BYTES_MAX:
            raise ProposalRejected(f"{self.uncommitted_bytes} bytes are not committed yet")
        if not self._standing.is_sole:
            self.check_proposals()
        assert data and data[:1] != membership.MARK, data[:1]
        self.uncommitted_bytes += len(data)
        log = self._log
        index = log.last_index + 1
        term = self.replication.term
        chain = crc32c(data, crc32c(pack_identity(log.last_chain, term, index)))
        log.append(Entry(term, index, data, command, tag, chain))
        return index

    def check_proposals(self) -> None:
        """Raise ProposalRejected while leadership is being handed over; a group at rest wakes."""
        if self._clock.is_quiescent:
            self.wake()
            # The entry itself wakes the others, and their acks are signs of life.
            self.replication.is_round_due = False
            self.quiescence.quiet_index += 1
        if self.transfer.to:
            raise ProposalRejected(f"leadership is being handed to {self.transfer.to}")

    def propose_membership(self, wanted: Membership) -> Index:
        """Append the first step to the members in `wanted`: see `RaftCore.propose_membership`."""
        self.check_proposals()
        log = self._log
        if log.commit < self.replication.term_start:
            raise ProposalRejected("no entry of this leader's term is committed yet")
        if log.membership_index > log.commit:
            raise ProposalRejected("another change of members is not committed yet")
        if log.membership.is_joint:
            raise ProposalRejected("the group is still leaving a joint membership")
        if not wanted.voters:
            raise ProposalRejected("a group needs a voter")
        return self._append_membership(log.membership.changed_to(wanted.voters, wanted.learners))

    def _append_membership(self, members: Membership) -> Index:
        index = self.append(membership.encode(members), None, None)
        self._members_changed()
        return index

    # --- commit ---------------------------------------------------------------------------------

    def advance_commit(self) -> None:
        """Commit what a majority has durable; only ever by an entry of this term."""
        log, replication = self._log, self.replication
        index = replication.quorum_match()
        if index <= log.commit or index < replication.term_start:
            return
        log.commit = index
        replication.note_commit(self._clock.now_ms)
        log.emit_to = min(index, log.stable)
        self.settle_reads()
        if replication.has_doubts:
            for node_id, peer in replication.peers.items():
                self._certify(node_id, peer)
        if log.membership_index <= index:
            self._on_membership_committed()

    def _on_membership_committed(self) -> None:
        """Leave a joint membership; step down if the group has moved on without this member."""
        log = self._log
        members = log.membership
        if members.is_joint:
            self._append_membership(members.left_joint())
        elif not members.is_voter(self._standing.node_id) and not self._stands_in():
            self.replication.eager_to = log.commit
            # So that the others learn of this commit.
            self.replication.send_appends(self._clock.now_ms)
            self._step_down()

    def _stands_in(self) -> bool:
        """True of a leader whom everybody elected although it has no vote, until it has changed
        who belongs to the group."""
        return self.is_elected_by_all and self._log.membership_index < self.replication.term_start

    def note_emitted(self, size: int) -> None:
        """Note that so many bytes of commands were given out as committed."""
        # Entries of earlier leaders were never added; they can only make this too small.
        self.uncommitted_bytes = max(self.uncommitted_bytes - size, 0)
        if self._log.emitted >= self.replication.term_start:
            self.is_ready = True

    # --- answers of peers -----------------------------------------------------------------------

    def on_append_reply(self, sender: NodeId, reply: AppendReply) -> None:
        """Take a peer's answer to entries: what it holds, refuses, or says of itself."""
        replication, now_ms = self.replication, self._clock.now_ms
        peer = replication.peers.get(sender)
        if peer is None:
            return
        peer.heard_ms = now_ms
        outbox = self._outbox
        if reply.is_diverged:
            outbox.alert(f"the log of {sender} differs from the leader's at index {reply.index}")
        if reply.is_ok and reply.index > self._log.last_index:
            outbox.alert(
                f"{sender} acks index {reply.index}, "
                f"the leader's log ends at {self._log.last_index}"
            )
            # The peer does not know that it differs: this shows it.
            replication.probe_own_term(peer)
            return
        is_put_back = not peer.is_uncertain and has_put_back(peer, reply)
        if is_put_back:
            outbox.alert(
                f"{sender} lacks entry {reply.index}, which it had: "
                "was its data restored from a backup?"
            )
        is_doubtful = reply.is_uncertain or peer.is_uncertain or is_put_back
        is_news = is_doubtful and self._weigh(peer, reply)
        has_grown = replication.on_append_reply(sender, reply)
        if reply.is_ok and sender == self.transfer.to:
            self.transfer.advance()
        if has_grown or is_news:
            self.advance_commit()
            if not self._standing.is_leader:
                return
        if peer.is_uncertain:
            self._certify(sender, peer)
        if reply.needs_snapshot or peer.needs_snapshot:
            peer.needs_snapshot = reply.needs_snapshot
            if reply.needs_snapshot and now_ms - peer.offered_ms >= self._clock.election_ms:
                replication.offer_snapshot(sender, peer, now_ms)

    def on_heartbeat_reply(self, sender: NodeId, reply: HeartbeatReply) -> None:
        """Take a peer's sign of life: it confirms reads, and shows what got lost."""
        replication, clock = self.replication, self._clock
        peer = replication.peers.get(sender)
        if peer is None:
            return
        peer.heard_ms = clock.now_ms
        if reply.is_uncertain and not peer.is_uncertain:
            self._doubt(peer)
        if peer.is_uncertain:
            self._certify(sender, peer)
        replication.on_heartbeat_reply(sender, reply.round_no, clock.now_ms, clock.election_ms)
        self.reads.confirm_rounds()
        self.settle_reads()

    def _doubt(self, peer: Progress) -> None:
        """Start to count on nothing of `peer`; the entry that may end this is appended now."""
        self._readmission.doubt(peer, self.append(b"", None, None))

    def _weigh(self, peer: Progress, reply: AppendReply) -> bool:
        """Take from a reply whether the peer is recovering, before anything else; True if the peer
        counts again from now on."""
        if (reply.is_uncertain and not peer.is_uncertain) or has_lost_more(peer, reply):
            self._doubt(peer)
            if not reply.is_ok and not reply.is_diverged:
                peer.next = reply.index + 1  # its hint applies to this
        elif reply.is_ok and not reply.is_uncertain and reply.index >= peer.certain_from:
            self._readmission.trust(peer)
            return True
        return False

    def _certify(self, node_id: NodeId, peer: Progress) -> None:
        if self._readmission.may_certify(peer):
            certify = Certify(self.replication.term, peer.certain_from)
            self._outbox.send_now.append((node_id, certify))

    # --- reads ----------------------------------------------------------------------------------

    def on_read_query(self, sender: NodeId, query: ReadQuery) -> None:
        """Find for a follower which index its read must see."""
        try:
            self.reads.add(sender, query.context)
        except ProposalRejected:
            self.replication.answer_read(sender, query.context, 0)
        self.settle_reads()

    def read_index(self, context: int) -> None:
        """Find which index a read on this member must see."""
        self.reads.add(self._standing.node_id, context)
        self.settle_reads()

    def settle_reads(self) -> None:
        """Answer the reads that are confirmed."""
        for requester, context, index in self.reads.confirmed():
            self._answer_read(requester, context, index)

    def _answer_read(self, requester: NodeId, context: int, index: Index) -> None:
        if requester == self._standing.node_id:
            self._outbox.read_states.append(ReadState(context, index))
        else:
            self.replication.answer_read(requester, context, index)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Act at a deadline: check the quorum, send heartbeats, or put the group to rest."""
        clock, replication, transfer = self._clock, self.replication, self.transfer
        if not self.quorum_at_ms:
            replication.expect_signs_from(now_ms)
            self.quorum_at_ms = now_ms + clock.election_ms
        if now_ms >= self.quorum_at_ms:
            since_ms = now_ms - clock.election_ms
            if not replication.has_heard_quorum(since_ms) or (
                replication.has_doubts and self._readmission.is_stuck(since_ms)
            ):
                self._step_down()
                return
            self.quorum_at_ms = now_ms + clock.election_ms
            self._check_own_disk()
        if transfer.to and now_ms >= transfer.by_ms:
            transfer.to = ""  # it did not take over in time: lead on
        if now_ms >= self.heartbeat_at_ms:
            live = clock.live
            if live is not None and self.quiescence.may_rest(live):
                replication.send_quiesce(live)
                clock.is_quiescent = True
                if replication.have_all():
                    self._log.give_up()
                clock.deadline_ms = NEVER
                return
            replication.send_heartbeats()
            self.heartbeat_at_ms = now_ms + clock.heartbeat_ms
        self.arm()

    def _check_own_disk(self) -> None:
        """Transfer leadership if our disk still lacks what a majority of disks had an election
        timeout ago: it hangs, or is slow, and nothing is applied and answered here before it has it
        as well."""
        if self._commit_seen > self._log.stable and not self.transfer.to:
            target = self.transfer.best_target("", self.is_live)
            if target:
                by_ms = self._clock.now_ms + self._clock.election_ms
                self.transfer.start(target, by_ms=by_ms)
        self._commit_seen = self._log.commit

    def arm(self) -> None:
        """Set the next deadline of a leader."""
        clock = self._clock
        if self._standing.is_sole or clock.is_quiescent:
            clock.deadline_ms = NEVER
            return
        deadline_ms = max(min(self.heartbeat_at_ms, self.quorum_at_ms), 1)
        if self.transfer.to:
            deadline_ms = min(deadline_ms, self.transfer.by_ms)
        if clock.now_ms < self.replication.commit_at_ms < deadline_ms:
            deadline_ms = self.replication.commit_at_ms
        clock.deadline_ms = deadline_ms

    def wake(self) -> None:
        """End the rest of the group: measure time from now."""
        clock, replication = self._clock, self.replication
        clock.is_quiescent = False
        replication.expect_signs_from(clock.now_ms)
        self.quiescence.quiet_index = self._log.last_index
        replication.is_round_due = True  # so that members unsure of it hear that we lead
        self.heartbeat_at_ms = clock.now_ms + clock.heartbeat_ms
        self.quorum_at_ms = clock.now_ms + clock.election_ms
        self.arm()

    def excuse_silence(self, until_ms: int) -> bool:
        """Put off the check of the quorum to `until_ms` if it fails before then, and somebody was
        heard since the last time; True if so."""
        is_over = 0 < self.quorum_at_ms < until_ms
        if is_over and self.replication.has_heard_quorum(self._clock.excused_ms):
            self.quorum_at_ms = until_ms
            return True
        return False

    # --- peers ----------------------------------------------------------------------------------

    def follow_membership(self) -> None:
        """Replicate to the members now in force."""
        self.replication.follow_membership(self._clock.now_ms)
        if self._clock.deadline_ms == NEVER:
            # A sole voter is not told the time; count others' silence from the next tick.
            self.quorum_at_ms = 0
        self.arm()

    def unreachable(self, node_id: NodeId) -> None:
        """Note that the link to a peer broke: what was under way may be lost."""
        self.replication.on_unreachable(node_id)
        peer = self.replication.peers.get(node_id)
        if peer is not None and peer.is_uncertain:
            self._doubt(peer)  # it may have forgotten more when it comes back

    def peer_up(self, node_id: NodeId) -> None:
        """Ask a peer whose link is up what it has."""
        if node_id not in self.replication.peers:
            return
        self.replication.on_unreachable(node_id)
        if self._clock.is_quiescent:
            self.wake()
        self.replication.is_round_due = True

    def is_live(self, node_id: NodeId, peer: Progress) -> bool:
        """Return whether a peer has a link, or without links was heard lately."""
        clock = self._clock
        if clock.live is not None:
            return node_id in clock.live
        return peer.heard_ms >= clock.now_ms - clock.election_ms

    def is_following(self, node_id: NodeId) -> bool:
        """Return whether a peer takes entries as they come, and its acks count."""
        clock = self._clock
        peer = self.replication.peers.get(node_id)
        return (
            peer is not None
            and peer.state == REPLICATE
            and not (peer.needs_snapshot or peer.is_uncertain)
            and self.is_live(node_id, peer)
            # A frozen process keeps its link for a while. At rest no member gives a sign of life.
            and (clock.is_quiescent or peer.heard_ms >= clock.now_ms - 2 * clock.heartbeat_ms)
        )

    def status(self) -> dict[NodeId, dict[str, Any]]:
        """Return facts on peers, for people."""
        return {
            node_id: {
                "state": STATE_NAMES[peer.state],
                "match": peer.match,
                "next": peer.next,
                "heard_ms_ago": max(self._clock.now_ms - peer.heard_ms, 0),
                "is_uncertain": peer.is_uncertain,
                "needs_snapshot": peer.needs_snapshot,
            }
            for node_id, peer in sorted(self.replication.peers.items())
        }
