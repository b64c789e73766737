"""Members of fast batches on their leader: reply subjects, receivers, and batches left alone."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import errors, limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.node.stream_groups import stream_inbox
from streamd.node.stream_groups.fast_members import FastLot, read
from tests.unit.node.test_refused_proposals import Leader

WRONG = (
    (b"$FI", 10206),
    (b"b.10.ok.1.0.$FI", 10206),
    (b"in.b.10.ok.0.0.$FI", 10206),
    (b"in.b.10.ok.2.0.$FI", 10206),
    (b"in.b.10.ok.1.1.$FI", 10206),
    (b"in.b.10.ok.1.3.$FI", 10206),
    (b"in.b.10.ok.1.5.$FI", 10206),
    (b"in.b.10.ok.+1.2.$FI", 10206),
    (b"in.b.10.ok.18446744073709551616.1.$FI", 10206),
    (b"in.b.10.OK.1.0.$FI", 10206),
    (b"in." + b"i" * 65 + b".10.ok.1.0.$FI", 10207),
)


@pytest.mark.parametrize(("reply", "err_code"), WRONG)
def test_replies_that_name_no_member(reply: bytes, err_code: int) -> None:
    found = read(reply)
    assert isinstance(found, JsError) and found.err_code == err_code


def test_replies_are_read_from_the_right() -> None:
    assert read(b"a.b.c.id.7.fail.1.0.$FI") == [b"id", 0, 7, 1, 0, 1]
    assert read(b"a.id.x.ok.012.1.$FI") == [b"id", 1, 10, 12, 1, 1]
    assert read(b"a.id.99999.ok.5.4.$FI") == [b"id", 1, 65535, 5, 4, 1]


class Sink:
    def __init__(self) -> None:
        self.told: list[tuple[bytes, Any]] = []

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        self.told += zip(replies, outcomes, strict=True)


def replies(first: int, last: int, batch: str = "b", op: int = 1) -> list[bytes]:
    return [b"in.%b.10.ok.%d.%d.$FI" % (batch.encode(), n, op) for n in range(first, last + 1)]


def test_members_that_follow_each_other_share_a_row_and_each_is_answered_at_its_reply() -> None:
    lot, one, other = FastLot(), Sink(), Sink()
    start = [*replies(1, 1, op=0), *replies(2, 6), b"in.b.10.ok.x.1.$FI", *replies(7, 9)]
    lot.add(b"S", [(b"s", b"", b"%d" % n) for n in range(len(start))], start, one)
    lot.add(b"S", [(b"s", b"", b"")] * 3, [*replies(10, 11), *replies(1, 1, "c", 0)], other)
    assert [(row[0], *row[3:]) for row in lot.members] == [
        (b"b", 1, 0, 1), (b"b", 2, 1, 5), (b"b", 7, 1, 3), (b"b", 10, 1, 2), (b"c", 1, 0, 1),
    ]  # fmt: skip
    assert sum(int(row[5]) for row in lot.members) == len(lot.msgs) == 12
    assert [reply for reply, _ in one.told] == [b"in.b.10.ok.x.1.$FI"]
    lot.answer(b"S", [(8, [1, 2]), (9, [3]), (11, [4])], has_acks=True)
    assert one.told[1:] == [(b"in.b.10.ok.9.1.$FI", 1), (b"in.b.10.ok.9.1.$FI", 2)]
    assert other.told == [(b"in.b.10.ok.10.1.$FI", 3), (b"in.c.10.ok.1.0.$FI", 4)]


def send(leader: Leader, names: list[bytes], headers: bytes = b"") -> list[tuple[bytes, Any]]:
    sink = Sink()
    leader.post(stream_inbox.Publish([(b"s.1", headers, b"x")] * len(names), names, sink))
    return sink.told


def test_members_and_other_publishes_of_one_chunk_are_stored_in_order() -> None:
    leader = Leader(allow_batched=True)
    told = send(leader, [*replies(1, 1, op=0), *replies(2, 3), b"plain", *replies(4, 4, op=2)])
    assert dict(told)[b"plain"] == 4 and dict(told)[b"in.b.10.ok.4.2.$FI"] == (5, 4, "b")
    kinds = [entry.command[0] for _, entry in sorted(leader.oracle.items()) if entry.command]
    assert kinds[-3:] == [commands.STORE_FAST, commands.STORE, commands.STORE_FAST]


def test_the_api_level_is_taken_out_of_what_is_stored() -> None:
    leader = Leader(allow_batched=True)
    send(leader, replies(1, 1, op=0), b"NATS/1.0\r\nNats-Required-Api-Level: 1\r\n\r\n")
    told = send(leader, replies(2, 2), b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n")
    assert [outcome.err_code for _, outcome in told] == [errors.REQUIRED_API_LEVEL().err_code]
    stored = [e.command[2] for e in leader.oracle.values() if e.command and e.command[0] == 43]
    assert [bytes(msg[1]) for msgs in stored for msg in msgs] == [b"", b""]


def test_a_batch_left_alone_is_dropped_after_its_time_and_one_in_use_is_not() -> None:
    leader = Leader(allow_batched=True)
    send(leader, replies(1, 1, op=0))
    send(leader, replies(1, 1, "c", op=0))
    for seq in range(2, 8):
        leader.pass_time(limits.BATCH_IDLE_MS_MAX // 3)
        send(leader, replies(seq, seq))
    assert leader.machine.content.fast_batches.ids() == [b"b"]
    leader.restart()
    assert leader.machine.content.fast_batches.ids() == [b"b"]
    for _ in range(4):
        leader.pass_time(limits.BATCH_IDLE_MS_MAX // 3 + 400)
    assert leader.machine.content.fast_batches.ids() == []


def test_so_many_may_be_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FAST_BATCHES_PER_STREAM_MAX", 2)
    leader = Leader(allow_batched=True)
    for batch in ("a", "b"):
        send(leader, replies(1, 1, batch, op=0))
    told = send(leader, replies(1, 1, "c", op=0))
    assert [outcome.err_code for _, outcome in told] == [10211]
    assert [type(outcome) for _, outcome in send(leader, replies(2, 2, "a", op=2))] == [tuple]
