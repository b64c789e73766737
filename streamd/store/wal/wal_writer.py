"""Who writes the log: what waits becomes a batch, its sync, and word of it for the event loop.

That is the loop itself, when its round is over, or, if the disk is slow, the log thread; while a
sync runs, the next batch gathers. No timer, no window.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from streamd.errors import DiskError
from streamd.store.disk import Thread, disk_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.checkpoint import Checkpoint
from streamd.store.wal.segment import CurrentSegment
from streamd.store.wal.segment_pool import Spares
from streamd.store.wal.wal_recovery import segment_name
from streamd.store.wal.write_batch import Append, Batch
from streamd.store.wal.write_pace import BatchSize, Pace
from streamd.types import Index, Uid

WITNESS_IDLE_S = 1.0  # after so long without an append the last one gets its witness
LATE_HINTS_MAX = 4096  # with one witness: of so many groups it says how far they are committed


class Writer:
    """Writes appends in order. `add` and `free` are for the event loop, and wait for nothing.

    `complete` gets each batch once it is safe, or what went wrong, on the loop. After the first
    failed write or sync, `failure`, nothing is written any more (I10).
    """

    def __init__(
        self,
        thread: Thread,
        directory: str,
        segment: CurrentSegment,
        spares: Spares,
        checkpoint: Checkpoint,
        *,
        sync_s: float,
        complete: Callable[[Batch | BaseException | None], None],
        commit_of: Callable[[Uid], Index],
    ) -> None:
        self.failure: DiskError | None = None
        self.is_segment_wanted = False  # the next batch, be it empty, goes to a new one
        self._thread = thread
        self._directory = directory
        self._sync_s = sync_s  # 0: each batch is synced before it is safe
        self._complete = complete
        self._commit_of = commit_of
        self._pace = Pace()
        self._batch_size = BatchSize()
        # Between the two: appended by the loop, taken by the thread.
        self._waiting: deque[Append] = deque()
        self._is_held = False
        self._is_scheduled = False
        # Who writes': the log thread's, or the loop's while the thread has nothing to do.
        self._segment = segment
        self._spares = spares
        self._checkpoint = checkpoint
        self._is_sync_due = False
        self._is_witness_due = False
        self._idle_batch = 0  # the next batch's number when the idle timer last looked
        self._witness_batch = 0  # that has nothing to lose; a witness

    # --- on the event loop ------------------------------------------------------------------

    def add(self, append: Append) -> None:
        """Have `append` written after all that came before."""
        self._waiting.append(append)
        self._look()

    def hold(self) -> None:
        """Begin no batch until `resume`."""
        self._is_held = True

    def resume(self) -> None:
        """Have written what waits."""
        self._is_held = False
        self._look()

    def free(self, no: int, *, fd: int) -> None:
        """Take segment `no`, which nobody reads any more, out of use."""
        self._thread.submit(lambda: self._free(no, fd=fd), None)

    # --- on the log thread, or on the loop instead ---------------------------------------------

    def close(self) -> bool:
        """Write what waits, then an empty batch: its header says that all before is durable.

        False: it failed or was closed before.
        """
        segment = self._segment
        if self.failure is not None or segment.fd < 0:
            return False
        try:
            while self._waiting:
                self._write_batch()
            self._write_hints([])
            segment.sync()
            if segment.position + wf.ALIGN <= segment.capacity:
                segment.put([b""], [], size=wf.BATCH_HEADER_BYTES)
                segment.sync()
        except Exception as err:  # noqa: BLE001 - as `_write`
            self._fail("closing the log", err)
        return True

    def _write(self) -> Batch | None:
        """Write and sync what waits, as one batch; more than a batch waits for the next turn."""
        if self.failure is not None:
            return None
        batch = None
        if not self._is_held:
            try:
                batch = self._write_batch()
            except Exception as err:  # noqa: BLE001 - what it took is not in the log, be it for want
                # of memory: what comes after it must not get there either
                self._fail("writing the log", err)
        if self._waiting and not self._is_held:
            self._schedule()
        else:
            self._is_scheduled = False
            self._look()  # something may have come, or `resume`, between the lines above
        return batch

    def _look(self) -> None:
        """Have what waits written, unless that is about to be done, or must wait."""
        if self._waiting and not self._is_held and not self._is_scheduled:
            self._is_scheduled = True
            self._schedule()

    def _schedule(self) -> None:
        """Have `_write` run: by the event loop while the disk is quick, else by the thread."""
        if self._pace.is_quick(time.monotonic()):
            self._thread.submit_soon(self._write, self._complete)
        else:
            self._thread.submit(self._write, self._complete)

    def _write_batch(self) -> Batch | None:
        if not self._waiting:
            return None
        segment = self._segment
        batch = Batch(self._waiting, self._batch_size.bytes_max)
        size = batch.size
        if self.is_segment_wanted:
            self.is_segment_wanted = False
            segment.rotate(size)
        if not batch.heads:  # only a clean close writes an empty batch
            batch.segment_no, batch.fd = segment.no, segment.fd
            return batch
        if segment.position + wf.padded(size) > segment.capacity:
            segment.rotate(size)
        batch.start = segment.position
        began = time.monotonic()
        segment.put(batch.buffers, batch.heads, size=size)
        # Only now: a rotation above must not repeat what this batch was still to say.
        self._checkpoint.note(batch.taken)
        if self._sync_s:
            self._sync_later()
        else:
            segment.sync()
        ended = time.monotonic()
        self._batch_size.note(size, ended - began)
        if not self._thread.is_current():
            self._pace.note(began, ended)
        if not self._is_witness_due:
            self._witness_later()
        batch.batch_no = segment.next_batch - 1
        batch.segment_no, batch.fd = segment.no, segment.fd
        batch.buffers, batch.heads, batch.taken = [], [], []  # the loop needs none of them
        self._spares.note_batch(size, is_next_near=segment.position * 16 > segment.capacity)
        return batch

    def _sync_later(self) -> None:
        if not self._is_sync_due:
            self._is_sync_due = True
            self._thread.submit_later(self._sync_s, self._sync_due)

    def _sync_due(self) -> None:
        self._is_sync_due = False
        segment = self._segment
        if self.failure is not None or segment.durable_batch == segment.next_batch - 1:
            return
        try:
            segment.sync()
        except OSError as err:
            self._report("syncing the log", err)

    def _witness_later(self) -> None:
        self._is_witness_due = True
        self._thread.submit_later(max(WITNESS_IDLE_S, self._sync_s), self._witness_due)

    def _witness_due(self) -> None:
        """If nothing was appended for a while, write a batch that says the last one was durable.

        Without it, rot of the last batch would look like a torn one for as long as it is the last.
        """
        self._is_witness_due = False
        segment = self._segment
        next_batch = segment.next_batch
        if self.failure is not None or segment.fd < 0 or next_batch == self._witness_batch + 1:
            return
        is_idle = self._idle_batch == next_batch == segment.durable_batch + 1
        self._idle_batch = next_batch
        if not is_idle:
            self._witness_later()
            return
        if segment.position + wf.ALIGN > segment.capacity:
            return  # the next append begins a new segment, which says it too
        try:
            self._write_hints([wf.encode_record(wf.WITNESS, 0, term=0, index=0)])
            segment.sync()
        except OSError as err:
            self._report("writing the log", err)
            return
        self._witness_batch = segment.next_batch - 1

    def _write_hints(self, records: list[bytes]) -> None:
        """Put a batch of `records`, which have room, and of what the last entries of groups could
        not say yet: that they are committed. Not synced."""
        segment = self._segment
        if not self._waiting:
            room = segment.capacity - segment.position - 2 * wf.ALIGN  # an empty batch follows
            count = min(max(0, room // wf.RECORD_HEADER_BYTES - 4), LATE_HINTS_MAX)
            records = records + self._checkpoint.late_hints(self._commit_of, count_max=count)
        if records:
            size = wf.BATCH_HEADER_BYTES + sum(map(len, records))
            segment.put([b"", *records], records, size=size)

    def _free(self, no: int, *, fd: int) -> None:
        segment = self._segment
        if self.failure is not None:
            return
        try:
            if segment.durable_batch != segment.next_batch - 1:
                segment.sync()  # the records that released it (I11)
            self._spares.recycle(no, fd=fd)
        except OSError as err:
            path = os.path.join(self._directory, segment_name(no))
            self._report("freeing a log segment", err, path)

    def _fail(self, what: str, err: Exception) -> NoReturn:
        # Final: after a failed sync nobody knows what the kernel kept (I10).
        if isinstance(err, OSError):
            self.failure = disk_error(what, self._directory, err)
        else:
            self.failure = DiskError(f"{self._directory}: {what}: {err!r}")
        raise self.failure from err

    def _report(self, what: str, err: OSError, path: str = "") -> None:
        """`_fail` in a job of which nobody hears: another one tells."""
        failure = self.failure = disk_error(what, path or self._directory, err)

        def fail() -> NoReturn:
            raise failure

        self._thread.submit(fail, self._complete)
