"""Files of a data directory, opened for reading and never changed: `ReadOnlyDisk`."""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn

from streamd.offline.engine import OsDisk


class ReadOnlyDisk:
    """A `Disk` that reads what others write: every call that would change something is refused.

    Closes the files that it opened when it is collected.
    """

    def __init__(self) -> None:
        self.fds: set[int] = set()
        self._finalizer = weakref.finalize(self, _close_all, self.fds)
        below = OsDisk()
        self.pread = below.pread
        self.size = below.size
        self.listdir = below.listdir
        self.exists = below.exists
        self.identity = below.identity
        self.is_linked = below.is_linked
        self.free_bytes = below.free_bytes
        self.random_bytes = below.random_bytes

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading. PermissionError for `create`."""
        if create:
            self._refuse(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close a file that this disk opened."""
        self.fds.discard(fd)
        os.close(fd)

    def close_all(self) -> None:
        """Close every file that is still open."""
        _close_all(self.fds)

    def crash_point(self, name: str) -> None:
        """Ignore the name: a reader has no durable steps."""

    def is_short_of_files(self) -> bool:
        """Return False: no files are kept in reserve."""
        return False

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError(f"read-only access to a data directory: {args}")

    pwrite = writev = fdatasync = preallocate = reserve = truncate = _refuse
    replace = unlink = link = mkdir = make_dirs = remove_tree = sync_dir = _refuse
    lock = unlock = reserve_files = abandon = _refuse


def _close_all(fds: set[int]) -> None:
    while fds:
        os.close(fds.pop())
