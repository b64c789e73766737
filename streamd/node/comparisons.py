"""What the replicas of this node's groups hold is told to the other members, and judged.

A node tells each other node of all its groups together: what came up since it last did is one note.
`digests` says what is compared, and when; a majority is right (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.node.digests import Digests, Verdict
from streamd.types import Index, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.group import Group
    from streamd.node.node import Node

Row = list[Any]  # group, index, fingerprint


class Comparisons:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._digests = Digests(node.server_name)
        self._untold: dict[NodeId, list[Row]] = {}
        self.forget = self._digests.forget
        self.latest = self._digests.latest

    def tell(self, uid: Uid, group: Group, found: Iterable[tuple[Index, int]]) -> None:
        """This node's replica holds that: (index, fingerprint). The other members hear it soon."""
        node = self._node
        own, untold = node.server_name, self._untold
        for index, fingerprint in found:
            for node_id in group.raft.members.members():
                if node_id != own:
                    if not untold:
                        node.timers.later("comparisons", limits.COMPARE_DELAY_S, self._send)
                    untold.setdefault(node_id, []).append([uid, index, fingerprint])
            self._judge(uid, group, index, own, fingerprint)

    def _send(self) -> None:
        untold, self._untold = self._untold, {}
        node = self._node
        if node.peers is None:
            return
        count = limits.COMPARE_ROWS
        for node_id, rows in untold.items():
            if node.peering.all_know("compares", (node_id,)):
                for at in range(0, len(rows), count):
                    node.peers.note(node_id, "digests", rows[at : at + count])
            else:
                for row in rows:
                    node.peers.note(node_id, "digest", row)

    def on_told(self, sender: NodeId, rows: Iterable[Row]) -> None:
        """What another node said of its replicas."""
        group_of = self._node.group_of
        for uid, index, fingerprint in rows:
            group = group_of(uid)
            if group is not None:
                self._judge(uid, group, index, sender, fingerprint)

    def _judge(
        self, uid: Uid, group: Group, index: Index, node_id: NodeId, fingerprint: int
    ) -> None:
        voters = group.raft.members.voters
        verdict = self._digests.add(uid, index, node_id, fingerprint, voters)
        if verdict is Verdict.OPEN or verdict is Verdict.EQUAL:
            return
        node = self._node
        if verdict is Verdict.DRIFTED:
            self.forget(uid)
            text = f"content at index {index} is not what the majority holds"
            node.error("replica has drifted", group=uid, reason=text)
            node.replicas.repair(uid, text)
        else:
            text = f"no two replicas agree on the content at index {index}"
            node.error("replicas have drifted apart", group=uid, reason=text)
            node.replicas.stop_serving(uid, text)
