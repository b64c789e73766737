"""Consumer configuration, life and listing."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tests.parity.recorder import Recorder
from tests.parity.registry import add, scenario

SECOND = 1_000_000_000


def stream(at: Recorder, *subjects: str, **config: Any) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]} | config, is_quiet=True)
    at.fill(*subjects)


def request(config: Any, **more: Any) -> dict[str, Any]:
    return {"stream_name": "S", "config": config} | more


DURABLE = {"durable_name": "C", "ack_policy": "explicit"}
PUSH = {"durable_name": "C", "deliver_subject": "d.x", "ack_policy": "explicit"}

CREATE: dict[str, dict[str, Any]] = {
    "durable": DURABLE,
    "no_ack_policy": {"durable_name": "C"},
    "name_only": {"name": "C", "ack_policy": "explicit"},
    "name_and_durable": {"name": "C", "durable_name": "C", "ack_policy": "explicit"},
    "name_differs": {"name": "D", "durable_name": "C", "ack_policy": "explicit"},
    "durable_differs": {"durable_name": "D", "ack_policy": "explicit"},
    "all_fields": DURABLE | {
        "description": "all", "deliver_policy": "by_start_sequence", "opt_start_seq": 2,
        "ack_wait": 5 * SECOND, "max_deliver": 4, "backoff": [SECOND, 2 * SECOND],
        "filter_subject": "s.a", "replay_policy": "original", "sample_freq": "50%",
        "max_waiting": 10, "max_ack_pending": 20, "headers_only": True, "max_batch": 7,
        "max_expires": 10 * SECOND, "max_bytes": 1000, "inactive_threshold": 60 * SECOND,
        "num_replicas": 1, "mem_storage": True, "metadata": {"a": "b"},
    },
    "push_all_fields": PUSH | {
        "flow_control": True, "idle_heartbeat": SECOND, "deliver_group": "q",
        "rate_limit_bps": 100000, "filter_subjects": ["s.a", "s.b"],
    },
    "push": PUSH,
    "push_wildcard": PUSH | {"deliver_subject": "d.*"},
    "push_invalid": PUSH | {"deliver_subject": "d..x"},
    "push_cycle": PUSH | {"deliver_subject": "s.x"},
    "push_max_waiting": PUSH | {"max_waiting": 10},
    "push_flow_without_heartbeat": PUSH | {"flow_control": True},
    "push_small_heartbeat": PUSH | {"idle_heartbeat": 1000},
    "push_ack_none_max_pending": PUSH | {"ack_policy": "none", "max_ack_pending": 5},
    "push_max_batch": PUSH | {"max_batch": 5},
    "pull_heartbeat": DURABLE | {"idle_heartbeat": SECOND},
    "pull_flow_control": DURABLE | {"flow_control": True},
    "pull_rate_limit": DURABLE | {"rate_limit_bps": 1000},
    "pull_deliver_group": DURABLE | {"deliver_group": "q"},
    "pull_ack_none": {"durable_name": "C", "ack_policy": "none"},
    "pull_ack_all": {"durable_name": "C", "ack_policy": "all"},
    "bad_ack_policy": {"durable_name": "C", "ack_policy": "zzz"},
    "bad_deliver_policy": DURABLE | {"deliver_policy": "zzz"},
    "bad_replay": DURABLE | {"replay_policy": "zzz"},
    "start_seq_without_policy": DURABLE | {"opt_start_seq": 3},
    "start_seq_missing": DURABLE | {"deliver_policy": "by_start_sequence"},
    "start_time_missing": DURABLE | {"deliver_policy": "by_start_time"},
    "start_time_without_policy": DURABLE | {"opt_start_time": "2020-01-01T00:00:00Z"},
    "start_both": DURABLE | {"deliver_policy": "by_start_sequence", "opt_start_seq": 3,
                             "opt_start_time": "2020-01-01T00:00:00Z"},
    "start_time": DURABLE | {"deliver_policy": "by_start_time",
                             "opt_start_time": "2020-01-01T00:00:00Z"},
    "start_time_bad": DURABLE | {"deliver_policy": "by_start_time", "opt_start_time": "soon"},
    "start_seq": DURABLE | {"deliver_policy": "by_start_sequence", "opt_start_seq": 3},
    "start_seq_far": DURABLE | {"deliver_policy": "by_start_sequence", "opt_start_seq": 99},
    "last": DURABLE | {"deliver_policy": "last"},
    "last_filtered": DURABLE | {"deliver_policy": "last", "filter_subject": "s.a"},
    "new": DURABLE | {"deliver_policy": "new"},
    "last_per_subject": DURABLE | {"deliver_policy": "last_per_subject",
                                   "filter_subject": "s.>"},
    "last_per_subject_unfiltered": DURABLE | {"deliver_policy": "last_per_subject"},
    "filter": DURABLE | {"filter_subject": "s.a"},
    "filter_outside": DURABLE | {"filter_subject": "zzz"},
    "filter_invalid": DURABLE | {"filter_subject": "s..a"},
    "filter_wildcard": DURABLE | {"filter_subject": "s.*"},
    "filter_all": DURABLE | {"filter_subject": ">"},
    "filters": DURABLE | {"filter_subjects": ["s.a", "s.b"]},
    "filters_one": DURABLE | {"filter_subjects": ["s.a"]},
    "filters_none": DURABLE | {"filter_subjects": []},
    "filters_and_filter": DURABLE | {"filter_subject": "s.a", "filter_subjects": ["s.b"]},
    "filters_overlap": DURABLE | {"filter_subjects": ["s.*", "s.a"]},
    "filters_duplicate": DURABLE | {"filter_subjects": ["s.a", "s.a"]},
    "filters_empty_string": DURABLE | {"filter_subjects": ["s.a", ""]},
    "filters_outside": DURABLE | {"filter_subjects": ["s.a", "zzz"]},
    "ack_wait_negative": DURABLE | {"ack_wait": -1},
    "ack_wait_zero": DURABLE | {"ack_wait": 0},
    "backoff": DURABLE | {"backoff": [SECOND, 2 * SECOND], "max_deliver": 5},
    "backoff_unlimited": DURABLE | {"backoff": [SECOND, 2 * SECOND]},
    "backoff_too_long": DURABLE | {"backoff": [SECOND] * 4, "max_deliver": 3},
    "backoff_negative": DURABLE | {"backoff": [-1], "max_deliver": 5},
    "max_deliver_zero": DURABLE | {"max_deliver": 0},
    "max_deliver_negative": DURABLE | {"max_deliver": -5},
    "max_ack_pending_negative": DURABLE | {"max_ack_pending": -1},
    "max_ack_pending_very_negative": DURABLE | {"max_ack_pending": -5},
    "max_waiting_negative": DURABLE | {"max_waiting": -1},
    "max_batch_negative": DURABLE | {"max_batch": -1},
    "max_expires_small": DURABLE | {"max_expires": 10},
    "max_bytes_negative": DURABLE | {"max_bytes": -1},
    "sample_bad": DURABLE | {"sample_freq": "lots"},
    "sample_number": DURABLE | {"sample_freq": "30"},
    "sample_over": DURABLE | {"sample_freq": "200%"},
    "replicas_3": DURABLE | {"num_replicas": 3},
    "replicas_negative": DURABLE | {"num_replicas": -1},
    "replicas_1": DURABLE | {"num_replicas": 1},
    "long_description": DURABLE | {"description": "d" * 4097},
    "big_metadata": DURABLE | {"metadata": {"k": "v" * 131072}},
    "direct": DURABLE | {"direct": True},
    "sourcing": DURABLE | {"sourcing": True},
    "sourcing_push": PUSH | {"sourcing": True},
    "unknown_field": DURABLE | {"zzz": 1},
    "wrong_type": DURABLE | {"max_deliver": "lots"},
    "paused": DURABLE | {"pause_until": "2120-01-01T00:00:00Z"},
    "priority_without_group": DURABLE | {"priority_policy": "overflow"},
    "group_without_priority": DURABLE | {"priority_groups": ["A"]},
    "priority_empty_group": DURABLE | {"priority_policy": "overflow", "priority_groups": [""]},
    "priority_bad_group": DURABLE | {"priority_policy": "overflow",
                                     "priority_groups": ["a b"]},
    "priority_timeout_alone": DURABLE | {"priority_timeout": SECOND},
    "inactive_negative": DURABLE | {"inactive_threshold": -1},
    "filters_null": DURABLE | {"filter_subjects": [None]},
    "backoff_null": DURABLE | {"backoff": [None]},
    "push_with_group": PUSH | {"priority_groups": ["a"]},
    "push_with_policy": PUSH | {"priority_policy": "overflow"},
    "push_with_both": PUSH | {"priority_policy": "overflow", "priority_groups": ["a"]},
    "ack_flow_control_pull": DURABLE | {"ack_policy": "flow_control"},
}  # fmt: skip


def _create(config: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        stream(at, "s.a", "s.b", "s.a", "s.c")
        at.api("CONSUMER.CREATE.S.C", request(config))
        at.api("CONSUMER.INFO.S.C")

    return run


for _key, _config in CREATE.items():
    add(f"consumers.create_{_key}", _create(_config))

FORMS: dict[str, tuple[str, Any]] = {
    "ephemeral": ("CONSUMER.CREATE.S", request({"ack_policy": "explicit"})),
    "ephemeral_with_durable": ("CONSUMER.CREATE.S", request(DURABLE)),
    "ephemeral_push": ("CONSUMER.CREATE.S", request({"deliver_subject": "d"})),
    "named": ("CONSUMER.CREATE.S.C", request({"name": "C", "ack_policy": "explicit"})),
    "named_no_name": ("CONSUMER.CREATE.S.C", request({"ack_policy": "explicit"})),
    "filter_in_subject": ("CONSUMER.CREATE.S.C.s.a", request(DURABLE | {"filter_subject": "s.a"})),
    "filter_differs": ("CONSUMER.CREATE.S.C.s.a", request(DURABLE | {"filter_subject": "s.b"})),
    "filter_only_in_subject": ("CONSUMER.CREATE.S.C.s.a", request(DURABLE)),
    "filters_with_subject": (
        "CONSUMER.CREATE.S.C.s.a", request(DURABLE | {"filter_subjects": ["s.a", "s.b"]}),
    ),
    "durable_form": ("CONSUMER.DURABLE.CREATE.S.C", request(DURABLE)),
    "durable_form_without": ("CONSUMER.DURABLE.CREATE.S.C", request({"ack_policy": "explicit"})),
    "durable_form_differs": (
        "CONSUMER.DURABLE.CREATE.S.C", request({"durable_name": "D", "ack_policy": "explicit"}),
    ),
    "durable_form_named": ("CONSUMER.DURABLE.CREATE.S.C", request(DURABLE | {"name": "D"})),
    "other_stream_name": ("CONSUMER.CREATE.S.C", {"stream_name": "T", "config": DURABLE}),
    "no_stream_name": ("CONSUMER.CREATE.S.C", {"config": DURABLE}),
    "no_config": ("CONSUMER.CREATE.S.C", {"stream_name": "S"}),
    "missing_stream": ("CONSUMER.CREATE.T.C", {"stream_name": "T", "config": DURABLE}),
    "garbage": ("CONSUMER.CREATE.S.C", b"garbage"),
    "empty": ("CONSUMER.CREATE.S.C", b""),
    "slash_name": ("CONSUMER.CREATE.S.a/b", request({"durable_name": "a/b"})),
    "long_name": ("CONSUMER.CREATE.S." + "c" * 256, request({"durable_name": "c" * 256})),
    "dotted_durable": ("CONSUMER.CREATE.S", request({"name": "a.b"})),
    "action_create": ("CONSUMER.CREATE.S.C", request(DURABLE, action="create")),
    "action_update_missing": ("CONSUMER.CREATE.S.C", request(DURABLE, action="update")),
    "action_bad": ("CONSUMER.CREATE.S.C", request(DURABLE, action="zzz")),
    "pedantic": ("CONSUMER.CREATE.S.C", request(DURABLE, pedantic=True)),
}  # fmt: skip


def _form(subject: str, body: Any) -> Any:
    def run(at: Recorder) -> None:
        stream(at, "s.a", "s.b")
        at.api(subject, body)
        at.api("CONSUMER.NAMES.S")

    return run


for _key, (_subject, _body) in FORMS.items():
    add(f"consumers.form_{_key}", _form(_subject, _body))

UPDATE: dict[str, dict[str, Any]] = {
    "same": {},
    "description": {"description": "new"},
    "ack_wait": {"ack_wait": SECOND},
    "max_deliver": {"max_deliver": 3},
    "filter": {"filter_subject": "s.b"},
    "filters": {"filter_subjects": ["s.b", "s.a"]},
    "max_ack_pending": {"max_ack_pending": 5},
    "headers_only": {"headers_only": True},
    "deliver_policy": {"deliver_policy": "new"},
    "ack_policy": {"ack_policy": "all"},
    "replay": {"replay_policy": "original"},
    "max_waiting": {"max_waiting": 3},
    "to_push": {"deliver_subject": "d.x"},
    "start_seq": {"deliver_policy": "by_start_sequence", "opt_start_seq": 2},
    "sample": {"sample_freq": "10"},
    "inactive": {"inactive_threshold": SECOND * 50},
    "mem_storage": {"mem_storage": True},
    "metadata": {"metadata": {"x": "y"}},
    "backoff": {"backoff": [SECOND], "max_deliver": 3},
    "max_batch": {"max_batch": 5},
    "pause": {"pause_until": "2120-01-01T00:00:00Z"},
}


def _update(change: dict[str, Any]) -> Any:
    def run(at: Recorder) -> None:
        stream(at, "s.a", "s.b", "s.a", "s.c")
        at.api("CONSUMER.CREATE.S.C", request(DURABLE))
        at.pull("S", "C", {"batch": 1}, count=1)
        at.api("CONSUMER.CREATE.S.C", request(DURABLE | change, action="update"))
        at.api("CONSUMER.INFO.S.C")

    return run


for _key, _change in UPDATE.items():
    add(f"consumers.update_{_key}", _update(_change))


@scenario
def create_again(at: Recorder) -> None:
    stream(at)
    at.api("CONSUMER.CREATE.S.C", request(DURABLE, action="create"))
    at.api("CONSUMER.CREATE.S.C", request(DURABLE, action="create"))
    at.api("CONSUMER.CREATE.S.C", request(DURABLE | {"max_deliver": 5}, action="create"))
    at.api("CONSUMER.CREATE.S.C", request(DURABLE | {"max_deliver": 5}))
    at.api("CONSUMER.CREATE.S.C", request(PUSH))


@scenario
def update_by_name(at: Recorder) -> None:
    """A durable consumer is changed by a request that does not call it durable."""
    stream(at)
    at.api("CONSUMER.CREATE.S.C", request(DURABLE))
    at.api("CONSUMER.CREATE.S.C", request({"name": "C", "ack_policy": "explicit"}))
    named = {"name": "C", "ack_policy": "explicit", "description": "new"}
    at.api("CONSUMER.CREATE.S.C", request(named, action="update"))
    at.api("CONSUMER.INFO.S.C")


@scenario
def update_push(at: Recorder) -> None:
    stream(at, "s.a")
    at.api("CONSUMER.CREATE.S.C", request(PUSH | {"idle_heartbeat": SECOND}))
    at.api("CONSUMER.CREATE.S.C", request(PUSH | {"idle_heartbeat": 2 * SECOND}))
    at.api("CONSUMER.CREATE.S.C", request(PUSH | {"idle_heartbeat": SECOND, "flow_control": True}))
    at.api("CONSUMER.CREATE.S.C", request(DURABLE))
    moved = PUSH | {"idle_heartbeat": SECOND, "deliver_subject": "d.y"}
    at.api("CONSUMER.CREATE.S.C", request(moved))


@scenario
def update_push_in_use(at: Recorder) -> None:
    stream(at)
    at.api("CONSUMER.CREATE.S.C", request(PUSH))
    wire = at.connect()
    wire.subscribe("d.x")
    wire.fence()
    at.wait_until(lambda: at.api("CONSUMER.INFO.S.C", is_quiet=True).get("push_bound", False))
    at.api("CONSUMER.INFO.S.C")
    at.api("CONSUMER.CREATE.S.C", request(PUSH | {"deliver_subject": "d.y"}))


@scenario
def names_list_delete(at: Recorder) -> None:
    stream(at)
    at.api("CONSUMER.NAMES.S")
    at.api("CONSUMER.LIST.S")
    for name in ("c", "a", "b"):
        at.api(f"CONSUMER.CREATE.S.{name}", request({"durable_name": name}), is_quiet=True)
    at.api("CONSUMER.NAMES.S")
    at.api("CONSUMER.NAMES.S", {"offset": 1})
    at.api("CONSUMER.NAMES.S", {"offset": 9})
    at.api("CONSUMER.LIST.S")
    at.api("CONSUMER.LIST.S", {"offset": 2})
    at.api("CONSUMER.LIST.S", {"zzz": 2})
    at.api("CONSUMER.DELETE.S.a", {"x": 1})
    at.api("CONSUMER.DELETE.S.a")
    at.api("CONSUMER.DELETE.S.a")
    at.api("CONSUMER.INFO.S.a")
    at.api("CONSUMER.INFO.S.b", {"x": 1})
    at.api("CONSUMER.NAMES.S")
    at.api("CONSUMER.NAMES.T")
    at.api("CONSUMER.LIST.T")
    at.api("CONSUMER.INFO.T.a")
    at.api("CONSUMER.DELETE.T.a")
    at.api("STREAM.INFO.S")


@scenario
def workqueue_rules(at: Recorder) -> None:
    stream(at, retention="workqueue")
    at.api("CONSUMER.CREATE.S.A", request({"durable_name": "A", "ack_policy": "none"}))
    at.api("CONSUMER.CREATE.S.A", request({"durable_name": "A", "ack_policy": "all"}))
    new = {"durable_name": "A", "ack_policy": "explicit", "deliver_policy": "new"}
    at.api("CONSUMER.CREATE.S.A", request(new))
    at.api("CONSUMER.CREATE.S.A", request({"durable_name": "A", "ack_policy": "explicit"}))
    at.api("CONSUMER.CREATE.S.B", request({"durable_name": "B", "ack_policy": "explicit"}))
    filtered = {"durable_name": "B", "ack_policy": "explicit", "filter_subject": "s.a"}
    at.api("CONSUMER.CREATE.S.B", request(filtered))
    at.api("CONSUMER.DELETE.S.A")
    at.api("CONSUMER.CREATE.S.B", request(filtered))
    at.api("CONSUMER.CREATE.S.D", request(filtered | {"durable_name": "D"}))
    other = filtered | {"durable_name": "D", "filter_subject": "s.b"}
    at.api("CONSUMER.CREATE.S.D", request(other))
    at.api("CONSUMER.CREATE.S.E", request({"durable_name": "E", "ack_policy": "explicit"}))


@scenario
def max_consumers(at: Recorder) -> None:
    stream(at, max_consumers=1)
    at.api("CONSUMER.CREATE.S.A", request({"durable_name": "A"}))
    at.api("CONSUMER.CREATE.S.B", request({"durable_name": "B"}))
    at.api("CONSUMER.CREATE.S.A", request({"durable_name": "A"}))


@scenario
def stream_consumer_limits(at: Recorder) -> None:
    limits = {"inactive_threshold": 10 * SECOND, "max_ack_pending": 10}
    stream(at, consumer_limits=limits)
    at.api("CONSUMER.CREATE.S.A", request({"durable_name": "A", "ack_policy": "explicit"}))
    over = {"durable_name": "B", "ack_policy": "explicit", "max_ack_pending": 11}
    at.api("CONSUMER.CREATE.S.B", request(over))
    long = {"durable_name": "B", "ack_policy": "explicit", "inactive_threshold": 11 * SECOND}
    at.api("CONSUMER.CREATE.S.B", request(long))
    less = {"name": "S", "subjects": ["s.>"], "consumer_limits": {"max_ack_pending": 5}}
    at.api("STREAM.UPDATE.S", less)


@scenario
def limits_without_limit(at: Recorder) -> None:
    stream(at, consumer_limits={"max_ack_pending": -1})
    for more in ({}, {"ack_policy": "none"}, {"max_ack_pending": 7}):
        for is_pedantic in (False, True):
            config = DURABLE | more
            at.api("CONSUMER.CREATE.S.C", request(config, pedantic=is_pedantic))
            at.api("CONSUMER.DELETE.S.C", is_quiet=True)


@scenario
def start_time_in_another_zone(at: Recorder) -> None:
    """The same moment is the same start, however it is written."""
    stream(at, "s.a")
    config = DURABLE | {"deliver_policy": "by_start_time"}
    for text in ("2024-03-05T09:30:00.5Z", "2024-03-05T10:30:00.500+01:00", "2024-03-05T09:30:01Z"):
        for action in ("", "update"):
            body = request(config | {"opt_start_time": text}, action=action)
            at.api("CONSUMER.CREATE.S.C", body)


@scenario
def ephemeral_goes(at: Recorder) -> None:
    stream(at)
    config = {"name": "E", "ack_policy": "explicit", "inactive_threshold": SECOND // 5}
    at.api("CONSUMER.CREATE.S.E", request(config))
    at.wait_until(lambda: "error" in at.api("CONSUMER.INFO.S.E", is_quiet=True))
    at.api("CONSUMER.INFO.S.E")
    at.api("CONSUMER.NAMES.S")


@scenario
def start_positions(at: Recorder) -> None:
    """What each deliver policy counts as pending, on a stream with holes."""
    stream(at, "s.a", "s.b", "s.a", "s.b", "s.c", "s.a")
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})
    at.api("STREAM.MSG.DELETE.S", {"seq": 4})
    for policy in ("all", "last", "new"):
        for subject in ("", "s.a", "s.zzz", "s.*"):
            config = DURABLE | {"deliver_policy": policy, "filter_subject": subject}
            at.api("CONSUMER.CREATE.S.C", request(config))
            at.api("CONSUMER.DELETE.S.C", is_quiet=True)
    for seq in (1, 2, 4, 6, 7, 20):
        config = DURABLE | {"deliver_policy": "by_start_sequence", "opt_start_seq": seq}
        at.api("CONSUMER.CREATE.S.C", request(config))
        at.pull("S", "C", {"batch": 9, "no_wait": True})
        at.api("CONSUMER.DELETE.S.C", is_quiet=True)
    config = DURABLE | {"deliver_policy": "last_per_subject", "filter_subject": "s.*"}
    at.api("CONSUMER.CREATE.S.C", request(config))
    at.pull("S", "C", {"batch": 9, "no_wait": True})


@scenario
def pause_and_resume(at: Recorder) -> None:
    stream(at, "s.a")
    at.api("CONSUMER.CREATE.S.C", request(DURABLE))
    at.api("CONSUMER.PAUSE.S.C", {"pause_until": "2120-01-01T00:00:00Z"})
    at.api("CONSUMER.INFO.S.C")
    at.pull("S", "C", {"batch": 1, "expires": SECOND // 10})
    at.api("CONSUMER.PAUSE.S.C", {})
    at.pull("S", "C", {"batch": 1, "expires": SECOND}, count=1)
    at.api("CONSUMER.PAUSE.S.zzz", {})


@scenario
def update_on_workqueue(at: Recorder) -> None:
    """Whether it is there, and what can't be changed, comes before what a work queue asks for."""
    stream(at, retention="workqueue")
    wrong = {"durable_name": "C", "ack_policy": "all", "deliver_policy": "new"}
    at.api("CONSUMER.CREATE.S.C", request(wrong, action="update"))
    at.api("CONSUMER.CREATE.S.C", request(wrong))
    at.api("CONSUMER.CREATE.S.C", request(DURABLE))
    at.api("CONSUMER.CREATE.S.C", request(wrong, action="create"))
    at.api("CONSUMER.CREATE.S.C", request(wrong))
    at.api("CONSUMER.CREATE.S.C", request(wrong | {"ack_policy": "none"}))
    at.api("CONSUMER.CREATE.S.C", request(wrong | {"deliver_policy": "all"}))


@scenario
def order_of_checks(at: Recorder) -> None:
    """Two things wrong with one config: which of them is said."""
    below = dict.fromkeys(
        ("max_deliver", "max_waiting", "max_ack_pending", "max_batch", "max_expires", "max_bytes",
         "idle_heartbeat", "inactive_threshold", "priority_timeout", "ack_wait", "num_replicas"),
        -2,
    )  # fmt: skip
    wrong = below | {
        "backoff": [-1],
        "description": "d" * 5000,
        "sample_freq": "%",
        "metadata": {"k": "v" * 131072},
        "filter_subject": "a..b",
        "opt_start_seq": 1,
        "priority_groups": [""],
        "priority_policy": "overflow",
        "deliver_subject": "a b",
    }
    stream(at)
    for first, second in combinations(wrong, 2):
        config = DURABLE | {first: wrong[first], second: wrong[second]}
        at.api("CONSUMER.CREATE.S.C", request(config, pedantic=True))
        if not {first, second} <= set(below):
            at.api("CONSUMER.CREATE.S.C", request(config, action="create"))
            at.api("CONSUMER.DELETE.S.C", is_quiet=True)


@scenario
def reset_and_unpin_with_odd_bodies(at: Recorder) -> None:
    stream(at, "s.a", "s.b")
    at.api("CONSUMER.CREATE.S.C", request(DURABLE), is_quiet=True)
    for body in (b"", b" ", b"{", b"{}", b"{} x", b"{}{}", b"null", b"[]", b'{"SEQ":1,"zzz":2}'):
        at.api("CONSUMER.RESET.S.C", body)
        at.api("CONSUMER.UNPIN.S.C", body)
        at.api("CONSUMER.INFO.S.C", body)
    at.api("CONSUMER.DELETE.S.C", b" ")
    at.api("STREAM.DELETE.S", b" ")


@scenario
def pedantic_about_the_streams_limits(at: Recorder) -> None:
    """What a stream's limits would fill in has to be said."""
    for limits in ({"max_ack_pending": 10}, {"inactive_threshold": 60 * SECOND}):
        stream(at, consumer_limits=limits)
        for given in ({}, limits, {"ack_policy": "none"}):
            at.api("CONSUMER.CREATE.S.C", request(DURABLE | given, pedantic=True))
        at.api("STREAM.DELETE.S", is_quiet=True)


def made(at: Recorder, name: str, action: str, **config: Any) -> None:
    """Ask for a consumer of S; record what became of it."""
    body = {"stream_name": "S", "config": {"name": name} | config, "action": action}
    at.api(f"CONSUMER.CREATE.S.{name}", body)


@scenario
def limits_before_existence(at: Recorder) -> None:
    """The stream's limits are looked at first, whatever the action, whether it is there or not."""
    limits = {"max_ack_pending": 10, "inactive_threshold": 60 * SECOND}
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "consumer_limits": limits})
    plain = {"durable_name": "D", "ack_policy": "explicit"}
    made(at, "D", "create", **plain)
    for action in ("create", "", "update", "zzz"):
        for name in ("D", "X"):
            durable = plain | {"durable_name": name}
            made(at, name, action, **durable, max_ack_pending=11)
            made(at, name, action, **durable, inactive_threshold=61 * SECOND)
            made(at, name, action, **durable, inactive_threshold=61 * SECOND, max_ack_pending=11)
            made(at, name, action, **durable, max_ack_pending=-1)
            made(at, name, action, **durable, max_ack_pending=5)
            made(at, name, action, **durable, description="other", max_ack_pending=11)
            made(at, name, action, **durable)
        at.api("CONSUMER.DELETE.S.X", is_quiet=True)


@scenario
def named_ephemeral_twice(at: Recorder) -> None:
    """A threshold that is not given is compared with the one that was filled in."""
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    for name, first, second in (
        ("A", {}, {}),
        ("B", {"inactive_threshold": 5 * SECOND}, {}),
        ("C", {}, {"inactive_threshold": 5 * SECOND}),
        ("E", {"inactive_threshold": 9 * SECOND}, {}),
        ("F", {"inactive_threshold": 9 * SECOND}, {"inactive_threshold": 9 * SECOND}),
        ("G", {}, {"description": "other"}),
    ):
        made(at, name, "create", **first)
        made(at, name, "create", **second)
        made(at, name, "", **second)
        made(at, name, "update", **second)
        made(at, name, "create", **second)
    made(at, "D", "create", durable_name="D")
    made(at, "D", "create")
    made(at, "D", "create", durable_name="D")
    limited = {"consumer_limits": {"inactive_threshold": 60 * SECOND}}
    at.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"]} | limited)
    made(at, "H", "create")
    made(at, "H", "create")
    made(at, "A", "create")
