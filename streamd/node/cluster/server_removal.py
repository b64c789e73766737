"""`ServerRemoval`: servers that were removed from the cluster for good stay outside.

The meta group remembers each removal by the server's name. What a node's data is worth is told by
`identity.removal`: removals up to that meta entry were of others who had its name. A server with
data from before a removal of its name must not take part; one that begins with an empty directory
joins as any other. The node that lets it in may not have heard of the last removal, so until the
meta leader has vouched for the new member (`is_new` in its identity) each removal that it hears of
was before its time. Replicas that a removal leaves missing: replica_replacement.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd.errors import ConfigError
from streamd.node.cluster.leaders import Leaders
from streamd.node.cluster.node_facts import NodeFacts
from streamd.node.context import NodeContext
from streamd.node.identity.node_identity import NodeIdentity
from streamd.node.ports import Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.protocol.node_hello import Hello, Removals
from streamd.types import Index, NodeId


class ServerRemoval:
    """Removals as one node judges and obeys them.

    `on_removed_here(err)`: this server is out, and serves nothing any more.
    `renew_hello(bootstrap_members)` tells the peers what this node says of itself now.
    """

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        facts: NodeFacts,
        peers: Peers | None,
        *,
        renew_hello: Callable[[list[NodeId]], None],
        on_removed_here: Callable[[ConfigError], None],
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._facts = facts
        self._peers = peers
        self._renew_hello = renew_hello
        self._on_removed_here = on_removed_here
        self._joined: dict[NodeId, Index] = {}  # the `removal` in the hello of each node

    def hello(self) -> Removals:
        """Return what others need to judge this node, and this node's judgement of others."""
        return {
            "removal": self._context.identity.removal,
            "removals": dict(self._groups.meta.removals),
        }

    def check(self, node_id: NodeId, hello: Hello) -> None:
        """Raise ConfigError if either side of a link was removed from the cluster."""
        context = self._context
        self._joined.pop(node_id, None)
        if not hello.get("cluster_id"):
            return  # it has no data; so it joins, or we join together
        if context.identity.cluster_id and self._was_removed(hello.get("removals", {})):
            self._leave()
            raise ConfigError(_text(context.name))
        joined = hello.get("removal", 0)
        if self._groups.meta.removals.get(node_id, 0) > joined:
            raise ConfigError(_text(node_id))
        self._joined[node_id] = joined

    def on_removed(self, name: NodeId) -> None:
        """Obey a removal that was committed."""
        self._context.log.info("server removed from the cluster", server=name)
        self._facts.forget(name)
        self.check_members()

    def obstacle(self, name: NodeId) -> str:
        """Name a stream that may need `name`, which is away, for a majority; "": there is none.

        Its group has no leader among those who are here. While its members change it may have two
        voters for a moment, and if `name` is one of them, it must give its vote once more before
        it leaves; told that it was removed, it never would.
        """
        peers = self._peers
        for asset in self._groups.meta.streams_by_uid.values():
            holders = {*asset.members, *asset.peers}
            if name not in holders or len(holders) == 1:
                continue
            leader = self._leaders.leader_of(asset.uid)
            is_here = peers is not None and leader in (self._context.name, *peers.nodes())
            if not is_here:
                return asset.name
        return ""

    def check_members(self) -> None:
        """Part with each server that the meta group knows to be out, this one too."""
        removals = self._groups.meta.removals
        if self._was_removed(removals):
            self._leave()
        for name, joined in list(self._joined.items()):
            if joined < removals.get(name, 0) and self._peers is not None:
                self._peers.refuse(name, _text(name))

    def _was_removed(self, removals: dict[NodeId, Index]) -> bool:
        """True if one of `removals` is of this server; one from before its time is recorded."""
        identity = self._context.identity
        removal = removals.get(self._context.name, 0)
        if removal <= identity.removal:
            return False
        if not identity.facts.get("is_new"):
            return True
        identity.facts["removal"] = removal
        identity.save()
        self._context.env.loop.call_soon(self._renew_hello, [])
        return False

    def _leave(self) -> None:
        """Take this server out: nothing it has is the cluster's any more."""
        context = self._context
        if context.life.is_removed:
            return
        context.life.is_removed = True
        text = _text(context.name)
        context.log.error(text, directory=context.root)
        context.identity.facts["is_removed"] = True
        context.identity.save()
        self._on_removed_here(ConfigError(text))


def check_directory(identity: NodeIdentity, name: NodeId, root: str) -> None:
    """Raise ConfigError if the store directory is that of a removed server."""
    if identity.facts.get("is_removed"):
        raise ConfigError(f"{_text(name)} ({root!r})")


def _text(name: NodeId) -> str:
    return (
        f"server {name!r} was removed from the cluster: to have it join again, stop it and give it "
        "an empty store directory"
    )
