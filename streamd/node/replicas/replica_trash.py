"""`ReplicaTrash`: a node's `trash/`: deleted streams, and directories of no stream.

Nothing is deleted by inference: what a committed command deleted is unlinked; all else that is
found is moved here and stays until an operator looks.
"""

from __future__ import annotations

import os
from functools import partial

from streamd.callbacks import ignore
from streamd.node.context import NodeContext
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.trash_requests import TrashRequests
from streamd.store.blocks.file_trash import EmptyTrash
from streamd.store.file_names import is_stream_directory
from streamd.store.transfer.install import catchup_uid
from streamd.types import META_UID, HardState, Uid


class ReplicaTrash:
    """Trash of one node."""

    def __init__(self, context: NodeContext, groups: LocalGroups) -> None:
        self._context = context
        self._groups = groups
        self.directory = os.path.join(context.root, "trash")
        self.requests = TrashRequests(context, groups, self.directory)

    def report_moved(self, uid: Uid, result: BaseException | None) -> None:
        """Log it if a job failed that was to move a deleted stream's files here: they take room
        until the next start finds them. `result` is the job's."""
        if isinstance(result, BaseException):
            text = "files of a deleted stream could not be moved to trash"
            self._context.log.error(text, group=uid, reason=str(result))

    def destroy(self, uid: Uid) -> None:
        """Destroy what a deleted stream has in the log, then its files, which were moved here."""
        self._log_meta_commit()
        self._context.wal.destroy(uid)
        self.empty([str(uid)])

    def _log_meta_commit(self) -> None:
        """Log how far the meta group is committed, before what is appended next."""
        group = self._groups.meta_group
        if self._context.is_clustered and group is not None:
            raft = group.raft
            state = HardState(raft.term, raft.vote, group.machine.applied, raft.is_uncertain)
            self._context.wal.append([(META_UID, [], state, 0)], ignore)

    def empty(self, names: list[str]) -> None:
        """Unlink these, in the background."""
        context = self._context
        for name in names:
            path = os.path.join(self.directory, name)
            on_failed = partial(self._on_not_removed, path)
            EmptyTrash(context.env.disk, context.block_thread, path, on_failed).begin()

    def _on_not_removed(self, path: str, err: BaseException) -> None:
        text = "a directory in trash cannot be removed before the next start"
        self._context.log.warn(text, path=path, reason=str(err))

    def empty_all(self) -> None:
        """Go on with what an earlier start left of deleted streams; orphans stay."""
        names = self._context.env.disk.listdir(self.directory)
        self.empty([name for name in sorted(names) if name.isdigit()])

    def take_orphans(self, known: set[Uid]) -> None:
        """Move directories of streams that are not `known` here; their bytes are kept. A directory
        without the name of a stream is foreign, and stays where it is."""
        context, disk = self._context, self._context.env.disk
        streams = os.path.join(context.root, "streams")
        names = {str(uid) for uid in known}
        for name in sorted(disk.listdir(streams)):
            is_known = name in names or catchup_uid(name) in known
            if is_known or not is_stream_directory(name):
                continue
            target = os.path.join(self.directory, f"orphan-{name}-{context.env.clock.now_ns()}")
            try:
                disk.replace(os.path.join(streams, name), target)
                # The new name first: between the two it has both or the new one.
                disk.sync_dir(self.directory)
                disk.sync_dir(streams)
            except OSError as err:  # it is in nobody's way: a mount point, or not to be written
                text = "directory of an unknown stream could not be moved to trash"
                context.log.warn(text, path=name, reason=str(err))
                continue
            context.log.warn("directory of an unknown stream moved to trash", path=target)
