"""CONSUMER.* endpoints: how consumers are named, checked, shown, paused, reset and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streamd import subjects
from streamd.api import consumer_configs
from streamd.errors import JsError
from streamd.machine import commands
from streamd.types import AssetLimits
from tests.unit.api.bed import Bed


@pytest.fixture
def bed() -> Bed:
    bed = Bed()
    stream = bed.make("T", subjects=["t.>"])
    for at in range(5):
        stream.store(f"t.{at}")
    bed.make("W", subjects=["w.>"], retention="workqueue")
    limits = {"inactive_threshold": 10 * 10**9, "max_ack_pending": 50}
    bed.make("L", subjects=["l"], consumer_limits=limits)
    return bed


def create(bed: Bed, subject: str = "T", stream: str = "", **config: Any) -> dict[str, Any]:
    name = stream or subject.split(".")[0]
    return bed.ask(f"CONSUMER.CREATE.{subject}", {"stream_name": name, "config": config})


def test_ephemeral_gets_a_name_and_defaults(bed: Bed) -> None:
    answer = create(bed)
    assert len(answer["name"]) == 8
    assert answer["config"] == {
        "deliver_policy": "all",
        "ack_policy": "none",
        "max_deliver": -1,
        "replay_policy": "instant",
        "max_waiting": 512,
        "inactive_threshold": 5_000_000_000,
        "num_replicas": 0,
        "metadata": {"_nats.level": "4", "_nats.req.level": "0", "_nats.ver": "2.14.0"},
    }
    assert answer["num_pending"] == 5
    assert answer["delivered"] == answer["ack_floor"] == {"consumer_seq": 0, "stream_seq": 0}


def test_names_in_subject_and_request_must_agree(bed: Bed) -> None:
    mismatch = (10017, "consumer name in subject does not match durable name in request")

    def refused(subject: str, stream: str = "T", **config: Any) -> tuple[int, str]:
        return bed.error(f"CONSUMER.{subject}", {"stream_name": stream, "config": config})

    assert refused("CREATE.T", durable_name="d")[0] == 10020
    assert refused("DURABLE.CREATE.T.d")[0] == 10018
    assert refused("DURABLE.CREATE.T.d", durable_name="e") == mismatch
    assert refused("CREATE.T.d", durable_name="e") == mismatch
    assert refused("CREATE.Z", durable_name="d")[0] == 10056
    assert refused("CREATE.Z", "Z")[0] == 10059
    assert refused("CREATE.T.d.t.1")[0] == 10131
    assert refused("CREATE.T.d.t.1", filter_subjects=["t.1"])[0] == 10137
    assert refused("CREATE.T.d", durable_name="d", direct=True, deliver_subject="q")[0] == 10091
    assert refused("CREATE.T", name="a b")[0] == 10052
    assert refused("CREATE.T", name="a/b")[0] == 10127
    assert refused("CREATE.T.a*b")[0] == 10052
    assert refused("DURABLE.CREATE.T." + "x" * 256, durable_name="x" * 256)[0] == 10102
    assert create(bed, "T.d.t.1", filter_subject="t.1")["num_pending"] == 1
    assert create(bed, "T.e", name="other")["config"]["name"] == "e"
    for named in ({}, {"name": "other"}):
        asked = {"stream_name": "T", "config": {"durable_name": "f"} | named}
        answer = bed.ask("CONSUMER.DURABLE.CREATE.T.f", asked)
        assert answer["config"]["durable_name"] == answer["config"]["name"] == "f"
        assert "inactive_threshold" not in answer["config"]


START = "2024-01-01T00:00:00Z"
FLOW: dict[str, Any] = {"ack_policy": "flow_control", "deliver_subject": "q"}
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"description": "x" * 4097}, 10107, "consumer description is too long"),
    ({"metadata": {"a": "x" * 131072}}, 10135, "consumer metadata exceeds maximum size of 128KB"),
    (
        {"opt_start_seq": 3},
        10094,
        "consumer delivery policy is deliver all, but optional start sequence is also set",
    ),
    (
        {"deliver_policy": "by_start_sequence"},
        10094,
        "consumer delivery policy is deliver by start sequence, but optional start sequence is "
        "not set",
    ),
    (
        {"deliver_policy": "by_start_time", "opt_start_seq": 3},
        10094,
        "consumer delivery policy is deliver by start time, but optional start time is not set",
    ),
    (
        {"deliver_policy": "last_per_subject"},
        10094,
        "consumer delivery policy is deliver last per subject, but optional filter subject is "
        "not set",
    ),
    ({"ack_policy": "flow_control"}, 10218, "flow control ack policy requires a push"),
    ({"ack_policy": "flow_control", "rate_limit_bps": 1}, 10218, "flow control ack policy"),
    ({"ack_policy": "explicit", "ack_wait": -1}, 10183, "consumer ack wait needs to be positive"),
    ({"ack_policy": "explicit", "backoff": [1, 2, 3], "max_deliver": 2}, 10116, "max deliver"),
    ({"ack_policy": "explicit", "backoff": [-1]}, 10184, "consumer backoff needs to be positive"),
    ({"filter_subject": "a..b"}, 10052, "invalid subject"),
    ({"filter_subject": "t.1", "filter_subjects": ["t.2"]}, 10136, "consumer cannot have both"),
    ({"filter_subjects": [""]}, 10139, "consumer filter in FilterSubjects cannot be empty"),
    ({"filter_subjects": ["a..b", ""]}, 10139, "consumer filter in FilterSubjects cannot be empty"),
    ({"filter_subjects": ["t.>", "t.1"]}, 10138, "consumer subject filters cannot overlap"),
    ({"rate_limit_bps": 5}, 10086, "consumer in pull mode can not have rate limit set"),
    ({"sample_freq": "zz"}, 10095, "failed to parse consumer sampling configuration: strconv"),
    ({"sample_freq": "9" * 5000}, 10095, "failed to parse consumer sampling"),
    ({"deliver_subject": "q", "max_waiting": 5}, 10080, "consumer in push mode"),
    ({"deliver_subject": "q", "max_ack_pending": 5}, 10082, "consumer requires ack policy"),
    ({"flow_control": True}, 10089, "consumer flow control requires a push based consumer"),
    ({"deliver_subject": "q", "flow_control": True}, 10108, "consumer with flow control"),
    ({"deliver_subject": "q", "idle_heartbeat": 1}, 10083, "consumer idle heartbeat needs"),
    ({"idle_heartbeat": 10**9}, 10088, "consumer idle heartbeat requires a push based consumer"),
    ({"max_expires": 5}, 10115, "consumer max request expires needs to be >= 1ms"),
    ({"deliver_subject": "q.*"}, 10079, "consumer deliver subject has wildcards"),
    ({"deliver_subject": "q..a"}, 10112, "invalid push consumer deliver subject"),
    ({"deliver_subject": "t.1"}, 10081, "consumer deliver subject forms a cycle"),
    ({"num_replicas": 2}, 10074, "replicas > 1 not supported in non-clustered mode"),
    ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
    ({"priority_groups": ["a"]}, 10196, "consumer can not have priority groups"),
    ({"priority_policy": "overflow"}, 10159, "Setting PriorityPolicy requires"),
    ({"priority_policy": "overflow", "priority_groups": [""]}, 10161, "Group name cannot be"),
    ({"priority_policy": "overflow", "priority_groups": ["a b"]}, 10162, "Valid priority group"),
    ({"priority_timeout": 5}, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"),
    ({"direct": True}, 10090, "consumer direct requires a push based consumer"),
    (
        {"deliver_subject": "q", "priority_policy": "overflow", "priority_groups": ["g"]},
        10178,
        "priority groups can not be used with push consumers",
    ),
    ({"priority_policy": "overflow", "priority_groups": ["g" * 17]}, 10162, "Valid priority group"),
    ({"filter_subjects": ["t.1", "a..b"]}, 10052, "invalid subject"),
    ({"sample_freq": "-5"}, 10095, "failed to parse consumer sampling configuration: <nil>"),
    (
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 3, "opt_start_time": START},
        10094,
        "consumer delivery policy is deliver by start sequence, but optional start time is also",
    ),
    (
        {"deliver_policy": "by_start_time", "opt_start_seq": 3, "opt_start_time": START},
        10094,
        "consumer delivery policy is deliver by start time, but optional start start sequence is "
        "also set",
    ),
    (
        {"deliver_policy": "new", "opt_start_time": START},
        10094,
        "consumer delivery policy is deliver new, but optional start time is also set",
    ),
    (FLOW | {"max_ack_pending": -1}, 10220, "flow control ack policy requires max ack pending"),
    (FLOW | {"ack_wait": 10**9}, 10221, "flow control ack policy requires unset ack wait"),
    (FLOW | {"max_deliver": 5}, 10222, "flow control ack policy requires unset max deliver"),
]

PEDANTIC: list[tuple[dict[str, Any], int, str]] = [
    ({"max_waiting": -1}, 10157, "pedantic mode: max_waiting must not be negative"),
    ({"max_batch": -1}, 10157, "pedantic mode: max_batch must not be negative"),
    (
        FLOW | {"flow_control": True, "idle_heartbeat": 2 * 10**9},
        10052,
        "flow control ack policy heartbeat needs to be 1s",
    ),
    ({"inactive_threshold": -1}, 10157, "pedantic mode: inactive_threshold must not be negative"),
    ({"max_deliver": -5}, 10157, "pedantic mode: max_deliver must be set to -1"),
    ({"max_ack_pending": -5}, 10157, "pedantic mode: max_ack_pending must be set to -1"),
    (
        {"ack_policy": "explicit", "backoff": [2 * 10**9], "max_deliver": 3},
        10157,
        "pedantic mode: first backoff value has to equal batch AckWait",
    ),
    (FLOW, 10219, "flow control ack policy requires flow control"),
]


@pytest.mark.parametrize(("config", "err_code", "text"), REFUSED)
def test_create_refuses(bed: Bed, config: dict[str, Any], err_code: int, text: str) -> None:
    found = bed.error("CONSUMER.CREATE.T", {"stream_name": "T", "config": config})
    assert found[0] == err_code, found
    assert found[1].startswith(text)


@pytest.mark.parametrize(("config", "err_code", "text"), PEDANTIC)
def test_pedantic_refuses_what_would_be_replaced(
    bed: Bed, config: dict[str, Any], err_code: int, text: str
) -> None:
    request = {"stream_name": "T", "config": config, "pedantic": True}
    assert bed.error("CONSUMER.CREATE.T", request) == (err_code, text)


GROUP: dict[str, Any] = {"ack_policy": "explicit", "priority_groups": ["g" * 16]}
SHAPED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_waiting": -1, "inactive_threshold": -1}, {}),
    ({"max_deliver": 0}, {"max_deliver": -1}),
    ({"max_deliver": -5}, {"max_deliver": -1}),
    ({"priority_policy": "none", "max_batch": -1, "max_expires": -1, "max_bytes": -1}, {}),
    ({"ack_policy": "explicit", "max_ack_pending": -5}, {"max_ack_pending": -1}),
    (
        {"ack_policy": "explicit", "ack_wait": 9 * 10**9, "backoff": [10**9]},
        {"ack_wait": 10**9, "backoff": [10**9]},
    ),
    (
        GROUP | {"priority_policy": "pinned_client"},
        {"priority_timeout": 120 * 10**9, "priority_groups": ["g" * 16]},
    ),
    (
        FLOW,
        {"flow_control": True, "idle_heartbeat": 10**9, "max_ack_pending": 1000, "max_deliver": -1},
    ),
    (FLOW | {"idle_heartbeat": 2 * 10**9}, {"idle_heartbeat": 10**9}),
    ({"filter_subjects": ["t.*.a", "t.1.*"]}, {"filter_subjects": ["t.*.a", "t.1.*"]}),
    ({"sample_freq": "+5"}, {"sample_freq": "+5"}),
]


@pytest.mark.parametrize(("given", "wanted"), SHAPED)
def test_create_fills_in_what_was_meant(
    bed: Bed, given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    plain = create(bed)["config"]
    shown = create(bed, **given)["config"]
    assert {field: shown.get(field) for field in wanted} == wanted
    if not wanted:
        assert shown == plain
    assert "ack_wait" in shown or shown["ack_policy"] != "explicit"


@pytest.mark.parametrize(
    ("replicas", "retention", "wanted"),
    [
        (0, "interest", 0),
        (3, "interest", 0),
        (1, "interest", 10134),
        (1, "limits", 0),
        (5, "limits", 10126),
    ],
)
def test_replicas_of_a_consumer(replicas: int, retention: str, wanted: int) -> None:
    stream = {"num_replicas": 3, "retention": retention, "subjects": []}
    try:
        found = consumer_configs.normalise({"num_replicas": replicas}, stream)["num_replicas"]
    except JsError as refused:
        assert refused.err_code == wanted
    else:
        assert (found, wanted) == (replicas, 0)


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({}, "0"),
        (FLOW, "4"),
        (GROUP | {"priority_policy": "overflow"}, "1"),
        ({"pause_until": START}, "1"),
        ({"metadata": {"_nats.req.level": "9"}}, "0"),
    ],
)
def test_the_level_that_a_config_needs_is_shown(
    bed: Bed, config: dict[str, Any], level: str
) -> None:
    assert create(bed, **config)["config"]["metadata"]["_nats.req.level"] == level


def test_thousands_of_filters_are_not_compared_each_with_each(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor subjects of a stream, nor the filters of a work queue's consumers: 3,000 held the loop
    for ten seconds."""
    count = 0

    def counted(compare: Callable[[bytes, bytes], bool]) -> Callable[[bytes, bytes], bool]:
        def compared(a: bytes, b: bytes) -> bool:
            nonlocal count
            count += 1
            return compare(a, b)

        return compared

    for name in ("collides", "is_subset"):
        monkeypatch.setattr(subjects, name, counted(getattr(subjects, name)))
    bed.make("M", subjects=[f"m.{n}.>" for n in range(300)], retention="workqueue")
    for half in (0, 1):
        filters = [f"m.{n}.{half}" for n in range(300)]
        bed.make_consumer("M", f"c{half}", ack_policy="explicit", filter_subjects=filters)
    request = {"ack_policy": "explicit", "filter_subjects": ["m.7.*", "m.5.2"]}
    refused = bed.error("CONSUMER.CREATE.M", {"stream_name": "M", "config": request})
    assert refused[0] == 10100
    bed.make("F", subjects=["f.>"])  # filters that overlap, though none is part of another
    filters = [f"f.{n}.*" for n in range(300)] + [f"f.*.{n}" for n in range(300)]
    bed.make_consumer("F", "c", ack_policy="explicit", filter_subjects=filters)
    assert count < 10 * 300


def test_work_queue_and_stream_limits(bed: Bed) -> None:
    def refused(stream: str, **config: Any) -> int:
        request = {"stream_name": stream, "config": config}
        return bed.error(f"CONSUMER.CREATE.{stream}", request)[0]

    assert refused("W") == 10084
    assert refused("W", ack_policy="all") == 10098
    assert refused("W", deliver_subject="q") == 10098
    assert refused("W", ack_policy="explicit", deliver_policy="new") == 10101
    bed.make_consumer("W", "a", ack_policy="explicit", filter_subject="w.a")
    assert refused("W", ack_policy="explicit", deliver_policy="new") == 10101
    assert refused("W", ack_policy="explicit") == 10099
    assert create(bed, "W", **FLOW, filter_subject="w.b")["config"]["ack_policy"] == "flow_control"
    bed.make("F", subjects=["f.>"], retention="workqueue", max_consumers=1)
    bed.make_consumer("F", "a", ack_policy="explicit", filter_subject="f.a")
    assert refused("F", ack_policy="all", filter_subject="f.b") == 10026
    assert refused("L", ack_policy="explicit", max_ack_pending=51) == 10121
    assert refused("L", max_ack_pending=51) == 10121
    assert refused("W", deliver_policy="new", ack_policy="none") == 10084
    assert refused("L", inactive_threshold=11 * 10**9) == 10153
    free = create(bed, "L", ack_policy="explicit", max_ack_pending=-1)["config"]
    assert free["max_ack_pending"] == -1
    config = create(bed, "L", ack_policy="explicit")["config"]
    assert (config["max_ack_pending"], config["inactive_threshold"]) == (50, 10 * 10**9)


def test_defaults_follow_the_ack_policy(bed: Bed) -> None:
    config = create(bed, ack_policy="explicit")["config"]
    assert (config["ack_wait"], config["max_ack_pending"]) == (30 * 10**9, 1000)
    config = create(bed, ack_policy="explicit", backoff=[10**9, 2], ack_wait=5)["config"]
    assert config["ack_wait"] == 10**9
    config = create(bed, deliver_subject="q", idle_heartbeat=-1, max_batch=-1)["config"]
    assert not {"idle_heartbeat", "max_batch", "max_waiting"} & set(config)


def test_a_stream_may_say_that_acks_are_unlimited(bed: Bed) -> None:
    bed.make("U", subjects=["u"], consumer_limits={"max_ack_pending": -1})
    for policy in ("explicit", "none"):
        config = create(bed, "U.c", ack_policy=policy)["config"]
        assert config["max_ack_pending"] == -1
        bed.ask("CONSUMER.DELETE.U.c")
    assert create(bed, "U.c", ack_policy="all", max_ack_pending=7)["config"]["max_ack_pending"] == 7


def test_a_start_time_may_be_given_in_another_zone(bed: Bed) -> None:
    """Clients write a time in the zone of their host; it is the same start."""
    start = {"name": "a", "deliver_policy": "by_start_time"}
    at = "2024-03-05T09:30:00.5Z"
    create(bed, "T.a", opt_start_time=at, **start)
    for text in ("2024-03-05T10:30:00.500+01:00", "2024-03-05T02:30:00.5-07:00", at):
        config = create(bed, "T.a", opt_start_time=text, description=text, **start)["config"]
        assert (config["opt_start_time"], config["description"]) == (at, text)
    request = {"stream_name": "T", "config": start | {"opt_start_time": "2024-03-05T09:30:00Z"}}
    assert bed.error("CONSUMER.CREATE.T.a", request) == (10012, "start time can not be updated")


def test_action_says_create_or_update(bed: Bed) -> None:
    def ask(action: str, **config: Any) -> dict[str, Any]:
        durable = {"durable_name": "a"} | config
        request = {"stream_name": "T", "action": action, "config": durable}
        return bed.ask("CONSUMER.CREATE.T.a", request)

    assert ask("update")["error"]["err_code"] == 10149
    assert ask("create")["name"] == "a"
    assert ask("create")["name"] == "a"
    assert ask("create", description="x")["error"]["err_code"] == 10148
    assert ask("update", description="x")["config"]["description"] == "x"
    assert ask("", ack_policy="all")["error"]["err_code"] == 10012
    assert ask("zz")["error"]["description"] == 'invalid JSON: unknown consumer action: "zz"'


def test_an_update_by_name_does_not_make_a_durable_consumer_go(bed: Bed) -> None:
    """One that does not say `durable_name` again: clients let users name a consumer either way."""
    create(bed, "T.d", durable_name="d")
    for description in ("x", "y"):
        config = create(bed, "T.d", name="d", description=description)["config"]
        assert "inactive_threshold" not in config
    create(bed, "T.e", durable_name="e", inactive_threshold=60 * 10**9)
    assert "inactive_threshold" not in create(bed, "T.e", name="e")["config"]
    create(bed, "T.f", name="f", inactive_threshold=60 * 10**9)
    assert create(bed, "T.f", name="f")["config"]["inactive_threshold"] == 5 * 10**9
    assert create(bed, "T.f", name="f", inactive_threshold=-1)["config"]["inactive_threshold"] > 0


def test_names_lists_and_info(bed: Bed) -> None:
    assert bed.ask("CONSUMER.NAMES.T")["consumers"] == []
    for at in range(3):
        bed.make_consumer("T", f"c{2 - at}")
    names = bed.ask("CONSUMER.NAMES.T")
    assert (names["consumers"], names["total"], names["limit"]) == (["c0", "c1", "c2"], 3, 1024)
    listed = bed.ask("CONSUMER.LIST.T", {"offset": 1})
    assert [info["name"] for info in listed["consumers"]] == ["c1", "c2"]
    assert listed["consumers"][0]["config"]["metadata"] == {"_nats.req.level": "0"}
    assert bed.error("CONSUMER.LIST.Z")[0] == 10059
    assert bed.error("CONSUMER.NAMES.T", {"zz": 1})[0] == 10025
    assert bed.error("CONSUMER.INFO.T.zz")[0] == 10014
    assert bed.error("CONSUMER.INFO.Z.zz")[0] == 10059
    assert bed.error("CONSUMER.INFO.T.c0", b"x")[0] == 10038
    stream = bed.node.stream("T")
    assert stream is not None
    stream.view.num_waiting, stream.view.is_push_bound = 2, True
    info = bed.ask("CONSUMER.INFO.T.c0", b"{}")
    assert (info["num_waiting"], info["push_bound"]) == (2, True)


def test_delete(bed: Bed) -> None:
    bed.make_consumer("T", "a")
    assert bed.error("CONSUMER.DELETE.T.a", b"x")[0] == 10038
    assert bed.ask("CONSUMER.DELETE.T.a")["success"] is True
    assert bed.error("CONSUMER.DELETE.T.a")[0] == 10014


def test_pause_and_resume(bed: Bed) -> None:
    bed.make_consumer("T", "a")
    until = "2030-01-01T00:00:00Z"
    paused = bed.ask("CONSUMER.PAUSE.T.a", {"pause_until": until})
    assert paused["paused"] is True and paused["pause_until"] == until
    assert paused["pause_remaining"] > 0
    info = bed.ask("CONSUMER.INFO.T.a")
    assert info["paused"] is True and info["config"]["pause_until"] == until
    kept = bed.make_consumer("T", "a", description="x")
    assert kept["config"]["pause_until"] == until
    assert bed.ask("CONSUMER.PAUSE.T.a")["paused"] is False
    assert "paused" not in bed.ask("CONSUMER.INFO.T.a")
    # Its schema cannot tell an error from a success, so this one is looked at raw.
    ((_, refused),) = bed.ask_raw("CONSUMER.PAUSE.T.zz")
    assert b'"err_code":10014' in refused and b'"paused":false' in refused


def test_unpin(bed: Bed) -> None:
    bed.make_consumer("T", "a", priority_policy="pinned_client", priority_groups=["g"])
    bed.make_consumer("T", "b")
    stream = bed.node.stream("T")
    assert stream is not None
    view = stream.view
    view.pinned_id, view.pinned_ns = "PIN", 1_000_000_000
    (group,) = bed.ask("CONSUMER.INFO.T.a")["priority_groups"]
    assert group == {"group": "g", "pinned_client_id": "PIN", "pinned_ts": "1970-01-01T00:00:01Z"}
    assert bed.ask("CONSUMER.UNPIN.T.a", {"group": "g", "more": 1}) == {
        "type": "io.nats.jetstream.api.v1.consumer_unpin_response"
    }
    assert view.pinned_id == ""
    assert "priority_groups" not in bed.ask("CONSUMER.INFO.T.b")


@pytest.mark.parametrize(
    ("where", "body", "code", "text"),
    [
        ("T.a", b"", 10025, "invalid JSON: unexpected end of JSON input"),
        ("T.a", b"{", 10025, "invalid JSON: unexpected end of JSON input"),
        ("T.zz", {}, 10025, "invalid JSON: consumer group not specified"),
        ("T.zz", {"group": "a b"}, 10162, "Valid priority group name must match"),
        ("T.a", {"group": "h"}, 10160, "Provided priority group does not exist"),
        ("T.zz", {"group": "g"}, 10014, "consumer not found"),
        ("Z.a", {"group": "g"}, 10059, "stream not found"),
    ],
)
def test_unpin_refused(bed: Bed, where: str, body: Any, code: int, text: str) -> None:
    bed.make_consumer("T", "a", priority_policy="pinned_client", priority_groups=["g"])
    # Its schema cannot tell an error from a success either.
    ((_, refused),) = bed.ask_raw(f"CONSUMER.UNPIN.{where}", body)
    error = json.loads(refused)["error"]
    assert error["err_code"] == code and error["description"].startswith(text)


def test_reset(bed: Bed) -> None:
    bed.make_consumer("T", "a")
    assert bed.ask("CONSUMER.RESET.T.a", {"seq": 3})["reset_seq"] == 3
    assert bed.ask_raw("CONSUMER.RESET.T.zz") == []


def test_pull_goes_to_the_consumer_or_has_no_responders(bed: Bed) -> None:
    bed.make_consumer("T", "a")
    assert bed.ask_raw("CONSUMER.MSG.NEXT.T.a", b"5") == []
    stream = bed.node.stream("T")
    assert stream is not None
    assert [(name, payload) for name, _, _, payload in stream.pulls] == [("a", b"5")]
    for missing in ("T.zz", "Z.a"):
        (status,) = bed.ask_raw(f"CONSUMER.MSG.NEXT.{missing}")
        assert status[0].startswith(b"NATS/1.0 503\r\n")


# --- what the server allows (jetstream { limits {} }) -------------------------------------------


@pytest.fixture
def limited() -> Bed:
    bed = Bed(AssetLimits(ack_pending_max=50, request_batch_max=10))
    bed.make("S")
    bed.make("MORE", subjects=["more"], consumer_limits={"max_ack_pending": 60})
    bed.make("LESS", subjects=["less"], consumer_limits={"max_ack_pending": 40})
    return bed


@pytest.mark.parametrize(
    ("stream", "given", "shown"),
    [
        ("S", {}, (50, 10)),
        ("S", {"max_ack_pending": -1}, (-1, 10)),
        ("S", {"max_ack_pending": 50, "max_batch": 5}, (50, 5)),
        ("S", {"max_batch": -5}, (50, 10)),
        ("S", {"ack_policy": "none"}, (None, 10)),
        ("S", {"deliver_subject": "x"}, (50, None)),
        ("S", {"deliver_subject": "x", "max_batch": 30}, (50, 30)),
        ("LESS", {}, (40, 10)),
    ],
)
def test_server_limits_are_the_defaults(
    limited: Bed, stream: str, given: dict[str, Any], shown: tuple[Any, Any]
) -> None:
    answer = limited.make_consumer(stream, "c", **{"ack_policy": "explicit"} | given)
    config = answer["config"]
    assert (config.get("max_ack_pending"), config.get("max_batch")) == shown


@pytest.mark.parametrize(
    ("stream", "given", "code", "text"),
    [
        ("S", {"max_ack_pending": 60}, 10121, "ack pending exceeds system limit of 50"),
        ("S", {"max_ack_pending": 60, "ack_policy": "none"}, 10121, "system limit of 50"),
        ("S", {"max_batch": 20}, 10125, "max request batch exceeds server limit of 10"),
        ("MORE", {}, 10121, "system limit of 50"),
        ("LESS", {"max_ack_pending": 45}, 10121, "system limit of 40"),
        ("S", {"is_pedantic": True}, 10157, "max_request_batch must be set if it's JetStream"),
        (
            "LESS",
            {"is_pedantic": True, "max_batch": 5},
            10157,
            "max_ack_pending must be set if it's configured in stream limits",
        ),
    ],
)
def test_server_limits_are_not_exceeded(
    limited: Bed, stream: str, given: dict[str, Any], code: int, text: str
) -> None:
    config = {"durable_name": "c", "ack_policy": "explicit"} | given
    body = {"stream_name": stream, "config": config}
    if config.pop("is_pedantic", False):
        body["pedantic"] = True
    found, said = limited.error(f"CONSUMER.CREATE.{stream}.c", body)
    assert found == code and text in said


def test_the_streams_limits_are_looked_at_before_what_is_there(bed: Bed) -> None:
    """Whatever is asked for: what they do not allow is refused by that name."""
    create(bed, "L.d", durable_name="d", ack_policy="explicit")
    for action in ("create", "", "update"):
        for name in ("d", "x"):
            for excess, code in (({"max_ack_pending": 51}, 10121), ({}, 10153)):
                config = {"durable_name": name, "ack_policy": "explicit"} | excess
                if not excess:
                    config["inactive_threshold"] = 11 * 10**9
                body = {"stream_name": "L", "config": config, "action": action}
                assert bed.error(f"CONSUMER.CREATE.L.{name}", body)[0] == code
    config = {"durable_name": "d", "ack_policy": "explicit", "max_ack_pending": 9}
    body = {"stream_name": "L", "config": config, "action": "create"}
    assert bed.error("CONSUMER.CREATE.L.d", body)[0] == 10148


def test_a_single_server_takes_no_threshold_for_another_than_the_one_filled_in(bed: Bed) -> None:
    body: dict[str, Any] = {"stream_name": "T", "config": {"name": "e"}, "action": "create"}
    bed.ask("CONSUMER.CREATE.T.e", body)
    assert bed.error("CONSUMER.CREATE.T.e", body)[0] == 10148
    bed.ask("CONSUMER.CREATE.T.e", body | {"action": "update"})
    given = body | {"config": {"name": "e", "inactive_threshold": 5 * 10**9}}
    bed.ask("CONSUMER.CREATE.T.e", given)
    limited = {"stream_name": "L", "config": {"name": "e"}, "action": "create"}
    for _ in range(2):
        bed.ask("CONSUMER.CREATE.L.e", limited)


def test_a_copy_takes_its_consumer_of_a_work_queue_over_in_one_entry() -> None:
    """Between two, one that turns it to the new subject and one that resets it, what the consumer
    had under way went there under numbers that end with the reset."""
    bed = Bed()
    stream = bed.make("W", subjects=["w.>"], retention="workqueue")
    for at in range(3):
        stream.store(f"w.{at}")
    config = {
        "name": "JS_SRC_x", "ack_policy": "none", "deliver_subject": "$JS.S.one", "direct": True,
        "sourcing": True, "flow_control": True, "idle_heartbeat": 10**9,
    }  # fmt: skip
    wanted = {"stream_name": "W", "config": config}
    bed.ask_raw("CONSUMER.CREATE.W", wanted)
    consumer = stream.machine.consumers["JS_SRC_x"]
    delivered = [(1, 3, 1, False)]
    stream.apply([commands.DELIVERED, bed.node.clock.now_ns(), consumer.uid, delivered, 0])
    assert consumer.delivered_cseq == 3 and len(consumer.pending) == 3
    applied = stream.machine.applied
    config["deliver_subject"] = "$JS.S.another"
    ((_, payload),) = bed.ask_raw("CONSUMER.CREATE.W", wanted)
    answer = json.loads(payload)
    assert stream.machine.applied == applied + 1
    assert consumer.config["deliver_subject"] == "$JS.S.another" and not consumer.pending
    assert answer["delivered"]["consumer_seq"] == 0 and answer["num_pending"] == 3
