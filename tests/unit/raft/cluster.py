"""A group of cores in one thread: disks that lose what is not persisted, a wire that can be cut.

Nothing happens by itself. Tests say who takes, whose writes complete, what is delivered and what
time it is; `run` does all of it until nothing is left. Facts that must hold for ever (one leader a
term, equal committed entries, no promise before its write) are checked at every step.
"""

from __future__ import annotations

from collections import deque

from streamd.raft import membership
from streamd.raft.core import MemberStart, RaftCore
from streamd.raft.history import LogPosition
from streamd.raft.membership import Membership
from streamd.raft.messages import (
    Append,
    AppendReply,
    HeartbeatReply,
    Message,
    SnapshotOffer,
    Vote,
    VoteReply,
)
from streamd.raft.ready import Ready
from streamd.types import Entry, HardState, Index, LogState, NodeId, Term

TAKE_ENTRIES = 64
TAKE_BYTES = 1 << 20

Snapshot = tuple[Index, Term, int, Membership]


class Disk:
    """A group's durable log. Writes queue up until `complete`; a crash forgets the queue."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.entries: dict[Index, Entry] = {}
        self.is_wiped = False  # had another content once, as a node finds out at its start
        self.first = 1
        self.prev: tuple[Term, int] = (0, 0)
        self.writes: deque[Ready] = deque()
        self.snapshot: Snapshot | None = None
        self.history: list[LogPosition] = []  # of what the snapshot covers, if it says it

    def complete(self) -> int:
        ready = self.writes.popleft()
        if ready.truncate_from:
            for index in [i for i in self.entries if i >= ready.truncate_from]:
                del self.entries[index]
        for entry in ready.entries:
            if entry.index >= self.first:
                self.entries[entry.index] = entry
        if ready.hard_state is not None:
            assert ready.hard_state.term >= self.hard_state.term
            is_certified = self.hard_state.is_uncertain and not ready.hard_state.is_uncertain
            if (
                ready.hard_state.term == self.hard_state.term
                and self.hard_state.vote
                and not is_certified  # it now knows who won, whatever it may have promised
            ):
                assert ready.hard_state.vote == self.hard_state.vote, "voted twice in a term"
            self.hard_state = ready.hard_state
        assert ready.token is not None
        return ready.token

    def release(self, index: Index, term: Term, chain: int, members: Membership) -> None:
        """A snapshot is saved: what it covers goes."""
        self.snapshot = (index, term, chain, members)
        for at in [i for i in self.entries if i <= index]:
            del self.entries[at]
        self.first, self.prev = index + 1, (term, chain)

    def install(self, index: Index, term: Term, chain: int, members: Membership) -> None:
        """A peer's snapshot took its place: the log goes on from it, or is void if it leads
        elsewhere, as `node.catch_ups` says to the log."""
        entry = self.entries.get(index)
        found = (entry.term, entry.chain) if entry is not None else None
        if (term, chain) != (self.prev if index == self.first - 1 else found):
            self.entries.clear()
        self.release(index, term, chain, members)
        self.terms = []

    def read(self, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for index in range(lo, hi):
            found.append(self.entries[index])
            size += len(found[-1].data)
            if size > max_bytes:
                break
        return found

    def state(self) -> LogState:
        last = max(self.entries, default=self.first - 1)
        hard_state = self.hard_state
        if hard_state.term < self.prev[0]:  # fetched from a leader that it had not heard of yet
            hard_state = HardState(self.prev[0], "", 0, hard_state.is_uncertain)
        return LogState(hard_state, self.first, last, *self.prev)


class Member:
    """One core with its disk and the entries it has applied."""

    def __init__(self, core: RaftCore, disk: Disk) -> None:
        self.core = core
        self.disk = disk
        self.applied: list[Entry] = []
        self.outcomes: list[tuple[str, str]] = []  # (tag, "applied" | "dropped")
        self.read_states: list[tuple[int, Index]] = []
        self.alerts: list[str] = []
        self.wanted: SnapshotOffer | None = None
        self.live: set[NodeId] = set()


class Cluster:
    def __init__(
        self,
        voters: list[NodeId],
        learners: list[NodeId] | None = None,
        *,
        seed: int = 1,
        extra: list[NodeId] | None = None,
    ) -> None:
        self.now_ms = 1000
        self.seed = seed
        self.voters = voters
        self.learners = learners or []
        self.members: dict[NodeId, Member] = {}
        self.wire: list[tuple[NodeId, NodeId, Message]] = []
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.hung: set[NodeId] = set()  # whose writes do not come to an end
        self.has_links = False  # tell cores of links, so that they rest and notice the dead
        self.leaders: dict[Term, NodeId] = {}
        self.committed: dict[Index, tuple[Term, bytes]] = {}
        self.trace: list[str] = []
        for node_id in [*voters, *self.learners, *(extra or [])]:
            self.boot(node_id, Disk())

    def boot(self, node_id: NodeId, disk: Disk, *, is_damaged: bool = False) -> Member:
        """Make a member of what the disk has, as `node.rafts` does."""
        members = membership.simple(self.voters, self.learners)
        applied = 0
        if disk.snapshot is not None:
            applied, _, _, members = disk.snapshot
        core = RaftCore(
            MemberStart(
                group=7,
                node_id=node_id,
                voters=[],
                members=members,
                log=disk.state(),
                reader=disk,
                now_ms=self.now_ms,
                seed=self.seed + sum(node_id.encode()),
                applied=applied,
                history=disk.history,
                is_uncertain=disk.is_wiped and disk.hard_state == HardState(),
                is_incomplete=is_damaged or applied < disk.first - 1,
            )
        )
        self.members[node_id] = Member(core, disk)
        self.tell_links()
        return self.members[node_id]

    def wipe(self, node_id: NodeId) -> Member:
        """`node_id` is killed and comes back with an empty disk."""
        self.crash(node_id)
        disk = Disk()
        disk.is_wiped = True
        return self.boot(node_id, disk)

    def close(self, node_id: NodeId) -> Disk:
        """`node_id` stops, to be made anew from what its disk has, as in every repair (ADR 0014).

        What it has handed to the disk gets there, all else is gone, and its links stay up.
        """
        disk = self.members[node_id].disk
        while disk.writes:
            disk.complete()
        return disk

    def damage(self, node_id: NodeId) -> Member:
        """The state of `node_id` is found damaged and set aside; its log is whole."""
        disk = self.close(node_id)
        disk.snapshot = None
        return self.boot(node_id, disk, is_damaged=True)

    def give_up_log(self, node_id: NodeId) -> Member:
        """The log of `node_id` is found rotten: it goes, with the state; term and vote stay, and a
        doubt."""
        disk = self.close(node_id)
        disk.hard_state = disk.hard_state._replace(commit=0, is_uncertain=True)
        disk.entries, disk.first, disk.prev, disk.snapshot = {}, 1, (0, 0), None
        return self.boot(node_id, disk, is_damaged=True)

    def tell_links(self) -> None:
        """Every member learns what became of its links, as from a node that watches them."""
        if not self.has_links:
            return
        for node_id, member in self.members.items():
            live = {n for n in self.members if n == node_id or (node_id, n) not in self.cuts}
            core = member.core
            core._clock.now_ms = self.now_ms
            before, member.live = member.live, live
            core.set_live(frozenset(live))
            for gone in sorted(before - live):
                core.peer_down(gone)
            for back in sorted(live - before):
                core.peer_up(back)

    # --- single steps ---------------------------------------------------------------------------

    def take(self, node_id: NodeId) -> Ready | None:
        member = self.members[node_id]
        core = member.core
        ready = core.take(TAKE_ENTRIES, TAKE_BYTES)
        if ready is None:
            return None
        if core.is_leader:
            if core.term not in self.leaders:
                self._check_complete(core)
            assert self.leaders.setdefault(core.term, node_id) == node_id, "two leaders in a term"
        for receiver, message in ready.send_now:
            self._check_promise(member, message)
            self.wire.append((node_id, receiver, message))
        if ready.token is not None:
            member.disk.writes.append(ready)
        else:
            assert not ready.entries and ready.hard_state is None and not ready.truncate_from
        for entry in ready.committed:
            assert entry.index in member.disk.entries, "applied before it was durable here"
            known = self.committed.setdefault(entry.index, (entry.term, entry.data))
            assert known == (entry.term, entry.data), f"two entries committed at {entry.index}"
            assert not member.applied or entry.index == member.applied[-1].index + 1
            member.applied.append(entry)
            if entry.tag is not None:
                member.outcomes.append((entry.tag, "applied"))
        member.outcomes.extend((entry.tag, "dropped") for entry in ready.dropped)
        member.read_states.extend((state.context, state.index) for state in ready.read_states)
        member.alerts.extend(ready.alerts)
        if ready.snapshot_wanted is not None:
            member.wanted = ready.snapshot_wanted[1]
        return ready

    def _check_complete(self, core: RaftCore) -> None:
        """A new leader has everything that was ever committed."""
        for index, (term, _) in self.committed.items():
            if index > core.log.base_index:
                assert index <= core.last_index, f"{core.node_id} leads without entry {index}"
                assert core.log.term_at(index) == term, f"{core.node_id} leads with another {index}"

    def _check_promise(self, member: Member, message: Message) -> None:
        """Nothing that others may rely on leaves before it is on disk (I1)."""
        disk = member.disk
        if message.term < disk.hard_state.term:
            return  # it was kept; its term is over by now
        if isinstance(message, Vote) and not message.is_pre:
            assert disk.hard_state.term >= message.term
        if isinstance(message, VoteReply) and message.is_granted and not message.is_pre:
            assert disk.hard_state.term >= message.term and disk.hard_state.vote
        if isinstance(message, AppendReply) and message.is_ok:
            last = max(disk.entries, default=disk.first - 1)
            assert message.index <= last, (message, last)

    def persist(self, node_id: NodeId) -> None:
        member = self.members[node_id]
        member.core.persisted(member.disk.complete())

    def deliver(self, position: int = 0) -> None:
        sender, receiver, message = self.wire.pop(position)
        if (sender, receiver) in self.cuts or receiver not in self.members:
            return
        self.trace.append(f"{sender}->{receiver} {describe(message)}")
        core = self.members[receiver].core
        core._clock.now_ms = self.now_ms
        core.step(sender, copied(message))

    def tick(self, by_ms: int) -> None:
        self.now_ms += by_ms
        for member in self.members.values():
            member.core.tick(self.now_ms)

    def campaign(self, node_id: NodeId) -> None:
        """Let time pass until `node_id` stands for election, and only it notices."""
        core = self.members[node_id].core
        self.now_ms = max(self.now_ms, core.deadline_ms)
        core.tick(self.now_ms)

    def crash(self, node_id: NodeId) -> Disk:
        disk = self.members.pop(node_id).disk
        disk.writes.clear()
        self.wire = [sent for sent in self.wire if node_id not in sent[:2]]
        for member in self.members.values():
            member.live.discard(node_id)
            if self.has_links:
                member.core._clock.now_ms = self.now_ms
                member.core.set_live(frozenset(member.live))
                member.core.peer_down(node_id)
        return disk

    def cut(self, *node_ids: NodeId) -> None:
        """Cut these off from everybody else (in both directions)."""
        for a in self.members:
            for b in self.members:
                if (a in node_ids) != (b in node_ids):
                    self.cuts.add((a, b))
        self.tell_links()

    def heal(self) -> None:
        self.cuts.clear()
        self.tell_links()

    def compact(self, node_id: NodeId, index: Index) -> None:
        """A snapshot at `index` is saved: the disk forgets what it covers."""
        member = self.members[node_id]
        term, chain = member.core.log.entry_id(index)
        member.disk.history = member.core.log.history(index)
        member.disk.release(index, term, chain, member.core.log.membership_at(index))
        member.core.snapshot_saved(index, term, chain)

    def install(self, node_id: NodeId) -> None:
        """The snapshot that `node_id` was offered has been fetched: it begins anew from that."""
        member = self.members[node_id]
        offer, applied = member.wanted, member.core.applied
        assert offer is not None
        member.wanted = None
        found: Snapshot | None = (offer.index, offer.snapshot_term, offer.chain, offer.membership)
        if offer.index < applied:
            found = self.newer_snapshot(applied)
        if found is not None and member.core.is_snapshot_wanted(found[0]):
            disk = self.close(node_id)
            disk.install(*found)
            self.boot(node_id, disk)

    def newer_snapshot(self, index: Index) -> Snapshot | None:
        """Some whole member's snapshot of at least `index`; taken now if need be."""
        for node_id, member in self.members.items():
            core = member.core
            if core.is_leader and core.applied >= index:
                if core.applied > core.log.snapshot_index:
                    self.compact(node_id, core.applied)
                return member.disk.snapshot
        return None

    # --- many steps -----------------------------------------------------------------------------

    def run(self, *, installs: bool = True) -> None:
        """Do everything that can be done without time passing."""
        for _ in range(10_000):
            is_busy = False
            for node_id, member in list(self.members.items()):
                is_busy |= self.take(node_id) is not None
                while member.disk.writes and node_id not in self.hung:
                    is_busy = True
                    self.persist(node_id)
                if installs and member.wanted is not None:
                    self.install(node_id)
            for _ in range(len(self.wire)):
                is_busy = True
                self.deliver()
            if not is_busy:
                return
        raise AssertionError("the group never comes to rest")

    def run_until_leader(self, node_id: NodeId) -> None:
        """Votes go through, but nothing that `node_id` sends as a leader."""
        core = self.members[node_id].core
        for _ in range(100):
            for other, member in self.members.items():
                if core.is_leader:
                    self.wire.clear()
                    return
                self.take(other)
                while member.disk.writes and not core.is_leader:
                    self.persist(other)
            while self.wire and not core.is_leader:
                self.deliver()
        raise AssertionError(f"{node_id} is not elected")

    def pass_time(self, ms: int, step_ms: int = 50) -> None:
        for _ in range(ms // step_ms):
            self.tick(step_ms)
            self.run()

    def elect(self, node_id: NodeId) -> RaftCore:
        self.campaign(node_id)
        self.run()
        core = self.members[node_id].core
        assert core.is_leader, (node_id, core.role)
        return core

    def leader(self) -> RaftCore | None:
        """The leader of the latest term, if anybody leads."""
        leading = [m.core for m in self.members.values() if m.core.is_leader]
        return max(leading, key=lambda core: core.term, default=None)

    def core(self, node_id: NodeId) -> RaftCore:
        return self.members[node_id].core


def copied(message: Message) -> Message:
    """What a transport does: entries arrive without command and tag."""
    if isinstance(message, Append):
        entries = [Entry(e.term, e.index, e.data, chain=e.chain) for e in message.entries]
        return Append(
            message.term,
            message.prev_index,
            message.prev_term,
            message.prev_chain,
            entries,
            message.commit,
        )
    return message


def describe(message: Message) -> str:
    """One line that says what matters and nothing that varies (chains)."""
    name = type(message).__name__
    if isinstance(message, Vote):
        kind = "PreVote" if message.is_pre else "Vote"
        suffix = " by transfer" if message.is_transfer else ""
        return f"{kind} t{message.term} log={message.last_term}/{message.last_index}{suffix}"
    if isinstance(message, VoteReply):
        kind = "PreVoteReply" if message.is_pre else "VoteReply"
        suffix = flags(message)
        return f"{kind} t{message.term} {'granted' if message.is_granted else 'refused'}{suffix}"
    if isinstance(message, Append):
        entries = " ".join(f"{e.term}/{e.index}:{label(e)}" for e in message.entries)
        prev = f"{message.prev_term}/{message.prev_index}"
        return f"Append t{message.term} after {prev} [{entries}] commit={message.commit}"
    if isinstance(message, AppendReply):
        if message.is_ok:
            return f"AppendReply t{message.term} ok {message.index}{flags(message)}"
        if message.is_diverged:
            return f"AppendReply t{message.term} diverged at {message.index}{flags(message)}"
        hint = f"hint {message.hint_term}/{message.hint_index}"
        return f"AppendReply t{message.term} refused {message.index} {hint}{flags(message)}"
    if isinstance(message, HeartbeatReply):
        return f"HeartbeatReply t{message.term} round_no={message.round_no}{flags(message)}"
    if isinstance(message, SnapshotOffer):
        return f"SnapshotOffer t{message.term} {message.snapshot_term}/{message.index}"
    fields = [f"{slot}={getattr(message, slot)}" for slot in message.__slots__ if slot != "term"]
    return " ".join([name, f"t{message.term}", *fields])


def flags(reply: VoteReply | AppendReply | HeartbeatReply) -> str:
    """What a member that is not whole adds to its replies."""
    names = ("is_uncertain", "needs_snapshot")
    return "".join(f" {name}" for name in names if getattr(reply, name, False))


def label(entry: Entry) -> str:
    """An entry's data for people."""
    if not entry.data:
        return "-"
    if membership.is_membership(entry.data):
        return show_members(membership.decode(entry.data))
    return entry.data.decode()


def show_members(members: Membership) -> str:
    text = ",".join(members.voters)
    if members.voters_out:
        text += "|" + ",".join(members.voters_out)
    if members.learners:
        text += "+" + ",".join(members.learners)
    if members.learners_next:
        text += "~" + ",".join(members.learners_next)
    return f"({text})"
