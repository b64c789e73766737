"""Group of one stream: the order of what its members do beside applying.

              Publish       Acks, Pull, FlowReply ...      Propose, ReadBarrier    Unreadable...
                 |                    |                          |                     |
      +----------v--------+ +---------v---------+                |           +---------v--------+
      |   PublishIntake   | |    DeliveryHub    |                |           |   Maintenance    |
      | held, collected,  | | Cursor per        |                |           | expiry, bulk     |
      | atomic batches    | | consumer, wakes   |                |           | delete, compac-  |
      +----------+--------+ +---------+---------+                |           | tion, dead blocks|
                 |          ConsumerProposals                    |           +---------+--------+
                 | STORE              | DELIVERED, ACKED ...     |                     | EXPIRE ...
                 v                    v                          v                     v
              ----------------------- the group's Raft log, in this order -----------------------
                                      | applied (Group._drain, _after_apply)
          acks of publishes <---------+---------> cursors told; deliveries (`deliver`) ---> clients

The turn, in order: atomic batches that idled too long are dropped; cursors whose time has come are
woken; the inbox is taken (`Group.turn`); acks of clients are flushed to their proposals; publishes
held during a transfer of leadership are taken again; cursors' proposals go to the log if they are
due, forced, or other entries go; then the turn's publishes; then what is committed is applied and
told to cursors; then maintenance. `deliver` comes after the outcomes went out, so that a client
hears that its consumer exists before that delivers.

States. *Follower*: publishes are passed on, the rest of clients' messages finds no cursor.
*Elected*, not ready: publishes are proposed, nothing is delivered. *Ready*: one cursor a consumer.
*Transferring*: publishes are held, nothing is delivered, until the transfer succeeds (they are
passed on) or fails (they are taken as if they came then). *Closed* (`delete`): the stream is gone
or closed here; cursors have ended, requests are refused.

Callers: the monitor (see `groups/group.py`); the node calls `delete`, `shut_down` and `release`,
and sets `hooks`. Parts never call their group: they hold its `GroupShell`, `TurnTime`, `Proposer`.

Invariants.
1. A linearizable read, a request or a step-down first logs all that came before (`_propose_all`).
2. An ack or delivery never overtakes what its cursor proposed before (`ConsumerProposals`).
3. A publisher is answered once: from the applied entry, or with an error if nothing is stored; not
   at all where that is unknown (the client's timeout is the honest answer).
4. What only a leader knows is forgotten when it leads no more, before anything of the next term.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.streams.stream import StreamMachine
from streamd.node.delivery.cursor import Cursor
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.group import Group
from streamd.node.groups.group_shell import Events
from streamd.node.groups.inbox import InboxMessage, Propose, ReadBarrier, Saved, StepDown
from streamd.node.groups.turn import Turn
from streamd.node.importing.origin_imports import (
    ImportTag,
    OriginAnswer,
    OriginImports,
    OriginMessages,
)
from streamd.node.integrity.unreadable import Unreadable
from streamd.node.ports import Wires
from streamd.node.stream_groups import stream_inbox
from streamd.node.stream_groups.bulk_delete import SteppedOutcome
from streamd.node.stream_groups.consumer_proposals import ConsumerProposals, CursorTag
from streamd.node.stream_groups.delivery_hub import Advisories, DeliveryHub
from streamd.node.stream_groups.letter_sending import LetterAnswers, LetterSending
from streamd.node.stream_groups.maintenance import Maintenance
from streamd.node.stream_groups.message_reader import MessageReader
from streamd.node.stream_groups.publish_intake import PublishBounds, PublishIntake, memory_of
from streamd.node.stream_groups.schedule_firing import ScheduleFiring
from streamd.node.stream_groups.stream_hooks import StreamHooks
from streamd.raft.core import RaftCore
from streamd.types import Entry, Index

_CURSOR_KINDS = frozenset(
    (
        commands.DELIVERED, commands.ACKED, commands.NAKED, commands.TERMED, commands.PROGRESS,
        commands.DEAD, commands.POSITION,
    )
)  # fmt: skip
_NAMED_KINDS = frozenset(
    (commands.CREATE_CONSUMER, commands.PAUSE_CONSUMER, commands.RESET_CONSUMER)
)
_LEADERSHIP_CHANGE = b"NATS/1.0 409 Leadership Change\r\n\r\n"
_REMOVING_KINDS = frozenset(
    (
        commands.EXPIRE, commands.FIRE, commands.PURGE, commands.DELETE_MSG, commands.REMOVE,
        commands.LETTERS_SENT,
    )
)  # fmt: skip
_STORING_KINDS = {
    commands.STORE: 2,
    commands.STORE_BATCH: 3,
    commands.STORE_SCHEDULED: 2,
    commands.STORE_SCHEDULED_BATCH: 3,
    commands.STORE_FAST: 2,
}
"""Kinds that store what clients published, and the field with the messages."""


def import_bytes(command: commands.Command) -> int:
    """Return what an IMPORT stores, about."""
    return sum(len(row[2]) + len(row[3]) + len(row[4]) for row in command[2])


class StreamGroup(Group):
    """Group of one stream with its consumers, on a node that may lead it."""

    machine: StreamMachine

    def __init__(
        self,
        *,
        raft: RaftCore,
        machine: StreamMachine,
        blocks: BlockPort,
        snapshot_index: Index,
        wires: Wires,
        bounds: PublishBounds,
        max_payload: int,
        domain: str = "",
    ) -> None:
        super().__init__(
            uid=machine.uid,
            raft=raft,
            machine=machine,
            blocks=blocks,
            snapshot_index=snapshot_index,
        )
        shell, now = self.shell, self.now
        hooks = self.hooks = StreamHooks()
        maintenance = self._maintenance = Maintenance(
            machine,
            blocks,
            self._proposer,
            shell,
            hooks,
            now,
            has_room=bounds.has_room,
        )
        advisories = Advisories()
        proposals = ConsumerProposals(raft, now, maintenance.bulk_delete.lightened)
        reader = MessageReader(blocks, maintenance.unreadable, shell, hooks, now)
        hub = self._hub = DeliveryHub(
            machine,
            reader,
            proposals,
            advisories,
            shell,
            now,
            wires=wires,
            max_payload=max_payload,
        )
        self._firing = ScheduleFiring(machine, reader, self._proposer, shell, now)
        self.letters = LetterSending(machine, reader, self._proposer, shell, now, wires=wires)
        intake = self._intake = PublishIntake(
            raft,
            machine,
            bounds,
            advisories,
            hooks,
            now,
            wires=wires,
            reclaim=maintenance.reclaim,
        )
        self._share = bounds.share
        self.imports = OriginImports(
            raft,
            machine,
            shell,
            now,
            wires=wires,
            has_room=bounds.has_room,
            share=bounds.share,
            domain=domain,
        )
        self._wires = wires
        self._proposals = proposals
        self._has_room = bounds.has_room
        self._is_gone = False  # closed, because the stream is
        self._handlers |= {
            stream_inbox.Publish: intake.on_publish,
            stream_inbox.Acks: hub.on_acks,
            stream_inbox.Pull: hub.on_pull,
            stream_inbox.FlowReply: hub.on_flow,
            stream_inbox.InterestChanged: hub.on_interest,
            stream_inbox.ChunkRead: hub.on_read,
            stream_inbox.Drained: hub.on_drained,
            stream_inbox.UnreadableFound: maintenance.on_unreadable,
            stream_inbox.BlockReadable: maintenance.on_readable,
            OriginMessages: self.imports.on_messages,
            OriginAnswer: self.imports.on_answer,
            LetterAnswers: self.letters.on_answers,
        }

    def release(self) -> None:
        super().release()
        self.hooks.release()
        self._maintenance.release()

    @property
    def unreadable(self) -> Unreadable:
        """Messages that the disk does not give back."""
        return self._maintenance.unreadable

    def cursor(self, name: str) -> Cursor | None:
        """Return the cursor of a consumer, for reports."""
        return self._hub.cursor(name)

    # --- the turn ---------------------------------------------------------------------------

    def turn(self, now_ms: int, now_ns: int, inbox: list[InboxMessage]) -> Turn:
        """See Group.turn. Cursors are told what was applied; they deliver in `deliver`."""
        self.now.ms, self.now.ns = now_ms, now_ns
        self._hub.poll_wakes(now_ms)
        self._intake.poll_batches()
        if self.imports:
            self.imports.poll()
        turn = super().turn(now_ms, now_ns, inbox)
        if self._share is not None:
            self._share.update(is_leading=self._is_ready)
        has_unsaved = self.machine.applied > self.snapshot_index
        self._maintenance.poll(turn, is_ready=self._is_ready, has_unsaved=has_unsaved)
        if self._is_ready:
            self._firing.poll(turn)
            self.letters.poll(turn)
        if self._hub.advisories.events:
            turn.effects.events.extend(self._hub.advisories.clear())
        return turn

    def deliver(self) -> bool:
        """Let cursors send what is stored now; True if there is more to send at once."""
        hub = self._hub
        if not hub.has_dirty or self.raft.is_handing_over:  # what is sent could not be logged
            return False
        is_more = hub.deliver()
        if self._hub.advisories.events:
            self.emit_events(self._hub.advisories.clear())
        return is_more or self._proposals.is_forced

    def deadline_ms(self) -> int:
        earliest = super().deadline_ms()
        for due_ms in (
            self._proposals.due_ms,
            self._intake.deadline_ms(),
            self._hub.wakes_ms(),
            self._maintenance.deadline_ms(is_ready=self._is_ready),
            self._firing.deadline_ms() if self._is_ready else 0,
            self.letters.deadline_ms(),
            self.imports.deadline_ms(),
        ):
            if due_ms and (not earliest or due_ms < earliest):
                earliest = due_ms
        return earliest

    def _compares_at_rest(self) -> bool:
        return len(self.machine.consumers) <= limits.REST_CONSUMERS_MAX

    def _on_leader_ready(self) -> None:
        self._maintenance.on_leader_ready()
        self._hub.sync()
        self._end_bound_consumers()
        self._intake.on_leader_ready()
        self.imports.reconcile()

    def _end_bound_consumers(self) -> None:
        """End consumers of an earlier leader that mirrors and sources read by: the numbers of their
        deliveries are that leader's. Who reads them is told, and makes another."""
        for consumer in list(self.machine.consumers.values()):
            config = consumer.config
            if not (config.get("direct") or config.get("sourcing")):
                continue
            if config.get("direct"):
                command = [
                    commands.DELETE_CONSUMER, self.now.ns, consumer.name, consumer.uid, "inactive",
                ]  # fmt: skip
                self.shell.post(Propose(command, None, is_forced=False))
            deliver = config.get("deliver_subject", "").encode()
            self.shell.call_soon(self._wires.publish, deliver, b"", _LEADERSHIP_CHANGE, b"")

    def _on_leadership_lost(self) -> None:
        self._maintenance.on_leadership_lost()
        self._firing.forget()
        self.letters.end()
        self._hub.end_all(b"409 Leadership Change")
        self._hub.clear()
        self._proposals.clear()
        self._intake.on_leadership_lost()
        self.imports.end()

    # --- to the log, in order ---------------------------------------------------------------

    def _propose_collected(self) -> None:
        self._hub.flush_acks()
        intake = self._intake
        if self.imports:
            self.imports.flush()
        intake.poll_held()
        has_msgs = intake.has_msgs
        self._proposals.poll(has_company=has_msgs)
        if has_msgs:
            intake.propose()

    def _propose_all(self) -> None:
        self._hub.flush()
        if self._proposals:
            self._proposals.flush()
        if self.imports:
            self.imports.flush()
        self._intake.propose()

    @property
    def shows_all(self) -> bool:
        """True if a linearizable read may be answered at once: this member alone decides what is in
        the stream, it has applied all of its log, and nothing waits to be logged."""
        raft = self.raft
        return (
            self._is_ready
            and raft.log.is_sole
            and self.machine.applied == raft.last_index
            and not (self._intake.holds_unproposed or self._proposals or self._reads)
            and not self._hub.holds_unproposed
        )

    def _on_barrier(self, message: ReadBarrier) -> None:
        """Begin a linearizable read: what cursors and clients have done so far is logged first."""
        self._propose_all()
        self._begin_read(message.done, message.lost)

    def _on_propose(self, message: Propose) -> None:
        self._propose_all()  # what happened before comes before, and its answer shows it
        command, done = message.command, message.done
        if self._hub.is_closed:
            if done is not None:
                done(self._undone())
            return
        if command[0] == commands.IMPORT and not self._has_room(import_bytes(command)):
            if done is not None:
                done(errors.INSUFFICIENT_RESOURCES())
            return
        bulk_delete = self._maintenance.bulk_delete
        if command[0] == commands.DELETE_CONSUMER:
            message.command = bulk_delete.lightened(command, self.now.ms)
        elif self._is_ready and type(done) is not SteppedOutcome:
            if bulk_delete.takes(command, done, self.now.ns):
                return
        last = self.raft.last_index
        super()._on_propose(message)
        if command[0] == commands.PAUSE_CONSUMER and self.raft.last_index > last:
            self._hub.on_pause_proposed(command[2])

    def _on_step_down(self, message: StepDown) -> None:
        self._propose_all()  # the next leader must not deliver it again
        super()._on_step_down(message)

    def _on_saved(self, message: Saved) -> None:
        self._maintenance.on_saved()
        super()._on_saved(message)

    # --- what was applied -------------------------------------------------------------------

    def _after_apply(self, entries: list[Entry], effects: Effects) -> None:
        hub, maintenance = self._hub, self._maintenance
        is_removed = False
        wakes_all = hub.has_few
        subjects: list[bytes] = []  # of what was stored, unless that wakes all
        for entry in entries:
            command = entry.command
            if command is None:
                continue
            kind = command[0]
            if kind in _STORING_KINDS:
                msgs = command[_STORING_KINDS[kind]]
                if not wakes_all:
                    subjects += [msg[0] for msg in msgs]
                if entry.tag is not None:
                    self._intake.count_committed(memory_of(entry.data, len(msgs)))
                    if self._share is not None:
                        self._share.release(entry.index)
            elif kind == commands.COPY:
                is_removed = True  # seqs may be used up without a message
                wakes_all |= self._is_ready
                self.imports.on_applied(entry)
            elif not self._is_ready:
                continue
            elif kind in _CURSOR_KINDS:
                tag = entry.tag.tag if type(entry.tag) is CursorTag else None
                hub.on_applied(command, tag)
            elif kind in _REMOVING_KINDS:
                is_removed = True
                wakes_all |= kind in (commands.EXPIRE, commands.FIRE)  # it may have stored some
                maintenance.forget_expiry()
                self._firing.forget()
            elif kind == commands.CONFIGURE:
                wakes_all = is_removed = True
                maintenance.forget_expiry()
                self.imports.reconcile()
            else:
                self._after_consumer_change(entry)
        if maintenance.unreadable:
            maintenance.unreadable.settle()
        if not self._is_ready:
            return
        bereft, effects.bereft = effects.bereft, {}
        hub.on_removed(bereft)
        if wakes_all and (effects.stored_last or is_removed or bereft):
            hub.wake_all()
        elif subjects and effects.stored_last:
            hub.wake_interested(subjects)

    def _after_consumer_change(self, entry: Entry) -> None:
        command = entry.command
        assert command is not None
        kind = command[0]
        hub, bulk_delete = self._hub, self._maintenance.bulk_delete
        if kind == commands.CREATE_CONSUMER:
            hub.begin(entry.index)
        elif kind == commands.DELETE_CONSUMER:
            hub.end_if_gone(command[2])
            if command[5:] == [True]:
                bulk_delete.sweep()
        if kind in _NAMED_KINDS:
            hub.on_configured(command)
            if kind == commands.RESET_CONSUMER or command[7:] == [True]:
                bulk_delete.sweep()  # of what it passes over

    def emit_outcomes(
        self, outcomes: list[tuple[Any, Any]], ready_callbacks: list[Callable[[], object]]
    ) -> None:
        """Ack publishes to their connections; give every other outcome to its callback."""
        answer, call_soon = self._intake.answer, self.shell.call_soon
        for tag, result in outcomes:
            if type(tag) is list:
                answer(tag, result)
            elif type(tag) is not CursorTag and type(tag) is not ImportTag:
                call_soon(tag, result)
        for callback in ready_callbacks:
            call_soon(callback)

    def emit_events(self, events: Events) -> None:
        shell = self.shell
        if shell.on_events is not None and self._is_ready:
            shell.call_soon(shell.on_events, events)

    # --- the end ----------------------------------------------------------------------------

    def delete(self, *, is_gone: bool = False) -> None:
        """Close: the stream is gone, or broken here, fetched anew, or elsewhere by now. Cursors
        tell their clients and end."""
        self._is_gone |= is_gone
        self.imports.end(is_gone=is_gone)
        self.letters.end()
        self._intake.close()
        for done in self._maintenance.bulk_delete.stop():
            self.shell.call_soon(done, self._in_doubt())
        self._hub.close()

    def shut_down(self) -> None:
        """End for the server stops: waiting pulls hear of it, and the last turn logs what they
        got."""
        if self._is_ready:
            self._hub.flush_all()
            self._proposals.is_forced = True
        self._hub.end_all(b"409 Server Shutdown")

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.delete()

    def end(self, unread: list[InboxMessage]) -> None:
        super().end(unread)
        self._intake.end()

    def _undone(self) -> errors.JsError:
        return errors.STREAM_NOT_FOUND() if self._is_gone else super()._undone()

    def _in_doubt(self) -> errors.JsError:
        return errors.STREAM_NOT_FOUND() if self._is_gone else super()._in_doubt()

    def _is_publish(self, entry: Entry) -> bool:
        command = entry.command
        return command is not None and command[0] in _STORING_KINDS

    def _on_dropped(self, entry: Entry) -> None:
        tag = entry.tag
        if type(tag) is list:
            self._intake.refuse_dropped(tag)
        elif type(tag) is not CursorTag and type(tag) is not ImportTag:
            super()._on_dropped(entry)
