"""`ConnectionCounts`: connections of limited accounts over the whole cluster.

`max_connections` and `max_leafnodes` bound what all nodes have together. Nodes tell each other how
many there are, at the end of the loop's iteration in which that changed: the note `net.conns`, rows
of [account, clients, leaf nodes], all of them when a link comes up. Two nodes may let clients in
before they hear of each other's, and a reload may lower a limit: then nodes keep theirs in the
order of their names, and each ends its newest, so that no more go than must.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from streamd.config.account_options import AccountLimits
from streamd.types import NodeId

OnNode = Callable[[NodeId], None]
Row = tuple[str, int, int]


class CountedAccount(Protocol):
    """An account with its clients here: account.py."""

    @property
    def name(self) -> str: ...

    @property
    def cids(self) -> set[int]: ...

    @property
    def limits(self) -> AccountLimits: ...


class PeerLinks(Protocol):
    """Links to the other nodes: route/links.py."""

    def nodes(self) -> list[NodeId]:
        """Nodes with a link."""

    def note(self, node_id: NodeId, kind: str, args: Sequence[object]) -> None:
        """Tell a node something; nobody answers."""

    def on_note_prefix(self, prefix: str, take: Callable[[NodeId, str, list[Row]], None]) -> None:
        """Hand notes whose kind starts with `prefix` to `take`."""

    def on_up(self, on_change: OnNode) -> None:
        """Call when a link is up."""

    def on_down(self, on_change: OnNode) -> None:
        """Call when a link is gone."""


class ConnectionCounts:
    """Counts of one node. Without other nodes, what is elsewhere is nothing."""

    def __init__(self, accounts: Callable[[], list[CountedAccount]]) -> None:
        self._accounts = accounts
        self._own_name: NodeId = ""
        self._links: PeerLinks | None = None
        self._call_soon: Callable[[Callable[[], None]], object]
        self._elsewhere: dict[NodeId, dict[str, tuple[int, int]]] = {}
        self._changed: set[str] = set()  # accounts of which other nodes are told soon
        # Given by who has the connections.
        self.leafs_here: Callable[[str], int] = lambda _account: 0
        self.end_client: Callable[[int], None] = lambda _cid: None

    def join(
        self,
        links: PeerLinks,
        own_name: NodeId,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Exchange counts with other nodes from here on. `call_soon` is the event loop's; it may be
        left out where a loop is running."""
        self._links, self._own_name = links, own_name
        self._call_soon = call_soon or asyncio.get_running_loop().call_soon
        links.on_note_prefix("net.conns", self._on_note)
        links.on_up(self._on_up)
        links.on_down(self._on_down)

    # --- counts -----------------------------------------------------------------------------------

    def has_room(self, account: CountedAccount) -> bool:
        """True if the account may have one more client."""
        most = account.limits.max_connections
        return not 0 <= most <= len(account.cids) + self.clients_elsewhere(account.name)

    def clients_elsewhere(self, account: str) -> int:
        """Return the number of an account's clients at other nodes."""
        return sum(counts[account][0] for counts in self._elsewhere.values() if account in counts)

    def leafs_max(self, account: CountedAccount) -> int:
        """Return the most leaf nodes that the account may have here; -1: any number."""
        most = account.limits.max_leafnodes
        if most < 0:
            return -1
        counts = self._elsewhere.values()
        return max(0, most - sum(each[account.name][1] for each in counts if account.name in each))

    def changed(self, account: CountedAccount) -> None:
        """Tell other nodes soon that a connection came or went."""
        if self._links is not None and _is_limited(account.limits):
            self._tell(account.name)

    def _tell(self, name: str) -> None:
        if not self._changed:
            self._call_soon(self._send)
        self._changed.add(name)

    def limits_changed(self) -> None:
        """Hold accounts to limits that were read again: the newest clients end."""
        for account in self._accounts():
            self.hold(account)

    def hold(self, account: CountedAccount) -> None:
        """Hold an account to limits that are others now."""
        self.changed(account)
        self._cut(account)

    def _cut(self, account: CountedAccount) -> None:
        most = account.limits.max_connections
        name, here = account.name, len(account.cids)
        if most < 0 or here + self.clients_elsewhere(name) <= most:
            return
        before = sum(
            counts[name][0]
            for node, counts in self._elsewhere.items()
            if name in counts and node < self._own_name
        )
        kept = max(0, most - before)
        for cid in sorted(account.cids)[kept:]:
            self.end_client(cid)

    # --- notes ------------------------------------------------------------------------------------

    def _send(self) -> None:
        changed, self._changed = self._changed, set()
        rows = [row for row in self._rows() if row[0] in changed]
        if rows and self._links is not None:
            for node_id in self._links.nodes():
                self._links.note(node_id, "net.conns", rows)

    def _rows(self) -> list[Row]:
        return [
            (account.name, len(account.cids), self.leafs_here(account.name))
            for account in self._accounts()
            if _is_limited(account.limits)
        ]

    def _on_up(self, node_id: NodeId) -> None:
        rows = [row for row in self._rows() if row[1] or row[2]]
        if rows and self._links is not None:
            self._links.note(node_id, "net.conns", rows)

    def _on_down(self, node_id: NodeId) -> None:
        self._elsewhere.pop(node_id, None)

    def _on_note(self, sender: NodeId, kind: str, rows: list[Row]) -> None:
        counts = self._elsewhere.setdefault(sender, {})
        for name, clients, leafs in rows:
            if clients or leafs:
                counts[name] = clients, leafs
            else:
                counts.pop(name, None)
        told = {row[0] for row in rows}
        for account in self._accounts():
            if account.name in told:
                self._cut(account)


def _is_limited(limits: AccountLimits) -> bool:
    return limits.max_connections >= 0 or limits.max_leafnodes >= 0
