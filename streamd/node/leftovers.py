"""What is left of deleted streams that are not open: a deletion was cut off, or one had failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from streamd.store.trash import move_to_trash
from streamd.types import META_UID, Uid

if TYPE_CHECKING:
    from streamd.node.node import Node


class Leftovers:
    """One node's. What a committed command deleted goes; all else stays."""

    def __init__(self, node: Node) -> None:
        self._node = node

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
            if node.replicas.knows(uid) or not node.meta.is_deleted(uid):
                continue
            if node.is_clustered:
                self.remove(uid)
            else:
                node.wal.destroy(uid)  # files of no known stream are kept

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
