"""The archive of nats-server up to 2.14: a tar of its file store's files. Pure.

In order: `meta.inf` (the stream's configuration), `msgs/<n>.blk`, `msgs/index.db` (a cache, passed
over), `obs/<consumer>/meta.inf` and `o.dat`. Checksum files are passed over as nats-server does.
Only regular files, whose names lead nowhere else.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from typing import Any, Final

from streamd.archives.archive_records import (
    ArchivedConfig,
    ArchivedEnd,
    ArchiveError,
    Record,
)
from streamd.archives.block_archive import BlockReader, read_consumer

_BLOCK: Final = tarfile.BLOCKSIZE
_FILE_BYTES_MAX: Final = 64 << 20  # of a file that is read as a whole: no block of messages


class TarArchiveReader:
    """Reads a tar in pieces of any size."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._name = ""  # of the file that is being read
        self._left = 0  # of its bytes
        self._padding = 0  # behind it
        self._file = bytearray()
        self._pax: dict[str, str] = {}
        self._is_pax = False
        self._has_config = False
        self._is_over = False
        self._blocks = BlockReader()
        self._consumers: dict[str, dict[str, bytes]] = {}

    def feed(self, data: bytes) -> Iterator[Record]:
        """Yield the records that are complete with `data`. Raises ArchiveError."""
        waiting = self._waiting
        waiting += data
        while True:
            if self._left:
                piece = bytes(waiting[: self._left])
                if not piece:
                    return
                del waiting[: len(piece)]
                self._left -= len(piece)
                if self._is_block:
                    yield from self._blocks.feed(piece)
                else:
                    self._file += piece
                if self._left:
                    return
                yield from self._end_file()
            if len(waiting) < self._padding:
                return
            del waiting[: self._padding]
            self._padding = 0
            if self._is_over or len(waiting) < _BLOCK:
                if self._is_over:
                    waiting.clear()
                return
            header = bytes(waiting[:_BLOCK])
            del waiting[:_BLOCK]
            if not any(header):
                self._is_over = True
                continue
            self._begin_file(header)
            if not self._left:
                yield from self._end_file()

    @property
    def _is_block(self) -> bool:
        return self._name.startswith("msgs/") and self._name.endswith(".blk")

    def _begin_file(self, header: bytes) -> None:
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as err:
            raise ArchiveError("archive/tar: invalid tar header") from err
        size = member.size
        self._is_pax = member.type == tarfile.XHDTYPE
        if not self._is_pax:
            pax, self._pax = self._pax, {}
            self._name = pax.get("path", member.name)
            if "size" in pax:
                size = int(pax["size"]) if pax["size"].isdigit() else -1
            parts = self._name.split("/")
            if not member.isreg() or ".." in parts or "" in parts or "\\" in self._name:
                raise ArchiveError(f"unexpected content: {self._name[:80]!r}")
        else:
            self._name = ""
        if size < 0 or (size > _FILE_BYTES_MAX and not self._is_block):
            raise ArchiveError(f"{self._name[:80]!r} has {size} bytes")
        self._left = size
        self._padding = -size % _BLOCK

    def _end_file(self) -> Iterator[Record]:
        body = bytes(self._file)
        self._file.clear()
        if self._is_pax:
            self._pax = _pax_fields(body)
            return
        name = self._name
        if name == "meta.inf":
            self._has_config = True
            yield ArchivedConfig(_decode(body, name))
        elif self._is_block:
            self._blocks.end_block()
        elif name.startswith("obs/"):
            _, consumer, file = (*name.split("/", 2), "")[:3]
            self._consumers.setdefault(consumer, {})[file] = body
        if not self._has_config:
            raise ArchiveError(f"expected meta.inf, found {name[:80]!r}")

    def finish(self) -> Iterator[Record]:
        """Yield the consumers and the end. Raises ArchiveError if the archive is cut off."""
        if self._left or self._waiting or not self._has_config:
            raise ArchiveError("unexpected EOF")
        for name, files in sorted(self._consumers.items()):
            if "meta.inf" not in files:
                raise ArchiveError(f'consumer "{name}" is missing config')
            config = _decode(files["meta.inf"], f"obs/{name}/meta.inf")
            named = config.get("Name") or config.get("name") or name
            config = {key: value for key, value in config.items() if key not in ("Created", "Name")}
            yield read_consumer(str(named), config, files.get("o.dat", b""))
        yield ArchivedEnd(self._blocks.last_seq)


def _decode(body: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        raise ArchiveError(f"{name} is no JSON") from None
    if not isinstance(document, dict):
        raise ArchiveError(f"{name} is no JSON object")
    return document


def _pax_fields(body: bytes) -> dict[str, str]:
    """Return the fields of a PAX header: `<length> <key>=<value>\\n` each."""
    fields: dict[str, str] = {}
    while body:
        size, _, _ = body.partition(b" ")
        if not size.isdigit() or not 0 < int(size) <= len(body):
            raise ArchiveError("archive/tar: invalid tar header")
        row = body[len(size) + 1 : int(size) - 1].decode("utf-8", "replace")
        key, _, value = row.partition("=")
        fields[key] = value
        body = body[int(size) :]
    return fields
