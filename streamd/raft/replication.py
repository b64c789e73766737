"""Replication: what a leader knows of each other member, and what it therefore sends it.

A peer is *probed* with one append at a time until a common entry is found, then *replicated* to
with a window of unanswered appends, and sent to the *snapshot* when what it needs is compacted.
A peer whose log has other content under the same term is *diverged*: it gets nothing more until
it says that it has a snapshot instead, and nothing that it acked before counts. An *uncertain* one
gets all, and counts for nothing.

        probe ---ack of a common entry---> replicate      (any) ---says that it differs---> diverged
          ^  <-----refusal, link broke-----  |                                                 |
          |                                  | what it needs is compacted                      |
          +-----link broke---- snapshot <----+          probe <---acks: a snapshot came--------+
"""

from __future__ import annotations

from collections import deque

from streamd.errors import CorruptionError, is_passing
from streamd.limits import RAFT_APPEND_BYTES, RAFT_APPEND_ENTRIES, RAFT_INFLIGHT_APPENDS
from streamd.raft.log import RaftLog
from streamd.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    Quiesce,
    ReadAnswer,
    SnapshotOffer,
)
from streamd.raft.ready import Outgoing
from streamd.types import Index, NodeId, Term

PROBE = 0
REPLICATE = 1
SNAPSHOT = 2
DIVERGED = 3

STATE_NAMES = ("probe", "replicate", "snapshot", "diverged")


class Progress:
    """Progress of one other member, as the leader knows it.

    `match`: known to hold, durable. `next`: first entry not yet sent. match < next always.
    """

    __slots__ = (
        "certain_from",
        "commit_sent",
        "eager_until_ms",
        "heard_ms",
        "inflight",
        "is_certain_at_once",
        "is_commit_due",
        "is_match_refused",
        "is_paused",
        "is_uncertain",
        "match",
        "needs_snapshot",
        "next",
        "offered_ms",
        "probe_round",
        "round_no",
        "state",
    )

    def __init__(self, next_index: Index, now_ms: int) -> None:
        self.state = PROBE
        self.match: Index = 0
        self.is_match_refused = False  # by the last answer, as if it did not hold it
        self.next: Index = next_index
        self.commit_sent: Index = 0
        self.is_commit_due = False  # it waits for what the commit index tells
        self.eager_until_ms = 0  # until then it hears of every commit at once
        self.inflight: deque[Index] = deque()  # last index of each unanswered append
        self.is_paused = False  # a probe is under way
        self.probe_round = 0  # heartbeat round before the probe; a later answer proves it lost
        self.heard_ms = now_ms
        self.round_no = 0  # last heartbeat round it answered
        self.offered_ms = 0
        self.needs_snapshot = False  # its log is whole, its state is not
        self.is_uncertain = False
        self.certain_from: Index = 0  # it may count again once it holds this entry
        self.is_certain_at_once = False  # ... even before that entry is committed without it

    def probe(self) -> None:
        """Assume that what was sent is lost: start again after the last entry known to be there."""
        self.state = PROBE
        self.next = self.match + 1
        self.commit_sent = 0
        self.inflight.clear()
        self.is_paused = self.is_match_refused = False

    def replicate(self) -> None:
        """A common entry is known: stream what follows it."""
        self.state = REPLICATE
        self.next = self.match + 1
        self.inflight.clear()
        self.is_paused = self.is_match_refused = False

    def __repr__(self) -> str:
        return f"{STATE_NAMES[self.state]} match={self.match} next={self.next}"


class Replication:
    """Appends, heartbeats and snapshot offers of one term of leading, and what peers hold.

    Created when an election is won and thrown away when the term is over, so nothing of an old
    term can leak into a new one.
    """

    __slots__ = (
        "_outbox",
        "commit_at_ms",
        "commit_delay_ms",
        "eager_to",
        "has_doubts",
        "is_round_due",
        "log",
        "node_id",
        "peers",
        "round_no",
        "term",
        "term_start",
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
        self.eager_to: Index = 0  # a commit up to here waits for nothing
        self.log = log
        self._outbox = outbox
        self.term = term
        self.term_start: Index = log.last_index + 1  # the no-op; nothing below commits by count
        self.peers: dict[NodeId, Progress] = {}
        self.round_no = 0
        self.is_round_due = False
        self.has_doubts = False  # some peer is uncertain
        self.follow_membership(now_ms)

    # --- members --------------------------------------------------------------------------------

    def follow_membership(self, now_ms: int) -> None:
        """Keep exactly one `Progress` for each other member of the membership in force."""
        members = self.log.membership.members()
        for node_id in list(self.peers):
            if node_id not in members:
                del self.peers[node_id]
        for node_id in members:
            if node_id != self.node_id and node_id not in self.peers:
                self.peers[node_id] = Progress(self.log.last_index + 1, now_ms)

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
            return self.log.stable  # our own fsync counts like that of any member: when it is done
        peer = self.peers.get(node_id)
        return peer.match if peer is not None and not peer.is_uncertain else 0

    # --- appends --------------------------------------------------------------------------------

    def has_sends_due(self, now_ms: int) -> bool:
        """Return True if a round of heartbeats, or an append, is to be sent."""
        return self.is_round_due or self.has_appends_due(now_ms)

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

    def _owes_commit(self, peer: Progress, now_ms: int) -> bool:
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
                    peer.probe_round = self.round_no
            elif peer.state == REPLICATE:
                while len(peer.inflight) < RAFT_INFLIGHT_APPENDS:
                    if peer.next > self.log.last_index and not self._owes_commit(peer, now_ms):
                        break
                    if not self._send_append(node_id, peer, now_ms):
                        break

    def _send_append(
        self, node_id: NodeId, peer: Progress, now_ms: int, *, is_empty: bool = False
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
                peer.is_paused, peer.probe_round = True, self.round_no
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

    def _offer_snapshot(self, node_id: NodeId, peer: Progress, now_ms: int) -> None:
        peer.state = SNAPSHOT
        peer.inflight.clear()
        self.offer_snapshot(node_id, peer, now_ms)

    def offer_snapshot(self, node_id: NodeId, peer: Progress, now_ms: int) -> None:
        """Say which snapshot there is; what the peer gets of the log stays as it is."""
        log = self.log
        peer.offered_ms = now_ms
        # In memory, and what came before was dropped: a snapshot is taken when it is asked for.
        index, term, chain = log.base if log.snapshot.index < log.base.index else log.snapshot
        offer = SnapshotOffer(self.term, index, term, chain, log.membership_at(index))
        self._outbox.append((node_id, offer))

    def on_append_reply(self, node_id: NodeId, reply: AppendReply) -> bool:
        """Take a peer's answer; True if its match grew, so that more may be committed."""
        peer = self.peers[node_id]
        if reply.is_ok:
            return self._on_accepted(node_id, peer, reply.index)
        if reply.is_diverged:
            peer.state = DIVERGED
            peer.match = 0  # what it acked, it may have acked of another log
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
            # Refused what it acked: an old answer, or it forgot (`recovering`). It is asked again.
            peer.is_paused = 0 < reply.index <= peer.match
        return False

    def _on_accepted(self, node_id: NodeId, peer: Progress, index: Index) -> bool:
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
        return has_grown

    def probe_own_term(self, peer: Progress) -> None:
        """Show a peer that holds more than there is that it differs: by turns, once each round of
        heartbeats, send it the entries of this term from the first on, and what follows the newest
        entry of which both know the chain. The peer may have acked or skipped all below as if that
        were its own, and may even have this term's entries of another leader: those differ from
        the second on."""
        log = self.log
        newest = log.history(log.last_index)[-1].index + 1
        places = [index for index in (self.term_start, newest) if index > log.base_index]
        if peer.state == REPLICATE or not places:
            return  # what is appended next shows it
        if peer.state == PROBE and peer.next in places:
            peer.next = places[-1] if peer.next == places[0] else places[0]
            return
        peer.match = 0  # whatever it acked was of another log
        peer.probe()
        peer.next = places[0]

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
        self.round_no += 1
        self.is_round_due = False
        commit = self.log.commit
        for node_id, peer in self.peers.items():
            beat = Heartbeat(self.term, min(commit, peer.match), self.round_no)
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

    def answer_read(self, requester: NodeId, context: int, index: Index) -> None:
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
        if self.is_round_due:
            return False
        for node_id, peer in self.peers.items():
            if node_id not in live:
                continue
            if peer.state != REPLICATE or peer.match != last or peer.commit_sent != last:
                return False
            if peer.is_uncertain or peer.needs_snapshot or peer.round_no != self.round_no:
                return False
        return log.membership.has_quorum(live.__contains__)

    def send_quiesce(self, live: frozenset[NodeId]) -> None:
        """Tell the live peers that there is nothing to wait for."""
        log = self.log
        for node_id in self.peers:
            if node_id in live:
                message = Quiesce(self.term, log.last_index, log.commit)
                self._outbox.append((node_id, message))
