"""`Writer`: waiting appends become one batch, one write and one sync, then a report to the loop.

The event loop itself writes when its round is over, or, if the disk is slow, the log thread does
(docs/adr/0021). While a sync runs, the next batch gathers: there is no timer and no window.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from streamd.errors import DiskError
from streamd.latency_histogram import LatencyHistogram
from streamd.store.disk import Thread, disk_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.checkpoint import Checkpoint
from streamd.store.wal.segment import CurrentSegment
from streamd.store.wal.segment_files import SegmentFiles
from streamd.store.wal.wal_format import Hints, Lazy, WalWrite, segment_name
from streamd.types import Buffer, HardState, Index, Uid

WITNESS_IDLE_S = 1.0  # after so long without an append the last one gets its witness
LATE_HINTS_MAX = 4096  # with one witness: of so many groups it says how far they are committed

# Pace.
QUICK_S = 0.001  # a write and its sync may take that long, on average
WEIGHT = 1 / 32  # of the latest write in the average: a slow one now and then does no harm
HICCUP_S = 0.004  # longer ones weigh no more than that: they say little of the next
HUNG_S = 0.1  # but one write that holds the loop that long starts a rest at once
TRIAL_S = 0.0008  # the average after a rest: a few slow writes begin the next rest
REST_S = 0.05  # the thread writes that long; then the loop tries again
REST_MAX_S = 5.0
TRIAL_WRITES = 64  # a rest that begins sooner after the last one is twice as long

# Batch size.
BATCH_BYTES_MIN = 1024 * 1024  # one write may always have so many
BATCH_BYTES_MAX = 8 * 1024 * 1024
BATCH_S = 0.008  # the next appends wait so long, and not much longer

Append: TypeAlias = tuple[list[WalWrite], Callable[[], None] | None, list[Lazy], Hints]
"""Waiting append: (writes, done, lazy records, which come first, hints)."""

Placed: TypeAlias = tuple[Uid, HardState | None, Index, Index, "array[int]", "array[int]", Index]

RESET_MARK = -1  # as the first index of what was placed: here the group was reset
DESTROY_MARK = -2  # or destroyed
_MARKS = {wf.RESET: RESET_MARK, wf.DESTROY: DESTROY_MARK}
_NO_PLACES = array("Q")
_NO_LENGTHS = array("I")


class Writer:
    """The one writer of a log: writes appends in order and reports each batch once it is safe.

    `add` and `free` are called on the event loop and wait for nothing. `complete` is called on the
    loop with each batch that is safe, or with the error. After the first failed write or sync,
    `failure`, nothing is written any more (I10).
    """

    def __init__(
        self,
        thread: Thread,
        directory: str,
        segment: CurrentSegment,
        files: SegmentFiles,
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
        self.times = LatencyHistogram()  # of writes with their sync
        self._pace = Pace()
        self._batch_size = BatchSize()
        # Shared: appended by the loop, taken by the thread.
        self._waiting: deque[Append] = deque()
        self._is_held = False
        self._is_scheduled = False
        # Of the thread that writes: the log thread, or the loop while that has nothing to do.
        self._segment = segment
        self._files = files
        self._checkpoint = checkpoint
        self._is_sync_due = False
        self._is_witness_due = False
        self._idle_batch = 0  # the next batch's number when the idle timer last looked
        self._witness_batch = 0  # the newest batch of witnesses alone, which nothing need witness

    # --- on the event loop ------------------------------------------------------------------

    def add(self, append: Append) -> None:
        """Queue `append` behind all that came before."""
        self._waiting.append(append)
        self._schedule_if_due()

    def hold(self) -> None:
        """Begin no batch until `resume`."""
        self._is_held = True

    def resume(self) -> None:
        """Go on after `hold`."""
        self._is_held = False
        self._schedule_if_due()

    def free(self, no: int, *, fd: int) -> None:
        """Remove segment `no`, which nothing reads any more."""
        self._thread.submit(lambda: self._free(no, fd=fd), None)

    # --- on the log thread, or on the loop instead ---------------------------------------------

    def close(self) -> bool:
        """Write what waits, then an empty batch: its header says that all before is durable.

        Returns False if the log failed or was closed before.
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
            except Exception as err:  # noqa: BLE001 - the batch is not in the log, be it for want of
                # memory: nothing that comes after it may get there either
                self._fail("writing the log", err)
        if self._waiting and not self._is_held:
            self._schedule()
        else:
            self._is_scheduled = False
            self._schedule_if_due()  # something may have come, or `resume`, between the lines above
        return batch

    def _schedule_if_due(self) -> None:
        """Schedule a write if something waits, no write is scheduled and none is held back."""
        if self._waiting and not self._is_held and not self._is_scheduled:
            self._is_scheduled = True
            self._schedule()

    def _schedule(self) -> None:
        """Schedule `_write`: on the event loop while the disk is quick, else on the log thread."""
        if self._pace.is_quick(time.monotonic()):
            self._thread.submit_soon(self._write, self._complete)
        else:
            self._thread.submit(self._write, self._complete)

    def _write_batch(self) -> Batch | None:
        """Write and sync one batch of what waits; None if nothing does."""
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
        self.times.record(ended - began)
        if not self._thread.is_current():
            self._pace.note(began, ended)
        if not self._is_witness_due:
            self._witness_later()
        batch.batch_no = segment.next_batch - 1
        batch.segment_no, batch.fd = segment.no, segment.fd
        batch.buffers, batch.heads, batch.taken = [], [], []  # the loop needs none of them
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
        """Put a batch of `records`, which have room, and of late commit hints. Not synced."""
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
            self._files.remove(no, fd=fd)
        except OSError as err:
            path = os.path.join(self._directory, segment_name(no))
            self._report("freeing a log segment", err, path)

    def _fail(self, what: str, err: Exception) -> NoReturn:
        # Final: after a failed sync it is unknown what the kernel kept (I10).
        if isinstance(err, OSError):
            self.failure = disk_error(what, self._directory, err)
        else:
            self.failure = DiskError(f"{self._directory}: {what}: {err!r}")
        raise self.failure from err

    def _report(self, what: str, err: OSError, path: str = "") -> None:
        """Record a failure of a job without callback, and report it by a job of its own."""
        failure = self.failure = disk_error(what, path or self._directory, err)

        def fail() -> NoReturn:
            raise failure

        self._thread.submit(fail, self._complete)


class Batch:
    """Records of one write, and the result for the event loop. Construction takes what waits, up
    to `bytes_max` bytes or little more."""

    __slots__ = (
        "batch_no",
        "buffers",
        "dones",
        "fd",
        "heads",
        "lazy_count",
        "placed",
        "segment_no",
        "size",
        "start",
        "taken",
    )

    def __init__(self, waiting: deque[Append], bytes_max: int) -> None:
        # For the writer.
        self.buffers: list[Buffer] = [b""]  # the batch header's place
        self.heads: list[bytes] = []  # of the records: their headers, or all of them
        self.taken: list[tuple[list[WalWrite], list[Lazy], Hints]] = []
        # For the event loop.
        self.batch_no = 0  # 0: nothing was written
        self.segment_no = 0
        self.fd = -1
        self.start = 0  # where the batch starts; places are relative to it
        self.placed: list[Placed] = []  # (group, hard state, truncate_from, first index, ...)
        self.dones: list[Callable[[], None]] = []
        self.lazy_count = 0
        buffers, heads, placed = self.buffers, self.heads, self.placed
        size = wf.BATCH_HEADER_BYTES
        encode = wf.encode_entry_header
        while waiting and size < bytes_max:
            writes, done, lazy, hints = waiting.popleft()
            self.taken.append((writes, lazy, hints))
            if done is not None:
                self.dones.append(done)
            for kind, group, index, term, chain in lazy:
                record = wf.encode_record(kind, group, term=term, index=index, chain=chain)
                buffers.append(record)
                heads.append(record)
                size += wf.RECORD_HEADER_BYTES
                mark = _MARKS.get(kind)
                if mark is not None:
                    placed.append((group, None, 0, mark, _NO_PLACES, _NO_LENGTHS, 0))
            self.lazy_count += len(lazy)
            for (group, entries, hard_state, truncate_from), hint in zip(
                writes, hints, strict=True
            ):
                if hard_state is not None:
                    record = wf.encode_hard_state(group, hard_state)
                    buffers.append(record)
                    heads.append(record)
                    size += len(record)
                if truncate_from:
                    record = wf.encode_record(wf.TRUNCATE, group, term=0, index=truncate_from)
                    buffers.append(record)
                    heads.append(record)
                    size += len(record)
                offsets = array("Q")
                lengths = array("I")
                lag, last = 0, entries[-1] if hint and entries else None
                for entry in entries:
                    payload = entry.data
                    if entry is last:
                        lag = wf.lag_of(entry.index, hint)
                    head = encode(group, entry.term, entry.index, entry.chain, payload, lag)
                    buffers.append(head)
                    heads.append(head)
                    if payload:
                        buffers.append(payload)
                    offsets.append(size)
                    lengths.append(len(payload))
                    size += wf.RECORD_HEADER_BYTES + len(payload)
                first = entries[0].index if entries else 0
                placed.append((group, hard_state, truncate_from, first, offsets, lengths, hint))
        self.size = size


class Pace:
    """Decides whether the loop writes the log itself, by how long its own writes take.

    After slow writes, of a slow disk or of large batches alike, the log thread writes for a while,
    a rest. Rests grow while writes stay slow, so that trying costs next to nothing; a quick disk
    with a slow spell now and then gets a short rest each time. Times are monotonic, in seconds.
    """

    def __init__(self) -> None:
        self._average_s = 0.0  # what a write took
        self._rest_s = REST_S
        self._rest_until = 0.0
        self._count = 0  # writes of the loop since its last rest

    def is_quick(self, now: float) -> bool:
        """Return True if the loop may write at `now`."""
        return now >= self._rest_until

    def note(self, began: float, ended: float) -> None:
        """Count a batch that the loop wrote and synced."""
        self._count += 1
        took_s = ended - began
        self._average_s += WEIGHT * (min(took_s, HICCUP_S) - self._average_s)
        if self._average_s > QUICK_S or took_s > HUNG_S:
            is_slow_still = self._count <= TRIAL_WRITES
            self._rest_s = min(2 * self._rest_s, REST_MAX_S) if is_slow_still else REST_S
            self._rest_until = ended + self._rest_s
            self._average_s = TRIAL_S
            self._count = 0


class BatchSize:
    """Bound for the bytes of one write, `bytes_max`: as many as the disk takes in `BATCH_S`.

    Each write costs a sync and two wake-ups, however large it is.
    """

    def __init__(self) -> None:
        self.bytes_max = BATCH_BYTES_MIN

    def note(self, size: int, took_s: float) -> None:
        """Count a batch of `size` bytes that was written and synced."""
        if took_s > BATCH_S:
            self.bytes_max = max(BATCH_BYTES_MIN, self.bytes_max // 2)
        elif size >= self.bytes_max and took_s < BATCH_S / 2:
            self.bytes_max = min(BATCH_BYTES_MAX, self.bytes_max * 2)
