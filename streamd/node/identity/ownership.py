"""Is the store directory this node's own, and its log the one that it wrote? (I12)

What `node.json` says of both (see storedir) is compared with what is found, and brought up to date.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from streamd.errors import ConfigError, CorruptionError
from streamd.node.identity import store_directory
from streamd.store.disk import Thread
from streamd.store.wal.wal_recovery import Expected
from streamd.store.wal.write_ahead_log import Wal

if TYPE_CHECKING:
    from streamd.node.local_node import Node


def check_name(node: Node) -> None:
    """Raise ConfigError if the directory is another node's: a copy of it has that node's votes
    and acks, and knows nothing of what this one promised."""
    name = node.identity.setdefault("name", node.server_name)
    if name == node.server_name:
        return
    if node.cluster_id:
        raise ConfigError(
            f"store directory {node.root!r} belongs to node {name!r} of the cluster: give "
            f"{node.server_name!r} its own directory or an empty one"
        )
    node.identity["name"] = node.server_name


def open_log(node: Node, thread: Thread, on_error: Callable[[Exception], None]) -> tuple[Wal, bool]:
    """Open the node's log. The second result is True if it is another one than it had.

    Raises CorruptionError for a single server then, unless its operator accepts that.
    """
    identity = node.identity
    is_known = "log_id" in identity
    tolerates_loss = node.is_clustered or node.accepts_loss
    expected = Expected()
    if is_known:
        expected = Expected(int(identity["log_id"], 16), identity.get("log_segment", 0))
    wal = Wal.open(
        node.env.disk,
        os.path.join(node.root, "wal"),
        thread,
        segment_bytes=node.room.segment_bytes,
        sync="always" if node.sync == "always" else float(node.sync),
        on_error=on_error,
        helper=node.block_thread,
        tolerate_damage=tolerates_loss,
        expected=expected,
        on_groups_lost=node.amnesia.groups_lost if node.is_clustered else lambda: None,
    )
    is_lost = is_known and identity["log_id"] != wal.log_id
    if is_lost and not tolerates_loss:
        raise CorruptionError(f"{node.root}/wal: log {identity['log_id']} of this store is gone")
    log_before = identity.get("log_id", "")
    # Each start begins a segment: of a copy of the log from before this start that tells.
    identity["log_segment"] = wal.segment_no
    identity["log_id"] = wal.log_id
    node.sightings.begin()
    if is_lost:
        node.damages.on_found_at_start(
            f"{node.root}/wal: log {log_before} of this store is gone, and begun anew"
        )
    if not is_known or is_lost:
        if is_lost and node.is_clustered:
            identity["is_rejoined"] = True
        node.save_identity()
    else:
        with suppress(OSError):  # the earlier number is as true: a full disk may start all the same
            store_directory.save_identity(node.root, node.env.disk, identity)
    for text in wal.damage:
        node.warn("the log is damaged", reason=text)
    node.damages.damage_count += bool(wal.damage)
    return wal, is_lost


def check_kind(node: Node) -> None:
    """Raise ConfigError if a single server has found a cluster's data, or a node of a cluster that
    of a single server. The log is open."""
    cluster_id = node.cluster_id
    if cluster_id and not node.is_clustered:
        raise ConfigError(
            f"store directory {node.root!r} belongs to a node of cluster id "
            f"{cluster_id}: give this server its cluster configuration"
        )
    if node.is_clustered and not cluster_id and node.wal.groups:
        raise ConfigError(
            f"store directory {node.root!r} holds the data of a single server, which can't "
            "join a cluster: give this node an empty directory"
        )
