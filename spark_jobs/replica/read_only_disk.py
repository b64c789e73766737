"""Files of a data directory, opened for reading and never changed: `ReadOnlyDisk`."""

from __future__ import annotations

import os
import weakref
from typing import Any, NoReturn

from streamd.store.disk import OsDisk


class ReadOnlyDisk(OsDisk):
    """Files of somebody else: opened for reading, never changed. Closes what it opened."""

    def __init__(self) -> None:
        super().__init__()
        self.fds: set[int] = set()
        self._finalizer = weakref.finalize(self, _close_all, self.fds)

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            self._refuse(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.fds.discard(fd)
        os.close(fd)

    def close_all(self) -> None:
        """Close every file that is still open."""
        _close_all(self.fds)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError(f"read-only access to a data directory: {args}")

    pwrite = writev = fdatasync = preallocate = reserve = truncate = _refuse
    replace = unlink = mkdir = remove_tree = sync_dir = lock = _refuse


def _close_all(fds: set[int]) -> None:
    while fds:
        os.close(fds.pop())
