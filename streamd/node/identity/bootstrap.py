"""How nodes without data become one cluster, once, and how a node that lost its data comes back.

A cluster is born when all nodes that were configured to be in it have met and none belongs to one
yet: the one with the smallest name draws the cluster's id, writes it down with everybody's names
and tells the others. So two nodes that lost their disks can't found a second cluster while the
third, who has the data, is away: they wait for it. Who meets a member of a cluster joins it, as
one who may have forgotten what it once promised (see raft/, "uncertain"). A server without
JetStream has no part in this, whoever names it in its routes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd.callbacks import ignore
from streamd.errors import ConfigError
from streamd.limits import BOOTSTRAP_QUIET_LOOKS
from streamd.node.ports import Peers
from streamd.types import NodeId


class Bootstrap:
    """Decides which cluster this node belongs to. `on_decided(is_uncertain)` is called once.

    `save` makes `identity` durable, or returns False: then the node is at its end. `expected_size`
    counts the servers with JetStream that are configured, this one included, as far as is known.
    """

    def __init__(
        self,
        *,
        name: NodeId,
        identity: dict[str, Any],
        expected_size: Callable[[], int],
        peers: Peers,
        random_id: Callable[[], str],
        save: Callable[[], bool],
        on_decided: Callable[[bool], None],
    ) -> None:
        self._name = name
        self._identity = identity
        self._expected_size = expected_size
        self._peers = peers
        self._random_id = random_id
        self._save = save
        self._on_decided = on_decided
        self._hellos: dict[NodeId, dict[str, Any]] = {}
        self._quiet_looks = 0  # since another node came or went

    @property
    def is_decided(self) -> bool:
        return bool(self._identity.get("cluster_id"))

    def check(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """Raise ConfigError if `node_id` belongs to another cluster than this node."""
        theirs, ours = hello.get("cluster_id", ""), self._identity.get("cluster_id", "")
        if theirs and ours and theirs != ours:
            raise ConfigError(
                f"node {node_id} belongs to another cluster with other data: its id is {theirs}, "
                f"ours {ours}"
            )

    def on_peer_up(self, node_id: NodeId, hello: dict[str, Any]) -> None:
        """Another node is here."""
        self._hellos[node_id] = hello
        self._quiet_looks = 0
        self._look()

    def on_peer_down(self, node_id: NodeId) -> None:
        """And gone again."""
        self._hellos.pop(node_id, None)
        self._quiet_looks = 0

    def look(self) -> None:
        """Join or found a cluster, if that can be decided now; called again and again."""
        self._quiet_looks += 1
        self._look()

    def waits_for(self) -> str:
        """Say what has to happen before there is a cluster."""
        names = self._here()
        missing = max(self._expected_size(), 2) - len(names)
        if missing > 0:
            return f"{missing} more server{'s' * (missing > 1)} with JetStream"
        if names[0] != self._name:
            return f"{names[0]} to found it"
        return "nobody else to come"

    def _here(self) -> list[NodeId]:
        return sorted([self._name, *self._hellos])

    def _look(self) -> None:
        if self.is_decided:
            return
        for node_id in sorted(self._hellos):
            hello = self._hellos[node_id]
            if hello.get("cluster_id"):
                self._identity["removal"] = self._latest_removal(hello["cluster_id"])
                self._adopt(hello["cluster_id"], list(hello["voters"]), is_uncertain=True)
                return
        names, expected = self._here(), self._expected_size()
        if len(names) < max(expected, 2) or names[0] != self._name:
            return
        if expected < 2 and self._quiet_looks < BOOTSTRAP_QUIET_LOOKS:
            return  # the routes lead to servers without JetStream alone: who there is takes a while
        cluster_id = self._random_id()
        if not self._keep(cluster_id, names, is_uncertain=False):
            return
        for node_id in names[1:]:
            # Before anything else tells them that there is a cluster: they belong to it from
            # its first hour, and have nothing they could have forgotten.
            # A node that is not reached meets this one again, and joins.
            self._peers.call(node_id, "bootstrap", [cluster_id, names], ignore)
        self._on_decided(False)

    def _latest_removal(self, cluster_id: str) -> int:
        """When a server of this node's name was last removed from the cluster: this one, with
        its empty directory, joins after that."""
        return max(
            int(hello.get("removals", {}).get(self._name, 0))
            for hello in self._hellos.values()
            if hello.get("cluster_id") == cluster_id
        )

    def on_call(self, args: list[Any]) -> Any:
        """The founder tells which cluster this is; returns the id this node belongs to."""
        cluster_id, voters = args
        if not self.is_decided and self._name in voters:
            self._adopt(cluster_id, list(voters), is_uncertain=False)
        return self._identity.get("cluster_id", "")

    def _adopt(self, cluster_id: str, voters: list[NodeId], *, is_uncertain: bool) -> None:
        if self._keep(cluster_id, voters, is_uncertain=is_uncertain):
            self._on_decided(is_uncertain)

    def _keep(self, cluster_id: str, voters: list[NodeId], *, is_uncertain: bool) -> bool:
        """False: it can't be written down, so this node belongs to no cluster."""
        before = dict(self._identity)
        self._identity |= {
            "cluster_id": cluster_id,
            "voters": voters,
            "is_rejoined": is_uncertain,
        }
        if is_uncertain:
            self._identity["is_new"] = True
        if self._save():
            return True
        self._identity.clear()
        self._identity |= before
        return False
