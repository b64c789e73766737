"""Imports, exports and mappings: clients of each account see what a real nats-server shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.runner import ours_binary, peer_binary
from tests.wire import CONNECT, Frame, Wire

pytestmark = pytest.mark.slow

STREAMS = """accounts {
  A { users: [{user: A, password: A}]
      exports: [{stream: "s.>"}, {stream: "w.*.*"}, {stream: one}, {stream: "tok.*"},
                {stream: private, accounts: [B]}] }
  B { users: [{user: B, password: B}
              {user: denied, password: denied, permissions: {subscribe: {deny: "p.s.no"}}}
              {user: some, password: some, permissions: {subscribe: ["p.s.a", "_INBOX.>"]}}]
      exports: [{stream: "p.s.>"}]
      imports: [{stream: {account: A, subject: "s.>"}, prefix: p}
                {stream: {account: A, subject: "w.*.*"}, to: "v.$2.$1"}
                {stream: {account: A, subject: one}, to: "uno"}
                {stream: {account: A, subject: private}}] }
  C { users: [{user: C, password: C}]
      imports: [{stream: {account: B, subject: "p.s.>"}, to: "c.>"}
                {stream: {account: A, subject: "w.*.*"}}
                {stream: {account: A, subject: "s.x"}, to: "exact"}] }
  D { users: [{user: D, password: D}] }
  L { users: [{user: L, password: L}], exports: [{stream: "l.>"}]
      imports: [{stream: {account: L, subject: "l.>"}, prefix: own}] }
}
"""
SERVICES = """accounts {
  A { users: [{user: A, password: A}]
      mappings: {"q.m": "q.mapped", "q.w": [{dest: "q.v", weight: 100}]}
      exports: [{service: "q.>"}, {service: "str.*", response_type: stream}
                {service: "chk", response_type: chunked, threshold: "250ms"}
                {service: "two.*.*"}, {service: "tok.*", account_token_position: 2}
                {service: "lat", latency: "lat.ev", threshold: "200ms"}
                {service: "lath", latency: {sampling: headers, subject: "lat.ev"}}
                {service: "ss.q"}, {stream: "ss.>"}] }
  B { users: [{user: B, password: B}
              {user: limited, password: limited, permissions: {publish: ["lq.ok"]}}]
      exports: [{service: "lq.>"}]
      imports: [{service: {account: A, subject: "q.>"}, to: "lq.>"}
                {service: {account: A, subject: "str.*"}}
                {service: {account: A, subject: "chk"}, to: "chunks"}
                {service: {account: A, subject: "two.*.*"}, to: "owt.$2.$1"}
                {service: {account: A, subject: "tok.B"}, to: token}
                {service: {account: A, subject: "lat"}}
                {service: {account: A, subject: "lath"}}
                {service: {account: A, subject: "ss.q"}, to: "rq"}
                {stream: {account: A, subject: "ss.>"}}] }
  C { users: [{user: C, password: C}]
      imports: [{service: {account: B, subject: "lq.>"}, to: "cq.>"}
                {service: {account: A, subject: "q.share"}, share: true}
                {service: {account: A, subject: "lat"}, share: true}] }
}
"""
CHAINS = """accounts {
  A { users: [{user: A, password: A}], exports: [{service: "q.>"}, {service: "p.>"}] }
  B { users: [{user: B, password: B}], exports: [{service: "bq.>"}, {service: "bp.>"}]
      imports: [{service: {account: A, subject: "q.>"}, to: "bq.>", share: true}
                {service: {account: A, subject: "p.>"}, to: "bp.>"}] }
  C { users: [{user: C, password: C}]
      imports: [{service: {account: B, subject: "bq.>"}, to: "cq.>"}
                {service: {account: B, subject: "bp.>"}, to: "cp.>"}] }
  D { users: [{user: D, password: D}]
      imports: [{service: {account: B, subject: "bq.>"}, to: "dq.>", share: true}
                {service: {account: B, subject: "bp.>"}, to: "dp.>", share: true}] }
}
"""
MAPPINGS = """mappings {
  "m.a": "m.b", "m.*.x": "n.$1", "m.t.>": "t.>", "m.p.*": "p.{{partition(5,1)}}.$1"
  "m.all": [{dest: "n.all", weight: 100}], "m.none": [{dest: "m.none", weight: 0}]
  "m.req": "m.service", "m.chain": "m.a", "m.deny": "secret", "m.allow": "open.x"
  "m.split.*": "sp.{{split(1,-)}}"
}
authorization { users: [
  {user: A, password: A}
  {user: mapped, password: mapped, permissions: {publish: {deny: secret}}}
  {user: allowed, password: allowed, permissions: {publish: {allow: ["open.x", "m.deny"]}}}
] }
"""
JETSTREAM = """accounts {
  A { jetstream: enabled, users: [{user: A, password: A}]
      exports: [{service: "$JS.API.>", response_type: stream}, {service: "$JS.ACK.>"}
                {service: "$JS.FC.>"}, {stream: "deliver.b.>"}, {service: "put.*"}
                {stream: "x.>"}] }
  B { jetstream: enabled, users: [{user: B, password: B}]
      imports: [{service: {account: A, subject: "$JS.API.>"}, to: "JS.A.API.>"}
                {service: {account: A, subject: "$JS.ACK.>"}}
                {service: {account: A, subject: "$JS.FC.>"}}
                {stream: {account: A, subject: "deliver.b.>"}}
                {service: {account: A, subject: "put.*"}}
                {stream: {account: A, subject: "x.>"}, to: "y.>"}] }
}
"""

VARYING = (
    (re.compile(rb"_R_\.[0-9A-Za-z]{6}\.[0-9A-Za-z]{6}(\.[0-9A-Za-z]{8}\.T)?"), rb"_R_\1"),
    (re.compile(rb"\.[0-9A-Za-z]{8}\.T"), b".T"),
    (re.compile(rb'"rtt":\d+'), b'"rtt":0'),
    (re.compile(rb'"(start|timestamp)":"[^"]*"'), rb'"\1":""'),
    (re.compile(rb'"(id|service|system|total)":("[^"]*"|\d+)'), rb'"\1":0'),
    (re.compile(rb'"server":"[^"]*"'), b'"server":""'),
    (re.compile(rb"(\$JS\.ACK(?:\.[A-Z]+)+\.\d+\.\d+\.\d+)\.\d+\.\d+"), rb"\1"),
)


def alike(data: bytes) -> str:
    for pattern, instead in VARYING:
        data = pattern.sub(instead, data)
    return data.decode(errors="replace")


def shown(frame: Frame) -> tuple[str, ...]:
    reply = alike(frame.reply.encode())
    return (
        frame.op, frame.subject, frame.sid, reply, alike(frame.headers), alike(frame.payload),
        frame.text,
    )  # fmt: skip


class World:
    """Clients of one server, and everything that they saw."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._wires: dict[str, Wire] = {}
        self.seen: list[Any] = []
        self.last: dict[str, list[Frame]] = {}

    def client(self, name: str, *subjects: str, user: str = "", queue: str = "") -> Wire:
        user = user or name.rstrip("0123456789")
        wire = Wire(self._port, CONNECT | {"user": user, "pass": user})
        self._wires[name] = wire
        for subject in subjects:
            wire.subscribe(subject, queue)
        self.take(wire.fence(), name)
        return wire

    def look(self) -> None:
        """Note what each client got: what one published is delivered before its PONG, and that is
        before the next PONG of those who get it."""
        before = {name: wire.fence() for name, wire in self._wires.items()}
        for name, wire in self._wires.items():
            self.take(before[name] + wire.fence(), name)

    def take(self, frames: list[Frame], name: str) -> None:
        self.last[name] = frames
        # Two subscriptions of one client may get a message in either order.
        self.seen.append((name, sorted(map(shown, frames))))

    def wait(self, name: str, count: int = 1) -> list[Frame]:
        """Note what comes later, such as events."""
        frames = self._wires[name].collect(count=count, within_s=5)
        self.take(frames, name)
        return frames

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


Case = Callable[[World], None]
CASES: dict[str, tuple[str, Case]] = {}


def case(config: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[function.__name__] = (config, function)
        return function

    return add


def simple(config: str, name: str, run: Case) -> None:
    assert name not in CASES
    CASES[name] = (config, run)


# --- stream imports -------------------------------------------------------------------------------

for _account, _pattern, _published in (
    ("B", "p.s.x", "s.x"), ("B", "p.s.*", "s.x"), ("B", "p.>", "s.x.y"), ("B", ">", "s.x"),
    ("B", "*.s.x", "s.x"), ("B", "*.*.x", "s.x"), ("B", "p.s.y", "s.x"), ("B", "s.x", "s.x"),
    ("B", "v.b.a", "w.a.b"), ("B", "v.b.*", "w.a.b"), ("B", "v.*.a", "w.a.b"),
    ("B", "v.>", "w.a.b"), ("B", "v.a.b", "w.a.b"), ("B", "w.a.b", "w.a.b"), ("B", "*", "one"),
    ("B", "uno", "one"), ("B", "one", "one"), ("B", "private", "private"),
    ("C", "private", "private"), ("C", "w.a.b", "w.a.b"), ("C", "w.>", "w.a.b"),
    ("C", "exact", "s.x"), ("C", "exact", "s.y"), ("C", ">", "s.x"), ("C", "c.>", "s.x"),
    ("D", ">", "s.x"), ("L", "own.l.x", "l.x"), ("L", ">", "l.x"), ("L", "l.x", "own.l.x"),
):  # fmt: skip

    def _stream(
        world: World, account: str = _account, pattern: str = _pattern, to: str = _published
    ) -> None:
        world.client(f"{account}1", pattern)
        publisher = world.client("L2" if account == "L" else "A")
        publisher.publish(to, b"one", reply="back.1")
        publisher.publish(to, b"two", headers={"X": "1"})
        for number in range(5):
            publisher.publish(to, b"%d" % number)
        world.look()

    simple(STREAMS, f"stream {_account} {_pattern} {_published}", _stream)


@case(STREAMS)
def stream_has_no_responders_without_importers(world: World) -> None:
    a = world.client("A", "in.*")
    a.publish("s.x", reply="in.1")
    world.look()
    world.client("B", "p.>")
    a.publish("s.x", reply="in.1")
    world.look()


@case(STREAMS)
def stream_ends_with_unsub(world: World) -> None:
    a, b = world.client("A"), world.client("B")
    sid = b.subscribe("p.s.*")
    b.fence()
    a.publish("s.x", b"1")
    world.look()
    b.unsubscribe(sid)
    b.fence()
    a.publish("s.x", b"2")
    world.look()


@case(STREAMS)
def stream_deny_holds_for_local_subjects(world: World) -> None:
    world.client("B", "p.s.*", user="denied")
    a = world.client("A")
    a.publish("s.no", b"1")
    a.publish("s.yes", b"2")
    world.look()


@case(STREAMS)
def stream_allow_holds_for_local_subjects(world: World) -> None:
    world.client("B", "p.s.a", "p.s.b", "s.a", user="some")
    a = world.client("A")
    a.publish("s.a", b"1")
    a.publish("s.b", b"2")
    world.look()


@case(STREAMS)
def stream_goes_one_way(world: World) -> None:
    world.client("A", "s.>", "p.>")
    b = world.client("B")
    b.publish("p.s.x", b"1")
    b.publish("s.x", b"2")
    world.look()


@case(STREAMS)
def stream_of_an_importer_is_exported_only_as_its_own(world: World) -> None:
    a, b = world.client("A"), world.client("B")
    world.client("C", "c.>")
    a.publish("s.x", b"1")
    b.publish("p.s.x", b"2")
    world.look()


def _group(world: World, members: list[tuple[str, str]]) -> None:
    """One member of a group gets each message, whichever account it is in."""
    wires = []
    for at, (account, pattern) in enumerate(members):
        wire = world.client(f"{account}{at}")
        wire.subscribe(pattern, "g")
        wire.fence()
        wires.append(wire)
    a = world.client("A")
    for number in range(40):
        a.publish("s.x", b"%d" % number)
    a.fence()
    world.seen = [sorted(frame.payload for wire in wires for frame in wire.fence())]


simple(STREAMS, "group in the importer", lambda w: _group(w, [("B", "p.s.x"), ("B", "p.s.*")]))
simple(STREAMS, "group in both", lambda w: _group(w, [("A", "s.x"), ("B", "p.s.x")]))
simple(STREAMS, "group in three", lambda w: _group(w, [("A", "s.>"), ("B", "p.>"), ("C", "exact")]))


# --- service imports ------------------------------------------------------------------------------

for _asked, _served in (
    ("lq.one", "q.>"), ("lq.a.b", "q.>"), ("lq.m", "q.>"), ("lq.w", "q.>"), ("lq.one", "q.two"),
    ("owt.b.a", "two.*.*"), ("owt.a", "two.*.*"), ("token", "tok.*"), ("q.one", "q.>"),
    ("lq", "q.>"), ("rq", "ss.>"), ("str.x", "str.*"), ("other", ">"),
):  # fmt: skip

    def _service(world: World, asked: str = _asked, served: str = _served) -> None:
        a, b = world.client("A", served), world.client("B", "in.*")
        b.publish(asked, b"ask", reply="in.1")
        world.look()
        for frame in world.last["A"]:
            a.publish(frame.reply, b"first")
            a.publish(frame.reply, b"second", headers={"H": "1"})
            a.publish(frame.reply, b"")
            a.publish(frame.reply, b"after an empty one")
        world.look()
        b.publish(asked, b"no reply")
        b.publish(asked, b"header", headers={"X": "1", "Nats-Request-Info": "forged"})
        world.look()

    simple(SERVICES, f"service {_asked} {_served}", _service)


@case(SERVICES)
def service_without_responders(world: World) -> None:
    b = world.client("B", "in.*")
    for subject in ("lq.one", "owt.b.a", "token", "chunks", "rq"):
        b.publish(subject, b"", reply="in.1")
    world.look()


@case(SERVICES)
def service_with_a_local_subscriber_too(world: World) -> None:
    b = world.client("B", "lq.*", "in.*")
    b.publish("lq.one", b"1", reply="in.1")
    world.look()
    world.client("A", "q.*")
    b.publish("lq.one", b"2", reply="in.1")
    world.look()


@case(SERVICES)
def service_with_a_group(world: World) -> None:
    world.client("A1", "q.*", queue="g")
    world.client("A2", "q.*", queue="g")
    b = world.client("B", "in.*")
    for number in range(20):
        b.publish("lq.one", b"%d" % number)
    b.fence()
    world.look()
    got = [frame.payload for name in ("A1", "A2") for frame in world.last[name]]
    world.seen = [sorted(got)]


@case(SERVICES)
def service_responses_in_chunks_until_silence(world: World) -> None:
    a, b = world.client("A", "chk"), world.client("B", "in.*")
    b.publish("chunks", b"", reply="in.1")
    world.look()
    reply = world.last["A"][0].reply
    a.publish(reply, b"1")
    a.publish(reply, b"2")
    world.look()
    assert b.collect(within_s=0.6) == []
    a.publish(reply, b"3")
    world.look()


@case(SERVICES)
def service_requester_is_gone(world: World) -> None:
    a, b = world.client("A", "str.*", "in.*"), world.client("B")
    sid = b.subscribe("in.1")
    b.publish("str.x", b"", reply="in.1")
    world.look()
    reply = next(frame.reply for frame in world.last["A"] if frame.reply)
    b.unsubscribe(sid)
    world.look()
    b.subscribe("in.1")
    world.look()
    a.publish(reply, b"late", reply="in.9")
    world.look()


@case(SERVICES)
def service_publish_permission_is_that_of_the_local_subject(world: World) -> None:
    world.client("A", "q.>")
    b = world.client("B", user="limited")
    b.publish("lq.ok", b"1")
    b.publish("lq.no", b"2")
    world.look()


@case(SERVICES)
def service_through_two_accounts(world: World) -> None:
    a, c = world.client("A", "q.>"), world.client("C", "in.*")
    c.publish("cq.one", b"chain", reply="in.1")
    world.look()
    a.publish(world.last["A"][0].reply, b"answer")
    world.look()


@case(SERVICES)
def service_through_two_accounts_without_responders(world: World) -> None:
    c = world.client("C", "in.*")
    c.publish("cq.one", b"chain", reply="in.1")
    world.look()


@case(SERVICES)
def service_in_the_middle_of_a_chain_is_seen(world: World) -> None:
    world.client("A", "q.>")
    world.client("B", "lq.>")
    c = world.client("C", "in.*")
    c.publish("cq.one", b"chain")
    world.look()


@case(SERVICES)
def service_that_learns_who_asks(world: World) -> None:
    world.client("A", "q.>")
    c = world.client("C", "in.*")
    c.publish("q.share", b"", reply="in.1")
    world.look()


for _asker, _via in (("B", "b"), ("C", "c"), ("D", "d")):

    def _chain(world: World, account: str = _asker, via: str = _via) -> None:
        world.client("A", "q.>", "p.>")
        asking = world.client(account, "in.*")
        for subject in (f"{via}q.one", f"{via}p.one"):
            asking.publish(subject, b"?", reply="in.1")
            world.look()

    simple(CHAINS, f"service of a chain, asked by {_asker}", _chain)


@case(SERVICES)
def service_replies_begin_alike(world: World) -> None:
    world.client("A", "q.>", "str.*")
    b = world.client("B", "in.*")
    for subject in ("lq.one", "lq.two", "str.x"):
        b.publish(subject, b"?", reply="in.1")
    world.look()
    replies = [frame.reply.split(".") for frame in world.last["A"]]
    world.seen.append([len({reply[at] for reply in replies}) for at in range(3)])


@case(SERVICES)
def service_response_that_may_be_answered(world: World) -> None:
    a, b = world.client("A", "str.*", "back.*"), world.client("B", "in.*")
    b.publish("str.x", b"", reply="in.1")
    world.look()
    a.publish(world.last["A"][0].reply, b"and you?", reply="back.1")
    world.look()
    b.publish(world.last["B"][0].reply, b"fine")
    world.look()


@case(SERVICES)
def service_reply_is_reserved(world: World) -> None:
    a = world.client("A", "x")
    a.publish("x", b"1", reply="_R_.abcdef.ghijkl")
    a.publish("_R_.abcdef.ghijkl", b"2")
    world.look()


@case(SERVICES)
def service_request_is_no_message_of_an_imported_stream(world: World) -> None:
    world.client("A", "ss.>")
    b = world.client("B", "ss.>", "in.*")
    b.publish("rq", b"1", reply="in.1")
    world.look()


def _latency(world: World, status: int, *, asker: str = "B", subject: str = "lat") -> None:
    watcher = world.client("A1", "lat.ev")
    a = world.client("A2")
    if status != 503:
        a.subscribe(subject)
        a.fence()
    b = world.client(asker)
    sid = b.subscribe("in.1")
    traced = {"X-B3-Sampled": "1", "x-b3-traceid": "7"} if subject == "lath" else None
    b.publish(subject, b"", reply="" if status == 400 else "in.1", headers=traced)
    b.fence()
    asked = a.fence()
    if status == 200:
        a.publish(asked[0].reply, b"answer")
    elif status == 408:
        b.unsubscribe(sid)
    a.fence()
    (frame,) = watcher.collect(count=1, within_s=5)
    event = json.loads(frame.payload)
    for side in ("requestor", "responder"):
        for key in ("id", "rtt", "start", "server"):
            event.get(side, {}).pop(key, None)
    for key in ("id", "timestamp", "start", "service", "system", "total"):
        assert key in event, key
        del event[key]
    world.seen = [list(event), event, frame.reply]


for _status in (200, 400, 408, 503, 504):
    simple(SERVICES, f"latency {_status}", lambda world, status=_status: _latency(world, status))
simple(SERVICES, "latency shared", lambda world: _latency(world, 200, asker="C"))
simple(SERVICES, "latency by header", lambda world: _latency(world, 200, subject="lath"))


# --- mappings -------------------------------------------------------------------------------------

for _subject in (
    "m.a", "m.b", "m.q.x", "m.t.a.b", "m.t", "m.p.k", "m.p.other", "m.all", "m.none", "m.chain",
    "m.split.a-b", "plain", "m.t.*", "m..x",
):  # fmt: skip

    def _mapped(world: World, subject: str = _subject) -> None:
        world.client("A1", ">")
        publisher = world.client("A2")
        publisher.publish(subject, b"1", reply="back.1")
        publisher.publish(subject, b"2", headers={"X": "1"})
        world.look()

    simple(MAPPINGS, f"mapping {_subject}", _mapped)


@case(MAPPINGS)
def mapping_without_receivers(world: World) -> None:
    a = world.client("A", "in.*")
    for subject in ("m.a", "m.none", "m.all", "m.q.x"):
        a.publish(subject, b"", reply="in.1")
    world.look()


@case(MAPPINGS)
def mapping_before_denied_subjects(world: World) -> None:
    world.client("A", ">")
    publisher = world.client("P", user="mapped")
    publisher.publish("m.deny", b"1")
    publisher.publish("m.a", b"2")
    world.look()


@case(MAPPINGS)
def mapping_before_allowed_subjects(world: World) -> None:
    world.client("A", ">")
    publisher = world.client("P", user="allowed")
    publisher.publish("m.allow", b"1")
    publisher.publish("m.deny", b"2")
    publisher.publish("m.a", b"3")
    world.look()


@case(MAPPINGS)
def mapping_does_not_touch_subscribers_or_replies(world: World) -> None:
    a = world.client("A", "m.a", "m.b")
    a.publish("x", b"", reply="m.a")
    a.publish("m.a", b"1", reply="m.a")
    world.look()


# --- JetStream ------------------------------------------------------------------------------------


def _api(world: World, wire: Wire, subject: str, body: Any = None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    (frame,) = wire.ask(subject, data)
    answer = frame.json() if frame.payload else {"status": frame.status}
    world.seen.append((subject, sorted(answer), answer.get("error")))


STREAM = {"name": "S", "subjects": ["put.*", "s.*"]}
CONSUMER = {"durable_name": "C", "ack_policy": "explicit"}


@case(JETSTREAM)
def jetstream_of_another_account(world: World) -> None:
    a, b = world.client("A"), world.client("B", "in.*", "deliver.b.*")
    _api(world, a, "$JS.API.STREAM.CREATE.S", STREAM)
    b.publish("put.x", b"one", reply="in.1")
    world.wait("B")
    a.publish("s.1", b"two")
    a.fence()
    _api(world, b, "JS.A.API.STREAM.INFO.S")
    _api(world, b, "$JS.API.STREAM.INFO.S")
    _api(world, b, "JS.A.API.CONSUMER.CREATE.S.C", {"stream_name": "S", "config": CONSUMER})
    b.publish("JS.A.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":2}', reply="in.2")
    for frame in world.wait("B", 2):
        answers = b.ask(frame.reply, b"+ACK")
        world.seen.append([shown(answer)[4:] for answer in answers])
    b.publish("JS.A.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1,"no_wait":true}', reply="in.3")
    world.wait("B")
    config = CONSUMER | {"durable_name": "D", "deliver_subject": "deliver.b.x"}
    _api(world, b, "JS.A.API.CONSUMER.CREATE.S.D", {"stream_name": "S", "config": config})
    world.seen.pop()  # deliveries may come before the answer: only they count
    _api(world, b, "JS.A.API.STREAM.DELETE.S")


@case(JETSTREAM)
def jetstream_pushes_to_another_account(world: World) -> None:
    a, b = world.client("A"), world.client("B", "deliver.b.*")
    _api(world, a, "$JS.API.STREAM.CREATE.S", STREAM)
    config = CONSUMER | {"deliver_subject": "deliver.b.x"}
    _api(world, a, "$JS.API.CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
    a.publish("s.1", b"one")
    a.fence()
    for frame in world.wait("B"):
        answers = b.ask(frame.reply, b"+ACK")
        world.seen.append([shown(answer)[4:] for answer in answers])
    _api(world, a, "$JS.API.STREAM.DELETE.S")


@case(JETSTREAM)
def jetstream_captures_imported_messages(world: World) -> None:
    a, b = world.client("A", "in.*"), world.client("B", "in.*")
    _api(world, b, "$JS.API.STREAM.CREATE.Y", {"name": "Y", "subjects": ["y.>"]})
    a.publish("x.1", b"one", reply="in.1")
    world.wait("B")
    _api(world, b, "$JS.API.STREAM.MSG.GET.Y", {"seq": 1})
    _api(world, a, "$JS.API.STREAM.INFO.Y")
    _api(world, b, "$JS.API.STREAM.DELETE.Y")


# --- both servers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[int]]]:
    """Start both servers with a configuration when it is first asked for."""
    binaries = (ours_binary(), peer_binary())
    if not all(binaries):
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    running: dict[str, list[ServerProcess]] = {}

    def ports(config: str) -> list[int]:
        if config not in running:
            running[config] = []
            for binary in binaries:
                directory: Path = tmp_path_factory.mktemp("imports")
                is_jetstream = config is JETSTREAM
                server = ServerProcess(
                    binary, directory=directory, extra=config, is_jetstream=is_jetstream
                )
                running[config].append(server)
                server.launch()
                server.wait_for_log("Server is ready")
        return [server.port for server in running[config]]

    yield ports
    for started in running.values():
        for server in started:
            server.__exit__(None, None, None)


def seen_on(port: int, run: Case) -> list[Any]:
    world = World(port)
    try:
        run(world)
        return world.seen
    finally:
        world.close()


@pytest.mark.parametrize("name", CASES)
def test_clients_see_the_same(name: str, servers: Callable[[str], list[int]]) -> None:
    config, run = CASES[name]
    ours, peer = servers(config)
    assert seen_on(ours, run) == seen_on(peer, run)
