"""Writes past the page cache, for bytes that are not read soon. For `OsDisk` alone.

Bytes written through the cache are copied into pages that the kernel first has to find, and that
push out pages which are read again; many bytes at once go faster straight to the disk.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence

from streamd.types import Buffer

ALIGN = 4096  # of places in file and memory: no disk asks for more
SCRATCH_BYTES = 1024 * 1024  # of each thread that writes: one system call's worth
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux has it
_REFUSED = -1


class DirectWriter:
    """Second, uncached descriptors of files, opened when they are first written past the cache.

    One file is used by one thread at a time; different ones may be used by different threads.
    """

    def __init__(self, write: Callable[[int, memoryview, int], None]) -> None:
        self._write = write  # all of some bytes, through the cache
        self._direct: dict[int, int] = {}  # the second descriptor by the first
        self._local = threading.local()

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> bool:
        """Write all `buffers`, one behind another, from `offset` on; False: nothing was written,
        the file system does not do it.

        What begins within a page goes through the cache, and so does the last page: what comes
        next begins there, and would else have it read from the disk first.
        """
        if fd not in self._direct:
            self._direct[fd] = _open_again(fd)
        if self._direct[fd] == _REFUSED:
            return False
        scratch = self._scratch()
        # The scratch mirrors the file from the page on that `offset` lies in.
        start = end = offset % ALIGN
        base = offset - start
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                if end == SCRATCH_BYTES:
                    self._put(fd, scratch, base, start=start, end=end, cached=0)
                    base += end
                    start = end = 0
                part = view[: SCRATCH_BYTES - end]
                scratch[end : end + len(part)] = part
                end += len(part)
                view = view[len(part) :]
        if end > start:
            self._put(fd, scratch, base, start=start, end=end, cached=1)
        return True

    def close(self, fd: int) -> None:
        """Close the second descriptor of `fd`, if there is one."""
        direct = self._direct.pop(fd, _REFUSED)
        if direct != _REFUSED:
            os.close(direct)

    def _put(
        self,
        fd: int,
        scratch: memoryview,
        base: int,
        *,
        start: int,
        end: int,
        cached: int,
    ) -> None:
        """Write scratch[start:end], which belongs at base + start.

        Whole pages directly, but for the pages that the last `cached` bytes touch.
        """
        first = start + -start % ALIGN
        last = (end - cached) // ALIGN * ALIGN
        if first >= last:
            self._write(fd, scratch[start:end], base + start)
            return
        if start < first:
            self._write(fd, scratch[start:first], base + start)
        written = self._write_directly(fd, scratch[first:last], base + first)
        if first + written < end:  # the last page, or what a full disk left
            self._write(fd, scratch[first + written : end], base + first + written)

    def _write_directly(self, fd: int, pages: memoryview, offset: int) -> int:
        """Return how many bytes were written: none, now and from here on, if the file system
        accepts the flag but not such writes."""
        direct = self._direct[fd]
        if direct == _REFUSED:
            return 0
        try:
            return os.pwrite(direct, pages, offset)
        except OSError as err:
            if err.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        os.close(direct)
        self._direct[fd] = _REFUSED
        return 0

    def _scratch(self) -> memoryview:
        found: memoryview | None = getattr(self._local, "scratch", None)
        if found is None:
            found = self._local.scratch = memoryview(mmap.mmap(-1, SCRATCH_BYTES))
        return found


def _open_again(fd: int) -> int:
    """Open another descriptor of the same file, whatever its name is by now."""
    if not _O_DIRECT:
        return _REFUSED
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | _O_DIRECT)
    except OSError:
        return _REFUSED  # the file system, or one file too many: the cache will do
