"""A stream's publishes: those of one turn become one log entry, or several if they are large.

The leader gives an entry its time, keeps account of what is not committed yet, and tells each
publisher what became of its messages. Who can't be served is told so at once. Atomic batches wait
in a `BatchStager` until they commit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.commands import Command, encode, encode_store
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.inbox import InboxMessage
from streamd.node.ports import PublishSink, Wires
from streamd.node.stream_groups.atomic_batches import BatchStager
from streamd.node.stream_groups.delivery_hub import CursorTag, StreamCursors
from streamd.node.stream_groups.stream_inbox import Publish
from streamd.raft.core import NotLeader, ProposalRejected, RaftCore
from streamd.types import Entry, Index, Msg, Uid

Waiter = tuple[PublishSink, list[bytes]]


class Backlog:
    """Bytes of publishes under way: of all streams of a node."""

    __slots__ = ("byte_count", "held_bytes")

    def __init__(self) -> None:
        self.byte_count = 0  # in the log and not committed
        self.held_bytes = 0  # not proposed: another node is to lead


def _size(msg: Msg) -> int:
    return len(msg[1]) + len(msg[2])


class StreamPublishes(StreamCursors):
    """The part of `StreamGroup` that takes publishes and answers them."""

    def __init__(
        self,
        *,
        uid: Uid,
        raft: RaftCore,
        machine: StreamMachine,
        blocks: BlockPort,
        snapshot_index: Index,
        wires: Wires,
        stager: BatchStager,
        max_payload: int,
        has_room: Callable[[int], bool],
        backlog: Backlog | None = None,
        all_know: Callable[[str], bool] = lambda command: True,
    ) -> None:
        super().__init__(
            uid=uid,
            raft=raft,
            machine=machine,
            blocks=blocks,
            snapshot_index=snapshot_index,
            wires=wires,
            max_payload=max_payload,
            has_room=has_room,
            all_know=all_know,
        )
        self.name_bytes = machine.name.encode()
        self._stager = stager
        self._msgs: list[Msg] = []
        self._msgs_bytes = 0  # of their headers and payloads
        self._waiters: list[Waiter] = []
        self._held: list[Publish] = []  # while leadership is handed over: not proposed yet
        self._held_bytes = 0
        self.pass_on: Callable[[list[Msg], list[bytes], PublishSink], None] = _drop
        self._uncommitted_bytes = 0
        self._backlog = backlog or Backlog()  # has those in it
        self._next_ts = 0
        self._handlers[Publish] = self._on_publish

    def _on_leader_ready(self) -> None:
        super()._on_leader_ready()
        self._next_ts = self.machine.index.last_ts + 1

    def _on_leadership_lost(self) -> None:
        super()._on_leadership_lost()
        self._stager.clear()
        self._hold_collected()
        self._count_committed(self._uncommitted_bytes)
        for publish in self._take_held():
            self.pass_on(publish.msgs, publish.replies, publish.sink)

    # --- publishes in -----------------------------------------------------------------------

    def _on_publish(self, publish: Publish) -> None:
        if self._is_closed:
            return  # nobody may ack; the client's timeout is the honest answer
        msgs, replies, sink = publish.msgs, publish.replies, publish.sink
        raft = self.raft
        if not raft.is_leader:
            self.pass_on(msgs, replies, sink)
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

    def _collect(self, msgs: list[Msg], replies: list[bytes], sink: PublishSink, size: int) -> None:
        """Keep messages of `size` bytes for this turn's log entry, or for its next one."""
        if self._msgs_bytes + size > limits.STORE_BATCH_BYTES:
            self._propose_store()
        if self._msgs:
            self._msgs.extend(msgs)
        else:
            self._msgs = list(msgs)
        self._msgs_bytes += size
        self._waiters.append((sink, replies))
        if len(self._msgs) >= limits.STORE_BATCH_MSGS:
            self._propose_store()  # which also counts it, so the backlog above is honest

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
                taken = stager.stage_run(msgs, replies, at, self.machine.config, now_ms=self.at_ms)
                if taken > at:
                    at = taken
                    continue
            at += 1
            result = stager.stage(
                msg, self.machine.config, now_ms=self.at_ms, advices=self._advices
            )
            if result is None:
                if reply:
                    self._wires.publish(reply, b"", b"", b"")
            elif isinstance(result, errors.JsError):
                sink.publish_acks(self.name_bytes, [reply], [result])
            elif not result[0]:
                self._collect([msg], [reply], sink, _size(msg))
            else:
                self._propose_store()
                batch_id, staged = result
                ts = self._stamp(len(staged))
                done = partial(self._batch_done, sink, reply, batch_id)
                rules = commands.PUBLISH_RULES
                command: Command = [commands.STORE_BATCH, ts, batch_id, staged, rules]
                self._track(command, encode(command), done)

    def _batch_done(self, sink: PublishSink, reply: bytes, batch_id: str, outcome: Any) -> None:
        if not isinstance(outcome, errors.JsError):
            outcome = (outcome[0], outcome[1], batch_id)
        sink.publish_acks(self.name_bytes, [reply], [outcome])

    # --- while leadership changes -------------------------------------------------------------

    def _look_at_held(self) -> None:
        """Take what was held, as if it came now, unless another member is still to lead."""
        if not self.raft.is_handing_over:
            for publish in self._take_held():
                self._on_publish(publish)

    def _hold(self, publish: Publish) -> None:
        size = sum(map(_size, publish.msgs))
        if self._backlog.held_bytes + size > limits.PUBLISH_KEPT_BYTES_MAX:
            refused = [errors.CLUSTER_NOT_AVAIL()] * len(publish.msgs)
            publish.sink.publish_acks(self.name_bytes, publish.replies, refused)
        else:
            self._held.append(publish)
            self._held_bytes += size
            self._backlog.held_bytes += size

    def _take_held(self) -> list[Publish]:
        self._backlog.held_bytes -= self._held_bytes
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def _hold_collected(self) -> None:
        """What was collected and can't be proposed now waits, before what came later."""
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

    def _propose_store(self) -> None:
        if not self._msgs:
            return
        if self.raft.is_handing_over or not self.raft.is_leader:
            self._hold_collected()
            return
        msgs, self._msgs, self._msgs_bytes = self._msgs, [], 0
        waiters, self._waiters = self._waiters, []
        command: Command = [commands.STORE, self._stamp(len(msgs)), msgs, commands.PUBLISH_RULES]
        self._track(command, encode_store(command), waiters)

    def _track(self, command: Command, data: bytes, tag: Any) -> None:
        if not self._has_room(len(data)):
            self._refuse(tag)
            return
        try:
            self.raft.propose(data, command, tag)
        except (NotLeader, ProposalRejected):
            self._decline(tag, errors.CLUSTER_NOT_AVAIL())
        else:
            self._uncommitted_bytes += len(data)
            self._backlog.byte_count += len(data)

    def _count_committed(self, size: int) -> None:
        """`size` bytes are not uncommitted any more, or fewer: entries of an earlier term of ours
        are not counted any more."""
        size = min(size, self._uncommitted_bytes)
        self._uncommitted_bytes -= size
        self._backlog.byte_count -= size

    def end(self, unread: list[InboxMessage]) -> None:
        super().end(unread)
        self._count_committed(self._uncommitted_bytes)
        self._take_held()

    def _stamp(self, msg_count: int) -> int:
        """Return the entry's time; its messages are one ns apart, so no two are ever equal."""
        ts = max(self.at_ns, self._next_ts)
        self._next_ts = ts + msg_count
        return ts

    # --- outcomes out -----------------------------------------------------------------------

    def _refuse(self, tag: Any) -> None:
        """Nothing more can be stored on this node; what is stored is safe."""
        self._decline(tag, errors.INSUFFICIENT_RESOURCES())
        self._reclaim()

    def _decline(self, tag: Any, error: errors.JsError) -> None:
        if type(tag) is list:
            for sink, replies in tag:
                sink.publish_acks(self.name_bytes, replies, [error] * len(replies))
        else:
            tag(error)

    def emit_outcomes(
        self, outcomes: list[tuple[Any, Any]], ready_callbacks: list[Callable[[], object]]
    ) -> None:
        """Acks of publishes to their connections; every other outcome to its callback."""
        name = self.name_bytes
        for tag, result in outcomes:
            if type(tag) is list:
                if len(tag) == 1:
                    sink, replies = tag[0]
                    sink.publish_acks(name, replies, result)
                else:
                    at = 0
                    for sink, replies in tag:
                        end = at + len(replies)
                        sink.publish_acks(name, replies, result[at:end])
                        at = end
            elif type(tag) is not CursorTag:
                self.call_soon(tag, result)
        for callback in ready_callbacks:
            self.call_soon(callback)

    def _is_publish(self, entry: Entry) -> bool:
        command = entry.command
        return command is not None and command[0] in (commands.STORE, commands.STORE_BATCH)

    def _on_dropped(self, entry: Entry) -> None:
        tag = entry.tag
        if type(tag) is list:
            error = errors.CLUSTER_NOT_AVAIL()
            for sink, replies in tag:
                sink.publish_acks(self.name_bytes, replies, [error] * len(replies))
        elif type(tag) is not CursorTag:
            super()._on_dropped(entry)


def _drop(msgs: list[Msg], replies: list[bytes], sink: PublishSink) -> None:
    """Where no other node can lead, the client's timeout is the honest answer."""
