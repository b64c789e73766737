"""Subject transforms of streams, and republish beside them."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import Recorder
from tests.parity.registry import add, scenario

DESTINATIONS = (
    ("f.*", "g.{{wildcard(1)}}"),
    ("f.*", "g.$1"),
    ("f.*", "g.$1.$1"),
    ("f.>", "g.>"),
    ("f.*.>", "g.{{wildcard(1)}}.x.>"),
    ("f.*.*", "g.$2.$1"),
    ("f.*", "g.{{partition(10,1)}}.$1"),
    ("f.*", "g.{{partition(10)}}"),
    ("f.*", "g.{{partition(0,1)}}"),
    ("f.*", "g.{{partition(-3,1)}}"),
    ("f.a", "g.{{partition(7)}}"),
    ("f.*", "g.{{split(1,-)}}"),
    ("f.*", "g.{{split(1,--)}}"),
    ("f.*", "g.{{splitfromleft(1,3)}}"),
    ("f.*", "g.{{SplitFromRight(1,3)}}"),
    ("f.*", "g.{{sliceFromLeft(1,2)}}"),
    ("f.*", "g.{{slicefromright(1,2)}}"),
    ("f.*", "g.{{left(1,2)}}"),
    ("f.*", "g.{{ Right( 1 , 2 ) }}"),
    ("f.*", "g.{{left(1,0)}}"),
    ("f.*", "g.{{random(1)}}"),
    ("f.*", "g.{{random(0)}}"),
    ("f.*", "a{{wildcard(1)}}"),
    ("f.*", "g.$0"),
    ("f.*", "g.{{wildcard(0)}}"),
    ("f.*", "g.{{split(1,.)}}"),
    ("f.*", "g.$x"),
    ("f.*", "fixed"),
    ("", "g.>"),
    (">", "g.>"),
    ("f.a", "h.b"),
    ("other", "h.b"),
    ("f.*", ""),
    ("", ""),
    ("f.*", "g.x"),
    ("f.>", "g.x"),
    ("f.>", "g.*"),
    ("f.a", "g.>"),
    ("f.*", "g..b"),
    ("f.*", "g. b"),
    ("f.*", "g.>.b"),
    ("f.*", "g.$2"),
    ("f.a", "g.$1"),
    ("f.*", "g.{{foo(1)}}"),
    ("f.*", "g.{{WILDCARD(1)}}"),
    ("f.*", "g.{{wildcard()}}"),
    ("f.*", "g.{{wildcard(1,2)}}"),
    ("f.*", "g.{{split(1)}}"),
    ("f.*", "g.{{split(1,a,b)}}"),
    ("f.*", "g.{{partition()}}"),
    ("f.*", "g.{{partition(x,1)}}"),
    ("f.*", "g.{{partition(4294967296,1)}}"),
    ("f.*", "g.{{random()}}"),
    ("f.*", "g.{{random(1,2)}}"),
    ("f.*", "g.{{left(3,1)}}"),
    ("f.a", "g.{{left(1,1)}}"),
    ("f..a", "g"),
    ("f a", "g"),
    ("f.>.a", "g"),
)
SUBJECTS = ("f.a", "f.b", "f.hello", "f.1234567", "f.-a--b-", "f.x.y", "f.x.y.z", "h")


def stored(at: Recorder) -> None:
    """Record the subjects of what the stream holds."""
    found = at.api("STREAM.INFO.S", {"subjects_filter": ">"}, is_quiet=True)
    at.note("subjects", found.get("state", {}).get("subjects"))
    last = found.get("state", {}).get("last_seq", 0)
    names = [
        at.api("STREAM.MSG.GET.S", {"seq": seq}, is_quiet=True).get("message", {}).get("subject")
        for seq in range(1, last + 1)
    ]
    at.note("in order", names)


def transformed(source: str, destination: str) -> Any:
    def run(at: Recorder) -> None:
        config = {"name": "S", "subjects": ["f.>", "h"]}
        config["subject_transform"] = {"src": source, "dest": destination}
        at.api("STREAM.CREATE.S", config)
        at.fill(*SUBJECTS)
        stored(at)

    return run


for number, (one, other) in enumerate(DESTINATIONS):
    add(f"transforms.{number:02d} {one or 'empty'} to {other or 'empty'}", transformed(one, other))


@scenario
def updates_change_it_at_once(at: Recorder) -> None:
    base = {"name": "S", "subjects": ["f.>"]}
    at.api("STREAM.CREATE.S", base)
    at.fill("f.a")
    at.api("STREAM.UPDATE.S", base | {"subject_transform": {"src": "f.*", "dest": "g.$1"}})
    at.fill("f.a")
    at.api("STREAM.UPDATE.S", base | {"subject_transform": {"src": "f.*", "dest": "g.$2"}})
    at.api("STREAM.UPDATE.S", base | {"subject_transform": {"src": "f.*", "dest": "k.$1"}})
    at.fill("f.a")
    at.api("STREAM.UPDATE.S", base)
    at.fill("f.a")
    stored(at)
    at.api("STREAM.INFO.S")


@scenario
def everything_sees_the_new_subject(at: Recorder) -> None:
    config = {
        "name": "S",
        "subjects": ["f.>"],
        "max_msgs_per_subject": 2,
        "allow_rollup_hdrs": True,
        "subject_transform": {"src": "f.*", "dest": "g.$1"},
    }
    at.api("STREAM.CREATE.S", config)
    at.fill("f.a", "f.a", "f.a")
    expected = "Nats-Expected-Last-Subject-Sequence"
    at.pub("f.a", headers={expected: "3"})
    at.pub("f.a", headers={expected: "3"})
    at.pub("f.a", headers={expected: "4", f"{expected}-Subject": "f.a"})
    at.pub("f.a", headers={expected: "4", f"{expected}-Subject": "g.a"})
    at.pub("f.b", headers={"Nats-Msg-Id": "1"})
    at.pub("f.c", headers={"Nats-Msg-Id": "1"})
    at.pub("f.a", headers={"Nats-Rollup": "sub"})
    stored(at)
    at.api("STREAM.NAMES", {"subject": "f.a"})
    at.api("STREAM.NAMES", {"subject": "g.a"})
    at.api("STREAM.MSG.GET.S", {"last_by_subj": "g.a"}, is_quiet=True)
    consumer = {"name": "c", "filter_subject": "g.b", "ack_policy": "explicit"}
    at.api("CONSUMER.CREATE.S.c.g.b", {"stream_name": "S", "config": consumer})
    at.pull("S", "c", {"batch": 1, "no_wait": True})
    at.api("STREAM.PURGE.S", {"filter": "f.a"})
    at.api("STREAM.PURGE.S", {"filter": "g.a"})


@scenario
def another_stream_may_own_the_new_space(at: Recorder) -> None:
    transform = {"src": "f.*", "dest": "g.$1"}
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["f.>"], "subject_transform": transform})
    at.api("STREAM.CREATE.G", {"name": "G", "subjects": ["g.>"]})
    at.pub("f.a")
    at.pub("g.a")
    stored(at)


@scenario
def batches_are_transformed(at: Recorder) -> None:
    transform = {"src": "f.*", "dest": "g.$1"}
    config = {"name": "S", "subjects": ["f.>"], "allow_atomic": True}
    at.api("STREAM.CREATE.S", config | {"subject_transform": transform})
    head = {"Nats-Batch-Id": "b"}
    at.pub("f.a", headers=head | {"Nats-Batch-Sequence": "1"})
    at.pub("f.b", headers=head | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"})
    stored(at)


REPUBLISHED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("transformed", {"src": "g.>", "dest": "r.>"}, {"src": "f.>", "dest": "g.>"}),
    ("untransformed source", {"src": "f.>", "dest": "r.>"}, {"src": "f.>", "dest": "g.>"}),
    ("all", {"src": ">", "dest": "r.>"}, {"src": "f.>", "dest": "g.>"}),
    ("no source", {"dest": "r.>"}, {"src": "f.>", "dest": "g.>"}),
    ("all to all", {"src": ">", "dest": ">"}, {"src": "f.>", "dest": "g.>"}),
    ("all to all of others", {"src": ">", "dest": ">"}, {"src": "f.a", "dest": "g.a"}),
    ("no source to all", {"dest": ">"}, {"src": "f.>", "dest": "g.>"}),
    ("all to all, no transform", {"src": ">", "dest": ">"}, {}),
    ("into the stream", {"src": "g.>", "dest": "f.>"}, {"src": "f.>", "dest": "g.>"}),
    (
        "headers only",
        {"src": ">", "dest": "r.>", "headers_only": True},
        {"src": "f.*", "dest": "$1"},
    ),
    ("partition", {"src": "f.*", "dest": "r.{{partition(5,1)}}.$1"}, {}),
    ("split", {"src": "f.*", "dest": "r.{{split(1,-)}}"}, {}),
    ("left", {"src": "f.*", "dest": "r.{{left(1,1)}}"}, {}),
    ("bad", {"src": "f.*", "dest": "r.$2"}, {"src": "f.>", "dest": "g.>"}),
    ("bad function", {"src": "f.*", "dest": "r.{{foo(1)}}"}, {}),
    ("no destination", {"src": "f.*", "dest": ""}, {}),
)


def republished(republish: dict[str, Any], transform: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        config: dict[str, Any] = {"name": "S", "subjects": ["f.>"], "republish": republish}
        if transform:
            config["subject_transform"] = transform
        listener = at.connect()
        for subject in ("r.>", "g.>", "hello"):
            listener.subscribe(subject)
        listener.fence()
        at.api("STREAM.CREATE.S", config | {"pedantic": True})
        at.api("STREAM.CREATE.S", config)
        at.fill("f.hello", "f.hello", "f.a-b")
        stored(at)
        frames = listener.fence()
        at.note("heard", [at.frame(frame) for frame in frames])

    return run


for title, one_republish, one_transform in REPUBLISHED:
    add(f"transforms.republish {title}", republished(one_republish, one_transform))
