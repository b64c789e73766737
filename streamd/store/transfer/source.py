"""Snapshots for other nodes to fetch: the newest saved one, and the blocks that belong to it.

`FileSource` reads a group's directory on the block thread; `MemorySource` does the same for a
memory stream. Both verify a block before they vouch for its checksum: a bad copy must not spread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from crc32c import crc32c

from streamd.callbacks import ignore
from streamd.errors import CorruptionError, StreamdError
from streamd.store.blocks.block_verify import check_block
from streamd.store.blocks.index_db import read_index
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.record_format import block_name
from streamd.store.blocks.snapshots import SnapshotFile
from streamd.store.blocks.stream_store import LoadedSnapshot
from streamd.store.disk import Disk, Thread, disk_error, opened
from streamd.store.transfer.manifest import FileFact
from streamd.types import Index, Uid

Result = Callable[[Any], None]
"""Called on the loop with the result, or with a StreamdError."""


class SnapshotSource(Protocol):
    """Reader of a group's saved snapshot and its blocks."""

    def load(self, done: Result) -> None:
        """Call `done(LoadedSnapshot)` with the newest one, or `done(None)` if nothing was saved
        yet."""

    def check(self, block_no: int, end_offset: int, is_sealed: bool, done: Result) -> None:
        """Call `done(FileFact)` of a verified block, sealed or up to `end_offset`."""

    def read(self, block_no: int, offset: int, size: int, done: Result) -> None:
        """Call `done(bytes)` with a part of a block file, unverified: the fetching node checks the
        whole."""


class FileSource:
    """Source of a group with files, read in `directory`; its snapshots are called `name`.

    `flush` hands writes that wait in memory to the block thread: no snapshot rests on them, but a
    peer that repairs a block of its own may ask for them.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        uid: Uid,
        thread: Thread,
        *,
        name: str = "stream",
        flush: Callable[[], None] = ignore,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._uid = uid
        self._thread = thread
        self._name = name
        self._flush = flush

    def load(self, done: Result) -> None:
        """See SnapshotSource."""

        def job() -> LoadedSnapshot | None:
            found = SnapshotFile.load(self._disk, self._directory, self._name, group=self._uid)
            if found is None:
                return None
            cached = read_index(self._disk, self._directory, self._uid, found.index)
            return LoadedSnapshot(
                found.index, found.term, found.chain, found.state, cached, found.tail
            )

        self._submit("loading a snapshot to send", self._directory, job, done)

    def check(self, block_no: int, end_offset: int, is_sealed: bool, done: Result) -> None:
        """See SnapshotSource."""
        path = os.path.join(self._directory, block_name(block_no))

        def job() -> FileFact:
            with opened(self._disk, path) as fd:
                size = self._disk.size(fd) if is_sealed else end_offset
                blob = self._disk.pread(fd, size, 0)
            return _fact_of(blob, self._uid, block_no, end_offset, is_sealed)

        self._submit("checking a block", path, job, done)

    def read(self, block_no: int, offset: int, size: int, done: Result) -> None:
        """See SnapshotSource."""
        self._flush()
        path = os.path.join(self._directory, block_name(block_no))

        def job() -> bytes:
            with opened(self._disk, path) as fd:
                return self._disk.pread(fd, size, offset)

        self._submit("reading a block to send", path, job, done)

    def _submit(self, what: str, path: str, job: Callable[[], object], done: Result) -> None:
        submit(self._thread, what, path, job, done)


class MemorySource:
    """Source of a memory stream, of what its store keeps. Costly steps run on `thread`."""

    def __init__(self, store: MemoryStreamStore, thread: Thread) -> None:
        self._store = store
        self._thread = thread
        self._image: tuple[int, Index, bytes] | None = None  # the block read last

    def load(self, done: Result) -> None:
        """See SnapshotSource."""
        done(self._store.load_snapshot())

    def check(self, block_no: int, end_offset: int, is_sealed: bool, done: Result) -> None:
        """See SnapshotSource."""

        def job() -> FileFact:
            blob = self._store.image(block_no)
            if not is_sealed:
                blob = blob[:end_offset]
            return _fact_of(blob, self._store.uid, block_no, end_offset, is_sealed)

        submit(self._thread, "checking a block", block_name(block_no), job, done)

    def read(self, block_no: int, offset: int, size: int, done: Result) -> None:
        """See SnapshotSource."""

        def job() -> bytes:
            saved_index = self._store.saved_index
            if self._image is None or self._image[:2] != (block_no, saved_index):
                self._image = (block_no, saved_index, self._store.image(block_no))
            return self._image[2][offset : offset + size]

        submit(self._thread, "reading a block to send", block_name(block_no), job, done)


def _fact_of(blob: bytes, uid: Uid, block_no: int, end_offset: int, is_sealed: bool) -> FileFact:
    end = check_block(blob, uid, block_no)
    if end != end_offset or (end != len(blob)) != is_sealed:
        raise CorruptionError(
            f"{block_name(block_no)}: {len(blob)} bytes with records up to {end}; "
            f"there should be records up to {end_offset}"
        )
    return FileFact(block_no, len(blob), crc32c(blob))


def submit(thread: Thread, what: str, path: str, job: Callable[[], object], done: Result) -> None:
    """Run `job` on `thread`; a refusal of the operating system becomes a DiskError."""

    def guarded() -> object:
        try:
            return job()
        except OSError as err:
            raise disk_error(what, path, err) from err

    def finished(result: object) -> None:
        if isinstance(result, BaseException) and not isinstance(result, StreamdError):
            raise result  # a bug of ours, not an outcome
        done(result)

    thread.submit(guarded, finished)
