"""What a leader knows of one peer, and what it therefore sends it.

A peer is *probed* with one append at a time until a common entry is found, then *replicated* to
with a window of unanswered appends, and sent to the *snapshot* when what it needs is compacted.
A peer whose log has other content under the same term is *diverged*: it gets nothing more until
it says that it has a snapshot instead. An *uncertain* one gets all, and counts for nothing.
"""

from __future__ import annotations

from collections import deque

from streamd.types import Index

PROBE = 0
REPLICATE = 1
SNAPSHOT = 2
DIVERGED = 3

STATE_NAMES = ("probe", "replicate", "snapshot", "diverged")


class Peer:
    """What the leader knows of one other member.

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
        """Doubt what was sent: start again after the last entry known to be there."""
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
