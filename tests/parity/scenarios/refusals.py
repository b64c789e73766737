"""Refusals and statuses that a request for something else does not meet."""

from __future__ import annotations

from typing import Any

from tests.parity.recorder import Recorder
from tests.parity.registry import add, scenario

SECOND = 1_000_000_000
STREAM = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
PULL = {"durable_name": "C", "ack_policy": "explicit"}
FLOW = {"durable_name": "C", "ack_policy": "flow_control", "deliver_subject": "d.c"}


def made(at: Recorder, config: dict[str, Any], **more: Any) -> None:
    at.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config} | more)


FLOW_CONTROL: dict[str, dict[str, Any]] = {
    "alone": {},
    "whole": {"flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 10},
    "other_heartbeat": {"flow_control": True, "idle_heartbeat": 2 * SECOND},
    "other_heartbeat_unlimited": {
        "flow_control": True,
        "idle_heartbeat": 2 * SECOND,
        "max_ack_pending": -1,
    },
    "small_heartbeat": {"flow_control": True, "idle_heartbeat": 1000},
    "unlimited": {"max_ack_pending": -1},
    "ack_wait": {"ack_wait": SECOND},
    "backoff": {"backoff": [SECOND]},
    "max_deliver": {"max_deliver": 3},
    "wildcard": {"max_deliver": 3, "deliver_subject": "d.*"},
    "cycle": {"max_deliver": 3, "deliver_subject": "s.x"},
    "description": {"max_deliver": 3, "description": "d" * 4097},
    "replicas": {"max_deliver": 3, "num_replicas": 3},
    "long_backoff": {"max_deliver": 3, "backoff": [SECOND] * 4},
    "max_waiting": {"max_deliver": 3, "max_waiting": 5},
    "filters": {"max_deliver": 3, "filter_subject": "s.a", "filter_subjects": ["s.a"]},
    "sampling": {"max_deliver": 3, "sample_freq": "lots"},
    "pull_with_heartbeat": {"deliver_subject": "", "idle_heartbeat": SECOND},
    "pull_with_rate": {"deliver_subject": "", "rate_limit_bps": 1000},
    "direct": {"max_deliver": 3, "direct": True},
}


def _acks_by_flow_control(fields: dict[str, Any], *, is_pedantic: bool) -> Any:
    def run(at: Recorder) -> None:
        at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
        made(at, FLOW | fields, **({"pedantic": True} if is_pedantic else {}))

    return run


for _name, _fields in FLOW_CONTROL.items():
    for _is_pedantic in (False, True):
        _kind = "pedantic_" if _is_pedantic else ""
        add(
            f"refusals.acks_by_flow_control_{_kind}{_name}",
            _acks_by_flow_control(_fields, is_pedantic=_is_pedantic),
        )


@scenario
def resets(at: Recorder) -> None:
    """To a sequence that is there, to some that are not, and of consumers that begin elsewhere."""
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    at.fill("s.a", "s.b", "s.a")
    made(at, PULL)
    at.pull("S", "C", {"batch": 2}, count=2)
    for body in ({"seq": 2}, {"seq": 0}, {"seq": 9}, {}, None):
        at.api("CONSUMER.RESET.S.C", body)
    late = {"ack_policy": "explicit", "deliver_policy": "by_start_sequence", "opt_start_seq": 2}
    at.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": {"durable_name": "D"} | late})
    for body in ({"seq": 1}, {"seq": 3}):
        at.api("CONSUMER.RESET.S.D", body)
    at.api("CONSUMER.CREATE.S.E", {"stream_name": "S", "config": {"durable_name": "E"}})
    at.api("CONSUMER.RESET.S.E", {"seq": 2})


@scenario
def another_stream_of_that_name(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    body = {"stream_name": "S", "config": PULL}
    for identity in ("AAAAAAAA", ""):
        at.api("CONSUMER.CREATE.S.C", body, headers={"Nats-Stream-Identity": identity})
    at.api("CONSUMER.RESET.S.C", {"seq": 1}, headers={"Nats-Stream-Identity": "AAAAAAAA"})


@scenario
def direct_consumers(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    push = {"deliver_subject": "d.c", "direct": True}
    made(at, push | {"durable_name": "C"})
    made(at, push | {"durable_name": "C", "ack_policy": "none"})


@scenario
def snapshots_and_restores(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    for subject in ("", "a.*", "a..b", "a.>"):
        at.api("STREAM.SNAPSHOT.S", {"deliver_subject": subject})
    at.api("STREAM.SNAPSHOT.T", {"deliver_subject": "a"})
    at.api("STREAM.RESTORE.S", {"config": STREAM, "state": {}})
    at.api("STREAM.RESTORE.T", {"config": STREAM, "state": {}})
    at.api("STREAM.RESTORE.T")
    at.api("STREAM.RESTORE.T", {"config": {"name": "T", "subjects": ["s.a"]}})
    at.api("STREAM.RESTORE.T", {"config": {"name": "T", "zzz": 1}})
    at.api("STREAM.RESTORE.T", {"config": {"name": "T"}, "state": {"zzz": 1}})


@scenario
def restores_that_can_not_succeed(at: Recorder) -> None:
    """By what the request itself says of the archive."""
    at.api("STREAM.RESTORE.R", {"config": {"name": "R", "num_replicas": 3}})
    at.api("STREAM.RESTORE.B", {"config": {"name": "B"}, "state": {"bytes": 1 << 60}})


@scenario
def too_many_results(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    for number in range(1030):
        at.wire.publish(f"s.{number}", b"x")
    at.wire.fence()
    at.wait_until(lambda: at.wire.api("STREAM.INFO.S")["state"]["messages"] == 1030)
    at.direct("S", {"multi_last": ["s.>"]})


@scenario
def a_batch_that_bytes_outlast(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    at.fill("s.a", "s.b", "s.c")
    made(at, PULL)
    at.pull("S", "C", {"batch": 2, "max_bytes": 100_000, "expires": 2 * SECOND})


@scenario
def no_wait_behind_others(at: Recorder) -> None:
    """What is there is claimed by requests that wait: for one more message than there is."""
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    made(at, PULL | {"max_ack_pending": 1})
    at.fill("s.a", "s.b")
    other = at.connect()
    other.subscribe("first")
    waiting = b'{"batch": 5, "expires": 20000000000}'
    other.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", waiting, reply="first")
    other.collect(count=1, within_s=4)
    at.pull("S", "C", {"batch": 1, "no_wait": True})


@scenario
def a_pin_that_is_another(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", STREAM, is_quiet=True)
    at.fill("s.a", "s.b")
    pinned = {"priority_policy": "pinned_client", "priority_groups": ["A"]}
    made(at, PULL | pinned | {"priority_timeout": 60 * SECOND})
    at.wire.api("STREAM.INFO.S")
    at.pull("S", "C", {"batch": 1, "group": "A", "id": "none", "expires": SECOND})
