"""`StreamMachine`: the replicated state of one stream with its consumers.

`apply` turns committed entries into stored messages, deletions and consumer changes, and lays out
the blocks. It reads nothing but its state and the entry (I4); what follows goes to `Effects`.

Here are the frame of every entry, the commands about the stream as a whole, and the machine as
bytes. The other commands are where the table of handlers says, the fields in `stream_content`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from streamd import errors
from streamd.machine import command_shapes, commands, snapshot
from streamd.machine.base import (
    APPEND,
    BLOCK_HEADER_BYTES,
    DROP,
    REWRITTEN,
    SEAL,
    ColumnSource,
    Effects,
    RecordCodec,
)
from streamd.machine.commands import Command
from streamd.machine.indexes.columns import Columns
from streamd.machine.snapshot import FrozenStream, Left, StreamState
from streamd.machine.streams import trimming
from streamd.machine.streams.retention import Limits
from streamd.machine.streams.stream_storing import StreamStoring
from streamd.types import Entry, Index, Pieces, Uid

BLOCK_BYTES: Final = 8 * 1024 * 1024
_ROLL_DEAD_BYTES: Final = 1024 * 1024  # an all-dead active block this big is worth a new file
_BULKY_PIECE_BYTES: Final = 4096  # on average: they are not copied together before they are read

Scan = Callable[[int, int], Iterable[Any]]
"""(block_no, end_offset) -> the block's records (store.blocks.record_format.Record)."""


class StreamMachine(StreamStoring):
    """Implements machine.base.Machine for a stream group."""

    def __init__(
        self,
        *,
        uid: Uid,
        config: dict[str, Any],
        created_ns: int,
        codec: RecordCodec,
        columns: ColumnSource,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(
            uid=uid,
            config=config,
            created_ns=created_ns,
            codec=codec,
            columns=columns,
            block_bytes=block_bytes,
        )
        self._scan: Scan | None = None
        self.index.rescan = self._rescan
        self._handlers: dict[int, Callable[[Entry, Command, Effects], Any]] = {
            # stream_storing.py
            commands.STORE: self._apply_store,
            commands.STORE_BATCH: self._apply_store_batch,
            # stream_removal.py
            commands.PURGE: self._apply_purge,
            commands.DELETE_MSG: self._apply_delete_msg,
            commands.REMOVE: self._apply_remove,
            commands.EXPIRE: self._apply_expire,
            # stream_consumers.py
            commands.CREATE_CONSUMER: self._apply_create_consumer,
            commands.DELETE_CONSUMER: self._apply_delete_consumer,
            commands.PAUSE_CONSUMER: self._apply_pause_consumer,
            commands.RESET_CONSUMER: self._apply_reset_consumer,
            commands.DELIVERED: self._apply_to_consumer,
            commands.ACKED: self._apply_to_consumer,
            commands.NAKED: self._apply_to_consumer,
            commands.TERMED: self._apply_to_consumer,
            commands.PROGRESS: self._apply_to_consumer,
            commands.DEAD: self._apply_to_consumer,
            commands.POSITION: self._apply_to_consumer,
            # here
            commands.CONFIGURE: self._apply_configure,
            commands.CHECKPOINT: self._apply_checkpoint,
            commands.REWRITE: self._apply_rewrite,
        }

    # --- an entry -------------------------------------------------------------------------------

    def apply(self, entry: Entry, out: Effects) -> None:
        """See machine.base.Machine. Outcomes: machine/commands.py."""
        assert entry.index == self.applied + 1, (entry.index, self.applied)  # no gaps, no repeats
        command = command_shapes.admit(entry, self._handlers, out)
        if command is not None:
            self._out = out
            self.index.settle()
            self._blob_offset = self.index.active.end_offset
            outcome = self._handlers[command[0]](entry, command, out)
            self._finish(entry.index, command[1], out)
            if entry.tag is not None:
                out.outcomes.append((entry.tag, outcome))
        self.applied = entry.index

    def follow(self, entry: Entry, command: Command, out: Effects) -> None:
        """Apply an entry about a consumer to a stream that has its messages, of later entries too,
        from elsewhere. What leaves because of it leaves no record."""
        self._handlers[command[0]](entry, command, out)
        if self._gone_seqs:
            self._tell_gone(entry.index, out)
            self._gone_seqs, self._gone_subjects = [], []
        self.index.take_dead_blocks()

    def trim(self) -> None:
        """Take out what the limits do not allow, of messages that came from elsewhere."""
        for search in trimming.over(self.index, self.limits):
            self._remove(search.step())
        if self._gone_seqs:
            self._tell_gone(self.applied, Effects())
            self._gone_seqs, self._gone_subjects = [], []
        self.index.take_dead_blocks()

    def _finish(self, index: Index, ts: int, out: Effects) -> None:
        """Close the entry: tell consumers, write what it wrote as one blob, drop dead blocks."""
        if self._stored:
            self._tell_stored(out)
        tombstone = b""
        if self._gone_seqs or self._is_purged:
            tombstone = self._tell_gone(index, out)
        if self._blob or tombstone:
            active = self.index.active
            tail = tombstone + self._codec.encode_frame(index, ts)
            self.index.reserve(len(tail))
            self._blob.append(tail)
            pieces, self._blob = self._blob, []
            size = active.end_offset - self._blob_offset
            is_bulky = size >= len(pieces) * _BULKY_PIECE_BYTES
            blob = Pieces(pieces, size) if is_bulky else b"".join(pieces)
            assert self._blob_offset + len(blob) == active.end_offset, active.end_offset
            out.block_ops.append((APPEND, active.block_no, self._blob_offset, blob))
        if self._gone_seqs or self._is_purged or self.index.has_dead_blocks:
            self._drop_dead(out)
            self._gone_seqs = []
            self._gone_subjects = []
            self._is_purged = False

    def _drop_dead(self, out: Effects) -> None:
        active = self.index.active
        if active.count and not active.live and active.end_offset >= _ROLL_DEAD_BYTES:
            self._roll(out)
        for block_no in self.index.take_dead_blocks():
            out.block_ops.append((DROP, block_no))

    # --- commands about the stream as a whole ---------------------------------------------------

    def _apply_configure(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, config, meta_index = command
        if meta_index <= self.config_meta_index:
            return True  # told again after a restart of the meta group's leader
        before = self.limits
        self.config = config
        self.config_meta_index = meta_index
        limits = self.limits = Limits(config)
        self.dedupe.resize(int(config.get("duplicate_window") or 0))
        self.expiry.forget_hint()
        self.index.track_seqs(limits.tracks_seqs)
        for search in trimming.reconfigured(self.index, before, limits, self.audience):
            self._remove(search.step())
        return True

    def _apply_checkpoint(self, entry: Entry, command: Command, out: Effects) -> Any:
        # Nothing of this entry changes what the fingerprint covers, so it is that of the entry.
        out.checkpoint = (entry.index, self.fingerprint())
        return True

    def _apply_rewrite(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, block_nos, ranges, records = command
        made = self.index.rewrite(block_nos, ranges, len(records), REWRITTEN + entry.index)
        if made is None:
            return False
        block, footer = made
        out.block_ops += (
            (APPEND, block.block_no, BLOCK_HEADER_BYTES, records),
            (SEAL, block.block_no, block.end_offset, footer),
        )
        out.block_ops += [(DROP, block_no) for block_no in block_nos]
        return True

    # --- the machine as bytes -------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """See machine.base.Machine. Inverse: `restore`."""
        return self.freeze()()

    def freeze(self) -> FrozenStream:
        """What `snapshot` would return now; to be called later, in any thread."""
        return FrozenStream(self)

    def index_db(self) -> bytes:
        """What `restore` can do without, but faster with: subjects and the newest columns."""
        return self.freeze_index()()

    def freeze_index(self) -> Callable[[], bytes]:
        """`index_db` likewise. What it copies is proportional to the number of subjects."""
        return snapshot.freeze_index(self)

    @classmethod
    def restore(
        cls,
        state: bytes,
        index_db: bytes | None,
        *,
        codec: RecordCodec,
        columns: ColumnSource,
        scan: Scan,
        block_bytes: int = BLOCK_BYTES,
        loss: Left | None = None,
    ) -> StreamMachine:
        """The machine as `snapshot` saw it. `index_db` that is missing or of another moment is
        replaced by reading the blocks. With `loss` it is what that leaves of it."""
        return cls.of_state(
            snapshot.decode_stream(state),
            index_db,
            codec=codec,
            columns=columns,
            scan=scan,
            block_bytes=block_bytes,
            loss=loss,
        )

    @classmethod
    def of_state(
        cls,
        found: StreamState,
        index_db: bytes | None,
        *,
        codec: RecordCodec,
        columns: ColumnSource,
        scan: Scan,
        block_bytes: int = BLOCK_BYTES,
        loss: Left | None = None,
    ) -> StreamMachine:
        """`restore` of a state that is decoded."""
        machine = cls(
            uid=found.uid,
            config=found.config,
            created_ns=found.created_ns,
            codec=codec,
            columns=columns,
            block_bytes=block_bytes,
        )
        machine._scan = scan
        snapshot.fill(machine, found, index_db, loss)
        return machine

    def use_scan(self, scan: Scan) -> None:
        """Where to read a block's records if its footer turns out bad."""
        self._scan = scan

    def let_go(self) -> None:
        """Nothing is applied any more: nothing that this holds leads back to it."""
        self._handlers = {}
        self.index.rescan = _no_way

    def _rescan(self, block_no: int, end_offset: int) -> Columns:
        if self._scan is None:
            return _no_way(block_no, end_offset)
        return snapshot.columns_from(self._scan(block_no, end_offset))


def _no_way(block_no: int, end_offset: int) -> Columns:
    raise errors.CorruptionError(f"block {block_no}: no way to read it again")
