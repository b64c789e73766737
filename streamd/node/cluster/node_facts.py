"""`NodeFacts`: what each node of the cluster says of itself: limits, tags, and load.

Placement chooses nodes by these facts.
"""

from __future__ import annotations

from streamd.node.context import NodeContext
from streamd.node.ports import Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.protocol.node_hello import Facts, Hello
from streamd.types import NodeId


class NodeFacts:
    """Facts of all nodes as one node knows them, this one included."""

    def __init__(self, context: NodeContext, groups: LocalGroups, peers: Peers | None) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self.by_node: dict[NodeId, Facts] = {}
        self._cluster_ids: dict[NodeId, str] = {}

    def own(self) -> Facts:
        """Return what other nodes need to know to place streams here."""
        options = self._context.options
        stream_count = ha_count = storage_used = memory_used = 0
        for replica in self._groups:  # in one pass: an idle node does little else
            stream_count += 1
            ha_count += len(replica.group.raft.log.membership.voters) > 1
            if replica.is_file:
                storage_used += replica.machine.index.live.bytes
            else:
                memory_used += replica.machine.index.live.bytes
        return {
            "server_id": options.server_id,
            "tags": list(options.tags),
            "storage_max": options.storage_max,
            "memory_max": options.memory_max,
            "ha_assets_max": options.ha_assets_max,
            "unique_tag": options.unique_tag,
            "storage_used": storage_used,
            "memory_used": memory_used,
            "streams": stream_count,
            "ha_assets": ha_count,
        }

    def refresh_own(self) -> Facts:
        """Record this node's facts as they are now, and return them."""
        facts = self.by_node[self._context.name] = self.own()
        return facts

    def send_all(self) -> None:
        """Send this node's facts, as they are now, to all nodes."""
        facts = self.refresh_own()
        if self._peers is not None:
            for node_id in self._peers.nodes():
                self._peers.note(node_id, "facts", [facts])

    def record(self, node_id: NodeId, hello: Hello) -> None:
        """Record what a node said of itself when its link came up."""
        self.by_node[node_id] = hello.get("facts", {})
        self._cluster_ids[node_id] = hello.get("cluster_id", "")

    def on_note(self, sender: NodeId, args: tuple[Facts]) -> None:
        """Record the facts that a node sends again and again: the note `facts`."""
        self.by_node[sender] = args[0]

    def forget(self, node_id: NodeId) -> None:
        """Remove a node that was removed from the cluster."""
        self.by_node.pop(node_id, None)

    def known_members(self) -> list[NodeId]:
        """Return the other nodes of this cluster that have a link now."""
        ours = self._context.identity.cluster_id
        here = self._peers.nodes() if self._peers is not None else []
        return [name for name in here if ours and self._cluster_ids.get(name) == ours]
