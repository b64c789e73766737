"""What the replicas of this node's groups hold is told to the other members, and judged.

A node tells each other node of all its groups together: what came up since it last did is one note.
`digests` says what is compared, and when; a majority is right (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from streamd import limits
from streamd.machine import commands
from streamd.node.groups import inbox
from streamd.node.integrity.consistency_digests import Digests, Verdict
from streamd.types import Index, NodeId, Uid

if TYPE_CHECKING:
    from streamd.node.groups.group import Group
    from streamd.node.local_node import Node

Row = list[Any]  # group, index, fingerprint


class Comparisons:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._digests = Digests(node.server_name)
        self._untold: dict[NodeId, list[Row]] = {}
        self._disputes: dict[Uid, int] = {}  # that were told of; when to compare anew, monotonic ms
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

    def may_hand_out(self, uid: Uid, asker: NodeId) -> bool:
        """False while members differ and nobody knows who is right: `asker`, which begins anew with
        what it is given, would only repeat it. They compare once more then, for who was wrong may
        have been mended, and a group that waits for `asker` does not rest."""
        node = self._node
        group, monitor = node.group_of(uid), node.monitor_of(uid)
        self._digests.forgive(uid, asker)
        if group is None or not self._digests.is_disputed(uid, group.raft.members.voters):
            return True
        self._note_dispute(uid)
        now_ms = node.env.clock.monotonic_ms()
        if monitor is not None and now_ms >= self._disputes[uid]:
            self._disputes[uid] = now_ms + limits.CHECKPOINT_EVERY_MS
            command = [commands.CHECKPOINT, node.env.clock.now_ns(), 0, 0]
            monitor.post(inbox.Propose(command, None, False))
        return False

    def _note_dispute(self, uid: Uid) -> None:
        if uid not in self._disputes:
            self._disputes[uid] = 0
            text = "one holds what another does not, and no majority is here to say who is right"
            self._node.error("replicas differ", group=uid, reason=text)

    def forget(self, uid: Uid) -> None:
        """The group's replica here begins anew, or is gone."""
        self._digests.forget(uid)
        self._disputes.pop(uid, None)

    def _judge(
        self, uid: Uid, group: Group, index: Index, node_id: NodeId, fingerprint: int
    ) -> None:
        voters = group.raft.members.voters
        verdict = self._digests.add(uid, index, node_id, fingerprint, voters)
        node = self._node
        if verdict is Verdict.OPEN:
            is_up = node.peers is None or all(
                node.peers.is_up(name) for name in voters if name != node.server_name
            )
            if not is_up and self._digests.is_disputed(uid, voters):
                self._note_dispute(uid)
            return
        if verdict is Verdict.EQUAL:
            self._disputes.pop(uid, None)
            return
        if verdict is Verdict.DRIFTED:
            self.forget(uid)
            text = f"content at index {index} is not what the majority holds"
            node.error("replica has drifted", group=uid, reason=text)
            node.replicas.repair(uid, text)
        else:
            text = f"no two replicas agree on the content at index {index}"
            node.error("replicas have drifted apart", group=uid, reason=text)
            node.replicas.stop_serving(uid, text)
