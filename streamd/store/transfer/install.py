"""Install of a fetched snapshot: it is put together, then replaces the directory that was there.

    streams/<uid>.catchup/   files as they come: `<n>.part`, then `<n>.blk`, `state`, `index`
    ... + stream-<i>.snap, index.db, `manifest`      complete: the last one written says so
    streams/<uid>            after the swap; what was there is now trash/<uid>-replaced-<n>

A file under its final name is whole, verified and durable, so fetching resumes after a crash.
`finish_install` may be cut off and repeated at any point.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from streamd.errors import CorruptionError, DiskError, IncarnationError
from streamd.store.blocks.block_verify import check_block
from streamd.store.blocks.index_db import write_index
from streamd.store.blocks.quarantine import free_name, newest_quarantine, quarantines, trash_of
from streamd.store.blocks.record_format import block_name
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile, read_file, write_file
from streamd.store.disk import Disk, Thread, opened
from streamd.store.file_names import is_fetched_file
from streamd.store.transfer.manifest import INDEX_NO, STATE_NO, FileFact, Manifest
from streamd.store.transfer.source import Result, submit
from streamd.types import Index, Uid

SUFFIX = ".catchup"
_PART = ".part"
_MARKER = "manifest"
_NO_LINKS = frozenset((errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS))
_NAMES = {STATE_NO: "state", INDEX_NO: "index"}


def catchup_uid(name: str) -> Uid | None:
    """Return the stream whose install the directory `name` of `streams/` is; None for any other."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and stem.isdigit() else None


def finish_install(disk: Disk, root: str, uid: Uid) -> Manifest | None:
    """Move a complete `<uid>.catchup` into place. Synchronous; may be repeated at any point.

    None: there is none, or it is not complete and stays for resuming, or the group got past it by
    its log (then it is removed: nothing that was acked may be set back). Raises OSError,
    CorruptionError.
    """
    streams = os.path.join(root, "streams")
    target = os.path.join(streams, str(uid))
    folder = target + SUFFIX
    marker = read_marker(disk, folder, uid)
    if marker is None:
        return None
    if _newest_index(disk, target, uid) > marker.index:
        disk.remove_tree(folder)
        return None
    for name in _NAMES.values():
        if disk.exists(os.path.join(folder, name)):
            disk.unlink(os.path.join(folder, name))
    if disk.exists(target) and not disk.listdir(target):
        disk.remove_tree(target)  # of a replica whose files were set aside
    elif disk.exists(target):
        trash = trash_of(disk, root)
        disk.replace(target, free_name(disk, trash, f"{uid}-replaced"))
        disk.crash_point("INSTALL_OLD_MOVED")
        disk.sync_dir(trash)
        disk.sync_dir(streams)
    # On disk now: the old files in trash, the new ones complete beside their place.
    disk.crash_point("INSTALL_OLD_SYNCED")
    disk.replace(folder, target)
    disk.crash_point("INSTALL_SWAPPED")
    disk.sync_dir(streams)
    disk.crash_point("INSTALL_SWAP_SYNCED")
    return marker


def _newest_index(disk: Disk, directory: str, uid: Uid) -> Index:
    """Return the index of the newest good snapshot in `directory`; 0: there is none."""
    try:
        found = SnapshotFile.load(disk, directory, "stream", group=uid)
    except CorruptionError:
        return 0
    return found.index if found is not None else 0


def read_marker(disk: Disk, directory: str, uid: Uid) -> Manifest | None:
    """Return the manifest that `directory` was installed from, or None. Raises CorruptionError."""
    path = os.path.join(directory, _MARKER)
    if not disk.exists(path):
        return None
    blob = read_file(disk, path)
    if len(blob) < 4 or crc32c(blob[4:]) != int.from_bytes(blob[:4], "little"):
        raise CorruptionError(f"{path}: damaged")
    found = Manifest.decode(blob[4:])
    if found.uid != uid:
        raise IncarnationError(f"{path}: of group {found.uid}, expected group {uid}")
    return found


def clear_marker(disk: Disk, directory: str) -> None:
    """Remove the manifest of `directory`: the log has the install now. Synchronous."""
    path = os.path.join(directory, _MARKER)
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_dir(directory)


def failed_installs(disk: Disk, root: str, uid: Uid) -> list[str]:
    """Return the names in `trash/` of fetched snapshots that were set aside unchanged, oldest
    first. They hold nothing of this node's own."""
    found = []
    for name in quarantines(disk, root, uid):
        directory = os.path.join(root, "trash", name)
        try:
            marker = read_marker(disk, directory, uid)
        except (CorruptionError, OSError):
            continue  # unknown, so it stays
        if marker is not None and _newest_index(disk, directory, uid) == marker.index:
            found.append(name)
    return found


def remove_replaced(disk: Disk, root: str, uid: Uid) -> None:
    """Remove the directories that installs replaced; quarantined ones stay.

    Called only once the newest install was opened and verified (I11).
    """
    trash = os.path.join(root, "trash")
    for name in disk.listdir(trash):
        if name.startswith(f"{uid}-replaced-"):
            disk.remove_tree(os.path.join(trash, name))


class KeepEntries(NamedTuple):
    """Hook that sets aside log entries of this node that a fetched snapshot lacks."""

    look: Callable[[], Callable[[Snapshot], bool]]
    """Called on the loop; the function returned, for any thread, is True if none is lacking."""
    keep: Callable[[Snapshot, Callable[[], None]], None]
    """Set the entries aside, then call back."""


class FileInstall:
    """Installs a stream with files. Implements `node.catchup.InstallTarget`.

    `close_live(done)` must close the stream's open store, if any, and call `done` then.
    `keep_free_bytes` of the disk stay free for the log and the other streams: a write that the disk
    refuses stops a stream for good, and fetching can wait. Without `may_adopt` no block of this
    node's own is taken, for what it holds is known to be another history: a file of records that
    end with their crc32c has one that says how long they are, and nothing of what is in them.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        uid: Uid,
        thread: Thread,
        *,
        close_live: Callable[[Callable[[], None]], None],
        keep_free_bytes: int = 0,
        may_adopt: bool = True,
        keep: KeepEntries | None = None,
    ) -> None:
        self._disk = disk
        self._root = root
        self._uid = uid
        self._thread = thread
        self._close_live = close_live
        self._keep_free_bytes = keep_free_bytes
        self._may_adopt = may_adopt
        self._keep = keep
        self._live = os.path.join(root, "streams", str(uid))
        self._folder = self._live + SUFFIX
        self._aside = ""  # where `quarantine` moved the stream last; most of it is good
        self._manifest: Manifest | None = None

    def begin(self, manifest: Manifest, done: Result, is_over: Callable[[], bool]) -> None:
        """Keep what is here of `manifest`, drop the rest; `done(set of whole files' numbers)`.

        Asked before each file, `is_over()` ends it: another manifest's files in the directory must
        stay.
        """
        self._manifest = manifest
        facts = list(manifest.files)
        whole: set[int] = set()

        def clean() -> None:
            wanted = {self._name_of(fact.no) for fact in facts}
            self._aside = newest_quarantine(self._disk, self._root, self._uid)
            self._disk.mkdir(self._folder)
            # First of all: from here on the folder is not complete.
            clear_marker(self._disk, self._folder)
            for name in self._disk.listdir(self._folder):
                if name not in wanted and is_fetched_file(name):
                    self._disk.unlink(os.path.join(self._folder, name))
            here = set(self._disk.listdir(self._folder))
            new = [fact for fact in facts if self._name_of(fact.no) not in here]
            self._need_room(sum(fact.length for fact in new if not self._may_link(fact)))

        def step(result: int | BaseException | None) -> None:
            # One job for each file: others have their turn on the thread in between.
            if is_over():
                return
            if isinstance(result, BaseException):
                done(result)
                return
            if result is not None:
                whole.add(result)
            if not facts:
                done(whole)
                return
            fact = facts.pop(0)
            self._submit("looking for a block", lambda: self._keep_or_adopt(fact), step)

        self._submit("preparing an install", clean, step)

    def write(self, no: int, offset: int, data: bytes, done: Result) -> None:
        """Write a piece of a file; `done(None)`."""

        def job() -> None:
            self._need_room(len(data))  # others have written since `begin`
            with opened(self._disk, self._part(no), create=True) as fd:
                self._disk.pwrite(fd, data, offset)

        self._submit("writing a fetched block", job, done)

    def complete(self, no: int, done: Result) -> None:
        """Verify a file that is all written, and make it durable: `done(None)`, or
        `done(CorruptionError)` and the file is removed."""
        fact = self._fact(no)

        def job() -> None:
            blob = read_file(self._disk, self._part(no))
            try:
                check_file(blob, self._uid, fact)
            except CorruptionError:
                self._disk.unlink(self._part(no))
                raise
            self._settle(no)

        self._submit("verifying a fetched block", job, done)

    def seal(self, done: Result) -> None:
        """Write the snapshot, then the marker that makes it count: every file is whole.

        Before the marker, for a start would finish the install, `keep` sets aside entries of this
        node that the snapshot lacks.
        """
        manifest = self._manifest
        assert manifest is not None
        disk, folder = self._disk, self._folder
        is_covered = self._keep.look() if self._keep is not None else _is_covered

        def job() -> Snapshot | None:
            for fact in manifest.files:
                path = os.path.join(folder, self._name_of(fact.no))
                if not disk.exists(path):
                    raise CorruptionError(f"{path}: this complete file is missing now")
            state = read_file(disk, os.path.join(folder, _NAMES[STATE_NO]))
            place = (manifest.index, manifest.term, manifest.chain)
            snapshot = Snapshot(self._uid, *place, state, manifest.tail)
            SnapshotFile.save(disk, folder, "stream", snapshot)
            index_path = os.path.join(folder, _NAMES[INDEX_NO])
            if disk.exists(index_path):
                index_db = read_file(disk, index_path)
                write_index(disk, folder, self._uid, manifest.index, index_db)
            # On disk now: every block and the snapshot, synced by content and by name.
            disk.crash_point("INSTALL_FILES_SYNCED")
            if not is_covered(snapshot):
                return snapshot
            mark()
            return None

        def mark() -> None:
            blob = manifest.encode()
            crc = crc32c(blob).to_bytes(4, "little")
            write_file(disk, folder, _MARKER, [crc, blob], point="INSTALL_MARKER")
            disk.sync_dir(os.path.dirname(folder))

        def over(result: Snapshot | BaseException | None) -> None:
            if isinstance(result, Snapshot) and self._keep is not None:
                mark_it = partial(self._submit, "completing an install", mark, done)
                self._keep.keep(result, mark_it)
            else:
                done(result)

        self._submit("completing an install", job, over)

    def before_swap(self, done: Callable[[], None]) -> None:
        """Close the live store; then call `done`."""
        self._close_live(done)

    def swap(self, done: Result) -> None:
        """Take the place of the live directory, durably."""

        def job() -> None:
            found = finish_install(self._disk, self._root, self._uid)
            if found is None:
                raise CorruptionError(
                    f"{self._folder}: the fetched snapshot is not complete, or was replaced"
                )

        self._submit("swapping directories", job, done)

    def drop(self, done: Result) -> None:
        """Forget all that was fetched."""
        self._submit("dropping an install", lambda: self._disk.remove_tree(self._folder), done)

    def _keep_or_adopt(self, fact: FileFact) -> int | None:
        """Return the file's number if it is whole here, or can be had from the live directory."""
        path = os.path.join(self._folder, self._name_of(fact.no))
        if self._disk.exists(path):
            if is_whole(read_file(self._disk, path), fact):
                return fact.no
            self._disk.unlink(path)
        found = self._find_here(fact)
        if found is None:
            return None
        source, blob = found
        if check_block(blob, self._uid, fact.no) != len(blob) and self._link(source, path, fact):
            return fact.no
        self._need_room(len(blob))
        with opened(self._disk, self._part(fact.no), create=True) as fd:
            self._disk.pwrite(fd, blob, 0)
        self._settle(fact.no)
        return fact.no

    def _may_link(self, fact: FileFact) -> bool:
        """Return True if a file that is here may be the one, by its size: then it takes no room."""
        return any(self._size_of(path) == fact.length for path in self._candidates(fact))

    def _size_of(self, path: str) -> int:
        try:
            with opened(self._disk, path) as fd:
                return self._disk.size(fd)
        except OSError:
            return -1  # unknown; it will not be found whole either

    def _link(self, source: str, target: str, fact: FileFact) -> bool:
        """Give a sealed block that is here, and not written to any more, a second name.

        Returns False if its file is longer than the block, or the file system has no links.
        """
        try:
            with opened(self._disk, source) as fd:
                if self._disk.size(fd) != fact.length:
                    return False
                self._disk.fdatasync(fd)
            self._disk.link(source, target)
        except OSError as err:
            if err.errno not in _NO_LINKS:
                raise
            return False
        self._disk.crash_point("INSTALL_BLOCK_LINKED")
        return True

    def _candidates(self, fact: FileFact) -> list[str]:
        """Return paths that may hold the block: in the live directory, and in the one set aside
        last."""
        if fact.no <= 0 or not self._may_adopt:
            return []
        paths = [
            os.path.join(directory, block_name(fact.no))
            for directory in (self._live, self._aside)
            if directory
        ]
        return [path for path in paths if self._disk.exists(path)]

    def _need_room(self, byte_count: int) -> None:
        """Raise DiskError if the disk has no room for so many bytes more."""
        if not byte_count:
            return
        free = self._disk.free_bytes(self._root)
        if free - byte_count < self._keep_free_bytes:
            raise DiskError(
                f"{self._folder}: no room on the disk: {byte_count} bytes are to be written, "
                f"{free} are free, {self._keep_free_bytes} of them are kept for the log"
            )

    def _find_here(self, fact: FileFact) -> tuple[str, bytes] | None:
        """Find a good copy of the block that is here; return its path and its bytes."""
        for path in self._candidates(fact):
            try:
                with opened(self._disk, path) as fd:
                    blob = self._disk.pread(fd, fact.length, 0)
                check_file(blob, self._uid, fact)
            except (CorruptionError, OSError):
                continue  # what the disk does not give is fetched, as what is damaged
            return path, blob
        return None

    def _settle(self, no: int) -> None:
        part = self._part(no)
        with opened(self._disk, part) as fd:
            self._disk.fdatasync(fd)
        # Synced before it has its name: a file under its final name is never torn.
        self._disk.crash_point("INSTALL_BLOCK_SYNCED")
        self._disk.replace(part, os.path.join(self._folder, self._name_of(no)))
        self._disk.crash_point("INSTALL_BLOCK_RENAMED")

    def _fact(self, no: int) -> FileFact:
        assert self._manifest is not None
        return next(fact for fact in self._manifest.files if fact.no == no)

    def _name_of(self, no: int) -> str:
        return _NAMES.get(no) or block_name(no)

    def _part(self, no: int) -> str:
        return os.path.join(self._folder, self._name_of(no) + _PART)

    def _submit(self, what: str, job: Callable[[], object], done: Result) -> None:
        submit(self._thread, what, self._folder, job, done)


def _is_covered(snapshot: Snapshot) -> bool:
    return True


def is_whole(blob: bytes, fact: FileFact) -> bool:
    """Return True if `blob` is the file that `fact` names, whatever it contains."""
    return len(blob) == fact.length and crc32c(blob) == fact.crc


def check_file(blob: bytes, uid: Uid, fact: FileFact) -> None:
    """Raise CorruptionError unless `blob` is the file that `fact` names, good in every record."""
    found = crc32c(blob)
    if len(blob) != fact.length or found != fact.crc:
        raise CorruptionError(
            f"{_NAMES.get(fact.no) or block_name(fact.no)} of group {uid}: fetched {len(blob)} "
            f"bytes with crc {found:#010x}, expected {fact.length} with {fact.crc:#010x}"
        )
    if fact.no > 0:
        check_block(blob, uid, fact.no)
