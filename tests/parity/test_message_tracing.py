"""Message tracing: the events, and what clients get of traced messages, are those of a real
nats-server."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

import cramjam
import pytest

from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import CONNECT, Frame, Wire

pytestmark = pytest.mark.slow

CONFIG = """
no_auth_user: plain
accounts {
  MAIN { jetstream: enabled
    users: [ {user: plain, password: plain}
      {user: limited, password: limited, permissions: {publish: {deny: ["tr.no", "own.no"]}}}
      {user: deaf, password: deaf, permissions: {subscribe: {deny: "d.no"}}} ]
    mappings: { "m.one": "n.one", "m.none": [{dest: "m.none", weight: 0}], "m.*.x": "n.$1"
                "m.self": "m.self", "m.js": "js.mapped" }
    exports: [ {stream: "se.>"}, {stream: "ss.>"}, {service: "svc.no"}
               {service: "svc.yes", allow_trace: true}
               {service: "svc.str", response_type: stream, allow_trace: true}
               {service: "js.svc", allow_trace: true}
               {service: "chain.a", allow_trace: true} ] }
  IMP { users: [ {user: imp, password: imp} ]
    exports: [ {service: "chain.b", allow_trace: true}, {service: "chain.c"} ]
    mappings: { "mapped.svc": "svc.yes" }
    imports: [ {stream: {account: MAIN, subject: "se.>"}}
               {stream: {account: MAIN, subject: "ss.>"}, to: "st.>", allow_trace: true}
               {service: {account: MAIN, subject: "svc.no"}}
               {service: {account: MAIN, subject: "svc.yes"}}
               {service: {account: MAIN, subject: "svc.str"}, to: "local.str"}
               {service: {account: MAIN, subject: "js.svc"}}
               {service: {account: MAIN, subject: "chain.a"}, to: "chain.b"}
               {service: {account: MAIN, subject: "chain.a"}, to: "chain.c"} ] }
  END { users: [ {user: end, password: end} ]
    imports: [ {service: {account: IMP, subject: "chain.b"}, to: "chain.end"}
               {service: {account: IMP, subject: "chain.c"}, to: "chain.dark"} ] }
  AUTO { users: [ {user: auto, password: auto} ], msg_trace: "tr.auto"
    imports: [ {service: {account: MAIN, subject: "svc.yes"}}
               {service: {account: MAIN, subject: "svc.no"}} ] }
  FEW { users: [ {user: few, password: few} ], msg_trace: {dest: "tr.few", sampling: "1%"} }
}
"""
Case: TypeAlias = Callable[["World"], object]
CASES: dict[str, Case] = {}
DEST = "Nats-Trace-Dest"
ONLY = "Nats-Trace-Only"
SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def event_of(frame: Frame) -> dict[str, Any]:
    """Return the document of an event, which may be compressed."""
    coding = frame.pairs.get("Content-Encoding", "")
    body = frame.payload
    if coding == "gzip":
        body = gzip.decompress(body)
    elif coding == "snappy":
        body = bytes(cramjam.snappy.decompress(body))
    found: dict[str, Any] = json.loads(body)
    return found


class World:
    """Clients of one server, and what they saw."""

    _numbers = count(1)

    def __init__(self, port: int) -> None:
        self._port = port
        self._wires: dict[str, Wire] = {}
        self._names: dict[int, str] = {}  # by client id
        self._listens: set[str] = set()

    def client(self, name: str = "plain", /, *subjects: str, queue: str = "", **more: Any) -> Wire:
        """Return the client `name`, a user's name and perhaps a number."""
        wire = self._wires.get(name)
        if wire is None:
            user = name.rstrip("0123456789")
            options = CONNECT | {"user": user, "pass": user, "name": name} | more
            wire = Wire(self._port, options)
            self._wires[name] = wire
            self._names[wire.info["client_id"]] = name
        for subject in subjects:
            wire.subscribe(subject, queue)
        wire.fence()
        return wire

    def trace(
        self,
        subject: str,
        payload: bytes = b"x",
        *,
        by: str = "plain",
        dest: str = "tr.1",
        count: int = 1,
        headers: dict[str, str] | bytes | None = None,
        reply: str = "",
        then: Callable[[], object] | None = None,
    ) -> object:
        """Publish, and return the events and what all clients got. `count` events are awaited,
        and those of a later message."""
        publisher = self.client(by)
        listener = self.client(by + "77")
        if dest not in self._listens:
            self._listens.add(dest)
            listener.subscribe(dest)
            listener.fence()
        if headers is None:
            headers = {DEST: dest}
        elif isinstance(headers, dict):
            headers = {key: value for key, value in headers.items() if value is not None}
        publisher.publish(subject, payload, headers=headers, reply=reply)
        own = publisher.fence()
        got = {name: wire.fence() for name, wire in self._wires.items() if wire is not listener}
        done = then() if then is not None else None
        for name, wire in self._wires.items():
            if wire is not listener:
                got[name] = got[name] + wire.fence()
        got[by] = own + got[by]
        last = f"last.{next(self._numbers)}"
        events: list[Any] = []
        is_over = False
        listener.publish(last, headers={DEST: dest, "Last": last})
        deadline = time.monotonic() + 10
        while not is_over or len(events) < count:
            try:
                frame = listener.next(max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                events.append("no more events")
                break
            if frame.op != "MSG":
                continue
            try:
                event = event_of(frame)
            except ValueError:
                events.append(self.shown(frame))
                continue
            if event.get("request", {}).get("header", {}).get("Last"):
                is_over = True
            else:
                events.append((self.event(event), frame.pairs))
        return events, {name: [self.shown(f) for f in got[name]] for name in sorted(got)}, done

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event without what differs by chance."""
        event["server"] = sorted(event["server"])
        for each in event["events"]:
            assert each.pop("ts").endswith("Z")
            if each.get("cid"):
                each["cid"] = self._names.get(each["cid"], "?")
            for key in ("acc", "sub", "to", "subj", "from"):
                if each.get(key, "").startswith("_R_."):
                    each[key] = "_R_"
        kinds = [each["type"] for each in event["events"]]
        if kinds.count("eg") > 1:  # in any order
            event["events"].sort(
                key=lambda e: (e["type"] == "eg", str(e) if e["type"] == "eg" else "")
            )
        header = event["request"].get("header", {})
        for key, values in header.items():
            header[key] = ["_R_" if v.startswith("_R_.") else v for v in values]
        return event

    def shown(self, frame: Frame) -> tuple[str, ...]:
        reply = "_R_" if frame.reply.startswith("_R_.") else frame.reply
        headers = frame.headers.decode()
        lines = [
            "Nats-Trace-Dest: _R_" if line.startswith("Nats-Trace-Dest: _R_.") else line
            for line in headers.split("\r\n")
            if not line.startswith("Nats-Request-Info")
        ]
        if frame.reply.startswith("$JS.ACK"):
            reply = "ack"
        return (
            frame.op,
            frame.subject,
            reply,
            "\n".join(lines),
            frame.payload.decode(),
            frame.text,
        )

    def api(self, subject: str, body: Any = None) -> Any:
        answer = self.client().api(subject, body)
        assert "error" not in answer, answer
        return answer

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


# --- the headers ----------------------------------------------------------------------------------


@case
def delivered(world: World) -> object:
    world.client("plain1", "d.1")
    return world.trace("d.1", b"payload", reply="back.1")


@case
def no_interest(world: World) -> object:
    return world.trace("nobody.1")


for _value in ("1", "true", "on", "TRUE", "On", "yes", "0", "", "false", " 1 ", "11"):

    def _only(world: World, value: str = _value) -> object:
        world.client("plain1", "d.1")
        return world.trace("d.1", headers={DEST: "tr.1", ONLY: value})

    CASES[f"only_{_value!r}"] = _only

for _dest in ("tr.*", "tr.>", "", "a b", "trace disabled", "tr..1", ".tr", " tr.1 ", "tr.1"):
    for _is_only in (False, True):

        def _dest_case(world: World, dest: str = _dest, is_only: bool = _is_only) -> object:
            world.client("plain1", "d.1")
            more = {ONLY: "1"} if is_only else {}
            return world.trace("d.1", count=0, headers={DEST: dest, **more})

        CASES[f"dest_{_dest!r}_{_is_only}"] = _dest_case


@case
def only_without_dest(world: World) -> object:
    world.client("plain1", "d.1")
    return world.trace("d.1", count=0, headers={ONLY: "1"})


@case
def dest_in_lower_case(world: World) -> object:
    world.client("plain1", "d.1")
    return world.trace("d.1", count=0, headers={"nats-trace-dest": "tr.1"})


@case
def dest_twice(world: World) -> object:
    world.client("plain1", "d.1")
    block = b"NATS/1.0\r\nNats-Trace-Dest: tr.1\r\nA: 1\r\nA: 2\r\nNats-Trace-Dest: tr.2\r\n\r\n"
    return world.trace("d.1", headers=block)


@case
def odd_headers(world: World) -> object:
    world.client("plain1", "d.1")
    block = (
        b"NATS/1.0\r\nNats-Trace-Dest:tr.1\r\nlower-case:  two blanks \r\nEmpty:\r\nNoColon\r\n"
        b"Uml\xc3\xa4ut: \xc3\xa4\r\na:b:c\r\n\r\n"
    )
    return world.trace("d.1", headers=block)


@case
def status_line(world: World) -> object:
    world.client("plain1", "d.1")
    return world.trace("d.1", count=0, headers=b"NATS/1.0 100 x\r\nNats-Trace-Dest: tr.1\r\n\r\n")


@case
def hop_of_a_client(world: World) -> object:
    world.client("plain1", "d.1")
    return world.trace("d.1", headers={DEST: "tr.1", "Nats-Trace-Hop": "1.2"})


@case
def origin_account_of_a_client_only(world: World) -> object:
    world.client("plain1", "d.1")
    headers = {DEST: "tr.1", "Nats-Trace-Origin-Account": "MAIN", ONLY: "1", "A": "b"}
    return world.trace("d.1", count=0, headers=headers)


@case
def origin_account_and_external(world: World) -> object:
    world.client("auto1", "d.1")
    headers = {"traceparent": SAMPLED, "Nats-Trace-Origin-Account": "MAIN"}
    return world.trace("d.1", by="auto", dest="tr.auto", count=0, headers=headers)


@case
def origin_account_of_a_client(world: World) -> object:
    world.client("plain1", "d.1")
    headers = {DEST: "tr.1", "Nats-Trace-Origin-Account": "MAIN"}
    return world.trace("d.1", count=0, headers=headers)


for _coding in ("gzip", "snappy", "br", "GZIP", "gzip, snappy", "snappy;q=1,gzip", "deflate, gzip"):

    def _encoded(world: World, coding: str = _coding) -> object:
        world.client("plain1", "d.1")
        return world.trace("d.1", headers={DEST: "tr.1", "Accept-Encoding": coding})

    CASES[f"encoding_{_coding}"] = _encoded

# --- permissions ----------------------------------------------------------------------------------

for _subject, _to in (("d.1", "tr.no"), ("own.no", "tr.no"), ("own.no", "tr.1"), ("d.1", "tr.1")):
    for _is_only in (False, True):

        def _denied(
            world: World, subject: str = _subject, to: str = _to, is_only: bool = _is_only
        ) -> object:
            world.client("plain1", "d.>", "own.>")
            more = {ONLY: "1"} if is_only else {}
            return world.trace(
                subject, by="limited", count=0, headers={DEST: to, **more}, reply="r.1"
            )

        CASES[f"denied_{_subject}_{_to}_{_is_only}"] = _denied


@case
def denied_delivery(world: World) -> object:
    world.client("deaf", "d.*")
    return world.trace("d.no")


# --- egress ---------------------------------------------------------------------------------------


@case
def groups(world: World) -> object:
    world.client("plain1", "g.1", queue="q")
    world.client("plain2", "g.*", queue="r")
    world.client("plain3", "g.>")
    return world.trace("g.1")


@case
def two_subscriptions_of_a_client(world: World) -> object:
    world.client("plain1", "d.1", "d.*")
    return world.trace("d.1")


@case
def own_subscription(world: World) -> object:
    world.client("plain", "d.1")
    return world.trace("d.1")


@case
def no_echo(world: World) -> object:
    world.client("plain9", "d.1", echo=False)
    return world.trace("d.1", by="plain9")


@case
def no_echo_only(world: World) -> object:
    world.client("plain9", "d.1", echo=False)
    world.client("plain1", "d.1")
    return world.trace("d.1", by="plain9", headers={DEST: "tr.1", ONLY: "1"})


@case
def auto_unsubscribed(world: World) -> object:
    wire = world.client("plain1")
    wire.unsubscribe(wire.subscribe("d.1"), 1)
    wire.fence()
    return [world.trace("d.1") for _ in range(2)]


@case
def auto_unsubscribed_only(world: World) -> object:
    wire = world.client("plain1")
    wire.unsubscribe(wire.subscribe("d.1"), 1)
    wire.fence()
    headers = {DEST: "tr.1", ONLY: "1"}
    return [world.trace("d.1", headers=headers) for _ in range(2)], world.trace("d.1")


@case
def no_name(world: World) -> object:
    world.client("plain1", "d.1", name="")
    return world.trace("d.1")


@case
def no_headers(world: World) -> object:
    world.client("plain1", "d.1", headers=False, no_responders=False)
    return world.trace("d.1")


@case
def to_itself(world: World) -> object:
    return world.trace("tr.1")


@case
def request_without_responders(world: World) -> object:
    world.client("plain", "in.1")
    return world.trace("nobody.1", reply="in.1")


@case
def request_without_responders_only(world: World) -> object:
    world.client("plain", "in.1")
    return world.trace("nobody.1", reply="in.1", headers={DEST: "tr.1", ONLY: "1"})


@case
def request_only(world: World) -> object:
    world.client("plain", "in.1")
    world.client("plain1", "d.1")
    return world.trace("d.1", reply="in.1", headers={DEST: "tr.1", ONLY: "1"})


@case
def verbose(world: World) -> object:
    world.client("plain1", "d.1")
    world.client("plain8", verbose=True)
    return world.trace("d.1", by="plain8", headers={DEST: "tr.1", ONLY: "1"})


# --- mappings -------------------------------------------------------------------------------------

for _subject, _served in (
    ("m.one", "n.one"), ("m.one", "m.one"), ("m.none", "m.none"), ("m.z.x", "n.z"),
    ("m.self", "m.self"),
):  # fmt: skip
    for _is_only in (False, True):

        def _mapped(
            world: World, subject: str = _subject, served: str = _served, is_only: bool = _is_only
        ) -> object:
            world.client("plain1", served)
            more = {ONLY: "1"} if is_only else {}
            return world.trace(subject, count=0, headers={DEST: "tr.1", **more})

        CASES[f"mapped_{_subject}_{_served}_{_is_only}"] = _mapped

# --- other accounts -------------------------------------------------------------------------------

for _subject, _local in (("se.1", "se.1"), ("se.1", "se.*"), ("ss.1", "st.1"), ("ss.1", "st.>")):
    for _is_only in (False, True):

        def _exported(
            world: World, subject: str = _subject, local: str = _local, is_only: bool = _is_only
        ) -> object:
            world.client("imp1", local)
            world.client("plain1", subject)
            more = {ONLY: "1"} if is_only else {}
            return world.trace(subject, headers={DEST: "tr.1", **more})

        CASES[f"exported_{_subject}_{_local}_{_is_only}"] = _exported


@case
def exported_to_a_group(world: World) -> object:
    world.client("imp1", "st.1", queue="q")
    return world.trace("ss.1")


for _subject, _served in (
    ("svc.no", "svc.no"), ("svc.yes", "svc.yes"), ("local.str", "svc.str"), ("svc.yes", "other"),
    ("mapped.svc", "svc.yes"), ("chain.b", "chain.a"), ("svc.no", "other"),
):  # fmt: skip
    for _is_only in (False, True):

        def _asked(
            world: World, subject: str = _subject, served: str = _served, is_only: bool = _is_only
        ) -> object:
            world.client("plain1", served)
            world.client("imp", "in.1")
            more = {ONLY: "1"} if is_only else {}

            return world.trace(
                subject, by="imp", headers={DEST: "tr.1", **more}, reply="in.1", count=0
            )

        CASES[f"asked_{_subject}_{_served}_{_is_only}"] = _asked

for _subject in ("chain.end", "chain.dark"):
    for _is_only in (False, True):

        def _chained(world: World, subject: str = _subject, is_only: bool = _is_only) -> object:
            world.client("plain1", "chain.a")
            world.client("end", "in.1")
            more = {ONLY: "1"} if is_only else {}
            return world.trace(
                subject, by="end", headers={DEST: "tr.1", **more}, reply="in.1", count=0
            )

        CASES[f"{_subject}_{_is_only}"] = _chained


@case
def answered_with_a_trace(world: World) -> object:
    """The answer of a service is traced in the service's account, up to the import."""
    responder = world.client("plain1", "svc.yes")
    asker = world.client("imp", "in.1")
    asker.publish("svc.yes", b"ask", reply="in.1")
    asker.fence()
    asked = responder.next(5)
    return world.trace(asked.reply, b"answer", by="plain2"), [
        world.shown(frame) for frame in asker.fence()
    ]


@case
def service_with_a_subscriber_too(world: World) -> object:
    world.client("plain1", "svc.yes")
    world.client("imp1", "svc.yes")
    return world.trace("svc.yes", by="imp", reply="in.1")


# --- external traces ------------------------------------------------------------------------------

for _name, _value in (
    ("traceparent", SAMPLED), ("Traceparent", SAMPLED), ("TRACEPARENT", SAMPLED),
    ("traceparent", SAMPLED[:-2] + "00"), ("traceparent", SAMPLED[:-2] + "03"),
    ("traceparent", SAMPLED[:-2] + "02"), ("traceparent", "01"), ("traceparent", ""),
    ("traceparent", SAMPLED + "-x"), ("traceparent", "x" + SAMPLED),
    ("traceparent", SAMPLED.upper()), ("traceparent", SAMPLED[:-2] + "zz"),
    ("traceparent", SAMPLED[:-2] + "1"), ("traceparent", "---01"),
    ("traceparent", " " + SAMPLED),
):  # fmt: skip

    def _external(world: World, name: str = _name, value: str = _value) -> object:
        world.client("auto1", "d.1")
        return world.trace("d.1", by="auto", dest="tr.auto", count=0, headers={name: value})

    CASES[f"external_{_name}_{_value}"] = _external


@case
def external_without_destination(world: World) -> object:
    world.client("plain1", "d.1")
    return world.trace("d.1", count=0, headers={"traceparent": SAMPLED})


@case
def external_only(world: World) -> object:
    world.client("auto1", "d.1")
    headers = {"traceparent": SAMPLED, ONLY: "1"}
    return world.trace("d.1", by="auto", dest="tr.auto", headers=headers)


@case
def external_and_own(world: World) -> object:
    world.client("auto1", "d.1")
    headers = {"traceparent": SAMPLED, DEST: "tr.own"}
    return world.trace("d.1", by="auto", dest="tr.*", headers=headers)


@case
def external_and_own_only(world: World) -> object:
    world.client("auto1", "d.1")
    headers = {"traceparent": SAMPLED, DEST: "tr.own", ONLY: "1"}
    return world.trace("d.1", by="auto", dest="tr.own", headers=headers)


@case
def external_and_disabled(world: World) -> object:
    world.client("auto1", "d.1")
    headers = {"traceparent": SAMPLED, DEST: "trace disabled"}
    return world.trace("d.1", by="auto", dest="tr.auto", count=0, headers=headers)


@case
def external_through_a_dark_service(world: World) -> object:
    world.client("plain1", "svc.no")
    headers = {"traceparent": SAMPLED}
    return world.trace("svc.no", by="auto", dest="tr.auto", headers=headers, reply="in.1")


@case
def external_not_sampled(world: World) -> object:
    """One of a hundred is; the others are traced no further."""
    receiver = world.client("few1", "d.1")
    publisher = world.client("few")
    block = f"NATS/1.0\r\ntraceparent: {SAMPLED}\r\n\r\n".encode()
    for _ in range(5):
        publisher.publish("d.1", headers=block)
    publisher.fence()
    frames = receiver.collect(count=5, within_s=5)
    return max(set(map(world.shown, frames)), key=lambda each: each[3].count("disabled"))


@case
def external_through_a_service(world: World) -> object:
    world.client("plain1", "svc.yes")
    headers = {"traceparent": SAMPLED}
    return world.trace("svc.yes", by="auto", dest="tr.auto", headers=headers, reply="in.1")


# --- JetStream ------------------------------------------------------------------------------------


def stream(world: World, **config: Any) -> None:
    world.client().api("STREAM.DELETE.S")
    world.api("STREAM.CREATE.S", {"name": "S", "subjects": ["js.>"], "storage": "memory", **config})


for _name, _config, _headers in (
    ("plain", {}, {}),
    ("id", {}, {"Nats-Msg-Id": "one"}),
    ("expected", {}, {"Nats-Expected-Last-Sequence": "99"}),
    ("expected_right", {}, {"Nats-Expected-Last-Sequence": "1"}),
    ("other_stream", {}, {"Nats-Expected-Stream": "X"}),
    ("large", {"max_msg_size": 5}, {}),
    ("interest", {"retention": "interest"}, {}),
    ("no_ack", {"no_ack": True}, {}),
    ("full", {"max_msgs": 1, "discard": "new"}, {}),
    ("subject_seq", {}, {"Nats-Expected-Last-Subject-Sequence": "7"}),
    ("rollup", {}, {"Nats-Rollup": "sub"}),
    ("rollup_allowed", {"allow_rollup_hdrs": True}, {"Nats-Rollup": "sub"}),
    ("ttl", {}, {"Nats-TTL": "1s"}),
    ("msg_id", {}, {"Nats-Expected-Last-Msg-Id": "zz"}),
    ("transform", {"subject_transform": {"src": "js.>", "dest": "tj.>"}}, {}),
    ("counter", {}, {"Nats-Incr": "1"}),
    ("schedule", {}, {"Nats-Schedule": "@at 2030-01-01T00:00:00Z"}),
    ("sourced", {}, {"Nats-Stream-Source": "x"}),
    ("bad_ttl", {"allow_msg_ttl": True}, {"Nats-TTL": "zz"}),
    ("bad_rollup", {"allow_rollup_hdrs": True}, {"Nats-Rollup": "zz"}),
    ("bad_counter", {}, {"Nats-Incr": "zz"}),
    ("subject_only", {}, {"Nats-Expected-Last-Subject-Sequence-Subject": "a"}),
    (
        "per_subject",
        {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
        {},
    ),
    ("max_bytes", {"max_bytes": 100, "discard": "new"}, {}),
    ("expected_empty", {}, {"Nats-Expected-Last-Sequence": ""}),
):
    for _is_only in (False, True):

        def _stored(
            world: World,
            config: Any = _config,
            headers: Any = _headers,
            is_only: bool = _is_only,
        ) -> object:
            stream(world, **config)
            world.client().ask("js.1", b"one", headers={"Nats-Msg-Id": "one"})
            world.client("plain", "in.1")
            more = {ONLY: "1"} if is_only else {}

            def then() -> object:
                if is_only or config.get("no_ack"):
                    return None
                return world.shown(world.client().next(5))

            found = world.trace(
                "js.1", b"two", headers={DEST: "tr.1", **more, **headers}, reply="in.1"
            )
            state = world.api("STREAM.INFO.S")["state"]
            return found[0], state["messages"], state["last_seq"]  # type: ignore[index]

        CASES[f"stored_{_name}_{_is_only}"] = _stored


@case
def stored_with_a_subscriber(world: World) -> object:
    stream(world)
    world.client("plain1", "js.*")
    return world.trace("js.1", b"x" * 10)


@case
def stored_by_a_mapping(world: World) -> object:
    stream(world)
    return world.trace("m.js")


@case
def stored_through_a_service(world: World) -> object:
    stream(world)
    return world.trace("js.svc", by="imp")


@case
def stored_through_a_service_only(world: World) -> object:
    stream(world)
    return world.trace("js.svc", by="imp", headers={DEST: "tr.1", ONLY: "1"})


@case
def delivered_from_a_stream(world: World) -> object:
    """What was stored is not traced on its way out."""
    stream(world)
    found = world.trace("js.1")
    stored = world.api("STREAM.MSG.GET.S", {"seq": 1})["message"]
    return found, stored.get("hdrs"), stored["subject"]


@case
def stored_external(world: World) -> object:
    """A stream of another account is none of this one's."""
    stream(world)
    headers = {"traceparent": SAMPLED}
    return world.trace("js.1", by="auto", dest="tr.auto", headers=headers)


@case
def api_request(world: World) -> object:
    stream(world)
    return world.trace("$JS.API.STREAM.NAMES", b"", count=0, reply="in.1")


@case
def api_request_only(world: World) -> object:
    stream(world)
    headers = {DEST: "tr.1", ONLY: "1"}
    return world.trace("$JS.API.STREAM.NAMES", b"", count=0, reply="in.1", headers=headers)


# --- both servers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Start both servers."""
    binaries = (ours_binary(), peer_binary())
    if not all(binaries):
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    running: list[ServerProcess] = []
    for binary in binaries:
        directory = tmp_path_factory.mktemp("tracing")
        server = ServerProcess(binary, directory=directory, extra=CONFIG, is_jetstream=True)
        running.append(server)
        server.launch()
    for server in running:
        server.wait_for_log("Server is ready")
    yield running[0].port, running[1].port
    for server in running:
        server.__exit__(None, None, None)


def seen_on(port: int, run: Case) -> object:
    world = World(port)
    try:
        return run(world)
    finally:
        world.close()


@pytest.mark.parametrize("name", CASES)
def test_traces_are_the_same(name: str, servers: tuple[int, int]) -> None:
    run = CASES[name]
    ours, peer = servers
    assert seen_on(ours, run) == seen_on(peer, run)
