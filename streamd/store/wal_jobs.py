"""Jobs that the log hands to a disk thread beside its writes: spare segments, freeing, failures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from streamd.errors import DiskError
from streamd.store.disk import disk_error
from streamd.store.wal_recovery import segment_name

if TYPE_CHECKING:
    from streamd.store.wal import Wal

ZERO_STEP_BYTES = 512 * 1024  # of a spare, written and synced at once: acks wait behind it
REMOVE_STEP_BYTES = 1024 * 1024  # freed at once: acks wait behind it
SPARES_MAX = 3  # kept for reuse: a snapshot frees as many at once; more are removed


class PrepareSpare:
    """Writes zeros and syncs them step by step. A failure is not final: a small segment will do
    until the disk has room, and if it has not, the log's own write says so."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._name = ""
        self._fd = -1
        self._done = 0

    def run(self) -> None:
        wal = self._wal
        disk = wal._disk
        total = wal._segment_bytes
        try:
            if self._fd < 0:
                self._name, self._fd = wal._create_spare()
            size = min(ZERO_STEP_BYTES, total - self._done)
            disk.preallocate(self._fd, offset=self._done, size=size)
            disk.fdatasync(self._fd)
            self._done += size
        except OSError:
            if self._fd >= 0:
                disk.close(self._fd)
                disk.unlink(os.path.join(wal._directory, self._name))
            wal._is_preparing = False
            return
        if self._done < total:
            wal._helper.submit(self.run, None)
        else:
            wal._spares.append((self._name, self._fd))
            wal._is_preparing = False


class FreeSegment:
    """Takes a segment out of use: it becomes a spare, and spares that are too many are removed.

    The log waits for the first part alone.
    """

    def __init__(self, wal: Wal, no: int, fd: int) -> None:
        self._wal = wal
        self._no = no
        self._fd = fd

    def run(self) -> None:
        wal = self._wal
        disk = wal._disk
        path = os.path.join(wal._directory, segment_name(self._no))
        if wal.failure is not None:
            return
        try:
            if wal._durable_batch != wal._next_batch - 1:
                wal._sync()  # the records that released it (I11)
            disk.crash_point("WAL_SEGMENT_RELEASED")
            name = wal._spare_name()
            disk.replace(path, os.path.join(wal._directory, name))
            disk.sync_dir(wal._directory)
            disk.crash_point("WAL_SEGMENT_FREED")
            if disk.size(self._fd) == wal._segment_bytes and len(wal._spares) < SPARES_MAX:
                wal._spares.append((name, self._fd))
            else:
                wal._helper.submit(RemoveSpare(wal, name, self._fd).run, None)
        except OSError as err:
            wal.failure = disk_error("freeing a log segment", path, err)
            wal._thread.submit(Raise(wal.failure), wal._complete)


class RemoveSpare:
    """Shortens a file step by step, then removes it: while a file system frees a file's bytes,
    syncs of others wait. Many take a millisecond for each MiB, to tell the drive about it."""

    def __init__(self, wal: Wal, name: str, fd: int) -> None:
        self._wal = wal
        self._name = name
        self._fd = fd

    def run(self) -> None:
        disk = self._wal._disk
        try:
            size = disk.size(self._fd) - REMOVE_STEP_BYTES
            if size > 0:
                disk.truncate(self._fd, size)
                self._wal._helper.submit(self.run, None)
                return
            disk.close(self._fd)
            disk.unlink(os.path.join(self._wal._directory, self._name))
        except OSError:
            return  # nobody needs it; the next start removes it


class Raise:
    """A job that reports a failure found in another job."""

    def __init__(self, failure: DiskError) -> None:
        self._failure = failure

    def __call__(self) -> None:
        raise self._failure
