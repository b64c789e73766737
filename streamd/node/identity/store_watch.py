"""`StoreWatch`: watches that the store directory is still there: this very one, under its name.

Files that are open take writes and syncs after an `rm -rf`, or behind a file system that was
mounted over them, and no start finds what they hold. So nothing may be acked any more as soon as
the directory is known to be gone. A check costs four calls that read no disk, and is made by a
timer, off the way of a publish: what was acked in between (`limits.STORE_LOOK_S`) may be lost here,
and is with the other members of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from streamd import limits
from streamd.errors import DiskError
from streamd.node.context import NodeContext
from streamd.store.disk import is_refused


class StoreWatch:
    """Watch over one node's directory, from `start` on.

    `on_gone(err)` ends all that relies on the directory. `on_log_cut(reason)`: the newest segment
    of the log was removed from a directory that is still there.
    """

    def __init__(
        self,
        context: NodeContext,
        lock: int,
        *,
        on_gone: Callable[[DiskError], None],
        on_log_cut: Callable[[str], None],
    ) -> None:
        self._context = context
        self._lock = lock
        self._on_gone = on_gone
        self._on_log_cut = on_log_cut
        self.reason = ""  # why nothing is stored here any more; empty: the directory is there
        self._identities: dict[str, tuple[int, int]] = {}  # of directories, by path

    def start(self) -> None:
        """Remember which directories these are, and check them again and again."""
        context = self._context
        for path in (context.root, os.path.join(context.root, "wal")):
            self._identities[path] = context.env.disk.identity(path)
        context.timers.again("store", limits.STORE_LOOK_S, self._check)

    def is_gone(self) -> bool:
        """Check now; True if the directory is gone."""
        self._check()
        return bool(self.reason)

    def _check(self) -> None:
        """End all that relies on the directory when it is first found gone."""
        if self.reason or not self._identities:
            return
        self.reason = self._fault()
        if self.reason:
            self._on_gone(DiskError(self.reason))
        elif not self._context.wal.has_file:
            self._on_log_cut(f"{self._context.root}/wal: the newest segment was removed")

    def _fault(self) -> str:
        """Say what became of the directory; empty: it is there."""
        disk = self._context.env.disk
        for path, identity in self._identities.items():
            try:
                if disk.identity(path) != identity:
                    return f"{path}: another directory is there now (a mount that came or went?)"
            except OSError as err:
                if not is_refused(err):
                    return f"{path}: the directory is gone: {os.strerror(err.errno or 0)}"
        if not disk.is_linked(self._lock):
            # `rm -rf` beside a server that writes leaves the directories that were not empty.
            return f"{self._context.root}: its LOCK was removed, and what else nobody knows"
        return ""
