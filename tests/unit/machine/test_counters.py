"""Counters: totals are those of the newest messages, whatever leaves; big integers are exact."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.streams.counters import (
    CounterTotals,
    Total,
    canonical_sources,
    read_integer,
    write_integer,
    write_sources,
)
from tests.unit.machine.box import SECOND, Box


def counter(**config: Any) -> Box:
    return Box(allow_msg_counter=True, **config)


def add(box: Box, value: int | str, subject: bytes = b"a.x", **headers: Any) -> Any:
    return box.put(subject, b"", Incr=value, **headers)


def total(box: Box, value: int | str, subject: bytes = b"a.x", **headers: Any) -> int:
    """Add to a counter, and return what it stands at then."""
    outcome = add(box, value, subject, **headers)
    assert outcome[0] == commands.COUNTED, outcome
    assert box.read(outcome[1]).payload == b'{"val":"%b"}' % outcome[2].encode()  # type: ignore[union-attr]
    return read_integer(outcome[2].encode())


def test_each_subject_has_a_total_of_its_own() -> None:
    box = counter()
    assert [total(box, 5), total(box, "-7"), total(box, "+1", b"a.y"), total(box, "002")] == [
        5, -2, 1, 0,
    ]  # fmt: skip


def test_increments_of_one_entry_see_each_other_and_equal_those_of_entries_apart() -> None:
    head = b"NATS/1.0\r\nNats-Incr: %d\r\n\r\n"
    one, apart = counter(), counter()
    msgs = [(b"a.%d" % (number % 3), head % number, b"") for number in range(30)]
    assert [outcome[2] for outcome in one.store(*msgs)] == [
        next(iter(apart.store(msg)))[2] for msg in msgs
    ]


def test_a_refused_or_repeated_increment_changes_nothing() -> None:
    box = counter(max_msg_size=60)
    assert total(box, 1, Msg_Id="m") == 1
    assert add(box, 1, Msg_Id="m") == (commands.DUPLICATE, 1)
    for refused, err_code in (
        (add(box, "x"), 10171),
        (add(box, "9" * 40), 10054),
        (box.put(b"a.x", b"body", Incr="1"), 10170),
        (box.put(b"a.x", b""), 10169),
        (box.put(b"a.x", b"body"), 10169),
        (add(box, 1, Rollup="sub"), 10171),
        (add(box, 1, Expected_Last_Sequence="1"), 10171),
        (add(box, 1, TTL="5"), 10166),
    ):
        assert isinstance(refused, JsError) and refused.err_code == err_code
    assert total(box, 1) == 2


def test_purge_and_limits_begin_anew_at_nothing() -> None:
    box = counter(max_msgs_per_subject=1)
    assert [total(box, 3), total(box, 3), total(box, 1, b"a.y")] == [3, 6, 1]
    box.do(commands.PURGE, b"a.x", 0, 0)
    assert [total(box, 1), total(box, 1, b"a.y")] == [1, 2]
    box.do(commands.PURGE, b"", 0, 0)
    assert total(box, 1) == 1


def test_deletion_of_the_newest_goes_back_to_what_the_one_before_has() -> None:
    box = counter()
    assert [total(box, 1), total(box, 2), total(box, 4)] == [1, 3, 7]
    changed = box.do(commands.DELETE_MSG, 3, False)  # which one is before it was not told
    assert isinstance(changed, JsError) and changed.err_code == 10057
    assert isinstance(box.do(commands.DELETE_MSG, 3, False, 1, b"1", b""), JsError)
    assert total(box, 0) == 7
    assert box.do(commands.DELETE_MSG, 4, False, 3, b"7", b"") is True
    assert box.do(commands.DELETE_MSG, 3, False, 2, b"3", b"") is True
    assert total(box, 8) == 11
    assert box.do(commands.DELETE_MSG, 1, False) is True
    assert total(box, 1) == 12


def test_a_total_that_nobody_knows_is_not_guessed() -> None:
    box = counter()
    for value in (1, 2):
        add(box, value)
    box.do(commands.REMOVE, [2, 2])
    broken = add(box, 1)
    assert isinstance(broken, JsError) and broken.err_code == 10172
    box.do(commands.PURGE, b"", 0, 0)
    assert total(box, 1) == 1


def test_a_marker_stands_for_nothing() -> None:
    markers: dict[str, Any] = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 60 * SECOND}
    box = counter(max_age=SECOND, **markers)
    assert total(box, 5) == 5
    box.do(commands.EXPIRE, 1, [])
    assert box.read(2).payload == b""  # type: ignore[union-attr]
    assert total(box, 2) == 2


def test_batches_count_all_or_nothing() -> None:
    box = counter(allow_atomic=True)
    add(box, 1)

    def msg(number: int, value: str, subject: bytes = b"a.x") -> list[bytes]:
        head = "NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: %d\r\nNats-Incr: %s\r\n\r\n"
        return [subject, (head % (number, value)).encode(), b""]

    batch = [msg(1, "2"), msg(2, "5", b"a.y"), msg(3, "3")]
    assert box.do(commands.STORE_BATCH, "b", batch) == (4, 3)
    assert [box.read(seq).payload for seq in (2, 3, 4)] == [  # type: ignore[union-attr]
        b'{"val":"3"}', b'{"val":"5"}', b'{"val":"6"}',
    ]  # fmt: skip
    assert isinstance(box.do(commands.STORE_BATCH, "b", [msg(1, "2"), msg(2, "x")]), JsError)
    assert [total(box, 1), total(box, 1, b"a.y")] == [7, 6]


def test_a_snapshot_keeps_totals_and_both_go_on_alike() -> None:
    box = counter()
    for number in range(20):
        add(box, 10**number, b"a.%d" % (number % 4), Counter_Sources='{"O":{"o":"1"}}')
    box.do(commands.PURGE, b"a.3", 0, 0)
    other = box.restored()
    assert other.snapshot() == box.machine.snapshot()
    assert other.content.counters.to_state() == box.machine.content.counters.to_state()
    assert len(other.content.counters.to_state()) == 3
    plain = Box()
    plain.put(b"a.x")
    assert plain.machine.content.features_state() == {}


def test_rows_of_subjects_that_are_gone_do_not_pile_up() -> None:
    box = counter(max_msgs=5)
    for number in range(1000):
        add(box, 1, b"a.%d" % number)
    assert len(box.machine.content.counters._rows) < 100
    assert total(box, 1, b"a.999") == 2


def test_new_counters_of_one_entry_are_looked_over_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    is_live = CounterTotals._is_live

    def counting(self: CounterTotals, subject: bytes, row: Total) -> bool:
        nonlocal looked
        looked += 1
        return is_live(self, subject, row)

    monkeypatch.setattr(CounterTotals, "_is_live", counting)
    counter().store(
        *((b"a.%d" % at, b"NATS/1.0\r\nNats-Incr: 1\r\n\r\n", b"") for at in range(2000))
    )
    assert looked < 3 * 2000


def test_what_is_known_of_sources_goes_on_at_the_end_of_the_headers() -> None:
    box = counter()
    add(box, 1, Counter_Sources='{"b":{"y":"1"},"a":{"z":"2","x":null}}')
    seq = add(box, 1, Counter_Sources="{}", Msg_Id="m")[1]
    headers = box.read(seq).headers  # type: ignore[union-attr]
    assert headers == (
        b"NATS/1.0\r\nNats-Incr: 1\r\nNats-Msg-Id: m\r\n"
        b'Nats-Counter-Sources: {"a":{"x":"","z":"2"},"b":{"y":"1"}}\r\n\r\n'
    )


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        (b"zzz", None),
        (b"[]", None),
        (b'"x"', None),
        (b'{"a":1}', None),
        (b'{"a":{"b":1}}', None),
        (b"[" * 60000, None),
        (b"1" * 5000, None),
        (b"null", b""),
        (b" { } ", b""),
        (b'{"a":null}', b'{"a":null}'),
        (b'{"b":{},"a":{"<":"&"}}', b'{"a":{"\\u003c":"\\u0026"},"b":{}}'),
    ],
)
def test_sources_are_read_as_go_reads_them(given: bytes, canonical: bytes | None) -> None:
    assert canonical_sources(given) == canonical


def test_integers_of_any_size_are_written_as_they_are_read() -> None:
    chance = random.Random(3)
    for digits in (1, 18, 3999, 4000, 4001, 8000, 65000):
        text = b"%d" % chance.randint(1, 9) + bytes(chance.choices(b"0123456789", k=digits - 1))
        for sign in (b"", b"-"):
            assert write_integer(read_integer(sign + text)) == sign + text
        assert read_integer(b"+" + text) == -read_integer(b"-" + text)
    for zeros in (4000, 8000):
        assert write_integer(10**zeros) == b"1" + b"0" * zeros
        assert write_integer(10**zeros - 1) == b"9" * zeros
    assert write_sources({"a": {"b": "1"}}) == b'{"a":{"b":"1"}}'
