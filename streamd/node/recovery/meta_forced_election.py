"""`MetaForcedElection`: a leader for the meta group when all its voters may have forgotten.

The operator has accepted that loss. No group above it says who belongs to it. So each node that may
is asked which nodes it knows: the members and learners by its log, the bootstrap members, every
node that it or others it met ever saw, and all that are here; without those that were removed, by
the word of the node that has got furthest. Those named are asked too, until all named have
answered. A node that is down stands against it.
Then one after the other is asked to stand, and leads if all of them grant.

The first entry of its term (ACCEPT_LOSS) retires all indexes that lost entries may have had: uids,
and all else that the index of a meta entry numbers.
"""

from __future__ import annotations

import os
from functools import partial

from streamd import errors, limits
from streamd.callbacks import ignore
from streamd.node.cluster.node_facts import NodeFacts
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.identity.incarnations import Incarnations
from streamd.node.ports import Answer, Peers
from streamd.node.replicas.local_groups import LocalGroups
from streamd.types import META_UID, Index, NodeId

_Recalled = tuple[Index, list[NodeId], list[NodeId], Index]
"""Last entry applied, nodes, those of them that were removed, last index in use."""


class MetaForcedElection:
    """Forced election of the meta group as one node takes part in it. It asks only if told so by
    `ForcedElection`; it answers every call."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        peers: Peers | None,
        facts: NodeFacts,
        incarnations: Incarnations,
    ) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self._facts = facts
        self._incarnations = incarnations
        self._round = 0
        self._turns = 0  # nodes asked to stand
        self._asked: set[NodeId] = set()  # in this round
        self._awaited: set[NodeId] = set()  # not answered yet, and not known never to
        self._answers: dict[NodeId, _Recalled] = {}
        self._missing: list[NodeId] = []  # as the log was told

    def check(self) -> None:
        """Ask all nodes, and then the next one to stand: the group is recovering here and has no
        leader."""
        if self._awaited:
            return
        missing = sorted(self._asked - self._answers.keys())
        if missing and missing != self._missing:
            self._missing = missing
            self._context.log.warn(
                "the meta group waits for servers that may have a longer log",
                missing=" ".join(missing),
            )  # fmt: skip
        self._round += 1
        self._asked, self._answers = {self._context.name}, {}
        self._hear(self._round, self._context.name, self._recall())

    def _hear(self, round_no: int, name: NodeId, answer: _Recalled | errors.StreamdError) -> None:
        self._awaited.discard(name)
        if round_no != self._round or isinstance(answer, errors.StreamdError):
            return
        self._answers[name] = answer
        told = self._answers.values()
        removed = max(told, key=lambda one: int(one[0]))[2]
        everybody = {name for one in told for name in one[1]}.difference(removed)
        everybody.update(self._facts.known_members(), self._answers)
        peers = self._peers
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
        if not self._turns:
            self._context.log.warn(
                "forced election of the meta leader: the member with the longest log is to lead",
                members=" ".join(names),
            )  # fmt: skip
        candidate = names[self._turns % len(names)]
        self._turns += 1
        if candidate == self._context.name:
            self.stand_in(names, used_to)
        elif self._peers is not None:
            args = [META_UID, names, used_to]
            self._peers.call(candidate, "stand_in", args, ignore)

    def stand_in(self, names: list[NodeId], used_to: Index) -> None:
        """Make this node's member stand for election."""
        monitor = self._groups.meta_monitor
        if monitor is not None:
            monitor.post(inbox.ForceElection(frozenset(names), used_to))

    def serve_recall(self, sender: NodeId, args: list[object], answer: Answer) -> None:
        """Answer the call `recall`."""
        answer(self._recall())

    def _recall(self) -> _Recalled | errors.JsError:
        """Return what this node knows of the group."""
        context, groups = self._context, self._groups
        group, facts = groups.meta_group, context.identity.facts
        if group is None or group.failure or groups.meta_monitor is None:
            return errors.CLUSTER_NOT_AVAIL()
        names = {context.name, *context.identity.voters, *self._incarnations.names()}
        names.update(self._facts.known_members())
        for members in group.raft.log.open_memberships():
            names.update(members.members())
        stems = context.env.disk.listdir(os.path.join(context.root, "streams"))
        used_to = max(
            group.raft.last_index,
            facts.get("removal", 0),
            facts.get("forgotten_upto", 0),
            *facts.get("dropped", ()),
            *context.wal.groups,
            *(int(stem) for name in stems if (stem := name.removesuffix(".catchup")).isdigit()),
            *(replica.machine.config_meta_index for replica in groups),
        )
        return groups.meta.applied, sorted(names), sorted(groups.meta.out), used_to
