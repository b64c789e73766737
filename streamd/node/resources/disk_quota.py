"""Quotas for what is stored: the operator's limits, and the space left on the disk.

A publish is refused (10023) while there is still room for what was acked before to be moved from
the log into blocks and snapshots; a disk that is really full would stop the log itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamd import limits
from streamd.store.disk import Disk


class StorageQuota:
    """Quota of streams on files. Counts down what was found free, and asks the disk again when
    that is used up."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        storage_max: int,
        used: Callable[[], int],
        unwritten: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._storage_max = storage_max  # bytes of messages, all file streams; -1: no limit
        self._used = used
        self._unwritten = unwritten  # bytes that are in the log, and not yet in their blocks
        self._left = 0
        self._is_told = False  # that the disk is short
        free = int(disk.free_bytes(directory))
        # A small disk gets small segments, so that the log does not eat what streams may use.
        self.segment_bytes = min(
            limits.WAL_SEGMENT_BYTES,
            max(limits.WAL_SEGMENT_BYTES_MIN, free // limits.WAL_SEGMENT_FRACTION),
        )
        self.snapshot_every_bytes = self.segment_bytes * 3 // 2
        self.reserve_bytes = self.segment_bytes * limits.RESERVE_SEGMENTS

    def reserve(self, byte_count: int) -> bool:
        """True if `byte_count` more bytes may be logged and stored; then they count as used."""
        self._left -= byte_count
        if self._left >= 0:
            return True
        free = self._free_bytes()
        # What is stored is written twice: to the log, and, maybe much later, to a block.
        left = (free - self.reserve_bytes - self._unwritten()) // 2
        if self._storage_max >= 0:
            left = min(left, self._storage_max - self._used())
        # Ask again after a share of it: others use the disk as well.
        self._left = max(min(left, limits.ROOM_LOOK_BYTES) - byte_count, 0)
        return left >= byte_count

    def is_disk_short(self) -> bool:
        """True if little more than the reserve is free."""
        return self._free_bytes() < self.reserve_bytes * 2

    def report(self, *, warn: Callable[..., object], info: Callable[..., object]) -> None:
        """Log that the disk is short, once, before something stops: a follower takes what a leader
        with a larger disk sends, and what a leader refuses only its clients hear."""
        is_short = self.is_disk_short()
        if is_short and not self._is_told:
            free = self._free_bytes()
            warn("disk is almost full", path=self._directory, free_bytes=free)
        elif self._is_told and not is_short:
            info("disk has room again", path=self._directory)
        self._is_told = is_short

    def _free_bytes(self) -> int:
        """Return the bytes that are free; 0 if the directory can't be read (`store_watch` finds out
        why)."""
        try:
            return int(self._disk.free_bytes(self._directory))
        except OSError:
            return 0


class MemoryQuota:
    """Quota of streams in memory: the operator's limit only."""

    def __init__(self, *, memory_max: int, used: Callable[[], int]) -> None:
        self._memory_max = memory_max
        self._used = used

    def reserve(self, byte_count: int) -> bool:
        """True if `byte_count` more bytes may be stored."""
        return self._memory_max < 0 or self._used() + byte_count <= self._memory_max


class Quotas(NamedTuple):
    """Quotas of one node, by where a stream's messages are."""

    storage: StorageQuota
    memory: MemoryQuota
