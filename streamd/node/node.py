"""A node: the meta group, the groups of its streams, their disks, and who finds whom.

Start order: store directory, log (one scan), meta group, then every stream it knows. Stop order
is the reverse. The node never deletes by inference: a stream's directory leaves `streams/` only
after the meta group committed the deletion of that very uid, and by a rename into `trash/`.

Alone, a node is a cluster of one. With `cluster_name` it is one of several: `attach_peers` gives
it their links, `bootstrap` decides which cluster it is, and every group may have peers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from streamd import errors, limits
from streamd.errors import ConfigError, CorruptionError, StreamdError
from streamd.machine import commands
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.node import group as g
from streamd.node import storedir
from streamd.node.bootstrap import Bootstrap
from streamd.node.damages import Damages
from streamd.node.env import NodeEnv, SystemEnv, completion
from streamd.node.group import Group, NoBlocks
from streamd.node.leaders import Leaders
from streamd.node.memory_log import MemoryLog
from streamd.node.monitor import DueTurns, Monitor
from streamd.node.peering import Peering
from streamd.node.ports import Done, Peers, Wires
from streamd.node.rafts import GroupStart, Rafts, log_from_snapshot
from streamd.node.remote_stream import RemoteStream
from streamd.node.removals import Removals
from streamd.node.replicas import Replicas
from streamd.node.room import MemoryRoom, StorageRoom
from streamd.node.scrubber import Scrubber
from streamd.node.snapshot_state import unwrap
from streamd.node.snapshot_writers import MetaSnapshots, StreamSnapshots
from streamd.node.stream_handle import LocalStream
from streamd.raft.membership import Membership
from streamd.raft.messages import Message
from streamd.store.install import catchup_uid
from streamd.store.snapshots import SnapshotFile
from streamd.store.trash import EmptyTrash
from streamd.store.wal import Wal
from streamd.types import META_UID, HardState, NodeId, Uid

__all__ = ["Node", "StreamSnapshots", "log_from_snapshot"]


class Node:
    """Implements `ports.NodeHandle` and `ports.PeerHandler`.

    Without an `env`, construct it inside a running event loop.
    """

    def __init__(
        self,
        *,
        store_dir: str,
        wires: Wires,
        server_id: str,
        server_name: str,
        sync: str | float = "always",
        max_payload: int = 1024 * 1024,
        memory_max: int = -1,
        storage_max: int = -1,
        env: NodeEnv | None = None,
        ha_assets_max: int = 0,
        unique_tag: str = "",
        cluster_name: str = "",
        tags: tuple[str, ...] = (),
        log: Any = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.store_dir = store_dir
        self.server_id = server_id
        self.server_name: NodeId = server_name
        self.memory_max = memory_max
        self.storage_max = storage_max
        self.unique_tag = unique_tag  # see placement.Cluster
        self.ha_assets_max = ha_assets_max  # replicated streams placed here; 0: any number
        self.sync = sync
        self.cluster_name = cluster_name
        self.is_clustered = bool(cluster_name)
        self.tags = tags
        self.topology_version = 0
        self.failed: dict[str, str] = {}  # stream name -> why it is offline on this node
        self.on_stream_event: Callable[[LocalStream, str, dict[str, Any]], None] | None = None
        self.env: NodeEnv = env or SystemEnv()
        self.max_payload = max_payload
        self.log = log
        self.wires = wires
        self.leaders = Leaders(self.server_name)
        self.peering = Peering(self)
        self.damages = Damages(self)
        self.scrubber = Scrubber(self)
        self.replicas = Replicas(self)
        self.removals = Removals(self)
        self.is_meta_fresh = False  # it has what was committed when this process began
        self.meta_index_at_start = -1  # of the meta log, as this process found it; -1: not yet
        self.forgotten_upto = 0  # streams created up to this meta entry may have been forgotten
        self.meta_reason = ""  # why the meta group does not serve here; empty: it does
        self._on_fatal = on_fatal
        self._handles: dict[str, LocalStream | RemoteStream] = {}
        self._sorted: list[LocalStream | RemoteStream] | None = []
        self._routes: dict[bytes, tuple[LocalStream | RemoteStream, ...]] = {}
        self._meta_group: Group | None = None
        self._meta_monitor: Monitor | None = None
        self._expected_size: Callable[[], int] = lambda: 1
        self._bootstrap: Bootstrap | None = None
        self._timers: dict[str, Any] = {}
        self._is_running = False
        self._is_stopping = False
        self._stop_waiters: list[Callable[[], None]] = []

    # --- life -------------------------------------------------------------------------------

    def attach_peers(self, peers: Peers, expected_size: Callable[[], int]) -> None:
        """Join the links to other nodes; before `start`. `expected_size`: nodes configured."""
        self.peering.peers = peers
        self._expected_size = expected_size

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        """Recover everything on disk. Raises ConfigError, CorruptionError, DiskError.

        `done` is called when every stream that can be served is served (those that can't are in
        `failed`); in a cluster, as soon as this node can take part.
        """
        env = self.env
        self._disk = env.disk
        opened = storedir.prepare(self.store_dir, self._disk)
        self.root, self._lock, self.identity = opened
        self.room = StorageRoom(
            self._disk, self.root, storage_max=self.storage_max, used=self.storage_bytes
        )
        self.memory_room = MemoryRoom(memory_max=self.memory_max, used=self.memory_bytes)
        self._log_thread = env.make_thread("log")
        self.block_thread = env.make_thread("block")
        self.wal = self._open_wal()
        self.memory_log = MemoryLog(env.loop.call_soon)
        self.due_turns = DueTurns()
        self.rafts = Rafts(self)
        self.peering.relay.begin(self.rafts.next_nonce())
        self._is_running = True
        self.wal.on_crowded = self._check_stragglers
        self.again("stragglers", limits.STRAGGLER_CHECK_S, self._check_stragglers)
        self.scrubber.start()
        self.damages.start()
        if not self.is_clustered:
            if self.identity.get("cluster_id"):
                raise ConfigError(
                    f"store directory {self.root!r} belongs to a node of cluster id "
                    f"{self.identity['cluster_id']}: give this server its cluster configuration"
                )
            self._start_meta()
            self._when_meta_ready(partial(self._meta_recovered, done))
            return
        assert self.peering.peers is not None, "a clustered node needs its peers first"
        self.removals.check_directory()
        if not self.identity.get("cluster_id") and self.wal.groups:
            raise ConfigError(
                f"store directory {self.root!r} holds the data of a single server, which can't "
                "join a cluster: give this node an empty directory"
            )
        self._bootstrap = Bootstrap(
            name=self.server_name,
            identity=self.identity,
            expected_size=lambda: self._expected_size(),
            peers=self.peering.peers,
            random_id=lambda: self._disk.random_bytes(16).hex(),
            save=lambda identity: self.save_identity(),
            on_decided=self._cluster_decided,
        )
        if self._bootstrap.is_decided:
            self._start_meta()
        else:
            self._look_at_bootstrap()
        self.again("facts", limits.FACTS_EVERY_S, self.peering.tell_facts)
        self.again("members", limits.PLACEMENT_EVERY_S, self.replicas.look_at_members)
        env.loop.call_soon(done, None)

    async def started(self) -> None:
        """`start`, awaited."""
        event, done, results = completion()
        self.start(done)
        await event.wait()
        if results[0] is not None:
            raise results[0]

    def _open_wal(self) -> Wal:
        is_known = "log_id" in self.identity
        wal = Wal.open(
            self._disk,
            os.path.join(self.root, "wal"),
            self._log_thread,
            segment_bytes=self.room.segment_bytes,
            sync="always" if self.sync == "always" else float(self.sync),
            on_error=self._on_log_error,
            helper=self.block_thread,
            tolerate_damage=self.is_clustered,
            on_groups_lost=self._on_groups_lost,
        )
        self.is_log_lost = is_known and self.identity["log_id"] != wal.log_id
        if self.is_log_lost and not self.is_clustered:
            raise CorruptionError(
                f"{self.root}/wal: log {self.identity['log_id']} of this store is gone"
            )
        if not is_known or self.is_log_lost:
            self.identity["log_id"] = wal.log_id
            if self.is_log_lost:
                self.identity["is_rejoined"] = True
            self.save_identity()
        for text in wal.damage:
            self.warn("the log is damaged", reason=text)
        return wal

    def _on_groups_lost(self) -> None:
        """The log may have lost all of a group, its votes too: as if the log itself was lost."""
        self.identity["is_rejoined"] = True
        self.save_identity()

    def save_identity(self) -> None:
        """Make what this node knows of itself what the next start finds."""
        try:
            storedir.save_identity(self.root, self._disk, self.identity)
        except OSError as err:
            if not self._is_running:
                raise
            # What this node is can't be written down, so it must not go on as if it were.
            self.error("node.json can't be written", reason=str(err))
            if self._on_fatal is not None:
                self._on_fatal(err)

    def _meta_recovered(self, done: Callable[[BaseException | None], None]) -> None:
        if self._meta_group is None or self._meta_group.failure:
            reason = self._meta_group.failure if self._meta_group is not None else "not running"
            done(CorruptionError(f"meta group: {reason}"))
            return
        self._meta_group.on_events = self._meta_events
        assets = sorted(self.meta.streams_by_name.values(), key=lambda asset: asset.uid)
        known = {asset.uid for asset in assets}

        def ready() -> None:
            self._report_orphans(known)
            self._empty_own_trash()
            done(None)

        self.replicas.open_all(assets, ready)

    def stop(self, done: Callable[[], None]) -> None:
        """Hand leaderships over, stop every group (each may take a last snapshot), then the log
        and the disks; then call `done`. Asked again meanwhile, both are told when it is done."""
        if not self._is_running:
            done()
            return
        self._stop_waiters.append(done)
        if self._is_stopping:
            return
        self._is_stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.scrubber.stop()
        self.peering.hand_over(self._stop_groups)

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    async def stopped(self) -> None:
        """`stop`, awaited."""
        event, done, _ = completion()
        self.stop(partial(done, None))
        await event.wait()

    def _stop_groups(self) -> None:
        def meta_stopped() -> None:
            self.replicas.close_stores()
            self.wal.close()
            self.block_thread.close()
            self._log_thread.close()
            self._disk.unlock(self._lock)
            self._is_running = False
            waiters, self._stop_waiters = self._stop_waiters, []
            for done in waiters:
                done()

        def streams_stopped() -> None:
            if self._meta_monitor is None:
                meta_stopped()
            else:
                stop_all([self._meta_monitor], meta_stopped)

        self.replicas.stop_all(streams_stopped)

    # --- which cluster ----------------------------------------------------------------------

    def _look_at_bootstrap(self) -> None:
        assert self._bootstrap is not None
        if self._bootstrap.is_decided:
            return
        self._bootstrap.look()
        if not self._bootstrap.is_decided:
            self._later("bootstrap", limits.BOOTSTRAP_RETRY_S, self._look_at_bootstrap)

    def _cluster_decided(self, is_uncertain: bool) -> None:
        self.info("cluster joined" if is_uncertain else "cluster founded", id=self.cluster_id)
        self._start_meta()
        self.peering.renew_hello([] if is_uncertain else self.identity["voters"])

    @property
    def cluster_id(self) -> str:
        return str(self.identity.get("cluster_id", ""))

    # --- the meta group ---------------------------------------------------------------------

    @property
    def meta(self) -> MetaMachine:
        if self._meta_group is None:
            assert self.is_clustered, "the node has not started"
            return MetaMachine()  # which cluster this is is not decided: no streams are known
        machine: MetaMachine = self._meta_group.machine
        return machine

    @property
    def meta_group(self) -> Group | None:
        return self._meta_group

    @property
    def meta_monitor(self) -> Monitor | None:
        return self._meta_monitor

    def _start_meta(self, *, is_damaged: bool = False) -> None:
        directory = os.path.join(self.root, "meta")
        try:
            snapshot = SnapshotFile.load(self._disk, directory, "meta", group=META_UID)
        except CorruptionError as err:
            if not self.is_clustered:
                raise
            self.warn("meta snapshot set aside", reason=str(err))
            self._set_meta_aside(directory)
            snapshot, is_damaged = None, True
        members: Membership | None = None
        if snapshot is None:
            machine, start = MetaMachine(), GroupStart(META_UID)
        else:
            members, state = unwrap(snapshot.state)
            machine = MetaMachine.restore(state)
            start = GroupStart(META_UID, snapshot.index, snapshot.term, snapshot.chain)
        voters = tuple(self.identity.get("voters", ())) or (self.server_name,)
        is_rejoined = bool(self.identity.get("is_rejoined"))
        raft = self.rafts.make(
            start._replace(
                voters=voters,
                members=members,
                is_forgotten=is_rejoined,
                is_damaged=is_damaged,
            )
        )
        if self.meta_index_at_start < 0:
            # A log that lost entries does not say how far it went.
            self.meta_index_at_start = limits.EVERYTHING if raft.is_uncertain else raft.last_index
        # A log that is whole proves by its silence that nothing was promised; one that was lost
        # proves nothing about any group of its time.
        self.forgotten_upto = (
            limits.EVERYTHING if is_rejoined else self.identity.get("forgotten_upto", 0)
        )
        group = Group(
            uid=META_UID, raft=raft, machine=machine, blocks=NoBlocks(), snapshot_index=start.index
        )
        group.are_events_for_all = self.is_clustered
        self._meta_group = group
        writer = MetaSnapshots(
            self._disk, directory, self.block_thread, is_clustered=self.is_clustered
        )
        monitor = Monitor(
            group,
            log=self.wal,
            clock=self.env.clock,
            snapshot_writer=writer,
            on_failed=self.on_meta_failed,
            loop=self.env.loop,
            send=self.peering.send,
            on_turn=self._on_meta_turn,
            due=self.due_turns,
        )
        self._meta_monitor = monitor
        self.is_meta_fresh = False
        writer.on_error = lambda err: monitor.post((g.FAILED, err, None, None))
        monitor.post((g.TICK, None, None, None))
        if self.is_clustered:
            # What is known to be committed is applied before any stream is opened: one of them may
            # be deleted, its log gone, and must not come back as a new and empty one.
            while monitor.is_awake():
                monitor.step()
            group.on_events = self._meta_events
            self.peering.introduce(monitor, raft.members.members())
            self.replicas.reconcile()
            self.removals.look_at_members()
        if not monitor.stopped.is_set():
            self.env.spawn(monitor)
            if self.is_clustered:
                self._freshen()

    def _freshen(self) -> None:
        """Ask, until a majority says so, how far the meta log went when this process began."""
        monitor = self._meta_monitor
        if self.is_meta_fresh or not self._is_running or monitor is None:
            return
        monitor.post((g.BARRIER, self._is_fresh_now, None, None))
        self.env.loop.call_later(limits.META_FRESH_RETRY_MS / 1000, self._freshen)

    def _is_fresh_now(self) -> None:
        if not self.is_meta_fresh and self._is_running:
            self.is_meta_fresh = True
            self.replicas.reconcile()

    def may_have_forgotten(self, uid: Uid) -> bool:
        """True if this node may have been in a group of which its log knows nothing."""
        return uid <= self.forgotten_upto or self.was_dropped(uid)

    def is_unknown(self, uid: Uid) -> bool:
        """True if the log knows nothing of a group, and nobody can say yet whether it should."""
        return self.forgotten_upto == limits.EVERYTHING and self.wal.group(uid) is None

    def is_deleted(self, uid: Uid) -> bool:
        """True if a committed command deleted the stream. A meta group that begins anew knows of
        no stream before it comes to the entry that made it, and that one's index is the uid."""
        return uid not in self.meta.streams_by_uid and self.meta.applied >= uid

    def was_dropped(self, uid: Uid) -> bool:
        """True if this node once destroyed its member of a group that lived on."""
        return uid in self.identity.get("dropped", ())

    def note_dropped(self, uid: Uid) -> None:
        """This node's member of a group is about to be destroyed; the group may live on.

        Should it come back, it must not pass for one of the founders, who promised nothing yet.
        """
        if not self.is_clustered:
            return
        before = self.identity.get("dropped", [])
        dropped = sorted(one for one in {*before, uid} if not self.is_deleted(one))
        if dropped != before:
            self.identity["dropped"] = dropped
            self.save_identity()

    def remember_meta_commit(self) -> None:
        """Have the log say how far the meta group is committed, before what is appended next."""
        group = self._meta_group
        if self.is_clustered and group is not None:
            raft = group.raft
            state = HardState(raft.term, raft.vote, group.machine.applied, raft.is_uncertain)
            self.wal.append([(META_UID, [], state, 0)], _nothing)

    def _set_meta_aside(self, directory: str) -> None:
        aside = os.path.join(self.root, "trash", f"meta-damaged-{self.env.clock.now_ns()}")
        self._disk.replace(directory, aside)
        self._disk.mkdir(directory)
        self._disk.sync_dir(self.root)

    def close_meta(self, done: Callable[[], None]) -> None:
        """Stop the meta group, to be begun anew by `open_meta`; its log and votes are kept."""
        monitor, self._meta_monitor = self._meta_monitor, None
        if monitor is None:
            done()
            return
        self.leaders.note_own(META_UID, 0, is_ready=False)
        stop_all([monitor], lambda: self.wal.append([], done))

    def open_meta(self) -> None:
        """Begin the meta group from what is on disk now."""
        if self._meta_monitor is None and not self._is_stopping:
            self._start_meta_again(self._start_meta)

    def restart_meta_damaged(self) -> None:
        """What this node believes is not what the majority believes: begin from theirs."""

        def set_aside_and_start() -> None:
            self._set_meta_aside(os.path.join(self.root, "meta"))
            if not self._is_stopping:
                self._start_meta(is_damaged=True)

        self.close_meta(lambda: self._start_meta_again(set_aside_and_start))

    def _start_meta_again(self, start: Callable[[], None]) -> None:
        """`start` the meta group of a node that runs. What would end a start ends the node."""
        try:
            start()
        except (OSError, StreamdError) as err:
            self.error("meta group can't begin anew", reason=str(err))
            if self._on_fatal is not None:
                self._on_fatal(err)

    def _when_meta_ready(self, done: Callable[[], None]) -> None:
        assert self._meta_group is not None
        self._meta_group.on_ready.append(done)

    def propose_meta(self, command: list[Any], done: Done) -> None:
        """See ports.NodeHandle. `done` waits for the stream's group to follow."""
        if self._meta_monitor is None:
            done(errors.CLUSTER_NOT_AVAIL())
            return
        kind = command[0]
        deleted = 0
        if kind == commands.DELETE_STREAM:
            asset = self.meta.streams_by_name.get(command[2])
            deleted = asset.uid if asset is not None else 0

        def applied(result: Any) -> None:
            if isinstance(result, errors.JsError):
                done(result)
            elif kind in (commands.CREATE_STREAM, commands.UPDATE_STREAM):
                self.wait_configured(
                    result.uid,
                    result.update_index,
                    lambda outcome: done(
                        outcome if isinstance(outcome, errors.JsError) else result
                    ),
                )
            elif kind == commands.DELETE_STREAM:
                self.replicas.when_closed(deleted, lambda: done(True))
            else:
                done(result)

        self._meta_monitor.post((g.PROPOSE, command, applied, True))

    def propose_meta_anywhere(self, command: list[Any]) -> None:
        """Propose a command of the node's own to whoever leads the meta group, if anybody."""
        if self.is_meta_leader and self._meta_monitor is not None:
            self._meta_monitor.post((g.PROPOSE, command, None, True))
        elif self.meta_leader and self.peering.peers is not None:
            self.peering.peers.note(self.meta_leader, "meta", [command])

    def _meta_events(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        self._on_meta_events(events)

    def _on_meta_events(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        for kind, fields in events:
            if kind == "server_removed":
                self.removals.on_removed(fields["server"])
                continue
            asset: StreamAsset = fields["asset"]
            if kind == "stream_created":
                self.failed.pop(asset.name, None)
            self.replicas.reconcile_one(asset.uid, asset.name)
        self.changed()

    def _on_meta_turn(self, turn: g.Turn) -> None:
        group = self._meta_group
        if group is None or not self._is_running:
            return
        if turn.has_role_changed:
            self.leaders.note_own(META_UID, group.raft.term, is_ready=group.is_ready)
            self.peering.announce(META_UID)
        self.peering.follow(META_UID, turn)
        if group.raft.is_uncertain:
            return
        # What this node may have forgotten is behind it: the leader appended that entry after
        # it had heard of the loss.
        index = group.raft.certified_index or group.raft.last_index
        if self.meta_index_at_start == limits.EVERYTHING:
            self.meta_index_at_start = index
        if self.identity.get("is_rejoined"):
            self.identity["is_rejoined"] = False
            self.removals.certified(index)
            self.identity["forgotten_upto"] = self.forgotten_upto = index
            self.save_identity()
            self.replicas.reconcile()

    # --- leadership -------------------------------------------------------------------------

    @property
    def peers(self) -> Peers | None:
        return self.peering.peers

    @property
    def node_facts(self) -> dict[NodeId, dict[str, Any]]:
        return self.peering.node_facts

    @property
    def meta_leader(self) -> NodeId:
        return self.leaders.leader_of(META_UID) if self.is_clustered else self.server_name

    @property
    def is_meta_leader(self) -> bool:
        return self._meta_group is not None and self._meta_group.is_ready

    def leader_of(self, uid: Uid) -> NodeId:
        return self.leaders.leader_of(uid) if self.is_clustered else self.server_name

    def watch_leaders(self, on_change: Callable[[], None]) -> None:
        self.leaders.watch(on_change)

    def replica(self, uid: Uid) -> LocalStream | None:
        return self.replicas.get(uid)

    def monitor_of(self, uid: Uid) -> Monitor | None:
        """The monitor of this node's member of a group."""
        if uid == META_UID:
            return self._meta_monitor
        replica = self.replicas.get(uid)
        return replica.monitor if replica is not None else None

    def group_of(self, uid: Uid) -> Group | None:
        """This node's member of a group."""
        if uid == META_UID:
            return self._meta_group
        replica = self.replicas.get(uid)
        return replica.group if replica is not None else None

    def group_info(self, uid: Uid) -> dict[str, Any] | None:
        return self.peering.group_info(uid)

    def step_down(self, uid: Uid, preferred: NodeId, done: Done) -> None:
        monitor = self.monitor_of(uid)
        if monitor is None:
            done(errors.CLUSTER_NOT_LEADER())
        else:
            monitor.post((g.STEP_DOWN, preferred, done, None))

    def wait_configured(
        self, uid: Uid, meta_index: int, done: Done, timeout_ms: int = 5000
    ) -> None:
        self.replicas.wait_configured(uid, meta_index, done, timeout_ms)

    def on_call_prefix(self, prefix: str, serve: Callable[..., None]) -> None:
        self.peering.call_prefixes[prefix] = serve

    def on_note_prefix(self, prefix: str, take: Callable[..., None]) -> None:
        self.peering.note_prefixes[prefix] = take

    # --- ports.PeerHandler ------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        return self.peering.hello()

    def on_peer_up(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        if not self._is_running:
            raise ConfigError("this node has not started")
        assert self._bootstrap is not None
        self._bootstrap.check(node_id, hello)
        self.removals.check(node_id, hello)
        self._bootstrap.on_peer_up(node_id, hello)
        self.peering.on_up(node_id, hello)

    def on_peer_down(self, node_id: NodeId) -> None:
        if self._bootstrap is not None:
            self._bootstrap.on_peer_down(node_id)
        self.peering.on_down(node_id)

    def on_raft(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None:
        monitor = self.monitor_of(uid)
        if monitor is not None:
            for message in messages:
                monitor.post((g.STEP, sender, message, None))
        else:
            self.replicas.hold(sender, uid, messages)

    def on_call(
        self, sender: NodeId, method: str, args: list[Any], answer: Callable[[Any], None]
    ) -> None:
        if method == "bootstrap" and self._bootstrap is not None:
            answer(self._bootstrap.on_call(args))
        else:
            self.peering.on_call(sender, method, args, answer)

    def on_note(self, sender: NodeId, kind: str, args: list[Any]) -> None:
        self.peering.on_note(sender, kind, args)

    # --- finding streams --------------------------------------------------------------------

    def stream(self, name: str) -> Any:
        return self._handles.get(name)

    def streams(self) -> list[Any]:
        if self._sorted is None:
            self._sorted = sorted(self._handles.values(), key=lambda handle: handle.name)
        return self._sorted

    def streams_for(self, subject: bytes) -> tuple[Any, ...]:
        found = self._routes.get(subject)
        if found is None:
            names = sorted(self.meta.capturing(subject))
            handles: list[Any] = [self._handles.get(name) for name in names]
            found = tuple(
                handle
                for handle in handles
                if handle is not None
                and handle.captures(subject)
                and (handle.is_local or handle.leader)
            )
            if len(self._routes) >= limits.ROUTE_CACHE_MAX:
                self._routes.clear()
            self._routes[subject] = found
        return found

    def streams_under(self, prefix: bytes) -> tuple[Any, ...] | None:
        found: list[Any] = []
        for name in sorted(self.meta.capturing(prefix + b"*")):
            handle: Any = self._handles.get(name)
            if handle is None or not (handle.is_local or handle.leader):
                continue
            if not handle.captures(prefix + b"*"):  # as a token like any: not by its literals
                return None
            found.append(handle)
        return tuple(found)

    def place(self, name: str, handle: LocalStream | RemoteStream | None) -> None:
        """Have `name` lead to `handle` from now on."""
        if handle is None:
            self._handles.pop(name, None)
        else:
            self._handles[name] = handle
        self.changed()

    def changed(self) -> None:
        """Forget what was looked up about streams."""
        self._sorted = None
        self._routes.clear()
        self.topology_version += 1

    def on_drained(self) -> None:
        for handle in self.replicas:
            if handle.machine.consumers:
                handle.monitor.post((g.DRAINED, None, None, None))

    def memory_bytes(self) -> int:
        return sum(h.machine.index.bytes for h in self.replicas if not h.is_file)

    def storage_bytes(self) -> int:
        return sum(h.machine.index.bytes for h in self.replicas if h.is_file)

    # --- care -------------------------------------------------------------------------------

    def _later(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        self._timers[name] = self.env.loop.call_later(delay_s, callback)

    def on_hello_renewed(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """A node that was in no cluster when we met is in one now."""
        assert self._bootstrap is not None
        try:
            self._bootstrap.check(node_id, hello)
            self.removals.check(node_id, hello)
        except ConfigError as err:
            self.error("peer refused", peer=node_id, reason=str(err))
            return
        self.peering.know(node_id, hello)
        self._bootstrap.on_peer_up(node_id, hello)
        self.peering.introduce_to(node_id)

    def again(self, name: str, every_s: float, callback: Callable[[], None]) -> None:
        """Call again and again until the node stops."""

        def fire() -> None:
            if not self._is_stopping:
                callback()
                self._later(name, every_s, fire)

        self._later(name, every_s, fire)

    def _check_stragglers(self) -> None:
        """Snapshot groups that alone keep an old log segment alive."""
        for uid in self.wal.stragglers():
            monitor = self.monitor_of(uid)
            if monitor is not None:
                monitor.post((g.SNAPSHOT, None, None, None))

    def empty_trash(self, names: list[str]) -> None:
        """Unlink streams that a committed command deleted. Orphans stay until somebody looks."""
        for name in names:
            path = os.path.join(self.root, "trash", name)
            EmptyTrash(self._disk, self.block_thread, path).begin()

    def _empty_own_trash(self) -> None:
        trash = self._disk.listdir(os.path.join(self.root, "trash"))
        self.empty_trash([name for name in sorted(trash) if name.isdigit()])

    def _report_orphans(self, known: set[Uid]) -> None:
        """Move directories of no known stream to trash; their bytes are kept there."""
        streams = os.path.join(self.root, "streams")
        for name in sorted(self._disk.listdir(streams)):
            if (name.isdigit() and int(name) in known) or catchup_uid(name) in known:
                continue
            target = os.path.join(self.root, "trash", f"orphan-{name}-{self.env.clock.now_ns()}")
            self._disk.replace(os.path.join(streams, name), target)
            self._disk.sync_dir(streams)
            self.warn("directory of no stream moved to trash", path=target)

    def _on_log_error(self, err: BaseException) -> None:
        """The log failed: nothing can be promised any more, so every group stops (I10)."""
        for handle in list(self.replicas):
            if handle.is_file:
                self.replicas.fail(handle.uid, handle.name, err)
        if self._on_fatal is not None:
            self._on_fatal(err)

    def on_meta_failed(self, group: Group, err: BaseException) -> None:
        """The meta group runs no more: it begins from what peers have, or the node ends."""
        for callback in group.on_ready:
            callback()
        self.error("meta group stopped", reason=str(err))
        if self.is_clustered and isinstance(err, CorruptionError):
            self.restart_meta_damaged()
            return
        if self._on_fatal is not None:
            self._on_fatal(err)

    def info(self, text: str, **facts: Any) -> None:
        """Write to the server's log, if there is one; so do the next two."""
        if self.log is not None:
            self.log.info(text, **facts)

    def warn(self, text: str, **facts: Any) -> None:
        if self.log is not None:
            self.log.warning(text, **facts)

    def error(self, text: str, **facts: Any) -> None:
        if self.log is not None:
            self.log.error(text, **facts)


def _nothing() -> None:
    """Nobody waits for it."""


def stop_all(monitors: list[Monitor], done: Callable[[], None]) -> None:
    """Stop `monitors`; call `done` when the last has stopped."""
    left = [monitor for monitor in monitors if not monitor.stopped.is_set()]
    count = len(left)
    if not count:
        done()
        return

    def stopped() -> None:
        nonlocal count
        count -= 1
        if count == 0:
            done()

    for monitor in left:
        monitor.on_stopped.append(stopped)
        monitor.stop()
