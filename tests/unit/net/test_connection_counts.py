"""Connections of an account that is limited, counted over several nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from streamd.config.account_options import AccountLimits, AccountOptions
from streamd.net.accounts.account_spaces import Accounts
from streamd.protocol.peer_schemas import check_note


class Nodes:
    """Nodes of a cluster with the accounts A and F (without limits), and the links between them.
    Notes arrive when `settle` is called."""

    def __init__(self, *names: str, most: int, leafs: int = -1) -> None:
        self.soon: list[Callable[[], None]] = []
        self.nodes = {name: Node(self, name, most, leafs) for name in names}
        self.note_count = 0

    def settle(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def clients(self) -> dict[str, list[int]]:
        return {name: sorted(node.account.cids) for name, node in self.nodes.items()}


class Node:
    """One node; as links, those to the others."""

    def __init__(self, cluster: Nodes, name: str, most: int, leafs: int) -> None:
        self.cluster, self.name = cluster, name
        self.ended: list[int] = []
        self.leafs = 0
        self.accounts = Accounts({"A": AccountOptions("A"), "F": AccountOptions("F")})
        self.limit(most, leafs)
        self.counts = self.accounts.counts
        self.counts.end_client = self._end
        self.counts.leafs_here = lambda account: self.leafs if account == "A" else 0
        self.counts.join(self, name, cluster.soon.append)
        self._cid = 0

    @property
    def account(self) -> Any:
        return self.accounts.obtain("A")

    def limit(self, most: int, leafs: int = -1) -> None:
        options = AccountOptions("A", limits=AccountLimits(most, leafs))
        self.accounts.change({"A": options, "F": AccountOptions("F")})

    def enter(self, account: str = "A") -> bool:
        self._cid += 1
        return self.accounts.enter(self._cid, account)

    def _end(self, cid: int) -> None:
        self.ended.append(cid)
        self.accounts.leave(cid, "A")

    # --- links ---

    def nodes(self) -> list[str]:
        return [name for name in self.cluster.nodes if name != self.name]

    def note(self, node_id: str, kind: str, args: Sequence[Any]) -> None:
        rows = [list(row) for row in args]  # as they come over a link
        check_note(kind, list(rows))
        self.cluster.note_count += 1
        take = self.cluster.nodes[node_id].take
        self.cluster.soon.append(lambda: take(self.name, kind, rows))

    def on_note_prefix(self, prefix: str, take: Any) -> None:
        self.take = take

    def on_up(self, on_change: Any) -> None:
        self.up = on_change

    def on_down(self, on_change: Any) -> None:
        self.down = on_change


def test_a_limit_is_of_all_nodes_together() -> None:
    cluster = Nodes("a", "b", most=3)
    a, b = cluster.nodes.values()
    assert a.enter() and a.enter() and b.enter()
    cluster.settle()
    assert not a.enter() and not b.enter()
    a.accounts.leave(1, "A")
    cluster.settle()
    assert b.enter()
    cluster.settle()
    assert not a.enter()


def test_accounts_without_limits_cost_no_notes() -> None:
    cluster = Nodes("a", "b", most=3)
    assert cluster.nodes["a"].enter("F")
    cluster.settle()
    assert cluster.note_count == 0


def test_many_changes_are_one_note_a_node() -> None:
    cluster = Nodes("a", "b", "c", most=100)
    for _ in range(50):
        assert cluster.nodes["a"].enter()
    cluster.settle()
    assert cluster.note_count == 2


def test_clients_that_came_at_once_at_two_nodes_end_at_the_later_by_name() -> None:
    """No more than must: both nodes decide alike, without asking."""
    cluster = Nodes("a", "b", most=3)
    a, b = cluster.nodes.values()
    for node in (b, a):
        assert node.enter() and node.enter()
    cluster.settle()
    assert cluster.clients() == {"a": [1, 2], "b": [1]}
    assert b.ended == [2] and not a.ended


def test_a_lower_limit_ends_the_newest() -> None:
    cluster = Nodes("a", "b", most=6)
    for node in cluster.nodes.values():
        assert node.enter() and node.enter() and node.enter()
    cluster.settle()
    for node in cluster.nodes.values():
        node.limit(4)
        node.counts.limits_changed()
        cluster.settle()
    assert cluster.clients() == {"a": [1, 2, 3], "b": [1]}


def test_a_limit_that_is_new_counts_who_is_there_already() -> None:
    cluster = Nodes("a", "b", most=-1)
    for node in cluster.nodes.values():
        assert node.enter() and node.enter()
    for node in cluster.nodes.values():
        node.limit(5)
        node.counts.limits_changed()
    cluster.settle()
    assert cluster.nodes["a"].enter()
    cluster.settle()
    assert not cluster.nodes["b"].enter()


def test_a_node_that_is_gone_counts_no_more_and_again_when_it_is_back() -> None:
    cluster = Nodes("a", "b", most=2)
    a, b = cluster.nodes.values()
    assert b.enter() and b.enter()
    cluster.settle()
    assert not a.enter()
    a.down("b")
    assert a.enter()
    b.up("a")
    cluster.settle()
    assert cluster.clients() == {"a": [2], "b": [1]}  # one came while the other was not seen
    assert a.counts.clients_elsewhere("A") == 1 and not a.enter()


def test_leaf_nodes_are_counted_likewise() -> None:
    cluster = Nodes("a", "b", most=-1, leafs=2)
    a, b = cluster.nodes.values()
    b.leafs = 1
    b.counts.changed(b.account)
    cluster.settle()
    assert a.counts.leafs_max(a.account) == 1 and b.counts.leafs_max(b.account) == 2
    b.leafs = 0
    b.counts.changed(b.account)
    cluster.settle()
    assert a.counts.leafs_max(a.account) == 2
