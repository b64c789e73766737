"""`SegmentFiles`: the files that become segments, and those of freed segments.

A file has the name `spare-<k>` before it is a segment, and again once it is none: a start removes
what it finds under such a name. Some files of freed segments become segments again: what is written
over needs no room to be found, none to be freed, and no metadata with each sync. Old batches are
still behind the position; their headers name another segment.
"""

from __future__ import annotations

import itertools
import os
from collections import deque

from streamd.store.disk import Disk, Thread
from streamd.store.wal.wal_format import SPARE_PREFIX, segment_name

REMOVE_STEP_BYTES = 1024 * 1024  # freed at once: acks wait behind it
KEPT_MAX = 3  # of freed segments: a snapshot frees as many at once


class SegmentFiles:
    """Files of one log that are no segments: made and kept by the writer, removed by the helper
    thread. A file that is kept has at most `segment_bytes`."""

    def __init__(self, disk: Disk, directory: str, helper: Thread, *, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._helper = helper
        self._segment_bytes = segment_bytes
        self._kept: deque[tuple[str, int]] = deque()  # (name, file)
        self._numbers = itertools.count(1)

    def remove_leftovers(self, names: list[str]) -> None:
        """Remove the files that an earlier run left, before the first is made."""
        if names:
            # A killed process may have freed a segment: its new name first, or a power cut would
            # leave the number of the segment without its bytes.
            self._disk.sync_dir(self._directory)
        for name in names:
            self._disk.unlink(os.path.join(self._directory, name))
        numbers = [int(name[len(SPARE_PREFIX) :]) for name in names]
        self._numbers = itertools.count(max(numbers, default=0) + 1)

    def take(self, capacity: int) -> tuple[str, int]:
        """Return (name, file) of a file for a segment of `capacity` bytes: a kept one, as long as
        it was, or a new, empty one."""
        if self._kept and capacity >= self._segment_bytes:
            return self._kept.popleft()
        name = self._next_name()
        return name, self._disk.open(os.path.join(self._directory, name), create=True)

    def remove(self, no: int, *, fd: int) -> None:
        """Take the number of segment `no` away, durably; keep its file, or have it removed by and
        by.

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
        if len(self._kept) < KEPT_MAX and disk.size(fd) <= self._segment_bytes:
            self._kept.append((name, fd))
        else:
            self._helper.submit(lambda: self._remove_step(name, fd), None)

    def close(self) -> None:
        """Close the files that are kept; the next start removes them."""
        while self._kept:
            self._disk.close(self._kept.popleft()[1])

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

    def _next_name(self) -> str:
        # One step for all threads: two files of one name would be one file.
        return f"{SPARE_PREFIX}{next(self._numbers)}"
