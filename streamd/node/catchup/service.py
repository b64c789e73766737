"""The catch-ups of one node, both ways: what it fetches from leaders, what peers fetch from it.

`catchup.CatchUp` knows how a snapshot is fetched; here is what must happen around it: the group
stops before the files take their place, the log is told, and the group begins anew. When a link
breaks there is nothing to do: what was asked of that node fails by itself, and a new leader's offer
starts anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.errors import StreamdError
from streamd.node.catchup.fetch import CatchUp, CatchUpTurns, InstalledSnapshot
from streamd.node.catchup.serve import CatchUpSource
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.snapshot_state import history_of
from streamd.raft.history import LogPosition
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.snapshots import Snapshot
from streamd.store.transfer.install import FileInstall, KeepEntries
from streamd.store.transfer.install_buffered import MemoryInstall, StateInstall
from streamd.store.transfer.source import FileSource, MemorySource
from streamd.types import META_UID, Index, NodeId, Term, Uid

if TYPE_CHECKING:
    from streamd.node.groups.group import Group
    from streamd.node.local_node import Node


class _Source:
    """A group of this node whose snapshot a peer may fetch."""

    def __init__(self, source: Any, group: Group, monitor: Monitor) -> None:
        self.source = source
        self.last_index = group.raft.last_index
        self.saved_index = group.snapshot_index
        self.when_saved = monitor.when_saved
        self.save_anew = monitor.save_anew


class CatchUps:
    """See the module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._running: dict[Uid, CatchUp] = {}
        self._offered_in: dict[Uid, Term] = {}  # the term of the last offer
        self._offered_at_ms: dict[Uid, int] = {}  # and when it came
        # What was fetched in vain: how often in a row, and until when nothing is fetched.
        self._void: dict[Uid, tuple[int, float]] = {}
        self._differing: set[Uid] = set()  # whose files here are of another history
        self._turns = CatchUpTurns()
        self._source = CatchUpSource(
            find=self._find,
            on_damaged=lambda uid, err, no: node.damages.on_damaged(uid, err, block_no=no),
            on_void=node.damages.on_void_snapshot,
        )
        self._memory_stores: dict[Uid, MemoryStreamStore] = {}  # installed, to be opened

    # --- from a leader ----------------------------------------------------------------------

    def start(self, uid: Uid, leader: NodeId, index: Index) -> None:
        """Fetch a snapshot at `index` or later from `leader`; then the group begins anew."""
        node = self._node
        group = node.group_of(uid)
        if group is None or node.peers is None:
            return
        running = self._running.get(uid)
        if running is None:
            if uid in self._void and node.env.clock.monotonic_ms() < self._void[uid][1]:
                return
            running = self._running[uid] = self._make(uid)
            node.info("catching up", group=uid, leader=leader, index=index)
        elif self._offered_in[uid] != group.raft.term and not running.is_local:
            running.stop()  # what is whole is kept, but no index of an earlier term is waited for
        self._offered_in[uid] = group.raft.term
        self._offered_at_ms[uid] = node.env.clock.monotonic_ms()
        running.start(leader, max(index, group.raft.applied))

    def is_running(self, uid: Uid) -> bool:
        running = self._running.get(uid)
        return running is not None and running.is_running

    def progress(self, uid: Uid) -> tuple[int, int]:
        """(bytes here, bytes in all); (0, 0): not catching up."""
        running = self._running.get(uid)
        return running.progress if running is not None else (0, 0)

    def stop(self, uid: Uid) -> None:
        """The group is going away, or begins anew."""
        self._source.forget(uid)
        self._offered_in.pop(uid, None)
        self._offered_at_ms.pop(uid, None)
        running = self._running.pop(uid, None)
        if running is not None:
            running.stop()

    def forget(self, uid: Uid) -> None:
        """The group is gone from here."""
        self.stop(uid)
        self._node.tails.forget(uid)
        self._void.pop(uid, None)
        self._differing.discard(uid)

    def note_differing(self, uid: Uid) -> None:
        """What this node has of the group is not what was committed: it is of no use."""
        self._differing.add(uid)

    def note_opened(self, uid: Uid, *, is_void: bool) -> None:
        """What was fetched is in use, or (`is_void`) could not be used. The next would hardly be
        better, and each takes as much of disks and link as the stream has bytes."""
        if not is_void:
            self._void.pop(uid, None)
            self._differing.discard(uid)
            return
        count = self._void.get(uid, (0, 0.0))[0] + 1
        pause_s = min(2.0 ** min(count, 10), limits.CATCHUP_VOID_S_MAX)
        until_ms = self._node.env.clock.monotonic_ms() + pause_s * 1000
        self._void[uid] = count, until_ms

    def stop_all(self) -> None:
        for uid in list(self._running):
            self.stop(uid)

    def take_memory_store(self, uid: Uid) -> MemoryStreamStore | None:
        """What a group in memory is to be opened with, if its snapshot was just fetched."""
        return self._memory_stores.pop(uid, None)

    def _make(self, uid: Uid) -> CatchUp:
        node = self._node
        assert node.peers is not None
        return CatchUp(
            uid,
            call=node.peers.call,
            target=self._target(uid),
            later=node.env.loop.call_later,
            on_done=partial(self._installed, uid),
            on_failed=partial(self._failed, uid),
            is_wanted=partial(self._is_wanted, uid),
            is_offered=partial(self._is_offered, uid),
            turns=self._turns,
            on_trouble=lambda text: node.warn("catch-up", group=uid, reason=text),
            on_conflict=partial(node.damages.on_conflict, uid),
        )

    def _target(self, uid: Uid) -> Any:
        node = self._node
        disk, thread = node.env.disk, node.block_thread
        if uid == META_UID:
            directory = os.path.join(node.root, "meta")
            target: StateInstall = StateInstall(
                disk,
                directory,
                uid,
                thread,
                name="meta",
                close_live=lambda done: self._keep_and_close(uid, target.fetched, done),
            )
            return target
        replica = node.replicas.get(uid)
        close = partial(node.replicas.close_live, uid)
        if replica is not None and not replica.is_file:
            store = self._memory_stores[uid] = MemoryStreamStore(uid, keeps_snapshots=True)
            return MemoryInstall(store, thread, close_live=close)
        keep_free = node.room.reserve_bytes
        return FileInstall(
            disk,
            node.root,
            uid,
            thread,
            close_live=close,
            keep_free_bytes=keep_free,
            may_adopt=uid not in self._void and uid not in self._differing,
            keep=KeepEntries(partial(self._look, uid), partial(self._keep, uid)),
        )

    def _look(self, uid: Uid) -> Callable[[Snapshot], bool]:
        leads = self._node.tails.look_before_install(uid)
        return lambda found: leads(found.index, history_in(found))

    def _keep(self, uid: Uid, found: Snapshot, then: Callable[[], None]) -> None:
        """What a fetched snapshot does not have is set aside before it counts."""
        self._node.tails.keep_before_install(uid, found.index, history_in(found), then)

    def _keep_and_close(self, uid: Uid, found: Snapshot | None, done: Callable[[], None]) -> None:
        """The same of the meta group, whose fetched snapshot counts from the swap on."""
        close = partial(self._node.meta_member.close, done)
        if found is None:
            close()
        else:
            self._keep(uid, found, close)

    def _is_wanted(self, uid: Uid, index: Index) -> bool:
        group = self._node.group_of(uid)
        return group is not None and group.raft.is_snapshot_wanted(index)

    def _is_offered(self, uid: Uid) -> bool:
        """False in a later term: its leader makes an offer of its own, or brings the log. A stream
        in memory that all have forgotten never reaches the index that was offered before; begun
        anew by one member alone it even has the same term. But an offer that holds is renewed."""
        node = self._node
        group = node.group_of(uid)
        if group is None or group.raft.term != self._offered_in.get(uid):
            return False
        since_ms = node.env.clock.monotonic_ms() - self._offered_at_ms[uid]
        return since_ms <= limits.CATCHUP_OFFER_MS

    def _installed(self, uid: Uid, found: InstalledSnapshot) -> None:
        """The snapshot is durable; the group is stopped. Tell the log, and begin anew."""
        node = self._node
        self._running.pop(uid, None)
        node.info("caught up", group=uid, index=found.index)
        is_memory = uid in self._memory_stores
        if not is_memory:
            try:
                leads_to_it = self._log_leads_to(uid, found)
            except StreamdError as err:  # what this member acked after it must not be given up
                self._failed(uid, err)
                return
            if leads_to_it:
                node.wal.release(uid, found.index, found.term, found.chain)
            else:
                node.wal.reset_group(uid, found.index, found.term, found.chain)
        if uid == META_UID:
            node.wal.append([], node.meta_member.open_again)
            return

        node.wal.append([], partial(node.replicas.open_again, uid))

    def _log_leads_to(self, uid: Uid, found: InstalledSnapshot) -> bool:
        """True if the log goes on from the snapshot: then all that this member acked stays."""
        state = self._node.wal.group(uid)
        if state is not None and state.first_index == found.index + 1:
            return (state.prev_term, state.prev_chain) == (found.term, found.chain)
        if state is None or not state.first_index <= found.index <= state.last_index:
            return False
        entry = self._node.wal.read(uid, found.index, found.index + 1, 0)[0]
        return (entry.term, entry.chain) == (found.term, found.chain)

    def _failed(self, uid: Uid, err: BaseException) -> None:
        """The group is closed, and what was fetched is not known to be in its place."""
        node = self._node
        self._running.pop(uid, None)
        node.error("catch-up failed", group=uid, reason=str(err))
        if uid == META_UID:
            assert node.meta_member.group is not None
            node.meta_member.on_failed(node.meta_member.group, err)
            return
        node.replicas.not_opened(uid, err)

    # --- to a follower ----------------------------------------------------------------------

    def serve(
        self, sender: NodeId, method: str, args: list[Any], answer: Callable[[Any], None]
    ) -> None:
        """Answer the calls `manifest` and `block`."""
        if method == "block":
            self._source.on_block(args, answer)
        elif self._node.peering.comparisons.may_hand_out(args[0], sender):
            self._source.on_manifest(args, answer)
        else:
            answer(errors.CLUSTER_NOT_AVAIL())

    def _find(self, uid: Uid) -> _Source | None:
        node = self._node
        group, monitor = node.group_of(uid), node.monitor_of(uid)
        if group is None or monitor is None or group.failure or group.raft.is_incomplete:
            return None
        disk, thread = node.env.disk, node.block_thread
        if uid == META_UID:
            directory = os.path.join(node.root, "meta")
            return _Source(FileSource(disk, directory, uid, thread, name="meta"), group, monitor)
        replica = node.replicas.get(uid)
        assert replica is not None
        if not replica.is_file:
            return _Source(MemorySource(replica.store, thread), group, monitor)
        directory = os.path.join(node.root, "streams", str(uid))
        flush = replica.store.flush
        return _Source(FileSource(disk, directory, uid, thread, flush=flush), group, monitor)


def history_in(found: Snapshot) -> tuple[LogPosition, ...]:
    """Return the history of the entries that a snapshot covers, as far as it says one."""
    end = LogPosition(found.index, found.term, found.chain)
    return history_of(found.state) or (end,)
