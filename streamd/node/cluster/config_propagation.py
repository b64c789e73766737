"""`ConfigPropagation`: configs of streams on their way from the meta group to the streams' groups.

A stream's leader proposes the config that the meta group has; whoever asked for the change waits
here until the leader runs with it, on whichever node that is.
"""

from __future__ import annotations

from streamd import errors, limits
from streamd.machine import commands
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.leaders import Leaders
from streamd.node.context import NodeContext
from streamd.node.meta_group.catalog import Catalogs
from streamd.node.ports import Answer, Done, Peers
from streamd.node.replicas.failed_replicas import FailedReplicas
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.replicas.replica_table import has_peers
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.types import Index, NodeId, Uid


class ConfigPropagation:
    """Configs of the streams that this node leads, and of those that a caller here waits for."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        catalogs: Catalogs,
        peers: Peers | None,
        failed: FailedReplicas,
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._catalogs = catalogs
        self._peers = peers
        self._failed = failed
        self._waiters: dict[Uid, list[tuple[int, Done]]] = {}

    def carry_over(self, replica: LocalStream, asset: StreamAsset) -> None:
        """Bring the group of a stream led here to the config that the meta group has."""
        if replica.machine.config_meta_index >= asset.update_index:
            self.resolve(replica.uid)
            return

        def configured(outcome: object) -> None:
            # Only now does the stream capture by its new subjects; what was looked up since meta
            # announced them is stale.
            self._catalogs.changed()
            if isinstance(outcome, errors.JsError):
                self.resolve(replica.uid, outcome)
            else:
                self.resolve(replica.uid)

        now_ns = self._context.env.clock.now_ns()
        replica.propose([commands.CONFIGURE, now_ns, asset.config, asset.update_index], configured)

    def wait(self, uid: Uid, meta_index: int, done: Done, timeout_ms: int) -> None:
        """Call `done` once the stream's leader runs it with the config of that meta entry; see
        ports.NodeHandle.wait_configured."""
        asset = self._groups.meta.streams_by_uid.get(uid)
        reason = self._failed.reason(uid)
        if asset is not None and reason and not has_peers(self._context, asset):
            done(errors.STREAM_OFFLINE_REASON(err=reason))
            return
        is_open = True

        def finish(outcome: object) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                timer.cancel()
                done(outcome)

        def expired() -> None:
            self._keep(uid, [row for row in self._waiters.get(uid, ()) if row[1] is not finish])
            finish(errors.CLUSTER_NOT_AVAIL())

        timer = self._context.env.loop.call_later(timeout_ms / 1000, expired)
        self._waiters.setdefault(uid, []).append((meta_index, finish))
        self.resolve(uid)

    def serve(self, sender: NodeId, args: tuple[Uid, Index], answer: Answer) -> None:
        """Answer the call `configured`: [uid, meta index]."""
        uid, meta_index = args
        self.wait(uid, meta_index, answer, limits.CONFIGURED_MS)

    def resolve(self, uid: Uid, error: errors.JsError | None = None) -> None:
        """Answer callers that wait for a config, if this node or the leader elsewhere has it."""
        waiters = self._waiters.get(uid)
        if not waiters:
            return
        replica = self._groups.get(uid)
        if replica is not None and replica.is_ready:
            has = replica.machine.config_meta_index
            due = waiters if error is not None else [row for row in waiters if row[0] <= has]
            self._keep(uid, [row for row in waiters if row not in due])
            for _, done in due:
                done(error or True)
            return
        leader = self._leaders.leader_of(uid)
        if not leader or leader == self._context.name or self._peers is None:
            return
        del self._waiters[uid]
        for meta_index, done in waiters:
            self._peers.call(leader, "configured", [uid, meta_index], done, limits.CONFIGURED_MS)

    def _keep(self, uid: Uid, waiters: list[tuple[int, Done]]) -> None:
        """Go on with `waiters`; nothing is kept of a stream without any."""
        if waiters:
            self._waiters[uid] = waiters
        else:
            self._waiters.pop(uid, None)

    def fail(self, uid: Uid, error: errors.JsError) -> None:
        """Refuse all callers that wait for a stream that can't be served here."""
        for _, done in self._waiters.pop(uid, []):
            done(error)
