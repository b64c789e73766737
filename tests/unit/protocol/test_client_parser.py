"""The client parser on whole chunks: events, limits and violations, by example."""

import pytest

from streamd.protocol import client_protocol
from streamd.protocol.client_protocol import ClientParser


def parse(data, *, max_payload=1024, max_control_line=64):
    return ClientParser(max_payload=max_payload, max_control_line=max_control_line).feed(data)


def test_control_lines():
    data = b'CONNECT {"a":1}\r\nsub a.* q 7\r\nSUB\tb  8\r\nUNSUB 7 3\r\n'
    data += b"unsub 8\r\nPING\r\nPONG\n+OK\r\n"
    assert parse(data) == [
        (client_protocol.CONNECT, b'{"a":1}'),
        (client_protocol.SUB, b"a.*", b"q", b"7"),
        (client_protocol.SUB, b"b", b"", b"8"),
        (client_protocol.UNSUB, b"7", 3),
        (client_protocol.UNSUB, b"8", 0),
        (client_protocol.PING,),
        (client_protocol.PONG,),
    ]


def test_publishes_come_as_columns():
    data = b"PUB a 2\r\nhi\r\nHPUB b r 12 14\r\nNATS/1.0\r\n\r\nyo\r\nPUB c r2 0\r\n\r\n"
    assert parse(data) == [
        (
            client_protocol.PUBS,
            [b"a", b"b", b"c"],
            [b"", b"r", b"r2"],
            [b"", b"NATS/1.0\r\n\r\n", b""],
            [b"hi", b"yo", b""],
        )
    ]


def test_order_of_publishes_and_others_is_kept():
    kinds = [event[0] for event in parse(b"PUB a 0\r\n\r\nPING\r\nPUB a 0\r\n\r\nSUB b 1\r\n")]
    assert kinds == [
        client_protocol.PUBS,
        client_protocol.PING,
        client_protocol.PUBS,
        client_protocol.SUB,
    ]


@pytest.mark.parametrize(
    "payloads",
    [
        [b"x" * 40] * 30,  # one size: the column path
        [b"x" * (i % 7) for i in range(60)],
        [b"a\r\nb" + b"x" * 40] * 30,  # a CRLF inside: read one by one
    ],
)
@pytest.mark.parametrize("reply", [b"", b"_INBOX.a.%d "])
@pytest.mark.parametrize("subject", [b"s", b"s.%d"])
def test_bulk_and_single_reading_agree(payloads, reply, subject):
    data = b""
    wanted = []
    for at, payload in enumerate(payloads):
        name = subject % at if b"%" in subject else subject
        answer = reply % at if reply else b""
        data += b"PUB %b %b%d\r\n%b\r\n" % (name, answer, len(payload), payload)
        wanted.append((name, answer.strip(), payload))
    (event,) = parse(data)
    replies = event[2] or [b""] * len(payloads)
    assert event[3] is None
    assert list(zip(event[1], replies, event[4], strict=True)) == wanted


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"XYZ", b"Unknown Protocol Operation"),
        (b"\r\n", b"Unknown Protocol Operation"),
        (b"MSG a 1 2\r\n", b"Unknown Protocol Operation"),
        (b" PING\r\n", b"Unknown Protocol Operation"),
        (b"PUB\r\n", b"Unknown Protocol Operation"),
        (b"PUB a 2\r\nhix\r", b"Unknown Protocol Operation"),
        (b"PUB a\r\n", b""),
        (b"PUB a -1\r\n", b""),
        (b"PUB a 1_0\r\n", b""),
        (b"PUB a 1234567890\r\n", b""),
        (b"HPUB a 5 4\r\n", b""),
        (b"SUB a\r\n", b""),
        (b"PUB a 1025\r\n", b"Maximum Payload Violation"),
        (b"PUB " + b"a" * 90, b"maximum control line exceeded"),
        (b"PUB " + b"a" * 90 + b" 0\r\n\r\n", b"maximum control line exceeded"),
        (b"PING" + b"a" * 900, b"maximum control line exceeded"),
    ],
)
def test_violations_end_the_parser(data, text):
    parser = ClientParser(max_payload=1024, max_control_line=64)
    events = parser.feed(b"PING\r\n" + data)
    assert events[0] == (client_protocol.PING,)
    assert events[-1][:2] == (client_protocol.ERROR, text)
    assert parser.feed(b"PING\r\n") == []
    assert parser.buffered_bytes == 0


def test_a_limit_exceeded_inside_a_bulk_chunk_is_seen():
    data = b"PUB a 8\r\n12345678\r\n" * 60 + b"PUB a 2000\r\n"
    events = parse(data)
    assert events[-1][:2] == (client_protocol.ERROR, b"Maximum Payload Violation")
    assert sum(len(event[1]) for event in events[:-1]) == 60


def test_a_partial_line_without_end_holds_bounded_memory():
    parser = ClientParser(max_payload=1024, max_control_line=4096)
    assert parser.feed(b"SUB ") == []
    for _ in range(1000):
        if parser.feed(b"a" * 1000):
            break
    assert parser.buffered_bytes == 0


@pytest.mark.parametrize("cut", [0, 80])
def test_a_verb_without_end_is_too_long_wherever_it_is_cut(cut):
    """Its first blank may come after the limit: then the arguments behind it are short."""
    data = b"PING" + b"q" * 90 + b" x\r\nPING\r\n"
    parser = ClientParser(max_payload=1024, max_control_line=64)
    events = parser.feed(data[:cut]) + parser.feed(data[cut:])
    assert [event[:2] for event in events] == [
        (client_protocol.ERROR, b"maximum control line exceeded")
    ]
