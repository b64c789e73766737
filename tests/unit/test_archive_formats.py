"""Archives as bytes: both kinds are read in any pieces, and damage is told."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.archives import message_archive
from streamd.archives.archive_reader import ArchiveReader
from streamd.archives.archive_records import (
    ArchivedConfig,
    ArchivedConsumer,
    ArchivedEnd,
    ArchivedMessages,
    ArchivedRemoval,
    ArchivedState,
    ArchiveError,
    Record,
    Row,
)
from streamd.archives.s2_block import S2Error, compress_block, decompress_block
from streamd.archives.s2_frames import S2Reader, S2Writer

CONSUMER = ArchivedConsumer(
    "work",
    {"durable_name": "work", "ack_policy": "explicit"},
    (12, 30),
    (9, 20),
    [(22, 10, 1_700_000_000_000_000_005), (30, 12, 1_700_000_000_000_000_009)],
    [(22, 3)],
)


def rows_of(seed: int, count: int = 1500) -> list[Row]:
    rng = random.Random(seed)
    seq, ts = 0, 1_700_000_000_000_000_000
    rows: list[Row] = []
    for _ in range(count):
        seq += rng.choice((1, 1, 1, 3, 200))
        ts += rng.randrange(2_000_000_000)
        headers = b"NATS/1.0\r\nX: y\r\n\r\n" if rng.random() < 0.3 else b""
        rows.append(
            (seq, ts, b"a.%d" % rng.randrange(9), headers, rng.randbytes(rng.randrange(90)))
        )
    return rows


def archive_of(rows: list[Row], last_seq: int = 0, **state: Any) -> bytes:
    frames = S2Writer()
    last_seq = last_seq or rows[-1][0]
    state = {"messages": len(rows), "bytes": 9, "first_seq": rows[0][0], "last_seq": last_seq,
             "consumer_count": 1} | state  # fmt: skip
    plain = message_archive.begin(state, 5) + message_archive.encode_consumer(CONSUMER, 5)
    plain += message_archive.encode_messages(rows) + message_archive.end()
    return frames.write(plain) + frames.finish()


def read(blob: bytes, cuts: list[int] | None = None) -> tuple[list[Record], list[Row]]:
    """All records but messages, and all messages."""
    reader = ArchiveReader()
    edges = [0, *sorted(cuts or ()), len(blob)]
    records: list[Record] = []
    for start, end in pairwise(edges):
        records += reader.feed(blob[start:end])
    records += reader.finish()
    rows = [row for each in records if isinstance(each, ArchivedMessages) for row in each.rows]
    return [each for each in records if not isinstance(each, ArchivedMessages)], rows


@given(seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=25, deadline=None)
def test_an_archive_of_messages_is_read_in_any_pieces(seed: int, data: st.DataObject) -> None:
    """What was written comes back, wherever the pieces are cut."""
    rows = rows_of(seed, 300)
    blob = archive_of(rows, rows[-1][0] + 7)
    cuts = data.draw(st.lists(st.integers(0, len(blob)), max_size=20))
    others, found = read(blob, cuts)
    assert found == rows
    state, consumer, end = others
    assert isinstance(state, ArchivedState) and state.consumer_count == 1
    assert consumer == CONSUMER
    assert end == ArchivedEnd(rows[-1][0] + 7)


def test_each_cut_of_an_archive_is_told() -> None:
    """An archive that ends anywhere but at its end is refused."""
    blob = archive_of(rows_of(3, 20))
    for size in range(len(blob)):
        with pytest.raises(ArchiveError):
            read(blob[:size])


def test_a_changed_byte_is_told() -> None:
    """Frames have checksums: no damaged archive passes for a whole one."""
    blob = archive_of(rows_of(4, 40))
    rng = random.Random(4)
    for _ in range(300):
        at = rng.randrange(len(blob))
        changed = bytearray(blob)
        changed[at] ^= 1 << rng.randrange(8)
        try:
            assert read(bytes(changed)) == read(blob)  # the name may be Snappy's, frames skipped
        except ArchiveError:
            continue


@pytest.mark.parametrize(
    "state,refusal",
    [
        ({"first_seq": 0}, "out of order"),
        ({"consumer_count": 2}, "expected consumer"),
        ({"consumer_count": 0}, "expected message"),
        ({"last_seq": -1}, "a number is not one"),
        ({"first_seq": 10**6}, "out of order"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: dict[str, int], refusal: str) -> None:
    """The numbers of the head are what the rest is read by."""
    with pytest.raises(ArchiveError, match=refusal):
        read(archive_of(rows_of(5, 10), **state))


def test_what_is_no_archive_is_refused() -> None:
    """Texts, frames of something else, nothing at all."""
    for blob in (b"", b"x" * 2000, b"\xff\x06\x00\x00S2sTwO", b"\xff\x06\x00\x00sNaPpX"):
        with pytest.raises(ArchiveError):
            read(blob)


# --- S2 -----------------------------------------------------------------------------------------


def test_blocks_with_repeats_are_read() -> None:
    """What S2 has and Snappy has not: copies with the offset before, of all four lengths."""
    literal = bytes([(8 - 1) << 2]) + b"abcdefgh"
    copy = bytes([0b000_000_01, 8])  # 4 bytes from 8 back
    repeats = [
        (bytes([0b000_010_01, 0]), 6),
        (bytes([0b000_101_01, 0, 3]), 3 + 8),
        (bytes([0b000_110_01, 0, 1, 1]), 1 + 256 + 256 + 4),
        (bytes([0b000_111_01, 0, 5, 0, 1]), 5 + 65536 + 65536 + 4),
    ]
    for tail, size in repeats:
        wanted = (b"abcdefgh" * 40_000)[: 8 + 4 + size]
        length = bytearray()
        left = len(wanted)
        while left >= 0x80:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        length.append(left)
        assert decompress_block(bytes(length) + literal + copy + tail) == wanted


def test_damaged_blocks_are_refused() -> None:
    """A copy before the start, a length that is a lie, a bomb."""
    for block in (
        b"",
        b"\x05",
        b"\x08\x01\x09",
        b"\x02\x04ab\x05\x09",
        b"\xff\xff\xff\xff\x0f\x00",
    ):
        with pytest.raises(S2Error):
            decompress_block(block)


@given(data=st.binary(max_size=3000))
@settings(max_examples=50, deadline=None)
def test_blocks_come_back(data: bytes) -> None:
    assert decompress_block(compress_block(data)) == data


def test_random_blocks_never_do_worse_than_an_error() -> None:
    """Bytes from anywhere: an S2Error, or something of the length that was announced."""
    rng = random.Random(9)
    for _ in range(20_000):
        block = bytes([rng.randrange(100)]) + rng.randbytes(rng.randrange(40))
        try:
            assert len(decompress_block(block)) == block[0]
        except S2Error:
            continue


def test_what_has_no_frames_is_refused_at_once() -> None:
    """Its first bytes are no length to wait for."""
    with pytest.raises(S2Error, match="corrupt"):
        S2Reader().feed(b"no archive")


def test_frames_that_are_unknown_are_skipped_or_refused() -> None:
    """Padding is skipped; a frame that must be understood is not."""
    frames = S2Writer()
    blob = frames.write(b"x" * 70_000) + frames.finish()
    padded = blob[:10] + b"\xfe\x03\x00\x00abc" + blob[10:]
    reader = S2Reader()
    assert reader.feed(padded) == b"x" * 70_000
    with pytest.raises(S2Error, match="unsupported"):
        S2Reader().feed(blob[:10] + b"\x05\x03\x00\x00abc")


# --- the tar of nats-server up to 2.14 ------------------------------------------------------------


def record(seq: int, ts: int, subject: bytes, headers: bytes, body: bytes) -> bytes:
    head = struct.pack("<I", len(headers)) + headers if headers else b""
    length = 22 + len(subject) + len(head) + len(body) + 8
    flag = 1 << 31 if headers else 0
    fixed = struct.pack("<IQQH", length | flag, seq, ts, len(subject))
    return fixed + subject + head + body + bytes(8)


def tombstone(seq: int) -> bytes:
    return struct.pack("<IQQH", 30, seq | 1 << 62, 77, 0) + bytes(8)


def tar_of(files: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, body in files:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            member.mode = 0o600
            tar.addfile(member, io.BytesIO(body))
    frames = S2Writer()
    return frames.write(out.getvalue()) + frames.finish()


def uvarints(*values: int) -> bytes:
    made = bytearray()
    for value in values:
        while value >= 0x80:
            made.append(value & 0x7F | 0x80)
            value >>= 7
        made.append(value)
    return bytes(made)


CONFIG = json.dumps({"Created": "2026-01-01T00:00:00Z", "name": "S", "subjects": ["s.>"]}).encode()


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_tar_is_read_in_any_pieces(data: st.DataObject) -> None:
    """Blocks, a deleted and an erased message, a trailing deletion, a consumer with a long name."""
    rows = [(seq, 10 + seq, b"s.x", b"NATS/1.0\r\nA: b\r\n\r\n" if seq % 2 else b"", b"y" * seq)
            for seq in (3, 4, 6, 7)]  # fmt: skip
    erased = record(5 | 1 << 63, 0, b"", b"", b"zzz")
    blocks = b"".join(record(*row) for row in rows[:2]) + erased
    name = "c" * 150
    dat = bytes((22, 2)) + uvarints(2, 4, 5, 7, 2) + uvarints(2 * 1_700_000_000)
    dat += uvarints(2, 1, 2 * 3, 3, 3, 0) + uvarints(1, 2, 1)
    blob = tar_of(
        [
            ("meta.inf", CONFIG),
            ("meta.sum", b"00"),
            ("msgs/1.blk", blocks),
            (
                "msgs/2.blk",
                b"".join(record(*row) for row in rows[2:]) + tombstone(6) + tombstone(9),
            ),
            ("msgs/index.db", b"whatever"),
            (f"obs/{name}/meta.inf", json.dumps({"Name": name, "ack_policy": "explicit"}).encode()),
            (f"obs/{name}/meta.sum", b""),
            (f"obs/{name}/o.dat", dat),
        ]
    )
    cuts = data.draw(st.lists(st.integers(0, len(blob)), max_size=20))
    others, found = read(blob, cuts)
    assert found == rows
    assert others[0] == ArchivedConfig(json.loads(CONFIG))
    removals = [each for each in others if isinstance(each, ArchivedRemoval)]
    assert removals == [ArchivedRemoval(5, 5), ArchivedRemoval(6, 6), ArchivedRemoval(9, 9)]
    second = 1_000_000_000
    assert others[-2] == ArchivedConsumer(
        name, {"ack_policy": "explicit"}, (5, 7), (2, 4),
        [(6, 3, 1_699_999_997 * second), (7, 5, 1_700_000_000 * second)], [(6, 2)],
    )  # fmt: skip
    assert others[-1] == ArchivedEnd(9)


RECORD = record(1, 1, b"a", b"", b"")
CUT = b"\x16\x02\x80"


@pytest.mark.parametrize(
    "files,refusal",
    [
        ([("../meta.inf", CONFIG)], "unexpected content"),
        ([("msgs/1.blk", b"")], "expected meta.inf"),
        ([("meta.inf", b"no")], "no JSON"),
        ([("meta.inf", CONFIG), ("msgs/1.blk", RECORD[:-3])], "within a record"),
        ([("meta.inf", CONFIG), ("msgs/1.blk", b"\xff" * 60)], "a record of"),
        ([("meta.inf", CONFIG), ("obs/c/o.dat", b"\x16\x02")], "missing config"),
        ([("meta.inf", CONFIG), ("obs/c/meta.inf", b"{}"), ("obs/c/o.dat", CUT)], "cut off"),
    ],
)  # fmt: skip
def test_a_tar_of_something_else_is_refused(files: list[tuple[str, bytes]], refusal: str) -> None:
    with pytest.raises(ArchiveError, match=refusal):
        read(tar_of(files))
