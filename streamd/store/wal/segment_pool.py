"""`SegmentPool`: files for segments to come, zeroed ahead, kept for reuse, or made on demand."""

from __future__ import annotations

import itertools
import os
from collections import deque

from streamd.store.disk import Disk, Thread
from streamd.store.wal.wal_format import SPARE_PREFIX, segment_name

ZERO_STEP_BYTES = 512 * 1024  # of a spare, written and synced at once: acks wait behind it
REMOVE_STEP_BYTES = 1024 * 1024  # freed at once: acks wait behind it
SPARES_MAX = 3  # kept for reuse: a snapshot frees as many at once; more are removed
BATCH_WEIGHT = 1 / 16  # of the latest batch in their average size
BULKY_BATCH_BYTES = 512 * 1024  # from here on zeros cost more than what they save each sync
FIRST_SEGMENT_FRACTION = 16  # the first segment after a start is small, so that a start is quick
FIRST_SEGMENT_BYTES_MIN = 1024 * 1024


class SegmentPool:
    """The spare files of one log: made and removed by the helper thread, taken by the writer."""

    def __init__(self, disk: Disk, directory: str, helper: Thread, *, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._helper = helper
        self._segment_bytes = segment_bytes
        self._ready: deque[tuple[str, int]] = deque()  # (name, file)
        self._numbers = itertools.count(1)
        self._is_preparing = False
        self._batch_bytes = 0.0  # of late, on average

    def adopt(self, names: list[str]) -> None:
        """Reuse the spares of an earlier run; remove those that were never finished."""
        if names:
            # A killed process may have freed a segment, and what is written next to its file would
            # after a power cut stand under the number that it had.
            self._disk.sync_dir(self._directory)
        numbers = [int(name[len(SPARE_PREFIX) :]) for name in names]
        self._numbers = itertools.count(max(numbers, default=0) + 1)
        for name in names:
            path = os.path.join(self._directory, name)
            fd = self._disk.open(path)
            if self._is_kept(fd):
                self._ready.append((name, fd))
            else:
                self._disk.close(fd)
                self._disk.unlink(path)

    def take(self, size: int, *, needed: int, needed_anew: int) -> tuple[str, int, int]:
        """Return (name, file, its size): a spare of `needed` bytes or more, or a file made now.

        A new file has `size` bytes, or fewer where that is quicker, at least `needed_anew`.
        """
        disk = self._disk
        if self._ready and disk.size(self._ready[0][1]) >= needed:
            name, fd = self._ready.popleft()
            return name, fd, disk.size(fd)
        name, fd = self._create()
        return name, fd, self._prepare_now(fd, size=size, size_min=needed_anew)

    def make(self, size: int) -> tuple[str, int]:
        """Return (name, file) of a new file of `size` bytes, all zeros."""
        name, fd = self._create()
        self._disk.preallocate(fd, offset=0, size=size)
        return name, fd

    def note_batch(self, size: int, *, is_next_near: bool) -> None:
        """Count a written batch; if the next segment is near, see to it that a spare is ready."""
        self._batch_bytes += BATCH_WEIGHT * (size - self._batch_bytes)
        if is_next_near and not self._ready and not self._is_preparing:
            self._prepare()

    def recycle(self, no: int, *, fd: int) -> None:
        """Turn segment `no` into a spare, or remove it where there are enough.

        Called once the records that released the segment are durable (I11). Raises OSError.
        """
        disk = self._disk
        disk.crash_point("WAL_SEGMENT_RELEASED")
        name = self._next_name()
        try:
            disk.replace(
                os.path.join(self._directory, segment_name(no)), os.path.join(self._directory, name)
            )
        except FileNotFoundError:
            disk.close(fd)  # the file was removed, which the log does not need any more
            return
        disk.crash_point("WAL_SEGMENT_SPARED")
        disk.sync_dir(self._directory)
        disk.crash_point("WAL_SEGMENT_FREED")
        if self._is_kept(fd):
            self._ready.append((name, fd))
        else:
            self._helper.submit(lambda: self._remove_step(name, fd), None)

    def close(self) -> None:
        """Close every spare."""
        while self._ready:
            self._disk.close(self._ready.popleft()[1])

    def _is_kept(self, fd: int) -> bool:
        return self._disk.size(fd) == self._segment_bytes and len(self._ready) < SPARES_MAX

    def _is_bulky(self) -> bool:
        """True while so much is appended that the disk should not write zeros besides."""
        return self._batch_bytes >= BULKY_BATCH_BYTES

    def _prepare_now(self, fd: int, *, size: int, size_min: int) -> int:
        """Make a segment while appends wait for it; return how long it is."""
        disk = self._disk
        if self._is_bulky():
            try:
                disk.reserve(fd, size)
            except OSError:
                disk.truncate(fd, 0)  # there may be room for a small one
            else:
                return size
        quick = min(size, max(FIRST_SEGMENT_BYTES_MIN, size // FIRST_SEGMENT_FRACTION))
        small = max(size_min, quick)
        disk.preallocate(fd, offset=0, size=small)
        return small

    def _prepare(self) -> None:
        """Start making a zeroed file of full size, in steps, so that no ack waits behind it.

        Not while the load is bulky: each byte would be written twice. The segments in use then
        become the spares.
        """
        if self._is_bulky():
            return
        self._is_preparing = True
        self._helper.submit(self._zero_step, None)

    def _zero_step(self, name: str = "", *, fd: int = -1, done: int = 0) -> None:
        """Write some zeros and sync them.

        A failure is not final: a small segment will do until the disk has room, and if the disk
        has none, the log's own write fails.
        """
        disk = self._disk
        try:
            if fd < 0:
                name, fd = self._create()
            size = min(ZERO_STEP_BYTES, self._segment_bytes - done)
            disk.preallocate(fd, offset=done, size=size)
            disk.fdatasync(fd)
            done += size
        except OSError:
            self._is_preparing = False  # whatever becomes of this file
            if fd >= 0:
                disk.close(fd)
                disk.unlink(os.path.join(self._directory, name))
            return
        if done < self._segment_bytes:
            self._helper.submit(lambda: self._zero_step(name, fd=fd, done=done), None)
        else:
            self._ready.append((name, fd))
            self._is_preparing = False

    def _remove_step(self, name: str, fd: int) -> None:
        """Shorten a file step by step, and at last remove it.

        While a file system frees a file's bytes, syncs of other files wait: often a millisecond
        for each MiB, to tell the drive about it.
        """
        disk = self._disk
        try:
            size = disk.size(fd) - REMOVE_STEP_BYTES
            if size > 0:
                disk.truncate(fd, size)
                self._helper.submit(lambda: self._remove_step(name, fd), None)
                return
            disk.close(fd)
            disk.unlink(os.path.join(self._directory, name))
        except OSError:
            return  # the file is not needed; the next start removes it

    def _create(self) -> tuple[str, int]:
        name = self._next_name()
        return name, self._disk.open(os.path.join(self._directory, name), create=True)

    def _next_name(self) -> str:
        # One step for all threads: two spares of one name would be one file.
        return f"{SPARE_PREFIX}{next(self._numbers)}"
