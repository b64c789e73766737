"""What is seldom asked for: pauses that are over, copies to nowhere, captured deliveries."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from tests.parity.recorder import ANSWER_S, SILENCE_S, Recorder
from tests.parity.registry import scenario
from tests.parity.scenarios.delivery import consumer, stream
from tests.wire import Wire

PAST = "2020-01-01T00:00:00Z"
LATER = "2120-01-01T00:00:00Z"
UNSET = "0001-01-01T00:00:00Z"


def pause_of(at: Recorder, name: str) -> None:
    """Record what a consumer's info says of its pause: the times themselves too."""
    told = at.api(f"CONSUMER.INFO.S.{name}")
    at.note(f"pause_until of {name}", f"year {told['config'].get('pause_until', '')[:4]}")


def pauses_told(at: Recorder, wire: Wire) -> None:
    frames = wire.collect(count=1, within_s=SILENCE_S)
    told = [frame.json() for frame in frames]
    at.note("told", [[one["paused"], f"year {one['pause_until'][:4]}"] for one in told])


@scenario
def pauses_that_are_over(at: Recorder) -> None:
    """A time that has passed pauses nobody, but is kept, so that a config is as it was given."""
    wire = at.connect()
    wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.>")
    wire.fence()
    stream(at, "s.a")
    for name, until in (("C", PAST), ("D", UNSET), ("E", "1960-01-01T00:00:00Z"), ("F", None)):
        consumer(at, name, pause_until=until)
        pauses_told(at, wire)
        pause_of(at, name)
    for until in (LATER, PAST, UNSET, None):  # of a consumer that is there: nothing changes
        consumer(at, "C", pause_until=until, description=f"{until}")
        pause_of(at, "C")
    for until in (PAST, PAST, LATER, PAST, UNSET, PAST, None, None):
        at.api("CONSUMER.PAUSE.S.F", {"pause_until": until})
        pauses_told(at, wire)
        pause_of(at, "F")
    at.pull("S", "C", {"batch": 1}, count=1)


@scenario
def a_pause_that_ends(at: Recorder) -> None:
    """It is over by itself; what it was stays in the config until somebody resumes."""
    stream(at, "s.a")
    consumer(at)
    told = at.api("STREAM.INFO.S", is_quiet=True)["ts"]
    soon = told[:17] + f"{min(int(told[17:19]) + 1, 59):02}.999Z"
    at.api("CONSUMER.PAUSE.S.C", {"pause_until": soon}, is_quiet=True)
    at.pull("S", "C", {"batch": 1, "expires": 3_500_000_000}, count=1)
    has_pause = "pause_until" in at.api("CONSUMER.INFO.S.C")["config"]
    at.note("it is kept", has_pause)
    consumer(at, description="changed")
    at.api("CONSUMER.INFO.S.C")
    at.api("CONSUMER.PAUSE.S.C", {})
    at.api("CONSUMER.INFO.S.C")


@scenario
def copies_to_nowhere(at: Recorder) -> None:
    """A republish without a destination copies nothing; least of all into its own stream."""
    republish: list[dict[str, Any]] = [
        {"src": ">", "dest": ""},
        {"dest": ""},
        {"src": "s.a", "dest": "", "headers_only": True},
        {"src": "t.>", "dest": ""},
    ]
    for one in republish:
        config = {"name": "S", "subjects": ["s.>"], "republish": one}
        at.api("STREAM.CREATE.S", config)
        at.pub("s.a", b"1")
        at.pub("s.a", b"2")
        at.api("STREAM.INFO.S")
        at.api("STREAM.DELETE.S")


@scenario
def copies_to_nowhere_from_later_on(at: Recorder) -> None:
    stream(at)
    config = {"name": "S", "subjects": ["s.>"], "republish": {"src": "t.>", "dest": ""}}
    at.api("STREAM.UPDATE.S", config)
    at.pub("s.a", b"1")
    at.pub("s.a", b"2")
    at.api("STREAM.INFO.S")


@scenario
def deliveries_that_a_stream_captures(at: Recorder) -> None:
    """Somebody listens too, so that they are delivered at all."""
    stream(at, "s.a", "s.b")
    at.api("STREAM.CREATE.D", {"name": "D", "subjects": ["d.>"]})
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    consumer(at, deliver_subject="d.x", ack_policy="none")
    at.note_frames("delivered", wire.collect(count=2, within_s=ANSWER_S))
    at.api("CONSUMER.INFO.S.C")
    at.api("STREAM.INFO.D", {"subjects_filter": ">"})


WRONG: dict[str, dict[str, Any]] = {
    "sealed": {"sealed": True},
    "mirror_direct": {"mirror_direct": True},
    "subject": {"subjects": ["a..b"]},
    "overlap": {"subjects": ["a.>", "a.b"]},
    "taken": {"subjects": ["s.x"]},
    "replicas": {"num_replicas": 7},
    "alone": {"num_replicas": 3},
    "age": {"max_age": 5},
    "window": {"duplicate_window": 5},
    "description": {"description": "x" * 5000},
    "metadata": {"metadata": {"a": "b" * 140_000}},
    "per_subject": {"discard_new_per_subject": True},
    "rollup": {"allow_rollup_hdrs": True, "deny_purge": True},
    "marker": {"subject_delete_marker_ttl": 5},
    "republish": {"republish": {"src": "s.>", "dest": "q.>.x"}},
    "cycle": {"republish": {"src": ">", "dest": "t"}},
}


@scenario
def streams_with_two_faults(at: Recorder) -> None:
    """Which of them is said."""
    stream(at)
    for first, second in combinations(WRONG, 2):
        config = {"name": "T", "subjects": ["t"]} | WRONG[first] | WRONG[second]
        told = at.api("STREAM.CREATE.T", config, is_quiet=True)
        at.note(f"{first} and {second}", told.get("error"))


@scenario
def removals_are_no_acks(at: Recorder) -> None:
    """Of a message that waits for its ack, to a consumer whose acks mean all before them too."""
    stream(at, *["s.a", "s.b"] * 3)
    consumer(at, ack_policy="all")
    frames = at.pull("S", "C", {"batch": 6}, count=6)
    for seq in (1, 3, 6):
        at.api("STREAM.MSG.DELETE.S", {"seq": seq})
        at.api("CONSUMER.INFO.S.C")
    at.ack(frames[4])
    at.api("CONSUMER.INFO.S.C")


@scenario
def purge_of_what_one_consumer_wants(at: Recorder) -> None:
    stream(at, *["s.a", "s.b"] * 3)
    consumer(at, filter_subject="s.a")
    at.pull("S", "C", {"batch": 2}, count=2)
    at.api("STREAM.PURGE.S", {"filter": "s.a"})
    at.api("CONSUMER.INFO.S.C")
    at.fill("s.b", "s.a")
    at.pull("S", "C", {"batch": 1}, count=1)
    at.api("CONSUMER.INFO.S.C")


@scenario
def what_is_told_of_a_consumer(at: Recorder) -> None:
    """A reason that nobody gave is left out; what is read message by message is not audited."""
    wire = at.connect()
    wire.subscribe("$JS.EVENT.>")
    wire.fence()
    stream(at, "s.a", "s.b")
    consumer(at)
    at.api("STREAM.MSG.GET.S", {"seq": 1})
    for kind in (b"+TERM", b"+TERM because"):
        at.ack(at.pull("S", "C", {"batch": 1}, count=1)[0], kind)
    at.api("STREAM.MSG.GET.S", {"last_by_subj": "s.b"})
    told = []
    for frame in wire.collect(count=6, within_s=ANSWER_S):
        seen = frame.json()
        kept = {key: seen[key] for key in seen if key in ("consumer_seq", "deliveries", "reason")}
        told.append({"subject": frame.subject, "of": seen.get("subject", "")} | kept)
    at.note("told", sorted(told, key=lambda one: json.dumps(one, sort_keys=True)))
    at.note_frames("no more", wire.collect(count=1, within_s=SILENCE_S))


@scenario
def what_is_told_of_removals(at: Recorder) -> None:
    """Of a message that waits for its ack: its deletion is told, a purge of many is not."""
    wire = at.connect()
    wire.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    wire.fence()
    stream(at, *["s.a"] * 4)
    consumer(at)
    at.pull("S", "C", {"batch": 4}, count=4)
    at.api("STREAM.MSG.DELETE.S", {"seq": 2})
    told = [frame.json()["stream_seq"] for frame in wire.collect(count=1, within_s=ANSWER_S)]
    at.note("told of a deletion", told)
    for wanted in ({"seq": 2}, {"filter": "s.*", "keep": 1}, {}):
        at.api("STREAM.PURGE.S", wanted)
        told = [frame.json()["stream_seq"] for frame in wire.collect(count=1, within_s=SILENCE_S)]
        at.note(f"told of a purge of {wanted}", told)
