"""Names of the server's storage code that programs beside the server use: their only way to it.

Blocks, snapshots and logs are read by the code that writes them, so each format has one definition.
When the server's rooms move, this file follows and no other. Nothing here starts a server; files
are opened through `read_only_disk`.
"""

from __future__ import annotations

from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import APPEND, HAS_HEADERS, LENGTH_MASK, SEAL, Effects
from streamd.machine.digest import CRC_ADD, MASK64, SEQ_ADD, mix64
from streamd.machine.indexes.columns import Block
from streamd.machine.indexes.seqset import SeqSet, as_ranges
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.machine.snapshot import StreamState, decode_stream
from streamd.machine.streams.retention import Limits
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups.snapshot_state import unwrap
from streamd.raft import membership
from streamd.raft.membership import MARK, Membership, simple
from streamd.store import node_file
from streamd.store.blocks import record_format
from streamd.store.blocks.block import HEADER_BYTES, BlockFiles
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.discarded_entries_file import COMMITTED, OPEN, tails_in
from streamd.store.blocks.footer import TRAILER_BYTES, FooterColumns, decode_footer, footer_length
from streamd.store.blocks.index_db import read_index
from streamd.store.blocks.record_format import (
    RECORD_OVERHEAD_BYTES,
    RESIDUE,
    REWRITTEN,
    block_name,
    block_number,
)
from streamd.store.blocks.salvage import read_left, whole_records
from streamd.store.blocks.snapshots import Snapshot, SnapshotFile
from streamd.store.blocks.snapshots import decode as decode_snapshot
from streamd.store.disk import Disk, OsDisk
from streamd.store.file_names import orphan_uid, trash_kind
from streamd.store.frames.framed_disk import FramedDisk
from streamd.store.frames.keyring import (
    EncryptionKeys,
    Keyring,
    Keystore,
    read_keystore,
    unlock,
)
from streamd.store.wal import wal_format
from streamd.store.wal.current import read_current
from streamd.store.wal.entry_index import GroupLog
from streamd.store.wal.entry_index import apply as apply_batch_groups
from streamd.store.wal.wal_format import BatchReader, segment_name, segment_number
from streamd.store.wal.wal_recovery import recover

__all__ = [
    "APPEND",
    "COMMITTED",
    "CRC_ADD",
    "HAS_HEADERS",
    "HEADER_BYTES",
    "LENGTH_MASK",
    "MARK",
    "MASK64",
    "OPEN",
    "RECORD_OVERHEAD_BYTES",
    "RESIDUE",
    "REWRITTEN",
    "SEAL",
    "SEQ_ADD",
    "TRAILER_BYTES",
    "BatchReader",
    "Block",
    "BlockCodec",
    "BlockFiles",
    "Disk",
    "Effects",
    "EncryptionKeys",
    "FooterColumns",
    "FramedDisk",
    "GroupLog",
    "Keyring",
    "Keystore",
    "Limits",
    "Membership",
    "MetaMachine",
    "OsDisk",
    "SeqSet",
    "Snapshot",
    "SnapshotFile",
    "StreamAsset",
    "StreamConfig",
    "StreamMachine",
    "StreamState",
    "apply_batch_groups",
    "as_ranges",
    "block_name",
    "block_number",
    "decode_footer",
    "decode_snapshot",
    "decode_stream",
    "footer_length",
    "membership",
    "mix64",
    "node_file",
    "orphan_uid",
    "read_current",
    "read_index",
    "read_keystore",
    "read_left",
    "record_format",
    "recover",
    "segment_name",
    "segment_number",
    "simple",
    "tails_in",
    "trash_kind",
    "unlock",
    "unwrap",
    "wal_format",
    "whole_records",
]
