"""Fast batches (`allow_batched`): flow, gaps, errors and the end, by members' reply subjects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.parity.recorder import Recorder
from tests.parity.registry import add, scenario
from tests.parity.scenarios.headers import block
from tests.wire import Wire

START, APPEND, COMMIT, END, PING = range(5)


class Ingest:
    """One client's inbox, and what it hears."""

    def __init__(self, at: Recorder, wire: Wire | None = None) -> None:
        self.at = at
        self.wire = wire or at.wire
        self.sid = self.wire.subscribe("in.>")
        self.wire.fence()

    def send(
        self,
        op: object,
        seq: object,
        *,
        batch: str = "b",
        flow: object = 10,
        gap: str = "fail",
        subject: str = "f.a",
        body: bytes = b"x",
        headers: bytes | None = None,
    ) -> None:
        reply = f"in.{batch}.{flow}.{gap}.{seq}.{op}.$FI"
        self.wire.publish(subject, body, reply=reply, headers=headers)

    def heard(self, label: str) -> None:
        """Record what comes."""
        frames = self.wire.collect(count=99, within_s=0.15)
        self.at.note(
            label, [[frame.subject, frame.headers.decode(), _body(frame)] for frame in frames]
        )


def _body(frame: Any) -> Any:
    return frame.json() if frame.payload.startswith(b"{") else frame.payload.decode()


def stream(at: Recorder, **more: Any) -> Ingest:
    at.api("STREAM.CREATE.F", {"name": "F", "subjects": ["f.>"], "allow_batched": True} | more)
    return Ingest(at)


def shown(at: Recorder) -> None:
    state = at.api("STREAM.INFO.F", is_quiet=True).get("state", {})
    at.note("state", {key: state.get(key) for key in ("messages", "first_seq", "last_seq")})


Step = tuple[Any, ...]
"""(op, seq) or (op, seq, more)"""

RUNS: dict[str, tuple[dict[str, Any], tuple[Step, ...]]] = {
    "one message": ({}, ((COMMIT, 1),)),
    "one message ok": ({"gap": "ok"}, ((COMMIT, 1),)),
    "start and commit": ({}, ((START, 1), (COMMIT, 2))),
    "start and end": ({}, ((START, 1), (END, 2))),
    "end alone": ({}, ((END, 1),)),
    "append alone": ({}, ((APPEND, 2),)),
    "append one": ({}, ((APPEND, 1),)),
    "start again": ({}, ((START, 1), (START, 1), (APPEND, 2), (COMMIT, 3))),
    "start two": ({}, ((START, 2),)),
    "twelve": ({}, ((START, 1), *((APPEND, seq) for seq in range(2, 12)), (COMMIT, 12))),
    "flow one": ({"flow": 1}, ((START, 1), (APPEND, 2), (APPEND, 3), (COMMIT, 4))),
    "flow two": ({"flow": 2}, ((START, 1), *((APPEND, n) for n in range(2, 9)), (COMMIT, 9))),
    "flow none": ({"flow": 0}, ((START, 1), *((APPEND, n) for n in range(2, 12)), (COMMIT, 12))),
    "flow below": ({"flow": -5}, ((START, 1), (COMMIT, 2))),
    "flow word": ({"flow": "x"}, ((START, 1), (COMMIT, 2))),
    "flow large": ({"flow": 70000}, ((START, 1), (COMMIT, 2))),
    "flow plus": ({"flow": "+7"}, ((START, 1), (COMMIT, 2))),
    "gap fail": ({}, ((START, 1), (APPEND, 2), (APPEND, 4), (APPEND, 5), (COMMIT, 6))),
    "gap ok": ({"gap": "ok"}, ((START, 1), (APPEND, 2), (APPEND, 5), (APPEND, 6), (COMMIT, 7))),
    "gap at commit fail": ({}, ((START, 1), (COMMIT, 4))),
    "gap at commit ok": ({"gap": "ok"}, ((START, 1), (COMMIT, 4))),
    "gap at end fail": ({}, ((START, 1), (END, 4))),
    "gap at end ok": ({"gap": "ok"}, ((START, 1), (END, 4))),
    "repeat fail": ({}, ((START, 1), (APPEND, 2), (APPEND, 2), (APPEND, 3), (COMMIT, 4))),
    "repeat ok": (
        {"gap": "ok"},
        ((START, 1), (APPEND, 2), (APPEND, 2), (APPEND, 3), (COMMIT, 4)),
    ),
    "back ok": ({"gap": "ok"}, ((START, 1), (APPEND, 2), (APPEND, 5), (APPEND, 3), (COMMIT, 6))),
    "ping": ({}, ((START, 1), (PING, 1), (APPEND, 2), (PING, 2), (COMMIT, 3))),
    "ping unknown": ({}, ((PING, 1), (PING, 5))),
    "ping none": ({}, ((START, 1), (PING, 0), (COMMIT, 2))),
    "ping beyond fail": ({}, ((START, 1), (APPEND, 2), (PING, 5), (APPEND, 6), (COMMIT, 7))),
    "ping beyond ok": (
        {"gap": "ok"},
        ((START, 1), (APPEND, 2), (PING, 5), (APPEND, 6), (COMMIT, 7)),
    ),
    "after the end": ({}, ((START, 1), (COMMIT, 2), (APPEND, 3), (COMMIT, 3), (PING, 2))),
    "a new one of that id": ({}, ((START, 1), (COMMIT, 2), (START, 1), (COMMIT, 2))),
    "mode changes": ({}, ((START, 1), (APPEND, 3, {"gap": "ok"}), (COMMIT, 4, {"gap": "ok"}))),
    "flow changes": (
        {"flow": 2},
        ((START, 1), *((APPEND, n, {"flow": 4}) for n in range(2, 10)), (COMMIT, 10)),
    ),
    "gap word": ({"gap": "maybe"}, ((START, 1), (COMMIT, 2))),
    "gap upper": ({"gap": "OK"}, ((START, 1),)),
    "op five": ({}, ((5, 1),)),
    "op word": ({}, (("x", 1), ("", 1))),
    "seq none": ({}, ((START, 0), (APPEND, 0), (COMMIT, 0))),
    "seq word": ({}, ((START, "x"), (COMMIT, "1x"), (COMMIT, -1), (COMMIT, "+1"), (COMMIT, "01"))),
    "seq huge": ({}, ((START, 1), (APPEND, 2**64), (APPEND, 2**63), (APPEND, 10**30))),
    "id long": ({"batch": "i" * 64}, ((START, 1), (COMMIT, 2))),
    "id too long": ({"batch": "i" * 65}, ((START, 1), (COMMIT, 2))),
    "id empty": ({"batch": ""}, ((START, 1), (COMMIT, 2))),
    "off": ({"allow_batched": False}, ((START, 1), (APPEND, 2), (COMMIT, 3), (PING, 1))),
    "too large first": ({"max_msg_size": 5}, ((START, 1, {"body": b"123456"}), (COMMIT, 2))),
    "too large later": (
        {"max_msg_size": 5},
        ((START, 1), (APPEND, 2, {"body": b"123456"}), (APPEND, 3), (COMMIT, 4)),
    ),
    "too large later ok": (
        {"max_msg_size": 5, "gap": "ok"},
        ((START, 1), (APPEND, 2, {"body": b"123456"}), (APPEND, 3), (COMMIT, 4)),
    ),
    "full fail": (
        {"max_msgs": 2, "discard": "new"},
        ((START, 1), (APPEND, 2), (APPEND, 3), (APPEND, 4), (COMMIT, 5)),
    ),
    "full ok": (
        {"max_msgs": 2, "discard": "new", "gap": "ok"},
        ((START, 1), (APPEND, 2), (APPEND, 3), (COMMIT, 4)),
    ),
    "full first": ({"max_msgs": 0, "max_bytes": 1, "discard": "new"}, ((START, 1), (COMMIT, 2))),
    "full first ok": (
        {"max_bytes": 1, "discard": "new", "gap": "ok"},
        ((START, 1), (APPEND, 2), (COMMIT, 3)),
    ),
    "full alone": ({"max_bytes": 1, "discard": "new"}, ((COMMIT, 1),)),
    "full alone ok": ({"max_bytes": 1, "discard": "new", "gap": "ok"}, ((COMMIT, 1),)),
    "no ack": ({"no_ack": True}, ((START, 1), (APPEND, 2), (COMMIT, 3))),
    "interest": ({"retention": "interest"}, ((START, 1), (APPEND, 2), (COMMIT, 3))),
    "counter": (
        {"allow_msg_counter": True},
        (
            (START, 1, {"body": b"", "headers": block(b"Nats-Incr: 2")}),
            (COMMIT, 2, {"body": b"", "headers": block(b"Nats-Incr: 3")}),
        ),
    ),
    "transformed": (
        {"subject_transform": {"src": "f.*", "dest": "g.$1"}},
        ((START, 1), (COMMIT, 2)),
    ),
}
EXPECT = {"headers": block(b"Nats-Expected-Last-Sequence: 9")}
ID = {"headers": block(b"Nats-Msg-Id: m")}
LEVEL = {"headers": block(b"A: b", b"Nats-Required-Api-Level: 4")}
TOO_HIGH = {"headers": block(b"Nats-Required-Api-Level: 99")}
ATOMIC = {"headers": block(b"Nats-Batch-Id: x", b"Nats-Batch-Sequence: 1")}
for mode in ("fail", "ok"):
    RUNS |= {
        f"expectation first {mode}": (
            {"gap": mode},
            ((START, 1, EXPECT), (APPEND, 2), (COMMIT, 3)),
        ),
        f"expectation later {mode}": (
            {"gap": mode},
            ((START, 1), (APPEND, 2, EXPECT), (APPEND, 3), (COMMIT, 4)),
        ),
        f"expectation last {mode}": ({"gap": mode}, ((START, 1), (APPEND, 2), (COMMIT, 3, EXPECT))),
        f"expectation alone {mode}": ({"gap": mode}, ((COMMIT, 1, EXPECT),)),
        f"duplicate {mode}": (
            {"gap": mode},
            ((START, 1, ID), (APPEND, 2, ID), (APPEND, 3), (COMMIT, 4, ID)),
        ),
        f"duplicate alone {mode}": ({"gap": mode}, ((COMMIT, 1, ID), (COMMIT, 1, ID))),
        f"duplicate at an ack {mode}": (
            {"gap": mode, "flow": 2},
            ((START, 1, ID), (COMMIT, 2, ID)),
        ),
        f"duplicate alone at an ack {mode}": (
            {"gap": mode, "flow": 1},
            ((COMMIT, 1, ID), (COMMIT, 1, ID)),
        ),
        f"level {mode}": ({"gap": mode}, ((START, 1, LEVEL), (COMMIT, 2, LEVEL))),
        f"level too high first {mode}": ({"gap": mode}, ((START, 1, TOO_HIGH), (COMMIT, 2))),
        f"level too high later {mode}": (
            {"gap": mode},
            ((START, 1), (APPEND, 2, TOO_HIGH), (APPEND, 3), (COMMIT, 4)),
        ),
        f"atomic {mode}": ({"gap": mode}, ((START, 1, ATOMIC), (COMMIT, 2))),
        f"errors at the end {mode}": (
            {"gap": mode, "flow": 2},
            ((START, 1), (APPEND, 2, EXPECT), (APPEND, 3, EXPECT), (END, 4)),
        ),
    }
_OF_MEMBERS = ("flow", "gap", "batch")


def run(more: dict[str, Any], steps: Iterable[Step]) -> Any:
    own = {key: value for key, value in more.items() if key in _OF_MEMBERS}
    config = {key: value for key, value in more.items() if key not in _OF_MEMBERS}

    def told(at: Recorder) -> None:
        ingest = stream(at, **config)
        for op, seq, *other in steps:
            ingest.send(op, seq, **(own | (other[0] if other else {})))
            ingest.heard(f"{op} {seq}")
        shown(at)

    return told


for title, (one_config, one_steps) in RUNS.items():
    add(f"fast_batches.{title}", run(one_config, one_steps))


@scenario
def two_at_once(at: Recorder) -> None:
    ingest = stream(at)
    for op, seq in ((START, 1), *((APPEND, seq) for seq in range(2, 8)), (COMMIT, 8)):
        for batch in ("b", "c"):
            ingest.send(op, seq, batch=batch, flow=100)
            ingest.heard(f"{batch} {op} {seq}")
    shown(at)


@scenario
def short_replies(at: Recorder) -> None:
    ingest = stream(at)
    for reply in ("$FI", "0.$FI", "1.0.$FI", "ok.1.0.$FI", "10.ok.1.0.$FI", "b.10.ok.1.0.$FI",
                  "in.x.y.b.10.ok.1.0.$FI"):  # fmt: skip
        ingest.wire.subscribe(reply)
        ingest.wire.publish("f.a", b"x", reply=reply)
        ingest.heard(reply)
    shown(at)


@scenario
def what_is_stored(at: Recorder) -> None:
    ingest = stream(at)
    ingest.send(START, 1, headers=block(b"A: b", b"Nats-Required-Api-Level: 4"))
    ingest.send(APPEND, 2, headers=block(b"Nats-Required-Api-Level: 4"))
    ingest.send(COMMIT, 3, headers=block(b"Nats-Msg-Id: z"))
    ingest.heard("all")
    for seq in (1, 2, 3):
        at.api("STREAM.MSG.GET.F", {"seq": seq})


@scenario
def sealed(at: Recorder) -> None:
    ingest = stream(at)
    config = {"name": "F", "subjects": ["f.>"], "allow_batched": True, "sealed": True}
    ingest.send(START, 1)
    ingest.heard("start")
    at.api("STREAM.UPDATE.F", config, is_quiet=True)
    ingest.send(APPEND, 2)
    ingest.heard("append")
    ingest.send(START, 1, batch="c")
    ingest.heard("another")
    ingest.send(PING, 1)
    ingest.heard("ping")


@scenario
def switched_off(at: Recorder) -> None:
    ingest = stream(at)
    ingest.send(START, 1)
    ingest.heard("start")
    at.api("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"]}, is_quiet=True)
    ingest.send(APPEND, 2)
    ingest.heard("append")
    at.api("STREAM.UPDATE.F", {"name": "F", "subjects": ["f.>"], "allow_batched": True})
    ingest.send(APPEND, 2)
    ingest.heard("append")
    shown(at)


@scenario
def a_thousand_at_once(at: Recorder) -> None:
    ingest = stream(at)
    ingest.send(START, 1, flow=100)
    ingest.heard("start")
    for seq in range(2, 1001):
        ingest.send(APPEND, seq, flow=100)
    ingest.heard("append")
    ingest.send(END, 1001, flow=100)
    ingest.heard("end")
    shown(at)
