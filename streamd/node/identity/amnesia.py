"""What this node may have forgotten: groups it was in, and what it promised there.

A log that is whole proves by its silence that nothing was promised. One that was lost proves
nothing about any group of its time; nor does any log about groups in memory, or about groups whose
member here was destroyed while they lived on (docs/adr/0015-readmission-of-recovering-voters.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamd import limits
from streamd.machine.meta import StreamAsset
from streamd.raft.core import RaftCore
from streamd.types import Index, Term, Uid

if TYPE_CHECKING:
    from streamd.node.local_node import Node


class Amnesia:
    """One node's. What must outlive the process is in the node's identity (`storedir`)."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._forgotten_upto: Index = 0  # streams created up to this meta entry may be forgotten
        self._meta_index_at_start: Index = -1  # as this process found the meta log; -1: not yet
        self._opened_in_memory: set[Uid] = set()  # groups in memory, by this process

    # --- groups in a log --------------------------------------------------------------------

    @property
    def is_rejoined(self) -> bool:
        """True until the meta group has vouched for a node that lost its log, or joined."""
        return bool(self._node.identity.get("is_rejoined"))

    def groups_lost(self) -> None:
        """The log may have lost all of a group, its votes too: as if the log itself was lost."""
        self._node.identity["is_rejoined"] = True
        self._node.save_identity()

    def meta_begins(self, raft: RaftCore) -> None:
        """The meta group begins, with what the log has of it."""
        if self._meta_index_at_start < 0:
            # A log that lost entries does not say how far it went.
            self._meta_index_at_start = limits.EVERYTHING if raft.is_uncertain else raft.last_index
        self._forgotten_upto = (
            limits.EVERYTHING if self.is_rejoined else self._node.identity.get("forgotten_upto", 0)
        )

    def meta_certified(self, index: Index) -> None:
        """The meta group counts on its member here again: what may be forgotten was created up to
        entry `index`."""
        node = self._node
        if self._meta_index_at_start == limits.EVERYTHING:
            self._meta_index_at_start = index
        if self.is_rejoined:
            node.identity["is_rejoined"] = False
            node.removals.certified(index)
            node.identity["forgotten_upto"] = self._forgotten_upto = index
            node.save_identity()
            node.replicas.reconcile()

    def may_have_forgotten(self, uid: Uid) -> bool:
        """True if this node may have been in a group of which its log knows nothing."""
        return uid <= self._forgotten_upto or self.was_dropped(uid)

    def is_unknown(self, uid: Uid) -> bool:
        """True if the log knows nothing of a group, and nobody can say yet whether it should."""
        return self._forgotten_upto == limits.EVERYTHING and self._node.wal.group(uid) is None

    def is_alone(self, asset: StreamAsset) -> bool:
        """True if this node has the only replica, and nothing suggests that others had it too.

        A node that lost its log replays the meta group's from long ago: what was alone then may
        have moved, or have peers, by now.
        """
        mine = (self._node.server_name,)
        placed = (asset.created_peers, asset.peers, asset.members)
        return all(names == mine for names in placed) and not self.may_have_forgotten(asset.uid)

    # --- members that were destroyed --------------------------------------------------------

    def was_dropped(self, uid: Uid) -> bool:
        """True if this node once destroyed its member of a group that lived on."""
        return uid in self._node.identity.get("dropped", ())

    def note_dropped(self, uid: Uid, last: tuple[Term, Index] = (0, 0)) -> None:
        """This node's member of a group, which ends with entry `last`, is about to be destroyed;
        the group may live on.

        Should it come back, it must not pass for one of the founders, who promised nothing yet. Nor
        may it help anybody who has not heard that it left to lead without what it had.
        """
        node = self._node
        if not node.is_clustered:
            return
        before = node.identity.get("dropped", []), node.identity.get("left_at", {})
        dropped = sorted(one for one in {*before[0], uid} if not node.meta.is_deleted(one))
        left_at = {**before[1], str(uid): max(list(last), before[1].get(str(uid), [0, 0]))}
        left_at = {str(one): left_at[str(one)] for one in dropped if str(one) in left_at}
        if (dropped, left_at) != before:
            node.identity["dropped"], node.identity["left_at"] = dropped, left_at
            node.save_identity()

    def left_at(self, uid: Uid) -> tuple[Term, Index]:
        """(term, index) of the last entry that the member had which was destroyed here; (0, 0):
        none was. Says nothing of a group in memory, which may have begun anew since."""
        term, index = self._node.identity.get("left_at", {}).get(str(uid), (0, 0))
        return term, index

    # --- groups in memory -------------------------------------------------------------------

    def was_open(self, uid: Uid) -> bool:
        """True if a member of this group in memory may have made promises, in this process or in
        the one before, that nobody remembers. From now on it may have."""
        was_open = uid <= self._meta_index_at_start or uid in self._opened_in_memory
        self._opened_in_memory.add(uid)
        return was_open

    def opened_in_memory(self) -> list[Uid]:
        """Groups in memory that this process has opened, in order."""
        return sorted(self._opened_in_memory)

    def forget(self, uid: Uid) -> None:
        """The stream was deleted: its uid never comes back."""
        self._opened_in_memory.discard(uid)
