"""Traces of messages: which there are, their events, and that they change nothing for others."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.config.account_options import TraceOptions
from streamd.errors import STREAM_WRONG_LAST_SEQUENCE
from streamd.net.pubsub.message_trace import MessageTrace, header_values, is_sampled, replaced
from tests.unit.net.bed import Bed, Node, Stream

DEST = b"Nats-Trace-Dest: t\r\n"
ONLY = b"Nats-Trace-Only: 1\r\n"
SAMPLED = b"traceparent: 00-a-b-01\r\n"


def hpub(subject: bytes, *lines: bytes, reply: bytes = b"") -> bytes:
    block = b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n"
    to = subject + (b" " + reply if reply else b"")
    return b"HPUB %b %d %d\r\n%bx\r\n" % (to, len(block), len(block) + 1, block)


class Side:
    """A server with a stream on `s.>`, a client, and the traces that were sent."""

    def __init__(self) -> None:
        self.stream = Stream("S", ["s.>"])
        self.bed = Bed(node=Node(self.stream))
        self.sent: list[MessageTrace] = []
        self.bed.router.traced.tracing.send = self.sent.append
        self.peer = self.bed.peer()

    def kinds(self) -> list[list[Any]]:
        return [[event["type"] for event in trace.events] for trace in self.sent]


def test_a_message_without_a_destination_has_no_trace() -> None:
    side = Side()
    side.peer.send(b"PUB a 1\r\nx\r\n" + hpub(b"a", b"K: v\r\n") + hpub(b"a", ONLY))
    side.peer.send(hpub(b"a", SAMPLED))
    assert not side.sent


def test_each_delivery_is_an_event_and_order_is_kept() -> None:
    side = Side()
    other = side.bed.peer()
    other.send(b"SUB a 1\r\nSUB a q 2\r\nSUB * 3\r\n")
    other.take()
    side.peer.send(b"PUB a 1\r\n1\r\n" + hpub(b"a", DEST) + b"PUB a 1\r\n3\r\n")
    assert side.kinds() == [["in", "eg", "eg", "eg"]]
    seen = other.take()
    assert seen.count(b"HMSG a 1 ") == 1 and seen.count(b"MSG a 1 1\r\n") == 2
    assert seen.index(b"\r\n1\r\n") < seen.index(b"HMSG a 1 ") < seen.index(b"\r\n3\r\n")


def test_a_trace_alone_is_delivered_to_nobody_and_stored_nowhere() -> None:
    side = Side()
    other = side.bed.peer()
    other.send(b"SUB > 1\r\n")
    other.take()
    side.peer.send(hpub(b"a", DEST, ONLY) + hpub(b"s.a", DEST, ONLY, reply=b"r"))
    assert side.kinds() == [["in", "eg"], ["in", "js", "eg"]]
    assert b"MSG" not in other.take()
    assert not side.stream.published and side.stream.log == ["judge"]


def test_the_document_waits_for_the_stream_and_the_client_gets_its_ack() -> None:
    side = Side()
    side.peer.send(b"SUB r 1\r\n" + hpub(b"s.a", DEST, reply=b"r"))
    assert not side.sent
    ((msgs, replies, sink),) = side.stream.published
    assert msgs == [(b"s.a", b"NATS/1.0\r\nNats-Trace-Dest: trace disabled\r\n\r\n", b"x")]
    sink.publish_acks(b"S", replies, [3])
    assert side.sent[0].events[1] | {"ts": ""} == {
        "type": "js", "ts": "", "stream": "S", "subject": "s.a",
    }  # fmt: skip
    assert b'"seq":3' in side.peer.take()


def test_a_refused_publish_says_why_in_the_words_of_the_trace() -> None:
    side = Side()
    side.peer.send(hpub(b"s.a", DEST, b"Nats-Expected-Last-Sequence: 99\r\n"))
    ((_, replies, sink),) = side.stream.published
    sink.publish_acks(b"S", replies, [STREAM_WRONG_LAST_SEQUENCE(seq=4)])
    assert side.sent[0].events[1]["error"] == "last sequence mismatch: 99 vs 4"


def test_publishes_before_a_traced_one_are_stored_before_it() -> None:
    side = Side()
    side.peer.send(b"PUB s.1 1\r\nx\r\n" + hpub(b"s.2", DEST) + b"PUB s.3 1\r\nx\r\n")
    subjects = [msg[0] for msgs, _, _ in side.stream.published for msg in msgs]
    assert subjects == [b"s.1", b"s.2", b"s.3"]


@pytest.mark.parametrize(("sampling", "count"), [(100, 20), (0, 0)])
def test_an_account_samples_messages_by_traceparent(sampling: int, count: int) -> None:
    side = Side()
    side.bed.router.traced.sampling = TraceOptions("auto.t", sampling)
    for _ in range(20):
        side.peer.send(hpub(b"a", SAMPLED))
    assert len(side.sent) == count
    assert all(trace.destination == b"auto.t" and not trace.is_only for trace in side.sent)


def test_events_go_to_the_account_of_the_publisher_alone() -> None:
    """A client must not name another account."""
    side = Side()
    other = side.bed.peer()
    other.send(b"SUB a 1\r\n")
    other.take()
    side.peer.send(hpub(b"a", DEST, b"Nats-Trace-Origin-Account: X\r\n"))
    assert not side.sent
    assert b"Nats-Trace-Dest: trace disabled" in other.take()


def test_servers_are_numbered_along_the_way() -> None:
    """Those that the publisher's server sends to are 1 and 2, those of the first of these 1.1."""
    trace = MessageTrace(lambda _: None, {}, 0, account="A", destination=b"t", is_only=False)
    assert [trace.next_hop() for _ in range(2)] == ["1", "2"]
    trace.hop, trace.hop_count = "1", 0
    assert [trace.next_hop() for _ in range(2)] == ["1.1", "1.2"]


def test_headers_as_documents_show_them() -> None:
    block = b"NATS/1.0\r\nA: 1\r\na:  2 \r\nA:3\r\nE:\r\nNo\r\nB: \xff\r\n\r\n"
    assert header_values(block) == {"A": ["1", "3"], "a": ["2"], "No\r\nB": ["\ufffd"]}
    assert header_values(b"NATS/1.0 503\r\nA: 1\r\n\r\n") == {}
    assert header_values(b"NATS/1.0\r\nA") == header_values(b"") == {}


def test_a_header_is_replaced_behind_all_others() -> None:
    block = b"NATS/1.0\r\nK: 1\r\nA: 1\r\nK: 2\r\n\r\n"
    assert replaced(block, b"K", b"3") == b"NATS/1.0\r\nA: 1\r\nK: 3\r\n\r\n"
    assert replaced(b"NATS/1.0\r\n\r\n", b"K", b"3") == b"NATS/1.0\r\nK: 3\r\n\r\n"


@pytest.mark.parametrize(
    ("value", "is_so"),
    [("a-b-c-01", True), ("a-b-c-00", False), ("a-b-c-1", False), ("a-b-c-zz", False),
     ("a-b-c-ff", True), ("a-b-01", False), ("a-b-c-01-d", False)],
)  # fmt: skip
def test_the_last_flag_of_traceparent_decides(value: str, *, is_so: bool) -> None:
    assert is_sampled({"TraceParent": [value]}) is is_so
