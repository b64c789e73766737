"""Files of log entries that were set aside, as programs beside the server read them, encrypted ones
too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamd.offline.read_only_disk import ReadOnlyDisk, content_of
from streamd.store.blocks.discarded_entries_file import (
    Tail,
    TailFacts,
    bytes_field,
    is_tail,
    parse_facts,
)
from streamd.store.blocks.discarded_entries_file import read_tail as _read_tail

__all__ = ["Tail", "TailFacts", "bytes_field", "is_tail", "lines_of", "parse_facts", "read_tail"]

_STEP_BYTES: Final = 1024 * 1024


def read_tail(path: str) -> Tail:
    """Read what a file says of its entries. Raises CorruptionError, ConfigError or OSError."""
    return _read_tail(ReadOnlyDisk(), path)


def lines_of(path: str) -> Iterator[bytes]:
    """Yield the lines of a file, which may be larger than memory, and may be cut meanwhile."""
    rest, at = b"", 0
    with content_of(path) as content:
        while chunk := content.read(_STEP_BYTES, at):
            at += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
    if rest:
        yield rest
