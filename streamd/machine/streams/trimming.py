"""Which messages leave at a purge, under new limits, or because nobody wants them any more.

Each search is asked in steps, so that a stream's leader can have many messages removed without
holding the loop, and all at once where the command itself is applied. Nothing is changed here. A
search goes on where it stopped; what it found last is to be removed before it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import islice
from typing import Final, Protocol

from streamd.machine.consumers.consumer import Consumer
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.indexes.subject_table import COUNT, FIRST
from streamd.machine.streams.interest_index import InterestIndex
from streamd.machine.streams.retention import Limits, is_over_limits, over_limits
from streamd.subjects import Matcher
from streamd.types import Seq

ALL: Final = 1 << 62


_ROWS: Final = 1000  # looked at together


class Search(Protocol):
    """Finds messages that are to leave."""

    is_done: bool

    def step(self, most: int = ALL, rows: int = ALL) -> list[Seq]:
        """About `most` more, ascending, after looking at about `rows` messages."""


class Purged:
    """Messages that `PURGE [pattern, seq, keep]` removes (0 or empty: not given)."""

    def __init__(self, index: StreamIndex, pattern: bytes, seq: Seq, keep: int) -> None:
        self._index = index
        self._matcher = Matcher([pattern]) if pattern and pattern != b">" else None
        self._left, self._position, last = index.lookup.spread(self._matcher)
        self._end = min(seq or last + 1, last + 1)  # exclusive
        if keep:
            # A seq, not how many: others may leave between two steps.
            self._end = index.lookup.last_of_many(self._matcher, self._end, keep)
            self._left = max(self._left - keep, 0)
        self.is_done = False

    def step(self, most: int = ALL, rows: int = ALL) -> list[Seq]:
        """See Search."""
        index, start, end = self._index, self._position, self._end
        found: list[Seq] = []
        most = min(most, self._left)
        if self._matcher is None:
            found = list(islice(index.live.seqs(start, end - 1), most))
            self._position = found[-1] + 1 if found else end
        elif start < end and most:
            locs, self._position = index.lookup.select(
                start, self._matcher, most, min(rows, end - start)
            )
            found = [loc[0] for loc in locs if loc[0] < end]
        self._left -= len(found)
        self.is_done = not self._left or self._position >= end
        return found


class OverLimits:
    """The oldest messages that max_msgs and max_bytes no longer allow."""

    def __init__(self, index: StreamIndex, limits: Limits) -> None:
        self._index = index
        self._limits = limits
        self.is_done = False

    def step(self, most: int = ALL, rows: int = ALL) -> list[Seq]:
        """See Search."""
        found = over_limits(self._index, self._limits, most)
        self.is_done = len(found) < most
        return found


class OverPerSubject:
    """The oldest messages of each subject that has more than `allowed`."""

    def __init__(self, index: StreamIndex, allowed: int) -> None:
        self._index = index
        self._allowed = allowed
        table = index.subjects.rows
        # Those of which nothing is left before the position: of another one that is over the limit
        # by now, the next message is not the oldest.
        self._over = {name for name, row in table.items() if row[COUNT] > allowed}
        self._position = min((table[name][FIRST] for name in self._over), default=0)
        self._left = sum(table[name][COUNT] - allowed for name in self._over)
        self.is_done = not self._over

    def step(self, most: int = ALL, rows: int = ALL) -> list[Seq]:
        """See Search."""
        index, allowed, table = self._index, self._allowed, self._index.subjects.rows
        subjects = self._over
        found: list[Seq] = []
        excess: dict[bytes, int] = {}
        chunk = rows if rows == ALL else min(_ROWS, rows, most)
        position = self._position
        while rows > 0 and len(found) < most and self._left > 0 and position <= index.last_seq:
            looked, after = index.locations.rows_from(position, chunk)
            rows -= after - position
            position = after
            for seq, subject in looked:
                if subject not in subjects:
                    continue
                over = excess.get(subject)
                if over is None:
                    over = table[subject][COUNT] - allowed
                if over > 0:
                    found.append(seq)
                    self._left -= 1
                    excess[subject] = over - 1
                else:
                    subjects.discard(subject)
        self._position = position
        self.is_done = self._left <= 0 or position > index.last_seq
        return found


class Unwanted:
    """Messages that no consumer waits for. Looks at every message that is not wanted anyhow,
    because a consumer without a filter has yet to get it."""

    def __init__(
        self,
        index: StreamIndex,
        audience: InterestIndex[Consumer],
        but: Consumer | None = None,
        *,
        held: Container[Seq] = (),
    ) -> None:
        self._index = index
        self._audience = audience  # as it is at each step
        self._but = but  # as if this one were not there
        self._held = held  # stay all the same
        self._position = index.first_seq
        self.is_done = False

    def step(self, most: int = ALL, rows: int = ALL) -> list[Seq]:
        """See Search."""
        index = self._index
        end = index.last_seq + 1
        but = self._but
        for each in self._audience.of_all:
            if each is not but:
                end = min(end, max(each.delivered_sseq + 1, each.next_sseq))
        takers: dict[bytes, list[Callable[[Seq], bool]]] = {}
        found: list[Seq] = []
        chunk = rows if rows == ALL else min(_ROWS, rows, most)
        position = self._position
        while rows > 0 and len(found) < most and position < end:
            looked, after = index.locations.rows_from(position, chunk)
            rows -= after - position
            position = after
            for seq, subject in looked:
                if seq >= end:
                    break
                mine = takers.get(subject)
                if mine is None:
                    mine = takers[subject] = [
                        each.awaits for each in self._audience.takers(subject) if each is not but
                    ]
                for awaits in mine:
                    if awaits(seq):
                        break
                else:
                    if seq not in self._held:
                        found.append(seq)
        self._position = position
        self.is_done = position >= end
        return found


class OneAfterAnother:
    """Several searches. Each begins when what the one before it found is removed."""

    def __init__(self, searches: Iterator[Search]) -> None:
        self._searches = searches
        self._current = next(searches, None)
        self.is_done = self._current is None

    def step(self, most: int = ALL, rows: int = ALL) -> list[Seq]:
        """See Search."""
        if self._current is None:
            return []
        found = self._current.step(most, rows)
        if self._current.is_done:
            self._current = next(self._searches, None)
            self.is_done = self._current is None
        return found


def over(index: StreamIndex, limits: Limits) -> Iterator[Search]:
    """Searches for messages that limits remove and that never met them, one after another."""
    if limits.max_per_subject > 0:
        yield OverPerSubject(index, limits.max_per_subject)
    if not limits.is_discard_new and is_over_limits(index, limits):
        yield OverLimits(index, limits)


def reconfigured(
    index: StreamIndex,
    before: Limits,
    after: Limits,
    audience: Callable[[], InterestIndex[Consumer]],
    held: Container[Seq] = (),
) -> Iterator[Search]:
    """Searches for messages that a new config removes, one after another; `held`: those that stay
    even if no consumer waits for them."""
    allowed = after.max_per_subject
    if allowed > 0 and (allowed < before.max_per_subject or before.max_per_subject <= 0):
        yield OverPerSubject(index, allowed)
    if not after.is_discard_new and is_over_limits(index, after):
        yield OverLimits(index, after)
    if after.is_interest and not before.is_interest:
        yield Unwanted(index, audience(), held=held)
