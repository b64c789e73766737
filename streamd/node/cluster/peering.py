"""`Peering`: links to the other nodes: which are accepted, first words, parts that hear of it.

A link that comes up is judged by three parts in turn: is it the same cluster (identity/bootstrap),
was either side removed (server_removal), is either side's data an older copy (incarnations). Then
every group that has the node as a member hears that it is here. Raft's own messages pass through
`LocalNode.on_raft`; calls and notes through peer_requests.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd.callbacks import ignore
from streamd.errors import ConfigError
from streamd.node.cluster.leader_news import LeaderNews
from streamd.node.cluster.node_facts import NodeFacts
from streamd.node.cluster.server_removal import ServerRemoval
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.identity.bootstrap import Bootstrap
from streamd.node.identity.incarnations import Incarnations
from streamd.node.ports import Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.protocol.node_hello import Hello
from streamd.types import NodeId


class Peering:
    """Links of one node; without `peers` it is a single server, and nothing is sent."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        peers: Peers | None,
        facts: NodeFacts,
        news: LeaderNews,
        incarnations: Incarnations,
    ) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self._facts = facts
        self._news = news
        self._incarnations = incarnations
        self._bootstrap: Bootstrap | None = None
        self._removal: ServerRemoval | None = None
        self.on_link_down: Callable[[NodeId], None] = ignore
        self._has_joined = False  # a cluster that was there, in this process's life

    def judge_by(self, bootstrap: Bootstrap, removal: ServerRemoval) -> None:
        """Name the two parts that judge links and need to send on them; before the first link."""
        self._bootstrap, self._removal = bootstrap, removal

    # --- what is said first -----------------------------------------------------------------

    def hello(self) -> Hello:
        """Return what the other side of a new link is told; see ports.PeerHandler."""
        identity = self._context.identity
        facts = self._facts.refresh_own()
        voters = list(identity.voters)
        group = self._groups.meta_group
        if group is not None and not group.raft.is_uncertain:
            voters = list(group.raft.members.voters)
        assert self._removal is not None
        return {
            "cluster_id": identity.cluster_id,
            "incarnation": identity.facts.get("id", ""),
            "is_virgin": not identity.cluster_id,
            "voters": voters,
            "facts": facts,
            **self._removal.hello(),
            **self._incarnations.hello(),
        }

    def renew_hello(self, bootstrap_members: list[NodeId]) -> None:
        """Tell the nodes that this one met before that it belongs to a cluster now.

        The node that forms the cluster tells the other `bootstrap_members`: a hello that came first
        would make them think that they had been in the cluster and forgot.
        """
        self._has_joined = not bootstrap_members
        if self._peers is not None:
            for node_id in self._peers.nodes():
                if node_id not in bootstrap_members:
                    self._peers.note(node_id, "hello", [self.hello()])
                self._introduce_to(node_id)

    # --- links ------------------------------------------------------------------------------

    def on_peer_up(self, node_id: NodeId, hello: Hello) -> None:
        """Take in a node whose link is up. Raises ConfigError if it must not be talked to."""
        if not hello:
            return  # a server without JetStream: it is no member of anything
        assert self._peers is not None and self._bootstrap is not None
        self._check(node_id, hello)
        self._incarnations.check(node_id, hello)
        self._bootstrap.on_peer_up(node_id, hello)
        self._facts.record(node_id, hello)
        if self._has_joined:
            # The hello of this link may have left before we joined; the meta leader counts by it.
            self._peers.note(node_id, "hello", [self.hello()])
        self._news.on_up(node_id)
        self._introduce_to(node_id)

    def on_hello_renewed(self, sender: NodeId, args: tuple[Hello]) -> None:
        """Take in a node that joined a cluster after its link came up: the note `hello`."""
        hello = args[0]
        assert self._bootstrap is not None
        try:
            self._check(sender, hello)
        except ConfigError as err:
            self._context.log.error("peer refused", peer=sender, reason=str(err))
            return
        self._facts.record(sender, hello)
        self._bootstrap.on_peer_up(sender, hello)
        self._introduce_to(sender)

    def _check(self, node_id: NodeId, hello: Hello) -> None:
        assert self._bootstrap is not None and self._removal is not None
        self._bootstrap.check_cluster(node_id, hello)
        self._removal.check(node_id, hello)

    def on_peer_down(self, node_id: NodeId) -> None:
        """Tell all parts that a link broke."""
        if self._bootstrap is not None:
            self._bootstrap.on_peer_down(node_id)
        self.on_link_down(node_id)
        self._news.on_down(node_id)
        self._post_to_members(node_id, inbox.PeerDown)

    # --- groups and their members -----------------------------------------------------------

    def introduce(self, monitor: Monitor, members: tuple[NodeId, ...]) -> None:
        """Tell a group which of its new `members` are here."""
        if self._peers is None:
            return
        live = self._live()
        for node_id in self._peers.nodes():
            if node_id in members:
                monitor.post(inbox.PeerUp(node_id, live))

    def _introduce_to(self, node_id: NodeId) -> None:
        """Tell every group that has `node_id` as a member that it is here."""
        self._post_to_members(node_id, inbox.PeerUp)

    def _live(self) -> frozenset[NodeId]:
        assert self._peers is not None
        return frozenset((self._context.name, *self._peers.nodes()))

    def _post_to_members(self, node_id: NodeId, kind: type[inbox.PeerUp | inbox.PeerDown]) -> None:
        live = self._live()
        if self._groups.meta_monitor is not None:
            self._groups.meta_monitor.post(kind(node_id, live))
        for replica in self._groups:
            if node_id in replica.group.raft.members.members():
                replica.monitor.post(kind(node_id, live))
