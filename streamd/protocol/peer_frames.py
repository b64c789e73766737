"""Frames between servers of one cluster: bytes to values and back, sans-IO.

A frame is a length (u32, big-endian) and a msgpack array `[kind, ...]`. Raft messages are their
fields in the order of `__slots__` behind a number for their class, so a new field needs nothing
here; only entries and memberships have forms of their own. Both ends of a link speak the very
same VERSION: any change of a message is a change of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, get_args, get_type_hints

import msgpack

from streamd.errors import StreamdError
from streamd.limits import PEER_FRAME_BYTES_MAX, PEER_RAFT_FRAME_BYTES
from streamd.raft.membership import Membership
from streamd.raft.messages import Append, Message
from streamd.types import Entry, Uid

MAGIC: Final = "streamd-peer"
VERSION: Final = 4

HELLO: Final = 1  # magic, version, facts: who speaks, and its nonce
AUTH: Final = 2  # proof that the sender knows the password: see route_proof
WELCOME: Final = 3  # facts: the link is wanted; the last step of the handshake
BEAT: Final = 4  # stamp, is_answer: a sign of life, echoed
RAFT: Final = 5  # uid, messages
CALL: Final = 6  # call number, method, args
ANSWER: Final = 7  # call number, is_error, value
NOTE: Final = 8  # kind, args
CLOSE: Final = 9  # reason: the last frame before the sender closes

RaftMessage: TypeAlias = Message
Frame: TypeAlias = list[Any]
"""A decoded frame: its kind, then its fields, whose types are as in `_FIELDS`."""

_NAMES: Final = {
    HELLO: "HELLO",
    AUTH: "AUTH",
    WELCOME: "WELCOME",
    BEAT: "BEAT",
    RAFT: "RAFT",
    CALL: "CALL",
    ANSWER: "ANSWER",
    NOTE: "NOTE",
    CLOSE: "CLOSE",
}
# Kind and fields as they must be before anybody looks inside; `object` is any value.
_FIELDS: Final[dict[int, list[type]]] = {
    HELLO: [int, str, int, object],
    AUTH: [int, bytes],
    WELCOME: [int, dict],
    BEAT: [int, int, bool],
    RAFT: [int, int, list],
    CALL: [int, int, str, list],
    ANSWER: [int, int, bool, object],
    NOTE: [int, str, list],
    CLOSE: [int, str],
}
# Numbers are part of the format: never used again for another class.
_NUMBERS: Final = {
    "Vote": 1,
    "VoteReply": 2,
    "Append": 3,
    "AppendReply": 4,
    "Heartbeat": 5,
    "HeartbeatReply": 6,
    "SnapshotOffer": 7,
    "TimeoutNow": 8,
    "ReadQuery": 9,
    "ReadAnswer": 10,
    "Quiesce": 11,
    "Certify": 12,
}


class ProtocolError(StreamdError):
    """Bytes from a peer that no peer of this version sends; the text names what is wrong."""


# --- frames out -----------------------------------------------------------------------------------


def frame(kind: int, *fields: object) -> bytes:
    """Return one whole frame."""
    body: bytes = msgpack.packb((kind, *fields))
    return len(body).to_bytes(4, "big") + body


def hello(facts: Mapping[str, object]) -> bytes:
    """Return the frame that opens a link from either side."""
    return frame(HELLO, MAGIC, VERSION, facts)


def encode_raft(uid: Uid, messages: Iterable[Message]) -> bytes:
    """Return the messages of one group as one frame, or several if they are long.

    Of entries only term, chain and data leave: tag and command are the proposer's.
    """
    frames: list[bytes] = []
    packed: list[tuple[object, ...]] = []
    size = 0
    for message in messages:
        if type(message) is Append:
            entries: list[int | bytes] = []
            for entry in message.entries:
                data = entry.data
                entries += (entry.term, entry.chain, data)
                size += len(data)
            packed.append(
                (
                    3,
                    message.term,
                    message.prev_index,
                    message.prev_term,
                    message.prev_chain,
                    entries,
                    message.commit,
                )
            )
        else:
            number, fields = _ENCODERS[type(message)]
            packed.append((number, *fields(message)))
        if size > PEER_RAFT_FRAME_BYTES:
            frames.append(frame(RAFT, uid, packed))
            packed = []
            size = 0
    if packed:
        frames.append(frame(RAFT, uid, packed))
    return frames[0] if len(frames) == 1 else b"".join(frames)


def name_of(kind: int) -> str:
    """Return what logs call frames of a kind."""
    return _NAMES[kind]


def without_appends(messages: list[Message]) -> list[Message]:
    """Return the messages that a peer far behind still needs: appends are repeated anyway."""
    return [message for message in messages if type(message) is not Append]


# --- frames in ------------------------------------------------------------------------------------


class FrameReader:
    """Chunks in, decoded frames out. A frame longer than `frame_bytes_max` is refused at sight,
    unless others are before it: one of those may raise the bound, so it is judged by the next call.

    Raises ProtocolError; the reader is of no use afterwards.
    """

    __slots__ = ("_buffer", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = PEER_FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take a chunk and return the frames that are complete now, in order."""
        buffer = self._buffer
        source: bytes | bytearray = chunk
        if buffer:
            buffer += chunk
            source = buffer
        frames: list[Frame] = []
        at, end = 0, len(source)
        with memoryview(source) as view:
            while end - at >= 4:
                length = int.from_bytes(view[at : at + 4], "big")
                if length > self.frame_bytes_max:
                    if frames:
                        break
                    start = bytes(view[at : at + 16])
                    raise ProtocolError(
                        f"frame of {length} bytes, at most {self.frame_bytes_max} are allowed;"
                        f" it starts with {start!r}"
                    )
                if end - at - 4 < length:
                    break
                frames.append(_decode(view[at + 4 : at + 4 + length]))
                at += 4 + length
        if source is buffer:
            if at:
                del buffer[:at]
        elif at < end:
            buffer += chunk[at:] if at else chunk
        return frames


def raft_of(received: Frame) -> tuple[Uid, list[Message]]:
    """Return the group and the messages of a RAFT frame. Raises ProtocolError."""
    messages: list[Message] = []
    for item in received[2]:
        if type(item) is not list or not item:
            raise ProtocolError("a raft message that is not an array")
        decoder = _DECODERS.get(item[0]) if type(item[0]) is int else None
        if decoder is None:
            raise ProtocolError(f"raft message of unknown class {item[0]!r}")
        messages.append(decoder(item))
    return received[1], messages


def check_hello(received: Frame) -> dict[str, object]:
    """Return the facts of a peer's first frame. Raises ProtocolError that says why it won't do."""
    if received[0] != HELLO:
        raise ProtocolError(f"{_NAMES[received[0]]} before HELLO")
    _, magic, version, facts = received
    if magic != MAGIC:
        raise ProtocolError(f"not a peer of this kind: magic {magic[:32]!r}, expected {MAGIC!r}")
    if version != VERSION:
        age = "older" if version < VERSION else "newer"
        raise ProtocolError(
            f"the remote server speaks the {age} peer format {version},"
            f" this server speaks {VERSION}"
        )
    if not isinstance(facts, dict):
        raise ProtocolError("HELLO without facts")
    return facts


# --- helpers --------------------------------------------------------------------------------------


def _decode(body: memoryview) -> Frame:
    try:
        received = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError) as err:
        raise ProtocolError(f"frame of {len(body)} bytes is not msgpack: {err}") from err
    if type(received) is not list or not received or type(received[0]) is not int:
        raise ProtocolError("frame is not an array with a kind")
    types = _FIELDS.get(received[0])
    if types is None:
        raise ProtocolError(f"frame of unknown kind {received[0]}")
    if received[0] == HELLO:  # other versions may say more in it
        del received[4:]
    if list(map(type, received)) != types:
        _check_fields(received, types)
    return received


def _check_fields(received: Frame, types: list[type]) -> None:
    name = _NAMES[received[0]]
    if len(received) != len(types):
        raise ProtocolError(f"{name} with {len(received) - 1} fields")
    for field, wanted in zip(received, types, strict=True):
        if type(field) is not wanted and wanted is not object:
            raise ProtocolError(f"{name}: a {type(field).__name__} instead of a {wanted.__name__}")


_Decoder = Callable[[list[object]], Message]


def _append_of(item: list[Any]) -> Append:
    if len(item) != 7:
        raise ProtocolError(f"Append with {len(item) - 1} fields")
    _, term, prev_index, prev_term, prev_chain, flat, commit = item
    for number in (term, prev_index, prev_term, prev_chain, commit):
        if type(number) is not int:
            raise ProtocolError(f"Append: a {type(number).__name__} instead of an int")
    if min(term, prev_index, prev_term, prev_chain, commit) < 0:
        raise ProtocolError("Append: a number below 0")
    if type(flat) is not list or len(flat) % 3:
        raise ProtocolError("Append: entries are not a list of terms, chains and data")
    entries: list[Entry] = []
    index = prev_index
    walk = iter(flat)
    for entry_term, chain, data in zip(walk, walk, walk, strict=True):
        if type(data) is not bytes or type(entry_term) is not int or type(chain) is not int:
            raise ProtocolError(f"Append: entry {index + 1} is not a term, a chain and bytes")
        index += 1
        entries.append(Entry(entry_term, index, data, None, None, chain))
    return Append(term, prev_index, prev_term, prev_chain, entries, commit)


def _fields_of(cls: type) -> Callable[[Message], Sequence[object]]:
    """Make the function that takes a message apart: its slots in order, as one tuple."""
    slots: tuple[str, ...] = tuple(cls.__slots__)  # type: ignore[attr-defined]
    if len(slots) == 1:  # attrgetter of one name gives no tuple
        name = slots[0]
        return lambda message: (getattr(message, name),)
    take = attrgetter(*slots)
    membership_at = _memberships_of(cls)
    if not membership_at:
        return take

    def fields_of(message: Message) -> Sequence[object]:
        fields = list(take(message))
        for at in membership_at:
            fields[at] = fields[at].lists
        return fields

    return fields_of


def _memberships_of(cls: type) -> list[int]:
    """Return which fields of a message are memberships; each travels as four lists of names."""
    hints = get_type_hints(cls)
    return [at for at, name in enumerate(cls.__slots__) if hints[name] is Membership]  # type: ignore[attr-defined]


def _decoder_of(cls: type) -> _Decoder:
    """Make the function that puts a message together from its fields, each of its declared type."""
    hints = get_type_hints(cls)
    membership_at = _memberships_of(cls)
    types = [list if hints[name] is Membership else hints[name] for name in cls.__slots__]  # type: ignore[attr-defined]
    assert all(isinstance(wanted, type) for wanted in types), (cls, types)

    def decode(item: list[object]) -> Message:
        fields = item[1:]
        if list(map(type, fields)) != types:
            found = ", ".join(type(field).__name__ for field in fields)
            raise ProtocolError(f"{cls.__name__} of ({found})")
        if any(type(field) is int and field < 0 for field in fields):
            raise ProtocolError(f"{cls.__name__}: a number below 0")
        for at in membership_at:
            fields[at] = _membership_of(fields[at])
        made: Message = cls(*fields)
        return made

    return decode


def _membership_of(lists: object) -> Membership:
    if (
        type(lists) is not list
        or len(lists) != 4
        or not all(
            type(names) is list and all(type(name) is str for name in names) for names in lists
        )
    ):
        raise ProtocolError("a membership that is not four lists of names")
    voters, voters_out, learners, learners_next = (tuple(names) for names in lists)
    return Membership(voters, voters_out, learners, learners_next)


_ENCODERS: Final[dict[type, tuple[int, Callable[[Message], Sequence[object]]]]] = {
    cls: (_NUMBERS[cls.__name__], _fields_of(cls)) for cls in get_args(Message) if cls is not Append
}
_DECODERS: Final[dict[int, _Decoder]] = {
    number: _decoder_of(cls) for cls, (number, _) in _ENCODERS.items()
} | {_NUMBERS["Append"]: _append_of}
