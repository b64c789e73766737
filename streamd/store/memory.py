"""`MemoryStreamStore`: the blocks of a stream with memory storage. No files, no thread."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from streamd.store import format as fmt
from streamd.store.blocks import APPEND, DROP, SEAL, LoadedSnapshot
from streamd.types import Index, Term, Uid


class MemoryStreamStore:
    """The same interface as `StreamStore`; everything is always in memory, nothing survives."""

    def __init__(self, uid: Uid) -> None:
        self.uid = uid
        self.failure: None = None
        self._offsets: dict[int, list[int]] = {}
        self._blobs: dict[int, list[bytes]] = {}
        self._footers: dict[int, bytes] = {}
        self._bytes = 0

    @property
    def bytes_on_disk(self) -> int:
        """Always 0; what is held is `byte_count`."""
        return 0

    @property
    def byte_count(self) -> int:
        """Bytes of all records held."""
        return self._bytes

    def apply(self, ops: list[tuple[Any, ...]]) -> None:
        """Carry out block operations, in order."""
        for op in ops:
            kind, block_no = op[0], op[1]
            if kind == APPEND:
                blob = op[3]
                self._offsets.setdefault(block_no, []).append(op[2])
                self._blobs.setdefault(block_no, []).append(blob)
                self._bytes += len(blob)
            elif kind == SEAL:
                self._footers[block_no] = op[3]
            else:
                assert kind == DROP, op
                self._bytes -= sum(map(len, self._blobs.pop(block_no, [])))
                self._offsets.pop(block_no, None)
                self._footers.pop(block_no, None)

    def flush(self) -> None:
        """Nothing waits."""

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """See StreamStore."""
        offsets = self._offsets.get(block_no)
        if not offsets:
            return None
        at = bisect_right(offsets, offset) - 1
        return (offsets[at], self._blobs[block_no][at]) if at >= 0 else None

    def read_chunk(
        self, block_no: int, offset: int, min_bytes: int, done: Callable[[], None]
    ) -> None:
        """Never needed: whatever is there is in memory."""
        done()

    def load_footer(self, block_no: int) -> bytes:
        """See StreamStore."""
        return self._footers[block_no]

    def scan(self, block_no: int, end_offset: int = 0) -> Iterator[fmt.Record]:
        """See StreamStore."""
        for base, blob in zip(
            self._offsets.get(block_no, ()), self._blobs.get(block_no, ()), strict=True
        ):
            yield from fmt.scan(blob, base)

    def save_snapshot(
        self,
        *,
        index: Index,
        term: Term,
        chain: int,
        state: bytes,
        index_db: bytes,
        tail: tuple[int, int],
        done: Callable[[], None],
    ) -> None:
        """There is nothing that could survive: done at once."""
        done()

    def load_snapshot(self) -> LoadedSnapshot | None:
        """There never is one."""
        return None

    def truncate_to(self, tail: tuple[int, int]) -> None:
        """Forget everything after `tail`."""
        block_no, offset = tail
        for found in sorted(self._blobs):
            keep = 0
            if found <= block_no:
                offsets = self._offsets[found]
                keep = len(offsets) if found < block_no else bisect_right(offsets, offset - 1)
            removed = self._blobs[found][keep:]
            self._bytes -= sum(map(len, removed))
            del self._blobs[found][keep:], self._offsets[found][keep:]
            if found >= block_no:
                self._footers.pop(found, None)

    def close(self) -> None:
        """Let go of everything."""
        self._offsets.clear()
        self._blobs.clear()
        self._footers.clear()
        self._bytes = 0

    def move_to_trash(self, trash_dir: str) -> None:
        """There is nothing to move."""
