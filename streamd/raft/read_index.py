"""Linearizable reads: which commit index a read must see, once the leader is known to lead still.

A read notes the commit index and waits for a round of heartbeats that starts after it came: a
quorum that answers follows nobody else, so no later leader had committed anything by then. A
leader that has committed nothing in its term yet does not know the commit index: reads that come
earlier wait for its first entry.
"""

from __future__ import annotations

from collections import deque

from streamd.limits import RAFT_READS_MAX
from streamd.raft.ready import ProposalRejected
from streamd.raft.replication import Replication
from streamd.types import Index, NodeId


class ReadIndex:
    """Reads of one term of leading that wait for their confirmation, in the order they came."""

    __slots__ = ("_confirmed_round", "_early_reads", "_reads", "_replication")

    def __init__(self, replication: Replication) -> None:
        self._replication = replication
        # Round, index, requester, context of each.
        self._reads: deque[tuple[int, Index, NodeId, int]] = deque()
        self._early_reads: list[tuple[NodeId, int]] = []  # asked before the no-op was committed
        self._confirmed_round = 0

    @property
    def has_reads(self) -> bool:
        """True if a read waits for a confirmation."""
        return bool(self._reads or self._early_reads)

    def confirm_rounds(self) -> None:
        """Find the last round of heartbeats that a quorum has answered."""
        replication = self._replication
        peers = replication.peers
        round_no = replication.log.membership.quorum_index(
            lambda node_id: (
                replication.round_no
                if node_id == replication.node_id
                else peers[node_id].round_no
                if node_id in peers and not peers[node_id].is_uncertain
                else 0
            )
        )
        self._confirmed_round = max(self._confirmed_round, round_no)

    def add(self, requester: NodeId, context: int) -> None:
        """Note the commit index a read must see; `confirmed` gives it back once a round of
        heartbeats that starts from now on has shown that no later leader can have been."""
        replication = self._replication
        log = replication.log
        if len(self._reads) + len(self._early_reads) >= RAFT_READS_MAX:
            raise ProposalRejected("too many reads wait for the leader's confirmation")
        if log.commit < replication.term_start:
            self._early_reads.append((requester, context))
            return
        self._reads.append((replication.round_no + 1, log.commit, requester, context))
        replication.is_round_due = True

    def confirmed(self) -> list[tuple[NodeId, int, Index]]:
        """Return reads that may be answered: (requester, context, index), in the order they
        came."""
        replication = self._replication
        if self._early_reads and replication.log.commit >= replication.term_start:
            early, self._early_reads = self._early_reads, []
            for requester, context in early:
                self.add(requester, context)
        reads = self._reads
        if not reads:
            return []
        members = replication.log.membership
        if members.voters == (replication.node_id,) and not members.voters_out:
            # No other member could lead: the majority that must agree is this member. Learners
            # have no say, and may all be away.
            replication.is_round_due = False
            self._confirmed_round = replication.round_no + 1
        confirmed = []
        while reads and reads[0][0] <= self._confirmed_round:
            _, index, requester, context = reads.popleft()
            confirmed.append((requester, context, index))
        return confirmed

    def unconfirmed(self) -> list[tuple[NodeId, int]]:
        """Return the reads that this leadership, now over, leaves unanswered."""
        return [*self._early_reads, *((who, context) for _, _, who, context in self._reads)]
