"""Atomic batch publish."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import scenario


def stream(at: Recorder, **config: Any) -> None:
    whole = {"name": "S", "subjects": ["s.>"], "allow_atomic": True} | config
    at.api("STREAM.CREATE.S", whole, is_quiet=True)


def part(batch: str, seq: int | str, commit: str = "", **more: str) -> dict[str, str]:
    headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(seq)}
    if commit:
        headers["Nats-Batch-Commit"] = commit
    return headers | {name.replace("_", "-"): value for name, value in more.items()}


@scenario
def commit(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", b"1", headers=part("b", 1))
    at.pub("s.b", b"2", headers=part("b", 2))
    at.api("STREAM.INFO.S")
    at.pub("s.c", b"3", headers=part("b", 3, "1"))
    at.api("STREAM.INFO.S")
    for seq in (1, 2, 3):
        at.api("STREAM.MSG.GET.S", {"seq": seq})


@scenario
def end_of_batch(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", b"1", headers=part("b", 1))
    at.pub("s.b", b"2", headers=part("b", 2))
    at.pub("s.c", b"3", headers=part("b", 3, "eob"))
    at.api("STREAM.INFO.S")
    at.api("STREAM.MSG.GET.S", {"seq": 2})
    at.pub("s.c", b"3", headers=part("c", 1, "eob"))


@scenario
def single(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", b"1", headers=part("b", 1, "1"))
    at.api("STREAM.INFO.S")


@scenario
def bad_requests(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers=part("b" * 65, 1))
    at.pub("s.a", headers={"Nats-Batch-Id": "b"})
    at.pub("s.a", headers=part("b", "x"))
    at.pub("s.a", headers=part("b", 0))
    at.pub("s.a", headers=part("b", 2))
    at.pub("s.a", headers=part("b", 1))
    at.pub("s.a", headers=part("b", 3))
    at.pub("s.a", headers=part("b", 2, "1"))
    at.pub("s.a", headers=part("b", 1))
    at.pub("s.a", headers=part("b", 2, "yes"))
    at.api("STREAM.INFO.S")


@scenario
def disabled(at: Recorder) -> None:
    stream(at, allow_atomic=False)
    at.pub("s.a", headers=part("b", 1))
    at.pub("s.a", headers=part("b", 1, "1"))
    at.api("STREAM.INFO.S")


@scenario
def expectations(at: Recorder) -> None:
    stream(at)
    at.fill("s.a", "s.b")
    at.pub("s.a", headers=part("b", 1, Nats_Expected_Last_Sequence="2"))
    at.pub("s.b", headers=part("b", 2, "1", Nats_Expected_Last_Subject_Sequence="2"))
    at.pub("s.a", headers=part("c", 1, Nats_Expected_Last_Sequence="1"))
    at.pub("s.b", headers=part("c", 2, "1"))
    at.pub("s.a", headers=part("d", 1))
    at.pub("s.a", headers=part("d", 2, "1", Nats_Expected_Last_Sequence="4"))
    at.pub("s.a", headers=part("e", 1))
    at.pub("s.a", headers=part("e", 2, "1", Nats_Expected_Last_Subject_Sequence="3"))
    at.pub("s.z", headers=part("f", 1, Nats_Expected_Last_Msg_Id="q"))
    at.pub("s.z", headers=part("f", 2, "1"))
    at.api("STREAM.INFO.S")


@scenario
def expected_last_seq_of_the_second(at: Recorder) -> None:
    stream(at)
    at.fill("s.a", "s.b")
    for batch, first, second in (("b", "", "3"), ("c", "2", "3"), ("d", "2", "9"), ("e", "9", "9")):
        more = {"Nats_Expected_Last_Sequence": first} if first else {}
        at.pub("s.a", headers=part(batch, 1, **more))
        at.pub("s.a", headers=part(batch, 2, "1", Nats_Expected_Last_Sequence=second))
    at.api("STREAM.INFO.S")


@scenario
def duplicates(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Nats-Msg-Id": "one"})
    at.pub("s.a", headers=part("b", 1, Nats_Msg_Id="one"))
    at.pub("s.a", headers=part("b", 2, "1", Nats_Msg_Id="two"))
    at.pub("s.a", headers=part("c", 1, Nats_Msg_Id="three"))
    at.pub("s.a", headers=part("c", 2, "1", Nats_Msg_Id="three"))
    at.pub("s.a", headers=part("d", 1, Nats_Msg_Id="four"))
    at.pub("s.a", headers=part("d", 2, "1", Nats_Msg_Id="five"))
    at.pub("s.a", headers={"Nats-Msg-Id": "four"})
    at.api("STREAM.INFO.S")


@scenario
def limits(at: Recorder) -> None:
    stream(at, max_msgs=3, discard="new", max_msg_size=200)
    at.pub("s.a", headers=part("b", 1))
    at.pub("s.b", headers=part("b", 2, "1"))
    at.pub("s.a", headers=part("c", 1))
    at.pub("s.b", headers=part("c", 2, "1"))
    at.pub("s.a", b"x" * 300, headers=part("d", 1))
    at.api("STREAM.INFO.S")


@scenario
def too_large(at: Recorder) -> None:
    stream(at)
    for number in range(1, 1000):
        at.wire.publish("s.a", b"", headers=part("b", number))
    at.pub("s.a", headers=part("b", 1000))
    at.pub("s.a", headers=part("b", 1001))
    at.pub("s.a", headers=part("b", 1002, "1"))
    at.api("STREAM.INFO.S")


@scenario
def largest_by_end_of_batch(at: Recorder) -> None:
    """A thousand messages, and one more that only says that those were all."""
    stream(at)
    for number in range(1, 1000):
        at.wire.publish("s.a", b"", headers=part("b", number))
    at.pub("s.a", headers=part("b", 1000))
    at.pub("s.a", headers=part("b", 1001, "eob"))
    at.pub("s.a", headers=part("b", 1001, "eob"))
    at.api("STREAM.INFO.S")


@scenario
def what_ends_a_batch(at: Recorder) -> None:
    """Some of what is refused was never a part of the batch, which goes on; the rest ends it."""
    stream(at, max_msg_size=150)
    wrong: list[tuple[dict[str, str], bytes]] = [
        (part("b", 2), b"x" * 200),
        ({"Nats-Batch-Id": "b"}, b""),
        (part("b", "x"), b""),
        (part("b", 2, "2"), b""),
        (part("b", 1), b""),
        (part("b", 3), b""),
        (part("b", 1001), b""),
        (part("b", 2, Nats_Required_Api_Level="99"), b""),
        (part("b", 2, "2", Nats_Required_Api_Level="99"), b""),
        (part("b", 2, Nats_Required_Api_Level="99"), b"x" * 200),
    ]
    for headers, payload in wrong:
        at.pub("s.a", headers=part("b", 1))
        at.pub("s.a", payload, headers=headers)
        at.pub("s.a", headers=part("b", 2, "1"))
    at.api("STREAM.INFO.S")


@scenario
def rollup_in_batch(at: Recorder) -> None:
    stream(at, allow_rollup_hdrs=True)
    at.fill("s.a", "s.a", "s.b")
    at.pub("s.a", headers=part("b", 1, Nats_Rollup="sub"))
    at.pub("s.c", headers=part("b", 2, "1"))
    at.api("STREAM.INFO.S", {"subjects_filter": ">"})
    at.pub("s.a", headers=part("c", 1, Nats_Rollup="all"))
    at.pub("s.c", headers=part("c", 2, "1"))
    at.api("STREAM.INFO.S", {"subjects_filter": ">"})
    for kind, subject in (("sub", "s.a"), ("sub", "s.b"), ("all", "s.a")):
        at.pub("s.a", headers=part("d", 1))
        at.pub(subject, headers=part("d", 2, "1", Nats_Rollup=kind))
        at.api("STREAM.INFO.S", {"subjects_filter": ">"})


@scenario
def required_level(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers=part("b", 1, Nats_Required_Api_Level="99"))
    at.pub("s.a", headers=part("b", 1, Nats_Required_Api_Level="2"))


@scenario
def order_of_checks(at: Recorder) -> None:
    """Two things wrong with one message: which of them is said."""
    wrong = {
        "Nats-Msg-Id": "seen",
        "Nats-Expected-Last-Sequence": "9",
        "Nats-Expected-Last-Subject-Sequence": "9",
        "Nats-Expected-Last-Msg-Id": "x",
        "Nats-Expected-Stream": "T",
        "Nats-Rollup": "zzz",
        "Nats-TTL": "x",
        "Nats-Incr": "x",
        "Nats-Schedule": "@every 1s",
        "Nats-Stream-Source": "x",
        "Nats-Required-Api-Level": "99",
        "Nats-Batch-Sequence": "7",
        "Nats-Batch-Commit": "zzz",
    }
    for has_ttl in (True, False):
        stream(at, allow_msg_ttl=has_ttl, allow_rollup_hdrs=True)
        at.pub("s.a", headers={"Nats-Msg-Id": "seen"})
        for first, second in combinations(wrong, 2):
            headers = {first: wrong[first], second: wrong[second]}
            at.pub("s.a", headers=part("b", 1, "1") | headers)
            at.pub("s.a", headers=part("b", 1))
            at.pub("s.a", headers=part("b", 2, "1") | headers)
        at.api("STREAM.INFO.S")
        at.api("STREAM.DELETE.S", is_quiet=True)


@scenario
def too_large_where_disabled(at: Recorder) -> None:
    stream(at, allow_atomic=False, max_msg_size=100)
    at.pub("s.a", b"x" * 200, headers=part("b", 1))


@scenario
def huge_sequences(at: Recorder) -> None:
    stream(at)
    for seq in (2**63, 2**64 - 1, 2**64, 10**30):
        at.pub("s.a", headers=part("b", seq))
        at.pub("s.a", headers=part("c", 1))
        at.pub("s.a", headers=part("c", seq))


@scenario
def what_is_told_of_abandoned_ones(at: Recorder) -> None:
    stream(at)
    listener = at.connect()
    listener.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>")
    listener.fence()
    level = {"Nats_Required_Api_Level": "99"}
    for name, *parts in (
        ("first-level", part("first-level", 1, **level)),
        ("later-level", part("later-level", 1), part("later-level", 2, **level)),
        ("first-commit", part("first-commit", 1, "x")),
        ("nothing", part("nothing", 1, "eob")),
        ("gap", part("gap", 1), part("gap", 3)),
        ("unknown", part("unknown", 2)),
        ("again", part("again", 1), part("again", 1)),
    ):
        for headers in parts:
            at.pub("s.a", headers=headers)
        at.pub("s.a", headers=part(name, 2, "1"))
    for frame in listener.collect(count=5, within_s=ANSWER_S):
        at.note(frame.subject, frame.json() | {"id": "<id>"})
