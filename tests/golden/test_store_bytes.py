"""Every format of the store, byte for byte. A changed file needs a version bump and an ADR.

`python -m tests.golden.test_store_bytes` writes the files anew; review the diff.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from streamd.store.blocks import record_format as fmt
from streamd.store.blocks import snapshots
from streamd.store.blocks.footer import (
    TRAILER_BYTES,
    FooterColumns,
    decode_footer,
    encode_footer,
    footer_length,
)
from streamd.store.blocks.snapshots import read_file
from streamd.store.disk import opened
from streamd.store.frames import frame_format as ff
from streamd.store.frames.framed_disk import FramedDisk
from streamd.store.frames.keyring import Keyring
from streamd.store.wal import wal_format as wf
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry, HardState
from tests.sim.disk import SimDisk, SimThread

HERE = Path(__file__).parent / "store"


def block() -> bytes:
    """A sealed block with every kind of record."""
    msgs = [
        (b"flights.JFK.LAX", b"", b"payload"),
        (b"flights.EWR.ORD", b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n", b""),
    ]
    records, _, crcs = fmt.encode_batch(41, 1_700_000_000_000_000_000, msgs)
    tail = [
        fmt.encode_frame(9, 1_700_000_000_000_000_000),
        fmt.encode_tombstone([(3, 5), (41, 41)], 10),
        fmt.encode_skip(43, 49, 11),
    ]
    end = 64 + sum(map(len, records)) + sum(map(len, tail))
    footer = encode_footer(
        FooterColumns(
            first_seq=41,
            seqs=array("Q", [41, 42]),
            offsets=array("I", [64, 64 + len(records[0])]),
            lengths=array("I", [len(record) for record in records]),
            ts_deltas=array("Q", [0, 1]),
            base_ts=1_700_000_000_000_000_000,
            crcs=array("I", crcs),
            subject_ids=array("H", [0, 1]),
            subjects=[b"flights.JFK.LAX", b"flights.EWR.ORD"],
            end_offset=end,
        )
    )
    return b"".join([fmt.encode_block_header(12, 3), *records, *tail, footer])


def snapshot() -> bytes:
    return snapshots.encode(
        snapshots.Snapshot(12, 1000, 3, 0xABCDEF01, b"state", (3, 4096), (1, 2))
    )


def wal_segment() -> bytes:
    """Entries, a hard state, a truncation, a release and a destroyed group; closed cleanly."""
    disk, thread = SimDisk(5), SimThread()
    wal = Wal.open(
        disk, "/wal", thread, segment_bytes=16 * 1024, sync="always", on_error=_unexpected
    )
    wal.append(
        [
            (0, [Entry(1, 1, b"meta", chain=11)], HardState(1, "node-1", 0), 0),
            (12, [Entry(1, 1, b"", chain=1), Entry(1, 2, b"two", chain=2)], None, 0),
        ],
        _nothing,
    )
    thread.run()
    wal.append([(12, [Entry(2, 2, b"two again", chain=3)], HardState(2, "n", 1), 2)], _nothing)
    thread.run()
    wal.append([(12, [Entry(2, 3, b"three", chain=4)], None, 0)], _nothing)
    wal.release(12, 1, 1, 1)
    wal.destroy(0)
    wal.append([], _nothing)
    wal.close()
    thread.run()
    content = disk.contents("/wal/0000000000000001.wal")
    return content.rstrip(b"\0")


def _nothing() -> None:
    pass


def _unexpected(err: Exception) -> None:
    raise err


def framed() -> bytes:
    """The snapshot, encrypted: written in two pieces, the second partly over the first, and cut."""
    disk = SimDisk(7)
    disk.make_dirs("/s")
    framed = FramedDisk(disk, Keyring(bytes(range(32)), ff.CHACHA))
    with opened(framed, "/s/f", create=True) as fd:
        framed.pwrite(fd, snapshot()[:100], 0)
        framed.pwrite(fd, snapshot()[60:] + b"more", 60)
        framed.truncate(fd, len(snapshot()))
    return disk.contents("/s/f")


def packed() -> bytes:
    """The block, packed. Other versions of the library may compress it to other bytes."""
    disk = SimDisk(8)
    disk.make_dirs("/s")
    fd = disk.open("/s/3.blk", create=True)
    disk.pwrite(fd, block(), 0)
    for _ in FramedDisk(disk).pack("/s/3.blk", "/s/3.blk.tmp"):
        pass
    return disk.contents("/s/3.blk.tmp")


FILES = {
    "block.blk": block,
    "snapshot.snap": snapshot,
    "segment.wal": wal_segment,
    "framed.snap": framed,
}
READ_ONLY = {"packed.blk": packed}


@pytest.mark.parametrize("name", sorted(FILES))
def test_bytes_equal_the_golden_file(name: str) -> None:
    assert FILES[name]() == (HERE / name).read_bytes()


def test_the_golden_block_reads_back() -> None:
    blob = (HERE / "block.blk").read_bytes()
    fmt.check_block_header(blob, 12, 3)
    records = list(fmt.scan(blob[64:], 64))
    assert [record.type for record in records] == [1, 1, 2, 3, 4, 5]
    assert fmt.decode_at(blob, 64) == (
        41,
        1_700_000_000_000_000_000,
        b"flights.JFK.LAX",
        b"",
        b"payload",
    )
    assert records[1].headers == b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
    assert fmt.ranges_of(records[3]) == [(3, 5), (41, 41)]
    assert fmt.ranges_of(records[4]) == [(43, 49)]
    assert [fmt.index_of(record) for record in records[:5]] == [0, 0, 9, 10, 11]
    length = footer_length(blob[-TRAILER_BYTES:])
    columns = decode_footer(blob[-length:])
    assert columns.seqs == array("Q", [41, 42])
    assert list(columns.subjects) == [b"flights.JFK.LAX", b"flights.EWR.ORD"]
    assert columns.end_offset == records[5].offset
    assert list(columns.crcs) == [records[0].crc, records[1].crc]


def test_the_golden_framed_and_packed_files_read_back() -> None:
    """What is in them is the golden snapshot, and the golden block."""
    ring = Keyring(bytes(range(32)), ff.AES)  # the file says its cipher
    for name, keys, content in (("framed.snap", ring, snapshot()), ("packed.blk", None, block())):
        disk = SimDisk(9)
        disk.make_dirs("/s")
        path = f"/s/{name}"
        fd = disk.open(path, create=True)
        disk.pwrite(fd, (HERE / name).read_bytes(), 0)
        assert read_file(FramedDisk(disk, keys), path) == content


def test_the_golden_snapshot_reads_back() -> None:
    blob = (HERE / "snapshot.snap").read_bytes()
    found = snapshots.decode(blob, name="snapshot.snap", group=12)
    assert (found.index, found.term, found.chain, found.state) == (1000, 3, 0xABCDEF01, b"state")
    assert (found.tail, found.doomed) == ((3, 4096), (1, 2))


def test_the_golden_log_reads_back() -> None:
    disk = SimDisk(6)
    disk.make_dirs("/wal")
    fd = disk.open("/wal/0000000000000001.wal", create=True)
    disk.pwrite(fd, (HERE / "segment.wal").read_bytes().ljust(16 * 1024, b"\0"), 0)
    disk.close(fd)
    wal = Wal.open(
        disk, "/wal", SimThread(), segment_bytes=16 * 1024, sync="always", on_error=_unexpected
    )
    assert list(wal.groups) == [12]
    state = wal.groups[12]
    assert (state.first_index, state.last_index) == (2, 3)
    assert (state.prev_term, state.prev_chain, state.hard_state) == (1, 1, HardState(2, "n", 1))
    found = [(e.term, e.index, e.data, e.chain) for e in wal.read(12, 2, 4, 1000)]
    assert found == [(2, 2, b"two again", 3), (2, 3, b"three", 4)]


def test_sizes_of_heads_never_change() -> None:
    assert (fmt.RECORD_OVERHEAD_BYTES, TRAILER_BYTES) == (32, 16)
    assert (wf.BATCH_HEADER_BYTES, wf.RECORD_HEADER_BYTES) == (64, 40)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for file_name, make in (FILES | READ_ONLY).items():
        (HERE / file_name).write_bytes(make())
