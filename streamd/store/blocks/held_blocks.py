"""`HeldBlocks`: the blocks of one stream at one moment, readable while the stream goes on.

Blocks are only appended to, and what is deleted stays in them, so their bytes up to the end at that
moment are the stream of that moment; all that has to be done is to keep those that die meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

from streamd.errors import CorruptionError, DiskError, StreamdError
from streamd.store.blocks.block import BlockFiles
from streamd.store.blocks.record_format import block_name
from streamd.store.blocks.stream_jobs import StreamJobs
from streamd.store.disk import read_error

HeldRead = Callable[[bytes | StreamdError], None]


class HeldBlocks(Protocol):
    """Reader of blocks that are kept for it until `close`."""

    def read(self, block_no: int, offset: int, size: int, done: HeldRead) -> None:
        """Call `done`, on the loop and perhaps at once, with the whole, verified records from
        `offset` on, about `size` bytes and one at least, or with the error."""

    def close(self) -> None:
        """Keep nothing any more. Called once."""


class HeldFiles:
    """Blocks in files, whose removal waits."""

    def __init__(
        self,
        files: BlockFiles,
        jobs: StreamJobs,
        flush: Callable[[], None],
        let_go: Callable[[], None],
    ) -> None:
        self._files = files
        self._jobs = jobs
        self._flush = flush
        self._let_go = let_go

    def read(self, block_no: int, offset: int, size: int, done: HeldRead) -> None:
        """See HeldBlocks."""
        self._flush()  # the job comes after the writes that waited
        files = self._files

        def job() -> bytes:
            try:
                return files.read(block_no, offset, size)
            except OSError as err:
                raise read_error("reading a block", files.path(block_no), err) from err

        def read(result: bytes | BaseException) -> None:
            if isinstance(result, bytes | StreamdError):
                done(result)
            else:
                done(DiskError(f"{files.path(block_no)}: {result!r}"))

        self._jobs.submit(job, read)

    def close(self) -> None:
        """See HeldBlocks."""
        self._let_go()


class HeldMemory:
    """Blocks of a memory stream: their pieces, which are shared with the stream."""

    def __init__(self, blocks: dict[int, tuple[list[int], list[bytes]]]) -> None:
        """`blocks`: offsets of the pieces and the pieces, by block."""
        self._blocks = blocks

    def read(self, block_no: int, offset: int, size: int, done: HeldRead) -> None:
        """See HeldBlocks. A piece holds whole records."""
        offsets, blobs = self._blocks.get(block_no, ([], []))
        at = bisect_right(offsets, offset) - 1
        if at < 0 or offset >= offsets[at] + len(blobs[at]):
            done(CorruptionError(f"{block_name(block_no)}: offset {offset}: no record there"))
            return
        pieces = [blobs[at][offset - offsets[at] :]]
        total = len(pieces[0])
        while total < size and at + 1 < len(offsets):
            at += 1
            pieces.append(blobs[at])
            total += len(blobs[at])
        done(b"".join(pieces))

    def close(self) -> None:
        """See HeldBlocks."""
        self._blocks = {}
