"""A node's `trash/`: deleted streams on their way out, and directories of streams nobody knows.

Nothing is deleted by inference: what a committed command deleted is unlinked; all else that is
found is moved here and stays until somebody looks.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd.store.blocks.file_trash import EmptyTrash
from streamd.store.file_names import is_stream_directory
from streamd.store.transfer.install import catchup_uid
from streamd.types import Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Trash:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def directory(self) -> str:
        return os.path.join(self._node.root, "trash")

    def note_moved(self, uid: Uid, result: Any) -> None:
        """`result` is of a job that moved a deleted stream's files here. If that failed, they take
        room until the next start finds them."""
        if isinstance(result, BaseException):
            self._node.error("files of a deleted stream not moved", group=uid, reason=str(result))

    def destroy(self, uid: Uid) -> None:
        """What a deleted stream had in the log goes, and then its files, which were moved here."""
        node = self._node
        node.meta_member.remember_commit()
        node.wal.destroy(uid)
        self.empty([str(uid)])

    def empty(self, names: list[str]) -> None:
        """Unlink these, in the background."""
        node = self._node
        for name in names:
            path = os.path.join(self.directory, name)
            on_failed = partial(self._not_removed, path)
            EmptyTrash(node.env.disk, node.block_thread, path, on_failed).begin()

    def _not_removed(self, path: str, err: BaseException) -> None:
        self._node.warn("trash can't be emptied before the next start", path=path, reason=str(err))

    def empty_all(self) -> None:
        """Go on with what an earlier start left of deleted streams; orphans stay."""
        names = self._node.env.disk.listdir(self.directory)
        self.empty([name for name in sorted(names) if name.isdigit()])

    def take_orphans(self, known: set[Uid]) -> None:
        """Move directories of streams that are not `known` here; their bytes are kept. What has
        no name of a stream's is foreign, and stays where it is."""
        node, disk = self._node, self._node.env.disk
        streams = os.path.join(node.root, "streams")
        names = {str(uid) for uid in known}
        for name in sorted(disk.listdir(streams)):
            is_known = name in names or catchup_uid(name) in known
            if is_known or not is_stream_directory(name):
                continue
            target = os.path.join(self.directory, f"orphan-{name}-{node.env.clock.now_ns()}")
            try:
                disk.replace(os.path.join(streams, name), target)
                # The new name first: between the two it has both or the new one.
                disk.sync_dir(self.directory)
                disk.sync_dir(streams)
            except OSError as err:  # it is in nobody's way: a mount point, or not to be written
                node.warn("directory of no stream left as it is", path=name, reason=str(err))
                continue
            node.warn("directory of no stream moved to trash", path=target)
