"""Recent bytes of a stream's blocks in memory, for live readers and until they are written.

`TailCache` holds the newest blobs of one stream, exactly as they were appended; `CacheBudget`
bounds what all streams of a node hold together; `ChunkCache` keeps chunks read back from disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from streamd.callbacks import ignore
from streamd.memory_share import MemoryShare
from streamd.store.blocks.block import OpenBlocks
from streamd.types import Pieces

TAIL_BYTES = 8 * 1024 * 1024  # per stream: about what a live reader may lag and touch no disk
BUDGET_BYTES = 96 * 1024 * 1024  # per node
GATHERED_BYTES_MAX = 64 * 1024 * 1024  # per node, waiting for more to be written with
QUEUE_BYTES_MAX = 128 * 1024 * 1024  # per node, to be written: more, and the log has to wait
CHUNK_CACHE_BYTES = 4 * 1024 * 1024  # per stream: some replaying readers, each at its own place
CHUNK_SHARE_BYTES = 64 * 1024 * 1024  # per node


class Gatherer(Protocol):
    """Writer of one stream that gathers bytes."""

    def flush(self) -> None:
        """Hand what was gathered to the block thread."""


class CacheBudget:
    """Bound on what the tail caches and writers of a node hold together.

    Memory is taken from the caches that were not appended to lately; bytes that are not in their
    file yet can't be taken. When all gather more than `gathered_bytes_max`, the writer that has
    gathered longest has to flush. `on_full` is called when more than `queue_bytes_max` wait for the
    disk, and `on_room` when they no longer do.
    """

    def __init__(
        self,
        bytes_max: int = BUDGET_BYTES,
        *,
        gathered_bytes_max: int = GATHERED_BYTES_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        on_full: Callable[[], None] = ignore,
        on_room: Callable[[], None] = ignore,
        open_blocks: OpenBlocks | None = None,
    ) -> None:
        self.open_blocks = open_blocks if open_blocks is not None else OpenBlocks()
        self.bytes_max = bytes_max
        self.gathered_bytes_max = gathered_bytes_max
        self.queue_bytes_max = queue_bytes_max
        self.used = 0
        self.chunks = MemoryShare(CHUNK_SHARE_BYTES)  # read back, by the streams' chunk caches
        self.gathered = 0
        self.queued = 0
        self._gathering: dict[Gatherer, None] = {}  # the one that began longest ago first
        self._on_full = on_full
        self._on_room = on_room
        # Caches with bytes that are in a file; least recently appended first.
        self._tails: OrderedDict[TailCache, None] = OrderedDict()

    def touch(self, tail: TailCache) -> None:
        """Note that `tail` grew: it is the last to shrink."""
        tails = self._tails
        if tail in tails:
            tails.move_to_end(tail)
        while self.used > self.bytes_max and tails:
            tails.popitem(last=False)[0].evict(0)

    def wrote(self, tail: TailCache) -> None:
        """Note that more of `tail` is in its file."""
        self._tails.setdefault(tail)

    def forget(self, tail: TailCache) -> None:
        """Forget a cache that was cleared."""
        self._tails.pop(tail, None)

    def gather(self, gatherer: Gatherer, size: int) -> None:
        """Count `size` bytes more that wait to be handed to the block thread."""
        self._gathering.setdefault(gatherer)
        self.gathered += size
        while self.gathered > self.gathered_bytes_max:
            next(iter(self._gathering)).flush()

    def enqueue(self, gatherer: Gatherer, size: int) -> None:
        """Count the hand-over of all `size` gathered bytes to the block thread."""
        self._gathering.pop(gatherer, None)
        self.gathered -= size
        was_full = self.queued > self.queue_bytes_max
        self.queued += size
        if self.queued > self.queue_bytes_max and not was_full:
            self._on_full()

    def dequeue(self, size: int) -> None:
        """Count `size` bytes as written, or as never to be written."""
        was_full = self.queued > self.queue_bytes_max
        self.queued -= size
        if was_full and self.queued <= self.queue_bytes_max:
            self._on_room()


class _BlockTail:
    """Newest blobs of one block, with increasing offsets, without gaps."""

    __slots__ = ("blobs", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.blobs: list[bytes | Pieces] = []


class TailCache:
    """Newest blobs of one stream. A blob that is not yet in its file is never evicted."""

    __slots__ = ("_blocks", "_budget", "_bytes_max", "_written", "byte_count")

    def __init__(self, budget: CacheBudget, bytes_max: int = TAIL_BYTES) -> None:
        self._budget = budget
        self._bytes_max = bytes_max
        self._blocks: dict[int, _BlockTail] = {}  # in increasing block_no
        self._written = (0, 0)  # all before this (block_no, offset) is in its file
        self.byte_count = 0

    def append(self, block_no: int, offset: int, blob: bytes | Pieces) -> None:
        """Hold `blob`, which follows everything held so far."""
        block = self._blocks.get(block_no)
        if block is None:
            block = self._blocks[block_no] = _BlockTail()
        block.offsets.append(offset)
        block.blobs.append(blob)
        size = len(blob)
        self.byte_count += size
        budget = self._budget
        budget.used += size
        budget.touch(self)
        if self.byte_count > self._bytes_max:
            self.evict(self._bytes_max * 3 // 4)

    def find(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """Return (base, blob) of the blob that holds the record at `offset`."""
        block = self._blocks.get(block_no)
        if block is None:
            return None
        at = bisect_right(block.offsets, offset) - 1
        if at < 0:
            return None
        base = block.offsets[at]
        blob = block.blobs[at]
        if offset >= base + len(blob):
            return None
        if isinstance(blob, Pieces):  # read for the first time
            blob = block.blobs[at] = bytes(blob)
        return base, blob

    def wrote(self, block_no: int, end: int) -> None:
        """Note that everything up to `end` of `block_no` is in its file."""
        self._written = max(self._written, (block_no, end))
        if self.byte_count:  # else all was evicted, or the stream is closed
            self._budget.wrote(self)
        if self.byte_count > self._bytes_max or self._budget.used > self._budget.bytes_max:
            self.evict(self._bytes_max * 3 // 4)

    def evict(self, keep_bytes: int) -> None:
        """Evict the oldest written blobs until `keep_bytes` are left."""
        excess = self.byte_count - keep_bytes
        freed = 0
        for block_no in list(self._blocks):
            block = self._blocks[block_no]
            written = (
                self._written[1]
                if block_no == self._written[0]
                else (1 << 62 if block_no < self._written[0] else 0)
            )
            count = 0
            for offset, blob in zip(block.offsets, block.blobs, strict=True):
                if freed >= excess or offset + len(blob) > written:
                    break
                freed += len(blob)
                count += 1
            if count == len(block.blobs):
                del self._blocks[block_no]
                continue
            del block.offsets[:count]
            del block.blobs[:count]
            break
        self.byte_count -= freed
        self._budget.used -= freed

    def drop(self, block_no: int) -> None:
        """Drop a dead block."""
        block = self._blocks.pop(block_no, None)
        if block is not None:
            size = sum(map(len, block.blobs))
            self.byte_count -= size
            self._budget.used -= size

    def clear(self) -> None:
        """Drop everything: the stream is closed."""
        self._blocks.clear()
        self._budget.used -= self.byte_count
        self.byte_count = 0
        self._budget.forget(self)


class ChunkCache:
    """Chunks read back from blocks; the least recently used are evicted first."""

    __slots__ = ("_bases", "_bytes_max", "_chunks", "_share", "byte_count")

    def __init__(self, share: MemoryShare, bytes_max: int = CHUNK_CACHE_BYTES) -> None:
        self._share = share
        self._bytes_max = bytes_max
        self._chunks: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._bases: dict[int, list[int]] = {}  # block_no -> sorted bases
        self.byte_count = 0

    def add(self, block_no: int, base: int, blob: bytes) -> None:
        """Keep `blob`; it stays at least until another one is added."""
        self._remove((block_no, base))
        self._chunks[block_no, base] = blob
        bases = self._bases.setdefault(block_no, [])
        bases.insert(bisect_right(bases, base), base)
        self.byte_count += len(blob)
        while self.byte_count > self._bytes_max and len(self._chunks) > 1:
            self._remove(next(iter(self._chunks)))
        self._share.note(self, self.byte_count)

    def give_up(self) -> int:
        """Evict all but the newest chunk, for its reader may not have seen it yet; the next time
        that as well."""
        kept = 1 if len(self._chunks) > 1 else 0
        while len(self._chunks) > kept:
            self._remove(next(iter(self._chunks)))
        return self.byte_count

    def find(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """Return (base, blob) of a chunk that holds the record at `offset`."""
        bases = self._bases.get(block_no)
        if not bases:
            return None
        at = bisect_right(bases, offset) - 1
        if at < 0:
            return None
        base = bases[at]
        blob = self._chunks[block_no, base]
        if offset >= base + len(blob):
            return None
        self._chunks.move_to_end((block_no, base))
        return base, blob

    def drop(self, block_no: int) -> None:
        """Drop a dead block."""
        for base in list(self._bases.get(block_no, ())):
            self._remove((block_no, base))

    def clear(self) -> None:
        """Drop everything: the stream is closed."""
        self._chunks.clear()
        self._bases.clear()
        self.byte_count = 0
        self._share.forget(self)

    def _remove(self, key: tuple[int, int]) -> None:
        blob = self._chunks.pop(key, None)
        if blob is not None:
            self.byte_count -= len(blob)
            bases = self._bases[key[0]]
            bases.remove(key[1])
            if not bases:
                del self._bases[key[0]]
