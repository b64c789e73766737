"""Samples of streams and consumers for /metrics, which asks for all of them every few seconds.

No documents are made for it, and the lines of a stream are kept until one of its numbers may have
changed: of thousands of streams most are quiet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from streamd.net.monitoring.healthz import lag, not_current
from streamd.net.monitoring.sliced_pages import looked_at
from streamd.net.monitoring.stream_moments import Moment
from streamd.obs.metrics import (
    BLOCK_GAUGES,
    CONSUMER_GAUGES,
    LAG_GAUGES,
    LETTER_GAUGES,
    REPLICA_GAUGES,
    STREAM_GAUGES,
    Lines,
    StreamSamples,
    labels_of,
    lines_of,
)
from streamd.types import Uid

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.machine.consumers.consumer import Consumer
    from streamd.node.ports import GroupInfo, NodeHandle, StreamHandle

STREAMS_A_STEP = 4
CONSUMERS_A_STEP = 4


class Numbers(Protocol):
    """Source of the numbers (`JetStreamSources`)."""

    node: NodeHandle

    def stream_numbers(self, handle: StreamHandle) -> Sequence[int]: ...

    def block_sizes(self, uid: Uid) -> Sequence[int]: ...

    def consumer_numbers(self, handle: StreamHandle, consumer: Consumer) -> Sequence[int]: ...

    def consumer_ages(self, consumer: Consumer) -> Sequence[int]: ...


class _Known(NamedTuple):
    """Samples of a stream, and what they were made of: its own numbers, and two kinds that change
    without an entry of its log."""

    moment: Moment
    blocks: Sequence[float]
    replica: Sequence[float]
    samples: StreamSamples


class SampleMaker:
    """Makes the samples of the streams here, and keeps those of the last time."""

    def __init__(self, numbers: Numbers, server_id: str) -> None:
        self._numbers = numbers
        self._server_id = server_id
        self._known: dict[Uid, _Known] = {}

    def samples(self, replicas: Sequence[StreamHandle]) -> Iterator[StreamSamples | None]:
        """Iterate over the samples of all streams here; a None is a pause."""
        source, known = self._numbers, self._known
        is_clustered = source.node.is_clustered
        replica: Sequence[float] = ()
        for handle in looked_at(replicas, STREAMS_A_STEP):
            if handle is None:
                yield None
                continue
            uid, machine = handle.uid, handle.machine
            blocks = source.block_sizes(uid)
            if is_clustered:
                replica = _replica(source.node.group_info(uid) or {})
            last = known.get(uid)
            if (
                last is None
                or last.blocks != blocks
                or last.replica != replica
                or not last.moment.is_of(machine)
            ):
                made = self._made(handle, blocks, replica)
                last = known[uid] = _Known(Moment(machine), blocks, replica, made)
            if machine.consumers:
                yield last.samples._replace(consumers=self._consumers(handle))
            else:
                yield last.samples
        if len(known) > len(replicas):
            here = {handle.uid for handle in replicas}
            self._known = {uid: last for uid, last in known.items() if uid in here}

    def _made(
        self, handle: StreamHandle, blocks: Sequence[float], replica: Sequence[float]
    ) -> StreamSamples:
        labels = labels_of(
            account=handle.account, server_id=self._server_id, stream_name=handle.name
        )
        numbers = self._numbers.stream_numbers(handle)
        groups = [lines_of(STREAM_GAUGES, numbers, labels)]
        if blocks:
            groups.append(lines_of(BLOCK_GAUGES, blocks, labels))
        letters = handle.machine.content.letters
        if letters.last_number:
            groups.append(lines_of(LETTER_GAUGES, (len(letters),), labels))
        if replica:
            groups.append(lines_of(REPLICA_GAUGES, replica, labels))
        return StreamSamples(numbers, groups)

    def _consumers(self, handle: StreamHandle) -> Iterator[Sequence[Lines] | None]:
        """Iterate over the samples of a stream's consumers, which change with time alone. Those
        deleted meanwhile are left out."""
        consumers = handle.machine.consumers
        for name in looked_at(sorted(handle.machine.listed_names()), CONSUMERS_A_STEP):
            if name is None:
                yield None
            elif (consumer := consumers.get(name)) is not None:
                yield self._of_consumer(handle, name, consumer)

    def _of_consumer(self, handle: StreamHandle, name: str, consumer: Consumer) -> Sequence[Lines]:
        labels = labels_of(
            account=handle.account,
            consumer_name=name,
            server_id=self._server_id,
            stream_name=handle.name,
        )
        groups = [
            lines_of(CONSUMER_GAUGES, self._numbers.consumer_numbers(handle, consumer), labels)
        ]
        ages_ns = self._numbers.consumer_ages(consumer)
        if ages_ns:
            groups.append(lines_of(LAG_GAUGES, [age / 1e9 for age in ages_ns], labels))
        return groups


def agreement_of(facts: GroupInfo) -> tuple[int, int]:
    """Return how many other replicas were equal, and how many differed, when they were last
    compared. `facts` are of `node.group_info`."""
    agreement = facts.get("agreement") or {}
    voters = [peer["name"] for peer in facts.get("peers") or () if peer.get("is_voter", True)]
    compared = [agreement[name] for name in voters if name in agreement]
    return compared.count(True), compared.count(False)


def _replica(facts: GroupInfo) -> Sequence[float]:
    """Return the figures of a replica, as they stand in `REPLICA_GAUGES`."""
    is_leader = facts.get("role") == "leader"
    applied = facts.get("applied", 0)
    return (is_leader, not not_current(facts), lag(facts), applied, *agreement_of(facts))
