"""Block files of one stream, `N.blk`, for the block thread. Synchronous; no policy."""

from __future__ import annotations

import os
from collections import OrderedDict

from streamd.errors import CorruptionError
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.footer import TRAILER_BYTES, footer_length
from streamd.store.blocks.record_format import REWRITTEN
from streamd.store.blocks.snapshots import write_file
from streamd.store.disk import Disk, is_refused, opened
from streamd.store.frames.framed_disk import packed_size
from streamd.types import Buffer, Index, Pieces, Uid

HEADER_BYTES = 64
OPEN_BLOCKS_MAX = 1024  # unless the node sets another bound

Write = tuple[int, int, bytes | Pieces, bool]
"""(block_no, offset, blob, is_seal): write `blob`; with is_seal it is the footer."""


class OpenBlocks:
    """Bound on the block files, of all streams, that are open to be written. For the block thread.

    The least recently written file is synced and closed, and opened again when more is appended to
    it. Closed without a sync, an error of its write-back might never be reported.
    """

    def __init__(self, files_max: int = OPEN_BLOCKS_MAX) -> None:
        self._files_max = files_max
        self._used: OrderedDict[tuple[BlockFiles, int], None] = OrderedDict()

    def use(self, files: BlockFiles, block_no: int) -> None:
        """Count a block file that is open and about to be written."""
        key = (files, block_no)
        if key in self._used:
            self._used.move_to_end(key)
            return
        self._used[key] = None
        while len(self._used) > self._files_max:
            oldest, no = self._used.popitem(last=False)[0]
            oldest.settle(no)

    def forget(self, files: BlockFiles, block_no: int) -> None:
        """Forget a block file that was closed."""
        self._used.pop((files, block_no), None)

    def __len__(self) -> int:
        return len(self._used)


class BlockFiles:
    """Reader and writer of the block files of one stream.

    Files written since the last sync stay open for it, as far as `open_blocks` allows.
    """

    def __init__(
        self, disk: Disk, directory: str, uid: Uid, open_blocks: OpenBlocks | None = None
    ) -> None:
        self._disk = disk
        self._open_blocks = open_blocks if open_blocks is not None else OpenBlocks()
        self._failure: OSError | None = None  # of a sync while another stream was written
        self.directory = directory
        self._uid = uid
        self._unsynced: dict[int, int] = {}  # block_no -> fd
        self.packed: dict[int, int] = {}  # block_no -> bytes that its file takes
        self._is_dir_unsynced = False

    def path(self, block_no: int) -> str:
        """Return the path of a block's file."""
        return os.path.join(self.directory, fmt.block_name(block_no))

    def sizes(self) -> dict[int, int]:
        """Return the bytes of every block file."""
        found: dict[int, int] = {}
        self.packed.clear()
        for name in self._disk.listdir(self.directory):
            block_no = fmt.block_number(name)
            if block_no is not None:
                with opened(self._disk, os.path.join(self.directory, name)) as fd:
                    found[block_no] = self._disk.size(fd)
                    packed = packed_size(self._disk, fd)
                if packed:
                    self.packed[block_no] = packed
        return found

    def last_frame(self, block_no: int) -> Index:
        """Return the log index of the frame that the block ends with; 0 for any other end."""
        with opened(self._disk, self.path(block_no)) as fd:
            at = max(0, self._disk.size(fd) - fmt.RECORD_OVERHEAD_BYTES)
            blob = self._disk.pread(fd, fmt.RECORD_OVERHEAD_BYTES, at)
        record = next(fmt.scan(blob), None)
        return record.seq if record is not None and record.type == fmt.FRAME else 0

    def write(self, writes: list[Write]) -> None:
        """Carry out `writes` in order: neighbours in one block are one system call."""
        disk = self._disk
        self._check()
        at = 0
        while at < len(writes):
            block_no, offset, _, is_seal = writes[at]
            buffers: list[Buffer] = []
            end = offset
            while at < len(writes) and writes[at][0] == block_no and writes[at][1] == end:
                _, _, blob, is_seal = writes[at]
                if isinstance(blob, Pieces):
                    buffers += blob.pieces
                else:
                    buffers.append(blob)
                end += len(blob)
                at += 1
            fd = self._open_to_write(block_no, offset)
            disk.writev(fd, buffers, offset)
            if is_seal:
                disk.crash_point("BLOCK_SEALED")
                disk.fdatasync(fd)
                self._close(block_no)

    def settle(self, block_no: int) -> None:
        """Sync and close one file, whose place another file needs.

        An error is raised by the next write or sync of this stream: the stream that needs the place
        has nothing to do with it.
        """
        try:
            self._disk.fdatasync(self._unsynced[block_no])
        except OSError as err:
            self._failure = self._failure or err
        self._disk.close(self._unsynced.pop(block_no))
        self._disk.crash_point("BLOCK_SETTLED")

    def _close(self, block_no: int) -> None:
        self._open_blocks.forget(self, block_no)
        self._disk.close(self._unsynced.pop(block_no))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def sync(self) -> None:
        """Make everything written so far durable."""
        disk = self._disk
        self._check()
        for block_no, fd in list(self._unsynced.items()):
            disk.fdatasync(fd)
            self._close(block_no)
        disk.crash_point("BLOCKS_SYNCED")
        if self._is_dir_unsynced:
            disk.sync_dir(self.directory)
            self._is_dir_unsynced = False
        disk.crash_point("BLOCKS_DIR_SYNCED")

    def read(self, block_no: int, offset: int, size: int) -> bytes:
        """Read about `size` bytes and return the whole, valid records at their head: at least one,
        of any length."""
        with opened(self._disk, self.path(block_no)) as fd:
            try:
                blob = self._disk.pread(fd, size, offset)
            except OSError:  # a part of it may be well
                blob = self._disk.pread(fd, fmt.RECORD_OVERHEAD_BYTES, offset)
            valid = fmt.verified_length(blob)
            if not valid:
                length = fmt.stated_length(blob)
                if len(blob) < length <= self._disk.size(fd) - offset:
                    blob = self._disk.pread(fd, length, offset)
                    valid = fmt.verified_length(blob)
        if not valid:
            raise CorruptionError(
                f"{self.path(block_no)}: offset {offset}: the record there is damaged"
            )
        return blob if valid == len(blob) else blob[:valid]

    def read_spans(self, block_no: int, spans: list[tuple[int, int]], step: int) -> bytes:
        """Return the records at `spans`, (offset, length) in ascending order, one behind another.

        Each is verified. Reads about `step` bytes at a time.
        """
        pieces: list[bytes] = []
        with opened(self._disk, self.path(block_no)) as fd:
            base, blob = 0, b""
            for at, (offset, length) in enumerate(spans):
                if offset + length > base + len(blob):
                    end = offset + length
                    for next_offset, next_length in spans[at + 1 :]:
                        if next_offset + next_length > offset + step:
                            break
                        end = next_offset + next_length
                    base, blob = offset, self._disk.pread(fd, end - offset, offset)
                piece = blob[offset - base : offset - base + length]
                if len(piece) < length or fmt.verified_length(piece) != length:
                    raise CorruptionError(
                        f"{self.path(block_no)}: offset {offset}: a record there is damaged"
                    )
                pieces.append(piece)
        return b"".join(pieces)

    def damaged_records(self, block_no: int, places: list[tuple[int, int, int]]) -> list[int]:
        """Return the positions in `places`, (offset, length, crc) each, of unreadable or other
        records."""
        try:
            fd = self._disk.open(self.path(block_no))
        except OSError as err:
            if is_refused(err):
                raise
            return list(range(len(places)))
        damaged: list[int] = []
        try:
            for at, (offset, length, crc) in enumerate(places):
                try:
                    blob = self._disk.pread(fd, length, offset)
                except OSError as err:
                    if is_refused(err):
                        raise
                    blob = b""
                is_whole = len(blob) == length == fmt.verified_length(blob)
                if not is_whole or fmt.crc_of(blob) != crc:
                    damaged.append(at)
        finally:
            self._disk.close(fd)
        return damaged

    def read_all(self, block_no: int, end_offset: int) -> bytes:
        """Return the block up to `end_offset` (0: all of it), its header checked and included."""
        with opened(self._disk, self.path(block_no)) as fd:
            blob = self._disk.pread(fd, end_offset or self._disk.size(fd), 0)
        fmt.check_block_header(blob, self._uid, block_no)
        if len(blob) < end_offset:
            raise CorruptionError(
                f"{self.path(block_no)}: has {len(blob)} bytes, should have {end_offset}"
            )
        return blob

    def read_footer(self, block_no: int) -> bytes:
        """Return the footer of a sealed block, unchecked but for its frame."""
        with opened(self._disk, self.path(block_no)) as fd:
            size = self._disk.size(fd)
            trailer_at = max(0, size - TRAILER_BYTES)
            length = footer_length(self._disk.pread(fd, TRAILER_BYTES, trailer_at))
            if not HEADER_BYTES <= size - length < size:
                raise CorruptionError(f"{self.path(block_no)}: offset {trailer_at}: no footer")
            return self._disk.pread(fd, length, size - length)

    def truncate(self, block_no: int, offset: int) -> None:
        """Cut the block at `offset`; CorruptionError if it does not reach that far."""
        with opened(self._disk, self.path(block_no)) as fd:
            size = self._disk.size(fd)
            if size < offset:
                raise CorruptionError(
                    f"{self.path(block_no)}: has {size} bytes, the snapshot says {offset}"
                )
            if size <= offset:
                return
            if not packed_size(self._disk, fd):
                self._disk.truncate(fd, offset)
                return
            kept = self._disk.pread(fd, offset, 0)
        # A packed file is never changed; what takes its place goes on being written.
        name = fmt.block_name(block_no)
        write_file(self._disk, self.directory, name, [kept], point="BLOCK_UNPACKED")
        self.packed.pop(block_no, None)

    def remove(self, block_no: int) -> None:
        """Remove the file, if it is there."""
        if block_no in self._unsynced:
            self._close(block_no)
        if self._disk.exists(self.path(block_no)):
            self._disk.unlink(self.path(block_no))
            self._is_dir_unsynced = True

    def close(self) -> None:
        """Close all files, unsynced."""
        for block_no in list(self._unsynced):
            self._close(block_no)

    def _open_to_write(self, block_no: int, offset: int) -> int:
        """Open a block file to write at `offset`.

        Raises CorruptionError if bytes before `offset` are missing: the write would be behind a
        hole.
        """
        fd = self._unsynced.get(block_no)
        if fd is None:
            path = self.path(block_no)
            is_new = not self._disk.exists(path)
            if is_new and offset > HEADER_BYTES:
                raise CorruptionError(f"{path}: the file is missing")
            fd = self._disk.open(path, create=True)
            size = self._disk.size(fd)
            if size < offset and offset > HEADER_BYTES:
                self._disk.close(fd)
                raise CorruptionError(f"{path}: has {size} bytes, {offset} were written")
            self._unsynced[block_no] = fd
            if is_new or size < HEADER_BYTES:
                self._disk.pwrite(fd, fmt.encode_block_header(self._uid, block_no), 0)
                self._is_dir_unsynced = True
        self._open_blocks.use(self, block_no)
        return fd


class BlockExtents:
    """Sizes of a stream's block files once all that was given to be written is in them."""

    def __init__(self, files: BlockFiles) -> None:
        self.sizes = files.sizes()
        # Where the blocks end at least: a footer counts, and nothing follows in a dead block.
        self.floor = (0, 0)
        self._files = files

    def reload(self) -> None:
        """Take the sizes of the files as they are now."""
        self.sizes = self._files.sizes()

    def grow(self, block_no: int, end: int) -> None:
        """Count bytes up to `end` of a block."""
        if end > self.sizes.get(block_no, 0):
            self.sizes[block_no] = end

    def drop(self, block_no: int) -> int:
        """Forget a block; return its size, 0 if it has none."""
        return self.sizes.pop(block_no, 0)

    def raise_floor(self, block_no: int, offset: int) -> None:
        """Note that the blocks end at (block_no, offset) or later."""
        self.floor = max(self.floor, (block_no, offset))

    def newest(self) -> int:
        """Return the number of the newest block that is no rewritten one; 0: there is none."""
        return max((block_no for block_no in self.sizes if block_no < REWRITTEN), default=0)

    def reaches_beyond(self, tail: tuple[int, int]) -> bool:
        """Return True if blocks hold something after `tail` (block, offset)."""
        block_no, offset = max(tail, (1, HEADER_BYTES))
        return any(
            found > block_no or (found == block_no and size > offset)
            for found, size in self.sizes.items()
            if found < REWRITTEN and size > HEADER_BYTES
        )

    def truncate_to(self, tail: tuple[int, int]) -> None:
        """Remove everything after `tail` from the files, but for rewritten blocks.

        Raises CorruptionError if the blocks do not reach `tail`; OSError.
        """
        block_no, offset = self.floor = tail
        # A block without a record before the tail goes whole: its header may be torn.
        is_whole = offset <= HEADER_BYTES
        for found in sorted(self.sizes):
            if found >= REWRITTEN and block_no:
                continue
            if found > block_no or (found == block_no and is_whole):
                self._files.remove(found)
        if not is_whole:
            if block_no not in self.sizes:
                raise CorruptionError(f"{self._files.path(block_no)}: the file is missing")
            self._files.truncate(block_no, offset)
        self.reload()
