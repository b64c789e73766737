"""The blocks of one stream: written in the background, read from memory or files.

The stream machine decides what goes where; this carries it out. Appends are in memory at once and
in their files later, without a sync of their own: the log holds them until a snapshot does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streamd.errors import CorruptionError, DiskError, StreamdError
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES, BlockFiles, Write
from streamd.store.blocks.block_verify import BlockRows, rows_of
from streamd.store.blocks.record_format import REWRITTEN, block_name
from streamd.store.blocks.snapshots import write_file
from streamd.store.blocks.tail_cache import ChunkCache, HotBudget, HotTail
from streamd.store.disk import Disk, Thread, disk_error, read_error
from streamd.types import Uid

APPEND, SEAL, DROP = 1, 2, 3  # the same as in machine.base: rooms do not import each other
FLUSH_BYTES = 1024 * 1024  # gathered before a write; less where many streams gather
BEHIND_BYTES = 2 * FLUSH_BYTES  # unwritten: more than one write in hand and one gathering
READ_BYTES = 256 * 1024  # read at once: about what one turn delivers


class Blocks:
    """The part of `StreamStore` that writes and reads blocks."""

    def __init__(
        self, disk: Disk, directory: str, uid: Uid, thread: Thread, budget: HotBudget
    ) -> None:
        self.uid = uid
        self.directory = directory
        self.failure: StreamdError | None = None
        self.on_error: Callable[[StreamdError], None] = lambda err: None
        self._disk = disk
        self._thread = thread
        self._files = BlockFiles(disk, directory, uid, budget.open_blocks)
        self._sizes = self._files.sizes()
        self._budget = budget
        self._tail = HotTail(budget)
        self._chunks = ChunkCache(budget.chunks)
        self._pending: list[Write] = []
        self._pending_bytes = 0
        self.unwritten_bytes = 0  # of what was given to `apply`: in memory, and in no file
        self._footers: dict[int, bytes] = {}  # of sealed blocks, until they are written
        self._rewritten: dict[int, bytes] = {}  # the records of rewritten ones, until then
        self._dead: list[int] = []  # since the newest snapshot
        self._unneeded: dict[int, int] = {}  # the bytes of those, and of the dead before it
        self.reclaimable_bytes = 0  # and all of them: two snapshots let them go
        # Where the blocks end at least: a footer counts, and nothing follows in a dead block.
        self._tail_floor = (0, 0)
        self._reads: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._damaged: dict[tuple[int, int], StreamdError] = {}
        self._is_closed = False

    # --- writing ----------------------------------------------------------------------------------

    def apply(self, ops: list[tuple[Any, ...]]) -> None:
        """Carry out block operations, in order. In memory at once, in the files later.

        Raises the first error of an earlier write: it is final (I10).
        """
        if self.failure is not None:
            raise self.failure
        pending = self._pending
        size = 0
        for op in ops:
            kind = op[0]
            if kind == APPEND:
                _, block_no, offset, blob = op
                if block_no < REWRITTEN:
                    self._tail.append(block_no, offset, blob)
                else:
                    self._rewritten[block_no] = bytes(blob)
                self._grow(block_no, offset, len(blob))
                pending.append((block_no, offset, blob, False))
                size += len(blob)
            elif kind == SEAL:
                _, block_no, offset, footer = op
                self._footers[block_no] = footer
                self._grow(block_no, offset, len(footer))
                if block_no < REWRITTEN:
                    self._tail_floor = max(self._tail_floor, (block_no, offset + len(footer)))
                pending.append((block_no, offset, footer, True))
                size += len(footer)
            else:
                assert kind == DROP, op
                self._drop(op[1])
        if pending:
            self._pending_bytes += size
            self.unwritten_bytes += size
            self._budget.gather(self, size)
        if self._pending_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what waits to the block thread."""
        if not self._pending:
            return
        writes, self._pending, size = self._pending, [], self._pending_bytes
        self._pending_bytes = 0
        files = self._files
        # Then the page cache is what takes long (docs/adr/0028), or the disk is the bottleneck.
        is_behind = self.unwritten_bytes > BEHIND_BYTES

        def job() -> list[Write]:
            if self.failure is not None:
                raise self.failure
            try:
                files.write(writes, past_cache=is_behind)
            except OSError as err:
                # Set here: a later job of this store must not build on a write that failed.
                self.failure = disk_error("writing blocks", self.directory, err)
                raise self.failure from err
            except CorruptionError as err:  # what was written before is gone
                self.failure = err
                raise
            return writes

        def wrote(result: Any) -> None:
            self._budget.dequeue(size)
            self.unwritten_bytes -= size
            self._wrote(result)

        self._budget.enqueue(self, size)
        self._submit(job, wrote)

    def _grow(self, block_no: int, offset: int, size: int) -> None:
        self._sizes[block_no] = max(self._sizes.get(block_no, 0), offset + size)

    def _drop(self, block_no: int) -> None:
        self._tail.drop(block_no)
        self._chunks.drop(block_no)
        self._footers.pop(block_no, None)
        self._rewritten.pop(block_no, None)
        self._dead.append(block_no)
        self._note_unneeded(block_no, self._sizes.pop(block_no, 0))
        if block_no < REWRITTEN:
            self._tail_floor = max(self._tail_floor, (block_no + 1, HEADER_BYTES))

    def _note_unneeded(self, block_no: int, size: int) -> None:
        self._unneeded[block_no] = size
        self.reclaimable_bytes += size

    def _wrote(self, result: Any) -> None:
        if isinstance(result, BaseException):
            self._fail(result)
            return
        last: Write | None = None
        for write in result:
            if write[3]:
                self._footers.pop(write[0], None)
                self._rewritten.pop(write[0], None)
            if write[0] < REWRITTEN:
                last = write
        if last is not None:
            block_no, offset, blob, _ = last
            self._tail.wrote(block_no, offset + len(blob))

    def replace_block(self, block_no: int, blob: bytes, done: Callable[[Any], None]) -> None:
        """Put a whole sealed block in the place of its damaged or missing file, durably; then
        `done` with None, or with the DiskError: then the old file is as it was."""
        self.flush()
        disk, directory = self._disk, self.directory

        def job() -> None:
            try:
                write_file(disk, directory, block_name(block_no), [blob], point="BLOCK_REPLACED")
            except OSError as err:
                raise disk_error("replacing a block", directory, err) from err

        def replaced(result: Any) -> None:
            if not isinstance(result, BaseException):
                self._chunks.drop(block_no)
                self._damaged = {k: v for k, v in self._damaged.items() if k[0] != block_no}
                if block_no not in self._unneeded:
                    self._sizes[block_no] = len(blob)
            done(result)

        self._submit(job, replaced)

    # --- reading ----------------------------------------------------------------------------------

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """Return (base, blob): bytes in memory that hold the whole record at `offset`.

        None: not in memory, `read_chunk` it. Raises CorruptionError or DiskError if that was
        tried and the record cannot be had.
        """
        found = self._tail.find(block_no, offset) or self._chunks.find(block_no, offset)
        if found is None and block_no in self._rewritten:
            return HEADER_BYTES, self._rewritten[block_no]
        if found is None and self._damaged:
            failure = self._damaged.get((block_no, offset))
            if failure is not None:
                raise failure
        return found

    def read_chunk(
        self, block_no: int, offset: int, min_bytes: int, done: Callable[[], None]
    ) -> None:
        """Read from `offset` on, at least the record there; then `done`, and ask `chunk` again.

        Every record read is verified. Reads of the same place share one.
        """
        key = (block_no, offset)
        waiting = self._reads.get(key)
        if waiting is not None:
            waiting.append(done)
            return
        self._reads[key] = [done]
        self._damaged.pop(key, None)
        size = max(min_bytes, READ_BYTES)
        files = self._files

        def job() -> bytes:
            try:
                return files.read(block_no, offset, size)
            except OSError as err:
                raise read_error("reading a block", files.path(block_no), err) from err

        def read(result: Any) -> None:
            if isinstance(result, StreamdError):
                self._damaged[key] = result
            elif isinstance(result, BaseException):
                refused = DiskError(f"{files.path(block_no)}: {result!r}")
                refused.is_passing = isinstance(result, MemoryError)
                self._damaged[key] = refused
            elif not self._is_closed:
                self._chunks.add(block_no, offset, result)
            for waiting in self._reads.pop(key):
                waiting()

        self._submit(job, read)

    def read_spans(
        self, block_no: int, spans: list[tuple[int, int]], done: Callable[[Any], None]
    ) -> None:
        """Read the records at `spans` of a sealed block, (offset, length) in ascending order, and
        verify each; then `done` with their bytes, one behind another, or with the StreamdError."""
        self.flush()  # the job comes after what waited to be written
        files = self._files

        def job() -> bytes:
            try:
                return files.read_spans(block_no, spans, READ_BYTES)
            except OSError as err:
                raise read_error("reading a block", files.path(block_no), err) from err

        self._submit(job, done)

    def load_footer(self, block_no: int) -> bytes:
        """Return the footer of a sealed block (machine.base.ColumnSource). Synchronous."""
        footer = self._footers.get(block_no)
        if footer is not None:
            return footer
        try:
            return self._files.read_footer(block_no)
        except OSError as err:
            raise read_error("reading a footer", self._files.path(block_no), err) from err

    def scan(self, block_no: int, end_offset: int = 0) -> Iterator[fmt.Record]:
        """Yield the records of a block in order, verified; for rebuilding an index.

        Reads up to `end_offset`, or up to the footer or the file's end if it is 0. Raises
        CorruptionError if a record before `end_offset` is damaged or missing.
        """
        try:
            blob = self._files.read_all(block_no, end_offset)
        except OSError as err:
            raise read_error("scanning a block", self._files.path(block_no), err) from err
        end = HEADER_BYTES
        for record in fmt.scan(blob[HEADER_BYTES:], HEADER_BYTES):
            if record.type == fmt.FOOTER:
                break
            end = record.offset + record.length
            yield record
        if end < end_offset:
            raise CorruptionError(
                f"{block_name(block_no)}: offset {end}: a record is damaged, the block goes on "
                f"to {end_offset}"
            )

    # --- looking for damage -----------------------------------------------------------------------

    def verify(self, block_no: int, *, end_offset: int, is_sealed: bool) -> BlockRows:
        """Read a whole block and verify each of its records and its footer. Synchronous.

        Raises CorruptionError or DiskError. What waits to be written is not there yet.
        """
        try:
            blob = self._files.read_all(block_no, 0 if is_sealed else end_offset)
        except OSError as err:
            raise read_error("verifying a block", self._files.path(block_no), err) from err
        rows = rows_of(blob, self.uid, block_no)
        if (rows.end_offset, rows.is_sealed) != (end_offset, is_sealed):
            raise CorruptionError(
                f"{self._files.path(block_no)}: its records end at {rows.end_offset}, "
                f"they should end at {end_offset}"
            )
        return rows

    def damaged_records(self, block_no: int, places: list[tuple[int, int, int]]) -> list[int]:
        """Which records at (offset, length, crc), by their number in the list, can't be read or
        are others. Synchronous. What waits to be written is not there yet."""
        try:
            return self._files.damaged_records(block_no, places)
        except OSError as err:
            raise read_error("reading a block", self._files.path(block_no), err) from err

    # --- jobs -------------------------------------------------------------------------------------

    def _submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._thread.is_current():  # recovery runs in a job of its own
            try:
                result = job()
            except StreamdError as err:
                result = err
            done(result)
        else:
            self._thread.submit(job, done)

    def _fail(self, err: BaseException) -> None:
        is_first = self.failure is None or err is self.failure
        if not isinstance(err, StreamdError):
            err = DiskError(f"{self.directory}: {err!r}")
        self.failure = self.failure or err
        if is_first:
            self.on_error(err)
