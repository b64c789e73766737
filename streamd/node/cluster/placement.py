"""Placement of a stream's replicas on nodes: by what is asked for, what is free, and least load.

Pure: the same facts give the same nodes. What is chosen goes into a command of the meta group;
nobody computes it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from streamd import errors
from streamd.errors import JsError
from streamd.machine.asset_configs import Placement, StreamConfig
from streamd.machine.meta import StreamAsset
from streamd.node.ports import NodeHandle
from streamd.protocol.node_hello import Facts
from streamd.types import NodeId, Uid


class ClusterView:
    """Facts about the nodes at one moment, as placement needs them."""

    def __init__(
        self,
        *,
        name: str,
        facts: Mapping[NodeId, Facts],
        is_up: Callable[[NodeId], bool],
        assets: Iterable[StreamAsset],
        carried: Mapping[tuple[NodeId, bool], int],
        unique_tag: str = "",
    ) -> None:
        """`carried`: replicas on each node, see MetaMachine. `unique_tag`: no two replicas of a
        stream go to nodes with the same tag that begins so, and none to a node without such a
        tag."""
        self.name = name
        self._unique_tag = unique_tag
        self.facts = facts
        self._is_up = is_up
        self._assets = assets
        self._carried = carried

    @classmethod
    def seen_by(cls, node: NodeHandle) -> ClusterView:
        """Return the view that a node has of all nodes now."""
        peers = node.peers
        return cls(
            name=node.cluster_name,
            facts=node.node_facts,
            is_up=lambda name: (
                name == node.server_name or (peers is not None and peers.is_up(name))
            ),
            assets=node.meta.streams_by_uid.values(),
            carried=node.meta.carried,
            unique_tag=node.node_facts.get(node.server_name, {}).get("unique_tag", ""),
        )

    def choose(
        self,
        config: StreamConfig,
        *,
        keep: Sequence[NodeId] = (),
        without: Collection[NodeId] = (),
        leave_out: Uid = 0,
        may_be_down: bool = False,
    ) -> list[NodeId]:
        """Return `num_replicas` nodes: those of `keep` first, then the best of the others.

        `leave_out`: the stream itself, whose own bytes are not in its way. `may_be_down`: where
        too few nodes are up, those that are not are taken too, if a majority is up without them.
        Raises CLUSTER_NO_PEERS, saying why, when there are too few.
        """
        chosen = list(keep)[: config["num_replicas"]]
        missing = config["num_replicas"] - len(chosen)
        if not missing:
            return chosen
        refusals = _Refusals()
        suitable = [
            node
            for node in sorted(self.facts)
            if node not in keep
            and node not in without
            and self._suits(node, config, refusals, may_be_down=may_be_down)
        ]
        is_replicated = config["num_replicas"] > 1
        roomy = [
            node
            for node in suitable
            if self._has_room(node, config, refusals, leave_out)
            and not (is_replicated and self._is_laden(node, refusals, leave_out))
        ]
        if len(roomy) < missing:
            raise refusals.error()
        loads = self._loads(is_replicated=is_replicated)
        roomy.sort(key=lambda node: (not self._is_up(node), loads[node], node))
        if self._unique_tag and not self._is_tag_wanted(config):
            roomy = self._without_shared_tags(roomy, chosen, refusals)
        if len(roomy) < missing:
            raise refusals.error()
        chosen += roomy[:missing]
        if may_be_down and sum(map(self._is_up, chosen)) <= len(chosen) // 2:
            refusals.is_offline = True
            raise refusals.error()
        return chosen

    def suits(self, node: NodeId, config: StreamConfig) -> bool:
        """True if `node` is where the config's placement wants a replica, full or not."""
        return self._suits(node, config, _Refusals())

    def is_up(self, node: NodeId) -> bool:
        """True while `node` can be talked to."""
        return self._is_up(node)

    def _suits(
        self, node: NodeId, config: StreamConfig, refusals: _Refusals, *, may_be_down: bool = False
    ) -> bool:
        placement = config.get("placement") or {}
        if placement.get("cluster", self.name) not in ("", self.name):
            return False
        if not may_be_down and not self._is_up(node):
            refusals.is_offline = True
            return False
        tags = [tag.lower() for tag in self.facts[node].get("tags") or ()]
        for wanted in placement.get("tags") or ():
            name = wanted.lower()
            if name.startswith("!"):
                if name[1:] in tags:
                    refusals.excluded.setdefault(wanted.removeprefix("!"))
                    return False
            elif name not in tags:
                refusals.unmatched.setdefault(wanted)
                return False
        return True

    def _has_room(
        self, node: NodeId, config: StreamConfig, refusals: _Refusals, leave_out: Uid
    ) -> bool:
        storage = config["storage"]
        facts = self.facts[node]
        is_file = storage == "file"
        room_max = facts.get("storage_max", -1) if is_file else facts.get("memory_max", -1)
        if room_max < 0 or config["max_bytes"] <= 0:
            return True
        used = facts.get("storage_used", 0) if is_file else facts.get("memory_used", 0)
        if max(used, self._reserved(node, storage, leave_out)) + config["max_bytes"] <= room_max:
            return True
        refusals.is_full = True
        return False

    def _is_tag_wanted(self, config: StreamConfig) -> bool:
        """True if the placement names a tag of the unique kind: then it need not be unique."""
        tags = (config.get("placement") or {}).get("tags") or ()
        return any(tag.lower().startswith(self._unique_tag) for tag in tags)

    def _without_shared_tags(
        self, nodes: Sequence[NodeId], chosen: Sequence[NodeId], refusals: _Refusals
    ) -> list[NodeId]:
        """The first of `nodes` with each unique tag that no chosen node has."""

        def tag_of(node: NodeId) -> str:
            tags = [tag.lower() for tag in self.facts.get(node, {}).get("tags") or ()]
            return next((tag for tag in tags if tag.startswith(self._unique_tag)), "")

        taken = {"", *map(tag_of, chosen)}
        found = []
        for node in nodes:
            tag = tag_of(node)
            if tag in taken:
                refusals.is_tag_shared = True
            else:
                taken.add(tag)
                found.append(node)
        return found

    def _is_laden(self, node: NodeId, refusals: _Refusals, leave_out: Uid) -> bool:
        """True if `node` has as many replicated streams as it takes (`max_ha_assets`)."""
        most = self.facts[node].get("ha_assets_max", 0)
        if most <= 0:
            return False
        count = sum(
            1
            for asset in self._assets
            if len(asset.peers) > 1 and node in asset.peers and asset.uid != leave_out
        )
        if count < most:
            return False
        refusals.is_other = True
        return True

    def _reserved(self, node: NodeId, storage: str, leave_out: Uid) -> int:
        """Bytes that streams on `node` have set aside by their `max_bytes`."""
        return sum(
            max(0, asset.config["max_bytes"])
            for asset in self._assets
            if node in asset.peers and asset.config["storage"] == storage and asset.uid != leave_out
        )

    def _loads(self, *, is_replicated: bool) -> dict[NodeId, tuple[int, int, int]]:
        """Return the load of each node: streams of the same kind (a replicated one costs its peers
        more), then all streams, then the room it lacks."""
        carried = self._carried
        loads = {}
        for node, facts in self.facts.items():
            room_max = facts.get("storage_max", -1)
            room = room_max - facts.get("storage_used", 0) if room_max >= 0 else 0
            same = carried.get((node, is_replicated), 0)
            loads[node] = (same, same + carried.get((node, not is_replicated), 0), -room)
        return loads


class _Refusals:
    """Reasons why nodes were passed over, in nats-server's words."""

    def __init__(self) -> None:
        self.is_offline = False
        self.is_full = False
        self.is_tag_shared = False
        self.is_other = False
        self.unmatched: dict[str, None] = {}
        self.excluded: dict[str, None] = {}

    def error(self) -> JsError:
        parts = ["no suitable peers for placement"]
        if self.is_offline:
            parts.append("peer offline")
        if self.is_full:
            parts.append("insufficient storage")
        if self.is_tag_shared:
            parts.append("server tag not unique")
        if self.is_other:
            parts.append("miscellaneous issue")
        if self.unmatched:
            parts.append(f"tags not matched [{_quoted(self.unmatched)}]")
        if self.excluded:
            parts.append(f"tags excluded [{_quoted(self.excluded)}]")
        return errors.CLUSTER_NO_PEERS(err=", ".join(parts))


def _quoted(tags: Iterable[str]) -> str:
    return ", ".join(f"'{tag}'" for tag in tags)


def rescale(
    cluster: ClusterView, asset: StreamAsset, config: StreamConfig, *, leader: NodeId
) -> list[NodeId] | None:
    """Return the peers of a stream whose config becomes `config`; None: they stay as they are.

    More replicas: the present ones and new ones. Fewer: the leader and those that are up stay. A
    new placement: who suits it stays, others are replaced; without one any more, nobody moves.
    """
    old = asset.config
    is_scaled = config["num_replicas"] != old["num_replicas"]
    placement = config["placement"] or {}
    is_moved = bool(placement) and placement != (old.get("placement") or {})
    if is_moved and is_scaled:
        raise errors.STREAM_MOVE_AND_SCALE()
    if not is_moved and not is_scaled:
        return None
    if is_moved and asset.is_moving:
        raise errors.STREAM_MOVE_IN_PROGRESS()
    order = {node: place for place, node in enumerate(asset.peers)}
    keep = sorted(
        asset.peers, key=lambda node: (node != leader, not cluster.is_up(node), order[node])
    )
    if is_moved:
        keep = [node for node in keep if cluster.suits(node, config)]
    peers = cluster.choose(config, keep=keep, leave_out=asset.uid)
    return None if set(peers) == set(asset.peers) else peers


def replace(cluster: ClusterView, asset: StreamAsset, node: NodeId) -> list[NodeId]:
    """Return the peers of a stream that is to leave `node`; raises PEER_REMAP if nobody can take
    its place."""
    keep = [peer for peer in asset.peers if peer != node]
    try:
        return cluster.choose(
            asset.config | {"num_replicas": len(asset.peers)},
            keep=keep,
            without=(node,),
            leave_out=asset.uid,
        )
    except JsError:
        raise errors.PEER_REMAP() from None


def relocate(
    cluster: ClusterView, asset: StreamAsset, node: NodeId, wanted: Placement
) -> list[NodeId]:
    """Return the peers of a stream of which one leaves `node` for a server that `wanted` asks for;
    raises CLUSTER_NO_PEERS, saying why, if there is none. Without a `node` the first leaves that
    `wanted` does not ask for, else the first."""
    config: StreamConfig = asset.config | {"placement": wanted, "num_replicas": len(asset.peers)}
    if not node:
        strangers = (peer for peer in asset.peers if not cluster.suits(peer, config))
        node = next(strangers, asset.peers[0])
    keep = [peer for peer in asset.peers if peer != node]
    return cluster.choose(config, keep=keep, without=(node,), leave_out=asset.uid)
