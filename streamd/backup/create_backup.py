"""Backups of streams into a vault, in increments where the server can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from streamd.archives.archive_reader import ArchiveReader
from streamd.archives.archive_records import (
    ArchivedConsumer,
    ArchivedMessages,
    ArchivedRemoval,
    ArchiveError,
    Record,
    Row,
)
from streamd.backup.backup_record import (
    BackupRecord,
    SegmentFact,
    StreamRecord,
    consumer_document,
    new_name,
    read_record,
    write_record,
)
from streamd.backup.segments import SegmentWriter
from streamd.backup.stream_transfer import Download, Link, TransferError, api_request
from streamd.backup.vault import Vault
from streamd.types import Document, Seq

Told = Callable[[str, int], None]
"""(stream, bytes of the archive that came since the last call)"""

_UNKNOWN_FIELD: Final = 10025


async def stream_names(link: Link, *, prefix: str = "$JS.API") -> list[str]:
    """Return the names of all streams of the account."""
    names: list[str] = []
    while True:
        page = await api_request(link, "STREAM.NAMES", {"offset": len(names)}, prefix=prefix)
        names += page.get("streams") or []
        if len(names) >= page.get("total", 0) or not page.get("streams"):
            return names


async def create(
    link: Link,
    vault: Vault,
    names: Sequence[str],
    *,
    server: str = "",
    prefix: str = "$JS.API",
    has_consumers: bool = True,
    told: Told = lambda stream, count: None,
) -> BackupRecord:
    """Back up these streams, each as of one moment. The backup exists once its record is written;
    if this fails or is cut off before, there are segments that no record names, and no harm."""
    earlier = vault.records()
    before = read_record(vault, earlier[-1]) if earlier else None
    streams = []
    for name in names:
        known = before.stream(name) if before is not None else None
        one = _OneStream(link, vault, name, prefix=prefix, told=told)
        streams.append(await one.back_up(known, has_consumers=has_consumers))
    record = BackupRecord(new_name(earlier), server, streams)
    write_record(vault, record)
    return record


class _OneStream:
    """Backup of one stream under way."""

    def __init__(self, link: Link, vault: Vault, name: str, *, prefix: str, told: Told) -> None:
        self._link = link
        self._vault = vault
        self._name = name
        self._prefix = prefix
        self._told = told

    async def back_up(self, known: StreamRecord | None, *, has_consumers: bool) -> StreamRecord:
        """Return the stream's record; `known` is that of the backup before."""
        info = await api_request(self._link, f"STREAM.INFO.{self._name}", prefix=self._prefix)
        created = str(info.get("created", ""))
        if known is not None and _is_continued(known, created, info["state"]):
            kept = [fact for fact in known.segments if fact.is_sealed]
            start = kept[-1].last_seq + 1 if kept else 0
            if start:
                try:
                    return await self._read(created, kept, start, has_consumers=has_consumers)
                except TransferError as err:
                    if err.err_code != _UNKNOWN_FIELD:  # of a nats-server: it sends all, or nothing
                        raise
        return await self._read(created, [], 0, has_consumers=has_consumers)

    async def _created(self) -> str:
        info = await api_request(self._link, f"STREAM.INFO.{self._name}", prefix=self._prefix)
        return str(info.get("created", ""))

    async def _read(
        self, created: str, kept: list[SegmentFact], start: Seq, *, has_consumers: bool
    ) -> StreamRecord:
        download = Download(self._link, self._name, prefix=self._prefix)
        begun = await download.begin(has_consumers=has_consumers, start_seq=start)
        reader, writer = ArchiveReader(), SegmentWriter(self._vault)
        consumers: list[Document] = []
        removals: list[list[Seq]] = []

        def take(records: Iterable[Record]) -> None:
            for record in records:
                if isinstance(record, ArchivedMessages):
                    writer.add(record.rows)
                elif isinstance(record, ArchivedConsumer):
                    consumers.append(consumer_document(record))
                elif isinstance(record, ArchivedRemoval):
                    removals.append([record.first, record.last])

        try:
            async for chunk in download.chunks():
                take(reader.feed(chunk))
                self._told(self._name, len(chunk))
            take(reader.finish())
        except ArchiveError as err:
            raise TransferError(f"{self._name}: the archive is damaged: {err}") from err
        writer.finish()
        if await self._created() != created:
            raise TransferError(f"{self._name}: the stream was made anew meanwhile")
        state = begun["state"]
        first = int(state["first_seq"])
        kept = [fact for fact in kept if fact.last_seq >= first]
        return StreamRecord(
            begun["config"], state, created, [*kept, *writer.facts], sorted(removals), consumers
        )


def _is_continued(known: StreamRecord, created: str, state: Document) -> bool:
    """True if the stream is the one that was backed up: it was not made anew under its name."""
    return bool(created) and created == known.created and state["last_seq"] >= known.last_seq


def live(record: StreamRecord, rows: Iterable[Row]) -> Iterable[Row]:
    """Yield those messages of a segment that the stream had at the moment of the record."""
    at, ranges = 0, record.deleted
    first = record.first_seq
    for row in rows:
        seq = row[0]
        if seq < first:
            continue
        while at < len(ranges) and ranges[at][1] < seq:
            at += 1
        if at < len(ranges) and ranges[at][0] <= seq:
            continue
        yield row
