"""`Remaining`: the messages that a consumer has yet to deliver a first time, and their number.

The number is counted from the index once, and then kept up with messages that are stored, removed
and delivered. Deliveries, and what became of them, are the consumer's (`consumer`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.rfc3339 import parse_ns
from streamd.subjects import Matcher
from streamd.types import Seq


class Remaining:
    """New messages from `next_sseq` on that the filter lets through, after an initial list.

    The initial list is that of `deliver_policy: last_per_subject`: its seqs, from `initial_at` on,
    are delivered first, and `next_sseq` is then beyond all of them. Parked messages were passed
    over, for their subjects have as many unacked ones as they may (`max_ack_pending_per_subject`).
    """

    __slots__ = (
        "_index",
        "initial",
        "initial_at",
        "left",
        "matcher",
        "needs_store_hook",
        "next_sseq",
        "parked",
        "passed",
        "removed_ahead_to",
    )

    def __init__(self, index: StreamIndex) -> None:
        self._index = index
        self.matcher: Matcher | None = None  # None: no filter
        self.next_sseq: Seq = 1
        self.initial: list[Seq] = []
        self.initial_at = 0
        self.parked: dict[Seq, None] = {}  # below next_sseq, ascending: passed over for now
        self.needs_store_hook = False  # set by `recount`
        self.passed = 0  # unfiltered: live messages below next_sseq
        self.left = 0  # filtered: live matches from next_sseq on
        # Messages up to here may have left the stream before they were delivered, so deliveries
        # planned earlier must be checked against the index one by one.
        self.removed_ahead_to: Seq = 0

    def set_filters(self, filters: Sequence[bytes]) -> None:
        """Replace the filter; none, or one of everything, lets all through. Count anew then."""
        matcher = Matcher(filters) if filters else None
        self.matcher = None if matcher is None or matcher.is_all else matcher

    @property
    def count(self) -> int:
        """Matching messages not yet delivered a first time."""
        left = len(self.initial) - self.initial_at + len(self.parked)
        if self.matcher is not None:
            return left + self.left
        remaining: int = self._index.count - self.passed
        return left + (remaining if remaining > 0 else 0)

    # --- the start ------------------------------------------------------------------------------

    def resolve_start(self, config: ConsumerConfig, stream: StreamConfig) -> Seq:
        """Return where a new consumer begins, by its deliver policy; fills the initial list."""
        index = self._index
        policy = config.get("deliver_policy", "all")
        first: Seq = max(index.first_seq, 1)
        after_last: Seq = index.last_seq + 1
        if policy == "all":
            return first
        if policy == "last":  # the very first if none matches
            return max(self._last_match(), first)
        if policy == "new":
            return after_last
        if policy == "by_start_sequence":
            return max(int(config.get("opt_start_seq", 0)), first)
        if policy == "by_start_time":
            if not index.count:
                return after_last
            return max(int(index.locations.seq_at_time(parse_ns(config["opt_start_time"]))), first)
        assert policy == "last_per_subject", policy
        if stream.get("max_msgs_per_subject") == 1:
            return first  # there are no others
        self.initial = index.lookup.last_seqs(self.matcher)
        self.initial_at = 0
        if not self.initial and index.last_seq >= first:
            return after_last - 1  # it is no match; peers show this position
        return after_last

    def begin(self, start: Seq) -> None:
        """Begin at `start` (new messages), after the initial list."""
        self.next_sseq = start
        self.parked.clear()
        self.removed_ahead_to = 0
        self.recount()

    def skip_initial(self) -> None:
        """Drop the initial list, whatever the deliver policy says."""
        self.initial = []
        self.initial_at = 0

    def _last_match(self) -> Seq:
        index = self._index
        found: Seq = index.lookup.last_match(self.matcher) if index.count else 0
        return found or 0

    # --- messages to come -----------------------------------------------------------------------

    def is_initial(self, seq: Seq) -> bool:
        """Return True if `seq` is in the initial list and yet to be delivered."""
        at = bisect_left(self.initial, seq, self.initial_at)
        return at < len(self.initial) and self.initial[at] == seq

    def on_stored_batch(self, first_seq: Seq, subjects: Sequence[bytes]) -> None:
        """Count messages with consecutive seqs from `first_seq` that were stored. Call only if
        `needs_store_hook`: unfiltered consumers count nothing per message."""
        start = self.next_sseq - first_seq  # a start beyond the end: what is below is not ours
        if self.matcher is None:
            self.passed += min(max(start, 0), len(subjects))
            self.needs_store_hook = start > len(subjects)
            return
        if start > 0:
            subjects = subjects[start:]
        self.left += self.matcher.count(subjects)

    def _drop_initial(self, seqs: Sequence[Seq]) -> None:
        """Remove `seqs`, ascending, from the initial list. The list may be a million long, and
        mostly none of them is in it: it is not walked."""
        initial = self.initial
        low = bisect_left(initial, seqs[0], self.initial_at)
        high = bisect_right(initial, seqs[-1], low)
        if low == high:
            return
        found: list[int] = []
        for seq in seqs:
            low = bisect_left(initial, seq, low, high)
            if low < high and initial[low] == seq:
                found.append(low)
        if len(found) == 1:
            del initial[found[0]]
        elif found:
            kept = initial[self.initial_at : found[0]]
            for gone, after in pairwise([*found, len(initial)]):
                kept += initial[gone + 1 : after]
            self.initial, self.initial_at = kept, 0
        if self.initial_at == len(self.initial):
            self.initial = []
            self.initial_at = 0

    def deliver(self, first: Seq, last: Seq) -> int:
        """Count the new messages first..last as delivered; return how many still live."""
        live = last - first + 1
        if first <= self.removed_ahead_to:
            live = sum(map(self._index.live.has, range(first, last + 1)))
        if self.initial_at < len(self.initial) and last < self.next_sseq:
            at = self.initial_at
            while at < len(self.initial) and self.initial[at] <= last:
                at += 1
            self.initial_at = at
            if at == len(self.initial):
                self.initial = []
                self.initial_at = 0
        elif last >= self.next_sseq:
            self.next_sseq = last + 1
            if self.matcher is not None:
                self.left -= live
            else:
                self.passed += live
        return live

    def deliver_up_to(self, sseq: Seq, count: int | None) -> None:
        """Count all up to `sseq` as delivered: `count` messages beyond `next_sseq`, or as many as
        the index has there (None)."""
        if self.initial:
            self.initial_at = bisect_right(self.initial, sseq, self.initial_at)
            if self.initial_at == len(self.initial):
                self.skip_initial()
        if sseq >= self.next_sseq:
            if count is None:
                count = self._index.lookup.count_between(self.next_sseq, sseq, self.matcher)
            self.next_sseq = sseq + 1
            if self.matcher is not None:
                self.left -= count
            else:
                self.passed += count

    def on_removed(
        self,
        seqs: Sequence[Seq],
        subjects: Sequence[bytes],
        *,
        delivered_sseq: Seq,
        is_refiltered: bool,
    ) -> None:
        """Count live messages `seqs` (ascending) that left the stream, after the index changed."""
        below = bisect_left(seqs, self.next_sseq)
        if self.matcher is None:
            self.passed -= below
            is_concerned = True
        else:
            count = self.matcher.count
            mine = count(subjects[below:]) if below < len(seqs) else 0
            self.left -= mine
            is_concerned = bool(mine or is_refiltered)
            if not is_concerned and self.initial:
                ahead = bisect_right(seqs, delivered_sseq)
                is_concerned = bool(count(subjects[ahead:below]))
        if seqs and is_concerned and seqs[-1] > delivered_sseq:
            self.removed_ahead_to = max(self.removed_ahead_to, seqs[-1])
        if self.initial_at < len(self.initial):
            self._drop_initial(seqs)

    def lets_through(self, seq: Seq, subject: bytes) -> bool:
        """Return True if the message `seq` is among the remaining ones."""
        if seq < self.next_sseq:
            return self.is_initial(seq)
        return self.matcher is None or self.matcher.matches(subject)

    def seqs_below(self, sseq: Seq) -> list[Seq]:
        """Return the remaining messages below `sseq`, without those of the initial list."""
        index = self._index
        end = min(sseq - 1, index.last_seq)
        if self.next_sseq > end:
            return []
        if self.matcher is None:
            return list(index.live.seqs(self.next_sseq, end))
        rows = end + 1 - self.next_sseq
        found, _ = index.lookup.select(self.next_sseq, self.matcher, rows, rows)
        return [loc[0] for loc in found if loc[0] <= end]

    def keep_live_initial(self) -> None:
        """Remove from the initial list the messages that are not live any more."""
        rest = self.initial[self.initial_at :]
        self.initial = list(filter(self._index.live.has, rest))
        self.initial_at = 0

    def recount(self) -> None:
        """Count from the index what the hooks keep up incrementally."""
        index = self._index
        self.needs_store_hook = self.matcher is not None or self.next_sseq > index.last_seq + 1
        self.left = 0  # also of one that has no filter any more: it is part of the state
        if not index.count or self.next_sseq > index.last_seq:
            self.passed = index.count
        elif self.matcher is not None:
            self.left = index.lookup.count_from(self.next_sseq, self.matcher)
        elif self.next_sseq <= index.first_seq:
            self.passed = 0
        else:
            self.passed = index.count - index.lookup.count_from(self.next_sseq, None)


def filters_of(config: ConsumerConfig) -> list[bytes]:
    """Return the filter subjects of a consumer config, from either field; [] means everything."""
    single = config.get("filter_subject")
    if single:
        return [single.encode()]
    return [each.encode() for each in config.get("filter_subjects") or ()]
