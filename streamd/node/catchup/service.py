"""`CatchupService`: catch-ups of one node, both ways: it fetches from leaders, and serves peers.

`fetch.SnapshotFetch` knows how a snapshot is fetched; here is what must happen around it: the group
stops before the files take their place, the log is told, and the group begins anew. When a link
breaks there is nothing to do: what was asked of that node fails by itself, and a new leader's offer
starts anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from streamd import errors, limits
from streamd.errors import StreamdError
from streamd.node.catchup.fetch import FetchSlots, InstalledSnapshot, InstallTarget, SnapshotFetch
from streamd.node.catchup.serve import BlockArgs, ManifestArgs, SnapshotServer
from streamd.node.context import NodeContext
from streamd.node.groups.group import Group
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.snapshot_state import history_of
from streamd.node.integrity.consistency_check import ConsistencyCheck
from streamd.node.integrity.corruption import CorruptionRepair
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.integrity.discarded_entries import DiscardedEntries
from streamd.node.ports import Answer, Peers
from streamd.node.replicas.group_control import GroupControl
from streamd.node.replicas.local_groups import LocalGroups
from streamd.raft.history import LogPosition
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.snapshots import Snapshot
from streamd.store.transfer.install import FileInstall, KeepEntries
from streamd.store.transfer.install_buffered import MemoryInstall, StateInstall
from streamd.store.transfer.source import FileSource, MemorySource, SnapshotSource
from streamd.types import META_UID, Index, NodeId, Term, Uid


class _Source:
    """Group of this node whose snapshot a peer may fetch."""

    def __init__(self, source: SnapshotSource, group: Group, monitor: Monitor) -> None:
        self.source = source
        self.last_index = group.raft.last_index
        self.saved_index = group.snapshot_index
        self.when_saved = monitor.when_saved
        self.save_anew = monitor.save_anew


class SnapshotSources:
    """Snapshots that this node hands out to peers: the calls `manifest` and `block`.

    A copy that is disputed is not handed out: a member that begins anew would only repeat it.
    """

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        consistency: ConsistencyCheck,
        corruption: CorruptionRepair,
        damage_log: DamageLog,
    ) -> None:
        self._context = context
        self._groups = groups
        self._consistency = consistency
        self._server = SnapshotServer(
            find=self._find,
            on_damaged=lambda uid, err, no: corruption.on_damaged(uid, err, block_no=no),
            on_void=damage_log.found_void_snapshot,
        )

    def serve_manifest(self, sender: NodeId, args: ManifestArgs, answer: Answer) -> None:
        """Answer the call `manifest`."""
        if self._consistency.may_hand_out(args[0], sender):
            self._server.on_manifest(args, answer)
        else:
            answer(errors.CLUSTER_NOT_AVAIL())

    def serve_block(self, sender: NodeId, args: BlockArgs, answer: Answer) -> None:
        """Answer the call `block`."""
        self._server.on_block(args, answer)

    def forget(self, uid: Uid) -> None:
        """Remove a group that is going away, or begins anew."""
        self._server.forget(uid)

    def _find(self, uid: Uid) -> _Source | None:
        context = self._context
        group, monitor = self._groups.group_of(uid), self._groups.monitor_of(uid)
        if group is None or monitor is None or group.failure or group.raft.is_incomplete:
            return None
        disk, thread = context.env.disk, context.block_thread
        if uid == META_UID:
            directory = os.path.join(context.root, "meta")
            return _Source(FileSource(disk, directory, uid, thread, name="meta"), group, monitor)
        replica = self._groups.get(uid)
        assert replica is not None
        if isinstance(replica.store, MemoryStreamStore):
            return _Source(MemorySource(replica.store, thread), group, monitor)
        directory = os.path.join(context.root, "streams", str(uid))
        flush = replica.store.flush
        return _Source(FileSource(disk, directory, uid, thread, flush=flush), group, monitor)


class CatchupService:
    """Catch-ups of one node's groups. `keep_free_bytes` of the disk are left to the log."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        peers: Peers | None,
        sources: SnapshotSources,
        discarded: DiscardedEntries,
        damage_log: DamageLog,
        control: GroupControl,
        keep_free_bytes: int,
    ) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self._sources = sources
        self._discarded = discarded
        self._damage_log = damage_log
        self._control = control
        self._keep_free_bytes = keep_free_bytes
        self._running: dict[Uid, SnapshotFetch] = {}
        self._offered_in: dict[Uid, Term] = {}  # the term of the last offer
        self._offered_at_ms: dict[Uid, int] = {}  # and when it came
        # What was fetched in vain: how often in a row, and until when nothing is fetched.
        self._void: dict[Uid, tuple[int, float]] = {}
        self._differing: set[Uid] = set()  # whose files here are of another history
        self._slots = FetchSlots()
        self._memory_stores: dict[Uid, MemoryStreamStore] = {}  # installed, to be opened

    # --- from a leader ----------------------------------------------------------------------

    def start(self, uid: Uid, leader: NodeId, index: Index) -> None:
        """Fetch a snapshot at `index` or later from `leader`; then the group begins anew."""
        group, clock = self._groups.group_of(uid), self._context.env.clock
        if group is None or self._peers is None:
            return
        running = self._running.get(uid)
        if running is None:
            if uid in self._void and clock.monotonic_ms() < self._void[uid][1]:
                return
            running = self._running[uid] = self._make(uid)
            self._context.log.info("catching up", group=uid, leader=leader, index=index)
        elif self._offered_in[uid] != group.raft.term and not running.is_local:
            running.stop()  # what is whole is kept, but no index of an earlier term is waited for
        self._offered_in[uid] = group.raft.term
        self._offered_at_ms[uid] = clock.monotonic_ms()
        running.start(leader, max(index, group.raft.applied))

    def is_running(self, uid: Uid) -> bool:
        running = self._running.get(uid)
        return running is not None and running.is_running

    def progress(self, uid: Uid) -> tuple[int, int]:
        """(bytes here, bytes in all); (0, 0): not catching up."""
        running = self._running.get(uid)
        return running.progress if running is not None else (0, 0)

    def stop(self, uid: Uid) -> None:
        """Stop a catch-up: the group is going away, or begins anew."""
        self._sources.forget(uid)
        self._offered_in.pop(uid, None)
        self._offered_at_ms.pop(uid, None)
        running = self._running.pop(uid, None)
        if running is not None:
            running.stop()

    def forget(self, uid: Uid) -> None:
        """Remove a group that is gone from here."""
        self.stop(uid)
        self._discarded.forget(uid)
        self._void.pop(uid, None)
        self._differing.discard(uid)

    def record_differing(self, uid: Uid) -> None:
        """Record that what this node has of a group is not what was committed: it is of no use."""
        self._differing.add(uid)

    def record_opened(self, uid: Uid, *, is_void: bool) -> None:
        """Record that what was fetched is in use, or (`is_void`) could not be used. The next would
        hardly be better, and each takes as much of disks and link as the stream has bytes."""
        if not is_void:
            self._void.pop(uid, None)
            self._differing.discard(uid)
            return
        count = self._void.get(uid, (0, 0.0))[0] + 1
        pause_s = min(2.0 ** min(count, 10), limits.CATCHUP_VOID_S_MAX)
        until_ms = self._context.env.clock.monotonic_ms() + pause_s * 1000
        self._void[uid] = count, until_ms

    def stop_all(self) -> None:
        """Stop all catch-ups: the node stops."""
        for uid in list(self._running):
            self.stop(uid)

    def take_memory_store(self, uid: Uid) -> MemoryStreamStore | None:
        """Return the store with which a group in memory is to be opened, if its snapshot was just
        fetched."""
        return self._memory_stores.pop(uid, None)

    def _make(self, uid: Uid) -> SnapshotFetch:
        assert self._peers is not None
        return SnapshotFetch(
            uid,
            call=self._peers.call,
            target=self._target(uid),
            later=self._context.env.loop.call_later,
            host=self,
            slots=self._slots,
        )

    def _target(self, uid: Uid) -> InstallTarget:
        context = self._context
        disk, thread = context.env.disk, context.block_thread
        if uid == META_UID:
            directory = os.path.join(context.root, "meta")
            target: StateInstall = StateInstall(
                disk,
                directory,
                uid,
                thread,
                name="meta",
                close_live=lambda done: self._keep_and_close(uid, target.fetched, done),
            )
            return target
        replica = self._groups.get(uid)
        close = partial(self._control.close, uid)
        if replica is not None and not replica.is_file:
            store = self._memory_stores[uid] = MemoryStreamStore(uid, keeps_snapshots=True)
            return MemoryInstall(store, thread, close_live=close)
        return FileInstall(
            disk,
            context.root,
            uid,
            thread,
            close_live=close,
            keep_free_bytes=self._keep_free_bytes,
            may_adopt=uid not in self._void and uid not in self._differing,
            keep=KeepEntries(partial(self._leads_to, uid), partial(self._keep, uid)),
        )

    def _leads_to(self, uid: Uid) -> Callable[[Snapshot], bool]:
        leads = self._discarded.check_before_install(uid)
        return lambda found: leads(found.index, history_in(found))

    def _keep(self, uid: Uid, found: Snapshot, then: Callable[[], None]) -> None:
        """Set aside what a fetched snapshot does not have, before it counts."""

        def kept(err: BaseException | None) -> None:
            if err is None:
                then()
            else:
                self.stop(uid)
                self._discarded.fail(uid, err)

        self._discarded.keep_before_install(uid, found.index, history_in(found), kept)

    def _keep_and_close(self, uid: Uid, found: Snapshot | None, done: Callable[[], None]) -> None:
        """Set aside what a snapshot of the meta group does not have, which counts from the swap
        on, and close the group."""
        close = partial(self._control.close, META_UID, done)
        if found is None:
            close()
        else:
            self._keep(uid, found, close)

    # --- fetch.FetchHost --------------------------------------------------------------------

    def is_wanted(self, uid: Uid, index: Index) -> bool:
        group = self._groups.group_of(uid)
        return group is not None and group.raft.is_snapshot_wanted(index)

    def is_offered(self, uid: Uid) -> bool:
        """False in a later term: its leader makes an offer of its own, or brings the log. A stream
        in memory that all have forgotten never reaches the index that was offered before; begun
        anew by one member alone it even has the same term. But an offer that holds is renewed."""
        group = self._groups.group_of(uid)
        if group is None or group.raft.term != self._offered_in.get(uid):
            return False
        since_ms = self._context.env.clock.monotonic_ms() - self._offered_at_ms[uid]
        return since_ms <= limits.CATCHUP_OFFER_MS

    def on_done(self, uid: Uid, found: InstalledSnapshot) -> None:
        """Tell the log, and begin anew: the snapshot is durable, and the group is stopped."""
        wal = self._context.wal
        self._running.pop(uid, None)
        self._context.log.info("caught up", group=uid, index=found.index)
        is_memory = uid in self._memory_stores
        if not is_memory:
            try:
                leads_to_it = self._log_leads_to(uid, found)
            except StreamdError as err:  # what this member acked after it must not be dropped
                self.on_failed(uid, err)
                return
            if leads_to_it:
                wal.release(uid, found.index, found.term, found.chain)
            else:
                wal.reset_group(uid, found.index, found.term, found.chain)
        wal.append([], partial(self._control.open_again, uid))

    def _log_leads_to(self, uid: Uid, found: InstalledSnapshot) -> bool:
        """True if the log goes on from the snapshot: then all that this member acked stays."""
        state = self._context.wal.group(uid)
        if state is not None and state.first_index == found.index + 1:
            return (state.prev_term, state.prev_chain) == (found.term, found.chain)
        if state is None or not state.first_index <= found.index <= state.last_index:
            return False
        entry = self._context.wal.read(uid, found.index, found.index + 1, 0)[0]
        return (entry.term, entry.chain) == (found.term, found.chain)

    def on_trouble(self, uid: Uid, text: str) -> None:
        self._context.log.warn("catch-up", group=uid, reason=text)

    def on_conflict(self, uid: Uid, text: str) -> None:
        self._damage_log.found_conflict(uid, text)

    def on_failed(self, uid: Uid, err: BaseException) -> None:
        """Report a closed group of which it is not known whether what was fetched is in place."""
        self._running.pop(uid, None)
        self._context.log.error("catch-up failed", group=uid, reason=str(err))
        self._control.not_opened(uid, err)


def history_in(found: Snapshot) -> tuple[LogPosition, ...]:
    """Return the history of the entries that a snapshot covers, as far as it says one."""
    end = LogPosition(found.index, found.term, found.chain)
    return history_of(found.state) or (end,)
