"""The leader's side: what to send each peer next, and what is thereby committed and confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from streamd.errors import CorruptionError, is_passing
from streamd.limits import (
    RAFT_APPEND_BYTES,
    RAFT_APPEND_ENTRIES,
    RAFT_INFLIGHT_APPENDS,
    RAFT_READS_MAX,
)
from streamd.raft.log import RaftLog
from streamd.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    Quiesce,
    ReadAnswer,
    SnapshotOffer,
    TimeoutNow,
)
from streamd.raft.progress import DIVERGED, PROBE, REPLICATE, SNAPSHOT, Peer
from streamd.raft.ready import Outgoing, ProposalRejected
from streamd.types import Index, NodeId, Term


class Leadership:
    """One term of leading: peers, reads to confirm, a hand-over under way.

    Created when an election is won and thrown away when the term is over, so nothing of an old
    term can leak into a new one.
    """

    __slots__ = (
        "_confirmed_round",
        "_early_reads",
        "_outbox",
        "_reads",
        "_round_no",
        "commit_at_ms",
        "commit_delay_ms",
        "commit_seen",
        "eager_to",
        "has_doubts",
        "heartbeat_at_ms",
        "is_round_due",
        "log",
        "node_id",
        "peers",
        "quiet_index",
        "quorum_at_ms",
        "term",
        "term_start",
        "transfer_by_ms",
        "transfer_sent",
        "transfer_to",
    )

    def __init__(
        self,
        *,
        node_id: NodeId,
        term: Term,
        log: RaftLog,
        outbox: list[Outgoing],
        now_ms: int,
        commit_delay_ms: int = 0,
    ) -> None:
        self.node_id = node_id
        self.commit_delay_ms = commit_delay_ms
        self.commit_at_ms = 0  # until then a mere commit index waits for entries to ride with
        self.commit_seen: Index = 0  # an election timeout ago or longer
        self.eager_to: Index = 0  # a commit up to here waits for nothing
        self.log = log
        self._outbox = outbox
        self.term = term
        self.term_start: Index = log.last_index + 1  # the no-op; nothing below commits by count
        self.peers: dict[NodeId, Peer] = {}
        self._reads: deque[tuple[int, Index, NodeId, int]] = deque()  # round, index, who, context
        self._early_reads: list[tuple[NodeId, int]] = []  # asked before the no-op was committed
        self._round_no = 0
        self._confirmed_round = 0
        self.is_round_due = False
        self.has_doubts = False  # some peer is uncertain
        # Where the log ended a heartbeat ago; from here on with what begins the term, or wakes it.
        self.quiet_index: Index = self.term_start
        self.heartbeat_at_ms = now_ms
        self.quorum_at_ms = now_ms
        self.transfer_to: NodeId = ""
        self.transfer_by_ms = 0
        self.transfer_sent = False
        self.follow_membership(now_ms)

    # --- members --------------------------------------------------------------------------------

    def follow_membership(self, now_ms: int) -> None:
        """Have exactly one `Peer` for each other member of the membership in force."""
        members = self.log.membership.members()
        for node_id in list(self.peers):
            if node_id not in members:
                del self.peers[node_id]
        for node_id in members:
            if node_id != self.node_id and node_id not in self.peers:
                self.peers[node_id] = Peer(self.log.last_index + 1, now_ms)

    def expect_signs_from(self, now_ms: int) -> None:
        """Count every peer's silence from now on, not from before."""
        for peer in self.peers.values():
            peer.heard_ms = max(peer.heard_ms, now_ms)

    def has_heard_quorum(self, since_ms: int) -> bool:
        """True if a majority, ourselves included, gave a sign of life since then."""
        peers = self.peers

        def is_heard(node_id: NodeId) -> bool:
            peer = peers.get(node_id)
            return node_id == self.node_id or (peer is not None and peer.heard_ms >= since_ms)

        return self.log.membership.has_quorum(is_heard)

    def quorum_match(self) -> Index:
        """The highest index that is durable on a majority."""
        return self.log.membership.quorum_index(self._match_of)

    def _match_of(self, node_id: NodeId) -> Index:
        if node_id == self.node_id:
            return self.log.stable  # our own fsync counts like everybody's: when it is done
        peer = self.peers.get(node_id)
        return peer.match if peer is not None and not peer.is_uncertain else 0

    # --- appends --------------------------------------------------------------------------------

    def has_appends_due(self, now_ms: int) -> bool:
        """True if `send_appends` would send something."""
        last = self.log.last_index
        for peer in self.peers.values():
            if peer.state == REPLICATE:
                if len(peer.inflight) >= RAFT_INFLIGHT_APPENDS:
                    continue
                if peer.next <= last or self._owes_commit(peer, now_ms):
                    return True
            elif peer.state == PROBE and not peer.is_paused:
                return True
        return False

    def _owes_commit(self, peer: Peer, now_ms: int) -> bool:
        """True if the peer is to hear of the commit index although there is no entry to send."""
        if peer.commit_sent >= min(self.log.commit, peer.next - 1):
            return False
        return (
            now_ms >= self.commit_at_ms
            or now_ms < peer.eager_until_ms
            or peer.is_commit_due
            or peer.commit_sent < self.eager_to
        )

    def note_commit(self, now_ms: int) -> None:
        """The commit index rose: it rides with the next entries, or goes alone before long.

        Alone it would cost every peer a frame, a turn and an answer for each small entry.
        """
        if now_ms >= self.commit_at_ms:
            self.commit_at_ms = now_ms + self.commit_delay_ms

    def send_appends(self, now_ms: int) -> None:
        """Send each peer what it lacks, as far as its window allows."""
        for node_id, peer in self.peers.items():
            if peer.state == PROBE:
                if not peer.is_paused:
                    self._send_append(node_id, peer, now_ms)
                    peer.is_paused = True
                    peer.probe_round = self._round_no
            elif peer.state == REPLICATE:
                while len(peer.inflight) < RAFT_INFLIGHT_APPENDS:
                    if peer.next > self.log.last_index and not self._owes_commit(peer, now_ms):
                        break
                    if not self._send_append(node_id, peer, now_ms):
                        break

    def _send_append(
        self, node_id: NodeId, peer: Peer, now_ms: int, *, is_empty: bool = False
    ) -> bool:
        log = self.log
        previous = peer.next - 1
        if previous < log.base_index:
            self._offer_snapshot(node_id, peer, now_ms)
            return False
        try:
            prev_term, prev_chain = log.entry_id(previous)
            entries = log.slice(
                peer.next,
                last=previous if is_empty else log.last_index,
                max_entries=RAFT_APPEND_ENTRIES,
                max_bytes=RAFT_APPEND_BYTES,
            )
        except CorruptionError as err:
            if is_passing(err):
                # Not in this turn again: the answer to the next heartbeat ends the pause.
                peer.probe()
                peer.is_paused, peer.probe_round = True, self._round_no
                return False
            if not log.lose_stored():
                raise
            self._offer_snapshot(node_id, peer, now_ms)
            return False
        self._outbox.append(
            (node_id, Append(self.term, previous, prev_term, prev_chain, entries, log.commit))
        )
        if peer.state == REPLICATE and entries:
            peer.next = entries[-1].index + 1
            peer.inflight.append(peer.next - 1)
            self.commit_at_ms = now_ms + self.commit_delay_ms
        peer.commit_sent = min(log.commit, previous + len(entries))
        peer.is_commit_due = False
        return True

    def _offer_snapshot(self, node_id: NodeId, peer: Peer, now_ms: int) -> None:
        peer.state = SNAPSHOT
        peer.inflight.clear()
        self.offer_snapshot(node_id, peer, now_ms)

    def offer_snapshot(self, node_id: NodeId, peer: Peer, now_ms: int) -> None:
        """Say which snapshot there is; what the peer gets of the log stays as it is."""
        log = self.log
        peer.offered_ms = now_ms
        index, term, chain = log.snapshot_index, log.snapshot_term, log.snapshot_chain
        if index < log.base_index:
            # In memory, and what came before was dropped: a snapshot is taken when it is asked for.
            index, term, chain = log.base_index, log.base_term, log.base_chain
        offer = SnapshotOffer(self.term, index, term, chain, log.membership_at(index))
        self._outbox.append((node_id, offer))

    def on_append_reply(self, node_id: NodeId, reply: AppendReply) -> bool:
        """Take a peer's answer; True if its match grew, so that more may be committed."""
        peer = self.peers[node_id]
        if reply.is_ok:
            return self._on_accepted(node_id, peer, reply.index)
        if reply.is_diverged:
            peer.state = DIVERGED
            peer.inflight.clear()
            return False
        if peer.state == REPLICATE:
            if reply.index > peer.match:  # else an answer to something older than what it has
                peer.probe()
        elif peer.state == PROBE and reply.index == peer.next - 1:
            hint = self.log.last_with_term_up_to(reply.hint_index, reply.hint_term)
            if reply.hint_index < self.log.base_index:
                hint = reply.hint_index  # what it has is compacted here: a snapshot follows
            peer.next = max(peer.match + 1, min(reply.index, hint + 1))
            # Refused what it acked: an old answer, or it forgot (`doubt`). It is asked again.
            peer.is_paused = 0 < reply.index <= peer.match
        return False

    def _on_accepted(self, node_id: NodeId, peer: Peer, index: Index) -> bool:
        assert index <= self.log.last_index, (node_id, index, self.log.last_index)
        has_grown = index > peer.match
        if has_grown:
            peer.match = index
            peer.next = max(peer.next, index + 1)
        inflight = peer.inflight
        while inflight and inflight[0] <= index:
            inflight.popleft()
        if peer.state == PROBE:
            if index >= peer.next - 1:
                peer.replicate()
        elif peer.state == SNAPSHOT and peer.match >= self.log.base_index:
            peer.replicate()
        elif peer.state == DIVERGED:
            peer.match = index  # a snapshot has replaced its log, with all that it acked beyond
            peer.probe()
        if node_id == self.transfer_to:
            self.advance_transfer()
        return has_grown

    def probe_own_term(self, peer: Peer) -> None:
        """Send a peer that holds more than there is the entries of this term from its first on. It
        may have acked or skipped all below as if that were its own, and may even have this term's
        entries of another leader: those differ from the second on. Once is enough until the next
        round of heartbeats."""
        if peer.state != REPLICATE and not (peer.state == PROBE and peer.next == self.term_start):
            peer.match = 0  # whatever it acked was of another log
            peer.probe()
            peer.next = self.term_start

    def on_unreachable(self, node_id: NodeId) -> None:
        """The link broke: what was under way may be lost."""
        peer = self.peers.get(node_id)
        if peer is not None:
            peer.offered_ms = 0
        if peer is not None and peer.state in (REPLICATE, SNAPSHOT):
            peer.probe()
        elif peer is not None and peer.state == PROBE:
            peer.is_paused = False

    # --- heartbeats and reads -------------------------------------------------------------------

    def send_heartbeats(self) -> None:
        """Start a round: one heartbeat to every peer."""
        self._round_no += 1
        self.is_round_due = False
        commit = self.log.commit
        for node_id, peer in self.peers.items():
            beat = Heartbeat(self.term, min(commit, peer.match), self._round_no)
            self._outbox.append((node_id, beat))

    def on_heartbeat_reply(
        self, node_id: NodeId, round_no: int, now_ms: int, election_ms: int
    ) -> None:
        """The peer still follows us; also the moment to notice appends that got lost."""
        peer = self.peers[node_id]
        peer.round_no = max(peer.round_no, round_no)
        if round_no > peer.probe_round:
            peer.is_paused = False
        if peer.state == REPLICATE and peer.match < self.log.last_index:
            # An append now, empty if all was sent or the window is full, for what was sent may wait
            # for a disk in the peer's memory: refused if one before it was lost.
            is_full = len(peer.inflight) >= RAFT_INFLIGHT_APPENDS
            self._send_append(node_id, peer, now_ms, is_empty=is_full)
        elif peer.state == SNAPSHOT and now_ms - peer.offered_ms >= election_ms:
            self._offer_snapshot(node_id, peer, now_ms)
        if peer.needs_snapshot and now_ms - peer.offered_ms >= election_ms:
            self.offer_snapshot(node_id, peer, now_ms)
        self._confirm_rounds()

    def _confirm_rounds(self) -> None:
        peers = self.peers
        round_no = self.log.membership.quorum_index(
            lambda node_id: (
                self._round_no
                if node_id == self.node_id
                else peers[node_id].round_no
                if node_id in peers and not peers[node_id].is_uncertain
                else 0
            )
        )
        self._confirmed_round = max(self._confirmed_round, round_no)

    @property
    def has_reads(self) -> bool:
        """True if a read waits for a confirmation."""
        return bool(self._reads or self._early_reads)

    def add_read(self, requester: NodeId, context: int) -> None:
        """Note the commit index a read must see; `confirmed_reads` gives it back once a round of
        heartbeats that starts from now on has shown that no later leader can have been."""
        if len(self._reads) + len(self._early_reads) >= RAFT_READS_MAX:
            raise ProposalRejected("too many reads wait for the leader's confirmation")
        if self.log.commit < self.term_start:
            self._early_reads.append((requester, context))
            return
        self._reads.append((self._round_no + 1, self.log.commit, requester, context))
        self.is_round_due = True

    def confirmed_reads(self) -> list[tuple[NodeId, int, Index]]:
        """Reads that may be answered: (requester, context, index), in the order they came."""
        if self._early_reads and self.log.commit >= self.term_start:
            early, self._early_reads = self._early_reads, []
            for requester, context in early:
                self.add_read(requester, context)
        reads = self._reads
        if not reads:
            return []
        members = self.log.membership
        if members.voters == (self.node_id,) and not members.voters_out:
            # Nobody else could lead: the majority that must agree is this member. Learners have no
            # say, and may all be away.
            self.is_round_due = False
            self._confirmed_round = self._round_no + 1
        confirmed = []
        while reads and reads[0][0] <= self._confirmed_round:
            _, index, requester, context = reads.popleft()
            confirmed.append((requester, context, index))
        return confirmed

    def unconfirmed_reads(self) -> list[tuple[NodeId, int]]:
        """The reads that this leadership, now over, leaves unanswered."""
        return [*self._early_reads, *((who, context) for _, _, who, context in self._reads)]

    def answer(self, requester: NodeId, context: int, index: Index) -> None:
        """Send a follower the answer to its read."""
        self._outbox.append((requester, ReadAnswer(self.term, context, index)))
        peer = self.peers.get(requester)
        if peer is not None:
            peer.is_commit_due = True  # it reads once it has applied up to `index`

    # --- rest -----------------------------------------------------------------------------------

    def have_all(self) -> bool:
        """True if every other member has the whole log."""
        last = self.log.last_index
        return all(peer.match == last for peer in self.peers.values())

    def is_settled(self, live: frozenset[NodeId]) -> bool:
        """True if nothing is under way here or with any live peer, and these are a quorum."""
        log = self.log
        last = log.last_index
        if not (last == log.commit == log.emitted == log.stable) or log.membership.is_joint:
            return False
        if self.transfer_to or self._reads or self._early_reads or self.is_round_due:
            return False
        for node_id, peer in self.peers.items():
            if node_id not in live:
                continue
            if peer.state != REPLICATE or peer.match != last or peer.commit_sent != last:
                return False
            if peer.is_uncertain or peer.needs_snapshot or peer.round_no != self._round_no:
                return False
        return log.membership.has_quorum(live.__contains__)

    def send_quiesce(self, live: frozenset[NodeId]) -> None:
        """Tell the live peers that there is nothing to wait for."""
        log = self.log
        for node_id in self.peers:
            if node_id in live:
                message = Quiesce(self.term, log.last_index, log.commit)
                self._outbox.append((node_id, message))

    # --- hand-over ------------------------------------------------------------------------------

    def start_transfer(self, node_id: NodeId, *, by_ms: int) -> None:
        """Take no more proposals, bring `node_id` up to date, then have it campaign."""
        peer = self.peers.get(node_id)
        if peer is None or not self.log.membership.is_voter(node_id):
            raise ProposalRejected(f"{node_id} is no other voter of this group")
        if peer.is_uncertain or peer.needs_snapshot or peer.state == DIVERGED:
            raise ProposalRejected(f"{node_id} is not whole")
        self.transfer_to = node_id
        self.transfer_by_ms = by_ms
        self.transfer_sent = False
        self.advance_transfer()

    def best_target(self, preferred: NodeId, is_live: Callable[[NodeId, Peer], bool]) -> NodeId:
        """The live voter that would lead soonest: `preferred` if it can, else the longest log.

        Not one that a joint phase is bringing in: once this leader is gone, it could not end it.
        """
        fit = [
            (-peer.match, node_id)
            for node_id, peer in self.peers.items()
            if self.log.has_vote(node_id)
            and peer.state in (PROBE, REPLICATE)
            and not (peer.is_uncertain or peer.needs_snapshot)
            and is_live(node_id, peer)
        ]
        if any(node_id == preferred for _, node_id in fit):
            return preferred
        return min(fit)[1] if fit else ""

    def advance_transfer(self) -> None:
        """Say "now" once the target holds everything."""
        peer = self.peers.get(self.transfer_to)
        if peer is None:
            self.transfer_to = ""
        elif peer.match == self.log.last_index and not self.transfer_sent:
            self._outbox.append((self.transfer_to, TimeoutNow(self.term)))
            self.transfer_sent = True
