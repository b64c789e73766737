"""What leaves a stream, when, and what it leaves behind: age, TTL, markers, interest, limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamd import errors
from streamd.machine import commands
from streamd.machine.base import DROP, SEAL, Effects
from streamd.machine.indexes.block_table import BlockTable
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.message_locations import Locations
from streamd.machine.indexes.subject_table import FIRST, LAST, SEQS
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.block_codec import BlockCodec
from streamd.types import Entry
from tests.unit.machine.box import SECOND, Box


def expire_due(box: Box) -> None:
    """What the leader does when its clock says so."""
    command = box.machine.plan_expiry(box.now)
    assert command is not None and command[0] == commands.EXPIRE
    box.do(commands.EXPIRE, *command[2:])


def test_age_is_planned_and_applied() -> None:
    box = Box(max_age=10 * SECOND)
    box.put(b"a.1")
    box.put(b"a.2", seconds=4)
    first_ts = box.machine.index.locations.ts_at(1)
    assert box.machine.next_expiry_ns() == first_ts + 10 * SECOND
    assert box.machine.plan_expiry(first_ts + 10 * SECOND - 1) is None
    box.now = first_ts + 10 * SECOND
    expire_due(box)
    assert box.live() == [2]
    assert box.machine.next_expiry_ns() == box.machine.index.locations.ts_at(2) + 10 * SECOND


def test_ttl_leaves_from_the_middle() -> None:
    box = Box(allow_msg_ttl=True)
    box.put(b"a.1")
    box.put(b"a.2", TTL="5")
    box.put(b"a.3", TTL="1m")
    assert box.machine.next_expiry_ns() == box.machine.index.locations.ts_at(2) + 5 * SECOND
    box.now += 6 * SECOND
    expire_due(box)
    assert box.live() == [1, 3]
    box.machine = box.restored()
    assert box.machine.next_expiry_ns() == box.machine.index.locations.ts_at(3) + 60 * SECOND


def test_bad_ttl_is_refused() -> None:
    box = Box(allow_msg_ttl=True)
    for bad in ("0", "-1", "500ms", "soon", "1.5"):
        assert box.put(b"a.1", TTL=bad).err_code == 10165
    assert box.put(b"a.1", TTL="1h30m") == 1


def test_long_ttls_are_taken_as_far_as_time_goes() -> None:
    box = Box(allow_msg_ttl=True)
    for at, ttl in enumerate(("9999999999", str(2**63 - 1), "2562047h"), 1):
        assert box.put(b"a.1", TTL=ttl) == at
    assert box.put(b"a.1", TTL=2**63).err_code == 10165
    assert box.put(b"a.1", TTL="2562048h").err_code == 10165
    assert box.machine.plan_expiry(box.now + 100 * 365 * 86_400 * SECOND) is None
    assert box.restored().next_expiry_ns() == box.machine.next_expiry_ns() < 2**63


def test_never_outlives_age() -> None:
    box = Box(allow_msg_ttl=True, max_age=10 * SECOND)
    box.put(b"a.1", TTL="never")
    box.put(b"a.2")
    box.now += 20 * SECOND
    expire_due(box)
    assert box.live() == [1]
    assert box.machine.next_expiry_ns() == 0
    assert box.restored().next_expiry_ns() == 0


def test_a_block_read_again_gives_the_same_time_to_live() -> None:
    """Headers without their first line, as no client library sends them: stored, `never` was
    found in them; from the block, not, and two replicas expired different messages."""
    box = Box(allow_msg_ttl=True, max_age=10 * SECOND)
    box.store((b"a.1", b"Nats-TTL: never\r\n\r\n", b"x"), (b"a.2", b"", b"x"))
    other = box.restored(with_index=False)
    assert other.index.locations.flags_at(1) == box.machine.index.locations.flags_at(1)
    command = commands.encode([commands.EXPIRE, box.now + 20 * SECOND, 2, []])
    for machine in (box.machine, other):
        machine.apply(Entry(1, machine.applied + 1, command), Effects())
    assert other.digest == box.machine.digest


def test_marker_is_left_for_an_emptied_subject() -> None:
    box = Box(
        max_age=10 * SECOND,
        subject_delete_marker_ttl=60 * SECOND,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
    )
    box.put(b"a.1")
    box.put(b"a.2")
    box.put(b"a.2", seconds=8)
    box.now += 3 * SECOND
    expire_due(box)
    assert box.live() == [3, 4]
    marker = box.read(4)
    assert marker is not None
    assert marker.subject == b"a.1" and marker.payload == b""
    assert marker.headers == (
        b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m0s\r\nNats-Rollup: sub\r\n\r\n"
    )
    assert box.stored_last == 4
    box.now += 120 * SECOND
    expire_due(box)
    # The marker leaves no marker; the message of a.2 does.
    assert [box.machine.index.locations.subject_at(seq) for seq in box.live()] == [b"a.2"]


def test_ttl_is_raised_to_the_marker_ttl() -> None:
    box = Box(subject_delete_marker_ttl=60 * SECOND, allow_msg_ttl=True, allow_rollup_hdrs=True)
    box.put(b"a.1", TTL="5")
    stored = box.read(1)
    assert stored is not None and b"Nats-TTL: 60\r\n" in stored.headers
    assert box.machine.next_expiry_ns() == stored.ts + 60 * SECOND
    # With one message a subject there is no older one that could show again.
    box.config(max_msgs_per_subject=1)
    box.put(b"a.1", TTL="5")
    stored = box.read(2)
    assert stored is not None and b"Nats-TTL: 5\r\n" in stored.headers


def test_ttl_is_raised_to_whole_seconds() -> None:
    """Which is what it says after a start, when it is read from the message again."""
    box = Box(subject_delete_marker_ttl=2 * SECOND + 9, allow_msg_ttl=True, allow_rollup_hdrs=True)
    box.put(b"a.1", TTL="1")
    stored = box.read(1)
    assert stored is not None and b"Nats-TTL: 2\r\n" in stored.headers
    assert box.machine.next_expiry_ns() == stored.ts + 2 * SECOND
    box.put(b"a.1", TTL="2s")
    stored = box.read(2)
    assert stored is not None and b"Nats-TTL: 2s\r\n" in stored.headers


def test_an_older_message_that_shows_again_needs_no_marker() -> None:
    box = Box(subject_delete_marker_ttl=60 * SECOND, allow_msg_ttl=True, allow_rollup_hdrs=True)
    box.put(b"a.1")
    box.put(b"a.1", TTL="61")
    box.now += 62 * SECOND
    expire_due(box)
    assert box.live() == [1] and box.machine.index.last_seq == 2


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("is_restored", [False, True])
def test_removal_markers_leave_no_marker(is_batch: bool, is_restored: bool) -> None:
    """Nor does it when a start has read the flags of messages from their records again; and what
    is to stay for ever stays, whatever the age."""
    box = Box(
        max_age=100 * SECOND,
        subject_delete_marker_ttl=60 * SECOND,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        allow_atomic=True,
    )
    msgs = [
        (subject, b"NATS/1.0\r\n" + lines + b"\r\n\r\n", b"")
        for subject, lines in (
            (b"a.1", b"KV-Operation: PURGE\r\nNats-TTL: 60"),
            (b"a.2", b"Nats-Marker-Reason: Remove\r\nNats-TTL: 60"),
            (b"a.3", b"KV-Operation: DEL\r\nNats-TTL: 60"),
            (b"a.4", b"Nats-Marker-Reason:\r\nNats-TTL: 60"),
            (b"a.5", b"Nats-TTL: never"),
        )
    ]
    if is_batch:
        box.do(commands.STORE_BATCH, "b", msgs)
    else:
        box.store(*msgs)
    if is_restored:
        box.machine = box.restored(with_index=False)

    def live_after(seconds: int) -> list[bytes]:
        box.now += seconds * SECOND
        expire_due(box)
        return [box.machine.index.locations.subject_at(seq) for seq in box.live()]

    assert live_after(61) == [b"a.5", b"a.3", b"a.4"]
    assert live_after(61) == [b"a.5"]
    assert box.machine.next_expiry_ns() == 0


def test_markers_leave_though_nothing_else_has_an_age() -> None:
    box = Box(
        block_bytes=300,
        subject_delete_marker_ttl=60 * SECOND,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
    )
    box.store(*[(b"a.%d" % n, b"NATS/1.0\r\nNats-TTL: 60\r\n\r\n", b"") for n in range(9)])
    full = box.machine.index.blocks[-1].block_no
    box.now += 61 * SECOND
    expire_due(box)
    assert box.live() == list(range(10, 19))
    assert [block.block_no for block in box.machine.index.blocks] == [full + 1]
    assert box.restored(with_index=False).snapshot() == box.machine.snapshot()
    box.now += 61 * SECOND
    expire_due(box)
    assert box.live() == []


def test_interest_needs_a_consumer() -> None:
    """Without interest a seq is used up, nothing is stored; with it the last ack removes."""
    box = Box(retention="interest")
    assert box.put(b"a.1") == 1
    assert (box.machine.index.count, box.machine.index.first_seq) == (0, 2)
    one = box.consumer("one")
    two = box.consumer("two", filter_subject="a.2")
    assert box.store((b"a.1", b"", b""), (b"a.2", b"", b"")) == [2, 3]
    box.do(commands.DELIVERED, one.uid, [(2, 3, 1, False)], one.resets)
    box.do(commands.ACKED, one.uid, [2, 3])
    assert box.live() == [3]
    box.do(commands.DELIVERED, two.uid, [(3, 3, 1, False)], two.resets)
    box.do(commands.ACKED, two.uid, [3])
    assert box.live() == []
    assert box.machine.index.first_seq == 4


def test_messages_that_are_not_stored_need_no_room() -> None:
    """A full stream with interest retention refuses what somebody wants; of what nobody wants it
    still takes the seq, and the id."""
    box = Box(retention="interest", discard="new", max_msgs=1)
    box.consumer("one", filter_subject="a.1")
    assert box.put(b"a.1") == 1
    assert "maximum messages" in str(box.put(b"a.1"))
    assert box.put(b"a.2", Msg_Id="x") == 2
    assert box.put(b"a.2", Msg_Id="x") == (commands.DUPLICATE, 2)
    assert box.live() == [1]


def test_a_subject_that_reads_like_a_pattern_has_a_limit_of_its_own() -> None:
    """Clients may publish to `a.*`; it is text here, and pushes out nothing but its own kind."""
    box = Box(max_msgs_per_subject=300)
    box.store((b"a.>", b"", b""), (b"a.b", b"", b""))
    box.store(*[(b"a.*", b"", b""), (b"a.c", b"", b"")] * 299)
    assert box.machine.index.count == 600
    for _ in range(3):
        box.store(*[(b"a.*", b"", b"")] * 2)
    index = box.machine.index
    counts = {b"a.>": 1, b"a.b": 1, b"a.c": 299, b"a.*": 300}
    assert {subject: index.subjects.count_of(subject) for subject in counts} == counts
    assert box.do(commands.DELETE_MSG, index.last_seq, False) is True
    assert box.do(commands.DELETE_MSG, index.lookup.first_of(b"a.*"), False) is True
    assert index.lookup.last_of(b"a.*") == index.last_seq - 1
    assert index.locations.subject_at(index.lookup.first_of(b"a.*")) == b"a.*"


def test_a_work_queue_lets_go_of_what_was_acked_after_the_filter_changed() -> None:
    box = Box(retention="workqueue")
    box.store(*[(b"a.1", b"", b""), (b"a.2", b"", b"")] * 2)
    consumer = box.consumer("C", filter_subject="a.1")
    box.do(commands.DELIVERED, consumer.uid, [(1, 1, 1, False), (3, 3, 2, False)], 0)
    box.consumer("C", filter_subject="a.2")
    box.do(commands.ACKED, consumer.uid, [1])
    box.do(commands.TERMED, consumer.uid, [(3, "")])
    assert box.live() == [2, 4]


def test_interest_ends_with_the_consumer() -> None:
    box = Box(retention="interest")
    box.consumer("one")
    box.consumer("two", filter_subject="a.2")
    box.store((b"a.1", b"", b""), (b"a.2", b"", b""))
    assert box.do(commands.DELETE_CONSUMER, "one", 0, "") is True
    assert box.live() == [2]
    box.do(commands.DELETE_CONSUMER, "two", 0, "")
    assert box.live() == []


def test_skipped_seqs_inside_are_deleted_ones() -> None:
    box = Box(retention="interest")
    box.consumer("one", filter_subject="a.1")
    assert box.store((b"a.1", b"", b""), (b"a.9", b"", b""), (b"a.1", b"", b"")) == [1, 2, 3]
    assert box.live() == [1, 3]
    assert list(box.machine.index.live.deleted.ranges()) == [(2, 2)]
    assert box.restored(with_index=False).snapshot() == box.machine.snapshot()


def test_interest_ends_with_a_delivery_that_wants_no_ack() -> None:
    box = Box(retention="interest")
    one = box.consumer("one", ack_policy="none")
    two = box.consumer("two", filter_subject="a.2")
    box.store(*[(b"a.1", b"", b""), (b"a.2", b"", b"")] * 2)
    box.do(commands.POSITION, one.uid, 2, 2, one.resets)
    assert box.live() == [2, 3, 4]
    box.do(commands.DELIVERED, two.uid, [(2, 2, 1, False), (4, 4, 2, False)], two.resets)
    box.do(commands.ACKED, two.uid, [2, 4])
    assert box.live() == [3, 4]
    box.do(commands.PURGE, b"", 0, 0)
    box.do(commands.POSITION, one.uid, 3, 3, one.resets)  # planned before the purge
    assert one.info()["delivered"] == {"consumer_seq": 3, "stream_seq": 4}
    assert one.info()["ack_floor"] == {"consumer_seq": 3, "stream_seq": 4}


def test_interest_that_begins_with_the_last_of_each_subject_is_in_no_other() -> None:
    box = Box(retention="interest")
    everything = box.consumer("everything")
    box.store(*[(b"a.1", b"", b""), (b"a.2", b"", b"")] * 2)
    lasts = box.consumer("lasts", deliver_policy="last_per_subject", filter_subject="a.>")
    box.do(commands.DELIVERED, everything.uid, [(1, 4, 1, False)], 0)
    box.do(commands.ACKED, everything.uid, [1, 2, 3, 4])
    assert box.live() == [3, 4]
    box.do(commands.DELIVERED, lasts.uid, [(3, 4, 1, False)], 0)
    box.do(commands.ACKED, lasts.uid, [3, 4])
    assert box.live() == []


def test_interest_stays_in_what_was_given_up_and_ends_if_that_is_acked() -> None:
    """After max_deliver attempts a message stays for somebody who looks after such ones."""
    box = Box(retention="interest")
    one, two = box.consumer("one", max_deliver=1), box.consumer("two")
    box.store((b"a.1", b"", b""), (b"a.1", b"", b""))
    for each in (one, two):
        box.do(commands.DELIVERED, each.uid, [(1, 2, 1, False)], each.resets)
    box.do(commands.DEAD, one.uid, [1, 7])
    box.do(commands.ACKED, two.uid, [1, 2])
    assert box.live() == [1, 2]
    assert one.info()["num_ack_pending"] == 1
    assert one.info()["num_redelivered"] == 0  # nothing ever is, with one attempt
    box.do(commands.ACKED, one.uid, [1, 2])
    assert box.live() == []


@pytest.mark.parametrize("is_restored", [False, True])
def test_an_ack_of_all_covers_what_was_given_up(is_restored: bool) -> None:
    """Such messages stayed for ever, though all who wanted them had said that they are done."""
    box = Box(retention="interest")
    box.consumer("one", ack_policy="all", max_deliver=2)
    box.store(*[(b"a.1", b"", b"")] * 5)
    one = box.machine.consumers["one"]
    box.do(commands.DELIVERED, one.uid, [(1, 4, 1, False), (2, 2, 5, True)], one.resets)
    box.do(commands.DEAD, one.uid, [4, 2])
    if is_restored:
        box.machine = box.restored()
        one = box.machine.consumers["one"]
    box.do(commands.ACKED, one.uid, [2])  # itself
    assert box.live() == [3, 4, 5]
    assert one.info()["num_redelivered"] == 1
    box.do(commands.TERMED, one.uid, [(3, "")])  # the floor goes on over what was given up
    assert one.floor_sseq == 4
    assert box.live() == [4, 5]
    box.do(commands.ACKED, one.uid, [4])
    assert box.live() == [5]
    assert one.info()["num_redelivered"] == 0


def test_workqueue_removes_at_the_ack() -> None:
    box = Box(retention="workqueue")
    box.store((b"a.1", b"", b""), (b"a.1", b"", b""))
    one = box.consumer("one")
    box.do(commands.DELIVERED, one.uid, [(1, 2, 1, False)], one.resets)
    box.do(commands.ACKED, one.uid, [2])
    assert box.live() == [1]
    box.do(commands.ACKED, one.uid, [1])
    assert box.live() == [] and box.machine.index.first_seq == 3
    assert one.num_pending == 0


def test_new_limits_apply_at_once() -> None:
    box = Box()
    box.store(*[(b"a.%d" % (n % 2), b"", b"") for n in range(10)])
    assert box.config(max_msgs_per_subject=2) is True
    assert box.live() == [7, 8, 9, 10]
    box.config(max_msgs=1)
    assert box.live() == [10]


def test_old_config_is_ignored() -> None:
    """A CONFIGURE told twice, or late, changes nothing."""
    box = Box()
    config = box.machine.config
    assert box.do(commands.CONFIGURE, config | {"max_msgs": 1}, 3) is True
    assert box.machine.config["name"] == "S" and "max_msgs" not in box.machine.config


def test_a_deletion_that_names_another_consumer_is_none() -> None:
    """A leader that gave one up for its inactivity, and had not heard that its name came back."""
    box = Box(retention="interest")
    box.consumer("one")
    gone = box.machine.consumers["one"].uid
    assert box.do(commands.DELETE_CONSUMER, "one", gone, "inactive") is True
    box.consumer("one")
    box.put(b"a.1")
    refused = box.do(commands.DELETE_CONSUMER, "one", gone, "inactive")
    assert refused == errors.CONSUMER_NOT_FOUND()
    assert list(box.machine.consumers) == ["one"]
    assert box.live() == [1]


def test_purge_below_a_seq_moves_consumers_on() -> None:
    box = Box()
    box.store(*[(b"a.1", b"", b"")] * 6)
    box.consumer("C")
    box.consumer("D")
    consumer, idle = box.machine.consumers["C"], box.machine.consumers["D"]
    box.do(commands.DELIVERED, consumer.uid, [(1, 3, 1, False)], 0)
    box.do(commands.ACKED, consumer.uid, [1])
    assert box.do(commands.PURGE, b"", 5, 0) == 4
    assert consumer.info() == {
        "delivered": {"consumer_seq": 3, "stream_seq": 4},
        "ack_floor": {"consumer_seq": 3, "stream_seq": 4},
        "num_ack_pending": 0,
        "num_redelivered": 0,
        "num_pending": 2,
    }
    assert idle.info()["delivered"] == {"consumer_seq": 0, "stream_seq": 4}
    box.do(commands.DELIVERED, consumer.uid, [(5, 5, 4, False)], 0)
    assert consumer.info()["num_pending"] == 1
    assert box.restored().consumers["C"].info() == consumer.info()


def test_rollup_of_everything_moves_consumers_on() -> None:
    box = Box(allow_rollup_hdrs=True)
    box.store(*[(b"a.1", b"", b"")] * 2)
    box.consumer("C")
    consumer = box.machine.consumers["C"]
    box.do(commands.DELIVERED, consumer.uid, [(1, 1, 1, False)], 0)
    assert box.put(b"a.1", Rollup="all") == 3
    info = consumer.info()
    assert info["delivered"] == {"consumer_seq": 1, "stream_seq": 2}
    assert info["ack_floor"] == {"consumer_seq": 1, "stream_seq": 2}
    assert (info["num_pending"], info["num_ack_pending"]) == (1, 0)


@pytest.mark.parametrize("per_subject", [-1, 3])
def test_rollup_of_everything_looks_at_no_message(
    per_subject: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million messages took a second, of every replica at once."""
    box = Box(allow_rollup_hdrs=True, max_msgs_per_subject=per_subject)
    for _ in range(4):
        box.store(*[(b"a.%d" % number, b"", bytes(90)) for number in range(30)])
    assert box.sealed(), "of several blocks"
    box.do(commands.DELETE_MSG, 7, False)

    def no_removal(*_: object) -> None:
        raise AssertionError("each was looked at")

    monkeypatch.setattr(box.machine.index, "remove", no_removal)
    monkeypatch.setattr(LiveMessages, "seqs", no_removal)
    assert box.put(b"a.x", Rollup="all") == 121
    monkeypatch.undo()
    only = Box(allow_rollup_hdrs=True, max_msgs_per_subject=per_subject)
    only.do(commands.PURGE, b"", 121, 0)
    only.put(b"a.x", Rollup="all")
    shown = ("messages", "bytes", "first_seq", "last_seq", "num_subjects", "num_deleted")
    assert [box.machine.state()[key] for key in shown] == [
        only.machine.state()[key] for key in shown
    ]
    assert box.read(121).payload == b"x"
    assert not box.sealed(), "dead blocks are given back"
    again = box.restored()
    assert (again.digest, again.fingerprint()) == (box.machine.digest, box.machine.fingerprint())
    assert box.put(b"a.x") == 122
    assert box.machine.index.subjects.count_of(b"a.x") == 2


def test_purge_beyond_the_end_moves_the_stream() -> None:
    box = Box()
    box.store((b"a.1", b"", b""), (b"a.1", b"", b""))
    assert box.do(commands.PURGE, b"", 10, 0) == 2
    state = box.machine.state()
    assert (state["first_seq"], state["last_seq"], state["messages"]) == (10, 9, 0)
    assert box.put(b"a.1") == 10


def test_purge_below_the_first_seq_removes_nothing() -> None:
    box = Box()
    box.store((b"a.1", b"", b""), (b"a.2", b"", b""))
    assert box.do(commands.PURGE, b"", 1, 0) == 0
    assert box.do(commands.PURGE, b"a.1", 1, 0) == 0
    assert box.live() == [1, 2]
    assert box.do(commands.PURGE, b"", 0, 0) == 2


def test_filtered_purge_below_a_seq_beyond_the_end_ends() -> None:
    box = Box()
    box.store((b"a.1", b"", b""), (b"a.2", b"", b""), (b"a.1", b"", b""))
    assert box.do(commands.PURGE, b"a.2", 9, 0) == 1
    assert box.do(commands.PURGE, b"a.*", 9, 1) == 1
    assert box.live() == [3]


def test_state_of_a_new_stream() -> None:
    box = Box()
    state = box.machine.state()
    assert (state["first_seq"], state["last_seq"], state["first_ts"]) == (0, 0, 0)
    box = Box(first_seq=100)
    state = box.machine.state()
    assert (state["first_seq"], state["last_seq"]) == (100, 99)
    assert box.put(b"a.1") == 100


def test_dead_blocks_are_dropped_and_a_big_dead_one_is_left() -> None:
    box = Box(block_bytes=4 * 1024 * 1024)
    box.store((b"a.1", b"", b"x" * 1_100_000))
    out = Effects()
    entry = Entry(1, 2, commands.encode([commands.PURGE, box.now, b"", 0, 0]))
    box.machine.apply(entry, out)
    assert [op[0] for op in out.block_ops] == [SEAL, DROP]
    assert box.machine.tail == (2, 64)


def test_time_never_goes_back() -> None:
    """A new leader's clock may be behind: stored times still grow with the seq."""
    box = Box()
    box.put(b"a.1")
    box.now -= 3600 * SECOND
    box.put(b"a.1")
    index: Any = box.machine.index
    assert index.locations.ts_at(2) > index.locations.ts_at(1)
    assert index.locations.seq_at_time(index.locations.ts_at(2)) == 2
    assert index.locations.seq_at_time(index.locations.ts_at(2) + 1) == 3
    assert index.locations.seq_at_time(0) == 1


def test_bad_footer_is_read_again_from_the_records() -> None:
    box = Box(block_bytes=300)
    for n in range(12):
        box.put(b"a.%d" % n)
    block_no = next(iter(box.blocks.footers))
    box.blocks.footers[block_no] = box.blocks.footers[block_no][:-3] + b"zzz"
    assert box.restored(with_index=False).snapshot() == box.machine.snapshot()


def test_index_of_another_moment_is_not_used() -> None:
    box = Box()
    box.put(b"a.1")
    stale = box.machine.index_db()
    box.put(b"a.2")
    again = StreamMachine.restore(
        box.machine.snapshot(),
        stale,
        codec=BlockCodec(),
        columns=box.blocks,
        scan=box.blocks.scan,
    )
    assert set(again.index.subjects.rows) == {b"a.1", b"a.2"}


def test_an_entry_may_ask_for_a_block_that_it_sealed_after_many_others() -> None:
    """Its footer is not stored yet, and so many columns were asked for since that those of the
    sealed block would have been let go of."""
    box = Box(block_bytes=300, max_msgs_per_subject=1)
    box.machine.index.blocks._cache.bytes_max = 1  # one block
    subjects = [b"a.%d" % number for number in range(20)]
    for subject in subjects:
        box.store((subject, b"", bytes(50)))
    sealed = box.machine.index.blocks.active
    while not box.machine.index.blocks.is_full():
        subjects.append(b"a.%d" % len(subjects))
        box.store((subjects[-1], b"", bytes(50)))
    box.store(*[(subject, b"", b"new") for subject in subjects])
    assert sealed.is_sealed
    assert box.machine.index.count == len(subjects)
    assert {box.read(seq).payload for seq in box.live()} == {b"new"}  # type: ignore[union-attr]


def test_a_key_written_again_is_found_without_a_search() -> None:
    """A bucket's usual work: one message per subject, each replaced by the next. Which one is the
    oldest must be known, or every write would walk the stream for it."""
    box = Box(block_bytes=300, max_msgs_per_subject=1)
    for _ in range(3):
        for number in range(20):
            box.put(b"a.%d" % number)

    def search(*args: Any) -> Any:
        raise AssertionError(args)

    box.machine.index.lookup.select = search  # type: ignore[method-assign]
    for number in range(20):
        box.put(b"a.%d" % number)
    box.store(*[(b"a.%d" % number, b"", b"x") for number in range(20)])
    assert box.machine.index.count == 20


def test_the_last_of_a_subject_left_by_age_is_found_without_a_search() -> None:
    box = Box(block_bytes=300)
    for _ in range(2):
        for number in range(5):
            box.put(b"a.%d" % number)
    box.do(commands.EXPIRE, 5, [])
    for number in range(5):
        row = box.machine.index.subjects.rows[b"a.%d" % number]
        assert row[FIRST] == row[LAST] == 6 + number


def test_a_new_limit_per_subject_walks_the_stream_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was searched from each subject's first message on."""
    box = Box()
    for _ in range(20):
        box.store(*((b"a.%d" % number, b"", b"") for number in range(50)))
    looked: list[int] = []
    columns_of = BlockTable.columns

    def count(blocks: BlockTable, block: Any) -> Any:
        looked.append(block.block_no)
        return columns_of(blocks, block)

    monkeypatch.setattr(BlockTable, "columns", count)
    box.config(max_msgs_per_subject=1)
    assert box.live() == list(range(951, 1001))
    blocks = len(set(looked))
    assert len(looked) <= 3 * blocks  # to find them, to remove them, and what `live` asks


def test_a_key_with_one_value_has_no_list_of_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list each, for a million keys: 700 MB more for `max_msgs_per_subject` 5 than for 1. And a
    bucket that is to remember more from now on is not read for it, in one turn on each replica."""
    box = Box(max_msgs_per_subject=1, block_bytes=500)
    for _ in range(2):
        box.store(*[(b"a.%d" % number, b"", b"") for number in range(50)])
    box.do(commands.DELETE_MSG, 70, False)
    walked: list[int] = []

    def walk(locations: Locations) -> Iterator[tuple[int, bytes]]:
        walked.append(1)
        yield from ()

    monkeypatch.setattr(Locations, "live_subjects", walk)
    box.config(max_msgs_per_subject=3)
    assert not walked
    rows = box.machine.index.subjects.rows.values()
    assert [row[SEQS] for row in rows] == [None] * 49
    box.store(*[(b"a.7", b"", b"")] * 2)
    assert box.machine.index.subjects.rows[b"a.7"][SEQS] == [58, 101, 102]
    box.put(b"a.7")
    assert box.live()[-4:] == [100, 101, 102, 103] and 58 not in box.live()
    box.do(commands.PURGE, b"a.7", 0, 1)
    assert box.machine.index.subjects.rows[b"a.7"][:3] == [103, 103, 1]
    assert [row[SEQS] for row in rows] == [None] * 49
