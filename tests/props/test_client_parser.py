"""The client parser against every way of cutting its input, and against garbage."""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamd.protocol import client_protocol
from streamd.protocol.client_protocol import ClientParser

_token = st.sampled_from([b"a", b"foo.bar", b"PUB", b"_INBOX.x.1", b"x\r", b"$JS.ACK.s.c"])
_payload = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"\r\n", b"a\r\nPUB b 1\r\nx", b"y" * 90])
)


def _pub(subject, reply, payload):
    return b"PUB %b %b%d\r\n%b\r\n" % (
        subject,
        reply + b" " if reply else b"",
        len(payload),
        payload,
    )


def _hpub(subject, reply, payload):
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    size = len(block)
    head = b"HPUB %b %b%d %d" % (subject, reply + b" " if reply else b"", size, size + len(payload))
    return head + b"\r\n" + block + payload + b"\r\n"


_good = st.one_of(
    st.builds(_pub, _token, st.one_of(st.just(b""), _token), _payload),
    st.builds(_hpub, _token, st.one_of(st.just(b""), _token), _payload),
    st.sampled_from([b"PING\r\n", b"PONG\n", b"SUB a 1\r\n", b"sub a q 2\r\n", b"UNSUB 1 5\r\n"]),
    st.integers(2, 12).map(lambda n: _pub(b"run", b"", b"z" * 60) * n),
    st.integers(2, 12).map(
        lambda n: b"".join(_pub(b"run", b"_INBOX.i.%d" % i, b"z" * 60) for i in range(n))
    ),
)
_bad = st.sampled_from(
    [
        *(b"", b"", b"", b"MSG x\r\n", b"PUB a 3\r\nabcd\r\n", b"PUB a 99999\r\n", b"PU\r\n"),
        *(b"PUB", b"\n", b"SUB " + b"q" * 300, b"PING" + b"q" * 300),
        *(b"ZZ" + b"q" * 300 + b"\r\n", b"PUB\rx 1\n1\r\n"),
    ]
)


def _flat(chunks, parser=None):
    """All events of `chunks`, publishes one by one: how they are grouped depends on the cuts."""
    parser = parser or ClientParser(max_payload=1000, max_control_line=200)
    flat = []
    for chunk in chunks:
        parser._bulk_skip = 0  # a chunk that could not be read in bulk keeps no other from it
        for event in parser.feed(chunk):
            if event[0] != client_protocol.PUBS:
                flat.append(event)
                continue
            _, subjects, replies, headers, payloads = event
            count = len(payloads)
            assert count
            for column in (subjects, replies, headers):
                assert column is None or len(column) == count
            none = [b""] * count
            flat.extend(zip(subjects, replies or none, headers or none, payloads, strict=True))
    return flat


@settings(max_examples=150, deadline=None)
@given(st.lists(_good, max_size=8), _bad, st.lists(st.integers(0, 3000), max_size=8))
def test_no_cut_changes_the_meaning(good, bad, cuts):
    data = b"".join(good) + bad
    points = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(points)]
    assert _flat(pieces) == _flat([data])


_MIMIC = b"\r\nPUB run _INBOX.i.7 30\r\nab\r\n"  # 30 bytes that look like messages of the run


@st.composite
def _runs(draw):
    """Many publishes that are nearly of one length, with payloads that look like protocol."""
    payloads = st.sampled_from([b"z" * 30, b"z" * 30, _MIMIC, b"\r\n" * 15, b"z" * 29])
    replies = st.sampled_from([b"_INBOX.i.%d", b"_INBOX.i.%02d", b"_INBOX.i.7"])
    reply = draw(st.one_of(st.just(b""), replies))
    subject = draw(st.sampled_from([b"run", b"run", b"r%d"]))
    parts = []
    for at in range(draw(st.integers(2, 14))):
        answer = reply % at if b"%" in reply else reply
        name = subject % at if b"%" in subject else subject
        parts.append(_pub(name, answer, draw(payloads)))
    return b"".join(parts)


@settings(max_examples=200, deadline=None)
@given(_runs(), st.binary(max_size=3), st.integers(0, 600), st.integers(0, 255))
def test_the_bulk_reader_agrees_with_one_by_one(run, tail, at, byte):
    data = bytearray(run + tail)
    if at < len(data):
        data[at] = byte
    assert _read([bytes(data)], is_bulk=True) == _read([bytes(data)], is_bulk=False)


class _OneByOne(ClientParser):
    """A parser that reads nothing but one publish after the other."""

    def _lone(self, data):
        return None


def _read(chunks, *, is_bulk):
    """Return the events of a parser of `chunks` that reads in bulk, and lone publishes, wherever it
    can; or nowhere. Also the bytes that it keeps."""
    kind = ClientParser if is_bulk else _OneByOne
    parser = kind(max_payload=1000, max_control_line=200)
    for size in range(100):
        parser._sizes.learn(b"%d" % size)  # else no publish is read as a lone one
    smallest = client_protocol.PARSER_BULK_BYTES_MIN
    client_protocol.PARSER_BULK_BYTES_MIN = 1 if is_bulk else 1 << 30
    try:
        return _flat(chunks, parser), parser.buffered_bytes
    finally:
        client_protocol.PARSER_BULK_BYTES_MIN = smallest


_fragment = st.one_of(
    _good,
    _bad,
    _runs(),
    st.binary(max_size=12),
    st.sampled_from(
        [
            *(b"PUB ", b"PUB  ", b"pub ", b"HPUB ", b"a", b" ", b"\t", b"\r", b"\n", b"\r\n"),
            *(b"0", b"1", b"01", b"12", b"0" * 10, b"1000", b"1001", b"PUB a 1\r\nx\r\n"),
            *(b"PUB a\x0bb 1\r\nx\r\n", b"PUB a\x0c 1\r\nx\r\n", b"PUB a r 0\n\r\n"),
            *(b"HPUB\r\n", b"HPUB 1\r\n", b"HPUB a 0 1\r\nx\r\n", b"PUB a " + b"r" * 195),
        ]
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(_fragment, max_size=10), st.lists(st.integers(0, 4000), max_size=6))
def test_all_readers_of_publishes_agree_on_any_bytes_cut_anywhere(fragments, cuts):
    """Bulk, lone and one by one share one grammar; each cut is read by both, and both cuts mean
    the same."""
    data = b"".join(fragments)
    points = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(points)]
    one_by_one = _read(pieces, is_bulk=False)
    assert _read(pieces, is_bulk=True) == one_by_one
    assert _read([data], is_bulk=True)[0] == one_by_one[0]


_odd = st.sampled_from([b"", b" ", b"\t", b"\r", b"\n", b"\r\n", b"0", b"x", b"\x00"])


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.builds(_pub, _token, st.one_of(st.just(b""), _token), _payload),
        st.builds(_hpub, _token, st.one_of(st.just(b""), _token), _payload),
        st.builds(b"HPUB a %d %d\r\nheaders\r\n".__mod__, st.tuples(*[st.integers(0, 9)] * 2)),
    ),
    st.integers(0, 400),
    st.integers(0, 2),
    _odd,
    st.sampled_from([20, 90, 200, 1000]),
    st.sampled_from([16, 100]),
)
@example(b"HPUB a 9 7\r\nheaders\r\n", 0, 0, b"", 1000, 100)
@example(b"PUB a 9\r\nninebytes\r\n", 0, 0, b"", 8, 100)
@example(b"PUB abcdefghijk 2\r\nhi\r\n", 0, 0, b"", 1000, 16)
def test_a_lone_publish_means_the_same_in_one_chunk_or_two(message, at, cut, odd, longest, line):
    """Some bytes of it are cut out, others put in; its size fields are known to the parser."""
    damaged = message[:at] + odd + message[at + cut :]
    results = []
    for pieces in ([damaged], [damaged[:1], damaged[1:]]):
        parser = ClientParser(max_payload=longest, max_control_line=line)
        for size in range(115):
            parser._sizes.learn(b"%d" % size)
        events = [event for piece in pieces for event in parser.feed(piece)]
        results.append((events, parser.buffered_bytes))
    assert results[0] == results[1]


@settings(max_examples=30, deadline=None)
@given(st.lists(_good, max_size=3), _bad)
@example([b"PUB a 2\r\nhi\r\n"], b"PUB a 3\r\nabcd\r\n")
def test_byte_by_byte_is_the_same(good, bad):
    data = b"".join(good) + bad
    assert _flat([data[at : at + 1] for at in range(len(data))]) == _flat([data])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), _good, _bad), max_size=6))
def test_garbage_never_raises_nor_grows(pieces):
    parser = ClientParser(max_payload=1000, max_control_line=200)
    for piece in pieces:
        parser.feed(piece)
    assert parser.buffered_bytes <= 1000 + 200 + 64 + max(map(len, pieces), default=0)


@settings(max_examples=200, deadline=None)
@given(st.lists(_good, min_size=1, max_size=4), st.data())
def test_one_flipped_byte_is_survived_and_cut_independent(good, data):
    text = bytearray(b"".join(good))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(text)))
    whole = bytes(text)
    assert _flat([whole[:cut], whole[cut:]]) == _flat([whole])
