"""Who leads the meta group when all who could may have forgotten, and an operator accepts that.

No group above it says who belongs to it. So each that may is asked whom it knows: the members and
learners by its log, the founders, every node that it or others it met ever saw, and all that are
here; without those who were removed, by the word of whoever has got furthest. Those named are asked
too, until all named have answered. Who is down, or runs a release that does not know the question,
stands against it. Then one after the other is asked to stand, and leads if all of them grant.

With the first entry of its term it gives up (ACCEPT_LOSS) all indexes that what was lost may have
had: uids, and what else the index of a meta entry numbers.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from streamd import errors, limits
from streamd.node.groups import inbox
from streamd.types import META_UID, Index, NodeId

if TYPE_CHECKING:
    from streamd.node.local_node import Node

_Recalled = list[Any]  # last entry applied, nodes, of these removed, last index in use


class MetaHeirs:
    """One node's. It asks only if `Heirs` says so; it answers whoever asks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._round = 0
        self._turns = 0  # nodes asked to stand
        self._asked: set[NodeId] = set()  # in this round
        self._awaited: set[NodeId] = set()  # who has not answered, nor is known not to
        self._answers: dict[NodeId, _Recalled] = {}
        self._missing: list[NodeId] = []  # as the log was told

    def look(self) -> None:
        """The group is in doubt here and has no leader: ask all, and then the next one to stand."""
        if self._awaited:
            return
        missing = sorted(self._asked - self._answers.keys())
        if missing and missing != self._missing:
            self._missing = missing
            self._node.warn(
                "the meta group waits for servers that may have more of it",
                missing=" ".join(missing),
            )  # fmt: skip
        self._round += 1
        self._asked, self._answers = {self._node.server_name}, {}
        self._hear(self._round, self._node.server_name, self.recall())

    def _hear(self, round_no: int, name: NodeId, answer: Any) -> None:
        node = self._node
        self._awaited.discard(name)
        if round_no != self._round or not isinstance(answer, list):
            return
        self._answers[name] = answer
        told = self._answers.values()
        removed = max(told, key=lambda one: int(one[0]))[2]
        everybody = {name for one in told for name in one[1]}.difference(removed)
        everybody.update(node.peering.known_members(), self._answers)
        peers = node.peering.peers
        assert peers is not None
        for other in sorted(everybody - self._asked):
            self._asked.add(other)
            self._awaited.add(other)
            peers.call(other, "recall", [], partial(self._hear, round_no, other))
        self._asked &= everybody
        if everybody == self._answers.keys():
            self._round += 1
            used_to = max(one[3] for one in told) + limits.LOST_INDEXES
            self._ask_next(sorted(everybody), used_to)

    def _ask_next(self, names: list[NodeId], used_to: Index) -> None:
        node = self._node
        if not self._turns:
            node.warn(
                "the meta group is in doubt: whoever has most of it is to lead",
                members=" ".join(names),
            )  # fmt: skip
        heir = names[self._turns % len(names)]
        self._turns += 1
        if heir == node.server_name:
            self.stand_in(names, used_to)
        elif node.peering.peers is not None:
            args = [META_UID, names, used_to]
            node.peering.peers.call(heir, "stand_in", args, lambda answer: None)

    def stand_in(self, names: list[NodeId], used_to: Index) -> None:
        """Have this node's member stand."""
        monitor = self._node.meta_member.monitor
        if monitor is not None:
            monitor.post(inbox.ForceElection(frozenset(names), used_to))

    def recall(self) -> _Recalled | errors.JsError:
        """What this node knows of the group."""
        node = self._node
        group, identity = node.meta_member.group, node.identity
        if group is None or group.failure or node.meta_member.monitor is None:
            return errors.CLUSTER_NOT_AVAIL()
        names = {node.server_name, *identity.get("voters", ()), *node.sightings.names()}
        names.update(node.peering.known_members())
        for members in group.raft.log.open_memberships():
            names.update(members.members())
        stems = node.env.disk.listdir(os.path.join(node.root, "streams"))
        used_to = max(
            group.raft.last_index,
            identity.get("removal", 0),
            identity.get("forgotten_upto", 0),
            *identity.get("dropped", ()),
            *node.wal.groups,
            *(int(stem) for name in stems if (stem := name.removesuffix(".catchup")).isdigit()),
            *(replica.machine.config_meta_index for replica in node.replicas),
        )
        return [node.meta.applied, sorted(names), sorted(node.meta.out), used_to]
