"""Damaged directories of streams: moved to `trash/`, with every byte, and found there again."""

from __future__ import annotations

import os

from streamd.store.disk import Disk
from streamd.types import Uid


def quarantine(disk: Disk, root: str, uid: Uid) -> str:
    """Move a stream's damaged directory aside, durably, and return where to. Nothing is deleted.

    Empty: there was no such directory. Synchronous; raises OSError.
    """
    streams, trash = os.path.join(root, "streams"), os.path.join(root, "trash")
    source = os.path.join(streams, str(uid))
    if not disk.exists(source):
        return ""
    target = free_name(disk, trash, f"{uid}-damaged")
    disk.replace(source, target)
    disk.crash_point("QUARANTINE_MOVED")
    disk.sync_dir(trash)
    disk.sync_dir(streams)
    return target


def newest_quarantine(disk: Disk, root: str, uid: Uid) -> str:
    """Where `quarantine` moved this stream last, or an empty string."""
    trash = os.path.join(root, "trash")
    stem = f"{uid}-damaged-"
    numbers = [
        int(name.removeprefix(stem))
        for name in disk.listdir(trash)
        if name.startswith(stem) and name.removeprefix(stem).isdigit()
    ]
    return os.path.join(trash, f"{stem}{max(numbers)}") if numbers else ""


def free_name(disk: Disk, directory: str, stem: str) -> str:
    """The first of `<stem>-1`, `<stem>-2`, ... that is not in `directory` yet, as a path."""
    number = 1
    while disk.exists(os.path.join(directory, f"{stem}-{number}")):
        number += 1
    return os.path.join(directory, f"{stem}-{number}")
