"""The stream replicas of one node: opened, run, reopened after a repair, closed.

Every way into service is the same procedure (`_open`): what is on disk is recovered, the group
starts, and its monitor runs. A replica that fetched a peer's snapshot, or whose files were set
aside as damaged, is stopped and opened again, so there is no second path that could differ.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.errors import CorruptionError, IncarnationError, StreamdError
from streamd.machine import commands
from streamd.machine.columns import ColumnsCache
from streamd.machine.meta import StreamAsset
from streamd.machine.stream import StreamMachine
from streamd.node import group as g
from streamd.node.batches import BatchBudget, BatchStager
from streamd.node.catch_ups import CatchUps
from streamd.node.departures import Departures
from streamd.node.monitor import Monitor
from streamd.node.ports import Done
from streamd.node.rafts import GroupStart
from streamd.node.remote_stream import RemoteStream
from streamd.node.rosters import forgotten_members, has_wrong_members, named_by, next_roster
from streamd.node.scrub import check_installed
from streamd.node.snapshot_state import unwrap
from streamd.node.snapshot_writers import StreamSnapshots
from streamd.node.stream_group import StreamGroup
from streamd.node.stream_handle import LocalStream
from streamd.raft.membership import Membership
from streamd.raft.messages import Message, Vote
from streamd.store.blocks import StreamStore
from streamd.store.format import BlockCodec
from streamd.store.hot_tail import HotBudget
from streamd.store.install import (
    clear_marker,
    finish_install,
    quarantine,
    read_marker,
    remove_replaced,
)
from streamd.store.manifest import Manifest
from streamd.store.memory import MemoryStreamStore
from streamd.types import META_UID, Index, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.node import Node

Ready = Callable[[], None]
_OPENING_ERRORS = (StreamdError, OSError, AssertionError, LookupError, ValueError)


class _Opened:
    """What recovery found of one stream."""

    def __init__(self, store: Any, machine: StreamMachine) -> None:
        self.store = store
        self.machine = machine
        self.index: Index = 0
        self.term = 0
        self.chain = 0
        self.members: Membership | None = None
        self.is_damaged = False
        self.conflict = ""  # what was there was another incarnation's
        self.marker: Manifest | None = None  # what the files were installed from, if just now


class Replicas:
    """All stream groups that have a member on this node, by uid."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._replicas: dict[Uid, LocalStream] = {}
        self._assets: dict[Uid, StreamAsset] = {}  # of replicas that are open, opening or failed
        self._busy: set[Uid] = set()  # of these, being opened, or closed for good
        self._waiting: dict[Uid, list[Callable[[], None]]] = {}  # to be gone
        self._ready_waiters: dict[Uid, list[Ready]] = {}  # to lead, or to have failed
        self._config_waiters: dict[Uid, list[tuple[int, Done]]] = {}
        self.reasons: dict[Uid, str] = {}  # why a replica does not serve
        self._led_since_ns: dict[Uid, int] = {}  # when this node last began to lead
        self._moving: set[Uid] = set()  # led here, and not yet with the members they should have
        self._early: dict[Uid, dict[NodeId, Message]] = {}  # campaigns in groups not open yet
        self._void_logs: set[Uid] = set()  # of replicas being repaired
        self._codec = BlockCodec()
        self._hot_budget = HotBudget()
        self._columns = ColumnsCache()
        self._batch_budget = BatchBudget()
        self.catch_ups = CatchUps(node)
        self.departures = Departures(node)

    def __iter__(self) -> Iterator[LocalStream]:
        return iter(list(self._replicas.values()))

    def get(self, uid: Uid) -> LocalStream | None:
        return self._replicas.get(uid)

    def hold(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None:
        """Keep a campaign's latest word until the group is open: a new group's first candidate is
        often faster than its voters, and would be told nothing for a second."""
        for message in messages:
            if isinstance(message, Vote):
                self._early.setdefault(uid, {})[sender] = message
                if len(self._early) > limits.EARLY_VOTES_MAX:
                    del self._early[next(iter(self._early))]

    # --- which there should be --------------------------------------------------------------

    def open_all(self, assets: list[StreamAsset], done: Ready) -> None:
        """Open `assets`; call `done` when each leads or has failed."""
        left = len(assets)
        if not left:
            done()
            return

        def one_ready() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for asset in assets:
            self._ready_waiters.setdefault(asset.uid, []).append(one_ready)
            self._open(asset)

    def reconcile(self) -> None:
        """Open, close and place whatever the meta group says."""
        known = self._node.meta.streams_by_uid
        for uid, asset in list(self._assets.items()):
            if uid not in known:
                self.reconcile_one(uid, asset.name)
        for asset in sorted(known.values(), key=lambda asset: asset.uid):
            self.reconcile_one(asset.uid, asset.name)

    def reconcile_one(self, uid: Uid, name: str) -> None:
        """Do what the meta group's state asks for one stream."""
        node = self._node
        asset = node.meta.streams_by_uid.get(uid)
        self.departures.forget(uid)
        if uid in self._busy:
            pass  # until it is over: of two members here, neither would know the other's promises
        elif asset is None:
            # A committed command took it away, if it named the uid.
            if uid in self._assets and node.meta.is_deleted(uid):
                self._close(self._assets[uid])
        elif self._is_foreign(asset):
            if uid in self._replicas:
                self.departures.begin(uid)
            elif uid in self._assets:
                self._close(self._assets[uid])  # not open: what it has on disk stays
        elif uid not in self._assets:
            is_too_early = node.amnesia.is_unknown(uid) or self._is_early(asset)
            if self._is_wanted(asset) and not is_too_early:
                self._open(asset)
        else:
            self._assets[uid] = asset
            replica = self._replicas.get(uid)
            if replica is not None and replica.is_ready:
                self._configure(replica, asset)
                self._look_at_members_of(replica, asset)
            elif replica is not None:
                self._begin_anew_if_wrong(replica, asset)
        self._place(name)

    def _is_wanted(self, asset: StreamAsset) -> bool:
        name = self._node.server_name
        return not self._node.is_clustered or name in asset.peers or name in asset.members

    def _is_early(self, asset: StreamAsset) -> bool:
        """True of a stream in memory while the meta group may have news of it. Who belongs to it
        is known there alone: its own log, which would stop a replica that has moved, is gone."""
        node = self._node
        is_file = asset.config.get("storage", "file") == "file"
        return node.is_clustered and not is_file and not node.meta_member.is_fresh

    def _is_foreign(self, asset: StreamAsset) -> bool:
        return self._node.is_clustered and asset.may_be_dropped_by(self._node.server_name)

    def _place(self, name: str) -> None:
        """Have the stream's name lead to its replica here, or to its leader elsewhere."""
        node = self._node
        asset = node.meta.streams_by_name.get(name)
        if asset is None:
            node.catalog.place(name, None)
            return
        replica = self._replicas.get(asset.uid)
        if replica is not None and (replica.is_ready or not node.is_clustered):
            node.catalog.place(name, replica)
        elif node.is_clustered:
            node.catalog.place(name, RemoteStream(asset, node, node.peering.relay))
        else:
            node.catalog.place(name, None)

    # --- opening ----------------------------------------------------------------------------

    def _open(self, asset: StreamAsset) -> None:
        """Recover or create the group of `asset`, off the loop; then run it."""
        self._assets[asset.uid] = asset
        self._busy.add(asset.uid)

        def opened(result: Any) -> None:
            try:
                if isinstance(result, BaseException):
                    raise result
                self._run(asset, result)
            except _OPENING_ERRORS as err:
                self.fail(asset.uid, asset.name, err)
            self._no_longer_busy(asset)

        self._node.block_thread.submit(partial(self._recover, asset), opened)

    def _no_longer_busy(self, asset: StreamAsset) -> None:
        """Do what was asked for meanwhile: it may have come to be wanted here, or not to be."""
        self._busy.discard(asset.uid)
        if not self._node.is_stopping:
            self.reconcile_one(asset.uid, asset.name)

    def _recover(self, asset: StreamAsset) -> _Opened:
        """On the block thread: what the disk has of this stream."""
        node = self._node
        if asset.config.get("storage", "file") != "file":
            installed = self.catch_ups.memory_stores.pop(asset.uid, None)
            if installed is not None:
                return self._recover_store(asset, installed)
            store: Any = MemoryStreamStore(asset.uid, keeps_snapshots=self._node.is_clustered)
            return _Opened(store, self._new_machine(asset, store))
        if not node.is_clustered:
            return self._recover_files(asset)
        disk, uid = node.env.disk, asset.uid
        directory = os.path.join(node.root, "streams", str(uid))
        try:
            marker = finish_install(disk, node.root, uid) or read_marker(disk, directory, uid)
            found = self._recover_files(asset)
            if marker is not None and found.machine.applied == marker.index:
                damage = check_installed(marker, found.machine, found.store)
                if damage:
                    found.store.close()
                    raise CorruptionError(f"stream {asset.name}: installed files: {damage[0]}")
            found.marker = marker
            return found
        except _OPENING_ERRORS as err:
            if not self._has_peers(asset):
                raise
            aside = quarantine(disk, node.root, uid)
            node.warn("stream files set aside", stream=asset.name, path=aside, reason=str(err))
            found = self._recover_files(asset)
            found.is_damaged = True
            found.conflict = str(err) if isinstance(err, IncarnationError) else ""
            return found

    def _recover_files(self, asset: StreamAsset) -> _Opened:
        node = self._node
        store = StreamStore.open(
            node.env.disk,
            os.path.join(node.root, "streams", str(asset.uid)),
            asset.uid,
            node.block_thread,
            self._codec,
            budget=self._hot_budget,
        )
        try:
            return self._recover_store(asset, store)
        except BaseException:
            store.close()
            raise

    def _recover_store(self, asset: StreamAsset, store: Any) -> _Opened:
        """Blocks back to the newest snapshot, and the machine as it was then."""
        snapshot = store.load_snapshot()
        if snapshot is None:
            store.truncate_to((0, 0))
            return _Opened(store, self._new_machine(asset, store))
        store.truncate_to(snapshot.tail)
        members, state = unwrap(snapshot.state)
        machine = StreamMachine.restore(
            state,
            snapshot.index_db,
            codec=self._codec,
            columns=store,
            scan=store.scan,
        )
        if isinstance(store, StreamStore):
            store.disown(block.block_no for block in machine.index.blocks)
        found = _Opened(store, machine)
        found.index, found.term, found.chain = snapshot.index, snapshot.term, snapshot.chain
        found.members = members
        return found

    def _new_machine(self, asset: StreamAsset, store: Any) -> StreamMachine:
        # As it was created: the log replayed on top brings the config forward (CONFIGURE).
        machine = StreamMachine(
            uid=asset.uid,
            config=asset.created_config,
            created_ns=asset.created_ns,
            codec=self._codec,
            columns=store,
        )
        machine.use_scan(store.scan)
        return machine

    def _has_peers(self, asset: StreamAsset) -> bool:
        return self._node.is_clustered and len(asset.peers) > 1

    def _run(self, asset: StreamAsset, opened: _Opened) -> None:
        node = self._node
        uid = asset.uid
        asset = node.meta.streams_by_uid.get(uid, asset)  # what the meta group says of it now
        self._assets[uid] = asset
        is_gone = node.meta.is_deleted(uid) or self._is_foreign(asset)
        if is_gone or node.is_stopping or node.removals.reason:
            self._discard(asset, opened.store)
            return
        opened.machine.index.use_cache(self._columns)
        if opened.is_damaged:
            node.damages.damage_count += 1
        if opened.conflict:
            node.damages.on_conflict(uid, opened.conflict)
        is_file = isinstance(opened.store, StreamStore)
        amnesia = node.amnesia
        is_forgotten = amnesia.may_have_forgotten(uid) or (not is_file and amnesia.was_open(uid))
        voters = asset.created_peers or asset.peers or (node.server_name,)
        members = opened.members
        if not is_file and asset.members:
            voters = asset.members  # what its log says of them is forgotten with the rest
            if is_forgotten and members is None:
                members = forgotten_members(asset)
        if opened.marker is not None:
            self._tell_log(uid, opened.marker)
        raft = node.rafts.make(
            GroupStart(
                uid,
                opened.index,
                opened.term,
                opened.chain,
                voters=tuple(voters) if node.is_clustered else (node.server_name,),
                members=members,
                is_forgotten=is_forgotten,
                is_damaged=opened.is_damaged,
                is_log_void=uid in self._void_logs,
                is_memory=not is_file,
                named=frozenset() if is_file else frozenset(named_by(asset)),
                is_alone=amnesia.is_alone(asset),
            )
        )
        self._void_logs.discard(uid)
        if raft.last_index == 0 and voters[uid % len(voters)] == node.server_name:
            # A new stream need not wait for somebody to lose patience; leaders are spread.
            raft.deadline_ms = node.env.clock.monotonic_ms()
        group = StreamGroup(
            uid=uid,
            raft=raft,
            machine=opened.machine,
            blocks=opened.store,
            snapshot_index=opened.index,
            wires=node.wires,
            stager=BatchStager(self._batch_budget),
            max_payload=node.max_payload,
            has_room=node.room.take if is_file else node.memory_room.take,
            all_know=lambda command: node.peering.all_know(command, raft.members.members()),
        )
        group.snapshot_every_bytes = node.room.snapshot_every_bytes
        if not is_file and self._has_peers(asset):
            group.snapshot_every_bytes = limits.MEMORY_SNAPSHOT_BYTES
        monitor = Monitor(
            group,
            log=node.wal if is_file else node.memory_log,
            clock=node.env.clock,
            snapshot_writer=StreamSnapshots(opened.store, is_clustered=node.is_clustered),
            on_failed=lambda failed, err: self._failed(asset, err),
            loop=node.env.loop,
            send=node.peering.send,
            on_turn=lambda turn: self._on_turn(uid, group, turn),
            due=node.due_turns,
        )
        group.post = monitor.post
        if is_file:
            # A store may find out on its own thread; a simulated loop has but one.
            call = getattr(node.env.loop, "call_soon_threadsafe", node.env.loop.call_soon)
            opened.store.on_error = lambda err: call(monitor.post, (g.FAILED, err, None, None))
        handle = LocalStream(group, monitor, opened.store, is_file=is_file)
        handle.on_damaged = partial(node.damages.on_damaged, uid)
        group.on_events = lambda events: self._on_events(handle, events)
        self._replicas[uid] = handle
        self._place(asset.name)
        node.env.spawn(monitor)
        if node.is_clustered:
            node.peering.introduce(monitor, raft.members.members())
            for sender, message in self._early.pop(uid, {}).items():
                monitor.post((g.STEP, sender, message, None))
        monitor.post((g.TICK, None, None, None))

    def _tell_log(self, uid: Uid, marker: Manifest) -> None:
        """The files were installed from a peer. Does the log know? A crash may have come first."""
        node = self._node
        state = node.wal.group(uid)
        if state is not None and state.first_index <= marker.index < state.last_index:
            entry = node.wal.read(uid, marker.index, marker.index + 1, 0)[0]
            if (entry.term, entry.chain) != (marker.term, marker.chain):
                node.wal.reset_group(uid, marker.index, marker.term, marker.chain)
        directory = os.path.join(node.root, "streams", str(uid))

        def forget() -> None:
            clear_marker(node.env.disk, directory)
            remove_replaced(node.env.disk, node.root, uid)

        node.wal.append([], lambda: node.block_thread.submit(forget, None))

    def _discard(self, asset: StreamAsset, store: Any) -> None:
        """The stream was deleted, or the node began to stop, while this was being opened."""
        node = self._node
        is_deleted = node.meta.is_deleted(asset.uid)

        def job() -> None:
            store.close()
            if is_deleted and isinstance(store, StreamStore):
                store.move_to_trash(os.path.join(node.root, "trash"))

        def done(result: Any) -> None:
            if is_deleted and isinstance(store, StreamStore):
                node.meta_member.remember_commit()
                node.wal.destroy(asset.uid)
                node.empty_trash([str(asset.uid)])

        node.block_thread.submit(job, done)

    # --- running ----------------------------------------------------------------------------

    def _on_turn(self, uid: Uid, group: StreamGroup, turn: g.Turn) -> None:
        """After a turn in which a role or the members changed or peers must hear of something."""
        node = self._node
        replica = self._replicas.get(uid)
        if replica is None or replica.group is not group or group.failure:
            return
        if turn.newcomers:
            # Their links, up before they were members, were none of this group's business then.
            node.peering.introduce(replica.monitor, turn.newcomers)
        if turn.has_role_changed and node.is_clustered:
            node.leaders.note_own(uid, group.raft.term, is_ready=group.is_ready)
            node.peering.announce(uid)
        if turn.has_role_changed and replica.is_ready != group.is_ready:
            replica.is_ready = group.is_ready
            asset = node.meta.streams_by_uid.get(uid)
            if group.is_ready and asset is not None:
                self._configure(replica, asset)
                self._look_at_members_of(replica, asset)
            self._place(replica.name)
            if group.is_ready:
                self._settle_ready(uid)
                self._led_since_ns[uid] = node.env.clock.now_ns()
                if not group.raft.log.is_sole:
                    self._on_events(replica, [("leader_elected", {})])
        self._settle_configured(uid)
        node.peering.follow(uid, turn)

    def _configure(self, replica: LocalStream, asset: StreamAsset) -> None:
        """Bring the stream's own group to the config that meta has."""
        if replica.machine.config_meta_index >= asset.update_index:
            self._settle_configured(replica.uid)
            return

        def configured(outcome: Any) -> None:
            # Only now does the stream capture by its new subjects; what was looked up since meta
            # announced them is stale.
            self._node.catalog.changed()
            if isinstance(outcome, errors.JsError):
                self._settle_configured(replica.uid, outcome)
            else:
                self._settle_configured(replica.uid)

        replica.propose(
            [commands.CONFIGURE, self._node.env.clock.now_ns(), asset.config, asset.update_index],
            configured,
        )

    def wait_configured(self, uid: Uid, meta_index: int, done: Done, timeout_ms: int) -> None:
        """See ports.NodeHandle.wait_configured."""
        node = self._node
        asset = node.meta.streams_by_uid.get(uid)
        if asset is not None and asset.name in node.failed and not self._has_peers(asset):
            done(errors.STREAM_OFFLINE_REASON(err=node.failed[asset.name]))
            return
        is_open = True

        def finish(outcome: Any) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                timer.cancel()
                done(outcome)

        def expired() -> None:
            waiters = self._config_waiters.get(uid, [])
            waiters[:] = [row for row in waiters if row[1] is not finish]
            finish(errors.CLUSTER_NOT_AVAIL())

        timer = node.env.loop.call_later(timeout_ms / 1000, expired)
        self._config_waiters.setdefault(uid, []).append((meta_index, finish))
        self._settle_configured(uid)

    def _settle_configured(self, uid: Uid, error: errors.JsError | None = None) -> None:
        """Answer those who wait for a config, if this node or the leader elsewhere has it."""
        waiters = self._config_waiters.get(uid)
        if not waiters:
            return
        node = self._node
        replica = self._replicas.get(uid)
        if replica is not None and replica.is_ready:
            has = replica.machine.config_meta_index
            due = waiters if error is not None else [row for row in waiters if row[0] <= has]
            self._config_waiters[uid] = [row for row in waiters if row not in due]
            for _, done in due:
                done(error or True)
            return
        leader = node.leader_of(uid)
        if not leader or leader == node.server_name or node.peers is None:
            return
        del self._config_waiters[uid]
        for meta_index, done in waiters:
            node.peers.call(leader, "configured", [uid, meta_index], done, limits.CONFIGURED_MS)

    def led_since_ns(self, uid: Uid) -> int:
        """When this node began to lead the stream, ns since the epoch; 0: it does not."""
        replica = self._replicas.get(uid)
        return self._led_since_ns.get(uid, 0) if replica is not None and replica.is_ready else 0

    def on_leader_changed(self, uid: Uid) -> None:
        """Some node leads the stream now, or ceased to."""
        self._settle_configured(uid)

    def _settle_ready(self, uid: Uid) -> None:
        for waiting in self._ready_waiters.pop(uid, []):
            waiting()

    def _on_events(self, handle: LocalStream, events: list[tuple[str, dict[str, Any]]]) -> None:
        announce = self._node.on_stream_event
        if announce is not None:
            for kind, fields in events:
                announce(handle, kind, fields)

    # --- who belongs to a group -------------------------------------------------------------

    def look_at_members(self) -> None:
        """Carry on with changes of membership that are not finished."""
        node = self._node
        self.departures.look()
        meta = node.meta_member
        if node.is_meta_leader and meta.group is not None and meta.monitor is not None:
            raft = meta.group.raft
            names = {*raft.members.voters, *node.peering.known_members()} - node.meta.out
            self._move_on(meta.monitor, raft, tuple(sorted(names)))
            node.removals.look_at_cluster()
        moving, self._moving = self._moving, set()
        for uid in sorted(moving):
            replica = self._replicas.get(uid)
            asset = node.meta.streams_by_uid.get(uid)
            if replica is not None and replica.is_ready and asset is not None:
                self._look_at_members_of(replica, asset)
        for uid in node.amnesia.opened_in_memory():
            replica = self._replicas.get(uid)
            asset = node.meta.streams_by_uid.get(uid)
            if replica is not None and asset is not None:
                self._begin_anew_if_wrong(replica, asset)

    def _begin_anew_if_wrong(self, replica: LocalStream, asset: StreamAsset) -> None:
        """A member in memory learns from meta who belongs to its group by being opened again."""
        if replica.is_file or replica.group.failure or replica.monitor.on_stopped:
            return  # or it is being closed
        now_ms = self._node.env.clock.monotonic_ms()
        if has_wrong_members(replica.group.raft, asset, now_ms):
            self.reopen(replica.uid, before=lambda: None)

    def _look_at_members_of(self, replica: LocalStream, asset: StreamAsset) -> None:
        """Take the next step, if one is left; seen again until all is as meta wants it."""
        if not self._node.is_clustered or not asset.peers:
            return
        raft = replica.group.raft
        self._moving.add(asset.uid)
        if self._move_on(replica.monitor, raft, asset.peers):
            members = raft.members
            is_settled = set(members.members()) == set(asset.peers) and not members.is_joint
            if is_settled and raft.log.membership_index <= raft.commit:
                if set(asset.members) == set(asset.peers):
                    self._moving.discard(asset.uid)
                else:
                    now_ns = self._node.env.clock.now_ns()
                    self._node.meta_member.propose_anywhere(
                        [commands.MOVED, now_ns, asset.uid, list(asset.peers)]
                    )

    def _move_on(self, monitor: Monitor, raft: Any, wanted: tuple[NodeId, ...]) -> bool:
        """Take the next step towards `wanted`; True if there is none left."""
        roster = next_roster(raft, wanted)
        if roster is not None:
            monitor.post((g.MEMBERS, list(roster[0]), list(roster[1]), None))
        return set(raft.members.voters) == set(wanted)

    # --- repair -----------------------------------------------------------------------------

    def catch_up(self, uid: Uid, leader: NodeId, index: Index) -> None:
        """Fetch the leader's snapshot at `index` or later, then begin anew from it."""
        self.catch_ups.start(uid, leader, index)

    def is_catching_up(self, uid: Uid) -> bool:
        return self.catch_ups.is_running(uid)

    def serve(self, method: str, args: list[Any], answer: Callable[[Any], None]) -> None:
        """A peer catches up from this node."""
        self.catch_ups.serve(method, args, answer)

    def on_peer_down(self, node_id: NodeId) -> None:
        self.catch_ups.on_peer_down(node_id)

    def repair(self, uid: Uid, reason: str, *, is_log_void: bool = False) -> None:
        """This replica is wrong: it stops serving, sets its files aside, and is made anew.

        `is_log_void`: its log is wrong as well, so it must not answer for what it once acked.
        """
        self.reasons[uid] = reason
        if is_log_void:
            self._void_logs.add(uid)
        if uid == META_UID:
            self._node.meta_member.restart_damaged()
            return
        self.reopen(uid, before=partial(self._set_aside, uid))

    def _set_aside(self, uid: Uid) -> None:
        """On the block thread."""
        node = self._node
        quarantine(node.env.disk, node.root, uid)

    def stop_serving(self, uid: Uid, reason: str) -> None:
        """Nobody knows the truth: this replica does nothing more until an operator looks."""
        self.reasons[uid] = reason
        replica = self._replicas.get(uid)
        if replica is not None:
            replica.monitor.post((g.FAILED, CorruptionError(reason), None, None))

    def reopen(self, uid: Uid, before: Callable[[], None]) -> None:
        """Stop the replica, do `before` on the block thread, and open what is there then."""

        def closed() -> None:
            self._node.block_thread.submit(before, done)

        def done(result: Any) -> None:
            asset = self._assets.get(uid)  # None: deleted meanwhile
            if asset is not None and isinstance(result, BaseException):
                self.fail(uid, asset.name, result)
            else:
                self.open_again(uid)

        if uid in self._replicas:
            self.catch_ups.stop(uid)
            self.close_live(uid, closed)

    def close_live(self, uid: Uid, done: Callable[[], None]) -> None:
        """Stop the replica and close its files, to be opened again; then call `done`."""
        replica = self._replicas.get(uid)
        if replica is None:
            done()
            return
        self._withdraw(replica)
        replica.group.delete()

        def stopped() -> None:
            replica.store.close()
            if self._replicas.get(uid) is replica:
                del self._replicas[uid]
            # Writes of this group that are under way end before its log is looked at again.
            self._node.wal.append([], done)

        replica.monitor.when_stopped(stopped)

    def open_again(self, uid: Uid) -> None:
        """Open a replica that was closed for a repair, if it is still wanted."""
        asset = self._assets.get(uid)
        if asset is None or uid in self._busy or self._node.is_stopping:
            return
        self._node.peering.digests.forget(uid)
        self._node.damages.forget(uid)
        self.reasons.pop(uid, None)
        if uid in self._node.meta.streams_by_uid:
            self._open(self._node.meta.streams_by_uid[uid])
        else:
            self._close(asset)

    def _withdraw(self, replica: LocalStream) -> None:
        """The replica serves nobody from here on."""
        replica.is_ready = False
        node = self._node
        if node.is_clustered:
            node.leaders.note_own(replica.uid, replica.group.raft.term, is_ready=False)
            node.peering.announce(replica.uid)
        self._place(replica.name)

    # --- the end ----------------------------------------------------------------------------

    def _failed(self, asset: StreamAsset, err: BaseException) -> None:
        """A turn raised. With peers, what is wrong here is right elsewhere."""
        if self._has_peers(asset) and isinstance(err, CorruptionError):
            if asset.uid not in self.reasons:
                self._node.damages.damage_count += 1
                self._node.error("replica is damaged", stream=asset.name, reason=str(err))
                self.repair(asset.uid, str(err))
                return
        self.fail(asset.uid, asset.name, err)

    def fail(self, uid: Uid, name: str, err: BaseException) -> None:
        """A stream can't be served on this node."""
        node = self._node
        if isinstance(err, IncarnationError):
            node.damages.on_conflict(uid, str(err))
        node.failed[name] = f"{type(err).__name__}: {err}"
        replica = self._replicas.get(uid)
        if replica is not None:
            self._withdraw(replica)
            replica.group.delete()
        if node.is_clustered:
            self._place(name)
        else:
            node.catalog.place(name, None)
        where = "".join(traceback.format_exception(err)[-3:]).strip()
        node.error("stream stopped", stream=name, uid=uid, reason=str(err), where=where)
        self._settle_ready(uid)
        for _, done in self._config_waiters.pop(uid, []):
            done(errors.STREAM_OFFLINE_REASON(err=node.failed[name]))

    def when_closed(self, uid: Uid, done: Ready) -> None:
        """Call `done` when no group of `uid` runs here any more."""
        if uid in self._assets:
            self._waiting.setdefault(uid, []).append(done)
        else:
            done()

    def leave(self, uid: Uid) -> None:
        """The group has let this node go (see departures): unless the stream is wanted here again,
        its replica goes too."""
        node = self._node
        asset = node.meta.streams_by_uid.get(uid)
        if asset is None or not self._is_foreign(asset) or uid in self._busy:
            return
        if node.is_stopping or node.removals.reason:
            return
        # What the group asks from now on is not promised, for it would be forgotten.
        self._replicas[uid].group.turn_deaf()
        self._close(asset)

    def _close(self, asset: StreamAsset) -> None:
        """Stop the group of a stream that was deleted or has left, and move what it stored into
        trash."""
        node = self._node
        uid = asset.uid
        self.departures.forget(uid)
        self.catch_ups.stop(uid)
        if uid not in node.meta.streams_by_uid:
            node.leaders.forget(uid)  # else it lives on, elsewhere
        node.peering.digests.forget(uid)
        node.damages.forget(uid)
        self.reasons.pop(uid, None)
        self._led_since_ns.pop(uid, None)
        node.failed.pop(asset.name, None)
        replica = self._replicas.get(uid)
        if replica is None:
            # Not open: being begun anew, or failed.
            self._gone(uid)
            return
        self._busy.add(uid)
        replica.is_ready = False
        self._place(asset.name)
        replica.group.delete()

        def stopped() -> None:
            node.block_thread.submit(remove, removed)

        def remove() -> None:
            replica.store.close()
            if replica.is_file:
                node.env.disk.remove_tree(os.path.join(node.root, "streams", f"{uid}.catchup"))
                # A crash before this rename leaves a directory without an asset, which the
                # next start moves to trash; the committed deletion is in the meta log.
                replica.store.move_to_trash(os.path.join(node.root, "trash"))

        def removed(result: Any) -> None:
            node.amnesia.note_dropped(uid)
            if replica.is_file:
                node.meta_member.remember_commit()
                node.wal.destroy(uid)
                node.empty_trash([str(uid)])
            self._replicas.pop(uid, None)
            self._gone(uid)
            self._no_longer_busy(asset)

        replica.monitor.when_stopped(stopped)

    def _gone(self, uid: Uid) -> None:
        self._assets.pop(uid, None)
        if self._node.meta.is_deleted(uid):
            self._node.amnesia.forget(uid)
        for waiting in self._waiting.pop(uid, []):
            waiting()

    def stop_all(self, done: Ready) -> None:
        """Stop every group; waiting pulls hear of it."""
        self.catch_ups.stop_all()
        left = len(self._replicas)
        if not left:
            done()
            return

        def stopped() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for replica in self:
            replica.group.shut_down()
        for replica in self:
            replica.monitor.when_stopped(stopped)

    def fail_all(self, err: BaseException) -> None:
        """Nothing is served on this node any more."""
        for uid, asset in list(self._assets.items()):
            self.catch_ups.stop(uid)
            self.fail(uid, asset.name, err)

    def close_stores(self) -> None:
        for replica in self:
            replica.store.close()
