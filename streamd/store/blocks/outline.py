"""`outline`: the input of a stream's rebuild beside its blocks, apart from the snapshots.

Config, consumers and deleted messages, as of the newest snapshot; of a stream that has none yet,
the config with which it was created. Nothing reads it but a rebuild that an operator asks for.
Like `index.db` it is not synced: its checksum shows whether it is whole.
"""

from __future__ import annotations

import os

from streamd.errors import CorruptionError
from streamd.store.blocks.snapshots import TMP_SUFFIX, Snapshot, decode, encode, read_file
from streamd.store.disk import Disk, opened
from streamd.types import Uid

_NAME = "outline"


def has_outline(disk: Disk, directory: str) -> bool:
    """Return True if the file exists, whole or not."""
    return disk.exists(os.path.join(directory, _NAME))


def write_outline(disk: Disk, directory: str, outline: Snapshot) -> None:
    """Replace the outline of a stream."""
    path = os.path.join(directory, _NAME)
    with opened(disk, path + TMP_SUFFIX, create=True) as fd:
        disk.truncate(fd, 0)
        disk.writev(fd, [encode(outline)], 0)
    disk.replace(path + TMP_SUFFIX, path)
    disk.crash_point("OUTLINE_RENAMED")


def read_outline(disk: Disk, directory: str, uid: Uid) -> Snapshot | None:
    """Return the outline of a stream, or None if it is missing or not whole.

    Raises OSError if the file may not be read now: then it is not lost.
    """
    path = os.path.join(directory, _NAME)
    if not disk.exists(path):
        return None
    try:
        return decode(read_file(disk, path), name=_NAME, group=uid)
    except CorruptionError:
        return None
