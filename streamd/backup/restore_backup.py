"""Streams from a vault back into a server: all of it, up to a sequence or time, under a new name;
and the same way without a server, to verify a backup.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from streamd.archives import message_archive
from streamd.archives.archive_records import ArchivedConsumer, Row
from streamd.archives.s2_frames import S2Writer
from streamd.backup.backup_record import BackupRecord, StreamRecord
from streamd.backup.create_backup import live
from streamd.backup.segments import read_segment
from streamd.backup.stream_transfer import Link, upload
from streamd.backup.vault import Vault, VaultError
from streamd.types import Document, Seq

_ROWS: Final = 256
_DYNAMIC: Final = ("_nats.ver", "_nats.level")


@dataclass(frozen=True)
class RestorePlan:
    """Wishes for a restored stream that differ from what was backed up."""

    name: str = ""
    subjects: tuple[str, ...] = ()
    replicas: int = 0
    until_seq: Seq = 0  # 0: to the end
    until_ns: int = 0
    has_consumers: bool = True

    def config_of(self, record: StreamRecord) -> Document:
        """Return the config to ask for."""
        config = dict(record.config)
        metadata = config.get("metadata") or {}
        config["metadata"] = {key: text for key, text in metadata.items() if key not in _DYNAMIC}
        if self.name:
            config["name"] = self.name
        if self.subjects:
            config["subjects"] = list(self.subjects)
        if self.replicas:
            config["num_replicas"] = self.replicas
        return config

    @property
    def is_cut(self) -> bool:
        """True if the stream is to end before it did."""
        return bool(self.until_seq or self.until_ns)


def messages(vault: Vault, record: StreamRecord, plan: RestorePlan) -> Iterator[list[Row]]:
    """Yield the messages that a stream had, as far as the plan wants them. Raises VaultError."""
    rows: list[Row] = []
    for fact in record.segments:
        if plan.until_seq and fact.first_seq > plan.until_seq:
            break
        for row in live(record, read_segment(vault, fact)):
            if (plan.until_seq and row[0] > plan.until_seq) or (
                plan.until_ns and row[1] > plan.until_ns
            ):
                yield rows
                return
            rows.append(row)
            if len(rows) >= _ROWS:
                yield rows
                rows = []
    yield rows


def _last_seq(vault: Vault, record: StreamRecord, plan: RestorePlan) -> Seq:
    """Return the last sequence of a stream that is cut, without reading more than a segment."""
    last = record.last_seq
    if plan.until_seq:
        last = min(last, plan.until_seq)
    if plan.until_ns:
        before: Seq = record.first_seq - 1
        for fact in record.segments:
            times = [(row[0], row[1]) for row in read_segment(vault, fact)]
            if times[-1][1] > plan.until_ns:
                return min(
                    last, max((seq for seq, ts in times if ts <= plan.until_ns), default=before)
                )
            before = times[-1][0]
    return last


def _cut(consumer: ArchivedConsumer, last: Seq) -> ArchivedConsumer:
    """Return a consumer as it may be in a stream that ends at `last`."""
    cseq, sseq = consumer.delivered
    floor_cseq, floor_sseq = consumer.floor
    return consumer._replace(
        delivered=(cseq, min(sseq, last)),
        floor=(floor_cseq, min(floor_sseq, last)),
        pending=[row for row in consumer.pending if row[0] <= last],
        redelivered=[row for row in consumer.redelivered if row[0] <= last],
    )


def archive(vault: Vault, record: StreamRecord, plan: RestorePlan) -> Iterator[bytes]:
    """Yield the pieces of an archive that any nats-server since 2.15 restores."""
    frames = S2Writer()
    now_ns = time.time_ns()
    last = _last_seq(vault, record, plan) if plan.is_cut else record.last_seq
    consumers = record.archived_consumers() if plan.has_consumers else []
    consumers = [_cut(each, last) for each in consumers]
    state = dict(record.state)
    state |= {"first_seq": max(1, record.first_seq), "last_seq": last}
    state["consumer_count"] = len(consumers)
    head = [message_archive.begin(state, now_ns)]
    head += [message_archive.encode_consumer(each, now_ns) for each in consumers]
    yield frames.write(b"".join(head))
    for rows in messages(vault, record, plan):
        if rows:
            yield frames.write(message_archive.encode_messages(rows))
    yield frames.write(message_archive.end()) + frames.finish()


async def restore(
    link: Link,
    vault: Vault,
    record: StreamRecord,
    plan: RestorePlan,
    *,
    prefix: str = "$JS.API",
    told: Callable[[int], None] = lambda count: None,
) -> Document:
    """Restore a stream; return its StreamInfo. `told` hears how many bytes the server has taken."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in archive(vault, record, plan):
            if piece:
                yield piece

    return await upload(
        link, plan.config_of(record), {}, pieces(), prefix=prefix, on_bytes=lambda n: told(n)
    )


@dataclass(frozen=True)
class Finding:
    """Result of the verification of one stream of a backup."""

    stream: str
    message_count: int
    fault: str  # "": all is there and whole


def verify(
    vault: Vault, record: BackupRecord, told: Callable[[int], None] = lambda count: None
) -> Iterator[Finding]:
    """Read every segment of a backup, and count its messages; yield a finding for each stream."""
    for stream in record.streams:
        count, fault = 0, ""
        try:
            for rows in messages(vault, stream, RestorePlan()):
                count += len(rows)
                told(len(rows))
            stated = int(stream.state["messages"])
            if count != stated:
                fault = f"{count} messages are there, {stated} were in the stream"
        except VaultError as err:
            fault = str(err)
        yield Finding(stream.name, count, fault)
