"""Share of memory that many holders of one node may keep together, be they a few or thousands."""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    def give_up(self) -> int:
        """Let go of what can be had from elsewhere; return how much of it is left all the same:
        nothing, if asked again before it has grown."""


class MemoryShare:
    """Budget of holders: the holder that grew longest ago gives up first, by its noted size."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._sizes: dict[Holder, int] = {}  # those that grew longest ago first

    def note(self, holder: Holder, size: int) -> None:
        """`holder` has grown; it holds `size` bytes now. Others may have to give up, it never."""
        self._count(holder, size)
        while self.used > self.bytes_max and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            left = size if oldest is holder else oldest.give_up()
            self._count(oldest, left)  # from here on it is the newest

    def forget(self, holder: Holder) -> None:
        """`holder` holds nothing worth counting, or is no more."""
        self.used -= self._sizes.pop(holder, 0)

    def _count(self, holder: Holder, size: int) -> None:
        self.used -= self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size
            self.used += size
