"""`OverlayDisk`: real files of which SIGKILL loses exactly what was not synced. For crash tests.

The page cache survives a killed process, so killing alone proves little. Here writes stay in this
process until `fdatasync`, and new, renamed or removed names until `sync_dir`; then they reach the
real files. `tests/e2e/conftest.py` starts servers with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from streamd.store.disk import OsDisk
from streamd.types import Buffer

_HIDDEN = ".unsynced-"  # how the names of files begin whose own are not synced
_PAGE = 4096


class _Overlay:
    """What was written to one file since its last sync."""

    __slots__ = ("pages", "size")

    def __init__(self, size: int) -> None:
        self.pages: dict[int, bytearray] = {}
        self.size = size


class OverlayDisk(OsDisk):
    """See the module. Slower than the page cache, the same to its users.

    Directories themselves (made, renamed, removed) reach the disk at once. The lock is there
    because two disk threads and the loop use one disk.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._overlays: dict[tuple[int, int], _Overlay] = {}  # (device, inode)
        # Directory -> name -> real path of what that name leads to now; None: removed.
        self._names: dict[str, dict[str, str | None]] = {}
        self._hidden_count = 0

    # --- names ------------------------------------------------------------------------------

    def _real(self, path: str) -> str | None:
        """The real file that `path` leads to, or None."""
        directory, name = os.path.split(os.path.abspath(path))
        names = self._names.get(directory)
        if names is not None and name in names:
            return names[name]
        return path if os.path.lexists(path) else None

    def _set(self, path: str, real: str | None) -> None:
        directory, name = os.path.split(os.path.abspath(path))
        self._names.setdefault(directory, {})[name] = real

    def open(self, path: str, *, create: bool = False) -> int:
        with self._lock:
            real = self._real(path)
            if real is None:
                if not create:
                    raise FileNotFoundError(2, "No such file or directory", path)
                directory = os.path.dirname(os.path.abspath(path))
                self._hidden_count += 1
                real = os.path.join(directory, f"{_HIDDEN}{os.getpid()}-{self._hidden_count}")
                fd = super().open(real, create=True)
                self._set(path, real)
                return fd
            return super().open(real)

    def exists(self, path: str) -> bool:
        with self._lock:
            return self._real(path) is not None

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            found = {name for name in super().listdir(path) if not name.startswith(_HIDDEN)}
            for name, real in self._names.get(os.path.abspath(path), {}).items():
                found.discard(name)
                if real is not None:
                    found.add(name)
            return sorted(found)

    def replace(self, source: str, target: str) -> None:
        with self._lock:
            if os.path.isdir(source):
                self.sync_dir(source)
                os.replace(source, target)
                return
            real = self._real(source)
            if real is None:
                raise FileNotFoundError(2, "No such file or directory", source)
            self._set(source, None)
            self._set(target, real)

    def unlink(self, path: str) -> None:
        with self._lock:
            if self._real(path) is None:
                raise FileNotFoundError(2, "No such file or directory", path)
            self._set(path, None)

    def link(self, source: str, target: str) -> None:
        """Reaches the disk at once."""
        with self._lock:
            real = self._real(source)
            if real is None:
                raise FileNotFoundError(2, "No such file or directory", source)
            super().link(real, target)
            directory, name = os.path.split(os.path.abspath(target))
            self._names.get(directory, {}).pop(name, None)

    def remove_tree(self, path: str) -> None:
        with self._lock:
            inside = os.path.abspath(path)
            for directory in list(self._names):
                if directory == inside or directory.startswith(inside + os.sep):
                    del self._names[directory]
            super().remove_tree(path)

    def sync_dir(self, path: str) -> None:
        with self._lock:
            directory = os.path.abspath(path)
            names = self._names.pop(directory, {})
            # First set aside what is renamed away, so that swaps within the directory work.
            moved: list[tuple[str, str]] = []
            for name, real in names.items():
                if real is not None and os.path.abspath(real) != os.path.join(directory, name):
                    self._hidden_count += 1
                    aside = os.path.join(directory, f"{_HIDDEN}{os.getpid()}-{self._hidden_count}")
                    os.replace(real, aside)
                    moved.append((aside, os.path.join(directory, name)))
            for name, real in names.items():
                final = os.path.join(directory, name)
                if real is None and os.path.lexists(final):
                    os.unlink(final)
            for aside, final in moved:
                os.replace(aside, final)
            super().sync_dir(path)

    # --- contents ---------------------------------------------------------------------------

    def _key(self, fd: int) -> tuple[int, int]:
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def _overlay(self, fd: int) -> _Overlay:
        key = self._key(fd)
        overlay = self._overlays.get(key)
        if overlay is None:
            overlay = self._overlays[key] = _Overlay(os.fstat(fd).st_size)
        return overlay

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        with self._lock:
            overlay = self._overlay(fd)
            view = memoryview(data)
            overlay.size = max(overlay.size, offset + len(view))
            while len(view):
                page_no, at = divmod(offset, _PAGE)
                count = min(_PAGE - at, len(view))
                page = overlay.pages.get(page_no)
                if page is None:
                    page = bytearray(_PAGE)
                    if count < _PAGE:
                        old = os.pread(fd, _PAGE, page_no * _PAGE)
                        page[: len(old)] = old
                    overlay.pages[page_no] = page
                page[at : at + count] = view[:count]
                view = view[count:]
                offset += count

    def writev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        self.pwrite(fd, b"".join(buffers), offset)

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        # Zeros need no overlay: a file without them is the same file, only slower.
        with self._lock:
            overlay = self._overlay(fd)
            overlay.size = max(overlay.size, offset + size)

    def reserve(self, fd: int, size: int) -> None:
        self.preallocate(fd, offset=0, size=size)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._lock:
            overlay = self._overlays.get(self._key(fd))
            if overlay is None:
                return super().pread(fd, size, offset)
            size = max(0, min(size, overlay.size - offset))
            found = bytearray(super().pread(fd, size, offset).ljust(size, b"\0"))
            for page_no in range(offset // _PAGE, -(-(offset + size) // _PAGE)):
                page = overlay.pages.get(page_no)
                if page is not None:
                    start = max(offset, page_no * _PAGE)
                    end = min(offset + size, (page_no + 1) * _PAGE)
                    found[start - offset : end - offset] = page[
                        start - page_no * _PAGE : end - page_no * _PAGE
                    ]
            return bytes(found)

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            overlay = self._overlay(fd)
            if size < overlay.size:
                last, at = divmod(size, _PAGE)
                if at:  # what is cut off must read as zeros if the file grows again
                    self.pwrite(fd, bytes(_PAGE - at), size)
                end = max(overlay.size, os.fstat(fd).st_size)
                for page_no in range(last + (1 if at else 0), -(-end // _PAGE)):
                    overlay.pages[page_no] = bytearray(_PAGE)
            overlay.size = size

    def size(self, fd: int) -> int:
        with self._lock:
            overlay = self._overlays.get(self._key(fd))
            return super().size(fd) if overlay is None else overlay.size

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            overlay = self._overlays.pop(self._key(fd), None)
            if overlay is not None:
                if os.fstat(fd).st_size > overlay.size:
                    os.ftruncate(fd, overlay.size)
                for page_no in sorted(overlay.pages):
                    at = page_no * _PAGE
                    if at < overlay.size:
                        super().pwrite(
                            fd, memoryview(overlay.pages[page_no])[: overlay.size - at], at
                        )
                if os.fstat(fd).st_size < overlay.size:
                    os.ftruncate(fd, overlay.size)
        super().fdatasync(fd)
