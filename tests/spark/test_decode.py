"""Blocks to Arrow: footer and walk agree, headers are the parser's, no damage is missed."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.header_maps import header_maps
from spark_jobs.replica.checksums import are_whole, record_starts, u32_at
from spark_jobs.replica.decode import BlockColumns, Selection, batches_of, columns_of, wrong_crcs
from spark_jobs.schema import COLUMNS, DEBUG_COLUMNS, parse_headers
from streamd.errors import CorruptionError
from streamd.machine.snapshot import columns_from
from streamd.offline.stream_view import BlockRoom, BlockView, block_room
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.footer import encode_footer
from streamd.subjects import Matcher

TS = 1_790_000_000_000_000_000
UID, BLOCK_NO = 7, 3

Msg = tuple[bytes, bytes, bytes]


def random_msgs(rng: random.Random, count: int) -> list[Msg]:
    return [
        (
            b"s.%d" % rng.randrange(5),
            rng.choice([b"", b"", b"NATS/1.0\r\nA: %d\r\n\r\n" % rng.randrange(1000)]),
            rng.randbytes(rng.choice([0, 1, 12, 13, 100, 100, 3000])),
        )
        for _ in range(count)
    ]


def made_block(
    rng: random.Random, *, batches: int = 20, is_sealed: bool = False, per_batch: int = 9
) -> tuple[bytes, BlockView, dict[int, tuple[int, Msg]]]:
    """(bytes, its view, seq -> (ts, message)) of a block with gaps, frames and tombstones."""
    parts = [fmt.encode_block_header(UID, BLOCK_NO)]
    msgs: dict[int, tuple[int, Msg]] = {}
    seq, ts = rng.randrange(1, 10_000), TS
    first = seq
    for at in range(batches):
        batch = random_msgs(rng, rng.randrange(1, per_batch))
        records, _, _ = fmt.encode_batch(seq, ts, batch)
        parts += records
        for step, msg in enumerate(batch):
            msgs[seq + step] = (ts + step, msg)
        seq += len(batch)
        ts += len(batch) + rng.randrange(10_000)
        for _ in range(rng.randrange(3)):
            kind = rng.randrange(3)
            if kind == 0:
                parts.append(fmt.encode_tombstone([(first, first + 1)] * rng.randrange(1, 4), at))
            elif kind == 1:
                parts.append(fmt.encode_skip(seq, seq + 2, at))
                seq += 3
        parts.append(fmt.encode_frame(at, ts))
    body = b"".join(parts)
    blob = body
    if is_sealed:
        blob += encode_footer(columns_from(fmt.scan(body[HEADER_BYTES:], HEADER_BYTES)))
    stamps = [stamp for stamp, _ in msgs.values()]
    view = BlockView(
        replica="n1",
        path="/data/3.blk",
        block_no=BLOCK_NO,
        uid=UID,
        first_seq=first,
        last_seq=max(msgs),
        first_ts_ns=min(stamps),
        last_ts_ns=max(stamps),
        count=len(msgs),
        live=len(msgs),
        digest=0,
        end_offset=len(body),
        is_sealed=is_sealed,
    )
    return blob, view, msgs


def rows_of(blob: bytes, view: BlockView, **options: Any) -> list[dict[str, Any]]:
    every = (*COLUMNS, *DEBUG_COLUMNS)
    options = {"stream": "S", "columns": every, **options}
    found: list[dict[str, Any]] = []
    for batch in batches_of(blob, view, **options):
        batch.validate(full=True)
        assert batch.num_rows <= options.get("batch_rows", 10_000)
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_rows_are_the_messages(seed: int, is_sealed: bool) -> None:
    blob, view, msgs = made_block(random.Random(seed), is_sealed=is_sealed)
    found = rows_of(blob, view, batch_rows=17)
    assert [row["seq"] for row in found] == list(msgs)
    for row in found:
        ts, (subject, headers, payload) = msgs[row["seq"]]
        assert (row["subject"].encode(), row["payload"], row["ts_ns"]) == (subject, payload, ts)
        assert row["headers"] == parse_headers(headers)
        length = int.from_bytes(blob[row["pos"] : row["pos"] + 4], "little")
        assert blob[row["pos"] + length - 4 :][:4] == row["crc"].to_bytes(4, "little")


@pytest.mark.parametrize("is_sealed", [False, True])
def test_batches_outlive_the_room_they_were_read_into(is_sealed: bool) -> None:
    """Payloads of all lengths, headers and subjects: nothing in a batch is the block's own bytes,
    which the next read overwrites."""
    blob, view, _ = made_block(random.Random("room"), is_sealed=is_sealed)
    room = BlockRoom()
    place = room.take(len(blob))
    place[:] = blob
    every = (*COLUMNS, *DEBUG_COLUMNS)
    found = list(batches_of(place, view, stream="S", columns=every, batch_rows=17))
    room.take(len(blob))[:] = b"\xff" * len(blob)
    assert [row for batch in found for row in batch.to_pylist()] == rows_of(blob, view)


def test_a_room_is_lent_again_and_grows(tmp_path: Path) -> None:
    """A block read after a larger one, and a larger one after it, are whole."""
    with block_room() as room:
        rooms = [room]
    with block_room() as room, block_room() as other:
        rooms += [room, other]
        for seed in (3, 1, 2):
            blob, view, _ = made_block(random.Random(seed), batches=5 * seed, is_sealed=True)
            path = tmp_path / f"{seed}.blk"
            path.write_bytes(blob)
            assert replace(view, path=str(path)).read(room) == blob
        assert room.size >= len(made_block(random.Random(3), batches=15, is_sealed=True)[0])
    assert rooms[0] is rooms[1] is not rooms[2]


@pytest.mark.parametrize("seed", range(10))
def test_footer_and_walk_agree(seed: int) -> None:
    blob, view, _ = made_block(random.Random(f"agree {seed}"), is_sealed=True)
    footer = columns_of(blob, view)
    walk = columns_of(blob, replace(view, is_sealed=False))
    assert footer.is_from_footer
    assert not walk.is_from_footer
    for name in ("seqs", "offsets", "lengths", "ts_ns", "crcs", "header_lengths", "live"):
        assert np.array_equal(getattr(footer, name), getattr(walk, name)), name

    def subjects(columns: BlockColumns) -> list[bytes]:
        return [columns.subjects[local] for local in columns.subject_ids]

    assert subjects(footer) == subjects(walk)


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_every_flipped_bit_is_found_and_nothing_else(seed: int, is_sealed: bool) -> None:
    """Anywhere in the records: a message's own row is named, and no other is ever doubted."""
    rng = random.Random(f"flip {seed}")
    blob, view, msgs = made_block(rng, is_sealed=is_sealed)
    whole = columns_of(blob, view)
    assert wrong_crcs(blob, whole) == []
    place = rng.randrange(HEADER_BYTES, view.end_offset)
    bad = bytearray(blob)
    bad[place] ^= 1 << rng.randrange(8)
    owner = np.flatnonzero((whole.offsets <= place) & (place < whole.offsets + whole.lengths))
    assert wrong_crcs(bytes(bad), whole) == owner.tolist()
    lost: list[CorruptionError] = []
    rows = rows_of(bytes(bad), view, on_damage=lost.append)
    seqs = [row["seq"] for row in rows]
    if is_sealed:
        gone = [int(seq) for seq in whole.seqs[owner]]
        assert seqs == [seq for seq in msgs if seq not in gone]
        assert len(lost) == len(gone)
    else:
        assert set(msgs) >= set(seqs)
        assert all(msgs[row["seq"]][1][2] == row["payload"] for row in rows)
        assert len(seqs) == len(msgs) - len(owner) or lost
    if len(owner):
        with pytest.raises(CorruptionError, match=r"/data/3.blk: offset \d+"):
            rows_of(bytes(bad), view)


def test_two_records_that_changed_places_are_found() -> None:
    """Each is whole, so no crc is wrong; the footer knows where which belongs."""
    msgs = [(b"s.a", b"", b"one"), (b"s.a", b"", b"two")]
    records, _, _ = fmt.encode_batch(1, TS, msgs)
    head = fmt.encode_block_header(UID, BLOCK_NO)
    body = head + b"".join(records)
    footer = encode_footer(columns_from(fmt.scan(body[HEADER_BYTES:], HEADER_BYTES)))
    _, view, _ = made_block(random.Random(0), is_sealed=True)
    view = replace(view, end_offset=len(body), first_seq=1, last_seq=2)
    swapped = head + records[1] + records[0] + footer
    assert wrong_crcs(swapped, columns_of(swapped, view)) == [0, 1]


def test_a_cut_block_loses_only_messages_after_the_cut() -> None:
    blob, view, msgs = made_block(random.Random(5))
    whole = columns_of(blob, view)
    cut = int(whole.offsets[50]) + 10
    lost: list[CorruptionError] = []
    rows = rows_of(blob[:cut], view, on_damage=lost.append)
    assert [row["seq"] for row in rows] == list(msgs)[:50]
    assert f"offset {whole.offsets[50]}: a record is damaged, no whole record of" in str(lost[0])
    assert str(lost[0]).endswith(f"..{view.last_seq}") and len(lost) == 1
    seqs = list(msgs)
    gaps = [(a + 1, b - 1) for a, b in pairwise(seqs) if a + 1 < b]
    view = replace(view, dead=tuple(gaps))
    assert len(rows_of(blob[:cut], view, selection=Selection(end_seq=seqs[40]))) == 41


@pytest.mark.parametrize("seed", range(10))
def test_no_flipped_bit_of_a_record_s_head_hides_it(seed: int) -> None:
    """Its type may then be that of another record, its length may lead into the middle of one:
    it is missed. Who takes what is left gets all the others, and is told which seq is lost."""
    rng = random.Random(f"head {seed}")
    blob, view, msgs = made_block(rng, batches=8)
    whole = columns_of(blob, view)
    for row, at in enumerate(whole.offsets.tolist()):
        place, bit = divmod(rng.choice([*range(8), 33]), 8)  # of the length, or MSG to TOMBSTONE
        bad = bytearray(blob)
        bad[at + place] ^= 1 << bit
        with pytest.raises(CorruptionError, match=r"no whole record of|does not match"):
            rows_of(bytes(bad), view)
        lost: list[str] = []
        found = rows_of(bytes(bad), view, on_damage=lambda err, lost=lost: lost.append(str(err)))
        seq = int(whole.seqs[row])
        assert [one["seq"] for one in found] == [one for one in msgs if one != seq]
        assert str(seq) in lost[0]


def test_lost_seqs_are_named_exactly_unless_some_never_existed() -> None:
    """Two damaged records, of which one was deleted, in a block without a footer."""
    records, _, _ = fmt.encode_batch(11, TS, [(b"s", b"", b"payload %d" % at) for at in range(9)])
    blob = fmt.encode_block_header(UID, BLOCK_NO) + b"".join(records)
    _, view, _ = made_block(random.Random(0))
    view = replace(view, first_seq=11, last_seq=19, count=9, live=8, dead=((13, 13),))
    view = replace(view, end_offset=len(blob))
    starts = columns_of(blob, view).offsets.tolist()
    bad = bytearray(blob)
    for seq in (13, 15):
        bad[starts[seq - 11]] ^= 0xFF
    lost: list[str] = []
    found = rows_of(bytes(bad), view, on_damage=lambda err: lost.append(str(err)))
    assert [row["seq"] for row in found] == [11, 12, 14, 16, 17, 18, 19]
    assert len(lost) == 1 and lost[0].endswith("no whole record of seqs 15")
    assert rows_of(bytes(bad), view, selection=Selection(end_seq=12))
    with pytest.raises(CorruptionError, match="no whole record of seqs 15"):
        rows_of(bytes(bad), view)
    lost.clear()
    sparse = replace(view, live=8, count=8, dead=())
    rows_of(bytes(bad), sparse, on_damage=lambda err: lost.append(str(err)))
    assert lost[0].endswith("no whole record of 1 of seqs 13, 15")


def test_a_damaged_header_costs_nothing_if_damage_is_taken() -> None:
    """A whole header of another block does: its records are not this stream's."""
    blob, view, msgs = made_block(random.Random(8))
    bad = b"\xff" + blob[1:]
    with pytest.raises(CorruptionError, match="its header is damaged"):
        rows_of(bad, view)
    lost: list[CorruptionError] = []
    assert [row["seq"] for row in rows_of(bad, view, on_damage=lost.append)] == list(msgs)
    assert len(lost) == 1
    lost.clear()
    assert rows_of(blob, replace(view, uid=8), on_damage=lost.append) == []
    assert "holds block 3 of stream" in str(lost[0])
    assert f"no whole record of {len(msgs)} of seqs {view.first_seq}.." in str(lost[1])


def test_a_foreign_block_is_refused() -> None:
    blob, view, _ = made_block(random.Random(6))
    with pytest.raises(CorruptionError, match=r"/data/3.blk: offset 0: .*holds block 3 of stream"):
        columns_of(blob, replace(view, uid=8))


@pytest.mark.parametrize("seed", range(10))
def test_selections_are_those_of_plain_python(seed: int) -> None:
    rng = random.Random(f"select {seed}")
    blob, view, msgs = made_block(rng, is_sealed=bool(seed % 2))
    seqs = list(msgs)
    low, high = sorted(rng.sample(seqs, 2))
    dead = [(low, low + 3), (high, high)]
    times = sorted(msgs[seq][0] for seq in rng.sample(seqs, 2))
    wanted = np.array(sorted(rng.sample(seqs, 30)), np.int64)
    live = [seq for seq in seqs if not any(a <= seq <= b for a, b in dead)]
    view = replace(view, dead=tuple(dead), live=len(live))

    def chosen(**options: Any) -> list[int]:
        return [row["seq"] for row in rows_of(blob, view, selection=Selection(**options))]

    assert chosen() == live
    assert chosen(start_seq=low, end_seq=high) == [seq for seq in live if low <= seq <= high]
    assert chosen(start_ts_ns=times[0], end_ts_ns=times[1]) == [
        seq for seq in live if times[0] <= msgs[seq][0] <= times[1]
    ]
    assert chosen(matcher=Matcher([b"s.1", b"s.3"])) == [
        seq for seq in live if msgs[seq][1][0] in (b"s.1", b"s.3")
    ]
    assert chosen(seqs=wanted) == [seq for seq in live if seq in wanted]


# --- checksums of many records at once ----------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_all_records_of_a_whole_block_are_found_by_its_messages(seed: int) -> None:
    """Also frames, tombstones and skips, before, between and behind; no damage is missed."""
    rng = random.Random(f"starts {seed}")
    blob, view, _ = made_block(rng, batches=rng.choice([1, 3, 40]))
    wanted = [record.offset for record in fmt.scan(blob[HEADER_BYTES:], HEADER_BYTES)]
    columns = columns_of(blob, view)
    ends = columns.offsets + columns.lengths
    kept = slice(None, None, rng.choice([1, 1, 2]))  # what is not told is found all the same
    told = (columns.offsets[kept], ends[kept])

    def starts(of: bytes, end: int = view.end_offset) -> list[int] | None:
        found = record_starts(of, *told, first=HEADER_BYTES, end=end)
        return None if found is None else found.tolist()

    assert starts(blob) == wanted
    assert starts(blob[:-1]) is None
    assert starts(blob, view.end_offset - 1) is None
    for _ in range(50):
        bad = bytearray(blob)
        bad[rng.randrange(HEADER_BYTES, len(blob))] ^= 1 << rng.randrange(8)
        assert starts(bytes(bad)) is None


@pytest.mark.parametrize("size", [0, 1, 100, 20_000])
def test_many_whole_records_are_whole(size: int) -> None:
    """Up to some hundred KiB, so that the shift over 16 KiB is used many times over."""
    rng = random.Random(size)
    msgs = [(b"s", b"", rng.randbytes(rng.randrange(size + 1))) for _ in range(300)]
    pieces, lengths, _ = fmt.encode_batch(1, TS, msgs)
    blob = b"".join(pieces)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    assert are_whole(blob, starts, ends)
    assert are_whole(blob, starts[::2], ends[::2])
    for _ in range(40):
        bad = bytearray(blob)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        assert not are_whole(bytes(bad), starts, ends)
    assert not are_whole(blob[:-1], starts, ends)


def test_numbers_beyond_the_end_are_zero() -> None:
    places = np.array([0, 4, 5, 100, -1])
    assert u32_at(b"\x01\0\0\0\x02\0\0\x01", places).tolist() == [1, 0x01000002, 0, 0, 0]
    assert u32_at(b"", np.array([0])).tolist() == [0]


# --- headers ------------------------------------------------------------------------------------

KEYS = st.sampled_from(["A", "B", "a", "Nats-Msg-Id", "", "K:"])
VALUES = st.sampled_from(["", "1", "a:b", "  x\t", "y" * 30, "é", "\x00"])
LINES = st.lists(
    st.one_of(
        st.builds("{}: {}".format, KEYS, VALUES), st.sampled_from(["junk", ":", " : ", "A:"])
    ),
    max_size=5,
)
VERSIONS = st.sampled_from(["NATS/1.0", "NATS/1.0 503 No: one", ""])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(VERSIONS, LINES)), max_size=8))
def test_header_maps_are_as_the_parser_has_them(rows: list[tuple[str, list[str]] | None]) -> None:
    blocks = [
        "\r\n".join([row[0], *row[1], "", ""]).encode() if row is not None else b"" for row in rows
    ]
    owners = [at for at, block in enumerate(blocks) if block]
    data = np.frombuffer(b"".join(blocks), np.uint8)
    ends = np.cumsum([len(blocks[at]) for at in owners], dtype=np.int64)
    found = header_maps(len(rows), np.array(owners, np.int64), data, ends)
    found.validate(full=True)
    assert found.to_pylist() == [parse_headers(block) for block in blocks]
