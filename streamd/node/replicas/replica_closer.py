"""`ReplicaCloser`: ends replicas: to be opened again, or for good, with their files in trash."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from streamd.node.catchup.service import CatchupService
from streamd.node.context import NodeContext
from streamd.node.identity.amnesia import Amnesia
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.orphans import Orphans
from streamd.node.replicas.replica_table import ReplicaTable
from streamd.node.replicas.replica_trash import ReplicaTrash
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import Uid


class Forgetful(Protocol):
    """Part of the node that remembers something of a running replica."""

    def forget(self, uid: Uid) -> None: ...


class ReplicaCloser:
    """Closer of one node's replicas. `observers` remember what they have seen of a running
    replica, and must not judge its successor by that."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        table: ReplicaTable,
        catchups: CatchupService,
        amnesia: Amnesia,
        trash: ReplicaTrash,
        orphans: Orphans,
        observers: Sequence[Forgetful],
    ) -> None:
        self._context = context
        self._groups = groups
        self._table = table
        self._catchups = catchups
        self._amnesia = amnesia
        self._trash = trash
        self._orphans = orphans
        self._observers = observers
        self._waiting: dict[Uid, list[Callable[[], None]]] = {}  # to be gone

    def check_orphans(self) -> None:
        """Remove what is left of deleted streams that are not open."""
        self._orphans.check()

    def stop_fetching(self, uid: Uid) -> None:
        """Stop a catch-up: the group is going away, or begins anew."""
        self._catchups.stop(uid)

    def stop_all_fetching(self) -> None:
        """Stop all catch-ups: the node stops."""
        self._catchups.stop_all()

    def clear_observations(self, uid: Uid) -> None:
        """Drop all that was observed of a replica that begins anew, or is gone."""
        for observer in self._observers:
            observer.forget(uid)
        self._table.reasons.pop(uid, None)

    def close_live(self, replica: LocalStream, done: Callable[[], None]) -> None:
        """Stop a replica and close its files, to be opened again; then call `done`."""
        uid = replica.uid
        replica.group.delete()

        def stopped() -> None:
            replica.store.close()
            if self._groups.get(uid) is replica:  # else it stopped for something else, too
                del self._groups.replicas[uid]
                replica.release()
            # Writes of this group that are under way end before its log is read again.
            self._context.wal.append([], done)

        replica.monitor.when_stopped(stopped)

    def close_for_good(self, replica: LocalStream, done: Callable[[], None]) -> None:
        """Stop the group of a stream that was deleted or has left, and move what it stored into
        trash; then call `done`."""
        uid = replica.uid
        disk, root = self._context.env.disk, self._context.root
        replica.group.delete(is_gone=self._groups.meta.is_deleted(uid))

        def stopped() -> None:
            replica.store.close()
            self._context.block_thread.submit(remove, removed)

        def remove() -> None:
            if replica.is_file:
                disk.remove_tree(os.path.join(root, "streams", f"{uid}.catchup"))
                # A crash before this rename leaves a directory without an asset, which the
                # next start moves to trash; the committed deletion is in the meta log.
                replica.store.move_to_trash(self._trash.directory)

        def removed(result: BaseException | None) -> None:
            self._trash.report_moved(uid, result)
            log = replica.group.raft.log
            self._amnesia.record_dropped(uid, (log.last_term, log.last_index))
            if replica.is_file:
                self._trash.destroy(uid)
            # Else it stopped for something else, too.
            if self._groups.replicas.pop(uid, None) is replica:
                replica.release()
            done()

        replica.monitor.when_stopped(stopped)

    def remove_files(self, uid: Uid) -> None:
        """Remove the files of a deleted stream that is not open here."""
        self._orphans.remove(uid)

    def forget_fetching(self, uid: Uid) -> None:
        """Stop a catch-up for good: the replica is closed for good."""
        self._catchups.forget(uid)

    def when_closed(self, uid: Uid, done: Callable[[], None]) -> None:
        """Call `done` when no group of `uid` runs here any more."""
        if self._table.knows(uid):
            self._waiting.setdefault(uid, []).append(done)
        else:
            done()

    def on_gone(self, uid: Uid) -> None:
        """Remove a stream that is gone from this node, and tell callers that waited for that."""
        self._table.assets.pop(uid, None)
        for observer in self._observers:  # others told of it until now
            observer.forget(uid)
        if self._groups.meta.is_deleted(uid):
            self._amnesia.forget(uid)
        for waiting in self._waiting.pop(uid, []):
            waiting()
