"""Batches of one segment by their offset, read through a window."""

from __future__ import annotations

from collections.abc import Callable

from streamd.store.wal import wal_format as wf
from streamd.types import Uid


class BatchReader:
    """Reads one segment. `pread(size, offset)` gives its bytes, fewer only at its end."""

    def __init__(
        self, pread: Callable[[int, int], bytes], header: wf.SegmentHeader, *, window_bytes: int
    ) -> None:
        self._pread = pread
        self._header = header
        self._window_bytes = window_bytes  # read at once; a longer batch is read whole
        self._window = b""
        self._window_at = 0
        self.read_bytes = 0  # so far

    def bytes_at(self, offset: int, size: int) -> memoryview:
        """`size` bytes at `offset`, fewer only at the segment's end."""
        start = offset - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window = self._pread(max(size, self._window_bytes), offset)
            self._window_at = offset
            self.read_bytes += len(self._window)
            start = 0
        return memoryview(self._window)[start : start + size]

    def forget(self) -> None:
        """Read what comes from the file again: somebody may have written meanwhile."""
        self._window = b""

    def header_at(self, offset: int) -> wf.BatchHeader | None:
        """The header of a batch that begins at `offset`, whole or not; None: there is none."""
        return wf.decode_batch_header(
            self.bytes_at(offset, wf.BATCH_HEADER_BYTES),
            0,
            wal_id=self._header.wal_id,
            segment_no=self._header.segment_no,
            offset=offset,
        )

    def batch_at(self, offset: int) -> tuple[wf.BatchHeader, list[wf.WalRecord]] | None:
        """The batch that begins at `offset` if it is whole, else None."""
        header = self.header_at(offset)
        if header is None:
            return None
        at = offset + wf.BATCH_HEADER_BYTES
        records = wf.decode_batch(self.bytes_at(at, header.length), header, offset=at)
        return None if records is None else (header, records)

    def places_at(self, offset: int) -> tuple[wf.BatchHeader, list[tuple[Uid, int]]] | None:
        """As `batch_at`, but of each record only its group and its offset in the segment."""
        header = self.header_at(offset)
        if header is None:
            return None
        at = offset + wf.BATCH_HEADER_BYTES
        places = wf.record_places(self.bytes_at(at, header.length), header, offset=at)
        return None if places is None else (header, places)
