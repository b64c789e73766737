"""Records and footers: round trips, and every kind of damage."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.errors import CorruptionError
from streamd.store import format as fmt

MSGS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=40), st.binary(max_size=90)),
    min_size=1,
    max_size=6,
)


@given(MSGS, st.integers(1, 2**63), st.integers(0, 2**62))
@settings(max_examples=60, deadline=None)
def test_a_batch_reads_back_field_by_field(
    msgs: list[tuple[bytes, bytes, bytes]], seq: int, ts: int
) -> None:
    records, crcs = fmt.encode_batch(seq, ts, msgs)
    blob = b"".join(records)
    pos = 0
    for i, msg in enumerate(msgs):
        expected = (seq + i, ts + i, *msg)
        assert fmt.decode_at(blob, pos) == expected
        assert fmt.decode_fields(blob, pos) == expected
        pos += len(records[i])
    scanned = list(fmt.scan(blob, 64))
    assert [record.crc for record in scanned] == crcs
    assert [record.length for record in scanned] == list(map(len, records))
    assert fmt.verified_length(blob) == len(blob)


@given(MSGS, st.data())
@settings(max_examples=80, deadline=None)
def test_any_flipped_bit_ends_the_scan_before_its_record(
    msgs: list[tuple[bytes, bytes, bytes]], data: st.DataObject
) -> None:
    records, _ = fmt.encode_batch(1, 1, msgs)
    blob = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    good = 0
    for record in records:
        if good + len(record) > at:
            break
        good += len(record)
    assert fmt.verified_length(bytes(blob)) == good
    assert sum(record.length for record in fmt.scan(bytes(blob))) == good


def test_a_torn_tail_ends_the_scan_at_every_byte() -> None:
    records, _ = fmt.encode_batch(1, 1, [(b"s", b"", b"one"), (b"s", b"", b"two")])
    blob = b"".join(records)
    for size in range(len(blob)):
        for cut in (blob[:size], blob[:size].ljust(len(blob), b"\0")):
            expected = 1 if size >= len(records[0]) else 0
            assert len(list(fmt.scan(cut))) == expected


def test_decode_at_refuses_what_is_not_a_message() -> None:
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
    columns = fmt.FooterColumns(
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
    footer = fmt.encode_footer(columns)
    assert fmt.footer_length(footer[-fmt.TRAILER_BYTES :]) == len(footer)
    found = fmt.decode_footer(footer)
    for name in fmt.FooterColumns.__slots__:
        assert getattr(found, name) == getattr(columns, name)
    for cut in range(0, len(footer), 7):
        with pytest.raises(CorruptionError):
            fmt.decode_footer(footer[:cut])
    damaged = bytearray(footer)
    damaged[len(footer) // 2] ^= 4
    with pytest.raises(CorruptionError):
        fmt.decode_footer(bytes(damaged))


def test_a_block_header_is_of_one_block_only() -> None:
    header = fmt.encode_block_header(5, 6)
    fmt.check_block_header(header, 5, 6)
    for uid, block_no in ((5, 7), (4, 6)):
        with pytest.raises(CorruptionError):
            fmt.check_block_header(header, uid, block_no)
    with pytest.raises(CorruptionError):
        fmt.check_block_header(header[:63], 5, 6)
