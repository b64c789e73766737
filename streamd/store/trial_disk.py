"""`TrialDisk`: a store directory for dry runs. Writes go elsewhere.

Reads come from the files of the directory until something writes to one of them: then it is copied,
to a temporary directory, and the copy is used from there on. Names are kept in memory. Nothing is
synced, for no promise rests on it, and `close` throws all of it away.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence

from streamd.store.disk import Disk, OsDisk
from streamd.types import Buffer


class _File:
    """File of a trial disk: the path of its bytes, and its open descriptors."""

    __slots__ = ("fds", "is_own", "path")

    def __init__(self, path: str, *, is_own: bool) -> None:
        self.path = path
        self.is_own = is_own  # else it is the directory's, and only read
        self.fds: set[int] = set()


class TrialDisk:
    """Implements `Disk` for one directory tree."""

    def __init__(self, directory: str) -> None:
        self._disk = OsDisk()
        self._own = tempfile.mkdtemp(prefix="streamd-dry-run-")
        self._made_count = 0
        self._files: dict[str, _File] = {}
        self._directories: set[str] = set()
        self._open: dict[int, _File] = {}
        self._mutex = threading.RLock()  # called on the loop and on its threads
        self._directory = directory
        for root, directories, names in os.walk(directory):
            self._directories.add(root)
            self._directories.update(os.path.join(root, name) for name in directories)
            for name in names:
                path = os.path.join(root, name)
                self._files[path] = _File(path, is_own=False)

    def as_disk(self) -> Disk:
        """Return this disk as a `Disk`."""
        return self

    def close_all(self) -> None:
        """Forget all that was written."""
        shutil.rmtree(self._own, ignore_errors=True)

    # --- files ----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        with self._mutex:
            file = self._files.get(path)
            if file is None:
                if not create or os.path.dirname(path) not in self._directories:
                    raise _not_found(path)
                file = self._files[path] = _File(self._new_path(), is_own=True)
                fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
            else:
                fd = os.open(file.path, (os.O_RDWR if file.is_own else os.O_RDONLY) | os.O_CLOEXEC)
            file.fds.add(fd)
            self._open[fd] = file
            return fd

    def close(self, fd: int) -> None:
        with self._mutex:
            self._open.pop(fd).fds.discard(fd)
            os.close(fd)

    def _new_path(self) -> str:
        self._made_count += 1
        return os.path.join(self._own, str(self._made_count))

    def _make_own(self, fd: int) -> None:
        """Redirect writes to an open file, through all its descriptors, to a copy of it."""
        with self._mutex:
            file = self._open[fd]
            if file.is_own:
                return
            path = self._new_path()
            shutil.copyfile(file.path, path)
            file.path, file.is_own = path, True
            for each in file.fds:
                made = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(made, each, inheritable=False)
                os.close(made)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        self._make_own(fd)
        self._disk.pwrite(fd, data, offset)

    def writev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        self._make_own(fd)
        self._disk.writev(fd, buffers, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._disk.pread(fd, size, offset)

    def fdatasync(self, fd: int) -> None:
        """Sync nothing: no promise rests on a trial."""

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        self.reserve(fd, offset + size)

    def reserve(self, fd: int, size: int) -> None:
        if self.size(fd) < size:
            self.truncate(fd, size)

    def truncate(self, fd: int, size: int) -> None:
        self._make_own(fd)
        self._disk.truncate(fd, size)

    def size(self, fd: int) -> int:
        return self._disk.size(fd)

    # --- names ----------------------------------------------------------------------------------

    def replace(self, source: str, target: str) -> None:
        with self._mutex:
            if source in self._files:
                self._files[target] = self._files.pop(source)
                return
            if source not in self._directories:
                raise _not_found(source)
            for path in self._below(source, self._files):
                self._files[target + path[len(source) :]] = self._files.pop(path)
            for path in (source, *self._below(source, self._directories)):
                self._directories.discard(path)
                self._directories.add(target + path[len(source) :])

    def unlink(self, path: str) -> None:
        with self._mutex:
            if self._files.pop(path, None) is None:
                raise _not_found(path)

    def link(self, source: str, target: str) -> None:
        with self._mutex:
            if source not in self._files:
                raise _not_found(source)
            self._files[target] = self._files[source]

    def mkdir(self, path: str) -> None:
        with self._mutex:
            if path in self._files:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if os.path.dirname(path) not in self._directories:
                raise _not_found(path)
            self._directories.add(path)

    def make_dirs(self, path: str) -> None:
        with self._mutex:
            while path not in self._directories and len(path) > len(self._directory):
                self._directories.add(path)
                path = os.path.dirname(path)

    def listdir(self, path: str) -> list[str]:
        with self._mutex:
            below = (*self._below(path, self._files), *self._below(path, self._directories))
            return sorted({one[len(path) + 1 :].partition(os.sep)[0] for one in below})

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def remove_tree(self, path: str) -> None:
        with self._mutex:
            for name in self._below(path, self._files):
                del self._files[name]
            self._directories.difference_update((path, *self._below(path, self._directories)))

    def _below(self, path: str, names: dict[str, _File] | set[str]) -> list[str]:
        return [name for name in names if name.startswith(path + os.sep)]

    def sync_dir(self, path: str) -> None:
        """Sync nothing: no promise rests on a trial."""

    # --- the rest -------------------------------------------------------------------------------

    def identity(self, path: str) -> tuple[int, int]:
        if not self.exists(path):
            raise _not_found(path)
        return 0, 0

    def is_linked(self, fd: int) -> bool:
        return True

    def abandon(self) -> None:
        """Ignore it: no later write can do harm."""

    def reserve_files(self, count: int) -> None:
        self._disk.reserve_files(count)

    def is_short_of_files(self) -> bool:
        return self._disk.is_short_of_files()

    def lock(self, path: str) -> int:
        """Lock the file of the directory itself: a server may run there."""
        file = self._files.get(path)
        return self._disk.lock(self._new_path() if file is None else file.path)

    def unlock(self, fd: int) -> None:
        self._disk.unlock(fd)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(self._directory)

    def random_bytes(self, size: int) -> bytes:
        return self._disk.random_bytes(size)

    def crash_point(self, name: str) -> None:
        """Ignore the name."""


def _not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
