"""Fetched snapshots without a directory of their own: memory streams, and the meta group.

Fetched files are kept in memory until the swap; `install.py` has the install of a stream with
files.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from streamd.store.blocks.stream_store import LoadedSnapshot
from streamd.store.disk import Disk, Thread
from streamd.store.transfer.install import check_file, is_whole
from streamd.store.transfer.manifest import INDEX_NO, STATE_NO, FileFact, Manifest
from streamd.store.transfer.source import Result, submit
from streamd.types import Uid

_FETCHED = "fetched.tmp"


class FetchedFiles:
    """Files of one snapshot in memory: those that are whole and verified, and pieces of others."""

    def __init__(self, uid: Uid, thread: Thread) -> None:
        self.whole: dict[int, bytes] = {}
        self._uid = uid
        self._thread = thread
        self._facts: dict[int, FileFact] = {}
        self._parts: dict[int, bytearray] = {}

    def begin(self, manifest: Manifest) -> set[int]:
        """Keep the whole files that `manifest` has too; return their numbers."""
        self._parts.clear()
        facts = self._facts = {fact.no: fact for fact in manifest.files}
        self.whole = {
            no: blob for no, blob in self.whole.items() if no in facts and is_whole(blob, facts[no])
        }
        return set(self.whole)

    def write(self, no: int, offset: int, data: bytes) -> None:
        """Add a piece of a file. Pieces may come in any order."""
        part = self._parts.setdefault(no, bytearray())
        if len(part) < offset:
            part.extend(bytes(offset - len(part)))
        part[offset : offset + len(data)] = data

    def complete(self, no: int, done: Result) -> None:
        """Verify a file of which every piece was added: `done(None)`, or `done(CorruptionError)`
        and its pieces are gone."""
        fact = self._facts[no]
        blob = bytes(self._parts.pop(no, b""))

        def checked(result: object) -> None:
            if not isinstance(result, BaseException):
                self.whole[no] = blob
            done(result)

        submit(
            self._thread,
            "verifying a fetched block",
            str(self._uid),
            lambda: check_file(blob, self._uid, fact),
            checked,
        )

    def take(self) -> dict[int, bytes]:
        """Return the whole files, and forget all."""
        whole, self.whole = self.whole, {}
        self._parts.clear()
        return whole


class MemoryInstall:
    """Installs a memory stream: the swap replaces what `store` holds.

    Implements `node.catchup.InstallTarget`; see FileInstall for the steps.
    """

    def __init__(
        self,
        store: MemoryStreamStore,
        thread: Thread,
        *,
        close_live: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store = store
        self._close_live = close_live
        self._files = FetchedFiles(store.uid, thread)
        self._manifest: Manifest | None = None

    def begin(self, manifest: Manifest, done: Result, is_over: Callable[[], bool]) -> None:
        """Keep whole files of an earlier try."""
        self._manifest = manifest
        done(self._files.begin(manifest))

    def write(self, no: int, offset: int, data: bytes, done: Result) -> None:
        """Add a piece of a file."""
        self._files.write(no, offset, data)
        done(None)

    def complete(self, no: int, done: Result) -> None:
        """Verify a file."""
        self._files.complete(no, done)

    def seal(self, done: Result) -> None:
        """Call `done`: nothing has to be durable."""
        done(None)

    def before_swap(self, done: Callable[[], None]) -> None:
        """Close the live store; then call `done`."""
        self._close_live(done)

    def swap(self, done: Result) -> None:
        """Fill the store: `load_snapshot` returns the installed one from then on."""
        manifest = self._manifest
        assert manifest is not None
        self._manifest = None
        images = self._files.take()
        state = images.pop(STATE_NO)
        index_db = images.pop(INDEX_NO, None)
        snapshot = LoadedSnapshot(
            manifest.index, manifest.term, manifest.chain, state, index_db, manifest.tail
        )
        self._store.install(snapshot, images)
        done(None)

    def drop(self, done: Result) -> None:
        """Forget all that was fetched."""
        self._files.take()
        done(None)


class StateInstall:
    """Installs a group that has a state and no blocks: the meta group.

    The snapshot is written as `fetched.tmp` by `seal`; the swap gives it the name of an ordinary
    snapshot, `<name>-<index>.snap`. Implements `node.catchup.InstallTarget`; see FileInstall.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        uid: Uid,
        thread: Thread,
        *,
        name: str,
        close_live: Callable[[Callable[[], None]], None],
    ) -> None:
        self.fetched: Snapshot | None = None  # complete, from `seal` to `swap`
        self._disk = disk
        self._directory = directory
        self._uid = uid
        self._thread = thread
        self._name = name
        self._close_live = close_live
        self._files = FetchedFiles(uid, thread)
        self._manifest: Manifest | None = None

    def begin(self, manifest: Manifest, done: Result, is_over: Callable[[], bool]) -> None:
        """Keep whole files of an earlier try."""
        self._manifest = manifest
        done(self._files.begin(manifest))

    def write(self, no: int, offset: int, data: bytes, done: Result) -> None:
        """Add a piece of a file."""
        self._files.write(no, offset, data)
        done(None)

    def complete(self, no: int, done: Result) -> None:
        """Verify a file."""
        self._files.complete(no, done)

    def seal(self, done: Result) -> None:
        """Write the snapshot while the group still runs: all that a full disk could refuse."""
        manifest = self._manifest
        assert manifest is not None
        state = self._files.whole[STATE_NO]
        snapshot = Snapshot(self._uid, manifest.index, manifest.term, manifest.chain, state)
        self.fetched = snapshot

        def job() -> None:
            SnapshotFile.prepare(self._disk, self._directory, _FETCHED, snapshot)

        self._submit("completing an install", job, done)

    def before_swap(self, done: Callable[[], None]) -> None:
        """Close the live group; then call `done`."""
        self._close_live(done)

    def swap(self, done: Result) -> None:
        """Make the written snapshot count, durably."""
        manifest = self._manifest
        assert manifest is not None
        index = manifest.index
        self._manifest = None
        self._files.take()
        self.fetched = None

        def job() -> None:
            SnapshotFile.adopt(self._disk, self._directory, _FETCHED, self._name, index=index)

        self._submit("installing a snapshot", job, done)

    def drop(self, done: Result) -> None:
        """Forget all that was fetched."""
        self._files.take()
        path = os.path.join(self._directory, _FETCHED)

        def job() -> None:
            if self._disk.exists(path):
                self._disk.unlink(path)

        self._submit("dropping an install", job, done)

    def _submit(self, what: str, job: Callable[[], None], done: Result) -> None:
        submit(self._thread, what, self._directory, job, done)
