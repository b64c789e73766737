"""What a damaged block file still gives: each record that is whole, wherever it stands.

For a block of which neither the footer nor the records, read in order, say what it held, and only
once its loss is accepted. Nothing here is for the way a healthy stream is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from streamd.store import format as fmt
from streamd.store.block import HEADER_BYTES
from streamd.store.disk import Disk
from streamd.types import Seq, Uid

_READ_BYTES = 4096  # given up at once where the disk gives an error
_MESSAGE_MARK = bytes((fmt.MSG, 0))  # type and flags, behind the length


def read_left(disk: Disk, path: str) -> bytes:
    """The file's bytes, with zeros where the disk gives none; empty if it is not there. Raises
    OSError if it can't be opened: who may not read a file must not take it for lost."""
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
    """(offset, length) of each whole record, in the order in which they stand; what is between
    them is damaged."""
    pos = min(HEADER_BYTES, len(blob))
    while pos < len(blob):
        length = fmt.verify_at(blob, pos)
        if length:
            yield pos, length
            pos += length
        else:
            mark = blob.find(_MESSAGE_MARK, pos + 5)
            if mark < 0:
                return
            pos = mark - 4


def whole_messages(blob: bytes) -> Iterator[tuple[Seq, int, bytes]]:
    """(seq, time, record) of each whole message record, in the order in which they stand."""
    for pos, length in whole_records(blob):
        if blob[pos + 4] == fmt.MSG:
            seq, ts, _, _, _ = fmt.decode_fields(blob, pos)
            yield seq, ts, blob[pos : pos + length]


def block_of(blob: bytes, uid: Uid, block_no: int, is_wanted: Callable[[Seq, int], bool]) -> bytes:
    """A block without footer that holds the whole messages of a damaged one, if their seqs ascend
    and `is_wanted` (seq, time). The header alone: there are none."""
    parts = [fmt.encode_block_header(uid, block_no)]
    last: Seq = 0
    for seq, ts, record in whole_messages(blob):
        if seq > last and is_wanted(seq, ts):
            parts.append(record)
            last = seq
    return b"".join(parts)
