"""Is the log that is in use whole? Read again while the node runs, in pieces.

What a start would refuse is found while all that the log says is still in memory: see `Wal.renew`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from streamd.errors import CorruptionError
from streamd.store.disk import Disk, opened, read_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.current import NAME, read_manifest
from streamd.store.wal.wal_reader import BatchReader
from streamd.store.wal.wal_recovery import segment_name

_PIECE_BYTES = 256 * 1024  # some milliseconds of a thread, if its batches are small


def check(disk: Disk, directory: str, segments: range, *, wal_id: int, least: int) -> Iterator[int]:
    """Read it; yield how many bytes each piece had. `segments`: the numbers of those from some one
    on to the newest; batches up to `least` are known to be written.

    For any thread, beside who writes. Raises CorruptionError or DiskError, naming segment and
    offset; what it says of a segment that is taken out of use meanwhile means nothing.
    """
    if not segments:
        return
    try:
        _, manifest = read_manifest(disk, directory)
    except OSError as err:
        raise read_error("reading the log's manifest", directory, err) from err
    if manifest is None or manifest.newest < segments[-1]:
        raise CorruptionError(f"{os.path.join(directory, NAME)}: damaged or missing")
    path, end, expected = "", 0, 0
    for no in segments:
        before, path = path, os.path.join(directory, segment_name(no))
        pread = partial(_pread, disk, path)
        header = wf.decode_segment_header(pread(wf.SEGMENT_HEADER_BYTES, 0))
        if header is None or (header.segment_no, header.wal_id) != (no, wal_id):
            raise CorruptionError(f"{path}: offset 0: the segment's header is damaged")
        if before and (header.prev_end, header.first_batch) != (end, expected):
            raise CorruptionError(f"{before}: offset {end}: batch {expected} is damaged")
        reader = BatchReader(pread, header, window_bytes=_PIECE_BYTES)
        end, expected, told = wf.SEGMENT_HEADER_BYTES, header.first_batch, 0
        while (found := reader.batch_at(end)) is not None and found[0].batch_no == expected:
            end += wf.padded(wf.BATCH_HEADER_BYTES + found[0].length)
            expected += 1
            if reader.read_bytes > told:
                yield reader.read_bytes - told
                told = reader.read_bytes
    if expected <= least:
        raise CorruptionError(f"{path}: offset {end}: batch {expected} is damaged")


def _pread(disk: Disk, path: str, size: int, offset: int) -> bytes:
    # Opened anew each time: those who read entries may close the segment's file meanwhile.
    try:
        with opened(disk, path) as fd:
            return disk.pread(fd, size, offset)
    except OSError as err:
        raise read_error("reading the log", path, err) from err
