"""Port of a group to the block store: blocks in files or memory, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from streamd.errors import StreamdError


class BlockPort(Protocol):
    """The part of a stream's block store that a group and its monitor use."""

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes of dead blocks: two more snapshots free them."""

    def apply(self, ops: list[tuple[Any, ...]]) -> None:
        """Carry out block operations of the machine (machine/base.py), in order."""

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        """Return (base, blob): bytes in memory that hold the whole record at `offset`; None: not
        in memory, `read_chunk` it. Raises CorruptionError or DiskError if that was in vain."""

    def read_chunk(
        self, block_no: int, offset: int, min_bytes: int, done: Callable[[], None]
    ) -> None:
        """Read at least `min_bytes` from `offset` on; then call `done`, and `chunk` has them."""

    def read_spans(
        self,
        block_no: int,
        spans: list[tuple[int, int]],
        done: Callable[[bytes | StreamdError], None],
    ) -> None:
        """Read records of a sealed block, (offset, length) in ascending order; `done` gets their
        bytes, one behind another, or the StreamdError."""


class NoBlocks:
    """The block port of a machine without messages (the meta machine)."""

    reclaimable_bytes = 0

    def apply(self, ops: list[tuple[Any, ...]]) -> None:
        assert not ops, ops

    def chunk(self, block_no: int, offset: int) -> tuple[int, bytes] | None:
        return None

    def read_chunk(
        self, block_no: int, offset: int, min_bytes: int, done: Callable[[], None]
    ) -> None:
        raise AssertionError("the meta group has no blocks")

    def read_spans(
        self,
        block_no: int,
        spans: list[tuple[int, int]],
        done: Callable[[bytes | StreamdError], None],
    ) -> None:
        raise AssertionError("the meta group has no blocks")
