"""Bit rot: a byte of some file of one replica changes on the platter.

Of the log only what it can prove to have been durable: damage in its last batch looks like the end
of a write that a power cut tore, until the next batch, or a second of silence, witnesses it.

One copy at a time: as long as the rotten byte is still there, no other copy is destroyed and no
other byte rots, so that whatever is damaged is whole elsewhere.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from streamd.store.wal import wal_format as wf
from tests.sim.decrypted import decrypted
from tests.sim.disk import SimDisk
from tests.sim.host import ROOT

if TYPE_CHECKING:
    from tests.sim.host import Host

# What rots -> (where such files are, how their names end).
PLACES: dict[str, tuple[tuple[str, ...], str]] = {
    "block": ((ROOT + "/streams/",), ".blk"),
    "log": ((ROOT + "/wal/",), ".wal"),
    "snapshot": ((ROOT + "/streams/", ROOT + "/meta/"), ".snap"),
}


class _Spot(NamedTuple):
    """A rotten byte."""

    host: Host
    path: str
    content: bytearray  # of the file as it was then; another file of this name is not rotten
    offset: int
    value: int


class Rot:
    """The rotten byte of one cluster, if there is one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._spot: _Spot | None = None

    def is_open(self) -> bool:
        """True while a rotten byte has neither been overwritten nor thrown away."""
        spot = self._spot
        if spot is None:
            return False
        view = spot.host.disk.durable_view(spot.path)
        if view is not None and view[1] is spot.content:
            if spot.offset < len(spot.content) and spot.content[spot.offset] == spot.value:
                return True
        self._spot = None
        return False

    def strike(self, host: Host, what: str) -> str | None:
        """Flip a byte of a file of this kind; None: there is nothing to flip."""
        folders, suffix = PLACES[what]
        disk = host.disk
        if self.is_open():
            return None
        found = []
        for path in disk.paths:
            view = disk.durable_view(path)
            if view is None or not path.startswith(folders) or not path.endswith(suffix):
                continue
            if suffix == ".wal":
                end = _proven_end_in_file(disk, path, view[1])
            else:
                end = len(view[1].rstrip(b"\0"))
            if end and disk.contents(path)[:end] == view[1][:end]:
                found.append((path, view[1], end))
        if not found:
            return None
        path, content, end = self._rng.choice(found)
        offset = self._rng.randrange(end)
        disk.flip(path, offset, self._rng.randint(1, 255))
        self._spot = _Spot(host, path, content, offset, content[offset])
        return f"{host.name} {path} {offset} of {end}"


def _proven_end_in_file(disk: SimDisk, path: str, raw: bytearray) -> int:
    """`_proven_end`, in the bytes of the file."""
    if disk.keys is None:
        return _proven_end(raw)
    file = decrypted(disk, path, raw)
    proven = _proven_end(file.content)
    return max((at for content_end, at in file.ends if content_end <= proven), default=0)


def _proven_end(content: bytearray) -> int:
    """Where the batches of a segment end which a later batch of it says were durable."""
    segment = wf.decode_segment_header(bytes(content[: wf.SEGMENT_HEADER_BYTES]))
    if segment is None:
        return 0
    offset, batch_no, witnessed = wf.SEGMENT_HEADER_BYTES, segment.first_batch, 0
    ends: dict[int, int] = {}
    while True:
        header = wf.decode_batch_header(
            bytes(content[offset : offset + wf.BATCH_HEADER_BYTES]), 0,
            wal_id=segment.wal_id, segment_no=segment.segment_no, offset=offset,
        )  # fmt: skip
        if header is None or header.batch_no != batch_no:
            return ends.get(witnessed, 0)
        witnessed = max(witnessed, header.durable_batch)
        offset += wf.padded(wf.BATCH_HEADER_BYTES + header.length)
        ends[batch_no] = offset
        batch_no += 1
