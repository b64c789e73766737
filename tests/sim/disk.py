"""A disk in memory that loses, at a crash, whatever was not synced; and a thread stepped by hand.

`SimDisk` implements `streamd.store.disk.Disk`. At `crash` every write since its file's last sync
is kept, lost or torn at any byte, and every change of a directory since its last `sync_dir` is
kept or lost, as the seed says. `SimCrash` is raised at the named crash point, or at the n-th
operation, that the test asked for; after it, only `crash` and a fresh start make sense.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from streamd.store.disk import Buffer


class SimCrash(BaseException):
    """The power went. Not an Exception: nothing may catch it and go on."""


class _Inode:
    """A file: its bytes now, its bytes on the platter, and the writes in between."""

    __slots__ = ("changes", "durable", "now")

    def __init__(self) -> None:
        self.now = bytearray()
        self.durable = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []  # (offset, data), (size, None)


class SimDisk:
    """One machine's disk. Deterministic for a seed. See the module for what a crash does."""

    def __init__(self, seed: int = 0, *, capacity: int = 1 << 40) -> None:
        self._random = random.Random(f"disk/{seed}")
        self._files: dict[str, _Inode] = {}  # names as they are now
        self._durable: dict[str, _Inode] = {}  # names on the platter
        self._directories: set[str] = {"/"}
        # Directory -> changes since its sync; each the names it set, so a rename is atomic.
        self._changed: dict[str, list[list[tuple[str, _Inode | None]]]] = {}
        self._open: dict[int, _Inode] = {}
        self._next_fd = 3
        self._locks: set[str] = set()
        self._lock_fds: dict[int, str] = {}
        self.capacity = capacity
        self.points: list[str] = []  # crash points passed, in order
        self.operation_count = 0
        self.crash_at_point: str | None = None
        self.crash_at_operation: int | None = None
        self.fail_next: dict[str, int] = {}  # operation -> errno, once: {"fdatasync": EIO}
        self.is_crashed = False

    # --- faults -----------------------------------------------------------------------------

    def crash_point(self, name: str) -> None:
        self.points.append(name)
        if name == self.crash_at_point:
            self._die(name)

    def crash(self, *, keep: float = 0.5) -> None:
        """Lose the power: a change that was not synced stays with probability `keep`."""
        rng = self._random
        for directory in sorted(self._changed):
            # A journal keeps the order of directory changes: a prefix of them is on the platter.
            changes = self._changed[directory]
            kept = len(changes) if rng.random() < keep else rng.randint(0, len(changes))
            for change in changes[:kept]:
                self._settle_names(change)
        self._changed.clear()
        for inode in {id(inode): inode for inode in self._durable.values()}.values():
            content = inode.durable
            for offset, data in inode.changes:
                if rng.random() >= keep:
                    continue
                if data is None:
                    _resize(content, offset)
                    continue
                if rng.random() < 0.5:  # torn: a middle piece, at any byte
                    start = rng.randint(0, len(data))
                    end = rng.randint(start, len(data))
                else:
                    start, end = 0, len(data)
                _put(content, offset + start, data[start:end])
            inode.changes.clear()
            inode.now = bytearray(content)
        self._files = dict(self._durable)
        self._reset()

    def kill(self) -> None:
        """Kill the process only: what it wrote is in the page cache and stays."""
        self._reset()

    def _reset(self) -> None:
        self._open.clear()
        self._locks.clear()
        self._lock_fds.clear()
        self.crash_at_point = self.crash_at_operation = None
        self.is_crashed = False

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Rot: change a byte on the platter."""
        inode = self._files[path]
        for content in (inode.now, inode.durable):
            if offset < len(content):
                content[offset] ^= mask

    def contents(self, path: str) -> bytes:
        return bytes(self._files[path].now)

    def durable_contents(self, path: str) -> bytes | None:
        """What a crash now could not take away, or None if not even the name is safe."""
        inode = self._durable.get(path)
        return None if inode is None else bytes(inode.durable)

    def _die(self, why: str) -> None:
        self.is_crashed = True
        raise SimCrash(why)

    def _operation(self, name: str) -> None:
        if self.is_crashed:
            raise SimCrash("the power is off")
        self.operation_count += 1
        if self.crash_at_operation is not None and self.operation_count >= self.crash_at_operation:
            self._die(f"operation {self.operation_count}: {name}")
        code = self.fail_next.pop(name, None)
        if code is not None:
            raise OSError(code, name)

    # --- contents ---------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        self._operation("open")
        inode = self._files.get(path)
        if inode is None:
            if not create or _parent(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "open", path)
            inode = self._files[path] = _Inode()
            self._name_changed(path)
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._open[fd] = inode
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        inode = self._open[fd]
        blob = bytes(data)
        try:
            self._operation("pwrite")
        except SimCrash:
            inode.changes.append((offset, blob))  # in flight: as unsure as any other
            raise
        grown = max(0, offset + len(blob) - len(inode.now))
        if grown and self._used() + grown > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device")
        _put(inode.now, offset, blob)
        inode.changes.append((offset, blob))

    def writev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        self.pwrite(fd, b"".join(buffers), offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._operation("pread")
        return bytes(self._open[fd].now[offset : offset + size])

    def fdatasync(self, fd: int) -> None:
        self._operation("fdatasync")
        inode = self._open[fd]
        for offset, data in inode.changes:
            if data is None:
                _resize(inode.durable, offset)
            else:
                _put(inode.durable, offset, data)
        inode.changes.clear()

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        self.pwrite(fd, bytes(size), offset)

    def truncate(self, fd: int, size: int) -> None:
        self._operation("truncate")
        inode = self._open[fd]
        _resize(inode.now, size)
        inode.changes.append((size, None))

    def size(self, fd: int) -> int:
        return len(self._open[fd].now)

    # --- names ------------------------------------------------------------------------------

    def replace(self, source: str, target: str) -> None:
        self._operation("replace")
        if source in self._directories:
            self._move_directory(source, target)
            return
        if source not in self._files:
            raise FileNotFoundError(errno.ENOENT, "replace", source)
        self._files[target] = self._files.pop(source)
        self._name_changed(target, source)

    def unlink(self, path: str) -> None:
        self._operation("unlink")
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "unlink", path)
        del self._files[path]
        self._name_changed(path)

    def mkdir(self, path: str) -> None:
        self._operation("mkdir")
        while path not in self._directories:
            self._directories.add(path)
            path = _parent(path)

    def listdir(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        found = {name for name in (*self._files, *self._directories) if name.startswith(prefix)}
        return sorted({name[len(prefix) :].split("/")[0] for name in found} - {""})

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def remove_tree(self, path: str) -> None:
        self._operation("remove_tree")
        inside = path.rstrip("/") + "/"
        for name in [name for name in self._files if name.startswith(inside)]:
            del self._files[name]
            self._durable.pop(name, None)
        self._directories = {
            name for name in self._directories if name != path and not name.startswith(inside)
        }

    def sync_dir(self, path: str) -> None:
        self._operation("sync_dir")
        for changed in self._changed.pop(path.rstrip("/"), []):
            self._settle_names(changed)

    def _name_changed(self, *paths: str) -> None:
        change = [(path, self._files.get(path)) for path in paths]
        self._changed.setdefault(_parent(paths[0]), []).append(change)

    def _settle_names(self, change: list[tuple[str, _Inode | None]]) -> None:
        for path, inode in change:
            if inode is None:
                self._durable.pop(path, None)
            else:
                self._durable[path] = inode

    def _move_directory(self, source: str, target: str) -> None:
        """Directories move at once and durably: the store only ever moves them to trash."""
        for names in (self._files, self._durable):
            for name in [name for name in names if name.startswith(source + "/")]:
                names[target + name[len(source) :]] = names.pop(name)
        for name in [
            name for name in self._directories if name == source or name.startswith(source + "/")
        ]:
            self._directories.discard(name)
            self._directories.add(target + name[len(source) :])
        self._changed.pop(source, None)

    # --- the rest ---------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "lock", path)
        self._locks.add(path)
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._lock_fds[fd] = path
        return fd

    def unlock(self, fd: int) -> None:
        self._locks.discard(self._lock_fds.pop(fd))

    def free_bytes(self, path: str) -> int:
        return self.capacity - self._used()

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def _used(self) -> int:
        return sum(len(inode.now) for inode in self._files.values())


class SimThread:
    """Runs jobs when the test says so. `done` runs right after its job, or at `complete`."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None] | None]] = deque()
        self._finished: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._later: list[Callable[[], Any]] = []
        self._is_running = False

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        self._jobs.append((job, done))

    def submit_later(self, delay_s: float, job: Callable[[], Any]) -> None:
        self._later.append(job)

    def is_current(self) -> bool:
        return self._is_running

    @property
    def job_count(self) -> int:
        return len(self._jobs)

    def step(self) -> bool:
        """Run one job; False if there is none. Its completion waits for `complete`."""
        if not self._jobs:
            return False
        job, done = self._jobs.popleft()
        self._is_running = True
        try:
            result = job()
        except Exception as err:  # noqa: BLE001 - as the real thread does; SimCrash passes
            result = err
        finally:
            self._is_running = False
        if done is not None:
            self._finished.append((done, result))
        return True

    def complete(self) -> None:
        """Deliver completions, as the loop does."""
        while self._finished:
            done, result = self._finished.popleft()
            done(result)

    def run(self) -> None:
        """Run everything, and what follows from it."""
        while self.step():
            self.complete()
        self.complete()

    def run_later(self) -> None:
        """Run the jobs whose time is to come."""
        later, self._later = self._later, []
        for job in later:
            self._jobs.append((job, None))
        self.run()

    def close(self) -> None:
        self.run()


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
