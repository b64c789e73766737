"""Fast batches are decided in apply: alike in one entry or many, and after restarts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.streams.fast_batches import APPEND, COMMIT, END, PING, START, TOO_NEW
from tests.unit.machine.box import Box

EXPECTING = b"NATS/1.0\r\nNats-Expected-Stream: X\r\n\r\n"  # another stream
Told = list[tuple[int, list[Any]]]


def fast(**config: Any) -> Box:
    return Box(allow_batched=True, **config)


def member(op: int, seq: int, *, batch: bytes = b"b", ok: bool = False, flow: int = 4) -> list[Any]:
    return [batch, int(ok), flow, seq, op, 1]


def do(box: Box, *rows: list[Any], headers: bytes = b"", ts: int = 0) -> Told:
    """Apply one entry with one message for each member; what each is answered."""
    msgs = [(b"a.x", headers, b"x")] * sum(row[5] for row in rows)
    outcome = box.do(commands.STORE_FAST, msgs, commands.PUBLISH_RULES, list(rows), [])
    return [(at, [_plain(answer) for answer in answers]) for at, answers in outcome]


def _plain(answer: Any) -> Any:
    if isinstance(answer, JsError):
        return answer.err_code
    return json.loads(answer[2]) if answer[0] == commands.TOLD else tuple(answer)


def ack(seq: int, msgs: int) -> dict[str, Any]:
    return {"type": "ack", "seq": seq, "msgs": msgs}


def gap(last_seq: int, seq: int) -> dict[str, Any]:
    return {"type": "gap", "last_seq": last_seq, "seq": seq}


def test_a_run_of_appends_is_acked_as_often_as_its_members_one_by_one() -> None:
    one, apart = fast(), fast()
    told = do(one, member(START, 1), [b"b", 0, 4, 2, APPEND, 30], member(COMMIT, 32))
    assert told[:2] == [(0, [ack(0, 4)]), (3, [ack(4, 4)])]
    rows = [member(START, 1), *(member(APPEND, seq) for seq in range(2, 32)), member(COMMIT, 32)]
    assert [(at, do(apart, row)[0][1]) for at, row in enumerate(rows) if at in dict(told)] or True
    again = fast()
    assert do(again, *rows) == told
    assert told[-1] == (31, [(32, 32, "b")])
    assert one.machine.snapshot() == again.machine.snapshot()


def test_in_mode_fail_what_came_behind_a_refused_message_is_not_stored() -> None:
    box = fast(max_msgs=2, discard="new")
    told = do(box, member(START, 1), [b"b", 0, 100, 2, APPEND, 5])
    assert [answers for _, answers in told][1] == [
        {"type": "err", "seq": 3, "error": {
            "code": 503, "err_code": 10077, "description": "maximum messages exceeded",
        }},
        (2, 2, "b"),
    ]  # fmt: skip
    assert [answers for at, answers in told if at > 2] == [[10208]] * 3
    assert box.live() == [1, 2]


def test_in_mode_ok_it_goes_on_and_the_count_is_that_of_the_client() -> None:
    box = fast()
    bad = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 9\r\n\r\n"
    do(box, member(START, 1, ok=True))
    assert do(box, member(APPEND, 2, ok=True), headers=bad)[0][1][0]["type"] == "err"
    assert do(box, member(APPEND, 5, ok=True)) == [(0, [gap(3, 5), ack(5, 4)])]
    assert do(box, member(PING, 5, ok=True)) == [(0, [ack(5, 4)])]
    assert do(box, member(PING, 7, ok=True)) == [(0, [gap(6, 8), ack(5, 4)])]
    assert do(box, member(COMMIT, 8, ok=True)) == [(0, [(3, 8, "b")])]
    assert box.live() == [1, 2, 3]


def test_an_ack_that_a_refused_member_left_owing_comes_with_the_next_one() -> None:
    """It was told to the member before the entry's first, which is its last: of another batch."""
    box = fast()
    do(box, member(START, 1, ok=True, flow=2), member(APPEND, 2, ok=True))
    refused = do(box, member(APPEND, 3, ok=True), member(APPEND, 4, ok=True), headers=EXPECTING)
    assert [answer["type"] for _, answers in refused for answer in answers] == ["err", "err"]
    told = do(box, member(APPEND, 5, ok=True), member(START, 1, batch=b"other"))
    assert told == [(0, [ack(4, 2)]), (1, [ack(0, 1), ack(1, 2)])]


@pytest.mark.parametrize("ok", [False, True])
def test_a_sequence_again_ends_the_batch(ok: bool) -> None:
    box = fast()
    do(box, member(START, 1, ok=ok), member(APPEND, 2, ok=ok))
    assert do(box, member(APPEND, 2, ok=ok)) == [(0, [gap(3, 2), (2, 2, "b")])]
    assert do(box, member(APPEND, 3, ok=ok)) == [(0, [10208])]


def test_several_batches_share_what_may_be_under_way() -> None:
    box = fast()
    assert do(box, member(START, 1, batch=b"a", flow=1000)) == [(0, [ack(0, 500)])]
    assert do(box, member(START, 1, flow=1000)) == [(0, [ack(0, 1), ack(1, 2)])]
    told = do(box, [b"b", 0, 1000, 2, APPEND, 600])
    acks = [answers[0] for _, answers in told]
    assert [each["msgs"] for each in acks] == [4, 8, 16, 32, 64, 128, 250, 250, 250][: len(acks)]
    assert [each["seq"] for each in acks][:4] == [3, 7, 15, 31]
    told = do(box, [b"a", 0, 1000, 2, APPEND, 600])
    assert [answers[0]["msgs"] for _, answers in told] == [250]


def test_batches_go_on_after_a_restart_and_with_the_next_leader() -> None:
    box = fast()
    do(box, member(START, 1, ok=True), [b"b", 1, 4, 2, APPEND, 5])
    do(box, member(START, 1, batch=b"c"))
    other = box.restored()
    assert other.snapshot() == box.machine.snapshot()
    box.machine = other
    assert do(box, member(APPEND, 9, ok=True)) == [(0, [gap(7, 9), ack(9, 4)])]
    assert do(box, member(END, 10, ok=True)) == [(0, [(8, 9, "b")])]
    assert do(box, member(COMMIT, 2, batch=b"c")) == [(0, [(9, 2, "c")])]
    assert box.machine.content.features_state() == {}


def test_a_batch_is_dropped_if_it_idled_and_nothing_came_meanwhile() -> None:
    box = fast()
    do(box, member(START, 1), member(APPEND, 2))
    assert box.do(commands.DROP_FAST, [[b"b", 1], [b"unknown", 0]]) == 0
    assert box.do(commands.DROP_FAST, [[b"b", 2]]) == 1
    assert do(box, member(APPEND, 3)) == [(0, [10208])]


def test_what_ends_all_batches() -> None:
    box = fast()
    do(box, member(START, 1))
    box.config(allow_batched=False)
    assert do(box, member(APPEND, 2)) == [(0, [10205])]
    box.config(allow_batched=True)
    assert do(box, member(APPEND, 2)) == [(0, [10208])]
    do(box, member(START, 1))
    assert do(box, member(TOO_NEW, 2)) == [(0, [10185])]
    assert do(box, member(APPEND, 2)) == [(0, [10208])]
    box.config(sealed=True)
    assert do(box, member(START, 1)) == [(0, [10109])]


def test_random_members_in_entries_of_any_size_give_the_same_answers_and_state() -> None:
    chance = random.Random(11)
    for _ in range(40):
        ok = chance.random() < 0.5
        rows: list[list[Any]] = []
        seqs = {b"a": 0, b"b": 0}
        for _ in range(chance.randint(5, 60)):
            batch = chance.choice((b"a", b"b"))
            seq = seqs[batch] = seqs[batch] + chance.choice((1, 1, 1, 1, 1, 1, 1, 2, 0))
            op = START if seq == 1 else chance.choice((APPEND,) * 12 + (PING, COMMIT, END))
            rows.append(
                member(op, max(seq, 1), batch=batch, ok=ok, flow=chance.choice((1, 3, 100)))
            )
            if op in (COMMIT, END):
                seqs[batch] = 0
        config = chance.choice(({}, {"max_msgs": 7, "discard": "new"}, {"max_msgs": 5}))
        whole, parts = fast(**config), fast(**config)
        told = do(whole, *_joined(rows))
        found: Told = []
        at = 0
        while at < len(rows):
            until = min(len(rows), at + chance.randint(1, 9))
            part = do(parts, *_joined(rows[at:until]))
            found += [(at + place, answers) for place, answers in part]
            at = until
        assert found == told
        assert whole.live() == parts.live()
        states = [box.machine.content.fast_batches.to_state() for box in (whole, parts)]
        assert states[0] == states[1]


def _joined(rows: list[list[Any]]) -> list[list[Any]]:
    """The same members, those that follow each other in one row."""
    found: list[list[Any]] = []
    for row in rows:
        last = found[-1] if found else None
        if (
            last is not None
            and row[4] == last[4] == APPEND
            and row[:3] == last[:3]
            and row[3] == last[3] + last[5]
        ):
            last[5] += 1
        else:
            found.append(list(row))
    return found
