"""Account information, unknown requests, monitoring."""

from __future__ import annotations

import json
from typing import Any

from tests.parity.recorder import ANSWER_S, Recorder
from tests.parity.registry import add, scenario


@scenario
def info(at: Recorder) -> None:
    def kept(seen: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in seen.items() if key != "api"}

    at.note("empty", kept(at.api("INFO", is_quiet=True)))
    config = {"name": "S", "subjects": ["s"]}
    at.api("STREAM.CREATE.S", config, is_quiet=True)
    at.fill("s", "s")
    at.api(
        "CONSUMER.CREATE.S.C", {"stream_name": "S", "config": {"durable_name": "C"}}, is_quiet=True
    )
    at.note("some", kept(at.api("INFO", is_quiet=True)))
    at.note("api", sorted(at.api("INFO", is_quiet=True).get("api", {})))
    at.api("INFO", {"x": 1}, is_quiet=True)


UNKNOWN = [
    "ZZZ", "STREAM.ZZZ.S", "STREAM.TEMPLATE.NAMES", "STREAM.INFO", "STREAM.INFO.a.b",
    "CONSUMER.ZZZ.S.C",
]  # fmt: skip


def _unknown(subject: str) -> Any:
    def run(at: Recorder) -> None:
        frames = at.wire.ask(f"$JS.API.{subject}", b"", within_s=0.3)
        at.note_frames(subject, frames)

    return run


for _subject in UNKNOWN:
    add(f"account.unknown_{_subject}", _unknown(_subject))


@scenario
def requests_without_reply(at: Recorder) -> None:
    """They are carried out all the same."""
    at.wire.publish("$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s"]}')
    at.wait_until(lambda: bool(at.api("STREAM.NAMES", is_quiet=True)["streams"]))
    at.api("STREAM.NAMES")


@scenario
def health(at: Recorder) -> None:
    at.http("/healthz")
    at.http("/healthz?js-enabled-only=true")
    at.http("/healthz?js-server-only=true")


def _shape(value: Any) -> Any:
    """Types only: what clients' decoders rely on."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shape(value[0])] if value else []
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


@scenario
def jsz(at: Recorder) -> None:
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}, is_quiet=True)
    at.fill("s")
    at.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": {"durable_name": "C"}})

    def kept(body: Any) -> Any:
        keys = ("streams", "consumers", "messages", "account_details", "config", "disabled")
        return _shape({key: body.get(key) for key in keys})

    at.http("/jsz", kept)
    at.http("/jsz?accounts=true&streams=true&consumers=true&config=true", kept)


@scenario
def varz_and_connz(at: Recorder) -> None:
    wanted = ("server_id", "server_name", "version", "proto", "host", "port", "max_connections",
              "ping_interval", "ping_max", "max_payload", "max_control_line", "max_pending",
              "connections", "total_connections", "subscriptions", "in_msgs", "out_msgs",
              "in_bytes", "out_bytes", "slow_consumers", "start", "now", "uptime", "mem", "cores",
              "cpu", "auth_required", "http_host", "http_port", "jetstream")  # fmt: skip

    def varz(body: Any) -> Any:
        return {key: _shape(body[key]) if key in body else "absent" for key in wanted[:-1]}

    def connz(body: Any) -> Any:
        return _shape({key: body.get(key) for key in ("num_connections", "total", "limit")})

    at.http("/varz", varz)
    at.http("/connz", connz)
    at.http("/connz?limit=zzz")
    at.http("/nothing", lambda _: "")


def _pinged(at: Recorder, name: str, body: bytes = b"") -> None:
    """What is told of the account: counters, times and what only one of the two shows are left
    out."""
    told = at.wire.ask(f"$SYS.REQ.ACCOUNT.PING.{name}", body, within_s=2)[0].json()
    data = told.get("data") or {}
    for one in data.get("connections", []):
        for field in ("cid", "port", "rtt", "pending_bytes", "in_bytes", "out_bytes", "out_msgs"):
            one.pop(field, None)
    for one in data.get("account_statz", []):
        for field in ("num_subscriptions", "total_conns"):
            one.pop(field)
        one["sent"].update(msgs=0, bytes=0)
        one["received"].update(msgs=0, bytes=0)
    at.note(f"{name} {body.decode()}", {"data": data, "error": told.get("error")})


@scenario
def pings(at: Recorder) -> None:
    """The two that an ordinary account may ask every server; the rest is for the system account."""
    _pinged(at, "CONNZ")
    _pinged(at, "CONNZ", b'{"subscriptions":true,"limit":1,"sort":"subs"}')
    _pinged(at, "CONNZ", b'{"sort":"zz"}')
    _pinged(at, "STATZ")
    _pinged(at, "STATZ", b'{"accounts":["$G","X"]}')
    server = at.wire.info["server_id"]
    for subject in ("SERVER.PING", "SERVER.PING.VARZ", f"SERVER.{server}.VARZ", "ACCOUNT.$G.INFO"):
        frames = at.wire.ask(f"$SYS.REQ.{subject}", within_s=1)
        at.note(subject, [frame.status for frame in frames])


@scenario
def what_is_audited(at: Recorder) -> None:
    """Every request that is answered as one of the API, but no message that was found."""
    listener = at.connect()
    listener.subscribe("$JS.EVENT.ADVISORY.API")
    listener.fence()
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
    at.fill("s", "s")
    config = {"durable_name": "C", "ack_policy": "explicit"}
    at.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    at.api("STREAM.MSG.GET.S", {"seq": 1})
    at.direct("S", {"seq": 1})
    at.pull("S", "C", {"batch": 1}, count=1)
    at.api("STREAM.MSG.GET.S", {"seq": 9})
    at.api("STREAM.MSG.DELETE.S", {"seq": 1})
    for subject in ("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.S", "STREAM.PURGE.S"):
        at.api(subject, is_quiet=True)
    for subject in ("CONSUMER.NAMES.S", "CONSUMER.LIST.S", "CONSUMER.INFO.S.C", "STREAM.DELETE.S"):
        at.api(subject, is_quiet=True)
    frames = listener.collect(within_s=ANSWER_S, quiet_s=0.5)
    told = [frame.json() for frame in frames]
    at.note("audited", [[each["subject"], each.get("request", "")] for each in told])


@scenario
def fields_of_audits(at: Recorder) -> None:
    """Of what is done, refused, not understood, and asked without a reply."""
    listener = at.connect()
    listener.subscribe("$JS.EVENT.ADVISORY.API")
    listener.fence()
    at.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}, is_quiet=True)
    at.api("STREAM.CREATE.T", b"{", is_quiet=True)
    at.api("STREAM.CREATE.T", {"name": "T", "zzz": 1}, is_quiet=True)
    level = {"Nats-Required-Api-Level": "99"}
    at.api("STREAM.NAMES", headers=level, is_quiet=True)
    at.wire.publish("$JS.API.STREAM.INFO.S")
    at.wire.publish("$JS.API.STREAM.INFO.NONE", b"{}")
    for frame in listener.collect(count=6, within_s=ANSWER_S):
        told = frame.json()
        error = json.loads(told["response"]).get("error", {}).get("err_code", 0)
        seen = [told["subject"], told.get("request"), error, sorted(told), sorted(told["client"])]
        at.note("audited", seen)
