"""A damaged log goes on: what is proven is written anew, the old files are set aside.

The new segment has none before it, so from its rename on the log is what it says; a crash before
that finds the old files and the same damage again, one after it only files to be set aside.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from streamd.errors import CorruptionError, DiskError
from streamd.store import wal_format as wf
from streamd.store.disk import Buffer, Disk
from streamd.store.wal_recovery import SUFFIX, Recovered, segment_name
from streamd.types import Entry, Index, Uid

if TYPE_CHECKING:
    from streamd.store.wal import Wal

BATCH_BYTES = 1024 * 1024  # of entries that are written anew at once
ASIDE_PREFIX = "damaged-"


def carry_over(wal: Wal, recovered: Recovered) -> None:
    """Write one segment with all that `recovered` proves, and go on in it.

    Damaged groups get a hard state that says so, in the same durable step: a second start, that
    finds no damage, must still know (I12).
    """
    batches: list[tuple[Uid, Index, Index]] = []  # (group, first, end)
    size = 0
    for uid, group in sorted(recovered.groups.items()):
        at = group.first
        while at <= group.last:
            try:
                entries = wal.read(uid, at, group.last + 1, BATCH_BYTES)
            except (CorruptionError, DiskError) as err:
                wal.damage.append(str(err))
                wal.damaged_groups[uid] = str(err)
                group.truncate(at)
                break
            size += wf.padded(_size_of(entries))
            batches.append((uid, at, entries[-1].index + 1))
            at = entries[-1].index + 1
        if uid in wal.damaged_groups:
            group.hard_state = group.hard_state._replace(is_uncertain=True)
            wal._hard_states[uid] = group.hard_state
        # The tip at the segment's start is before the entries that follow in it.
        wal._tips[uid] = (group.base, group.base_term, group.base_chain)
    wal._no = recovered.newest
    capacity = 2 * wf.SEGMENT_HEADER_BYTES + wal._checkpoint_size() + size
    capacity += max(0, min(wal._segment_bytes, BATCH_BYTES))
    name, fd = wal._create_spare()
    wal._disk.preallocate(fd, offset=0, size=capacity)
    header = wf.SegmentHeader(wal._wal_id, wal._no + 1, recovered.next_batch, 0, capacity)
    wal._write_segment_start(fd, header)
    moved: list[tuple[Uid, Index, list[int]]] = []
    for uid, at, end in batches:
        moved.append((uid, at, _write(wal, uid, wal.read(uid, at, end, 1 << 62))))
    wal._sync()
    wal._name_segment(name)
    for segment in recovered.segments:
        wal._disk.close(segment.fd)
    wal._fds.clear()
    wal._pins.clear()
    for uid, at, places in moved:
        group = recovered.groups[uid]
        for number, place in enumerate(places, at - group.first):
            group.places[number] = place
    for group in wal._groups.values():
        wal._pin(group, 1)


def _size_of(entries: list[Entry]) -> int:
    payloads = sum(len(entry.data) for entry in entries)
    return wf.BATCH_HEADER_BYTES + len(entries) * wf.RECORD_HEADER_BYTES + payloads


def _write(wal: Wal, uid: Uid, entries: list[Entry]) -> list[int]:
    """Put one batch of entries; return where they are now."""
    buffers: list[Buffer] = [b""]
    places: list[int] = []
    place = (wal._no << 32) + wal._position + wf.BATCH_HEADER_BYTES
    for entry in entries:
        header = wf.encode_entry_header(uid, entry.term, entry.index, entry.chain, entry.data)
        buffers += (header, entry.data)
        places.append(place)
        place += len(header) + len(entry.data)
    wal._put_batch(buffers, _size_of(entries), len(entries))
    wal._tips[uid] = (entries[-1].index, entries[-1].term, entries[-1].chain)
    return places


def set_aside(disk: Disk, directory: str, recovered: Recovered) -> None:
    """Move what is no part of the log any more to `damaged-<n>/`, whole."""
    names = list(recovered.leftovers)
    if recovered.damage:
        newest = segment_name(recovered.newest)
        names += [
            name
            for name in disk.listdir(directory)
            if name.endswith(SUFFIX) and name <= newest and name not in names
        ]
    if not names:
        return
    taken = [name for name in disk.listdir(directory) if name.startswith(ASIDE_PREFIX)]
    number = 1
    while f"{ASIDE_PREFIX}{number}" in taken:
        number += 1
    aside = os.path.join(directory, f"{ASIDE_PREFIX}{number}")
    disk.mkdir(aside)
    disk.sync_dir(directory)
    disk.crash_point("WAL_DAMAGE_REWRITTEN")
    for name in names:
        disk.replace(os.path.join(directory, name), os.path.join(aside, name))
    # The new names first: between the two a file has both or the new one.
    disk.sync_dir(aside)
    disk.sync_dir(directory)
    disk.crash_point("WAL_DAMAGE_SET_ASIDE")
