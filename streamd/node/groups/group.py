"""One group as a pure state machine: Raft core + replicated machine, advanced by turns.

`turn(now, inbox)` takes every message that has arrived, proposes what they ask for, applies what
is committed, and returns what the shell must do. No I/O, clock or task in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd import errors, limits
from streamd.machine.base import Effects
from streamd.machine.commands import ACCEPT_LOSS, CHECKPOINT, Command, encode
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.inbox import (
    ChangeMembers,
    Durable,
    Failed,
    ForceElection,
    InboxMessage,
    PeerDown,
    PeerUp,
    Propose,
    ReadBarrier,
    Saved,
    SnapshotWanted,
    Step,
    StepDown,
    Stop,
    Tick,
    WriterAt,
)
from streamd.node.groups.linearizable_reads import Reads
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.raft.messages import SnapshotOffer
from streamd.raft.ready import Ready
from streamd.types import Entry, HardState, Index, NodeId, Uid


class Turn:
    """What one turn asks of the shell, in the order in which it must be done."""

    __slots__ = (
        "alerts",
        "checkpoints",
        "effects",
        "has_members_news",
        "has_role_changed",
        "is_stopping",
        "more",
        "newcomers",
        "ready_callbacks",
        "send_now",
        "snapshot_offer",
        "snapshot_wanted",
        "writes",
    )

    def __init__(self) -> None:
        # ((uid, entries, hard state, truncate_from), token): log them, then post DURABLE(token)
        self.writes: list[tuple[tuple[Uid, list[Entry], HardState | None, Index], Any]] = []
        self.send_now: list[tuple[NodeId, Any]] = []
        self.effects = Effects()
        self.ready_callbacks: list[Callable[[], object]] = []  # barriers that have been passed
        self.more = False
        self.is_stopping = False
        self.snapshot_wanted = False
        self.snapshot_offer: tuple[NodeId, SnapshotOffer] | None = None  # what we lack is there
        self.checkpoints: list[tuple[Index, int]] = []  # (applied index, fingerprint) to compare
        # Who leads, in which term, whether it is this node, or whether this member is certain.
        self.has_role_changed = False
        # As leader: what the next step of a change of members may have waited for.
        self.has_members_news = False
        # Members that were none before this turn: the core may not know of the links to them.
        self.newcomers: tuple[NodeId, ...] = ()
        self.alerts: list[str] = []


class Group:
    """A Raft member and its machine. `StreamGroup` adds what the leader of a stream does."""

    def __init__(
        self, *, uid: Uid, raft: RaftCore, machine: Any, blocks: BlockPort, snapshot_index: Index
    ) -> None:
        self.uid = uid
        self.raft = raft
        self.machine: Any = machine
        self.blocks = blocks
        self.snapshot_index = snapshot_index
        self.snapshot_every_bytes = limits.SNAPSHOT_EVERY_BYTES
        self.applied_bytes = 0  # of log entries applied since the last snapshot
        self.failure = ""  # why this group stopped; empty while it is well
        self.at_ms = 0
        self.at_ns = 0
        self.on_ready: list[Callable[[], None]] = []  # once: this node leads and has applied all
        # How callbacks of upper rooms are called: apart from the turn, so theirs can't fail ours.
        self.call_soon: Callable[..., object] = _call
        self.on_events: Callable[[list[tuple[str, dict[str, Any]]]], None] | None = None
        self.are_events_for_all = False  # the meta group's: every node follows them
        self._is_ready = False
        self._members = raft.members  # as of the last turn
        self._ready_learners: frozenset[NodeId] = frozenset()
        self._is_change_open = True  # members changed, and that is not committed; or some learn
        self._reads = Reads(raft)
        self._checkpoint_at_ms = 0  # 0: nothing changed since the last one
        self._checkpoint_index: Index = 0  # of the last one applied here
        self._is_at_rest = False  # and has said what it holds
        self._stepping_down: list[tuple[int, Callable[[Any], object]]] = []  # (deadline, done)
        # Streams add theirs: any message without a handler is a bug of ours, and fails the group.
        self._handlers: dict[type[InboxMessage], Callable[[Any], None]] = {
            Stop: self._on_stop,
            Tick: self._on_tick,
            Durable: self._on_durable,
            Saved: self._on_saved,
            Propose: self._on_propose,
            ReadBarrier: self._on_barrier,
            SnapshotWanted: self._on_snapshot_wanted,
            Step: self._on_step,
            Failed: self._on_failed,
            StepDown: self._on_step_down,
            PeerUp: self._on_peer_up,
            PeerDown: self._on_peer_down,
            ChangeMembers: self._on_members,
            WriterAt: self._on_wrote,
            ForceElection: self._on_force_election,
        }
        self._turn_out = Turn()

    # --- the turn ---------------------------------------------------------------------------

    def turn(self, now_ms: int, now_ns: int, inbox: list[InboxMessage]) -> Turn:
        """Take `inbox`, propose, apply what is committed; return what the shell must do."""
        self.at_ms = now_ms
        self.at_ns = now_ns
        turn = self._turn_out = Turn()
        raft = self.raft
        handlers = self._handlers
        if not raft.log.is_sole or (raft.deadline_ms and now_ms >= raft.deadline_ms):
            if raft.deadline_ms and now_ms - raft.deadline_ms >= limits.STOOD_STILL_MS:
                raft.excuse_silence(now_ms)
            raft.tick(now_ms)  # with peers always: leases are measured by the latest time told
        for message in inbox:
            handlers[message.__class__](message)
        self._propose_collected()
        self._drain(turn)
        if self._is_ready != raft.is_leader:
            self._look_at_role(turn)
        if raft.log.membership is not self._members:
            self._look_at_members(turn)
        if self._is_change_open:
            self._look_at_change(turn)
        if not raft.log.is_sole:
            self._look_at_checkpoint()
            self._drain(turn)
            if raft.is_quiescent != self._is_at_rest:
                self._look_at_rest(turn)
        if self._reads:
            self._lose(self._reads.overdue(now_ms))
            turn.ready_callbacks += self._reads.passed(self.machine.applied)
        if self._stepping_down:
            self._look_at_step_down(turn)
        return turn

    @property
    def is_ready(self) -> bool:
        """True while this node leads the group and has applied everything before its term."""
        return self._is_ready

    def _look_at_role(self, turn: Turn) -> None:
        """Begin to serve as leader once all before this term is applied; end when it is over."""
        if not self.raft.is_leader:
            self._is_ready = False
            self._lose(self._reads.all())
            self._checkpoint_at_ms = 0
            self._on_leadership_lost()
            turn.has_role_changed = True
        elif self._is_caught_up():
            self._is_ready = True
            self._on_leader_ready()
            for callback in self.on_ready:
                turn.ready_callbacks.append(callback)
            self.on_ready = []
            turn.has_role_changed = True

    def _look_at_members(self, turn: Turn) -> None:
        if self.raft.log.is_sole:
            self._checkpoint_at_ms = 0  # nobody is left to compare with
        before, self._members = self._members.members(), self.raft.members
        turn.newcomers = tuple(name for name in self._members.members() if name not in before)
        self._is_change_open = True

    def _look_at_change(self, turn: Turn) -> None:
        """Tell of a change of members that is committed, and of learners that are ready to vote:
        until the next step an ack may be on fewer disks than are wanted."""
        raft = self.raft
        members = raft.members
        is_committed = raft.log.membership_index <= raft.commit
        ready = frozenset(
            name for name in members.learners if raft.is_close(name, limits.LEARNER_LAG_ENTRIES)
        )
        is_open = not is_committed or members.is_joint or bool(members.learners)
        if is_committed:
            is_news = not is_open or bool(ready - self._ready_learners)
            turn.has_members_news = is_news and raft.is_leader
            self._ready_learners = ready
        self._is_change_open = is_open

    def _drain(self, turn: Turn) -> None:
        """Move what Raft has ready: writes to the log, messages to peers, entries to apply."""
        raft = self.raft
        applied_count = 0
        while True:
            ready = raft.take(limits.TURN_ENTRIES_MAX, limits.TURN_BYTES_MAX)
            if ready is None:
                return
            if ready.token is not None:
                turn.writes.append(
                    (
                        (self.uid, ready.entries, ready.hard_state, ready.truncate_from),
                        ready.token,
                    )
                )
            if ready.send_now:
                turn.send_now.extend(ready.send_now)
            if ready.committed:
                apply = self.machine.apply
                effects = turn.effects
                store = self.blocks.apply
                for entry in ready.committed:
                    apply(entry, effects)
                    if effects.block_ops:
                        # Into memory at once: the next entry may ask for a block just sealed.
                        # The files follow in their own time, for the log has it all.
                        store(effects.block_ops)
                        effects.block_ops = []
                    if effects.checkpoint is not None:
                        turn.checkpoints.append(effects.checkpoint)
                        self._checkpoint_index = entry.index
                        effects.checkpoint = None
                    self.applied_bytes += len(entry.data) + limits.ENTRY_OVERHEAD_BYTES
                applied_count += len(ready.committed)
                self._after_apply(ready.committed, effects)
                if not raft.log.is_sole:
                    # They stay in memory for peers, who want their bytes. What those were decoded
                    # to takes many times as much, and who waited, by now, is perhaps long gone.
                    for entry in ready.committed:
                        entry.command = entry.tag = None
            if not raft.log.is_sole or ready.role_changed or ready.read_states:
                self._note_ready(turn, ready)
            if not ready.more:
                if raft.log.is_sole:
                    return
                continue  # what was applied may have given leave to send: ask until it is quiet
            if applied_count >= limits.TURN_ENTRIES_MAX:
                turn.more = True  # bounded work per turn; the rest is taken in the next
                return

    def _note_ready(self, turn: Turn, ready: Ready) -> None:
        """Take what concerns only a group with peers."""
        if ready.role_changed:
            turn.has_role_changed = True
        if ready.snapshot_wanted is not None:
            turn.snapshot_offer = ready.snapshot_wanted
        if ready.alerts:
            turn.alerts.extend(ready.alerts)
        for entry in ready.dropped:
            # Another leader's log replaced it here. (Of five members one may still have it, and
            # lead next: what became of it stays open.)
            self._on_dropped(entry)
        for state in ready.read_states:
            lost = self._reads.answered(state)
            if lost is not None:
                self.call_soon(lost)

    def _on_dropped(self, entry: Entry) -> None:
        if callable(entry.tag):
            self.call_soon(entry.tag, errors.CLUSTER_NOT_AVAIL())

    def _on_leadership_lost(self) -> None:
        """Subclasses forget what only a leader knows."""

    # --- care of a group with peers -----------------------------------------------------------

    def _look_at_checkpoint(self) -> None:
        """Propose, now and then, that all replicas compare what they hold: if they don't rest."""
        raft = self.raft
        if not self._is_ready:
            return
        unchecked = self.machine.applied - self._checkpoint_index
        if unchecked <= 0:
            self._checkpoint_at_ms = 0
            return
        if self._checkpoint_at_ms == 0:
            self._checkpoint_at_ms = self.at_ms + limits.CHECKPOINT_EVERY_MS
        if unchecked >= limits.CHECKPOINT_ENTRIES or self.at_ms >= self._checkpoint_at_ms:
            self._checkpoint_at_ms = 0
            self._checkpoint_index = raft.last_index + 1
            self.propose_now([CHECKPOINT, self.at_ns, 0, 0], None)

    def _look_at_rest(self, turn: Turn) -> None:
        """Members that rest hold the same log, and have applied it to its end: a checkpoint that
        nobody has to log. (docs/adr/0030)"""
        raft = self.raft
        if not raft.is_quiescent:
            self._is_at_rest = False
        elif self.machine.applied == raft.last_index:
            self._is_at_rest = True
            if self._compares_at_rest():
                self._checkpoint_index, self._checkpoint_at_ms = self.machine.applied, 0
                turn.checkpoints.append((self.machine.applied, self.machine.fingerprint()))

    def _compares_at_rest(self) -> bool:
        """Whether the fingerprint is had cheaply enough. All members agree on that."""
        return True

    def _look_at_step_down(self, turn: Turn) -> None:
        waiting = []
        for deadline_ms, done in self._stepping_down:
            if not self.raft.is_leader:
                turn.effects.outcomes.append((done, True))
            elif self.at_ms >= deadline_ms:
                turn.effects.outcomes.append((done, errors.CLUSTER_NOT_AVAIL()))
            else:
                waiting.append((deadline_ms, done))
        self._stepping_down = waiting

    def _on_step_down(self, message: StepDown) -> None:
        """Hand leadership over; `done(True)` when this node leads no more."""
        raft = self.raft
        done = message.done
        target = raft.transfer_target(message.preferred) if raft.is_leader else ""
        if not target:
            self.call_soon(done, errors.CLUSTER_NOT_AVAIL() if raft.is_leader else True)
            return
        try:
            raft.transfer(target)
        except ProposalRejected:
            self.call_soon(done, errors.CLUSTER_NOT_AVAIL())
            return
        self._stepping_down.append((self.at_ms + limits.TRANSFER_MS, done))

    def _on_peer_up(self, message: PeerUp) -> None:
        self.raft.set_live(message.live)
        self.raft.peer_up(message.node_id)
        # Who came missed what this member holds. If it rests it says so again; a leader compares at
        # an entry, unless the group rests before.
        self._is_at_rest = False
        self._checkpoint_index = min(self._checkpoint_index, max(self.machine.applied - 1, 0))

    def _on_peer_down(self, message: PeerDown) -> None:
        self.raft.set_live(message.live)
        self.raft.peer_down(message.node_id)

    def _on_members(self, message: ChangeMembers) -> None:
        """Change who belongs to the group; refusals are the caller's to see: it asks again."""
        try:
            self.raft.propose_membership(message.voters, message.learners)
        except (NotLeader, ProposalRejected):
            return

    def _on_force_election(self, message: ForceElection) -> None:
        used_to = message.used_to
        loss = [ACCEPT_LOSS, self.at_ns, self.machine.applied, used_to]
        self.raft.stand_in(message.names, encode(loss) if used_to else b"")

    def _on_wrote(self, message: WriterAt) -> None:
        self.raft.hasten_commit(message.node_id)

    def deliver(self) -> bool:
        """Let cursors send what is stored now; True if there is more to send at once."""
        return False

    def deadline_ms(self) -> int:
        """Monotonic ms at which this group wants a TICK; 0: never."""
        return self._base_deadline_ms()

    def _base_deadline_ms(self) -> int:
        earliest = self.raft.deadline_ms
        if self._checkpoint_at_ms and (not earliest or self._checkpoint_at_ms < earliest):
            earliest = self._checkpoint_at_ms
        due_ms = self._reads.deadline_ms()
        if due_ms and (not earliest or due_ms < earliest):
            earliest = due_ms
        for deadline_ms, _ in self._stepping_down:
            if not earliest or deadline_ms < earliest:
                earliest = deadline_ms
        return earliest

    def fail(self, error: BaseException) -> None:
        """Called once when a turn raised: this group does nothing more on this node."""
        self.failure = f"{type(error).__name__}: {error}"

    def end(self, unread: list[InboxMessage]) -> None:
        """No turn comes any more, neither for these messages nor for what is under way: who waits
        for an answer is told. Publishers are not: the client's timeout is the honest answer."""
        for message in unread:
            if isinstance(message, Propose) and message.done is not None:
                self.call_soon(message.done, self._undone())
            elif isinstance(message, ReadBarrier):
                self.call_soon(message.lost)
            elif isinstance(message, StepDown):
                self.call_soon(message.done, errors.CLUSTER_NOT_AVAIL())
        for entry in self.raft.log.open_entries():
            if callable(entry.tag) and not self._is_publish(entry):
                self.call_soon(entry.tag, self._in_doubt())
            entry.tag = None
        for _, done in self._stepping_down:
            self.call_soon(done, errors.CLUSTER_NOT_AVAIL())
        self._stepping_down = []
        self._lose(self._reads.all())
        self.raft.log.let_go()

    def _is_publish(self, entry: Entry) -> bool:
        """True if a client would take an error for the word that nothing is stored."""
        return False

    def _undone(self) -> errors.JsError:
        """What those hear whose request is not in the log, nor will be."""
        return errors.Unserved()

    def _in_doubt(self) -> errors.JsError:
        """What those hear whose request is in the log, and may be committed or not."""
        return errors.CLUSTER_NOT_AVAIL()

    def emit_outcomes(
        self, outcomes: list[tuple[Any, Any]], ready_callbacks: list[Callable[[], object]]
    ) -> None:
        """Tell those who proposed what became of it."""
        for done, result in outcomes:
            self.call_soon(done, result)
        for callback in ready_callbacks:
            self.call_soon(callback)

    def emit_events(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        if self.on_events is not None and (self._is_ready or self.are_events_for_all):
            self.call_soon(self.on_events, events)

    # --- proposing --------------------------------------------------------------------------

    def propose_now(self, command: Command, tag: Any) -> bool:
        """Append a command to the log; its outcome goes to `tag` after apply. False: refused."""
        try:
            self.raft.propose(encode(command), command, tag)
        except (NotLeader, ProposalRejected):
            if callable(tag):
                self.call_soon(tag, errors.Unserved())
            return False
        return True

    def _propose_collected(self) -> None:
        """Subclasses propose what the messages of this turn added up to."""

    def _after_apply(self, entries: list[Entry], effects: Effects) -> None:
        """Subclasses look at what was just applied."""

    def _on_leader_ready(self) -> None:
        """This node leads the group and has applied everything before its term."""

    def _is_caught_up(self) -> bool:
        raft = self.raft
        if raft.log.is_sole:
            return bool(self.machine.applied >= raft.last_index and raft.commit > 0)
        return raft.is_leader_ready

    # --- messages ---------------------------------------------------------------------------

    def _on_stop(self, message: Stop) -> None:
        self._turn_out.is_stopping = True

    def _on_tick(self, message: Tick) -> None:
        """Nothing by itself: a turn looks at every deadline anyway."""

    def _on_durable(self, message: Durable) -> None:
        self.raft.persisted(message.token)

    def _on_saved(self, message: Saved) -> None:
        self.raft.snapshot_saved(message.index, message.term, message.chain)

    def _on_propose(self, message: Propose) -> None:
        if message.is_forced:
            self.raft.hasten_commit()
        self.propose_now(message.command, message.done)

    def _on_barrier(self, message: ReadBarrier) -> None:
        self._propose_collected()
        self._begin_read(message.done, message.lost)

    def _begin_read(self, done: Callable[[], object], lost: Callable[[], object]) -> None:
        """Call `done` when a read that starts now may be answered, or `lost` if that is unknown."""
        if not self._reads.add(done, lost, self.at_ms):
            self.call_soon(lost)

    def _lose(self, readers: list[Callable[[], object]]) -> None:
        for lost in readers:
            self.call_soon(lost)

    def _on_snapshot_wanted(self, message: SnapshotWanted) -> None:
        self._turn_out.snapshot_wanted = True

    def _on_step(self, message: Step) -> None:
        self.raft.step(message.sender, message.message)

    def turn_deaf(self) -> None:
        """Take nothing of what peers say any more: this member goes, and its promises with it."""
        self._handlers[Step] = self._ignored

    def let_go(self) -> None:
        """Nobody needs this group any more: cut what leads from its parts back to it. Such rings
        would stay in memory, for the garbage collector hardly ever looks at what is old."""
        self._handlers = {}
        self.call_soon = _call
        self.on_events = None

    def _ignored(self, message: InboxMessage) -> None:
        """As if it had been lost on its way."""

    def _on_failed(self, message: Failed) -> None:
        raise message.error


def _call(callback: Callable[..., object], *args: Any) -> object:
    return callback(*args)
