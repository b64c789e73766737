"""Groups that keep old segments of the log alive, alone, long after all others let go of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamd.errors import StreamdError
from streamd.node.groups import inbox
from streamd.types import Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Stragglers:
    """One node's. What they need of those segments comes to stand elsewhere."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._uncarried: dict[Uid, str] = {}  # groups whose entries can't be read: why

    def look(self) -> None:
        """Have each save a snapshot; carry over the entries of those that stopped for good, or have
        moved away and could not be opened to ask their group."""
        node = self._node
        for uid in node.wal.pinning_groups():
            monitor, group = node.monitor_of(uid), node.group_of(uid)
            asset = node.meta.streams_by_uid.get(uid)
            is_not_open = asset is not None and (
                uid in node.replicas.failures or not node.replicas.knows(uid)
            )
            if is_not_open or node.meta.is_lost(uid):
                self._carry(uid)
            if monitor is None or group is None or monitor.stopped.is_set():
                continue
            index = group.snapshot_index
            if group.machine.applied > index:
                monitor.post(inbox.SnapshotWanted())
            elif index and index >= group.raft.log.base_index:
                # A restart came before the log had heard of that snapshot.
                term, chain = group.raft.log.entry_id(index)
                node.wal.release(uid, index, term, chain)

    def _carry(self, uid: Uid) -> None:
        """A group that stopped for good must not keep what all others have logged since."""
        try:
            self._node.wal.rewrite_entries(uid)
        except StreamdError as err:
            if self._uncarried.get(uid) != str(err):
                self._uncarried[uid] = str(err)
                self._node.error("log can't let go of old segments", group=uid, reason=str(err))
