"""`BlockWriter`: a machine's block operations, in memory at once and in the files later.

The stream machine decides what goes where. Appended bytes are written in the background, without a
sync of their own: the log holds them until a snapshot does.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd.callbacks import ignore
from streamd.errors import CorruptionError
from streamd.store.blocks.block import HEADER_BYTES, BlockExtents, BlockFiles, Write
from streamd.store.blocks.dead_blocks import DeadBlocks
from streamd.store.blocks.record_format import REWRITTEN
from streamd.store.blocks.stream_jobs import StreamJobs
from streamd.store.blocks.tail_cache import CacheBudget, ChunkCache, TailCache
from streamd.store.disk import disk_error
from streamd.types import BlockOp

APPEND, SEAL, DROP = 1, 2, 3  # the same as in machine.base: rooms do not import each other
FLUSH_BYTES = 1024 * 1024  # gathered before a write; less where many streams gather


class BlockWriter:
    """Writes of one stream: gathered on the event loop, carried out on the block thread."""

    def __init__(
        self,
        files: BlockFiles,
        jobs: StreamJobs,
        extents: BlockExtents,
        dead: DeadBlocks,
        tail: TailCache,
        chunks: ChunkCache,
        budget: CacheBudget,
    ) -> None:
        self.unwritten_bytes = 0  # of what was given to `apply`: in memory, and in no file
        self.footers: dict[int, bytes] = {}  # of sealed blocks, until they are written
        self.rewritten: dict[int, bytes] = {}  # the records of rewritten blocks, until then
        self._files = files
        self._jobs = jobs
        self._extents = extents
        self._dead = dead
        self._tail = tail
        self._chunks = chunks
        self._budget = budget
        self.on_sealed: Callable[[int], None] = ignore  # of a block that is complete in its file
        self.on_dropped: Callable[[int], None] = ignore
        self._gathered: list[Write] = []
        self._gathered_bytes = 0

    def apply(self, ops: list[BlockOp]) -> None:
        """Carry out block operations, in order. In memory at once, in the files later.

        Raises the first error of an earlier write: it is final (I10).
        """
        if self._jobs.failure is not None:
            raise self._jobs.failure
        gathered = self._gathered
        extents = self._extents
        size = 0
        for op in ops:
            if len(op) == 2:
                assert op[0] == DROP, op
                self._drop(op[1])
                continue
            kind, block_no, offset, blob = op
            if kind == APPEND:
                if block_no < REWRITTEN:
                    self._tail.append(block_no, offset, blob)
                else:
                    self.rewritten[block_no] = bytes(blob)
                extents.grow(block_no, offset + len(blob))
                gathered.append((block_no, offset, blob, False))
                size += len(blob)
            else:
                assert kind == SEAL, op
                footer = self.footers[block_no] = bytes(blob)
                extents.grow(block_no, offset + len(footer))
                if block_no < REWRITTEN:
                    extents.raise_floor(block_no, offset + len(footer))
                gathered.append((block_no, offset, footer, True))
                size += len(footer)
        if gathered:
            self._gathered_bytes += size
            self.unwritten_bytes += size
            self._budget.gather(self, size)
        if self._gathered_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand the gathered writes to the block thread."""
        if not self._gathered:
            return
        writes, self._gathered, size = self._gathered, [], self._gathered_bytes
        self._gathered_bytes = 0
        files, jobs = self._files, self._jobs

        def job() -> None:
            jobs.check()
            try:
                files.write(writes)
            except OSError as err:
                jobs.failure = disk_error("writing blocks", files.directory, err)
                raise jobs.failure from err
            except CorruptionError as err:  # bytes that were written before are gone
                jobs.failure = err
                raise

        def wrote(result: BaseException | None) -> None:
            self._budget.dequeue(size)
            self.unwritten_bytes -= size
            if result is not None:
                jobs.fail(result)
            else:
                self._wrote(writes)

        self._budget.enqueue(self, size)
        jobs.submit(job, wrote)

    def _wrote(self, writes: list[Write]) -> None:
        """Let go of what is in the files now."""
        last: Write | None = None
        for write in writes:
            if write[3]:
                self.footers.pop(write[0], None)
                self.rewritten.pop(write[0], None)
                if write[0] not in self._dead:
                    self.on_sealed(write[0])
            if write[0] < REWRITTEN:
                last = write
        if last is not None:
            block_no, offset, blob, _ = last
            self._tail.wrote(block_no, offset + len(blob))

    def _drop(self, block_no: int) -> None:
        self._tail.drop(block_no)
        self._chunks.drop(block_no)
        self.footers.pop(block_no, None)
        self.rewritten.pop(block_no, None)
        self.on_dropped(block_no)
        self._dead.add(block_no, self._extents.drop(block_no))
        if block_no < REWRITTEN:
            self._extents.raise_floor(block_no + 1, HEADER_BYTES)
