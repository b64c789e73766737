"""`Lookup`: messages of a stream by filter: which match, how many, since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Final

from streamd.machine.base import LENGTH_MASK
from streamd.machine.indexes.block_table import BlockTable
from streamd.machine.indexes.columns import Block, Columns
from streamd.machine.indexes.live_messages import LiveMessages
from streamd.machine.indexes.message_locations import Loc
from streamd.machine.indexes.subject_table import COUNT, FIRST, LAST, SubjectTable
from streamd.subjects import Matcher
from streamd.types import Seq

NEAR_MSGS: Final = 4096  # looked at one after another before all subjects are asked


class Lookup:
    """Questions by filter. None of them changes a message; some correct the bounds of a subject."""

    def __init__(self, live: LiveMessages, blocks: BlockTable, subjects: SubjectTable) -> None:
        self._live = live
        self._blocks = blocks
        self._subjects = subjects

    # --- which match ------------------------------------------------------------------------------

    def select(
        self, start: Seq, matcher: Matcher | None, limit: int, scan_limit: int
    ) -> tuple[list[Loc], Seq]:
        """Live matching messages from `start` on, in order, at most `limit`, after looking at no
        more than about `scan_limit`. The second result is the seq up to which (exclusive) all was
        looked at: where to go on."""
        live, blocks = self._live, self._blocks
        found: list[Loc] = []
        seq = max(start, live.first_seq)
        matcher = self._subjects.telling_apart(matcher)
        if matcher is not None and seq <= live.last_seq and not self._may_match(matcher, seq):
            return found, live.last_seq + 1
        while seq <= live.last_seq and limit > 0 and scan_limit > 0:
            block = blocks.holding_from(seq)
            if block is None:
                seq = live.last_seq + 1
                break
            if not block.live:
                seq = block.last_seq + 1
                continue
            columns = blocks.columns(block)
            low = columns.position(seq)
            high = min(len(columns), low + scan_limit)
            if matcher is None and not live.lacks_any(columns, low, high):
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
        first_seq, deleted = self._live.first_seq, self._live.deleted
        has_deleted = deleted.count > 0
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
        live, subjects = self._live, self._subjects
        matcher = subjects.telling_apart(matcher)
        if matcher is None:
            seq = live.first_from(start)
            return seq if seq <= live.last_seq else 0
        if matcher.literal is not None:
            row = subjects.rows.get(matcher.literal)
            if row is None or row[LAST] < start:
                return 0
            if row[FIRST] >= start and live.has(row[FIRST]):
                return int(row[FIRST])
        found, after = self.select(start, matcher, 1, NEAR_MSGS)
        if not found and after <= live.last_seq:
            # Not near: the subjects may know how far it is.
            ahead = [row[FIRST] for row in subjects.rows_matching(matcher) if row[LAST] >= after]
            if not ahead:
                return 0
            found, _ = self.select(max(after, min(ahead)), matcher, 1, 1 << 62)
        return found[0][0] if found else 0

    def last_match(self, matcher: Matcher | None, before: Seq | None = None) -> Seq:
        """The last live matching seq (below `before`, if given); 0 if there is none."""
        live, subjects = self._live, self._subjects
        if not live.count:
            return 0
        matcher = subjects.telling_apart(matcher)
        if before is None or before > live.last_seq:
            if matcher is None:
                return live.newest()
            if matcher.literal is not None:
                return self.last_of(matcher.literal)
            last = max([row[LAST] for row in subjects.rows_matching(matcher)], default=0)
            if not last or live.has(last):
                return last
            rows, best = subjects.rows, 0
            for name in sorted(
                subjects.names_matching(matcher), key=lambda n: rows[n][LAST], reverse=True
            ):
                if rows[name][LAST] <= best:  # an upper bound
                    break
                best = max(best, self.last_of(name))
            return best
        return self._search_back(before - 1, matcher)

    def _search_back(self, seq: Seq, matcher: Matcher | None) -> Seq:
        """The last live matching seq <= `seq`; 0 if there is none."""
        for block in reversed(self._blocks):
            if not block.live or block.first_seq > seq:
                continue
            if block.last_seq < self._live.first_seq:
                break
            columns = self._blocks.columns(block)
            ids = columns.subject_ids
            wanted = None if matcher is None else columns.wanted(matcher)
            if wanted is not None and not wanted:
                continue
            for at in range(columns.position(seq + 1) - 1, -1, -1):
                if wanted is None or ids[at] in wanted:
                    found = columns.seq_at(at)
                    if self._live.has(found):
                        return found
        return 0

    def _may_match(self, matcher: Matcher, start: Seq) -> bool:
        """False if surely nothing from `start` on matches (asked of literal filters only)."""
        if matcher.literal is None:
            return True
        row = self._subjects.rows.get(matcher.literal)
        return row is not None and row[LAST] >= start

    # --- of one subject ---------------------------------------------------------------------------

    def last_of(self, subject: bytes) -> Seq:
        """The last live seq of `subject`; 0 if there is none."""
        row = self._subjects.rows.get(subject)
        if row is None:
            return 0
        if not self._live.has(row[LAST]):
            if row[COUNT] == 1 and self._live.has(row[FIRST]):
                row[LAST] = row[FIRST]
            else:
                row[LAST] = self._search_back(row[LAST] - 1, Matcher.of_subject(subject))
        return int(row[LAST])

    def first_of(self, subject: bytes) -> Seq:
        """The first live seq of `subject`; 0 if there is none."""
        row = self._subjects.rows.get(subject)
        if row is None:
            return 0
        if not self._live.has(row[FIRST]):
            if row[COUNT] == 1:
                row[FIRST] = self.last_of(subject)
            else:
                found, _ = self.select(row[FIRST] + 1, Matcher.of_subject(subject), 1, 1 << 62)
                row[FIRST] = found[0][0]
        return int(row[FIRST])

    # --- of many ----------------------------------------------------------------------------------

    def subjects_matching(self, matcher: Matcher | None) -> Iterator[tuple[bytes, Seq, Seq]]:
        """(subject, first seq, last seq) of every matching subject with messages."""
        for name in self._subjects.names_matching(matcher):
            yield name, self.first_of(name), self.last_of(name)

    def counts_matching(self, matcher: Matcher | None) -> dict[bytes, int]:
        """Count the live messages of each matching subject that has any."""
        rows = self._subjects.rows
        return {name: rows[name][COUNT] for name in self._subjects.names_matching(matcher)}

    def counts_page(
        self, matcher: Matcher | None, offset: int, size: int
    ) -> tuple[int, dict[bytes, int]]:
        """Count the matching subjects; for a page of them, by name, return `counts_matching`."""
        rows = self._subjects.rows
        if self._subjects.telling_apart(matcher) is None:
            # Page after page is asked for: of a million names the order costs more than all else.
            total = len(rows)
            offset = min(offset, total)
            names = self._subjects.names.in_order()
            if len(names) > total:  # some are gone
                names = list(islice(filter(rows.__contains__, names), offset + size))
        else:
            names = sorted(self._subjects.names_matching(matcher))
            total = len(names)
        return total, {name: rows[name][COUNT] for name in names[offset : offset + size]}

    def last_seqs(self, matcher: Matcher | None) -> list[Seq]:
        """The last seq of every matching subject, ascending."""
        lasts = [row[LAST] for row in self._subjects.rows_matching(matcher)]
        deleted = self._live.deleted
        if deleted and not deleted.isdisjoint(lasts):  # some are upper bounds only
            lasts = [self.last_of(name) for name in self._subjects.names_matching(matcher)]
        lasts.sort()
        return lasts

    def count_from(self, seq: Seq, matcher: Matcher | None) -> int:
        """Count the live matching messages with a seq >= `seq`."""
        live = self._live
        if seq > live.last_seq:
            return 0
        matcher = self._subjects.telling_apart(matcher)
        if matcher is None:
            return live.count_from(seq)
        if seq <= live.first_seq:
            return sum([row[COUNT] for row in self._subjects.rows_matching(matcher)])
        matching = 0
        above = 0  # messages of subjects that lie wholly at or above seq
        is_split = False  # some subject lies on both sides
        for row in self._subjects.rows_matching(matcher):
            matching += row[COUNT]
            if row[FIRST] >= seq:
                above += row[COUNT]
            elif row[LAST] >= seq:
                is_split = True
        if not is_split:
            return above
        if live.last_seq - seq <= seq - live.first_seq:
            return self._count_between(seq, live.last_seq, matcher)
        return matching - self._count_between(live.first_seq, seq - 1, matcher)

    def count_between(self, first: Seq, last: Seq, matcher: Matcher | None) -> int:
        """Count the live matching messages with a seq in first..last, at the cost of these."""
        matcher = self._subjects.telling_apart(matcher)
        if matcher is None:
            return self._live.count_from(first) - self._live.count_from(last + 1)
        return self._count_between(first, last, matcher)

    def _count_between(self, first: Seq, last: Seq, matcher: Matcher) -> int:
        total = 0
        for block in self._blocks:
            if block.live and block.last_seq >= first and block.first_seq <= last:
                total += self._count_in(block, first, last, matcher)
        return total

    def _count_in(self, block: Block, first: Seq, last: Seq, matcher: Matcher) -> int:
        columns = self._blocks.columns(block)
        low, high = columns.position(max(first, self._live.first_seq)), columns.position(last + 1)
        wanted = columns.wanted(matcher)
        if not wanted:
            return 0
        if not self._live.lacks_any(columns, low, high):
            return wanted.count_of(columns.subject_ids[low:high])
        rows = wanted.rows(columns.subject_ids, low, high)
        return sum(self._live.has(columns.seq_at(at)) for at in rows)

    def last_of_many(self, matcher: Matcher | None, end: Seq, count: int) -> Seq:
        """The first of the last `count` live matching messages below `end`; 0 if there are not as
        many."""
        if count == 1:
            return self.last_match(matcher, end)
        matcher = self._subjects.telling_apart(matcher)
        for block in reversed(self._blocks):
            first, last = max(block.first_seq, self._live.first_seq), min(block.last_seq, end - 1)
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
        """Count the live messages that match, and bound their seqs: (count, first, last)."""
        live = self._live
        matcher = self._subjects.telling_apart(matcher)
        if matcher is None:
            return live.count, live.first_seq, live.last_seq
        rows = self._subjects.rows_matching(matcher)
        if not rows:
            return 0, live.last_seq + 1, live.last_seq
        return (
            sum(row[COUNT] for row in rows),
            max(live.first_seq, min(row[FIRST] for row in rows)),
            max(row[LAST] for row in rows),
        )


def _run(columns: Columns, block_no: int, low: int, high: int) -> Iterable[Loc]:
    """Locations of rows low..high-1, all live: no Python code per message."""
    lengths: Sequence[int] = columns.lengths[low:high]
    if columns.has_flags:
        lengths = [length & LENGTH_MASK for length in lengths]
    return zip(
        columns.seqs_between(low, high),
        repeat(block_no),
        columns.offsets[low:high],
        lengths,
        strict=False,
    )
