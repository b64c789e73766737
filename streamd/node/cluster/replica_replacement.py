"""`ReplicaReplacement`: the meta leader gives streams that are short of replicas new peers.

Replicas are missing after a server was removed. A server that joins anew under a removed server's
name is let in first.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.meta import StreamAsset
from streamd.node.cluster.node_facts import NodeFacts
from streamd.node.cluster.placement import ClusterView
from streamd.node.context import NodeContext
from streamd.node.meta_group.meta_proposals import MetaProposals
from streamd.node.ports import Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.types import NodeId, Uid


class ReplicaReplacement:
    """Replacements that one node proposes while it leads the meta group. `view` returns what it
    knows of all nodes now."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        facts: NodeFacts,
        peers: Peers | None,
        proposals: MetaProposals,
        view: Callable[[], ClusterView],
    ) -> None:
        self._context = context
        self._groups = groups
        self._facts = facts
        self._peers = peers
        self._proposals = proposals
        self._view = view
        self._placing: dict[Uid, int] = {}  # proposed, with the time in ms when that is over
        self._in_vain: tuple[list[NodeId], int] | None = None  # nodes and streams at a check
        self._next_ms = 0  # that changed nothing, and when to check whatever has changed

    def check(self) -> None:
        """Admit servers that join anew, and propose peers for streams that are short of them."""
        meta, clock = self._groups.meta, self._context.env.clock
        now_ns = clock.now_ns()
        for name in sorted(meta.out.intersection(self._facts.known_members())):
            self._proposals.propose_anywhere([commands.ADMIT_SERVER, now_ns, name])
        now_ms = clock.monotonic_ms()
        self._placing = {uid: end for uid, end in self._placing.items() if now_ms < end}
        thin = meta.thin
        state = (self._peers.nodes() if self._peers is not None else [], len(thin))
        if not thin or (state == self._in_vain and now_ms < self._next_ms):
            return
        view = self._view()
        for uid in sorted(thin - self._placing.keys()):
            if len(self._placing) >= limits.REPLACEMENTS_MAX:
                break
            asset = meta.streams_by_uid[uid]
            peers = _filled(view, asset)
            if peers != list(asset.peers):
                self._propose(asset, peers, now_ms)
        if not self._placing:
            self._in_vain = state
            self._next_ms = now_ms + int(limits.FACTS_EVERY_S * 1000)

    def _propose(self, asset: StreamAsset, peers: list[NodeId], now_ms: int) -> None:
        uid = asset.uid

        def placed(outcome: object) -> None:
            self._placing.pop(uid, None)

        self._placing[uid] = now_ms + limits.API_CONFIGURED_MS
        now_ns = self._context.env.clock.now_ns()
        command = [commands.SET_PEERS, now_ns, uid, peers, asset.basis]
        self._proposals.propose(command, placed)


def _filled(view: ClusterView, asset: StreamAsset) -> list[NodeId]:
    """Return the peers of a stream with as many others as fit, up to what it wants."""
    for count in range(asset.config["num_replicas"], len(asset.peers), -1):
        config = asset.config | {"num_replicas": count}
        try:
            return view.choose(config, keep=asset.peers, leave_out=asset.uid)
        except JsError:
            continue  # one less
    return list(asset.peers)
