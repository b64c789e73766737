"""Intake of a stream's publishes: those of one turn become one log entry, or several large ones.

The leader gives an entry its time, keeps account of what is not committed yet, and tells each
publisher what became of its messages. A publisher that can't be served is told so at once. Atomic
batches wait in a `BatchStager` until they commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.commands import Command, PublishOutcome, encode, encode_store
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.turn import TurnTime
from streamd.node.ports import PublishSink, Wires
from streamd.node.stream_groups.atomic_batches import BatchStager
from streamd.node.stream_groups.delivery_hub import Advisories
from streamd.node.stream_groups.fast_members import SUFFIX, FastIdle, FastLot, is_member
from streamd.node.stream_groups.ingest_transform import IngestTransform
from streamd.node.stream_groups.schedule_firing import verdicts
from streamd.node.stream_groups.stream_hooks import StreamHooks
from streamd.node.stream_groups.stream_inbox import Publish
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.types import Index, Msg, Seq

Waiter = tuple[PublishSink, list[bytes]]

Stored = tuple[Seq, int]
"""Outcome of an atomic batch: the seq of its last message, and how many there are."""

PublishTag = list[Waiter] | Callable[[Any], None]
"""Receivers of the outcomes of a STORE, or of a STORE_BATCH."""


class Backlog:
    """Memory of publishes under way: of all streams of a node."""

    __slots__ = ("byte_count", "held_bytes")

    def __init__(self) -> None:
        self.byte_count = 0  # proposed and not applied, by `memory_of`
        self.held_bytes = 0  # not proposed: another node is to lead


def memory_of(data: bytes, msg_count: int) -> int:
    """Return what an entry of `data` with that many messages counts until it is applied.

    Small messages take several times their bytes: each is a tuple with its reply, and its payload
    is here once more than in `data`. Counted by their bytes alone, 128 MiB of messages of 128 B
    took half a gigabyte.
    """
    return len(data) + msg_count * limits.PUBLISH_MEMORY_BYTES


def _size(msg: Msg) -> int:
    return len(msg[1]) + len(msg[2])


class StorageShare(Protocol):
    """Part of one stream in what its account may store: node/resources/account_storage.py."""

    def room(self, wanted: int) -> int | None:
        """Return how many bytes more may be stored, asked for `wanted`; None: there is no limit."""

    def hold(self, index: Index, byte_count: int) -> None:
        """Count bytes that entry `index` may store."""

    def release(self, index: Index) -> None:
        """Entry `index` is applied: what it has stored is counted as such from now on."""

    def release_all(self) -> None:
        """Count nothing that was proposed: this member leads no more, or is at its end."""

    def update(self, *, is_leading: bool) -> None:
        """Look at what is stored, at the end of a turn."""


@dataclass(slots=True)
class PublishBounds:
    """Bounds of one stream's publishes: what they may take of the node."""

    has_room: Callable[[int], bool]  # for so many bytes of log
    stager: BatchStager = field(default_factory=BatchStager)
    backlog: Backlog = field(default_factory=Backlog)
    share: StorageShare | None = None  # of what the account stores; None: it is not counted


class PublishIntake:
    """Publishes of one stream on their way into the log, and their acks on the way out."""

    def __init__(
        self,
        raft: RaftCore,
        machine: StreamMachine,
        bounds: PublishBounds,
        advisories: Advisories,
        hooks: StreamHooks,
        now: TurnTime,
        *,
        wires: Wires,
        reclaim: Callable[[], None],
    ) -> None:
        self.name_bytes = machine.name.encode()
        self._raft = raft
        self._machine = machine
        self._has_room = bounds.has_room
        self._stager = bounds.stager
        self._share = bounds.share
        self._backlog = bounds.backlog  # has the uncommitted bytes in it
        self._advisories = advisories
        self._hooks = hooks
        self._now = now
        self._wires = wires
        self._reclaim = reclaim
        self._msgs: list[Msg] = []
        self._msgs_bytes = 0  # of their headers and payloads
        self._waiters: list[Waiter] = []
        self._held: list[Publish] = []  # while leadership is transferred: not proposed yet
        self._held_bytes = 0
        self._uncommitted_bytes = 0
        self._next_ts = 0
        self._transform = IngestTransform()
        self._is_fast = False  # what is collected are members of fast batches
        self._fast_idle = FastIdle(machine)
        self._is_closed = False

    def on_leader_ready(self) -> None:
        """Begin as leader, with times later than those of what is stored."""
        self._next_ts = self._machine.index.live.last_ts + 1
        self._fast_idle.begin(self._now.ms)

    def on_leadership_lost(self) -> None:
        """End as leader: what is not proposed goes to the next one."""
        self._stager.clear()
        self._fast_idle.end()
        self._release_share()
        self._hold_collected()
        self.count_committed(self._uncommitted_bytes)
        for publish in self._release_held():
            self._hooks.pass_on(publish.msgs, publish.replies, publish.sink)

    def close(self) -> None:
        """Take no publishes any more: the stream is gone, or closed here."""
        self._is_closed = True
        self._stager.clear()

    def end(self) -> None:
        """Release what is counted in the node's backlog: the group takes no turn any more."""
        self._release_share()
        self.count_committed(self._uncommitted_bytes)
        self._release_held()

    # --- publishes in -----------------------------------------------------------------------

    def on_publish(self, publish: Publish) -> None:
        """Take a chunk of publishes: collect, hold, pass on or refuse it."""
        if self._is_closed:
            return  # no ack may go out; the client's timeout is the honest answer
        msgs, replies, sink = publish.msgs, publish.replies, publish.sink
        raft = self._raft
        if not raft.is_leader:
            self._hooks.pass_on(msgs, replies, sink)
            return
        if self._held or raft.is_handing_over:
            self._hold(publish)
            return
        if (
            self._uncommitted_bytes > limits.PUBLISH_BACKLOG_BYTES_MAX
            or self._backlog.byte_count > limits.PUBLISH_BACKLOGS_BYTES_MAX
        ):
            refused = [errors.STREAM_TOO_MANY_REQUESTS()] * len(msgs)
            sink.publish_acks(self.name_bytes, replies, refused)
            return
        if replies and (
            replies[0][-4:] == SUFFIX
            or (self._machine.limits.allows_batched and is_member(replies))
        ):
            self._take_fast(publish)
            return
        self._turn_to(is_fast=False)
        size = 0
        for _, headers, payload in msgs:
            if headers:
                if b"Nats-Batch-" in headers:
                    self._stage(msgs, replies, sink)
                    return
                size += len(headers)
            size += len(payload)
        if size > limits.STORE_BATCH_BYTES and len(msgs) > 1:
            for msg, reply in zip(msgs, replies, strict=True):
                self._collect([msg], [reply], sink, _size(msg))
        else:
            self._collect(msgs, replies, sink, size)

    def _take_fast(self, publish: Publish) -> None:
        """Collect members of fast batches, and what lies between them."""
        msgs, replies, sink = publish.msgs, publish.replies, publish.sink
        at = 0
        while at < len(msgs):
            end, is_fast, size = at, replies[at][-4:] == SUFFIX, 0
            while (
                end < len(msgs)
                and (replies[end][-4:] == SUFFIX) is is_fast
                and end - at < limits.STORE_BATCH_MSGS
                and (size <= limits.STORE_BATCH_BYTES or end == at)
            ):
                size += _size(msgs[end])
                end += 1
            self._turn_to(is_fast=is_fast)
            if is_fast or not any(b"Nats-Batch-" in msg[1] for msg in msgs[at:end]):
                self._collect(msgs[at:end], replies[at:end], sink, size)
            else:
                self._stage(msgs[at:end], replies[at:end], sink)
            at = end

    def _turn_to(self, *, is_fast: bool) -> None:
        """Collect members of fast batches from now on, or others: an entry has but one kind."""
        if is_fast != self._is_fast:
            self.propose()
            self._is_fast = is_fast

    def _collect(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink, size: int) -> None:
        """Keep messages of `size` bytes for this turn's log entry, or for its next one."""
        if self._msgs_bytes + size > limits.STORE_BATCH_BYTES:
            self.propose()
        if self._msgs:
            self._msgs.extend(msgs)
        else:
            self._msgs = list(msgs)
        self._msgs_bytes += size
        self._waiters.append((sink, replies))
        if len(self._msgs) >= limits.STORE_BATCH_MSGS:
            self.propose()  # which also counts it, so the backlog above is honest

    def _stage(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
        """Messages of atomic batches go to the stager; what lies between them as usual."""
        stager = self._stager
        at = 0
        while at < len(msgs):
            msg, reply = msgs[at], replies[at]
            if not (msg[1] and b"Nats-Batch-" in msg[1]):
                self._collect([msg], [reply], sink, _size(msg))
                at += 1
                continue
            if not reply:
                taken = stager.stage_run(
                    msgs, replies, at, self._machine.config, now_ms=self._now.ms
                )
                if taken > at:
                    at = taken
                    continue
            at += 1
            result = stager.stage(
                msg, self._machine.config, now_ms=self._now.ms, advices=self._advisories.events
            )
            if result is None:
                if reply:
                    self._wires.publish(reply, b"", b"", b"")
            elif isinstance(result, errors.JsError):
                sink.publish_acks(self.name_bytes, [reply], [result])
            elif not result[0]:
                self._collect([msg], [reply], sink, _size(msg))
            else:
                self.propose()
                batch_id, staged = result
                ts = self._stamp(len(staged))
                staged = self._transform.apply(self._machine.config, staged, ts)
                done = partial(self._batch_done, sink, reply, batch_id)
                rules = commands.PUBLISH_RULES
                command: Command = [commands.STORE_BATCH, ts, batch_id, staged, rules]
                if self._machine.limits.allows_schedules:
                    found = verdicts(staged, ts)
                    if found:
                        command = [commands.STORE_SCHEDULED_BATCH, *command[1:], found]
                held = self._add_room(command, staged)
                self._track(command, encode(command), done, len(staged), held)

    def _batch_done(
        self, sink: PublishSink, reply: bytes, batch_id: str, outcome: Stored | errors.JsError
    ) -> None:
        told = outcome if isinstance(outcome, errors.JsError) else (*outcome[:2], batch_id)
        sink.publish_acks(self.name_bytes, [reply], [told])

    # --- while leadership changes -------------------------------------------------------------

    def poll_held(self) -> None:
        """Take what was held, as if it came now, unless another member is still to lead."""
        if self._held and not self._raft.is_handing_over:
            for publish in self._release_held():
                self.on_publish(publish)

    def _hold(self, publish: Publish) -> None:
        size = sum(map(_size, publish.msgs))
        if self._backlog.held_bytes + size > limits.PUBLISH_KEPT_BYTES_MAX:
            refused = [errors.CLUSTER_NOT_AVAIL()] * len(publish.msgs)
            publish.sink.publish_acks(self.name_bytes, publish.replies, refused)
        else:
            self._held.append(publish)
            self._held_bytes += size
            self._backlog.held_bytes += size

    def _release_held(self) -> list[Publish]:
        self._backlog.held_bytes -= self._held_bytes
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def _hold_collected(self) -> None:
        """Hold what is collected and can't be proposed now, before what came later."""
        if not self._msgs:
            return
        msgs, self._msgs, self._msgs_bytes = self._msgs, [], 0
        waiters, self._waiters = self._waiters, []
        held: list[Publish] = []
        at = 0
        for sink, replies in waiters:
            held.append(Publish(msgs[at : at + len(replies)], replies, sink))
            at += len(replies)
        self._held[:0] = held

    # --- to the log -------------------------------------------------------------------------

    @property
    def has_msgs(self) -> bool:
        """True if messages wait for this turn's log entry."""
        return bool(self._msgs)

    @property
    def holds_unproposed(self) -> bool:
        """True if messages wait to be proposed, in this turn or by the next leader."""
        return bool(self._msgs or self._held)

    def propose(self) -> None:
        """Propose what is collected as one log entry."""
        if not self._msgs:
            return
        if self._raft.is_handing_over or not self._raft.is_leader:
            self._hold_collected()
            return
        msgs, self._msgs, self._msgs_bytes = self._msgs, [], 0
        waiters, self._waiters = self._waiters, []
        if self._is_fast:
            self._propose_fast(msgs, waiters)
            return
        ts = self._stamp(len(msgs))
        msgs = self._transform.apply(self._machine.config, msgs, ts)
        command: Command = [commands.STORE, ts, msgs, commands.PUBLISH_RULES]
        if self._machine.limits.allows_schedules:
            found = verdicts(msgs, ts)
            if found:
                command = [commands.STORE_SCHEDULED, *command[1:], found]
        held = self._add_room(command, msgs) if self._share is not None else 0
        data = encode_store(command) if command[0] == commands.STORE else encode(command)
        self._track(command, data, waiters, len(msgs), held)

    def _propose_fast(self, msgs: list[Msg], waiters: list[Waiter]) -> None:
        """Propose members of fast batches."""
        lot = FastLot()
        at = 0
        for sink, replies in waiters:
            lot.add(self.name_bytes, msgs[at : at + len(replies)], replies, sink)
            at += len(replies)
        if not lot.msgs:
            return
        machine, count = self._machine, len(lot.msgs)
        has_acks = not machine.config.get("no_ack")
        if not self._fast_idle.has_room_for(lot.members):
            error = errors.BATCH_PUBLISH_TOO_MANY_INFLIGHT()
            lot.answer(self.name_bytes, error, has_acks=has_acks)
            return
        self._fast_idle.note(lot.members, self._now.ms)
        ts = self._stamp(count)
        msgs = self._transform.apply(machine.config, lot.msgs, ts)
        found = verdicts(msgs, ts) if machine.limits.allows_schedules else []
        rules = commands.PUBLISH_RULES
        command: Command = [commands.STORE_FAST, ts, msgs, rules, lot.members, found]
        held = self._add_room(command, msgs)
        done = partial(lot.answer, self.name_bytes, has_acks=has_acks)
        self._track(command, encode(command), done, count, held)

    def _add_room(self, command: Command, msgs: Sequence[Msg]) -> int:
        """Add the room that the account has to a command that needs more. Return the bytes that it
        may store, as far as they are counted."""
        share = self._share
        if share is None or share.room(0) is None:
            return 0
        wanted = sum(map(self._machine.index.sizes.of_message, msgs))
        room = share.room(wanted)
        assert room is not None, self.name_bytes
        if wanted > room:
            command.append(room)
        return min(wanted, room)

    def _release_share(self) -> None:
        if self._share is not None:
            self._share.release_all()

    def _track(
        self, command: Command, data: bytes, tag: PublishTag, msg_count: int, held: int
    ) -> None:
        """Propose a command. `held`: the account's bytes that it may store."""
        if not self._has_room(len(data)):
            self._refuse(tag)
            return
        try:
            self._raft.propose(data, command, tag)
        except (NotLeader, ProposalRejected):
            self._decline(tag, errors.CLUSTER_NOT_AVAIL())
        else:
            size = memory_of(data, msg_count)
            self._uncommitted_bytes += size
            self._backlog.byte_count += size
            if held and self._share is not None:
                self._share.hold(self._raft.last_index, held)

    def count_committed(self, size: int) -> None:
        """`size` bytes are not uncommitted any more, or fewer: entries of an earlier term of ours
        are not counted any more."""
        size = min(size, self._uncommitted_bytes)
        self._uncommitted_bytes -= size
        self._backlog.byte_count -= size

    def deadline_ms(self) -> int:
        """Return when the first batch is dropped, monotonic ms; 0: none waits."""
        due_ms = self._stager.deadline_ms
        fast_ms = self._fast_idle.deadline_ms
        return min(due_ms, fast_ms) if due_ms and fast_ms else due_ms or fast_ms

    def poll_batches(self) -> None:
        """Drop batches that nothing was added to for too long."""
        fast = self._fast_idle
        if fast.deadline_ms and self._now.ms >= fast.deadline_ms:
            idle = fast.idle(self._now.ms)
            if idle and self._raft.is_leader:
                command: Command = [commands.DROP_FAST, self._now.ns, idle]
                with suppress(NotLeader, ProposalRejected):
                    self._raft.propose(encode(command), command, None)
        stager = self._stager
        if stager.deadline_ms and self._now.ms >= stager.deadline_ms:
            stager.expire(self._now.ms, self._advisories.events)

    def _stamp(self, msg_count: int) -> int:
        """Return the entry's time; its messages are one ns apart, so no two are ever equal."""
        ts = max(self._now.ns, self._next_ts)
        self._next_ts = ts + msg_count
        return ts

    # --- outcomes out -----------------------------------------------------------------------

    def _refuse(self, tag: PublishTag) -> None:
        """Nothing more can be stored on this node; what is stored is safe."""
        self._decline(tag, errors.INSUFFICIENT_RESOURCES())
        self._reclaim()

    def _decline(self, tag: PublishTag, error: errors.JsError) -> None:
        if isinstance(tag, list):
            for sink, replies in tag:
                sink.publish_acks(self.name_bytes, replies, [error] * len(replies))
        else:
            tag(error)

    def answer(self, tag: list[Waiter], result: Sequence[PublishOutcome]) -> None:
        """Ack the publishes of one applied entry to their connections."""
        name = self.name_bytes
        if len(tag) == 1:
            sink, replies = tag[0]
            sink.publish_acks(name, replies, result)
            return
        at = 0
        for sink, replies in tag:
            end = at + len(replies)
            sink.publish_acks(name, replies, result[at:end])
            at = end

    def refuse_dropped(self, tag: list[Waiter]) -> None:
        """Refuse the publishes of an entry that another leader's log replaced."""
        self._decline(tag, errors.CLUSTER_NOT_AVAIL())
