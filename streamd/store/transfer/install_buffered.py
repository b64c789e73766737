"""Fetched snapshots without a directory of their own: memory streams, and the meta group.

What comes is kept in memory until the swap; `install.py` has the install of a stream with files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from streamd.store.blocks.stream_store import LoadedSnapshot
from streamd.store.disk import Disk, Thread
from streamd.store.transfer.install import check_file, is_whole
from streamd.store.transfer.manifest import INDEX_NO, STATE_NO, Manifest
from streamd.store.transfer.source import Result, submit
from streamd.types import Uid

_FETCHED = "fetched.tmp"


class _BufferedInstall:
    """An install without files of its own: what comes is kept in memory until the swap."""

    def __init__(
        self, uid: Uid, thread: Thread, close_live: Callable[[Callable[[], None]], None]
    ) -> None:
        self._uid = uid
        self._thread = thread
        self._close_live = close_live
        self._manifest: Manifest | None = None
        self._parts: dict[int, bytearray] = {}
        self._whole: dict[int, bytes] = {}

    def begin(self, manifest: Manifest, done: Result, is_over: Callable[[], bool]) -> None:
        """See FileInstall; what is whole stays if the new manifest has it too."""
        self._manifest = manifest
        self._parts.clear()
        facts = {fact.no: fact for fact in manifest.files}
        self._whole = {
            no: blob
            for no, blob in self._whole.items()
            if no in facts and is_whole(blob, facts[no])
        }
        done(set(self._whole))

    def write(self, no: int, offset: int, data: bytes, done: Result) -> None:
        """See FileInstall. Pieces of one file may come in any order."""
        part = self._parts.setdefault(no, bytearray())
        if len(part) < offset:
            part.extend(bytes(offset - len(part)))
        part[offset : offset + len(data)] = data
        done(None)

    def complete(self, no: int, done: Result) -> None:
        """See FileInstall."""
        assert self._manifest is not None
        fact = next(fact for fact in self._manifest.files if fact.no == no)
        blob = bytes(self._parts.pop(no, b""))

        def checked(result: Any) -> None:
            if not isinstance(result, BaseException):
                self._whole[no] = blob
            done(result)

        submit(
            self._thread,
            "verifying a fetched block",
            str(self._uid),
            lambda: check_file(blob, self._uid, fact),
            checked,
        )

    def seal(self, done: Result) -> None:
        """See FileInstall: here there is nothing to do."""
        done(None)

    def before_swap(self, done: Callable[[], None]) -> None:
        """See FileInstall."""
        self._close_live(done)

    def drop(self, done: Result) -> None:
        """See FileInstall."""
        self._parts.clear()
        self._whole.clear()
        done(None)

    def _clear(self) -> Manifest:
        manifest = self._manifest
        assert manifest is not None
        self._parts.clear()
        self._manifest = None
        return manifest


class MemoryInstall(_BufferedInstall):
    """Puts a memory stream together; the swap replaces what `store` holds."""

    def __init__(
        self,
        store: MemoryStreamStore,
        thread: Thread,
        *,
        close_live: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(store.uid, thread, close_live)
        self._store = store

    def swap(self, done: Result) -> None:
        """See FileInstall; then `load_snapshot` of the store returns what was installed."""
        manifest = self._clear()
        images, self._whole = self._whole, {}
        state = images.pop(STATE_NO)
        index_db = images.pop(INDEX_NO, None)
        snapshot = LoadedSnapshot(
            manifest.index, manifest.term, manifest.chain, state, index_db, manifest.tail
        )
        self._store.install(snapshot, images)
        done(None)


class StateInstall(_BufferedInstall):
    """Installs a group that has a state and no blocks: the meta group. The swap gives what was
    written before, as `fetched.tmp`, the name of an ordinary snapshot, `<name>-<index>.snap`."""

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
        super().__init__(uid, thread, close_live)
        self._disk = disk
        self._directory = directory
        self._name = name
        self.fetched: Snapshot | None = None  # complete, from `seal` to `swap`

    def seal(self, done: Result) -> None:
        """See FileInstall. All that a full disk could refuse is done while the group still runs."""
        manifest = self._manifest
        assert manifest is not None
        snapshot = Snapshot(
            self._uid, manifest.index, manifest.term, manifest.chain, self._whole[STATE_NO]
        )

        self.fetched = snapshot

        def job() -> None:
            SnapshotFile.prepare(self._disk, self._directory, _FETCHED, snapshot)

        self._submit("completing an install", job, done)

    def swap(self, done: Result) -> None:
        """See FileInstall."""
        index = self._clear().index
        self._whole.clear()
        self.fetched = None

        def job() -> None:
            SnapshotFile.adopt(self._disk, self._directory, _FETCHED, self._name, index=index)

        self._submit("installing a snapshot", job, done)

    def drop(self, done: Result) -> None:
        """See FileInstall."""
        super().drop(lambda result: None)
        path = os.path.join(self._directory, _FETCHED)

        def job() -> None:
            if self._disk.exists(path):
                self._disk.unlink(path)

        self._submit("dropping an install", job, done)

    def _submit(self, what: str, job: Callable[[], Any], done: Result) -> None:
        submit(self._thread, what, self._directory, job, done)
