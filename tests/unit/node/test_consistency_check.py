"""What a node's replicas hold is told to each other node for many groups at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from streamd import limits
from streamd.node.integrity.consistency_check import ConsistencyCheck
from tests.unit.node.contexts import context_of


class _Node:
    """As much of node `a`, with groups on a, b and c, as comparing needs."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, list[Any]]] = []
        self.due: list[Any] = []
        self.repaired: list[int] = []
        members = SimpleNamespace(members=lambda: ("a", "b", "c"), voters=("a", "b", "c"))
        self.group = SimpleNamespace(raft=SimpleNamespace(members=members))

    def later(self, name: str, delay_s: float, callback: Any) -> None:
        self.due.append(callback)

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        self.notes.append((node_id, kind, args))

    def is_up(self, node_id: str) -> bool:
        return True

    def group_of(self, uid: int) -> Any:
        return self.group if uid < 10_000 else None

    def repair(self, uid: int, text: str) -> None:
        self.repaired.append(uid)


def _of(node: Any) -> ConsistencyCheck:
    context = context_of(timers=node)
    return ConsistencyCheck(context, groups=node, peers=node, control=node)


def test_many_groups_are_one_note_to_each_node() -> None:
    node: Any = _Node()
    checks = _of(node)
    for uid in range(1, 301):
        checks.send(uid, node.group, [(5, uid * 7)])
    assert node.notes == [] and len(node.due) == 1
    node.due.pop()()
    rows = [(uid, 5, uid * 7) for uid in range(1, 301)]
    assert node.notes == [("b", "digests", rows), ("c", "digests", rows)]
    checks.send(1, node.group, [(6, 1)])
    assert len(node.due) == 1  # and the next ones in time


def test_no_note_takes_its_reader_for_long() -> None:
    node: Any = _Node()
    checks = _of(node)
    for uid in range(1, 2 * limits.COMPARE_ROWS + 2):
        checks.send(uid, node.group, [(5, 1)])
    node.due.pop()()
    assert [len(rows) for to, _, rows in node.notes if to == "b"] == [
        limits.COMPARE_ROWS, limits.COMPARE_ROWS, 1,
    ]  # fmt: skip


def test_a_replica_that_differs_from_the_majority_is_made_anew() -> None:
    """And a group that is not here any more is no matter."""
    node: Any = _Node()
    checks = _of(node)
    for uid in (1, 2, 3):
        checks.send(uid, node.group, [(5, uid)])
    checks.on_digests("b", [[1, 5, 1], [2, 5, 222], [3, 5, 3], [10_000, 5, 1]])
    assert node.repaired == []
    checks.on_digests("c", [[1, 5, 1], [2, 5, 222], [3, 5, 3]])
    assert node.repaired == [2]
    assert checks.drift_count == 1
    assert checks.latest(1) == (5, 1)
    assert checks.agreement(1) == {"b": True, "c": True}
    assert checks.latest(2) == (0, 0)
