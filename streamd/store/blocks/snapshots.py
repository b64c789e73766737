"""Snapshot files: the state of a group at a log index, whole or not there at all.

Layout (store/README.md): a header, sha256 of that and of what follows, a list of block numbers, the
state. Written as `<name>.tmp`,
synced, renamed, directory synced; so a file under its final name is complete, and one that does
not verify is damaged, not torn.
"""

from __future__ import annotations

import errno
import os
import re
from array import array
from collections.abc import Callable
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from streamd.callbacks import ignore
from streamd.errors import CorruptionError, IncarnationError
from streamd.store.disk import Disk, is_refused, opened, read_error
from streamd.types import Index, Term, Uid

_MAGIC = b"STRDSNP1"
_VERSION = 1
_HEADER = Struct("<8sIIQQQQQIIQ")
_DIGEST_BYTES = 32
TMP_SUFFIX = ".tmp"


class Snapshot(NamedTuple):
    """Content of a snapshot file."""

    group: Uid
    index: Index  # type: ignore[assignment]
    term: Term
    chain: int
    state: bytes
    tail: tuple[int, int] = (0, 0)  # streams: (block_no, offset) where the blocks ended
    doomed: tuple[int, ...] = ()  # streams: dead blocks whose files are still there


class SnapshotCheck(NamedTuple):
    """Result of reading a file: its size and its fault."""

    size: int  # bytes
    fault: str  # empty: nothing


def encode(snapshot: Snapshot) -> bytes:
    """Return the bytes of the file."""
    doomed = array("Q", snapshot.doomed).tobytes()
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        len(snapshot.doomed),
        snapshot.group,
        snapshot.index,
        snapshot.term,
        snapshot.tail[0],
        snapshot.tail[1],
        snapshot.chain,
        0,
        len(snapshot.state),
    )
    digest = sha256(header)
    digest.update(doomed)
    digest.update(snapshot.state)
    return b"".join((header, digest.digest(), doomed, snapshot.state))


def decode(blob: bytes, *, name: str, group: Uid) -> Snapshot:
    """Return the inverse of `encode`. Raises CorruptionError, naming the file."""
    at = _HEADER.size + _DIGEST_BYTES
    if len(blob) < at:
        raise CorruptionError(f"{name}: a snapshot of {len(blob)} bytes is cut off")
    magic, version, doomed_count, uid, index, term, block_no, offset, chain, _, size = (
        _HEADER.unpack_from(blob)
    )
    if magic != _MAGIC or version != _VERSION:
        raise CorruptionError(f"{name}: unknown snapshot format {magic!r} version {version}")
    digest = sha256(blob[: _HEADER.size])
    digest.update(memoryview(blob)[at:])
    if digest.digest() != blob[_HEADER.size : at] or len(blob) != at + doomed_count * 8 + size:
        raise CorruptionError(f"{name}: the snapshot's checksum does not match its bytes")
    if uid != group:
        raise IncarnationError(f"{name}: snapshot of group {uid}, expected group {group}")
    doomed = array("Q")
    doomed.frombytes(blob[at : at + doomed_count * 8])
    return Snapshot(
        uid,
        index,
        term,
        chain,
        blob[at + doomed_count * 8 :],
        (block_no, offset),
        tuple(doomed),
    )


def write_file(disk: Disk, directory: str, name: str, parts: list[bytes], *, point: str) -> None:
    """Write a whole file under `name`, atomically and durably. Crash points begin with `point`."""
    tmp = name + TMP_SUFFIX
    write_tmp(disk, directory, tmp, parts, point=point)
    put_in_place(disk, directory, tmp, name, point=point)


def write_tmp(disk: Disk, directory: str, tmp: str, parts: list[bytes], *, point: str) -> None:
    """Write and sync the temporary file: all of `write_file` that needs room. It counts for
    nothing."""
    with opened(disk, os.path.join(directory, tmp), create=True) as fd:
        disk.truncate(fd, 0)
        disk.writev(fd, parts, 0)
        disk.crash_point(f"{point}_TMP_WRITTEN")
        disk.fdatasync(fd)
    # On disk now: what was there before, and a complete tmp. A crash here leaves a stray tmp.
    disk.crash_point(f"{point}_TMP_SYNCED")


def put_in_place(disk: Disk, directory: str, tmp: str, name: str, *, point: str) -> None:
    """Rename the temporary file, durably: from here on the file counts."""
    disk.replace(os.path.join(directory, tmp), os.path.join(directory, name))
    disk.crash_point(f"{point}_RENAMED")
    disk.sync_dir(directory)  # without this the rename itself may be lost
    disk.crash_point(f"{point}_DIR_SYNCED")


def read_file(disk: Disk, path: str) -> bytes:
    """Return all bytes of a file."""
    with opened(disk, path) as fd:
        return disk.pread(fd, disk.size(fd), 0)


class SnapshotFile:
    """Named snapshots with two generations: `<name>-<index>.snap`, the newest two are kept."""

    SUFFIX = ".snap"

    @classmethod
    def save(cls, disk: Disk, directory: str, name: str, snapshot: Snapshot) -> None:
        """Write the snapshot durably; then remove all but it and the one before it."""
        tmp = f"{name}-{snapshot.index:016x}{cls.SUFFIX}{TMP_SUFFIX}"
        cls.prepare(disk, directory, tmp, snapshot)
        cls.adopt(disk, directory, tmp, name, index=snapshot.index)

    @classmethod
    def prepare(cls, disk: Disk, directory: str, tmp: str, snapshot: Snapshot) -> None:
        """Write a snapshot, synced, that counts for nothing before `adopt`."""
        write_tmp(disk, directory, tmp, [encode(snapshot)], point="SNAPSHOT")

    @classmethod
    def adopt(cls, disk: Disk, directory: str, tmp: str, name: str, *, index: Index) -> None:
        """Make a prepared snapshot count, durably; then remove all but it and the one before it."""
        file_name = f"{name}-{index:016x}{cls.SUFFIX}"
        put_in_place(disk, directory, tmp, file_name, point="SNAPSHOT")
        for old in cls.names(disk, directory, name)[2:]:
            disk.unlink(os.path.join(directory, old))
        disk.crash_point("SNAPSHOT_OLD_REMOVED")

    @classmethod
    def names(cls, disk: Disk, directory: str, name: str) -> list[str]:
        """Return the names of the generations, newest first. Other files are none of them."""
        pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{16}}{re.escape(cls.SUFFIX)}")
        found = [entry for entry in disk.listdir(directory) if pattern.fullmatch(entry)]
        return sorted(found, reverse=True)

    @classmethod
    def load(
        cls,
        disk: Disk,
        directory: str,
        name: str,
        *,
        group: Uid,
        on_void: Callable[[str], object] = ignore,
    ) -> Snapshot | None:
        """Return the newest generation that verifies; None if there never was a snapshot.

        Raises CorruptionError if there are files and none verifies. A file that does not verify, or
        can't be read, is left where it is. An older generation is safe to return: either the log
        begins too late for it, which is noticed, or it reaches back and nothing is lost. `on_void`
        is called for each newer one.
        """
        first_error: CorruptionError | None = None
        for file_name in cls.names(disk, directory, name):
            path = os.path.join(directory, file_name)
            try:
                return decode(read_file(disk, path), name=file_name, group=group)
            except CorruptionError as err:
                error = err
            except OSError as err:
                if err.errno != errno.EIO:
                    raise  # a file that may not be read is not lost
                error = read_error("reading a snapshot", path, err)
            on_void(f"a snapshot can't be used: {error}")
            first_error = first_error or error
        if first_error is not None:
            raise first_error
        return None

    @classmethod
    def check(
        cls, disk: Disk, directory: str, name: str, *, group: Uid, index: Index
    ) -> SnapshotCheck:
        """Read the newest generation and return its fault, if any.

        It is at fault if it does not verify, can't be read, or is older than `index`, where one was
        saved. Raises ReadError if that can't be said now.
        """
        size, found = 0, 0
        try:
            names = cls.names(disk, directory, name)
            if names:
                blob = read_file(disk, os.path.join(directory, names[0]))
                size = len(blob)
                found = decode(blob, name=names[0], group=group).index
        except (CorruptionError, OSError) as err:
            if isinstance(err, OSError) and is_refused(err):
                raise read_error("reading a snapshot", directory, err) from err
            return SnapshotCheck(size, str(err))
        if found < index:
            return SnapshotCheck(size, f"found one at {found}" if found else "it is gone")
        return SnapshotCheck(size, "")
