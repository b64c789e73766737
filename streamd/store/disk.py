"""The one seam to the file system, and its threads: `Disk`, `OsDisk`, `DiskThread`.

All file access of the server goes through a `Disk`; tests give one that loses or tears what was
not synced. A node has two threads: *log* (the write-ahead log and nothing else, so that an ack
never waits behind block I/O) and *block* (blocks, snapshots, reads). While the disk is quick the
event loop does the log thread's writes itself (`submit_soon`, docs/adr/0021).
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import NOT_OPENED, DiskError, ReadError
from streamd.types import Buffer

T = TypeVar("T")
Post = Callable[[Callable[[], None]], object]
_Job = tuple[Callable[[], Any], Callable[[Any], None] | None]  # (job, done)

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ESTALE))
_TOO_MANY = frozenset((errno.EMFILE, errno.ENFILE))
_NO_MEMORY = frozenset((errno.ENOMEM, errno.EAGAIN))  # after a write it is open what became of it
_IOV_MAX = 1024
_ZEROS = bytes(1 << 20)


class Disk(Protocol):
    """File operations of the store. Failures are OSError, as the operating system raises them.

    Two promises, no more: bytes survive a power cut once `fdatasync` of their file returned, and
    a created, renamed or removed name once `sync_dir` of its directory returned.
    """

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing; `create` makes an empty file if there is none."""

    def close(self, fd: int) -> None: ...

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        """Write all of `data`."""

    def writev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all `buffers`, one after the other, from `offset` on."""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def fdatasync(self, fd: int) -> None: ...

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        """Write zeros, so that later writes there change no metadata. Not synced."""

    def reserve(self, fd: int, size: int) -> None:
        """Extend the file to `size` with zeros that are reserved, not written. Not synced.

        The first sync of bytes that are written there costs more than after `preallocate`.
        """

    def truncate(self, fd: int, size: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def replace(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises OSError where the file system has no such thing."""

    def mkdir(self, path: str) -> None:
        """Make `path` in a directory that exists; no error if `path` does.

        A running server never makes its own root again: a store removed under it must not come back
        as half of one.
        """

    def make_dirs(self, path: str) -> None:
        """Make `path` and its parents; no error if it exists."""

    def listdir(self, path: str) -> list[str]:
        """Return sorted names; [] if there is no such directory."""

    def exists(self, path: str) -> bool: ...

    def identity(self, path: str) -> tuple[int, int]:
        """Return (device, inode) of `path`: another file under the same name, or a file system
        mounted over it, has another."""

    def is_linked(self, fd: int) -> bool:
        """Return True while the open file has a name by which a start can find it again."""

    def abandon(self) -> None:
        """Open, make, rename and remove nothing from here on (ESTALE): the paths may lead to
        another store by now. Open files stay open."""

    def reserve_files(self, count: int) -> None:
        """Keep so many more files open, which are given up where one more could not be opened:
        storage must not depend on other users of files in this process."""

    def is_short_of_files(self) -> bool:
        """Return True if reserved files had to be given up and can't be had again."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; no error if it does not exist."""

    def sync_dir(self, path: str) -> None: ...

    def lock(self, path: str) -> int:
        """Take the lock file `path` for this process or raise BlockingIOError."""

    def unlock(self, fd: int) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def random_bytes(self, size: int) -> bytes: ...

    def crash_point(self, name: str) -> None:
        """Name the moment between two durable steps. Only a simulated disk does something."""


class OsDisk:
    """The operating system's files."""

    def __init__(self) -> None:
        self._is_abandoned = False
        self._reserved: list[int] = []  # files kept open; touched by all threads
        self._reserved_wanted = 0

    def open(self, path: str, *, create: bool = False) -> int:
        self._check_ours(path)
        return self._open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0))

    def _open(self, path: str, flags: int) -> int:
        """Open a file, if need be in the place of a reserved one."""
        while True:
            try:
                return os.open(path, flags, 0o640)
            except OSError as err:
                if err.errno not in _TOO_MANY or not self._reserved:
                    raise
            with suppress(IndexError):  # another thread took the last
                os.close(self._reserved.pop())

    def close(self, fd: int) -> None:
        os.close(fd)
        if len(self._reserved) < self._reserved_wanted:
            self._fill_reserve()

    def reserve_files(self, count: int) -> None:
        self._reserved_wanted = count
        self._fill_reserve()
        while len(self._reserved) > count:
            os.close(self._reserved.pop())

    def is_short_of_files(self) -> bool:
        self._fill_reserve()
        return len(self._reserved) < self._reserved_wanted

    def _fill_reserve(self) -> None:
        with suppress(OSError):  # files may be free again later
            while len(self._reserved) < self._reserved_wanted:
                self._reserved.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        written = os.pwrite(fd, data, offset)
        if written != len(data):
            view = memoryview(data)
            while written < len(view):
                # A short write is how a full disk begins; the next call says ENOSPC.
                count = os.pwrite(fd, view[written:], offset + written)
                if count <= 0:
                    raise OSError(errno.EIO, "a write made no progress")
                written += count

    def writev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        if len(buffers) > _IOV_MAX:
            self.pwrite(fd, b"".join(buffers), offset)
            return
        written = os.pwritev(fd, buffers, offset)
        if written != sum(map(len, buffers)):
            self.pwrite(fd, memoryview(b"".join(buffers))[written:], offset + written)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        found = os.pread(fd, size, offset)
        if len(found) == size or not found:
            return found
        parts = [found]
        have = len(found)
        while have < size:
            part = os.pread(fd, size - have, offset + have)
            if not part:
                break
            parts.append(part)
            have += len(part)
        return b"".join(parts)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def preallocate(self, fd: int, *, offset: int, size: int) -> None:
        end = offset + size
        while offset < end:
            count = min(len(_ZEROS), end - offset)
            self.pwrite(fd, memoryview(_ZEROS)[:count], offset)
            offset += count

    def reserve(self, fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def replace(self, source: str, target: str) -> None:
        self._check_ours(target)
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        self._check_ours(path)
        os.unlink(path)

    def link(self, source: str, target: str) -> None:
        self._check_ours(target)
        os.link(source, target)

    def mkdir(self, path: str) -> None:
        self._check_ours(path)
        try:
            os.mkdir(path, mode=0o750)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def make_dirs(self, path: str) -> None:
        self._check_ours(path)
        os.makedirs(path, mode=0o750, exist_ok=True)

    def listdir(self, path: str) -> list[str]:
        while True:
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []
            except OSError as err:
                if err.errno not in _TOO_MANY or not self._reserved:
                    raise
            with suppress(IndexError):
                os.close(self._reserved.pop())

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def identity(self, path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def is_linked(self, fd: int) -> bool:
        return os.fstat(fd).st_nlink > 0

    def abandon(self) -> None:
        self._is_abandoned = True

    def _check_ours(self, path: str) -> None:
        if self._is_abandoned:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    def remove_tree(self, path: str) -> None:
        self._check_ours(path)
        for root, directories, names in os.walk(path, topdown=False):
            for name in names:
                os.unlink(os.path.join(root, name))
            for name in directories:
                os.rmdir(os.path.join(root, name))
        if os.path.isdir(path):
            os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            self.close(fd)

    def lock(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def unlock(self, fd: int) -> None:
        os.close(fd)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def crash_point(self, name: str) -> None:
        """Ignore the name: a real disk needs no help to fail."""


@contextmanager
def opened(disk: Disk, path: str, *, create: bool = False) -> Iterator[int]:
    """Open the file at `path`; it is closed at the end of the block."""
    fd = disk.open(path, create=create)
    try:
        yield fd
    finally:
        disk.close(fd)


def modified_ns(path: str) -> int:
    """Return when a file or directory was last changed, in ns since the epoch; 0: not known."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def disk_error(what: str, path: str, err: OSError) -> DiskError:
    """Return an OSError as a DiskError that names the file, in one line an operator understands.

    `path` is named where the error names none. A file or directory that should exist and does not
    is as good as damaged: where peers have it, it comes back from them.
    """
    kind = ReadError if err.errno in _GONE else DiskError
    found = kind(f"{_named(path, err)}: {what}: {_reason(err)}")
    found.is_passing = err.errno in NOT_OPENED
    return found


def read_error(what: str, path: str, err: OSError) -> ReadError:
    """Return an OSError as a ReadError, of bytes that should be there; see `disk_error`."""
    found = ReadError(f"{_named(path, err)}: {what}: {_reason(err)}")
    found.is_passing = is_refused(err)
    return found


def is_refused(err: OSError) -> bool:
    """Return True if an open or a read failed for want of files, memory or permission, which says
    nothing of the bytes."""
    return err.errno in NOT_OPENED or err.errno in _NO_MEMORY


def _named(path: str, err: OSError) -> str:
    """Return the file that could not be opened, where `path` is only its directory."""
    name = err.filename
    return name if isinstance(name, str) and name.startswith(path + os.sep) else path


def _reason(err: OSError) -> str:
    return os.strerror(err.errno) if err.errno else str(err)


def _noted(result: object) -> None:
    """Mark a delayed job that is only noted for now; its `done`."""


def _uncounted(result: object) -> None:
    """Mark a delayed job that is not counted; its `done`."""


class Thread(Protocol):
    """Thread that runs jobs in order: a `DiskThread`, or one that tests step by hand."""

    def submit(
        self, job: Callable[[], T], done: Callable[[T | BaseException], None] | None
    ) -> None: ...

    def submit_soon(
        self, job: Callable[[], T], done: Callable[[T | BaseException], None]
    ) -> None: ...

    def do_now(self) -> None: ...

    def submit_later(self, delay_s: float, job: Callable[[], object]) -> None: ...

    def is_current(self) -> bool: ...


class DiskThread:
    """Thread that runs jobs in the order they were submitted.

    `done(result)` runs on the event loop, in the same order; result is what the job returned or the
    exception it raised. Completions that are ready together cost one wake-up of the loop; those
    that would take it for long go on in its next round. Without `soon` (the loop's `call_soon`),
    `submit_soon` is just `submit`.
    """

    def __init__(
        self,
        name: str,
        post: Post,
        soon: Post | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._post = post
        self._soon = soon
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._finished: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._later: list[tuple[float, Callable[[], object]]] = []  # touched by the thread only
        self._is_posted = False
        self._running = threading.Lock()  # held while a job runs, here or on the thread
        self._counting = threading.Lock()
        self._count = 0  # of jobs that were given to the thread and have not ended
        self._for_loop: deque[_Job] = deque()  # for the loop's next round
        self._thread = threading.Thread(target=self._run, name=f"disk-{name}", daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], T], done: Callable[[T | BaseException], None] | None
    ) -> None:
        """Run `job` on the thread; then `done(result)` on the loop, if given."""
        with self._counting:
            while self._for_loop:  # came before, so it goes before
                self._count += 1
                self._jobs.put(self._for_loop.popleft())
            self._count += 1
            self._jobs.put((job, done))

    def submit_soon(self, job: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `job` on the loop itself, in its next round, if the thread has nothing to do.

        For short jobs: the loop stands still meanwhile. What was to be sent in this round leaves
        before. `done` follows at once; if the job failed, in a round of its own.
        """
        if self._soon is None or self._count or self._finished:
            # Also behind results that are ready and not reported yet: they come in order.
            self.submit(job, done)
            return
        self._for_loop.append((job, done))
        if len(self._for_loop) == 1:
            self._soon(self.do_now)

    def do_now(self) -> None:
        """Run the jobs left for the loop's next round; on the thread, if that is at work."""
        while self._for_loop:
            if self._running.acquire(blocking=False):
                self._run_on_loop()
            else:
                self.submit(ignore, None)  # a delayed job runs: all goes behind it

    def submit_later(self, delay_s: float, job: Callable[[], object]) -> None:
        """Run `job` on the thread, not before `delay_s` from now. Not run if closed before."""
        due = time.monotonic() + delay_s
        self._jobs.put((lambda: self._later.append((due, job)), _noted))

    def is_current(self) -> bool:
        """Return True on the thread itself."""
        return threading.get_ident() == self._thread.ident

    def close(self) -> None:
        """Run what was submitted, then end. Blocks; completions still reach the loop."""
        self.submit(ignore, None)
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            if self._later:
                item = self._wait_until_due()
            else:
                item = self._jobs.get()
            if item is None:
                return
            job, done = item
            if done is _noted:
                job()
                continue
            with self._running:
                try:
                    result = job()
                except BaseException as err:  # noqa: BLE001 - handed to `done`, which decides
                    result = err
            if done is _uncounted:
                continue
            if done is not None:
                self._finished.append((done, result))
                if not self._is_posted:
                    self._is_posted = True
                    try:
                        self._post(self._complete)
                    except RuntimeError:
                        return  # the loop is closed: no caller is left
            with self._counting:
                self._count -= 1

    def _run_on_loop(self) -> None:
        job, done = self._for_loop.popleft()
        try:
            result = job()
        except BaseException as err:  # noqa: BLE001 - handed to `done`, which decides
            result = err
        finally:
            self._running.release()
        if done is not None:
            if isinstance(result, BaseException) and self._soon is not None:
                self._soon(partial(done, result))  # the caller is in the middle of its work
            else:
                done(result)

    def _wait_until_due(self) -> _Job | None:
        due, job = min(self._later, key=lambda item: item[0])
        wait_s = due - time.monotonic()
        if wait_s > 0:
            try:
                return self._jobs.get(timeout=wait_s)
            except Empty:
                pass
        self._later.remove((due, job))
        return job, _uncounted

    def _complete(self) -> None:
        # Cleared first: a result appended after the loop below saw an empty deque posts again.
        self._is_posted = False
        finished, clock = self._finished, self._clock
        until = clock() + limits.LOOP_SHARE_S
        try:
            while finished:
                done, result = finished.popleft()
                done(result)
                if clock() >= until:
                    break
        finally:
            if finished and not self._is_posted:  # time is up, or a `done` raised
                self._is_posted = True
                self._post(self._complete)
