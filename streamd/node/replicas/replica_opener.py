"""`ReplicaOpener`: every way into service is one procedure: recover, make the replica, run it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamd import limits
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.peering import Peering
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.identity.amnesia import Amnesia
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.recovery_findings import RecoveryFindings
from streamd.node.replicas.replica_maker import ReplicaHandlers, ReplicaMaker
from streamd.node.replicas.replica_recovery import Recovered, ReplicaRecovery
from streamd.node.replicas.replica_table import is_foreign
from streamd.node.replicas.replica_trash import ReplicaTrash
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.raft.messages import Message, Vote
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.stream_store import StreamStore
from streamd.types import NodeId, Uid


class ReplicaOpener:
    """Opener of one node's replicas."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        recovery: ReplicaRecovery,
        maker: ReplicaMaker,
        findings: RecoveryFindings,
        peering: Peering,
        amnesia: Amnesia,
        trash: ReplicaTrash,
    ) -> None:
        self._context = context
        self._groups = groups
        self._recovery = recovery
        self._maker = maker
        self._findings = findings
        self._peering = peering
        self._amnesia = amnesia
        self._trash = trash
        self._early: dict[Uid, dict[NodeId, Message]] = {}  # campaigns in groups not open yet
        self._void_logs: set[Uid] = set()  # of replicas being repaired

    def is_due(self, asset: StreamAsset) -> bool:
        """True if a stream should be opened here, and it is known what this node may have
        forgotten of it."""
        context = self._context
        is_wanted = not context.is_clustered or context.name in (*asset.peers, *asset.members)
        return is_wanted and not (self._amnesia.is_unknown(asset.uid) or self._is_early(asset))

    def _is_early(self, asset: StreamAsset) -> bool:
        """True of a stream in memory while the meta group may have news of it. Its members are
        known there alone: its own log, which would stop a replica that has moved, is gone."""
        is_file = asset.is_file
        return self._context.is_clustered and not is_file and not self._groups.is_meta_fresh

    def hold(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None:
        """Keep a campaign's latest word until the group is open: a new group's first candidate is
        often faster than its voters, and would be told nothing for a second."""
        for message in messages:
            if isinstance(message, Vote):
                self._early.setdefault(uid, {})[sender] = message
                if len(self._early) > limits.EARLY_VOTES_MAX:
                    del self._early[next(iter(self._early))]

    def recover(
        self, asset: StreamAsset, done: Callable[[Recovered | BaseException], None]
    ) -> None:
        """Recover a stream off the loop; `done` gets what was found, or the error."""
        self._context.block_thread.submit(partial(self._recovery.recover, asset), done)

    def make(
        self, asset: StreamAsset, found: Recovered, handlers: ReplicaHandlers
    ) -> LocalStream | None:
        """Make the replica of what was recovered; None: it was deleted meanwhile, or the node
        stops. Raises one of OPENING_ERRORS."""
        context, uid = self._context, asset.uid
        is_deleted = self._groups.meta.is_deleted(uid)
        is_gone = is_deleted or (is_foreign(context, asset) and not found.is_file)
        if is_gone or context.life.is_stopping or context.life.is_removed:
            self._discard(asset, found.store)
            return None
        self._findings.before_run(uid, found)
        is_void = uid in self._void_logs
        replica = self._maker.make(asset, found, handlers, is_log_void=is_void)
        self._void_logs.discard(uid)
        self._groups.replicas[uid] = replica
        return replica

    def run(self, replica: LocalStream, found: Recovered) -> None:
        """Run a replica that was made; it hears which members are here, and which one campaigns."""
        uid, monitor = replica.uid, replica.monitor
        self._maker.run(replica)
        self._findings.on_running(replica)
        if self._context.is_clustered:
            self._peering.introduce(monitor, replica.group.raft.members.members())
            for sender, message in self._early.pop(uid, {}).items():
                monitor.post(inbox.Step(sender, message))
        monitor.post(inbox.Tick())
        if isinstance(found.store, StreamStore):
            machine = found.machine
            found.store.begin_packing(lambda: machine.config.get("compression") == "s2")
        self._findings.after_run(replica, found)

    def _discard(self, asset: StreamAsset, store: StreamStore | MemoryStreamStore) -> None:
        """Close what was recovered: the stream was deleted meanwhile, or the node stops."""
        is_deleted = self._groups.meta.is_deleted(asset.uid)

        def job() -> None:
            if is_deleted and isinstance(store, StreamStore):
                store.move_to_trash(self._trash.directory)

        def done(result: BaseException | None) -> None:
            self._trash.report_moved(asset.uid, result)
            if is_deleted and isinstance(store, StreamStore):
                self._trash.destroy(asset.uid)

        store.close()
        self._context.block_thread.submit(job, done)

    def void_log(self, uid: Uid) -> None:
        """Record that the replica, when it is opened next, must not answer for what its log once
        acked."""
        self._void_logs.add(uid)
        self._findings.record_differing(uid)

    def set_aside(self, uid: Uid) -> str:
        """Move the files of a closed stream where nothing reads them. On the block thread."""
        return self._recovery.set_aside(uid)

    def forget(self, uid: Uid) -> None:
        """Keep nothing of a stream that is gone from this node."""
        self._recovery.forget(uid)
