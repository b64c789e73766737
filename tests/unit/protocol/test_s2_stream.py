"""S2 streams: what is written is read, what others write is read, and nothing else is."""

from __future__ import annotations

import random

import pytest
from cramjam import snappy

from streamd.protocol.s2_stream import S2Error, S2Reader, S2Writer, decode_block


def read(*chunks: bytes) -> bytes:
    reader = S2Reader()
    return b"".join(block for chunk in chunks for block in reader.feed(chunk))


@pytest.mark.parametrize("is_compressing", [False, True])
@pytest.mark.parametrize("size", [0, 1, 100, 65536, 65537, 400_000])
def test_what_is_written_is_read_however_it_is_cut(size: int, *, is_compressing: bool) -> None:
    dice = random.Random(size)
    data = dice.randbytes(size // 2) + b"abc" * (size // 6)
    writer = S2Writer(is_compressing=is_compressing)
    wire = writer.encode(data) + writer.encode(b"more")
    assert read(wire) == data + b"more"
    step = max(1, len(wire) // 7)
    assert read(*(wire[at : at + step] for at in range(0, len(wire), step))) == data + b"more"
    if is_compressing and size > 65536:
        assert len(wire) < len(data)


def test_a_block_is_handed_on_in_pieces_and_goes_on_with_the_next_call() -> None:
    data = bytes(range(256)) * 256
    reader = S2Reader()
    first = next(reader.feed(S2Writer(is_compressing=True).encode(data)))
    assert first == data[:16384]
    rest = list(reader.feed(b""))
    assert [len(piece) for piece in rest] == [16384, 16384, 16384]
    assert first + b"".join(rest) == data


@pytest.mark.parametrize("is_compressing", [False, True])
def test_the_blocks_of_a_stranger_are_small(*, is_compressing: bool) -> None:
    wire = S2Writer(is_compressing=is_compressing).encode(bytes(65536))
    with pytest.raises(S2Error, match="a block of 65536 bytes, more than 1000"):
        list(S2Reader(1000).feed(wire))


def test_a_block_may_lead_to_the_next_call() -> None:
    writer, reader = S2Writer(is_compressing=True), S2Reader()
    found: list[bytes] = []
    for block in reader.feed(b"".join(writer.encode(b"%d" % number) for number in range(5))):
        found.append(block)
        if block == b"1":
            found += reader.feed(writer.encode(b"5"))
    assert found == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_snappy_streams_are_read() -> None:
    data = b"hello " * 50_000
    assert read(bytes(snappy.compress(data))) == data


@pytest.mark.parametrize(
    ("tags", "content"),
    [
        (b"\x0cabcd" + b"\x01\x04" + b"\x01\x00", b"abcdabcdabcd"),  # a copy, and once more
        (b"\x00a" + b"\x01\x01" + b"\x15\x00\x05", b"a" + b"a" * 4 + b"a" * 13),
        (b"\x00a" + b"\x01\x01" + b"\x19\x00\x01\x00", b"a" * 5 + b"a" * 261),
        (b"\x00a" + b"\x01\x01" + b"\x1d\x00\x01\x00\x00", b"a" * 5 + b"a" * (65536 + 5)),
    ],
)
def test_copies_may_repeat_the_last_offset(tags: bytes, content: bytes) -> None:
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes((size & 0x7F | 0x80,))
        size >>= 7
    assert decode_block(length + bytes((size,)) + tags) == content


@pytest.mark.parametrize(
    "block",
    [b"", b"\xff\xff\xff\xff\x7f", b"\x04\x0cab", b"\x04\x01\x00", b"\x04\x00a\x01\x05",
     b"\x05\x00a", b"\x02\x00a\x01\x01\x01\x00", b"\x09\x00a\x01\x01\x15\x00", b"\x01\xf0"],
)  # fmt: skip
def test_blocks_that_make_no_sense_are_refused(block: bytes) -> None:
    with pytest.raises(S2Error):
        decode_block(block)


def test_streams_that_make_no_sense_are_refused() -> None:
    wire = S2Writer(is_compressing=True).encode(b"abcabcabc" * 9)
    damaged = wire[:-1] + bytes((wire[-1] ^ 1,))
    for bad in (damaged, b"\x02\x00\x00\x00", b"\xff\x06\x00\x00xxxxxx", b"\x00\xff\xff\xff"):
        with pytest.raises(S2Error):
            read(bad)
    assert read(b"\xfe\x03\x00\x00pad" + b"\x99\x00\x00\x00" + wire) == b"abcabcabc" * 9


def _fuzz(count: int, seed: int) -> int:
    """Read damaged streams; returns how many were read to their end."""
    dice = random.Random(seed)
    good = [
        S2Writer(is_compressing=True).encode(b"LMSG a.b 5\r\nhello\r\n" * size)
        for size in (1, 9, 500)
    ]
    blocks = [bytes(snappy.compress_raw(b"abcdefgh" * size)) for size in (1, 8, 200)]
    passed = 0
    for _ in range(count):
        if dice.random() < 0.5:
            data = bytearray(dice.choice(blocks))
            data[dice.randrange(len(data))] = dice.randrange(256)
            try:
                decode_block(bytes(data))
                passed += 1
            except S2Error:
                pass
            continue
        data = bytearray(dice.choice(good))
        for _ in range(dice.randrange(3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        cut = dice.randrange(len(data) + 1)
        try:
            read(bytes(data[:cut]), bytes(data[cut:]))
            passed += 1
        except S2Error:
            pass
    return passed


def test_damaged_streams_raise_nothing_else() -> None:
    assert _fuzz(10_000, seed=1) > 100


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(10))
def test_a_million_damaged_streams_raise_nothing_else(seed: int) -> None:
    _fuzz(100_000, seed=100 + seed)
