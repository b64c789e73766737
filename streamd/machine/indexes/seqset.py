"""`SeqSet`: a set of seqs that is cheap for scattered deletes and for long runs alike.

Seqs are grouped in spans of 2,048; a span's members are the bits of one int, so a delete anywhere
costs one OR of 256 bytes at most. Which spans are full is a set of numbers again: a `SeqSet`. A key
written once, below a billion updates of others, leaves a billion deleted seqs behind it, and they
must cost nothing: neither memory nor a walk for who asks what comes after them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Final, TypeAlias

from streamd.types import Seq

Span: TypeAlias = list[int | bytes]
"""A span in a snapshot: [key, bits of its members], or a run of full ones: [key, how many]."""

_SHIFT: Final = 11
_SPAN: Final = 1 << _SHIFT
_LOW: Final = _SPAN - 1
_FULL: Final = (1 << _SPAN) - 1
_FEW: Final = 256  # members of a span: taken out one by one as fast as all its bits looked at


def _bits(low: int, high: int) -> int:
    """Bits low..high inclusive."""
    return ((1 << (high - low + 1)) - 1) << low


def _members(bits: int) -> list[int]:
    """The numbers of the bits that are set, ascending."""
    count = bits.bit_count()
    if count < _FEW:
        found = []
        while bits:
            low = bits & -bits
            found.append(low.bit_length() - 1)
            bits ^= low
        return found
    return list(compress(range(bits.bit_length()), map(int, bin(bits)[:1:-1])))


class SeqSet:
    """A set of seqs. Not a queue, not ordered by insertion; iteration is ascending."""

    __slots__ = ("_full", "_low", "_spans", "count")

    def __init__(self) -> None:
        self._spans: dict[int, int] = {}  # those with some members, and not all
        self._full: SeqSet | None = None  # the keys of the others; None: there never was one
        self._low = 0  # no key in `_spans` is below it: what is discarded is mostly near to that
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, seq: Seq) -> bool:
        bits = self._spans.get(seq >> _SHIFT)
        if bits is None:
            full = self._full
            return full is not None and seq >> _SHIFT in full
        return bool(bits >> (seq & _LOW) & 1)

    def isdisjoint(self, seqs: Iterable[Seq]) -> bool:
        """True if none of `seqs` is a member."""
        return not any(map(self.__contains__, seqs))

    def add(self, seq: Seq) -> bool:
        """Add `seq`; False if it was there."""
        before = self.count
        self._add_bits(seq >> _SHIFT, 1 << (seq & _LOW))
        return self.count > before

    def add_range(self, first: Seq, last: Seq) -> int:
        """Add first..last inclusive; return how many were new."""
        if last < first:
            return 0
        before = self.count
        low, high = first >> _SHIFT, last >> _SHIFT
        if low == high:
            self._add_bits(low, _bits(first & _LOW, last & _LOW))
        else:
            self._add_bits(low, _bits(first & _LOW, _LOW))
            self._fill(low + 1, high - 1)
            self._add_bits(high, _bits(0, last & _LOW))
        return self.count - before

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
        if not bits:
            return
        old = self._spans.get(key)
        if old is None:
            if self._full is not None and key in self._full:
                return
            old = 0
            if key < self._low:
                self._low = key
        new = old | bits
        if new == _FULL:
            self._fill(key, key)
        else:
            self.count += new.bit_count() - old.bit_count()
            self._spans[key] = new

    def _fill(self, low: int, high: int) -> None:
        """Add all seqs of the spans low..high."""
        if high < low:
            return
        for key in self._partial(low, high):
            self.count -= self._spans.pop(key).bit_count()
        if self._full is None:
            self._full = SeqSet()
        self.count += self._full.add_range(low, high) * _SPAN

    def _partial(self, low: int, high: int) -> list[int]:
        """The keys low..high of spans with some members, and not all."""
        spans = self._spans
        if high - low < len(spans):
            return [key for key in range(low, high + 1) if key in spans]
        return [key for key in spans if low <= key <= high]

    def discard_below(self, seq: Seq) -> int:
        """Remove every member below `seq`; return how many there were."""
        if not self.count:
            return 0
        before = self.count
        limit = seq >> _SHIFT
        spans = self._spans
        for key in self._partial(self._low, limit - 1):
            self.count -= spans.pop(key).bit_count()
        self._low = max(self._low, limit)
        bits = spans.get(limit, 0)
        full = self._full
        if full is not None:
            self.count -= full.discard_below(limit) * _SPAN
            if seq & _LOW and limit in full:  # from here on it is a part of one
                full.discard_below(limit + 1)
                bits = _FULL
        if bits:
            kept = bits >> (seq & _LOW) << (seq & _LOW)
            self.count -= bits.bit_count() - kept.bit_count()
            if kept:
                spans[limit] = kept
            else:
                del spans[limit]
        return before - self.count

    def clear(self) -> None:
        """Remove all."""
        self._spans.clear()
        self._full = None
        self.count = 0

    def next_absent(self, seq: Seq) -> Seq:
        """Return the smallest seq >= `seq` that is not a member."""
        key = seq >> _SHIFT
        offset = seq & _LOW
        while True:
            bits = self._spans.get(key)
            if bits is not None:
                holes = (~bits & _FULL) >> offset
                if holes:
                    return (key << _SHIFT) + offset + (holes & -holes).bit_length() - 1
                key += 1
            elif self._full is not None and key in self._full:
                key = self._full.next_absent(key)
            else:
                return (key << _SHIFT) + offset
            offset = 0

    def prev_absent(self, seq: Seq) -> Seq:
        """Return the largest seq <= `seq` that is not a member (below 0 never happens: 0 is not
        a seq, so it is always absent)."""
        key = seq >> _SHIFT
        top = seq & _LOW
        while True:
            bits = self._spans.get(key)
            if bits is not None:
                holes = ~bits & _bits(0, top)
                if holes:
                    return (key << _SHIFT) + holes.bit_length() - 1
                key -= 1
            elif self._full is not None and key in self._full:
                key = self._full.prev_absent(key)
            else:
                return (key << _SHIFT) + top
            top = _LOW

    def count_below(self, seq: Seq) -> int:
        """Return how many members are below `seq`."""
        if not self.count:
            return 0
        limit = seq >> _SHIFT
        total = sum(bits.bit_count() for key, bits in self._spans.items() if key < limit)
        bits = self._spans.get(limit, 0)
        if self._full is not None:
            total += self._full.count_below(limit) * _SPAN
            if limit in self._full:
                bits = _FULL
        return total + (bits & ((1 << (seq & _LOW)) - 1)).bit_count()

    def has_any(self, first: Seq, last: Seq) -> bool:
        """True if any of first..last inclusive is a member."""
        if not self.count:
            return False
        low, high = first >> _SHIFT, last >> _SHIFT
        if self._full is not None and self._full.has_any(low, high):
            return True
        for key in self._partial(low, high):
            base = key << _SHIFT
            if self._spans[key] & _bits(max(first - base, 0), min(last - base, _LOW)):
                return True
        return False

    def _in_order(self) -> Iterator[tuple[int, int, int]]:
        """(first key, last key, bits), ascending: of a span, or of a run of full ones."""
        spans = self._spans
        some = ((key, key, spans[key]) for key in sorted(spans))
        if self._full is None:
            return some
        return heapq.merge(some, ((low, high, _FULL) for low, high in self._full.ranges()))

    def ranges(self) -> Iterator[tuple[Seq, Seq]]:
        """Yield the members as ascending inclusive ranges, neighbours joined."""
        low = high = -1
        for key, last_key, bits in self._in_order():
            base = key << _SHIFT
            while bits:
                start = (bits & -bits).bit_length() - 1
                run = bits >> start
                length = (~run & (run + 1)).bit_length() - 1
                end = base + start + length - 1
                if bits == _FULL:
                    end = (last_key << _SHIFT) + _LOW
                if base + start != high + 1 or high < 0:
                    if high >= 0:
                        yield low, high
                    low = base + start
                high = end
                bits = run >> length << (start + length)
        if high >= 0:
            yield low, high

    def page(self, offset: int, size: int) -> list[Seq]:
        """Return up to `size` members, ascending, behind the first `offset` of them. Costs what it
        returns and a step for each span of 2,048 seqs before that; a run of full ones is one."""
        found: list[Seq] = []
        for key, last_key, bits in self._in_order():
            base = key << _SHIFT
            count = (last_key - key + 1) << _SHIFT if bits == _FULL else bits.bit_count()
            if offset >= count:
                offset -= count
                continue
            wanted = size - len(found)
            if count == 1 and wanted:
                found.append(base + bits.bit_length() - 1)
            elif bits == _FULL:
                found += range(base + offset, base + min(count, offset + wanted))
            else:
                found += [base + bit for bit in _members(bits)[offset : offset + wanted]]
            offset = 0
            if len(found) >= size:
                break
        return found

    def __iter__(self) -> Iterator[Seq]:
        for low, high in self.ranges():
            yield from range(low, high + 1)

    def copy(self) -> SeqSet:
        """Another set of the same seqs."""
        made = SeqSet()
        made._spans = self._spans.copy()
        made._full = self._full.copy() if self._full is not None else None
        made._low = self._low
        made.count = self.count
        return made

    def to_state(self) -> list[Span]:
        """Return a msgpack-able form: [span key, run of full spans or the span's bits as bytes]."""
        return [
            [key, last_key - key + 1]
            if bits == _FULL
            else [key, bits.to_bytes((bits.bit_length() + 7) // 8, "little")]
            for key, last_key, bits in self._in_order()
        ]

    @classmethod
    def from_state(cls, state: Iterable[Span]) -> SeqSet:
        """Inverse of `to_state`."""
        made = cls()
        for key, value in state:
            assert isinstance(key, int), key
            if isinstance(value, int):
                made._fill(key, key + value - 1)
            else:
                made._add_bits(key, int.from_bytes(value, "little"))
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
