"""`FrameMap`: which frame of a file holds which bytes of its content. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple


class Frame(NamedTuple):
    """Place of one frame: where it is in the file, and what it holds."""

    at: int  # of its header in the file
    start: int  # in the content
    size: int
    stored: int  # bytes behind the header
    seq: int


class Extent(NamedTuple):
    """Bytes [start, end) of the content, which are in `frame`."""

    start: int
    end: int
    frame: Frame


class FrameMap:
    """Map of one file. Later frames cover earlier ones; places that none holds are zeros."""

    def __init__(self) -> None:
        self.size = 0  # of the content
        self.frames: list[Frame] = []  # all there are in the file, in its order
        self._starts: list[int] = []  # of the extents, which do not overlap
        self._ends: list[int] = []
        self._holders: list[Frame] = []

    def is_covering(self, start: int, end: int) -> bool:
        """Return True if a frame with these bytes would cover others."""
        return bool(self._ends) and self._find(start, end)[0] < self._find(start, end)[1]

    def add(self, frame: Frame) -> None:
        """Count a frame that was written after all others."""
        start, end = frame.start, frame.start + frame.size
        self.frames.append(frame)
        self.size = max(self.size, end)
        if not self._ends or start >= self._ends[-1]:
            self._starts.append(start)
            self._ends.append(end)
            self._holders.append(frame)
            return
        first, last = self._find(start, end)
        pieces = [Extent(start, end, frame)]
        if first < last:
            if self._starts[first] < start:
                pieces.insert(0, Extent(self._starts[first], start, self._holders[first]))
            if self._ends[last - 1] > end:
                pieces.append(Extent(end, self._ends[last - 1], self._holders[last - 1]))
        self._starts[first:last] = [piece.start for piece in pieces]
        self._ends[first:last] = [piece.end for piece in pieces]
        self._holders[first:last] = [piece.frame for piece in pieces]

    def end_at(self, size: int) -> None:
        """Let the content end at `size`: shorter, or longer by zeros."""
        first = bisect_left(self._starts, size)
        del self._starts[first:], self._ends[first:], self._holders[first:]
        if self._ends and self._ends[-1] > size:
            self._ends[-1] = size
        self.size = size

    def drop_last(self) -> None:
        """Forget the last frame of the file, which the content does not need any more."""
        self.frames.pop()

    def find(self, start: int, end: int) -> list[Extent]:
        """Return the extents that hold bytes of [start, end), in order."""
        first, last = self._find(start, end)
        return [
            Extent(self._starts[at], self._ends[at], self._holders[at]) for at in range(first, last)
        ]

    def _find(self, start: int, end: int) -> tuple[int, int]:
        return bisect_right(self._ends, start), bisect_left(self._starts, end)
