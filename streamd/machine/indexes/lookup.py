"""Reading a stream's index: which messages match a filter, how many, since when.

What is asked by seq or time is in `places`; `index.StreamIndex` adds what changes the index.
Everybody but the stream's machine sees only these questions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Final

from streamd.machine.base import LENGTH_MASK
from streamd.machine.indexes.columns import Block, Columns
from streamd.machine.indexes.message_locations import (
    COUNT,
    FIRST,
    LAST,
    IndexPlaces,
    Loc,
    SubjectRow,
)
from streamd.subjects import Matcher
from streamd.types import Seq

NEAR_MSGS: Final = 4096  # looked at one after another before all subjects are asked


class IndexLookup(IndexPlaces):
    """The messages of a stream, to be asked about."""

    # --- which match ------------------------------------------------------------------------------

    def select(
        self, start: Seq, matcher: Matcher | None, limit: int, scan_limit: int
    ) -> tuple[list[Loc], Seq]:
        """Live matching messages from `start` on, in order, at most `limit`, after looking at no
        more than about `scan_limit`. The second result is the seq up to which (exclusive) all was
        looked at: where to go on."""
        found: list[Loc] = []
        seq = max(start, self.first_seq)
        matcher = self._if_it_tells_apart(matcher)
        if matcher is not None and seq <= self.last_seq and not self._may_match(matcher, seq):
            return found, self.last_seq + 1
        while seq <= self.last_seq and limit > 0 and scan_limit > 0:
            block = self._block_from(seq)
            if block is None:
                seq = self.last_seq + 1
                break
            if not block.live:
                seq = block.last_seq + 1
                continue
            columns = self._columns(block)
            low = columns.position(seq)
            high = min(len(columns), low + scan_limit)
            if matcher is None and not self._has_deleted(columns, low, high):
                high = min(high, low + limit)
                found += _run(columns, block.block_no, low, high)
                limit -= high - low
                scan_limit -= high - low
            else:
                had = len(found)
                stop = self._pick(columns, block.block_no, low, high, matcher, limit, found)
                limit -= len(found) - had
                scan_limit -= stop - low
                high = stop
            seq = columns.seq_at(high) if high < len(columns) else block.last_seq + 1
        return found, max(seq, start)

    def _pick(
        self,
        columns: Columns,
        block_no: int,
        low: int,
        high: int,
        matcher: Matcher | None,
        limit: int,
        found: list[Loc],
    ) -> int:
        """Collect live matching rows of low..high-1 until `limit` more are found; return the row
        after the last one looked at."""
        rows: Iterable[int] = range(low, high)
        if matcher is not None:
            rows = columns.wanted(matcher).rows(columns.subject_ids, low, high)
        offsets, lengths = columns.offsets, columns.lengths
        first_seq, deleted = self.first_seq, self.deleted
        has_deleted = len(deleted) > 0
        room = limit
        for at in rows:
            seq = columns.seq_at(at)
            if seq < first_seq or (has_deleted and seq in deleted):
                continue
            found.append((seq, block_no, offsets[at], lengths[at] & LENGTH_MASK))
            room -= 1
            if not room:
                return at + 1
        return high

    def next_match(self, start: Seq, matcher: Matcher | None) -> Seq:
        """The first live matching seq >= `start`; 0 if there is none."""
        matcher = self._if_it_tells_apart(matcher)
        if matcher is None:
            seq = self.next_live(start)
            return seq if seq <= self.last_seq else 0
        if matcher.literal is not None:
            row = self.subjects.get(matcher.literal)
            if row is None or row[LAST] < start:
                return 0
            if row[FIRST] >= start and self.is_live(row[FIRST]):
                return int(row[FIRST])
        found, after = self.select(start, matcher, 1, NEAR_MSGS)
        if not found and after <= self.last_seq:
            # Not near: the subjects may know how far it is.
            ahead = [row[FIRST] for row in self._rows(matcher) if row[LAST] >= after]
            if not ahead:
                return 0
            found, _ = self.select(max(after, min(ahead)), matcher, 1, 1 << 62)
        return found[0][0] if found else 0

    def last_match(self, matcher: Matcher | None, before: Seq | None = None) -> Seq:
        """The last live matching seq (below `before`, if given); 0 if there is none."""
        if not self.count:
            return 0
        matcher = self._if_it_tells_apart(matcher)
        if before is None or before > self.last_seq:
            if matcher is None:
                return max(self.deleted.prev_absent(self.last_seq), 0)
            if matcher.literal is not None:
                return self.last_of(matcher.literal)
            last = max([row[LAST] for row in self._rows(matcher)], default=0)
            if not last or self.is_live(last):
                return last
            rows, best = self.subjects, 0
            for name in sorted(self._names(matcher), key=lambda n: rows[n][LAST], reverse=True):
                if rows[name][LAST] <= best:  # an upper bound
                    break
                best = max(best, self.last_of(name))
            return best
        return self._search_back(before - 1, matcher)

    def _search_back(self, seq: Seq, matcher: Matcher | None) -> Seq:
        """The last live matching seq <= `seq`; 0 if there is none."""
        for block in reversed(self.blocks):
            if not block.live or block.first_seq > seq:
                continue
            if block.last_seq < self.first_seq:
                break
            columns = self._columns(block)
            ids = columns.subject_ids
            wanted = None if matcher is None else columns.wanted(matcher)
            if wanted is not None and not wanted:
                continue
            for at in range(columns.position(seq + 1) - 1, -1, -1):
                if wanted is None or ids[at] in wanted:
                    found = columns.seq_at(at)
                    if self.is_live(found):
                        return found
        return 0

    def _may_match(self, matcher: Matcher, start: Seq) -> bool:
        """False if surely nothing from `start` on matches (asked of literal filters only)."""
        if matcher.literal is None:
            return True
        row = self.subjects.get(matcher.literal)
        return row is not None and row[LAST] >= start

    # --- of one subject ---------------------------------------------------------------------------

    def last_of(self, subject: bytes) -> Seq:
        """The last live seq of `subject`; 0 if there is none."""
        row = self.subjects.get(subject)
        if row is None:
            return 0
        if not self.is_live(row[LAST]):
            if row[COUNT] == 1 and self.is_live(row[FIRST]):
                row[LAST] = row[FIRST]
            else:
                row[LAST] = self._search_back(row[LAST] - 1, Matcher.of_subject(subject))
        return int(row[LAST])

    def first_of(self, subject: bytes) -> Seq:
        """The first live seq of `subject`; 0 if there is none."""
        row = self.subjects.get(subject)
        if row is None:
            return 0
        if not self.is_live(row[FIRST]):
            if row[COUNT] == 1:
                row[FIRST] = self.last_of(subject)
            else:
                found, _ = self.select(row[FIRST] + 1, Matcher.of_subject(subject), 1, 1 << 62)
                row[FIRST] = found[0][0]
        return int(row[FIRST])

    def count_of(self, subject: bytes) -> int:
        """Count the live messages of `subject`."""
        row = self.subjects.get(subject)
        return int(row[COUNT]) if row is not None else 0

    # --- of many ----------------------------------------------------------------------------------

    def subjects_matching(self, matcher: Matcher | None) -> Iterator[tuple[bytes, Seq, Seq]]:
        """(subject, first seq, last seq) of every matching subject with messages."""
        for name in self._names(matcher):
            yield name, self.first_of(name), self.last_of(name)

    def counts_matching(self, matcher: Matcher | None) -> dict[bytes, int]:
        """Count the live messages of each matching subject that has any."""
        rows = self.subjects
        return {name: rows[name][COUNT] for name in self._names(matcher)}

    def counts_page(
        self, matcher: Matcher | None, offset: int, size: int
    ) -> tuple[int, dict[bytes, int]]:
        """Count the matching subjects; for a page of them, by name, return `counts_matching`."""
        rows = self.subjects
        if self._if_it_tells_apart(matcher) is None:
            # Page after page is asked for: of a million names the order costs more than all else.
            total = len(rows)
            offset = min(offset, total)
            names = self.names.in_order()
            if len(names) > total:  # some are gone
                names = list(islice(filter(rows.__contains__, names), offset + size))
        else:
            names = sorted(self._names(matcher))
            total = len(names)
        return total, {name: rows[name][COUNT] for name in names[offset : offset + size]}

    def last_seqs(self, matcher: Matcher | None) -> list[Seq]:
        """The last seq of every matching subject, ascending."""
        lasts = [row[LAST] for row in self._rows(matcher)]
        if self.deleted and not self.deleted.isdisjoint(lasts):  # some are upper bounds only
            lasts = [self.last_of(name) for name in self._names(matcher)]
        lasts.sort()
        return lasts

    def count_from(self, seq: Seq, matcher: Matcher | None) -> int:
        """Count the live matching messages with a seq >= `seq`."""
        if seq > self.last_seq:
            return 0
        matcher = self._if_it_tells_apart(matcher)
        if matcher is None:
            if seq <= self.first_seq:
                return self.count
            return self.count - (seq - self.first_seq - self.deleted.count_below(seq))
        if seq <= self.first_seq:
            return sum([row[COUNT] for row in self._rows(matcher)])
        matching = 0
        above = 0  # messages of subjects that lie wholly at or above seq
        is_split = False  # some subject lies on both sides
        for row in self._rows(matcher):
            matching += row[COUNT]
            if row[FIRST] >= seq:
                above += row[COUNT]
            elif row[LAST] >= seq:
                is_split = True
        if not is_split:
            return above
        if self.last_seq - seq <= seq - self.first_seq:
            return self._count_between(seq, self.last_seq, matcher)
        return matching - self._count_between(self.first_seq, seq - 1, matcher)

    def count_between(self, first: Seq, last: Seq, matcher: Matcher | None) -> int:
        """Count the live matching messages with a seq in first..last, at the cost of these."""
        matcher = self._if_it_tells_apart(matcher)
        if matcher is None:
            return self.count_from(first, None) - self.count_from(last + 1, None)
        return self._count_between(first, last, matcher)

    def _count_between(self, first: Seq, last: Seq, matcher: Matcher) -> int:
        total = 0
        for block in self.blocks:
            if block.live and block.last_seq >= first and block.first_seq <= last:
                total += self._count_in(block, first, last, matcher)
        return total

    def _count_in(self, block: Block, first: Seq, last: Seq, matcher: Matcher) -> int:
        columns = self._columns(block)
        low, high = columns.position(max(first, self.first_seq)), columns.position(last + 1)
        wanted = columns.wanted(matcher)
        if not wanted:
            return 0
        if not self._has_deleted(columns, low, high):
            return wanted.count_of(columns.subject_ids[low:high])
        rows = wanted.rows(columns.subject_ids, low, high)
        return sum(self.is_live(columns.seq_at(at)) for at in rows)

    def last_of_many(self, matcher: Matcher | None, end: Seq, count: int) -> Seq:
        """The first of the last `count` live matching messages below `end`; 0 if there are not as
        many."""
        if count == 1:
            return self.last_match(matcher, end)
        matcher = self._if_it_tells_apart(matcher)
        for block in reversed(self.blocks):
            first, last = max(block.first_seq, self.first_seq), min(block.last_seq, end - 1)
            if not block.live or first > last:
                continue
            if matcher is not None:
                there = self._count_in(block, first, last, matcher)
            elif last == block.last_seq:
                there = block.live
            else:
                there = self.count_between(first, last, None)
            if there >= count:
                locs, _ = self.select(first, matcher, there, block.count)
                return locs[there - count][0]
            count -= there
        return 0

    def spread(self, matcher: Matcher | None) -> tuple[int, Seq, Seq]:
        """Count the live messages that match, and bound their seqs: (count, first,
        last)."""
        matcher = self._if_it_tells_apart(matcher)
        if matcher is None:
            return self.count, self.first_seq, self.last_seq
        rows = self._rows(matcher)
        if not rows:
            return 0, self.last_seq + 1, self.last_seq
        return (
            sum(row[COUNT] for row in rows),
            max(self.first_seq, min(row[FIRST] for row in rows)),
            max(row[LAST] for row in rows),
        )

    # --- which subjects match ---------------------------------------------------------------------

    # No pair is made of a name and its row: a million new tuples have the garbage collector look
    # at all that lives, over and over, which takes longer than all else.

    def _rows(self, matcher: Matcher | None) -> Collection[SubjectRow]:
        rows = self.subjects
        matcher = self._if_it_tells_apart(matcher)
        if matcher is None:
            return rows.values()
        if matcher.literal is None and self.names.all_begin_with(matcher.prefix):
            test = matcher.test
            return [row for name, row in rows.items() if test(name)]
        return [rows[name] for name in self._names(matcher)]

    def _names(self, matcher: Matcher | None) -> Collection[bytes]:
        rows = self.subjects
        matcher = self._if_it_tells_apart(matcher)
        if matcher is None:
            return rows.keys()
        if matcher.literal is not None:
            return [matcher.literal] if matcher.literal in rows else []
        if self.names.all_begin_with(matcher.prefix):
            return list(filter(matcher.test, rows))
        named = filter(matcher.test, self.names.beginning_with(matcher.prefix))
        return [name for name in named if name in rows]

    def _if_it_tells_apart(self, matcher: Matcher | None) -> Matcher | None:
        """`matcher`, or None if every subject there is matches."""
        if matcher is None or matcher.is_all or self.names.all_begin_with(matcher.whole):
            return None
        return matcher


def _run(columns: Columns, block_no: int, low: int, high: int) -> Iterable[Loc]:
    """Locations of rows low..high-1, all live: no Python code per message."""
    lengths: Any = columns.lengths[low:high]
    if columns.has_flags:
        lengths = [length & LENGTH_MASK for length in lengths]
    return zip(
        columns.seqs_between(low, high),
        repeat(block_no),
        columns.offsets[low:high],
        lengths,
        strict=False,
    )
