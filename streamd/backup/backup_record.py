"""Records of backups: which streams, with which segments of messages, of which moment each."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from streamd.archives.archive_records import ArchivedConsumer
from streamd.backup.vault import Vault, VaultError
from streamd.types import Document, Seq

FORMAT: Final = 1
_NAME: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-z-]+")


@dataclass(frozen=True)
class SegmentFact:
    """A segment: messages in a row, of which later backups may know that some were deleted."""

    name: str
    first_seq: Seq
    last_seq: Seq
    message_count: int
    byte_count: int  # of the file
    is_sealed: bool  # it is as large as one gets: the next increment begins behind it


@dataclass(frozen=True)
class StreamRecord:
    """Stream as of one moment."""

    config: Document
    state: Document  # as the API shows it
    created: str  # tells it from a later stream of the same name; "": the server did not say
    segments: list[SegmentFact]
    deleted: list[list[Seq]]  # inclusive ranges of what is in the segments and not in the stream
    consumers: list[Document]

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def last_seq(self) -> Seq:
        return int(self.state["last_seq"])

    @property
    def first_seq(self) -> Seq:
        return int(self.state["first_seq"])

    def archived_consumers(self) -> list[ArchivedConsumer]:
        """Return the consumers as archives have them."""
        return [
            ArchivedConsumer(
                each["name"],
                each["config"],
                (each["delivered"][0], each["delivered"][1]),
                (each["floor"][0], each["floor"][1]),
                [(seq, cseq, ts) for seq, cseq, ts in each["pending"]],
                [(seq, count) for seq, count in each["redelivered"]],
            )
            for each in self.consumers
        ]


def consumer_document(consumer: ArchivedConsumer) -> Document:
    """Return a consumer as a record has it."""
    return dict(consumer._asdict())


@dataclass(frozen=True)
class BackupRecord:
    """Backup of some streams."""

    name: str
    server: str
    streams: list[StreamRecord] = field(default_factory=list)

    def stream(self, name: str) -> StreamRecord | None:
        """Return the stream of that name, if it is in the backup."""
        return next((each for each in self.streams if each.name == name), None)

    @property
    def message_count(self) -> int:
        return sum(int(each.state["messages"]) for each in self.streams)

    @property
    def byte_count(self) -> int:
        """Bytes of all segments that it needs, be they shared with other backups."""
        files = {fact.name: fact.byte_count for each in self.streams for fact in each.segments}
        return sum(files.values())


def new_name(taken: Sequence[str]) -> str:
    """Return a name for a backup made now: names in order are in the order of time."""
    stem = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = sum(each.startswith(stem) for each in taken)
    return f"{stem}-{number:04d}"


def write_record(vault: Vault, record: BackupRecord) -> None:
    """Write the record: the last step of a backup."""
    document = {"format": FORMAT, **asdict(record)}
    vault.put_record(record.name, json.dumps(document, indent=1).encode())


def read_record(vault: Vault, name: str) -> BackupRecord:
    """Return the record of that name. Raises VaultError."""
    try:
        document: Any = json.loads(vault.record(name))
        found = document["format"]
        if found != FORMAT:
            raise VaultError(f"backup {name} has format {found}, this program reads {FORMAT}")
        streams = [
            StreamRecord(**{**row, "segments": [SegmentFact(**fact) for fact in row["segments"]]})
            for row in document["streams"]
        ]
        return BackupRecord(name, document["server"], streams)
    except (ValueError, KeyError, TypeError) as err:
        raise VaultError(f"backup {name}: its record is damaged ({err!r})") from err


def choose(vault: Vault, name: str = "") -> BackupRecord:
    """Return the record of that name, or the newest. Raises VaultError."""
    names = vault.records()
    if name:
        if name not in names:
            raise VaultError(f"there is no backup {name!r}; there are: {', '.join(names[-5:])}")
        return read_record(vault, name)
    if not names:
        raise VaultError("there are no backups")
    return read_record(vault, names[-1])
