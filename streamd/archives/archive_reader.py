"""`ArchiveReader`: from the compressed bytes of an archive of either kind to its records. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from streamd.archives.archive_records import ArchiveError, Record
from streamd.archives.message_archive import MAGIC, MessageArchiveReader
from streamd.archives.s2_block import S2Error
from streamd.archives.s2_frames import S2Reader
from streamd.archives.tar_archive import TarArchiveReader


class ArchiveReader:
    """Reads an archive in pieces of any size. `feed` each, then `finish`."""

    def __init__(self) -> None:
        self.is_tar = False  # known once the first bytes were seen
        self._frames = S2Reader()
        self._head = b""
        self._reader: MessageArchiveReader | TarArchiveReader | None = None

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield the records that are complete with `data`. Raises ArchiveError."""
        try:
            plain = self._frames.feed(data)
        except S2Error as err:
            raise ArchiveError(str(err)) from err
        if self._reader is None:
            self._head += plain
            if len(self._head) < len(MAGIC):
                return
            plain, self._head = self._head, b""
            if plain.startswith(MAGIC):
                self._reader, plain = MessageArchiveReader(), plain[len(MAGIC) :]
            else:
                self._reader, self.is_tar = TarArchiveReader(), True
        if plain:
            yield from self._reader.feed(plain)

    def finish(self) -> Iterator[Record]:
        """Yield what only the end completes. Raises ArchiveError if the archive is cut off."""
        try:
            self._frames.finish()
        except S2Error as err:
            raise ArchiveError(str(err)) from err
        if self._reader is None:
            raise ArchiveError("EOF")
        yield from self._reader.finish() or ()
