"""Do the replicas of a group hold the same? Each says what it holds at agreed indexes.

A checkpoint is where a group comes to rest, or a log entry if it does not; there every replica
takes its fingerprint, at that very index, and tells the others. What a majority holds is the truth:
a replica with anything else has drifted.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from streamd.types import Index, NodeId, Uid

_KEPT = 4  # checkpoints of one group whose votes are remembered


class Verdict(Enum):
    OPEN = "open"  # not enough have spoken
    EQUAL = "equal"  # this node holds what a majority holds
    DRIFTED = "drifted"  # a majority holds something else
    SPLIT = "split"  # all have spoken and no majority agrees


class Digests:
    """The latest fingerprints of every group this node has a replica of."""

    def __init__(self, name: NodeId) -> None:
        self._name = name
        self._votes: dict[Uid, dict[Index, dict[NodeId, int]]] = {}

    def add(
        self,
        uid: Uid,
        index: Index,
        node_id: NodeId,
        fingerprint: int,
        voters: tuple[NodeId, ...],
    ) -> Verdict:
        """Note what `node_id` holds at `index`; return what that makes of this node's replica."""
        by_index = self._votes.setdefault(uid, {})
        votes = by_index.setdefault(index, {})
        votes[node_id] = fingerprint
        while len(by_index) > _KEPT:
            del by_index[min(by_index)]
        mine = votes.get(self._name)
        if mine is None or self._name not in voters:
            return Verdict.OPEN
        told = [votes[voter] for voter in voters if voter in votes]
        if told.count(mine) > len(voters) // 2:
            return Verdict.EQUAL
        if Counter(told).most_common(1)[0][1] > len(voters) // 2:
            return Verdict.DRIFTED
        return Verdict.SPLIT if len(told) == len(voters) else Verdict.OPEN

    def is_disputed(self, uid: Uid, voters: tuple[NodeId, ...]) -> bool:
        """True if nobody can say that this node is right: where it last compared with anybody, as
        many hold one other thing as hold what it holds, or more."""
        for _, votes in sorted(self._votes.get(uid, {}).items(), reverse=True):
            mine = votes.get(self._name)
            if mine is None:
                continue
            told = Counter(votes[name] for name in {*voters, self._name} if name in votes)
            if told.total() > 1:
                return any(told[mine] <= told[other] for other in told if other != mine)
        return False

    def forgive(self, uid: Uid, node_id: NodeId) -> None:
        """What `node_id` held and this node did not is gone: that replica begins anew."""
        for votes in self._votes.get(uid, {}).values():
            if votes.get(node_id) != votes.get(self._name):
                votes.pop(node_id, None)

    def forget(self, uid: Uid) -> None:
        """The group's replica here begins anew, or is gone."""
        self._votes.pop(uid, None)

    def latest(self, uid: Uid) -> tuple[Index, int]:
        """(index, fingerprint) of this node's newest checkpoint; (0, 0): none yet."""
        for index in sorted(self._votes.get(uid, {}), reverse=True):
            fingerprint = self._votes[uid][index].get(self._name)
            if fingerprint is not None:
                return index, fingerprint
        return 0, 0
