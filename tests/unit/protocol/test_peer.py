"""Frames between servers: every message there and back, any split, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.limits import PEER_RAFT_FRAME_BYTES
from streamd.protocol import peer_frames
from streamd.protocol.peer_frames import FrameReader, ProtocolError
from streamd.raft import messages as m
from streamd.raft.membership import Membership
from streamd.types import Entry

CLASSES = get_args(m.Message)
names = st.lists(st.text(max_size=5), max_size=3).map(tuple)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    bool: st.booleans(),
    str: st.text(max_size=10),
    Membership: st.builds(Membership, names, names, names, names, needed=st.just(0)),
}


def decode_raft(data: bytes) -> tuple[int, list[m.Message]]:
    """Inverse of `encode_raft`, for the frames of one group."""
    found = [peer_frames.raft_of(frame) for frame in FrameReader().feed(data)]
    assert len({uid for uid, _ in found}) == 1
    return found[0][0], [message for _, messages in found for message in messages]


@st.composite
def append(draw: Any) -> m.Append:
    numbers = [draw(FIELDS[int]) for _ in range(5)]
    entries = [
        Entry(draw(FIELDS[int]), numbers[1] + 1 + at, data, "command", "tag", draw(FIELDS[int]))
        for at, data in enumerate(draw(st.lists(st.binary(max_size=20), max_size=4)))
    ]
    return m.Append(*numbers[:4], entries, numbers[4])


def message_of(cls: type) -> st.SearchStrategy[Any]:
    if cls is m.Append:
        return append()
    hints = get_type_hints(cls)
    return st.builds(cls, *(FIELDS[hints[name]] for name in cls.__slots__))  # type: ignore[attr-defined]


def plain(message: Any) -> Any:
    """What has to arrive: entries without what belongs to their proposer."""
    fields = [getattr(message, name) for name in message.__slots__]
    if type(message) is m.Append:
        fields[4] = [(e.term, e.index, e.data, e.chain, None, None) for e in message.entries]
    return (type(message), fields)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_message_arrives_as_it_was(cls: type, data: st.DataObject) -> None:
    """All classes of `messages.Message`, whatever their fields."""
    sent = data.draw(message_of(cls))
    uid, received = decode_raft(peer_frames.encode_raft(7, [sent, sent]))
    assert uid == 7 and len(received) == 2
    for message in received:
        assert type(message) is cls
        assert all(e.command is None and e.tag is None for e in getattr(message, "entries", []))
        assert plain(message) == plain(sent)


def test_every_message_class_has_a_number_of_its_own() -> None:
    """The format is a table of numbers; a class without one would fail at import."""
    numbers = [peer_frames._NUMBERS[cls.__name__] for cls in CLASSES]
    assert len(set(numbers)) == len(CLASSES)
    assert all(dataclasses.is_dataclass(cls) for cls in CLASSES)


def test_long_messages_are_split_into_frames() -> None:
    """A follower that catches up must not have to take everything in one frame."""
    entry = Entry(1, 1, bytes(PEER_RAFT_FRAME_BYTES // 2 + 1), chain=3)
    sent: list[m.Message] = [m.Append(1, 0, 0, 0, [entry], 0) for _ in range(3)]
    data = peer_frames.encode_raft(5, [*sent, m.TimeoutNow(2)])
    assert [len(received[2]) for received in FrameReader().feed(data)] == [2, 2]
    assert len(decode_raft(data)[1]) == 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_frames_survive_any_split(payloads: list[bytes], data: st.DataObject) -> None:
    """Chunks of a socket know nothing of frames."""
    stream = b"".join(peer_frames.frame(peer_frames.NOTE, "k", [p]) for p in payloads)
    reader = FrameReader()
    received = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += reader.feed(stream[:size])
        stream = stream[size:]
    assert received == [[peer_frames.NOTE, "k", [p]] for p in payloads]


def framed(value: Any) -> bytes:
    body = msgpack.packb(value)
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it starts with b'GET / HTTP/1.1"),
        (b"\x00\x00\x00\x01\xc1", "is not msgpack"),
        (b"\x00\x00\x00\x00", "is not msgpack"),
        (framed({"a": 1}), "not an array with a kind"),
        (framed([]), "not an array with a kind"),
        (framed(["x"]), "not an array with a kind"),
        (framed([99]), "unknown kind 99"),
        (framed([peer_frames.NOTE, "x"]), "NOTE with 1 fields"),
        (framed([peer_frames.NOTE, "x", {}]), "NOTE: a dict instead of a list"),
        (framed([peer_frames.BEAT, True, False]), "BEAT: a bool instead of a int"),
        (framed([peer_frames.HELLO]), "HELLO with 0 fields"),
        (framed([peer_frames.CALL, 1, b"x", []]), "CALL: a bytes instead of a str"),
        (b"\x00\x01\x00\x00" + b"\x91" * 65536, "is not msgpack"),
    ],
)
def test_garbage_is_named(data: bytes, words: str) -> None:
    """Nothing from a socket raises anything but ProtocolError."""
    with pytest.raises(ProtocolError) as caught:
        FrameReader(1 << 20).feed(data)
    assert words in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    """As one frame's body."""
    try:
        for received in FrameReader().feed(len(data).to_bytes(4, "big") + data):
            if received[0] == peer_frames.RAFT:
                peer_frames.raft_of(received)
    except ProtocolError:
        return


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([3], "not an array"),
        ([[]], "not an array"),
        ([[99, 1]], "unknown class 99"),
        ([["Vote"]], "unknown class 'Vote'"),
        ([[8]], "TimeoutNow of ()"),
        ([[8, "1"]], "TimeoutNow of (str)"),
        ([[3, 1, 2]], "Append with 2 fields"),
        ([[3, 1, 2, 3, 4, [1, 2], 6]], "not a list of terms, chains and data"),
        ([[3, 1, 2, 3, 4, [1, 2, "x"], 6]], "entry 3 is not a term, a chain and bytes"),
        ([[3, 1, "2", 3, 4, [], 6]], "Append: a str instead of an int"),
        ([[7, 1, 2, 3, 4, [[], []]]], "not four lists of names"),
        ([[7, 1, 2, 3, 4, [[], [], [], [1]]]], "not four lists of names"),
    ],
)
def test_wrong_raft_messages_are_named(items: list[Any], words: str) -> None:
    """A peer of another version, or broken memory: the link ends, the group does not."""
    with pytest.raises(ProtocolError) as caught:
        decode_raft(framed([peer_frames.RAFT, 1, items]))
    assert words in str(caught.value)


def test_half_a_frame_is_none() -> None:
    assert FrameReader().feed(peer_frames.encode_raft(1, [m.TimeoutNow(1)])[:-1]) == []
    assert peer_frames.encode_raft(1, []) == b""


def test_a_frame_beyond_the_limit_is_refused_before_it_is_here() -> None:
    """Its first bytes are enough."""
    reader = FrameReader(100)
    assert reader.feed(b"\x00") == []
    with pytest.raises(ProtocolError, match="frame of 101 bytes, at most 100 are allowed"):
        reader.feed(b"\x00\x00\x65")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([peer_frames.HELLO, "other", 1, {}], "not a peer of this kind: magic 'other'"),
        ([peer_frames.HELLO, peer_frames.MAGIC, 0, {}], "speaks the older peer format 0"),
        ([peer_frames.HELLO, peer_frames.MAGIC, 9, [], 5], "speaks the newer peer format 9"),
        ([peer_frames.HELLO, peer_frames.MAGIC, peer_frames.VERSION, 3], "HELLO without facts"),
        ([peer_frames.BEAT, 1, False], "BEAT before HELLO"),
    ],
)
def test_strangers_are_told_apart(value: list[Any], words: str) -> None:
    """Before anything else of a HELLO is looked at."""
    (received,) = FrameReader().feed(framed(value))
    with pytest.raises(ProtocolError) as caught:
        peer_frames.check_hello(received)
    assert words in str(caught.value)


def test_a_frame_behind_another_is_measured_by_the_bound_of_then() -> None:
    proof, long = (
        peer_frames.frame(peer_frames.AUTH, bytes(32)),
        peer_frames.frame(peer_frames.NOTE, "n", [bytes(1000)]),
    )
    reader = FrameReader(100)
    assert [each[0] for each in reader.feed(proof + long[:50])] == [peer_frames.AUTH]
    reader.frame_bytes_max = 2000
    assert reader.feed(b"") == []
    assert [each[0] for each in reader.feed(long[50:])] == [peer_frames.NOTE]
    reader = FrameReader(100)
    assert [each[0] for each in reader.feed(proof + long)] == [peer_frames.AUTH]
    with pytest.raises(ProtocolError, match="at most 100"):
        reader.feed(b"")
