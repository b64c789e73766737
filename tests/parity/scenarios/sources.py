"""Sources: what a configuration may say, what is copied, and how it is shown."""

from __future__ import annotations

import base64
from typing import Any

from streamd.machine.streams.origins import short_hash
from tests.parity.recorder import Recorder
from tests.parity.registry import add, scenario
from tests.parity.scenarios.mirrors import WITHIN_S, asked_of_origin, holds, info, origin

Config = dict[str, Any]
_BIG: Config = {"max_msg_size": 100}

_CONFIGS: tuple[tuple[str, list[Config], Config], ...] = (
    ("plain", [{"name": "O"}], {}),
    ("schedules", [{"name": "O"}], {"allow_msg_schedules": True}),
    ("own subjects", [{"name": "O"}], {"subjects": ["s.>"]}),
    ("first seq", [{"name": "O"}], {"first_seq": 10}),
    ("own window", [{"name": "O"}], {"duplicate_window": 1_000_000_000}),
    ("no name", [{}], {}),
    ("bad name", [{"name": "a.b"}], {}),
    ("twice", [{"name": "O"}, {"name": "O"}], {}),
    ("twice by start", [{"name": "O"}, {"name": "O", "opt_start_seq": 3}], {}),
    ("twice by all", [{"name": "O"}, {"name": "O", "filter_subject": ">"}], {}),
    ("two filters", [{"name": "O", "filter_subject": f"o.{x}"} for x in "ab"], {}),
    (
        "filter and transforms",
        [{"name": "O", "filter_subject": "o.a", "subject_transforms": [{"src": "o.b"}]}],
        {},
    ),
    ("bad source", [{"name": "O", "subject_transforms": [{"src": "o..a", "dest": "p"}]}], {}),
    ("bad destination", [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": "$2"}]}], {}),
    (
        "one in another",
        [{"name": "O", "subject_transforms": [{"src": "o.*"}, {"src": "o.a"}]}],
        {},
    ),
    (
        "colliding",
        [{"name": "O", "subject_transforms": [{"src": "o.*.b"}, {"src": "o.a.*"}]}],
        {},
    ),
    ("bad filter", [{"name": "O", "filter_subject": "o..a"}], {}),
    ("smaller messages", [{"name": "O"}], {"max_msg_size": 10}),
    ("itself", [{"name": "S"}], {}),
    ("itself filtered", [{"name": "S", "filter_subject": "x"}], {"subjects": ["s.>"]}),
    ("external", [{"name": "O", "external": {"api": "$JS.d.API", "deliver": "d.s"}}], {}),
    ("external overlap", [{"name": "O", "external": {"api": "$JS.API", "deliver": ""}}], {}),
    (
        "external deliver overlap",
        [{"name": "O"}, {"name": "P", "external": {"api": "$JS.d.API", "deliver": "o.x"}}],
        {},
    ),
    ("external wildcard", [{"name": "O", "external": {"api": "$JS.*.API", "deliver": ""}}], {}),
    ("external name", [{"name": "", "external": {"api": "$JS.d.API", "deliver": ""}}], {}),
    ("consumer", [{"name": "O", "consumer": {"name": "C", "deliver_subject": "d"}}], {}),
    ("consumer name", [{"name": "O", "consumer": {"name": "", "deliver_subject": "d"}}], {}),
    (
        "consumer twice",
        [
            {"name": "O", "consumer": {"name": "C", "deliver_subject": "d"}},
            {
                "name": "O",
                "subject_transforms": [{"src": "a", "dest": "b"}],
                "consumer": {"name": "C", "deliver_subject": "d"},
            },
        ],
        {},
    ),
    ("discard new", [{"name": "O"}], {"discard": "new", "max_msgs": 1}),
    ("interest", [{"name": "O"}], {"retention": "interest"}),
    ("counter", [{"name": "O"}], {"allow_msg_counter": True}),
    ("republish", [{"name": "O"}], {"republish": {"src": ">", "dest": "r.>"}}),
    ("overlapping filters", [{"name": "O", "filter_subject": f"o.{x}"} for x in ">a"], {}),
    ("bad filter, bad subject", [{"name": "O", "filter_subject": "o..a"}], {"subjects": ["a..b"]}),
    ("external bad name", [{"name": "a.b", "external": {"api": "$JS.d.API", "deliver": ""}}], {}),
    ("external deliver", [{"name": "O", "external": {"api": "$JS.d.API", "deliver": "d.*"}}], {}),
)


def _configured(sources: list[Config], more: Config) -> Any:
    def run(at: Recorder) -> None:
        origin(at, **_BIG)
        answer = at.api("STREAM.CREATE.S", {"name": "S", "sources": sources} | more, is_quiet=True)
        answer.get("sources", []).sort(key=repr)
        at.note("created", answer)

    return run


for _name, _sources, _more in _CONFIGS:
    add(f"sources.config {_name}", _configured(_sources, _more))


def sourced(at: Recorder, sources: list[Config], count: int, **config: Any) -> None:
    """Create S, wait for its messages and record them."""
    at.api("STREAM.CREATE.S", {"name": "S", "sources": sources} | config, is_quiet=True)
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == count, WITHIN_S)
    shown(at)
    stored(at)


def shown(at: Recorder) -> None:
    """Record the info of S, its sources in some order."""
    document = info(at, "S")
    document.get("sources", []).sort(key=lambda each: repr(sorted(each)) + each["name"])
    document.get("state", {}).pop("bytes", None)  # with the identity or without
    at.note("info", document)


def stored(at: Recorder) -> None:
    """Record the messages of S; the identity in their headers is the origin's."""
    state = info(at, "S")["state"]
    rows = []
    for seq in range(max(1, state["first_seq"]), state["last_seq"] + 1):
        answer = at.api("STREAM.MSG.GET.S", {"seq": seq}, is_quiet=True)
        message = answer.get("message", {})
        lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")
        lines = [
            line.rpartition(" ")[0] + " <identity>" if "Stream-Source" in line else line
            for line in lines
        ]
        rows.append([message.get("seq"), message.get("subject"), message.get("data"), lines])
    at.note("messages", rows)


@scenario
def all_messages(at: Recorder) -> None:
    origin(at, "o.a", "o.b")
    at.pub("o.c", b"x", headers={"Own": "y", "Nats-Msg-Id": "z"})
    at.pub("o.d", b"", headers={"Nats-Expected-Last-Sequence": "3"})
    sourced(at, [{"name": "O"}], 4)


@scenario
def filtered(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.a")
    sourced(at, [{"name": "O", "filter_subject": "o.a"}], 2)


@scenario
def transformed(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c")
    transforms = [{"src": "o.a", "dest": "t.a"}, {"src": "o.b", "dest": ""}]
    sourced(at, [{"name": "O", "subject_transforms": transforms}], 2)


@scenario
def one_transform(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c.d")
    sourced(at, [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": "t.$1"}]}], 2)


@scenario
def transformed_again_by_the_stream(at: Recorder) -> None:
    origin(at, "o.a")
    sourced(
        at,
        [{"name": "O", "subject_transforms": [{"src": "o.*", "dest": "t.$1"}]}],
        1,
        subject_transform={"src": "t.*", "dest": "u.$1"},
    )


@scenario
def from_a_seq(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c", "o.d")
    sourced(at, [{"name": "O", "opt_start_seq": 3}], 2)


@scenario
def two_origins_and_own_subjects(at: Recorder) -> None:
    origin(at, "o.a")
    at.api("STREAM.CREATE.P", {"name": "P", "subjects": ["p.>"]})
    sourced(at, [{"name": "O"}], 1, subjects=["s.>"])
    at.pub("s.x")
    update = {"name": "S", "subjects": ["s.>"], "sources": [{"name": "O"}, {"name": "P"}]}
    at.api("STREAM.UPDATE.S", update, is_quiet=True)
    at.fill("p.a")
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 3, WITHIN_S)
    stored(at)


@scenario
def own_header_is_refused(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    at.pub("s", headers={"Nats-Stream-Source": "O 1 > > o.a"})


@scenario
def ids_are_seen_with_a_window(at: Recorder) -> None:
    origin(at)
    for number in range(3):
        at.pub("o.a", b"%d" % number, headers={"Nats-Msg-Id": f"i{number}"})
    at.api("STREAM.CREATE.P", {"name": "P", "subjects": ["p"]})
    config = {"subjects": ["s"], "duplicate_window": 60_000_000_000}
    sourced(at, [{"name": "O"}], 3, **config)
    at.pub("s", headers={"Nats-Msg-Id": "i1"})
    at.pub("s", headers={"Nats-Msg-Id": "new"})
    at.pub("o.a", headers={"Nats-Msg-Id": "new"})
    at.pub("o.a", headers={"Nats-Msg-Id": "last"})
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 5, WITHIN_S)
    stored(at)


@scenario
def chains_keep_the_last_hop(at: Recorder) -> None:
    origin(at, "o.a")
    at.api("STREAM.CREATE.P", {"name": "P", "sources": [{"name": "O"}]}, is_quiet=True)
    at.wait_until(lambda: info(at, "P")["state"]["messages"] == 1, WITHIN_S)
    sourced(at, [{"name": "P"}], 1)


@scenario
def position_outlives_a_purge_and_removal(at: Recorder) -> None:
    origin(at, "o.a", "o.b")
    sourced(at, [{"name": "O"}], 2)
    at.api("STREAM.PURGE.S")
    at.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"]})
    at.fill("o.c")
    at.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "sources": [{"name": "O"}]})
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 1, WITHIN_S)
    stored(at)


@scenario
def rollups_and_limits_are_the_destinations(at: Recorder) -> None:
    origin(at, allow_rollup_hdrs=True)
    at.fill("o.a", "o.a")
    at.pub("o.a", headers={"Nats-Rollup": "sub", "Own": "x"})
    sourced(at, [{"name": "O"}], 1)
    at.api("STREAM.DELETE.S")
    sourced(at, [{"name": "O"}], 1, allow_rollup_hdrs=True)


@scenario
def work_queue(at: Recorder) -> None:
    origin(at, "o.a", "o.b", retention="workqueue")
    sourced(at, [{"name": "O"}], 2)
    at.wait_until(lambda: info(at, "O")["state"]["messages"] == 0, WITHIN_S)
    info(at, "O", is_quiet=False)


@scenario
def origin_is_missing(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "sources": [{"name": "N"}]}, is_quiet=True)
    at.wait_until(lambda: "error" in info(at, "S")["sources"][0], WITHIN_S)
    info(at, "S", is_quiet=False)


@scenario
def destination_is_a_work_queue(at: Recorder) -> None:
    origin(at, "o.a", "o.b")
    sourced(at, [{"name": "O"}], 2, retention="workqueue")
    at.api(
        "CONSUMER.CREATE.S.C",
        {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}},
        is_quiet=True,
    )
    inbox = "$JS.API.CONSUMER.MSG.NEXT.S.C"
    for frame in at.wire.ask(inbox, b'{"batch":1}', within_s=WITHIN_S):
        at.ack(frame)
    at.note("left", info(at, "S")["state"]["messages"])


@scenario
def counters(at: Recorder) -> None:
    """Each counter of the destination moves as those of its origins do."""
    for name in "AB":
        config = {"name": name, "subjects": [f"{name}.>"], "allow_msg_counter": True}
        at.api(f"STREAM.CREATE.{name}", config, is_quiet=True)
        for number in (1, 2, 3):
            at.pub(f"{name}.x", b"", headers={"Nats-Incr": f"+{number}"}, is_quiet=True)
        at.pub(f"{name}.y", b"", headers={"Nats-Incr": "-5", "Own": "z"}, is_quiet=True)
    sources = [
        {"name": name, "subject_transforms": [{"src": f"{name}.*", "dest": "s.$1"}]}
        for name in "AB"
    ]
    at.api(
        "STREAM.CREATE.S",
        {"name": "S", "subjects": ["s.>"], "sources": sources[:1], "allow_msg_counter": True},
    )
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 4, WITHIN_S)
    at.pub("s.x", b"", headers={"Nats-Incr": "100"})
    at.api(
        "STREAM.UPDATE.S",
        {"name": "S", "subjects": ["s.>"], "sources": sources, "allow_msg_counter": True},
        is_quiet=True,
    )
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 9, WITHIN_S)
    at.pub("A.x", b"", headers={"Nats-Incr": "7"})
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 10, WITHIN_S)
    stored(at)


@scenario
def counters_into_a_plain_stream_and_back(at: Recorder) -> None:
    at.api(
        "STREAM.CREATE.O",
        {"name": "O", "subjects": ["o.>"], "allow_msg_counter": True},
        is_quiet=True,
    )
    at.pub("o.x", b"", headers={"Nats-Incr": "2"}, is_quiet=True)
    sourced(at, [{"name": "O"}], 1)
    at.api("STREAM.DELETE.S")
    at.api("STREAM.CREATE.P", {"name": "P", "subjects": ["p.>"]}, is_quiet=True)
    at.fill("p.a", "p.b")
    sourced(at, [{"name": "P"}, {"name": "O"}], 1, allow_msg_counter=True)


@scenario
def without_a_window_ids_mean_nothing(at: Recorder) -> None:
    """Neither those of origins nor those of its own publishers."""
    origin(at)
    at.pub("o.a", headers={"Nats-Msg-Id": "i"})
    at.api("STREAM.CREATE.P", {"name": "P", "subjects": ["p"]}, is_quiet=True)
    at.pub("p", headers={"Nats-Msg-Id": "i"})
    sources = [{"name": "O"}, {"name": "P"}]
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "sources": sources}, is_quiet=True)
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 2, WITHIN_S)
    for _ in range(2):
        at.pub("s", headers={"Nats-Msg-Id": "i"})
    at.note("stored", info(at, "S")["state"]["messages"])


@scenario
def another_filter_begins_at_its_start(at: Recorder) -> None:
    """Another start of the same filter does nothing."""
    origin(at, "o.a", "o.b", "o.a")
    sourced(at, [{"name": "O", "filter_subject": "o.a"}], 2)
    own = {"name": "S", "subjects": ["s"]}
    other = {"name": "O", "filter_subject": "o.b"}
    at.api("STREAM.UPDATE.S", own | {"sources": [other]}, is_quiet=True)
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 3, WITHIN_S)
    stored(at)
    moved = at.api("STREAM.UPDATE.S", own | {"sources": [other | {"opt_start_seq": 1}]})
    at.note("its start", moved.get("config", {}).get("sources"))
    at.fill("o.b")
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 4, WITHIN_S)
    stored(at)


@scenario
def all_sources_are_removed(at: Recorder) -> None:
    """A stream that is left without subjects gets one, and the origin's consumer goes; with the
    stream too."""
    origin(at, "o.a", retention="workqueue")
    sourced(at, [{"name": "O"}], 1)

    def names() -> list[str]:
        return at.api("CONSUMER.NAMES.O", is_quiet=True)["consumers"] or []

    at.note("consumers", len(names()))
    at.api("STREAM.UPDATE.S", {"name": "S"})
    at.pub("S")
    at.wait_until(lambda: not names(), WITHIN_S)
    at.note("consumers", names())
    at.api("STREAM.UPDATE.S", {"name": "S", "sources": [{"name": "O"}]}, is_quiet=True)
    at.wait_until(lambda: bool(names()), WITHIN_S)
    at.note("consumers", len(names()))
    at.api("STREAM.DELETE.S")
    at.wait_until(lambda: not names(), WITHIN_S)
    at.note("consumers", names())


@scenario
def key_value_sources(at: Recorder) -> None:
    bucket = {"max_msgs_per_subject": 3, "allow_rollup_hdrs": True, "discard": "new"}
    config = {"name": "KV_a", "subjects": ["$KV.a.>"]} | bucket
    at.api("STREAM.CREATE.KV_a", config, is_quiet=True)
    at.fill("$KV.a.x", "$KV.a.y", "$KV.a.x")
    at.pub("$KV.a.y", b"", headers={"KV-Operation": "DEL"})
    transforms = [{"src": "$KV.a.>", "dest": "$KV.s.>"}]
    sources = [{"name": "KV_a", "subject_transforms": transforms}]
    sourced(at, sources, 4, subjects=["$KV.s.>"], **bucket)


@scenario
def lives_as_the_destination_allows(at: Recorder) -> None:
    origin(at, allow_msg_ttl=True)
    for name, more in (("S", {}), ("T", {"allow_msg_ttl": True})):
        config = {"name": name, "sources": [{"name": "O"}]} | more
        at.api(f"STREAM.CREATE.{name}", config, is_quiet=True)
    at.pub("o.a", headers={"Nats-TTL": "1s"})
    at.pub("o.b", headers={"Nats-TTL": "never"})
    for name, count in (("S", 2), ("O", 1), ("T", 1)):
        holds(at, name, count)
        at.note(name, info(at, name)["state"]["messages"])
    at.note("S at the end", info(at, "S")["state"]["messages"])


@scenario
def schedules_fire_at_the_origin_alone(at: Recorder) -> None:
    origin(at, allow_msg_schedules=True)
    for subject, when in (("o.a", "2099"), ("o.b", "2001")):
        pattern = f"@at {when}-01-01T00:00:00Z"
        at.pub(subject, headers={"Nats-Schedule": pattern, "Nats-Schedule-Target": "o.t"})
    at.wait_until(lambda: info(at, "O")["state"]["last_seq"] == 3, WITHIN_S)
    at.api("STREAM.CREATE.S", {"name": "S", "sources": [{"name": "O"}]}, is_quiet=True)
    at.wait_until(lambda: info(at, "S")["state"]["messages"] == 2, WITHIN_S)
    stored(at)


@scenario
def copies_are_published_again(at: Recorder) -> None:
    listener = at.connect()
    listener.subscribe("r.>")
    listener.fence()
    origin(at, "o.a")
    republish = {"src": ">", "dest": "r.>"}
    config = {"name": "S", "sources": [{"name": "O"}], "republish": republish}
    at.api("STREAM.CREATE.S", config, is_quiet=True)
    frames = listener.collect(count=1, within_s=WITHIN_S)
    at.note("heard", [[each.subject, sorted(each.pairs), each.payload.decode()] for each in frames])


@scenario
def requests_for_consumers(at: Recorder) -> None:
    """Names, headers and fields: either server may be the other's origin."""
    external = {"api": "x.api", "deliver": ""}
    plain = {"name": "O", "external": external}
    asked_of_origin(at, {"name": "S", "sources": [plain]}, "x.api")
    filtered = [plain | {"filter_subject": f"o.{letter}"} for letter in "ab"]
    asked_of_origin(at, {"name": "T", "sources": filtered}, "x.api", count=2)
    transforms = [{"src": "o.a", "dest": "p"}, {"src": "o.b", "dest": ""}]
    several = [plain | {"subject_transforms": transforms}, plain | {"opt_start_seq": 4}]
    asked_of_origin(at, {"name": "U", "sources": several}, "x.api", count=2)


@scenario
def identity_of_an_origin(at: Recorder) -> None:
    """A hash of the time at which it was created, as its info shows that."""
    origin(at, "o.a")
    created = info(at, "O")["created"]
    at.api("STREAM.CREATE.S", {"name": "S", "sources": [{"name": "O"}]}, is_quiet=True)
    holds(at, "S", 1)
    message = at.api("STREAM.MSG.GET.S", {"seq": 1}, is_quiet=True)["message"]
    headers = base64.b64decode(message["hdrs"]).decode().rstrip()
    at.note("is that of its creation", headers.rpartition(" ")[2] == short_hash(created))
