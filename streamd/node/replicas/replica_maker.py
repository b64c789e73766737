"""Makers of a replica: from what recovery found of a stream to one that can run.

`MemberMaker` makes the member of the Raft group: its first membership, and whether it remembers all
it promised. `ReplicaMaker` makes the group around it, its monitor, and the handle that net and api
hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from streamd import limits
from streamd.errors import StreamdError
from streamd.machine.indexes.columns import ColumnsCache
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.reconfiguration_steps import forgotten_members, named_by
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.group_shell import Events
from streamd.node.groups.raft_members import GroupStart, RaftMembers
from streamd.node.groups.snapshot_writers import StreamSnapshots
from streamd.node.groups.turn import Turn
from streamd.node.identity.amnesia import Amnesia
from streamd.node.integrity.corruption import CorruptionRepair
from streamd.node.ports import Wires
from streamd.node.replicas.group_runner import GroupRunner
from streamd.node.replicas.replica_recovery import Recovered
from streamd.node.replicas.replica_table import has_peers
from streamd.node.resources.account_storage import AccountStorage
from streamd.node.resources.disk_quota import Quotas
from streamd.node.stream_groups.atomic_batches import BatchBudget, BatchStager
from streamd.node.stream_groups.publish_forwarding import PublishForwarding
from streamd.node.stream_groups.publish_intake import Backlog, PublishBounds
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.core import RaftCore
from streamd.store.blocks.stream_store import StreamStore
from streamd.types import Uid


class ReplicaHandlers(Protocol):
    """Owner of the replicas, told of what happens to one."""

    def on_turn(self, uid: Uid, group: StreamGroup, turn: Turn) -> None: ...

    def on_events(self, replica: LocalStream, events: Events) -> None: ...

    def on_failed(self, asset: StreamAsset, err: BaseException) -> None: ...


class MemberMaker:
    """Makes this node's members of streams' Raft groups."""

    def __init__(self, context: NodeContext, rafts: RaftMembers, amnesia: Amnesia) -> None:
        self._context = context
        self._rafts = rafts
        self._amnesia = amnesia

    def make(self, asset: StreamAsset, found: Recovered, *, is_log_void: bool) -> RaftCore:
        """Make the member of a stream's group. Raises what `RaftMembers.make` raises."""
        context, amnesia = self._context, self._amnesia
        uid, is_file = asset.uid, found.is_file
        was_open = not is_file and amnesia.was_open(uid)  # asked in any case: it records that
        is_forgotten = was_open or amnesia.may_have_forgotten(uid)
        voters = asset.created_peers or asset.peers or (context.name,)
        members = found.members
        if not is_file and asset.members and is_forgotten and members is None:
            members = forgotten_members(asset)  # what its log says of them went with the rest
        raft = self._rafts.make(
            GroupStart(
                uid,
                found.index,
                found.term,
                found.chain,
                voters=tuple(voters) if context.is_clustered else (context.name,),
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
        if raft.last_index == 0 and voters[uid % len(voters)] == context.name:
            # A new stream need not wait for an election timeout; leaders are spread.
            raft.lose_patience(context.env.clock.monotonic_ms())
        return raft


class ReplicaMaker:
    """Makes one node's replicas, which share what is bounded for all of them together."""

    def __init__(
        self,
        context: NodeContext,
        members: MemberMaker,
        runner: GroupRunner,
        wires: Callable[[str], Wires],
        quotas: Quotas,
        forwarding: PublishForwarding,
        corruption: CorruptionRepair,
        storage: AccountStorage,
    ) -> None:
        self._context = context
        self._members = members
        self._runner = runner
        self._wires = wires
        self._quotas = quotas
        self._forwarding = forwarding
        self._corruption = corruption
        self._storage = storage
        self._columns = ColumnsCache()
        self._batch_budget = BatchBudget(context.options.batch_limits)
        self._backlog = Backlog()

    def make(
        self,
        asset: StreamAsset,
        found: Recovered,
        handlers: ReplicaHandlers,
        *,
        is_log_void: bool,
    ) -> LocalStream:
        """Make what runs and serves the stream here. Nothing runs yet. Raises what
        `RaftMembers.make` raises."""
        raft = self._members.make(asset, found, is_log_void=is_log_void)
        context, quotas = self._context, self._quotas
        uid, is_file = asset.uid, found.is_file
        found.machine.index.blocks.use_cache(self._columns)
        group = StreamGroup(
            raft=raft,
            machine=found.machine,
            blocks=found.store,
            snapshot_index=found.index,
            wires=self._wires(asset.account),
            bounds=PublishBounds(
                has_room=quotas.storage.reserve if is_file else quotas.memory.reserve,
                stager=BatchStager(self._batch_budget),
                backlog=self._backlog,
                share=self._storage.share_of(asset, found.machine),
            ),
            max_payload=context.options.max_payload,
            domain=context.options.domain,
        )
        group.snapshot_every_bytes = quotas.storage.snapshot_every_bytes
        if is_file:
            group.hooks.is_disk_short = quotas.storage.is_disk_short
        elif has_peers(context, asset):
            group.snapshot_every_bytes = limits.MEMORY_SNAPSHOT_BYTES
        monitor = self._runner.monitor(
            group,
            StreamSnapshots(found.store, is_clustered=context.is_clustered),
            on_failed=lambda failed, err: handlers.on_failed(asset, err),
            on_turn=lambda turn: handlers.on_turn(uid, group, turn),
            is_memory=not is_file,
        )
        if isinstance(found.store, StreamStore):
            # A store may find out on its own thread; a simulated loop has but one.
            loop = context.env.loop
            call: Callable[..., object] = getattr(loop, "call_soon_threadsafe", loop.call_soon)

            def on_error(err: StreamdError) -> None:
                call(monitor.post, inbox.Failed(err))

            found.store.on_error = on_error
        replica = LocalStream(group, monitor, found.store, is_file=is_file)
        if context.is_clustered:
            group.hooks.pass_on = partial(self._forwarding.publish, uid, replica.name_bytes)
        group.hooks.on_damaged = partial(self._corruption.on_damaged, uid)
        group.hooks.on_mended = partial(self._corruption.on_mended, uid)
        group.shell.on_events = lambda events: handlers.on_events(replica, events)
        return replica

    def run(self, replica: LocalStream) -> None:
        """Run a replica until its group stops."""
        self._runner.run(replica.monitor)
