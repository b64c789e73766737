"""`BlockPacking`: compresses the sealed blocks of one stream, one after the other.

A packed block has the same content, byte for byte; only what it takes on disk is less. So nothing
else knows of it: not the machine, not digests, not peers. The plain file stays until the packed one
is complete and synced, then a rename takes its place (I11). Steps of a block are jobs of their own,
so that reads come in between.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Mapping

from streamd.callbacks import ignore
from streamd.errors import StreamdError
from streamd.store.blocks.block import BlockExtents, BlockFiles
from streamd.store.blocks.record_format import REWRITTEN
from streamd.store.blocks.snapshots import TMP_SUFFIX
from streamd.store.blocks.stream_jobs import StreamJobs
from streamd.store.disk import disk_error
from streamd.store.frames.framed_disk import FramedDisk, PackResult

Steps = Generator[PackResult | None, None, None]


class BlockPacking:
    """Packing of one stream's blocks. Used on the event loop; its jobs run on the block thread.

    An error gives up the block at hand, which stays as it is: nothing depends on what was written.
    Only once the packed file has its name is an error one of the stream's.
    """

    def __init__(
        self,
        framed: FramedDisk,
        files: BlockFiles,
        extents: BlockExtents,
        jobs: StreamJobs,
        unwritten: Mapping[int, object],
    ) -> None:
        self.is_wanted: Callable[[], bool] = _never
        self._framed = framed
        self._files = files
        self._extents = extents
        self._jobs = jobs
        self._unwritten = unwritten  # sealed blocks that are not in their files yet
        self._waiting: deque[int] = deque()
        self._block_no = 0  # at work; 0: none, or given up
        self._is_busy = False
        self._tried: set[int] = set()  # given up for an error: not again before the next start

    def poll(self) -> None:
        """Pack every sealed block that is not yet, if that is wanted."""
        if not self.is_wanted() or self._jobs.failure is not None:
            return
        packed = self._files.packed
        newest = self._extents.newest()
        known = set(self._waiting) | {self._block_no} | self._tried
        for block_no in sorted(self._extents.sizes):
            is_sealed = block_no < newest or block_no >= REWRITTEN
            is_open = not is_sealed or block_no in self._unwritten
            if not is_open and block_no not in packed and block_no not in known:
                self._waiting.append(block_no)
        self._begin_next()

    def end(self) -> None:
        """Pack nothing any more: the store is being closed."""
        self.is_wanted = _never
        self._waiting.clear()

    def sealed(self, block_no: int) -> None:
        """Pack a block that is complete in its file, if that is wanted."""
        if self.is_wanted():
            self._waiting.append(block_no)
            self._begin_next()

    def forget(self, block_no: int) -> None:
        """Give up a block that died or whose file is replaced."""
        if block_no == self._block_no:
            self._block_no = 0
        elif block_no in self._waiting:
            self._waiting.remove(block_no)
        self._files.packed.pop(block_no, None)

    def _begin_next(self) -> None:
        jobs = self._jobs
        while not self._is_busy and self._waiting and not jobs.is_closed:
            block_no = self._waiting.popleft()
            if block_no in self._extents.sizes:  # else it died
                self._is_busy = True
                self._block_no = block_no
                path = self._files.path(block_no)
                steps = self._framed.pack(path, path + TMP_SUFFIX)
                self._step(block_no, steps, self._framed.damaged_frames)

    def _step(self, block_no: int, steps: Steps, damaged: int) -> None:
        framed = self._framed

        def job() -> PackResult | None:
            result = next(steps)
            if framed.damaged_frames != damaged:
                raise OSError("a block to be packed is damaged")  # it stays, to be repaired
            return result

        def stepped(result: PackResult | BaseException | None) -> None:
            if isinstance(result, BaseException) or self._block_no != block_no:
                if isinstance(result, BaseException):
                    self._tried.add(block_no)
                self._give_up(block_no, steps)
            elif result is None:
                self._step(block_no, steps, damaged)
            else:
                self._put_in_place(block_no, result)

        if self._jobs.is_closed:
            self._jobs.submit(steps.close, ignore)  # the next start removes what is half written
        else:
            self._jobs.submit(job, stepped)

    def _put_in_place(self, block_no: int, packed: PackResult) -> None:
        jobs, framed = self._jobs, self._framed
        path = self._files.path(block_no)

        def job() -> None:
            try:
                framed.crash_point("BLOCK_PACKED_TMP_SYNCED")
                # On disk now: the plain block, and a whole packed one beside it.
                framed.replace(path + TMP_SUFFIX, path)
                framed.crash_point("BLOCK_PACKED_RENAMED")
                framed.sync_dir(os.path.dirname(path))
                framed.crash_point("BLOCK_PACKED_DIR_SYNCED")
            except OSError as err:
                jobs.failure = disk_error("packing a block", path, err)
                raise jobs.failure from err

        def placed(result: BaseException | None) -> None:
            if result is not None:
                jobs.fail(result)
                return
            if self._block_no == block_no:  # else it died, or its file is replaced by now
                self._files.packed[block_no] = packed.stored_bytes
            self._end()

        jobs.submit(job, placed)

    def _give_up(self, block_no: int, steps: Steps) -> None:
        tmp = self._files.path(block_no) + TMP_SUFFIX
        framed = self._framed

        def job() -> None:
            steps.close()  # it closes its files
            if framed.exists(tmp):
                framed.unlink(tmp)

        def removed(result: BaseException | None) -> None:
            if result is None or isinstance(result, OSError | StreamdError):
                self._end()  # what is left of it, the next start removes

        self._jobs.submit(job, removed)

    def _end(self) -> None:
        self._is_busy = False
        self._block_no = 0
        self._begin_next()


def _never() -> bool:
    return False
