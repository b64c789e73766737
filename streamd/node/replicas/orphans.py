"""What is left of deleted streams that are not open: a deletion was cut off, or one had failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from streamd.store.blocks.file_trash import move_to_trash
from streamd.types import META_UID, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Leftovers:
    """One node's. What a committed command deleted goes; all else stays."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._told: set[Uid] = set()  # whose files are known to be kept

    def look(self) -> None:
        """Bring to an end what had begun before the log had heard of a deletion, or before its
        files were moved. Call it when the meta group has said which streams there are."""
        node = self._node
        left = set(node.wal.groups)
        if node.is_clustered:
            for name in node.env.disk.listdir(os.path.join(node.root, "streams")):
                stem = name.removesuffix(".catchup")
                if stem.isdigit():
                    left.add(int(stem))
        for uid in sorted(left - {META_UID}):
            if node.meta.is_lost(uid):
                self._tell_lost(uid)
            if node.replicas.knows(uid) or not node.meta.is_deleted(uid):
                continue
            if node.is_clustered:
                self.remove(uid)
            else:
                node.wal.destroy(uid)  # files of no known stream are kept

    def _tell_lost(self, uid: Uid) -> None:
        """What the meta group lost the creation of is not served, and stays as it is, with what is
        in the log: its uid is never used again, so it is in nobody's way."""
        if uid not in self._told:
            self._told.add(uid)
            self._node.warn(
                "files of a stream are kept, not served: the meta group has lost its creation",
                group=uid, path=os.path.join(self._node.root, "streams", str(uid)),
            )  # fmt: skip

    def remove(self, uid: Uid) -> None:
        """Remove what there is of a deleted stream that is not open here."""
        node = self._node
        disk, directory = node.env.disk, os.path.join(node.root, "streams", str(uid))

        def remove() -> None:
            disk.remove_tree(f"{directory}.catchup")
            if disk.exists(directory):
                move_to_trash(disk, directory, node.trash.directory)

        def removed(result: Any) -> None:
            node.trash.note_moved(uid, result)
            node.trash.destroy(uid)

        node.block_thread.submit(remove, removed)
