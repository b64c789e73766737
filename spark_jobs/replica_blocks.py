"""The blocks of one replica: what a view tells of each, and a replay's comparison with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_jobs.replica_log import ReadOnlyDisk
from streamd.errors import CorruptionError
from streamd.machine.base import APPEND, SEAL
from streamd.machine.columns import Block
from streamd.machine.stream import StreamMachine
from streamd.store import format as fmt
from streamd.store.block import HEADER_BYTES, BlockFiles
from streamd.types import Seq, Uid

CUT = "the file ends inside what the log holds"


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes at the end of a block file that are not what was stored. The log makes up for them."""

    path: str
    block_no: int
    offset: int  # where they begin
    size: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.reason} ({self.size} bytes)"


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block of a stream as a view saw it. Picklable; reads nothing by itself."""

    replica: str
    path: str
    block_no: int
    uid: Uid
    first_seq: Seq  # of the messages ever stored in it
    last_seq: Seq
    first_ts_ns: int
    last_ts_ns: int
    count: int
    live: int
    digest: int  # of the live messages: machine/digest.py
    end_offset: int  # where its records end
    is_sealed: bool
    dead: tuple[tuple[Seq, Seq], ...] = ()  # inclusive ranges that are not live, ascending
    tail_offset: int = 0  # from here on the bytes are `tail`, not in the file yet; 0: all in file
    tail: bytes = field(default=b"", repr=False)

    @property
    def byte_count(self) -> int:
        """Bytes of its records."""
        return self.end_offset - HEADER_BYTES

    def read(self) -> bytes:
        """The block's bytes: header, records and, if it is sealed, the footer.

        Shorter than it should be if the file is; who decodes it notices. Raises FileNotFoundError
        when the server has removed the block meanwhile, because all its messages were deleted.
        """
        size = self.tail_offset if self.tail else 0 if self.is_sealed else self.end_offset
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC) if size != HEADER_BYTES else -1
        if fd < 0:  # the file has no record yet
            return fmt.encode_block_header(self.uid, self.block_no) + self.tail
        try:
            wanted = size or os.fstat(fd).st_size
            blob = os.pread(fd, wanted, 0)
            while len(blob) < wanted:  # Linux reads at most 2 GiB at once
                more = os.pread(fd, wanted - len(blob), len(blob))
                if not more:
                    break
                blob += more
        finally:
            os.close(fd)
        return blob + self.tail if self.tail else blob


class ReplayedBlocks:
    """Takes the block operations of a replay and compares them with the files.

    Keeps in memory only what the files do not have: what waits to be written, or was torn.
    """

    def __init__(self, directory: Path, uid: Uid) -> None:
        self.disk = ReadOnlyDisk()
        self.files = BlockFiles(self.disk, str(directory), uid)
        self.tails: dict[int, tuple[int, list[bytes]]] = {}  # block -> (offset, bytes from there)
        self.torn: list[TornTail] = []
        self.touched: set[int] = set()
        self._footers: dict[int, bytes] = {}
        self._open: tuple[int, int] = (-1, -1)  # (block_no, fd)

    def load_footer(self, block_no: int) -> bytes:
        """See machine.base.ColumnSource."""
        footer = self._footers.get(block_no)
        return footer if footer is not None else self.files.read_footer(block_no)

    def scan(self, block_no: int, end_offset: int) -> Iterator[fmt.Record]:
        """The records of a block up to `end_offset`; for a machine without index.db."""
        blob = self.files.read_all(block_no, end_offset)
        tail = self.tails.get(block_no)
        if tail is not None:
            blob = blob[: tail[0]] + b"".join(tail[1])
        end = HEADER_BYTES
        for record in fmt.scan(blob[HEADER_BYTES:end_offset], HEADER_BYTES):
            end = record.offset + record.length
            yield record
        if end < end_offset:
            raise CorruptionError(
                f"{self.files.path(block_no)}: offset {end}: a record is damaged, the block goes "
                f"on to {end_offset}"
            )

    def apply(self, ops: list[tuple[Any, ...]]) -> None:
        for op in ops:
            if op[0] in (APPEND, SEAL):
                kind, block_no, offset, blob = op
                self.touched.add(block_no)
                if kind == SEAL:
                    self._footers[block_no] = blob
                self._put(block_no, offset, blob)

    def _put(self, block_no: int, offset: int, blob: bytes) -> None:
        tail = self.tails.get(block_no)
        if tail is not None:
            tail[1].append(blob)
            return
        found = self._read(block_no, len(blob), offset)
        if found == blob:
            return
        self.tails[block_no] = (offset, [blob])
        if found and not blob.startswith(found):
            same = next(i for i, (a, b) in enumerate(zip(found, blob, strict=False)) if a != b)
            size = os.path.getsize(self.files.path(block_no)) - offset - same
            self.torn.append(
                TornTail(
                    self.files.path(block_no),
                    block_no,
                    offset + same,
                    size,
                    "bytes that differ from the log's",
                )
            )
        elif found:
            self.torn.append(
                TornTail(
                    self.files.path(block_no),
                    block_no,
                    offset,
                    len(found),
                    CUT,
                )
            )

    def _read(self, block_no: int, size: int, offset: int) -> bytes:
        if self._open[0] != block_no:
            self.close()
            try:
                self._open = (block_no, self.disk.open(self.files.path(block_no)))
            except FileNotFoundError:
                return b""
        return self.disk.pread(self._open[1], size, offset)

    def close(self) -> None:
        if self._open[1] >= 0:
            self.disk.close(self._open[1])
        self._open = (-1, -1)


def views_of(replica: str, machine: StreamMachine, blocks: ReplayedBlocks) -> list[BlockView]:
    index = machine.index
    found = [block for block in index.blocks if block.count]
    dead = _dead_ranges(machine, found)
    views: list[BlockView] = []
    for block, ranges in zip(found, dead, strict=True):
        tail_offset, parts = blocks.tails.get(block.block_no, (0, []))
        views.append(
            BlockView(
                replica=replica,
                path=blocks.files.path(block.block_no),
                block_no=block.block_no,
                uid=machine.uid,
                first_seq=block.first_seq,
                last_seq=block.last_seq,
                first_ts_ns=block.first_ts,
                last_ts_ns=block.last_ts,
                count=block.count,
                live=block.live,
                digest=block.digest,
                end_offset=block.end_offset,
                is_sealed=block.is_sealed,
                dead=ranges,
                tail_offset=tail_offset,
                tail=b"".join(parts),
            )
        )
    return views


def _dead_ranges(machine: StreamMachine, blocks: list[Block]) -> list[tuple[tuple[Seq, Seq], ...]]:
    """For each block the ranges of seqs in it that are not live."""
    index = machine.index
    gone: list[tuple[Seq, Seq]] = []
    if blocks and blocks[0].first_seq < index.first_seq:
        gone.append((blocks[0].first_seq, index.first_seq - 1))
    gone += index.deleted.ranges()
    found: list[tuple[tuple[Seq, Seq], ...]] = []
    at = 0
    for block in blocks:
        while at < len(gone) and gone[at][1] < block.first_seq:
            at += 1
        mine: list[tuple[Seq, Seq]] = []
        step = at
        while step < len(gone) and gone[step][0] <= block.last_seq:
            low, high = gone[step]
            mine.append((max(low, block.first_seq), min(high, block.last_seq)))
            step += 1
        found.append(tuple(mine) if block.live < block.count else ())
    return found


def behind_the_end(views: list[BlockView], blocks: ReplayedBlocks) -> list[TornTail]:
    """What follows the end of the newest block in its file and is no whole record."""
    if not views or views[-1].is_sealed or views[-1].tail:
        return []
    view = views[-1]
    try:
        size = os.path.getsize(view.path)
        if size <= view.end_offset:
            return []
        fd = blocks.disk.open(view.path)
    except FileNotFoundError:
        return []
    try:
        rest = blocks.disk.pread(fd, size - view.end_offset, view.end_offset)
    finally:
        blocks.disk.close(fd)
    whole = fmt.verified_length(rest)
    if whole == len(rest) or fmt.footer_length(rest) == len(rest) - whole:
        return []
    reason = "bytes after the last record that are no record"
    return [TornTail(view.path, view.block_no, view.end_offset + whole, len(rest) - whole, reason)]
