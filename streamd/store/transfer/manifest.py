"""`Manifest`: the list of a snapshot's files, so that another node can fetch it file by file. Pure.

Files have numbers: a block's own, 0 for the state, -1 for the index cache. Sealed blocks are the
same bytes on every replica, so a file is known by its number, length and crc32c.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from streamd.errors import CorruptionError
from streamd.store.blocks.block import HEADER_BYTES
from streamd.types import Index, NodeId, Term, Uid

STATE_NO = 0  # blocks are counted from 1
INDEX_NO = -1
_VERSION = 1


class FileFact(NamedTuple):
    """File of a snapshot: the number, length and checksum that identify its bytes."""

    no: int
    length: int
    crc: int


class Manifest(NamedTuple):
    """Snapshot at `index` and all files that belong to it."""

    uid: Uid
    index: Index  # type: ignore[assignment]
    term: Term
    chain: int
    tail: tuple[int, int]  # (block_no, offset) where the blocks end
    digest: int  # of the content, which the installed machine must have too
    members: tuple[tuple[NodeId, ...], ...]  # voters, voters_out, learners, learners_next
    files: tuple[FileFact, ...]

    @property
    def byte_count(self) -> int:
        return sum(fact.length for fact in self.files)

    def to_wire(self) -> dict[str, object]:
        """Return the manifest as plain lists and numbers."""
        return {
            "version": _VERSION,
            "uid": self.uid,
            "index": self.index,
            "term": self.term,
            "chain": self.chain,
            "tail": list(self.tail),
            "digest": self.digest,
            "members": [list(part) for part in self.members],
            "blocks": [list(fact) for fact in self.files],
        }

    @classmethod
    def from_wire(cls, value: Any) -> Manifest:
        """Return the inverse of `to_wire`. Raises CorruptionError for any other value."""
        try:
            if value["version"] != _VERSION:
                raise CorruptionError(f"manifest of unknown version {value['version']!r}")
            tail_no, tail_offset = value["tail"]
            files = tuple(FileFact(no, length, crc) for no, length, crc in value["blocks"])
            members = tuple(tuple(part) for part in value["members"])
            made = cls(
                value["uid"],
                value["index"],
                value["term"],
                value["chain"],
                (tail_no, tail_offset),
                value["digest"],
                members,
                files,
            )
        except (KeyError, TypeError, ValueError) as err:
            raise CorruptionError(f"a manifest that cannot be read: {err!r}") from err
        made._check()
        return made

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb(self.to_wire())
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> Manifest:
        """Return the inverse of `encode`. Raises CorruptionError."""
        try:
            value = msgpack.unpackb(blob)
        except (ValueError, msgpack.exceptions.UnpackException) as err:
            raise CorruptionError(f"a manifest of {len(blob)} bytes that cannot be read") from err
        return cls.from_wire(value)

    def _check(self) -> None:
        numbers = [self.uid, self.index, self.term, self.chain, self.digest, *self.tail]
        numbers += [part for fact in self.files for part in fact[1:]]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise CorruptionError(
                f"manifest of group {self.uid}: a field that must be a number is none"
            )
        names = [fact.no for fact in self.files]
        if not all(type(no) is int and no >= INDEX_NO for no in names):
            raise CorruptionError(f"manifest of group {self.uid}: a file has no number")
        if len(set(names)) != len(names) or STATE_NO not in names:
            raise CorruptionError(
                f"manifest of group {self.uid}: files are missing or listed twice"
            )
        if len(self.members) != 4 or not all(
            type(name) is str for part in self.members for name in part
        ):
            raise CorruptionError(f"manifest of group {self.uid}: no membership")
        block_no, offset = self.tail
        if offset > HEADER_BYTES and not any(
            fact.no == block_no and fact.length >= offset for fact in self.files
        ):
            raise CorruptionError(
                f"manifest of group {self.uid}: block {block_no} does not reach offset {offset}"
            )
