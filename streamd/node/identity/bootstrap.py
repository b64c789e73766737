"""`Bootstrap`: nodes without data become one cluster, once; a node that lost its data comes back.

A cluster is born when all nodes that were configured to be in it have met and none belongs to one
yet: the one with the smallest name draws the cluster's id, records it with the names of all
and tells the others. So two nodes that lost their disks can't form a second cluster while the
third, which has the data, is away: they wait for it. A node that meets a member of a cluster joins
it, as one that may have forgotten what it once promised (raft/recovering.py). A server without
JetStream has no part in this, even if it is named in the routes.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import ConfigError
from streamd.node.context import NodeContext
from streamd.node.ports import Answer, Peers
from streamd.protocol.node_hello import Hello
from streamd.store.node_file import Identity
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
        identity: Identity,
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
        self._hellos: dict[NodeId, Hello] = {}
        self._quiet_checks = 0  # since another node came or went

    @property
    def is_decided(self) -> bool:
        """True once this node belongs to a cluster."""
        return bool(self._identity.get("cluster_id"))

    def check_cluster(self, node_id: NodeId, hello: Hello) -> None:
        """Raise ConfigError if `node_id` belongs to another cluster than this node."""
        theirs, ours = hello.get("cluster_id", ""), self._identity.get("cluster_id", "")
        if theirs and ours and theirs != ours:
            raise ConfigError(
                f"node {node_id} belongs to another cluster with other data: its id is {theirs}, "
                f"ours {ours}"
            )

    def on_peer_up(self, node_id: NodeId, hello: Hello) -> None:
        """Take in what a node says whose link is up."""
        self._hellos[node_id] = hello
        self._quiet_checks = 0
        self._decide()

    def on_peer_down(self, node_id: NodeId) -> None:
        """Forget a node whose link broke."""
        self._hellos.pop(node_id, None)
        self._quiet_checks = 0

    def check(self) -> None:
        """Join or form a cluster, if that can be decided now; called again and again."""
        self._quiet_checks += 1
        self._decide()

    def waits_for(self) -> str:
        """Say what has to happen before there is a cluster."""
        names = self._here()
        missing = max(self._expected_size(), 2) - len(names)
        if missing > 0:
            return f"{missing} more server{'s' * (missing > 1)} with JetStream"
        if names[0] != self._name:
            return f"server {names[0]} to form it"
        return "a moment in which no further server appears"

    def _here(self) -> list[NodeId]:
        return sorted([self._name, *self._hellos])

    def _decide(self) -> None:
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
        if expected < 2 and self._quiet_checks < limits.BOOTSTRAP_QUIET_LOOKS:
            return  # the routes lead to servers without JetStream alone: who there is takes a while
        cluster_id = self._random_id()
        if not self._keep(cluster_id, names, is_uncertain=False):
            return
        for node_id in names[1:]:
            # Before anything else tells them that there is a cluster: they belong to it from
            # its first hour, and have nothing they could have forgotten.
            self._peers.call(node_id, "bootstrap", [cluster_id, names], ignore)
        self._on_decided(False)

    def _latest_removal(self, cluster_id: str) -> int:
        """Return the meta entry that last removed a server of this node's name: this one, with
        its empty directory, joins after that."""
        return max(
            int(hello.get("removals", {}).get(self._name, 0))
            for hello in self._hellos.values()
            if hello.get("cluster_id") == cluster_id
        )

    def serve(self, sender: NodeId, args: tuple[str, list[NodeId]], answer: Answer) -> None:
        """Join the cluster that another node has formed: the call `bootstrap`, answered by the id
        of the cluster that this node belongs to."""
        cluster_id, voters = args
        if not self.is_decided and self._name in voters:
            self._adopt(cluster_id, list(voters), is_uncertain=False)
        answer(self._identity.get("cluster_id", ""))

    def _adopt(self, cluster_id: str, voters: list[NodeId], *, is_uncertain: bool) -> None:
        if self._keep(cluster_id, voters, is_uncertain=is_uncertain):
            self._on_decided(is_uncertain)

    def _keep(self, cluster_id: str, voters: list[NodeId], *, is_uncertain: bool) -> bool:
        """Save which cluster this is; False: that failed, so this node belongs to none."""
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


class BootstrapRetry:
    """Asks the bootstrap again and again until it has decided, and tells what it waits for.

    `unreached`: configured servers without a link.
    """

    def __init__(
        self, context: NodeContext, bootstrap: Bootstrap, unreached: Callable[[], list[str]]
    ) -> None:
        self._context = context
        self._bootstrap = bootstrap
        self._unreached = unreached
        self._check_count = 0
        self._told = ""  # what was said last

    def check(self) -> None:
        """Decide now if that is possible, else in a while."""
        if self._bootstrap.is_decided:
            return
        self._bootstrap.check()
        if not self._bootstrap.is_decided:
            self._tell(self._bootstrap.waits_for())
            self._context.timers.later("bootstrap", limits.BOOTSTRAP_RETRY_S, self.check)

    def _tell(self, awaited: str) -> None:
        """Log what the cluster waits for before it is formed: after a moment, and on a change."""
        self._check_count += 1
        unreached = " ".join(self._unreached())
        if self._check_count < limits.BOOTSTRAP_TOLD_LOOKS:
            return
        if f"{awaited} {unreached}" == self._told:
            return
        self._told = f"{awaited} {unreached}"
        facts = {"unreached": unreached} if unreached else {}
        text = f"JetStream cluster is not formed yet: waiting for {awaited}"
        self._context.log.warn(text, **facts)
