"""Salvage of a damaged block file: each record that is whole, at any place in it.

For a block of which neither the footer nor the records, read in order, say what it held, and for a
stream that is rebuilt from its blocks; only once a loss is accepted. Nothing here is for the way a
healthy stream is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from streamd.errors import CorruptionError
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.block_verify import rows_of
from streamd.store.disk import Disk
from streamd.types import Index, Msg, Seq, Uid

_READ_BYTES = 4096  # taken for lost at once where the disk gives an error
# Type and flags, behind the length; what is no message has neither subject nor headers.
_find_mark = re.compile(rb"\x01\x00|[\x02-\x04]\x00{7}").search


def read_left(disk: Disk, path: str) -> bytes:
    """Return a file's bytes, with zeros for unreadable ones; b"" if the file is missing.

    Raises OSError if the file can't be opened: a file that may not be read is not lost.
    """
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return b""
    parts = []
    try:
        size = disk.size(fd)
        for offset in range(0, size, _READ_BYTES):
            wanted = min(_READ_BYTES, size - offset)
            try:
                part = disk.pread(fd, wanted, offset)
            except OSError:
                part = b""
            parts.append(part.ljust(wanted, b"\0"))
    finally:
        disk.close(fd)
    return b"".join(parts)


def whole_records(blob: bytes) -> Iterator[tuple[int, int]]:
    """Return (offset, length) of each whole record, in file order; bytes in between are damaged."""
    pos = min(HEADER_BYTES, len(blob))
    while pos < len(blob):
        length = fmt.verify_at(blob, pos)
        if length:
            yield pos, length
            pos += length
        else:
            mark = _find_mark(blob, pos + 5)
            if mark is None:
                return
            pos = mark.start() - 4


def whole_messages(blob: bytes) -> Iterator[tuple[Seq, int, bytes]]:
    """Yield (seq, time, record) of each whole message record, in file order."""
    for pos, length in whole_records(blob):
        if blob[pos + 4] == fmt.MSG:
            seq, ts, _, _, _ = fmt.decode_fields(blob, pos)
            yield seq, ts, blob[pos : pos + length]


def block_of(blob: bytes, uid: Uid, block_no: int, is_wanted: Callable[[Seq, int], bool]) -> bytes:
    """Return a block without footer that holds the whole messages of a damaged one, if their seqs
    ascend and `is_wanted` (seq, time); the header alone if there are none."""
    parts = [fmt.encode_block_header(uid, block_no)]
    last: Seq = 0
    for seq, ts, record in whole_messages(blob):
        if seq > last and is_wanted(seq, ts):
            parts.append(record)
            last = seq
    return b"".join(parts)


class Harvest(NamedTuple):
    """Whole records of a block's file, in summary."""

    ranges: list[tuple[Seq, Seq]]  # seqs of its messages, inclusive
    first_ts: int
    last_ts: int
    crcs: list[int]  # of the messages
    tombstones: list[tuple[Seq, Seq]]
    mentioned: Seq  # the highest seq that any record names
    headed: list[tuple[Seq, int, bytes]]  # (seq, time, headers) of messages with "Nats-" headers
    first_frame: Index  # 0: it has none
    last_frame: Index
    cut_at: int  # where the last frame up to the wanted entry ends; the header's end: there is none
    is_cut_sure: bool  # nothing is damaged between there and the next frame
    has_more: bool  # something comes after `cut_at`
    end_offset: int  # where the last whole record ends
    is_whole: bool  # the file is what was written; else `pieces` are what is left of it
    is_sealed: bool
    pieces: list[tuple[int, int]]  # (offset, length) of whole records, neighbours joined
    kept: list[tuple[Seq, Msg]]  # messages of counters, and schedules

    @property
    def seqs(self) -> list[Seq]:
        """Digest of its messages, one for each of `crcs`."""
        return [seq for first, last in self.ranges for seq in range(first, last + 1)]

    @property
    def is_torn(self) -> bool:
        """True if every byte up to some place is whole, and nothing is behind it."""
        return not self.is_whole and [at for at, _ in self.pieces] == [HEADER_BYTES]

    @property
    def left_bytes(self) -> int:
        """Size of a block that holds the pieces."""
        return HEADER_BYTES + sum(size for _, size in self.pieces)


def harvest(blob: bytes, uid: Uid, block_no: int, *, upto: Index = 1 << 63) -> Harvest:
    """Read a block's file, as far as it can be read, and find where log entry `upto` ends.

    A message whose seq does not ascend is none of the block's: bytes of a payload may look like a
    record where the record around them is damaged.
    """
    ranges: list[list[int]] = []
    crcs: list[int] = []
    tombstones: list[tuple[Seq, Seq]] = []
    headed: list[tuple[Seq, int, bytes]] = []
    kept: list[tuple[Seq, Msg]] = []
    pieces: list[list[int]] = []
    first_ts = last_ts = mentioned = first_frame = last_frame = last = 0
    cut_at = end = HEADER_BYTES
    is_cut_sure, has_passed, is_gap_after_cut = True, False, False
    for record in records_of(blob):
        if record.type == fmt.FOOTER:
            break
        if record.type == fmt.MSG and record.seq <= last:
            continue
        if record.offset != end:
            is_gap_after_cut = True
        if pieces and sum(pieces[-1]) == record.offset:
            pieces[-1][1] += record.length
        else:
            pieces.append([record.offset, record.length])
        end = record.offset + record.length
        if record.type == fmt.MSG:
            last = record.seq
            crcs.append(record.crc)
            if ranges and ranges[-1][1] == last - 1:
                ranges[-1][1] = last
            else:
                ranges.append([last, last])
            first_ts, last_ts = first_ts or record.ts, record.ts
            if record.headers and b"Nats-" in record.headers:
                headed.append((last, record.ts, record.headers))
                if b"\r\nNats-Incr:" in record.headers or b"\r\nNats-Schedule:" in record.headers:
                    kept.append((last, (record.subject, record.headers, record.payload)))
            mentioned = max(mentioned, last)
        elif record.type == fmt.FRAME:
            first_frame, last_frame = first_frame or record.seq, record.seq
            if record.seq <= upto and not has_passed:
                cut_at, is_gap_after_cut = end, False
            elif not has_passed:
                has_passed, is_cut_sure = True, not is_gap_after_cut
        else:
            spans = fmt.ranges_of(record)
            mentioned = max(mentioned, *(span[1] for span in spans))
            if record.type == fmt.TOMBSTONE:
                tombstones += spans
    is_whole, is_sealed = _is_whole(blob, uid, block_no, end)
    if not has_passed:
        is_cut_sure = not is_gap_after_cut
    return Harvest(
        [(low, high) for low, high in ranges], first_ts, last_ts, crcs, tombstones, mentioned,
        headed, first_frame, last_frame, cut_at, is_cut_sure, end > cut_at, end, is_whole,
        is_sealed, [(at, size) for at, size in pieces], kept,
    )  # fmt: skip


def records_of(blob: bytes) -> Iterator[fmt.Record]:
    """Yield each whole record, in file order."""
    for pos, length in whole_records(blob):
        yield next(fmt.scan(blob[pos : pos + length], pos))


def _is_whole(blob: bytes, uid: Uid, block_no: int, end: int) -> tuple[bool, bool]:
    """Return (the file is whole, it is sealed)."""
    try:
        rows = rows_of(blob, uid, block_no)
    except CorruptionError:
        return False, False
    return rows.end_offset == end, rows.is_sealed


def left_of(blob: bytes, uid: Uid, block_no: int, pieces: list[tuple[int, int]]) -> bytes:
    """Return a block without footer that holds these pieces of another."""
    parts = [fmt.encode_block_header(uid, block_no)]
    parts += [blob[at : at + size] for at, size in pieces]
    return b"".join(parts)
