"""This node's member of the meta group: begun, followed, proposed to, begun anew, stopped.

What the group commits is done here at once: streams are opened, brought to another config, closed.
A member that is damaged, or fetched a peer's snapshot, is stopped and begun anew from what is on
disk then; its log and votes are kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.callbacks import ignore
from streamd.errors import CorruptionError, StreamdError
from streamd.machine import commands
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.node.groups import group as g
from streamd.node.groups import inbox
from streamd.node.groups.block_port import NoBlocks
from streamd.node.groups.group import Group
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.raft_members import GroupStart
from streamd.node.groups.snapshot_state import history_of, unwrap
from streamd.node.groups.snapshot_writers import MetaSnapshots
from streamd.node.ports import Done
from streamd.raft.membership import Membership
from streamd.store.blocks.quarantine import trash_of
from streamd.store.blocks.snapshots import SnapshotFile
from streamd.types import META_UID, HardState, Index, NodeId

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class MetaMember:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.group: Group | None = None
        self.monitor: Monitor | None = None  # None: it does not run
        self.is_fresh = False  # it has what was committed when this process began
        self._leader: NodeId = ""  # as the log was told
        if node.is_clustered:
            node.leaders.watch(self._on_leaders)

    @property
    def machine(self) -> MetaMachine:
        """Its state, also between its end and its new beginning."""
        if self.group is None:
            assert self._node.is_clustered, "the node has not started"
            return MetaMachine()  # which cluster this is is not decided: no streams are known
        machine: MetaMachine = self.group.machine
        return machine

    # --- the beginning ----------------------------------------------------------------------

    def start(self, *, is_damaged: bool = False) -> None:
        """Begin from what is on disk. Raises what reading it raises."""
        node = self._node
        directory = self._directory
        faults: list[str] = []
        try:
            snapshot = SnapshotFile.load(
                node.env.disk, directory, "meta", group=META_UID, on_void=faults.append
            )
        except CorruptionError as err:
            if not (node.is_clustered or node.accepts_loss):
                raise
            node.warn("meta snapshot set aside", reason=str(err))
            self._set_aside()
            snapshot, is_damaged = None, True
        members: Membership | None = None
        if snapshot is None:
            machine, start = MetaMachine(), GroupStart(META_UID)
        else:
            members, state = unwrap(snapshot.state)
            machine = MetaMachine.restore(state)
            start = GroupStart(
                META_UID,
                snapshot.index,
                snapshot.term,
                snapshot.chain,
                history=history_of(snapshot.state),
            )
        if self.group is None:
            self._tell_found(start.index, faults)
        voters = tuple(node.identity.get("voters", ())) or (node.server_name,)
        raft = node.rafts.make(
            start._replace(
                voters=voters,
                members=members,
                is_forgotten=node.amnesia.is_rejoined,
                is_damaged=is_damaged,
            )
        )
        node.amnesia.meta_begins(raft)
        group = Group(
            uid=META_UID, raft=raft, machine=machine, blocks=NoBlocks(), snapshot_index=start.index
        )
        group.are_events_for_all = node.is_clustered
        self.group = group
        writer = MetaSnapshots(
            node.env.disk, directory, node.block_thread, is_clustered=node.is_clustered
        )
        tail_log = node.tails.log_of(META_UID) if node.is_clustered else None
        monitor = Monitor(
            group,
            log=tail_log or node.wal,
            clock=node.env.clock,
            snapshot_writer=writer,
            on_failed=self.on_failed,
            loop=node.env.loop,
            send=node.peering.send,
            on_turn=self._on_turn,
            due=node.due_turns,
        )
        if tail_log is not None:
            tail_log.follow(monitor)
        self.monitor = monitor
        self.is_fresh = False
        writer.on_error = lambda err: monitor.post(inbox.Failed(err))
        monitor.post(inbox.Tick())
        if node.is_clustered:
            # What is known to be committed is applied before any stream is opened: one of them may
            # be deleted, its log gone, and must not come back as a new and empty one.
            while monitor.is_awake():
                monitor.step()
            self.follow()
            node.peering.introduce(monitor, raft.members.members())
            node.replicas.reconcile()
            node.removals.look_at_members()
        if not monitor.stopped.is_set():
            node.env.spawn(monitor)
            if node.is_clustered:
                self._freshen()

    def _tell_found(self, index: Index, faults: list[str]) -> None:
        """Have it told what this process found damaged or missing at its start."""
        node = self._node
        log = node.wal.group(META_UID)
        if not faults and log is not None and index < log.first_index - 1:
            faults.append(
                f"{self._directory}: a snapshot is missing: the newest is of entry {index}, the "
                f"log begins with {log.first_index}"
            )
        for text in faults:
            node.damages.on_found_at_start(text)

    @property
    def _directory(self) -> str:
        return os.path.join(self._node.root, "meta")

    def _set_aside(self) -> None:
        node = self._node
        disk = node.env.disk
        if disk.exists(self._directory):
            trash = trash_of(disk, node.root)
            disk.replace(
                self._directory, os.path.join(trash, f"meta-damaged-{node.env.clock.now_ns()}")
            )
            disk.sync_dir(trash)
        disk.mkdir(self._directory)
        disk.sync_dir(node.root)

    def when_ready(self, done: Callable[[], None]) -> None:
        """Call `done` when it leads, or has failed."""
        assert self.group is not None
        self.group.on_ready.append(done)

    def _freshen(self) -> None:
        """Ask, until a majority says so, how far the meta log went when this process began."""
        monitor = self.monitor
        if self.is_fresh or not self._node.is_running or monitor is None:
            return
        monitor.post(inbox.ReadBarrier(self._is_fresh_now, ignore))
        self._node.env.loop.call_later(limits.META_FRESH_RETRY_MS / 1000, self._freshen)

    def _is_fresh_now(self) -> None:
        if not self.is_fresh and self._node.is_running:
            self.is_fresh = True
            self._node.replicas.reconcile()

    # --- what it commits --------------------------------------------------------------------

    def follow(self) -> None:
        """From here on, have done what is committed."""
        assert self.group is not None
        self.group.on_events = self._on_events

    def _on_events(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        node = self._node
        for kind, fields in events:
            if kind == "server_removed":
                node.removals.on_removed(fields["server"])
                continue
            if kind == "loss_accepted":
                node.warn(
                    "the meta group goes on without the end of its log: what that said of streams "
                    "and servers is lost"
                )
                node.replicas.reconcile()
                continue
            asset: StreamAsset = fields["asset"]
            node.replicas.reconcile_one(asset.uid, asset.name)
        node.catalog.changed()

    def _on_leaders(self) -> None:
        """Have the log name each new leader, in nats-server's words: tools wait for them."""
        node = self._node
        if node.meta_leader == self._leader or node.is_stopping:
            return
        self._leader = leader = node.meta_leader
        if leader == node.server_name:
            node.info("Self is new JetStream cluster metadata leader")
            if self.group is not None:
                node.heirs.tell_election(self.group.raft, group=META_UID)
        elif leader:
            node.info(f"JetStream cluster new metadata leader: {leader}/{node.cluster_name}")
        else:
            node.info("JetStream cluster no metadata leader")

    def _on_turn(self, turn: g.Turn) -> None:
        node = self._node
        group = self.group
        if group is None or not node.is_running:
            return
        if turn.has_role_changed:
            node.leaders.note_own(META_UID, group.raft.term, is_ready=group.is_ready)
            node.peering.announce(META_UID)
            self._use_up(group)
        if turn.has_members_news:
            node.moves.carry_on(META_UID)
        node.peering.follow(META_UID, turn)
        if group.raft.is_uncertain:
            return
        # What this node may have forgotten is behind it: the leader appended that entry after
        # it had heard of the loss.
        node.amnesia.meta_certified(group.raft.certified_index or group.raft.last_index)

    def _use_up(self, group: Group) -> None:
        """As leader: have entries that are not to number anything behind us."""
        used_to = group.machine.used_to
        if group.is_ready and self.monitor is not None:
            nothing = [commands.ACCEPT_LOSS, group.at_ns, used_to, used_to]
            for _ in range(used_to - group.raft.last_index):
                self.monitor.post(inbox.Propose(nothing, None, False))

    def remember_commit(self) -> None:
        """Have the log say how far the group is committed, before what is appended next."""
        group = self.group
        if self._node.is_clustered and group is not None:
            raft = group.raft
            state = HardState(raft.term, raft.vote, group.machine.applied, raft.is_uncertain)
            self._node.wal.append([(META_UID, [], state, 0)], ignore)

    # --- proposing --------------------------------------------------------------------------

    def propose(self, command: list[Any], done: Done) -> None:
        """See ports.NodeHandle.propose_meta. `done` waits for the stream's group to follow."""
        node = self._node
        if self.monitor is None:
            done(errors.Unserved())
            return
        kind = command[0]
        deleted = 0
        if kind == commands.DELETE_STREAM:
            asset = self.machine.streams_by_name.get(command[2])
            deleted = asset.uid if asset is not None else 0

        def applied(result: Any) -> None:
            if isinstance(result, errors.JsError):
                done(result)
            elif kind in (commands.CREATE_STREAM, commands.UPDATE_STREAM):
                node.wait_configured(
                    result.uid,
                    result.update_index,
                    lambda outcome: done(
                        outcome if isinstance(outcome, errors.JsError) else result
                    ),
                )
            elif kind == commands.DELETE_STREAM:
                node.replicas.when_closed(deleted, lambda: done(True))
            else:
                done(result)

        self.monitor.post(inbox.Propose(command, applied, True))

    def propose_anywhere(self, command: list[Any]) -> None:
        """Propose a command of the node's own to whoever leads the group, if anybody."""
        node = self._node
        if node.is_meta_leader and self.monitor is not None:
            self.monitor.post(inbox.Propose(command, None, True))
        elif node.meta_leader and node.peers is not None:
            node.peers.note(node.meta_leader, "meta", [command])

    # --- the end, and beginning anew --------------------------------------------------------

    def end(self, err: BaseException) -> None:
        """The node has lost what the group relies on: it stops, and others lead."""
        if self.group is not None and self.monitor is not None:
            self._node.leaders.note_own(META_UID, self.group.raft.term, is_ready=False)
            if self._node.is_clustered:
                self._node.peering.announce(META_UID)
            self.monitor.post(inbox.Failed(err))

    def stop(self, done: Callable[[], None]) -> None:
        """The node stops; call `done` when the group has."""
        if self.monitor is None:
            done()
        else:
            self.monitor.when_stopped(done)

    def close(self, done: Callable[[], None]) -> None:
        """Stop the group, to be begun anew by `open_again`; its log and votes are kept."""
        node = self._node
        monitor, self.monitor = self.monitor, None
        if monitor is None or self.group is None:
            done()
            return
        node.leaders.note_own(META_UID, self.group.raft.term, is_ready=False)
        node.peering.announce(META_UID)
        monitor.when_stopped(lambda: node.wal.append([], done))

    def open_again(self) -> None:
        """Begin the group from what is on disk now."""
        if self.monitor is None and not self._node.is_stopping:
            self._start_again(self.start)

    def restart_damaged(self) -> None:
        """What this node believes is not what the majority believes: begin from theirs."""

        def set_aside_and_start() -> None:
            self._set_aside()
            if not self._node.is_stopping:
                self.start(is_damaged=True)

        self.close(lambda: self._start_again(set_aside_and_start))

    def _start_again(self, start: Callable[[], None]) -> None:
        """`start` the group of a node that runs. What would end a start ends the node."""
        try:
            start()
        except (OSError, StreamdError) as err:
            self._node.error("meta group can't begin anew", reason=str(err))
            self._node.give_up(err)

    def on_failed(self, group: Group, err: BaseException) -> None:
        """The group runs no more: it begins from what peers have, or the node ends."""
        for callback in group.on_ready:
            callback()
        self._node.error("meta group stopped", reason=str(err))
        if self._node.is_clustered and isinstance(err, CorruptionError):
            self.restart_damaged()
        else:
            self._node.give_up(err)
