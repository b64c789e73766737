"""Documents about consumers: rows of the list, and all about one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from streamd.api.times import format_ns, parse_ns
from streamd.errors import CorruptionError
from streamd.limits import DASHBOARD_REMOTE_CONSUMERS, DASHBOARD_SCAN_STEP, SLICE_GROUPS
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.consumers.consumer_lag import first_undelivered
from streamd.machine.indexes.index import StreamIndex
from streamd.machine.indexes.subject_table import FIRST
from streamd.machine.meta import StreamAsset
from streamd.net.monitoring.jetstreamz import JetStreamSources
from streamd.net.monitoring.sliced_pages import Steps, looked_at
from streamd.node.clock import Clock
from streamd.node.ports import StreamHandle
from streamd.subjects import Matcher
from streamd.types import Document, Seq

SORTS: Final = (
    "account", "stream", "name", "leader", "pending", "ack_pending", "redelivered", "lag_ns",
    "oldest_ns", "paused", "last_delivery",
)  # fmt: skip


class ConsumerRow(NamedTuple):
    """A consumer, with the stream that it is of."""

    replica: StreamHandle
    consumer: Consumer


AnyRow = ConsumerRow | Document
"""A consumer of a stream with a replica here, or its row as another node tells it."""


def filter_text(row: AnyRow) -> str:
    """Return the text in which a filter looks for a consumer."""
    if isinstance(row, ConsumerRow):
        return f"{row.replica.account} {row.replica.name} {row.consumer.name}"
    return f"{row.get('account')} {row.get('stream')} {row.get('name')}"


class ConsumerDocuments:
    """Builder of documents about the consumers of streams with a replica here."""

    def __init__(self, sources: JetStreamSources, clock: Clock) -> None:
        self._sources = sources
        self._node = sources.node
        self._clock = clock

    def rows(self, assets: Sequence[StreamAsset]) -> Steps[list[ConsumerRow]]:
        """Collect the consumers of these streams."""
        found: list[ConsumerRow] = []
        for asset in looked_at(assets):
            replica = self._node.replica(asset.uid) if asset is not None else None
            if replica is None:
                yield
                continue
            machine = replica.machine
            if not machine.listed_count:
                continue
            for at, name in enumerate(sorted(machine.listed_names())):
                if at % 64 == 63:
                    yield
                consumer = machine.consumers.get(name)
                if consumer is not None:
                    found.append(ConsumerRow(replica, consumer))
        return found

    def documents(self, assets: Sequence[StreamAsset]) -> Steps[list[Document]]:
        """Build the rows of all consumers of these streams, for another node."""
        rows = yield from self.rows(assets)
        found = []
        for row in looked_at(rows[:DASHBOARD_REMOTE_CONSUMERS], SLICE_GROUPS):
            if row is None:
                yield
            else:
                found.append(self.item(row.replica, row.consumer))
        return found

    def sort_key(self, field: str, row: AnyRow) -> str | int | float:
        """Return the value by which a consumer is sorted."""
        if isinstance(row, dict):
            value = row.get(field, "")
            if field == "last_delivery":
                return parse_ns(value) if isinstance(value, str) else 0
            return value if isinstance(value, str | int) else ""
        replica, consumer = row
        match field:
            case "account":
                return replica.account
            case "stream":
                return replica.name
            case "leader":
                return self._leader_of(replica)
            case "pending":
                return consumer.num_pending
            case "ack_pending":
                return len(consumer.pending)
            case "redelivered":
                return len(consumer.redelivered)
            case "lag_ns":
                return self._age_ns(_waiting_at_most_ns(replica.machine.index, consumer))
            case "oldest_ns":
                return self._age_ns(_delivered_ns(consumer))
            case "paused":
                return consumer.paused_until_ns > self._clock.now_ns()
            case "last_delivery":
                return consumer.delivered_ns
        return consumer.name

    def items(self, rows: Sequence[AnyRow]) -> Iterator[Document | None]:
        """Iterate over the rows of a page; a None is a pause."""
        for row in looked_at(rows, SLICE_GROUPS):
            yield self.item(row.replica, row.consumer) if isinstance(row, ConsumerRow) else row

    def item(self, replica: StreamHandle, consumer: Consumer) -> Document:
        """Return the row of a consumer."""
        return {
            "account": replica.account,
            "stream": replica.name,
            "name": consumer.name,
            "leader": self._leader_of(replica),
            "pending": consumer.num_pending,
            "ack_pending": len(consumer.pending),
            "redelivered": len(consumer.redelivered),
            # Since the first message that it was not given yet was stored ...
            "lag_ns": self._age_ns(_waiting_ns(replica.machine.index, consumer)),
            # ... and since the last delivery of the oldest one that is not acked.
            "oldest_ns": self._age_ns(_delivered_ns(consumer)),
            "paused": consumer.paused_until_ns > self._clock.now_ns(),
            "last_delivery": format_ns(consumer.delivered_ns) if consumer.delivered_ns else "",
        }

    def detail(self, replica: StreamHandle, consumer: Consumer) -> Document:
        """Return all about a consumer."""
        info = self._sources.consumer_info(replica, consumer)
        until_ns = consumer.paused_until_ns
        return (
            info
            | self.item(replica, consumer)
            | {"paused_until": format_ns(until_ns) if until_ns > self._clock.now_ns() else ""}
        )

    def _age_ns(self, since_ns: int) -> int:
        return max(0, self._clock.now_ns() - since_ns) if since_ns else 0

    def _leader_of(self, replica: StreamHandle) -> str:
        node = self._node
        return node.leader_of(replica.uid) if node.is_clustered else node.server_name


def _delivered_ns(consumer: Consumer) -> int:
    """Return when the oldest message that is not acked was last delivered; 0: there is none."""
    oldest = next(iter(consumer.pending.values()), None)
    return oldest[1] if oldest is not None else 0


def _waiting_at_most_ns(index: StreamIndex, consumer: Consumer) -> int:
    """Return `_waiting_ns`, asked of thousands for one page: of a filter as if the first message
    that it was not shown passed it."""

    def near_match(start: Seq, matcher: Matcher | None) -> Seq:
        if matcher is not None and matcher.literal is not None:
            row = index.subjects.rows.get(matcher.literal)
            if row is not None:
                start = max(start, row[FIRST])
        return min(max(start, index.first_seq), index.last_seq)

    seq = first_undelivered(consumer, near_match)
    return _stored_ns(index, seq) if seq else 0


def _waiting_ns(index: StreamIndex, consumer: Consumer) -> int:
    """Return since when the first message waits that a consumer was not given yet; 0: there is
    none, or the disk does not say. Of a filter that matches little, the place up to which a bounded
    search came."""

    def near_match(start: Seq, matcher: Matcher | None) -> Seq:
        start = max(start, index.first_seq)
        found, after = index.lookup.select(start, matcher, 1, DASHBOARD_SCAN_STEP)
        return found[0][0] if found else min(after, index.last_seq)

    try:
        seq = first_undelivered(consumer, near_match)
        return _stored_ns(index, seq) if seq else 0
    except CorruptionError:  # of one block, which is reported by who reads it
        return 0


def _stored_ns(index: StreamIndex, seq: Seq) -> int:
    """Return when a message was stored: within a block whose columns are not in memory as if all
    had come at one pace, for a list is not worth a read of the disk."""
    block = index.blocks.of(seq)
    if block.columns is not None and index.live.has(seq):
        return index.locations.ts_at(seq)
    span = block.last_seq - block.first_seq
    if span <= 0:
        return block.first_ts
    share = min(1.0, max(0.0, (seq - block.first_seq) / span))
    return block.first_ts + int((block.last_ts - block.first_ts) * share)
