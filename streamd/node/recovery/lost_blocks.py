"""`LostBlocks`: replaces blocks that can't be read, once that loss is accepted, by what is left.

A block can do without its footer, or without some of its messages. If it lacks both, nobody knows
which messages it held, so none of them could ever leave, and a limit that came to them would stop
the stream. All here is for the block thread, before the stream's group starts (docs/adr/0024).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from streamd.errors import StreamdError
from streamd.machine.indexes.columns import Block
from streamd.machine.indexes.live_messages import MessagesState
from streamd.machine.snapshot import columns_from
from streamd.machine.streams.loss import Loss
from streamd.store.blocks import record_format as fmt
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.quarantine import keep_block, kept_block
from streamd.store.blocks.salvage import block_of, read_left
from streamd.store.blocks.snapshots import TMP_SUFFIX, put_in_place, write_tmp
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.disk import Disk


class LostBlocks:
    """Blocks of one stream as its newest snapshot has them. `uid` and files are the store's."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        store: StreamStore,
        codec: BlockCodec,
        *,
        warn: Callable[..., None],
    ) -> None:
        self._disk = disk
        self._root = root
        self._store = store
        self._codec = codec
        self._warn = warn

    def replace(self, messages: MessagesState) -> Loss | None:
        """Make each block of a snapshot hold what is left of it; return what then is stored, or
        None if all is as the snapshot says. Begun again after a crash, it comes to the same."""
        loss = Loss(messages)
        last = loss.blocks[-1]
        lost = [block for block in loss.blocks if block.count and not self._is_readable(block)]
        for block in lost:
            self._replace_block(loss, block, is_last=block is last)
        return loss if lost else None

    def _is_readable(self, block: Block) -> bool:
        """True if footer or records say which messages it holds. The last must have its records:
        others follow."""
        store = self._store
        try:
            if block.is_sealed:
                footer = self._codec.decode_footer(store.load_footer(block.block_no))
                if len(footer.offsets) == block.count:
                    return True
        except StreamdError:
            pass
        try:
            records = store.scan(block.block_no, block.end_offset)
            return sum(1 for record in records if record.type == fmt.MSG) == block.count
        except StreamdError:
            return False

    def _replace_block(self, loss: Loss, block: Block, *, is_last: bool) -> None:
        """Write the block anew with what is left of it; its file as it was goes to `trash/`."""
        disk, store, name = self._disk, self._store, fmt.block_name(block.block_no)
        path = os.path.join(store.directory, name)
        has_file = disk.exists(path)
        # A crash may have come after it was moved, and before there was another.
        kept = "" if has_file else kept_block(disk, self._root, store.uid, name)
        blob = read_left(disk, kept or path)
        live = set(loss.live_seqs(block))
        first_ts, last_ts = block.first_ts, block.last_ts
        made = block_of(
            blob,
            store.uid,
            block.block_no,
            lambda seq, ts: seq in live and first_ts <= ts <= last_ts,
        )
        columns = columns_from(fmt.scan(made[HEADER_BYTES:], HEADER_BYTES))
        loss.leave(block, columns)
        if block.live and not is_last:
            made += self._codec.encode_footer(columns)
        if made != blob:
            tmp = name + TMP_SUFFIX
            if block.live:
                write_tmp(disk, store.directory, tmp, [made], point="LOST_BLOCK")
            if has_file:
                kept = keep_block(disk, self._root, store.uid, name)
            if block.live:
                put_in_place(disk, store.directory, tmp, name, point="LOST_BLOCK")
        self._warn(
            "a damaged block is replaced by its readable messages",
            group=store.uid,
            block=name,
            lost=len(live) - block.live,
            left=block.live,
            path=kept or "the file is missing",
        )
