"""The terms of a log's entries, as runs: in which history of its group a log belongs. Pure.

A term has one leader, which appends its entries in order. So two logs that have the same term at an
index have the same entries up to it, and differ in all that comes after the last such index. A log
knows the terms of its own entries; of what its snapshots cover they are in the snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from streamd.types import Index, Term

Run: TypeAlias = tuple[Index, Term]
"""Entries from this index on, up to the next run, have this term."""

RUNS_MAX = 256  # remembered of what snapshots cover: as many changes of leaders


def joined(earlier: Iterable[Run], later: Iterable[Run]) -> list[Run]:
    """Both, in order; a term that goes on in `later` begins where it began. The newest only."""
    runs: list[Run] = []
    for start, term in (*earlier, *later):
        if not runs or term > runs[-1][1]:
            runs.append((start, term))
    return runs[-RUNS_MAX:]


def upto(runs: Sequence[Run], index: Index) -> list[Run]:
    """Those that begin at `index` or before."""
    return [run for run in runs if run[0] <= index]


def term_at(runs: Sequence[Run], index: Index) -> Term | None:
    """The term of the entry at `index`; None if that is not known any more."""
    known = upto(runs, index)
    return known[-1][1] if known else None


def last_common(
    ours: Sequence[Run], our_last: Index, theirs: Sequence[Run], their_last: Index
) -> Index | None:
    """The last index at which two logs have the same entry, by their terms.

    None: it is before what is known of one of them. That a run began before it was known to does
    not matter: all of one term, from the first to the last that any log has, is of one leader.
    """
    ends: dict[Term, Index] = {}
    end = their_last
    for start, term in reversed(theirs):
        ends[term] = end
        end = start - 1
    end = our_last
    for start, term in reversed(ours):
        if term in ends:
            return min(end, ends[term])
        end = start - 1
    return None
