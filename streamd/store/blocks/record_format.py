"""Block headers and records as bytes: what `N.blk` files hold, footers aside. Pure.

A record is `length u32, type u8, flags u8, subject_len u16, headers_len u32, seq u64, ts u64`,
then subject, headers and payload, then the crc32c of all of that; little endian. `length` counts
the whole record, its own field and the crc included. The crc of a record that ends with its own
crc is a constant, so a reader verifies a record by one call over one slice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from streamd.errors import CorruptionError
from streamd.types import Index, Msg, Seq, StoredMsg, Uid

MSG = 1
FRAME = 2
TOMBSTONE = 3
SKIP = 4
FOOTER = 5
_TYPE_MAX = FOOTER

RECORD_OVERHEAD_BYTES = 32  # 28 before the subject, 4 after the payload
LARGE_PAYLOAD_BYTES = 2048  # from here on a copy of the payload costs more than further calls
SUBJECT_BYTES_MAX = 0xFFFF
RESIDUE = 0x48674BC7  # crc32c of anything followed by its own crc32c

_HEADER = Struct("<IBBHIQQ")
_pack_header = _HEADER.pack
_unpack_header = _HEADER.unpack_from
_unpack_fields = Struct("<IxxHIQQ").unpack_from  # the same without type and flags
_unpack_length_and_type = Struct("<IB").unpack_from
RECORD_HEADER_BYTES = _HEADER.size
_CRC = Struct("<I")
_pack_crc = _CRC.pack
_RANGE = Struct("<QQ")
assert RECORD_HEADER_BYTES + _CRC.size == RECORD_OVERHEAD_BYTES


class Record(NamedTuple):
    """Record of a block, as `scan` yields it. A tombstone's payload is ranges: `ranges_of`."""

    type: int
    offset: int  # in the block
    length: int
    seq: Seq  # of a message or the first of a skip; a frame's or tombstone's log index
    ts: int
    subject: bytes
    headers: bytes
    payload: bytes
    crc: int


# --- encoding -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _layout(
    subject_size: int, headers_size: int, payload_size: int
) -> tuple[Callable[..., bytes], bytes, Callable[[bytes, int], bytes]]:
    """Return functions for message records of these sizes: (pack body, first 12 bytes, add crc).

    One `Struct` that takes all fields beats a header and three concatenations; most batches hold
    messages of few sizes.
    """
    body_size = RECORD_HEADER_BYTES + subject_size + headers_size + payload_size
    prefix = _pack_header(body_size + 4, MSG, 0, subject_size, headers_size, 0, 0)[:12]
    sizes = f"{subject_size}s{headers_size}s" if headers_size else f"{subject_size}s"
    return (
        Struct(f"<12sQQ{sizes}{payload_size}s").pack,
        prefix,
        Struct(f"<{body_size}sI").pack,
    )


def encode_batch(
    first_seq: Seq, first_ts: int, msgs: list[Msg]
) -> tuple[list[bytes], list[int], list[int]]:
    """Encode `msgs` with consecutive seqs and timestamps. Returns (pieces, lengths, crcs): the
    pieces, joined, are the records; the others have one item for each.

    The hottest function of the server: everything it calls per message is C.
    """
    records: list[bytes] = []
    crcs: list[int] = []
    add_record = records.append
    add_crc = crcs.append
    checksum = crc32c
    layout = _layout
    seq = first_seq
    ts = first_ts
    last_subject_size = last_payload_size = -1
    for subject, headers, payload in msgs:
        if len(payload) >= LARGE_PAYLOAD_BYTES:
            return _encode_large(first_seq, first_ts, msgs)
        if headers:
            pack_body, prefix, add_checksum = layout(len(subject), len(headers), len(payload))
            body = pack_body(prefix, seq, ts, subject, headers, payload)
            last_subject_size = -1
        else:
            subject_size = len(subject)
            payload_size = len(payload)
            if payload_size != last_payload_size or subject_size != last_subject_size:
                last_subject_size = subject_size
                last_payload_size = payload_size
                pack_body, prefix, add_checksum = layout(subject_size, 0, payload_size)
            body = pack_body(prefix, seq, ts, subject, payload)
        crc = checksum(body)
        add_crc(crc)
        add_record(add_checksum(body, crc))
        seq += 1
        ts += 1
    return records, list(map(len, records)), crcs


def _encode_large(
    first_seq: Seq, first_ts: int, msgs: list[Msg]
) -> tuple[list[bytes], list[int], list[int]]:
    """`encode_batch` without a copy of the payloads; for small ones a copy is cheaper."""
    pieces: list[bytes] = []
    lengths: list[int] = []
    crcs: list[int] = []
    for at, (subject, headers, payload) in enumerate(msgs):
        subject_size, headers_size = len(subject), len(headers)
        length = RECORD_OVERHEAD_BYTES + subject_size + headers_size + len(payload)
        head = _pack_header(
            length, MSG, 0, subject_size, headers_size, first_seq + at, first_ts + at
        )
        head = b"".join((head, subject, headers))
        crc = crc32c(payload, crc32c(head))
        pieces += (head, payload, _pack_crc(crc))
        lengths.append(length)
        crcs.append(crc)
    return pieces, lengths, crcs


def encode_timed(
    first_seq: Seq, tss: Sequence[int], msgs: Sequence[Msg]
) -> tuple[list[bytes], list[int], list[int]]:
    """`encode_batch` of messages that have a time of their own each: copies of other streams."""
    pieces: list[bytes] = []
    lengths: list[int] = []
    crcs: list[int] = []
    for seq, (ts, (subject, headers, payload)) in enumerate(zip(tss, msgs, strict=True), first_seq):
        subject_size, headers_size = len(subject), len(headers)
        length = RECORD_OVERHEAD_BYTES + subject_size + headers_size + len(payload)
        head = _pack_header(length, MSG, 0, subject_size, headers_size, seq, ts) + subject + headers
        crc = crc32c(payload, crc32c(head))
        pieces += (head, payload, _pack_crc(crc))
        lengths.append(length)
        crcs.append(crc)
    return pieces, lengths, crcs


def encode_record(kind: int, seq: int, ts: int, payload: bytes) -> bytes:
    """Return a record of any type but a message: without subject and headers."""
    body = _pack_header(RECORD_OVERHEAD_BYTES + len(payload), kind, 0, 0, 0, seq, ts) + payload
    return body + _pack_crc(crc32c(body))


def encode_frame(index: Index, ts: int) -> bytes:
    """See machine.base.RecordCodec."""
    return encode_record(FRAME, index, ts, b"")


def encode_tombstone(seqs: list[tuple[Seq, Seq]], index: Index) -> bytes:
    """See machine.base.RecordCodec."""
    return encode_record(TOMBSTONE, index, 0, b"".join([_RANGE.pack(*pair) for pair in seqs]))


def encode_skip(first: Seq, last: Seq, index: Index) -> bytes:
    """See machine.base.RecordCodec."""
    return encode_record(SKIP, first, 0, _RANGE.pack(last, index))


# --- decoding -----------------------------------------------------------------------------------


def decode_fields(blob: bytes, pos: int) -> tuple[Seq, int, bytes, bytes, bytes]:
    """Return (seq, ts, subject, headers, payload) of the message record at `pos`.

    Verifies nothing: for bytes that are ours since they were encoded, or since the store read and
    verified them.
    """
    length, subject_size, headers_size, seq, ts = _unpack_fields(blob, pos)
    start = pos + 28
    headers_at = start + subject_size
    if headers_size:
        payload_at = headers_at + headers_size
        return (
            seq,
            ts,
            blob[start:headers_at],
            blob[headers_at:payload_at],
            blob[payload_at : pos + length - 4],
        )
    return seq, ts, blob[start:headers_at], b"", blob[headers_at : pos + length - 4]


@lru_cache(maxsize=1024)
def _run_layout(subject_size: int, payload_size: int) -> Struct:
    return Struct(f"<12sQQ{subject_size}s{payload_size}s4x")


def decode_run(
    blob: bytes, pos: int, *, length: int, count: int
) -> tuple[Sequence[Seq], Sequence[int], Sequence[bytes], Sequence[bytes]] | None:
    """Return the columns (seqs, tss, subjects, payloads) of `count` message records of `length`
    bytes each, one behind another from `pos`; None unless all are laid out like the first and
    have no headers. A fifth of the time of decoding each. Verifies as little as `decode_fields`.
    """
    _, subject_size, headers_size, _, _ = _unpack_fields(blob, pos)
    if headers_size or blob[pos + 4] != MSG:
        return None
    layout = _run_layout(subject_size, length - RECORD_OVERHEAD_BYTES - subject_size)
    rows = layout.iter_unpack(memoryview(blob)[pos : pos + length * count])
    prefixes, seqs, tss, subjects, payloads = zip(*rows, strict=True)
    if prefixes.count(blob[pos : pos + 12]) != count:
        return None
    return seqs, tss, subjects, payloads


def decode_at(blob: bytes, pos: int) -> StoredMsg:
    """Return the message record at `pos`, verified. Raises CorruptionError."""
    length = verify_at(blob, pos)
    if not length:
        raise CorruptionError(f"record at position {pos} is not what was written there")
    if blob[pos + 4] != MSG:
        raise CorruptionError(f"record at position {pos} has type {blob[pos + 4]}, not a message")
    return StoredMsg(*decode_fields(blob, pos))


def verify_at(blob: bytes | memoryview, pos: int) -> int:
    """Return the length of the valid record at `pos`, or 0 if there is none."""
    if pos + RECORD_OVERHEAD_BYTES > len(blob):
        return 0
    length, kind, _, subject_size, headers_size, _, _ = _unpack_header(blob, pos)
    if (
        not 0 < kind <= _TYPE_MAX
        or length < RECORD_OVERHEAD_BYTES + subject_size + headers_size
        or pos + length > len(blob)
        or crc32c(blob[pos : pos + length]) != RESIDUE
    ):
        return 0
    return int(length)


def crc_of(record: bytes) -> int:
    """Return the crc32c that a whole record ends with."""
    return int.from_bytes(record[-4:], "little")


def stated_length(blob: bytes) -> int:
    """Return the length that the record at the head of `blob` claims, unverified; 0: cut off."""
    return int(_unpack_length_and_type(blob, 0)[0]) if len(blob) >= RECORD_OVERHEAD_BYTES else 0


def verified_length(blob: bytes) -> int:
    """Return how many bytes of `blob`, from its start, are whole and valid message-area records.

    Stops at a footer.
    """
    checksum = crc32c
    unpack = _unpack_length_and_type
    size = len(blob)
    last = size - RECORD_OVERHEAD_BYTES + 1
    pos = 0
    while pos < last:
        length, kind = unpack(blob, pos)
        if length < RECORD_OVERHEAD_BYTES or not 0 < kind < FOOTER:
            break
        end = pos + length
        if end > size or checksum(blob[pos:end]) != RESIDUE:
            break
        pos = end
    return pos


def scan(blob: bytes, base: int = 0) -> Iterator[Record]:
    """Yield the valid records at the head of `blob`, whose first byte is at `base` of its block.

    Ends without complaint at the first byte that starts no valid record: a torn tail. A caller
    that expects more compares the end of the last record with the expected end.
    """
    pos = 0
    while length := verify_at(blob, pos):
        _, kind, _, subject_size, headers_size, seq, ts = _unpack_header(blob, pos)
        headers_at = pos + RECORD_HEADER_BYTES + subject_size
        payload_at = headers_at + headers_size
        end = pos + length - 4
        yield Record(
            kind,
            base + pos,
            length,
            seq,
            ts,
            blob[pos + RECORD_HEADER_BYTES : headers_at],
            blob[headers_at:payload_at],
            blob[payload_at:end],
            _CRC.unpack_from(blob, end)[0],
        )
        pos += length


def ranges_of(record: Record) -> list[tuple[Seq, Seq]]:
    """Return the inclusive seq ranges that a tombstone deletes, or that a skip used up."""
    if record.type == SKIP:
        return [(record.seq, _RANGE.unpack(record.payload)[0])]
    return [(first, last) for first, last in _RANGE.iter_unpack(record.payload)]


def index_of(record: Record) -> Index:
    """Return the log index that a frame, tombstone or skip names; 0 for a message."""
    if record.type == SKIP:
        return int(_RANGE.unpack(record.payload)[1])
    return 0 if record.type == MSG else record.seq


# --- block header -------------------------------------------------------------------------------

BLOCK_MAGIC = b"STRDBLK1"
BLOCK_VERSION = 1
BLOCK_SUFFIX = ".blk"
_BLOCK_NAME = re.compile(r"(r?)(0|[1-9][0-9]*)\.blk")
REWRITTEN = 1 << 62  # the same as in machine.base: rooms do not import each other
_BLOCK_HEADER = Struct("<8sIIQQ28s")


def block_name(block_no: int) -> str:
    """Return the file name of a block: `17.blk`; `r1234.blk` if entry 1234 rewrote it."""
    if block_no >= REWRITTEN:
        return f"r{block_no - REWRITTEN}{BLOCK_SUFFIX}"
    return f"{block_no}{BLOCK_SUFFIX}"


def block_number(name: str) -> int | None:
    """Return the inverse of `block_name`; None for any other name."""
    found = _BLOCK_NAME.fullmatch(name)
    if found is None:
        return None
    number = int(found[2])
    return None if number >= REWRITTEN else number + (REWRITTEN if found[1] else 0)


def encode_block_header(uid: Uid, block_no: int) -> bytes:
    """Return the first 64 bytes of a block file."""
    body = _BLOCK_HEADER.pack(BLOCK_MAGIC, BLOCK_VERSION, 0, uid, block_no, b"")
    return body + _pack_crc(crc32c(body))


def check_block_header(header: bytes, uid: Uid, block_no: int) -> None:
    """Raise CorruptionError unless `header` is that of this very block."""
    if len(header) < 64 or crc32c(header[:64]) != RESIDUE:
        raise CorruptionError(f"{block_name(block_no)} of stream {uid}: its header is damaged")
    magic, version, _, found_uid, found_no, _ = _BLOCK_HEADER.unpack_from(header)
    if magic != BLOCK_MAGIC or version != BLOCK_VERSION:
        raise CorruptionError(f"{block_name(block_no)}: unknown format {magic!r} version {version}")
    if (found_uid, found_no) != (uid, block_no):
        raise CorruptionError(
            f"{block_name(block_no)} of stream {uid}: holds block {found_no} of stream {found_uid}"
        )
