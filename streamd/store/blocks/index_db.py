"""`index.db`: a stream's index beside its newest snapshot, so that a start need not scan blocks."""

from __future__ import annotations

import os
from struct import Struct

from crc32c import crc32c

from streamd.store.blocks.snapshots import read_file
from streamd.store.disk import Disk, opened
from streamd.types import Index, Uid

_NAME = "index.db"
_HEADER = Struct("<8sQQQII")
_MAGIC = b"STRDIDX1"


def write_index(disk: Disk, directory: str, uid: Uid, index: Index, index_db: bytes) -> None:
    """Write `index.db` beside the snapshot at `index`.

    A cache: not synced, for a torn or stale one is recognised by its header.
    """
    header = _HEADER.pack(_MAGIC, uid, index, len(index_db), crc32c(index_db), 0)
    path = os.path.join(directory, _NAME)
    with opened(disk, path + ".tmp", create=True) as fd:
        disk.truncate(fd, 0)
        disk.writev(fd, [header, index_db], 0)
    disk.replace(path + ".tmp", path)
    disk.crash_point("INDEX_RENAMED")


def remove_index(disk: Disk, directory: str) -> None:
    """Void `index.db`, whatever its stamp."""
    path = os.path.join(directory, _NAME)
    if disk.exists(path):
        disk.unlink(path)


def read_index(disk: Disk, directory: str, uid: Uid, index: Index) -> bytes | None:
    """Return the `index.db` written with the snapshot at `index`, or None if it is not whole."""
    try:
        blob = read_file(disk, os.path.join(directory, _NAME))
    except OSError:
        return None  # gone, or not to be read: what it says is in the blocks as well
    if len(blob) < _HEADER.size:
        return None
    magic, found_uid, stamp, size, crc, _ = _HEADER.unpack_from(blob)
    body = blob[_HEADER.size :]
    if (magic, found_uid, stamp, size) != (_MAGIC, uid, index, len(body)):
        return None
    return body if crc32c(body) == crc else None
