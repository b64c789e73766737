"""What the logs of one node keep in memory for followers a little behind: so much in all."""

from __future__ import annotations

from typing import Protocol

from streamd.limits import RAFT_WINDOWS_BYTES


class Windowed(Protocol):
    def drop_window(self) -> None:
        """Keep in memory only what is still needed here."""


class Windows:
    """Shared by the logs of groups with peers. Who grew longest ago gives its window up first: its
    followers have long had all of it, and one that has not is read for from the disk."""

    def __init__(self, bytes_max: int = RAFT_WINDOWS_BYTES) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._sizes: dict[Windowed, int] = {}  # those that grew longest ago first

    def note(self, log: Windowed, size: int) -> None:
        """`log` has grown; it holds `size` bytes now."""
        self.forget(log)
        self._sizes[log] = size
        self.used += size
        while self.used > self.bytes_max and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self.forget(oldest)
            oldest.drop_window()

    def forget(self, log: Windowed) -> None:
        """`log` holds nothing worth counting, or is no more."""
        self.used -= self._sizes.pop(log, 0)
