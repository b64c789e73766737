"""Resources that a server takes of its machine: memory, disk, open files, interpreter."""

from __future__ import annotations

import gc
import os
import resource
import stat
import sys
from contextlib import suppress

from streamd import limits
from streamd.cli.freed_memory import keep_for_reuse
from streamd.errors import ConfigError


def tune_interpreter() -> None:
    """Settings of the process that a server of many small objects and two disk threads wants."""
    # What is imported by now lives as long as the process; young garbage is acyclic nearly always.
    gc.freeze()
    gc.set_threshold(*limits.GC_THRESHOLDS)
    # A disk thread that comes back from fdatasync waits this long for the loop to let it run.
    sys.setswitchinterval(limits.SWITCH_INTERVAL_S)
    keep_for_reuse()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES if hard == resource.RLIM_INFINITY else min(limits.OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def leave_interpreter() -> None:
    """Spare the ending process the interpreter's last pass over all live objects, which takes
    more than a second with 10,000 streams. Whoever restarts it waits for that."""
    gc.freeze()


def connections_max() -> int:
    """Bound on clients that leaves the files which streams, log and peers need; 0: no limit."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return 0
    return files - min(limits.OPEN_FILES_KEPT, files // limits.OPEN_FILES_KEPT_FRACTION)


def default_store_dir(parent: str = "", uid: int | None = None) -> str:
    """Create or check `streamd` below `parent` (the system's temporary directory), for data of
    user `uid` (this process's) alone, and return its path.

    Everybody may write there: whoever came first with a directory or a link of that name would
    own, or read, what is stored. Raises ConfigError if it is somebody else's.
    """
    path = os.path.join(parent or os.environ.get("TMPDIR", "/tmp"), "streamd")
    uid = os.geteuid() if uid is None else uid
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode) and found.st_uid != uid:
            raise ConfigError(
                f"default store directory {path!r} belongs to user {found.st_uid}, not to this"
                f" server's ({uid}): name one of your own with --store_dir"
            )
        if stat.S_ISLNK(found.st_mode):
            raise ConfigError(f"default store directory {path!r} is a link: use --store_dir")
        if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) != 0o700:
            os.chmod(path, 0o700)  # others could read it
    except OSError as err:
        raise ConfigError(
            f"can't use the default store directory {path!r}: {err.strerror}: use --store_dir"
        ) from err
    return path


def check_files() -> None:
    """Raise ConfigError if the process may not open as many files as a server needs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < limits.OPEN_FILES_MIN:
        raise ConfigError(
            f"the process may open {files} files, JetStream needs {limits.OPEN_FILES_MIN}, and one "
            "more for each client: raise `ulimit -n` (LimitNOFILE= of a systemd unit)"
        )


def open_blocks_max() -> int:
    """Bound on block files open for writing, which leaves all other files that the server
    needs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = limits.OPEN_FILES
    kept = min(limits.OPEN_FILES_KEPT, files // limits.OPEN_FILES_KEPT_FRACTION)
    return max(4, kept - min(limits.OPEN_FILES_OTHER, kept // 2))


def files_reserved() -> int:
    """Count of files that the store holds in reserve, to close for one that it must open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.OPEN_FILES_RESERVED
    return min(limits.OPEN_FILES_RESERVED, files // 8)


def memory_share() -> int:
    """Three quarters of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4


def storage_share(directory: str) -> int:
    """Bytes that the store directory holds plus three quarters of the free space where it is (or
    will be); 1 TB if unknown.

    Of the free space alone it would be less at each start, and less than is stored some day.
    """
    path = os.path.abspath(directory)
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    try:
        free = os.statvfs(path)
    except OSError:
        return 1 << 40
    return _held_bytes(directory) + free.f_bavail * free.f_frsize * 3 // 4


def _held_bytes(directory: str) -> int:
    """The disk space of all files below `directory`."""
    count = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # it went meanwhile: another server runs there
                count += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return count
