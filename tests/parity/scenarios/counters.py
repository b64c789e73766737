"""Counters: `Nats-Incr` in streams with `allow_msg_counter`."""

from __future__ import annotations

import base64
from typing import Any

from tests.parity.recorder import Recorder
from tests.parity.registry import add, scenario

SOURCES = "Nats-Counter-Sources"


def counter(at: Recorder, **more: Any) -> None:
    config = {"name": "C", "subjects": ["c.>"], "allow_msg_counter": True, "allow_direct": True}
    at.api("STREAM.CREATE.C", config | more)


def incr(at: Recorder, value: str, subject: str = "c.a", **headers: str) -> dict[str, Any]:
    more = {key.replace("_", "-"): text for key, text in headers.items()}
    return at.pub(subject, b"", headers={"Nats-Incr": value} | more)


def shown(at: Recorder, *subjects: str) -> None:
    """Record the last message of each subject, headers as they are, and the stream's state."""
    for subject in subjects or ("c.a",):
        found = at.api("STREAM.MSG.GET.C", {"last_by_subj": subject}, is_quiet=True)
        message = found.get("message", {})
        headers = base64.b64decode(message.get("hdrs", "")).decode()
        body = base64.b64decode(message.get("data", "")).decode()
        at.note(f"last of {subject}", [message.get("seq"), headers, body])
    state = at.api("STREAM.INFO.C", is_quiet=True).get("state", {})
    at.note("state", {key: state.get(key) for key in ("messages", "first_seq", "last_seq")})


CREATED: tuple[dict[str, Any], ...] = (
    {"discard": "new"},
    {"allow_msg_ttl": True},
    {"allow_msg_schedules": True},
    {"retention": "interest"},
    {"retention": "workqueue"},
    {"allow_atomic": True},
    {"allow_batched": True},
    {"subject_delete_marker_ttl": 1_000_000_000},
    {"deny_delete": True, "deny_purge": True},
    {"storage": "memory", "max_msgs_per_subject": 1},
    {"discard": "new", "allow_msg_ttl": True},
    {"allow_rollup_hdrs": True},
    {"subject_transform": {"src": "c.*", "dest": "d.$1"}},
)


def created(more: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        counter(at, **more)
        incr(at, "5")
        incr(at, "-2")
        shown(at, "c.a", "d.a")

    return run


for number, one in enumerate(CREATED):
    add(f"counters.created {number} {' '.join(one)}", created(one))

VALUES = (
    "1", "+1", "-1", "0", "007", "-007", "+0", "-0", "x", "1.5", "1_000", "0x10", "+", "-", "",
    " 5", "5 ", "5\t", "--1", "1e3", "9" * 30, "-" + "9" * 30, "9223372036854775807", "9" * 5000,
    "\u0663",
)  # fmt: skip


@scenario
def values(at: Recorder) -> None:
    counter(at)
    for value in VALUES:
        incr(at, value)
    shown(at)


@scenario
def huge(at: Recorder) -> None:
    counter(at)
    for value in ("9" * 60000, "1", "-1", "-" + "9" * 60001, "3"):
        incr(at, value)
        shown(at)


@scenario
def requests_that_are_refused(at: Recorder) -> None:
    counter(at)
    at.pub("c.a", b"")
    at.pub("c.a", b"x")
    at.pub("c.a", b"x", headers={"X": "y"})
    at.pub("c.a", b"x", headers={"Nats-Incr": "1"})
    at.pub("c.a", b"x", headers={"Nats-Incr": "x"})
    for header, value in (
        ("Nats-Rollup", "sub"),
        ("Nats-Rollup", "all"),
        ("Nats-Rollup", "zzz"),
        ("Nats-Rollup", ""),
        ("Nats-Expected-Stream", "C"),
        ("Nats-Expected-Stream", "D"),
        ("Nats-Expected-Last-Sequence", "0"),
        ("Nats-Expected-Last-Subject-Sequence", "0"),
        ("Nats-Expected-Last-Subject-Sequence-Subject", "c.a"),
        ("Nats-Expected-Last-Msg-Id", "x"),
        ("Nats-Expected-Last-Msg-Id", ""),
        ("Nats-TTL", "5"),
        ("Nats-TTL", "zzz"),
        ("Nats-TTL", ""),
        ("Nats-Stream-Source", "a"),
        ("Nats-Schedule", "@every 1s"),
        ("Nats-Batch-Id", "x"),
        ("Nats-Marker-Reason", "MaxAge"),
        ("X", "y"),
        ("Nats-Required-Api-Level", "99"),
    ):
        at.pub("c.a", b"", headers={"Nats-Incr": "1", header: value})
        at.pub("c.a", b"", headers={header: value})
    shown(at)


@scenario
def ids(at: Recorder) -> None:
    counter(at)
    incr(at, "1", Nats_Msg_Id="x")
    incr(at, "1", Nats_Msg_Id="x")
    incr(at, "1", Nats_Msg_Id="y")
    incr(at, "zzz", Nats_Msg_Id="y")
    at.pub("c.a", b"", headers={"Nats-Msg-Id": "y"})
    at.pub("c.a", b"x", headers={"Nats-Msg-Id": "y"})
    shown(at)


@scenario
def off(at: Recorder) -> None:
    counter(at, allow_msg_counter=False)
    for value in ("1", "x", ""):
        incr(at, value)
        at.pub("c.a", b"x", headers={"Nats-Incr": value, "Nats-Expected-Stream": "D"})
    shown(at)


@scenario
def totals_by_subject(at: Recorder) -> None:
    counter(at)
    for subject, value in (
        ("c.a", "1"),
        ("c.b", "10"),
        ("c.a", "2"),
        ("c.b", "-20"),
        ("c.x.y", "3"),
    ):
        incr(at, value, subject)
    shown(at, "c.a", "c.b", "c.x.y")
    at.direct("C", subject="c.a")
    at.direct("C", {"multi_last": ["c.>"]})


@scenario
def removals(at: Recorder) -> None:
    counter(at)
    for value in ("1", "2", "4"):
        incr(at, value)
    at.api("STREAM.MSG.DELETE.C", {"seq": 3})
    incr(at, "8")
    at.api("STREAM.MSG.DELETE.C", {"seq": 1})
    incr(at, "16")
    at.api("STREAM.MSG.DELETE.C", {"seq": 5})
    at.api("STREAM.MSG.DELETE.C", {"seq": 4})
    incr(at, "32")
    shown(at)
    at.api("STREAM.PURGE.C", {"keep": 1})
    incr(at, "1")
    at.api("STREAM.PURGE.C", {"filter": "c.b"})
    incr(at, "1")
    at.api("STREAM.PURGE.C", {"filter": "c.a"})
    incr(at, "1")
    at.api("STREAM.PURGE.C")
    incr(at, "1")
    shown(at)


@scenario
def one_message_a_subject(at: Recorder) -> None:
    counter(at, max_msgs_per_subject=1)
    for value in ("1", "2", "4"):
        incr(at, value)
    shown(at)
    at.api("STREAM.MSG.DELETE.C", {"seq": 3})
    incr(at, "8")
    shown(at)


@scenario
def few_messages(at: Recorder) -> None:
    counter(at, max_msgs=2)
    for subject in ("c.a", "c.b", "c.c", "c.a", "c.b"):
        incr(at, "1", subject)
    shown(at, "c.a", "c.b", "c.c")


@scenario
def totals_too_large(at: Recorder) -> None:
    counter(at, max_msg_size=60)
    incr(at, "1")
    incr(at, "9" * 10)
    incr(at, "9" * 15)
    incr(at, "9" * 20)
    incr(at, "9" * 40)
    incr(at, "1")
    shown(at)


@scenario
def sources_are_kept(at: Recorder) -> None:
    counter(at)
    incr(at, "1", Nats_Counter_Sources='{"O":{"o.a":"5"}}')
    incr(at, "2")
    incr(at, "2", X="y")
    shown(at)
    incr(at, "2", Nats_Counter_Sources='{"P":{"p.a":"7"}}')
    shown(at)
    incr(at, "2", Nats_Counter_Sources="zzz")
    shown(at)
    incr(at, "2", "c.b", Nats_Counter_Sources="")
    shown(at, "c.a", "c.b")
    incr(at, "2")
    shown(at)


@scenario
def headers_are_kept(at: Recorder) -> None:
    counter(at)
    incr(at, "1", A="b", Nats_Msg_Id="m")
    at.pub("c.a", b"", headers=b"NATS/1.0\r\nA: b\r\nNats-Incr: 5\r\nC: d\r\nNats-Incr: 9\r\n\r\n")
    shown(at)


@scenario
def batches(at: Recorder) -> None:
    counter(at, allow_atomic=True)
    incr(at, "1")
    head = {"Nats-Batch-Id": "b"}
    for seq, subject, value in ((1, "c.a", "2"), (2, "c.a", "3"), (3, "c.b", "4")):
        more = {"Nats-Batch-Commit": "1"} if seq == 3 else {}
        headers = head | {"Nats-Batch-Sequence": str(seq), "Nats-Incr": value} | more
        at.pub(subject, b"", headers=headers)
    shown(at, "c.a", "c.b")
    for body, incrs in ((b"x", ("1", "1")), (b"", ("1", "x")), (b"", ("1", ""))):
        for seq, value in enumerate(incrs, 1):
            more = {"Nats-Batch-Commit": "1"} if seq == 2 else {}
            headers = head | {"Nats-Batch-Sequence": str(seq), "Nats-Incr": value} | more
            at.pub("c.a", body, headers=headers)
    shown(at, "c.a", "c.b")


@scenario
def consumers_and_republish(at: Recorder) -> None:
    listener = at.connect()
    listener.subscribe("r.>")
    listener.fence()
    counter(at, republish={"src": "c.>", "dest": "r.>"})
    consumer = {"name": "p", "ack_policy": "explicit", "filter_subject": "c.a"}
    at.api("CONSUMER.CREATE.C.p.c.a", {"stream_name": "C", "config": consumer})
    incr(at, "1")
    incr(at, "2", "c.b")
    incr(at, "2")
    at.pull("C", "p", {"batch": 5, "no_wait": True})
    at.note_frames("heard", listener.fence())


@scenario
def updates(at: Recorder) -> None:
    counter(at)
    incr(at, "1")
    config = {"name": "C", "subjects": ["c.>"]}
    at.api("STREAM.UPDATE.C", config)
    at.api("STREAM.UPDATE.C", config | {"allow_msg_counter": True, "max_msgs": 10})
    at.api("STREAM.UPDATE.C", config | {"allow_msg_counter": True, "discard": "new"})
    at.api("STREAM.UPDATE.C", config | {"allow_msg_counter": True, "allow_msg_ttl": True})
    at.api("STREAM.CREATE.D", {"name": "D", "subjects": ["d.>"]})
    at.api("STREAM.UPDATE.D", {"name": "D", "subjects": ["d.>"], "allow_msg_counter": True})
    incr(at, "1")


SENT_SOURCES = (
    "zzz", "{}", "{ }", "[]", "null", '{"b":{"y":"1","x":"2"},"a":{}}', '{"b": {"y": "1"}}',
    '{"a":1}',
    '{"a":{"b":1}}', '{"a":null}', '{"é<>&":{"b":"x"}}', '"x"', '{"a":{"b":"1"}} x',
)  # fmt: skip


@scenario
def sources_that_clients_send(at: Recorder) -> None:
    counter(at)
    for number, value in enumerate(SENT_SOURCES):
        subject = f"c.{number}"
        incr(at, "1", subject, Nats_Counter_Sources=value)
        incr(at, "1", subject)
        incr(at, "1", subject, Nats_Counter_Sources='{"Z":{}}')
        shown(at, subject)
