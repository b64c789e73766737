"""Header blocks: what is found in them, and that building and parsing agree."""

from hypothesis import given
from hypothesis import strategies as st

from streamd.protocol import headers

BLOCK = b"NATS/1.0 408 Request Timeout\r\nA: 1\r\nNats-Msg-Id:x y \r\nA: 2\r\n\r\n"


def test_get_is_exact_in_case_and_first_wins():
    assert headers.get(BLOCK, b"A") == b"1"
    assert headers.get(BLOCK, b"a") is None
    assert headers.get(BLOCK, b"Nats-Msg-Id") == b"x y"
    assert headers.get(BLOCK, b"Msg-Id") is None
    assert headers.get(b"", b"A") is None


def test_status_is_separate_from_the_pairs():
    assert headers.status(BLOCK) == b"408 Request Timeout"
    assert headers.parse(BLOCK) == [(b"A", b"1"), (b"Nats-Msg-Id", b"x y"), (b"A", b"2")]
    assert headers.status(b"NATS/1.0\r\n\r\n") == b""


def test_without_leaves_nothing_of_an_emptied_block():
    block = headers.build([(b"A", b"1"), (b"B", b"2")])
    assert headers.parse(headers.without(block, [b"A"])) == [(b"B", b"2")]
    assert headers.without(block, [b"A", b"B"]) == b""
    assert headers.without(BLOCK, [b"A", b"Nats-Msg-Id"]).startswith(b"NATS/1.0 408")


def test_append_to_a_block_or_to_nothing():
    assert headers.append(b"", [(b"A", b"1")]) == b"NATS/1.0\r\nA: 1\r\n\r\n"
    assert headers.get(headers.append(BLOCK, [(b"C", b"3")]), b"C") == b"3"


_text = st.text("abcXYZ-_ 09", min_size=1, max_size=8).map(lambda t: t.strip().encode() or b"k")


@given(st.lists(st.tuples(_text, _text), max_size=6))
def test_parse_inverts_build(pairs):
    assert headers.parse(headers.build(pairs)) == pairs


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=5))
def test_no_block_makes_a_reader_raise(block, key):
    headers.get(block, key), headers.parse(block), headers.status(block)
