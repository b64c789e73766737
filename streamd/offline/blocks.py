"""The blocks of one replica: what a view tells of each, and a replay's comparison with them."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamd.errors import CorruptionError
from streamd.offline.engine import (
    APPEND,
    HEADER_BYTES,
    LENGTH_MASK,
    SEAL,
    Block,
    BlockFiles,
    StreamMachine,
    decode_footer,
    footer_length,
    read_left,
)
from streamd.offline.engine import record_format as fmt
from streamd.offline.read_only_disk import ReadOnlyDisk, content_size
from streamd.types import Seq, Uid

SPARE_BYTES_MAX = 32 * 1024 * 1024  # of a room that is kept for the next reader
CUT = "the file ends inside what the log holds"
OTHER = "bytes that differ from the log's"
_POPULATE_READ = 22  # Linux's MADV_POPULATE_READ, which the module mmap does not name


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
    """A block of a stream as a view saw it. Picklable; reads nothing by itself."""

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
    is_settled: bool = False  # sealed before the last snapshot: a restart does not cut its file
    others: tuple[str, ...] = ()  # the same block's file on other replicas, for what is damaged

    @property
    def byte_count(self) -> int:
        """Bytes of its records."""
        return self.end_offset - HEADER_BYTES

    @property
    def has_footer(self) -> bool:
        """Whether its file says where each record is, if it is whole."""
        return self.is_sealed and not self.tail

    def read(
        self, room: BlockRoom | None = None, *, first_seq: Seq = 0, last_seq: Seq = 0
    ) -> memoryview:
        """The block's bytes: header, records and, if it is sealed, the footer.

        Shorter than it should be if the file is; who decodes it notices. With `room` the bytes
        may be in it, and are valid until the next read into it. With `first_seq` or `last_seq`
        (inclusive, 0 for none) the bytes of records outside may be of any content, which saves
        reading them.
        Raises FileNotFoundError when the server has removed the block meanwhile, because all its
        messages were deleted.
        """
        size = self.tail_offset if self.tail else 0 if self.is_sealed else self.end_offset
        if size == HEADER_BYTES:  # the file has no record yet
            return memoryview(fmt.encode_block_header(self.uid, self.block_no) + self.tail)
        if room is None:
            room = BlockRoom()
        framed = self._framed_content(size)
        if framed is not None:
            blob = room.take(len(framed) + len(self.tail))
            blob[: len(framed)] = framed
            done, wanted = len(framed), size or len(framed)
            if done < wanted:
                return blob[:done]
            blob[done:] = self.tail
            return blob
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            wanted = size or os.fstat(fd).st_size
            is_part = first_seq > self.first_seq or 0 < last_seq < self.last_seq
            if self.is_settled and not is_part:
                mapped = map_file(fd, wanted)
                if mapped is not None:
                    return mapped
            blob = room.take(wanted + len(self.tail))
            if is_part and self.has_footer and self._read_part(fd, blob, first_seq, last_seq):
                return blob
            done = _fill(fd, blob, 0, wanted)
        finally:
            os.close(fd)
        if done < wanted:  # the tail has its place behind what is missing, not in it
            return blob[:done]
        blob[done : done + len(self.tail)] = self.tail
        return blob[: done + len(self.tail)]

    def read_left(self) -> bytes:
        """Return what `read` does, with zeros for what the disk does not give."""
        blob = read_left(ReadOnlyDisk(), self.path)
        return (
            blob[: self.tail_offset].ljust(self.tail_offset, b"\0") + self.tail
            if self.tail
            else blob
        )

    def _framed_content(self, size: int) -> bytes | None:
        """The first `size` bytes (0: all) of an encrypted or packed block; None: it is neither."""
        disk = ReadOnlyDisk()
        fd = disk.open(self.path)
        try:
            if not disk.is_framed(fd):
                return None
            return disk.pread(fd, size or disk.size(fd), 0)
        finally:
            disk.close(fd)

    def _read_part(self, fd: int, blob: memoryview, first_seq: Seq, last_seq: Seq) -> bool:
        """Read the header, the footer and the records that it has from `first_seq` to `last_seq`.
        False if any of that is not there or not whole."""
        end = self.end_offset
        if len(blob) <= end or _fill(fd, blob, end, len(blob)) < len(blob):
            return False
        tail = bytes(blob[end:])
        if footer_length(tail) != len(tail):
            return False
        try:
            footer = decode_footer(tail)
        except (CorruptionError, AssertionError):
            return False
        count = len(footer.offsets)
        seqs = footer.seqs or range(footer.first_seq, footer.first_seq + count)
        low = bisect_left(seqs, first_seq)
        high = bisect_right(seqs, last_seq) if last_seq else count
        if _fill(fd, blob, 0, HEADER_BYTES) < HEADER_BYTES:
            return False
        if low >= high:
            return True
        start = footer.offsets[low]
        stop = footer.offsets[high - 1] + (footer.lengths[high - 1] & LENGTH_MASK)
        return stop <= end and _fill(fd, blob, start, stop) == stop


def _fill(fd: int, blob: memoryview, start: int, stop: int) -> int:
    """Read the file's bytes `start` to `stop` to the same place in `blob`; return where the file
    ended, or `stop`."""
    while start < stop:  # Linux reads at most 2 GiB at once
        count = os.preadv(fd, [blob[start:stop]], start)
        if not count:
            break
        start += count
    return start


def map_file(fd: int, size: int) -> memoryview | None:
    """The first `size` bytes of a file that nobody cuts, without copying them.

    None where they have to be read: the file is shorter, the kernel does not map ahead of use, or
    the disk does not give them, of which a read tells more than a fault would.
    """
    try:
        mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        mapped.madvise(_POPULATE_READ)
    except (OSError, ValueError):
        return None
    return memoryview(mapped)


class BlockRoom:
    """Memory for one block at a time: to fill pages that are there takes half as long as to have
    the kernel supply new ones."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray())

    @property
    def size(self) -> int:
        return len(self._bytes)

    def take(self, size: int) -> memoryview:
        """Room for `size` bytes, of any content. What was taken before is overwritten."""
        if size > len(self._bytes):
            self._bytes = memoryview(mmap.mmap(-1, size))  # pages that nobody has filled yet
        return self._bytes[:size]


_spare_rooms: list[BlockRoom] = []  # at most one, but for readers that end at the same moment


@contextmanager
def block_room() -> Iterator[BlockRoom]:
    """Lend a room to one reader; the next reader of this process gets the same one."""
    try:
        room = _spare_rooms.pop()
    except IndexError:
        room = BlockRoom()
    try:
        yield room
    finally:
        if not _spare_rooms and room.size <= SPARE_BYTES_MAX:
            _spare_rooms.append(room)


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
                self._put(block_no, offset, bytes(blob))

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
            size = content_size(self.files.path(block_no)) - offset - same
            self.torn.append(
                TornTail(
                    self.files.path(block_no),
                    block_no,
                    offset + same,
                    size,
                    OTHER,
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
        try:
            return self.disk.pread(self._open[1], size, offset)
        except OSError:
            return b""  # the disk does not give it, the log has it

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
        is_touched = block.block_no in blocks.touched
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
                is_settled=block.is_sealed and block is not found[-1] and not is_touched,
            )
        )
    return views


def _dead_ranges(machine: StreamMachine, blocks: list[Block]) -> list[tuple[tuple[Seq, Seq], ...]]:
    """For each block the ranges of seqs in it that are not live."""
    index = machine.index
    gone: list[tuple[Seq, Seq]] = []
    if blocks and blocks[0].first_seq < index.first_seq:
        gone.append((blocks[0].first_seq, index.first_seq - 1))
    gone += index.live.deleted.ranges()
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
    """Return what follows the end of the newest block in its file and is no whole record."""
    if not views or views[-1].is_sealed or views[-1].tail:
        return []
    view = views[-1]
    try:
        size = content_size(view.path)
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
    if whole == len(rest) or footer_length(rest) == len(rest) - whole:
        return []
    reason = "bytes after the last record that are no record"
    return [TornTail(view.path, view.block_no, view.end_offset + whole, len(rest) - whole, reason)]
