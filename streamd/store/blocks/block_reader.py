"""`BlockReader`: the blocks of one stream as others read them, from memory or from the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from streamd.errors import CorruptionError, DiskError, StreamdError
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES, BlockFiles
from streamd.store.blocks.block_verify import BlockRows, rows_of
from streamd.store.blocks.block_writer import BlockWriter
from streamd.store.blocks.record_format import block_name
from streamd.store.blocks.stream_jobs import StreamJobs
from streamd.store.blocks.tail_cache import ChunkCache, TailCache
from streamd.store.disk import read_error
from streamd.types import Uid

READ_BYTES = 256 * 1024  # read at once: about what one turn delivers


class BlockReader:
    """Reads of one stream. Every record read from a file is verified."""

    def __init__(
        self,
        uid: Uid,
        files: BlockFiles,
        jobs: StreamJobs,
        writer: BlockWriter,
        tail: TailCache,
        chunks: ChunkCache,
    ) -> None:
        self._uid = uid
        self._files = files
        self._jobs = jobs
        self._writer = writer
        self._tail = tail
        self._chunks = chunks
        self._rewritten = writer.rewritten
        self._reads: dict[tuple[int, int], list[Callable[[], None]]] = {}  # under way, by place
        self._damaged: dict[tuple[int, int], StreamdError] = {}  # places read in vain

    # --- records ------------------------------------------------------------------------------

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

        Reads of the same place share one.
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

        def read(result: bytes | BaseException) -> None:
            if isinstance(result, StreamdError):
                self._damaged[key] = result
            elif isinstance(result, BaseException):
                refused = DiskError(f"{files.path(block_no)}: {result!r}")
                refused.is_passing = isinstance(result, MemoryError)
                self._damaged[key] = refused
            elif not self._jobs.is_closed:
                self._chunks.add(block_no, offset, result)
            for waiting in self._reads.pop(key):
                waiting()

        self._jobs.submit(job, read)

    def read_spans(
        self, block_no: int, spans: list[tuple[int, int]], done: Callable[[Any], None]
    ) -> None:
        """Read the records at `spans` of a sealed block, (offset, length) in ascending order, and
        verify each; then `done` with their bytes, one behind another, or with the StreamdError."""
        self._writer.flush()  # the job comes after the writes that waited
        files = self._files

        def job() -> bytes:
            try:
                return files.read_spans(block_no, spans, READ_BYTES)
            except OSError as err:
                raise read_error("reading a block", files.path(block_no), err) from err

        self._jobs.submit(job, done)

    def forget(self, block_no: int) -> None:
        """Forget what was read of a block, in vain or not: its file was replaced."""
        self._chunks.drop(block_no)
        self._damaged = {k: v for k, v in self._damaged.items() if k[0] != block_no}

    # --- whole blocks, synchronously ----------------------------------------------------------

    def load_footer(self, block_no: int) -> bytes:
        """Return the footer of a sealed block (machine.base.ColumnSource)."""
        footer = self._writer.footers.get(block_no)
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

    def verify(self, block_no: int, *, end_offset: int, is_sealed: bool) -> BlockRows:
        """Read a whole block and verify each of its records and its footer.

        Raises CorruptionError or DiskError. Gathered writes are not there yet.
        """
        try:
            blob = self._files.read_all(block_no, 0 if is_sealed else end_offset)
        except OSError as err:
            raise read_error("verifying a block", self._files.path(block_no), err) from err
        rows = rows_of(blob, self._uid, block_no)
        if (rows.end_offset, rows.is_sealed) != (end_offset, is_sealed):
            raise CorruptionError(
                f"{self._files.path(block_no)}: its records end at {rows.end_offset}, "
                f"they should end at {end_offset}"
            )
        return rows

    def damaged_records(self, block_no: int, places: list[tuple[int, int, int]]) -> list[int]:
        """Return the positions in `places`, (offset, length, crc) each, of records that can't be
        read or are others. Gathered writes are not there yet."""
        try:
            return self._files.damaged_records(block_no, places)
        except OSError as err:
            raise read_error("reading a block", self._files.path(block_no), err) from err
