"""Damaged directories of streams: moved to `trash/`, with every byte, and found there again."""

from __future__ import annotations

import itertools
import os

from streamd.store.blocks.record_format import REWRITTEN, block_number
from streamd.store.disk import Disk, opened
from streamd.types import Uid

_COPY_BYTES = 1024 * 1024


def quarantine(disk: Disk, root: str, uid: Uid) -> str:
    """Move a stream's damaged directory aside, durably; return its new path.

    Nothing is deleted. Returns "" if there was no such directory. Synchronous; raises OSError.
    """
    streams = os.path.join(root, "streams")
    source = os.path.join(streams, str(uid))
    if not disk.exists(source):
        return ""
    trash = trash_of(disk, root)
    # Not a number that is free again: the highest is the newest.
    target = os.path.join(trash, _name(uid, max(_numbers(disk, root, uid), default=0) + 1))
    disk.replace(source, target)
    disk.crash_point("QUARANTINE_MOVED")
    disk.sync_dir(trash)
    disk.sync_dir(streams)
    return target


def trash_of(disk: Disk, root: str) -> str:
    """Return the path of `trash/`, made if it was removed."""
    trash = os.path.join(root, "trash")
    if not disk.exists(trash):
        disk.mkdir(trash)
        disk.sync_dir(root)
    return trash


def newest_quarantine(disk: Disk, root: str, uid: Uid) -> str:
    """Return the path that `quarantine` moved this stream to last, or ""."""
    numbers = _numbers(disk, root, uid)
    return os.path.join(root, "trash", _name(uid, max(numbers))) if numbers else ""


def quarantines(disk: Disk, root: str, uid: Uid) -> list[str]:
    """Return the names in `trash/` that `quarantine` moved this stream to, oldest first."""
    return [_name(uid, number) for number in sorted(_numbers(disk, root, uid))]


def _name(uid: Uid, number: int) -> str:
    return f"{uid}-damaged-{number}"


def _numbers(disk: Disk, root: str, uid: Uid) -> list[int]:
    stem = f"{uid}-damaged-"
    rests = [
        name.removeprefix(stem)
        for name in disk.listdir(os.path.join(root, "trash"))
        if name.startswith(stem)
    ]
    return [int(rest) for rest in rests if rest.isdigit()]


def free_name(disk: Disk, directory: str, stem: str) -> str:
    """Return the first path of `<stem>-1`, `<stem>-2`, ... that is free in `directory`."""
    number = 1
    while disk.exists(os.path.join(directory, f"{stem}-{number}")):
        number += 1
    return os.path.join(directory, f"{stem}-{number}")


def keep_ends(disk: Disk, root: str, uid: Uid, tail: tuple[int, int]) -> str:
    """Copy the blocks that hold something after `tail` (block, offset) to `trash/`, whole.

    Returns the path of the copies, or "" if there are none. Synchronous; raises OSError.
    """
    source, trash = os.path.join(root, "streams", str(uid)), trash_of(disk, root)
    numbers = {name: block_number(name) for name in disk.listdir(source)}
    names = []
    for name, number in sorted(numbers.items()):
        if number is None or not tail[0] <= number < REWRITTEN:
            continue
        with opened(disk, os.path.join(source, name)) as fd:
            if number > tail[0] or disk.size(fd) > tail[1]:
                names.append(name)
    if not names:
        return ""
    target = free_name(disk, trash, f"{uid}-end")
    disk.mkdir(target)
    for name in names:
        _copy(disk, os.path.join(source, name), os.path.join(target, name))
    disk.sync_dir(target)
    disk.sync_dir(trash)
    return target


def keep_block(disk: Disk, root: str, uid: Uid, name: str) -> str:
    """Move a damaged block's file to `trash/`, durably; return its new path.

    Every byte is kept, also those that can't be read now. Synchronous; raises OSError.
    """
    source, trash = os.path.join(root, "streams", str(uid)), trash_of(disk, root)
    target = free_name(disk, trash, f"{uid}-lost")
    disk.mkdir(target)
    path = os.path.join(target, name)
    disk.replace(os.path.join(source, name), path)
    disk.crash_point("LOST_BLOCK_KEPT")
    for directory in (target, trash, source):
        disk.sync_dir(directory)
    return path


def kept_block(disk: Disk, root: str, uid: Uid, name: str) -> str:
    """Return the path that `keep_block` moved this block to last, or ""."""
    trash, path = os.path.join(root, "trash"), ""
    for number in itertools.count(1):
        directory = os.path.join(trash, f"{uid}-lost-{number}")
        if not disk.exists(directory):
            return path
        if disk.exists(os.path.join(directory, name)):
            path = os.path.join(directory, name)
    raise AssertionError("numbers end")


def _copy(disk: Disk, source: str, target: str) -> None:
    with opened(disk, source) as reads, opened(disk, target, create=True) as writes:
        size = disk.size(reads)
        for offset in range(0, size, _COPY_BYTES):
            disk.pwrite(writes, disk.pread(reads, min(_COPY_BYTES, size - offset), offset), offset)
        disk.fdatasync(writes)
