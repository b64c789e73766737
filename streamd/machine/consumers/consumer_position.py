"""Position of a consumer in its stream: the next message, and the number that is left.

What is left is counted from the index once, and then kept up with what is stored, removed and
delivered. Of the deliveries only the last is known here; what became of each: `consumer_acks`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from streamd.machine.indexes.lookup import IndexLookup
from streamd.machine.rfc3339 import parse_ns
from streamd.subjects import Matcher
from streamd.types import Seq, Uid


class StreamView(Protocol):
    """A consumer's view of its stream (machine/streams/stream_consumers.py)."""

    name: str

    @property
    def config(self) -> StreamConfig: ...

    @property
    def index(self) -> IndexLookup: ...

    def on_acked(self, consumer: ConsumerPosition, sseqs: Sequence[Seq]) -> None:
        """`consumer` needs `sseqs` no longer. Called only if retention is not "limits", after the
        consumer's own state changed; may call back `on_removed`. Some of them may be no matches
        of the consumer, or no longer stored."""


class ConsumerPosition:
    """Position of one consumer in its stream. Used only as a base of `Consumer`."""

    __slots__ = (
        "_left",
        "_passed",
        "_removed_ahead_to",
        "_stream",
        "acked_ns",
        "config",
        "created_ns",
        "delivered_cseq",
        "delivered_ns",
        "delivered_sseq",
        "initial",
        "initial_at",
        "is_push",
        "matcher",
        "name",
        "needs_store_hook",
        "next_sseq",
        "paused_until_ns",
        "refilters",
        "resets",
        "sent_gone",
        "sent_sseq",
        "uid",
    )

    def __init__(self, uid: Uid, name: str, config: ConsumerConfig, created_ns: int) -> None:
        self.uid = uid
        self.name = name
        self.config = config
        self.created_ns = created_ns
        self.delivered_cseq = 0
        self.delivered_sseq: Seq = 0
        # Where the search for the next new message begins. After the initial list (deliver last
        # per subject) this is beyond delivered_sseq + 1.
        self.next_sseq: Seq = 1
        self.initial: list[Seq] = []  # deliver last per subject: these first, from initial_at on
        self.initial_at = 0
        self.paused_until_ns = 0
        # When it was last delivered to and acked, by what was applied since the process began:
        # for who leads next to show, and no part of the state.
        self.delivered_ns = self.acked_ns = 0
        self.needs_store_hook = False  # set by `_recount`
        self.resets = 0  # deliveries planned before a reset must not be applied after it
        self.refilters = 0  # what an earlier filter let through is not counted by this one
        self._passed = 0  # unfiltered: live messages below next_sseq
        self._left = 0  # filtered: live matches from next_sseq on
        # Messages up to here may have left the stream before they were delivered, so deliveries
        # planned earlier must be checked against the index one by one.
        self._removed_ahead_to: Seq = 0
        # Of the leader's cursor, and not replicated: how far it has sent, ahead of what is applied,
        # and what of that has left the stream, so that it is not left to deliver already.
        self.sent_sseq: Seq = 0
        self.sent_gone: list[Seq] = []
        self._stream: StreamView
        self._configure(config)

    def _configure(self, config: ConsumerConfig) -> None:
        self.config = config
        self.is_push = bool(config.get("deliver_subject"))
        filters = filters_of(config)
        matcher = Matcher(filters) if filters else None
        self.matcher = None if matcher is None or matcher.is_all else matcher
        pause_until = config.get("pause_until")
        self.paused_until_ns = parse_ns(pause_until) if pause_until else 0

    @property
    def stream(self) -> StreamView:
        return self._stream

    @property
    def num_pending(self) -> int:
        """Matching messages not yet delivered a first time."""
        left = len(self.initial) - self.initial_at
        if self.matcher is not None:
            return left + self._left
        remaining: int = self._stream.index.count - self._passed
        return left + (remaining if remaining > 0 else 0)

    # --- the start ------------------------------------------------------------------------------

    def _resolve_start(self) -> Seq:
        index = self._stream.index
        config = self.config
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
            return max(int(index.seq_at_time(parse_ns(config["opt_start_time"]))), first)
        assert policy == "last_per_subject", policy
        if self._stream.config.get("max_msgs_per_subject") == 1:
            return first  # there are no others
        self.initial = index.last_seqs(self.matcher)
        self.initial_at = 0
        if not self.initial and index.last_seq >= first:
            return after_last - 1  # it is no match; peers show this position
        return after_last

    def _last_match(self) -> Seq:
        index = self._stream.index
        found: Seq = index.last_match(self.matcher) if index.count else 0
        return found or 0

    # --- messages to come -----------------------------------------------------------------------

    def _is_initial(self, seq: Seq) -> bool:
        at = bisect_left(self.initial, seq, self.initial_at)
        return at < len(self.initial) and self.initial[at] == seq

    def on_stored_batch(self, first_seq: Seq, subjects: Sequence[bytes]) -> None:
        """Messages with consecutive seqs from `first_seq` were stored. Call only if
        `needs_store_hook`: unfiltered consumers count nothing per message."""
        start = self.next_sseq - first_seq  # a start beyond the end: what is below is not ours
        if self.matcher is None:
            self._passed += min(max(start, 0), len(subjects))
            self.needs_store_hook = start > len(subjects)
            return
        if start > 0:
            subjects = subjects[start:]
        self._left += self.matcher.count(subjects)

    def _note_removed(self, last: Seq) -> None:
        if last > self.delivered_sseq:
            self._removed_ahead_to = max(self._removed_ahead_to, last)

    def may_lack(self, first: Seq) -> bool:
        """True if of what was sent from `first` on some may have left before that was applied."""
        return first <= self._removed_ahead_to

    def _note_sent_gone(self, seqs: Sequence[Seq], subjects: Sequence[bytes]) -> None:
        """Keep those of `seqs`, which leave the stream, that were sent and count as left."""
        low = bisect_right(seqs, self.delivered_sseq)
        for at in range(low, bisect_right(seqs, self.sent_sseq, low)):
            seq = seqs[at]
            if seq < self.next_sseq:
                is_left = self._is_initial(seq)
            else:
                is_left = self.matcher is None or self.matcher.matches(subjects[at])
            if is_left:
                self.sent_gone.append(seq)

    def _drop_initial(self, seqs: Sequence[Seq]) -> None:
        """`seqs`, ascending, left the stream. The list may be a million long, and mostly none of
        them is in it: it is not walked."""
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

    def _pass(self, first: Seq, last: Seq) -> int:
        """New messages first..last are delivered: keep the counts; returns how many still live."""
        live = last - first + 1
        if first <= self._removed_ahead_to:
            live = sum(map(self._stream.index.is_live, range(first, last + 1)))
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
                self._left -= live
            else:
                self._passed += live
        return live

    def _recount(self) -> None:
        """Count from the index what the hooks keep up incrementally."""
        index = self._stream.index
        self.needs_store_hook = self.matcher is not None or self.next_sseq > index.last_seq + 1
        self._left = 0  # also of one that has no filter any more: it is part of the state
        if not index.count or self.next_sseq > index.last_seq:
            self._passed = index.count
        elif self.matcher is not None:
            self._left = index.count_from(self.next_sseq, self.matcher)
        elif self.next_sseq <= index.first_seq:
            self._passed = 0
        else:
            self._passed = index.count - index.count_from(self.next_sseq, None)


def filters_of(config: ConsumerConfig) -> list[bytes]:
    """The filter subjects of a consumer config, from either field; [] means everything."""
    single = config.get("filter_subject")
    if single:
        return [single.encode()]
    return [each.encode() for each in config.get("filter_subjects") or ()]
