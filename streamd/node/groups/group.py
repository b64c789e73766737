"""Turn of one group: a pure state machine of a Raft member and its replicated machine.

    monitor            Group.turn(now, inbox)                        monitor
    -------   +--------------------------------------------------+   -------
    inbox --->| handlers: one per message type, in order         |
              | _propose_collected   what the messages add up to |
              | _drain     <-> RaftCore.take() : Ready           |--> writes, send_now
              |    machine.apply, blocks.apply, _after_apply     |--> effects: outcomes, events
              | _poll_role            begin or end as leader     |--> ready_callbacks
              | MembershipWatch, Checkpoints, reads, StepDowns   |--> checkpoints, newcomers ...
              +--------------------------------------------------+
    then: deliver()                  after the outcomes of the turn went out
    then: a snapshot, if one is due  by the monitor, between two turns

States, of a member as this file sees it: *follower* (or candidate; Raft's own business), *elected*
(it leads, and entries before its term are not all applied), *ready* (`is_ready`: it leads and has
applied them; only now are clients served), *failed* (`failure` says why; no turn comes any more),
*released* (nothing leads from its parts back to it).

            elected by Raft          all before its term applied
  follower ----------------> elected ---------------------------> ready
      ^                         |                                   |
      `------ leadership lost --+------ _on_leadership_lost --------'

Callers. The monitor calls `turn`, `deliver`, `emit_outcomes`, `emit_events`, `deadline_ms`, `fail`
and `end`, one at a time, on the loop. Everything else that wants something of a group posts a
message to the monitor's inbox. Parts hold `GroupShell`, `TurnTime` and what else they name; none
holds its group.

Invariants.
1. A turn does no I/O, reads no clock and awaits nothing: the same member, time and inbox give the
   same `Turn`. The simulator and the server run the same code.
2. What a turn asks for is carried out in the order of `Turn`: sends may overtake this node's own
   fsync, acks and votes may not (I1): Raft hands those out only after `Durable`.
3. Outcomes and events are those of applied entries (I5). An entry that another leader's log
   replaced is answered with an error only if its fate is known or the request may be repeated.
4. Work is bounded per turn (TURN_ENTRIES_MAX, TURN_BYTES_MAX); `more` asks for the next turn.
5. Every callback to an upper room goes through `shell.call_soon`: its failure is not the group's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from streamd import errors, limits
from streamd.machine.base import Effects, Machine
from streamd.machine.commands import ACCEPT_LOSS, encode
from streamd.machine.meta import MetaMachine
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.checkpoints import Checkpoints
from streamd.node.groups.group_shell import Events, GroupShell, Proposer
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
    RescueQuorum,
    Saved,
    SnapshotWanted,
    Step,
    StepDown,
    Stop,
    Tick,
    WriterAt,
)
from streamd.node.groups.linearizable_reads import LinearizableReads
from streamd.node.groups.membership_watch import MembershipWatch
from streamd.node.groups.step_downs import StepDowns
from streamd.node.groups.turn import Turn, TurnTime
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.raft.ready import Ready
from streamd.types import Entry, Index, Uid


class Group(ABC):
    """A Raft member and its machine, as its monitor sees it. See `MetaGroup` and `StreamGroup`."""

    def __init__(
        self,
        *,
        uid: Uid,
        raft: RaftCore,
        machine: Machine,
        blocks: BlockPort,
        snapshot_index: Index,
    ) -> None:
        self.uid = uid
        self.raft = raft
        self.machine = machine
        self.blocks = blocks
        self.snapshot_index = snapshot_index
        self.snapshot_every_bytes = limits.SNAPSHOT_EVERY_BYTES
        self.applied_bytes = 0  # of log entries applied since the last snapshot
        self.failure = ""  # why this group stopped; empty while it is well
        self.now = TurnTime()
        self.shell = GroupShell()
        self._proposer = Proposer(raft, self.shell)
        self._is_ready = False
        self._membership = MembershipWatch(raft)
        self._reads = LinearizableReads(raft)
        self._checkpoints = Checkpoints(raft, machine, self._proposer, self.now)
        self._step_downs = StepDowns(raft, self.shell, self.now)
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
            RescueQuorum: self._on_rescue,
        }
        self._turn_out = Turn()

    # --- what a kind of group does beside applying ------------------------------------------

    @abstractmethod
    def deliver(self) -> bool:
        """Send what is stored now to consumers that want it; True if more can be sent at once."""

    @abstractmethod
    def _propose_collected(self) -> None:
        """Propose what the messages of this turn added up to."""

    @abstractmethod
    def _after_apply(self, entries: list[Entry], effects: Effects) -> None:
        """Follow up what was just applied."""

    @abstractmethod
    def _on_leader_ready(self) -> None:
        """This node leads the group and has applied everything before its term."""

    @abstractmethod
    def _on_leadership_lost(self) -> None:
        """Forget what only a leader knows."""

    @abstractmethod
    def emit_events(self, events: Events) -> None:
        """Tell followers of this group what happened."""

    # --- the turn ---------------------------------------------------------------------------

    def turn(self, now_ms: int, now_ns: int, inbox: list[InboxMessage]) -> Turn:
        """Take `inbox`, propose, apply what is committed; return what the shell must do."""
        self.now.ms = now_ms
        self.now.ns = now_ns
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
            self._poll_role(turn)
        if self._membership.poll(turn) and raft.log.is_sole:
            self._checkpoints.clear_due()  # no other replica is left to compare with
        if not raft.log.is_sole:
            if self._is_ready:
                self._checkpoints.poll()
            self._drain(turn)
            if self._checkpoints.has_rest_changed:
                self._checkpoints.poll_rest(turn, is_cheap=self._compares_at_rest())
        if self._reads:
            self._lose(self._reads.overdue(now_ms))
            turn.ready_callbacks += self._reads.passed(self.machine.applied)
        if self._step_downs:
            self._step_downs.poll(turn)
        return turn

    @property
    def is_ready(self) -> bool:
        """True while this node leads the group and has applied everything before its term."""
        return self._is_ready

    def _poll_role(self, turn: Turn) -> None:
        """Begin to serve as leader once all before this term is applied; end when it is over."""
        if not self.raft.is_leader:
            self._is_ready = False
            self._lose(self._reads.clear())
            self._checkpoints.clear_due()
            self._on_leadership_lost()
            turn.has_role_changed = True
        elif self._is_caught_up():
            self._is_ready = True
            self._on_leader_ready()
            turn.ready_callbacks += self.shell.on_ready
            self.shell.on_ready = []
            turn.has_role_changed = True

    def _is_caught_up(self) -> bool:
        raft = self.raft
        if raft.log.is_sole:
            return bool(self.machine.applied >= raft.last_index and raft.commit > 0)
        return raft.is_leader_ready

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
                        self._checkpoints.on_applied(entry.index)
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
                self._drain_peers(turn, ready)
            if not ready.more:
                if raft.log.is_sole:
                    return
                continue  # what was applied may have given leave to send: ask until it is quiet
            if applied_count >= limits.TURN_ENTRIES_MAX:
                turn.more = True  # bounded work per turn; the rest is taken in the next
                return

    def _drain_peers(self, turn: Turn, ready: Ready) -> None:
        """Move what Raft has ready only in a group with peers."""
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
                self.shell.call_soon(lost)

    def _on_dropped(self, entry: Entry) -> None:
        if callable(entry.tag):
            self.shell.call_soon(entry.tag, errors.CLUSTER_NOT_AVAIL())

    def _compares_at_rest(self) -> bool:
        """Return whether the fingerprint is had cheaply enough. All members agree on that."""
        return True

    def _on_step_down(self, message: StepDown) -> None:
        self._step_downs.begin(message)

    def _on_peer_up(self, message: PeerUp) -> None:
        self.raft.set_live(message.live)
        self.raft.peer_up(message.node_id)
        self._checkpoints.on_peer_up()

    def _on_peer_down(self, message: PeerDown) -> None:
        self.raft.set_live(message.live)
        self.raft.peer_down(message.node_id)

    def _on_members(self, message: ChangeMembers) -> None:
        """Change the members of the group; refusals are the caller's to see: it asks again."""
        try:
            self.raft.propose_membership(message.voters, message.learners)
        except (NotLeader, ProposalRejected):
            return

    def _on_force_election(self, message: ForceElection) -> None:
        used_to = message.used_to
        loss = [ACCEPT_LOSS, self.now.ns, self.machine.applied, used_to]
        self.raft.stand_in(message.names, encode(loss) if used_to else b"")

    def _on_rescue(self, message: RescueQuorum) -> None:
        raft = self.raft
        before = min(raft.members.majority, raft.rescue_quorum or raft.members.majority)
        reason = ""
        if not 1 <= message.quorum <= before:
            reason = "raft: rescue quorum must be between 1 and current quorum"
        elif raft.leader_id is not None:
            reason = "raft: leader is known"
        elif 2 * message.quorum <= raft.live_voter_count:
            here = raft.live_voter_count
            reason = f"raft: rescue quorum must be more than half of the {here} servers here"
        else:
            raft.rescue(message.quorum, self.now.ms + limits.META_RESCUE_MS)
        outcome = errors.CLUSTER_RESCUE(err=reason) if reason else before
        self.shell.call_soon(message.done, outcome)

    def _on_wrote(self, message: WriterAt) -> None:
        self.raft.hasten_commit(message.node_id)

    def deadline_ms(self) -> int:
        """Return the monotonic ms at which this group wants a Tick; 0: never."""
        earliest = self.raft.deadline_ms
        for due_ms in (
            self._checkpoints.due_ms,
            self._reads.deadline_ms(),
            self._step_downs.next_ms(),
        ):
            if due_ms and (not earliest or due_ms < earliest):
                earliest = due_ms
        return earliest

    def fail(self, error: BaseException) -> None:
        """Called once when a turn raised: this group does nothing more on this node."""
        self.failure = f"{type(error).__name__}: {error}"

    def end(self, unread: list[InboxMessage]) -> None:
        """No turn comes any more, neither for these messages nor for what is under way: who waits
        for an answer is told. Publishers are not: the client's timeout is the honest answer."""
        for message in unread:
            if isinstance(message, Propose) and message.done is not None:
                self.shell.call_soon(message.done, self._undone())
            elif isinstance(message, ReadBarrier):
                self.shell.call_soon(message.lost)
            elif isinstance(message, StepDown):
                self.shell.call_soon(message.done, errors.CLUSTER_NOT_AVAIL())
        for entry in self.raft.log.open_entries():
            if callable(entry.tag) and not self._is_publish(entry):
                self.shell.call_soon(entry.tag, self._in_doubt())
            entry.tag = None
        self._step_downs.end()
        self._lose(self._reads.clear())
        self.raft.log.let_go()

    def _is_publish(self, entry: Entry) -> bool:
        """True if a client would take an error for the word that nothing is stored."""
        return False

    def _undone(self) -> errors.JsError:
        """Return the answer to a request that is not in the log, nor will be."""
        return errors.Unserved()

    def _in_doubt(self) -> errors.JsError:
        """Return the answer to a request that is in the log, and may be committed or not."""
        return errors.CLUSTER_NOT_AVAIL()

    def emit_outcomes(
        self, outcomes: list[tuple[Any, Any]], ready_callbacks: list[Callable[[], object]]
    ) -> None:
        """Tell each proposer the outcome of its command."""
        for done, result in outcomes:
            self.shell.call_soon(done, result)
        for callback in ready_callbacks:
            self.shell.call_soon(callback)

    # --- messages ---------------------------------------------------------------------------

    def _on_stop(self, message: Stop) -> None:
        self._turn_out.is_stopping = True

    def _on_tick(self, message: Tick) -> None:
        """Leave it: a turn polls every deadline anyway."""
        return

    def _on_durable(self, message: Durable) -> None:
        self.raft.persisted(message.token)

    def _on_saved(self, message: Saved) -> None:
        self.raft.snapshot_saved(message.index, message.term, message.chain)

    def _on_propose(self, message: Propose) -> None:
        if message.is_forced:
            self.raft.hasten_commit()
        self._proposer.propose(message.command, message.done)

    def _on_barrier(self, message: ReadBarrier) -> None:
        self._propose_collected()
        self._begin_read(message.done, message.lost)

    def _begin_read(self, done: Callable[[], object], lost: Callable[[], object]) -> None:
        """Call `done` when a read that starts now may be answered, or `lost` if that is unknown."""
        if not self._reads.add(done, lost, self.now.ms):
            self.shell.call_soon(lost)

    def _lose(self, readers: list[Callable[[], object]]) -> None:
        for lost in readers:
            self.shell.call_soon(lost)

    def _on_snapshot_wanted(self, message: SnapshotWanted) -> None:
        self._turn_out.snapshot_wanted = True

    def _on_step(self, message: Step) -> None:
        self.raft.step(message.sender, message.message)

    def turn_deaf(self) -> None:
        """Take nothing of what peers say any more: this member goes, and its promises with it."""
        self._handlers[Step] = self._ignored

    def release(self) -> None:
        """Cut references of the group's parts back to it: they are needed no more."""
        self._handlers = {}
        self.shell.release()

    def _ignored(self, message: InboxMessage) -> None:
        """Treat the message as lost on its way."""
        return

    def _on_failed(self, message: Failed) -> None:
        raise message.error


class MetaGroup(Group):
    """The group of the cluster's catalog: nothing is done beside applying its entries."""

    machine: MetaMachine

    def __init__(
        self,
        *,
        uid: Uid,
        raft: RaftCore,
        machine: Machine,
        blocks: BlockPort,
        snapshot_index: Index,
    ) -> None:
        super().__init__(
            uid=uid, raft=raft, machine=machine, blocks=blocks, snapshot_index=snapshot_index
        )
        self.are_events_for_all = False  # every node of a cluster follows them

    def deliver(self) -> bool:
        return False

    def _propose_collected(self) -> None:
        """Every command is proposed as it comes."""

    def _after_apply(self, entries: list[Entry], effects: Effects) -> None:
        """The machine has it all."""

    def _on_leader_ready(self) -> None:
        """A leader knows no more than a follower."""

    def _on_leadership_lost(self) -> None:
        """A leader knows no more than a follower."""

    def emit_events(self, events: Events) -> None:
        shell = self.shell
        if shell.on_events is not None and (self._is_ready or self.are_events_for_all):
            shell.call_soon(shell.on_events, events)
