"""What the core hands to its shell: `Ready`, its parts, and the refusals of a proposal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from streamd.errors import StreamdError
from streamd.raft.messages import Message, SnapshotOffer
from streamd.types import Entry, HardState, Index, NodeId

Token: TypeAlias = int
"""Names one write. Tokens of one core rise; completing one completes all before it, because the
log is written in order."""

Outgoing: TypeAlias = tuple[NodeId, Message]


class NotLeader(StreamdError):
    """Only the leader takes proposals; `leader_hint` is who that is, if known."""

    def __init__(self, leader_hint: NodeId | None) -> None:
        super().__init__(f"not the leader (leader: {leader_hint or 'unknown'})")
        self.leader_hint = leader_hint


class ProposalRejected(StreamdError):
    """The leader cannot take this now; nothing was appended. The text says why."""


@dataclass(slots=True)
class ReadState:
    """A read may be answered once `index` is applied; index 0: not confirmed, ask again."""

    context: int
    index: Index


class Ready:
    """Everything that follows from the inputs since the last `take`. The shell, in this order:

    sends `send_now`; writes `truncate_from`, `entries` and `hard_state` as one write and reports
    it with `persisted(token)`; applies `committed`; answers `read_states`; and takes again while
    `more`. What waits for the write (votes, append replies) the core holds back itself and gives
    in the `send_now` of a later Ready.
    """

    __slots__ = (
        "alerts",
        "committed",
        "dropped",
        "entries",
        "hard_state",
        "is_leader_ready",
        "more",
        "read_states",
        "role_changed",
        "send_now",
        "snapshot_wanted",
        "token",
        "truncate_from",
    )

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.hard_state: HardState | None = None
        self.truncate_from: Index = 0  # entries from here on are void; before `entries`. 0: none
        self.token: Token | None = None  # None: nothing to write
        self.send_now: list[Outgoing] = []
        self.committed: list[Entry] = []
        self.more = False  # more is committed than fitted: take again
        self.read_states: list[ReadState] = []
        self.role_changed = False  # leader, leadership or term is not what it was
        self.is_leader_ready = False  # leader, and its term's no-op is in a `committed` by now
        self.dropped: list[Entry] = []  # tagged proposals overwritten by another leader
        self.snapshot_wanted: tuple[NodeId, SnapshotOffer] | None = None
        self.alerts: list[str] = []  # what an operator must hear: logs that differ


class Write:
    """One write handed out and not yet reported: what it covers and what waits for it."""

    __slots__ = ("held", "last_index", "token")

    def __init__(self, token: Token, last_index: Index, held: list[Outgoing]) -> None:
        self.token = token
        self.last_index = last_index  # lowered when a truncation voids what this write contains
        self.held = held
