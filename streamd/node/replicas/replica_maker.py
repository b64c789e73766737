"""From what recovery found of a stream to a replica that can run.

First the member of the Raft group: with whom it begins, and whether it remembers all it promised.
Then the group around it, its monitor, and the handle that net and api hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.machine.indexes.columns import ColumnsCache
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.reconfiguration_steps import forgotten_members, named_by
from streamd.node.groups import group as g
from streamd.node.groups import inbox
from streamd.node.groups.monitor import GroupLog, Monitor
from streamd.node.groups.raft_members import GroupStart
from streamd.node.groups.snapshot_writers import StreamSnapshots
from streamd.node.replicas.replica_recovery import Recovered
from streamd.node.stream_groups.atomic_batches import BatchBudget, BatchStager
from streamd.node.stream_groups.publish_intake import Backlog
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.core import RaftCore
from streamd.types import Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class ReplicaMaker:
    """Makes one node's replicas, which share what is bounded for all of them together."""

    def __init__(
        self,
        node: Node,
        *,
        on_turn: Callable[[Uid, StreamGroup, g.Turn], None],
        on_events: Callable[[LocalStream, list[tuple[str, dict[str, Any]]]], None],
        on_failed: Callable[[StreamAsset, BaseException], None],
    ) -> None:
        self._node = node
        self._on_turn = on_turn
        self._on_events = on_events
        self._on_failed = on_failed
        self._columns = ColumnsCache()
        self._batch_budget = BatchBudget(node.batch_limits)
        self._backlog = Backlog()

    def member(self, asset: StreamAsset, found: Recovered, *, is_log_void: bool) -> RaftCore:
        """Make this node's member of the stream's group. Raises what `Rafts.make` raises."""
        node = self._node
        uid, is_file = asset.uid, found.is_file
        amnesia = node.amnesia
        was_open = not is_file and amnesia.was_open(uid)  # asked in any case: it notes that it is
        is_forgotten = was_open or amnesia.may_have_forgotten(uid)
        voters = asset.created_peers or asset.peers or (node.server_name,)
        members = found.members
        if not is_file and asset.members and is_forgotten and members is None:
            members = forgotten_members(asset)  # what its log says of them went with the rest
        raft = node.rafts.make(
            GroupStart(
                uid,
                found.index,
                found.term,
                found.chain,
                voters=tuple(voters) if node.is_clustered else (node.server_name,),
                members=members,
                is_forgotten=is_forgotten,
                is_damaged=found.is_damaged,
                is_log_void=is_log_void,
                is_memory=not is_file,
                named=frozenset(named_by(asset)),
                left_at=amnesia.left_at(uid) if is_file else (0, 0),
                is_alone=amnesia.is_alone(asset),
                history=found.history,
            )
        )
        if raft.last_index == 0 and voters[uid % len(voters)] == node.server_name:
            # A new stream need not wait for somebody to lose patience; leaders are spread.
            raft.deadline_ms = node.env.clock.monotonic_ms()
        return raft

    def replica(self, asset: StreamAsset, found: Recovered, raft: RaftCore) -> LocalStream:
        """Make what runs and serves the stream here with that member. Nothing runs yet."""
        node = self._node
        uid, is_file = asset.uid, found.is_file
        found.machine.index.use_cache(self._columns)
        group = StreamGroup(
            uid=uid,
            raft=raft,
            machine=found.machine,
            blocks=found.store,
            snapshot_index=found.index,
            wires=node.wires,
            stager=BatchStager(self._batch_budget),
            max_payload=node.max_payload,
            has_room=node.room.take if is_file else node.memory_room.take,
            backlog=self._backlog,
            all_know=lambda command: node.peering.all_know(command, raft.members.members()),
        )
        group.snapshot_every_bytes = node.room.snapshot_every_bytes
        if is_file:
            group.is_disk_short = node.room.is_disk_short
        if not is_file and node.replicas.has_peers(asset):
            group.snapshot_every_bytes = limits.MEMORY_SNAPSHOT_BYTES
        log: GroupLog = node.wal if is_file else node.memory_log
        tail_log = node.tails.log_of(uid) if is_file and node.is_clustered else None
        monitor = Monitor(
            group,
            log=tail_log or log,
            clock=node.env.clock,
            snapshot_writer=StreamSnapshots(found.store, is_clustered=node.is_clustered),
            on_failed=lambda failed, err: self._on_failed(asset, err),
            loop=node.env.loop,
            send=node.peering.send,
            on_turn=lambda turn: self._on_turn(uid, group, turn),
            due=node.due_turns,
        )
        group.post = monitor.post
        if tail_log is not None:
            tail_log.follow(monitor)
        if is_file:
            # A store may find out on its own thread; a simulated loop has but one.
            call = getattr(node.env.loop, "call_soon_threadsafe", node.env.loop.call_soon)
            found.store.on_error = lambda err: call(monitor.post, inbox.Failed(err))
        handle = LocalStream(group, monitor, found.store, is_file=is_file)
        if node.is_clustered:
            group.pass_on = partial(node.publish_routes.publish, uid, group.name_bytes)
        group.on_damaged = partial(node.damages.on_damaged, uid)
        group.on_mended = partial(node.damages.on_mended, uid)
        group.on_events = lambda events: self._on_events(handle, events)
        return handle
