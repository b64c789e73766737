"""Broken variants of what only varied worlds have: retention by interest, ages, large removals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from streamd.machine.consumers.consumer import Consumer
from streamd.machine.streams.expiry import Expiry
from streamd.machine.streams.stream_consumers import StreamConsumers
from streamd.node.stream_groups.bulk_delete import BulkDelete

Replace = Callable[[Any, str, Any], None]


def one_ack_is_enough(replace: Replace) -> None:
    """What one consumer has acked leaves, whoever else wants it."""

    def greedy(consumers: StreamConsumers, consumer: Any, sseqs: Sequence[int]) -> None:
        consumers._changes.remove([seq for seq in sseqs if consumers.index.live.has(seq)])

    replace(StreamConsumers, "on_acked", greedy)


def acked_and_kept(replace: Replace) -> None:
    """Acks take nothing out of a stream."""
    replace(StreamConsumers, "on_acked", lambda consumers, consumer, sseqs: None)


def given_up_and_gone(replace: Replace) -> None:
    """A consumer does not want what it was given max_deliver times."""

    def forgetful(consumer: Consumer, seq: int) -> bool:
        if seq > consumer.delivered_sseq:
            return seq >= consumer.next_sseq or consumer.remaining.is_initial(seq)
        return seq in consumer.pending

    replace(Consumer, "awaits", forgetful)


def never_swept(replace: Replace) -> None:
    """What a reset consumer passes over, or a deleted one alone wanted, stays."""
    replace(BulkDelete, "sweep", lambda trimmer: None)


def lives_forgotten_at_restart(replace: Replace) -> None:
    """A snapshot does not bring back which messages have lives of their own."""
    replace(Expiry, "load", lambda expiry, state: None)


def _named(*mutants: Callable[[Replace], None]) -> dict[str, Callable[[Replace], None]]:
    return {mutant.__name__: mutant for mutant in mutants}


VARIED = _named(
    one_ack_is_enough, acked_and_kept, given_up_and_gone, never_swept, lives_forgotten_at_restart,
)  # fmt: skip
