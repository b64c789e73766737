"""When the event loop writes the log, when it leaves that to the thread, and how much at once."""

from __future__ import annotations

from streamd.store.wal.wal_writer import (
    BATCH_BYTES_MAX,
    BATCH_BYTES_MIN,
    BATCH_S,
    REST_MAX_S,
    REST_S,
    BatchSize,
    Pace,
)


class Disk:
    """Virtual time with a disk that takes `took_s` for each write."""

    def __init__(self, took_s: float) -> None:
        self.pace = Pace()
        self.took_s = took_s
        self.now = 1000.0
        self.by_loop = 0
        self.stood_s = 0.0  # the loop, because of writes

    def write(self, took_s: float | None = None) -> None:
        took = self.took_s if took_s is None else took_s
        if self.pace.is_quick(self.now):
            self.by_loop += 1
            self.stood_s += took
            self.pace.note(self.now, self.now + took)
        self.now += took

    def write_for(self, seconds: float) -> int:
        """Write without a pause; returns how many writes that were."""
        count, end = 0, self.now + seconds
        while self.now < end:
            self.write()
            count += 1
        return count


def test_a_quick_disk_is_always_written_by_the_loop() -> None:
    disk = Disk(0.0002)
    assert disk.write_for(5.0) == disk.by_loop


def test_a_write_that_is_slow_now_and_then_is_forgiven() -> None:
    disk = Disk(0.0001)
    for _ in range(50):
        disk.write(0.006)
        for _ in range(100):
            disk.write()
    assert disk.by_loop == 50 * 101


def test_slow_spells_do_not_add_up() -> None:
    disk = Disk(0.00015)
    writes = 0
    for _ in range(60):
        for _ in range(30):
            disk.write(0.003)
        writes += 30 + disk.write_for(1.0)
    assert 0.9 * writes < disk.by_loop < writes


def test_one_long_write_after_a_rest_is_forgiven_too() -> None:
    disk = Disk(0.00015)
    disk.write_for(1.0)
    disk.write(0.2)
    disk.write_for(0.06)
    before = disk.by_loop
    disk.write(0.05)
    assert disk.write_for(1.0) == disk.by_loop - before - 1


def test_a_slow_disk_costs_the_loop_next_to_nothing() -> None:
    disk = Disk(0.003)
    disk.write_for(1.0)  # finds out
    stood_s = disk.stood_s
    disk.write_for(60.0)
    assert disk.stood_s - stood_s < 0.003 * 60.0


def test_a_disk_that_stood_still_is_tried_again_soon() -> None:
    disk = Disk(0.0001)
    disk.write_for(10.0)
    disk.write(2.0)
    assert not disk.pace.is_quick(disk.now)
    assert disk.pace.is_quick(disk.now + 2 * REST_S)


def test_a_disk_that_gets_quick_is_noticed() -> None:
    disk = Disk(0.003)
    disk.write_for(60.0)
    disk.took_s = 0.0001
    disk.write_for(REST_MAX_S + 0.1)
    before = disk.by_loop
    assert disk.write_for(1.0) == disk.by_loop - before


def test_batches_grow_while_the_disk_takes_them_quickly() -> None:
    size = BatchSize()
    for _ in range(10):
        size.note(size.bytes_max, size.bytes_max / 4e9)
    assert size.bytes_max == BATCH_BYTES_MAX
    size.note(BATCH_BYTES_MAX, BATCH_S * 1.1)
    assert size.bytes_max == BATCH_BYTES_MAX // 2


def test_on_a_slow_disk_batches_stay_small() -> None:
    size = BatchSize()
    for _ in range(10):
        size.note(size.bytes_max, size.bytes_max / 50e6)
        assert size.bytes_max == BATCH_BYTES_MIN


def test_small_batches_say_nothing_of_large_ones() -> None:
    size = BatchSize()
    for _ in range(10):
        size.note(1000, 0.0001)
    assert size.bytes_max == BATCH_BYTES_MIN
