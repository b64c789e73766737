"""`StreamStore`: the blocks of one stream, with the snapshots that a start begins from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from streamd.errors import CorruptionError, StreamdError
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.block_set import Blocks
from streamd.store.blocks.file_trash import move_to_trash
from streamd.store.blocks.index_db import read_index, write_index
from streamd.store.blocks.outline import has_outline, write_outline
from streamd.store.blocks.record_format import REWRITTEN
from streamd.store.blocks.snapshots import Snapshot, SnapshotCheck, SnapshotFile
from streamd.store.blocks.tail_cache import HotBudget
from streamd.store.disk import Disk, Thread, disk_error
from streamd.store.file_names import remove_unfinished
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


class StreamStore(Blocks):
    """One stream's directory, `streams/<uid>/`. Used on the event loop, except that `open`,
    recovery, `close` of what it can't use and `move_to_trash` may also be called in a job of the
    block thread."""

    def __init__(
        self, disk: Disk, directory: str, uid: Uid, thread: Thread, budget: HotBudget
    ) -> None:
        super().__init__(disk, directory, uid, thread, budget)
        self._saved_index: Index = 0  # of the newest snapshot
        self._doomed: list[int] = []  # dead before it: removed when the next one is durable

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        uid: Uid,
        thread: Thread,
        *,
        budget: HotBudget | None = None,
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
            store = cls(disk, directory, uid, thread, budget or HotBudget())
        except OSError as err:
            raise disk_error("opening a stream", directory, err) from err
        if on_error is not None:
            store.on_error = on_error
        return store

    # --- snapshots --------------------------------------------------------------------------------

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

        `done` runs on the loop when it is. Files of blocks that were dead before the previous
        snapshot go only now: both generations can be started from.
        """
        self.flush()
        if index == self._saved_index:
            # In the place of one that can't be read: the one before it still needs its blocks.
            doomed = []
            self._doomed, self._dead = self._doomed + self._dead, []
        else:
            doomed, self._doomed, self._dead = self._doomed, self._dead, []
        self._saved_index = index
        for block_no in doomed:
            self.reclaimable_bytes -= self._unneeded.pop(block_no, 0)
        kept = tuple(self._doomed)
        tail = max(tail, self._tail_floor)
        files, disk, directory = self._files, self._disk, self.directory

        def job() -> None:
            if self.failure is not None:
                raise self.failure
            try:
                files.sync()  # I2: what the snapshot's tail names is durable before it is
                made = state() if callable(state) else state
                snapshot = Snapshot(self.uid, index, term, chain, made, tail, kept)
                SnapshotFile.save(disk, directory, _NAME, snapshot)
                if index_db is not None:
                    blob = index_db() if callable(index_db) else index_db
                    write_index(disk, directory, self.uid, index, blob)
                if outline is not None:
                    made = outline()
                    write_outline(
                        disk, directory, Snapshot(self.uid, index, term, chain, made, tail, kept)
                    )
            except OSError as err:
                self.failure = disk_error("saving a snapshot", directory, err)
                raise self.failure from err

        def saved(result: Any) -> None:
            if isinstance(result, BaseException):
                self._fail(result)
            else:
                done()
                self._remove(doomed)  # I11: the record that makes them dead is durable twice

        self._submit(job, saved)

    def _remove(self, block_nos: list[int]) -> None:
        """Remove files one by one: what others read and write comes in between. What is left when
        the store is closed goes after the next start (`disown`)."""
        if not block_nos or self._is_closed or self.failure is not None:
            return
        block_no = block_nos.pop()
        files, disk = self._files, self._disk

        def job() -> None:
            try:
                files.remove(block_no)
            except OSError as err:
                self.failure = disk_error("removing a block", self.directory, err)
                raise self.failure from err
            disk.crash_point("SNAPSHOT_BLOCK_REMOVED")

        def removed(result: Any) -> None:
            if isinstance(result, BaseException):
                self._fail(result)
            else:
                self._remove(block_nos)

        self._submit(job, removed)

    def check_snapshot(self, index: Index) -> SnapshotCheck:
        """Is the newest snapshot file whole, and of `index` or later? Synchronous."""
        return SnapshotFile.check(self._disk, self.directory, _NAME, group=self.uid, index=index)

    # --- recovery ---------------------------------------------------------------------------------

    def load_snapshot(
        self, on_void: Callable[[str], object] = lambda fault: None
    ) -> LoadedSnapshot | None:
        """Return the newest snapshot that verifies, or None if there never was one. `on_void` is
        told of each newer one that does not.

        Raises CorruptionError if there are some and none verifies.
        """
        try:
            found = SnapshotFile.load(
                self._disk, self.directory, _NAME, group=self.uid, on_void=on_void
            )
            if found is None:
                return None
            self._dead, self._doomed = [], list(found.doomed)
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
        """Blocks of which the file is gone, or ends before the last record, as (block_no, what is
        wrong). By their sizes as they were found: what is in them, reading tells."""
        found: list[tuple[int, str]] = []
        for block in blocks:
            if block.end_offset <= HEADER_BYTES or not (block.live or not block.is_sealed):
                continue
            size, path = self._sizes.get(block.block_no), self._files.path(block.block_no)
            if size is None:
                found.append((block.block_no, f"{path}: the file is missing"))
            elif size < block.end_offset:
                text = f"{path}: has {size} bytes, its records end at {block.end_offset}"
                found.append((block.block_no, text))
        return found

    def begin_outline(self, outline: Callable[[], bytes]) -> None:
        """Have an outline of a stream that has none, at index 0. Synchronous."""
        try:
            if not has_outline(self._disk, self.directory):
                made = Snapshot(self.uid, 0, 0, 0, outline())
                write_outline(self._disk, self.directory, made)
        except OSError as err:
            raise disk_error("writing a stream's outline", self.directory, err) from err

    def written_upto(self) -> Index:
        """The last log entry of which the blocks show that it was applied; 0: they show none."""
        newest = max((block_no for block_no in self._sizes if block_no < REWRITTEN), default=0)
        try:
            return self._files.last_frame(newest) if newest else 0
        except OSError:
            return 0  # what can't be read shows nothing; if it is needed, that is met later

    def reaches_beyond(self, tail: tuple[int, int]) -> bool:
        """True if blocks hold something after `tail` (block, offset)."""
        block_no, offset = max(tail, (1, HEADER_BYTES))
        return any(
            found > block_no or (found == block_no and size > offset)
            for found, size in self._sizes.items()
            if found < REWRITTEN and size > HEADER_BYTES
        )

    def look_again(self) -> None:
        """Somebody else replaced block files since this was opened."""
        self._sizes = self._files.sizes()

    def truncate_to(self, tail: tuple[int, int]) -> None:
        """Remove what was written after `tail`; replaying the log writes it again. Whether a
        rewritten block is of after it, the machine knows: see `disown`.

        Raises CorruptionError if the blocks do not reach `tail`.
        """
        block_no, offset = self._tail_floor = tail
        try:
            # A block without a record before the tail goes whole: its header may be torn.
            is_whole = offset <= HEADER_BYTES
            for found in sorted(self._sizes):
                if found >= REWRITTEN and block_no:
                    continue
                if found > block_no or (found == block_no and is_whole):
                    self._files.remove(found)
            if not is_whole:
                if block_no not in self._sizes:
                    raise CorruptionError(f"{self._files.path(block_no)}: the file is missing")
                self._files.truncate(block_no, offset)
            self._sizes = self._files.sizes()
        except OSError as err:
            raise disk_error("truncating blocks", self.directory, err) from err
        for doomed in self._doomed:
            self._note_unneeded(doomed, self._sizes.pop(doomed, 0))
        self._disk.crash_point("BLOCKS_TRUNCATED")

    def disown(self, known: Iterable[int]) -> None:
        """Blocks that are neither in `known`, those of the machine as loaded, nor dead since the
        snapshot before, are left over from a removal that was cut short: they go with the dead.

        A rewritten one may also be of after the snapshot. It goes at once, like all that was
        written then: the log writes it again, and all it holds is in blocks that are there.
        """
        for block_no in sorted(self._sizes.keys() - set(known)):
            size = self._sizes.pop(block_no)
            if block_no >= REWRITTEN:
                self._remove_now(block_no)
            else:
                self._doomed.append(block_no)
                self._note_unneeded(block_no, size)

    def _remove_now(self, block_no: int) -> None:
        try:
            self._files.remove(block_no)
        except OSError as err:
            raise disk_error("removing a block", self._files.path(block_no), err) from err

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what waits and let go of the files. Nothing is synced: the log has it."""
        self.flush()
        self._is_closed = True

        def job() -> None:
            self._files.close()

        self._submit(job, lambda result: None)
        if not self._thread.is_current():  # there nothing is in memory yet, and the loop's it is
            self._tail.clear()
            self._chunks.clear()

    def move_to_trash(self, trash_dir: str) -> None:
        """Move the directory of a closed store to `trash_dir/<uid>`, durably. Synchronous."""
        try:
            move_to_trash(self._disk, self.directory, trash_dir)
        except OSError as err:
            raise disk_error("moving a stream to trash", self.directory, err) from err
