"""The history of a log, as positions on its way: up to which entry two logs are one. Pure.

A term has one leader, which appends its entries in order. So two logs that have the same term at
an index have the same entries up to it, and differ in all that comes after the last such index.

A node whose data an older copy replaced may forget that it led a term, or for whom it voted in
it, and the term may then be led twice: two logs have the same terms and different entries. So a
history holds, of each term, the *position* (index, term, chain) of its first entry and of those
1, 2, 4, 8 ... entries later. A chain speaks for all entries up to its own: where two histories
have different chains at one index, or where a term begins at two different indexes, the logs
parted before. Two leaders of one term begin it with equal entries at most as long as these hold
no time: the second entry of a term nearly always tells.

A log knows the positions of its own entries; those that its snapshots cover are in the snapshots.

    index     20   21   22   23   24   25   26   27   28   29        term 4 begins with entry 21
    term       3    4    4    4    4    4    4    4    4    4
    kept            *    *    *         *                   *        21, 21 + 1, + 2, + 4, + 8
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamd.types import Index, Term

POSITIONS_MAX = 1024  # remembered by one log: the newest, some 50 terms of a million entries each


class LogPosition(NamedTuple):
    """The identity of one entry, and by its chain of all entries before it."""

    index: Index  # type: ignore[assignment]  # a position is compared whole, never searched
    term: Term
    chain: int = 0  # 0: not known


class Common(NamedTuple):
    """The part of two logs that is known to have the same entries."""

    index: Index  # type: ignore[assignment]  # the last entry that both have
    is_exact: bool  # False: some entries after it may be common as well


class History:
    """Terms and positions of one log's entries, as far back as they are known.

    Of the entries that the log still has (after its base) the term of each is known, by runs: run i
    begins at `run_starts[i]` and goes up to the next one.
    """

    __slots__ = ("_positions", "next_index", "run_starts", "run_terms")

    def __init__(self, past: Iterable[LogPosition], base: LogPosition) -> None:
        """Begin with what a snapshot says of the entries up to the log's base."""
        self._positions: list[LogPosition] = bounded(past, last=base.index)
        if base.index and (not self._positions or self._positions[-1].term < base.term):
            self._positions.append(base)
        self.next_index: Index = next_index(self._positions, base.index)
        self.run_starts: list[Index] = []
        self.run_terms: list[Term] = []

    def up_to(self, last: Index) -> list[LogPosition]:
        """Return the positions up to `last`."""
        return bounded(self._positions, last=last)

    def note(self, position: LogPosition) -> None:
        """Take the next entry that begins a run of one term, or has index `next_index`."""
        index, term, _ = position
        if not self.run_terms or term != self.run_terms[-1]:
            self.run_starts.append(index)
            self.run_terms.append(term)
        positions = self._positions
        if index == self.next_index or not positions or term != positions[-1].term:
            positions.append(position)
            self.next_index = next_index(positions, index)
            if len(positions) > POSITIONS_MAX:
                del positions[0]

    def truncate(self, last: Index) -> None:
        """Forget all after `last`."""
        while self.run_starts and self.run_starts[-1] > last:
            self.run_starts.pop()
            self.run_terms.pop()
        self._positions = bounded(self._positions, last=last)
        self.next_index = next_index(self._positions, last)

    def forget_runs(self, base: Index, *, last: Index) -> None:
        """Forget the runs that end at or before the new base of a log that ends at `last`."""
        keep = max(bisect_right(self.run_starts, base + 1) - 1, 0)
        if base == last:
            keep = len(self.run_starts)
        del self.run_starts[:keep]
        del self.run_terms[:keep]


def bounded(positions: Iterable[LogPosition], *, last: Index) -> list[LogPosition]:
    """Return the positions up to `last`, and of those the newest."""
    return [position for position in positions if position.index <= last][-POSITIONS_MAX:]


def next_index(positions: Sequence[LogPosition], last: Index) -> Index:
    """Return which entry after `last` is the next to be kept if the term goes on; 0: none."""
    if not positions:
        return 0
    term = positions[-1].term
    start = next(position.index for position in positions if position.term == term)
    return start + (1 << (last - start).bit_length())


def term_at(positions: Sequence[LogPosition], index: Index) -> Term | None:
    """Return the term of the entry at `index`; None if it is not known any more."""
    known = [position.term for position in positions if position.index <= index]
    return known[-1] if known else None


def last_common(
    ours: Sequence[LogPosition], our_last: Index, theirs: Sequence[LogPosition], their_last: Index
) -> Common | None:
    """Return up to which entry two logs that end at `our_last` and `their_last` are one.

    None: they part before what is known of one of them. A history may begin amid a term: the
    place where its first term began is not known, and proves nothing.
    """
    ours, theirs = bounded(ours, last=our_last), bounded(theirs, last=their_last)
    common = _last_of_one_term(ours, our_last, theirs, their_last)
    if common is None:
        return None
    chains = {position.index: position.chain for position in theirs}
    same = 0  # the last entry with one chain in both
    for index, term, chain in ours:
        their_chain = chains.get(index, 0)
        if index > common or not (chain and their_chain):
            continue
        if chain == their_chain:
            same = index
            continue
        start = next(position.index for position in ours if position.term == term)
        last = max(same, start - 1)
        return Common(last, is_exact=last == same == index - 1)
    return Common(common, is_exact=True)


def _last_of_one_term(
    ours: Sequence[LogPosition], our_last: Index, theirs: Sequence[LogPosition], their_last: Index
) -> Index | None:
    """Return the last index at which both have an entry of one term that began at one index."""
    spans = {term: (start, end) for term, start, end in _terms(theirs, their_last)}
    for term, start, end in reversed(list(_terms(ours, our_last))):
        if term in spans:
            their_start, their_end = spans[term]
            are_known = start > 0 and their_start > 0
            if start == their_start or not are_known:
                return min(end, their_end)
    return None


def _terms(positions: Sequence[LogPosition], last: Index) -> Iterable[tuple[Term, Index, Index]]:
    """Yield (term, first index, last index) of each term; first index 0: not known."""
    starts: dict[Term, Index] = {}
    for position in positions:
        starts.setdefault(position.term, position.index)
    found = list(starts.items())
    for number, (term, start) in enumerate(found):
        end = found[number + 1][1] - 1 if number + 1 < len(found) else last
        is_known = number > 0 or start == 1
        yield term, start if is_known else 0, end
