"""`CurrentSegment`: the segment that batches are written to, and its replacement by the next.

A new segment counts only once it is complete: header and checkpoint written and synced, then the
file renamed to its number, then the directory synced, then the manifest. A crash in between leaves
a file without a number, or a segment newer than the manifest that holds nothing reported done.

The file grows ahead of the position, by zeros that are written in small steps: most syncs then
change no metadata, and no ack waits for all the zeros of a segment. While batches are large that
would write each byte twice, so a whole segment is only reserved; its syncs cost a little more.
"""

from __future__ import annotations

import errno
import os

from streamd.store.disk import Disk
from streamd.store.wal import wal_format as wf
from streamd.store.wal.checkpoint import Checkpoint
from streamd.store.wal.current import CurrentFile
from streamd.store.wal.entry_index import Segment
from streamd.store.wal.segment_files import SegmentFiles
from streamd.store.wal.wal_format import segment_name
from streamd.types import Buffer

_PAGE = 4096
_ZEROS = bytes(_PAGE)
_ROOM_BYTES = 1024 * 1024  # behind what a segment of what was proven begins with
ZERO_STEP_BYTES = 1024 * 1024  # written ahead at once: acks wait behind it
BATCH_WEIGHT = 1 / 16  # of the latest batch in their average size
BULKY_BATCH_BYTES = 512 * 1024  # from here on zeros cost more than what they save each sync
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))


class CurrentSegment:
    """The newest segment of a log. Used by one thread at a time; its fields are public to read.

    Any method may raise OSError, which is final for the log (I10); the caller enforces that.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        files: SegmentFiles,
        checkpoint: Checkpoint,
        *,
        segment_bytes: int,
        next_batch: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._checkpoint = checkpoint
        self._segment_bytes = segment_bytes
        self._current = CurrentFile(disk, directory)
        self.wal_id = 0
        self.no = 0
        self.fd = -1  # -1: closed, or not begun
        self.capacity = 0
        self.position = 0  # where the next batch goes
        self.next_batch = next_batch
        self.durable_batch = next_batch - 1
        self.sync_count = 0
        self._prepared_to = 0  # the file is zeroed or reserved up to here
        self._batch_bytes = 0.0  # of late, on average

    # --- beginning --------------------------------------------------------------------------

    def adopt(self, wal_id: int, manifest: wf.Manifest | None) -> None:
        """Continue the recovered log `wal_id`, or begin one with a new random id if that is 0."""
        self.wal_id = wal_id or int.from_bytes(self._disk.random_bytes(8), "little") | 1
        self._current.adopt(manifest)

    def write_current(self, newest: int) -> None:
        """Record durably that `newest` is the newest segment."""
        self._current.write(self.wal_id, newest)

    def begin_after(self, last: Segment | None) -> None:
        """Make `last`, the newest segment there is, durable; then begin the one after it."""
        if last is not None:
            # What a killed process wrote may be in the page cache only. From the next
            # segment's header on it counts as durable, so make it so. Written again, because
            # after a failed sync the cache may call pages clean that never reached the disk.
            tail = self._disk.pread(last.fd, last.end - last.unproven, last.unproven)
            self._disk.pwrite(last.fd, tail, last.unproven)
            self._disk.fdatasync(last.fd)
            self.no, self.position = last.no, last.end
        self._begin_next(self._segment_bytes)

    def begin_alone(self, no: int, *, bytes_to_come: int) -> str:
        """Write the start of a segment without predecessor, and return the file's name.

        The segment counts once what `put` adds is synced and `name_it` was called.
        """
        capacity = 2 * wf.SEGMENT_HEADER_BYTES + self._checkpoint.size() + bytes_to_come
        capacity += max(0, min(self._segment_bytes, _ROOM_BYTES))
        name, fd = self._files.take(capacity)
        self._write_start(fd, wf.SegmentHeader(self.wal_id, no, self.next_batch, 0, capacity))
        return name

    # --- writing ----------------------------------------------------------------------------

    def put(self, buffers: list[Buffer], heads: list[bytes], *, size: int) -> None:
        """Write one batch at the position. `buffers[0]` becomes its header; `heads` are its
        records, or just their headers. Not synced."""
        position = self.position
        buffers[0] = wf.encode_batch_header(
            wal_id=self.wal_id,
            segment_no=self.no,
            offset=position,
            batch_no=self.next_batch,
            durable_batch=self.durable_batch,
            length=size - wf.BATCH_HEADER_BYTES,
            count=len(heads),
            tie=wf.tie_of(heads),
        )
        end = position + size
        # Zeros up to the page's end: a page written whole need not be read from disk first.
        rest = -end % _PAGE
        if rest and end + rest <= self.capacity:
            buffers.append(_ZEROS[:rest])
        self._disk.writev(self.fd, buffers, position)
        self.next_batch += 1
        self.position = position + wf.padded(size)
        self._batch_bytes += BATCH_WEIGHT * (size - self._batch_bytes)
        if end + rest > self._prepared_to and not self._is_bulky():
            self._zero_ahead(end + rest)

    def sync(self) -> None:
        """Make every batch that was put durable."""
        self._disk.fdatasync(self.fd)
        self.durable_batch = self.next_batch - 1
        self.sync_count += 1

    def rotate(self, size: int) -> None:
        """Continue in a new segment with room for a batch of `size` bytes."""
        self.sync()  # the new header will say that all of the old segment is durable
        self._disk.crash_point("WAL_SEGMENT_FULL")
        wanted = wf.SEGMENT_HEADER_BYTES + self._checkpoint.size() + wf.padded(size)
        self._begin_next(max(self._segment_bytes, wanted))

    def close(self) -> None:
        """Close the manifest; nothing is written any more. `PinnedSegments` closes the segments."""
        self.fd = -1
        self._current.close()

    # --- the next one -----------------------------------------------------------------------

    def _begin_next(self, capacity: int) -> None:
        """Make a file for `capacity` bytes, or for the checkpoint, and name it as the next
        segment."""
        capacity = max(capacity, 2 * wf.SEGMENT_HEADER_BYTES + self._checkpoint.size())
        name, fd = self._files.take(capacity)
        prev_end = self.position if self.no else 0
        header = wf.SegmentHeader(self.wal_id, self.no + 1, self.next_batch, prev_end, capacity)
        self._write_start(fd, header)
        self.sync()
        self.name_it(name)

    def _is_bulky(self) -> bool:
        """True while so much is appended that the disk should not write zeros besides."""
        return self._batch_bytes >= BULKY_BATCH_BYTES

    def _reserve(self, fd: int, capacity: int) -> int:
        """Return how far a file has its room: as far as it was a segment before; a new one whole
        under a bulky load, if there is room."""
        held = self._disk.size(fd)
        if held:
            return held
        if self._is_bulky():
            try:
                self._disk.reserve(fd, capacity)
            except OSError:
                self._disk.truncate(fd, 0)  # there may be room for what comes next
            else:
                return capacity
        return 0

    def _zero_ahead(self, start: int) -> None:
        """Write the zeros of one step, from `start` on; they are synced with the batch before."""
        size = min(ZERO_STEP_BYTES, self.capacity - start)
        if size <= 0:
            return
        try:
            self._disk.preallocate(self.fd, offset=start, size=size)
        except OSError as err:
            if err.errno not in _NO_ROOM:
                raise
            return  # there may be room for the next batch; else its own write fails
        self._prepared_to = start + size

    def _write_start(self, fd: int, header: wf.SegmentHeader) -> None:
        """Write a segment's header and checkpoint batch, and continue behind them. Not synced."""
        self._prepared_to = self._reserve(fd, header.capacity)
        self._disk.pwrite(fd, wf.encode_segment_header(header), 0)
        self.no, self.fd, self.capacity = header.segment_no, fd, header.capacity
        self.position = wf.SEGMENT_HEADER_BYTES
        records = self._checkpoint.records()
        size = wf.BATCH_HEADER_BYTES + sum(map(len, records))
        self.put([b"", *records], records, size=size)

    def name_it(self, name: str) -> None:
        """Rename the synced file `name` to its number and record it as the current segment."""
        disk = self._disk
        disk.crash_point("WAL_SEGMENT_SYNCED")
        # A segment is named only once its header is durable, so a named one without is damaged.
        disk.replace(
            os.path.join(self._directory, name),
            os.path.join(self._directory, segment_name(self.no)),
        )
        disk.crash_point("WAL_SEGMENT_NAMED")
        disk.sync_dir(self._directory)
        disk.crash_point("WAL_SEGMENT_STARTED")
        # After its name is durable, and before anything in it is reported done.
        self._current.write(self.wal_id, self.no)
        disk.crash_point("WAL_MANIFEST_SYNCED")
