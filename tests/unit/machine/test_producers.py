"""Producers: what is stored is never stored again, nothing out of order, through every restart."""

from __future__ import annotations

from typing import Any

import pytest

from streamd import limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.extension_settings import stream_mistake
from tests.unit.machine.box import SECOND, Box, header_block


def put(box: Box, sequence: Any, producer: str = "p", previous: Any = None, **more: Any) -> Any:
    headers = {"Producer_Id": producer, "Producer_Seq": sequence}
    if previous is not None:
        headers["Producer_Previous"] = previous
    return box.put(b"a.x", **headers, **more)


def code(outcome: Any) -> int:
    assert isinstance(outcome, JsError), outcome
    return outcome.err_code


def test_a_sequence_is_stored_once_however_late_it_comes_again() -> None:
    box = Box(duplicate_window=SECOND)
    assert [put(box, sequence) for sequence in (1, 2, 3)] == [1, 2, 3]
    assert put(box, 3, seconds=10**7) == (commands.DUPLICATE, 3)
    assert put(box, 1) == (commands.DUPLICATE, 3)  # that it is stored, not where
    assert put(box, 4) == 4
    assert put(box, 1, producer="q") == 5  # each has numbers of its own
    assert box.live() == [1, 2, 3, 4, 5]


def test_nothing_is_stored_out_of_order() -> None:
    """Pipelined: what lies behind a refused message is refused until that comes."""
    box = Box(max_msg_size=200)
    assert put(box, 1) == 1
    headers = {"Producer_Id": "p", "Producer_Seq": 2}
    assert code(box.put(b"a.x", b"x" * 500, **headers)) == 10054
    refused = put(box, 3)
    assert code(refused) == 10902
    assert refused.description == "producer 'p' is at sequence 1, 3 does not follow"
    assert [put(box, sequence) for sequence in (2, 3)] == [2, 3]
    assert code(put(box, 2, producer="new")) == 10902
    asked = put(box, 0)  # asks where it stands
    assert asked.description == "producer 'p' is at sequence 3, 0 does not follow"


def test_one_entry_is_judged_like_many() -> None:
    box, apart = Box(), Box()
    rows = [(1, None), (3, None), (2, None), (2, None), (3, None), (9, "any"), (12, 9), (14, 12)]
    msgs = []
    for sequence, previous in rows:
        headers = {"Producer_Id": "p", "Producer_Seq": sequence}
        if previous is not None:
            headers["Producer_Previous"] = previous
        msgs.append((b"a.x", header_block(headers), b"x"))
    outcomes = list(box.store(*msgs))
    assert outcomes == [next(iter(apart.store(msg))) for msg in msgs]
    assert [each if not isinstance(each, JsError) else each.err_code for each in outcomes] == [
        1, 10902, 2, (commands.DUPLICATE, 2), 3, 4, 5, 6,
    ]  # fmt: skip


def test_a_message_again_is_a_duplicate_whatever_else_it_asks() -> None:
    box = Box()
    assert put(box, 1, Expected_Last_Sequence=0, Msg_Id="a") == 1
    assert put(box, 1, Expected_Last_Sequence=0, Msg_Id="a") == (commands.DUPLICATE, 1)
    assert code(put(box, 2, Expected_Last_Sequence=0)) == 10071
    assert put(box, 2, Expected_Last_Sequence=1) == 2  # the refusal did not count


def test_a_duplicate_by_its_id_counts_as_stored() -> None:
    """It is acked, so that its producer goes on with the next number."""
    box = Box(duplicate_window=60 * SECOND)
    assert box.put(b"a.x", Msg_Id="one") == 1
    assert put(box, 1, Msg_Id="one") == (commands.DUPLICATE, 1)
    assert put(box, 2, Msg_Id="two") == 2
    assert put(box, 1, Msg_Id="one") == (commands.DUPLICATE, 2)
    assert box.restored().fingerprint() == box.machine.fingerprint()
    assert code(put(box, 2, producer="q", Msg_Id="one")) == 10902  # not in its order: refused
    assert box.live() == [1, 2]


@pytest.mark.parametrize(
    "headers",
    [
        {"Producer_Id": "p"}, {"Producer_Seq": 1}, {"Producer_Id": "p", "Producer_Seq": "x"},
        {"Producer_Id": "p", "Producer_Seq": -1}, {"Producer_Id": "p", "Producer_Seq": 1 << 63},
        {"Producer_Id": "p" * 129, "Producer_Seq": 1},
        {"Producer_Id": "p", "Producer_Seq": 5, "Producer_Previous": 5},
        {"Producer_Id": "p", "Producer_Seq": 5, "Producer_Previous": "none"},
    ],
)  # fmt: skip
def test_headers_that_make_no_sense_are_refused(headers: dict[str, Any]) -> None:
    box = Box()
    assert code(box.put(b"a.x", **headers)) == 10901
    assert not box.live()


def test_they_are_known_after_a_restart_and_part_of_the_fingerprint() -> None:
    box = Box()
    empty = box.machine.fingerprint()
    for sequence in (1, 2):
        put(box, sequence)
    put(box, 7, producer="q", previous="any")
    again = box.restored()
    assert again.fingerprint() == box.machine.fingerprint() != empty
    assert again.snapshot() == box.machine.snapshot()
    box.machine = again
    assert put(box, 2) == (commands.DUPLICATE, 2)
    assert put(box, 3) == 4


def test_a_purge_does_not_make_it_new() -> None:
    box = Box()
    put(box, 1)
    box.do(commands.PURGE, b"", 0, 0)
    assert put(box, 1) == (commands.DUPLICATE, 1)


def test_so_many_are_known_and_those_that_were_silent_too_long_are_forgotten() -> None:
    box = Box(metadata={"streamd.producers_max": "2", "streamd.producer_expiry": "1m"})
    assert [put(box, 1, producer=name) for name in "ab"] == [1, 2]
    refused = put(box, 1, producer="c")
    assert code(refused) == 10903
    assert refused.description == "stream knows 2 producers, no more are allowed"
    put(box, 2, producer="a", seconds=59)
    assert put(box, 1, producer="c", seconds=2) == 4  # in the place of b
    assert code(put(box, 1, producer="b")) == 10903
    assert put(box, 2, producer="a") == (commands.DUPLICATE, 3)


def test_entries_of_before_do_not_know_them() -> None:
    """What was acked as seq n under earlier rules is seq n again when the log is replayed."""
    box = Box()
    for at in range(2):
        headers = header_block({"Producer_Id": "p", "Producer_Seq": 5})
        data = commands.encode([commands.STORE, box.now, [(b"a.x", headers, b"x")], 1])
        assert box.apply(data) == [at + 1]
    assert not box.machine.content.producers


def test_an_atomic_batch_has_no_producer() -> None:
    box = Box(allow_atomic=True)
    batch = {"Batch_Id": "b", "Batch_Sequence": 1, "Producer_Id": "p", "Producer_Seq": 1}
    outcome = box.do(commands.STORE_BATCH, "b", [(b"a.x", header_block(batch), b"x")])
    assert code(outcome) == 10177 and not box.live()


def test_a_message_that_nobody_wants_counts_all_the_same() -> None:
    box = Box(retention="interest")
    assert put(box, 1) == 1
    assert put(box, 1) == (commands.DUPLICATE, 1)
    assert put(box, 2) == 2
    assert not box.live()


def test_settings_that_make_no_sense_name_value_and_limit() -> None:
    most = limits.PRODUCERS_MAX
    for value in ("0", "-1", "x", "", str(most + 1)):
        text = stream_mistake({"metadata": {"streamd.producers_max": value}})
        assert text == (
            f"metadata streamd.producers_max must be a number from 1 to {most}, not '{value}'"
        )
    for value in ("x", "-1s", "1ms", ""):
        text = stream_mistake({"metadata": {"streamd.producer_expiry": value}})
        assert "at least 1s" in text and f"'{value}'" in text
    good = {"streamd.producers_max": "5", "streamd.producer_expiry": "720h"}
    assert not stream_mistake({"metadata": good})
    assert not stream_mistake({"metadata": {"streamd.producer_expiry": "0"}})
