"""Mirrors: what a configuration may say, what is copied, and how it is shown."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import Recorder
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
    ("consumer", {"consumer": {"name": "C", "deliver_subject": "d.c"}}, {}),
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


# --- work queues ----------------------------------------------------------------------------------


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
