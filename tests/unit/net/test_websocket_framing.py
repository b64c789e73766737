"""Framing: frames of a client to content, content to frames, and what ends a connection."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies
from websockets.exceptions import ProtocolError
from websockets.extensions.permessage_deflate import PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from streamd.net.websocket.framing import (
    Framing,
    FramingError,
    browser_frame_bytes,
    close_answer,
    close_frame,
)

MAX = 1 << 20


def client_frame(data: bytes, opcode: Opcode = Opcode.BINARY, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


def _fuzz(count: int, seed: int) -> tuple[int, int]:
    """Feed frames of which most are damaged, in pieces: either content comes, or a FramingError.
    Returns how many came to content, and how many were refused."""
    dice = random.Random(seed)
    opcodes = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT, Opcode.PING, Opcode.PONG, Opcode.CLOSE)
    passed = refused = 0
    for _ in range(count):
        is_deflating = dice.random() < 0.3
        data = bytearray()
        for _ in range(dice.randrange(1, 4)):
            body = dice.randbytes(dice.choice((0, 1, 20, 130)))
            if is_deflating and dice.random() < 0.5:
                packed = deflated(body)[:125]
                data += raw_frame(dice.choice((0xC2, 0x42, 0xC1)), packed)
            else:
                fin = dice.random() < 0.8
                opcode = Opcode.BINARY if dice.random() < 0.6 else dice.choice(opcodes)
                frame = Frame(opcode, body[:125], fin=fin or opcode > Opcode.BINARY)
                data += frame.serialize(mask=dice.random() < 0.95)
        if dice.random() < 0.5:
            data[dice.randrange(min(len(data), 16))] = dice.randrange(256)
        framing = Framing(is_deflating=is_deflating)
        cut = dice.randrange(len(data) + 1)
        size = 0
        try:
            for piece in (bytes(data[:cut]), bytes(data[cut:])):
                framing.feed(piece)
                size += sum(map(len, framing.take_plain(1000)))
                while (found := framing.next(200)) is not None:
                    size += len(found.data)
        except FramingError:
            refused += 1
        else:
            passed += 1
        assert size <= 4 * 200, "no more comes than a frame may hold"
    return passed, refused


def test_damaged_frames_are_read_or_refused() -> None:
    passed, refused = _fuzz(20_000, seed=1)
    assert passed > 2_000 and refused > 2_000


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(10))
def test_a_million_damaged_frames_are_read_or_refused(seed: int) -> None:
    passed, refused = _fuzz(100_000, seed=100 + seed)
    assert passed and refused


def content(framing: Framing, data: bytes) -> bytes:
    framing.feed(data)
    found = b""
    while (frame := framing.next(MAX)) is not None:
        found += bytes(frame.data)
    return found


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def raw_frame(first: int, data: bytes) -> bytes:
    """A masked frame with any first byte; the mask is zero."""
    return bytes([first, 0x80 | len(data)]) + bytes(4) + data


def test_content_comes_whatever_way_the_bytes_are_cut() -> None:
    whole = client_frame(b"PING\r\n") + client_frame(b"") + client_frame(b"PUB a 200\r\n" * 20)
    framing = Framing()
    assert content(framing, whole) == b"PING\r\n" + b"PUB a 200\r\n" * 20
    framing = Framing()
    found = b"".join(content(framing, whole[at : at + 1]) for at in range(len(whole)))
    assert found == b"PING\r\n" + b"PUB a 200\r\n" * 20


def test_text_counts_as_binary_and_fragments_as_what_they_hold() -> None:
    framing = Framing()
    pieces = (
        client_frame(b"PI", Opcode.TEXT, fin=False)
        + client_frame(b"", Opcode.PING)
        + client_frame(b"NG", Opcode.CONT, fin=False)
        + client_frame(b"\r\n", Opcode.CONT)
    )
    assert content(framing, pieces) == b"PING\r\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(Frame(Opcode.BINARY, b"a").serialize(mask=False), id="not masked"),
        pytest.param(raw_frame(0xA2, b"a"), id="RSV2"),
        pytest.param(raw_frame(0xC2, b"a"), id="compressed without agreement"),
        pytest.param(raw_frame(0x83, b"a"), id="unknown opcode"),
        pytest.param(raw_frame(0x09, b"a"), id="PING in fragments"),
        pytest.param(bytes([0x89, 0xFE, 0, 126]) + bytes(130), id="long PING"),
        pytest.param(client_frame(b"a", Opcode.CONT), id="nothing to continue"),
        pytest.param(client_frame(b"a", fin=False) + client_frame(b"b"), id="no continuation"),
    ],
)
def test_what_breaks_the_rules_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(FramingError) as found:
        content(Framing(), data)
    assert found.value.code == 1002
    assert str(found.value)


@settings(deadline=None)
@given(
    kinds=strategies.lists(
        strategies.tuples(
            strategies.sampled_from(["plain", "text", "ping", "fragments", "large"]),
            strategies.binary(max_size=200) | strategies.just(bytes(300)),
        ),
        max_size=12,
    ),
    cuts=strategies.lists(strategies.integers(0, 2000), max_size=6),
)
def test_the_quick_way_takes_what_the_library_takes(
    kinds: list[tuple[str, bytes]], cuts: list[int]
) -> None:
    """Any mix of frames in any pieces: content by both ways is that by the library alone."""
    made = {
        "plain": lambda data: client_frame(data),
        "text": lambda data: client_frame(data, Opcode.TEXT),
        "ping": lambda data: client_frame(data[:125], Opcode.PING),
        "fragments": lambda data: client_frame(data, fin=False) + client_frame(data, Opcode.CONT),
        "large": lambda data: client_frame(data + bytes(70_000)),
    }
    whole = b"".join(made[kind](data) for kind, data in kinds)
    at = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    quick, slow = Framing(), Framing()
    by_both, by_library = b"", b""
    for start, end in pairwise(at):
        quick.feed(whole[start:end])
        by_library += content(slow, whole[start:end])
        while True:
            plain = quick.take_plain(1000)
            frame = quick.next(MAX) if not plain else None
            if not plain and frame is None:
                break
            by_both += b"".join(plain) + (bytes(frame.data) if frame is not None else b"")
    assert by_both == by_library


@pytest.mark.parametrize("second", [0x05, 0x7E, 0xFF])
def test_the_quick_way_takes_no_frame_of_another_kind(second: int) -> None:
    """Not masked, not masked with a length of two bytes, a length of eight."""
    framing = Framing()
    framing.feed(bytes([0x82, second]) + bytes(20))
    assert framing.take_plain(1000) == []
    framing = Framing(is_masked=False)
    framing.feed(client_frame(b"PING\r\n"))
    assert framing.take_plain(1000) == []


def test_a_frame_that_is_too_large_is_refused_by_its_header() -> None:
    framing = Framing()
    framing.feed(client_frame(bytes(101))[:8])
    with pytest.raises(FramingError) as found:
        framing.next(100)
    assert found.value.code == 1009


def test_a_bomb_is_refused_before_it_is_inflated() -> None:
    framing = Framing(is_deflating=True)
    framing.feed(raw_frame(0xC2, deflated(bytes(10_000))))
    with pytest.raises(FramingError) as found:
        framing.next(9_999)
    assert found.value.code == 1009


def test_compressed_content_in_fragments() -> None:
    packed = deflated(b"PING\r\n" * 9)
    framing = Framing(is_deflating=True)
    assert content(framing, raw_frame(0x42, packed[:5]) + raw_frame(0x80, packed[5:])) == (
        b"PING\r\n" * 9
    )
    assert content(framing, client_frame(b"PING\r\n")) == b"PING\r\n"  # it may, it need not


def test_frames_without_masks_where_that_was_agreed_upon() -> None:
    framing = Framing(is_masked=False)
    assert content(framing, Frame(Opcode.BINARY, b"PING\r\n").serialize(mask=False)) == b"PING\r\n"


def frames_of(data: bytes, *, is_deflating: bool = False) -> list[tuple[Opcode, bool, bytes]]:
    """What a client makes of frames; compressed ones inflated."""
    reader, found = StreamReader(), []
    reader.feed_data(data)
    extensions = [PerMessageDeflate(True, True, 15, 15)] if is_deflating else None
    while reader.buffer:
        parsing = Frame.parse(reader.read_exact, mask=False, extensions=extensions)
        try:
            next(parsing)
        except StopIteration as whole:
            found.append((whole.value.opcode, whole.value.fin, bytes(whole.value.data)))
    return found


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 200_000])
def test_the_server_packs_what_it_writes_into_one_frame(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert frames_of(Framing().pack(data[:size])) == [(Opcode.BINARY, True, data[:size])]


def test_browsers_get_small_messages() -> None:
    found = frames_of(Framing(frame_bytes=4096).pack(bytes(10_000)))
    assert [(kind, fin, len(data)) for kind, fin, data in found] == [
        (Opcode.BINARY, True, 4096),
        (Opcode.BINARY, True, 4096),
        (Opcode.BINARY, True, 1808),
    ]


def test_compressed_pieces_for_browsers_are_fragments_of_one_message() -> None:
    data = bytes(range(256)) * 40
    packed = Framing(is_deflating=True, frame_bytes=4096).pack(data)
    found = frames_of(packed, is_deflating=True)
    assert [(kind, fin) for kind, fin, _ in found] == [
        (Opcode.BINARY, False),
        (Opcode.CONT, False),
        (Opcode.CONT, True),
    ]
    assert b"".join(piece for _, _, piece in found) == data
    assert packed[0] == 0x42  # compressed, as the first frame alone says


def test_only_what_is_worth_it_is_compressed() -> None:
    framing = Framing(is_deflating=True)
    assert framing.pack(bytes(64)) == b"\x82\x40" + bytes(64)
    packed = framing.pack(bytes(65))
    assert packed[0] == 0xC2
    assert not packed.endswith(b"\x00\x00\xff\xff")
    assert frames_of(packed, is_deflating=True) == [(Opcode.BINARY, True, bytes(65))]
    with pytest.raises(ProtocolError):  # each message by itself: nothing is to be remembered
        frames_of(packed)


@pytest.mark.parametrize(
    ("agent", "is_deflating", "size"),
    [
        ("", False, 0),
        ("Go-http-client/1.1", True, 0),
        ("Mozilla/5.0 (X11) Chrome/120.0 Safari/537.36", True, 4096),
        ("Mozilla/5.0 (Macintosh) Version/17.0 Safari/605.1", True, 0),
        ("Mozilla/5.0 (Macintosh) Version/17.0 Safari/605.1", False, 4096),
    ],
)
def test_frames_by_user_agent(agent: str, is_deflating: bool, size: int) -> None:
    assert browser_frame_bytes(agent, is_deflating=is_deflating) == size


def test_the_text_of_an_end_fits_into_a_control_frame() -> None:
    assert close_frame(1008, "Authentication Failure") == (
        b"\x88\x18\x03\xf0Authentication Failure"
    )
    long = close_frame(1002, "é" * 100)
    assert long[1] == len(long) - 2 <= 125
    assert long[4:].decode().endswith("é...")


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", b""),
        (b"\x03\xe8bye", b"\x03\xe8bye"),
        (b"\x0f\xa1", b"\x0f\xa1"),
        (b"\x03\xe8\xff", b"\x03\xefinvalid utf8 body in close frame"),
    ],
)
def test_an_end_is_answered_with_its_own_words(payload: bytes, answer: bytes) -> None:
    assert close_answer(Frame(Opcode.CLOSE, payload))[2:] == answer


@pytest.mark.parametrize("payload", [b"\x03", b"\x03\xed", b"\x03\xe7", b"\x13\x88"])
def test_an_end_with_an_illegal_code_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(FramingError) as found:
        close_answer(Frame(Opcode.CLOSE, payload))
    assert found.value.code == 1002
