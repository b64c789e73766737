"""`Amnesia`: groups that this node was in, and whose promises it may have forgotten.

A log that is whole proves by its silence that nothing was promised. One that was lost proves
nothing about any group of its time; nor does any log about groups in memory, or about groups whose
member here was destroyed while they lived on (docs/adr/0015-readmission-of-recovering-voters.md).
"""

from __future__ import annotations

from streamd import limits
from streamd.machine.meta import StreamAsset
from streamd.node.context import NodeContext
from streamd.node.replicas.local_groups import LocalGroups
from streamd.raft.core import RaftCore
from streamd.types import Index, Term, Uid


class Amnesia:
    """Judgement of one node. Facts that must outlive the process are in the node's identity."""

    def __init__(self, context: NodeContext, groups: LocalGroups) -> None:
        self._context = context
        self._groups = groups
        self._identity = context.identity
        self._forgotten_upto: Index = 0  # streams created up to this meta entry may be forgotten
        self._meta_index_at_start: Index = -1  # as this process found the meta log; -1: not yet
        self._opened_in_memory: set[Uid] = set()  # groups in memory, by this process

    # --- groups in a log --------------------------------------------------------------------

    @property
    def is_rejoined(self) -> bool:
        """True until the meta group has vouched for a node that lost its log, or joined."""
        return self._identity.is_rejoined

    def begin_meta(self, raft: RaftCore) -> None:
        """Take note of what the log has of the meta group, which begins."""
        if self._meta_index_at_start < 0:
            # A log that lost entries does not say how far it went.
            self._meta_index_at_start = limits.EVERYTHING if raft.is_uncertain else raft.last_index
        self._forgotten_upto = (
            limits.EVERYTHING if self.is_rejoined else self._identity.facts.get("forgotten_upto", 0)
        )

    def certify(self, index: Index) -> bool:
        """Record that the meta group counts on its member here again: what may be forgotten was
        created up to entry `index`. True if it did not until now."""
        if self._meta_index_at_start == limits.EVERYTHING:
            self._meta_index_at_start = index
        if not self.is_rejoined:
            return False
        self._identity.certify(index)
        self._forgotten_upto = index
        self._identity.save()
        return True

    def may_have_forgotten(self, uid: Uid) -> bool:
        """True if this node may have been in a group of which its log knows nothing."""
        return uid <= self._forgotten_upto or self.was_dropped(uid)

    def is_unknown(self, uid: Uid) -> bool:
        """True if the log knows nothing of a group, and nobody can say yet whether it should."""
        return self._forgotten_upto == limits.EVERYTHING and self._context.wal.group(uid) is None

    def is_alone(self, asset: StreamAsset) -> bool:
        """True if this node has the only replica, and nothing suggests that others had it too.

        A node that lost its log replays the meta group's from long ago: what was alone then may
        have moved, or have peers, by now.
        """
        mine = (self._context.name,)
        placed = (asset.created_peers, asset.peers, asset.members)
        return all(names == mine for names in placed) and not self.may_have_forgotten(asset.uid)

    # --- members that were destroyed --------------------------------------------------------

    def was_dropped(self, uid: Uid) -> bool:
        """True if this node once destroyed its member of a group that lived on."""
        return uid in self._identity.facts.get("dropped", ())

    def record_dropped(self, uid: Uid, last: tuple[Term, Index] = (0, 0)) -> None:
        """Record that this node's member of a group, which ends with entry `last`, is about to be
        destroyed while the group may live on.

        Should the member come back, it must not pass for a bootstrap member, which promised nothing
        yet. Nor may its vote help a member that has not heard of its removal to lead without the
        entries it had.
        """
        if not self._context.is_clustered:
            return
        facts, meta = self._identity.facts, self._groups.meta
        before = facts.get("dropped", []), facts.get("left_at", {})
        dropped = sorted(one for one in {*before[0], uid} if not meta.is_deleted(one))
        left_at = {**before[1], str(uid): max(list(last), before[1].get(str(uid), [0, 0]))}
        left_at = {str(one): left_at[str(one)] for one in dropped if str(one) in left_at}
        if (dropped, left_at) != before:
            facts["dropped"], facts["left_at"] = dropped, left_at
            self._identity.save()

    def left_at(self, uid: Uid) -> tuple[Term, Index]:
        """Return (term, index) of the last entry of the member that was destroyed here; (0, 0):
        none was. Says nothing of a group in memory, which may have begun anew since."""
        term, index = self._identity.facts.get("left_at", {}).get(str(uid), (0, 0))
        return term, index

    # --- groups in memory -------------------------------------------------------------------

    def was_open(self, uid: Uid) -> bool:
        """True if a member of this group in memory may have made promises, in this process or in
        the one before, that nobody remembers. From now on it counts as one that may have."""
        was_open = uid <= self._meta_index_at_start or uid in self._opened_in_memory
        self._opened_in_memory.add(uid)
        return was_open

    def opened_in_memory(self) -> list[Uid]:
        """Return the groups in memory that this process has opened, in order."""
        return sorted(self._opened_in_memory)

    def forget(self, uid: Uid) -> None:
        """Remove a stream that was deleted: its uid never comes back."""
        self._opened_in_memory.discard(uid)
