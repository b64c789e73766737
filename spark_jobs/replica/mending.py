"""A block put together from several replicas' copies: `mended`.

Replicas write the same bytes at the same offsets of the same block (I9), so where a record is
damaged in one file, the record that stands there in another is the same one. What comes of it is
believed only if it has the digest that the state has of the block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_jobs.replica.decode import Selection, checked_columns, columns_of
from spark_jobs.replica.record_rows import mix
from streamd.errors import CorruptionError
from streamd.offline.blocks import BlockView
from streamd.offline.engine import (
    HEADER_BYTES,
    MASK64,
    TRAILER_BYTES,
    decode_footer,
    footer_length,
    read_left,
)
from streamd.offline.engine import record_format as fmt
from streamd.offline.read_only_disk import ReadOnlyDisk

_MESSAGE_MARK = bytes((fmt.MSG, 0))  # type and flags of a message, behind the record's length


def mended(block: BlockView) -> bytes:
    """The block's bytes, each record from the first replica in which it is whole.

    Where no replica has a whole record, the bytes are those of the block's own file: who decodes
    them notices. Raises CorruptionError if every record is whole and they are not the block's.
    """
    disk = ReadOnlyDisk()
    blobs = [blob for path in (block.path, *block.others) if (blob := read_left(disk, path))]
    blobs = [blobs[0] if blobs else b"", *(each for each in blobs[1:] if _is_of(block, each))]
    end = block.tail_offset if block.tail else block.end_offset
    parts = [fmt.encode_block_header(block.uid, block.block_no)]
    pos = HEADER_BYTES
    is_whole = True
    while pos < end:
        record = next((found for blob in blobs if (found := _record_at(blob, pos, end))), b"")
        if not record:
            is_whole = False
            following = min((_next_record(blob, pos, end) for blob in blobs), default=end)
            record = blobs[0][pos:following].ljust(following - pos, b"\0")
        parts.append(record)
        pos += len(record)
    parts.append(block.tail or _footer_of(blobs, block))
    blob = b"".join(parts)
    if is_whole:
        _check_digest(blob, block)
    return blob


def _is_of(block: BlockView, blob: bytes) -> bool:
    try:
        fmt.check_block_header(blob[:HEADER_BYTES], block.uid, block.block_no)
    except CorruptionError:
        return False
    return True


def _record_at(blob: bytes, pos: int, end: int) -> bytes:
    length = fmt.verify_at(blob, pos)
    return blob[pos : pos + length] if length and pos + length <= end else b""


def _next_record(blob: bytes, pos: int, end: int) -> int:
    """Return where the next whole message record behind `pos` begins, or `end`."""
    mark = blob.find(_MESSAGE_MARK, pos + 5, end)
    while mark >= 0:
        if fmt.verify_at(blob, mark - 4):
            return mark - 4
        mark = blob.find(_MESSAGE_MARK, mark + 1, end)
    return end


def _footer_of(blobs: Sequence[bytes], block: BlockView) -> bytes:
    """The footer of a sealed block from the first file that has it whole."""
    for blob in blobs if block.is_sealed else ():
        size = footer_length(blob[-TRAILER_BYTES:])
        if not size or len(blob) - size != block.end_offset:
            continue
        try:
            decode_footer(blob[-size:])
        except (CorruptionError, AssertionError):
            continue
        return blob[-size:]
    return b""


def _check_digest(blob: bytes, block: BlockView) -> None:
    columns = columns_of(blob, block)
    checked_columns(blob, block, Selection(), None)
    live = columns.live
    mixed = mix(columns.seqs[live].astype(np.uint64), columns.crcs[live].astype(np.uint64))
    found = int(mixed.sum(dtype=np.uint64)) & MASK64
    if found != block.digest:
        raise CorruptionError(
            f"{block.path}: the replicas together give digest {found:016x}, the state says "
            f"{block.digest:016x}"
        )
