"""Repair of a damaged log: proven entries are written anew, the old files are set aside.

The new segment has no predecessor, so from its rename on it is the log. A crash before the rename
finds the old files and the same damage again; a crash after it finds only files to set aside.
"""

from __future__ import annotations

import os

from streamd.errors import CorruptionError, DiskError, is_passing
from streamd.store.disk import Disk
from streamd.store.wal import wal_format as wf
from streamd.store.wal.checkpoint import Checkpoint
from streamd.store.wal.entry_index import PinnedSegments
from streamd.store.wal.segment import CurrentSegment
from streamd.store.wal.wal_format import ASIDE_PREFIX, segment_number
from streamd.store.wal.wal_recovery import Recovered
from streamd.types import Buffer, Entry, Index, Uid

BATCH_BYTES = 1024 * 1024  # of entries that are written anew at once


def carry_over(
    recovered: Recovered, segments: PinnedSegments, segment: CurrentSegment, checkpoint: Checkpoint
) -> None:
    """Write one segment with everything that `recovered` proves, and continue in it.

    Damaged groups get a hard state that says so in the same durable step: a second start, which
    finds no damage, must still know (I12).
    """
    batches: list[tuple[Uid, Index, Index]] = []  # (group, first, end)
    size = 0
    for uid, group in sorted(recovered.groups.items()):
        at = group.first
        while at <= group.last:
            try:
                entries = segments.read(uid, group, at, group.last + 1, BATCH_BYTES)
            except (CorruptionError, DiskError) as err:
                if is_passing(err):
                    raise
                recovered.damage.append(str(err))
                recovered.damaged_groups[uid] = str(err)
                group.truncate(at)
                break
            size += wf.padded(_size_of(entries))
            batches.append((uid, at, entries[-1].index + 1))
            at = entries[-1].index + 1
        if uid in recovered.damaged_groups:
            group.hard_state = group.hard_state._replace(is_uncertain=True)
            checkpoint.set_hard_state(uid, group.hard_state)
        # The tip at the segment's start is before the entries that follow in it.
        checkpoint.set_tip(uid, index=group.base, term=group.base_term, chain=group.base_chain)
    name = segment.begin_alone(recovered.newest + 1, bytes_to_come=size)
    moved: list[tuple[Uid, Index, list[int]]] = []
    for uid, at, end in batches:
        entries = segments.read(uid, recovered.groups[uid], at, end, 1 << 62)
        moved.append((uid, at, _write(segment, uid, entries)))
        last = entries[-1]
        checkpoint.set_tip(uid, index=last.index, term=last.term, chain=last.chain)
    segment.sync()
    segment.name_it(name)
    segments.replace_all()
    for uid, at, places in moved:
        group = recovered.groups[uid]
        for number, place in enumerate(places, at - group.first):
            group.places[number] = place
    for group in recovered.groups.values():
        segments.pin(group, 1)


def _size_of(entries: list[Entry]) -> int:
    payloads = sum(len(entry.data) for entry in entries)
    return wf.BATCH_HEADER_BYTES + len(entries) * wf.RECORD_HEADER_BYTES + payloads


def _write(segment: CurrentSegment, uid: Uid, entries: list[Entry]) -> list[int]:
    """Put one batch of entries; return their new places."""
    buffers: list[Buffer] = [b""]
    heads: list[bytes] = []
    places: list[int] = []
    place = (segment.no << 32) + segment.position + wf.BATCH_HEADER_BYTES
    for entry in entries:
        header = wf.encode_entry_header(uid, entry.term, entry.index, entry.chain, entry.data)
        buffers += (header, entry.data)
        heads.append(header)
        places.append(place)
        place += len(header) + len(entry.data)
    segment.put(buffers, heads, size=_size_of(entries))
    return places


def set_aside(disk: Disk, directory: str, recovered: Recovered) -> None:
    """Move segments that are no part of the log any more to `damaged-<n>/`, unchanged."""
    names = list(recovered.leftovers)
    if recovered.damage:
        for name in disk.listdir(directory):
            no = segment_number(name)
            if no is not None and no <= recovered.newest and name not in names:
                names.append(name)
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
