"""The consensus core of one group, pure: inputs are calls, the output is `take() -> Ready`.

Inputs never do I/O and nothing is sent by them; they only change state. A sole voter needs
nobody: it leads from construction on, and what it proposes is committed as soon as it is durable.
A group with peers also wants `tick(now_ms)` before the messages of a turn, because leases and
signs of life are measured by the latest time the core was told.

Promises to others (votes, append replies) are held until the write they rest on is reported by
`persisted`. Appends and heartbeats of a leader are not: its term is durable before it leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamd.limits import UNCOMMITTED_BYTES_MAX
from streamd.raft import membership, recovering
from streamd.raft.election import FOLLOWER, ROLE_NAMES
from streamd.raft.log import LogReader
from streamd.raft.member import Member
from streamd.raft.membership import Membership
from streamd.raft.messages import ReadQuery
from streamd.raft.progress import REPLICATE, STATE_NAMES, Peer
from streamd.raft.ready import NotLeader, ProposalRejected, ReadState, Ready, Token, Write
from streamd.raft.replication import Leadership
from streamd.raft.state import NEVER
from streamd.types import Entry, HardState, Index, NodeId, Term

COMMIT_HINT_EVERY = 4096  # entries; how far the durable commit hint may lag behind
EAGER_MS = 1000  # a peer hears of commits at once, since a client there wrote

__all__ = ["NEVER", "LogReader", "NotLeader", "ProposalRejected", "RaftCore", "Ready"]


class RaftCore(Member):
    """One member of one group. Not thread-safe; owned by the group's turn."""

    __slots__ = ()

    # --- facts ----------------------------------------------------------------------------------

    @property
    def last_index(self) -> Index:
        return self.log.last_index

    @property
    def commit(self) -> Index:
        return self.log.commit

    @property
    def applied(self) -> Index:
        """The last entry given out as committed; the shell applies those at once."""
        return self.log.emitted

    @property
    def members(self) -> Membership:
        """The membership in force; `log.membership_at(index)` is what a snapshot stores."""
        return self.log.membership

    @property
    def has_ready(self) -> bool:
        """True if `take` would return something."""
        log = self.log
        return (
            log.written < log.last_index
            or log.emitted < self._emit_to
            or self._hard_state_changed
            or self._role_changed
            or bool(self._outbox or self._held or self._read_states)
            or log.truncated_from > 0
            or (self._leadership is not None and not self._is_sole and self._has_sends_due())
            or self._has_news
        )

    # --- proposals ------------------------------------------------------------------------------

    def propose(self, data: bytes, command: Any = None, tag: Any = None) -> Index:
        """Append an entry; return its index. Its fate is known when the index is committed.

        Raises NotLeader, or ProposalRejected when the backlog is full or leadership is on its
        way to another member. `data` is a command: not empty, not a membership's.
        """
        if not self.is_leader:
            raise NotLeader(self.leader_id)
        if self._uncommitted_bytes >= UNCOMMITTED_BYTES_MAX:
            raise ProposalRejected(f"{self._uncommitted_bytes} bytes are not committed yet")
        if not self._is_sole:
            self._assert_takes_proposals()
        assert data and data[:1] != membership.MARK, data[:1]
        self._uncommitted_bytes += len(data)
        return self._append(data, command, tag)

    def propose_membership(
        self, voters: Iterable[NodeId], learners: Iterable[NodeId] = ()
    ) -> Index:
        """Start to change the members to `voters` and `learners`; return the entry's index.

        One change at a time: ProposalRejected while another is under way or this term has
        nothing committed yet. A joint phase, if one is needed, ends by itself. A learner should
        be caught up (`is_close`) before it is made a voter: the core does not insist.
        """
        leadership = self._leadership
        if leadership is None:
            raise NotLeader(self.leader_id)
        self._assert_takes_proposals()
        wanted = membership.simple(voters, learners)
        if self.log.commit < leadership.term_start:
            raise ProposalRejected("nothing of this leader's term is committed yet")
        if self.log.membership_index > self.log.commit:
            raise ProposalRejected("another change of members is not committed yet")
        if self.log.membership.is_joint:
            raise ProposalRejected("the group is still leaving a joint membership")
        if not wanted.voters:
            raise ProposalRejected("a group needs a voter")
        changed = self.log.membership.changed_to(wanted.voters, wanted.learners)
        return self._append_membership(changed)

    def has_vote(self, node_id: NodeId) -> bool:
        """True if the vote of `node_id` counts by every membership that may be in force."""
        return self.log.has_vote(node_id)

    def is_close(self, node_id: NodeId, entries: int) -> bool:
        """True if `node_id` is following and lacks at most so many entries (the leader's view)."""
        leadership = self._leadership
        if leadership is None or not self.is_following(node_id):
            return False
        if node_id == self.node_id:
            return True  # it may be a learner: see `stand_in`
        return self.log.last_index - leadership.peers[node_id].match <= entries

    def is_following(self, node_id: NodeId) -> bool:
        """True if `node_id` is there and takes entries as they come, and its acks count (the
        leader's view). A member without a snapshot it needs does not, however short the log is."""
        if node_id == self.node_id:
            return self.is_leader
        peer = self._leadership.peers.get(node_id) if self._leadership else None
        return (
            peer is not None
            and peer.state == REPLICATE
            and not (peer.needs_snapshot or peer.is_uncertain)
            and self._is_live(node_id, peer)
            # A frozen process keeps its link for a while. At rest nobody gives a sign of life.
            and (self.is_quiescent or peer.heard_ms >= self.now_ms - 2 * self._heartbeat_ms)
        )

    def hasten_commit(self, node_id: NodeId = "") -> None:
        """Let `node_id`, for a second, or all, for what is proposed up to the next entry, hear of
        the commit at once: somebody there will read what was just written."""
        leadership = self._leadership
        if leadership is None:
            return
        peer = leadership.peers.get(node_id)
        if peer is not None:
            peer.eager_until_ms = self.now_ms + EAGER_MS
        elif not node_id:
            leadership.eager_to = self.log.last_index + 1

    @property
    def is_handing_over(self) -> bool:
        """True while another member is to take over, so that nothing can be proposed."""
        return self._leadership is not None and bool(self._leadership.transfer_to)

    def transfer(self, node_id: NodeId) -> None:
        """Hand leadership to `node_id`; given up after one election timeout.

        Raises NotLeader, or ProposalRejected if it is no other voter, not whole, or another is
        under way.
        """
        leadership = self._leadership
        if leadership is None:
            raise NotLeader(self.leader_id)
        self._assert_takes_proposals()
        leadership.start_transfer(node_id, by_ms=self.now_ms + self._election_ms)
        self._arm_leader()

    def stand_in(self, named: frozenset[NodeId], opening: bytes = b"") -> None:
        """Stand for election once, as a learner or in doubt too: an operator accepts that what only
        voters in doubt have had is lost. Why that elects nobody wrongly: `doubt`.

        Won only if everybody grants: all voters, and `named`, who may have more, or be voters by
        entries that this member lacks. Its term begins with the command `opening`, if any: whoever
        leads later has that too. Ignored where a leader may be alive, and by a member that is not
        whole.
        """
        is_whole = not (self.is_incomplete or self._has_diverged or self.may_begin_anew)
        if is_whole and self.role == FOLLOWER and not self._hears_leader():
            open_members = self.log.open_memberships()
            voters = {name for held in open_members for name in (*held.voters, *held.voters_out)}
            self._everybody, self._opening = named | voters | {self.node_id}, opening
            self._arm_election()
            self._campaign()

    def read_index(self, context: int) -> None:
        """Ask which index a linearizable read must see; a ReadState with `context` answers.

        On a follower the leader is asked. Index 0: no leader, or its term ended meanwhile. An
        answer may also be lost with its message: the shell bounds its own wait.
        """
        leadership = self._leadership
        if self.is_quiescent:
            self._wake()
        if leadership is not None:
            leadership.add_read(self.node_id, context)
            self._settle_reads()
        elif self.leader_id is not None:
            self._outbox.append((self.leader_id, ReadQuery(self.term, context)))
        else:
            self._read_states.append(ReadState(context, 0))

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Tell the time; acts only at `deadline_ms`, so more calls than needed are harmless."""
        self.now_ms = now_ms
        if not self.deadline_ms or now_ms < self.deadline_ms:
            return
        leadership = self._leadership
        if leadership is None:
            if self._everybody:
                self._become_follower(self.term, None)  # not everybody has answered in time
            self._arm_election()
            self._campaign()
            return
        if not leadership.quorum_at_ms:
            leadership.expect_signs_from(now_ms)
            leadership.quorum_at_ms = now_ms + self._election_ms
        if now_ms >= leadership.quorum_at_ms:
            since_ms = now_ms - self._election_ms
            if not leadership.has_heard_quorum(since_ms) or (
                leadership.has_doubts and recovering.is_stuck(leadership, since_ms)
            ):
                self._become_follower(self.term, None)
                return
            leadership.quorum_at_ms = now_ms + self._election_ms
            self._look_at_own_disk(leadership)
        if leadership.transfer_to and now_ms >= leadership.transfer_by_ms:
            leadership.transfer_to = ""  # it did not take over in time: lead on
        if now_ms >= leadership.heartbeat_at_ms:
            if self._live is not None and self._may_rest(leadership, self._live):
                leadership.send_quiesce(self._live)
                self.is_quiescent = True
                if leadership.have_all():
                    self.log.give_up()
                self.deadline_ms = NEVER
                return
            leadership.send_heartbeats()
            leadership.heartbeat_at_ms = now_ms + self._heartbeat_ms
        self._arm_leader()

    def _look_at_own_disk(self, leadership: Leadership) -> None:
        """Hand over if our disk still lacks what a majority of disks had an election timeout ago:
        it hangs, or is slow, and nothing is applied and answered here before it has it as well."""
        if leadership.commit_seen > self.log.stable and not leadership.transfer_to:
            target = self.transfer_target()
            if target:
                leadership.start_transfer(target, by_ms=self.now_ms + self._election_ms)
        leadership.commit_seen = self.log.commit

    def excuse_silence(self, now_ms: int) -> None:
        """Told before a `tick` that comes much too late: this process stood still, so what others
        said waits to be read, and that nobody was heard proves nothing yet. Good for one
        heartbeat, and not again until somebody was heard: who is always late must not wait."""
        until_ms = now_ms + self._heartbeat_ms
        leadership = self._leadership
        if leadership is not None:
            is_over = 0 < leadership.quorum_at_ms < until_ms
            if is_over and leadership.has_heard_quorum(self._excused_ms):
                leadership.quorum_at_ms = until_ms
                self._excused_ms = now_ms
        elif self.leader_id is not None and self.heard_ms >= self._excused_ms:
            self.deadline_ms = until_ms
            self._excused_ms = now_ms

    # --- storage --------------------------------------------------------------------------------

    def persisted(self, token: Token) -> None:
        """The write `token`, and so every one before it, is durable. Unknown tokens are ignored.

        What a later truncation voided does not count, even if equal entries were appended again
        since: they are in a later write.
        """
        writes = self._writes
        log = self.log
        while writes and writes[0].token <= token:
            write = writes.popleft()
            if write.last_index > log.stable:
                log.stable = write.last_index
            for receiver, message in write.held:
                if message.term < self.term:
                    continue  # a promise of a term that is over; what it rests on may be void
                if receiver == self.node_id:
                    self.step(receiver, message)  # our own vote, now that it is durable
                else:
                    self._outbox.append((receiver, message))
        leadership = self._leadership
        if leadership is not None and self._is_sole:
            # The same as `_advance_commit`, on the path every publish of a lone node takes.
            if log.stable >= leadership.term_start:
                log.commit = self._emit_to = log.stable
                if leadership.has_reads:
                    self._settle_reads()
            return
        if self.is_incomplete:
            log.forget(log.stable)  # nobody applies them for now; a reader has them
            return
        self._emit_to = min(log.commit, log.stable)
        if leadership is not None:
            self._advance_commit()

    def snapshot_saved(self, index: Index, term: Term, chain: int) -> None:
        """A snapshot at `index` is durable: entries up to it may be gone from the reader."""
        self.log.compact(index, term, chain)

    def is_snapshot_wanted(self, index: Index) -> bool:
        """True if a snapshot at `index` brings what this member will not have without it."""
        if self.is_incomplete or self._has_diverged:
            return True
        return self.applied < index and not self._follows_leader_to(index)

    # --- other nodes ----------------------------------------------------------------------------

    def unreachable(self, node_id: NodeId) -> None:
        """The link to `node_id` broke: what was under way to it may be lost."""
        leadership = self._leadership
        if leadership is None:
            return
        leadership.on_unreachable(node_id)
        peer = leadership.peers.get(node_id)
        if peer is not None and peer.is_uncertain:
            self._doubt(leadership, peer)  # it may have forgotten more when it comes back

    def set_live(self, nodes: frozenset[NodeId]) -> None:
        """Tell which nodes have a link up, our own included. Told once, the group may quiesce."""
        self._live = nodes
        if (
            self.is_quiescent
            and self._leadership is not None
            and not self.log.membership.has_quorum(nodes.__contains__)
        ):
            self._wake()  # check-quorum decides

    def peer_up(self, node_id: NodeId) -> None:
        """A link to `node_id` is up: a leader asks what it has. Where nobody is known to lead and
        enough have met to elect somebody, as after a start of all, there is nothing to wait for:
        the pre-vote sees to it that nobody is deposed."""
        leadership = self._leadership
        if self._live is not None:
            self._live |= {node_id}
            members = self.log.membership
            if (
                self.leader_id is None
                and self.role == FOLLOWER
                and members.is_voter(node_id)
                and members.has_quorum(self._live.__contains__)
                and self._may_stand()
            ):
                self._hurry()
        if leadership is None or node_id not in leadership.peers:
            return
        leadership.on_unreachable(node_id)
        if self.is_quiescent:
            self._wake()
        leadership.is_round_due = True

    def peer_down(self, node_id: NodeId) -> None:
        """The link to `node_id` is gone. If it was our leader, another is wanted soon; members
        notice at about the same time, hence the dice."""
        if self._live is not None:
            self.set_live(self._live - {node_id})
        self.unreachable(node_id)
        if self.leader_id != node_id or self.is_leader:
            return
        self.leader_id = None
        self.is_quiescent = False
        self._role_changed = True
        self.heard_ms = self.now_ms - self._election_ms
        self._arm_election()
        self._hurry()

    def transfer_target(self, preferred: NodeId = "") -> NodeId:
        """To whom leadership could go: `preferred` if it is fit for it; "" if nobody is."""
        leadership = self._leadership
        if leadership is None:
            return ""
        return leadership.best_target(preferred, self._is_live)

    def _is_live(self, node_id: NodeId, peer: Peer) -> bool:
        if self._live is not None:
            return node_id in self._live
        return peer.heard_ms >= self.now_ms - self._election_ms

    def status(self) -> dict[str, Any]:
        """Facts for people; `peers` only on a leader."""
        leadership = self._leadership
        peers = {}
        if leadership is not None:
            for node_id, peer in sorted(leadership.peers.items()):
                peers[node_id] = {
                    "state": STATE_NAMES[peer.state],
                    "match": peer.match,
                    "next": peer.next,
                    "heard_ms_ago": max(self.now_ms - peer.heard_ms, 0),
                    "is_uncertain": peer.is_uncertain,
                    "needs_snapshot": peer.needs_snapshot,
                }
        return {
            "role": ROLE_NAMES[self.role],
            "term": self.term,
            "vote": self.vote,
            "leader_id": self.leader_id or "",
            "commit": self.log.commit,
            "applied": self.log.emitted,
            "last_index": self.log.last_index,
            "is_uncertain": self.is_uncertain,
            "is_incomplete": self.is_incomplete,
            "has_diverged": self._has_diverged,
            "is_quiescent": self.is_quiescent,
            "peers": peers,
        }

    # --- output ---------------------------------------------------------------------------------

    def take(self, max_entries: int, max_bytes: int) -> Ready | None:
        """Return what follows from the inputs since the last call; None if nothing does."""
        if not self.has_ready:
            return None
        log = self.log
        leadership = self._leadership
        ready = Ready()
        if leadership is not None and not self._is_sole:
            leadership.send_appends(self.now_ms)
            if leadership.is_round_due:
                leadership.send_heartbeats()
            if self.now_ms < leadership.commit_at_ms < self.deadline_ms:
                self.deadline_ms = leadership.commit_at_ms
        if log.emitted < self._emit_to:
            self._emit(ready, max_entries, max_bytes)
        if log.written < log.last_index or self._hard_state_changed or log.truncated_from:
            self._write(ready)
        elif self._held:
            if self._writes:
                self._writes[-1].held.extend(self._held)
            else:
                self._outbox.extend(self._held)  # all they rest on is durable already
            self._held = []
        if self._outbox:
            ready.send_now = self._outbox[:]
            self._outbox.clear()  # the same list: the leadership writes into it as well
        if self._read_states:
            ready.read_states, self._read_states = self._read_states, []
        if self._role_changed:
            ready.role_changed = True
            self._role_changed = False
        if self._has_news:
            ready.dropped, self._dropped = self._dropped, []
            ready.alerts, self._alerts = self._alerts, []
            ready.snapshot_wanted, self._snapshot_wanted = self._snapshot_wanted, None
            self._has_news = False
        ready.is_leader_ready = self.is_leader_ready
        return ready

    def _write(self, ready: Ready) -> None:
        log = self.log
        ready.truncate_from = log.truncated_from
        log.truncated_from = 0
        if log.written < log.last_index:
            ready.entries = log.unwritten()
            log.written = log.last_index
            if not self._is_sole and log.commit - self._hinted >= COMMIT_HINT_EVERY:
                self._hard_state_changed = True
        if self._hard_state_changed:
            ready.hard_state = HardState(
                self.term, self.vote, log.commit, self.is_uncertain and not self._is_certified
            )
            self._hinted = log.commit
            self._hard_state_changed = False
        self._token += 1
        ready.token = self._token
        self._writes.append(Write(self._token, log.written, self._held))
        self._held = []

    def _emit(self, ready: Ready, max_entries: int, max_bytes: int) -> None:
        log = self.log
        last = self._emit_to
        assert log.emitted < last <= log.stable, (log.emitted, last, log.stable)
        entries = log.slice(
            log.emitted + 1, last=last, max_entries=max_entries, max_bytes=max_bytes
        )
        log.emitted = entries[-1].index
        ready.more = log.emitted < last
        leadership = self._leadership
        if leadership is not None:
            size = 0
            for entry in entries:
                size += len(entry.data)
            # Entries of earlier leaders were never added; they can only make this too small.
            self._uncommitted_bytes = max(self._uncommitted_bytes - size, 0)
            if log.emitted >= leadership.term_start:
                self.is_leader_ready = True
        log.forget_emitted()
        ready.committed = entries
        for position, entry in enumerate(entries):
            # 0xc1 is membership.MARK: a machine is shown a no-op, the change was for the core.
            if entry.data and entry.data[0] == 0xC1:
                entries[position] = Entry(entry.term, entry.index, b"", chain=entry.chain)

    # --- helpers --------------------------------------------------------------------------------

    def _assert_takes_proposals(self) -> None:
        leadership = self._leadership
        if leadership is None:
            return
        if self.is_quiescent:
            self._wake()
            # The entry itself wakes the others, and their acks are signs of life.
            leadership.is_round_due = False
            leadership.quiet_index += 1
        if leadership.transfer_to:
            target = leadership.transfer_to
            raise ProposalRejected(f"leadership is being handed to {target}")

    def _may_rest(self, leadership: Leadership, live: frozenset[NodeId]) -> bool:
        """True when nothing was appended since the last heartbeat, and nothing is under way."""
        last = self.log.last_index
        is_quiet = last == leadership.quiet_index
        leadership.quiet_index = last
        return is_quiet and leadership.is_settled(live)

    def _has_sends_due(self) -> bool:
        leadership = self._leadership
        return leadership is not None and (
            leadership.is_round_due or leadership.has_appends_due(self.now_ms)
        )
