"""Reads of message bodies for a stream's cursors, past what the disk does not give back; and of
single messages, for who sends or copies one now and then."""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.errors import CorruptionError
from streamd.machine.indexes.index import StreamIndex
from streamd.node.groups.block_port import BlockPort
from streamd.node.groups.group_shell import GroupShell
from streamd.node.groups.inbox import Tick
from streamd.node.groups.turn import TurnTime
from streamd.node.integrity.unreadable import Unreadable
from streamd.node.stream_groups.stream_hooks import StreamHooks
from streamd.store.blocks.record_format import decode_fields
from streamd.types import Msg, Seq

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


class SingleReads:
    """Reads of stored messages, one at a time."""

    __slots__ = ("_index", "_reader", "_shell", "is_reading", "retry_ms")

    def __init__(self, index: StreamIndex, reader: MessageReader, shell: GroupShell) -> None:
        self._index = index
        self._reader = reader
        self._shell = shell
        self.is_reading = False  # there is a turn when it is read
        self.retry_ms = 0  # ask again then: something could not be read

    def get(self, seq: Seq) -> Msg | None:
        """Return (subject, headers, payload) of a message. None: it is not there, or can't be read
        now (`retry_ms`), or is being read."""
        self.retry_ms = 0
        try:
            loc = self._index.locations.locate(seq)
        except CorruptionError as err:
            self.retry_ms = self._reader.on_lost_block(err)
            return None
        if loc is None:
            return None
        _, block_no, offset, _ = loc
        chunk, self.retry_ms = self._reader.chunk(block_no, offset)
        if chunk is None:
            if not self.retry_ms:
                self.is_reading = True
                self._reader.read(block_no, offset, self._on_read)
            return None
        base, blob = chunk
        _, _, subject, headers, payload = decode_fields(blob, offset - base)
        return subject, headers, payload

    def _on_read(self) -> None:
        self.is_reading = False
        self._shell.post(Tick())
