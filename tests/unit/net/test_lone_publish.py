"""A chunk with nothing but one publish takes a shorter way; it must mean the same."""

from __future__ import annotations

import pytest

from streamd.net.client.connection import Connection
from tests.unit.net.bed import CONNECT, Bed, Node, Peer, Stream

VERBOSE = CONNECT.replace(b'"verbose":false', b'"verbose":true')
PEDANTIC = CONNECT.replace(b'"pedantic":false', b'"pedantic":true')
NO_HEADERS = CONNECT.replace(b'"headers":true,"no_responders":true', b'"headers":false')
HPUB = b"HPUB %b _INBOX.i.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
PUB = b"PUB %b _INBOX.i.1 2\r\nhi\r\n"


class Side:
    """One of two servers that get the same, cut differently."""

    def __init__(self, connect: bytes) -> None:
        self.streams = [
            Stream("S", ["s.>", "both.*"]), Stream("T", ["both.>"]), Stream("N", ["n.*"]),
            Stream("AWAY", ["away.*"]),
        ]  # fmt: skip
        self.streams[2].machine.config["no_ack"] = True
        self.streams[3].is_local = False
        self.node = Node(*self.streams)
        self.bed = Bed(node=self.node)
        self.watcher = self.bed.peer()
        self.watcher.send(b"SUB seen.* 1\r\nSUB s.seen 2\r\n")
        self.peer = self.bed.peer(connect)
        self.answers: list[bytes] = []

    def publish(self, data: bytes, *, is_alone: bool) -> None:
        if is_alone:
            self.answers.append(self.peer.send(data))
        else:
            self.answers.append(self.peer.send(data + b"PONG\r\n"))

    def outcome(self) -> object:
        conn = self.peer.conn
        published = [
            [(msgs, replies, sink is conn.output) for msgs, replies, sink in stream.published]
            for stream in self.streams
        ]
        counts = conn.in_msgs, conn.in_bytes, conn.out_msgs, conn.out_bytes, conn.is_closed
        return self.answers, published, counts, self.watcher.take()


@pytest.mark.parametrize("connect", [CONNECT, VERBOSE, PEDANTIC, NO_HEADERS])
@pytest.mark.parametrize("form", [PUB, HPUB, PUB.replace(b"_INBOX.i.1 ", b"")])
@pytest.mark.parametrize(
    "subject", [b"s.1", b"s.seen", b"seen.1", b"both.1", b"n.1", b"away.1", b"nobody", b"s..1"]
)
def test_a_lone_publish_means_the_same_as_one_among_others(
    connect: bytes, form: bytes, subject: bytes
) -> None:
    sides = [Side(connect), Side(connect)]
    for is_alone, side in zip((True, False), sides, strict=True):
        for _ in range(3):  # the first one teaches the parser its size, and the table its route
            side.publish(form % subject, is_alone=is_alone)
        side.streams.append(Stream("LATER", [subject.decode().replace("..", ".")]))
        side.node.all.append(side.streams[-1])
        side.node.topology_version += 1
        for _ in range(2):
            side.publish(form % subject, is_alone=is_alone)
    assert sides[0].outcome() == sides[1].outcome()


@pytest.mark.parametrize("reply", [b"$JS.ACK.x", b"_R_.x", b"$GNR.x"])
def test_replies_are_checked(reply: bytes) -> None:
    sides = [Side(CONNECT), Side(CONNECT)]
    for is_alone, side in zip((True, False), sides, strict=True):
        for each in (b"_INBOX.i.1", reply):
            side.publish(b"PUB s.1 %b 2\r\nhi\r\n" % each, is_alone=is_alone)
    assert sides[0].outcome() == sides[1].outcome()


def test_headers_are_refused_from_a_client_without_them() -> None:
    sides = [Side(NO_HEADERS), Side(NO_HEADERS)]
    for is_alone, side in zip((True, False), sides, strict=True):
        for size in (12, 14):  # so that the parser knows both fields
            side.publish(
                b"PUB s.1 _INBOX.i.1 %d\r\n%b\r\n" % (size, b"x" * size), is_alone=is_alone
            )
        side.publish(HPUB % b"s.1", is_alone=is_alone)
    assert sides[0].outcome() == sides[1].outcome()
    assert sides[0].peer.conn.is_closed


@pytest.mark.parametrize("form", [PUB, HPUB])
def test_the_way_is_short(form: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(CONNECT)
    side.publish(form % b"s.1", is_alone=True)

    def handle(conn: Connection, events: object) -> None:
        raise AssertionError(events)

    monkeypatch.setattr(Connection, "_handle", handle)
    side.publish(form % b"s.1", is_alone=True)
    assert len(side.streams[0].published) == 2


def acks_to(peer: Peer, reply: bytes, seq: int) -> bytes:
    peer.conn.output.publish_acks(b"S", [reply], range(seq, seq + 1))
    return peer.take()


def test_an_ack_alone_is_one_write() -> None:
    side = Side(CONNECT)
    side.peer.send(b"SUB _INBOX.i.* 9\r\n")
    written = side.peer.transport.written
    side.peer.conn.output.publish_acks(b"S", [b"_INBOX.i.5"], range(41, 42))
    assert written == [b'MSG _INBOX.i.5 9 23\r\n{"stream":"S","seq":41}\r\n']
    assert (side.peer.conn.out_msgs, side.peer.conn.out_bytes) == (1, 23)
    side.peer.take()
    assert acks_to(side.watcher, b"_INBOX.i.6", 42) == b""  # not on the connection that asked
    assert side.peer.take() == b'MSG _INBOX.i.6 9 23\r\n{"stream":"S","seq":42}\r\n'


def test_an_ack_ends_a_subscription_that_waited_for_just_one() -> None:
    side = Side(CONNECT)
    side.peer.send(b"SUB _INBOX.i.* 9\r\nUNSUB 9 1\r\n")
    assert acks_to(side.peer, b"_INBOX.i.1", 1).startswith(b"MSG _INBOX.i.1 9 ")
    assert acks_to(side.peer, b"_INBOX.i.2", 2) == b""
