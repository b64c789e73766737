"""The parser of leaf links against every way of cutting its input, against garbage, and against its
own lines."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.protocol import leaf_protocol as leaf
from streamd.protocol.leaf_protocol import LeafParser

LINE_MAX, PAYLOAD_MAX = 200, 1000
INPUTS = 20_000  # of random ones in `make test`; `make prove` tries a million

_HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
_token = st.sampled_from([b"a", b"foo.bar", b"LMSG", b"_INBOX.x.1", b"$JS.ACK.s.c", b"$LDS.x"])
_maybe = st.one_of(st.just(b""), _token)
_payload = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"\r\n", b"a\r\nLMSG b 1\r\nx", b"y" * 90])
)


def _msg(subject, reply, queues, headers, payload):
    size = len(headers) + len(payload)
    line = leaf.msg_line(subject, reply, queues, header_size=len(headers), size=size)
    return line + b"\r\n" + headers + payload + b"\r\n"


_msgs = st.tuples(
    _token, _maybe, st.lists(_token, max_size=3), st.sampled_from([b"", _HEADERS]), _payload
)
_good = st.one_of(
    _msgs.map(lambda msg: _msg(*msg)),
    st.builds(leaf.sub_line, _token, _maybe, st.integers(1, 9)).map(lambda line: line + b"\r\n"),
    st.builds(leaf.unsub_line, _token, _maybe).map(lambda line: line + b"\n"),
    st.sampled_from([b"PING\r\n", b"pong\n", b"+OK\r\n", b"INFO {}\r\n", b"-ERR 'x y'\r\n"]),
)
_bad = st.sampled_from(
    [
        *(b"", b"", b"", b"MSG x 1\r\n", b"LMSG a 3\r\nabcd\r\n", b"LMSG a 9999\r\n", b"\r\n"),
        *(b"LM", b"\n", b"LS+ " + b"q" * 300, b"PING" + b"q" * 300, b"LS+ a b\r\n", b"LS+ a b 0\n"),
        *(
            b"ZZ" + b"q" * 300 + b"\r\n",
            b"LS- a b c\r\n",
            b"HMSG a 0 3\r\nabc\r\n",
            b"LMSG a x b 1\n",
        ),
        *(b"HMSG a 9 3\r\nabc\r\n", b"LMSG 1\r\n", b"INFO " + b"i" * 300),
    ]
)


def _parser():
    return LeafParser(line_bytes_max=LINE_MAX, payload_bytes_max=PAYLOAD_MAX)


def _flat(chunks):
    """All events of `chunks`, messages one by one: how they are grouped depends on the cuts."""
    parser = _parser()
    flat = []
    for chunk in chunks:
        while events := parser.feed(chunk):
            for event in events:
                if event[0] == leaf.MSGS:
                    flat += [
                        (leaf.MSGS, msg[0], msg[1], list(msg[2]), *msg[3:]) for msg in event[1]
                    ]
                else:
                    flat.append(event)
            chunk = b""
        assert parser.buffered_bytes <= LINE_MAX + PAYLOAD_MAX + 2
    return flat


@settings(max_examples=300)
@given(st.lists(_good, max_size=6), _bad, st.lists(st.integers(0, 500), max_size=8))
def test_cuts_do_not_change_the_events(good, bad, cuts):
    data = b"".join(good) + bad
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(at)]
    whole = _flat([data])
    assert _flat(chunks) == whole
    assert _flat([data[i : i + 1] for i in range(len(data))]) == whole


@settings(max_examples=200)
@given(st.lists(_msgs, max_size=8))
def test_messages_come_back_as_they_were_written(msgs):
    data = b"".join(_msg(*msg) for msg in msgs)
    assert _flat([data]) == [(leaf.MSGS, *msg) for msg in msgs]


_PIECES = (
    *(b"LMSG ", b"HMSG ", b"LS+ ", b"LS- ", b"PING", b"PONG", b"INFO ", b"CONNECT {", b"-ERR '"),
    *(b"a.b", b" ", b"+ ", b"| ", b"\r\n", b"\n", b"\r", b"12", b"3", b"0", b"999999999999", b">"),
    *(b"q" * 150, b"\x00\xff", b"$LDS.", b"{}", b"lmsg a 1\r\nx\r\n", b"HMSG a 3 5\r\nabcde\r\n"),
)


def _try_inputs(count, seed):
    """Feed random inputs, most of which begin well, in one piece and cut: nothing is raised, and
    the events are the same. Returns how many held an error, and how many a message."""
    rng = random.Random(seed)
    error_count = msg_count = 0
    for _ in range(count):
        if rng.random() < 0.1:
            data = rng.randbytes(rng.randrange(1, 40))
        else:
            data = b"".join(rng.choices(_PIECES, k=rng.randrange(1, 9)))
            if rng.random() < 0.3:
                at = rng.randrange(len(data))
                data = data[:at] + rng.randbytes(1) + data[at + 1 :]
        whole = _flat([data])
        at = rng.randrange(len(data) + 1)
        assert _flat([data[:at], data[at:]]) == whole, (data, at)
        kinds = {event[0] for event in whole}
        error_count += leaf.ERROR in kinds
        msg_count += leaf.MSGS in kinds
    return error_count, msg_count


def test_random_input_is_parsed_or_refused():
    error_count, msg_count = _try_inputs(INPUTS, seed=1)
    assert 0.3 < error_count / INPUTS < 0.97
    assert msg_count > INPUTS / 200


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_a_million_random_inputs_are_parsed_or_refused():
    error_count, msg_count = _try_inputs(1_000_000, seed=2)
    assert error_count and msg_count
