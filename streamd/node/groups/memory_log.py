"""The log of groups whose stream lives in memory: durable means remembered by this process."""

from __future__ import annotations

from collections.abc import Callable

from streamd.types import Entry, HardState, Index, Uid


class MemoryLog:
    """A GroupLog without a disk. Completions come in a later loop iteration, as the WAL's do."""

    def __init__(self, call_soon: Callable[..., object]) -> None:
        self._call_soon = call_soon

    def append(
        self,
        writes: list[tuple[Uid, list[Entry], HardState | None, Index]],
        done: Callable[[], None],
    ) -> None:
        self._call_soon(done)

    def flush(self) -> None:
        """Nothing waits to be written."""

    def release(self, group: Uid, index: Index, term: int, chain: int) -> None:
        """Nothing is kept, so nothing is released."""

    def read(self, group: Uid, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        raise AssertionError(f"group {group}: entries {lo}..{hi} were never kept")
