"""The `manifest` of a log: which segment is current, so that losing that segment is noticed.

Each segment names its predecessor; nothing in a segment names its successor. The file has two
copies that are written in turn, so a crash tears at most the copy that does not count yet.
"""

from __future__ import annotations

import os

from streamd.store.disk import Disk, opened
from streamd.store.wal import wal_format as wf

NAME = "manifest"


class CurrentFile:
    """The open manifest of one log directory. Used by one thread at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._fd = -1
        self._generation = 0

    def adopt(self, manifest: wf.Manifest | None) -> None:
        """Continue the file that recovery read; with None, `write` makes a new one."""
        if manifest is not None:
            self._fd = self._disk.open(os.path.join(self._directory, NAME))
            self._generation = manifest.generation
            # A killed process may have left it in the page cache only, and what is written next
            # takes the place of the other copy, the one that a power cut would leave.
            self._write_copy(manifest)

    def write(self, wal_id: int, newest: int) -> None:
        """Record durably that `newest` is the current segment."""
        disk = self._disk
        self._generation += 1
        manifest = wf.Manifest(wal_id, self._generation, newest)
        if self._fd >= 0:
            self._write_copy(manifest)
            return
        # Under its name it is always whole: a crash while it is made leaves none.
        path = os.path.join(self._directory, NAME)
        self._fd = disk.open(path + ".tmp", create=True)
        disk.truncate(self._fd, 0)
        copy = wf.encode_manifest(manifest).ljust(wf.MANIFEST_COPY_BYTES, b"\0")
        disk.pwrite(self._fd, copy + copy, 0)
        disk.fdatasync(self._fd)
        disk.replace(path + ".tmp", path)
        disk.sync_dir(self._directory)

    def _write_copy(self, manifest: wf.Manifest) -> None:
        at = manifest.generation % 2 * wf.MANIFEST_COPY_BYTES
        self._disk.pwrite(self._fd, wf.encode_manifest(manifest), at)
        self._disk.crash_point("WAL_MANIFEST_WRITTEN")
        self._disk.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1


def read_current(disk: Disk, directory: str) -> tuple[bool, wf.Manifest | None]:
    """Return (the file exists, its content or None if both copies are damaged)."""
    path = os.path.join(directory, NAME)
    if not disk.exists(path):
        return False, None
    with opened(disk, path) as fd:
        return True, wf.decode_manifest(disk.pread(fd, 2 * wf.MANIFEST_COPY_BYTES, 0))
