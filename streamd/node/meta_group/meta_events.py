"""`MetaEvents`: does at once what the meta group commits: streams are opened, changed, closed."""

from __future__ import annotations

from typing import Protocol

from streamd.machine.meta import StreamAsset
from streamd.node.cluster.peering import Peering
from streamd.node.cluster.server_removal import ServerRemoval
from streamd.node.context import NodeContext
from streamd.node.groups.group_shell import Events
from streamd.node.groups.monitor import Monitor
from streamd.node.meta_group.catalog import Catalogs
from streamd.types import NodeId, StreamKey, Uid


class Reconciler(Protocol):
    """The replicas of this node: replicas/replica_set.py."""

    def reconcile(self) -> None:
        """Open, close and place all streams as the meta group's state says."""

    def reconcile_one(self, uid: Uid, key: StreamKey) -> None:
        """Open, close and place one stream as the meta group's state says."""


class MetaEvents:
    """Effects of the meta group on the other parts of one node."""

    def __init__(
        self,
        context: NodeContext,
        catalogs: Catalogs,
        peering: Peering,
        removal: ServerRemoval,
        replicas: Reconciler,
    ) -> None:
        self._context = context
        self._catalogs = catalogs
        self._peering = peering
        self._removal = removal
        self._replicas = replicas

    def on_begun(self, monitor: Monitor, members: tuple[NodeId, ...]) -> None:
        """Bring this node in line with the state from which its member of the group begins."""
        self._peering.introduce(monitor, members)
        self._replicas.reconcile()
        self._removal.check_members()

    def on_fresh(self) -> None:
        """Reconcile all streams: the member has what was committed when this process began, or the
        group has vouched for it."""
        self._replicas.reconcile()

    def on_events(self, events: Events) -> None:
        """Carry out what was committed."""
        for kind, fields in events:
            if kind == "server_removed":
                server = fields["server"]
                assert isinstance(server, str), fields
                self._removal.on_removed(server)
            elif kind == "loss_accepted":
                self._context.log.warn(
                    "the meta group continues without the lost end of its log: changes of "
                    "streams and servers in those entries are lost"
                )
                self._replicas.reconcile()
            else:
                asset = fields["asset"]
                assert isinstance(asset, StreamAsset), fields
                self._replicas.reconcile_one(asset.uid, asset.key)
        self._catalogs.changed()
