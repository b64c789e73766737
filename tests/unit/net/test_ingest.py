"""Publishes that are not what they look like: cut, refused, or delivered to nobody."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamd.machine.message_headers import are_stored_as_sent, as_stored
from streamd.net.pubsub.message_trace import Kind
from streamd.net.pubsub.message_tracing import MessageTracing
from tests.unit.net.bed import Bed, Node, Peer, Stream

ONLY = b"NATS/1.0\r\nNats-Trace-Dest: t\r\nNats-Trace-Only: true\r\n\r\n"
FAST = b"i.b.10.ok.1.0.$FI"


def hpub(subject: bytes, headers: bytes, reply: bytes = b"") -> bytes:
    head = subject + (b" " + reply if reply else b"")
    return b"HPUB %b %d %d\r\n%bhi\r\n" % (head, len(headers), len(headers) + 2, headers)


class Side:
    """A stream, who publishes into it, and who listens to all."""

    def __init__(self, *, is_local: bool = True, **config: object) -> None:
        self.stream = Stream("S", ["s.>"])
        self.stream.is_local = is_local
        self.stream.machine.config.update(config)
        bed = Bed(node=Node(self.stream))
        self.watcher: Peer = bed.peer()
        self.watcher.send(b"SUB > 1\r\n")
        self.peer: Peer = bed.peer()

    @property
    def stored(self) -> list[bytes]:
        """The headers of what the stream was given."""
        return [msg[1] for msgs, _, _ in self.stream.published for msg in msgs]


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n\r\n"),
        (b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0 503\r\n\r\n", b""),
        (b"NATS/1.0 404 No Messages\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0\nA: 1\r\n\r\n", b""),
        (b"NATS/1.0 503", b"NATS/1.0 503"),
        (b"XATS/1.0 503\r\n\r\n", b"XATS/1.0 503\r\n\r\n"),
        (b"NATS/1.0 503\r\nA: NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: NATS/1.0\r\n\r\n"),
        (b"NATS/1.0\r\nNats-Request-Info: {}\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0\r\nNats-Request-Info: {}\r\n\r\n", b""),
        (
            b"NATS/1.0\r\nNats-Trace-Dest: a.b\r\nA: 1\r\n\r\n",
            b"NATS/1.0\r\nNats-Trace-Dest: trace disabled\r\nA: 1\r\n\r\n",
        ),
        (b"NATS/1.0\r\nNats-Trace-Dest: a b\r\n\r\n", b"NATS/1.0\r\nNats-Trace-Dest: a b\r\n\r\n"),
    ],
)
def test_a_stream_keeps_no_word_that_only_a_server_may_say(sent: bytes, stored: bytes) -> None:
    """Alone and among others: what is stored is the same, and each way notices what to change."""
    assert as_stored(sent) == stored
    assert as_stored(stored) == stored or not stored
    plain = b"NATS/1.0\r\nB: 2\r\n\r\n"
    for chunk in ([sent], [plain, sent], [sent, plain], [sent, sent]):
        assert stored == sent or not are_stored_as_sent(b"".join(chunk))
        side = Side()
        side.peer.send(b"".join(hpub(b"s.a", headers) for headers in chunk))
        assert side.stored == [stored if headers == sent else headers for headers in chunk]
        assert side.watcher.take().count(sent + b"hi") == chunk.count(sent), "seen as it was sent"


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_member_of_a_fast_batch_is_refused(count: int, *, is_local: bool) -> None:
    """Whoever leads the stream: the reply subject that makes it one does not travel there."""
    side = Side(is_local=is_local)
    side.peer.send(b"PUB s.b r.1 2\r\nhi\r\n" + b"PUB s.a %b 2\r\nhi\r\n" % FAST * count)
    assert [msgs for msgs, _, _ in side.stream.published] == [[(b"s.b", b"", b"hi")]]
    seen = side.watcher.take()
    assert seen.count(b"MSG " + FAST) == seen.count(b'"err_code":10205') == count, seen


@pytest.mark.parametrize(
    ("config", "code"), [({"sealed": True}, b"10109"), ({"max_msg_size": 1}, b"10054")]
)
def test_other_faults_of_a_fast_batch_are_told_first(
    config: dict[str, object], code: bytes
) -> None:
    side = Side(**config)
    side.peer.send(b"PUB s.a %b 2\r\nhi\r\n" % FAST)
    assert b'"err_code":' + code in side.watcher.take()
    assert not side.stream.published


def test_a_fast_batch_for_a_stream_without_acks_is_dropped() -> None:
    side = Side(no_ack=True)
    side.peer.send(b"PUB s.a %b 2\r\nhi\r\n" % FAST)
    assert b"err_code" not in side.watcher.take()
    assert not side.stream.published


@pytest.mark.parametrize("others", [b"", b"PUB s.b 2\r\nhi\r\n"])
def test_a_trace_alone_reaches_no_subscriber(others: bytes) -> None:
    side = Side()
    assert side.peer.send(others + hpub(b"s.a", ONLY, b"r") + hpub(b"c.a", ONLY, b"r")) == b""
    assert side.stored == [b""] * bool(others)
    assert b"NATS/1.0" not in side.watcher.take()


def test_a_trace_without_a_listener_hears_no_responders() -> None:
    stream = Stream("S", ["s.>"])
    peer = Bed(node=Node(stream)).peer()
    peer.send(b"SUB r 1\r\n")
    assert b"503" in peer.send(hpub(b"c.a", ONLY, b"r"))
    assert b"503" not in peer.send(hpub(b"s.a", ONLY, b"r"))
    assert not stream.published


@pytest.mark.parametrize(
    ("block", "is_only"),
    [
        (ONLY, True),
        (ONLY.replace(b"true", b"ON "), True),
        (ONLY.replace(b"true", b"yes"), False),
        (ONLY.replace(b" t\r", b" \r"), False),
        (ONLY.replace(b" t\r", b" trace disabled\r"), False),
        (ONLY.replace(b" t\r", b" *\r"), True),
        (ONLY.replace(b"1.0", b"1.0 503", 1), False),
        (ONLY.replace(b"Nats-Trace-Dest", b"Dest"), False),
        (ONLY.lower().replace(b"nats/", b"NATS/"), False),
    ],
)
def test_headers_that_ask_for_a_trace_alone(block: bytes, *, is_only: bool) -> None:
    source = SimpleNamespace(cid=1, name="")
    found, _ = MessageTracing().begin(source, Kind.CLIENT, "A", b"a", block, b"", None)
    assert (found is not None and found.is_only) is is_only
