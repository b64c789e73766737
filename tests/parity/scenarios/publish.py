"""PubAcks, limits, dedupe, expectations, TTL, rollup."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import add, scenario

SECOND = 1_000_000_000


def stream(at: Recorder, **config: Any) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]} | config, is_quiet=True)


@scenario
def acks(at: Recorder) -> None:
    stream(at)
    at.pub("s.a")
    at.pub("s.b", b"")
    at.pub("s.c", headers={"X": "y"})
    at.pub("none")
    at.api("STREAM.INFO.S")


@scenario
def no_ack_stream(at: Recorder) -> None:
    stream(at, no_ack=True)
    at.pub("s.a", within_s=0.3)
    at.api("STREAM.INFO.S")


@scenario
def memory_accounting(at: Recorder) -> None:
    stream(at, storage="memory")
    at.pub("s.a", b"12345")
    at.pub("s.abc", b"12345", headers={"A": "b"})
    at.api("STREAM.INFO.S")


@scenario
def file_accounting(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", b"12345")
    at.pub("s.abc", b"12345", headers={"A": "b"})
    at.api("STREAM.INFO.S")
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})
    at.api("STREAM.INFO.S")


@scenario
def dedupe(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Nats-Msg-Id": "1"})
    at.pub("s.b", headers={"Nats-Msg-Id": "1"})
    at.pub("s.a", headers={"Nats-Msg-Id": "2"})
    at.pub("s.a", headers={"nats-msg-id": "2"})
    at.pub("s.a", headers={"Nats-Msg-Id": ""})
    at.pub("s.a", headers={"Nats-Msg-Id": ""})
    at.api("STREAM.PURGE.S")
    at.pub("s.a", headers={"Nats-Msg-Id": "1"})
    at.api("STREAM.INFO.S")


@scenario
def dedupe_after_delete(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Nats-Msg-Id": "1"})
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})
    at.pub("s.a", headers={"Nats-Msg-Id": "1"})


@scenario
def expected_stream(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Nats-Expected-Stream": "S"})
    at.pub("s.a", headers={"Nats-Expected-Stream": "T"})
    at.pub("s.a", headers={"Nats-Expected-Stream": ""})


@scenario
def expected_last_sequence(at: Recorder) -> None:
    stream(at)
    for value in ("0", "1", "5", "2", "x", "-1", ""):
        at.pub("s.a", headers={"Nats-Expected-Last-Sequence": value})


@scenario
def expected_last_subject_sequence(at: Recorder) -> None:
    stream(at)
    for value in ("0", "0", "1", "x", "2"):
        at.pub("s.a", headers={"Nats-Expected-Last-Subject-Sequence": value})
    at.pub("s.b", headers={"Nats-Expected-Last-Subject-Sequence": "0"})
    at.pub("s.b", headers={"Nats-Expected-Last-Subject-Sequence": "2"})


@scenario
def expected_last_subject_sequence_subject(at: Recorder) -> None:
    stream(at)
    at.fill("s.a", "s.b", "s.a")
    key, filtered = "Nats-Expected-Last-Subject-Sequence", "-Subject"
    at.pub("s.c", headers={key: "3", key + filtered: "s.a"})
    at.pub("s.c", headers={key: "4", key + filtered: "s.*"})
    at.pub("s.c", headers={key: "4", key + filtered: "s.*"})
    at.pub("s.c", headers={key: "0", key + filtered: "zzz"})
    at.pub("s.c", headers={key + filtered: "s.a"})
    at.pub("s.c", headers={key: "1", key + filtered: "bad..subject"})


@scenario
def expected_last_msg_id(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Nats-Expected-Last-Msg-Id": "x"})
    at.pub("s.a", headers={"Nats-Msg-Id": "one"})
    at.pub("s.a", headers={"Nats-Expected-Last-Msg-Id": "one"})
    at.pub("s.a", headers={"Nats-Expected-Last-Msg-Id": "two"})
    at.pub("s.a", headers={"Nats-Msg-Id": "one", "Nats-Expected-Last-Msg-Id": "zzz"})


@scenario
def order_of_checks(at: Recorder) -> None:
    """Several wrong headers at once: which error wins."""
    stream(at, max_msg_size=50)
    at.pub("s.a", headers={"Nats-Msg-Id": "1"})
    wrong_seq = {"Nats-Expected-Last-Sequence": "99"}
    at.pub("s.a", headers={"Nats-Expected-Stream": "T"} | wrong_seq)
    at.pub("s.a", headers={"Nats-Msg-Id": "1"} | wrong_seq)
    at.pub("s.a", b"x" * 100, headers={"Nats-Msg-Id": "1"})
    at.pub("s.a", b"x" * 100, headers=wrong_seq)
    at.pub("s.a", headers={"Nats-TTL": "1s"} | wrong_seq)
    at.pub("s.a", headers={"Nats-Rollup": "sub", "Nats-Msg-Id": "1"})


@scenario
def max_msg_size(at: Recorder) -> None:
    stream(at, max_msg_size=50)
    at.pub("s.a", b"x" * 50)
    at.pub("s.a", b"x" * 51)
    at.pub("s.a", b"x" * 30, headers={"Long": "y" * 30})
    at.api("STREAM.INFO.S")


@scenario
def header_too_large(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Long": "y" * 65500})
    at.pub("s.a", headers={"Long": "y" * 65600})


@scenario
def discard_new_msgs(at: Recorder) -> None:
    stream(at, max_msgs=2, discard="new")
    for _ in range(4):
        at.pub("s.a")
    at.api("STREAM.INFO.S")
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})
    at.pub("s.a")


@scenario
def discard_new_bytes(at: Recorder) -> None:
    stream(at, max_bytes=100, discard="new")
    for _ in range(4):
        at.pub("s.a", b"x" * 10)
    at.pub("s.a", b"x" * 1000)
    at.api("STREAM.INFO.S")


@scenario
def discard_new_exact(at: Recorder) -> None:
    """A stream may be filled to its last byte, and one that replaces needs no more room."""
    stream(at, max_bytes=86, discard="new", max_msgs_per_subject=1)
    at.pub("s.a", b"x" * 10)
    at.pub("s.b", b"x" * 10)
    at.pub("s.a", b"x" * 10)
    at.pub("s.a", b"x" * 11)
    at.pub("s.c")
    at.api("STREAM.INFO.S")


@scenario
def discard_new_lower_limits(at: Recorder) -> None:
    config = {"name": "S", "subjects": ["s.>"], "discard": "new"}
    at.api("STREAM.CREATE.S", config)
    at.fill(*["s.a"] * 5)
    at.api("STREAM.UPDATE.S", config | {"max_msgs": 2})
    at.api("STREAM.UPDATE.S", config | {"max_bytes": 50})
    at.pub("s.a")
    at.api("STREAM.INFO.S")


@scenario
def discard_new_memory(at: Recorder) -> None:
    stream(at, max_bytes=87, discard="new", storage="memory")
    for _ in range(4):
        at.pub("s.a", b"x" * 10)


@scenario
def discard_new_per_subject(at: Recorder) -> None:
    stream(at, max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    at.pub("s.a")
    at.pub("s.b")
    at.pub("s.a")
    at.api("STREAM.INFO.S")


@scenario
def discard_old(at: Recorder) -> None:
    stream(at, max_msgs=3)
    for number in range(6):
        at.pub(f"s.{number}")
    at.api("STREAM.INFO.S", {"subjects_filter": ">"})


@scenario
def discard_old_bytes(at: Recorder) -> None:
    stream(at, max_bytes=120)
    for number in range(6):
        at.pub(f"s.{number}", b"x" * 10)
    at.pub("s.big", b"x" * 1000)
    at.api("STREAM.INFO.S")


@scenario
def per_subject_limit(at: Recorder) -> None:
    stream(at, max_msgs_per_subject=2)
    for subject in ("s.a", "s.b", "s.a", "s.a", "s.b", "s.b", "s.c"):
        at.pub(subject)
    at.api("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})


@scenario
def max_age(at: Recorder) -> None:
    stream(at, max_age=SECOND // 5)
    at.pub("s.a")
    at.pub("s.b")
    at.wait_until(lambda: at.api("STREAM.INFO.S", is_quiet=True)["state"]["messages"] == 0)
    at.api("STREAM.INFO.S")
    at.pub("s.c")


@scenario
def rollup(at: Recorder) -> None:
    stream(at, allow_rollup_hdrs=True)
    at.fill("s.a", "s.b", "s.a", "s.c")
    at.pub("s.a", headers={"Nats-Rollup": "sub"})
    at.api("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})
    at.pub("s.b", headers={"Nats-Rollup": "all"})
    at.api("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})
    at.pub("s.b", headers={"Nats-Rollup": "SUB"})
    at.pub("s.b", headers={"Nats-Rollup": "zzz"})
    at.api("STREAM.INFO.S")


@scenario
def rollup_of_a_pattern(at: Recorder) -> None:
    """What a purge of a key like `hello.*` is in some key-value clients."""
    stream(at, allow_rollup_hdrs=True)
    at.fill("s.a", "s.a.1", "s.a.2", "s.b", "s.a.2")
    for subject in ("s.a.*", "s.a.*", "s.*", "s.>"):
        at.pub(subject, headers={"Nats-Rollup": "sub"})
        at.api("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})
        at.fill("s.a.3", "s.c")


@scenario
def rollup_of_a_full_subject(at: Recorder) -> None:
    """What takes the place of all messages of its subject is none too many."""
    for limit in (1, 2):
        config = {"max_msgs_per_subject": limit, "discard": "new", "discard_new_per_subject": True}
        for kind in ("sub", "all"):
            stream(at, allow_rollup_hdrs=True, allow_atomic=True, **config)
            at.fill("s.a", "s.b", "s.a")
            at.pub("s.a", b"one more")
            at.pub("s.a", headers={"Nats-Rollup": kind})
            batch = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}
            at.pub("s.b", headers={"Nats-Rollup": kind} | batch)
            at.api("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True})
            at.api("STREAM.DELETE.S", is_quiet=True)


@scenario
def rollup_denied(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Nats-Rollup": "sub"})
    at.pub("s.a", headers={"Nats-Rollup": "zzz"})


@scenario
def sealed(at: Recorder) -> None:
    stream(at)
    at.fill("s.a")
    at.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "sealed": True})
    at.pub("s.a")
    at.pub("s.a", headers={"Nats-Expected-Stream": "T"})


TTLS = [
    "1s",
    "1",
    "0",
    "never",
    "NEVER",
    "0s",
    "1.9s",
    "500ms",
    "-1s",
    "x",
    "1h30m",
    "1.5s",
    "2m",
    "",
    "1d",
    "9999999999",
    str(2**63),
]


def _ttl(value: str) -> Any:
    def run(at: Recorder) -> None:
        stream(at, allow_msg_ttl=True)
        at.pub("s.a", headers={"Nats-TTL": value})
        at.api("STREAM.MSG.GET.S", {"seq": 1})

    return run


for _value in TTLS:
    add(f"publish.ttl_{_value or 'empty'}", _ttl(_value))


@scenario
def ttl_disabled(at: Recorder) -> None:
    """Only one that makes sense is refused before all else; none is asked for by an empty one."""
    wrong = {"Nats-Expected-Last-Sequence": "9"}
    for value in ("1s", "never", "0", "1ms", "x", "-1", ""):
        stream(at)
        at.pub("s.a", headers={"Nats-TTL": value})
        at.pub("s.a", headers={"Nats-TTL": value} | wrong)
        at.pub("s.a", headers={"Nats-TTL": value, "Nats-Rollup": "sub"})
        at.pub("s.a", headers={"Nats-TTL": value, "Nats-Schedule": "@every 1s"})
        at.api("STREAM.INFO.S")
        at.api("STREAM.DELETE.S", is_quiet=True)


@scenario
def ttl_of_what_nobody_wants(at: Recorder) -> None:
    """It is not stored, so it may ask for a life that makes no sense."""
    for is_allowed in (True, False):
        stream(at, retention="interest", allow_msg_ttl=is_allowed)
        for value in ("1s", "x", "1ms", ""):
            at.pub("s.a", headers={"Nats-TTL": value})
        at.api("STREAM.INFO.S")
        at.api("STREAM.DELETE.S", is_quiet=True)


@scenario
def ttl_expires(at: Recorder) -> None:
    stream(at, allow_msg_ttl=True)
    at.pub("s.a", headers={"Nats-TTL": "1s"})
    at.pub("s.b", headers={"Nats-TTL": "10s"})
    at.pub("s.c")
    at.wait_until(lambda: at.api("STREAM.INFO.S", is_quiet=True)["state"]["messages"] == 2)
    at.api("STREAM.INFO.S", {"subjects_filter": ">"})


@scenario
def marker_after_age(at: Recorder) -> None:
    stream(at, max_age=SECOND, subject_delete_marker_ttl=60 * SECOND)
    at.pub("s.a")

    def is_marked() -> bool:
        return at.api("STREAM.INFO.S", is_quiet=True)["state"]["last_seq"] == 2

    at.wait_until(is_marked)
    at.api("STREAM.MSG.GET.S", {"seq": 2})
    at.api("STREAM.INFO.S")


@scenario
def ttl_below_that_of_markers(at: Recorder) -> None:
    """The TTL is raised, to whole seconds."""
    for number, marker in enumerate((2, 60, 5400, 1.5, 2.9)):
        name = f"S{number}"
        config = {"name": name, "subjects": [f"s{number}.>"], "allow_msg_ttl": True}
        ttl_ns = int(marker * SECOND)
        at.api(f"STREAM.CREATE.{name}", config | {"subject_delete_marker_ttl": ttl_ns})
        for ttl in ("1", "1s", "1500ms", "2", "3"):
            at.pub(f"s{number}.a", headers={"A": "b", "Nats-TTL": ttl, "C": "d"})
        for seq in range(1, 6):
            at.api(f"STREAM.MSG.GET.{name}", {"seq": seq})


@scenario
def ttl_of_many_digits(at: Recorder) -> None:
    stream(at, allow_msg_ttl=True)
    at.pub("s.a", headers={"Nats-TTL": str(1 << 63)})
    at.pub("s.wrapped", headers={"Nats-TTL": "9" * 20})


@scenario
def counter_headers_without_counters(at: Recorder) -> None:
    stream(at)
    for value in ("1", "+1", "-12", "x", "1.5", "1_0", "0x1", ""):
        at.pub("s.a", b"", headers={"Nats-Incr": value})
        at.pub("s.a", b"", headers={"Nats-Incr": value, "Nats-Expected-Stream": "T"})


@scenario
def schedule_headers_without_schedules(at: Recorder) -> None:
    stream(at)
    at.pub("s.a", headers={"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "s.b"})


@scenario
def odd_headers(at: Recorder) -> None:
    """Header blocks are stored byte by byte, whatever they hold."""
    stream(at)
    at.pub("s.a", headers=b"NATS/1.0\r\nA:b\r\nA: c\r\n  D : e \r\n\r\n")
    at.api("STREAM.MSG.GET.S", {"seq": 1})
    at.pub("s.a", headers=b"NATS/1.0\r\n\r\n")
    at.api("STREAM.MSG.GET.S", {"seq": 2})
    at.pub("s.a", headers={"Nats-Required-Api-Level": "99"})


@scenario
def interest_without_consumer(at: Recorder) -> None:
    stream(at, retention="interest")
    at.pub("s.a")
    at.pub("s.b")
    at.api("STREAM.INFO.S")


@scenario
def interest_without_consumer_when_full(at: Recorder) -> None:
    stream(at, retention="interest", discard="new", max_msgs=1)
    config = {"durable_name": "C", "ack_policy": "explicit", "filter_subject": "s.a"}
    at.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config}, is_quiet=True)
    at.pub("s.a")
    at.pub("s.a")
    at.pub("s.b", headers={"Nats-Msg-Id": "x"})
    at.pub("s.b", headers={"Nats-Msg-Id": "x"})
    at.api("STREAM.INFO.S")


@scenario
def two_streams_one_publish(at: Recorder) -> None:
    stream(at)
    at.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"]}, is_quiet=True)
    at.pub("s.a")
    at.pub("t")
    at.pub("s.a")


@scenario
def republish(at: Recorder) -> None:
    at.api(
        "STREAM.CREATE.S",
        {"name": "S", "subjects": ["s.>"], "republish": {"src": "s.>", "dest": "copy.>"}},
    )
    wire = at.connect()
    wire.subscribe("copy.>")
    wire.fence()
    at.pub("s.a", b"body")
    at.pub("s.a", b"body", headers={"K": "v"})
    at.note_frames("copies", wire.collect(count=2, within_s=ANSWER_S))


@scenario
def republish_headers_only(at: Recorder) -> None:
    republished = {"src": ">", "dest": "copy.>", "headers_only": True}
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "republish": republished})
    wire = at.connect()
    wire.subscribe("copy.>")
    wire.fence()
    at.pub("s.a", b"body")
    at.note_frames("copies", wire.collect(count=1, within_s=ANSWER_S))


@scenario
def republish_cycle(at: Recorder) -> None:
    republished = {"src": ">", "dest": "s.>"}
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "republish": republished})
    bad = {"src": "s.*", "dest": "bad..x"}
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "republish": bad})
