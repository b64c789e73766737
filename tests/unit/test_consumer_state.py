"""Consumer: what may be created and changed, what is told, what survives a snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.errors import CorruptionError, JsError
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.consumers.consumer import Consumer, sample_percent
from streamd.machine.consumers.consumer_checks import check_create, check_reset, is_same
from streamd.machine.rfc3339 import format_ns, parse_ns
from tests.unit.consumer_bed import START_NS, Bed

SECOND = 1_000_000_000


def refusal(bed: Bed, name: str, action: str = "", **config: Any) -> int:
    full = {"name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
    found = check_create(name, full, action, stream_config=bed.config, consumers=bed.consumers)
    return 0 if found is None else found.err_code


def test_action_decides_between_create_and_update() -> None:
    bed = Bed()
    assert refusal(bed, "C", "update") == 10149
    assert refusal(bed, "C", "create") == 0
    bed.create()
    assert refusal(bed, "C", "create") == 0  # the same again
    assert refusal(bed, "C", "create", description="x") == 10148
    assert refusal(bed, "C", "update", description="x") == 0


@pytest.mark.parametrize(
    ("change", "is_equal"),
    [
        ({}, True),
        ({"description": None}, True),
        ({"metadata": {"a": "b", "_nats.ver": "2.99", "_nats.level": "9"}}, True),
        ({"metadata": {"a": "c"}}, False),
        ({"filter_subject": "", "filter_subjects": ["x"]}, True),
        ({"filter_subject": "", "filter_subjects": ["x", "y"]}, False),
        ({"filter_subject": "y"}, False),
        ({"pause_until": format_ns(START_NS)}, True),  # it has an endpoint of its own
        ({"max_deliver": 7}, False),
    ],
)
def test_which_configs_ask_for_the_same_consumer(change: dict[str, Any], is_equal: bool) -> None:
    config = {"name": "C", "filter_subject": "x", "metadata": {"a": "b"}}
    assert is_same(config, config | change) is is_equal
    assert is_same(config | change, config) is is_equal


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"deliver_policy": "new"}, "deliver policy can not be updated"),
        ({"ack_policy": "none"}, "ack policy can not be updated"),
        ({"replay_policy": "original"}, "replay policy can not be updated"),
        ({"max_waiting": 3}, "max waiting can not be updated"),
        ({"mem_storage": True}, "storage type can not be updated"),
        ({"deliver_subject": "d"}, "can not update pull consumer to push based"),
    ],
)
def test_fields_that_cannot_be_updated_are_refused(change: dict[str, Any], text: str) -> None:
    bed = Bed()
    bed.create()
    with pytest.raises(JsError) as caught:
        bed.create(**change)
    assert caught.value.err_code == 10012
    assert text in str(caught.value)


def test_work_queue_shares_nothing_between_consumers() -> None:
    bed = Bed(retention="workqueue")
    assert refusal(bed, "C", ack_policy="none") == 10084
    assert refusal(bed, "C", ack_policy="all") == 10098
    assert refusal(bed, "C", deliver_policy="new") == 10101
    bed.create("A", filter_subject="w.a")
    assert refusal(bed, "B", filter_subject="w.a") == 10100
    assert refusal(bed, "B", filter_subject="w.*") == 10100
    assert refusal(bed, "B") == 10099
    assert refusal(bed, "B", filter_subjects=["w.b", "w.c"]) == 0
    bed = Bed(retention="workqueue")
    bed.create("A")
    assert refusal(bed, "B", filter_subject="w.a") == 10100


def test_limits_of_the_stream_bind_its_consumers() -> None:
    limits = {"max_ack_pending": 10, "inactive_threshold": 2 * SECOND}
    bed = Bed(consumer_limits=limits, max_consumers=1)
    assert refusal(bed, "C", max_ack_pending=100) == 10121
    assert refusal(bed, "C", max_ack_pending=5, inactive_threshold=3 * SECOND) == 10153
    assert refusal(bed, "C", max_ack_pending=5, num_replicas=3) == 10126
    assert refusal(bed, "C", max_ack_pending=5, deliver_subject="s.x") == 10081
    bed.create(max_ack_pending=5)
    assert refusal(bed, "D", max_ack_pending=5) == 10026
    assert refusal(bed, "C", max_ack_pending=6) == 0
    assert refusal(bed, "D", max_ack_pending=5, direct=True) == 0
    bed.create("D", max_ack_pending=5, direct=True)
    assert refusal(bed, "C", max_ack_pending=7, description="x") == 0


def test_consumers_of_interest_streams_are_on_all_replicas() -> None:
    bed = Bed(retention="interest", num_replicas=3)
    assert [refusal(bed, "C", num_replicas=count) for count in (0, 1, 3, 5)] == [0, 10134, 0, 10126]
    bed = Bed(num_replicas=3)
    assert [refusal(bed, "C", num_replicas=count) for count in (0, 1, 3, 5)] == [0, 0, 0, 10126]


def test_a_push_consumer_stays_one() -> None:
    bed = Bed()
    bed.create(deliver_subject="d")
    with pytest.raises(JsError, match="can not update push consumer to pull based"):
        bed.create()
    bed.create(deliver_subject="e")


def test_reset_is_allowed_where_the_start_allows_it() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 8)
    when = format_ns(bed.index.rows[4][1])
    for name, config, seq, text in (
        ("a", {}, 99, ""),
        ("b", {"deliver_policy": "new"}, 3, "not allowed"),
        ("b2", {"deliver_policy": "new"}, 0, ""),
        ("c", {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, 3, "below start seq"),
        ("d", {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, 7, ""),
        ("e", {"deliver_policy": "by_start_time", "opt_start_time": when}, 4, "below start time"),
        ("f", {"deliver_policy": "by_start_time", "opt_start_time": when}, 5, ""),
    ):
        bed.create(name, **config)
        found = check_reset(bed.consumers[name], seq)
        assert text == ("" if found is None else found.description.removeprefix("invalid reset: "))


def test_last_per_subject_of_a_stream_that_keeps_no_other() -> None:
    """As in a key-value bucket without history: there is nothing to skip, so no list is made."""
    bed = Bed(max_msgs_per_subject=1)
    bed.store(b"a", b"b", b"c")
    bed.create(deliver_policy="last_per_subject", filter_subject="c")
    consumer = bed.consumers["C"]
    assert consumer.remaining.initial == []
    assert bed.info().delivered == (0, 0)
    assert bed.info().pending == 1
    assert bed.pull(b"5").seqs() == [3]


def test_sampled_acks_are_told_with_their_time() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 100)
    bed.create(sample_freq="30%", max_ack_pending=-1)
    bed.pull(b"100")
    bed.advance(20)
    for sseq in range(1, 101):
        bed.ack(sseq)
    told = [fields for kind, fields in bed.effects.events if kind == "consumer_ack"]
    assert len(told) == 30
    assert all(fields["ack_time"] >= 20_000_000 for fields in told)
    assert {fields["deliveries"] for fields in told} == {1}
    assert [sample_percent(text) for text in ("", "0", "7", "100%", "900", "x")] == [
        0, 0, 7, 100, 100, 0,
    ]  # fmt: skip


def test_state_survives_a_snapshot() -> None:
    bed = Bed()
    bed.store(b"a", b"b", b"a", b"b", b"c")
    bed.create(deliver_policy="last_per_subject", filter_subjects=["a", "b"], ack_wait=SECOND)
    bed.pull(b"1")
    bed.advance(1500)
    bed.pull(b"1")
    bed.ack(3, b"-NAK 5s")
    consumer = bed.consumers["C"]
    state = commands.decode(commands.encode(consumer.to_state()))
    again = Consumer.from_state(state, bed)
    assert consumer.pending and consumer.redelivered and consumer.naked  # else this tells nothing
    for name in ("pending", "redelivered", "naked", "next_sseq", "floor_sseq"):
        assert getattr(again, name) == getattr(consumer, name), name
    assert again.to_state()[:14] == consumer.to_state()[:14]
    assert (
        again.remaining.initial
        == consumer.remaining.initial[consumer.remaining.initial_at :]
        == [4]
    )
    assert again.info() == consumer.info()
    assert again.num_pending == 1


def test_an_unfiltered_consumer_needs_no_hook_unless_it_starts_beyond_the_end() -> None:
    bed = Bed()
    bed.create("plain")
    bed.create("beyond", deliver_policy="by_start_sequence", opt_start_seq=4)
    assert not bed.consumers["plain"].remaining.needs_store_hook
    assert bed.consumers["beyond"].remaining.needs_store_hook
    bed.store(*[b"a"] * 6)
    assert not bed.consumers["beyond"].remaining.needs_store_hook
    assert bed.consumers["beyond"].num_pending == 3
    assert bed.consumers["plain"].num_pending == 6


def test_an_update_of_something_else_leaves_the_count_right_before_the_start() -> None:
    """A consumer that starts beyond the end, and is made again as clients do when they begin."""
    bed = Bed()
    bed.create(deliver_policy="by_start_sequence", opt_start_seq=4)
    consumer = bed.consumers["C"]
    consumer.update(consumer.config | {"description": "again"})
    bed.store(*[b"a"] * 6)
    assert consumer.num_pending == 3


@pytest.mark.parametrize("policy", ["explicit", "none"])
@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("a", ""), ("", "b")])
def test_messages_of_an_earlier_filter_are_not_counted_by_the_next(
    policy: str, before: str, after: str
) -> None:
    """Deliveries that are planned while a new filter is in the log come behind it there."""
    bed = Bed()
    bed.store(*[b"a", b"b", b"b"] * 4)
    bed.create(filter_subject=before, ack_policy=policy)
    bed.pull(b"1")
    bed.cursors["C"].flush()
    bed.apply()
    bed.is_auto = False
    bed.pull(b"3")
    consumer = bed.consumers["C"]
    consumer.update(consumer.config | {"filter_subject": after})
    bed.cursors["C"].on_applied([commands.CREATE_CONSUMER, 0, "C"])
    bed.is_auto = True
    for _ in range(2):
        pending = bed.info().pending
        assert pending == bed.index.lookup.count_from(consumer.next_sseq, consumer.matcher)
        state = commands.decode(commands.encode(consumer.to_state()))
        again = Consumer.from_state(state, bed)
        assert (again.info(), again.to_state()) == (consumer.info(), consumer.to_state())
        assert bed.pull(b'{"batch":1,"no_wait":true}', reply=b"next").msgs
    assert bed.info().pending == pending - 1


def test_acks_behind_a_waiting_message_are_forgotten() -> None:
    """With a filter each message is a range of its own; the floor moves as if all were there."""
    bed = Bed()
    bed.create(filter_subject="a")
    consumer = bed.consumers["C"]
    bed.store(b"a")
    bed.pull(b"2000")
    for _ in range(5):
        bed.store(*[b"b", b"a"] * 100)
        for sseq in [sseq for sseq in consumer.pending if sseq > 1 and sseq % 100 != 1]:
            bed.ack(sseq)
    assert len(consumer.pending) == 11
    assert len(consumer.to_state()[17]) < 100
    assert bed.info().floor == (0, 0)
    bed.ack(1)
    assert bed.info().floor == (50, 100)
    bed.ack(101)
    assert bed.info().floor == (100, 200)
    for sseq in list(consumer.pending):
        bed.ack(sseq)
    assert bed.info().floor == bed.info().delivered


def say(bed: Bed, kind: int, *fields: Any, name: str = "C") -> Consumer:
    """Apply a command about a consumer, as if it came out of the log."""
    consumer = bed.consumers[name]
    consumer.apply([kind, bed.now_ns(), consumer.uid, *fields], bed.effects)
    return consumer


def held(consumer: Consumer) -> list[Any]:
    """What a consumer remembers of deliveries that are not settled."""
    return [[*consumer.pending], dict(consumer.redelivered), [*consumer.naked]]


def test_acks_of_messages_that_are_not_pending_mean_nothing() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 4)
    bed.create()
    bed.pull(b"3")
    bed.ack(2)
    consumer = bed.consumers["C"]
    before = consumer.to_state()
    for kind, items in (
        (commands.ACKED, [2, 4]),
        (commands.NAKED, [(2, 0), (4, 0)]),
        (commands.TERMED, [(2, "why"), (4, "why")]),
        (commands.PROGRESS, [2, 4]),
        (commands.DEAD, [2, 4]),
    ):
        say(bed, kind, items)
        assert (consumer.to_state(), bed.effects.events) == (before, []), kind
    say(bed, commands.DELIVERED, [(2, 2, 4, True)], 0)  # sent again just before its ack came
    assert held(consumer) == [[1, 3], {}, []]
    assert consumer.delivered_cseq == 4


@pytest.mark.parametrize(
    ("kind", "items", "left"),
    [
        (commands.DELIVERED, [(1, 1, 3, True)], [[1, 2], {1: 2}, []]),
        (commands.PROGRESS, [1], [[1, 2], {}, []]),
        (commands.ACKED, [1], [[2], {}, []]),
        (commands.TERMED, [(1, "why")], [[2], {}, []]),
        (commands.DEAD, [1], [[2], {1: 1}, []]),
    ],
)
def test_a_delay_ends_with_what_comes_next(kind: int, items: list[Any], left: list[Any]) -> None:
    bed = Bed()
    bed.store(b"a", b"a")
    bed.create()
    bed.pull(b"2")
    consumer = say(bed, commands.NAKED, [(1, 5 * SECOND)])
    assert consumer.naked == {1: bed.now_ns() + 5 * SECOND}
    say(bed, kind, items, *([0] if kind == commands.DELIVERED else []))
    assert held(consumer) == left


def test_failed_deliveries_are_reported() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 3)
    bed.create()
    bed.pull(b"3")
    say(bed, commands.DELIVERED, [(2, 2, 4, True)], 0)
    consumer = say(bed, commands.NAKED, [(1, 0), (2, 0)])
    say(bed, commands.TERMED, [(1, "why")])
    assert (consumer.floor_cseq, consumer.floor_sseq) == (1, 1)
    say(bed, commands.DEAD, [2])
    told = [(kind, f["stream_seq"], f["deliveries"]) for kind, f in bed.effects.events]
    assert told == [
        ("consumer_naked", 1, 1),
        ("consumer_naked", 2, 2),
        ("consumer_terminated", 1, 1),
        ("consumer_max_deliver", 2, 2),
    ]
    assert bed.effects.events[2][1]["reason"] == "why"


def test_an_ack_of_all_settles_what_was_sent_again_or_delayed() -> None:
    bed = Bed(retention="interest")
    bed.store(*[b"a"] * 6)
    bed.create(ack_policy="all")
    bed.pull(b"5")
    say(bed, commands.DELIVERED, [(1, 1, 6, True)], 0)
    consumer = say(bed, commands.NAKED, [(2, 0), (4, 0)])
    say(bed, commands.ACKED, [3])
    assert held(consumer) == [[4, 5], {}, [4]]
    assert (consumer.floor_cseq, consumer.floor_sseq) == (3, 3)
    say(bed, commands.ACKED, [2, 6, 9])  # long acked; not delivered
    say(bed, commands.ACKED, [4])
    assert (consumer.floor_cseq, consumer.floor_sseq) == (4, 4)
    say(bed, commands.ACKED, [5])
    assert held(consumer) == [[], {}, []]
    assert (consumer.floor_cseq, consumer.floor_sseq) == (6, 5)
    assert bed.acked == [("C", [1, 2, 3]), ("C", [4]), ("C", [5])]


@pytest.mark.parametrize("is_purge", [False, True])
def test_messages_that_leave_the_stream_are_settled(is_purge: bool) -> None:
    bed = Bed()
    bed.store(*[b"a"] * 4)
    bed.create()
    bed.pull(b"3")
    say(bed, commands.DELIVERED, [(2, 3, 4, True)], 0)
    say(bed, commands.NAKED, [(2, 0)])
    consumer = say(bed, commands.DEAD, [1])
    bed.effects.events.clear()
    if is_purge:
        bed.purge(3)
    else:
        bed.remove(1, 2)
    assert held(consumer) == [[3], {3: 2}, []]
    assert (consumer.floor_cseq, consumer.floor_sseq) == (2, 2)
    assert consumer.num_pending == 1
    if is_purge:
        assert bed.effects.events == []  # of many at once nobody is told
        return
    ((kind, fields),) = bed.effects.events
    assert (kind, fields["stream_seq"], fields["deliveries"]) == ("consumer_terminated", 2, 2)
    assert fields["reason"] == "Unacknowledged message was deleted"


def test_deliveries_that_crossed_a_purge_leave_only_kept_messages_pending() -> None:
    bed = Bed()
    bed.store(*[b"a"] * 6)
    bed.create()
    bed.purge(3)
    consumer = say(bed, commands.DELIVERED, [(1, 2, 1, False), (1, 5, 3, False)], 0)
    assert consumer.pending == {seq: (seq + 2, bed.now_ns()) for seq in (3, 4, 5)}
    assert (consumer.delivered_cseq, consumer.delivered_sseq, consumer.num_pending) == (7, 5, 1)
    assert (consumer.floor_cseq, consumer.floor_sseq) == (0, 2)


def test_a_purge_takes_what_was_listed_at_the_start() -> None:
    bed = Bed()
    bed.store(b"a", b"b", b"c", b"a")
    bed.create(deliver_policy="last_per_subject", filter_subject=">")
    assert bed.pull(b"1").seqs() == [2]
    bed.purge(4)
    consumer = bed.consumers["C"]
    assert (consumer.remaining.initial, consumer.remaining.initial_at, consumer.num_pending) == (
        [4],
        0,
        1,
    )
    assert bed.pull(b"1", reply=b"next").seqs() == [4]
    bed.store(b"b")
    assert bed.pull(b"1", reply=b"last").seqs() == [5]


def test_a_filtered_consumer_stands_at_the_end_when_all_of_its_own_was_purged() -> None:
    bed = Bed()
    bed.store(b"a", b"b", b"a", b"b")
    bed.create("A", filter_subject="a")
    bed.create("C", filter_subject="c")
    bed.purge(5, b"a")
    assert bed.info("A").delivered == bed.info("A").floor == (0, 4)
    assert bed.info("C").delivered == bed.info("C").floor == (0, 1)  # where the stream begins now
    bed.store(b"a", b"c")
    assert bed.pull(b"1", "A", b"a").seqs() == [5]
    assert bed.pull(b"1", "C", b"c").seqs() == [6]


def test_an_update_does_not_resume_a_paused_consumer() -> None:
    bed = Bed()
    bed.create()
    consumer = bed.consumers["C"]
    consumer.pause(START_NS + SECOND, now_ns=START_NS)
    consumer.update({"name": "C", "ack_policy": "explicit", "description": "again"})
    assert consumer.paused_until_ns == START_NS + SECOND
    assert consumer.config["pause_until"] == format_ns(START_NS + SECOND)
    consumer.pause(0, now_ns=START_NS)
    consumer.update(consumer.config | {"pause_until": format_ns(START_NS + SECOND)})
    assert consumer.paused_until_ns == 0


def test_a_pause_that_is_over_stays_in_the_config_until_a_resume() -> None:
    bed = Bed()
    bed.create()
    consumer = bed.consumers["C"]
    start_ns = consumer.created_ns
    until_ns, text = start_ns + SECOND, format_ns(start_ns + SECOND)
    assert consumer.pause(until_ns, now_ns=start_ns)
    assert not consumer.pause(until_ns, now_ns=start_ns)  # as it is
    assert consumer.pause(until_ns, now_ns=until_ns)  # its time has come
    assert (consumer.paused_until_ns, consumer.config["pause_until"]) == (0, text)
    assert not consumer.pause(until_ns, now_ns=until_ns)
    consumer.update({"name": "C", "ack_policy": "explicit"})
    assert (consumer.paused_until_ns, consumer.config["pause_until"]) == (0, text)
    assert consumer.pause(0, now_ns=until_ns) and "pause_until" not in consumer.config
    assert consumer.pause(start_ns, now_ns=until_ns)  # over from the start
    assert (consumer.paused_until_ns, consumer.config["pause_until"]) == (0, format_ns(start_ns))


@pytest.mark.parametrize("policy", ["explicit", "none"])
def test_a_reset_forgets_all_that_went_before(policy: str) -> None:
    """Also what was sent before it, and is applied after it."""
    bed = Bed()
    bed.store(*[b"a", b"b", b"c"] * 2)
    bed.create(ack_policy=policy, deliver_policy="last_per_subject", filter_subject=">")
    bed.pull(b"1")
    consumer = bed.consumers["C"]
    if policy == "explicit":
        say(bed, commands.DELIVERED, [(4, 4, 2, True)], 0)
        say(bed, commands.NAKED, [(4, SECOND)])
    else:
        say(bed, commands.POSITION, 4, 1, 0)
    bed.remove(6)
    consumer.reset(3)
    say(bed, commands.DELIVERED, [(5, 5, 3, False)], 0)
    if policy == "none":
        say(bed, commands.POSITION, 5, 2, 0)
    state = consumer.to_state()
    assert state[5:15] == [0, 2, 0, 2, 3, 0, [], [], [], []]
    assert state[15:18] == [1, 0, []]  # of resets, and of what was removed ahead and delivered
    assert consumer.num_pending == 3


def test_an_ack_of_all_that_was_delivered_before_a_reset_means_nothing_after_it() -> None:
    """Both were in the log by then, and the floor stays below what is delivered (I7)."""
    bed = Bed()
    bed.store(*[b"a"] * 10)
    bed.create(ack_policy="all")
    bed.pull(b"6")
    consumer = bed.consumers["C"]
    consumer.reset(3)
    consumer.apply([commands.ACKED, START_NS, consumer.uid, [6]], Effects())
    assert (consumer.floor_sseq, consumer.delivered_sseq) == (2, 2)


def test_times_as_go_writes_them() -> None:
    assert format_ns(START_NS + 120_000_000) == "2023-11-14T22:13:20.12Z"
    assert parse_ns("2023-11-14T23:13:20.12+01:00") == START_NS + 120_000_000
    assert format_ns(0) == "0001-01-01T00:00:00Z"
    assert parse_ns(format_ns(0)) == 0
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_ns("yesterday")


def test_states_of_a_later_version_are_refused_in_words() -> None:
    """After a downgrade: the reason in the log was a bare number."""
    bed = Bed()
    bed.create()
    state = bed.consumers["C"].to_state()
    state[0] += 1
    with pytest.raises(CorruptionError, match=r"consumer 'C' has unknown version 3"):
        Consumer.from_state(state, bed)


def test_fields_that_a_later_version_adds_are_refused_in_words() -> None:
    """Passed over, what they say would be lost without a word."""
    bed = Bed()
    bed.create()
    state = bed.consumers["C"].to_state()
    assert Consumer.from_state([*state, [1]], bed).remaining.parked == {1: None}
    with pytest.raises(CorruptionError, match=r"consumer 'C' has 1 unknown fields"):
        Consumer.from_state([*state, [1], 0], bed)
