"""`MemoryStreamStore`: the blocks of a stream with memory storage. No files, no thread.

With `keeps_snapshots` (nodes that have peers) the newest snapshot is kept in memory together with
the blocks it names, so that a peer can fetch them; they share their bytes with the live ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from streamd.callbacks import ignore
from streamd.errors import CorruptionError
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.block_verify import BlockRows, rows_of
from streamd.store.blocks.block_writer import APPEND, DROP, SEAL
from streamd.store.blocks.held_blocks import HeldBlocks, HeldMemory
from streamd.store.blocks.record_format import REWRITTEN, block_name
from streamd.store.blocks.stream_store import Bytes, LoadedSnapshot
from streamd.types import BlockOp, Index, Term, Uid


class MemoryStreamStore:
    """Store of a stream in memory, as `StreamStore` for one with files. Nothing survives."""

    def __init__(self, uid: Uid, *, keeps_snapshots: bool = False) -> None:
        self.uid = uid
        self.keeps_snapshots = keeps_snapshots
        self.failure: None = None
        self.reclaimable_bytes = 0  # of files
        self._offsets: dict[int, list[int]] = {}
        self._blobs: dict[int, list[bytes]] = {}
        self._footers: dict[int, bytes] = {}
        self._saved: LoadedSnapshot | None = None
        # Of the blocks that the saved snapshot names: (blobs, how many of them, footer). The
        # lists are the live ones, which only grow; a block dropped since stays here.
        self._saved_blocks: dict[int, tuple[list[bytes], int, bytes]] = {}

    def apply(self, ops: list[BlockOp]) -> None:
        """Carry out block operations, in order."""
        for op in ops:
            if len(op) == 2:
                kind, block_no = op
                assert kind == DROP, op
                self._blobs.pop(block_no, None)
                self._offsets.pop(block_no, None)
                self._footers.pop(block_no, None)
                continue
            kind, block_no, offset, blob = op
            if kind == APPEND:
                self._offsets.setdefault(block_no, []).append(offset)
                self._blobs.setdefault(block_no, []).append(bytes(blob))
            else:
                assert kind == SEAL, op
                self._footers[block_no] = bytes(blob)

    def flush(self) -> None:
        """Return at once: no write waits."""

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """Return (base, blob) that hold the record at `offset`; see `BlockReader`."""
        offsets = self._offsets.get(block_no)
        if not offsets:
            return None
        at = bisect_right(offsets, offset) - 1
        return (offsets[at], self._blobs[block_no][at]) if at >= 0 else None

    def read_chunk(
        self, block_no: int, offset: int, min_bytes: int, done: Callable[[], None]
    ) -> None:
        """Call `done` at once: everything is in memory."""
        done()

    def read_spans(
        self, block_no: int, spans: list[tuple[int, int]], done: Callable[[Any], None]
    ) -> None:
        """Call `done` at once with the records at `spans`; see `BlockReader`."""
        pieces = []
        for offset, length in spans:
            end = offset + length
            while offset < end:
                found = self.chunk(block_no, offset)
                assert found is not None, (block_no, offset)
                base, blob = found
                piece = blob[offset - base : end - base]
                assert piece, (block_no, offset)
                pieces.append(piece)
                offset += len(piece)
        done(b"".join(pieces))

    def load_footer(self, block_no: int) -> bytes:
        """Return the footer of a sealed block."""
        return self._footers[block_no]

    def scan(self, block_no: int, end_offset: int = 0) -> Iterator[fmt.Record]:
        """Yield the records of a block in order."""
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
        state: Bytes,
        index_db: Bytes | None,
        tail: tuple[int, int],
        done: Callable[[], None],
        outline: Callable[[], bytes] | None = None,
    ) -> None:
        """Keep the snapshot for peers, if at all, and call `done` at once."""
        if self.keeps_snapshots:
            made = state() if callable(state) else state
            made_index = index_db() if callable(index_db) else index_db
            self._keep(LoadedSnapshot(index, term, chain, made, made_index, tail))
        done()

    def _keep(self, snapshot: LoadedSnapshot) -> None:
        self._saved = snapshot
        self._saved_blocks = {
            block_no: (blobs, len(blobs), self._footers.get(block_no, b""))
            for block_no, blobs in self._blobs.items()
        }

    def load_snapshot(self, on_void: Callable[[str], object] = ignore) -> LoadedSnapshot | None:
        """Return the newest snapshot that is kept, be it an installed one."""
        return self._saved

    @property
    def saved_index(self) -> Index:
        """Index of the snapshot that is kept; 0: none is."""
        return self._saved.index if self._saved is not None else 0

    def image(self, block_no: int) -> bytes:
        """Return a block of the kept snapshot, byte for byte as a file would hold it or begin."""
        found = self._saved_blocks.get(block_no)
        if found is None:
            raise CorruptionError(f"{block_name(block_no)} of stream {self.uid} is not in memory")
        blobs, count, footer = found
        header = fmt.encode_block_header(self.uid, block_no)
        return b"".join([header, *blobs[:count], footer])

    def install(self, snapshot: LoadedSnapshot, images: dict[int, bytes]) -> None:
        """Replace everything held so far by what a peer sent: verified block images."""
        self.close()
        for block_no, image in sorted(images.items()):
            end = HEADER_BYTES + fmt.verified_length(image[HEADER_BYTES:])
            self._offsets[block_no] = [HEADER_BYTES]
            self._blobs[block_no] = [image[HEADER_BYTES:end]]
            if end < len(image):
                self._footers[block_no] = image[end:]
        # Always kept, even by a node without peers: the machine is restored from it.
        self._keep(snapshot)

    def hold(self) -> HeldBlocks:
        """Keep the blocks as they are now, for a reader of this very moment."""
        return HeldMemory(
            {
                block_no: (offsets[:], self._blobs[block_no][:])
                for block_no, offsets in self._offsets.items()
            }
        )

    def verify(self, block_no: int, *, end_offset: int, is_sealed: bool) -> BlockRows:
        """Verify a live block; see `BlockReader`."""
        footer = self._footers.get(block_no, b"") if is_sealed else b""
        header = fmt.encode_block_header(self.uid, block_no)
        image = b"".join([header, *self._blobs.get(block_no, ()), footer])
        rows = rows_of(image, self.uid, block_no)
        if (rows.end_offset, rows.is_sealed) != (end_offset, is_sealed):
            raise CorruptionError(
                f"{block_name(block_no)} of stream {self.uid}: its records end at "
                f"{rows.end_offset}, they should end at {end_offset}"
            )
        return rows

    def truncate_to(self, tail: tuple[int, int]) -> None:
        """Forget everything after `tail`. Rewritten blocks are those of the snapshot, if any."""
        block_no, offset = tail
        for found in sorted(self._blobs):
            if found >= REWRITTEN and block_no:
                continue
            keep = 0
            if found <= block_no:
                offsets = self._offsets[found]
                keep = len(offsets) if found < block_no else bisect_right(offsets, offset - 1)
            del self._blobs[found][keep:], self._offsets[found][keep:]
            if found >= block_no:
                self._footers.pop(found, None)

    def close(self) -> None:
        """Drop everything."""
        self._offsets.clear()
        self._blobs.clear()
        self._footers.clear()
        self._saved = None
        self._saved_blocks = {}

    def move_to_trash(self, trash_dir: str) -> None:
        """Return at once: there is no directory."""
