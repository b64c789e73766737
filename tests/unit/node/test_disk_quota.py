"""How much more may be stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamd import limits
from streamd.node.resources.disk_quota import StorageQuota

MIB = 1 << 20


class Disk:
    """So many bytes are free; counts who asks."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.looks = 0

    def free_bytes(self, directory: str) -> int:
        self.looks += 1
        return self.free


def room_of(
    disk: Disk, *, storage_max: int = -1, used: int = 0, unwritten: Callable[[], int] = lambda: 0
) -> StorageQuota:
    return StorageQuota(
        disk, "/data", storage_max=storage_max, used=lambda: used, unwritten=unwritten
    )


@pytest.mark.parametrize("burst", [limits.ROOM_LOOK_BYTES + 1, 512 * MIB])
def test_a_burst_larger_than_a_look_covers_is_taken_if_there_is_room(burst: int) -> None:
    """What many clients send at once is one step: it was refused (10023) on an empty disk."""
    room = room_of(Disk(100 << 30))
    assert room.reserve(burst)
    assert room.reserve(1)


def test_a_full_disk_takes_nothing_and_is_looked_at_again() -> None:
    disk = Disk(100 << 30)
    room = room_of(disk)
    disk.free = 0
    assert not room.reserve(1)
    assert not room.reserve(limits.ROOM_LOOK_BYTES * 2)
    disk.free = 100 << 30
    assert room.reserve(1)


def test_the_operators_limit_counts_what_is_used() -> None:
    room = room_of(Disk(100 << 30), storage_max=64 * MIB, used=40 * MIB)
    assert room.reserve(24 * MIB)
    assert not room_of(Disk(100 << 30), storage_max=64 * MIB, used=40 * MIB).reserve(24 * MIB + 1)


def test_the_disk_is_looked_at_now_and_then() -> None:
    disk = Disk(100 << 30)
    room = room_of(disk)
    before = disk.looks
    for _ in range(4 * limits.ROOM_LOOK_BYTES // MIB):
        assert room.reserve(MIB)
    assert 3 <= disk.looks - before <= 5


@pytest.mark.parametrize("lag", [0, 12 * MIB])
def test_accepted_publishes_leave_the_reserve(lag: int) -> None:
    """A byte is stored twice, in the log and in a block, and there later: on a small disk, with a
    small reserve, bursts filled the disk before a look said that it was short."""
    disk = Disk(120 * MIB)
    owed = 0
    room = room_of(disk, unwritten=lambda: owed)
    while room.reserve(MIB):
        disk.free -= MIB  # logged
        owed += MIB
        written = max(0, owed - lag)
        owed -= written
        disk.free -= written
    assert room.reserve_bytes <= disk.free - owed <= room.reserve_bytes + 2 * MIB
