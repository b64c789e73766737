"""`StreamStore`: the directory of one stream, its blocks and the snapshots a start begins from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from streamd.callbacks import ignore
from streamd.errors import StreamdError
from streamd.store.blocks.block import HEADER_BYTES, BlockExtents, BlockFiles
from streamd.store.blocks.block_reader import BlockReader
from streamd.store.blocks.block_writer import BlockWriter
from streamd.store.blocks.dead_blocks import DeadBlocks
from streamd.store.blocks.file_trash import move_to_trash
from streamd.store.blocks.held_blocks import HeldBlocks, HeldFiles
from streamd.store.blocks.index_db import read_index, write_index
from streamd.store.blocks.outline import has_outline, write_outline
from streamd.store.blocks.packing import BlockPacking
from streamd.store.blocks.record_format import REWRITTEN, block_name
from streamd.store.blocks.snapshots import Snapshot, SnapshotCheck, SnapshotFile, write_file
from streamd.store.blocks.stream_jobs import StreamJobs
from streamd.store.blocks.tail_cache import CacheBudget, ChunkCache, TailCache
from streamd.store.disk import Disk, Thread, disk_error
from streamd.store.file_names import remove_unfinished
from streamd.store.frames.framed_disk import FramedDisk
from streamd.types import Index, Term, Uid

_NAME = "stream"


class Block(Protocol):
    """A block as the machine knows it."""

    block_no: int
    live: int
    end_offset: int
    is_sealed: bool


Bytes = bytes | Callable[[], bytes]


class LoadedSnapshot(NamedTuple):
    """A saved snapshot: what recovery starts from, and what peers fetch."""

    index: Index  # type: ignore[assignment]
    term: Term
    chain: int
    state: bytes
    index_db: bytes | None  # None: scan the blocks instead
    tail: tuple[int, int]


class StreamStore:
    """The directory `streams/<uid>/` of one stream.

    Used on the event loop, except that `open`, the methods for recovery, `close` of a store that
    recovery can't use and `move_to_trash` may also be called in a job of the block thread.
    """

    def __init__(
        self, disk: Disk, directory: str, uid: Uid, thread: Thread, budget: CacheBudget
    ) -> None:
        self.uid = uid
        self.directory = directory
        self._disk = disk
        self._jobs = StreamJobs(directory, thread)
        self._files = BlockFiles(disk, directory, uid, budget.open_blocks)
        self._extents = BlockExtents(self._files)
        self._dead = DeadBlocks(disk, self._files, self._jobs)
        self._tail = TailCache(budget)
        self._chunks = ChunkCache(budget.chunks)
        self._writer = BlockWriter(
            self._files, self._jobs, self._extents, self._dead, self._tail, self._chunks, budget
        )
        self._reader = BlockReader(
            uid, self._files, self._jobs, self._writer, self._tail, self._chunks
        )
        self._packing: BlockPacking | None = None
        if isinstance(disk, FramedDisk):
            self._packing = BlockPacking(
                disk, self._files, self._extents, self._jobs, self._writer.footers
            )
            self._writer.on_sealed = self._packing.sealed
            self._writer.on_dropped = self._packing.forget
        self._saved_index: Index = 0  # of the newest snapshot
        # The group's calls, without another one in between.
        self.apply = self._writer.apply
        self.flush = self._writer.flush
        self.chunk = self._reader.chunk
        self.read_chunk = self._reader.read_chunk
        self.read_spans = self._reader.read_spans
        self.load_footer = self._reader.load_footer
        self.scan = self._reader.scan
        self.verify = self._reader.verify
        self.damaged_records = self._reader.damaged_records

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        uid: Uid,
        thread: Thread,
        *,
        budget: CacheBudget | None = None,
        on_error: Callable[[StreamdError], None] | None = None,
    ) -> StreamStore:
        """Open or make the directory.

        Then: `load_snapshot`, `truncate_to` its tail ((0, 0) without one), replay the log.
        """
        try:
            if not disk.exists(directory):
                parent = os.path.dirname(directory)
                if not disk.exists(parent):  # `streams` itself was removed
                    disk.mkdir(parent)
                    disk.sync_dir(os.path.dirname(parent))
                disk.mkdir(directory)
                disk.sync_dir(parent)
            remove_unfinished(disk, directory)
            store = cls(disk, directory, uid, thread, budget or CacheBudget())
        except OSError as err:
            raise disk_error("opening a stream", directory, err) from err
        if on_error is not None:
            store.on_error = on_error
        return store

    # --- state that others read -------------------------------------------------------------

    @property
    def failure(self) -> StreamdError | None:
        """The first failure of a write; every later `apply` raises it."""
        return self._jobs.failure

    @property
    def on_error(self) -> Callable[[StreamdError], None]:
        """Called on the loop with the first failure."""
        return self._jobs.on_error

    @on_error.setter
    def on_error(self, tell: Callable[[StreamdError], None]) -> None:
        self._jobs.on_error = tell

    @property
    def unwritten_bytes(self) -> int:
        """Bytes given to `apply` that are in memory, and in no file."""
        return self._writer.unwritten_bytes

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes of dead blocks: two more snapshots free them."""
        return self._dead.reclaimable_bytes

    @property
    def stored_bytes(self) -> tuple[int, int]:
        """Return (bytes of the blocks, bytes that their files take): less where they are packed."""
        sizes, packed = self._extents.sizes, self._files.packed
        content = sum(sizes.values())
        if not packed:
            return content, content
        spared = sum(sizes[no] - size for no, size in list(packed.items()) if no in sizes)
        return content, content - spared

    # --- packed blocks ----------------------------------------------------------------------

    def begin_packing(self, is_wanted: Callable[[], bool]) -> None:
        """Pack sealed blocks from here on, while `is_wanted` says so: at once those there are, and
        others when they are sealed or, after a change of mind, with the next snapshot."""
        if self._packing is not None:
            self._packing.is_wanted = is_wanted
            self._packing.poll()

    # --- snapshots --------------------------------------------------------------------------

    def save_snapshot(
        self,
        *,
        index: Index,
        term: Term,
        chain: int,
        state: Bytes,
        index_db: Bytes | None,
        tail: tuple[int, int],
        done: Callable[[], None],
        outline: Callable[[], bytes] | None = None,
    ) -> None:
        """Make the state at `index` durable: blocks first, then the snapshot, then `index.db` and
        the outline, if there are some. Functions are called on the block thread.

        `done` is called on the loop afterwards. Files of blocks that were dead before the previous
        snapshot go only now: both generations can be started from.
        """
        self.flush()
        removable, kept = self._dead.begin_snapshot(is_repeated=index == self._saved_index)
        self._saved_index = index
        tail = max(tail, self._extents.floor)
        jobs, files, disk, directory = self._jobs, self._files, self._disk, self.directory

        def job() -> None:
            jobs.check()
            try:
                files.sync()  # I2: what the snapshot's tail names is durable before it is
                made = state() if callable(state) else state
                snapshot = Snapshot(self.uid, index, term, chain, made, tail, kept)
                SnapshotFile.save(disk, directory, _NAME, snapshot)
                if index_db is not None:
                    blob = index_db() if callable(index_db) else index_db
                    write_index(disk, directory, self.uid, index, blob)
                if outline is not None:
                    write_outline(disk, directory, snapshot._replace(state=outline()))
            except OSError as err:
                jobs.failure = disk_error("saving a snapshot", directory, err)
                raise jobs.failure from err

        def saved(result: BaseException | None) -> None:
            if result is not None:
                jobs.fail(result)
            else:
                done()
                if self._packing is not None:
                    self._packing.poll()
                self._dead.remove(removable)  # I11: the record that makes them dead is durable

        jobs.submit(job, saved)

    def check_snapshot(self, index: Index) -> SnapshotCheck:
        """Check that the newest snapshot file is whole, and of `index` or later. Synchronous."""
        return SnapshotFile.check(self._disk, self.directory, _NAME, group=self.uid, index=index)

    # --- recovery ---------------------------------------------------------------------------------

    def load_snapshot(self, on_void: Callable[[str], object] = ignore) -> LoadedSnapshot | None:
        """Return the newest snapshot that verifies, or None if there never was one.

        Calls `on_void` for each newer one that does not verify. Raises CorruptionError if there are
        some and none verifies.
        """
        try:
            found = SnapshotFile.load(
                self._disk, self.directory, _NAME, group=self.uid, on_void=on_void
            )
            if found is None:
                return None
            self._dead.load(found.doomed)
            self._saved_index = found.index
            return LoadedSnapshot(
                found.index,
                found.term,
                found.chain,
                found.state,
                read_index(self._disk, self.directory, self.uid, found.index),
                found.tail,
            )
        except OSError as err:
            raise disk_error("loading a snapshot", self.directory, err) from err

    def lacking(self, blocks: Iterable[Block]) -> list[tuple[int, str]]:
        """Return blocks whose file is gone or ends before the last record, as (block_no, text).

        By the sizes of the files alone: their content is not read.
        """
        found: list[tuple[int, str]] = []
        for block in blocks:
            if block.end_offset <= HEADER_BYTES or not (block.live or not block.is_sealed):
                continue
            path = self._files.path(block.block_no)
            size = self._extents.sizes.get(block.block_no)
            if size is None:
                found.append((block.block_no, f"{path}: the file is missing"))
            elif size < block.end_offset:
                text = f"{path}: has {size} bytes, its records end at {block.end_offset}"
                found.append((block.block_no, text))
        return found

    def begin_outline(self, outline: Callable[[], bytes]) -> None:
        """Write the outline of a stream that has none, at index 0. Synchronous."""
        try:
            if not has_outline(self._disk, self.directory):
                made = Snapshot(self.uid, 0, 0, 0, outline())
                write_outline(self._disk, self.directory, made)
        except OSError as err:
            raise disk_error("writing a stream's outline", self.directory, err) from err

    def written_upto(self) -> Index:
        """Return the last log entry that the blocks show as applied; 0: they show none."""
        newest = self._extents.newest()
        try:
            return self._files.last_frame(newest) if newest else 0
        except OSError:
            return 0  # unreadable bytes show nothing; if they are needed, that is met later

    def reaches_beyond(self, tail: tuple[int, int]) -> bool:
        """Return True if blocks hold something after `tail` (block, offset)."""
        return self._extents.reaches_beyond(tail)

    def look_again(self) -> None:
        """Take the sizes of block files that were replaced since the store was opened."""
        self._extents.reload()

    def truncate_to(self, tail: tuple[int, int]) -> None:
        """Remove what was written after `tail`; replaying the log writes it again.

        Rewritten blocks stay: the machine knows which are of after the tail (`disown`). Raises
        CorruptionError if the blocks do not reach `tail`.
        """
        try:
            self._extents.truncate_to(tail)
        except OSError as err:
            raise disk_error("truncating blocks", self.directory, err) from err
        self._dead.count_doomed(self._extents.sizes)
        self._disk.crash_point("BLOCKS_TRUNCATED")

    def disown(self, known: Iterable[int]) -> None:
        """Remove block files that the loaded machine does not know.

        A block that is neither in `known` nor dead since the snapshot before is left over from a
        removal that was cut short: it goes with the dead. A rewritten one may also be of after the
        snapshot. It goes at once, like all that was written then: the log writes it again, and all
        it holds is in blocks that are there.
        """
        for block_no in sorted(self._extents.sizes.keys() - set(known)):
            size = self._extents.drop(block_no)
            if block_no >= REWRITTEN:
                self._remove_now(block_no)
            else:
                self._dead.doom(block_no, size)

    def replace_block(
        self, block_no: int, blob: bytes, done: Callable[[BaseException | None], None]
    ) -> None:
        """Put a whole sealed block in the place of its damaged or missing file, durably; then
        `done` with None, or with the DiskError: then the old file is as it was."""
        self.flush()
        if self._packing is not None:
            self._packing.forget(block_no)
        disk, directory = self._disk, self.directory

        def job() -> None:
            try:
                write_file(disk, directory, block_name(block_no), [blob], point="BLOCK_REPLACED")
            except OSError as err:
                raise disk_error("replacing a block", directory, err) from err

        def replaced(result: BaseException | None) -> None:
            if result is None:
                self._reader.forget(block_no)
                if block_no not in self._dead:
                    self._extents.sizes[block_no] = len(blob)
            done(result)

        self._jobs.submit(job, replaced)

    def _remove_now(self, block_no: int) -> None:
        try:
            self._files.remove(block_no)
        except OSError as err:
            raise disk_error("removing a block", self._files.path(block_no), err) from err

    # --- readers of one moment ----------------------------------------------------------------

    def hold(self) -> HeldBlocks:
        """Keep all block files as they are named now, for a reader of this very moment."""
        self._dead.hold()
        return HeldFiles(self._files, self._jobs, self.flush, self._dead.let_go)

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Write what waits and close the files. Nothing is synced: the log has it."""
        self.flush()
        if self._packing is not None:
            self._packing.end()
        jobs = self._jobs
        jobs.is_closed = True
        jobs.submit(self._files.close, ignore)
        if not jobs.is_inline:  # there nothing is in memory yet, and the memory is the loop's
            self._tail.clear()
            self._chunks.clear()

    def move_to_trash(self, trash_dir: str) -> None:
        """Move the directory of a closed store to `trash_dir/<uid>`, durably. Synchronous."""
        try:
            move_to_trash(self._disk, self.directory, trash_dir)
        except OSError as err:
            raise disk_error("moving a stream to trash", self.directory, err) from err
