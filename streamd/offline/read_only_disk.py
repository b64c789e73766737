"""Files of a data directory, opened for reading and never changed: `ReadOnlyDisk`.

Encrypted files are read with keys that were given (`use_keys`) or with that of the environment
variable `STREAMD_KEY`, packed ones as what is in them.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from streamd.errors import ConfigError
from streamd.offline.engine import (
    Disk,
    EncryptionKeys,
    FramedDisk,
    Keyring,
    Keystore,
    OsDisk,
    read_keystore,
    unlock,
)

KEY_VARIABLE = "STREAMD_KEY"
_DEPTH_MAX = 4  # from a file up to its store: streams/<uid>/, trash/<name>/, and one to spare
_rings: dict[str, Keyring] = {}  # by the wrapped store key, which opening costs some 50 ms
_given: list[str] = []  # keys to try before that of the environment


def use_keys(keys: Sequence[str]) -> None:
    """Open encrypted stores with these keys from now on: each store with the one that fits."""
    _given[:] = keys
    _rings.clear()


def keyring_of(path: str) -> Keyring | None:
    """Return the keys of the store that a file is in; None: it is not encrypted.

    Raises ConfigError if no key that was given, nor the environment's, opens it.
    """
    files = _Files().as_disk()
    above = os.path.dirname(os.path.abspath(path))
    for _ in range(_DEPTH_MAX):
        store = read_keystore(files, above)
        if store is not None:
            wrapped = str(store.fields.get("store_key"))
            if wrapped not in _rings:
                _rings[wrapped] = _opened(files, above, store)
            return _rings[wrapped]
        above = os.path.dirname(above)
    return None


def _opened(files: Disk, root: str, store: Keystore) -> Keyring:
    keys = [*_given, os.environ.get(KEY_VARIABLE, "")]
    failure: ConfigError | None = None
    for key in filter(None, keys):
        try:
            return unlock(files, root, store, EncryptionKeys("chacha", key)).ring
        except ConfigError as err:
            failure = err
    if failure is None:
        raise ConfigError(f"{root} is encrypted: give its key in the environment as {KEY_VARIABLE}")
    which = f"the key in {KEY_VARIABLE}" if not _given else "a key that was given"
    raise ConfigError(f"{root} is encrypted, but not with {which}") from failure


class ReadOnlyDisk:
    """A `Disk` that reads what others write: every call that would change something is refused.

    Closes the files that it opened when it is collected.
    """

    def __init__(self) -> None:
        self._raw = _Files()
        self._plain = FramedDisk(self._raw.as_disk())  # packed blocks, and all that is not framed
        self._encrypted: dict[int, FramedDisk] = {}  # by the store's key
        self._by_fd: dict[int, FramedDisk] = {}
        self.fds = self._raw.fds
        self.close_all = self._raw.close_all
        self.listdir = self._raw.listdir
        self.exists = self._raw.exists
        self.identity = self._raw.identity
        self.is_linked = self._raw.is_linked
        self.free_bytes = self._raw.free_bytes
        self.random_bytes = self._raw.random_bytes

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading. PermissionError for `create`."""
        ring = keyring_of(path)
        framed = self._plain
        if ring is not None:
            framed = self._encrypted.setdefault(ring.key_id, FramedDisk(self._raw.as_disk(), ring))
        try:
            fd = framed.open(path, create=create)
        except OSError as err:
            if ring is not None or err.errno != errno.EIO:
                raise
            fd = self._unread(path, err)
        self._by_fd[fd] = framed
        return fd

    def _unread(self, path: str, err: OSError) -> int:
        """Open a file as it is if the disk does not give its first byte: reads will say so. Raises
        `err` if it does."""
        fd = self._raw.open(path)
        try:
            self._raw.pread(fd, 1, 0)
        except OSError:
            return fd
        self._raw.close(fd)
        raise err

    def close(self, fd: int) -> None:
        """Close a file that this disk opened."""
        self._by_fd.pop(fd).close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read the content of a file."""
        return self._by_fd[fd].pread(fd, size, offset)

    def size(self, fd: int) -> int:
        """Return the bytes of a file's content."""
        return self._by_fd[fd].size(fd)

    def packed_size(self, fd: int) -> int:
        """Return the bytes that a packed file takes; 0: it is not packed."""
        return self._by_fd[fd].packed_size(fd)

    def is_framed(self, fd: int) -> bool:
        """Return True if the content of a file is not what stands in it."""
        return self._by_fd[fd].is_framed(fd)

    def crash_point(self, name: str) -> None:
        """Ignore the name: a reader has no durable steps."""

    def is_short_of_files(self) -> bool:
        """Return False: no files are kept in reserve."""
        return False

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(*args)

    pwrite = writev = fdatasync = preallocate = reserve = truncate = _refuse
    replace = unlink = link = mkdir = make_dirs = remove_tree = sync_dir = _refuse
    lock = unlock = reserve_files = abandon = _refuse


class _Files:
    """Files as they are: the disk below. Closes those it opened when it is collected."""

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

    def as_disk(self) -> Disk:
        """Return this disk as a `Disk`."""
        return self

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading. PermissionError for `create`."""
        if create:
            _refuse(path)
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
        _refuse(*args)

    pwrite = writev = fdatasync = preallocate = reserve = truncate = _refuse
    replace = unlink = link = mkdir = make_dirs = remove_tree = sync_dir = _refuse
    lock = unlock = reserve_files = abandon = _refuse


def _refuse(*args: object) -> NoReturn:
    raise PermissionError(f"read-only access to a data directory: {args}")


class Content:
    """Content of an open file."""

    def __init__(self, disk: ReadOnlyDisk, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self.size = disk.size(fd)

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset` on."""
        return self._disk.pread(self._fd, size, offset)

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._fd)


def open_content(path: str) -> Content:
    """Open a file to read its content. Raises OSError."""
    disk = ReadOnlyDisk()
    return Content(disk, disk.open(path))


@contextmanager
def content_of(path: str) -> Iterator[Content]:
    """Open a file to read its content; it is closed at the end of the block."""
    content = open_content(path)
    try:
        yield content
    finally:
        content.close()


def content_bytes(path: str) -> bytes:
    """Return the content of a file."""
    with content_of(path) as content:
        return content.read(content.size, 0)


def content_size(path: str) -> int:
    """Return the bytes of a file's content, as `os.path.getsize` of one that is not framed."""
    with content_of(path) as content:
        return content.size


def _close_all(fds: set[int]) -> None:
    while fds:
        os.close(fds.pop())
