"""A disk in memory that loses, at a crash, whatever was not synced; and a thread stepped by hand.

`SimDisk` implements `streamd.store.disk.Disk`. At `crash` every write since its file's last sync
is kept, lost or torn at any byte, and every change of a directory since its last `sync_dir` is
kept or lost, as the seed says. `SimCrash` is raised at the named crash point, or at the n-th
operation, that the test asked for; after it, only `crash` and a fresh start make sense.

Faults while it runs: `fail` (errors of any operation, by path, once or until `heal`), `bad_read`
(places that cannot be read), `capacity` (may change at any time), `on_operation` (a slow disk:
called before each operation), `flip` and `zero` (rot), `wipe` (an operator's `rm -rf`).
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streamd.store.frames.keyring import Keyring
from streamd.types import Buffer

_BY_NAME = ("open", "link", "mkdir", "replace", "unlink", "remove_tree")


class SimCrash(BaseException):
    """The power went. Not an Exception: nothing may catch it and go on."""


class _Inode:
    """A file: its bytes now, its bytes on the platter, and the writes in between."""

    __slots__ = ("bad", "changes", "durable", "now")

    def __init__(self) -> None:
        self.bad: list[tuple[int, int]] = []  # (start, end): reading there is EIO
        self.now = bytearray()
        self.durable = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []  # (offset, data), (size, None)


class _Fault:
    """Errors that operations are to get."""

    __slots__ = ("code", "count", "operation", "under")

    def __init__(self, operation: str, code: int, under: str, count: int) -> None:
        self.operation = operation
        self.code = code
        self.under = under
        self.count = count


class _Move:
    """A directory that moved."""

    __slots__ = ("is_settled", "source", "target")

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.is_settled = False


# One change of a directory, undone as a whole or not at all: names it set, a directory that moved,
# or the path of one that was removed.
_NameChange = list[tuple[str, _Inode | None]] | _Move | str


class SimDisk:
    """One machine's disk. Deterministic for a seed. See the module for what a crash does."""

    def __init__(self, seed: int = 0, *, capacity: int = 1 << 40) -> None:
        self._random = random.Random(f"disk/{seed}")
        self._files: dict[str, _Inode] = {}  # names as they are now
        self._durable: dict[str, _Inode] = {}  # names on the platter
        self._directories: set[str] = {"/"}  # made durably, moved and removed like other names
        self._durable_directories: set[str] = {"/"}
        self._changed: dict[str, list[_NameChange]] = {}  # directory -> changes since its sync
        self._open: dict[int, _Inode] = {}
        self._moves: list[_Move] = []  # not settled yet, in order
        self._paths: dict[int, str] = {}  # of open files, as they were opened; for faults
        self._faults: list[_Fault] = []
        self._next_fd = 3
        self._locks: set[str] = set()
        self._lock_fds: dict[int, str] = {}
        self.capacity = capacity
        self.points: list[str] = []  # crash points passed, in order
        self.operation_count = 0
        self.crash_at_point: str | None = None
        self.crash_at_operation: int | None = None
        self.fail_next: dict[str, int] = {}  # operation -> errno, once: {"fdatasync": EIO}
        self.on_operation: Callable[[str, str], None] | None = None  # (operation, path)
        self.fault_counts: dict[str, int] = {}  # operation -> errors it got
        self.rewrites = 0  # how often durable bytes changed other than by a sync
        self.syncs = 0  # grows whenever durable names or bytes change by a sync
        self.is_crashed = False
        self._is_abandoned = False
        self.is_out_of_files = False
        self._has_links = False
        self._births: dict[str, int] = {}  # what `identity` said of a path
        self._next_birth = 1
        self.keys: Keyring | None = None  # of what is encrypted on it; for those who look into it

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
            if kept:
                self._settle_moves_to(directory)
            for change in changes[:kept]:
                self._settle_names(change)
        self._changed.clear()
        self._moves.clear()
        self.rewrites += 1
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
        self._directories = set(self._durable_directories)
        self._reset()

    def kill(self) -> None:
        """Kill the process only: what it wrote is in the page cache and stays."""
        self._reset()

    def _reset(self) -> None:
        self._open.clear()
        self._paths.clear()
        self._locks.clear()
        self._lock_fds.clear()
        self.crash_at_point = self.crash_at_operation = None
        self.is_crashed = self._is_abandoned = False

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Rot: change a byte on the platter."""
        inode = self._files[path]
        for content in (inode.now, inode.durable):
            if offset < len(content):
                content[offset] ^= mask

        self.rewrites += 1

    def zero(self, path: str, offset: int, size: int) -> None:
        """Rot: a range reads as zeros."""
        inode = self._files[path]
        for content in (inode.now, inode.durable):
            end = min(offset + size, len(content))
            content[offset:end] = bytes(max(0, end - offset))
        self.rewrites += 1

    def fail(self, operation: str, code: int, *, under: str = "", count: int = 1) -> None:
        """Give the next `count` calls of `operation` on paths that start with `under` an error.

        0 means all of them, until `heal`. A failed fdatasync loses each write it was to keep, or
        not, and calls it clean: what the kernel may do.
        """
        self._faults.append(_Fault(operation, code, under, count))

    def will_fail(self, operation: str) -> bool:
        """True if an error of this operation was ordered, and has not come yet."""
        return any(fault.operation == operation for fault in self._faults)

    def bad_read(self, path: str, offset: int, size: int) -> None:
        """Reading any of these bytes is EIO until they are written again, or `heal`."""
        self._files[path].bad.append((offset, offset + size))

    def heal(self) -> None:
        """No more errors of any kind."""
        self._faults.clear()
        self.fail_next.clear()
        for inode in self._files.values():
            inode.bad.clear()

    def wipe(self, path: str) -> None:
        """`rm -rf path` by an operator, for good. Open files stay usable, as on a real disk."""
        inside = path.rstrip("/") + "/"
        for names in (self._files, self._durable):
            for name in [name for name in names if name == path or name.startswith(inside)]:
                del names[name]
        for known in (self._directories, self._durable_directories):
            known -= {name for name in known if name == path or name.startswith(inside)}
            known.add("/")
        for name in [name for name in self._births if name == path or name.startswith(inside)]:
            del self._births[name]
        for directory in list(self._changed):
            if directory == path or directory.startswith(inside):
                del self._changed[directory]
        parent = self._changed.get(_parent(path), [])
        parent[:] = [change for change in parent if not _touches(change, path)]
        self.rewrites += 1

    remove = wipe

    @property
    def paths(self) -> list[str]:
        """All files there are."""
        return sorted(self._files)

    def durable_names(self) -> Iterable[str]:
        """As `durable_paths`, in any order: to look at, not to keep."""
        return self._durable

    @property
    def durable_paths(self) -> list[str]:
        """All files that a crash could not take away."""
        return sorted(self._durable)

    def durable_view(self, path: str) -> tuple[int, bytearray] | None:
        """(which file this is, its durable bytes: to look at, not to keep); None: none."""
        inode = self._durable.get(path)
        return None if inode is None else (id(inode), inode.durable)

    @property
    def used_bytes(self) -> int:
        """What all files take, against `capacity`."""
        return self._used()

    def contents(self, path: str) -> bytes:
        return bytes(self._files[path].now)

    def durable_contents(self, path: str) -> bytes | None:
        """What a crash now could not take away, or None if not even the name is safe."""
        inode = self._durable.get(path)
        return None if inode is None else bytes(inode.durable)

    def _die(self, why: str) -> None:
        self.is_crashed = True
        raise SimCrash(why)

    def _operation(self, name: str, path: str = "") -> None:
        if self.is_crashed:
            raise SimCrash("the power is off")
        if self._is_abandoned and name in _BY_NAME:
            raise OSError(errno.ESTALE, name, path)
        if self.on_operation is not None:
            self.on_operation(name, path)
        self.operation_count += 1
        if self.crash_at_operation is not None and self.operation_count >= self.crash_at_operation:
            self._die(f"operation {self.operation_count}: {name}")
        code = self.fail_next.pop(name, None)
        if code is None and self._faults:
            code = self._fault(name, path)
        if code is not None:
            self.fault_counts[name] = self.fault_counts.get(name, 0) + 1
            raise OSError(code, name)

    def _fault(self, name: str, path: str) -> int | None:
        for fault in self._faults:
            if fault.operation == name and path.startswith(fault.under):
                fault.count -= 1
                if not fault.count:
                    self._faults.remove(fault)
                return fault.code
        return None

    # --- contents ---------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        self._operation("open", path)
        if path in self._directories:
            raise IsADirectoryError(errno.EISDIR, "open", path)
        inode = self._files.get(path)
        if inode is None:
            if not create or _parent(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "open", path)
            inode = self._files[path] = _Inode()
            self._name_changed(path)
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._open[fd] = inode
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]
        del self._paths[fd]

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        inode = self._open[fd]
        blob = bytes(data)
        try:
            self._operation("pwrite", self._paths[fd])
        except SimCrash:
            inode.changes.append((offset, blob))  # in flight: as unsure as any other
            raise
        grown = max(0, offset + len(blob) - len(inode.now))
        if grown and self._used() + grown > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device")
        _put(inode.now, offset, blob)
        inode.changes.append((offset, blob))
        if inode.bad:  # the drive puts new sectors there
            end = offset + len(blob)
            inode.bad = [(lo, hi) for lo, hi in inode.bad if not (offset <= lo and hi <= end)]

    def writev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        self.pwrite(fd, b"".join(buffers), offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._operation("pread", self._paths[fd])
        inode = self._open[fd]
        if inode.bad and any(lo < offset + size and offset < hi for lo, hi in inode.bad):
            self.fault_counts["pread"] = self.fault_counts.get("pread", 0) + 1
            raise OSError(errno.EIO, "pread")
        return bytes(inode.now[offset : offset + size])

    def fdatasync(self, fd: int) -> None:
        inode = self._open[fd]
        try:
            self._operation("fdatasync", self._paths[fd])
        except OSError:
            inode.changes = [change for change in inode.changes if self._random.random() < 0.5]
            self._keep(inode)
            raise
        self._keep(inode)

    def _keep(self, inode: _Inode) -> None:
        """All changes of the file are on the platter now."""
        self.syncs += 1
        for offset, data in inode.changes:
            if data is None:
                _resize(inode.durable, offset)
            else:
                _put(inode.durable, offset, data)
        inode.changes.clear()

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        self.pwrite(fd, bytes(size), offset)

    def reserve(self, fd: int, size: int) -> None:
        have = self.size(fd)
        self.pwrite(fd, bytes(max(0, size - have)), have)

    def truncate(self, fd: int, size: int) -> None:
        self._operation("truncate", self._paths[fd])
        inode = self._open[fd]
        _resize(inode.now, size)
        inode.changes.append((size, None))

    def size(self, fd: int) -> int:
        return len(self._open[fd].now)

    # --- names ------------------------------------------------------------------------------

    def replace(self, source: str, target: str) -> None:
        self._operation("replace", source)
        if source in self._directories:
            if self.listdir(target):
                raise OSError(errno.ENOTEMPTY, "replace", target)
            self._move_directory(source, target)
            return
        if source not in self._files:
            raise FileNotFoundError(errno.ENOENT, "replace", source)
        if target in self._directories:
            raise IsADirectoryError(errno.EISDIR, "replace", target)
        self._files[target] = self._files.pop(source)
        self._name_changed(target, source)

    def unlink(self, path: str) -> None:
        self._operation("unlink", path)
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "unlink", path)
        del self._files[path]
        self._name_changed(path)

    def mkdir(self, path: str) -> None:
        if _parent(path) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "mkdir", path)
        self.make_dirs(path)

    def link(self, source: str, target: str) -> None:
        self._operation("link", target)
        if source not in self._files or _parent(target) not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "link", source)
        if self.exists(target):
            raise FileExistsError(errno.EEXIST, "link", target)
        self._files[target] = self._files[source]
        self._has_links = True
        self._name_changed(target)

    def make_dirs(self, path: str) -> None:
        self._operation("mkdir", path)
        if path in self._files:
            raise FileExistsError(errno.EEXIST, "mkdir", path)
        while path not in self._directories:
            self._settle_moves_from(path)
            self._directories.add(path)
            self._durable_directories.add(path)
            path = _parent(path)

    def listdir(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        found = {name for name in (*self._files, *self._directories) if name.startswith(prefix)}
        return sorted({name[len(prefix) :].split("/")[0] for name in found} - {""})

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def identity(self, path: str) -> tuple[int, int]:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "identity", path)
        if path not in self._births:
            self._births[path] = self._next_birth
            self._next_birth += 1
        return 0, self._births[path]

    def is_linked(self, fd: int) -> bool:
        if fd in self._lock_fds:
            return _parent(self._lock_fds[fd]) in self._directories
        inode = self._open[fd]
        if self._files.get(self._paths[fd]) is inode:
            return True
        return any(one is inode for one in self._files.values())

    def reserve_files(self, count: int) -> None:
        """Here they never run out, unless a fault says so (EMFILE)."""

    def is_short_of_files(self) -> bool:
        return self.is_out_of_files

    def abandon(self) -> None:
        self._is_abandoned = True

    def remove_tree(self, path: str) -> None:
        self._operation("remove_tree", path)
        inside = path.rstrip("/") + "/"
        if path not in self._directories:
            return
        _remove(path, self._files, self._directories)
        for directory in list(self._changed):
            if directory == path or directory.startswith(inside):
                del self._changed[directory]
        self._changed.setdefault(_parent(path), []).append(path)

    def sync_dir(self, path: str) -> None:
        self._operation("sync_dir", path)
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "sync_dir", path)
        self._settle_moves_to(path)
        # A directory of this name was removed before: what is safe in the new one comes after.
        pending = self._changed.get(_parent(path.rstrip("/")), [])
        while path.rstrip("/") in pending:
            pending.remove(path.rstrip("/"))
            self._settle_names(path.rstrip("/"))
        for changed in self._changed.pop(path.rstrip("/"), []):
            self._settle_names(changed)

    def _name_changed(self, *paths: str) -> None:
        change = [(path, self._files.get(path)) for path in paths]
        self._changed.setdefault(_parent(paths[0]), []).append(change)

    def _settle_names(self, change: _NameChange) -> None:
        self.syncs += 1
        if isinstance(change, str):
            _remove(change, self._durable, self._durable_directories)
        elif isinstance(change, _Move):
            if not change.is_settled:
                change.is_settled = True
                self._moves.remove(change)
                self._settle_moves_from(change.target)
                _move(change.source, change.target, self._durable, self._durable_directories)
        else:
            for path, inode in change:
                if inode is None:
                    self._durable.pop(path, None)
                else:
                    self._durable[path] = inode

    def _move_directory(self, source: str, target: str) -> None:
        """A directory moves with all in it at once; it is safe when the target's parent is synced.

        Its own changes that are not synced yet move along.
        """
        _move(source, target, self._files, self._directories)
        move = _Move(source, target)
        self._moves.append(move)
        self._changed.setdefault(_parent(target), []).append(move)
        for directory in list(self._changed):
            if directory != source and not directory.startswith(source + "/"):
                continue
            moved: list[_NameChange] = []
            for change in self._changed.pop(directory):
                if isinstance(change, list):
                    change = [(_renamed(path, source, target), inode) for path, inode in change]
                elif isinstance(change, str):
                    change = _renamed(change, source, target)
                moved.append(change)
            self._changed[_renamed(directory, source, target)] = moved

    def _settle_moves_to(self, path: str) -> None:
        """What is in a directory that moved is not safe before the move is."""
        for move in list(self._moves):
            if path == move.target or path.startswith(move.target + "/"):
                self._settle_names(move)

    def _settle_moves_from(self, path: str) -> None:
        """A journal keeps its order: what comes to be at `path` is safe after what left it."""
        for move in list(self._moves):
            if move.source == path:
                self._settle_names(move)

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
        inodes: Iterable[_Inode] = self._files.values()
        if self._has_links:
            inodes = {id(inode): inode for inode in inodes}.values()
        return sum(len(inode.now) for inode in inodes)


class SimThread:
    """Runs jobs when the test says so. `done` runs right after its job, or at `complete`.

    With `call_later` (a simulated loop's) delayed jobs are submitted when their time has come,
    else at `run_later`. With `is_quick`, what is submitted for the loop's next round waits for
    `do_now` or the next `step`, whichever comes first.
    """

    def __init__(
        self, call_later: Callable[..., object] | None = None, *, is_quick: bool = False
    ) -> None:
        self._call_later = call_later
        self._is_quick = is_quick
        self._for_loop: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None] | None]] = deque()
        self._finished: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._later: list[Callable[[], Any]] = []
        self._is_running = False

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        while self._for_loop:
            self._jobs.append(self._for_loop.popleft())
        self._jobs.append((job, done))

    def submit_soon(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._is_quick and not self._jobs and not self._finished:
            self._for_loop.append((job, done))
        else:
            self.submit(job, done)

    def do_now(self) -> None:
        while self._for_loop:
            self._jobs.append(self._for_loop.popleft())
            self.step()
            self.complete()

    def submit_later(self, delay_s: float, job: Callable[[], Any]) -> None:
        if self._call_later is not None:
            self._call_later(delay_s, self.submit, job, None)
        else:
            self._later.append(job)

    def is_current(self) -> bool:
        return self._is_running

    @property
    def job_count(self) -> int:
        return len(self._jobs)

    def step(self) -> bool:
        """Run one job; False if there is none. Its completion waits for `complete`."""
        while self._for_loop:
            self._jobs.append(self._for_loop.popleft())
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


def _renamed(path: str, source: str, target: str) -> str:
    """`path`, which is `source` or in it, after `source` became `target`."""
    return target + path[len(source) :]


def _move(source: str, target: str, files: dict[str, _Inode], directories: set[str]) -> None:
    inside = source + "/"
    for name in [name for name in files if name.startswith(inside)]:
        files[_renamed(name, source, target)] = files.pop(name)
    for name in [name for name in directories if name == source or name.startswith(inside)]:
        directories.discard(name)
        directories.add(_renamed(name, source, target))


def _remove(path: str, files: dict[str, _Inode], directories: set[str]) -> None:
    inside = path.rstrip("/") + "/"
    for name in [name for name in files if name.startswith(inside)]:
        del files[name]
    directories -= {name for name in directories if name == path or name.startswith(inside)}


def _touches(change: _NameChange, path: str) -> bool:
    """True if `change` is about `path` or something in it."""
    if isinstance(change, list):
        names = [name for name, _ in change]
    else:
        names = [change] if isinstance(change, str) else [change.source, change.target]
    return any(name == path or name.startswith(path + "/") for name in names)


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
