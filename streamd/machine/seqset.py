"""`SeqSet`: a set of seqs that is cheap for scattered deletes and for long runs alike.

Seqs are grouped in spans of 2,048; a span's members are the bits of one int, and a full span is one
shared int, so a delete anywhere costs one OR of 256 bytes at most and ten million deleted
messages cost little more than a bit each. Replaces the sorted list of ranges, whose insertions in
the middle get slow when every publish deletes somewhere (a key-value bucket).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from streamd.types import Seq

_SHIFT: Final = 11
_SPAN: Final = 1 << _SHIFT
_LOW: Final = _SPAN - 1
_FULL: Final = (1 << _SPAN) - 1


def _bits(low: int, high: int) -> int:
    """Bits low..high inclusive."""
    return ((1 << (high - low + 1)) - 1) << low


class SeqSet:
    """A set of seqs. Not a queue, not ordered by insertion; iteration is ascending."""

    __slots__ = ("_count", "_spans")

    def __init__(self) -> None:
        self._spans: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, seq: Seq) -> bool:
        bits = self._spans.get(seq >> _SHIFT)
        return bits is not None and bool(bits >> (seq & _LOW) & 1)

    def isdisjoint(self, seqs: Iterable[Seq]) -> bool:
        """True if none of `seqs` is a member."""
        return not any(map(self.__contains__, seqs))

    def add(self, seq: Seq) -> bool:
        """Add `seq`; False if it was there."""
        key = seq >> _SHIFT
        bits = self._spans.get(key, 0)
        bit = 1 << (seq & _LOW)
        if bits & bit:
            return False
        bits |= bit
        self._spans[key] = _FULL if bits == _FULL else bits
        self._count += 1
        return True

    def add_range(self, first: Seq, last: Seq) -> int:
        """Add first..last inclusive; return how many were new."""
        if last < first:
            return 0
        before = self._count
        spans = self._spans
        for key in range(first >> _SHIFT, (last >> _SHIFT) + 1):
            base = key << _SHIFT
            mask = _bits(max(first - base, 0), min(last - base, _LOW))
            old = spans.get(key, 0)
            new = old | mask
            self._count += new.bit_count() - old.bit_count()
            spans[key] = _FULL if new == _FULL else new
        return self._count - before

    def add_all(self, seqs: Iterable[Seq]) -> None:
        """Add ascending seqs; where they are close, for less than adding each."""
        key = bits = 0
        for seq in seqs:
            if seq >> _SHIFT != key:
                self._add_bits(key, bits)
                key, bits = seq >> _SHIFT, 0
            bits |= 1 << (seq & _LOW)
        self._add_bits(key, bits)

    def _add_bits(self, key: int, bits: int) -> None:
        if bits:
            old = self._spans.get(key, 0)
            new = old | bits
            self._count += new.bit_count() - old.bit_count()
            self._spans[key] = _FULL if new == _FULL else new

    def discard_below(self, seq: Seq) -> int:
        """Remove every member below `seq`; return how many there were."""
        if not self._count:
            return 0
        before = self._count
        limit = seq >> _SHIFT
        spans = self._spans
        for key in [key for key in spans if key < limit]:
            self._count -= spans.pop(key).bit_count()
        bits = spans.get(limit)
        if bits is not None:
            kept = bits >> (seq & _LOW) << (seq & _LOW)
            self._count -= bits.bit_count() - kept.bit_count()
            if kept:
                spans[limit] = kept
            else:
                del spans[limit]
        return before - self._count

    def clear(self) -> None:
        """Remove all."""
        self._spans.clear()
        self._count = 0

    def next_absent(self, seq: Seq) -> Seq:
        """Return the smallest seq >= `seq` that is not a member."""
        spans = self._spans
        key = seq >> _SHIFT
        offset = seq & _LOW
        while True:
            bits = spans.get(key)
            if bits is None:
                return (key << _SHIFT) + offset
            if bits is not _FULL:
                holes = (~bits & _FULL) >> offset
                if holes:
                    return (key << _SHIFT) + offset + (holes & -holes).bit_length() - 1
            key += 1
            offset = 0

    def prev_absent(self, seq: Seq) -> Seq:
        """Return the largest seq <= `seq` that is not a member (below 0 never happens: 0 is not
        a seq, so it is always absent)."""
        spans = self._spans
        key = seq >> _SHIFT
        top = seq & _LOW
        while True:
            bits = spans.get(key)
            if bits is None:
                return (key << _SHIFT) + top
            if bits is not _FULL:
                holes = ~bits & _bits(0, top)
                if holes:
                    return (key << _SHIFT) + holes.bit_length() - 1
            key -= 1
            top = _LOW

    def count_below(self, seq: Seq) -> int:
        """Return how many members are below `seq`."""
        if not self._count:
            return 0
        limit = seq >> _SHIFT
        total = sum(bits.bit_count() for key, bits in self._spans.items() if key < limit)
        bits = self._spans.get(limit)
        if bits is not None:
            total += (bits & ((1 << (seq & _LOW)) - 1)).bit_count()
        return total

    def has_any(self, first: Seq, last: Seq) -> bool:
        """True if any of first..last inclusive is a member."""
        if not self._count:
            return False
        spans = self._spans
        for key in range(first >> _SHIFT, (last >> _SHIFT) + 1):
            bits = spans.get(key)
            if bits is not None:
                base = key << _SHIFT
                if bits & _bits(max(first - base, 0), min(last - base, _LOW)):
                    return True
        return False

    def ranges(self) -> Iterator[tuple[Seq, Seq]]:
        """Yield the members as ascending inclusive ranges, neighbours joined."""
        low = high = -1
        for key in sorted(self._spans):
            bits = self._spans[key]
            base = key << _SHIFT
            while bits:
                start = (bits & -bits).bit_length() - 1
                run = bits >> start
                length = (~run & (run + 1)).bit_length() - 1
                if base + start == high + 1 and high >= 0:
                    high += length
                else:
                    if high >= 0:
                        yield low, high
                    low, high = base + start, base + start + length - 1
                bits = run >> length << (start + length)
        if high >= 0:
            yield low, high

    def __iter__(self) -> Iterator[Seq]:
        for low, high in self.ranges():
            yield from range(low, high + 1)

    def copy(self) -> SeqSet:
        """Another set of the same seqs."""
        made = SeqSet()
        made._spans = self._spans.copy()
        made._count = self._count
        return made

    def to_state(self) -> list[Any]:
        """Return a msgpack-able form: [span key, run of full spans or the span's bits as bytes]."""
        out: list[Any] = []
        run_start = run_end = -2
        for key in sorted(self._spans):
            bits = self._spans[key]
            if bits == _FULL:
                if key == run_end:
                    run_end += 1
                    out[-1][1] = run_end - run_start
                else:
                    run_start, run_end = key, key + 1
                    out.append([key, 1])
            else:
                out.append([key, bits.to_bytes((bits.bit_length() + 7) // 8, "little")])
        return out

    @classmethod
    def from_state(cls, state: list[Any]) -> SeqSet:
        """Inverse of `to_state`."""
        made = cls()
        for key, value in state:
            if isinstance(value, int):
                for full in range(key, key + value):
                    made._spans[full] = _FULL
                made._count += value * _SPAN
            else:
                bits = int.from_bytes(value, "little")
                made._spans[key] = bits
                made._count += bits.bit_count()
        return made


def as_ranges(seqs: Iterable[Seq]) -> list[tuple[Seq, Seq]]:
    """Ascending seqs as inclusive ranges."""
    out: list[tuple[Seq, Seq]] = []
    for seq in seqs:
        if out and out[-1][1] + 1 == seq:
            out[-1] = (out[-1][0], seq)
        else:
            out.append((seq, seq))
    return out
