"""`GroupRunner`: gives a group its monitor, with the log that suits it, and runs it."""

from __future__ import annotations

from collections.abc import Callable

from streamd.latency_histogram import LatencyHistogram
from streamd.node.context import NodeContext
from streamd.node.groups.group import Group
from streamd.node.groups.memory_log import MemoryLog
from streamd.node.groups.monitor import GroupLog, Monitor, SnapshotWriter
from streamd.node.groups.turn import Turn
from streamd.node.groups.wakeup import DueTurns
from streamd.node.integrity.discarded_entries import DiscardedEntries
from streamd.node.ports import Peers
from streamd.raft.messages import Message
from streamd.types import NodeId, Uid


class GroupRunner:
    """Runner of all groups of one node: they share the log, the clock and the due turns."""

    def __init__(
        self, context: NodeContext, discarded: DiscardedEntries, peers: Peers | None
    ) -> None:
        self._context = context
        self._discarded = discarded
        self._peers = peers
        self._memory_log = MemoryLog(context.env.loop.call_soon)
        self._due_turns = DueTurns()

    @property
    def turn_times(self) -> LatencyHistogram:
        """Durations of the turns of all groups: Raft, apply, and what they set going."""
        return self._due_turns.times

    @property
    def apply_times(self) -> LatencyHistogram:
        """Durations of the part of turns that applied committed entries."""
        return self._due_turns.apply_times

    def monitor(
        self,
        group: Group,
        writer: SnapshotWriter,
        *,
        on_failed: Callable[[Group, BaseException], None],
        on_turn: Callable[[Turn], None],
        is_memory: bool = False,
    ) -> Monitor:
        """Make the monitor of a group. Entries that a group with peers voids are set aside before
        its log lets them go."""
        context = self._context
        has_guard = context.is_clustered and not is_memory
        guarded = self._discarded.log_of(group.uid) if has_guard else None
        log: GroupLog = self._memory_log if is_memory else context.wal
        monitor = Monitor(
            group,
            log=guarded or log,
            env=context.env,
            snapshot_writer=writer,
            on_failed=on_failed,
            send=self._send,
            on_turn=on_turn,
            due=self._due_turns,
        )
        if guarded is not None:
            guarded.follow(monitor)
        return monitor

    def run(self, monitor: Monitor) -> None:
        """Run a monitor until its group stops."""
        self._context.env.spawn(monitor)

    def _send(self, node_id: NodeId, uid: Uid, messages: list[Message]) -> None:
        if self._peers is not None:
            self._peers.send(node_id, uid, messages)
