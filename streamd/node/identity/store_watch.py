"""Watches that the store directory is still there: this very one, under its name.

Files that are open take writes and syncs after an `rm -rf`, or behind a file system that was
mounted over them, and no start finds what they hold. So nothing may be acked any more as soon as
the directory is known to be gone. A look costs four calls that read no disk, and is made by a
timer, off the way of a publish: what was acked in between (`limits.STORE_LOOK_S`) may be lost here,
and is with the other members of a cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from streamd import limits
from streamd.errors import DiskError
from streamd.store.disk import is_refused

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class StoreWatch:
    """One node's. Before `start` it looks at nothing."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.reason = ""  # why nothing is stored here any more; empty: the directory is there
        self._identities: dict[str, tuple[int, int]] = {}  # of directories, by path
        self._lock = -1

    def start(self, lock: int) -> None:
        """The directory is locked and the log open: both are to stay what they are."""
        node = self._node
        self._lock = lock
        for path in (node.root, os.path.join(node.root, "wal")):
            self._identities[path] = node.env.disk.identity(path)
        node.timers.again("store", limits.STORE_LOOK_S, self._look)

    def is_gone(self) -> bool:
        """Look; return True if the directory is gone."""
        self._look()
        return bool(self.reason)

    def _look(self) -> None:
        """At the first time that the directory is gone, end all that relies on it."""
        node = self._node
        if self.reason or not self._identities:
            return
        self.reason = self._fault()
        if self.reason:
            node.store_is_gone(DiskError(self.reason))
        elif not node.wal.has_file:
            node.damages.on_damaged_log(f"{node.root}/wal: the newest segment was removed")

    def _fault(self) -> str:
        """Say what became of the directory; empty: it is there."""
        disk = self._node.env.disk
        for path, identity in self._identities.items():
            try:
                if disk.identity(path) != identity:
                    return f"{path}: another directory is there now (a mount that came or went?)"
            except OSError as err:
                if not is_refused(err):
                    return f"{path}: the directory is gone: {os.strerror(err.errno or 0)}"
        if not disk.is_linked(self._lock):
            # `rm -rf` beside a server that writes leaves the directories that were not empty.
            return f"{self._node.root}: its LOCK was removed, and what else nobody knows"
        return ""
