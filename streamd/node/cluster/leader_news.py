"""`LeaderNews`: what this node leads is told to the others, and what they lead is recorded here.

Members of an idle group notice by this note alone that its leader serves it no more: the link to
that node stays up.
"""

from __future__ import annotations

from collections.abc import Callable

from streamd.callbacks import ignore
from streamd.node.cluster.leaders import Leaders
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.meta_group.catalog import Catalogs
from streamd.node.ports import Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.types import META_UID, NodeId, Term, Uid

LeaderRow = tuple[Uid, Term, bool]
"""Group, term, and whether the sender leads the group in that term, or does no more."""


class LeaderNews:
    """Announcements of one node. `on_changed(uid)` is called when another node's word on the
    leader of a group has come."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        catalogs: Catalogs,
        peers: Peers | None,
    ) -> None:
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._catalogs = catalogs
        self._peers = peers
        self._announced: set[Uid] = set()  # about to be told
        self._told: dict[Uid, Term] = {}  # what this node said it leads, and in which term
        self.on_changed: Callable[[Uid], None] = ignore

    def record_own(self, uid: Uid, term: Term, *, is_ready: bool) -> None:
        """Record that this node began or ceased to lead a group, and tell all nodes soon."""
        self._leaders.record_own(uid, term, is_ready=is_ready)
        self.announce(uid)

    def announce(self, uid: Uid) -> None:
        """Tell all nodes, soon, whether this node leads `uid`."""
        if not self._announced:
            self._context.env.loop.call_soon(self._send)
        self._announced.add(uid)

    def forget(self, uid: Uid) -> None:
        """Remove a deleted stream: its leader is asked for no more."""
        self._told.pop(uid, None)
        self._leaders.forget(uid)

    def _send(self) -> None:
        announced, self._announced = self._announced, set()
        if self._peers is None:
            return
        # Not what the groups believe: one that is being closed gets no turn to learn better.
        leaders = self._leaders
        rows: list[LeaderRow] = []
        for uid in sorted(announced):
            term = leaders.own_term(uid)
            if term:
                self._told[uid] = term
                rows.append((uid, term, True))
            elif uid in self._told:
                # Only the end of what others were told of. A member that was elected just now
                # leads nothing yet either, and said "no more" would be deposed by its followers.
                rows.append((uid, self._told.pop(uid), False))
        if not rows:
            return
        for node_id in self._peers.nodes():
            self._peers.note(node_id, "leaders", rows)

    def on_up(self, node_id: NodeId) -> None:
        """Tell a node whose link came up of all that this one leads."""
        own = self._leaders.own()
        if own and self._peers is not None:
            self._told.update(own)
            self._peers.note(node_id, "leaders", [[uid, term, True] for uid, term in own])

    def on_down(self, node_id: NodeId) -> None:
        """Record that a node whose link broke leads nothing from here."""
        self._leaders.on_down(node_id)
        self._catalogs.changed()

    def on_note(self, sender: NodeId, rows: list[LeaderRow]) -> None:
        """Record what another node leads, or leads no more: the note `leaders`."""
        meta = self._groups.meta
        for uid, term, is_ready in rows:
            if uid != META_UID and meta.is_deleted(uid):
                continue  # its leader heard of that later than we did, and nobody says so again
            if not is_ready:
                self._wake_followers(sender, uid, term)
            self._leaders.record(sender, uid, term, is_ready=is_ready)
            self.on_changed(uid)
        self._catalogs.changed()

    def _wake_followers(self, sender: NodeId, uid: Uid, term: Term) -> None:
        """Tell the member here that the leader of `term` stopped serving one group while its node
        goes on: at rest it would not notice by itself. That node may lead again, in a later
        term."""
        group, monitor = self._groups.group_of(uid), self._groups.monitor_of(uid)
        if group is None or monitor is None or self._peers is None:
            return
        if group.raft.leader_id == sender and group.raft.term <= term:
            live = frozenset((self._context.name, *self._peers.nodes()))
            monitor.post(inbox.PeerDown(sender, live))
            monitor.post(inbox.PeerUp(sender, live))
