"""Reads of message bodies for a stream's cursors, past what the disk does not give back."""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.errors import CorruptionError
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.group_shell import GroupShell
from streamd.node.groups.turn import TurnTime
from streamd.node.integrity.unreadable import Unreadable
from streamd.node.stream_groups.stream_hooks import StreamHooks

Chunk = tuple[int, bytes]


class MessageReader:
    """Block bytes of one stream: from memory at once, else read and asked for again."""

    __slots__ = ("_blocks", "_hooks", "_now", "_shell", "_unreadable")

    def __init__(
        self,
        blocks: BlockPort,
        unreadable: Unreadable,
        shell: GroupShell,
        hooks: StreamHooks,
        now: TurnTime,
    ) -> None:
        self._blocks = blocks
        self._unreadable = unreadable
        self._shell = shell
        self._hooks = hooks
        self._now = now

    def chunk(self, block_no: int, offset: int) -> tuple[Chunk | None, int]:
        """Return ((base, blob), 0) holding the record at `offset`; or (None, 0): `read` it; or
        (None, ms): it can't be read, ask again at that time."""
        return self._unreadable.chunk(block_no, offset, self._now.ms)

    def read(self, block_no: int, offset: int, on_read: Callable[[], None]) -> None:
        """Read the record at `offset`, and what follows it, into memory; then call `on_read`."""
        self._blocks.read_chunk(block_no, offset, limits.READ_AHEAD_BYTES, on_read)

    def on_lost_block(self, err: CorruptionError) -> int:
        """Report that a block can't say what it holds; returns when to ask again."""
        self._shell.call_soon(self._hooks.on_damaged, err, True, err.block_no)
        return self._now.ms + limits.UNREADABLE_AGAIN_MS
