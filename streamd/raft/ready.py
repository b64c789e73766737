"""Output of the core: `Ready` for its shell, the `Outbox` it is filled from, refused proposals."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
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
    """Only the leader takes proposals; `leader_hint` is its name, if known."""

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
    """A write handed out and not yet reported: what it covers and what waits for it."""

    __slots__ = ("held", "last_index", "token")

    def __init__(self, token: Token, last_index: Index, held: list[Outgoing]) -> None:
        self.token = token
        self.last_index = last_index  # lowered when a truncation voids what this write contains
        self.held = held


class Outbox:
    """Everything on its way from the core to its shell that is no entry: messages, promises, news.

    A promise (a vote, an append reply) rests on what is not durable yet: it is *held*, goes with
    the next write, and leaves when that write is reported. `send_now` and `held` are lists that
    the parts of the core append to.
    """

    __slots__ = (
        "_alerts",
        "_dropped",
        "_snapshot_wanted",
        "_token",
        "has_news",
        "held",
        "read_states",
        "role_changed",
        "send_now",
        "writes",
    )

    def __init__(self) -> None:
        self.send_now: list[Outgoing] = []
        self.held: list[Outgoing] = []  # rest on what the next write carries
        self.writes: deque[Write] = deque()  # handed out, not reported
        self.read_states: list[ReadState] = []
        self.role_changed = False
        self.has_news = False  # an alert, a dropped proposal or a wanted snapshot
        self._token: Token = 0
        self._alerts: list[str] = []
        self._dropped: list[Entry] = []
        self._snapshot_wanted: tuple[NodeId, SnapshotOffer] | None = None

    @property
    def is_filled(self) -> bool:
        """True if `take_into` would find something besides a write."""
        return (
            self.role_changed
            or self.has_news
            or bool(self.send_now or self.held or self.read_states)
        )

    def alert(self, text: str) -> None:
        """Tell an operator."""
        self._alerts.append(text)
        self.has_news = True

    def want_snapshot(self, sender: NodeId, offer: SnapshotOffer) -> None:
        """Ask the shell to fetch the snapshot that `sender` offers."""
        self._snapshot_wanted = (sender, offer)
        self.has_news = True

    def drop(self, voided: Iterable[Entry], *, from_index: Index) -> None:
        """Give back the proposals among voided entries; writes report less from now on."""
        self._dropped.extend(entry for entry in voided if entry.tag is not None)
        self.has_news = True
        for write in self.writes:  # what they report durable from here on is void on disk too
            write.last_index = min(write.last_index, from_index - 1)

    def begin_write(self, last_index: Index) -> Token:
        """Note a write of entries up to `last_index`; promises that are held go with it."""
        self._token += 1
        self.writes.append(Write(self._token, last_index, self.held))
        self.held = []
        return self._token

    def release_held(self) -> None:
        """Let promises go that rest on no new write: with the one under way, or at once."""
        if self.writes:
            self.writes[-1].held.extend(self.held)
        else:
            self.send_now.extend(self.held)  # all they rest on is durable already
        self.held = []

    def take_into(self, ready: Ready) -> None:
        """Move all but what is held into `ready`."""
        if self.send_now:
            ready.send_now = self.send_now[:]
            self.send_now.clear()  # the same list: the parts of the core keep it
        if self.read_states:
            ready.read_states, self.read_states = self.read_states, []
        if self.role_changed:
            ready.role_changed = True
            self.role_changed = False
        if self.has_news:
            ready.dropped, self._dropped = self._dropped, []
            ready.alerts, self._alerts = self._alerts, []
            ready.snapshot_wanted, self._snapshot_wanted = self._snapshot_wanted, None
            self.has_news = False
