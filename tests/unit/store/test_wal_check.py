"""The log is read again while it is in use: damage is found before a start would refuse it."""

from __future__ import annotations

import errno

import pytest

from streamd.errors import CorruptionError, DiskError
from streamd.store.wal.wal_recovery import recover
from streamd.types import HardState
from tests.unit.store.test_wal import Bed

VOTE = HardState(4, "c", 0)


def filled(*, entries: int = 60, size: int = 3000) -> Bed:
    """Some segments: a group with a hard state only, one with old entries, one with all others."""
    bed = Bed()
    bed.wal.append([(9, [], VOTE, 0)], lambda: None)
    bed.append(1, b"old", group=6)
    for index in range(1, entries + 1):
        bed.append(index, bytes([index]) * size)
        bed.thread.run()
    assert len(bed.segments()) >= 3
    return bed


def is_whole(bed: Bed) -> bool:
    try:
        assert sum(bed.wal.check()) > 0
    except CorruptionError:
        return False
    return True


def refuses(bed: Bed) -> bool:
    """Would a start?"""
    try:
        recover(bed.disk, "/wal")
    except CorruptionError:
        return True
    return False


def test_a_whole_log_is_whole_while_more_is_appended() -> None:
    bed = filled()
    pieces = bed.wal.check()
    read = 0
    for index in range(61, 200):
        read += next(pieces, 0)
        bed.append(index, bytes(3000))
        bed.thread.run()
    assert read + sum(pieces) > 60 * 3000
    assert is_whole(bed)
    bed.wal.close()
    bed.thread.run()
    bed.start()
    assert is_whole(bed)


def test_any_rotten_byte_that_a_start_would_refuse_is_found() -> None:
    """And what it does not find is padding, which says nothing."""
    bed = filled()
    found = {"check": 0, "start": 0}
    for name in (*bed.segments(), "manifest"):
        path = f"/wal/{name}"
        for offset in range(5, len(bed.disk.contents(path)), 211):
            bed.disk.flip(path, offset)
            is_found, is_refused = not is_whole(bed), refuses(bed)
            found["check"] += is_found
            found["start"] += is_refused
            assert is_found or not is_refused, f"{path} {offset}"
            bed.disk.flip(path, offset)
    assert found["check"] >= found["start"] > 600
    assert is_whole(bed)


@pytest.mark.parametrize("what", ["header", "middle", "last batch", "manifest"])
def test_missing_segments_are_named(what: str) -> None:
    bed = filled()
    first, last = bed.segments()[0], bed.segments()[-1]
    name = {"header": first, "middle": first, "last batch": last, "manifest": "manifest"}[what]
    path = f"/wal/{name}"
    size = len(bed.disk.contents(path))
    spots = {"header": [9, 2057], "middle": [30000], "manifest": [9, 4105]}
    if what == "last batch":
        blob = bed.disk.contents(path)
        spots[what] = [blob.rindex(bytes([60]) * 3000) + 10]
    for offset in spots[what]:
        assert offset < size
        bed.disk.flip(path, offset)
    with pytest.raises(CorruptionError, match=name):
        list(bed.wal.check())


def test_a_page_that_cannot_be_read_is_named() -> None:
    bed = filled()
    bed.disk.bad_read(f"/wal/{bed.segments()[1]}", 20000, 100)
    with pytest.raises(DiskError, match=bed.segments()[1]) as found:
        list(bed.wal.check())
    assert found.value.__cause__ is not None
    assert getattr(found.value.__cause__, "errno", 0) == errno.EIO


@pytest.mark.parametrize("which", [0, -1])
def test_a_damaged_log_is_begun_anew(which: int) -> None:
    """Once nothing needs its entries the damaged files go. Votes stay, and what came after."""
    bed = filled()
    old = bed.segments()
    bed.disk.flip(f"/wal/{old[which]}", 6000)
    assert not is_whole(bed)
    bed.wal.renew()
    bed.thread.run()
    assert bed.wal.is_renewing
    assert is_whole(bed), "what is given up is not looked at again"
    assert bed.wal.pinning_groups() == [5, 6]
    bed.wal.release(5, 60, 1, 60)
    bed.append(61)
    bed.thread.run()
    assert bed.wal.pinning_groups() == [6]
    bed.wal.release(6, 1, 1, 1)
    bed.thread.run()
    assert not bed.wal.is_renewing
    assert bed.wal.pinning_groups() == []
    assert not set(old) & set(bed.segments())
    assert is_whole(bed)
    assert not refuses(bed)
    bed.disk.crash(keep=0.0)
    bed.start()
    assert bed.wal.groups[9].hard_state == VOTE
    assert [each.data for each in bed.wal.read(5, 61, 62, 100)] == [b"x"]
    assert bed.wal.groups[5].first_index == 61
    assert (bed.wal.groups[6].first_index, bed.wal.groups[6].last_index) == (2, 1)
    assert not bed.errors
