"""Segments: messages in a row as one compressed, immutable piece of a backup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from streamd.archives.archive_records import ArchiveError, Row
from streamd.archives.message_archive import encode_messages, read_messages
from streamd.archives.s2_block import S2Error
from streamd.archives.s2_frames import S2Reader, S2Writer
from streamd.backup.backup_record import SegmentFact
from streamd.backup.vault import Vault, VaultError

SEALED_BYTES: Final = 4 * 1024 * 1024  # of messages, before compression
_MAGIC: Final = b"STRDSEG1"


class SegmentWriter:
    """Cuts messages into segments."""

    def __init__(self, vault: Vault) -> None:
        self.facts: list[SegmentFact] = []
        self.written_bytes = 0
        self._vault = vault
        self._rows: list[Row] = []
        self._byte_count = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Take messages, which come behind all before them."""
        for row in rows:
            self._rows.append(row)
            self._byte_count += len(row[2]) + len(row[3]) + len(row[4]) + 24
            if self._byte_count >= SEALED_BYTES:
                self._put(is_sealed=True)

    def finish(self) -> None:
        """Write what is left as a segment that the next increment replaces."""
        if self._rows:
            self._put(is_sealed=False)

    def _put(self, *, is_sealed: bool) -> None:
        rows, self._rows, self._byte_count = self._rows, [], 0
        frames = S2Writer()
        blob = _MAGIC + frames.write(encode_messages(rows)) + frames.finish()
        name = self._vault.put_segment(blob)
        self.written_bytes += len(blob)
        fact = SegmentFact(name, rows[0][0], rows[-1][0], len(rows), len(blob), is_sealed)
        self.facts.append(fact)


def read_segment(vault: Vault, fact: SegmentFact) -> Iterator[Row]:
    """Yield the messages of a segment, which is verified first. Raises VaultError."""
    blob = vault.segment(fact.name)
    try:
        if not blob.startswith(_MAGIC):
            raise ArchiveError("it is no segment")
        frames = S2Reader()
        plain = frames.feed(blob[len(_MAGIC) :])
        frames.finish()
        count, seq = 0, fact.first_seq - 1
        for row in read_messages(plain):
            if not seq < row[0] <= fact.last_seq:
                raise ArchiveError(f"message sequence {row[0]} out of order")
            seq = row[0]
            count += 1
            yield row
        if count != fact.message_count or seq != fact.last_seq:
            raise ArchiveError(f"{count} messages up to {seq}, the record says otherwise")
    except (ArchiveError, S2Error) as err:
        raise VaultError(f"segment {fact.name[:16]}: {err}") from err
