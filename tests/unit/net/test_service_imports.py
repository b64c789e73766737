"""Service imports: requests of one account that another answers, and the way of the answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from streamd.config.account_options import LatencyOptions
from streamd.net.accounts.request_info import with_info
from streamd.net.accounts.service_latency import sample
from streamd.net.accounts.service_responses import ServiceResponses
from tests.unit.net.account_bed import (
    AccountBed,
    account,
    asks,
    mapping,
    service,
    stream,
    takes,
    without_imports,
)
from tests.unit.net.bed import Node, Peer, Stream
from tests.unit.net.test_message_router import msg, pub

HMSG = re.compile(rb"HMSG (\S+) (\S+) (?:(\S+) )?(\d+) (\d+)\r\n")


def request_of(peer: Peer) -> tuple[bytes, bytes, bytes, dict[str, Any], bytes]:
    """Return (subject, sid, reply, info, payload) of the one request that came."""
    data = peer.take()
    found = HMSG.match(data)
    assert found is not None, data
    subject, sid, reply, header_bytes, total = found.groups()
    body = data[found.end() :]
    headers, payload = body[: int(header_bytes)], body[int(header_bytes) : int(total)]
    assert body[int(total) :] == b"\r\n", data
    (info,) = re.findall(rb"Nats-Request-Info: (.*)\r\n", headers)
    return subject, sid, reply or b"", json.loads(info), payload


def bed_of(
    response: str = "singleton", to: str = "lq.*", *, threshold_ms: int = 0, is_shared: bool = False
) -> AccountBed:
    return AccountBed(
        account("A", service("q.*", response=response, threshold_ms=threshold_ms)),
        account("B", asks("A", "q.*", to, is_shared=is_shared)),
    )


def expected(bed: AccountBed, name: str = "A") -> ServiceResponses:
    return bed.links.responses(name)


# --- requests and responses -----------------------------------------------------------------------


def test_a_request_and_its_response() -> None:
    bed = bed_of()
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.one", b"hello", b"in.1"))
    subject, sid, reply, info, payload = request_of(a)
    assert (subject, sid, payload) == (b"q.one", b"1", b"hello")
    assert re.fullmatch(rb"_R_\.[0-9A-Za-z]{6}\.[0-9A-Za-z]{6}", reply)
    assert info.pop("rtt", 1) > 0 and info == {"acc": "B"}
    a.send(pub(reply, b"answer"))
    assert b.take() == msg(b"in.1", b"1", b"answer")
    a.send(pub(reply, b"again"))  # singleton: one answer
    assert b.take() == b"" and expected(bed).count == 0


@pytest.mark.parametrize(
    ("remote", "to", "asked", "seen"),
    [
        ("q.*.*", "l.$2.$1", b"l.y.x", b"q.x.y"),
        ("q.*.*", "l.*.*", b"l.x.y", b"q.x.y"),
        ("q.>", "l.>", b"l.x.y", b"q.x.y"),
        ("q", "l", b"l", b"q"),
        ("q.*", "", b"q.x", b"q.x"),
    ],
)
def test_the_subject_is_that_of_the_exporter(
    remote: str, to: str, asked: bytes, seen: bytes
) -> None:
    bed = AccountBed(account("A", service(remote)), account("B", asks("A", remote, to)))
    a, b = bed["A"].client(b">"), bed["B"].client()
    b.send(pub(asked))
    assert request_of(a)[0] == seen


def test_a_request_without_reply_has_the_header_too_and_a_forged_one_is_replaced() -> None:
    bed = bed_of()
    a, b = bed["A"].client(b"q.>"), bed["B"].client()
    header = b'NATS/1.0\r\nnats-request-info: {"acc":"X"}\r\nX-Y: abc\r\n\r\n'
    b.send(b"HPUB lq.h %d %d\r\n%bhi\r\n" % (len(header), len(header) + 2, header))
    data = a.take()
    assert data.startswith(b"HMSG q.h 1 ") and b"X-Y: abc\r\nNats-Request-Info: {" in data
    assert b'"X"' not in data and data.endswith(b"\r\n\r\nhi\r\n")
    assert expected(bed).count == 0


def test_header_blocks() -> None:
    info = {"acc": "B", "rtt": 7}
    line = b'Nats-Request-Info: {"acc":"B","rtt":7}\r\n\r\n'
    assert with_info(b"", info) == b"NATS/1.0\r\n" + line
    assert with_info(b"NATS/1.0\r\n\r\n", info) == b"NATS/1.0\r\n" + line
    assert with_info(b"NATS/1.0\r\nA: 1\r\n\r\n", info) == b"NATS/1.0\r\nA: 1\r\n" + line
    twice = b"NATS/1.0\r\nNATS-request-INFO:x\r\nA: 1\r\nNats-Request-Info: y\r\n\r\n"
    assert with_info(twice, info) == b"NATS/1.0\r\nA: 1\r\n" + line


def test_a_shared_import_tells_who_asks() -> None:
    bed = bed_of(is_shared=True)
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.one", b"", b"in.1"))
    info = request_of(a)[3]
    assert info["acc"] == "B" and info["host"] == "127.0.0.1" and info["id"] == b.conn.output.cid
    assert info["server"] == "bed" and info["kind"] == "Client" and info["client_type"] == "nats"
    assert info["start"].endswith("Z")


def test_nobody_there_is_told_under_the_local_subject() -> None:
    bed = bed_of()
    b = bed["B"].client(b"in.*")
    answer = b.send(pub(b"lq.one", b"", b"in.1"))
    assert answer == b"HMSG in.1 1 38 38\r\nNATS/1.0 503\r\nNats-Subject: lq.one\r\n\r\n\r\n"
    assert expected(bed).count == 0
    bed["B"].client(b"lq.>")  # a subscriber of the own account is a receiver
    assert b.send(pub(b"lq.one", b"", b"in.1")) == b""


def test_mappings_of_the_exporter_apply() -> None:
    bed = AccountBed(
        account("A", service("q.*"), mapping("q.m", "q.mapped"), mapping("q.d", "q.d", "q.e")),
        account("B", asks("A", "q.*", "lq.*"), mapping("x", "y")),
    )
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.m"))
    assert request_of(a)[0] == b"q.mapped"
    assert bed["B"].router.map(b"x") == b"y" and bed["A"].router.map(b"x") == b"x"


@pytest.mark.parametrize("response", ["stream", "chunked"])
def test_many_responses_until_an_empty_one(response: str) -> None:
    bed = bed_of(response)
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.one", b"", b"in.1"))
    reply = request_of(a)[2]
    a.send(pub(reply, b"1") + b"HPUB %b 12 12\r\nNATS/1.0\r\n\r\n\r\n" % reply + pub(reply, b"2"))
    a.send(pub(reply, b"") + pub(reply, b"late"))
    got = b.take()
    assert got.startswith(msg(b"in.1", b"1", b"1")) and got.endswith(
        msg(b"in.1", b"1", b"2") + msg(b"in.1", b"1", b"")
    )
    assert expected(bed).count == 0


def test_many_responses_until_none_came_for_a_while() -> None:
    bed = bed_of("stream", threshold_ms=300)
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.one", b"", b"in.1"))
    reply = request_of(a)[2]
    for at in range(5):
        bed.clock.advance(0.2)
        a.send(pub(reply, b"%d" % at))
    assert b.take().count(b"MSG in.1 1 1\r\n") == 5
    bed.clock.advance(0.31)
    assert expected(bed).count == 0
    a.send(pub(reply, b"late"))
    assert b.take() == b""


def test_a_response_that_never_comes_is_expected_for_two_minutes() -> None:
    bed = bed_of()
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.one", b"", b"in.1"))
    bed.clock.advance(119)
    assert expected(bed).count == 1
    bed.clock.advance(2)
    assert expected(bed).count == 0 and a.take()
    assert not expected(bed)._deadlines and not expected(bed)._awaited


@pytest.mark.parametrize("inbox", [b"in.1", b"in.*", b"in.>"])
def test_responses_end_when_the_requester_leaves(inbox: bytes) -> None:
    bed = bed_of("stream")
    a, b = bed["A"].client(b"q.>"), bed["B"].client(inbox)
    b.send(pub(b"lq.one", b"", b"in.1"))
    assert expected(bed).count == 1
    other = bed["B"].client(inbox)
    b.leave()
    assert expected(bed).count == 1  # somebody else listens
    other.leave()
    assert expected(bed).count == 0 and a.take()
    assert not expected(bed, "B")._awaited


def test_expected_responses_are_bounded() -> None:
    bed = bed_of()
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    expected(bed)._max = 10
    for at in range(15):
        b.send(pub(b"lq.%d" % at, b"", b"in.%d" % at))
    replies = re.findall(rb"HMSG q\.\d+ 1 (\S+) ", a.take())
    assert expected(bed).count == 10 and len(replies) == 15
    a.send(b"".join(pub(reply) for reply in replies))
    assert b.take().count(b"MSG in.") == 10


def test_a_response_with_a_reply_may_be_answered() -> None:
    bed = bed_of("stream")
    a, b = bed["A"].client(b"q.>", b"back.*"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.one", b"", b"in.1"))
    reply = request_of(a)[2]
    a.send(pub(reply, b"r", b"back.1"))
    found = re.fullmatch(rb"MSG in\.1 1 (_R_\.\S+) 1\r\nr\r\n", b.take())
    assert found is not None
    b.send(pub(found[1], b"answer"))
    assert a.take() == msg(b"back.1", b"2", b"answer")
    # Of a consumer, whose acks find their way by an import.
    bed["A"].router.publish(reply, b"$JS.ACK.S.C.1.2.3.4.5", b"", b"r")
    assert b.take() == msg(b"in.1", b"1", b"r", b"$JS.ACK.S.C.1.2.3.4.5")


def test_a_request_goes_through_a_chain_of_accounts() -> None:
    bed = AccountBed(
        account("A", service("q.*")),
        account("B", asks("A", "q.*", "bq.*"), service("bq.*")),
        account("C", asks("B", "bq.*", "cq.*")),
    )
    a, c = bed["A"].client(b"q.>"), bed["C"].client(b"in.*")
    c.send(pub(b"cq.one", b"hi", b"in.1"))
    subject, _, reply, info, payload = request_of(a)
    info.pop("rtt", None)
    assert (subject, payload, info) == (b"q.one", b"hi", {"acc": "C", "svc": "B"})
    a.send(pub(reply, b"answer"))
    assert c.take() == msg(b"in.1", b"1", b"answer")
    a.leave()
    assert b"503\r\nNats-Subject: cq.one" in c.send(pub(b"cq.one", b"hi", b"in.1"))
    assert expected(bed).count == 0 == expected(bed, "B").count


def test_replies_of_an_account_begin_alike() -> None:
    """So that one subscription hears them all; those of another account begin otherwise."""
    bed = AccountBed(
        account("A", service("q.*"), service("r.*")),
        account("B", asks("A", "q.*", "lq.*"), asks("A", "r.*", "lr.*"), service("s.*")),
        account("C", asks("A", "q.*", "lq.*"), asks("B", "s.*", "ls.*")),
    )
    a, b, c = bed["A"].client(b">"), bed["B"].client(b"in.*", b"s.*"), bed["C"].client(b"in.*")
    replies = []
    for asking, subject in ((b, b"lq.1"), (b, b"lr.1"), (c, b"lq.1")):
        asking.send(pub(subject, b"", b"in.1"))
        replies.append(request_of(a)[2].split(b"."))
    assert len({reply[1] for reply in replies}) == 1
    assert len({reply[2] for reply in replies}) == 3
    c.send(pub(b"ls.1", b"", b"in.1"))
    assert request_of(b)[2].split(b".")[1] != replies[0][1]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_the_first_account_of_a_chain_says_what_is_shared(first: bool, second: bool) -> None:
    bed = AccountBed(
        account("A", service("q.*")),
        account("B", asks("A", "q.*", "bq.*", is_shared=second), service("bq.*")),
        account("C", asks("B", "bq.*", "cq.*", is_shared=first)),
    )
    a, c = bed["A"].client(b"q.>"), bed["C"].client(b"in.*")
    c.send(pub(b"cq.one", b"", b"in.1"))
    info = request_of(a)[3]
    assert (info["acc"], info["svc"]) == ("C", "B")
    assert ("host" in info) is first
    assert ("server" in info) is (first or second)


def test_circles_of_imports_end() -> None:
    bed = AccountBed(
        account("A", service("q"), asks("B", "q")), account("B", service("q"), asks("A", "q"))
    )
    b = bed["B"].client(b"in.*")
    assert b"503" in b.send(pub(b"q", b"hi", b"in.1"))
    assert expected(bed).count == 0 == expected(bed, "B").count


def test_requests_are_no_messages_of_a_stream_that_others_import() -> None:
    bed = AccountBed(
        account("A", service("q.x"), stream("q.>")),
        account("B", asks("A", "q.x"), takes("A", "q.>", "s.q.>")),
    )
    b = bed["B"].client(b"in.*", b"s.>")
    assert b"503" in b.send(pub(b"q.x", b"1", b"in.1"))
    a = bed["A"].client(b"q.>")
    assert b.send(pub(b"q.x", b"2", b"in.1")) == b""
    a.take()
    a.send(pub(b"q.x", b"3"))
    assert b.take() == msg(b"s.q.x", b"2", b"3")


def test_events_that_follow_from_a_request_are_messages_of_the_exporter() -> None:
    bed = AccountBed(
        account("A", service("q"), stream("event.>")),
        account("B", asks("A", "q")),
        account("C", takes("A", "event.>")),
    )
    router = bed["A"].router

    def answer(_subject: bytes, reply: bytes, *_: object) -> None:
        router.publish(b"event.1", b"", b"", b"e")
        router.publish(reply, b"", b"", b"r")

    router.subscriptions.subscribe_internal(b"q", answer)
    b, c = bed["B"].client(b"in.*"), bed["C"].client(b"event.*")
    assert b.send(pub(b"q", b"", b"in.1")) == msg(b"in.1", b"1", b"r")
    assert c.take() == msg(b"event.1", b"1", b"e")


def test_a_stream_of_the_exporter_takes_requests_and_answers_them() -> None:
    bed = bed_of()
    store = Stream("S", ["q.*"])
    bed["A"].router.attach(Node(store))  # type: ignore[arg-type]
    b = bed["B"].client(b"in.*")
    assert b.send(pub(b"lq.one", b"1", b"in.1")) == b""
    ((msgs, replies, sink),) = store.published
    assert msgs[0][0] == b"q.one" and replies[0].startswith(b"_R_.")
    sink.publish_acks(b"S", replies, [5])
    assert b'{"stream":"S"' in b.take()


def test_acks_reach_a_stream_of_another_account() -> None:
    bed = AccountBed(
        account("A", service("$JS.ACK.>"), stream("d.>")),
        account("B", asks("A", "$JS.ACK.>"), takes("A", "d.>")),
    )
    store = Stream("S", ["x"])
    bed["A"].router.attach(Node(store))  # type: ignore[arg-type]
    ack = b"$JS.ACK.S.C.1.2.3.4.5"
    b = bed["B"].client(b"d.>", b"in.*")
    b.send(pub(ack, b"+ACK"))
    b.send(pub(ack, b"+ACK", b"in.1"))
    assert [each[0] for each in store.acked] == [ack, ack]
    assert store.acked[1][1].startswith(b"_R_.")
    # A consumer that delivers to a subject which another account imports.
    sink = bed["A"].router.sink(b"d.b")
    assert sink is not None
    sink.deliver([(b"x", ack, b"", b"payload")])
    assert b.take() == msg(b"x", b"1", b"payload", ack)


def test_a_pull_of_another_account_gets_its_messages() -> None:
    bed = bed_of("stream")
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.next", b"", b"in.1"))
    reply = request_of(a)[2]
    sink = bed["A"].router.sink(reply)
    assert sink is not None and sink.is_open()
    ack = b"$JS.ACK.S.C.1.2.3.4.5"
    sink.deliver([(b"x", ack, b"", b"payload")])
    sink.deliver_run(b"$JS.ACK.S.C.1.%d.%d.%d.%d", [b"x"], [b"p"], ([2], [3], [4], [5]))
    sink.status(b"NATS/1.0 408 Request Timeout\r\n\r\n")
    got = b.take()
    assert got.startswith(msg(b"x", b"1", b"payload", ack) + msg(b"x", b"1", b"p", ack))
    assert b"HMSG in.1 1 " in got and b"408" in got


def test_imports_that_stay_keep_their_responses() -> None:
    bed = bed_of("stream")
    a, b = bed["A"].client(b"q.>"), bed["B"].client(b"in.*")
    b.send(pub(b"lq.one", b"", b"in.1"))
    reply = request_of(a)[2]
    options = [space.account_options for space in bed.spaces.values()]
    bed.apply(*options)
    a.send(pub(reply, b"1"))
    bed.change("B", without_imports)
    a.send(pub(reply, b"2"))  # the request was taken while it could be
    assert b.take() == msg(b"in.1", b"1", b"1") + msg(b"in.1", b"1", b"2")
    assert b"503" in b.send(pub(b"lq.one", b"", b"in.1"))
    assert bed["B"].subscriptions.internal == []


# --- who may import -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("export", "subject", "is_allowed"),
    [
        (service("q.*"), "q.x", True),
        (service("q.*"), "q.>", False),
        (service("q.*", "B"), "q.x", True),
        (service("q.*", "C"), "q.x", False),
        (stream("q.*"), "q.x", False),
        (service("q.*", position=2), "q.B", True),
        (service("q.*", position=2), "q.C", False),
        (service("q.*", position=2), "q.*", False),
        (service("q.*.x", position=2), "q.B.x", True),
    ],
)
def test_only_what_is_exported_to_an_account(export: Any, subject: str, is_allowed: bool) -> None:
    bed = AccountBed(account("A", export), account("B", asks("A", subject, "")))
    assert (not bed.refused) == is_allowed
    if not is_allowed:
        text = f'account "B" may not import service "{subject}" of account "A"'
        assert bed.refused == [text]


def test_an_import_ends_when_its_activation_expires() -> None:
    start_ns = 1_700_000_000_000_000_000  # of the bed's clock
    short, long = asks("A", "q"), replace(asks("A", "r"), expires_ns=start_ns + 9_000_000_000_000)
    short = replace(short, expires_ns=start_ns + 5_000_000_000)
    gone = replace(asks("A", "s"), expires_ns=start_ns)
    bed = AccountBed(
        account("A", service("q"), service("r"), service("s")), account("B", short, long, gone)
    )
    a, b = bed["A"].client(b"*"), bed["B"].client(b"in.*")
    assert b.send(pub(b"q", b"", b"in.1") + pub(b"r", b"", b"in.1")) == b""
    assert b"503" in b.send(pub(b"s", b"", b"in.1"))
    bed.clock.advance(5)
    assert b"503" in b.send(pub(b"q", b"", b"in.1"))
    assert b.send(pub(b"r", b"", b"in.1")) == b"" and a.take()
    bed.clock.advance(8996)
    bed["A"].client(b"*")
    b = bed["B"].client(b"in.*")  # the others answered no pings meanwhile
    assert b"503" in b.send(pub(b"r", b"", b"in.1"))


def test_every_account_asks_the_system_account_about_itself() -> None:
    bed = AccountBed(account("$SYS"), account("B"), has_system=True)
    system, b = bed["$SYS"].client(b"$SYS.REQ.>"), bed["B"].client(b"in.*")
    subjects = {
        b"$SYS.REQ.ACCOUNT.PING.CONNZ": b"$SYS.REQ.ACCOUNT.B.CONNZ",
        b"$SYS.REQ.SERVER.PING.CONNZ": b"$SYS.REQ.ACCOUNT.B.CONNZ",
        b"$SYS.REQ.ACCOUNT.PING.STATZ": b"$SYS.REQ.ACCOUNT.B.STATZ",
        b"$SYS.REQ.USER.INFO": b"$SYS.REQ.USER.B.INFO",
    }
    for asked, seen in subjects.items():
        b.send(pub(asked, b"", b"in.1"))
        subject, _, reply, info, _ = request_of(system)
        assert subject == seen and info["server"] == "bed"
        assert ("host" in info) == (asked == b"$SYS.REQ.USER.INFO")
        system.send(pub(reply, b"1") + pub(reply, b"2"))
        assert b.take().count(b"MSG in.1 1 1\r\n") == (1 if "host" in info else 2)
    assert b"503" in b.send(pub(b"$SYS.REQ.SERVER.PING.VARZ", b"", b"in.1"))


# --- measurement ----------------------------------------------------------------------------------


def measured(sampling: int = 100, *, is_shared: bool = False) -> AccountBed:
    latency = LatencyOptions("lat.ev", sampling)
    return AccountBed(
        account("A", service("q", latency=latency, threshold_ms=200)),
        account("B", asks("A", "q", is_shared=is_shared)),
    )


def event_of(peer: Peer) -> dict[str, Any]:
    data = peer.take()
    head, _, body = data.partition(b"\r\n")
    assert head.startswith(b"MSG lat.ev 1 "), data
    event: dict[str, Any] = json.loads(body)
    assert event["type"] == "io.nats.server.metric.v1.service_latency" and len(event["id"]) == 22
    return event


def test_an_answered_request_is_measured() -> None:
    bed = measured(is_shared=True)
    a, watcher, b = bed["A"].client(b"q"), bed["A"].client(b"lat.ev"), bed["B"].client(b"in.*")
    b.send(pub(b"q", b"", b"in.1"))
    reply = request_of(a)[2]
    assert re.fullmatch(rb"_R_\.\w{6}\.\w{6}\.\w{8}\.T", reply)
    bed.clock.advance(0.05)
    a.send(pub(reply, b"answer"))
    event = event_of(watcher)
    assert event["status"] == 200 and "description" not in event and "header" not in event
    assert event["requestor"]["acc"] == "B" and event["requestor"]["id"] == b.conn.output.cid
    assert event["responder"]["acc"] == "A" and event["responder"]["id"] == a.conn.output.cid
    assert abs(event["total"] - event["requestor"].get("rtt", 0) - 50_000_000) < 1_000_000
    assert b.take() == msg(b"in.1", b"1", b"answer")


@pytest.mark.parametrize(
    ("case", "status", "description"),
    [
        ("no reply", 400, "Bad Request"),
        ("requester gone", 408, "Request Timeout"),
        ("nobody there", 503, "Service Unavailable"),
        ("too late", 504, "Service Timeout"),
    ],
)
def test_a_request_that_fails_is_reported(case: str, status: int, description: str) -> None:
    bed = measured()
    watcher, b = bed["A"].client(b"lat.ev"), bed["B"].client(b"in.*")
    if case != "nobody there":
        bed["A"].client(b"q")
    b.send(pub(b"q", b"", b"" if case == "no reply" else b"in.1"))
    if case == "requester gone":
        b.leave()
    elif case == "too late":
        bed.clock.advance(0.21)
    event = event_of(watcher)
    assert (event["status"], event["description"]) == (status, description)
    assert (event["service"], event["system"], event["total"]) == (0, 0, 0)
    assert "responder" not in event and event["requestor"]["acc"] == "B"
    assert expected(bed).count == 0


SAMPLED = {"X-B3-Sampled": ["1"]}


def header(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, "")).encode()


@pytest.mark.parametrize(
    ("sampling", "headers", "found"),
    [
        (100, b"", {}),
        (0, b"", None),
        (0, header("A: 1"), None),
        (0, header("X-B3-Sampled: 1", "a: 7"), {"X-B3-Sampled": ["1"]}),
        (0, header("x-b3-sampled: 1", "x-b3-SPANID: 7"), {**SAMPLED, "X-B3-Spanid": ["7"]}),
        (0, header("X-B3-Sampled: 0", "X-B3-TraceId: 7"), None),
        (0, header("X-B3-TraceId: 7"), {"X-B3-Traceid": ["7"]}),
        (0, header("b3: 0"), None),
        (0, header("b3: a-b-1"), {"B3": ["a-b-1"]}),
        (0, header("b3: a-b-0"), None),
        (0, header("uber-trace-id: a:b:c:1"), {"Uber-Trace-Id": ["a:b:c:1"]}),
        (0, header("uber-trace-id: a:b:c:0"), None),
        (0, header("traceparent: 00-a-b-01"), {"Traceparent": ["00-a-b-01"]}),
        (0, header("traceparent: 00-a-b-00"), None),
        (0, header("traceparent: 00-a-b-zz"), None),
    ],
)  # fmt: skip
def test_sampling(sampling: int, headers: bytes, found: dict[str, list[str]] | None) -> None:
    assert sample(LatencyOptions("l", sampling), headers, lambda below: 0) == found


def test_a_share_of_requests_is_measured() -> None:
    options = LatencyOptions("l", 25)
    hits = [sample(options, b"", lambda below, at=at: at) is not None for at in range(100)]
    assert sum(hits) == 25
