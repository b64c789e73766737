"""Mirrors: what a configuration may say, what is copied, and how it is shown."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import add, scenario

Config = dict[str, Any]
WITHIN_S = 20.0


def info(at: Recorder, name: str, *, is_quiet: bool = True) -> dict[str, Any]:
    return at.api(f"STREAM.INFO.{name}", is_quiet=is_quiet)


def settled(at: Recorder, name: str, count: int, *, last: int | None = None) -> None:
    """Wait until the stream has so many messages, and record its info."""

    def is_there() -> bool:
        state = info(at, name).get("state", {})
        return state.get("messages") == count and (last is None or state.get("last_seq") == last)

    at.wait_until(is_there, WITHIN_S)
    info(at, name, is_quiet=False)


def holds(at: Recorder, name: str, count: int) -> None:
    """Wait until the stream has so many messages."""
    at.wait_until(lambda: info(at, name)["state"]["messages"] == count, WITHIN_S)


def connected(at: Recorder, name: str) -> None:
    """Wait until the mirror hears from its origin."""
    at.wait_until(lambda: info(at, name).get("mirror", {}).get("active", -1) >= 0, WITHIN_S)


def contents(at: Recorder, name: str) -> None:
    """Record all messages of a stream, in order."""
    state = info(at, name).get("state", {})
    for seq in range(max(1, state.get("first_seq", 1)), state.get("last_seq", 0) + 1):
        at.api(f"STREAM.MSG.GET.{name}", {"seq": seq})


def origin(at: Recorder, *subjects: str, **config: Any) -> None:
    at.api("STREAM.CREATE.O", {"name": "O", "subjects": ["o.>"], **config}, is_quiet=True)
    at.fill(*subjects)


# --- configurations -------------------------------------------------------------------------------

_CONFIGS: tuple[tuple[str, Config, Config], ...] = (
    ("plain", {}, {}),
    ("first seq", {}, {"first_seq": 5}),
    ("subjects", {}, {"subjects": ["m"]}),
    ("sources too", {}, {"sources": [{"name": "X"}]}),
    ("counter", {}, {"allow_msg_counter": True}),
    ("atomic", {}, {"allow_atomic": True}),
    ("batched", {}, {"allow_batched": True}),
    ("schedules", {}, {"allow_msg_schedules": True}),
    ("markers", {}, {"subject_delete_marker_ttl": 2_000_000_000}),
    ("own window", {}, {"duplicate_window": 1_000_000_000}),
    ("discard new", {}, {"discard": "new", "max_msgs": 3}),
    ("work queue", {}, {"retention": "workqueue"}),
    ("interest", {}, {"retention": "interest"}),
    ("no ack", {}, {"no_ack": True}),
    ("copies onto its origin", {}, {"republish": {"src": ">", "dest": "o.>"}}),
    ("not direct as asked", {}, {"mirror_direct": True}),
    ("smaller messages", {}, {"max_msg_size": 10}),
    ("sealed", {}, {"sealed": True}),
    ("filter", {"filter_subject": "o.a"}, {}),
    ("filter elsewhere", {"filter_subject": "x.a"}, {}),
    ("bad filter", {"filter_subject": "o..a"}, {}),
    (
        "filter and transforms",
        {"filter_subject": "o.a", "subject_transforms": [{"src": "o.b"}]},
        {},
    ),
    ("transforms", {"subject_transforms": [{"src": "o.*", "dest": "p.$1"}]}, {}),
    ("bad source", {"subject_transforms": [{"src": "o..a", "dest": "p"}]}, {}),
    ("bad destination", {"subject_transforms": [{"src": "o.*", "dest": "p.$2"}]}, {}),
    (
        "overlapping transforms",
        {"subject_transforms": [{"src": "o.*.b", "dest": ""}, {"src": "o.a.*", "dest": ""}]},
        {},
    ),
    ("start seq and time", {"opt_start_seq": 3, "opt_start_time": "2024-01-01T00:00:00Z"}, {}),
    ("missing origin", {"name": "N"}, {}),
    ("no name", {"name": ""}, {}),
    ("bad name", {"name": "a.b"}, {}),
    ("itself", {"name": "M"}, {}),
    ("unknown key", {"color": "red"}, {}),
    ("external", {"external": {"api": "$JS.dom.API", "deliver": "d.m"}}, {}),
    ("external of nothing", {"external": {"api": "", "deliver": ""}}, {}),
    ("external without name", {"name": "", "external": {"api": "$JS.dom.API", "deliver": ""}}, {}),
    ("external wildcard", {"external": {"api": "$JS.dom.>", "deliver": ""}}, {}),
    ("external own api", {"external": {"api": "$JS.API", "deliver": ""}}, {}),
    ("external longer api", {"external": {"api": "$JS.API.x", "deliver": ""}}, {}),
    ("external deliver", {"external": {"api": "$JS.dom.API", "deliver": "d.*"}}, {}),
    (
        "external deliver of its origin",
        {"external": {"api": "$JS.dom.API", "deliver": "o.x"}},
        {},
    ),
    (
        "external and direct",
        {"external": {"api": "$JS.dom.API", "deliver": ""}},
        {"mirror_direct": True},
    ),
    ("missing and direct", {"name": "N"}, {"mirror_direct": True}),
    ("consumer", {"consumer": {"name": "C", "deliver_subject": "d.c"}}, {}),
    ("consumer alone", {"consumer": {"name": "C"}}, {}),
    (
        "consumer and filter",
        {"filter_subject": "o.a", "consumer": {"name": "C", "deliver_subject": "d.c"}},
        {},
    ),
    ("consumer name", {"consumer": {"name": "a.b", "deliver_subject": "d.c"}}, {}),
    ("consumer subject", {"consumer": {"name": "C", "deliver_subject": "d.*"}}, {}),
    (
        "consumer and start",
        {"opt_start_seq": 3, "consumer": {"name": "C", "deliver_subject": "d.c"}},
        {},
    ),
)


def _configured(mirror: Config, more: Config) -> Any:
    def run(at: Recorder) -> None:
        origin(at, max_msg_size=100)
        at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"} | mirror} | more)

    return run


for _name, _mirror, _more in _CONFIGS:
    add(f"mirrors.config {_name}", _configured(_mirror, _more))


_FAULTS: dict[str, tuple[Config, Config]] = {
    "first seq": ({}, {"first_seq": 5}),
    "subjects": ({}, {"subjects": ["m"]}),
    "sources": ({}, {"sources": [{"name": "X"}]}),
    "counter": ({}, {"allow_msg_counter": True}),
    "atomic": ({}, {"allow_atomic": True}),
    "batched": ({}, {"allow_batched": True}),
    "schedules": ({}, {"allow_msg_schedules": True}),
    "consumer": ({"consumer": {"name": "a.b", "deliver_subject": "d"}}, {}),
    "filter": (
        {"filter_subject": "o.a", "subject_transforms": [{"src": "o.b", "dest": "p"}]},
        {},
    ),
    "markers": ({}, {"subject_delete_marker_ttl": 2_000_000_000}),
    "source": ({"subject_transforms": [{"src": "o..a", "dest": "p"}]}, {}),
    "destination": ({"subject_transforms": [{"src": "o.*", "dest": "p.$2"}]}, {}),
    "overlap": (
        {"subject_transforms": [{"src": "o.*", "dest": "p"}, {"src": "o.a", "dest": "q"}]},
        {},
    ),
    "name": ({"name": "a.b"}, {}),
    "size": ({}, {"max_msg_size": 10}),
    "cycle": ({"name": "M"}, {}),
}


@scenario
def two_faults_of_a_configuration(at: Recorder) -> None:
    """Which of them is said."""
    origin(at, max_msg_size=100)
    for first, second in combinations(_FAULTS, 2):
        (mirror, more), (other, others) = _FAULTS[first], _FAULTS[second]
        config = {"name": "M", "mirror": {"name": "O"} | mirror | other} | more | others
        told = at.api("STREAM.CREATE.M", config, is_quiet=True)
        at.note(f"{first} and {second}", told.get("error"))


@scenario
def direct_as_the_origin_has_it(at: Recorder) -> None:
    """Looked up when the mirror is created or updated, and not when the origin is."""
    allowing = {"name": "O", "subjects": ["o.>"], "allow_direct": True}
    at.api("STREAM.CREATE.O", allowing, is_quiet=True)
    config = {"name": "M", "mirror": {"name": "O"}}

    def shown(label: str) -> None:
        at.note(label, info(at, "M")["config"]["mirror_direct"])

    at.api("STREAM.CREATE.M", config, is_quiet=True)
    shown("created")
    at.api("STREAM.UPDATE.O", allowing | {"allow_direct": False}, is_quiet=True)
    shown("origin changed")
    at.api("STREAM.UPDATE.M", config | {"mirror_direct": True}, is_quiet=True)
    shown("asked for")
    at.api("STREAM.UPDATE.O", allowing, is_quiet=True)
    at.api("STREAM.UPDATE.M", config, is_quiet=True)
    shown("not asked for")
    for more in ({"mirror_direct": True}, {}):
        promoted = at.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m"]} | more)
        at.note("promoted", promoted.get("config", {}).get("mirror_direct"))


@scenario
def pedantic_direct(at: Recorder) -> None:
    origin(at, allow_direct=True)
    config = {"name": "M", "mirror": {"name": "O"}}
    at.api("STREAM.CREATE.M", config | {"pedantic": True})
    at.api("STREAM.CREATE.M", config)


@scenario
def direct_on_what_is_no_mirror(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "mirror_direct": True})


@scenario
def chain_that_comes_back(at: Recorder) -> None:
    at.api("STREAM.CREATE.A", {"name": "A", "sources": [{"name": "B"}]})
    at.api("STREAM.CREATE.B", {"name": "B", "mirror": {"name": "A"}})
    at.api("STREAM.CREATE.B", {"name": "B", "subjects": ["b"], "sources": [{"name": "C"}]})
    at.api("STREAM.CREATE.C", {"name": "C", "mirror": {"name": "A"}})


@scenario
def updates_of_a_mirror(at: Recorder) -> None:
    origin(at)
    config = {"name": "M", "mirror": {"name": "O"}}
    at.api("STREAM.CREATE.M", config)
    at.api("STREAM.UPDATE.M", config | {"max_msgs": 10, "description": "x"})
    at.api("STREAM.UPDATE.M", {"name": "M", "mirror": {"name": "X"}})
    at.api("STREAM.UPDATE.M", {"name": "M", "mirror": {"name": "O", "filter_subject": "o.a"}})
    at.api("STREAM.UPDATE.O", {"name": "O", "subjects": ["o.>"], "mirror": {"name": "X"}})


# --- what is copied -------------------------------------------------------------------------------


@scenario
def messages_with_their_headers(at: Recorder) -> None:
    origin(at)
    at.pub("o.a", b"1", headers={"Nats-Msg-Id": "i1", "Own": "x"})
    at.pub("o.b", b"2", headers={"Nats-Expected-Last-Sequence": "1"})
    at.pub("o.c", b"3", headers={"Nats-Expected-Last-Sequence": "2", "Own": "y"})
    at.pub("o.d", b"")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 4)
    contents(at, "M")


@scenario
def gaps_stay_gaps(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c", "o.d", "o.e", "o.f")
    for seq in (1, 3, 4, 6):
        at.api("STREAM.MSG.DELETE.O", {"seq": seq}, is_quiet=True)
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 2)
    at.fill("o.g")
    settled(at, "M", 3)
    at.api("STREAM.INFO.M", {"deleted_details": True})
    contents(at, "M")


@scenario
def origin_that_begins_later(at: Recorder) -> None:
    origin(at, first_seq=500)
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 0, last=499)
    at.fill("o.a")
    settled(at, "M", 1)


@scenario
def start_beyond_the_end(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O", "opt_start_seq": 50}})
    settled(at, "M", 0, last=49)


@scenario
def start_in_the_middle(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c", "o.d")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O", "opt_start_seq": 3}})
    settled(at, "M", 2)
    contents(at, "M")


@scenario
def filtered(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.a", "o.c")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O", "filter_subject": "o.a"}})
    settled(at, "M", 2)
    at.fill("o.c", "o.a")
    settled(at, "M", 3)
    contents(at, "M")


@scenario
def transformed(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c.d", "o.e")
    transforms = [{"src": "o.a", "dest": "t.a"}, {"src": "o.e", "dest": ""}]
    mirror = {"name": "O", "subject_transforms": transforms}
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": mirror})
    settled(at, "M", 2)
    contents(at, "M")


@scenario
def one_transform(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c.d")
    mirror = {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "t.$1.x"}]}
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": mirror})
    settled(at, "M", 2)
    contents(at, "M")


@scenario
def limits_of_its_own(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.a", "o.b", "o.c")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}, "max_msgs_per_subject": 1})
    settled(at, "M", 3)
    at.api("STREAM.CREATE.N", {"name": "N", "mirror": {"name": "O"}, "max_msgs": 2})
    settled(at, "N", 2, last=5)


@scenario
def publishes_are_not_for_it(at: Recorder) -> None:
    origin(at, "o.a")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 1)
    at.pub("M", b"x", within_s=0.5)
    at.pub("o.a", b"x")
    settled(at, "M", 2)


@scenario
def removals_are_not_copied(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 3)
    at.api("STREAM.MSG.DELETE.O", {"seq": 2})
    at.api("STREAM.PURGE.O")
    at.fill("o.d")
    settled(at, "M", 4)
    at.api("STREAM.MSG.DELETE.M", {"seq": 1})
    at.api("STREAM.PURGE.M", {"filter": "o.b"})
    settled(at, "M", 2)
    at.api("STREAM.PURGE.M")
    at.fill("o.e")
    settled(at, "M", 1)
    contents(at, "M")


@scenario
def full_mirror_that_discards_new(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c", "o.d")
    config = {"name": "M", "mirror": {"name": "O"}, "discard": "new", "max_msgs": 2}
    at.api("STREAM.CREATE.M", config)
    at.wait_until(lambda: info(at, "M").get("state", {}).get("messages") == 2, WITHIN_S)
    at.note("state", info(at, "M")["state"])
    at.api("STREAM.MSG.DELETE.M", {"seq": 1})
    at.wait_until(lambda: info(at, "M").get("state", {}).get("last_seq") == 3, WITHIN_S)
    at.note("state", info(at, "M")["state"])


@scenario
def rollups_and_ttls_as_the_mirror_allows(at: Recorder) -> None:
    origin(at, allow_rollup_hdrs=True, allow_msg_ttl=True)
    at.fill("o.a", "o.a")
    at.pub("o.a", headers={"Nats-Rollup": "sub"})
    at.pub("o.b", headers={"Nats-TTL": "never"})
    at.fill("o.a")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 3, last=5)
    at.pub("o.a", headers={"Nats-Rollup": "sub"})
    settled(at, "M", 4, last=6)
    more = {"allow_rollup_hdrs": True, "allow_msg_ttl": True}
    at.api("STREAM.CREATE.N", {"name": "N", "mirror": {"name": "O"}} | more)
    settled(at, "N", 2, last=6)
    at.pub("o.a", headers={"Nats-Rollup": "sub"})
    settled(at, "N", 2, last=7)
    contents(at, "N")


@scenario
def mirror_of_a_mirror(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    at.api("STREAM.CREATE.N", {"name": "N", "mirror": {"name": "M", "filter_subject": "o.b"}})
    settled(at, "N", 1)
    contents(at, "N")


@scenario
def memory(at: Recorder) -> None:
    origin(at, "o.a", "o.b", storage="memory")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}, "storage": "memory"})
    settled(at, "M", 2)


@scenario
def own_transform_of_a_mirror(at: Recorder) -> None:
    origin(at, "o.a", "o.b")
    transform = {"src": "o.*", "dest": "z.$1"}
    at.api(
        "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}, "subject_transform": transform}
    )
    settled(at, "M", 2)
    contents(at, "M")


@scenario
def origin_that_comes_later(at: Recorder) -> None:
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    at.wait_until(lambda: "error" in info(at, "M").get("mirror", {}), WITHIN_S)
    info(at, "M", is_quiet=False)


@scenario
def start_beyond_the_end_is_kept_to(at: Recorder) -> None:
    """What the origin stores before that is not for the mirror."""
    origin(at, "o.a", "o.b", "o.c")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O", "opt_start_seq": 6}})
    settled(at, "M", 0, last=5)
    at.fill("o.d", "o.e", "o.f", "o.g")
    settled(at, "M", 2, last=7)
    contents(at, "M")


@scenario
def batches_lose_their_headers(at: Recorder) -> None:
    origin(at, allow_atomic=True)
    head = {"Nats-Batch-Id": "b", "Own": "x"}
    at.pub("o.a", headers=head | {"Nats-Batch-Sequence": "1"})
    at.pub("o.b", headers=head | {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"})
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 2)
    contents(at, "M")


@scenario
def counters_as_they_are(at: Recorder) -> None:
    origin(at, allow_msg_counter=True)
    for value in ("5", "-2"):
        at.pub("o.a", b"", headers={"Nats-Incr": value})
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 2)
    contents(at, "M")


@scenario
def schedules_fire_at_the_origin_alone(at: Recorder) -> None:
    origin(at, allow_msg_schedules=True)
    for subject, when in (("o.a", "2099"), ("o.b", "2001")):
        pattern = f"@at {when}-01-01T00:00:00Z"
        at.pub(subject, headers={"Nats-Schedule": pattern, "Nats-Schedule-Target": "o.t"})
    at.wait_until(lambda: info(at, "O")["state"]["last_seq"] == 3, WITHIN_S)
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 2, last=3)
    contents(at, "M")


@scenario
def expiry_is_not_copied_but_its_markers_are(at: Recorder) -> None:
    """A marker is a message like others where the mirror allows no times of its own."""
    second = 1_000_000_000
    origin(at, max_age=second, subject_delete_marker_ttl=60 * second, allow_rollup_hdrs=True)
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    connected(at, "M")
    at.fill("o.a")
    at.wait_until(lambda: info(at, "O")["state"]["first_seq"] == 2, WITHIN_S)
    settled(at, "M", 2, last=2)
    contents(at, "M")


@scenario
def copies_are_published_again(at: Recorder) -> None:
    listener = at.connect()
    listener.subscribe("r.>")
    listener.fence()
    origin(at)
    at.pub("o.a", b"1", headers={"Own": "x"})
    republish = {"src": ">", "dest": "r.>"}
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}, "republish": republish})
    at.note_frames("heard", listener.collect(count=1, within_s=WITHIN_S))


# --- what the origin is asked for -----------------------------------------------------------------


def asked_of_origin(at: Recorder, config: Config, api: str, count: int = 1) -> None:
    """Create a stream that copies from an API which nobody serves; record what it asks there."""
    listener = at.connect()
    listener.subscribe(f"{api}.CONSUMER.CREATE.>")
    listener.fence()
    name = config["name"]
    at.api(f"STREAM.CREATE.{name}", config, is_quiet=True)
    rows = []
    for frame in listener.collect(count=count, within_s=ANSWER_S):
        body = frame.json()
        wanted = body.get("config", {})
        wanted["deliver_subject"] = wanted.get("deliver_subject", "").rpartition(".")[0]
        rows.append([frame.subject, frame.pairs, body.get("stream_name"), wanted])
    at.note(f"asked for {config}", sorted(rows, key=lambda row: json.dumps(row, sort_keys=True)))
    at.api(f"STREAM.DELETE.{name}", is_quiet=True)


_ASKED: tuple[Config, ...] = (
    {},
    {"filter_subject": "o.a"},
    {"opt_start_seq": 7},
    {"opt_start_time": "2024-01-01T00:00:00Z"},
    {"subject_transforms": [{"src": "o.*", "dest": "p.$1"}]},
    {"subject_transforms": [{"src": "o.a", "dest": ""}, {"src": "o.b", "dest": "p"}]},
)


@scenario
def requests_for_consumers(at: Recorder) -> None:
    """Names, headers and fields: either server may be the other's origin."""
    for number, more in enumerate(_ASKED):
        for deliver in ("", "d.x"):
            api = f"x{number}{len(deliver)}.api"
            external = {"api": api, "deliver": deliver}
            mirror = {"name": "O", "external": external} | more
            asked_of_origin(at, {"name": "M", "mirror": mirror}, api)


@scenario
def consumer_that_brings_the_copies(at: Recorder) -> None:
    """It is in no list and no count; who knows its name may ask for it."""
    origin(at, "o.a")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}}, is_quiet=True)
    connected(at, "M")
    at.api("CONSUMER.NAMES.O")
    at.api("CONSUMER.LIST.O")
    at.note("counted", info(at, "O")["state"]["consumer_count"])
    page = at.http("/jsz?accounts=1&streams=1&consumers=1&direct-consumers=1", lambda _: "")
    streams = page["account_details"][0]["stream_detail"]
    (row,) = [each for each in streams if each["name"] == "O"]
    name = row["direct_consumer_detail"][0]["name"]
    found = at.api(f"CONSUMER.INFO.O.{name}", is_quiet=True)
    config = found.get("config", {})
    config["name"] = config.get("name", "").rpartition("-")[0]
    config["deliver_subject"] = config.get("deliver_subject", "").rpartition(".")[0]
    at.note("its info", {"config": config, "error": found.get("error")})


# --- work queues ----------------------------------------------------------------------------------


@scenario
def copies_beside_consumers_of_a_work_queue(at: Recorder) -> None:
    """As many as there are, whatever the queue's limit; a message leaves when all are done with
    it, and a copy that comes later begins behind."""
    origin(at, retention="workqueue", max_consumers=1)
    body = {"stream_name": "O", "config": {"durable_name": "C", "ack_policy": "explicit"}}
    at.api("CONSUMER.CREATE.O.C", body, is_quiet=True)
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}}, is_quiet=True)
    at.api("STREAM.CREATE.S", {"name": "S", "sources": [{"name": "O"}]}, is_quiet=True)
    connected(at, "M")
    at.wait_until(lambda: info(at, "S")["sources"][0]["active"] >= 0, WITHIN_S)
    at.note("consumers", sorted(at.api("CONSUMER.NAMES.O", is_quiet=True)["consumers"]))
    at.fill("o.a", "o.b")
    for name in "MS":
        holds(at, name, 2)
    for _ in range(2):
        for frame in at.wire.ask("$JS.API.CONSUMER.MSG.NEXT.O.C", b'{"batch":1}'):
            at.ack(frame)
    at.wait_until(lambda: info(at, "O")["state"]["messages"] == 0, WITHIN_S)
    at.note("left", info(at, "O")["state"]["messages"])
    at.api("STREAM.CREATE.N", {"name": "N", "mirror": {"name": "O"}}, is_quiet=True)
    at.wait_until(lambda: info(at, "N")["state"]["last_seq"] == 2, WITHIN_S)
    at.note("later", {key: info(at, "N")["state"][key] for key in ("first_seq", "last_seq")})


@scenario
def promotion_ends_the_consumer(at: Recorder) -> None:
    """That which the mirror made; one that a user made stays."""
    origin(at, "o.a", retention="interest")

    def names() -> list[str]:
        found: list[str] = at.api("CONSUMER.NAMES.O", is_quiet=True)["consumers"]
        return sorted(found or [])

    used = {"durable_name": "C", "ack_policy": "flow_control", "deliver_subject": "d.c"}
    body = {"stream_name": "O", "config": used}
    at.api("CONSUMER.CREATE.O.C", body, is_quiet=True)
    by_user = {"name": "O", "consumer": {"name": "C", "deliver_subject": "d.c"}}
    for name, mirror in (("M", {"name": "O"}), ("N", by_user)):
        at.api(f"STREAM.CREATE.{name}", {"name": name, "mirror": mirror}, is_quiet=True)
        connected(at, name)
    at.note("while they copy", len(names()))
    for name in "MN":
        at.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [name]}, is_quiet=True)
    at.wait_until(lambda: names() == ["C"], WITHIN_S)
    at.note("promoted", names())


@scenario
def work_queue_is_emptied(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c", retention="workqueue")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 3)
    at.wait_until(lambda: info(at, "O")["state"]["messages"] == 0, WITHIN_S)
    info(at, "O", is_quiet=False)
    listed = at.api("CONSUMER.LIST.O", is_quiet=True)["consumers"]
    config = listed[0]["config"]
    config.pop("deliver_subject")
    at.note("consumer", {"config": config, "name": listed[0]["name"]})
    at.api("STREAM.DELETE.M")
    at.wait_until(lambda: not at.api("CONSUMER.LIST.O", is_quiet=True)["consumers"], WITHIN_S)
    at.api("CONSUMER.NAMES.O")


@scenario
def interest_is_kept_for_the_mirror(at: Recorder) -> None:
    origin(at, "o.a", retention="interest")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    connected(at, "M")
    at.fill("o.b", "o.c")
    settled(at, "M", 2)
    at.wait_until(lambda: info(at, "O")["state"]["messages"] == 0, WITHIN_S)
    info(at, "O", is_quiet=False)


# --- direct, and promotion ------------------------------------------------------------------------


@scenario
def promotion_with_subjects(at: Recorder) -> None:
    origin(at, "o.a", "o.b")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 2)
    at.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["o.>"]})
    at.api("STREAM.UPDATE.M", {"name": "M", "subjects": ["m.>"]})
    at.pub("m.a")
    at.fill("o.c")
    settled(at, "M", 3)
    at.api("STREAM.UPDATE.M", {"name": "M", "mirror": {"name": "O"}})


@scenario
def promotion_without_subjects(at: Recorder) -> None:
    origin(at, "o.a", "o.b")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 2)
    at.api("STREAM.UPDATE.M", {"name": "M"})
    at.pub("M")
    settled(at, "M", 3)


@scenario
def direct_gets_by_the_mirror(at: Recorder) -> None:
    origin(at, "o.a", "o.b", allow_direct=True)
    config = {"name": "M", "mirror": {"name": "O"}, "mirror_direct": True}
    at.api("STREAM.CREATE.M", config)
    settled(at, "M", 2)
    at.direct("M", subject="o.a")
    at.api("STREAM.UPDATE.M", config | {"allow_direct": True})
    at.direct("M", subject="o.a")
    at.api("STREAM.UPDATE.O", {"name": "O", "subjects": ["o.>"]})
    at.direct("O", subject="o.b")
    at.direct("O", {"seq": 1})


@scenario
def key_value_mirror(at: Recorder) -> None:
    bucket = {
        "name": "KV_a",
        "subjects": ["$KV.a.>"],
        "max_msgs_per_subject": 3,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "discard": "new",
    }
    at.api("STREAM.CREATE.KV_a", bucket)
    at.fill("$KV.a.x", "$KV.a.y", "$KV.a.x")
    copy = bucket | {"name": "KV_m", "mirror": {"name": "KV_a"}, "mirror_direct": True}
    copy.pop("subjects")
    at.api("STREAM.CREATE.KV_m", copy)
    settled(at, "KV_m", 3)
    at.direct("KV_m", subject="$KV.a.x")
    at.pub("$KV.a.x", b"", headers={"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    settled(at, "KV_m", 2)


@scenario
def names_by_subject(at: Recorder) -> None:
    origin(at, "o.a")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}})
    settled(at, "M", 1)
    at.api("STREAM.NAMES", {"subject": "o.a"})
    at.api("STREAM.NAMES", {"subject": "M"})
    at.api("STREAM.NAMES")


@scenario
def consumer_that_a_user_made(at: Recorder) -> None:
    origin(at, "o.a", "o.b", "o.c")
    consumer = {
        "durable_name": "C",
        "ack_policy": "flow_control",
        "deliver_subject": "d.c",
        "filter_subject": "o.>",
        "max_ack_pending": 10,
    }
    at.api("CONSUMER.CREATE.O.C.o.>", {"stream_name": "O", "config": consumer}, is_quiet=True)
    used = {"name": "C", "deliver_subject": "d.c"}
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O", "consumer": used}})
    settled(at, "M", 3)
    at.fill("o.d")
    settled(at, "M", 4)
    at.api("STREAM.DELETE.M")
    at.api("CONSUMER.NAMES.O")


@scenario
def consumer_that_acks_otherwise(at: Recorder) -> None:
    origin(at, "o.a")
    consumer = {"durable_name": "C", "ack_policy": "explicit", "deliver_subject": "d.c"}
    at.api("CONSUMER.CREATE.O.C", {"stream_name": "O", "config": consumer}, is_quiet=True)
    used = {"name": "C", "deliver_subject": "d.c"}
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O", "consumer": used}})
    at.wait_until(lambda: "error" in info(at, "M").get("mirror", {}), WITHIN_S)
    info(at, "M", is_quiet=False)


@scenario
def monitoring(at: Recorder) -> None:
    """Streams tell what they copy; consumers for that are not counted, and shown on demand."""
    origin(at, "o.a")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O"}}, is_quiet=True)
    connected(at, "M")

    def kept(page: Any) -> Any:
        streams = page["account_details"][0]["stream_detail"]
        rows = [
            {key: each.get(key) for key in ("name", "mirror", "sources", "consumer_detail")}
            | {"direct": len(each.get("direct_consumer_detail", []))}
            for each in sorted(streams, key=lambda each: str(each["name"]))
        ]
        return {"consumers": page["consumers"], "streams": rows}

    at.http("/jsz?accounts=1&streams=1&consumers=1", kept)
    at.http("/jsz?accounts=1&streams=1&consumers=1&direct-consumers=1", kept)
    at.http("/jsz?accounts=1&streams=1&direct-consumers=1", kept)


@scenario
def direct_gets_by_a_filtered_mirror(at: Recorder) -> None:
    """It answers for its origin, of what it lacks too; other gets are the origin's."""
    allowing = {"name": "O", "subjects": ["o.>"], "allow_direct": True}
    at.api("STREAM.CREATE.O", allowing, is_quiet=True)
    at.fill("o.a", "o.b")
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "O", "filter_subject": "o.a"}})
    at.api("STREAM.UPDATE.O", allowing | {"allow_direct": False}, is_quiet=True)
    settled(at, "M", 1)
    at.direct("O", subject="o.a")
    at.direct("O", subject="o.b")
    at.api("STREAM.PURGE.O")
    at.direct("O", subject="o.a")
    at.api("STREAM.MSG.GET.O", {"last_by_subj": "o.a"})


@scenario
def consumers_that_are_none_for_a_copy(at: Recorder) -> None:
    """One that is pulled from, of a mirror and of a source."""
    origin(at, "o.a")
    body = {"stream_name": "O", "config": {"durable_name": "C", "ack_policy": "explicit"}}
    at.api("CONSUMER.CREATE.O.C", body, is_quiet=True)
    used = {"name": "O", "consumer": {"name": "C", "deliver_subject": "d.c"}}
    at.api("STREAM.CREATE.M", {"name": "M", "mirror": used}, is_quiet=True)
    at.wait_until(lambda: "error" in info(at, "M").get("mirror", {}), WITHIN_S)
    at.note("mirror", info(at, "M")["mirror"].get("error"))
    at.api("STREAM.CREATE.S", {"name": "S", "sources": [used]}, is_quiet=True)
    at.wait_until(lambda: "error" in info(at, "S")["sources"][0], WITHIN_S)
    at.note("source", info(at, "S")["sources"][0].get("error"))
