"""What a publish is refused for, and in which order: headers, sizes, room, duplicates, batches."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import errors
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.streams import publish
from tests.unit.machine.box import SECOND, Box, header_block


def code(outcome: Any) -> int:
    assert isinstance(outcome, JsError), outcome
    return outcome.err_code


def test_plain_batch_gives_a_range() -> None:
    box = Box()
    assert box.store((b"a.1", b"", b"x"), (b"a.2", b"", b"y")) == range(1, 3)
    assert box.stored_last == 2


def test_duplicate_id_gives_the_first_seq() -> None:
    box = Box()
    assert box.put(b"a.1", Msg_Id="m1") == 1
    assert box.put(b"a.2", Msg_Id="m1") == (commands.DUPLICATE, 1)
    assert box.machine.index.last_seq == 1


def test_duplicate_within_one_entry_is_seen() -> None:
    box = Box()
    block = b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n"
    assert box.store((b"a.1", block, b""), (b"a.1", b"", b""), (b"a.1", block, b"")) == [
        1,
        2,
        (commands.DUPLICATE, 1),
    ]


def test_id_is_forgotten_after_the_window() -> None:
    box = Box(duplicate_window=2 * SECOND)
    assert box.put(b"a.1", Msg_Id="m1") == 1
    assert box.put(b"a.1", Msg_Id="m1", seconds=1) == (commands.DUPLICATE, 1)
    assert box.put(b"a.1", Msg_Id="m1", seconds=2) == 2
    box.now += 2 * SECOND - 2_000_000  # and a millisecond with each command
    assert box.put(b"a.1", Msg_Id="m1") == (commands.DUPLICATE, 2)
    assert box.put(b"a.1", Msg_Id="m1") == 3, "when it is over, not after that"


@pytest.mark.parametrize(
    ("headers", "is_once"),
    [
        ({}, False),
        ({"Msg_Id": "m"}, True),
        ({"Msg_Id": "m", "TTL": 5}, True),
        ({"Msg_Id": ""}, False),
        ({"Note": "Nats-Msg-Id: m"}, False),
        ({"Msg_Id": "m", "Expected_Stream": "S"}, False),
        ({"Msg_Id": "m", "Expected_Last_Sequence": 0}, False),
    ],
)
def test_publishes_that_may_be_sent_again_after_a_lost_leader(
    headers: dict[str, Any], is_once: bool
) -> None:
    """What the id decides, whatever else has been stored since. An expectation would be refused
    the second time, though it was met the first."""
    assert publish.is_stored_once(header_block(headers)) is is_once


def test_window_survives_a_restart() -> None:
    box = Box()
    box.put(b"a.1", Msg_Id="m1")
    box.machine = box.restored()
    assert box.put(b"a.1", Msg_Id="m1") == (commands.DUPLICATE, 1)


def test_expected_stream() -> None:
    box = Box()
    assert box.put(b"a.1", Expected_Stream="S") == 1
    assert box.put(b"a.1", Expected_Stream="T") == errors.STREAM_NOT_MATCH()


def test_expected_last_seq_sees_the_entry_so_far() -> None:
    box = Box()
    expect = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n"
    assert box.store((b"a.1", b"", b""), (b"a.1", expect, b""), (b"a.1", expect, b"")) == [
        1,
        2,
        errors.STREAM_WRONG_LAST_SEQUENCE(seq=2),
    ]
    assert code(box.put(b"a.1", Expected_Last_Sequence="zz")) == 10071


def test_expected_last_subject_seq() -> None:
    box = Box()
    assert box.put(b"a.1", Expected_Last_Subject_Sequence=0) == 1
    refused = box.put(b"a.1", Expected_Last_Subject_Sequence=0)
    assert refused == errors.STREAM_WRONG_LAST_SEQUENCE(seq=1)
    assert box.put(b"a.2", Expected_Last_Subject_Sequence=0) == 2
    both = {"Expected_Last_Subject_Sequence_Subject": "a.*"}
    assert box.put(b"a.3", Expected_Last_Subject_Sequence=2, **both) == 3
    assert code(box.put(b"a.3", Expected_Last_Subject_Sequence=2, **both)) == 10071
    assert code(box.put(b"a.3", **both)) == 10193


def test_expected_last_msg_id() -> None:
    box = Box()
    box.put(b"a.1", Msg_Id="m1")
    assert box.put(b"a.1", Expected_Last_Msg_Id="m1") == 2
    assert box.put(b"a.1", Expected_Last_Msg_Id="m1") == errors.STREAM_WRONG_LAST_MSG_ID(id="")


def test_dedupe_comes_after_expectations() -> None:
    """A duplicate with a wrong expectation is refused: the documented order of checks."""
    box = Box()
    box.put(b"a.1", Msg_Id="m1")
    assert code(box.put(b"a.1", Msg_Id="m1", Expected_Last_Sequence=9)) == 10071


def test_ids_are_forgotten_when_no_message_has_one_any_more() -> None:
    """Messages without headers looked at no id: those of the last window stayed for ever."""
    box = Box()
    for number in range(50):
        box.put(b"a.1", Msg_Id=f"m{number}")
    box.put(b"a.1", seconds=110)
    assert len(box.machine.content.dedupe) == 50
    box.put(b"a.1", seconds=11)
    assert len(box.machine.content.dedupe) == 0


def test_sizes() -> None:
    box = Box(max_msg_size=10)
    assert code(box.put(b"a.1", b"x" * 11)) == 10054
    assert box.put(b"a.1", b"x" * 10) == 1
    assert code(box.put(b"a.1", b"", Colour="a long value")) == 10054


def test_size_is_checked_before_what_headers_ask_for() -> None:
    box = Box(max_msg_size=40)
    box.put(b"a.1", b"", Msg_Id="m")
    long = b"x" * 50
    assert code(box.put(b"a.1", long, Expected_Stream="T")) == 10054
    assert code(box.put(b"a.1", long, Expected_Last_Sequence=99)) == 10054
    assert code(box.put(b"a.1", long, Msg_Id="m")) == 10054
    assert code(box.put(b"a.1", long, TTL="5")) == 10054
    box = Box()
    assert code(box.put(b"a.1", Long="x" * 65536, Expected_Last_Sequence=99)) == 10097


def test_a_record_has_a_bound() -> None:
    """Also on the short way, where nothing else is checked."""
    box = Box()
    assert code(box.put(b"a.1", bytes(33 * 1024 * 1024))) == 10077


def test_headers_have_a_bound() -> None:
    box = Box()
    assert code(box.put(b"a.1", Long="x" * 65536)) == 10097


def test_room_with_discard_new() -> None:
    box = Box(discard="new", max_msgs=2)
    assert box.store((b"a.1", b"", b""), (b"a.1", b"", b""), (b"a.1", b"", b"")) == [
        1,
        2,
        errors.STREAM_STORE_FAILED(err="maximum messages exceeded"),
    ]
    box = Box(discard="new", max_bytes=100)
    assert box.put(b"a.1", b"x" * 60) == 1
    refused = box.put(b"a.1", b"x" * 60)
    assert refused == errors.STREAM_STORE_FAILED(err="maximum bytes exceeded")


def test_discard_new_never_evicts() -> None:
    """Bytes are counted as they will be stored, and a stream may be filled to its last byte."""
    box = Box(discard="new", max_bytes=100)  # 43 each
    outcomes = [box.put(b"a.1", b"x" * 10) for _ in range(4)]
    assert outcomes[:2] == [1, 2]
    assert [code(each) for each in outcomes[2:]] == [10077, 10077]
    assert box.live() == [1, 2]
    box = Box(discard="new", max_bytes=86)
    assert [box.put(b"a.1", b"x" * 10) for _ in range(2)] == [1, 2]
    box = Box(discard="new", max_bytes=87, storage="memory")  # 29 each
    assert [box.put(b"a.1", b"x" * 10) for _ in range(3)] == [1, 2, 3]
    assert code(box.put(b"a.1", b"")) == 10077
    box = Box(discard="new", max_bytes=100)
    assert box.put(b"a.1", b"x" * 10, Colour="blue") == 1  # 30 + 3 + 4 + 32 + 10
    assert code(box.put(b"a.1", b"")) == 10077


def test_discard_new_keeps_what_it_let_in_when_limits_shrink() -> None:
    box = Box(discard="new")
    box.store(*[(b"a.1", b"", b"x")] * 5)
    box.config(max_msgs=2)
    box.config(max_bytes=50)
    assert box.live() == [1, 2, 3, 4, 5]
    assert code(box.put(b"a.1")) == 10077


def test_replacing_with_a_bigger_one_needs_room() -> None:
    box = Box(discard="new", max_msgs_per_subject=1, max_bytes=100)
    assert [box.put(b"a.1", b"x" * 10), box.put(b"a.2", b"x" * 10)] == [1, 2]
    assert box.put(b"a.1", b"x" * 10) == 3
    assert code(box.put(b"a.1", b"x" * 11)) == 10077
    assert box.live() == [2, 3]


def test_room_per_subject() -> None:
    box = Box(discard="new", max_msgs_per_subject=1, discard_new_per_subject=True)
    assert box.put(b"a.1") == 1
    text = "maximum messages per subject exceeded"
    assert box.put(b"a.1") == errors.STREAM_STORE_FAILED(err=text)
    assert box.put(b"a.2") == 2


def test_replacing_needs_no_room() -> None:
    """A key-value bucket (discard new, history 1) that is full still takes updates of its keys."""
    box = Box(discard="new", max_msgs_per_subject=1, max_msgs=2)
    assert [box.put(b"a.1"), box.put(b"a.2")] == [1, 2]
    assert code(box.put(b"a.3")) == 10077
    assert box.put(b"a.1") == 3
    assert box.live() == [2, 3]


def test_rollup_is_none_too_many_of_its_subject() -> None:
    limits = {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True}
    box = Box(allow_rollup_hdrs=True, **limits)
    assert box.put(b"a.1") == 1
    assert code(box.put(b"a.1")) == 10077
    assert box.put(b"a.1", Rollup="sub") == 2
    assert box.machine.index.count == 1


def test_ttl_that_makes_no_sense_is_no_ttl_where_none_is_allowed() -> None:
    box = Box()
    assert code(box.put(b"a.1", TTL="x")) == 10165
    assert code(box.put(b"a.1", TTL="x", Expected_Last_Sequence=9)) == 10071
    assert box.put(b"a.1", TTL="") == 1


def test_rollup_rules() -> None:
    for box in (Box(), Box(allow_rollup_hdrs=True, deny_purge=True)):
        refused = box.put(b"a.1", Rollup="sub")
        assert refused == errors.STREAM_ROLLUP_FAILED(err="rollup not permitted")
    box = Box(allow_rollup_hdrs=True)
    assert code(box.put(b"a.1", Rollup="most")) == 10111
    box.store((b"a.1", b"", b""), (b"a.2", b"", b""), (b"a.1", b"", b""))
    assert box.put(b"a.1", Rollup="SUB") == 4
    assert box.live() == [2, 4]
    assert box.put(b"a.3", Rollup="all") == 5
    assert box.live() == [5]


def test_features_that_are_off() -> None:
    box = Box()
    assert code(box.put(b"a.1", TTL="5")) == 10166
    assert code(box.put(b"a.1", Incr="1")) == 10168
    assert code(box.put(b"a.1", Schedule="@at 2030-01-01T00:00:00Z")) == 10188
    assert code(box.put(b"a.1", Stream_Source="T 1")) == 10227


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    """Python does not read them; an entry that can't be applied would end the stream for good."""
    box = Box(allow_msg_ttl=True)
    for text in ("9" * 5000, "9" * 5000 + "s", "9" * 20, "9" * 20 + "s"):
        assert code(box.put(b"a.1", TTL=text)) == 10165, text[:20]
    assert box.put(b"a.1", TTL="0" * 5000 + "5") == 1
    assert box.put(b"a.1", TTL="1." + "5" * 5000 + "s") == 2
    assert code(box.put(b"a.1", Expected_Last_Sequence="9" * 5000)) == 10071


def test_operations_that_the_config_forbids_are_always_refused() -> None:
    """The API refuses it too, by the config that it knows."""
    box = Box(deny_purge=True)
    box.put(b"a.1")
    assert code(box.do(commands.PURGE, b"", 0, 0)) == 10110
    assert box.do(commands.DELETE_MSG, 1, False) is True
    box = Box(deny_delete=True)
    box.put(b"a.1")
    assert code(box.do(commands.DELETE_MSG, 1, False)) == 10057
    assert box.do(commands.PURGE, b"", 0, 0) == 1


def test_publishes_are_refused_where_the_seqs_end() -> None:
    """A purge may name any seq of 64 bits; the stream goes on there, and must not stop for good."""
    box = Box(allow_atomic=True)
    box.put(b"a.1")
    assert box.do(commands.PURGE, b"", (1 << 64) - 3, 0) == 1
    assert box.machine.index.last_seq == (1 << 64) - 4
    msg = [b"a.1", b"", b""]
    assert [code(each) for each in box.store(*[tuple(msg)] * 3)] == [10077] * 3
    assert code(box.do(commands.STORE_BATCH, "b", [msg] * 3)) == 10077
    assert box.store(tuple(msg)) == range((1 << 64) - 3, (1 << 64) - 2)
    assert box.put(b"a.1", Msg_Id="m") == (1 << 64) - 2
    assert code(box.put(b"a.1")) == 10077
    box.consumer("C", deliver_policy="new")
    assert box.restored().state() == box.machine.state()


def test_sealed_refuses_everything() -> None:
    box = Box()
    box.put(b"a.1")
    box.config(sealed=True, deny_delete=True, deny_purge=True)
    assert code(box.put(b"a.1")) == 10109
    assert code(box.do(commands.PURGE, b"", 0, 0)) == 10109
    assert code(box.do(commands.DELETE_MSG, 1, False)) == 10109


def batch(box: Box, *msgs: tuple[bytes, dict[str, Any]]) -> Any:
    rows = [(subject, header_block(headers), b"x") for subject, headers in msgs]
    return box.do(commands.STORE_BATCH, "b1", rows)


def test_atomic_batch_is_all_or_nothing() -> None:
    box = Box(allow_atomic=True)
    assert batch(box, (b"a.1", {}), (b"a.2", {"Msg_Id": "m"})) == (2, 2)
    refused = batch(box, (b"a.1", {}), (b"a.2", {"Expected_Last_Subject_Sequence": 7}))
    assert refused == errors.STREAM_WRONG_LAST_SEQUENCE(seq=2)
    assert code(batch(box, (b"a.1", {}), (b"a.2", {"Msg_Id": "m"}))) == 10201
    assert code(batch(box, (b"a.1", {"Msg_Id": "n"}), (b"a.2", {"Msg_Id": "n"}))) == 10201
    assert box.machine.index.last_seq == 2
    assert box.machine.index.count == 2


@pytest.mark.parametrize(
    ("config", "headers", "payload", "err_code"),
    [
        ({"max_msg_size": 10}, {}, b"x" * 11, 10054),
        ({}, {"Long": "x" * 65536}, b"", 10097),
        ({}, {}, bytes(33 * 1024 * 1024), 10077),
        ({"sealed": True}, {}, b"", 10109),
        ({}, {"Incr": 1}, b"", 10168),
        ({}, {"Expected_Stream": "T"}, b"", 10060),
        ({}, {"TTL": 5}, b"", 10166),
        ({"allow_msg_ttl": True}, {"TTL": "soon"}, b"", 10165),
        ({}, {"Schedule": "@at 2030-01-01T00:00:00Z"}, b"", 10188),
        ({}, {"Stream_Source": "T 1"}, b"", 10227),
        ({}, {"Rollup": "sub"}, b"", 10111),
        ({"allow_rollup_hdrs": True, "deny_purge": True}, {"Rollup": "sub"}, b"", 10111),
        ({}, {"Expected_Last_Subject_Sequence_Subject": "a.*"}, b"", 10193),
    ],
)
def test_messages_refused_alone_are_refused_in_a_batch(
    config: dict[str, Any], headers: dict[str, Any], payload: bytes, err_code: int
) -> None:
    box = Box(allow_atomic=True, **config)
    alone = box.put(b"a.2", payload, **headers)
    assert code(alone) == err_code
    msgs = [(b"a.1", b"", b""), (b"a.2", header_block(headers), payload)]
    assert box.do(commands.STORE_BATCH, "b1", msgs) == alone
    assert box.machine.index.last_seq == 0


def test_a_batch_goes_into_the_next_block_when_one_is_full() -> None:
    box = Box(allow_atomic=True, block_bytes=200)
    for last in (3, 6, 9):
        assert batch(box, *[(b"a.1", {})] * 3) == (last, 3)
    assert len(box.sealed()) == 2
    assert box.restored(with_index=False).snapshot() == box.machine.snapshot()


def test_ids_in_a_batch_are_forgotten_after_the_window() -> None:
    box = Box(allow_atomic=True, duplicate_window=2 * SECOND)
    assert batch(box, (b"a.1", {"Msg_Id": "m"})) == (1, 1)
    assert code(batch(box, (b"a.1", {"Msg_Id": "m"}))) == 10201
    box.now += 2 * SECOND
    assert batch(box, (b"a.1", {"Msg_Id": "m"})) == (2, 1)


def test_a_batch_stores_what_somebody_is_interested_in() -> None:
    """What nobody wants uses up its seq, and its id is remembered."""
    box = Box(allow_atomic=True, retention="interest")
    box.consumer("C", filter_subject="a.1")
    given = [(b"a.1", {}), (b"a.2", {"Msg_Id": "m"}), (b"a.1", {}), (b"a.2", {})]
    assert batch(box, *given) == (4, 4)
    assert box.live() == [1, 3]
    assert box.put(b"a.1", Msg_Id="m") == (commands.DUPLICATE, 2)
    assert batch(box, (b"a.2", {}), (b"a.2", {})) == (6, 2)
    assert box.machine.index.last_seq == 6
    assert box.restored(with_index=False).snapshot() == box.machine.snapshot()


def test_atomic_batch_judges_by_the_state_before_it() -> None:
    box = Box(allow_atomic=True)
    box.put(b"a.1")
    assert batch(box, (b"a.1", {"Expected_Last_Subject_Sequence": 1}), (b"a.2", {})) == (3, 2)
    again = (b"a.1", {"Expected_Last_Subject_Sequence": 2})
    assert code(batch(box, (b"a.1", {}), again)) == 10164
    refused = batch(box, (b"a.1", {}), (b"a.1", {"Expected_Last_Sequence": 3}))
    assert refused == errors.STREAM_WRONG_LAST_SEQUENCE(seq=4)
    assert code(batch(box, (b"a.1", {}), (b"a.1", {"Expected_Last_Sequence": 4}))) == 10164
    assert batch(box, (b"a.9", {"Expected_Last_Sequence": 3}), (b"a.8", {})) == (5, 2)
    assert code(batch(box, (b"a.1", {"Expected_Last_Msg_Id": "m"}))) == 10177


def test_a_subject_that_reads_like_a_pattern_is_none_in_a_batch() -> None:
    box = Box()
    own = (b"a.*", {"Expected_Last_Subject_Sequence": 0})
    assert batch(box, (b"a.1", {}), own) == (2, 2)
    other = {"Expected_Last_Subject_Sequence": 2, "Expected_Last_Subject_Sequence_Subject": "a.*"}
    assert code(batch(box, (b"a.1", {}), (b"a.2", other))) == 10164


def test_atomic_batch_counts_room_for_all() -> None:
    box = Box(allow_atomic=True, discard="new", max_msgs=2)
    assert code(batch(box, (b"a.1", {}), (b"a.2", {}), (b"a.3", {}))) == 10077
    assert box.machine.index.count == 0
    assert batch(box, (b"a.1", {}), (b"a.2", {})) == (2, 2)
    box = Box(allow_atomic=True, discard="new", max_bytes=2 * size_of_one())
    assert code(batch(box, (b"a.1", {}), (b"a.2", {}), (b"a.3", {}))) == 10077
    assert box.machine.index.count == 0
    assert batch(box, (b"a.1", {}), (b"a.2", {})) == (2, 2)


def size_of_one() -> int:
    """What a message of such a batch takes."""
    box = Box(allow_atomic=True)
    batch(box, (b"a.1", {}))
    return box.machine.index.live.bytes


def test_atomic_batch_counts_its_own_messages_of_a_subject() -> None:
    new = {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 2}
    box = Box(allow_atomic=True, **new)
    assert box.put(b"a.1") == 1
    assert code(batch(box, (b"a.1", {}), (b"a.2", {}), (b"a.1", {}))) == 10077
    assert batch(box, (b"a.1", {}), (b"a.2", {}), (b"a.2", {})) == (4, 3)
    assert box.live() == [1, 2, 3, 4]


def test_rollup_in_a_batch_keeps_what_follows_it() -> None:
    box = Box(allow_atomic=True, allow_rollup_hdrs=True)
    box.store((b"a.1", b"", b""), (b"a.2", b"", b""))
    assert batch(box, (b"a.1", {"Rollup": "sub"}), (b"a.1", {})) == (4, 2)
    assert box.live() == [2, 3, 4]
    assert code(batch(box, (b"a.1", {}), (b"a.1", {"Rollup": "sub"}))) == 10111
    assert code(batch(box, (b"a.1", {}), (b"a.9", {"Rollup": "all"}))) == 10111
    assert batch(box, (b"a.1", {"Rollup": "all"}), (b"a.2", {})) == (6, 2)
    assert box.live() == [5, 6]


def test_a_delete_of_a_missing_message_is_refused() -> None:
    box = Box()
    box.store((b"a.1", b"", b""), (b"a.1", b"", b""), (b"a.1", b"", b""))
    assert box.do(commands.DELETE_MSG, 2, False) is True
    assert box.do(commands.DELETE_MSG, 2, False) == errors.SEQUENCE_NOT_FOUND(seq=2)
    assert code(box.do(commands.DELETE_MSG, 0, False)) == 10057
    assert code(box.do(commands.DELETE_MSG, 9, False)) == 10057
    box = Box(storage="memory")  # where nats-server words it otherwise
    assert box.do(commands.DELETE_MSG, 9, False) == errors.SEQUENCE_NOT_FOUND(seq=9)


def test_a_republished_message_tells_the_one_before_it_on_its_subject() -> None:
    box = Box(block_bytes=300, republish={"src": "a.>", "dest": "copy.>"}, max_msgs_per_subject=1)
    for batch in ([b"a.1", b"a.2", b"a.1"], [b"a.1", b"a.3", b"a.2"]):
        box.store(*[(subject, b"", b"x") for subject in batch])
    told = [(f["seq"], f["last_seq"]) for kind, f in box.events if kind == "republish"]
    assert told == [(1, 0), (2, 0), (3, 1), (4, 3), (5, 0), (6, 2)]
    box.do(commands.DELETE_MSG, 6, False)
    box.store((b"a.2", b"", b"x"))
    assert box.events[-1][1]["last_seq"] == 0


@pytest.mark.parametrize("republish", [{"src": ">", "dest": ""}, {"src": "a.>"}, {}, None])
def test_a_republish_without_a_destination_copies_nothing(republish: Any) -> None:
    """A copy would have the message's own subject: stored here again, and copied again."""
    box = Box(republish=republish)
    box.store((b"a.1", b"", b"x"))
    assert not [kind for kind, _ in box.events if kind == "republish"]


def old_store(box: Box, headers: bytes, *, batch: str = "") -> Any:
    """Apply an entry of a release that named no rules."""
    box.now += 1_000_000
    msgs = [[b"a.1", headers, b"x"]]
    if batch:
        return box.apply(commands.encode([commands.STORE_BATCH, box.now, batch, msgs]))
    return next(iter(box.apply(commands.encode([commands.STORE, box.now, msgs]))))


@pytest.mark.parametrize(
    "line",
    [b"Nats-Msg-Id: one ", b"Nats-Msg-Id:\tone", b"Nats-Msg-Id: one \r\nA: 1"],
)
def test_an_entry_is_applied_by_the_rules_it_was_proposed_by(line: bytes) -> None:
    """What was a duplicate when it was acked is one whenever the log is applied again."""
    headers = b"NATS/1.0\r\n" + line + b"\r\n\r\n"
    box = Box()
    box.put(b"a.1", Msg_Id="one")
    assert old_store(box, headers) == (commands.DUPLICATE, 1)
    assert code(old_store(box, headers, batch="b")) == 10201
    assert box.machine.index.last_seq == 1


@pytest.mark.parametrize(
    "line", [b"Nats-Scheduler: a.2", b"Nats-Schedule-Next: purge", b"Nats-Schedule-Next: x"]
)
def test_messages_stored_by_old_entries_stay_stored(line: bytes) -> None:
    headers = b"NATS/1.0\r\n" + line + b"\r\n\r\n"
    box = Box()
    assert old_store(box, headers) == 1
    assert old_store(box, headers, batch="b") == (2, 1)
    assert code(box.store((b"a.1", headers, b""))[0]) == 10212


@pytest.mark.parametrize("key", [b"Nats-Schedule", b"Nats-Stream-Source"])
def test_messages_refused_by_old_entries_stay_refused(key: bytes) -> None:
    headers = b"NATS/1.0\r\n" + key + b": \r\n\r\n"
    box = Box()
    assert code(old_store(box, headers)) in (10188, 10227)
    assert code(old_store(box, headers, batch="b")) in (10188, 10227)
    assert box.store((b"a.1", headers, b"")) == [1], "without a value it is not given"


def test_blanks_behind_a_value_belong_to_it() -> None:
    box = Box(allow_msg_ttl=True, allow_rollup_hdrs=True)
    for number, value in enumerate((b"one", b" one ", b"\tone", b" one  "), 1):
        headers = b"NATS/1.0\r\nNats-Msg-Id:" + value + b"\r\n\r\n"
        assert box.store((b"a.1", headers, b"")) == [number]
    assert box.put(b"a.1", Msg_Id="  one") == (commands.DUPLICATE, 1)
    assert code(box.put(b"a.1", TTL="5 ")) == 10165
    assert code(box.put(b"a.1", Rollup="sub ")) == 10111
    assert code(box.put(b"a.1", Expected_Stream="S ")) == 10060
