"""Pull requests: batches, expiry, statuses."""

from __future__ import annotations

import json
from typing import Any

from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import add, scenario

SECOND = 1_000_000_000
TENTH = SECOND // 10
SOON = 4 * TENTH  # ends a pull that gets all it gets at once


def consumer(at: Recorder, *subjects: str, **config: Any) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]}, is_quiet=True)
    at.fill(*subjects)
    whole = {"durable_name": "C", "ack_policy": "explicit"} | config
    at.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": whole}, is_quiet=True)


def counted(at: Recorder, pending: int) -> None:
    """Wait until the consumer counts what was published: the peer does a moment after its ack."""

    def is_counted() -> bool:
        return bool(at.api("CONSUMER.INFO.S.C", is_quiet=True)["num_pending"] == pending)

    at.wait_until(is_counted)


BODIES: dict[str, Any] = {
    "empty": (None, 1),
    "number": (b"2", 2),
    "number_spaces": (b" 2 ", 2),
    "batch": ({"batch": 3}, 3),
    "batch_zero": ({"batch": 0, "expires": SOON}, 0),
    "batch_negative": ({"batch": -1, "expires": SOON}, 0),
    "no_wait": ({"batch": 10, "no_wait": True}, 0),
    "no_wait_exact": ({"batch": 4, "no_wait": True}, 4),
    "expires": ({"batch": 10, "expires": SOON}, 0),
    "expires_no_wait": ({"batch": 10, "expires": SOON, "no_wait": True}, 0),
    "expires_negative": ({"batch": 2, "expires": -1}, 2),
    "max_bytes": ({"batch": 10, "max_bytes": 90, "expires": SOON}, 0),
    "max_bytes_small": ({"batch": 10, "max_bytes": 10, "expires": SOON}, 0),
    "max_bytes_no_wait": ({"batch": 10, "max_bytes": 5000, "no_wait": True}, 0),
    "heartbeat_too_large": ({"batch": 1, "expires": SOON, "idle_heartbeat": SOON}, 0),
    "garbage": (b"garbage", 0),
    "bad_json": (b"{garbage", 0),
    "wrong_type": ({"batch": "x"}, 0),
    "unknown_field": ({"batch": 1, "zzz": 1}, 1),
    "group_on_plain": ({"batch": 1, "group": "A", "expires": SOON}, 0),
    "priority_on_plain": ({"batch": 1, "priority": 3, "expires": SOON}, 0),
    "min_pending_on_plain": ({"batch": 1, "min_pending": 3, "expires": SOON}, 0),
    "pin_id_on_plain": ({"batch": 1, "id": "x", "expires": SOON}, 0),
    "batch_huge": ({"batch": 1000000, "no_wait": True}, 0),
}


def _pull(body: Any, count: int) -> Any:
    def run(at: Recorder) -> None:
        consumer(at, "s.a", "s.b", "s.a", "s.c")
        at.pull("S", "C", body, count=count, within_s=2)
        at.api("CONSUMER.INFO.S.C")

    return run


for _key, (_body, _count) in BODIES.items():
    add(f"pulls.{_key}", _pull(_body, _count))
    if isinstance(_body, dict) and ("expires" in _body or "no_wait" in _body):

        def _on_empty(at: Recorder, body: Any = _body) -> None:
            consumer(at)
            at.pull("S", "C", body, within_s=2)
            at.api("CONSUMER.INFO.S.C")

        add(f"pulls.{_key}_when_empty", _on_empty)


@scenario
def missing(at: Recorder) -> None:
    at.pull("S", "C", {"batch": 1}, within_s=2)
    consumer(at)
    at.pull("S", "D", {"batch": 1}, within_s=2)


@scenario
def headers_and_bodies(at: Recorder) -> None:
    consumer(at)
    at.pub("s.a", b"plain")
    at.pub("s.a", b"", headers={"A": "b", "C": "d"})
    at.pub("s.a", b"\x00\xff\r\nMSG x 1 5\r\n")
    counted(at, 3)
    at.pull("S", "C", {"batch": 3}, count=3)


@scenario
def headers_only(at: Recorder) -> None:
    consumer(at, headers_only=True)
    at.pub("s.a", b"plain")
    at.pub("s.a", b"12345", headers={"A": "b"})
    counted(at, 2)
    at.pull("S", "C", {"batch": 2}, count=2)


@scenario
def consumer_limits(at: Recorder) -> None:
    consumer(at, "s.a", max_batch=2, max_expires=SECOND, max_bytes=100)
    at.pull("S", "C", {"batch": 3}, within_s=2)
    at.pull("S", "C", {"batch": 1, "expires": 2 * SECOND}, within_s=2)
    at.pull("S", "C", {"batch": 1, "max_bytes": 200, "expires": SOON}, within_s=2)
    at.pull("S", "C", {"batch": 1, "expires": SECOND, "max_bytes": 100}, count=1)


@scenario
def max_waiting(at: Recorder) -> None:
    consumer(at, max_waiting=1)
    wire = at.connect()
    wire.subscribe("wait")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1,"expires":5000000000}', reply="wait")
    wire.fence()
    at.wait_until(lambda: at.api("CONSUMER.INFO.S.C", is_quiet=True)["num_waiting"] == 1)
    at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", {"batch": 1, "expires": SECOND})
    at.pub("s.a")
    at.note_frames("first", wire.collect(count=1, within_s=ANSWER_S))


@scenario
def waits_for_message(at: Recorder) -> None:
    consumer(at)
    wire = at.connect()
    wire.subscribe("wait")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":3,"expires":5000000000}', reply="wait")
    wire.fence()
    for _ in range(3):  # each is taken before the next comes: its ack reply says how many wait
        at.pub("s.a")
        at.note_frames("message", wire.collect(count=1, within_s=ANSWER_S))
    at.api("CONSUMER.INFO.S.C")


@scenario
def idle_heartbeat(at: Recorder) -> None:
    consumer(at, "s.a")
    body = {"batch": 2, "expires": 25 * TENTH, "idle_heartbeat": SECOND}
    at.pull("S", "C", body)


@scenario
def round_robin(at: Recorder) -> None:
    """Two waiting pulls take turns."""
    consumer(at)
    wire = at.connect()
    for inbox in ("one", "two"):
        wire.subscribe(inbox)
        body = b'{"batch":2,"expires":5000000000}'
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", body, reply=inbox)
        wire.fence()
        at.wait_until(lambda: at.api("CONSUMER.INFO.S.C", is_quiet=True)["num_waiting"] > 0)
    for number in range(4):
        at.pub(f"s.{number}")
    at.note_frames("taken", wire.collect(count=4, within_s=ANSWER_S))


@scenario
def deleted_while_waiting(at: Recorder) -> None:
    consumer(at)
    wire = at.connect()
    wire.subscribe("wait")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1,"expires":5000000000}', reply="wait")
    wire.fence()
    at.wait_until(lambda: at.api("CONSUMER.INFO.S.C", is_quiet=True)["num_waiting"] == 1)
    at.api("CONSUMER.DELETE.S.C")
    at.note_frames("status", wire.collect(count=1, within_s=ANSWER_S))


@scenario
def stream_deleted_while_waiting(at: Recorder) -> None:
    consumer(at)
    wire = at.connect()
    wire.subscribe("wait")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1,"expires":5000000000}', reply="wait")
    wire.fence()
    at.wait_until(lambda: at.api("CONSUMER.INFO.S.C", is_quiet=True)["num_waiting"] == 1)
    at.api("STREAM.DELETE.S")
    at.note_frames("status", wire.collect(count=1, within_s=ANSWER_S))


@scenario
def on_push_consumer(at: Recorder) -> None:
    consumer(at, "s.a", deliver_subject="d.x")
    at.pull("S", "C", {"batch": 1, "expires": SOON}, within_s=2)


@scenario
def max_ack_pending(at: Recorder) -> None:
    consumer(at, "s.a", "s.a", "s.a", "s.a", max_ack_pending=2)
    frames = at.pull("S", "C", {"batch": 4, "expires": SOON})
    at.api("CONSUMER.INFO.S.C")
    at.ack(frames[0])
    at.pull("S", "C", {"batch": 4, "expires": SOON})
    at.api("CONSUMER.INFO.S.C")


@scenario
def filtered(at: Recorder) -> None:
    consumer(at, "s.a", "s.b", "s.a", "s.c", "s.b", filter_subjects=["s.a", "s.c"])
    at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", {"batch": 10, "no_wait": True})
    at.pub("s.b")
    at.pub("s.c")
    counted(at, 1)
    at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", {"batch": 10, "no_wait": True})
    at.api("CONSUMER.INFO.S.C")


@scenario
def over_holes(at: Recorder) -> None:
    consumer(at, *["s.a"] * 8)
    for seq in (1, 3, 4, 8):
        at.api("STREAM.MSG.DELETE.S", {"seq": seq})
    at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", {"batch": 10, "no_wait": True})
    at.api("CONSUMER.INFO.S.C")


@scenario
def after_purge(at: Recorder) -> None:
    consumer(at, *["s.a"] * 6)
    frames = at.pull("S", "C", {"batch": 3}, count=3)
    at.ack(frames[0])
    at.api("STREAM.PURGE.S", {"seq": 5})
    at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", {"batch": 10, "no_wait": True})
    at.api("CONSUMER.INFO.S.C")
    at.api("STREAM.PURGE.S")
    at.api("CONSUMER.INFO.S.C")
    at.pub("s.a")
    counted(at, 1)
    at.pull("S", "C", {"batch": 10, "no_wait": True})
    at.api("CONSUMER.INFO.S.C")


@scenario
def purge_below_with_pending(at: Recorder) -> None:
    """Also of a consumer that had nothing delivered, and with acks outstanding above."""
    consumer(at, *["s.a"] * 8)
    at.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"name": "D"}})
    at.pull("S", "C", {"batch": 6}, count=6)
    at.api("STREAM.PURGE.S", {"seq": 5})
    at.api("CONSUMER.INFO.S.C")
    at.api("CONSUMER.INFO.S.D")
    at.api("STREAM.PURGE.S", {"keep": 1})
    at.api("CONSUMER.INFO.S.C")
    at.api("CONSUMER.INFO.S.D")


@scenario
def unpin(at: Recorder) -> None:
    """The administrator takes the pin from a client; the next pull gets it."""
    config = {
        "name": "P",
        "durable_name": "P",
        "ack_policy": "explicit",
        "priority_policy": "pinned_client",
        "priority_groups": ["g"],
    }
    consumer(at, "s.a", "s.a", "s.a")
    at.api("CONSUMER.CREATE.S.P", {"stream_name": "S", "config": config})
    body = {"batch": 1, "group": "g"}

    def pull() -> None:
        """As `at.pull`, with the random pin made stable."""
        frames = at.wire.ask("$JS.API.CONSUMER.MSG.NEXT.S.P", json.dumps(body).encode())
        at.note("pulled", [[each.payload.decode(), sorted(each.pairs)] for each in frames])

    def info() -> None:
        groups = at.wire.api("CONSUMER.INFO.S.P")["priority_groups"]
        for group in groups:
            if "pinned_client_id" in group:
                group["pinned_client_id"] = "<pin>"
        at.note("groups", groups)

    listener = at.connect()
    listener.subscribe("$JS.EVENT.ADVISORY.CONSUMER.*.S.P")
    listener.fence()
    info()
    pull()
    info()
    for wrong in (None, b"{", {}, {"group": ""}, {"group": "a b"}, {"group": "h"}):
        at.api("CONSUMER.UNPIN.S.P", wrong)
    at.api("CONSUMER.UNPIN.S.C", {"group": "g"})
    at.api("CONSUMER.UNPIN.S.Z", {"group": "g"})
    at.api("CONSUMER.UNPIN.Z.P", {"group": "g"})
    at.api("CONSUMER.UNPIN.S.P", {"group": "g", "more": 1})
    info()
    pull()
    info()
    for frame in listener.collect(count=3, within_s=ANSWER_S):
        document = frame.json()
        for key in ("id", "pinned_id"):
            if key in document:
                document[key] = "<random>"
        at.note(frame.subject, document)


@scenario
def too_small_to_be_pinned(at: Recorder) -> None:
    """Who gets nothing hears of no pin, and does not keep the others waiting."""
    config = {"priority_policy": "pinned_client", "priority_groups": ["g"]}
    consumer(at, "s.a", "s.a", **config)
    wanted = {"batch": 1, "group": "g", "expires": SOON}
    at.pull("S", "C", wanted | {"max_bytes": 1})
    at.api("CONSUMER.INFO.S.C")
    frames = at.wire.ask("$JS.API.CONSUMER.MSG.NEXT.S.C", json.dumps(wanted).encode())
    at.note("the next one", [[each.payload.decode(), sorted(each.pairs)] for each in frames])


@scenario
def ack_none(at: Recorder) -> None:
    consumer(at, *["s.a"] * 4, ack_policy="none")
    at.pull("S", "C", {"batch": 3}, count=3)
    at.api("CONSUMER.INFO.S.C")


@scenario
def interest_gone(at: Recorder) -> None:
    """A pull whose subscriber left does not swallow messages."""
    consumer(at)
    wire = at.connect()
    sid = wire.subscribe("wait")
    wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":9,"expires":5000000000}', reply="wait")
    wire.fence()
    at.wait_until(lambda: at.api("CONSUMER.INFO.S.C", is_quiet=True)["num_waiting"] == 1)
    wire.unsubscribe(sid)
    wire.fence()
    at.pub("s.a")
    at.pull("S", "C", {"batch": 1, "expires": SECOND}, count=1)
    at.api("CONSUMER.INFO.S.C")


@scenario
def required_level(at: Recorder) -> None:
    consumer(at, "s.a")
    at.pull("S", "C", {"batch": 1}, headers={"Nats-Required-Api-Level": "99"}, within_s=2)


@scenario
def overflow_and_redelivery(at: Recorder) -> None:
    """What is to be sent again counts as one that waits."""
    config = {"priority_policy": "overflow", "priority_groups": ["g"]}
    consumer(at, "s.a", "s.a", **config)
    frames = at.pull("S", "C", {"batch": 2, "group": "g"}, count=2)
    at.ack(frames[0], b"-NAK")
    at.pull("S", "C", {"batch": 1, "group": "g", "min_pending": 2, "expires": SOON})
    at.pull("S", "C", {"batch": 1, "group": "g", "min_pending": 1, "expires": SOON}, count=1)


@scenario
def odd_thresholds(at: Recorder) -> None:
    consumer(at, "s.a")
    for wanted in ({"min_pending": -1}, {"min_ack_pending": -1}, {"min_pending": -1, "id": "x"}):
        at.pull("S", "C", {"batch": 1, "expires": SOON} | wanted, within_s=2)


@scenario
def no_wait_held_by_acks(at: Recorder) -> None:
    """It got some: with heartbeats it ends with 404 where the first is due, else at its time."""
    consumer(at, *["s.a"] * 12, max_ack_pending=3)
    body = {"batch": 10, "no_wait": True, "expires": SOON}
    frames = at.pull("S", "C", body)
    for frame in frames[:3]:
        at.ack(frame)
    at.pull("S", "C", body | {"idle_heartbeat": TENTH})
    at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", body | {"idle_heartbeat": TENTH})
    at.pull("S", "C", body)


@scenario
def bare_no_wait_held_by_acks(at: Recorder) -> None:
    """It has no time of its own: it ends when another's is over."""
    consumer(at, *["s.a"] * 6, max_ack_pending=3)
    at.pull("S", "C", {"batch": 3}, count=3)
    first, second = at.connect(), at.connect()
    for wire, body in ((first, {"batch": 2, "no_wait": True}), (second, {"expires": SOON})):
        wire.subscribe(wire.inbox)
        next_msgs = "$JS.API.CONSUMER.MSG.NEXT.S.C"
        wire.publish(next_msgs, json.dumps(body).encode(), reply=wire.inbox)
        wire.fence()
    at.note_frames("nothing yet", first.collect(count=1, within_s=0.1))
    at.note_frames("the other's time", second.collect(count=1, within_s=ANSWER_S))
    at.note_frames("and this is over", first.collect(count=1, within_s=0.1))
