"""Places of the valid records of a block, and the places where no record is valid.

numpy does what is per message where a footer says where records are and nothing is damaged;
elsewhere it is a loop over the records.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from spark_jobs.replica.checksums import record_starts
from spark_jobs.replica.record_rows import I64, columns_of, numbers_at
from streamd.offline.engine import HEADER_BYTES, FooterColumns
from streamd.offline.engine import record_format as fmt

_SEARCH_BYTES: Final = 1 << 18  # bytes looked at for the record after a damaged one
_SEARCH_SEQS: Final = 64
_ZEROS: Final = bytes(8)  # so many: what follows is looked for behind all of them
_NOT_ZERO: Final = re.compile(rb"[^\0]")

_unpack_head = struct.Struct("<IB").unpack_from


class BadPlace(NamedTuple):
    """A place where no valid record is."""

    offset: int
    end: int  # the next valid record, or where the records end
    stored: int  # crc that stands there, 0: unknown
    found: int


def find_messages(
    blob: bytes, *, end: int, first_seq: int, footer: FooterColumns | None
) -> tuple[I64, list[BadPlace]]:
    """Offsets of the valid message records before `end`, and what lies between the valid records.

    `first_seq` is the first that the block may hold: it helps to find a record after damage.
    """
    whole = _whole_messages(blob, end, footer)
    if whole is not None:
        return whole, []
    offsets, bad = _walk(blob, end, first_seq, footer)
    return np.array(offsets, np.int64), bad


def records_at(blob: bytes, offsets: I64) -> Iterator[fmt.Record]:
    """The valid message records at `offsets`."""
    for at in offsets.tolist():
        length = _unpack_head(blob, at)[0]
        yield from fmt.scan(blob[at : at + length], at)


def _whole_messages(blob: bytes, end: int, footer: FooterColumns | None) -> I64 | None:
    """Offsets of the messages of an undamaged block, of which the footer says where they are;
    None if it is for the walk to tell."""
    if footer is None or not len(footer.offsets):
        return None
    told = columns_of(footer)
    starts = record_starts(
        blob, told.offsets, told.offsets + told.lengths, first=HEADER_BYTES, end=end
    )
    if starts is None:
        return None
    kinds = numbers_at(blob, starts + 4, 1)
    if not kinds.min() or kinds.max() >= fmt.FOOTER:
        return None
    return np.asarray(starts[kinds == fmt.MSG])


def _walk(
    blob: bytes, end: int, first_seq: int, footer: FooterColumns | None
) -> tuple[list[int], list[BadPlace]]:
    offsets: list[int] = []
    bad: list[BadPlace] = []
    add = offsets.append
    checksum = crc32c
    unpack = _unpack_head
    residue, overhead, first_bad_kind = fmt.RESIDUE, fmt.RECORD_OVERHEAD_BYTES, fmt.FOOTER
    pos = HEADER_BYTES
    last = end - overhead
    while pos < end:
        while pos <= last:
            length, kind = unpack(blob, pos)
            after = pos + length
            if (
                length < overhead
                or not 0 < kind < first_bad_kind
                or after > end
                or checksum(blob[pos:after]) != residue
            ):
                break
            if kind == 1:
                add(pos)
            pos = after
        if pos < end:
            seq = (seq_of(blob, offsets[-1]) or 0) if offsets else first_seq - 1
            after = _next_record(blob, pos, end, seq, footer)
            bad.append(_bad_place(blob, pos, after))
            pos = after
    return offsets, bad


def _next_record(
    blob: bytes, pos: int, end: int, last_seq: int, footer: FooterColumns | None
) -> int:
    """Return where a record may begin after the bad place at `pos`; `end` if none is found.
    `last_seq` is the last seq before it."""
    length = _unpack_head(blob, pos)[0] if pos + 5 <= end else 0
    if length >= fmt.RECORD_OVERHEAD_BYTES and pos + length <= end:
        after: int = pos + length
        if after == end or fmt.verify_at(blob, after):
            return after
    if footer is not None and len(footer.offsets):
        told = np.frombuffer(footer.offsets, dtype=f"<u{footer.offsets.itemsize}")
        row = int(np.searchsorted(told, pos, side="right"))
        if row < len(told):
            return int(told[row])  # whatever is there: it is looked at next
        return end
    for each in range(last_seq + 1, last_seq + 1 + _SEARCH_SEQS):
        at = blob.find(struct.pack("<Q", each), pos + 1, end)
        if at - 12 > pos and fmt.verify_at(blob, at - 12):
            return at - 12
    at = pos + 1
    for _ in range(_SEARCH_BYTES):
        if at >= end:
            break
        if fmt.verify_at(blob, at):
            return at
        is_zeros = blob.startswith(_ZEROS, at)
        at = _near_end_of_zeros(blob, at, end) if is_zeros else at + 1
    return end


def _near_end_of_zeros(blob: bytes, at: int, end: int) -> int:
    """Return where to search on behind the zeros at `at`: just before their end, because the length
    that a record begins with may begin with zeros."""
    found = _NOT_ZERO.search(blob, at, end)
    return max(at + 1, (found.start() if found else end) - 4)


def _bad_place(blob: bytes, pos: int, after: int) -> BadPlace:
    if after - pos < fmt.RECORD_OVERHEAD_BYTES:
        return BadPlace(pos, after, 0, 0)
    return BadPlace(pos, after, stored_crc(blob, pos, after - pos), crc32c(blob[pos : after - 4]))


def seq_of(blob: bytes, pos: int) -> int | None:
    """The seq of the message record at `pos`; None if it is no message."""
    if blob[pos + 4] != fmt.MSG:
        return None
    return int(struct.unpack_from("<Q", blob, pos + 12)[0])


def stored_crc(blob: bytes, pos: int, length: int) -> int:
    """The crc in the record of `length` bytes at `pos`."""
    return int.from_bytes(blob[pos + length - 4 : pos + length], "little")
