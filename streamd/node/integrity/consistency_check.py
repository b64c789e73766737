"""`ConsistencyCheck`: do the replicas of a group hold the same?

A checkpoint is where a group comes to rest, or a log entry if it does not; there every replica
takes its fingerprint, at that very index, and tells the others. What a majority holds is the truth:
a replica with anything else has drifted (docs/adr/0016). A node tells each other node of all its
groups together: the fingerprints taken since the last note are one note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from streamd import limits
from streamd.machine import commands
from streamd.node.context import NodeContext
from streamd.node.groups import inbox
from streamd.node.groups.group import Group
from streamd.node.ports import Peers
from streamd.node.replicas.group_control import GroupControl
from streamd.node.replicas.local_groups import LocalGroups
from streamd.types import Index, NodeId, Uid

_KEPT = 4  # checkpoints of one group whose votes are remembered

Row = tuple[Uid, Index, int]  # group, index, fingerprint


class ConsistencyCheck:
    """Comparison of this node's replicas with those of the other members."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        peers: Peers | None,
        control: GroupControl,
    ) -> None:
        self._context = context
        self._groups = groups
        self._peers = peers
        self._control = control
        self._fingerprints = Fingerprints(context.name)
        self._unsent: dict[NodeId, list[Row]] = {}
        self.drift_count = 0  # replicas here that were found not to hold what the majority holds
        self._disputes: dict[Uid, int] = {}  # that were told of; when to compare anew, monotonic ms
        self.latest = self._fingerprints.latest
        self.agreement = self._fingerprints.agreement

    def send(self, uid: Uid, group: Group, found: Iterable[tuple[Index, int]]) -> None:
        """Send fingerprints of this node's replica, (index, fingerprint), to the other members
        soon, and judge by them."""
        own, unsent = self._context.name, self._unsent
        for index, fingerprint in found:
            for node_id in group.raft.members.members():
                if node_id != own:
                    if not unsent:
                        timers = self._context.timers
                        timers.later("comparisons", limits.COMPARE_DELAY_S, self._send_all)
                    unsent.setdefault(node_id, []).append((uid, index, fingerprint))
            self._judge(uid, group, index, own, fingerprint)

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, {}
        if self._peers is None:
            return
        count = limits.COMPARE_ROWS
        for node_id, rows in unsent.items():
            for at in range(0, len(rows), count):
                self._peers.note(node_id, "digests", rows[at : at + count])

    def on_digests(self, sender: NodeId, rows: Iterable[Row]) -> None:
        """Judge by the fingerprints of another node's replicas: the note `digests`."""
        group_of = self._groups.group_of
        for uid, index, fingerprint in rows:
            group = group_of(uid)
            if group is not None:
                self._judge(uid, group, index, sender, fingerprint)

    def may_hand_out(self, uid: Uid, asker: NodeId) -> bool:
        """False while members differ and nobody knows which is right: `asker`, which begins anew
        with what it is given, would only repeat it. They compare once more then, for a wrong one
        may have been mended, and a group that waits for `asker` does not rest."""
        group, monitor = self._groups.group_of(uid), self._groups.monitor_of(uid)
        self._fingerprints.forgive(uid, asker)
        if group is None or not self._fingerprints.is_disputed(uid, group.raft.members.voters):
            return True
        self._record_dispute(uid)
        clock = self._context.env.clock
        now_ms = clock.monotonic_ms()
        if monitor is not None and now_ms >= self._disputes[uid]:
            self._disputes[uid] = now_ms + limits.CHECKPOINT_EVERY_MS
            command = [commands.CHECKPOINT, clock.now_ns(), 0, 0]
            monitor.post(inbox.Propose(command, None, False))
        return False

    def _record_dispute(self, uid: Uid) -> None:
        if uid not in self._disputes:
            self._disputes[uid] = 0
            text = "their content differs, and no majority is online that tells which is right"
            self._context.log.error("replicas differ", group=uid, reason=text)

    def forget(self, uid: Uid) -> None:
        """Remove a group whose replica here begins anew, or is gone."""
        self._fingerprints.forget(uid)
        self._disputes.pop(uid, None)

    def _judge(
        self, uid: Uid, group: Group, index: Index, node_id: NodeId, fingerprint: int
    ) -> None:
        voters = group.raft.members.voters
        verdict = self._fingerprints.add(uid, index, node_id, fingerprint, voters)
        peers, log = self._peers, self._context.log
        if verdict is Verdict.OPEN:
            is_up = peers is None or all(
                peers.is_up(name) for name in voters if name != self._context.name
            )
            if not is_up and self._fingerprints.is_disputed(uid, voters):
                self._record_dispute(uid)
            return
        if verdict is Verdict.EQUAL:
            self._disputes.pop(uid, None)
            return
        self.drift_count += 1
        if verdict is Verdict.DRIFTED:
            self.forget(uid)
            text = f"content at index {index} is not what the majority holds"
            log.error("replica has drifted", group=uid, reason=text)
            self._control.repair(uid, text)
        else:
            text = f"no two replicas agree on the content at index {index}"
            log.error("replicas have drifted apart", group=uid, reason=text)
            self._control.stop_serving(uid, text)


class Verdict(Enum):
    OPEN = "open"  # not enough have spoken
    EQUAL = "equal"  # this node holds what a majority holds
    DRIFTED = "drifted"  # a majority holds something else
    SPLIT = "split"  # all have spoken and no majority agrees


class Fingerprints:
    """Latest fingerprints of every group that this node has a replica of, each with its owner."""

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
        """Record the fingerprint of `node_id` at `index`; return the verdict on this node's
        replica."""
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

    def agreement(self, uid: Uid) -> dict[NodeId, bool]:
        """Return of each other node that was compared with whether it holds what this one holds,
        by their newest checkpoint in common."""
        found: dict[NodeId, bool] = {}
        for _, votes in sorted(self._votes.get(uid, {}).items()):
            mine = votes.get(self._name)
            if mine is not None:
                found |= {name: vote == mine for name, vote in votes.items() if name != self._name}
        return found

    def forgive(self, uid: Uid, node_id: NodeId) -> None:
        """Drop what `node_id` held and this node did not: that replica begins anew."""
        for votes in self._votes.get(uid, {}).values():
            if votes.get(node_id) != votes.get(self._name):
                votes.pop(node_id, None)

    def forget(self, uid: Uid) -> None:
        """Remove a group whose replica here begins anew, or is gone."""
        self._votes.pop(uid, None)

    def latest(self, uid: Uid) -> tuple[Index, int]:
        """Return (index, fingerprint) of this node's newest checkpoint; (0, 0): none yet."""
        for index in sorted(self._votes.get(uid, {}), reverse=True):
            fingerprint = self._votes[uid][index].get(self._name)
            if fingerprint is not None:
                return index, fingerprint
        return 0, 0
