"""`MetaMember`: this node's member of the meta group: begun, stopped, and begun anew.

A member that is damaged, or fetched a peer's snapshot, is stopped and begun anew from what is on
disk then; its log and votes are kept. What its turns and its commits lead to: meta_turns,
meta_events.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import CorruptionError, StreamdError
from streamd.machine.meta import MetaMachine
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.block_port import NoBlocks
from streamd.node.groups.group import Group, MetaGroup
from streamd.node.groups.raft_members import GroupStart, RaftMembers
from streamd.node.groups.snapshot_state import history_of, unwrap
from streamd.node.groups.snapshot_writers import MetaSnapshots
from streamd.node.identity.amnesia import Amnesia
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.meta_group.meta_events import MetaEvents
from streamd.node.meta_group.meta_turns import MetaTurns
from streamd.node.replicas.group_runner import GroupRunner
from streamd.node.replicas.local_groups import LocalGroups
from streamd.store.blocks.quarantine import trash_of
from streamd.store.blocks.snapshots import SnapshotFile
from streamd.types import META_UID, Index


class _Loaded(NamedTuple):
    """State of the group as its newest snapshot has it."""

    machine: MetaMachine
    start: GroupStart


class MetaMember:
    """Life of one node's member. Its group and monitor stand in `LocalGroups` for all to see."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        rafts: RaftMembers,
        runner: GroupRunner,
        amnesia: Amnesia,
        damage_log: DamageLog,
        events: MetaEvents,
        turns: MetaTurns,
    ) -> None:
        self._context = context
        self._groups = groups
        self._rafts = rafts
        self._runner = runner
        self._amnesia = amnesia
        self._damage_log = damage_log
        self._events = events
        self._turns = turns
        self._directory = os.path.join(context.root, "meta")

    # --- the beginning ----------------------------------------------------------------------

    def start(self, *, is_damaged: bool = False) -> None:
        """Begin from what is on disk. Raises what reading it raises."""
        context, groups = self._context, self._groups
        faults: list[str] = []
        loaded = self._load(faults)
        if loaded is None:
            self._set_aside()
            loaded, is_damaged = _Loaded(MetaMachine(), GroupStart(META_UID)), True
        machine, start = loaded
        if groups.meta_group is None:
            self._tell_found(start.index, faults)
        raft = self._rafts.make(
            start._replace(
                voters=context.identity.voters or (context.name,),
                is_forgotten=self._amnesia.is_rejoined,
                is_damaged=is_damaged,
            )
        )
        self._amnesia.begin_meta(raft)
        group = groups.meta_group = MetaGroup(
            uid=META_UID, raft=raft, machine=machine, blocks=NoBlocks(), snapshot_index=start.index
        )
        group.are_events_for_all = context.is_clustered
        writer = MetaSnapshots(
            context.env.disk,
            self._directory,
            context.block_thread,
            is_clustered=context.is_clustered,
        )
        monitor = groups.meta_monitor = self._runner.monitor(
            group, writer, on_failed=self._on_failed, on_turn=self._turns.on_turn
        )
        groups.is_meta_fresh = False
        writer.on_error = lambda err: monitor.post(inbox.Failed(err))
        monitor.post(inbox.Tick())
        if context.is_clustered:
            # What is known to be committed is applied before any stream is opened: one of them may
            # be deleted, its log gone, and must not come back as a new and empty one.
            while monitor.is_awake():
                monitor.step()
            self.follow()
            self._events.on_begun(monitor, raft.members.members())
        if not monitor.stopped.is_set():
            self._runner.run(monitor)
            if context.is_clustered:
                self._freshen()

    def _load(self, faults: list[str]) -> _Loaded | None:
        """Load the newest snapshot; None: it is damaged, and others have it or the loss is
        accepted."""
        context = self._context
        try:
            snapshot = SnapshotFile.load(
                context.env.disk, self._directory, "meta", group=META_UID, on_void=faults.append
            )
        except CorruptionError as err:
            if not (context.is_clustered or context.accepts_loss):
                raise
            context.log.warn("meta snapshot set aside", reason=str(err))
            return None
        if snapshot is None:
            return _Loaded(MetaMachine(), GroupStart(META_UID))
        members, state = unwrap(snapshot.state)
        start = GroupStart(
            META_UID,
            snapshot.index,
            snapshot.term,
            snapshot.chain,
            members=members,
            history=history_of(snapshot.state),
        )
        return _Loaded(MetaMachine.restore(state), start)

    def _tell_found(self, index: Index, faults: list[str]) -> None:
        """Report what this process found damaged or missing at its start."""
        log = self._context.wal.group(META_UID)
        if not faults and log is not None and index < log.first_index - 1:
            faults.append(
                f"{self._directory}: a snapshot is missing: the newest is of entry {index}, the "
                f"log begins with {log.first_index}"
            )
        for text in faults:
            self._damage_log.found_at_start(text)

    def _set_aside(self) -> None:
        """Move the directory of the group into trash, and make an empty one."""
        context = self._context
        disk, directory = context.env.disk, self._directory
        if disk.exists(directory):
            trash = trash_of(disk, context.root)
            name = f"meta-damaged-{context.env.clock.now_ns()}"
            disk.replace(directory, os.path.join(trash, name))
            disk.sync_dir(trash)
        disk.mkdir(directory)
        disk.sync_dir(context.root)

    def when_ready(self, done: Callable[[], None]) -> None:
        """Call `done` when it leads, or has failed."""
        assert self._groups.meta_group is not None
        self._groups.meta_group.shell.on_ready.append(done)

    def follow(self) -> None:
        """Carry out, from here on, everything that is committed."""
        assert self._groups.meta_group is not None
        self._groups.meta_group.shell.on_events = self._events.on_events

    def _freshen(self) -> None:
        """Ask, until a majority says so, how far the meta log went when this process began."""
        context, monitor = self._context, self._groups.meta_monitor
        if self._groups.is_meta_fresh or not context.life.is_running or monitor is None:
            return
        monitor.post(inbox.ReadBarrier(self._on_fresh, ignore))
        context.env.loop.call_later(limits.META_FRESH_RETRY_MS / 1000, self._freshen)

    def _on_fresh(self) -> None:
        if not self._groups.is_meta_fresh and self._context.life.is_running:
            self._groups.is_meta_fresh = True
            self._events.on_fresh()

    # --- the end, and beginning anew --------------------------------------------------------

    def end(self, err: BaseException) -> None:
        """Stop the group because what it relies on is gone: others lead."""
        group, monitor = self._groups.meta_group, self._groups.meta_monitor
        if group is not None and monitor is not None:
            self._turns.on_withdrawn(group)
            monitor.post(inbox.Failed(err))

    def stop(self, done: Callable[[], None]) -> None:
        """Call `done` when the group of a node that stops has stopped."""
        monitor = self._groups.meta_monitor
        if monitor is None:
            done()
        else:
            monitor.when_stopped(done)

    def close(self, done: Callable[[], None]) -> None:
        """Stop the group, to be begun anew by `open_again`; its log and votes are kept."""
        groups = self._groups
        monitor, groups.meta_monitor = groups.meta_monitor, None
        if monitor is None or groups.meta_group is None:
            done()
            return
        self._turns.on_withdrawn(groups.meta_group)
        monitor.when_stopped(lambda: self._context.wal.append([], done))

    def open_again(self) -> None:
        """Begin the group from what is on disk now."""
        if self._groups.meta_monitor is None and not self._context.life.is_stopping:
            self._start_again(self.start)

    def restart_damaged(self) -> None:
        """Begin from what the majority has: what this node believes is something else."""

        def set_aside_and_start() -> None:
            self._set_aside()
            if not self._context.life.is_stopping:
                self.start(is_damaged=True)

        self.close(lambda: self._start_again(set_aside_and_start))

    def _start_again(self, start: Callable[[], None]) -> None:
        """Call `start` on a node that runs: an error that would end a start ends the node."""
        try:
            start()
        except (OSError, StreamdError) as err:
            self._context.log.error("meta group cannot be opened again", reason=str(err))
            self._context.life.give_up(err)

    def on_install_failed(self, err: BaseException) -> None:
        """Report that a fetched snapshot is not known to be in its place."""
        assert self._groups.meta_group is not None
        self._on_failed(self._groups.meta_group, err)

    def _on_failed(self, group: Group, err: BaseException) -> None:
        """Begin from what peers have, or end the node: the group runs no more."""
        for callback in group.shell.on_ready:
            callback()
        self._context.log.error("meta group stopped", reason=str(err))
        if self._context.is_clustered and isinstance(err, CorruptionError):
            self.restart_damaged()
        else:
            self._context.life.give_up(err)
