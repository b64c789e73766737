"""A node: the groups that run on it, their log and disks, its start and its stop.

Start order: store directory, log (one scan), meta group, then every stream it knows. Stop order
is the reverse. The node never deletes by inference: a stream's directory leaves `streams/` only
after the meta group committed the deletion of that very uid, and by a rename into `trash/`.

Alone, a node is a cluster of one. With `cluster_name` it is one of several: `attach_peers` gives
it their links, `bootstrap` decides which cluster it is, and every group may have peers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamd import errors, limits
from streamd.errors import ConfigError, CorruptionError, DiskError
from streamd.machine.meta import MetaMachine
from streamd.node.clock import ClockWatch
from streamd.node.cluster.config_propagation import ConfigChanges
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.peering import Peering
from streamd.node.cluster.reconfiguration import Moves
from streamd.node.cluster.server_removal import Removals
from streamd.node.env import NodeEnv, SystemEnv, completion
from streamd.node.groups import inbox
from streamd.node.groups.group import Group
from streamd.node.groups.group_info import group_info
from streamd.node.groups.leadership_transfer import HandOver
from streamd.node.groups.memory_log import MemoryLog
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.raft_members import Rafts
from streamd.node.groups.wakeup import DueTurns
from streamd.node.identity import ownership, store_directory
from streamd.node.identity.amnesia import Amnesia
from streamd.node.identity.bootstrap import Bootstrap
from streamd.node.identity.incarnations import Sightings
from streamd.node.identity.store_watch import StoreWatch
from streamd.node.integrity.corruption import Damages
from streamd.node.integrity.discarded_entries import Tails
from streamd.node.integrity.scrubber import Scrubber
from streamd.node.meta_group.catalog import Catalog
from streamd.node.meta_group.meta_member import MetaMember
from streamd.node.ports import Done, Peers, Wires
from streamd.node.recovery.forced_election import Heirs
from streamd.node.recovery.lost_copies import LostCopies
from streamd.node.recovery.quorum_loss_recovery import AcceptedLoss
from streamd.node.replicas.replica_set import Replicas
from streamd.node.replicas.replica_trash import Trash
from streamd.node.resources.disk_quota import MemoryRoom, StorageRoom
from streamd.node.resources.log_retention import Stragglers
from streamd.node.resources.stall_detector import Slowness
from streamd.node.stream_groups.publish_forwarding import PublishRoutes
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.node.timers import Timers
from streamd.raft.messages import Message
from streamd.store.blocks.block import OPEN_BLOCKS_MAX
from streamd.store.disk import disk_error
from streamd.types import META_UID, BatchLimits, NodeId, Uid


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
        batch_limits: BatchLimits | None = None,
        cluster_name: str = "",
        tags: tuple[str, ...] = (),
        accepts_loss: bool = False,
        open_blocks_max: int = OPEN_BLOCKS_MAX,
        files_reserved: int = 0,
        log: Any = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.store_dir = store_dir
        self.server_id = server_id
        self.server_name: NodeId = server_name
        self.memory_max = memory_max
        self.storage_max = storage_max
        self.unique_tag = unique_tag  # see placement.Cluster
        self.open_blocks_max = open_blocks_max  # see store.block.OpenBlocks
        self._files_reserved = files_reserved  # see Disk.reserve_files
        self.ha_assets_max = ha_assets_max  # replicated streams placed here; 0: any number
        self.batch_limits = batch_limits or BatchLimits()
        self.sync = sync
        self.cluster_name = cluster_name
        self.is_clustered = bool(cluster_name)
        self.tags = tags
        # For this start: of what a single server has lost; of what a voter in doubt may have had.
        self.accepts_loss = accepts_loss and not self.is_clustered
        self.accepts_doubt = accepts_loss and self.is_clustered
        self.on_stream_event: Callable[[LocalStream, str, dict[str, Any]], None] | None = None
        self.on_store_gone: Callable[[], None] = lambda: None  # see `store_is_gone`
        self.on_meta_event: Callable[[str, dict[str, Any]], None] | None = None
        self.identity: dict[str, Any] = {}  # see storedir; empty until the start
        self.env: NodeEnv = env or SystemEnv()
        self.max_payload = max_payload
        self.log = log
        self.wires = wires
        self.leaders = Leaders(self.server_name, self.env.clock.monotonic_ms)
        self.publish_routes = PublishRoutes(self)
        self.catalog = Catalog(lambda pattern: self.meta.capturing(pattern))
        self.peering = Peering(self)
        self.damages = Damages(self)
        self.scrubber = Scrubber(self)
        self.stragglers = Stragglers(self)
        self.timers = Timers(self.env.loop)
        self.tails = Tails(self)
        self.slowness = Slowness(self)
        self.store_watch = StoreWatch(self)
        self.trash = Trash(self)
        self.amnesia = Amnesia(self)
        self.accepted_loss = AcceptedLoss(self)
        self.meta_member = MetaMember(self)
        self.replicas = Replicas(self)
        self.moves = Moves(self)
        self.heirs = Heirs(self)
        self.lost_copies = LostCopies(self)
        self.sightings = Sightings(self)
        self.config_changes = ConfigChanges(self)
        self.removals = Removals(self)
        self.has_requests: Callable[[], bool] = lambda: False  # see wait_for_requests
        self._on_fatal = on_fatal
        self._expected_size: Callable[[], int] = lambda: 1
        self._unreached: Callable[[], list[str]] = list
        self._bootstrap_looks = 0
        self._told_waiting = ""  # what was said last of the cluster that is not founded yet
        self._bootstrap: Bootstrap | None = None
        self._is_running = False
        self._is_stopping = False
        self._stop_waiters: list[Callable[[], None]] = []

    # --- life -------------------------------------------------------------------------------

    def attach_peers(
        self,
        peers: Peers,
        expected_size: Callable[[], int],
        unreached: Callable[[], list[str]] = list,
    ) -> None:
        """Join the links to other nodes; before `start`. `expected_size`: nodes with streams that
        are configured; `unreached`: those of the configured without a link."""
        self.peering.peers = peers
        self._expected_size = expected_size
        self._unreached = unreached

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        """Recover everything on disk. Raises ConfigError, CorruptionError, DiskError.

        `done` is called when every stream that can be served is served (those that can't are in
        `failed`); in a cluster, as soon as this node can take part.
        """
        env = self.env
        self._disk = env.disk
        self._disk.reserve_files(self._files_reserved)
        when_unknown = store_directory.WhenUnknown.REFUSE
        if self.is_clustered:
            when_unknown = store_directory.WhenUnknown.BEGIN_ANEW
        elif self.accepts_loss:
            when_unknown = store_directory.WhenUnknown.KEEP
        opened = store_directory.prepare(self.store_dir, self._disk, when_unknown=when_unknown)
        self.root, self._lock, self.identity = opened.root, opened.lock, opened.identity
        for path in opened.foreign:
            self.warn("a file that is none of this server's is left alone", path=path)
        for text in opened.faults:
            self.damages.on_found_at_start(text)
        if self.is_clustered:
            ownership.check_name(self)
        else:
            self.accepted_loss.begin()
        self.room = StorageRoom(
            self._disk,
            self.root,
            storage_max=self.storage_max,
            used=self.storage_bytes,
            unwritten=lambda: sum(h.store.unwritten_bytes for h in self.replicas if h.is_file),
        )
        self.memory_room = MemoryRoom(memory_max=self.memory_max, used=self.memory_bytes)
        self._log_thread = env.make_thread("log")
        self.block_thread = env.make_thread("block")
        self.wal, self.is_log_lost = ownership.open_log(self, self._log_thread, self._on_log_error)
        self.memory_log = MemoryLog(env.loop.call_soon)
        self.due_turns = DueTurns()
        self.rafts = Rafts(self)
        self.publish_routes.relay.begin(self.rafts.next_nonce())
        self._is_running = True
        self.wal.on_crowded = self.stragglers.look
        self.timers.again("stragglers", limits.STRAGGLER_CHECK_S, self.stragglers.look)
        tell_room = partial(self.room.tell, warn=self.warn, info=self.info)
        self.timers.again("room", limits.ROOM_CHECK_S, tell_room)
        tell_clock = partial(ClockWatch(env.clock).look, self.warn)
        self.timers.again("clock", limits.ROOM_CHECK_S, tell_clock)
        self.slowness.start()
        self.store_watch.start(self._lock)
        self.scrubber.start()
        self.damages.start()
        self.tails.begin()
        if not self.is_clustered:
            ownership.check_kind(self)
            self.meta_member.start()
            self.meta_member.when_ready(partial(self._meta_recovered, done))
            return
        assert self.peering.peers is not None, "a clustered node needs its peers first"
        self.removals.check_directory()
        ownership.check_kind(self)
        self._bootstrap = Bootstrap(
            name=self.server_name,
            identity=self.identity,
            expected_size=lambda: self._expected_size(),
            peers=self.peering.peers,
            random_id=lambda: self._disk.random_bytes(16).hex(),
            save=self.save_identity,
            on_decided=self._cluster_decided,
        )
        if self._bootstrap.is_decided:
            self.meta_member.start()
        else:
            self._look_at_bootstrap()
        self.trash.empty_all()
        self.timers.again("facts", limits.FACTS_EVERY_S, self.peering.tell_facts)
        self.timers.again("members", limits.PLACEMENT_EVERY_S, self.moves.look)
        self.heirs.begin()
        env.loop.call_soon(done, None)

    async def started(self) -> None:
        """`start`, awaited."""
        event, done, results = completion()
        self.start(done)
        await event.wait()
        if results[0] is not None:
            raise results[0]

    def save_identity(self) -> bool:
        """Make what this node knows of itself what the next start finds. False: that failed, and
        the node is at its end. From here on it logs nothing either, hence promises nothing: the
        next start finds no more than what goes with the identity of before."""
        try:
            store_directory.save_identity(self.root, self._disk, self.identity)
        except OSError as err:
            if not self._is_running:
                raise
            self.error("node.json can't be written", reason=str(err))
            self.wal.refuse(disk_error("writing node.json", self.root, err))
            self.give_up(err)
            return False
        return True

    def _meta_recovered(self, done: Callable[[BaseException | None], None]) -> None:
        group = self.meta_member.group
        if group is None or group.failure:
            reason = group.failure if group is not None else "not running"
            done(CorruptionError(f"meta group: {reason}"))
            return
        if self.accepts_loss:
            self.accepted_loss.settle(partial(self._open_streams, done))
        else:
            self._open_streams(done)

    def _open_streams(self, done: Callable[[BaseException | None], None]) -> None:
        self.meta_member.follow()
        if not self.accepts_loss:  # else some of them are known again by now, see there
            self.replicas.leftovers.look()
        assets = sorted(self.meta.streams_by_name.values(), key=lambda asset: asset.uid)
        known = {asset.uid for asset in assets}

        def ready() -> None:
            try:
                self.trash.take_orphans(known)
                self.trash.empty_all()
            except OSError as err:  # told, or whoever waits for this start waits for ever
                done(disk_error("looking for what is left", self.root, err))
            else:
                done(None)

        def opened() -> None:
            if self.accepts_loss:
                self.accepted_loss.finish(ready)
            else:
                ready()

        self.replicas.open_all(assets, opened)

    def stop(self, done: Callable[[], None], groups_left: Callable[[], None] | None = None) -> None:
        """Hand leaderships over, stop every group (each may take a last snapshot), then the log
        and the disks; then call `done`. Asked again meanwhile, both are told when it is done.

        `groups_left` is called before the snapshots, when clients have been told: connections may
        be closed from then on."""
        if groups_left is not None and (self._is_stopping or not self._is_running):
            groups_left()
        if not self._is_running:
            done()
            return
        self._stop_waiters.append(done)
        if self._is_stopping:
            return
        self._is_stopping = True
        self.timers.stop()
        self.scrubber.stop()
        HandOver(self, partial(self._stop_groups, groups_left)).begin()

    @property
    def is_running(self) -> bool:
        """True from when the log is open until the last file is closed."""
        return self._is_running

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    async def stopped(self, groups_left: Callable[[], None] | None = None) -> None:
        """`stop`, awaited."""
        event, done, _ = completion()
        self.stop(partial(done, None), groups_left)
        await event.wait()

    def _stop_groups(self, groups_left: Callable[[], None] | None) -> None:
        def meta_stopped() -> None:
            self.replicas.close_stores()
            self.wal.close()
            self.block_thread.close()
            self._log_thread.close()
            self._disk.unlock(self._lock)
            self._disk.reserve_files(0)
            self._is_running = False
            waiters, self._stop_waiters = self._stop_waiters, []
            for done in waiters:
                done()

        self.publish_routes.close()
        self.replicas.stop_all(lambda: self.meta_member.stop(meta_stopped))
        if groups_left is not None:
            loop = self.env.loop
            loop.call_soon(loop.call_soon, groups_left)  # behind the last turns

    # --- which cluster ----------------------------------------------------------------------

    def _look_at_bootstrap(self) -> None:
        assert self._bootstrap is not None
        if self._bootstrap.is_decided:
            return
        self._bootstrap.look()
        if not self._bootstrap.is_decided:
            self._tell_waiting(self._bootstrap.waits_for())
            self.timers.later("bootstrap", limits.BOOTSTRAP_RETRY_S, self._look_at_bootstrap)

    def _tell_waiting(self, what: str) -> None:
        """Say what the cluster waits for before it is founded: after a moment, and on a change."""
        self._bootstrap_looks += 1
        unreached = " ".join(self._unreached())
        if self._bootstrap_looks < limits.BOOTSTRAP_TOLD_LOOKS:
            return
        if f"{what} {unreached}" == self._told_waiting:
            return
        self._told_waiting = f"{what} {unreached}"
        facts = {"unreached": unreached} if unreached else {}
        self.warn(f"JetStream cluster is not founded yet: waiting for {what}", **facts)

    def _cluster_decided(self, is_uncertain: bool) -> None:
        self.info("cluster joined" if is_uncertain else "cluster founded", id=self.cluster_id)
        self.meta_member.start()
        self.peering.renew_hello([] if is_uncertain else self.identity["voters"])

    @property
    def cluster_id(self) -> str:
        return str(self.identity.get("cluster_id", ""))

    # --- groups and their leaders -----------------------------------------------------------

    @property
    def meta(self) -> MetaMachine:
        return self.meta_member.machine

    @property
    def failed(self) -> dict[str, str]:
        return self.replicas.failures.by_name()

    def propose_meta(self, command: list[Any], done: Done) -> None:
        self.meta_member.propose(command, done)

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
        group = self.meta_member.group
        return group is not None and group.is_ready

    def leader_of(self, uid: Uid) -> NodeId:
        return self.leaders.leader_of(uid) if self.is_clustered else self.server_name

    def removal_obstacle(self, name: NodeId) -> str:
        return self.removals.obstacle(name)

    def watch_leaders(self, on_change: Callable[[], None]) -> None:
        self.leaders.watch(on_change)

    def replica(self, uid: Uid) -> LocalStream | None:
        return self.replicas.get(uid)

    def monitor_of(self, uid: Uid) -> Monitor | None:
        """The monitor of this node's member of a group."""
        if uid == META_UID:
            return self.meta_member.monitor
        replica = self.replicas.get(uid)
        return replica.monitor if replica is not None else None

    def group_of(self, uid: Uid) -> Group | None:
        """This node's member of a group."""
        if uid == META_UID:
            return self.meta_member.group
        replica = self.replicas.get(uid)
        return replica.group if replica is not None else None

    def group_info(self, uid: Uid) -> dict[str, Any] | None:
        return group_info(self, uid)

    def step_down(self, uid: Uid, preferred: NodeId, done: Done) -> None:
        monitor = self.monitor_of(uid)
        if monitor is None:
            done(errors.CLUSTER_NOT_LEADER())
        else:
            monitor.post(inbox.StepDown(preferred, done))

    def wait_configured(
        self, uid: Uid, meta_index: int, done: Done, timeout_ms: int = 5000
    ) -> None:
        self.config_changes.wait(uid, meta_index, done, timeout_ms)

    def wait_for_requests(self, has_any: Callable[[], bool]) -> None:
        self.has_requests = has_any

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
        if not hello:
            return  # a server without JetStream: it is no member of anything
        assert self._bootstrap is not None
        self._bootstrap.check(node_id, hello)
        self.removals.check(node_id, hello)
        self.sightings.check(node_id, hello)
        self._bootstrap.on_peer_up(node_id, hello)
        self.peering.on_up(node_id, hello)

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

    def on_peer_down(self, node_id: NodeId) -> None:
        if self._bootstrap is not None:
            self._bootstrap.on_peer_down(node_id)
        self.peering.on_down(node_id)

    def on_raft(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None:
        monitor = self.monitor_of(uid)
        if monitor is not None:
            for message in messages:
                monitor.post(inbox.Step(sender, message))
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

    # --- streams, see ports.NodeHandle ------------------------------------------------------

    @property
    def topology_version(self) -> int:
        return self.catalog.topology_version

    def stream(self, name: str) -> Any:
        return self.catalog.stream(name)

    def streams(self) -> list[Any]:
        return self.catalog.streams()

    def streams_for(self, subject: bytes) -> tuple[Any, ...]:
        return self.catalog.streams_for(subject)

    def streams_under(self, prefix: bytes) -> tuple[Any, ...] | None:
        return self.catalog.streams_under(prefix)

    def is_short_of_files(self) -> bool:
        return bool(self._disk.is_short_of_files())

    def memory_bytes(self) -> int:
        return sum(h.machine.index.bytes for h in self.replicas if not h.is_file)

    def storage_bytes(self) -> int:
        return sum(h.machine.index.bytes for h in self.replicas if h.is_file)

    # --- faults, and the server's log -------------------------------------------------------

    def _on_log_error(self, err: BaseException) -> None:
        """The log failed: nothing can be promised any more, so every group stops (I10)."""
        if self.store_watch.is_gone():
            return  # which has stopped them all
        for handle in list(self.replicas):
            if handle.is_file:
                self.replicas.fail(handle.uid, handle.name, err)
        self.give_up(err)

    def store_is_gone(self, err: DiskError) -> None:
        """The store directory was removed, or another took its place. Nothing is acked from here
        on, and nothing is written by name: who finds half a directory would take it for this one.
        The process goes on, to say so; leaderships go to nodes that have their data."""
        self.wal.refuse(err)
        self._disk.abandon()
        self.timers.stop()
        self.scrubber.stop()
        self.error(
            "the store directory is gone: nothing is stored or acked here any more",
            reason=str(err),
            advice="bring it back (is its volume mounted?) and restart this server; without it "
            "the next start begins with nothing, in a cluster with what the others have",
        )
        self.replicas.end_all(err)
        self.meta_member.end(err)
        self.on_store_gone()

    def give_up(self, err: BaseException) -> None:
        """This node can't go on: whoever runs it stops it."""
        if self.store_watch.is_gone():
            return  # that is why, and known by now
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
