"""`ColumnsCache`: what many streams keep of their sealed blocks, within one bound."""

from __future__ import annotations

import tracemalloc

import pytest

from streamd.machine.indexes.columns import Columns, ColumnsCache
from streamd.subjects import Matcher
from tests.unit.machine.box import Box


def columns(rows: int) -> Columns:
    made = Columns()
    made.offsets.extend(range(rows))
    return made


def test_the_least_recently_used_columns_are_evicted() -> None:
    cache = ColumnsCache(bytes_max=3 * 24 * 100)
    one, two = cache.key(), cache.key()
    held = [columns(100) for _ in range(4)]
    cache.put(one, 1, held[0])
    cache.put(two, 1, held[1])
    cache.put(one, 2, held[2])
    assert cache.get(one, 1) is held[0]
    cache.put(two, 2, held[3])
    assert cache.get(two, 1) is None
    assert [cache.get(one, 1), cache.get(one, 2), cache.get(two, 2)] == [held[0], *held[2:]]
    assert cache.byte_count == 3 * 24 * 100


def test_dropped_or_replaced_columns_count_once() -> None:
    cache = ColumnsCache(bytes_max=10_000)
    key = cache.key()
    for rows in (100, 50):
        cache.put(key, 1, columns(rows))
    assert cache.byte_count == 50 * 24
    cache.drop(key, 1)
    cache.drop(key, 1)
    assert cache.byte_count == 0
    assert cache.get(key, 1) is None


def test_columns_larger_than_the_bound_are_held_alone() -> None:
    cache = ColumnsCache(bytes_max=100)
    key = cache.key()
    cache.put(key, 1, columns(10))
    cache.put(key, 2, columns(1000))
    assert cache.get(key, 1) is None
    assert cache.get(key, 2) is not None


def test_sealed_columns_that_nobody_asks_for_have_a_small_share() -> None:
    size = 24 * 100
    cache = ColumnsCache(bytes_max=100 * size, sealed_bytes_max=2 * size)
    key = cache.key()
    for block_no in range(50):
        cache.put_sealed(key, block_no, columns(100))
    assert cache.byte_count == 2 * size
    assert cache.get(key, 47) is None


def test_sealed_columns_stay_once_they_were_asked_for() -> None:
    size = 24 * 100
    cache = ColumnsCache(bytes_max=3 * size, sealed_bytes_max=size)
    key = cache.key()
    asked = columns(100)
    cache.put_sealed(key, 1, asked)
    assert cache.get(key, 1) is asked
    for block_no in range(2, 20):
        cache.put_sealed(key, block_no, columns(100))
    assert cache.get(key, 1) is asked
    assert cache.byte_count == 2 * size
    for block_no in range(20, 23):  # all that was asked for is within the bound, as before
        cache.put(key, block_no, columns(100))
    assert cache.byte_count == 3 * size
    assert cache.get(key, 1) is None
    cache.drop(key, 19)
    for block_no in range(20, 23):
        cache.drop(key, block_no)
    assert cache.byte_count == 0


def test_memory_of_a_stream_that_is_only_published_to_does_not_grow_with_it() -> None:
    """It was 24 bytes a message up to 128 MiB: 5,000,000 small messages filled that."""
    box = Box(block_bytes=10_000)
    cache = ColumnsCache(sealed_bytes_max=10_000)
    box.machine.index.blocks.use_cache(cache)
    held = []
    for number in range(1, 3001):
        box.put(b"a", b"%d" % number)
        if number % 1000 == 0:
            held.append(cache.byte_count)
    assert len(box.machine.index.blocks) > 10
    assert max(held) <= 10_000
    found = box.read(1)
    assert found is not None and found.payload == b"1"


def test_a_stream_with_many_blocks_reads_a_footer_once() -> None:
    box = Box(block_bytes=300, max_msgs_per_subject=1)
    loads: list[int] = []
    footers = box.blocks.load_footer
    box.machine.index.blocks._source = box.blocks

    def load(block_no: int) -> bytes:
        loads.append(block_no)
        return footers(block_no)

    box.blocks.load_footer = load  # type: ignore[method-assign]
    for number in range(200):
        box.put(b"a.%d" % number)
    box.machine = box.restored()
    for number in reversed(range(200)):
        box.put(b"a.%d" % number)
    assert len(loads) == len(set(loads)) > 20


def test_streams_may_share_a_cache_once_they_are_in_one_thread() -> None:
    cache = ColumnsCache()
    boxes = [Box(block_bytes=300, max_msgs_per_subject=1) for _ in range(2)]
    for number, box in enumerate(boxes):
        for key in range(50):
            box.put(b"a.%d" % key, b"%d" % number)
        box.machine = box.restored()
        assert cache.byte_count == 0
    for box in boxes:
        box.machine.index.blocks.use_cache(cache)
    for key in range(50):
        for number, box in enumerate(boxes):
            message = box.read(box.machine.index.lookup.last_of(b"a.%d" % key))
            assert message is not None and message.payload == b"%d" % number
            box.put(b"a.%d" % key, b"%d" % number)
    assert cache.byte_count > 0


@pytest.mark.parametrize(
    "patterns", [[b"a.*.x"], [b"a.5.x"], [b"a.7.x", b"b.>"], [b"none.*"], [b"a.>"]]
)
def test_matches_stay_known_when_subjects_come(patterns: list[bytes]) -> None:
    matcher = Matcher(patterns)
    made = Columns()
    for number in range(40):
        made.subjects.append(b"%c.%d.%c" % (b"ab"[number % 9 == 8], number, b"xy"[number > 30]))
        made.subject_ids.extend((number, number // 2))
        if number % 3 == 0:
            continue
        expected = {local for local, name in enumerate(made.subjects) if matcher.matches(name)}
        wanted, ids = made.wanted(matcher), made.subject_ids
        assert bool(wanted) is bool(expected)
        assert {local for local in range(number + 1) if local in wanted} == expected
        rows = [row for row in range(5, len(ids) - 1) if ids[row] in expected]
        assert list(wanted.rows(ids, 5, len(ids) - 1)) == rows
        assert wanted.count_of(ids[5:-1]) == len(rows)


def test_filter_matches_take_a_byte_a_subject() -> None:
    """It was a set of numbers for each filter: half a gigabyte for one block with many subjects
    and 64 consumers, beside the bound of all blocks of a node."""
    made = Columns()
    made.subjects += [b"s.%d.x" % number for number in range(20_000)]
    matcher = Matcher([b"s.*.x"])
    tracemalloc.start()
    try:
        made.wanted(matcher)
        assert tracemalloc.get_traced_memory()[0] < 3 * 20_000
    finally:
        tracemalloc.stop()
