"""`LocalNode`: one node: its parts are made and wired here, started and stopped in order.

Start order: store directory, log (one scan), meta group, then every stream it knows. Stop order
is the reverse. The node never deletes by inference: a stream's directory leaves `streams/` only
after the meta group committed the deletion of that very uid, and by a rename into `trash/`.

Alone, a node is a cluster of one. With `cluster_name` it is one of several: `attach_peers` gives
it their links, `bootstrap` decides which cluster it is, and every group may have peers.

    NodeOptions -> store_opening -> NodeContext -> wiring -> NodeParts -> start
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import ConfigError, CorruptionError, DiskError, JsError
from streamd.machine.commands import Command
from streamd.machine.meta import MetaMachine
from streamd.node.clock import ClockWatch
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.peer_requests import PeerRequests
from streamd.node.cluster.placement import ClusterView
from streamd.node.cluster.server_removal import check_directory
from streamd.node.context import LogSink, NodeHooks, NodeLife, NodeLog
from streamd.node.env import Completion, NodeEnv, NodeThread, SystemEnv
from streamd.node.groups import inbox
from streamd.node.groups.leadership_transfer import LeadershipTransfer
from streamd.node.identity import ownership
from streamd.node.identity.bootstrap import Bootstrap, BootstrapRetry
from streamd.node.meta_group.catalog import Catalog, Catalogs
from streamd.node.node_options import NodeOptions
from streamd.node.ports import (
    Answer,
    Done,
    GroupInfo,
    NodeHealth,
    OnMetaEvent,
    OnStreamEvent,
    Peers,
    StreamHandle,
    Wires,
)
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.store_opening import StoreOpening
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.node.wiring import Base, NodeParts, wire
from streamd.protocol.node_hello import Facts, Hello
from streamd.raft.messages import Message
from streamd.store.disk import disk_error
from streamd.types import ACCOUNT, META_UID, NodeId, StreamKey, Uid


class Links(NamedTuple):
    """Links to the other nodes, and how many there should be."""

    peers: Peers | None = None
    expected_size: Callable[[], int] = lambda: 1
    unreached: Callable[[], list[str]] = list


class LocalNode:
    """Implements `ports.NodeHandle` and `ports.PeerHandler`.

    `wires`: core NATS of the account `$G`; `wires_of`: of any account. Without an `env`, construct
    it inside a running event loop. `on_fatal(err)`: the node can't go
    on, and whoever runs it stops it.
    """

    def __init__(
        self,
        options: NodeOptions,
        wires: Wires,
        *,
        wires_of: Callable[[str], Wires] | None = None,
        env: NodeEnv | None = None,
        log: LogSink | None = None,
        on_fatal: Callable[[BaseException], None] = ignore,
    ) -> None:
        self._options = options
        self._wires_of = wires_of or (lambda _account: wires)
        self._env: NodeEnv = env or SystemEnv()
        self._log = NodeLog(log)
        self._on_fatal = on_fatal
        self._life = NodeLife()
        self.hooks = NodeHooks()
        self.groups = LocalGroups()
        self.leaders = Leaders(
            options.server_name,
            self._env.clock.monotonic_ms,
            is_clustered=options.is_clustered,
        )
        self.catalogs = Catalogs(
            lambda pattern, account: self.groups.meta.capturing(pattern, account)
        )
        self._requests = PeerRequests(self._log)
        self._links = Links()
        self._log_thread: NodeThread
        self._opening = StoreOpening(
            options, self._env, self.groups, self._log, self._life, self.hooks
        )
        self.parts: NodeParts
        self._stop_waiters: list[Callable[[], None]] = []

    # --- start ------------------------------------------------------------------------------

    def attach_peers(
        self,
        peers: Peers,
        expected_size: Callable[[], int],
        unreached: Callable[[], list[str]] = list,
    ) -> None:
        """Join the links to other nodes; before `start`. `expected_size`: nodes with streams that
        are configured; `unreached`: those of the configured without a link."""
        self._links = Links(peers, expected_size, unreached)

    def start(self, done: Callable[[BaseException | None], None]) -> None:
        """Recover everything on disk. Raises ConfigError, CorruptionError, DiskError.

        `done` is called when every stream that can be served is served (those that can't are in
        `failed`); in a cluster, as soon as this node can take part.
        """
        store = self._opening.open(on_log_error=self._on_log_error, on_put_back=self._on_put_back)
        self._log_thread = store.log_thread
        self.parts = parts = wire(self._base(), store)
        self.leaders.watch(self.hooks.on_leaders)
        context = parts.context
        self._life.is_running = True
        self._life.give_up = self._give_up
        context.identity.on_failed = self._on_identity_failed
        parts.cluster.news.on_changed = self._on_leader_news
        self._start_watches(parts)
        if context.is_clustered:
            self._start_clustered(parts, done)
            return
        ownership.check_kind(context.identity, context.wal, context.root, is_clustered=False)
        parts.meta.member.start()
        parts.meta.member.when_ready(partial(self._meta_recovered, done))

    def _base(self) -> Base:
        return Base(
            self.groups,
            self.leaders,
            self.catalogs,
            self._requests,
            self._wires_of,
            self._links.peers,
            self._opening.lock,
            view=partial(ClusterView.seen_by, self),
            on_store_gone=self._on_store_gone,
        )

    def _start_watches(self, parts: NodeParts) -> None:
        """Start what watches the log, the disk and the files, again and again."""
        context, log = parts.context, self._log
        timers = context.timers
        context.wal.on_crowded = parts.log_retention.check
        timers.again("stragglers", limits.STRAGGLER_CHECK_S, parts.log_retention.check)
        report_room = partial(parts.quotas.storage.report, warn=log.warn, info=log.info)
        timers.again("room", limits.ROOM_CHECK_S, report_room)
        check_clock = partial(ClockWatch(context.env.clock).check, log.warn)
        timers.again("clock", limits.ROOM_CHECK_S, check_clock)
        parts.stall.start()
        parts.integrity.store_watch.start()
        parts.integrity.scrubber.start()
        parts.integrity.corruption.start()
        parts.integrity.discarded.start()

    def _start_clustered(
        self, parts: NodeParts, done: Callable[[BaseException | None], None]
    ) -> None:
        """Start what a node of a cluster does besides, and let it found or join one."""
        context, links, cluster = parts.context, self._links, parts.cluster
        assert links.peers is not None, "a clustered node needs its peers first"
        check_directory(context.identity, context.name, context.root)
        ownership.check_kind(context.identity, context.wal, context.root, is_clustered=True)
        bootstrap = Bootstrap(
            name=context.name,
            identity=context.identity.facts,
            expected_size=links.expected_size,
            peers=links.peers,
            random_id=lambda: context.env.disk.random_bytes(16).hex(),
            save=context.identity.save,
            on_decided=self._on_cluster_decided,
        )
        self._requests.calls["bootstrap"] = bootstrap.serve
        cluster.peering.judge_by(bootstrap, cluster.removal)
        if bootstrap.is_decided:
            parts.meta.member.start()
        else:
            BootstrapRetry(context, bootstrap, links.unreached).check()
        parts.replicas.trash.empty_all()
        context.timers.again("facts", limits.FACTS_EVERY_S, cluster.facts.send_all)
        cluster.storage.start()
        context.timers.again("members", limits.PLACEMENT_EVERY_S, self._check_members)
        parts.recovery.forced_election.start()
        context.env.loop.call_soon(done, None)

    async def started(self) -> None:
        """`start`, awaited."""
        completion: Completion[BaseException | None] = Completion()
        self.start(completion.done)
        err = await completion.wait()
        if err is not None:
            raise err

    def _meta_recovered(self, done: Callable[[BaseException | None], None]) -> None:
        group = self.groups.meta_group
        if group is None or group.failure:
            reason = group.failure if group is not None else "not running"
            done(CorruptionError(f"meta group: {reason}"))
            return
        open_streams = partial(self._open_streams, done)
        if self.parts.context.accepts_loss:
            self.parts.recovery.quorum_loss.adopt_streams(open_streams)
        else:
            open_streams()

    def _open_streams(self, done: Callable[[BaseException | None], None]) -> None:
        parts = self.parts
        accepts_loss, trash = parts.context.accepts_loss, parts.replicas.trash
        parts.meta.member.follow()
        if not accepts_loss:  # else some of them are known again by now, see there
            parts.replicas.orphans.check()
        assets = sorted(self.meta.streams_by_uid.values(), key=lambda asset: asset.uid)
        known = {asset.uid for asset in assets}

        def ready() -> None:
            try:
                trash.take_orphans(known)
                trash.empty_all()
            except OSError as err:  # told, or the caller of this start waits for ever
                done(disk_error("looking for what is left", parts.context.root, err))
            else:
                done(None)

        def opened() -> None:
            if accepts_loss:
                parts.recovery.quorum_loss.finish(ready)
            else:
                ready()

        parts.replicas.replicas.open_all(assets, opened)

    def _on_cluster_decided(self, is_uncertain: bool) -> None:
        identity = self.parts.context.identity
        text = "cluster joined" if is_uncertain else "cluster formed"
        self._log.info(text, id=identity.cluster_id)
        self.parts.meta.member.start()
        bootstrap_members = [] if is_uncertain else list(identity.voters)
        self.parts.cluster.peering.renew_hello(bootstrap_members)

    # --- stop -------------------------------------------------------------------------------

    def stop(self, done: Callable[[], None], groups_left: Callable[[], None] | None = None) -> None:
        """Hand leaderships over, stop every group (each may take a last snapshot), then the log
        and the disks; then call `done`. Asked again meanwhile, both are told when it is done.

        `groups_left` is called before the snapshots, when clients have been told: connections may
        be closed from then on."""
        life = self._life
        if groups_left is not None and (life.is_stopping or not life.is_running):
            groups_left()
        if not life.is_running:
            done()
            return
        self._stop_waiters.append(done)
        if life.is_stopping:
            return
        life.is_stopping = True
        parts = self.parts
        parts.context.timers.stop()
        parts.integrity.scrubber.stop()
        LeadershipTransfer(
            parts.context,
            self.groups,
            self.leaders,
            parts.cluster.reconfiguration,
            parts.cluster.forwarding,
            partial(self._stop_groups, groups_left),
        ).begin()

    async def stopped(self, groups_left: Callable[[], None] | None = None) -> None:
        """`stop`, awaited."""
        completion: Completion[None] = Completion()
        self.stop(partial(completion.done, None), groups_left)
        await completion.wait()

    def _stop_groups(self, groups_left: Callable[[], None] | None) -> None:
        parts = self.parts
        parts.cluster.forwarding.close()
        parts.replicas.replicas.stop_all(lambda: parts.meta.member.stop(self._close))
        if groups_left is not None:
            loop = self._env.loop
            loop.call_soon(loop.call_soon, groups_left)  # behind the last turns

    def _close(self) -> None:
        """Close log, threads and directory, in this order: all groups have stopped."""
        context, disk = self.parts.context, self._env.disk
        self.parts.replicas.replicas.close_stores()
        context.wal.close()
        context.block_thread.close()
        self._log_thread.close()
        disk.unlock(self._opening.lock)
        disk.reserve_files(0)
        self._life.is_running = False
        waiters, self._stop_waiters = self._stop_waiters, []
        for done in waiters:
            done()

    @property
    def is_running(self) -> bool:
        """True from when the log is open until the last file is closed."""
        return self._life.is_running

    @property
    def is_stopping(self) -> bool:
        return self._life.is_stopping

    # --- ports.NodeHandle: the node ---------------------------------------------------------

    @property
    def server_id(self) -> str:
        return self._options.server_id

    @property
    def server_name(self) -> NodeId:
        return self._options.server_name

    @property
    def store_dir(self) -> str:
        return self._options.store_dir

    @property
    def memory_max(self) -> int:
        return self._options.memory_max

    @property
    def storage_max(self) -> int:
        return self._options.storage_max

    @property
    def is_clustered(self) -> bool:
        return self._options.is_clustered

    @property
    def cluster_name(self) -> str:
        return self._options.cluster_name

    @property
    def health(self) -> NodeHealth:
        return self.parts.health

    def is_short_of_files(self) -> bool:
        return bool(self._env.disk.is_short_of_files())

    def used_bytes(self, account: str, replicas: int = 0) -> tuple[int, int]:
        return self.groups.used_bytes(account, replicas)

    def memory_bytes(self) -> int:
        return self.groups.stored_bytes(is_file=False)

    def storage_bytes(self) -> int:
        return self.groups.stored_bytes(is_file=True)

    def wait_for_requests(self, has_any: Callable[[], bool]) -> None:
        self.hooks.has_requests = has_any

    # --- ports.NodeHandle: groups and their leaders -----------------------------------------

    @property
    def meta(self) -> MetaMachine:
        return self.groups.meta

    @property
    def failed(self) -> dict[StreamKey, str]:
        return self.parts.integrity.failed.by_key()

    @property
    def peers(self) -> Peers | None:
        return self._links.peers

    @property
    def node_facts(self) -> dict[NodeId, Facts]:
        return self.parts.cluster.facts.by_node

    @property
    def meta_leader(self) -> NodeId:
        return self.leaders.leader_of(META_UID)

    @property
    def is_meta_leader(self) -> bool:
        return self.groups.is_meta_leader

    def leader_of(self, uid: Uid) -> NodeId:
        return self.leaders.leader_of(uid)

    def watch_events(self, on_stream: OnStreamEvent, on_meta: OnMetaEvent) -> None:
        self.hooks.on_stream_event, self.hooks.on_meta_event = on_stream, on_meta

    def watch_leaders(self, on_change: Callable[[], None]) -> None:
        self.hooks.leader_watchers.append(on_change)

    def propose_meta(self, command: Command, done: Done) -> None:
        self.parts.meta.proposals.propose(command, done)

    def rescue_meta(self, quorum: int, done: Done) -> None:
        def rescued(outcome: object) -> None:
            if not isinstance(outcome, JsError):
                text = "fewer servers than a majority may elect the meta leader, for five minutes"
                self._log.warn(text, before=outcome, now=quorum)
            done(outcome)

        self.parts.meta.proposals.rescue(quorum, rescued)

    def removal_obstacle(self, name: NodeId) -> str:
        return self.parts.cluster.removal.obstacle(name)

    def replica(self, uid: Uid) -> LocalStream | None:
        return self.groups.get(uid)

    def waiting_count(self, uid: Uid) -> int | None:
        monitor = self.groups.monitor_of(uid)
        return monitor.waiting_count if monitor is not None else None

    def group_info(self, uid: Uid) -> GroupInfo | None:
        return self.parts.infos.of(uid, self.parts.replicas.roles.led_since_ns(uid))

    def block_bytes(self, uid: Uid) -> tuple[int, int] | None:
        replica = self.groups.replicas.get(uid)
        files = None if replica is None else replica.files
        return None if files is None else files.stored_bytes

    def step_down(self, uid: Uid, preferred: NodeId, done: Done) -> None:
        self.groups.step_down(uid, preferred, done)

    def wait_configured(
        self, uid: Uid, meta_index: int, done: Done, timeout_ms: int = 5000
    ) -> None:
        self.parts.cluster.propagation.wait(uid, meta_index, done, timeout_ms)

    # --- ports.NodeHandle: streams ----------------------------------------------------------

    def account(self, name: str) -> Catalog:
        return self.catalogs.of(name)

    def stream(self, name: str, account: str = ACCOUNT) -> StreamHandle | None:
        """Return the stream of that name in an account; None: there is none."""
        return self.catalogs.of(account).stream(name)

    def streams(self) -> Sequence[StreamHandle]:
        return self.catalogs.streams()

    def watch_streams(self, on_change: Callable[[], None]) -> None:
        self.catalogs.watch(on_change)

    # --- ports.PeerHandler ------------------------------------------------------------------

    def on_call_prefix(self, prefix: str, serve: Callable[..., None]) -> None:
        self._requests.call_prefixes[prefix] = serve

    def on_note_prefix(self, prefix: str, take: Callable[..., None]) -> None:
        self._requests.note_prefixes[prefix] = take

    def hello(self) -> Hello:
        return self.parts.cluster.peering.hello()

    def on_peer_up(self, node_id: NodeId, hello: Hello) -> None:
        if not self._life.is_running:
            raise ConfigError("this node has not started")
        self.parts.cluster.peering.on_peer_up(node_id, hello)

    def on_peer_down(self, node_id: NodeId) -> None:
        self.parts.cluster.peering.on_peer_down(node_id)

    def on_raft(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None:
        monitor = self.groups.monitor_of(uid)
        if monitor is not None:
            for message in messages:
                monitor.post(inbox.Step(sender, message))
        else:
            self.parts.replicas.opener.hold(sender, uid, messages)

    def on_call(self, sender: NodeId, method: str, args: list[object], answer: Answer) -> None:
        self._requests.on_call(sender, method, args, answer)

    def on_note(self, sender: NodeId, kind: str, args: list[object]) -> None:
        self._requests.on_note(sender, kind, args)

    # --- membership -------------------------------------------------------------------------

    def _on_leader_news(self, uid: Uid) -> None:
        """Follow another node's word on the leader of a group."""
        if uid == META_UID:
            self._check_members()
        else:
            self.parts.cluster.propagation.resolve(uid)

    def _check_members(self) -> None:
        """Carry on with changes of membership that are not finished."""
        cluster = self.parts.cluster
        self.parts.replicas.removal.check()
        cluster.reconfiguration.carry_on(META_UID)
        if self.groups.is_meta_leader:
            cluster.replacement.check()
        cluster.reconfiguration.check_all()

    # --- faults -----------------------------------------------------------------------------

    def _on_log_error(self, err: BaseException) -> None:
        """Stop every group with a log: the log failed, so nothing can be promised (I10)."""
        if self.parts.integrity.store_watch.is_gone():
            return  # which has stopped them all
        for replica in self.groups:
            if replica.is_file:
                self.parts.replicas.replicas.fail(replica.uid, replica.key, err)
        self._give_up(err)

    def _on_identity_failed(self, err: OSError) -> None:
        """End a node that can't save what it knows of itself. From here on it logs nothing either,
        hence promises nothing: the next start finds no more than what goes with the identity of
        before."""
        if not self._life.is_running:
            raise err
        context = self.parts.context
        self._log.error("node.json can't be written", reason=str(err))
        context.wal.refuse(disk_error("writing node.json", context.root, err))
        self._give_up(err)

    def _on_put_back(self, err: DiskError) -> None:
        """End a node whose data is an older copy: it promises nothing before it starts again."""
        self.parts.context.wal.refuse(err)
        self._give_up(err)

    def _on_store_gone(self, err: DiskError) -> None:
        """End every group: the store directory was removed, or another took its place.

        Nothing is acked from here on, and nothing is written by name: a start that finds half a
        directory would take it for this one. The process goes on, to say so; leaderships go to
        nodes that have their data.
        """
        parts = self.parts
        parts.context.wal.refuse(err)
        self._env.disk.abandon()
        parts.context.timers.stop()
        parts.integrity.scrubber.stop()
        self._log.error(
            "the store directory is gone: nothing is stored or acked here any more",
            reason=str(err),
            advice="bring the directory back (is its volume mounted?) and restart this server; a "
            "start without the directory begins empty, and in a cluster fetches the streams from "
            "the other servers",
        )
        parts.replicas.replicas.end_all(err)
        parts.meta.member.end(err)
        self.hooks.on_store_gone()

    def _give_up(self, err: BaseException) -> None:
        """Tell the process of this node that it can't go on."""
        if not self.parts.integrity.store_watch.is_gone():  # else that is why, and known by now
            self._on_fatal(err)
