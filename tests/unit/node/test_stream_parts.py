"""Parts of a stream's group, each alone: wakes of cursors, their proposals, publish intake."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.streams.fast_batches import FastBatches
from streamd.machine.streams.retention import Limits
from streamd.node.groups.turn import TurnTime
from streamd.node.stream_groups.consumer_proposals import ConsumerProposals
from streamd.node.stream_groups.cursor_wakes import CursorWakes
from streamd.node.stream_groups.delivery_hub import Advisories
from streamd.node.stream_groups.publish_intake import PublishBounds, PublishIntake
from streamd.node.stream_groups.stream_hooks import StreamHooks
from streamd.node.stream_groups.stream_inbox import Publish
from streamd.raft.core import NotLeader, ProposalRejected


class Log:
    """The part of a Raft core that proposes; refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.datas: list[bytes] = []
        self.refusal: Exception | None = None
        self.is_leader = True
        self.is_handing_over = False

    def propose(self, data: bytes, command: Any, tag: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.entries.append((command, tag))
        self.datas.append(data)


class Sink:
    """A publisher that keeps its acks."""

    def __init__(self) -> None:
        self.acks: list[tuple[list[bytes], list[Any]]] = []

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        assert stream == b"S"
        self.acks.append((replies, list(outcomes)))


class Bed:
    """A publish intake with a log, and what it passes on or asks to reclaim."""

    def __init__(self) -> None:
        self.raft: Any = Log()
        self.now = TurnTime()
        self.has_room = True
        self.reclaims = 0
        self.passed_on: list[list[bytes]] = []
        hooks = StreamHooks()
        hooks.pass_on = lambda msgs, replies, sink: self.passed_on.append(replies)
        machine: Any = SimpleNamespace(
            name="S",
            config={},
            limits=Limits({}),
            index=SimpleNamespace(live=SimpleNamespace(last_ts=1_000_000)),
            content=SimpleNamespace(fast_batches=FastBatches()),
        )
        self.bounds = PublishBounds(has_room=lambda size: self.has_room)
        self.intake = PublishIntake(
            self.raft, machine, self.bounds, Advisories(), hooks, self.now,
            wires=SimpleNamespace(), reclaim=self._reclaim,  # type: ignore[arg-type]
        )  # fmt: skip
        self.intake.on_leader_ready()

    def _reclaim(self) -> None:
        self.reclaims += 1

    def publish(self, *replies: bytes) -> Sink:
        sink = Sink()
        msgs = [(b"s", b"", b"x")] * len(replies)
        self.intake.on_publish(Publish(msgs, list(replies), sink))
        return sink


# --- wakes ----------------------------------------------------------------------------------


def test_the_earliest_wake_of_a_cursor_counts_and_fires_once() -> None:
    wakes = CursorWakes()
    one, two = object(), object()
    for at, cursor in ((50, one), (20, two), (30, one), (90, one)):
        wakes.set(at, cursor)  # type: ignore[arg-type]
    assert wakes.next_ms() == 20
    assert list(wakes.pop_due(40)) == [two, one]
    assert list(wakes.pop_due(100)) == []


def test_a_cleared_or_dropped_wake_does_not_fire() -> None:
    wakes = CursorWakes()
    one: Any = object()
    wakes.set(10, one)
    wakes.set(0, one)
    assert list(wakes.pop_due(10)) == []
    wakes.set(20, one)
    wakes.drop(one)
    assert list(wakes.pop_due(20)) == [] and wakes.next_ms() == 0


def test_void_wakes_do_not_pile_up() -> None:
    wakes = CursorWakes()
    one: Any = object()
    for at in range(100_000, 0, -1):  # each earlier than the one before, which is void then
        wakes.set(at, one)
    assert len(wakes._heap) < 200
    assert list(wakes.pop_due(100_000)) == [one]


# --- proposals of cursors -------------------------------------------------------------------


def proposals(log: Any, now: TurnTime) -> ConsumerProposals:
    return ConsumerProposals(log, now, lambda command, now_ms: [*command, "light"])


def test_unforced_proposals_wait_for_company_or_their_time() -> None:
    log, now = Log(), TurnTime()
    waiting = proposals(log, now)
    now.ms = 100
    waiting.add([commands.ACKED, 1, 7, [1]], is_forced=False, tag=None)
    waiting.poll(has_company=False)
    assert not log.entries and waiting.due_ms == 100 + limits.UNFORCED_DELAY_MS
    now.ms = waiting.due_ms
    waiting.poll(has_company=False)
    assert len(log.entries) == 1 and not waiting and waiting.due_ms == 0
    waiting.add([commands.ACKED, 2, 7, [2]], is_forced=False, tag=None)
    waiting.poll(has_company=True)
    assert len(log.entries) == 2


def test_a_forced_proposal_takes_those_before_it_along_in_order() -> None:
    log = Log()
    waiting = proposals(log, TurnTime())
    waiting.add([commands.ACKED, 1, 7, [1]], is_forced=False, tag=None)
    waiting.add([commands.DELETE_CONSUMER, 2, "C", 7, "inactive"], is_forced=True, tag="t")
    waiting.poll(has_company=False)
    assert [command[0] for command, _ in log.entries] == [commands.ACKED, commands.DELETE_CONSUMER]
    command, tag = log.entries[1]
    assert command[-1] == "light" and tag.tag == "t"  # the removal was lightened


@pytest.mark.parametrize(("refusal", "kept"), [(ProposalRejected("full"), 2), (NotLeader(""), 0)])
def test_refused_proposals_are_kept_in_order_unless_another_member_leads(
    refusal: Exception, kept: int
) -> None:
    log = Log()
    waiting = proposals(log, TurnTime())
    for seq in (1, 2):
        waiting.add([commands.ACKED, seq, 7, [seq]], is_forced=True, tag=None)
    log.refusal = refusal
    waiting.flush()
    log.refusal = None
    waiting.flush()
    assert [command[1] for command, _ in log.entries] == [1, 2][:kept]


# --- publishes ------------------------------------------------------------------------------


def test_the_publishes_of_a_turn_share_an_entry_and_are_answered_each() -> None:
    bed = Bed()
    one, two = bed.publish(b"a", b"b"), bed.publish(b"c")
    bed.intake.propose()
    [(command, tag)] = bed.raft.entries
    assert command[0] == commands.STORE and len(command[2]) == 3
    assert command[1] == 1_000_001  # later than what is stored, whatever the clock says
    bed.intake.answer(tag, range(5, 8))
    assert one.acks == [([b"a", b"b"], [5, 6])]
    assert two.acks == [([b"c"], [7])]


def test_publishes_during_a_transfer_wait_and_go_to_the_next_leader() -> None:
    bed = Bed()
    bed.publish(b"a")
    bed.raft.is_handing_over = True
    bed.intake.propose()
    bed.publish(b"b")
    assert not bed.raft.entries and bed.intake.holds_unproposed
    bed.raft.is_leader = False
    bed.intake.on_leadership_lost()
    assert bed.passed_on == [[b"a"], [b"b"]]  # in the order in which they came
    assert bed.bounds.backlog.held_bytes == 0


def test_a_transfer_that_fails_lets_held_publishes_in() -> None:
    bed = Bed()
    bed.raft.is_handing_over = True
    bed.publish(b"a")
    bed.intake.poll_held()
    assert not bed.intake.has_msgs
    bed.raft.is_handing_over = False
    bed.intake.poll_held()
    bed.intake.propose()
    assert len(bed.raft.entries) == 1 and not bed.passed_on


def test_a_full_disk_refuses_publishes_and_asks_for_space() -> None:
    bed = Bed()
    bed.has_room = False
    sink = bed.publish(b"a")
    bed.intake.propose()
    [(replies, [error])] = sink.acks
    assert replies == [b"a"] and error == errors.INSUFFICIENT_RESOURCES()
    assert bed.reclaims == 1 and not bed.raft.entries


def test_a_closed_intake_answers_no_publish() -> None:
    bed = Bed()
    bed.intake.close()
    sink = bed.publish(b"a")
    bed.intake.propose()
    assert not sink.acks and not bed.raft.entries and not bed.passed_on


def test_the_backlog_counts_the_memory_of_small_messages() -> None:
    """It counted their bytes in the log: 128 MiB of those of 128 B took half a gigabyte."""
    bed = Bed()
    sink = Sink()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for chunk in range(100):
            numbers = range(chunk * 100, chunk * 100 + 100)
            msgs = [(b"bench.%d" % number, b"", b"%0128d" % number) for number in numbers]
            replies = [b"_INBOX.bench.%d" % number for number in numbers]
            bed.intake.on_publish(Publish(msgs, replies, sink))
            bed.intake.propose()
        del msgs, replies
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0 < taken <= bed.bounds.backlog.byte_count
    assert taken > bed.bounds.backlog.byte_count / 3, "the bound refuses far too early"


def test_the_backlog_of_the_node_counts_what_is_not_committed() -> None:
    bed = Bed()
    bed.publish(b"a")
    bed.intake.propose()
    size = bed.bounds.backlog.byte_count
    assert size > 0
    bed.intake.count_committed(size - 1)
    assert bed.bounds.backlog.byte_count == 1
    bed.intake.end()
    assert bed.bounds.backlog.byte_count == 0
