"""Files of nats-server's file store, as its tar archives have them: blocks and consumers. Pure.

A block is records: `u32` length (bit 31: with headers), `u64` seq, `u64` time, `u16` length of the
subject, subject, with headers their `u32` length and bytes, body, 8 bytes of HighwayHash. A seq
with bit 63 is an erased message, with bit 62 a tombstone: the message of that seq is deleted. The
hashes are not verified: the frames around the archive have checksums of their own.

A consumer's `o.dat` is 22, 2, then uvarints: floor (consumer, stream), delivered (consumer,
stream), pending count; if there are some, a base time in seconds, and for each the seqs above the
floor and how much earlier than the base it was sent; the count of redelivered ones, and each.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

from streamd.archives.archive_records import (
    ArchivedConsumer,
    ArchivedMessages,
    ArchivedRemoval,
    ArchiveError,
    Row,
)
from streamd.types import Seq

_HEAD: Final = Struct("<IQQH")
_LENGTH: Final = Struct("<I")
_HASH_BYTES: Final = 8
_LEAST_BYTES: Final = _HEAD.size + _HASH_BYTES
_HAS_HEADERS: Final = 1 << 31
_ERASED: Final = 1 << 63
_TOMBSTONE: Final = 1 << 62
_SEQ_MASK: Final = _TOMBSTONE - 1
_RECORD_BYTES_MAX: Final = 1 << 30
_ROWS_MAX: Final = 512


class BlockReader:
    """Reads the records of blocks, one block after another, in pieces of any size."""

    def __init__(self) -> None:
        self.last_seq: Seq = 0  # that any record named
        self._waiting: list[bytes] = []
        self._size = 0
        self._wanted = _LEAST_BYTES

    def feed(self, data: bytes) -> Iterator[ArchivedMessages | ArchivedRemoval]:
        """Yield what is complete with `data`. Raises ArchiveError."""
        self._waiting.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return
        blob = b"".join(self._waiting)
        rows: list[Row] = []
        pos, size = 0, len(blob)
        self._wanted = _LEAST_BYTES
        while size - pos >= _LEAST_BYTES:
            length, seq, ts, subject_size = _HEAD.unpack_from(blob, pos)
            has_headers = bool(length & _HAS_HEADERS)
            length &= ~_HAS_HEADERS
            if not _LEAST_BYTES + subject_size <= length <= _RECORD_BYTES_MAX:
                raise ArchiveError(f"a block holds a record of {length} bytes")
            if size - pos < length:
                self._wanted = length
                break
            body_end = pos + length - _HASH_BYTES
            at = pos + _HEAD.size
            subject = blob[at : at + subject_size]
            at += subject_size
            pos += length
            number = seq & _SEQ_MASK
            if seq & (_ERASED | _TOMBSTONE) or not subject:
                if rows:
                    yield ArchivedMessages(rows)
                    rows = []
                if number:
                    self.last_seq = max(self.last_seq, number)
                    yield ArchivedRemoval(number, number)
                continue
            headers = b""
            if has_headers:
                if at + 4 > body_end:
                    raise ArchiveError(f"message sequence {number} is damaged")
                (headers_size,) = _LENGTH.unpack_from(blob, at)
                at += 4
                headers = blob[at : at + headers_size]
                at += headers_size
                if at > body_end:
                    raise ArchiveError(f"message sequence {number} is damaged")
            if number <= self.last_seq:
                raise ArchiveError(f"message sequence {number} out of order")
            self.last_seq = number
            rows.append((number, ts, subject, headers, blob[at:body_end]))
            if len(rows) >= _ROWS_MAX:
                yield ArchivedMessages(rows)
                rows = []
        if rows:
            yield ArchivedMessages(rows)
        rest = blob[pos:]
        self._waiting, self._size = ([rest] if rest else []), len(rest)

    def end_block(self) -> None:
        """End a block. Raises ArchiveError if a record is cut off."""
        if self._size:
            raise ArchiveError("a block ends within a record")


def read_consumer(name: str, config: dict[str, Any], state: bytes) -> ArchivedConsumer:
    """Return the consumer with the content of its `o.dat`; b"": it never delivered anything."""
    if not state:
        return ArchivedConsumer(name, config)
    try:
        return _read_state(name, config, state)
    except IndexError:
        raise ArchiveError(f'consumer "{name}": its state is cut off') from None


def _read_state(name: str, config: dict[str, Any], state: bytes) -> ArchivedConsumer:
    if state[0] != 22 or state[1] not in (1, 2):
        raise ArchiveError(f'consumer "{name}": its state is of an unknown kind')
    at = 2

    def uvarint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = state[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def varint() -> int:
        value = uvarint()
        return value >> 1 if not value & 1 else -(value >> 1) - 1

    is_old = state[1] == 1
    floor = uvarint(), uvarint()
    delivered = uvarint(), uvarint()
    if is_old:  # it counted what is delivered from the floor on
        above = max(floor[0] - 1, 0), max(floor[1] - 1, 0)
        delivered = delivered[0] + above[0], delivered[1] + above[1]
    pending: list[tuple[Seq, int, int]] = []
    count = uvarint()
    if count:
        base_s = varint()
        for _ in range(count):
            seq = uvarint() + floor[1]
            cseq = 0 if is_old else uvarint() + floor[0]
            pending.append((seq, cseq, (base_s - varint()) * 1_000_000_000))
    redelivered = []
    for _ in range(uvarint()):
        seq = uvarint() + floor[1]
        redelivered.append((seq, uvarint() + 1))
    if is_old:
        pending = [(seq, floor[0] + at, ts) for at, (seq, _, ts) in enumerate(sorted(pending), 1)]
    return ArchivedConsumer(name, config, delivered, floor, sorted(pending), sorted(redelivered))
