"""`LogRetention`: bounds how much log is kept.

Finds the groups whose old entries alone pin segments, long after all others have released them.
"""

from __future__ import annotations

from streamd.errors import StreamdError
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.replicas.failed_replicas import FailedReplicas
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.replica_table import ReplicaTable
from streamd.types import Uid


class LogRetention:
    """Retention of one node's log: a group that runs takes a snapshot; of one that stopped the
    entries are rewritten into the newest segment."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        table: ReplicaTable,
        failed: FailedReplicas,
    ) -> None:
        self._context = context
        self._groups = groups
        self._table = table
        self._failed = failed
        self._unreadable: dict[Uid, str] = {}  # groups whose entries can't be rewritten: why

    def check(self) -> None:
        """Make each group that pins old segments release them: by a snapshot if it runs; its
        entries are rewritten if it stopped for good, or moved away and could not be opened to
        ask."""
        wal, meta = self._context.wal, self._groups.meta
        for uid in wal.pinning_groups():
            monitor, group = self._groups.monitor_of(uid), self._groups.group_of(uid)
            asset = meta.streams_by_uid.get(uid)
            is_not_open = asset is not None and (uid in self._failed or not self._table.knows(uid))
            if is_not_open or meta.is_lost(uid):
                self._rewrite_pinned(uid)
            if monitor is None or group is None or monitor.stopped.is_set():
                continue
            index = group.snapshot_index
            if group.machine.applied > index:
                monitor.post(inbox.SnapshotWanted())
            elif index and index >= group.raft.log.base_index:
                # A restart came before the log had heard of that snapshot.
                term, chain = group.raft.log.entry_id(index)
                wal.release(uid, index, term, chain)

    def _rewrite_pinned(self, uid: Uid) -> None:
        """Rewrite the entries of a group that stopped for good, lest they pin all that other groups
        have logged since."""
        try:
            self._context.wal.rewrite_entries(uid)
        except StreamdError as err:
            if self._unreadable.get(uid) != str(err):
                self._unreadable[uid] = str(err)
                text = "old segments of the log cannot be released"
                self._context.log.error(text, group=uid, reason=str(err))
