"""The consensus core of one group, pure: inputs are calls, the output is `take() -> Ready`.

Roles. A member is in one of them, and each has only the methods that are legal in it:

    +----------+  patience ends   +----------------+  would win  +-----------+  won  +--------+
    | Follower | ---------------> | Candidate(pre) | ----------> | Candidate | ----> | Leader |
    +----------+                  +----------------+             +-----------+       +--------+
         ^   a leader of this term, a later term, or an election that is lost |            |
         +--------------------------------------------------------------------+------------+
                                     a later term, or no quorum was heard for a while

Parts. Each owns its state, and is given the parts that it uses; none knows the core:

    RaftCore     the inputs; which role this member has, and every change of it
    Standing     term, vote, known leader          Clock     time, deadline, links that are up
    Election     when to stand, members to ask     Recovery  what this member may have forgotten
    Follower     answers to a leader               RaftLog   entries: memory, or read from the shell
    Leader       proposals, commits, transfer      Outbox    messages, held promises, news
      Replication (a Progress a peer), ReadIndex, Readmission, Quiescence, Transfer

Callers. The shell (a group's turn) alone, on one thread. Inputs never do I/O and nothing is sent by
them; they only change state. `take` is called until it returns None; what to do with a `Ready`, and
in which order, its docstring says. A sole voter needs nobody: it leads from construction on, and
what it proposes is committed as soon as it is durable. A group with peers also wants `tick(now_ms)`
before the messages of a turn: leases and signs of life are measured by the latest time told.

Invariants:

- Promises to others (votes, append replies) are held until the write they rest on is reported by
  `persisted` (I1). Appends and heartbeats of a leader are not: its term is durable before it leads.
- One vote a term, and a vote lasts as long as its term (`Standing.enter`).
- A leader's log only grows. It commits only by an entry of its own term (`Leader.advance_commit`).
- A follower never truncates what it knows to be committed: it diverges instead (`Follower`).
- applied <= min(commit, durable): an entry is given out only when both hold.
- A recovering member commits and elects nothing that rests on its memory (`recovering`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from streamd.memory_share import MemoryShare
from streamd.raft import membership
from streamd.raft.election import (
    HURRIED_TRIES,
    NEVER,
    ROLE_NAMES,
    Ballot,
    Candidate,
    Clock,
    Dice,
    Election,
    Standing,
)
from streamd.raft.follower import Follower
from streamd.raft.history import LogPosition
from streamd.raft.leader import Leader
from streamd.raft.log import LogReader, RaftLog
from streamd.raft.membership import Membership
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
from streamd.raft.ready import NotLeader, Outbox, ProposalRejected, ReadState, Ready, Token
from streamd.raft.recovering import Recovery
from streamd.raft.replication import Replication
from streamd.types import Entry, HardState, Index, LogState, NodeId, Term, Uid

COMMIT_HINT_EVERY = 4096  # entries; how far the durable commit hint may lag behind
EAGER_MS = 1000  # a peer hears of commits at once, since a client there wrote

__all__ = [
    "NEVER",
    "LogReader",
    "MemberStart",
    "NotLeader",
    "ProposalRejected",
    "RaftCore",
    "Ready",
]


@dataclass(slots=True, kw_only=True)
class MemberStart:
    """State from which a member starts: `log` as storage has it, and a snapshot at `applied` whose
    members were `voters` and `learners` (or `members`, if it was taken amid a joint change).

    `is_uncertain`: it may have forgotten votes or entries it acknowledged (see `recovering`); also
    if its hard state says so. `is_incomplete`: the log is whole, but the machine's state below it
    is missing; then `applied` may be anything up to the start of the log. `may_begin_anew`: what
    all members have forgotten is gone, and the group may go on without it: an uncertain member may
    stand, and wins if all voters, or a majority that remembers, grant it; whoever has a longer log
    does not. `named`: who belongs to the group, or will, whatever its log says: it may have been
    told a part of before they came, or have lost it. They must be among the voters for that, and
    are asked who leads. `left_at`: (term, index) of the last entry of an earlier member of this
    node, which was destroyed when it had left; no candidate with less is granted a vote while this
    member is recovering. `windows`: shared by the logs of the node. `history`: of entries up to the
    snapshot.
    """

    group: Uid
    node_id: NodeId
    voters: Sequence[NodeId]
    log: LogState
    reader: LogReader
    now_ms: int
    seed: int
    applied: Index = 0
    election_ms: int = 1000
    heartbeat_ms: int = 250
    learners: Sequence[NodeId] = ()
    members: Membership | None = None
    is_uncertain: bool = False
    is_incomplete: bool = False
    may_begin_anew: bool = False
    named: frozenset[NodeId] = frozenset()
    left_at: tuple[Term, Index] = (0, 0)
    windows: MemoryShare | None = None
    history: Iterable[LogPosition] = ()


class RaftCore:
    """A member of one group. Not thread-safe; owned by the group's turn."""

    __slots__ = (
        "_clock",
        "_election",
        "_follower",
        "_leader",
        "_outbox",
        "_recovery",
        "_role",
        "_standing",
        "commit_delay_ms",
        "group",
        "log",
        "node_id",
        "nonce",
    )

    def __init__(self, start: MemberStart) -> None:
        """Take the first role: a member that waits for no other leads at once.

        Reads the durable log once, and raises CorruptionError if it does not fit together.
        """
        self.group = start.group
        self.node_id = start.node_id
        self.nonce = 0  # differs from one life of a member to the next; the shell's to set
        self.commit_delay_ms = 0  # how long a leader lets a commit index wait for entries
        log = start.log
        is_uncertain = start.is_uncertain or log.hard_state.is_uncertain
        if is_uncertain:
            # The hint may be younger than the entries that are left: let a leader verify them.
            log = log._replace(hard_state=log.hard_state._replace(commit=0))
        applied = start.applied
        self.log = RaftLog(
            log,
            start.reader,
            applied=max(applied, log.first_index - 1) if start.is_incomplete else applied,
            membership=start.members or membership.simple(start.voters, start.learners),
            windows=start.windows,
            history=start.history,
        )
        self._standing = Standing(start.group, start.node_id, log.hard_state)
        self._standing.check_log(self.log.last_term, is_uncertain=is_uncertain)
        # Durable before any promise: a restarted member must know that it is recovering.
        self._standing.has_changed = is_uncertain and not log.hard_state.is_uncertain
        self._recovery = Recovery(
            is_uncertain=is_uncertain,
            is_incomplete=start.is_incomplete,
            may_begin_anew=start.may_begin_anew,
            named=start.named,
            left_at=start.left_at,
        )
        if not start.is_incomplete:
            self.log.emit_to = min(self.log.commit, self.log.stable)
        self._clock = Clock(
            start.now_ms, election_ms=start.election_ms, heartbeat_ms=start.heartbeat_ms
        )
        self._outbox = Outbox()
        self._election = Election(
            self._standing, self._clock, self._recovery, self.log, self._outbox, Dice(start.seed)
        )
        self._follower = Follower(
            self._standing,
            self._clock,
            self._recovery,
            self.log,
            self._outbox,
            members_changed=self._follow_membership,
        )
        self._role: Follower | Candidate | Leader = self._follower
        self._leader: Leader | None = None  # the role, if it is a leader's
        self._follow_membership()
        if self.log.membership.voters == (self.node_id,):
            self._campaign()

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
    def term(self) -> Term:
        return self._standing.term

    @property
    def vote(self) -> NodeId:
        return self._standing.vote

    @property
    def role(self) -> int:
        return self._role.role

    @property
    def leader_id(self) -> NodeId | None:
        return self._standing.leader_id

    @property
    def is_leader(self) -> bool:
        return self._leader is not None

    @property
    def is_leader_ready(self) -> bool:
        """True once the no-op of this leader's term was given out as committed."""
        return self._leader is not None and self._leader.is_ready

    @property
    def led_terms(self) -> tuple[Term, ...]:
        """The newest terms that this member has led since it was made."""
        return self._standing.led_terms

    @property
    def first_commit(self) -> Index:
        """The first commit index that a leader told since this member was made; 0: none yet."""
        return self._standing.first_commit

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms

    @property
    def heard_ms(self) -> int:
        """When a leader was last heard."""
        return self._clock.heard_ms

    @property
    def deadline_ms(self) -> int:
        """When `tick` has something to do; NEVER: not before another input."""
        clock = self._clock
        if clock.rescue_until_ms and (
            not clock.deadline_ms or clock.rescue_until_ms < clock.deadline_ms
        ):
            return clock.rescue_until_ms
        return clock.deadline_ms

    @property
    def is_quiescent(self) -> bool:
        return self._clock.is_quiescent

    @property
    def is_uncertain(self) -> bool:
        """True while this member may have forgotten votes or acks: see `recovering`."""
        return self._recovery.is_uncertain

    @property
    def is_incomplete(self) -> bool:
        """True while the state below the log is missing."""
        return self._recovery.is_incomplete

    @property
    def certified_index(self) -> Index:
        """An entry after which nothing was forgotten, by a leader's readmission; 0: none."""
        return self._recovery.certified_index

    @property
    def forgetful(self) -> set[NodeId]:
        """Members that elected this leader although they may have forgotten something."""
        return self._recovery.forgetful

    @property
    def has_ready(self) -> bool:
        """True if `take` would return something."""
        log, leader = self.log, self._leader
        return (
            log.written < log.last_index
            or log.emitted < log.emit_to
            or self._standing.has_changed
            or self._outbox.is_filled
            or log.truncated_from > 0
            or (
                leader is not None
                and not self._standing.is_sole
                and leader.replication.has_sends_due(self._clock.now_ms)
            )
        )

    def status(self) -> dict[str, Any]:
        """Return facts for people; `peers` only on a leader."""
        standing, recovery, leader = self._standing, self._recovery, self._leader
        return {
            "role": ROLE_NAMES[self.role],
            "term": standing.term,
            "vote": standing.vote,
            "leader_id": standing.leader_id or "",
            "commit": self.log.commit,
            "applied": self.log.emitted,
            "last_index": self.log.last_index,
            "is_uncertain": recovery.is_uncertain,
            "is_incomplete": recovery.is_incomplete,
            "has_diverged": recovery.has_diverged,
            "is_quiescent": self._clock.is_quiescent,
            "peers": leader.status() if leader is not None else {},
        }

    # --- proposals ------------------------------------------------------------------------------

    def propose(self, data: bytes, command: object = None, tag: object = None) -> Index:
        """Append an entry; return its index. Its fate is known when the index is committed.

        Raises NotLeader, or ProposalRejected when the backlog is full or leadership is on its
        way to another member. `data` is a command: not empty, not a membership's.
        """
        leader = self._leader
        if leader is None:
            raise NotLeader(self._standing.leader_id)
        return leader.propose(data, command, tag)

    def propose_membership(
        self, voters: Iterable[NodeId], learners: Iterable[NodeId] = ()
    ) -> Index:
        """Start to change the members to `voters` and `learners`; return the entry's index.

        One change at a time: ProposalRejected while another is under way or this term has
        nothing committed yet. A joint phase, if one is needed, ends by itself. A learner should
        be caught up (`is_close`) before it is made a voter: the core does not insist.
        """
        return self._leading().propose_membership(membership.simple(voters, learners))

    def has_vote(self, node_id: NodeId) -> bool:
        """Return True if the vote of `node_id` counts by every membership that may be in force."""
        return self.log.has_vote(node_id)

    def is_close(self, node_id: NodeId, entries: int) -> bool:
        """Return True if `node_id` is following and lacks at most so many entries (the leader's
        view)."""
        leader = self._leader
        if leader is None or not self.is_following(node_id):
            return False
        if node_id == self.node_id:
            return True  # it may be a learner: see `stand_in`
        return self.log.last_index - leader.replication.peers[node_id].match <= entries

    def is_following(self, node_id: NodeId) -> bool:
        """Return True if `node_id` is there and takes entries as they come, and its acks count
        (the leader's view). A member without a snapshot it needs does not, however short the log
        is."""
        leader = self._leader
        if node_id == self.node_id:
            return leader is not None
        return leader is not None and leader.is_following(node_id)

    def hasten_commit(self, node_id: NodeId = "") -> None:
        """Let `node_id`, for a second, or all, for what is proposed up to the next entry, hear of
        the commit at once: somebody there will read what was just written."""
        leader = self._leader
        if leader is None:
            return
        peer = leader.replication.peers.get(node_id)
        if peer is not None:
            peer.eager_until_ms = self._clock.now_ms + EAGER_MS
        elif not node_id:
            leader.replication.eager_to = self.log.last_index + 1

    @property
    def is_handing_over(self) -> bool:
        """True while another member is to take over, so that nothing can be proposed."""
        return self._leader is not None and bool(self._leader.transfer.to)

    def transfer(self, node_id: NodeId) -> None:
        """Transfer leadership to `node_id`; abandoned after one election timeout.

        Raises NotLeader, or ProposalRejected if `node_id` is not another voter or lacks
        entries, or if another transfer is under way.
        """
        leader = self._leading()
        leader.check_proposals()
        leader.transfer.start(node_id, by_ms=self._clock.now_ms + self._clock.election_ms)
        leader.arm()

    def transfer_target(self, preferred: NodeId = "") -> NodeId:
        """Return the voter that leadership could go to: `preferred` if it is fit; "" if none is."""
        leader = self._leader
        return leader.transfer.best_target(preferred, leader.is_live) if leader is not None else ""

    def stand_in(self, named: frozenset[NodeId], opening: bytes = b"") -> None:
        """Stand for election once, as a learner or recovering voter too: an operator accepts that
        entries which only recovering voters had are lost. Why this is safe: `recovering`.

        Won only if every member grants: all voters, and `named`, who may have more, or be voters by
        entries that this member lacks. Its term begins with the command `opening`, if any: whoever
        leads later has that too. Ignored where a leader may be alive, and by a member that is not
        whole.
        """
        recovery, election = self._recovery, self._election
        is_whole = recovery.is_whole and not recovery.may_begin_anew
        if is_whole and self._role is self._follower and not election.hears_leader():
            open_members = self.log.open_memberships()
            voters = {name for held in open_members for name in (*held.voters, *held.voters_out)}
            election.everybody, election.opening = named | voters | {self.node_id}, opening
            election.arm()
            self._campaign()

    def read_index(self, context: int) -> None:
        """Ask which index a linearizable read must see; a ReadState with `context` answers.

        On a follower the leader is asked. Index 0: no leader, or its term ended meanwhile. An
        answer may also be lost with its message: the shell bounds its own wait.
        """
        standing, outbox = self._standing, self._outbox
        if self._clock.is_quiescent:
            self._wake()
        if self._leader is not None:
            self._leader.read_index(context)
        elif standing.leader_id is not None:
            outbox.send_now.append((standing.leader_id, ReadQuery(standing.term, context)))
        else:
            outbox.read_states.append(ReadState(context, 0))

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Tell the time; acts only at `deadline_ms`, so more calls than needed are harmless."""
        clock = self._clock
        clock.now_ms = now_ms
        if clock.rescue_until_ms and now_ms >= clock.rescue_until_ms:
            self.end_rescue()
        if not clock.deadline_ms or now_ms < clock.deadline_ms:
            return
        if self._leader is not None:
            self._leader.tick(now_ms)
            return
        if self._election.everybody:
            self._become_follower(self.term, None)  # not every member has answered in time
        self._election.arm()
        self._campaign()

    # --- fewer than a majority ------------------------------------------------------------------

    @property
    def rescue_quorum(self) -> int:
        """Voters that are enough for now instead of a majority; 0: no less than that."""
        return self.log.needed

    @property
    def live_voter_count(self) -> int:
        """Voters with a link up, this member among them; 0: nobody tells of links."""
        live, members = self._clock.live or frozenset(), self.log.membership
        return len(live & {*members.voters, *members.voters_out})

    def rescue(self, quorum: int, until_ms: int) -> None:
        """Take `quorum` voters for enough to elect and to commit, where a majority is more, until
        then, or until so many are a majority of the members.

        Unsafe: what fewer than a majority decide, the others may not know, and decide otherwise.
        For an operator who knows that they are gone for good, and removes them. The candidate and
        the leader need it; a follower asks nobody.
        """
        assert quorum > 0, quorum
        self.log.take_for_enough(quorum)
        self._clock.rescue_until_ms = until_ms
        if self._is_rescue_over():
            self.end_rescue()
            return
        if self._leader is None:
            self._election.hurry()

    def end_rescue(self) -> None:
        """Take none but a majority for enough from now on. A leader that has none steps down when
        it next looks."""
        self.log.take_for_enough(0)
        self._clock.rescue_until_ms = NEVER
        if self._clock.is_quiescent and self._leader is not None:
            self._wake()

    def _is_rescue_over(self) -> bool:
        members = self.log.membership
        return bool(members.needed) and members.majority <= members.needed

    def lose_patience(self, now_ms: int) -> None:
        """End the patience of a follower at `now_ms`: it stands at the next `tick` from then on."""
        self._clock.deadline_ms = now_ms

    def excuse_silence(self, now_ms: int) -> None:
        """Tell before a `tick` that comes much too late that this process stood still, so what
        others said waits to be read, and that nobody was heard proves nothing yet. Good for one
        heartbeat, and not again until somebody was heard: who is always late must not wait."""
        clock = self._clock
        until_ms = now_ms + clock.heartbeat_ms
        if self._leader is not None:
            if self._leader.excuse_silence(until_ms):
                clock.excused_ms = now_ms
        elif self._standing.leader_id is not None and clock.heard_ms >= clock.excused_ms:
            clock.deadline_ms = until_ms
            clock.excused_ms = now_ms

    def _wake(self) -> None:
        """End the rest of this member: something happens again, so time counts from now."""
        if self._leader is not None:
            self._leader.wake()
            return
        clock = self._clock
        clock.is_quiescent = False
        self._election.arm()
        # A leader may rest on, unaware that it is missed: to ask it ourselves comes before
        # helping somebody who may just be cut off from it.
        clock.heard_ms = max(clock.now_ms, clock.deadline_ms - clock.election_ms)

    # --- storage --------------------------------------------------------------------------------

    def persisted(self, token: Token) -> None:
        """Note that the write `token`, and so every one before it, is durable. Unknown tokens are
        ignored.

        What a later truncation voided does not count, even if equal entries were appended again
        since: they are in a later write.
        """
        writes = self._outbox.writes
        log = self.log
        while writes and writes[0].token <= token:
            write = writes.popleft()
            if write.last_index > log.stable:
                log.stable = write.last_index
            for receiver, message in write.held:
                if message.term < self._standing.term:
                    continue  # a promise of a term that is over; what it rests on may be void
                if receiver == self.node_id:
                    self.step(receiver, message)  # our own vote, now that it is durable
                else:
                    self._outbox.send_now.append((receiver, message))
        leader = self._leader
        if leader is not None and self._standing.is_sole:
            # The same as `advance_commit`, on the path every publish of a lone node takes.
            if log.stable >= leader.replication.term_start:
                log.commit = log.emit_to = log.stable
                if leader.reads.has_reads:
                    leader.settle_reads()
            return
        if self._recovery.is_incomplete:
            log.forget(log.stable)  # no apply needs them for now; a reader has them
            return
        log.emit_to = min(log.commit, log.stable)
        if leader is not None:
            leader.advance_commit()

    def snapshot_saved(self, index: Index, term: Term, chain: int) -> None:
        """Note that a snapshot at `index` is durable: entries up to it may be gone from the
        reader."""
        self.log.compact(index, term, chain)

    def is_snapshot_wanted(self, index: Index) -> bool:
        """Return True if a snapshot at `index` brings what this member will not have without it."""
        if not self._recovery.is_whole:
            return True
        return self.applied < index and not self._follower.follows_leader_to(index)

    # --- other nodes ----------------------------------------------------------------------------

    def step(self, sender: NodeId, message: Message) -> None:
        """Take a message of `sender`. Old terms are refused, newer ones followed."""
        standing = self._standing
        term = message.term
        kind = type(message)
        if self._leader is not None and kind in _OF_LEADERS and self._is_of_before(sender, term):
            return
        if self._clock.is_quiescent and kind is not Quiesce:
            if type(message) is Vote and term > standing.term and not message.is_transfer:
                self._wake()  # but no help to depose a leader that only had nothing to say
                return
            self._wake()
        if term > standing.term:
            if type(message) is Vote:
                if not message.is_transfer and self._election.hears_leader():
                    return  # silence, not a refusal: the term of a disturber is not ours
                if not message.is_pre:
                    self._become_follower(term, None)
            elif not (type(message) is VoteReply and message.is_pre and message.is_granted):
                self._become_follower(term, sender if kind in _OF_LEADERS else None)
        elif term < standing.term:
            self._refuse_old_term(sender, message)
            return
        handle = _FROM_LEADER.get(kind)
        if handle is None:
            _HANDLERS[kind](self, sender, message)
        elif type(message) is Certify and sender == self.node_id:
            self._readmit(message.index)
        else:
            self._follow(sender)
            handle(self._follower, sender, message)

    def unreachable(self, node_id: NodeId) -> None:
        """Note that the link to `node_id` broke: what was under way to it may be lost."""
        if self._leader is not None:
            self._leader.unreachable(node_id)

    def set_live(self, nodes: frozenset[NodeId]) -> None:
        """Tell which nodes have a link up, our own included. Told once, the group may quiesce."""
        clock = self._clock
        clock.live = nodes
        if (
            clock.is_quiescent
            and self._leader is not None
            and not clock.has_live_quorum(self.log.membership)
        ):
            self._wake()  # check-quorum decides

    def peer_up(self, node_id: NodeId) -> None:
        """Note that a link to `node_id` is up: a leader asks what it has. Where nobody is known to
        lead and enough have met to elect somebody, as after a start of all, there is nothing to
        wait for: the pre-vote sees to it that nobody is deposed."""
        clock = self._clock
        if clock.live is not None:
            clock.live |= {node_id}
            members = self.log.membership
            if (
                self._standing.leader_id is None
                and self._role is self._follower
                and members.is_voter(node_id)
                and clock.has_live_quorum(members)
                and self._election.may_stand()
            ):
                self._election.hurry()
        if self._leader is not None:
            self._leader.peer_up(node_id)

    def peer_down(self, node_id: NodeId) -> None:
        """Note that the link to `node_id` is gone. If it was our leader, another is wanted soon;
        members notice at about the same time, hence the dice."""
        clock, standing = self._clock, self._standing
        if clock.live is not None:
            self.set_live(clock.live - {node_id})
        self.unreachable(node_id)
        if standing.leader_id != node_id or self._leader is not None:
            return
        standing.leader_id = None
        clock.is_quiescent = False
        self._outbox.role_changed = True
        clock.heard_ms = clock.now_ms - clock.election_ms
        self._election.arm()
        self._election.hurry()

    def _refuse_old_term(self, sender: NodeId, message: Message) -> None:
        """Tell a leader or candidate of an old term that it is one; ignore the rest."""
        held, term = self._outbox.held, self._standing.term
        if type(message) is Vote:
            held.append((sender, self._election.vote_reply(term, message.is_pre, False)))
        elif type(message) in _OF_LEADERS:
            held.append((sender, self._recovery.append_reply(term, False, 0)))

    def _is_of_before(self, sender: NodeId, term: Term) -> bool:
        """True in memory of a leader here if `sender`, which leads in `term`, may do so of before
        the group began anew: in our term, or without a vote here. (If it is us who lead of before,
        nobody answers us, and we lead no more before long.)"""
        return self._recovery.may_begin_anew and (
            term == self._standing.term
            or not any(members.is_voter(sender) for members in self.log.open_memberships())
        )

    def _on_vote(self, sender: NodeId, vote: Vote) -> None:
        self._election.on_vote(sender, vote, is_follower=self._role is self._follower)

    def _on_vote_reply(self, sender: NodeId, reply: VoteReply) -> None:
        role = self._role
        if type(role) is Candidate and role.on_vote_reply(sender, reply, self._standing.term):
            self._count_votes(role)

    def _on_timeout_now(self, sender: NodeId, message: TimeoutNow) -> None:
        if self._leader is None:
            self._campaign(is_transfer=True)

    def _on_append_reply(self, sender: NodeId, reply: AppendReply) -> None:
        if self._leader is not None:
            self._leader.on_append_reply(sender, reply)

    def _on_heartbeat_reply(self, sender: NodeId, reply: HeartbeatReply) -> None:
        if self._leader is not None:
            self._leader.on_heartbeat_reply(sender, reply)

    def _on_read_query(self, sender: NodeId, query: ReadQuery) -> None:
        if self._leader is not None:
            self._leader.on_read_query(sender, query)
        else:
            answer = ReadAnswer(self._standing.term, query.context, 0)
            self._outbox.send_now.append((sender, answer))

    def _on_read_answer(self, sender: NodeId, answer: ReadAnswer) -> None:
        self._outbox.read_states.append(ReadState(answer.context, answer.index))

    # --- roles ----------------------------------------------------------------------------------

    def _leading(self) -> Leader:
        if self._leader is None:
            raise NotLeader(self._standing.leader_id)
        return self._leader

    def _follow(self, leader: NodeId) -> None:
        """Note a sign of life of `leader`, which leads this term."""
        standing = self._standing
        assert not standing.is_leader, f"{leader} and {self.node_id} both lead term {self.term}"
        if self._role is not self._follower or standing.leader_id != leader:
            self._become_follower(standing.term, leader)
        self._election.hear_leader()

    def _become_follower(self, term: Term, leader: NodeId | None) -> None:
        standing, election = self._standing, self._election
        assert term >= standing.term, (term, standing.term)
        if term > standing.term:
            standing.enter(term)
            self._outbox.held.clear()  # promises of a term that is over
            self._recovery.is_certified = False
        self._clock.is_quiescent = False
        self._end_leadership()
        election.everybody, election.opening = frozenset(), b""
        self._role = self._follower
        standing.leader_id = leader
        self._outbox.role_changed = True
        election.arm()

    def _step_down(self) -> None:
        """Lead no more, in a term without another leader."""
        self._become_follower(self._standing.term, None)

    def _end_leadership(self) -> None:
        leader, self._leader = self._leader, None
        self._standing.is_leader = False
        if leader is not None:
            leader.end()

    def _campaign(self, *, is_transfer: bool = False) -> None:
        """Stand for election: for the term at once if nobody else has a say, or the leader
        asked for it; else ask first whether it could be won."""
        election, standing, recovery, log = self._election, self._standing, self._recovery, self.log
        if not election.may_stand():
            if recovery.lacks_something:
                election.seek_leader()
            return
        self._outbox.role_changed = True
        standing.leader_id = None
        if is_transfer or election.needs_nobody():
            self._stand(known=frozenset(), is_transfer=is_transfer)
            return
        self._role = candidate = Candidate(Ballot(everybody=election.everybody), is_pre=True)
        election.ask_for_votes(Vote(standing.term + 1, True, log.last_index, log.last_term))
        # Promises nothing, and counts like everybody's if we have forgotten something.
        candidate.ballot.record(self.node_id, is_granted=True, is_uncertain=recovery.is_uncertain)
        self._count_votes(candidate)

    def _stand(self, *, known: frozenset[NodeId], is_transfer: bool) -> None:
        """Raise the term and ask for real votes, our own included. `known`: members whose
        uncertainty was heard of before."""
        election, standing, log = self._election, self._standing, self.log
        standing.enter(standing.term + 1)
        standing.vote_for(self.node_id)
        self._role = candidate = Candidate(Ballot(known, election.everybody), is_pre=False)
        election.arm()
        if election.needs_nobody():
            # Term, vote and no-op go into one write, and nothing leaves before it is durable.
            self._become_leader(candidate.ballot)
            return
        # Requests wait for the disk as well: they claim a log and a term that must survive us,
        # or a grant could be counted by a later incarnation that has less.
        term = standing.term
        election.ask_for_votes(Vote(term, False, log.last_index, log.last_term, is_transfer))
        self._outbox.held.append((self.node_id, election.vote_reply(term, False, True)))

    def _count_votes(self, candidate: Candidate) -> None:
        members, ballot = self.log.membership, candidate.ballot
        clock, election = self._clock, self._election
        if ballot.is_won(members):
            if candidate.is_pre:
                self._stand(known=frozenset(ballot.uncertain), is_transfer=False)
            else:
                self._become_leader(ballot)
        elif ballot.is_lost(members, clock.live):
            self._become_follower(self._standing.term, None)
            if clock.has_live_quorum(members):
                # Votes were split, or another has the longer log: no leader is to be waited for.
                election.tries += 1
                if election.tries <= HURRIED_TRIES:
                    election.hurry()

    def _become_leader(self, ballot: Ballot) -> None:
        standing, recovery, log = self._standing, self._recovery, self.log
        standing.lead()
        self._outbox.role_changed = True
        replication = Replication(
            node_id=self.node_id,
            term=standing.term,
            log=log,
            outbox=self._outbox.send_now,
            now_ms=self._clock.now_ms,
            commit_delay_ms=self.commit_delay_ms,
        )
        self._role = self._leader = leader = Leader(
            standing,
            self._clock,
            log,
            self._outbox,
            replication,
            step_down=self._step_down,
            members_changed=self._follow_membership,
        )
        leader.is_elected_by_all = bool(ballot.everybody)
        is_unanimous = bool(ballot.uncertain) and ballot.is_unanimous(log.membership)
        recovery.forgetful = ballot.uncertain | ({self.node_id} if recovery.is_uncertain else set())
        if ballot.has_quorum(log.membership):
            recovery.forgetful = set()
        if recovery.is_uncertain:
            # All voters, or a majority that remembers, granted this term after we forgot: nobody
            # else can be elected in it, and nobody has an entry that we lack.
            recovery.is_uncertain = False
            self._note_sole()
            standing.has_changed = True
        opening, self._election.opening = self._election.opening, b""
        self._election.everybody = frozenset()
        leader.begin(
            uncertain=ballot.uncertain,
            at_once=ballot.uncertain & ballot.known if is_unanimous else set(),
            opening=opening,
        )

    def _readmit(self, index: Index) -> None:
        """Count again: the leader has vouched for this member, and that is durable."""
        recovery, standing = self._recovery, self._standing
        recovery.is_uncertain = recovery.is_certified = False
        recovery.certified_index = index
        self._note_sole()
        self._outbox.role_changed = True  # it counts from now on: the shell is told
        self._election.arm()
        if standing.leader_id is not None:
            reply = recovery.append_reply(standing.term, True, index)
            self._outbox.held.append((standing.leader_id, reply))

    # --- members --------------------------------------------------------------------------------

    def _note_sole(self) -> None:
        """Treat the log as a lone member's only if this one knows that it is: a bootstrap member
        that forgot, or whose snapshot is lost, may have got other members, or left."""
        self.log.is_sole = self._standing.is_sole and not (
            self._recovery.is_uncertain or self._recovery.is_incomplete
        )

    def _follow_membership(self) -> None:
        """Take the membership in force into account, here and in the leadership."""
        log, recovery, leader = self.log, self._recovery, self._leader
        if self._is_rescue_over():
            self.end_rescue()
        members = log.membership
        recovery.may_have_voted |= any(held.is_voter(self.node_id) for _, held in log.memberships)
        self._standing.is_sole = members.voters == (self.node_id,) and not (
            members.voters_out or members.learners
        )
        self._note_sole()
        if leader is not None:
            leader.follow_membership()
        elif self._clock.deadline_ms == NEVER:
            self._election.arm()  # a voter, perhaps only now

    # --- output ---------------------------------------------------------------------------------

    def take(self, max_entries: int, max_bytes: int) -> Ready | None:
        """Return what follows from the inputs since the last call; None if nothing does."""
        if not self.has_ready:
            return None
        log, clock, outbox, leader = self.log, self._clock, self._outbox, self._leader
        ready = Ready()
        if leader is not None and not self._standing.is_sole:
            replication = leader.replication
            replication.send_appends(clock.now_ms)
            if replication.is_round_due:
                replication.send_heartbeats()
            if clock.now_ms < replication.commit_at_ms < clock.deadline_ms:
                clock.deadline_ms = replication.commit_at_ms
        if log.emitted < log.emit_to:
            self._emit(ready, max_entries, max_bytes)
        if log.written < log.last_index or self._standing.has_changed or log.truncated_from:
            self._write(ready)
        elif outbox.held:
            outbox.release_held()
        outbox.take_into(ready)
        ready.is_leader_ready = leader is not None and leader.is_ready
        return ready

    def _write(self, ready: Ready) -> None:
        log, standing, recovery = self.log, self._standing, self._recovery
        ready.truncate_from = log.truncated_from
        log.truncated_from = 0
        if log.written < log.last_index:
            ready.entries = log.unwritten()
            log.written = log.last_index
            if not standing.is_sole and log.commit - standing.hinted >= COMMIT_HINT_EVERY:
                standing.has_changed = True
        if standing.has_changed:
            is_uncertain = recovery.is_uncertain and not recovery.is_certified
            ready.hard_state = HardState(standing.term, standing.vote, log.commit, is_uncertain)
            standing.hinted = log.commit
            standing.has_changed = False
        ready.token = self._outbox.begin_write(log.written)

    def _emit(self, ready: Ready, max_entries: int, max_bytes: int) -> None:
        log, leader = self.log, self._leader
        last = log.emit_to
        assert log.emitted < last <= log.stable, (log.emitted, last, log.stable)
        entries = log.slice(
            log.emitted + 1, last=last, max_entries=max_entries, max_bytes=max_bytes
        )
        log.emitted = entries[-1].index
        ready.more = log.emitted < last
        if leader is not None:
            size = 0
            for entry in entries:
                size += len(entry.data)
            leader.note_emitted(size)
        log.forget_emitted()
        ready.committed = entries
        for position, entry in enumerate(entries):
            # 0xc1 is membership.MARK: a machine is shown a no-op, the change was for the core.
            if entry.data and entry.data[0] == 0xC1:
                entries[position] = Entry(entry.term, entry.index, b"", chain=entry.chain)


_FROM_LEADER: dict[type, Callable[[Follower, NodeId, Any], None]] = {
    Append: Follower.on_append,
    Heartbeat: Follower.on_heartbeat,
    SnapshotOffer: Follower.on_snapshot_offer,
    Quiesce: Follower.on_quiesce,
    Certify: Follower.on_certify,
}
_OF_LEADERS = frozenset(_FROM_LEADER)  # only a leader says these

_HANDLERS: dict[type, Callable[[RaftCore, NodeId, Any], None]] = {
    Vote: RaftCore._on_vote,
    VoteReply: RaftCore._on_vote_reply,
    TimeoutNow: RaftCore._on_timeout_now,
    AppendReply: RaftCore._on_append_reply,
    HeartbeatReply: RaftCore._on_heartbeat_reply,
    ReadQuery: RaftCore._on_read_query,
    ReadAnswer: RaftCore._on_read_answer,
}
