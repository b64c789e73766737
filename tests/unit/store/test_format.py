"""Records and footers: round trips, and every kind of damage."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.errors import CorruptionError
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.footer import (
    TRAILER_BYTES,
    FooterColumns,
    Subjects,
    decode_footer,
    encode_footer,
    footer_length,
)

MSGS = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=40),
        st.binary(max_size=40),
        st.one_of(
            st.binary(max_size=90),
            st.integers(fmt.LARGE_PAYLOAD_BYTES - 1, fmt.LARGE_PAYLOAD_BYTES + 9).map(bytes),
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(MSGS, st.integers(1, 2**63), st.integers(0, 2**62))
@settings(max_examples=60, deadline=None)
def test_a_batch_reads_back_field_by_field(
    msgs: list[tuple[bytes, bytes, bytes]], seq: int, ts: int
) -> None:
    pieces, lengths, crcs = fmt.encode_batch(seq, ts, msgs)
    blob = b"".join(pieces)
    pos = 0
    for i, msg in enumerate(msgs):
        expected = (seq + i, ts + i, *msg)
        assert fmt.decode_at(blob, pos) == expected
        assert fmt.decode_fields(blob, pos) == expected
        pos += lengths[i]
    scanned = list(fmt.scan(blob, 64))
    assert [record.crc for record in scanned] == crcs
    assert [record.length for record in scanned] == lengths
    assert fmt.verified_length(blob) == len(blob)


@given(MSGS, st.data())
@settings(max_examples=80, deadline=None)
def test_any_flipped_bit_ends_the_scan_before_its_record(
    msgs: list[tuple[bytes, bytes, bytes]], data: st.DataObject
) -> None:
    pieces, lengths, _ = fmt.encode_batch(1, 1, msgs)
    blob = bytearray(b"".join(pieces))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    good = 0
    for length in lengths:
        if good + length > at:
            break
        good += length
    assert fmt.verified_length(bytes(blob)) == good
    assert sum(record.length for record in fmt.scan(bytes(blob))) == good


def test_a_torn_tail_ends_the_scan_at_every_byte() -> None:
    records, _, _ = fmt.encode_batch(1, 1, [(b"s", b"", b"one"), (b"s", b"", b"two")])
    blob = b"".join(records)
    for size in range(len(blob)):
        for cut in (blob[:size], blob[:size].ljust(len(blob), b"\0")):
            expected = 1 if size >= len(records[0]) else 0
            assert len(list(fmt.scan(cut))) == expected


def test_decode_at_refuses_a_record_that_is_no_message() -> None:
    with pytest.raises(CorruptionError, match="type 2"):
        fmt.decode_at(fmt.encode_frame(1, 1), 0)
    with pytest.raises(CorruptionError):
        fmt.decode_at(bytes(100), 0)


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=20),
    st.booleans(),
    st.lists(st.binary(max_size=30), max_size=5),
)
@settings(max_examples=40, deadline=None)
def test_a_footer_reads_back_and_any_cut_is_noticed(
    values: list[int], has_seqs: bool, subjects: list[bytes]
) -> None:
    columns = FooterColumns(
        first_seq=7,
        seqs=array("Q", values) if has_seqs else None,
        offsets=array("I", values),
        lengths=array("I", values),
        ts_deltas=array("Q", values),
        base_ts=9,
        crcs=array("I", values),
        subject_ids=array("I", values),
        subjects=subjects,
        end_offset=11,
    )
    footer = encode_footer(columns)
    assert footer_length(footer[-TRAILER_BYTES:]) == len(footer)
    found = decode_footer(footer)
    assert list(found.subjects) == subjects
    for name in FooterColumns.__slots__:
        assert name == "subjects" or getattr(found, name) == getattr(columns, name)
    for cut in range(0, len(footer), 7):
        with pytest.raises(CorruptionError):
            decode_footer(footer[:cut])
    damaged = bytearray(footer)
    damaged[len(footer) // 2] ^= 4
    with pytest.raises(CorruptionError):
        decode_footer(bytes(damaged))


@given(
    st.lists(st.text("ab.", min_size=1, max_size=4), max_size=9, unique=True),
    st.text("ab.", min_size=1, max_size=4),
)
def test_subjects_of_a_footer_are_a_sequence(names: list[str], other: str) -> None:
    want = [name.encode() for name in names]
    found = Subjects(b"".join(want), array("H", map(len, want)))
    assert (len(found), list(found)) == (len(want), want)
    assert found[1:3] == want[1:3]
    for at, name in enumerate(want):
        assert found[at] == want[at]
        for start in range(at + 1):
            assert found.index(name, start) == at
        with pytest.raises(ValueError, match="none of these"):
            found.index(name, at + 1)
    if other not in names:
        with pytest.raises(ValueError, match="none of these"):
            found.index(other.encode())
    with pytest.raises(IndexError):
        found[len(want)]


def test_a_block_header_is_of_one_block_only() -> None:
    header = fmt.encode_block_header(5, 6)
    fmt.check_block_header(header, 5, 6)
    for uid, block_no in ((5, 7), (4, 6)):
        with pytest.raises(CorruptionError):
            fmt.check_block_header(header, uid, block_no)
    with pytest.raises(CorruptionError):
        fmt.check_block_header(header[:63], 5, 6)


def _blob(msgs: list[tuple[bytes, bytes, bytes]], first_seq: int = 5) -> tuple[bytes, int]:
    pieces, lengths, _ = fmt.encode_batch(first_seq, 1000, msgs)
    return b"".join(pieces), lengths[0]


def test_a_run_of_like_records_decodes_to_the_same_as_each() -> None:
    """decode_run against decode_fields, small and large payloads (which are encoded apart)."""
    for size in (0, 7, fmt.LARGE_PAYLOAD_BYTES, fmt.LARGE_PAYLOAD_BYTES + 1):
        msgs = [(b"s.%d" % (at % 3), b"", bytes([at]) * size) for at in range(40)]
        blob, length = _blob(msgs)
        run = fmt.decode_run(blob, 0, length=length, count=40)
        assert run is not None
        seqs, tss, subjects, payloads = run
        each = [fmt.decode_fields(blob, at * length) for at in range(40)]
        rows = zip(seqs, tss, subjects, payloads, strict=True)
        assert [(s, t, u, b"", p) for s, t, u, p in rows] == each
        assert fmt.decode_at(blob, length).payload == msgs[1][2]  # and the crc is right


def test_a_run_that_is_not_alike_is_refused() -> None:
    """Equal lengths, but another subject's size, headers, or a frame in between."""
    plain = (b"s.1", b"", b"x" * 40)
    for odd in ((b"s.12", b"", b"x" * 39), (b"s.1", b"h" * 10, b"x" * 30)):
        blob, length = _blob([plain, odd, plain])
        assert len(blob) == 3 * length
        assert fmt.decode_run(blob, 0, length=length, count=3) is None
        assert fmt.decode_run(blob, 0, length=length, count=1) is not None
    assert fmt.decode_run(_blob([odd])[0], 0, length=length, count=1) is None
    frame = fmt.encode_frame(9, 9)
    blob, length = _blob([(b"s", b"", b"")])
    assert fmt.decode_run(blob + frame + blob, 0, length=length, count=2) is None
