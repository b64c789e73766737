"""Acks, redelivery, push delivery, heartbeats, flow control, retention by consumers."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import ANSWER_S, SILENCE_S, Recorder
from tests.parity.registry import add, scenario
from tests.wire import Frame

SECOND = 1_000_000_000
TENTH = SECOND // 10


def stream(at: Recorder, *subjects: str, **config: Any) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]} | config, is_quiet=True)
    at.fill(*subjects)


def consumer(at: Recorder, name: str = "C", **config: Any) -> None:
    whole = {"durable_name": name, "ack_policy": "explicit"} | config
    at.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": whole}, is_quiet=True)


KINDS: dict[str, bytes] = {
    "empty": b"",
    "ack": b"+ACK",
    "ok": b"+OK",
    "nak": b"-NAK",
    "nak_delay": b'-NAK {"delay": 1500000000}',
    "nak_duration": b"-NAK 1500ms",
    "nak_bad": b"-NAK {bad",
    "progress": b"+WPI",
    "term": b"+TERM",
    "term_reason": b"+TERM because",
    "unknown": b"zzz",
    "lower": b"+ack",
}


def _ack(kind: bytes) -> Any:
    def run(at: Recorder) -> None:
        stream(at, "s.a", "s.b", "s.a")
        consumer(at)
        frames = at.pull("S", "C", {"batch": 2}, count=2)
        at.ack(frames[0], kind)
        at.api("CONSUMER.INFO.S.C")
        if b"5" in kind:  # asked before the delay is over, and until it is
            at.pull("S", "C", {"batch": 2, "expires": 9 * SECOND}, count=2, within_s=9)
        else:
            at.pull("S", "C", {"batch": 5, "expires": 4 * TENTH})
        at.api("CONSUMER.INFO.S.C")

    return run


for _key, _kind in KINDS.items():
    add(f"delivery.ack_{_key}", _ack(_kind))


@scenario
def ack_of_what_wants_none(at: Recorder) -> None:
    """Nobody listens: no responders."""
    stream(at, "s.a", "s.b")
    consumer(at, ack_policy="none")
    frame = at.pull("S", "C", {"batch": 1}, count=1)[0]
    at.ack(frame)
    at.ack(frame, b"+NXT")


@scenario
def ack_next(at: Recorder) -> None:
    stream(at, *["s.a"] * 6)
    consumer(at)
    frame = at.pull("S", "C", {"batch": 1}, count=1)[0]
    for kind, count in ((b"+NXT", 1), (b"+NXT 2", 2), (b'+NXT {"batch":1}', 1)):
        frames = at.wire.ask(frame.reply, kind, count=count, within_s=1)
        at.note_frames(f"next {kind.decode()}", frames)
        frame = frames[-1]
    at.api("CONSUMER.INFO.S.C")


@scenario
def ack_out_of_order(at: Recorder) -> None:
    stream(at, *["s.a"] * 5)
    consumer(at)
    frames = at.pull("S", "C", {"batch": 5}, count=5)
    for number in (3, 1, 0, 4, 2):
        at.ack(frames[number])
        at.api("CONSUMER.INFO.S.C")
    at.ack(frames[0])
    at.api("CONSUMER.INFO.S.C")


@scenario
def ack_all(at: Recorder) -> None:
    stream(at, *["s.a"] * 5)
    consumer(at, ack_policy="all")
    frames = at.pull("S", "C", {"batch": 5}, count=5)
    at.ack(frames[2])
    at.api("CONSUMER.INFO.S.C")
    at.ack(frames[0])
    at.ack(frames[4])
    at.api("CONSUMER.INFO.S.C")


@scenario
def ack_all_by_term(at: Recorder) -> None:
    stream(at, *["s.a"] * 5)
    consumer(at, ack_policy="all")
    frames = at.pull("S", "C", {"batch": 5}, count=5)
    for kind, number in ((b"-NAK", 0), (b"+WPI", 1), (b"+TERM", 2), (b"+TERM", 0), (b"-NAK", 4)):
        at.ack(frames[number], kind)
        at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", {"batch": 5, "no_wait": True}, count=5)


@scenario
def only_who_listens_to_just_that_subject_binds(at: Recorder) -> None:
    """Whoever looks at everything, or belongs to another group, gets nothing sent by that."""
    stream(at, "s.a")
    consumer(at, "C", deliver_subject="d.c", ack_policy="none")
    consumer(at, "G", deliver_subject="d.g", deliver_group="g", ack_policy="none")
    others, mine = at.connect(), at.connect()

    def look(count: int = 0) -> None:
        at.pub("s.a")
        frames = mine.collect(count=count, within_s=ANSWER_S) if count else []
        frames += mine.collect(within_s=SILENCE_S)
        at.note_frames("mine", sorted(frames, key=lambda got: got.reply))
        for name in "CG":
            at.api(f"CONSUMER.INFO.S.{name}")

    for pattern, queue in (("d.*", ""), (">", ""), ("d.*", "g"), ("d.c", "q"), ("d.g", "")):
        others.subscribe(pattern, queue)
    others.fence()
    look()
    sids = [mine.subscribe("d.c"), mine.subscribe("d.g", "g")]
    others.unsubscribe("3")  # of two members of a group either may be chosen
    others.fence()
    mine.collect(count=4, within_s=ANSWER_S)  # what was there before
    look(2)
    for sid in sids:
        mine.unsubscribe(sid)
    mine.fence()
    look()


@scenario
def ack_all_after_nak(at: Recorder) -> None:
    stream(at, *["s.a"] * 3)
    consumer(at, ack_policy="all")
    frames = at.pull("S", "C", {"batch": 3}, count=3)
    at.ack(frames[0], b"-NAK")
    at.ack(frames[2])
    at.pull("S", "C", {"batch": 3, "no_wait": True}, within_s=1)
    at.api("CONSUMER.INFO.S.C")


@scenario
def ack_nonsense(at: Recorder) -> None:
    stream(at, "s.a")
    consumer(at)
    frame = at.pull("S", "C", {"batch": 1}, count=1)[0]
    parts = frame.reply.split(".")
    beyond = ".".join([*parts[:5], "99", "99", *parts[7:]])
    at.note_frames("beyond", at.wire.ask(beyond, b"+ACK", within_s=0.4))
    at.note_frames("short", at.wire.ask("$JS.ACK.S.C.1.1", b"+ACK", within_s=0.4))
    letters = ".".join([*parts[:5], "x", *parts[6:]])
    at.note_frames("letters", at.wire.ask(letters, b"+ACK", within_s=0.4))
    at.api("CONSUMER.INFO.S.C")


@scenario
def redelivery(at: Recorder) -> None:
    stream(at, "s.a", "s.b")
    consumer(at, ack_wait=SECOND)
    at.pull("S", "C", {"batch": 2}, count=2)
    at.pull("S", "C", {"batch": 2, "expires": 4 * SECOND}, count=2)
    at.api("CONSUMER.INFO.S.C")
    frames = at.pull("S", "C", {"batch": 2, "expires": 4 * SECOND}, count=2)
    for frame in frames:
        at.ack(frame)
    at.api("CONSUMER.INFO.S.C")


@scenario
def max_deliver(at: Recorder) -> None:
    stream(at, "s.a", "s.b")
    consumer(at, ack_wait=SECOND, max_deliver=2)
    wire = at.connect()
    wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    wire.fence()
    at.pull("S", "C", {"batch": 1}, count=1)
    at.pull("S", "C", {"batch": 1, "expires": 4 * SECOND}, count=1)
    at.pull("S", "C", {"batch": 5, "expires": 3 * SECOND})  # the second message's last ends at 2 s
    frames = wire.collect(count=1, within_s=ANSWER_S)
    at.note("advisory", [{k: v for k, v in f.json().items() if k != "id"} for f in frames])
    at.api("CONSUMER.INFO.S.C")


@scenario
def max_deliver_lowered(at: Recorder) -> None:
    """Below what was delivered already of a message that waits to be sent again."""
    stream(at, "s.a", "s.b")
    consumer(at)
    listener = at.connect()
    listener.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    listener.fence()
    for _ in range(2):
        at.ack(at.pull("S", "C", {"batch": 1}, count=1)[0], b"-NAK")
    consumer(at, max_deliver=1)
    at.pull("S", "C", {"batch": 5, "expires": 4 * TENTH})
    frames = listener.collect(count=1, within_s=ANSWER_S)
    told = [{k: v for k, v in frame.json().items() if k != "id"} for frame in frames]
    at.note("advisories", told)
    at.api("CONSUMER.INFO.S.C")


@scenario
def backoff(at: Recorder) -> None:
    stream(at, "s.a")
    consumer(at, backoff=[TENTH, 2 * TENTH], max_deliver=4)
    for _ in range(3):
        at.pull("S", "C", {"batch": 1, "expires": 4 * SECOND}, count=1)
    at.api("CONSUMER.INFO.S.C")


@scenario
def backoff_of_zero(at: Recorder) -> None:
    """It is the ack wait: nothing comes again at once."""
    stream(at, "s.a")
    consumer(at, backoff=[15 * TENTH, 0], max_deliver=4)
    for _ in range(2):
        at.pull("S", "C", {"batch": 1, "expires": 4 * SECOND}, count=1)
    at.pull("S", "C", {"batch": 1, "expires": 4 * TENTH})
    at.pull("S", "C", {"batch": 1, "expires": 4 * SECOND}, count=1)


@scenario
def nak_advisory(at: Recorder) -> None:
    stream(at, "s.a", "s.b")
    consumer(at)
    wire = at.connect()
    wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.>")
    wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    wire.fence()
    frames = at.pull("S", "C", {"batch": 2}, count=2)
    at.ack(frames[0], b"-NAK")
    at.ack(frames[1], b"+TERM poison")
    seen = wire.collect(count=2, within_s=ANSWER_S)
    at.note("advisories", [{k: v for k, v in f.json().items() if k != "id"} for f in seen])


@scenario
def redelivered_message_deleted(at: Recorder) -> None:
    stream(at, "s.a", "s.b")
    consumer(at, ack_wait=2 * SECOND)
    at.pull("S", "C", {"batch": 2}, count=2)
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})
    at.api("CONSUMER.INFO.S.C")
    # The other comes again once: its ack is due before this ends, and the next one after.
    at.pull("S", "C", {"batch": 5, "expires": 3 * SECOND})
    at.api("CONSUMER.INFO.S.C")


@scenario
def workqueue(at: Recorder) -> None:
    stream(at, "s.a", "s.b", "s.a", retention="workqueue")
    consumer(at)
    frames = at.pull("S", "C", {"batch": 3}, count=3)
    at.ack(frames[1])
    at.api("STREAM.INFO.S", {"deleted_details": True})
    at.ack(frames[0], b"+TERM")
    at.api("STREAM.INFO.S", {"deleted_details": True})
    at.ack(frames[2])
    at.api("STREAM.INFO.S")
    at.api("CONSUMER.INFO.S.C")


@scenario
def interest(at: Recorder) -> None:
    stream(at, retention="interest")
    consumer(at, "A")
    consumer(at, "B", filter_subject="s.b")
    at.fill("s.a", "s.b", "s.c", "s.b")
    at.api("STREAM.INFO.S")
    frames = at.pull("S", "A", {"batch": 4}, count=4)
    for frame in frames:
        at.ack(frame)
    at.api("STREAM.INFO.S", {"deleted_details": True})
    frames = at.pull("S", "B", {"batch": 2}, count=2)
    at.ack(frames[0])
    at.api("STREAM.INFO.S", {"deleted_details": True})
    at.api("CONSUMER.DELETE.S.B")
    at.api("STREAM.INFO.S")


@scenario
def interest_last_consumer_deleted(at: Recorder) -> None:
    stream(at, retention="interest")
    consumer(at, "A")
    at.fill("s.a", "s.b")
    at.api("CONSUMER.DELETE.S.A")
    at.api("STREAM.INFO.S")


@scenario
def push(at: Recorder) -> None:
    stream(at, "s.a", "s.b")
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    consumer(at, deliver_subject="d.x")
    at.note_frames("stored", wire.collect(count=2, within_s=ANSWER_S))
    at.pub("s.c", b"live", headers={"K": "v"})
    at.note_frames("live", wire.collect(count=1, within_s=ANSWER_S))
    at.api("CONSUMER.INFO.S.C")


@scenario
def push_waits_for_interest(at: Recorder) -> None:
    stream(at, "s.a", "s.b")
    consumer(at, deliver_subject="d.x")
    at.api("CONSUMER.INFO.S.C")
    wire = at.connect()
    wire.subscribe("d.x")
    at.note_frames("after", wire.collect(count=2, within_s=ANSWER_S))
    at.api("CONSUMER.INFO.S.C")


@scenario
def push_ack_none(at: Recorder) -> None:
    stream(at, *["s.a"] * 4)
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    consumer(at, deliver_subject="d.x", ack_policy="none")
    at.note_frames("stored", wire.collect(count=4, within_s=ANSWER_S))
    info = {}

    def is_settled() -> bool:
        info.update(at.api("CONSUMER.INFO.S.C", is_quiet=True))
        return info["ack_floor"]["stream_seq"] == 4

    at.wait_until(is_settled)
    at.api("CONSUMER.INFO.S.C")


@scenario
def push_group(at: Recorder) -> None:
    stream(at, "s.a")
    plain, member = at.connect(), at.connect()
    plain.subscribe("d.x")
    plain.fence()
    consumer(at, deliver_subject="d.x", deliver_group="q")
    at.note_frames("without the group", plain.collect(count=1, within_s=0.3))
    member.subscribe("d.x", "q")
    at.note_frames("with it", member.collect(count=1, within_s=ANSWER_S))
    at.api("CONSUMER.INFO.S.C")


@scenario
def push_heartbeat(at: Recorder) -> None:
    stream(at, "s.a")
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    consumer(at, deliver_subject="d.x", idle_heartbeat=2 * TENTH)
    at.note_frames("message and heartbeats", wire.collect(count=3, within_s=ANSWER_S))


@scenario
def push_flow_control(at: Recorder) -> None:
    stream(at)
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    body = b"x" * 60000
    for _ in range(30):
        at.pub("s.a", body, is_quiet=True)
    config = {"deliver_subject": "d.x", "ack_policy": "none", "flow_control": True}
    consumer(at, **config, idle_heartbeat=9 * SECOND)
    frames = wire.collect(count=31, within_s=ANSWER_S, quiet_s=1.5)
    asked = [frame for frame in frames if frame.status]
    for frame in asked:
        wire.publish(frame.reply)
    at.note("statuses", [at.frame(frame) for frame in asked if "Flow" in frame.status][:1])
    at.note("messages", sum(1 for frame in frames if not frame.status))


@scenario
def push_headers_only_filtered(at: Recorder) -> None:
    stream(at, "s.a", "s.b", "s.a")
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    consumer(at, deliver_subject="d.x", headers_only=True, filter_subject="s.a")
    at.note_frames("stored", wire.collect(count=2, within_s=ANSWER_S))


@scenario
def push_redelivers(at: Recorder) -> None:
    stream(at, "s.a")
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    consumer(at, deliver_subject="d.x", ack_wait=SECOND, max_deliver=3)
    frames = at.note_frames("deliveries", wire.collect(count=3, within_s=2 * ANSWER_S))
    at.ack(frames[-1])
    at.api("CONSUMER.INFO.S.C")


@scenario
def push_to_another_subject(at: Recorder) -> None:
    """Who comes back under a new subject gets at once what was not acked, then what is new."""
    stream(at, *["s.a"] * 4)
    wire = at.connect()
    sid = wire.subscribe("d.x")
    wire.fence()
    config = {"deliver_subject": "d.x", "ack_wait": 60 * SECOND, "max_deliver": 2}
    consumer(at, **config)
    frames = at.note_frames("first", wire.collect(count=4, within_s=ANSWER_S))
    at.ack(frames[1])
    at.ack(frames[2], b'-NAK {"delay": 60000000000}')
    wire.unsubscribe(sid)
    wire.fence()
    at.fill("s.a")
    for subject, count in (("d.y", 4), ("d.z", 1)):
        sid = wire.subscribe(subject)
        wire.fence()
        consumer(at, **config | {"deliver_subject": subject})
        at.note_frames("again", wire.collect(count=count, within_s=ANSWER_S))
        at.note_frames("no more", wire.collect(count=1, within_s=SILENCE_S))
        at.api("CONSUMER.INFO.S.C")
        wire.unsubscribe(sid)
        wire.fence()


@scenario
def not_inactive_while_at_work(at: Recorder) -> None:
    """Its client says nothing for longer than the threshold, but its ack is not due yet."""
    stream(at, "s.a", "s.b")
    consumer(at, inactive_threshold=SECOND // 2, ack_wait=20 * SECOND)
    frame = at.pull("S", "C", {"batch": 1}, count=1)[0]
    at.silent("at work", within_s=2.0)  # the peer adds up to a second to the threshold
    at.api("CONSUMER.INFO.S.C")
    at.ack(frame)
    at.wait_until(lambda: "error" in at.api("CONSUMER.INFO.S.C", is_quiet=True), within_s=4.0)
    at.api("CONSUMER.INFO.S.C")


@scenario
def push_max_ack_pending(at: Recorder) -> None:
    stream(at, *["s.a"] * 4)
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    consumer(at, deliver_subject="d.x", max_ack_pending=2)
    frames = at.note_frames("two", wire.collect(count=2, within_s=ANSWER_S))
    at.note_frames("no third", wire.collect(count=1, within_s=SILENCE_S))
    at.ack(frames[0])
    at.note_frames("one more", wire.collect(count=1, within_s=ANSWER_S))
    at.note_frames("no more", wire.collect(count=1, within_s=SILENCE_S))


@scenario
def replay_original(at: Recorder) -> None:
    stream(at)
    for _ in range(3):
        at.pub("s.a", is_quiet=True)
        at.silent("gap", within_s=0.1)
    consumer(at, replay_policy="original")
    at.pull("S", "C", {"batch": 3, "expires": 4 * SECOND}, count=3)


@scenario
def ordered(at: Recorder) -> None:
    """What clients' ordered consumers do: ephemeral, no acks, flow control, start again."""
    stream(at, *["s.a"] * 5)
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    config = {
        "deliver_subject": "d.x", "ack_policy": "none", "max_deliver": 1, "flow_control": True,
        "idle_heartbeat": 5 * SECOND, "mem_storage": True, "num_replicas": 1,
        "ack_wait": 22 * 3600 * SECOND,
    }  # fmt: skip
    at.api("CONSUMER.CREATE.S", {"stream_name": "S", "config": config})
    at.note_frames("all", wire.collect(count=5, within_s=ANSWER_S))
    again = config | {"deliver_policy": "by_start_sequence", "opt_start_seq": 4}
    again["deliver_subject"] = "d.y"
    wire.subscribe("d.y")
    wire.fence()
    at.api("CONSUMER.CREATE.S", {"stream_name": "S", "config": again})
    at.note_frames("from four", wire.collect(count=2, within_s=ANSWER_S))


@scenario
def lifecycle_advisories(at: Recorder) -> None:
    wire = at.connect()
    wire.subscribe("$JS.EVENT.ADVISORY.STREAM.>")
    wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.>")
    wire.fence()
    stream(at)
    at.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 7})
    consumer(at)
    at.api("CONSUMER.DELETE.S.C")
    at.api("STREAM.DELETE.S")
    frames = wire.collect(count=5, within_s=ANSWER_S)
    seen = []
    for frame in frames:
        fields = {k: v for k, v in frame.json().items() if k not in ("id", "client")}
        seen.append({"subject": frame.subject} | fields)
    at.note("advisories", seen)


def _advisories(frames: list[Frame]) -> list[dict[str, Any]]:
    """Advisories by subject, without what is another each time."""
    seen = []
    for frame in frames:
        fields = {k: v for k, v in frame.json().items() if k not in ("id", "client")}
        seen.append({"subject": frame.subject} | fields)
    return sorted(seen, key=lambda one: str(one["subject"]))


@scenario
def consumers_go_with_their_stream(at: Recorder) -> None:
    wire = at.connect()
    wire.subscribe("$JS.EVENT.ADVISORY.*.DELETED.>")
    wire.fence()
    stream(at)
    for name in ("C", "D"):
        config = {"durable_name": name, "ack_policy": "explicit"}
        at.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})
    at.api("STREAM.DELETE.S")
    at.note("advisories", _advisories(wire.collect(count=3, within_s=ANSWER_S)))


@scenario
def pauses_are_told_when_they_change(at: Recorder) -> None:
    wire = at.connect()
    wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.>")
    wire.fence()
    stream(at)
    consumer(at)
    later = "2120-01-01T00:00:00Z"
    for until in ("", "2020-01-01T00:00:00Z", later, later, "2121-01-01T00:00:00Z", "", ""):
        at.api("CONSUMER.PAUSE.S.C", {"pause_until": until} if until else {})
        found = _advisories(wire.collect(count=1, within_s=SILENCE_S))
        at.note(f"advisory of {until}", [one | {"timestamp": ""} for one in found])
    for until in ("2020-01-01T00:00:00Z", later):  # from the start
        consumer(at, f"C{until[:4]}", pause_until=until)
        found = _advisories(wire.collect(count=1, within_s=SILENCE_S))
        at.note(f"advisory of {until}", [one | {"timestamp": ""} for one in found])
