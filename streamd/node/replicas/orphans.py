"""`Orphans`: remains of deleted streams that are not open: a deletion was cut off, or failed."""

from __future__ import annotations

import os

from streamd.node.context import NodeContext
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.replica_table import ReplicaTable
from streamd.node.replicas.replica_trash import ReplicaTrash
from streamd.store.blocks.file_trash import move_to_trash
from streamd.types import META_UID, Uid


class Orphans:
    """Removal of what a committed command deleted on one node; all else stays."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        table: ReplicaTable,
        trash: ReplicaTrash,
    ) -> None:
        self._context = context
        self._groups = groups
        self._table = table
        self._trash = trash
        self._told: set[Uid] = set()  # whose files are known to be kept

    def check(self) -> None:
        """Bring to an end what had begun before the log had heard of a deletion, or before its
        files were moved. Call it when the meta group has said which streams exist."""
        context, meta = self._context, self._groups.meta
        left = set(context.wal.groups)
        if context.is_clustered:
            for name in context.env.disk.listdir(os.path.join(context.root, "streams")):
                stem = name.removesuffix(".catchup")
                if stem.isdigit():
                    left.add(int(stem))
        for uid in sorted(left - {META_UID}):
            if meta.is_lost(uid):
                self._tell_lost(uid)
            if self._table.knows(uid) or not meta.is_deleted(uid):
                continue
            if context.is_clustered:
                self.remove(uid)
            else:
                context.wal.destroy(uid)  # files of no known stream are kept

    def _tell_lost(self, uid: Uid) -> None:
        """Log once that a stream is not served whose creation the meta group has lost. It stays as
        it is, also in the log: its uid is never used again, so it is in nobody's way."""
        if uid not in self._told:
            self._told.add(uid)
            self._context.log.warn(
                "files of a stream are kept, not served: the meta group has lost the entry that "
                "created the stream",
                group=uid, path=os.path.join(self._context.root, "streams", str(uid)),
            )  # fmt: skip

    def remove(self, uid: Uid) -> None:
        """Remove all that is left of a deleted stream that is not open here."""
        disk = self._context.env.disk
        directory = os.path.join(self._context.root, "streams", str(uid))

        def remove() -> None:
            disk.remove_tree(f"{directory}.catchup")
            if disk.exists(directory):
                move_to_trash(disk, directory, self._trash.directory)

        def removed(result: BaseException | None) -> None:
            self._trash.report_moved(uid, result)
            self._trash.destroy(uid)

        self._context.block_thread.submit(remove, removed)
