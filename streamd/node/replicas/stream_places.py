"""`StreamPlaces`: has each stream's name lead to its replica here, or to its leader elsewhere."""

from __future__ import annotations

from streamd.node.cluster.leaders import Leaders
from streamd.node.context import NodeContext
from streamd.node.meta_group.catalog import Catalogs
from streamd.node.ports import Peers
from streamd.node.replicas.failed_replicas import FailedReplicas
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.publish_forwarding import PublishForwarding
from streamd.node.stream_groups.remote_stream import RemoteStream
from streamd.types import StreamKey


class StreamPlaces:
    """Entries of one node's catalogs."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        catalogs: Catalogs,
        leaders: Leaders,
        peers: Peers | None,
        forwarding: PublishForwarding,
        failed: FailedReplicas,
    ) -> None:
        self._context = context
        self._groups = groups
        self._catalogs = catalogs
        self._leaders = leaders
        self._peers = peers
        self._forwarding = forwarding
        self._failed = failed

    def place(self, key: StreamKey) -> None:
        """Make a stream's name lead where its requests are served now."""
        account, name = key
        is_clustered, catalog = self._context.is_clustered, self._catalogs.of(account)
        asset = self._groups.meta.streams_by_key.get(key)
        if asset is None:
            catalog.place(name, None)
            return
        replica = self._groups.get(asset.uid)
        is_awaited = not is_clustered and asset.uid not in self._failed
        if replica is not None and (replica.is_ready or is_awaited):
            catalog.place(name, replica)
        elif is_clustered:
            known = catalog.stream(name)
            if known is None or known.uid != asset.uid:
                self._leaders.expect(asset.uid)
            remote = RemoteStream(asset, self._leaders, self._forwarding, self._peers)
            catalog.place(name, remote)
        else:
            catalog.place(name, None)
