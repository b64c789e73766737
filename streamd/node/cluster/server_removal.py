"""Servers that were removed from the cluster for good: who stays outside, and who takes over.

The meta group remembers each removal by the server's name. What a node's data is worth is told by
`identity["removal"]`: removals up to that meta entry were of others who had its name. A server with
data from before a removal of its name must not take part; one that begins with an empty directory
joins as any other. Who lets it in may not have heard of the last removal, so until the meta leader
has vouched for the new member (`identity["is_new"]`) each that it hears of was before its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import ConfigError, JsError
from streamd.machine import commands
from streamd.machine.meta import StreamAsset
from streamd.node.cluster import placement
from streamd.types import Index, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Removals:
    """What one node does about them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._joined: dict[NodeId, Index] = {}  # the `removal` in the hello of each node
        self._placing: dict[Uid, int] = {}  # whose new peers are proposed; ms when that is over
        self._in_vain: tuple[list[NodeId], int] | None = None  # nodes and streams at the last look
        self._look_again_ms = 0  # that changed nothing, and when to look whatever has changed
        self.reason = ""  # why this server is out; empty: it is not

    # --- who stays outside ------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """What others need to know to judge this node, and this node's judgement of others."""
        return {"removal": self._own_removal(), "removals": dict(self._node.meta.removals)}

    def check(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """Raise ConfigError if either side of a link was removed from the cluster."""
        node = self._node
        self._joined.pop(node_id, None)
        if not hello.get("cluster_id"):
            return  # it has no data; so it joins, or we join together
        if node.cluster_id and self._was_removed(hello.get("removals", {})):
            self._leave()
            raise ConfigError(_text(node.server_name))
        joined = hello.get("removal", 0)
        if node.meta.removals.get(node_id, 0) > joined:
            raise ConfigError(_text(node_id))
        self._joined[node_id] = joined

    def check_directory(self) -> None:
        """Raise ConfigError if the store directory is that of a removed server."""
        node = self._node
        if node.identity.get("is_removed"):
            raise ConfigError(f"{_text(node.server_name)} ({node.root!r})")

    def on_removed(self, name: NodeId) -> None:
        """A removal was committed."""
        self._node.info("server removed from the cluster", server=name)
        self._node.node_facts.pop(name, None)
        self.look_at_members()

    def obstacle(self, name: NodeId) -> str:
        """Name a stream that may need `name`, which is away, for a majority; "": there is none.

        Its group has no leader among those who are here. While its members change it may have two
        voters for a moment, and if `name` is one of them, it must give its vote once more before
        it leaves; told that it was removed, it never would.
        """
        node = self._node
        for asset in node.meta.streams_by_uid.values():
            holders = {*asset.members, *asset.peers}
            if name not in holders or len(holders) == 1:
                continue
            leader = node.leader_of(asset.uid)
            is_here = node.peers is not None and leader in (node.server_name, *node.peers.nodes())
            if not is_here:
                return asset.name
        return ""

    def look_at_members(self) -> None:
        """Part with whoever the meta group knows to be out, this server too."""
        node = self._node
        removals = node.meta.removals
        if self._was_removed(removals):
            self._leave()
        for name, joined in list(self._joined.items()):
            if joined < removals.get(name, 0) and node.peers is not None:
                node.peers.refuse(name, _text(name))

    def certified(self, index: Index) -> None:
        """The meta leader vouches for this member with a meta entry that it appended after this
        node had joined: `index` or an earlier one."""
        identity = self._node.identity
        if identity.pop("is_new", False):
            identity["removal"] = max(self._own_removal(), index)

    def _was_removed(self, removals: dict[NodeId, Index]) -> bool:
        """True if one of `removals` is of this server; what was before its time is noted."""
        node = self._node
        removal = removals.get(node.server_name, 0)
        if removal <= self._own_removal():
            return False
        if not node.identity.get("is_new"):
            return True
        node.identity["removal"] = removal
        node.save_identity()
        node.env.loop.call_soon(node.peering.renew_hello, [])
        return False

    def _own_removal(self) -> Index:
        return int(self._node.identity.get("removal", 0))

    def _leave(self) -> None:
        """This server is out: nothing it has is the cluster's any more, so it serves nothing."""
        node = self._node
        if self.reason:
            return
        self.reason = _text(node.server_name)
        node.error(self.reason, directory=node.root)
        node.identity["is_removed"] = True
        node.save_identity()
        node.replicas.fail_all(ConfigError(self.reason))
        # Not at once: this may be a turn of the meta group, or its start.
        node.env.loop.call_soon(node.meta_member.close, ignore)

    # --- who takes over ---------------------------------------------------------------------

    def look_at_cluster(self) -> None:
        """As meta leader: let in who joins anew under a removed server's name, and bring streams
        that are short of replicas to nodes that have room."""
        node = self._node
        now_ns = node.env.clock.now_ns()
        for name in sorted(node.meta.out.intersection(node.peering.known_members())):
            node.meta_member.propose_anywhere([commands.ADMIT_SERVER, now_ns, name])
        now_ms = node.env.clock.monotonic_ms()
        self._placing = {uid: end for uid, end in self._placing.items() if now_ms < end}
        thin = node.meta.thin
        state = (node.peers.nodes() if node.peers is not None else [], len(thin))
        if not thin or (state == self._in_vain and now_ms < self._look_again_ms):
            return
        cluster = placement.Cluster.seen_by(node)
        for uid in sorted(thin - self._placing.keys()):
            if len(self._placing) >= limits.REPLACEMENTS_MAX:
                break
            asset = node.meta.streams_by_uid[uid]
            peers = _filled(cluster, asset)
            if peers != list(asset.peers):
                self._place(asset, peers, now_ms)
        if not self._placing:
            self._in_vain = state
            self._look_again_ms = now_ms + int(limits.FACTS_EVERY_S * 1000)

    def _place(self, asset: StreamAsset, peers: list[NodeId], now_ms: int) -> None:
        node, uid = self._node, asset.uid

        def placed(outcome: Any) -> None:
            self._placing.pop(uid, None)

        self._placing[uid] = now_ms + limits.API_CONFIGURED_MS
        command = [commands.SET_PEERS, node.env.clock.now_ns(), uid, peers]
        group = node.meta_member.group
        if group is not None and node.peering.all_know("rests", group.raft.members.members()):
            command.append(asset.basis)
        node.propose_meta(command, placed)


def _filled(cluster: placement.Cluster, asset: StreamAsset) -> list[NodeId]:
    """The peers of a stream with as many others as there is room for, up to what it wants."""
    for count in range(asset.config["num_replicas"], len(asset.peers), -1):
        config = asset.config | {"num_replicas": count}
        try:
            return cluster.choose(config, keep=asset.peers, leave_out=asset.uid)
        except JsError:
            continue  # one less
    return list(asset.peers)


def _text(name: NodeId) -> str:
    return (
        f"server {name!r} was removed from the cluster: to have it join again, stop it and give it "
        "an empty store directory"
    )
