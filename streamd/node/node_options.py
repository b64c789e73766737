"""`NodeOptions`: the settings of one node, defaults applied."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamd.store.blocks.block import OPEN_BLOCKS_MAX
from streamd.store.frames.keyring import EncryptionKeys
from streamd.types import BatchLimits, NodeId


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Settings of one node. Sizes are bytes; -1: no limit."""

    store_dir: str
    server_id: str
    server_name: NodeId
    sync: str | float = "always"
    max_payload: int = 1024 * 1024
    memory_max: int = -1
    storage_max: int = -1
    ha_assets_max: int = 0  # replicated streams placed here; 0: any number
    unique_tag: str = ""  # see cluster.placement
    batch_limits: BatchLimits = field(default_factory=BatchLimits)
    cluster_name: str = ""
    domain: str = ""  # JetStream's
    tags: tuple[str, ...] = ()
    accepts_loss: bool = False  # for this start
    open_blocks_max: int = OPEN_BLOCKS_MAX  # see store.blocks.block.OpenBlocks
    files_reserved: int = 0  # see Disk.reserve_files
    encryption: EncryptionKeys | None = None  # None: files are plain

    @property
    def is_clustered(self) -> bool:
        """True for a node of a cluster, false for a single server."""
        return bool(self.cluster_name)
