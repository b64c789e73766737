"""Lag of a consumer in messages and time: the oldest message that it has not done with. Pure.

Costs a look-up in the stream's index, so it is made when somebody asks, never in `apply`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamd.machine.consumers.consumer import Consumer
from streamd.machine.extension_settings import ack_pending_per_subject
from streamd.subjects import Matcher
from streamd.types import Seq


class ConsumerLag(NamedTuple):
    """Oldest messages of a consumer; a seq and a time (ns) of 0 where there is none."""

    unprocessed_seq: Seq  # delivered and not acked, or not delivered
    unprocessed_ts: int
    undelivered_seq: Seq  # not delivered
    undelivered_ts: int


def lag_of(consumer: Consumer) -> ConsumerLag:
    """Return how far a consumer is behind. Messages that it has given up are not counted. May raise
    CorruptionError, of a block that does not say what it holds."""
    index = consumer.stream.index
    undelivered = first_undelivered(consumer, index.lookup.next_match)
    pending = consumer.pending
    if ack_pending_per_subject(consumer.config):  # some were delivered out of order
        unacked = min(pending, default=0)
    else:
        unacked = next(iter(pending), 0)
    seqs = [seq for seq in (unacked, undelivered) if seq]
    unprocessed = min(seqs, default=0)
    ts_at = index.locations.ts_at
    undelivered_ts = ts_at(undelivered) if undelivered else 0
    if unprocessed == undelivered:
        return ConsumerLag(unprocessed, undelivered_ts, undelivered, undelivered_ts)
    return ConsumerLag(unprocessed, ts_at(unprocessed), undelivered, undelivered_ts)


def first_undelivered(consumer: Consumer, next_match: Callable[[Seq, Matcher | None], Seq]) -> Seq:
    """Return the first message that was not delivered; 0: there is none. `next_match` finds the
    first one from a sequence on that passes a filter."""
    remaining = consumer.remaining
    if remaining.parked:
        return next(iter(remaining.parked))
    if not remaining.count:
        return 0
    if remaining.initial_at < len(remaining.initial):
        return remaining.initial[remaining.initial_at]
    return next_match(remaining.next_sseq, remaining.matcher)
