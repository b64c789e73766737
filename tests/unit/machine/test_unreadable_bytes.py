"""The bytes of messages that can't be read are known, also where their block is gone whole."""

from __future__ import annotations

import pytest

from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.indexes.columns import Columns, ColumnsCache
from tests.unit.machine.box import Box

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


class Lossy:
    """The footers of a box's blocks, without those of the blocks in `lost`."""

    def __init__(self, box: Box) -> None:
        self.lost: set[int] = set()
        self.loaded: list[int] = []
        self._box = box

    def load_footer(self, block_no: int) -> bytes:
        if block_no in self.lost:
            raise CorruptionError(f"block {block_no}")
        self.loaded.append(block_no)
        return self._box.blocks.load_footer(block_no)

    def rescan(self, block_no: int, end_offset: int) -> Columns:
        raise CorruptionError(f"block {block_no}: {end_offset}")


@pytest.fixture(params=["file", "memory"])
def box(request: pytest.FixtureRequest) -> Box:
    """Several blocks, with and without headers; some messages of most blocks are deleted."""
    box = Box(block_bytes=400, storage=request.param)
    for number in range(40):
        box.store((b"a.%d" % number, HEADERS * (number % 3 == 0), b"x" * number))
    for seq in (1, 2, 9, 20, 33):
        box.do(commands.DELETE_MSG, seq, False)
    assert len(box.machine.index.blocks) >= 5
    return box


def lossy(box: Box) -> Lossy:
    """Footers are read from now on, and may be lost."""
    source = Lossy(box)
    index = box.machine.index
    index.blocks._source = source
    index.blocks.rescan = source.rescan
    index.blocks.use_cache(ColumnsCache(bytes_max=1))
    for block in index.blocks:
        if block.is_sealed:
            block.columns = None
    return source


def sizes(box: Box) -> dict[int, dict[int, int]]:
    """Return the bytes that each live message counts, by block."""
    index, found = box.machine.index, {}
    for block in index.blocks:
        seqs = filter(index.live.has, range(block.first_seq, block.last_seq + 1))
        found[block.block_no] = {seq: index.locations.size_of(seq) for seq in seqs}
    return found


def test_messages_of_a_readable_block_count_with_their_own_sizes(box: Box) -> None:
    known = sizes(box)
    source = lossy(box)
    seqs = [3, 4, 30]
    wanted = sum(size for rows in known.values() for seq, size in rows.items() if seq in seqs)
    assert box.machine.index.unreadable.bytes_of(seqs, count_max=0) == wanted
    assert len(source.loaded) <= 3


@pytest.mark.parametrize("lost", [[0], [1], [0, 2], [1, 2, 3]])
def test_a_lost_block_counts_with_all_its_live_messages(box: Box, lost: list[int]) -> None:
    known = sizes(box)
    source = lossy(box)
    index = box.machine.index
    source.lost = {index.blocks[at].block_no for at in lost}
    seqs = [seq for block_no in sorted(source.lost) for seq in known[block_no]]
    wanted = sum(size for block_no in source.lost for size in known[block_no].values())
    assert index.unreadable.bytes_of(seqs, count_max=1000) == wanted
    readable = next(b.block_no for b in index.blocks if b.block_no not in source.lost)
    one = min(known[readable])
    assert index.unreadable.bytes_of([*seqs, one], count_max=1000) == wanted + known[readable][one]


def test_blocks_are_counted_a_few_at_a_time_and_once_each(box: Box) -> None:
    known = sizes(box)
    source = lossy(box)
    index = box.machine.index
    source.lost = {index.blocks[1].block_no}
    seqs = sorted(known[index.blocks[1].block_no])
    answers = []
    while not answers or answers[-1] is None:
        before = len(source.loaded)
        answers.append(index.unreadable.bytes_of(seqs, count_max=1))
        assert len(source.loaded) <= before + 1
    assert len(answers) >= 3
    assert answers[-1] == sum(known[index.blocks[1].block_no].values())
    assert len(source.loaded) == len(set(source.loaded))
